/* SPDX-License-Identifier: Apache-2.0 */
/* Tells whether two boxes share bytes of memory. Each box is walked as ranges of bytes in ascending
 * order, and the two walks are merged. So rows that lie between the rows of another box are
 * distinguished from rows that lie on them. */
#include "memory_overlap.h"

/* A walk over the ranges of bytes that a box has in memory. Addresses are integers: the two
 * boxes may lie in different objects, whose pointers C does not let us compare. The walk counts in
 * bytes from unit 0 of the buffer. This rank may have no memory there, and where its own memory
 * lies at a low address, unit 0 would lie below address 0. */
struct walk {
	int levels;                             /* outer loops, outermost last */
	uint64_t n[SHEAF_DIMS_MAX], i[SHEAF_DIMS_MAX];
	uint64_t step[SHEAF_DIMS_MAX];          /* in bytes */
	uint64_t run;                           /* bytes of one range */
	uint64_t at;                            /* byte of the buffer where the next range begins,
	                                         * before it is cut to [first, end) */
	uint64_t first, end;                    /* bytes of the buffer that this rank has */
	uint64_t address;                       /* of byte `first` */
	bool done;
};

/* Lists the dimensions with more than one index in order[], the smallest stride first. Returns how
 * many. */
static int by_stride(const struct shf_mem *m, int order[SHEAF_DIMS_MAX])
{
	int n = 0;

	for (int d = 0; d < m->box.ndim; d++) {
		int at = n;

		if (m->box.count[d] < 2)
			continue;
		for (; at > 0 && m->stride[order[at - 1]] > m->stride[d]; at--)
			order[at] = order[at - 1];
		order[at] = d;
		n++;
	}
	return n;
}

/* Returns the byte where a unit of the buffer begins. A window may end anywhere, as far as the
 * caller says, so its end may have no such number: then it is the largest. */
static uint64_t byte_of_unit(int64_t i, uint32_t unit)
{
	return (uint64_t)i > UINT64_MAX / unit ? UINT64_MAX : (uint64_t)i * unit;
}

/* Starts a walk. Dimensions are taken from the smallest stride up: one that continues the run
 * exactly makes it longer, any other becomes a loop. Strides nest if each is at least as long as
 * all that lies below it; then ranges come in ascending order. If they do not nest, as when rows of
 * the box overlap each other, one range stands for all bytes from the first to the last. */
static void strided_walk_init(struct walk *w, const struct shf_mem *m, uint32_t unit)
{
	uint64_t span = unit;
	int order[SHEAF_DIMS_MAX], dims = by_stride(m, order);
	bool nested = true;

	*w = (struct walk){ .run = unit, .at = (uint64_t)m->origin * unit,
		.first = byte_of_unit(m->lo, unit), .end = byte_of_unit(m->hi, unit),
		.address = (uint64_t)(uintptr_t)m->base };
	w->done = shf_box_is_empty(&m->box) || m->lo >= m->hi;
	for (int k = 0; k < dims; k++) {
		uint64_t n = (uint64_t)m->box.count[order[k]];
		uint64_t step = (uint64_t)m->stride[order[k]] * unit;

		nested = nested && step >= span;
		if (w->levels == 0 && step == w->run) {
			w->run *= n;
		} else {
			w->n[w->levels] = n;
			w->step[w->levels++] = step;
		}
		span += (n - 1) * step;
	}
	if (!nested) {
		w->levels = 0;
		w->run = span;
	}
}

/* Moves to the next range: the innermost loop first, with a carry into the next one, as an
 * odometer does. */
static void strided_walk_advance(struct walk *w)
{
	int l = 0;

	for (; l < w->levels; l++) {
		w->at += w->step[l];
		if (++w->i[l] < w->n[l])
			return;
		w->at -= w->n[l] * w->step[l];
		w->i[l] = 0;
	}
	w->done = true;
}

/* Cuts the bytes [from, to) of the buffer to those of this rank, and stores the addresses of these
 * in *lo and *hi. Returns whether there are any. */
static bool addresses_of(const struct walk *w, uint64_t from, uint64_t to, uint64_t *lo,
                         uint64_t *hi)
{
	from = from > w->first ? from : w->first;
	to = to < w->end ? to : w->end;
	*lo = *hi = w->address;
	if (from >= to)
		return false;
	*lo += from - w->first;
	*hi += to - w->first;
	return true;
}

/* Returns the next range that has bytes of this rank, cut to them; false: no range is left. */
static bool strided_walk_next(struct walk *w, uint64_t *lo, uint64_t *hi)
{
	while (!w->done) {
		bool some = addresses_of(w, w->at, w->at + w->run, lo, hi);

		if (w->at >= w->end)
			w->done = true; /* ranges ascend, so all further ones lie beyond the end
			                 * too */
		else
			strided_walk_advance(w);
		if (some)
			return true;
	}
	return false;
}

bool shf_mem_span(const struct shf_mem *m, uint32_t unit, uint64_t *lo, uint64_t *hi)
{
	struct walk w;
	uint64_t last;

	strided_walk_init(&w, m, unit);
	last = w.at + w.run;
	for (int l = 0; l < w.levels; l++)
		last += (w.n[l] - 1) * w.step[l];
	return addresses_of(&w, w.at, last, lo, hi) && !w.done;
}

/* Merges two ascending walks. If the current ranges do not meet, the one that ends first cannot
 * meet any later range of the other, so it is dropped. Time is in proportion to the ranges of
 * both. */
bool shf_mem_overlap(const struct shf_mem *a, uint32_t a_unit, const struct shf_mem *b,
                     uint32_t b_unit)
{
	uint64_t a_lo, a_hi, b_lo, b_hi;
	struct walk wa, wb;
	bool more;

	strided_walk_init(&wa, a, a_unit);
	strided_walk_init(&wb, b, b_unit);
	more = strided_walk_next(&wa, &a_lo, &a_hi) && strided_walk_next(&wb, &b_lo, &b_hi);
	while (more) {
		if (a_lo < b_hi && b_lo < a_hi)
			return true;
		more = a_hi <= b_lo ? strided_walk_next(&wa, &a_lo, &a_hi)
		                    : strided_walk_next(&wb, &b_lo, &b_hi);
	}
	return false;
}
