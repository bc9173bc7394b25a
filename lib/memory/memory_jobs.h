/* SPDX-License-Identifier: Apache-2.0 */
/* Drops memory that earlier jobs left with the agent (T2 to T4 of memory_tier.h). */
#ifndef SHF_MEMORY_JOBS_H
#define SHF_MEMORY_JOBS_H
#include "memory_tier.h"

/* Call it when a job opens the run. Makes the agents drop what earlier jobs left, except for what
 * T3 keeps. [collective] */
int  shf_memory_jobs_drop_old(struct sheaf_run *run, struct sheaf_error *err);
/* Makes the agent drop all that earlier jobs left (T4). Call it when a step of this job is in
 * memory or on disk, which makes the older steps useless (M3). [local] */
void shf_memory_jobs_drop_others(struct sheaf_run *run);
#endif
