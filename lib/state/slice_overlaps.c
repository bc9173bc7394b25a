/* SPDX-License-Identifier: Apache-2.0 */
/* Finds slices that share memory (slice_overlaps.h). */
#include "slice_overlaps.h"
#include <stdlib.h>
#include "memory_overlap.h"
#include "state.h"

struct range {                  /* addresses [lo, hi) of a slice; empty if it has no memory that
                                 * others can share */
	uint64_t lo, hi;
	uint32_t slice;
};

/* Returns the bytes from the slice's first item to its last one, or an empty range. Averages
 * have memory of their own, which nothing else can share. */
static struct range range_of(const struct shf_slice *s)
{
	struct range r = { 0 };

	if (!s->mem.base || s->owned || s->empty ||
	    !shf_mem_span(&s->mem, s->mem_unit, &r.lo, &r.hi))
		return (struct range){ 0 };
	return r;
}

bool shf_slices_overlap(const struct shf_slice *a, const struct shf_slice *b)
{
	struct range x = range_of(a), y = range_of(b);

	return x.lo < y.hi && y.lo < x.hi;
}

/* Orders ranges by address, then by slice number, so that the rings do not depend on qsort(). */
static int by_address(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	if (x->lo != y->lo)
		return x->lo < y->lo ? -1 : 1;
	return x->slice < y->slice ? -1 : x->slice > y->slice;
}

/* Lists the ranges that are not empty, in the order of their addresses, and returns how many.
 * ranges has room for one range of each slice; an empty range is overwritten by the next. */
static size_t sort_ranges(const struct sheaf_state *state, struct range *ranges)
{
	size_t n = 0;

	for (size_t s = 0; s < state->n; s++) {
		ranges[n] = range_of(&state->slices[s]);
		ranges[n].slice = (uint32_t)s;
		n += ranges[n].lo < ranges[n].hi;
	}
	if (n > 1)
		qsort(ranges, n, sizeof(*ranges), by_address);
	return n;
}

/* Walks n ranges sorted by where they begin. A range that begins before an earlier one ends is
 * inserted, in `next`, into the ring of that earlier range. `end` is the greatest end so far, since
 * an earlier range may reach over several later ones. A slice is inserted after `first`, the first
 * slice of the ring, so the ring is closed at any time. Returns whether any two ranges overlap. */
static bool link_ranges(const struct range *ranges, size_t n, uint32_t *next)
{
	uint64_t end = 0;
	uint32_t first = 0;
	bool some = false;

	for (size_t i = 0; i < n; i++) {
		uint32_t s = ranges[i].slice;

		if (ranges[i].lo >= end) {
			first = s;
		} else {
			next[s] = next[first];
			next[first] = s;
			some = true;
		}
		end = ranges[i].hi > end ? ranges[i].hi : end;
	}
	return some;
}

/* Every save calls this, but slices are moved rarely, so the result is kept until `places` has
 * changed. Each slice is alone in its ring at first. The new array replaces the old one only when
 * both allocations have succeeded. */
int shf_overlaps_find(struct sheaf_state *state, const uint32_t **next)
{
	struct range *ranges;
	uint32_t *all;

	*next = state->overlaps;
	if (state->overlaps_of == state->places)
		return 0;
	ranges = shf_alloc(state->n, sizeof(*ranges));
	all = shf_alloc(state->n, sizeof(*all));
	if (!ranges || !all) {
		shf_free(ranges);
		shf_free(all);
		return SHEAF_ENOMEM;
	}
	for (size_t s = 0; s < state->n; s++)
		all[s] = (uint32_t)s;
	shf_free(state->overlaps);
	state->overlaps = all;
	if (!link_ranges(ranges, sort_ranges(state, ranges), all)) {
		shf_free(all);
		state->overlaps = NULL;
	}
	shf_free(ranges);
	state->overlaps_of = state->places;
	*next = state->overlaps;
	return 0;
}
