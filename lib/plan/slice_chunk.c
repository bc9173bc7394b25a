/* SPDX-License-Identifier: Apache-2.0 */
#include "slice_chunk.h"
#include <inttypes.h>
#include "err.h"

/* All results are computed before any is stored, so the slice is as it was on an error. */
int shf_slice_shard(struct sheaf_slice *slice, int dim, int64_t i, int64_t n,
                    struct sheaf_error *err)
{
	int64_t count, piece, off, start, shift, origin;

	if (!slice)
		return shf_fail(err, SHEAF_EINVAL, "argument 'slice' is NULL");
	if (slice->flags & SHEAF_SLICE_FLAT)
		return shf_fail(err, SHEAF_EINVAL, "SHEAF_SLICE_FLAT is set; cut the box first, "
		                "and set the flat range of the piece afterwards");
	if (slice->ndim > SHEAF_DIMS_MAX || dim < 0 || dim >= slice->ndim)
		return shf_fail(err, SHEAF_EINVAL, "there is no dimension %d; the slice has %d",
		                dim,
		                (int)slice->ndim);
	count = slice->count[dim];
	if (count < 0 || i < 0 || i >= n)
		return shf_fail(err, SHEAF_EINVAL,
		                "piece %" PRId64 " of %" PRId64 " of the %" PRId64 " items of "
		                "dimension %d; pieces must be counted from 0 to n - 1", i, n, count,
		                dim);
	piece = count / n + (count % n != 0);
	/* i * piece could overflow if i is far past the last full piece. Such pieces are empty. */
	off = piece == 0 || i > count / piece ? count : i * piece;
	origin = slice->origin;
	/* If all strides are 0 (dense memory), shift is 0 and origin stays. */
	if (__builtin_mul_overflow(off, slice->stride[dim], &shift) ||
	    __builtin_add_overflow(origin, shift, &origin) ||
	    __builtin_add_overflow(slice->start[dim], off, &start))
		return shf_fail(err, SHEAF_EINVAL,
		                "piece %" PRId64 " of dimension %d begins beyond "
		                "what 64 bits can count", i, dim);
	slice->start[dim] = start;
	slice->count[dim] = piece < count - off ? piece : count - off;
	slice->origin = origin;
	return 0;
}
