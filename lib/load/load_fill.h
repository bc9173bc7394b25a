/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out what load.c has planned: reads, checks, and copies into the state. */
#ifndef SHF_LOAD_FILL_H
#define SHF_LOAD_FILL_H
#include "load.h"

/* Lists the boxes that this rank wants, and makes its messages to the home ranks of the plan. Runs
 * before the ranks communicate. ENOMEM. [local] */
int shf_load_fill_prepare(struct shf_load *load, struct sheaf_error *err);
/* Lists the boxes that this rank wants in load->holds, and counts tensors without sums. ENOMEM.
 * [local] */
int shf_load_hold(struct shf_load *load, struct sheaf_error *err);
/* Fills the memory of a slice with zeros. */
void shf_load_zero(const struct shf_slice *s);
/* Makes the plan and fills the state by it. Needs shf_load_fill_prepare and shf_load_asked_unite.
 * The result is the same on all ranks, unless the group is lost. [collective] */
int shf_load_fill(struct shf_load *load, struct sheaf_error *err);
/* Returns how many bytes of staging memory a load on this rank may have. [local] */
uint64_t shf_load_room(const struct sheaf_run *run);
#endif
