/* SPDX-License-Identifier: Apache-2.0 */
/* The attached files of an open step. */
#ifndef SHF_STEP_ATTACHED_H
#define SHF_STEP_ATTACHED_H
#include "step.h"

/* Returns the bytes of an attached file; reads and checks it on the first call. The bytes live as
 * long as the step. ENOENT: the step has no attached file of that name. [local] */
int shf_step_attached(struct sheaf_checkpoint *step, const char *file, const void **bytes,
                      size_t *n, struct sheaf_error *err);
#endif
