/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out what load.c has planned: reads, checks, and copies into the state. */
#ifndef SHF_LOAD_FILL_H
#define SHF_LOAD_FILL_H
#include "load.h"

/* Plan, read, check, scatter. [collective] */
int shf_fill(struct shf_load *load, struct sheaf_error *err);
/* How much memory for staging a load of this rank may have. [local] */
uint64_t shf_load_room(const struct sheaf_run *run);
#endif
