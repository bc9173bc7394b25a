/* SPDX-License-Identifier: Apache-2.0 */
/* What a map makes of the tensors of a checkpoint: which tensors, and where their items are. */
#ifndef SHF_MAP_PLAN_H
#define SHF_MAP_PLAN_H
#include "layout.h"
#include "map_expr.h"
#include "strided.h"

struct shf_map_box { const struct shf_axis *axis; int n; };     /* in items; the last one fastest */
/* Says that a box of a tensor that is made has the items of a box of a tensor of the source. */
struct shf_map_piece {
	const struct shf_map_box *box;
	uint32_t from;                  /* index of the source tensor */
	uint64_t src, dst;              /* the first item, in both tensors */
	uint64_t span;                  /* items from the first one to the last, in what is made */
};
struct shf_map_made {
	const char *name;
	const char *family;             /* borrowed from the map or the layout */
	int32_t dtype, stored;          /* type that it has, and that of its pieces */
	int32_t ndim;
	const int64_t *dims;
	size_t first, n;                /* its pieces, in ascending order of dst */
	uint64_t items;
	bool padded;                    /* items that no piece has are 0 */
	bool turned;                    /* items that follow one another lie apart in the source */
	int line;                       /* of its rule */
};
struct shf_map_plan {
	struct shf_arena arena;
	struct shf_buf made, pieces;    /* of the structs above; made: family "model" first, then by
	                                 * family and name */
	uint64_t padding;               /* items of the source that are left out as padding */
};
struct shf_map_how {
	int to;                         /* the side that is made */
	const char *family;             /* of the source that is taken; NULL: all */
	const char *prefix;             /* names of the source must begin with it, and it is
	                                 * removed */
	uint64_t work_least;            /* work that is allowed at least; 0: the default */
	/* Reads the first n bytes of a tensor of the source. */
	int (*read)(void *arg, uint32_t tensor, void *to, uint64_t n, struct sheaf_error *err);
	void *arg;
};
/* Makes the plan. path: of the source, for sentences. ELAYOUT: the rules do not fit the tensors, or
 * there are tensors that no rule takes. EINVAL: config.json lacks a number, or is not that of the
 * model. The caller releases *plan, after a failure, too. */
int shf_map_plan_make(struct shf_map_plan *plan, const struct shf_map *m,
                      struct shf_map_config *config, const struct shf_layout *l, const char *path,
                      const struct shf_map_how *how, struct sheaf_error *err);
void shf_map_plan_release(struct shf_map_plan *plan);
#endif
