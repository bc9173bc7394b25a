/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies a step: every block, header and small file, and that the directory has no other files.
 * [collective] */
#ifndef SHF_VERIFY_STEP_H
#define SHF_VERIFY_STEP_H
#include "verify.h"

/* Verifies all of an open step. Returns 0 if it is right; ECORRUPT if there were findings, each of
 * which was reported; EFORMAT if the step has no checksums; any other code if something kept it
 * from finding out. [collective] */
int shf_step_verify(struct sheaf_checkpoint *step, struct sheaf_report *report,
                    struct sheaf_error *err);
/* As shf_step_verify, but other files in the step's directory are not looked for. It is for callers
 * that ask whether the step can be loaded: tools of others leave such files there (results of an
 * evaluation, .DS_Store), and they say nothing about its bytes. [collective] */
int shf_step_verify_named(struct sheaf_checkpoint *step, struct sheaf_report *report,
                          struct sheaf_error *err);
/* As shf_step_verify_named, and passes verified bytes to the sink. [local] */
int shf_step_verify_into(struct sheaf_checkpoint *step, struct shf_verify_sink *sink,
                         struct sheaf_report *report, struct sheaf_error *err);
/* Returns number and session of the step, as run->lineage keeps them. [local] */
struct shf_saved shf_step_saved(const struct sheaf_checkpoint *step);
#endif
