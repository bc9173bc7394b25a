/* SPDX-License-Identifier: Apache-2.0 */
#include "slice_twins.h"
#include <stdlib.h>
#include <string.h>

static int by_value(int64_t a, int64_t b)
{
	return a < b ? -1 : a > b;
}

/* Where the range of a flat slice begins and ends, counted from the first item of its box; a slice
 * that is not flat has all of it. */
static int64_t begins(const struct shf_slice *s)
{
	return s->flags & SHEAF_SLICE_FLAT ? s->mem.lo - s->mem.origin : INT64_MIN;
}

static int64_t ends(const struct shf_slice *s)
{
	return s->flags & SHEAF_SLICE_FLAT ? s->mem.hi - s->mem.origin : INT64_MAX;
}

static int by_tensor_and_box(const struct shf_slice *a, const struct shf_slice *b)
{
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
	return c;
}

/* Slices of the same tensor and box are beside each other then, in the order of their ranges. */
static int by_items(const void *x, const void *y)
{
	const struct shf_slice *a = *(const struct shf_slice *const *)x;
	const struct shf_slice *b = *(const struct shf_slice *const *)y;
	int c = by_tensor_and_box(a, b);

	if (c == 0)
		c = by_value(begins(a), begins(b));
	return c ? c : a < b ? -1 : a > b;
}

/* Returns whether the items of the box follow the first one in the same way in both memories. */
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
	bool same = same_strides(&a->mem, &b->mem);

	if ((a->flags | b->flags) & SHEAF_SLICE_FLAT &&
	    (!same || begins(a) >= ends(b) || begins(b) >= ends(a)))
		return false;
	return !same || a->mem_unit != b->mem_unit || first_unit(a) != first_unit(b);
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

/* Compares n slices in the order of by_items. Each is compared with the one before it that reaches
 * furthest: what overlaps any earlier one overlaps that one, or lies in the same memory as it. Sets
 * *some if two slices have the same tensor and box, wherever their memory is. */
static int compare_all(const struct sheaf_state *state, const struct shf_slice *const *all,
                       size_t n, bool *some, struct sheaf_error *err)
{
	const struct shf_slice *reach = NULL;

	*some = false;
	for (size_t i = 0; i < n; i++) {
		const struct shf_slice *s = all[i];
		bool first = i == 0 || by_tensor_and_box(all[i - 1], s) != 0;

		*some |= !first;
		if (first)
			reach = NULL;
		if (!s->mem.base || s->flags & SHEAF_SLICE_COPY)
			continue;
		if (reach && are_twins(reach, s))
			return twins_fail(state, reach, s, err);
		if (!reach || ends(s) > ends(reach))
			reach = s;
	}
	return 0;
}

/* A state in which no two slices have the same tensor and box, as nearly all are, is compared once
 * for each version; another one again after its memory has moved. */
int shf_twins_check(struct sheaf_state *state, struct sheaf_error *err)
{
	const struct shf_slice **all;
	bool some;
	size_t n = 0;
	int rc;

	if (state->n == 0 || state->twinless_of == state->version ||
	    state->twins_sought_of == state->places)
		return 0;
	all = shf_alloc(state->n, sizeof(struct shf_slice *));
	if (!all)
		return shf_fail(err, SHEAF_ENOMEM, "a list of %zu slices", state->n);
	for (size_t i = 0; i < state->n; i++) {
		const struct shf_slice *s = &state->slices[i];

		if (!s->owned && !s->empty && strcmp(s->name, s->stored) == 0)
			all[n++] = s;
	}
	qsort(all, n, sizeof(struct shf_slice *), by_items);
	rc = compare_all(state, all, n, &some, err);
	shf_free(all);
	if (rc < 0)
		return rc;
	state->twins_sought_of = state->places;
	if (!some)
		state->twinless_of = state->version;
	return 0;
}
