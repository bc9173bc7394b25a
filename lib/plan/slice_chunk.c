/* SPDX-License-Identifier: Apache-2.0 */
#include "slice_chunk.h"

/* All results are computed before any is stored, so the slice is as it was on an error. */
int shf_slice_shard(struct sheaf_slice *slice, int dim, int64_t i, int64_t n)
{
	int64_t count, piece, off, start, shift, origin;

	if (!slice || slice->ndim > SHEAF_DIMS_MAX || dim < 0 || dim >= slice->ndim)
		return SHEAF_EINVAL;
	count = slice->count[dim];
	if (count < 0 || i < 0 || i >= n)
		return SHEAF_EINVAL;
	piece = count / n + (count % n != 0);
	/* i * piece could overflow if i is far past the last full piece. Such pieces are empty. */
	off = piece == 0 || i > count / piece ? count : i * piece;
	origin = slice->origin;
	/* If all strides are 0 (dense memory), shift is 0 and origin stays. */
	if (__builtin_mul_overflow(off, slice->stride[dim], &shift) ||
	    __builtin_add_overflow(origin, shift, &origin))
		return SHEAF_EINVAL;
	if (__builtin_add_overflow(slice->start[dim], off, &start))
		return SHEAF_EINVAL;
	slice->start[dim] = start;
	slice->count[dim] = piece < count - off ? piece : count - off;
	slice->origin = origin;
	return 0;
}
