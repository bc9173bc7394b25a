/* SPDX-License-Identifier: Apache-2.0 */
/* paddle.save files: a pickle in which tensors are NumPy arrays. */
#ifndef SHF_PADDLE_TENSOR_H
#define SHF_PADDLE_TENSOR_H
#include "numpy_array.h"

#define SHF_PADDLE_NAMES "StructuredToParameterName@@"
#define SHF_PADDLE_PARTS "UnpackBigParamInfor@@"

/* Returns whether v is a tensor: an array; a tuple of its name and an array; or one of a static
 * graph. NumPy has no bfloat16, so paddle writes its bits as uint16, and reads uint16 as it: such a
 * tensor is BF16. */
enum shf_tensor_kind shf_paddle_tensor_of(struct shf_numpy_array *a, const struct shf_pk *v,
                                          const char **why);
/* Reads the pickle that fills the region. taker: NULL: none. The caller releases *p after a
 * failure, too. */
int shf_paddle_read(struct shf_pickle *p, const struct shf_region *r,
                    const struct shf_pickle_taker *taker, struct sheaf_error *err);
/* Returns whether the file begins with a pickle that has NumPy arrays, or the names that
 * paddle.save adds. */
int shf_paddle_is_pickle(const struct shf_region *r, struct sheaf_error *err);
#endif
