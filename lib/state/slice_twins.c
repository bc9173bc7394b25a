/* SPDX-License-Identifier: Apache-2.0 */
#include "slice_twins.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int by_value(int64_t a, int64_t b)
{
	return a < b ? -1 : a > b;
}

/* Orders slices by tensor, box and first unit, so that the same items are beside each other. */
static int by_items(const void *x, const void *y)
{
	const struct shf_slice *a = *(const struct shf_slice *const *)x;
	const struct shf_slice *b = *(const struct shf_slice *const *)y;
	int c = strcmp(a->family, b->family);

	if (c == 0)
		c = strcmp(a->stored, b->stored);
	if (c == 0)
		c = by_value(a->mem.box.ndim, b->mem.box.ndim);
	for (int d = 0; c == 0 && d < a->mem.box.ndim; d++) {
		c = by_value(a->mem.box.start[d], b->mem.box.start[d]);
		if (c == 0)
			c = by_value(a->mem.box.count[d], b->mem.box.count[d]);
	}
	if (c == 0)
		c = by_value(a->mem.lo, b->mem.lo);
	return c ? c : a < b ? -1 : a > b;
}

static bool same_tensor(const struct shf_slice *a, const struct shf_slice *b)
{
	return strcmp(a->family, b->family) == 0 && strcmp(a->stored, b->stored) == 0 &&
	       shf_box_equal(&a->mem.box, &b->mem.box);
}

/* Returns whether unit 0 of the box has the same place in both buffers, and the others follow it
 * in the same way. */
static bool same_strides(const struct shf_mem *a, const struct shf_mem *b)
{
	for (int d = 0; d < a->box.ndim; d++)
		if (a->box.count[d] > 1 && a->stride[d] != b->stride[d])
			return false;
	return true;
}

/* Where the first unit of the box is, or would be if this rank had it. */
static uintptr_t first_unit(const struct shf_slice *s)
{
	return (uintptr_t)s->mem.base + (uintptr_t)(s->mem.origin - s->mem.lo) * s->mem_unit;
}

/* Returns whether a and b, of the same tensor and box, have an item in two places. */
static bool are_twins(const struct shf_slice *a, const struct shf_slice *b)
{
	bool flat = (a->flags | b->flags) & SHEAF_SLICE_FLAT;

	if ((a->flags | b->flags) & SHEAF_SLICE_COPY)
		return false;
	if (flat && (!same_strides(&a->mem, &b->mem) || a->mem.origin != b->mem.origin ||
	             a->mem.lo >= b->mem.hi || b->mem.lo >= a->mem.hi))
		return false;
	return !same_strides(&a->mem, &b->mem) || a->mem_unit != b->mem_unit ||
	       first_unit(a) != first_unit(b);
}

static int twins_fail(const struct sheaf_state *state, const struct shf_slice *a,
                      const struct shf_slice *b, struct sheaf_error *err)
{
	char text[100];

	return shf_fail(err, SHEAF_EINVAL, "slices %zu and %zu are both %s of %s/%s, in different "
	                "memory, so one of them would be lost; give one another name, or set "
	                "SHEAF_SLICE_COPY if both always have the same values",
	                (size_t)(a - state->slices), (size_t)(b - state->slices),
	                shf_box_print(&a->mem.box, text, sizeof(text)), a->family, a->stored);
}

int shf_twins_check(struct sheaf_state *state, struct sheaf_error *err)
{
	const struct shf_slice **all;
	size_t n = 0;
	int rc = 0;

	if (state->n == 0 || state->twins_of == state->version)
		return 0;
	all = shf_alloc(state->n, sizeof(struct shf_slice *));
	if (!all)
		return shf_fail(err, SHEAF_ENOMEM, "a list of %zu slices", state->n);
	for (size_t i = 0; i < state->n; i++) {
		const struct shf_slice *s = &state->slices[i];

		if (!s->owned && !s->empty && s->mem.base && strcmp(s->name, s->stored) == 0)
			all[n++] = s;
	}
	qsort(all, n, sizeof(struct shf_slice *), by_items);
	for (size_t i = 1; rc == 0 && i < n; i++)
		if (same_tensor(all[i - 1], all[i]) && are_twins(all[i - 1], all[i]))
			rc = twins_fail(state, all[i - 1], all[i], err);
	shf_free(all);
	if (rc == 0)
		state->twins_of = state->version;
	return rc;
}
