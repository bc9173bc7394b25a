/* SPDX-License-Identifier: Apache-2.0 */
/* Small files that belong to a checkpoint, such as config.json: attached to a step of Sheaf, in the
 * directory of another checkpoint, or beside it if it is a file. */
#ifndef SHF_STEP_BESIDE_H
#define SHF_STEP_BESIDE_H
#include "step.h"

#define SHF_BESIDE_MAX (UINT64_C(64) << 20)     /* largest file */

/* Reads such a file of the step, or of the one behind the maps that show it. Appends its bytes to
 * *out, which must be empty. Returns 1, or 0 if there is no such file. [local] */
int shf_step_beside(struct sheaf_checkpoint *step, const char *name, struct shf_buf *out,
                    struct sheaf_error *err);
#endif
