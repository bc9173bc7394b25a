/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the tensors and other values of a pickle of torch. */
#ifndef SHF_TORCH_WALK_H
#define SHF_TORCH_WALK_H
#include "torch_tensor.h"

/* Finds out where a tensor is: *piece gets file, at, and stride, in f's arena. */
typedef int shf_torch_place_fn(void *arg, struct shf_foreign *f, const struct shf_torch_tensor *t,
                               const char *name, struct shf_foreign_piece *piece,
                               struct sheaf_error *err);
/* Adds all tensors and notes of the pickle to f. */
int shf_torch_walk(struct shf_foreign *f, const struct shf_pickle *pickle,
                   shf_torch_place_fn *place, void *arg, struct sheaf_error *err);
#endif
