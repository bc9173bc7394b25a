/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that touches the memory of a load before bytes come, where it is new. */
#ifndef SHF_LOAD_PREFAULT_H
#define SHF_LOAD_PREFAULT_H
#include "load.h"

/* Starts a thread that makes the pages of the caller's memory before they are
 * filled. NULL: they are there already, or no thread can be had. [local] */
struct shf_ahead;
struct shf_ahead *shf_ahead_start(const struct shf_load *load);
/* Stops the thread and waits for it. NULL is fine. */
void shf_ahead_end(struct shf_ahead *ahead);
#endif
