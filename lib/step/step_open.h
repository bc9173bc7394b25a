/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a step by number, as the latest, from memory or by path, and closes it. Functions that are
 * given a run or a group are [collective], the others [local]. */
#ifndef SHF_STEP_OPEN_H
#define SHF_STEP_OPEN_H
#include "latest_search.h"
#include "step.h"

struct shf_view;
/* Opens step n, or the latest one for SHEAF_LATEST, from agents' memory if the step is there, else
 * from disk. [collective] */
int shf_step_open(struct sheaf_checkpoint **step, struct sheaf_run *run, int64_t n,
                  struct sheaf_error *err);
/* Opens step n from disk even if it is in memory as well, for a caller that checks the disk.
 * [collective] */
int shf_step_open_disk(struct sheaf_checkpoint **step, struct sheaf_run *run, int64_t n,
                       struct sheaf_error *err);
/* Opens the candidate for the latest step that follows sought->after, and sets sought->at.
 * Candidates that were passed over are listed in step->passed, or in sought->passed if the call
 * fails. [collective] */
int shf_step_open_latest(struct sheaf_checkpoint **step, struct sheaf_run *run,
                         struct shf_latest_search *sought, struct sheaf_error *err);
/* Opens the step in memory that `view` shows. Takes over the view, also on failure. run, name: path
 * of the run and name of the step's folder in it, for messages. [collective] */
int shf_step_open_view(struct sheaf_checkpoint **step, struct shf_view *view,
                       struct sheaf_group *group,
                       const struct shf_nodes *place, const struct shf_opts *opts,
                       const char *run, const char *name, struct sheaf_error *err);
/* Opens a directory or a file by its path. [collective] */
int shf_step_open_path(struct sheaf_checkpoint **step, const char *path, struct sheaf_group *group,
                       const struct shf_opts *opts, const struct shf_sys *sys,
                       struct sheaf_error *err);
/* Opens what the caller shows as a foreign checkpoint, only in this process. Takes over f, also on
 * failure. [local] */
int shf_step_open_shown(struct sheaf_checkpoint **step, struct shf_foreign *f,
                        const struct shf_opts *opts, struct sheaf_error *err);
/* Reads the table and the headers of a step that is asleep. Returns 0 if the step is awake already,
 * even if it is broken. A failure is kept in cat_rc. [local: the step has
 * one rank] */
int shf_step_wake(struct sheaf_checkpoint *step, struct sheaf_error *err);
/* Takes a reference to the step. [local] */
void shf_step_get(struct sheaf_checkpoint *step);
/* Drops a reference; the last one closes the step. NULL is fine. [local] */
void shf_step_put(struct sheaf_checkpoint *step);
#endif
