/* SPDX-License-Identifier: Apache-2.0 */
/* Cells against painting: the set of every unit, one by one. */
#include "rng.h"
#include "t.h"
#include <stdlib.h>
#include "cover_cells.h"

#define SEED UINT64_C(0x5eaf0301)
#define UNITS_MAX 3000
#define BOXES_MAX 24

static struct shf_box random_box(uint64_t *s, int ndim, const int64_t *dim)
{
	struct shf_box b = { .ndim = ndim };
	bool cross = rng_below(s, 3) == 0;

	for (int d = 0; d < ndim; d++) {
		b.start[d] = cross && rng_below(s, 2) ? 0 : rng_below(s, dim[d]);
		b.count[d] = cross && b.start[d] == 0
		           ? dim[d] : 1 + rng_below(s, dim[d] - b.start[d]);
	}
	return b;
}

static bool is_in(const struct shf_box *b, const int64_t *c)
{
	for (int d = 0; d < b->ndim; d++) {
		if (c[d] < b->start[d] || c[d] >= b->start[d] + b->count[d])
			return false;
	}
	return true;
}

/* Row-major order of first units. */
static bool is_before(const struct shf_box *a, const struct shf_box *b)
{
	for (int d = 0; d < a->ndim; d++) {
		if (a->start[d] != b->start[d])
			return a->start[d] < b->start[d];
	}
	return false;
}

/* Neighbours along dimension 0 with the same cross-section and set. */
static bool should_join(const struct shf_cell *a, const struct shf_cell *b)
{
	if (a->box.ndim == 0 || a->set_n != b->set_n ||
	    a->box.start[0] + a->box.count[0] != b->box.start[0])
		return false;
	for (int d = 1; d < a->box.ndim; d++) {
		if (a->box.start[d] != b->box.start[d] || a->box.count[d] != b->box.count[d])
			return false;
	}
	return a->set_n == 0 || memcmp(a->set, b->set, a->set_n * sizeof(*a->set)) == 0;
}

static uint32_t mask_of(const struct shf_cell *c)
{
	uint32_t mask = 0;

	for (uint32_t i = 0; i < c->set_n; i++) {
		CHECK(i == 0 || c->set[i] > c->set[i - 1]);
		mask |= UINT32_C(1) << c->set[i];
	}
	return mask;
}

static void check_units(const struct shf_box *inside, const int64_t *dim,
                        const struct shf_box *boxes, size_t n, const struct shf_cell *cells,
                        size_t cells_n)
{
	int64_t units = 1;

	for (int d = 0; d < inside->ndim; d++)
		units *= dim[d];
	for (int64_t u = 0; u < units; u++) {
		int64_t c[SHEAF_DIMS_MAX], rest = u;
		uint32_t want = 0, covers = 0;

		for (int d = inside->ndim - 1; d >= 0; d--) {
			c[d] = rest % dim[d];
			rest /= dim[d];
		}
		for (size_t i = 0; i < n; i++)
			want |= is_in(&boxes[i], c) ? UINT32_C(1) << i : 0;
		for (size_t i = 0; i < cells_n; i++) {
			if (!is_in(&cells[i].box, c))
				continue;
			covers++;
			CHECK_INT(mask_of(&cells[i]), want);
		}
		CHECK_INT(covers, is_in(inside, c));
	}
}

TEST(cells_are_where_the_set_is_one)
{
	uint64_t s = SEED;

	print_message("# seed %llx\n", (unsigned long long)s);
	for (int round = 0; round < 400; round++) {
		int64_t dim[SHEAF_DIMS_MAX], room = UNITS_MAX;
		int ndim = (int)rng_below(&s, 5);
		struct shf_box inside, boxes[BOXES_MAX];
		struct shf_arena arena = { 0 };
		size_t n = (size_t)rng_below(&s, BOXES_MAX + 1), cells_n = 99;
		struct shf_cell *cells;

		for (int d = 0; d < ndim; d++) {
			dim[d] = 1 + rng_below(&s, room < 20 ? room : 20);
			room /= dim[d];
		}
		inside = random_box(&s, ndim, dim);
		for (size_t i = 0; i < n; i++)
			boxes[i] = random_box(&s, ndim, dim);
		CHECK_INT(shf_cells(&arena, &inside, boxes, n, &cells, &cells_n), 0);
		check_units(&inside, dim, boxes, n, cells, cells_n);
		for (size_t i = 0; i < cells_n; i++) {
			CHECK(i == 0 || is_before(&cells[i - 1].box, &cells[i].box));
			for (size_t k = 0; k < cells_n; k++)
				CHECK(!should_join(&cells[i], &cells[k]));
		}
		shf_arena_release(&arena);
	}
}

/* Boxes that follow each other along one dimension, some with gaps between, some outside, some
 * empty. */
static size_t random_comb(uint64_t *s, const struct shf_box *all, struct shf_box *boxes)
{
	int d = (int)rng_below(s, all->ndim);
	size_t n = 0;

	for (int64_t at = rng_below(s, 3); at < all->count[d] && n < BOXES_MAX; n++) {
		int64_t left = all->count[d] - at, count = 1 + rng_below(s, left < 4 ? left : 4);

		boxes[n] = *all;
		boxes[n].start[d] = at;
		boxes[n].count[d] = rng_below(s, 8) ? count : 0;
		at += count + (rng_below(s, 3) == 0 ? rng_below(s, 3) : 0);
	}
	return n;
}

/* The same boxes the other way round are no comb, so that the sweep cuts them. */
TEST(boxes_one_behind_the_other_give_the_cells_of_the_sweep)
{
	uint64_t s = SEED + 1;
	size_t cells_all = 0, gaps = 0;

	for (int round = 0; round < 2000; round++) {
		struct shf_box inside, all = { .ndim = 1 + (int)rng_below(&s, 3) };
		struct shf_box boxes[BOXES_MAX], turned[BOXES_MAX];
		struct shf_cell *cells, *want;
		struct shf_arena arena = { 0 };
		size_t n, cells_n, want_n;

		for (int d = 0; d < all.ndim; d++)
			all.count[d] = 1 + rng_below(&s, 20);
		n = random_comb(&s, &all, boxes);
		for (size_t i = 0; i < n; i++)
			turned[n - 1 - i] = boxes[i];
		inside = rng_below(&s, 2) ? all : random_box(&s, all.ndim, all.count);
		CHECK_INT(shf_cells(&arena, &inside, boxes, n, &cells, &cells_n), 0);
		CHECK_INT(shf_cells(&arena, &inside, turned, n, &want, &want_n), 0);
		CHECK_INT(cells_n, want_n);
		for (size_t i = 0; i < cells_n; i++) {
			CHECK(shf_box_equal(&cells[i].box, &want[i].box));
			CHECK_INT(cells[i].set_n, want[i].set_n);
			if (cells[i].set_n > 0)
				CHECK_INT(cells[i].set[0], n - 1 - want[i].set[0]);
			gaps += cells[i].set_n == 0;
		}
		cells_all += cells_n;
		shf_arena_release(&arena);
	}
	print_message("# %zu cells, %zu of them gaps; seed %llx\n", cells_all, gaps,
	              (unsigned long long)(SEED + 1));
	CHECK(gaps > 100 && cells_all > 10 * gaps / 4);
}

TEST(what_nobody_covers_is_one_cell_without_a_set)
{
	struct shf_box inside = { .ndim = 3, .start = { 1, 2, 3 }, .count = { 4, 5, 6 } };
	struct shf_arena arena = { 0 };
	struct shf_cell *cells;
	size_t n;

	CHECK_INT(shf_cells(&arena, &inside, NULL, 0, &cells, &n), 0);
	CHECK_INT(n, 1);
	CHECK_INT(cells[0].set_n, 0);
	CHECK(shf_box_equal(&cells[0].box, &inside));
	inside.count[1] = 0;
	CHECK_INT(shf_cells(&arena, &inside, NULL, 0, &cells, &n), 0);
	CHECK_INT(n, 0);
	shf_arena_release(&arena);
}

/* Each of 4,096 rows has its own box, as FSDP cuts them: a grid would be 4,096 squared. */
TEST(cells_of_many_boxes_are_as_many_as_the_boxes)
{
	enum { N = 4096 };
	struct shf_box inside = { .ndim = 2, .count = { N, 64 } }, *boxes;
	struct shf_arena arena = { 0 };
	struct shf_cell *cells;
	size_t n;

	boxes = calloc(2 * N, sizeof(*boxes));
	assert_non_null(boxes);
	for (int i = 0; i < N; i++) {
		int at = (int)((unsigned)i * 2654435761u % N);  /* any order */
		int cut = 1 + at % 63;

		boxes[2 * i] = (struct shf_box){ 2, { at, 0 }, { 1, cut } };
		boxes[2 * i + 1] = (struct shf_box){ 2, { at, cut }, { 1, 64 - cut } };
	}
	CHECK_INT(shf_cells(&arena, &inside, boxes, 2 * N, &cells, &n), 0);
	CHECK_INT(n, 2 * N);
	for (size_t i = 0; i < n; i++) {
		CHECK_INT(cells[i].set_n, 1);
		CHECK(shf_box_equal(&cells[i].box, &boxes[cells[i].set[0]]));
	}
	free(boxes);
	shf_arena_release(&arena);
}
