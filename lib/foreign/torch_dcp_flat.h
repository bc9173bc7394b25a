/* SPDX-License-Identifier: Apache-2.0 */
/* Flat tensors in directories of torch.distributed.checkpoint that Megatron-Core wrote before 0.14.
 * Its distributed optimizer cuts the state of a parameter into flat ranges. A tensor of shape
 * [X, Y], of which each rank of the model has a box of shape [x, y], is stored as one of shape
 * [X / x, Y / y, x * y]: the last dimension has the items of a box, in row-major order, and each
 * chunk is a range of it. The true shape is in mcore_data of the metadata. */
#ifndef SHF_TORCH_DCP_FLAT_H
#define SHF_TORCH_DCP_FLAT_H
#include "foreign.h"
#include "torch_dcp_index.h"

struct shf_dcp_flats { struct shf_buf a; };     /* owned; of names and shapes, sorted by name */
/* Reads mcore_data of the metadata, if it is there. The pickle must outlive *x. Returns false if
 * there is no memory, or it has an unknown structure. */
bool shf_dcp_flats_read(struct shf_dcp_flats *x, const struct shf_pk *root);
/* Returns the true shape of a tensor, a TUPLE, or NULL if it is not stored flat. */
const struct shf_pk *shf_dcp_flats_shape(const struct shf_dcp_flats *x, const char *name,
                                         uint32_t n);
/* Sets the true dimensions. Returns false if they do not fit the shape in which it is stored. */
bool shf_dcp_flat_dims(int64_t dims[SHEAF_DIMS_MAX], const struct shf_dcp_tensor *t,
                       const struct shf_pk *shape);
/* Adds the pieces of a chunk, which is stored as an item of the file. x: has the true dimensions.
 * Returns how many, or a negative code. */
int shf_dcp_flat_add(struct shf_foreign *f, const struct shf_foreign_tensor *x,
                     const struct shf_dcp_tensor *t, uint32_t chunk, uint32_t file,
                     const struct shf_dcp_place *place, struct sheaf_error *err);
/* Of a piece that shf_dcp_flat_add added, and whose item has not been read, sets *skip to the bytes
 * of the item's tensor before the first one of the piece, and *items to how many the tensor must
 * have. Returns false for any other piece. */
bool shf_dcp_flat_is(const struct shf_foreign_piece *p, int32_t ndim, uint64_t *skip,
                     int64_t *items);
void shf_dcp_flats_release(struct shf_dcp_flats *x);
#endif
