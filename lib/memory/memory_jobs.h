/* SPDX-License-Identifier: Apache-2.0 */
/* What earlier jobs left with the agent (T2 to T4 of memory_tier.h). */
#ifndef SHF_MEMORY_JOBS_H
#define SHF_MEMORY_JOBS_H
#include "memory_tier.h"

/* Call it when a job opens the run. Has the agent drop what earlier jobs left, but for what T3
 * keeps. [collective] */
int  shf_tier_settle(struct sheaf_run *run, struct sheaf_error *err);
/* Has the agent drop all that earlier jobs left (T4). Call it once a step of this job makes that
 * useless (M3). [local] */
void shf_tier_let_others_go(struct sheaf_run *run);
#endif
