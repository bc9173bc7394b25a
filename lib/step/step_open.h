/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a step by number, as the newest, from memory or by path, and closes it. The functions are
 * [collective] where they are given a run or a group, else [local]. */
#ifndef SHF_STEP_OPEN_H
#define SHF_STEP_OPEN_H
#include "latest_search.h"
#include "step.h"

struct shf_view;
/* Opens step n, or SHEAF_LATEST, from memory if it is there, else from disk. [collective] */
int shf_step_open(struct sheaf_step **step, struct sheaf_run *run, int64_t n,
                  struct sheaf_error *err);
/* Opens the step on disk, even if memory has it too, so that the caller can check the disk's. */
int shf_step_open_disk(struct sheaf_step **step, struct sheaf_run *run, int64_t n,
                       struct sheaf_error *err);
/* Opens the next candidate of `sought`. What was passed over is in step->passed, or if this fails
 * in sought->passed. [collective] */
int shf_step_open_latest(struct sheaf_step **step, struct sheaf_run *run,
                         struct shf_sought *sought, struct sheaf_error *err);
/* From memory: the view is the step's from here on, also where it fails. `run`: its path, for
 * sentences. */
int shf_step_open_view(struct sheaf_step **step, struct shf_view *view, struct sheaf_group *group,
                       const struct shf_place_info *place, const struct sheaf_opts *opts,
                       const char *run, struct sheaf_error *err);
/* Opens a directory or a file by its path. [collective] */
int shf_step_open_path(struct sheaf_step **step, const char *path, struct sheaf_group *group,
                       const struct sheaf_opts *opts, const struct shf_sys *sys,
                       struct sheaf_error *err);
/* Closes the step. NULL is fine. [local] */
void shf_step_put(struct sheaf_step *step);
/* Reads an attached file, once; the bytes live as long as the step. ENOENT: it has none of that
 * name. [local] */
int shf_step_attached(struct sheaf_step *step, const char *file, const void **bytes, size_t *n,
                      struct sheaf_error *err);
#endif
