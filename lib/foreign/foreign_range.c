/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a tensor that is stored as a range of its items, or of those of a box of it. */
#include <string.h>
#include "box.h"
#include "dtype.h"
#include "err.h"
#include "foreign.h"
#include "valid.h"

/* Adds one box of a range as a piece. part: counted from the start of the outer box, whose items
 * have these strides. lo: bytes of the outer box before the range. */
static int range_add_box(struct shf_foreign *f, const struct shf_box *outer,
                         const struct shf_box *part, const int64_t *stride, uint64_t lo,
                         const struct shf_foreign_range *r, struct sheaf_error *err)
{
	int64_t *start = shf_foreign_numbers(f, (size_t)outer->ndim);
	int64_t *count = shf_foreign_numbers(f, (size_t)outer->ndim);
	struct shf_foreign_piece p = { .start = start, .count = count, .stride = stride,
		.file = r->file, .text = r->text };
	uint64_t from = 0;

	if (!start || !count)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
		                f->path);
	for (int d = 0; d < outer->ndim; d++) {
		from += (uint64_t)(part->start[d] * stride[d]);
		start[d] = outer->start[d] + part->start[d];
		count[d] = part->count[d];
	}
	p.at = r->at + from - lo;
	shf_buf_add(&f->pieces, &p, sizeof(p));
	return f->pieces.oom ? shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
	                                f->path) : 0;
}

int shf_foreign_add_range(struct shf_foreign *f, const struct shf_foreign_tensor *x,
                          const struct shf_foreign_range *r, struct sheaf_error *err)
{
	struct shf_box outer = { .ndim = x->ndim }, parts[SHF_RANGE_BOXES_MAX];
	struct shf_shape shape = { .ndim = x->ndim };
	int64_t item = shf_dtype(x->dtype)->bits / 8, row = item, *stride;
	int n, rc = 0;

	if (x->ndim > SHEAF_DIMS_MAX)
		return shf_fail(err, SHEAF_EFORMAT, "%s: a tensor has more than 8 dimensions and "
		                "is stored in several parts, which is not read", f->path);
	stride = shf_foreign_numbers(f, (size_t)x->ndim);
	if (!stride)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
		                f->path);
	for (int d = x->ndim - 1; d >= 0; d--) {
		outer.start[d] = r->start ? r->start[d] : 0;
		shape.dim[d] = r->start ? r->count[d] : x->dims[d];
		stride[d] = row;
		row *= shape.dim[d];
	}
	n = shf_range_boxes(&shape, r->lo, r->hi, parts);
	for (int i = 0; i < n && rc == 0; i++)
		rc = range_add_box(f, &outer, &parts[i], stride, r->lo * (uint64_t)item, r, err);
	return rc < 0 ? rc : n;
}
