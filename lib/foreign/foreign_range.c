/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a tensor that is stored as a range of the items of the tensor, or of a box of it. */
#include <string.h>
#include "box.h"
#include "dtype.h"
#include "err.h"
#include "foreign.h"
#include "valid.h"

/* A range that is being turned into pieces. */
struct range_make {
	struct shf_buf *pieces;
	struct shf_arena *arena;
	const char *path;
	const struct shf_foreign_range *range;
	struct shf_box outer;           /* the box that the range is of */
	int64_t *stride;                /* of its items */
	uint64_t lo;                    /* bytes of it before the range */
	struct sheaf_error *err;
};

static int range_no_memory(const struct range_make *m)
{
	return shf_fail(m->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", m->path);
}

/* Adds one box of a range as a piece. part: counted from the start of the outer box. */
static int range_add_box(const struct range_make *m, const struct shf_box *part)
{
	int64_t *start = shf_arena_alloc(m->arena, (size_t)part->ndim, sizeof(*start));
	int64_t *count = shf_arena_alloc(m->arena, (size_t)part->ndim, sizeof(*count));
	struct shf_foreign_piece p = { .start = start, .count = count, .stride = m->stride,
		.file = m->range->file, .text = m->range->text };
	uint64_t from = 0;

	if (!start || !count)
		return range_no_memory(m);
	for (int d = 0; d < part->ndim; d++) {
		from += (uint64_t)(part->start[d] * m->stride[d]);
		start[d] = m->outer.start[d] + part->start[d];
		count[d] = part->count[d];
	}
	p.at = m->range->at + from - m->lo;
	shf_buf_add(m->pieces, &p, sizeof(p));
	return m->pieces->oom ? range_no_memory(m) : 0;
}

int shf_foreign_make_range(struct shf_buf *pieces, struct shf_arena *arena, const char *path,
                           const struct shf_foreign_tensor *x, const struct shf_foreign_range *r,
                           struct sheaf_error *err)
{
	int64_t item = shf_dtype(x->dtype)->bits / 8, row = item;
	struct range_make m = { .pieces = pieces, .arena = arena, .path = path, .range = r,
		.outer = { .ndim = x->ndim }, .lo = r->lo * (uint64_t)item, .err = err };
	struct shf_box parts[SHF_RANGE_BOXES_MAX];
	struct shf_shape shape = { .ndim = x->ndim };
	int n, rc = 0;

	if (x->ndim > SHEAF_DIMS_MAX)
		return shf_fail(err, SHEAF_EFORMAT, "%s: a tensor has more than 8 dimensions and "
		                "is stored in several parts, which sheaf does not read", path);
	m.stride = shf_arena_alloc(arena, (size_t)x->ndim, sizeof(*m.stride));
	if (!m.stride)
		return range_no_memory(&m);
	for (int d = x->ndim - 1; d >= 0; d--) {
		m.outer.start[d] = r->start ? r->start[d] : 0;
		shape.dim[d] = r->start ? r->count[d] : x->dims[d];
		m.stride[d] = row;
		row *= shape.dim[d];
	}
	n = shf_range_boxes(&shape, r->lo, r->hi, parts);
	for (int i = 0; i < n && rc == 0; i++)
		rc = range_add_box(&m, &parts[i]);
	return rc < 0 ? rc : n;
}

int shf_foreign_add_range(struct shf_foreign *f, const struct shf_foreign_tensor *x,
                          const struct shf_foreign_range *r, struct sheaf_error *err)
{
	return shf_foreign_make_range(&f->pieces, &f->arena, f->path, x, r, err);
}
