/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes, row-major ranges of units as boxes, and the parts of a box that lie in a window of memory.
 * Nothing here allocates. Callers have checked that shapes, boxes and strides fit 63 bits, so sums
 * and products below cannot wrap. */
#include "box.h"
#include <assert.h>
#include <stdio.h>

/* A scalar has no dimension, so it is never empty and has one unit: the product of no factors. */
bool shf_box_is_empty(const struct shf_box *b)
{
	for (int d = 0; d < b->ndim; d++) {
		if (b->count[d] <= 0)
			return true;
	}
	return false;
}

uint64_t shf_box_units(const struct shf_box *b)
{
	uint64_t units = 1;

	if (shf_box_is_empty(b))
		return 0;
	for (int d = 0; d < b->ndim; d++)
		units *= (uint64_t)b->count[d];
	return units;
}

struct shf_box shf_box_of(const struct shf_shape *s)
{
	struct shf_box b = { .ndim = s->ndim };

	for (int d = 0; d < s->ndim; d++)
		b.count[d] = s->dim[d];
	return b;
}

/* *out may be a or b, since it is written last. Boxes that only touch do not intersect. */
bool shf_box_intersect(struct shf_box *out, const struct shf_box *a, const struct shf_box *b)
{
	struct shf_box both = { .ndim = a->ndim };

	assert(a->ndim == b->ndim);
	for (int d = 0; d < a->ndim; d++) {
		int64_t a_end = a->start[d] + a->count[d], b_end = b->start[d] + b->count[d];
		int64_t start = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
		int64_t end = a_end < b_end ? a_end : b_end;

		if (start >= end)
			return false;
		both.start[d] = start;
		both.count[d] = end - start;
	}
	*out = both;
	return true;
}

/* An empty box is inside every box with as many dimensions, whatever its start. */
bool shf_box_contains(const struct shf_box *outer, const struct shf_box *inner)
{
	if (outer->ndim != inner->ndim)
		return false;
	if (shf_box_is_empty(inner))
		return true;
	for (int d = 0; d < outer->ndim; d++) {
		if (inner->start[d] < outer->start[d] ||
		    inner->start[d] + inner->count[d] > outer->start[d] + outer->count[d])
			return false;
	}
	return true;
}

bool shf_box_equal(const struct shf_box *a, const struct shf_box *b)
{
	if (a->ndim != b->ndim)
		return false;
	for (int d = 0; d < a->ndim; d++) {
		if (a->start[d] != b->start[d] || a->count[d] != b->count[d])
			return false;
	}
	return true;
}

char *shf_box_print(const struct shf_box *b, char *text, size_t n)
{
	/* Two numbers of 20 characters for each dimension, and punctuation, always fit. */
	char all[SHEAF_DIMS_MAX * 48 + 3];
	size_t len = 0;

	if (n == 0)
		return text;
	all[len++] = '[';
	for (int d = 0; d < b->ndim; d++)
		len += (size_t)snprintf(all + len, sizeof(all) - len, "%s%lld:%lld", d ? ", " : "",
		                        (long long)b->start[d],
		                        (long long)(b->start[d] + b->count[d]));
	all[len++] = ']';
	all[len] = '\0';
	snprintf(text, n, "%s", all);
	return text;
}

uint64_t shf_shape_units(const struct shf_shape *s)
{
	uint64_t units = 1;

	for (int d = 0; d < s->ndim; d++)
		units *= (uint64_t)s->dim[d];
	return units;
}

/* Fills vol[0 .. ndim): vol[d] is how many units one index of dimension d stands for, so vol[ndim -
 * 1] is 1. */
static void volumes(const struct shf_shape *s, uint64_t vol[SHEAF_DIMS_MAX])
{
	uint64_t units = 1;

	for (int d = s->ndim - 1; d >= 0; d--) {
		vol[d] = units;
		units *= (uint64_t)s->dim[d];
	}
}

/* The first unit is at the box's start, the last at its far corner. An empty box has the span
 * [0, 0), which meets nothing. */
void shf_box_span(const struct shf_shape *s, const struct shf_box *b, uint64_t *lo, uint64_t *hi)
{
	uint64_t vol = 1, first = 0, more = 0;
	bool empty = false;

	assert(s->ndim == b->ndim);
	for (int d = s->ndim - 1; d >= 0; d--) {
		first += (uint64_t)b->start[d] * vol;
		more += (uint64_t)(b->count[d] - 1) * vol;
		vol *= (uint64_t)s->dim[d];
		empty = empty || b->count[d] <= 0;
	}
	*lo = empty ? 0 : first;
	*hi = empty ? 0 : first + more + 1;
}

/* Returns the box of n indices of dimension d that begins at unit `at`: it has one index of each
 * dimension above d, and all indices of those below. `at` must be a multiple of vol[d], or the box
 * would contain units before it. */
static struct shf_box slab(const struct shf_shape *s, const uint64_t *vol, uint64_t at, int d,
                           uint64_t n)
{
	struct shf_box b = { .ndim = s->ndim };

	for (int e = 0; e < s->ndim; e++) {
		b.start[e] = e <= d ? (int64_t)(at / vol[e] % (uint64_t)s->dim[e]) : 0;
		b.count[e] = e < d ? 1 : e == d ? (int64_t)n : s->dim[e];
	}
	return b;
}

/* A range of units is a box only if it begins and ends on whole rows of some dimension; any other
 * range is cut into several boxes. From lo the first loop climbs to coarser and coarser boundaries
 * as long as they lie before hi; then the second loop takes as many whole indices of each dimension
 * as fit, from the coarsest to the finest.
 *
 * The climb makes at most one box for each dimension but the first, and the descent one for each
 * dimension: 2 * ndim - 1 together, which is SHF_RANGE_BOXES_MAX for the most dimensions. `up`
 * units are whole indices of dimension d, because the steps before have aligned `at` to them. */
int shf_range_boxes(const struct shf_shape *s, uint64_t lo, uint64_t hi, struct shf_box *out)
{
	uint64_t vol[SHEAF_DIMS_MAX], at = lo;
	int n = 0;

	if (lo >= hi)
		return 0;
	assert(hi <= shf_shape_units(s));
	if (s->ndim == 0) {
		out[0] = shf_box_of(s);
		return 1;
	}
	volumes(s, vol);
	for (int d = s->ndim - 1; d > 0; d--) {
		uint64_t over = at % vol[d - 1], up = over ? vol[d - 1] - over : 0;

		if (up > hi - at)
			break;
		if (up)
			out[n++] = slab(s, vol, at, d, up / vol[d]);
		at += up;
	}
	for (int d = 0; d < s->ndim; d++) {
		uint64_t rows = (hi - at) / vol[d];

		if (rows)
			out[n++] = slab(s, vol, at, d, rows);
		at += rows * vol[d];
	}
	return n;
}

/* A walk over the parts of a box that lie in a window [lo, hi) of a buffer. Dimensions are ordered
 * by falling stride, so that what lies wholly in the window is found in the largest boxes, and the
 * walk descends only at the two edges of the window. */
struct window {
	const struct shf_mem *m;
	int order[SHEAF_DIMS_MAX];
	int64_t rest[SHEAF_DIMS_MAX + 1];       /* how far the dimensions from order[k] on reach
	                                         * together */
	int (*item)(void *arg, const struct shf_box *);
	void *arg;
};

/* Returns the distance in the buffer from the first to the last index of dimension d. If there is
 * one index, the stride means nothing and may be any number. */
static int64_t reach(const struct shf_mem *m, int d)
{
	return m->box.count[d] == 1 ? 0 : (m->box.count[d] - 1) * m->stride[d];
}

/* Returns the stride of dimension d, or 0 if it has one index, so that such a dimension sorts
 * last. */
static int64_t step_of(const struct shf_mem *m, int d)
{
	return m->box.count[d] == 1 ? 0 : m->stride[d];
}

/* Sorts the dimensions by insertion: there are at most 8. rest[k] is how far the dimensions
 * from order[k] on reach together. */
static void window_init(struct window *w)
{
	const struct shf_mem *m = w->m;
	int n = m->box.ndim;

	for (int k = 0; k < n; k++) {
		int at = k;

		for (; at > 0 && step_of(m, w->order[at - 1]) < step_of(m, k); at--)
			w->order[at] = w->order[at - 1];
		w->order[at] = k;
	}
	w->rest[n] = 0;
	for (int k = n - 1; k >= 0; k--)
		w->rest[k] = w->rest[k + 1] + reach(m, w->order[k]);
}

/* Returns how many i >= 0 have p + i * step < bound, at most n. That is also the smallest i >= 0
 * with p + i * step >= bound. step is positive. The division rounds up, and cannot overflow because
 * bound > p. */
static int64_t steps_below(int64_t p, int64_t step, int64_t bound, int64_t n)
{
	int64_t i;

	if (p >= bound)
		return 0;
	i = (bound - p - 1) / step + 1;
	return i < n ? i : n;
}

/* Gives the parts of the box that are in the window to the caller's function. box fixes the
 * dimensions order[0 .. k) and is whole in the others; p is where its first unit lies in the
 * buffer. Strides are not negative, so all of it lies in [p, p + rest[k]].
 *
 * Along the dimension of the largest stride four numbers divide the indices: those from here_lo to
 * here_hi reach into the window at all, those from whole_lo to whole_hi lie wholly in it. The whole
 * ones form one box. The others, at the edges, are walked one by one in the next dimension. If no
 * index lies wholly in the window, whole_lo and whole_hi are set to a value that the loop never
 * reaches.
 *
 * box is changed in place and restored on return, so the recursion copies nothing. */
static int window_walk(struct window *w, int k, int64_t p, struct shf_box *box)
{
	const struct shf_mem *m = w->m;
	int64_t whole_lo, whole_hi, here_lo, here_hi, step, rest, start, count;
	int d, rc = 0;

	if (p >= m->hi || p + w->rest[k] < m->lo)
		return 0;
	if (p >= m->lo && p + w->rest[k] < m->hi)
		return w->item(w->arg, box);
	/* The box is partly in the window, so it is longer than a unit and its largest stride is
	 * not 0. */
	d = w->order[k];
	step = m->stride[d];
	rest = w->rest[k + 1];
	start = box->start[d];
	count = box->count[d];
	here_lo = steps_below(p + rest, step, m->lo, count);
	here_hi = steps_below(p, step, m->hi, count);
	whole_lo = steps_below(p, step, m->lo, count);
	whole_hi = steps_below(p + rest, step, m->hi, count);
	if (whole_lo >= whole_hi)
		whole_lo = whole_hi = here_hi;
	for (int64_t i = here_lo; i < here_hi && rc == 0; i++) {
		bool whole = i == whole_lo && whole_lo < whole_hi;

		box->start[d] = start + i;
		box->count[d] = whole ? whole_hi - whole_lo : 1;
		if (whole) {
			rc = w->item(w->arg, box);
			i = whole_hi - 1;
		} else {
			rc = window_walk(w, k + 1, p + i * step, box);
		}
	}
	box->start[d] = start;
	box->count[d] = count;
	return rc;
}

/* Returns whether every unit of the box is in the window. That is the usual case, in which nothing
 * has to be sorted or walked. The box must not be empty. */
static bool all_here(const struct shf_mem *m)
{
	int64_t far = m->origin;

	for (int d = 0; d < m->box.ndim; d++)
		far += (m->box.count[d] - 1) * m->stride[d];
	return m->origin >= m->lo && far < m->hi;
}

/* The general case, in a function of its own so that the usual one does not pay for its stack. */
static int walk_all(const struct shf_mem *m, int (*item)(void *arg, const struct shf_box *),
                    void *arg)
{
	struct window w = { .m = m, .item = item, .arg = arg };
	struct shf_box box = m->box;

	window_init(&w);
	return window_walk(&w, 0, m->origin, &box);
}

int shf_mem_boxes(const struct shf_mem *m, int (*item)(void *arg, const struct shf_box *),
                  void *arg)
{
	if (shf_box_is_empty(&m->box) || m->lo >= m->hi)
		return 0;
	return all_here(m) ? item(arg, &m->box) : walk_all(m, item, arg);
}
