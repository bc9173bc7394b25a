/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers digests and block sums of all ranks on rank 0 and compares them. */
#ifndef SHF_SAVE_SUMS_H
#define SHF_SAVE_SUMS_H
#include "save.h"

/* Compares them, and makes the bytes of sheaf.sums on rank 0. [collective] */
int shf_sums_gather(struct sheaf_save *save, struct shf_arena *arena, struct shf_sums_out *out,
                    struct sheaf_error *err);
#endif
