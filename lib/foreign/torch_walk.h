/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what a pickle of torch holds: tensors by the path of keys that leads to them, joined by
 * dots, and all other values as notes. */
#ifndef SHF_TORCH_WALK_H
#define SHF_TORCH_WALK_H
#include "foreign.h"
#include "torch_tensor.h"

/* Finds out where a tensor is: *piece gets file, at, and stride, in f's arena. */
typedef int shf_torch_place_fn(void *arg, struct shf_foreign *f, const struct shf_torch_tensor *t,
                               const char *name, struct shf_foreign_piece *piece,
                               struct sheaf_error *err);
/* Adds all tensors and notes of the pickle to f. */
int shf_torch_walk(struct shf_foreign *f, const struct shf_pickle *pickle,
                   shf_torch_place_fn *place, void *arg, struct sheaf_error *err);
/* Writes a value that is no container and no tensor as a text; false: it is none. */
bool shf_torch_scalar(struct shf_buf *out, const struct shf_pk *v);
#endif
