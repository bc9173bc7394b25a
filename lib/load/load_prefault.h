/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that touches new memory of the caller ahead of the copies of a load, so that these do
 * not wait for page faults. */
#ifndef SHF_LOAD_PREFAULT_H
#define SHF_LOAD_PREFAULT_H
#include "load.h"

/* Starts the thread. Returns NULL if a thread would not help (too few bytes of new memory, or one
 * processor) or cannot be created; the load works without it. [local] */
struct shf_load_prefault;
struct shf_load_prefault *shf_load_prefault_start(const struct shf_load *load);
/* Stops the thread, waits for it and frees it. NULL is fine. [local] */
void shf_load_prefault_end(struct shf_load_prefault *ahead);
#endif
