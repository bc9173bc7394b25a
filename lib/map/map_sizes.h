/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the axes of a rule, for tensors at hand, and where the items of a cell are. */
#ifndef SHF_MAP_SIZES_H
#define SHF_MAP_SIZES_H
#include "map_expr.h"

struct shf_map_sizes {
	const struct shf_map *map;
	const struct shf_map_rule *rule;
	struct shf_map_values *values;
	int64_t size[SHF_MAP_AXES_MAX]; /* -1: not known */
};
struct shf_map_dims { const char *name; int32_t ndim; const int64_t *dims; };  /* of a tensor */

void shf_map_sizes_init(struct shf_map_sizes *s, const struct shf_map *m,
                        const struct shf_map_rule *r, struct shf_map_values *v);
/* Adds the sizes that follow from the dimensions `have` of a tensor of pattern t. Returns whether
 * there is a new one, or a negative code. */
int shf_map_sizes_take(struct shf_map_sizes *s, const struct shf_map_tensor *t,
                       const struct shf_map_dims *have, struct sheaf_error *err);
/* Sets dims to the dimensions that a tensor of pattern t has. ELAYOUT: a size is unknown, or they
 * are beyond 63 bits. */
int shf_map_sizes_dims(struct shf_map_sizes *s, const struct shf_map_tensor *t,
                       int64_t dims[SHEAF_DIMS_MAX], struct sheaf_error *err);
/* ELAYOUT: the tensor's dimensions differ from its pattern's. */
int shf_map_sizes_match(struct shf_map_sizes *s, const struct shf_map_tensor *t,
                        const struct shf_map_dims *have, struct sheaf_error *err);
/* Sets *base to the place of the first item of a cell, and stride[axis], of each axis in its
 * dimensions, to the distance of its items, in items of a row-major tensor with these dims. */
void shf_map_sizes_place(struct shf_map_sizes *s, const struct shf_map_tensor *t,
                         const struct shf_map_cell *c, const int64_t *dims, uint64_t *base,
                         uint64_t stride[SHF_MAP_AXES_MAX]);
#endif
