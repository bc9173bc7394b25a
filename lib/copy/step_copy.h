/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a step into another run, as a new checkpoint there. [local]
 *
 * The room lib/copy owns no struct. It sees step and verify: a byte is copied in the pass that
 * proves it. */
#ifndef SHF_STEP_COPY_H
#define SHF_STEP_COPY_H
#include "step.h"

/* Copies a step into the run at `path`, which is made if there is none. If the same save is there
 * already, it is verified instead. [local] */
int shf_step_copy(struct sheaf_step *step, const char *path, struct sheaf_report *report,
                  struct sheaf_error *err);
/* The same if `wanted`, asked when the run there is locked, returns 0. */
int shf_step_copy_if(struct sheaf_step *step, const char *path,
                     int (*wanted)(void *arg, struct shf_store *dst, struct sheaf_error *err),
                     void *arg, struct sheaf_report *report, struct sheaf_error *err);
#endif
