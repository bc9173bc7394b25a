/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies a step: every block, header and small file, and what the directory has besides.
 * [collective] */
#ifndef SHF_VERIFY_STEP_H
#define SHF_VERIFY_STEP_H
#include "verify.h"

/* Verifies all of an open step. 0: it is right. ECORRUPT: there were findings, each reported.
 * [collective] */
int shf_step_verify(struct sheaf_step *step, struct sheaf_report *report,
                    struct sheaf_error *err);
/* The same, and what is whole goes to the sink. [local] */
int shf_step_verify_into(struct sheaf_step *step, struct shf_verify_sink *sink,
                         struct sheaf_report *report, struct sheaf_error *err);
/* The step as the record of its run names it. [local] */
struct shf_saved shf_step_saved(const struct sheaf_step *step);
#endif
