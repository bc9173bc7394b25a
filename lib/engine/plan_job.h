/* SPDX-License-Identifier: Apache-2.0 */
/* Predicts what each rank of a job would write and read, in one process that has the states of all
 * ranks. [local] */
#ifndef SHF_PLAN_JOB_H
#define SHF_PLAN_JOB_H
#include "opts.h"
#include "sheaf-plan.h"
#include "state.h"

/* Calls item for each rank, with the bytes that it would hold, write, send and stage. node: node
 * number by rank, NULL: all on one node. [local] */
int shf_plan_job(struct sheaf_state *const *states, const int32_t *node, int32_t ranks,
                 const struct shf_opts *opts,
                 void (*item)(void *arg, const struct sheaf_plan_rank *rank), void *arg,
                 struct sheaf_error *err);
#endif
