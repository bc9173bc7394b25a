/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the pieces of a tensor tile it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "cover_cells.h"
#include "foreign.h"

/* Makes boxes of the n pieces from p on, and lets their cells be counted. */
static int count_cells(struct shf_arena *arena, const struct shf_foreign_tensor *x,
                       const struct shf_foreign_piece *p, size_t n, struct shf_cell **cells,
                       size_t *cells_n)
{
	struct shf_box inside = { .ndim = x->ndim };
	struct shf_box *boxes = shf_arena_alloc(arena, n + 1, sizeof(*boxes));

	if (!boxes)
		return SHEAF_ENOMEM;
	memcpy(inside.count, x->dims, (size_t)x->ndim * sizeof(*x->dims));
	for (size_t i = 0; i < n; i++) {
		boxes[i].ndim = x->ndim;
		memcpy(boxes[i].start, p[i].start, (size_t)x->ndim * sizeof(*p->start));
		memcpy(boxes[i].count, p[i].count, (size_t)x->ndim * sizeof(*p->count));
	}
	return shf_cells(arena, &inside, boxes, n, cells, cells_n) < 0 ? SHEAF_ENOMEM : 0;
}

uint64_t shf_foreign_box_items(const int64_t *count, int32_t ndim)
{
	uint64_t items = 1;

	for (int i = 0; i < ndim; i++)
		if (!shf_mul64(&items, items, (uint64_t)count[i]))
			return UINT64_MAX;
	return items;
}

/* Returns whether the n pieces from p on have more items than the tensor. Boxes that overlap can
 * have so many cells that these are not to be counted. */
static bool is_too_much(const struct shf_foreign_tensor *x, const struct shf_foreign_piece *p,
                        size_t n, char why[300])
{
	uint64_t whole = shf_foreign_box_items(x->dims, x->ndim), sum = 0;

	for (size_t i = 0; i < n; i++)
		if (!shf_add64(&sum, sum, shf_foreign_box_items(p[i].count, x->ndim)))
			sum = UINT64_MAX;
	if (sum <= whole)
		return false;
	snprintf(why, 300, "has %" PRIu64 " items, but its chunks have %" PRIu64 " together, so "
	         "some item is in several chunks", whole, sum);
	return true;
}

/* Returns whether the pieces are what most tensors have: slabs along one axis, one after
 * another. */
static bool is_stack(const struct shf_foreign_tensor *x, const struct shf_foreign_piece *p,
                     size_t n)
{
	int64_t at = 0;
	int axis = 0;

	while (n && axis < x->ndim && p->count[axis] == x->dims[axis])
		axis++;
	if (!n || axis == x->ndim)
		return false;
	for (size_t i = 0; i < n; i++) {
		for (int d = 0; d < x->ndim; d++)
			if (d != axis && (p[i].start[d] || p[i].count[d] != x->dims[d]))
				return false;
		if (p[i].start[axis] != at || p[i].count[axis] > x->dims[axis] - at)
			return false;
		at += p[i].count[axis];
	}
	return at == x->dims[axis];
}

int shf_foreign_tiles(const struct shf_foreign_piece *p, size_t n,
                      const struct shf_foreign_tensor *x, char why[300])
{
	struct shf_arena arena = { 0 };
	struct shf_cell *cells;
	size_t cells_n = 0;
	char text[200];
	int rc;

	for (int i = 0; i < x->ndim; i++)
		if (x->dims[i] == 0)
			return 0;
	if (n == 1 && memcmp(p->count, x->dims, (size_t)x->ndim * sizeof(*x->dims)) == 0)
		return 0;
	if (x->ndim > SHEAF_DIMS_MAX) {
		snprintf(why, 300, "has more than 8 dimensions and several chunks, which sheaf "
		         "does not read");
		return 1;
	}
	if (is_stack(x, p, n))
		return 0;
	if (is_too_much(x, p, n, why))
		return 1;
	rc = count_cells(&arena, x, p, n, &cells, &cells_n);
	for (size_t i = 0; rc == 0 && i < cells_n; i++) {
		if (cells[i].set_n == 1)
			continue;
		snprintf(why, 300, cells[i].set_n ? "%s is in several chunks"
		         : "%s is in no chunk; the metadata of a rank may be missing",
		         shf_box_print(&cells[i].box, text, sizeof(text)));
		rc = 1;
	}
	shf_arena_release(&arena);
	return rc;
}

int shf_foreign_cover(const struct shf_foreign *f, const struct shf_foreign_tensor *x, size_t n,
                      char why[300])
{
	const struct shf_foreign_piece *p = (const void *)f->pieces.data;

	return shf_foreign_tiles(n ? p + f->pieces.len / sizeof(*p) - n : NULL, n, x, why);
}
