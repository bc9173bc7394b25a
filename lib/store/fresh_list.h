/* SPDX-License-Identifier: Apache-2.0 */
/* Answers questions about the steps of a run, such as which is the newest, from a list of the
 * steps. The list is read again if one of them is removed meanwhile. */
#ifndef SHF_FRESH_LIST_H
#define SHF_FRESH_LIST_H
#include "steps.h"

/* Calls judge with the list of steps. If judge returns SHF_STEP_GONE, because a step of the list
 * was removed, the list is old: a job may have committed newer steps before it pruned that one.
 * Then the steps are listed and judged again, so that nothing is concluded from what an old list
 * lacks. After 8 such lists the result is EIO with sys ENOENT. */
int shf_fresh_list_judge(struct shf_store *s,
                         int (*judge)(struct shf_store *s, const struct shf_steps *steps, void *arg,
                                      struct sheaf_error *err),
                         void *arg, struct sheaf_error *err);
/* Returns the newest step older than `step` that a job could load: committed, with all its files,
 * and not marked bad. -1: there is no such step. */
int64_t shf_step_older(struct shf_store *s, int64_t step);
#endif
