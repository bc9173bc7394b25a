/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers bytes of a tensor from its pieces. */
#ifndef SHF_FOREIGN_READ_H
#define SHF_FOREIGN_READ_H
#include "foreign.h"

/* Returns whether strides in bytes, NULL included, are those of the whole tensor row-major without
 * gaps. */
bool shf_foreign_is_row_major(const struct shf_foreign_tensor *t, const int64_t *stride);
/* Writes bytes [at, at + n) of the tensor, row-major, to `to`. [any thread] */
int shf_foreign_gather(struct shf_foreign *f, const struct shf_foreign_tensor *t, uint8_t *to,
                       uint64_t n, uint64_t at, struct sheaf_error *err);
#endif
