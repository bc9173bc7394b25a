/* SPDX-License-Identifier: Apache-2.0 */
/* Cells: a sweep along dimension 0, which stops wherever a box begins or ends. Between two stops
 * lies a slab; the boxes that cover it are swept along the next dimension, and so on.
 *
 * Always true: the active boxes of a level are in ascending order and cover the slab of every
 * dimension above; each level has buffers of its own, so one allocation serves the whole walk. */
#include "cover_cells.h"
#include <stdlib.h>
#include <string.h>

/* Where a box begins along the dimension that is swept. */
struct start {
	int64_t at;
	uint32_t box;
};

/* The buffers of one dimension. `active` lists the boxes that cover the current slab. `next` gets
 * the list for the slab after it; then the two are swapped. */
struct level {                          /* borrowed from struct sweep */
	struct start *starts;
	int64_t *bounds;
	uint32_t *active, *next;
};

struct sweep {
	struct shf_arena *arena;
	const struct shf_box *inside, *boxes;
	struct level level[SHEAF_DIMS_MAX];
	struct start *starts;           /* owned */
	int64_t *bounds;                /* owned */
	uint32_t *ids;                  /* owned */
	struct shf_box at;              /* the current slab of each dimension */
	struct shf_cell *cells;         /* owned */
	size_t cells_n, cells_max;
	/* Indices of the cells in the last slab of dimension 0 (open) and in this one (fresh), in
	 * the order of the sweep. open_i is the position in `open` of the next cell to compare
	 * with. */
	size_t *open, *fresh;           /* owned */
	size_t open_n, open_i, fresh_n;
};

/* Compares starts by position, then by box: boxes that begin at the same place are added to the
 * active set in ascending order. */
static int compare_starts(const void *a, const void *b)
{
	const struct start *x = a, *y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return x->box < y->box ? -1 : x->box > y->box;
}

static int compare_bounds(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

/* Compares the cross-sections of a and b (all dimensions but 0) by their starts, in the order of
 * the sweep. */
static int compare_sections(const struct shf_box *a, const struct shf_box *b)
{
	for (int d = 1; d < a->ndim; d++) {
		if (a->start[d] != b->start[d])
			return a->start[d] < b->start[d] ? -1 : 1;
	}
	return 0;
}

/* Returns whether a and b have the same cross-section: all dimensions but 0 are equal. */
static bool same_section(const struct shf_box *a, const struct shf_box *b)
{
	for (int d = 1; d < a->ndim; d++) {
		if (a->start[d] != b->start[d] || a->count[d] != b->count[d])
			return false;
	}
	return true;
}

/* Returns whether the cell has this set. An empty set is stored as NULL, which must not be passed
 * to memcmp(). */
static bool cell_has_set(const struct shf_cell *c, const uint32_t *set, size_t n)
{
	return c->set_n == n && (n == 0 || memcmp(c->set, set, n * sizeof(*set)) == 0);
}

/* Grows the cells and both lists of indices together: a list holds at most one index for each
 * cell. Each pointer is stored as soon as it is valid, so a failure in the middle leaks
 * nothing. */
static int cells_grow(struct sweep *w)
{
	size_t max = w->cells_max ? 2 * w->cells_max : 16;
	struct shf_cell *cells;
	size_t *list;

	if (w->cells_n < w->cells_max)
		return 0;
	cells = shf_realloc(w->cells, max, sizeof(*cells));
	if (!cells)
		return SHEAF_ENOMEM;
	w->cells = cells;
	list = shf_realloc(w->open, max, sizeof(*list));
	if (!list)
		return SHEAF_ENOMEM;
	w->open = list;
	list = shf_realloc(w->fresh, max, sizeof(*list));
	if (!list)
		return SHEAF_ENOMEM;
	w->fresh = list;
	w->cells_max = max;
	return 0;
}

/* Adds the cell at the current position. If the last slab of dimension 0 has a cell of the same
 * cross-section and the same set, that cell grows along dimension 0; slabs follow each other
 * without a gap. Otherwise a new cell is made. Without the growing, one cut along dimension 0 would
 * cut all cells.
 *
 * The cells of the last slab come in the order of the sweep, and so do those of this one, so open_i
 * moves forward only and the merge takes linear time. */
static int cell_emit(struct sweep *w, const uint32_t *set, uint32_t n)
{
	struct shf_cell *c;
	uint32_t *copy = NULL;

	while (w->open_i < w->open_n &&
	       compare_sections(&w->cells[w->open[w->open_i]].box, &w->at) < 0)
		w->open_i++;
	if (w->open_i < w->open_n) {
		c = &w->cells[w->open[w->open_i]];
		if (same_section(&c->box, &w->at) && cell_has_set(c, set, n)) {
			c->box.count[0] += w->at.count[0];
			w->fresh[w->fresh_n++] = w->open[w->open_i];
			return 0;
		}
	}
	if (cells_grow(w) < 0)
		return SHEAF_ENOMEM;
	if (n > 0) {
		copy = shf_arena_alloc(w->arena, n, sizeof(*copy));
		if (!copy)
			return SHEAF_ENOMEM;
		memcpy(copy, set, n * sizeof(*copy));
	}
	w->fresh[w->fresh_n++] = w->cells_n;
	w->cells[w->cells_n++] = (struct shf_cell){ .box = w->at, .set = copy, .set_n = n };
	return 0;
}

/* Ends a slab of dimension 0: its cells become those of the last slab. The two lists change places,
 * and no memory is allocated. */
static void slab_end(struct sweep *w)
{
	size_t *list = w->open;

	w->open = w->fresh;
	w->open_n = w->fresh_n;
	w->open_i = 0;
	w->fresh = list;
	w->fresh_n = 0;
}

/* Return the start and the end of a box along dimension d, cut to `inside`. */
static int64_t clip_start(const struct sweep *w, uint32_t box, int d)
{
	int64_t a = w->boxes[box].start[d], b = w->inside->start[d];

	return a > b ? a : b;
}

static int64_t clip_end(const struct sweep *w, uint32_t box, int d)
{
	int64_t a = w->boxes[box].start[d] + w->boxes[box].count[d];
	int64_t b = w->inside->start[d] + w->inside->count[d];

	return a < b ? a : b;
}

/* Returns whether all boxes of the set reach from one end of dimension d to the other. The set does
 * not change along it then, and one slab is enough. Tensors mostly are cut in one dimension or two,
 * so the other levels cost this test only. */
static bool all_cross(const struct sweep *w, int d, const uint32_t *set, uint32_t n)
{
	int64_t start = w->inside->start[d], end = start + w->inside->count[d];

	for (uint32_t i = 0; i < n; i++) {
		if (clip_start(w, set[i], d) != start || clip_end(w, set[i], d) != end)
			return false;
	}
	return true;
}

/* Returns whether the starts ascend already, as they mostly do; then nothing has to be sorted. */
static bool starts_ascend(const struct start *a, size_t n)
{
	for (size_t i = 1; i < n; i++)
		if (compare_starts(&a[i - 1], &a[i]) > 0)
			return false;
	return true;
}

static bool bounds_ascend(const int64_t *a, size_t n)
{
	for (size_t i = 1; i < n; i++)
		if (a[i - 1] > a[i])
			return false;
	return true;
}

/* Finds the places along dimension d where the set changes, both ends of `inside` included, and
 * returns how many there are. Boxes are cut to `inside`, so no place lies beyond its ends. The
 * starts of the level are filled and sorted too; sweep_dim() takes boxes from them as it moves. */
static size_t find_bounds(struct sweep *w, int d, const uint32_t *set, uint32_t n)
{
	struct level *l = &w->level[d];
	size_t all = 0, bounds_n = 1;

	l->bounds[all++] = w->inside->start[d];
	for (uint32_t i = 0; i < n; i++) {
		l->starts[i] = (struct start){ clip_start(w, set[i], d), set[i] };
		l->bounds[all++] = l->starts[i].at;
		l->bounds[all++] = clip_end(w, set[i], d);
	}
	l->bounds[all++] = w->inside->start[d] + w->inside->count[d];
	if (!starts_ascend(l->starts, n))
		qsort(l->starts, n, sizeof(*l->starts), compare_starts);
	if (!bounds_ascend(l->bounds, all))
		qsort(l->bounds, all, sizeof(*l->bounds), compare_bounds);
	for (size_t i = 1; i < all; i++) {
		if (l->bounds[i] != l->bounds[bounds_n - 1])
			l->bounds[bounds_n++] = l->bounds[i];
	}
	return bounds_n;
}

/* Computes the active list of the slab that begins at `at`, and returns its length: the boxes of
 * the last slab that do not end here, and the adds_n that start here. Both lists ascend, so merging
 * them gives an ascending list. Equal sets are then equal bytes, and memcmp() can compare them. */
static uint32_t active_next(struct sweep *w, int d, int64_t at, uint32_t active_n,
                            const struct start *adds, uint32_t adds_n)
{
	struct level *l = &w->level[d];
	uint32_t *list = l->next, n = 0, a = 0;

	for (uint32_t i = 0; i < active_n; i++) {
		if (clip_end(w, l->active[i], d) <= at)
			continue;
		while (a < adds_n && adds[a].box < l->active[i])
			list[n++] = adds[a++].box;
		list[n++] = l->active[i];
	}
	while (a < adds_n)
		list[n++] = adds[a++].box;
	l->next = l->active;
	l->active = list;
	return n;
}

/* Sweeps dimension d over the boxes of `set`, all of which cover the current slabs of the
 * dimensions above. Between two neighbouring bounds the set is constant, so the next dimension is
 * swept once for each slab. After the last dimension the current slabs are a cell. The recursion is
 * as deep as there are dimensions. */
static int sweep_dim(struct sweep *w, int d, const uint32_t *set, uint32_t n)
{
	struct level *l = &w->level[d];
	uint32_t active_n = 0, begun = 0;
	size_t bounds_n;
	int rc = 0;

	if (d == w->inside->ndim)
		return cell_emit(w, set, n);
	if (all_cross(w, d, set, n)) {
		w->at.start[d] = w->inside->start[d];
		w->at.count[d] = w->inside->count[d];
		return sweep_dim(w, d + 1, set, n);
	}
	bounds_n = find_bounds(w, d, set, n);
	for (size_t k = 0; k + 1 < bounds_n && rc == 0; k++) {
		uint32_t from = begun;

		while (begun < n && l->starts[begun].at == l->bounds[k])
			begun++;
		active_n = active_next(w, d, l->bounds[k], active_n, l->starts + from,
		                       begun - from);
		w->at.start[d] = l->bounds[k];
		w->at.count[d] = l->bounds[k + 1] - l->bounds[k];
		rc = sweep_dim(w, d + 1, l->active, active_n);
		if (d == 0)
			slab_end(w);
	}
	return rc;
}

/* Allocates the buffers of every level, and lists in ids the boxes that meet `inside`. A level has
 * at most n boxes, and each adds two bounds to the two ends of `inside`. ids has n entries for that
 * list and two lists of n for each level. */
static int sweep_init(struct sweep *w, size_t n, uint32_t *met_n)
{
	size_t dims = (size_t)w->inside->ndim, bounds_n;
	uint32_t met = 0;
	struct shf_box both;

	if (n > UINT32_MAX / 4 || !shf_mul(&bounds_n, 2 * n + 2, dims))
		return SHEAF_ENOMEM;
	w->starts = shf_alloc(n * dims, sizeof(*w->starts));
	w->bounds = shf_alloc(bounds_n, sizeof(*w->bounds));
	w->ids = shf_alloc(n * (2 * dims + 1), sizeof(*w->ids));
	if (!w->starts || !w->bounds || !w->ids)
		return SHEAF_ENOMEM;
	for (size_t d = 0; d < dims; d++) {
		w->level[d].starts = w->starts + d * n;
		w->level[d].bounds = w->bounds + d * (2 * n + 2);
		w->level[d].active = w->ids + (2 * d + 1) * n;
		w->level[d].next = w->ids + (2 * d + 2) * n;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (shf_box_intersect(&both, &w->boxes[i], w->inside))
			w->ids[met++] = i;
	}
	*met_n = met;
	return 0;
}

/* ---- a comb: boxes cut along one dimension, in ascending order, without overlap ---- */

/* Returns whether the boxes have a unit in common. A box with a count below 1 has none. */
static bool meets(const struct shf_box *inside, const struct shf_box *box)
{
	for (int d = 0; d < inside->ndim; d++) {
		if (box->count[d] <= 0 || box->start[d] >= inside->start[d] + inside->count[d] ||
		    box->start[d] + box->count[d] <= inside->start[d])
			return false;
	}
	return true;
}

/* Returns, one bit each, the dimensions in which the box does not reach from end to end of
 * `inside`. */
static unsigned uncrossed_dims(const struct shf_box *inside, const struct shf_box *box)
{
	unsigned cut = 0;

	for (int d = 0; d < inside->ndim; d++) {
		if (box->start[d] > inside->start[d] ||
		    box->start[d] + box->count[d] < inside->start[d] + inside->count[d])
			cut |= 1u << d;
	}
	return cut;
}

/* Cuts a box to `inside` along dimension d. */
static void clip(const struct shf_box *inside, const struct shf_box *box, int d, int64_t *start,
                 int64_t *count)
{
	int64_t end = box->start[d] + box->count[d], most = inside->start[d] + inside->count[d];

	*start = box->start[d] > inside->start[d] ? box->start[d] : inside->start[d];
	*count = (end < most ? end : most) - *start;
}

/* Returns whether the boxes are a comb: cut along only one dimension, in ascending order, without
 * overlap. Tensors mostly are cut like that, and the cells of a comb are found in one pass without
 * sorting. *dim becomes the dimension, *teeth the number of boxes that meet `inside`, *gaps the
 * number of stretches that none of them covers.
 *
 * The first box that meets `inside` decides the dimension: the first one in which it does not reach
 * from end to end. If the box reaches from end to end in all of them, the last dimension is taken;
 * any second box then overlaps the first one, and the answer is false. */
static bool comb_find(const struct shf_box *inside, const struct shf_box *boxes, size_t n, int *dim,
                      size_t *teeth, size_t *gaps)
{
	int64_t at = 0, start, count;
	unsigned cut = 0;
	int d = 0;

	*teeth = *gaps = 0;
	for (size_t i = 0; i < n; i++) {
		if (!meets(inside, &boxes[i]))
			continue;
		if (*teeth == 0) {
			cut = uncrossed_dims(inside, &boxes[i]);
			while (d < inside->ndim - 1 && !(cut >> d & 1))
				d++;
			at = inside->start[d];
		}
		clip(inside, &boxes[i], d, &start, &count);
		if (start < at || uncrossed_dims(inside, &boxes[i]) & ~(1u << d))
			return false;
		*gaps += start > at;
		*teeth += 1;
		at = start + count;
	}
	if (*teeth > 0)
		*gaps += at < inside->start[d] + inside->count[d];
	*dim = d;
	return *teeth > 0;
}

/* Returns the cell [start, end) of dimension d; set is its one box, or NULL for a gap. */
static struct shf_cell comb_cell(const struct shf_box *inside, int d, int64_t start, int64_t end,
                                 const uint32_t *set)
{
	struct shf_cell c = { .box = *inside, .set = set, .set_n = set != NULL };

	c.box.start[d] = start;
	c.box.count[d] = end - start;
	return c;
}

/* Makes the cells of a comb. They are those that the sweep would give: neighbouring teeth have
 * different sets, so none are merged. */
static int comb_cells(struct shf_arena *arena, const struct shf_box *inside,
                      const struct shf_box *boxes, int d, size_t teeth, size_t gaps,
                      struct shf_cell **cells, size_t *cells_n)
{
	struct shf_cell *out = shf_arena_alloc(arena, teeth + gaps, sizeof(*out));
	uint32_t *set = shf_arena_alloc(arena, teeth, sizeof(*set));
	int64_t at = inside->start[d], end = at + inside->count[d], start, count;
	size_t n = 0;

	if (!out || !set)
		return SHEAF_ENOMEM;
	for (uint32_t i = 0; teeth > 0; i++) {
		if (!meets(inside, &boxes[i]))
			continue;
		clip(inside, &boxes[i], d, &start, &count);
		if (start > at)
			out[n++] = comb_cell(inside, d, at, start, NULL);
		*set = i;
		at = start + count;
		out[n++] = comb_cell(inside, d, start, at, set++);
		teeth--;
	}
	if (at < end)
		out[n++] = comb_cell(inside, d, at, end, NULL);
	*cells = out;
	*cells_n = n;
	return 0;
}

int shf_cells(struct shf_arena *arena, const struct shf_box *inside, const struct shf_box *boxes,
              size_t n, struct shf_cell **cells, size_t *cells_n)
{
	struct sweep w = { .arena = arena, .inside = inside, .boxes = boxes };
	struct shf_cell *out;
	size_t teeth, gaps;
	uint32_t met_n;
	int d, rc;

	/* Replicas do not keep boxes from being a comb: equal boxes are one box here (parts.c). */
	if (inside->ndim > 0 && n <= UINT32_MAX / 4 && !shf_box_is_empty(inside) &&
	    comb_find(inside, boxes, n, &d, &teeth, &gaps))
		return comb_cells(arena, inside, boxes, d, teeth, gaps, cells, cells_n);
	rc = sweep_init(&w, n, &met_n);
	if (rc < 0)
		goto out;
	w.at.ndim = inside->ndim;
	if (!shf_box_is_empty(inside))
		rc = sweep_dim(&w, 0, w.ids, met_n);
	if (rc < 0)
		goto out;
	out = shf_arena_alloc(arena, w.cells_n, sizeof(*out));
	if (!out) {
		rc = SHEAF_ENOMEM;
		goto out;
	}
	if (w.cells_n > 0)
		memcpy(out, w.cells, w.cells_n * sizeof(*out));
	*cells = out;
	*cells_n = w.cells_n;
out:
	shf_free(w.starts);
	shf_free(w.bounds);
	shf_free(w.ids);
	shf_free(w.cells);
	shf_free(w.open);
	shf_free(w.fresh);
	return rc;
}
