/* SPDX-License-Identifier: Apache-2.0 */
/* What earlier jobs left with the agent (T2 to T4 of memory_tier.h). */
#ifndef SHF_MEMORY_JOBS_H
#define SHF_MEMORY_JOBS_H
#include "memory_tier.h"

/* A job has opened the run: drops what earlier jobs left, but for what T3 keeps.
 * [collective] */
int  shf_tier_settle(struct sheaf_run *run, struct sheaf_error *err);
/* Drops all that earlier jobs left (T4), when it is of no use any more (M3). [local] */
void shf_tier_let_others_go(struct sheaf_run *run);
#endif
