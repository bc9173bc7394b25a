/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the pieces of a tensor tile it. */
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

int shf_foreign_cover(const struct shf_foreign *f, const struct shf_foreign_tensor *x, size_t n,
                      char why[300])
{
	const struct shf_foreign_piece *p = (const void *)f->pieces.data;
	struct shf_arena arena = { 0 };
	struct shf_cell *cells;
	size_t cells_n = 0;
	char text[200];
	int rc;

	p = n ? p + f->pieces.len / sizeof(*p) - n : NULL;
	for (int i = 0; i < x->ndim; i++)
		if (x->dims[i] == 0)
			return 0;
	if (n == 1 && memcmp(p->count, x->dims, (size_t)x->ndim * sizeof(*x->dims)) == 0)
		return 0;
	if (x->ndim > SHEAF_DIMS_MAX) {
		snprintf(why, 300, "has more than 8 dimensions and several chunks, which is not "
		         "read");
		return 1;
	}
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
