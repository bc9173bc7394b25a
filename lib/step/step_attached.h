/* SPDX-License-Identifier: Apache-2.0 */
/* The attached files of an open step. */
#ifndef SHF_STEP_ATTACHED_H
#define SHF_STEP_ATTACHED_H
#include "step.h"

/* Returns the opaque bytes that a rank gave to sheaf_save_rank_bytes. They lie in an attached file
 * that is read and checked on the first call, and live as long as the step. EINVAL: no stream can
 * have that name, or no rank that number. ENOENT: the rank gave none. EFORMAT: the attached file
 * has another form. [local] */
int shf_step_rank_bytes(struct sheaf_checkpoint *step, const char *stream, int32_t rank,
                        const void **bytes, size_t *n, struct sheaf_error *err);
/* Returns the bytes of an attached file; reads and checks it on the first call. The bytes live as
 * long as the step. ENOENT: the step has no attached file of that name. [local] */
int shf_step_attached(struct sheaf_checkpoint *step, const char *file, const void **bytes,
                      size_t *n, struct sheaf_error *err);
#endif
