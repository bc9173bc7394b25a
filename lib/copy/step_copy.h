/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a step into another run, as a new checkpoint there. [local]
 *
 * The room lib/copy owns no struct. It uses lib/step and lib/verify: each byte is copied in the
 * pass that verifies it. */
#ifndef SHF_STEP_COPY_H
#define SHF_STEP_COPY_H
#include "step.h"

/* Copies a step into the run at `path`, which is created if it does not exist. If the run has the
 * same save already, the step there is verified instead. report->held becomes the number of bytes
 * written. [local] */
int shf_step_copy(struct sheaf_checkpoint *step, const char *path, struct sheaf_report *report,
                  struct sheaf_error *err);
/* Does what shf_step_copy does if `wanted` is NULL or returns 0; otherwise returns the code of
 * `wanted`, and copies nothing. `wanted` is called with the lock of the destination run held. With
 * `wanted`, a bad step of the same number in that run is set aside, as by a save; without, it is
 * EEXIST. */
int shf_step_copy_if(struct sheaf_checkpoint *step, const char *path,
                     int (*wanted)(void *arg, struct shf_store *dst, struct sheaf_error *err),
                     void *arg, struct sheaf_report *report, struct sheaf_error *err);
#endif
