/* SPDX-License-Identifier: Apache-2.0 */
/* Where the items of a tensor of torch lie in its storage. */
#ifndef SHF_TORCH_PLACE_H
#define SHF_TORCH_PLACE_H
#include "foreign.h"
#include "torch_tensor.h"

/* Sets *at to the byte of the first item, counted from the start of the storage of that key, and
 * strides in bytes for the ndim dimensions and, if it is a pair, for one more. have: bytes of that
 * storage in the file. EFORMAT: the storage or the tensor is longer. */
int shf_torch_place(const struct shf_torch_tensor *t, uint64_t have, const char *where,
                    const char *name, uint64_t *at, int64_t *stride, struct sheaf_error *err);
/* Describes the tensor as it is shown: with the dimension of a pair. dims has room for
 * SHF_FOREIGN_DIMS_MAX. */
struct shf_foreign_tensor shf_torch_shown(const struct shf_torch_tensor *t, int64_t *dims);
#endif
