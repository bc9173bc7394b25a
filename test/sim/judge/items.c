/* SPDX-License-Identifier: Apache-2.0 */
#include "items.h"
#include <stdbool.h>
#include <string.h>

int64_t items_n(const struct sheaf_slice *s)
{
	int64_t n = 1;

	for (int d = 0; d < s->ndim; d++)
		n *= s->count[d];
	return n;
}

static void strides(const struct sheaf_slice *s, int64_t stride[SHEAF_DIMS_MAX])
{
	int64_t by = 1;
	bool dense = true;

	for (int d = s->ndim - 1; d >= 0; d--) {
		dense &= s->stride[d] == 0;
		stride[d] = by;
		by *= s->count[d] ? s->count[d] : 1;
	}
	if (!dense)
		memcpy(stride, s->stride, sizeof(s->stride));
}

void items_each(const struct sheaf_slice *s, void (*item)(void *arg, int64_t global, int64_t at),
                void *arg)
{
	int64_t stride[SHEAF_DIMS_MAX], i[SHEAF_DIMS_MAX] = { 0 };

	strides(s, stride);
	for (int64_t left = items_n(s); left > 0; left--) {
		int64_t global = 0, at = s->origin;

		for (int d = 0; d < s->ndim; d++) {
			at += i[d] * stride[d];
			global = global * s->shape[d] + s->start[d] + i[d];
		}
		for (int d = s->ndim - 1; d >= 0 && ++i[d] == s->count[d]; d--)
			i[d] = 0;
		if (s->flags & SHEAF_SLICE_FLAT) {
			if (at < s->flat_start || at >= s->flat_start + s->flat_count)
				continue;
			at -= s->flat_start;
		}
		item(arg, global, at);
	}
}

int64_t items_span(const struct sheaf_slice *s)
{
	int64_t stride[SHEAF_DIMS_MAX], top = s->origin;

	if (s->flags & SHEAF_SLICE_FLAT)
		return s->flat_count;
	if (items_n(s) == 0)
		return 0;
	strides(s, stride);
	for (int d = 0; d < s->ndim; d++)
		top += (s->count[d] - 1) * stride[d];
	return top + 1;
}

void items_cut(struct sheaf_slice *s, int dim, int64_t i, int64_t n)
{
	int64_t per = (s->count[dim] + n - 1) / n, from = i * per, to = from + per;

	from = from < s->count[dim] ? from : s->count[dim];
	to = to < s->count[dim] ? to : s->count[dim];
	s->start[dim] += from;
	s->count[dim] = to - from;
}
