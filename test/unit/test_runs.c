/* SPDX-License-Identifier: Apache-2.0 */
/* Runs against a walk of every unit. */
#include "rng.h"
#include "box_runs.h"
#include "t.h"
#include <stdlib.h>
#include "box.h"

#define SEED UINT64_C(0x5eaf0101)

struct walk {
	struct shf_shape t;
	struct shf_mem m;
	struct shf_box box;
};

static void random_walk(uint64_t *s, struct walk *w)
{
	int64_t step = 1;
	bool any = rng_below(s, 3) == 0;

	memset(w, 0, sizeof(*w));
	w->t.ndim = w->m.box.ndim = w->box.ndim = (int32_t)rng_below(s, 6);
	for (int d = w->t.ndim - 1; d >= 0; d--) {
		struct shf_box *b = &w->m.box;
		bool whole = rng_below(s, 2);

		w->t.dim[d] = 1 + rng_below(s, 6);
		b->start[d] = whole ? 0 : rng_below(s, w->t.dim[d]);
		b->count[d] = whole ? w->t.dim[d] : 1 + rng_below(s, w->t.dim[d] - b->start[d]);
		whole = rng_below(s, 2);
		w->box.start[d] = b->start[d] + (whole ? 0 : rng_below(s, b->count[d]));
		w->box.count[d] = b->start[d] + b->count[d] - w->box.start[d];
		if (!whole)
			w->box.count[d] = 1 + rng_below(s, w->box.count[d]);
		w->m.stride[d] = any ? rng_below(s, 20) : step;
		step *= b->count[d] + (rng_below(s, 4) == 0);
	}
	w->m.origin = rng_below(s, 30);
	w->m.lo = rng_below(s, 30);
}

/* Where the walk's next unit is; false at the end. c starts at box.start. */
static bool advance(const struct walk *w, int64_t *c)
{
	for (int d = w->t.ndim - 1; d >= 0; d--) {
		if (++c[d] < w->box.start[d] + w->box.count[d])
			return true;
		c[d] = w->box.start[d];
	}
	return false;
}

static void locate(const struct walk *w, const int64_t *c, uint64_t *at, int64_t *mem)
{
	*at = 0;
	*mem = w->m.origin - w->m.lo;
	for (int d = 0; d < w->t.ndim; d++) {
		*at = *at * (uint64_t)w->t.dim[d] + (uint64_t)c[d];
		*mem += (c[d] - w->m.box.start[d]) * w->m.stride[d];
	}
}

TEST(runs_visit_every_unit_in_order)
{
	uint64_t s = SEED;

	print_message("# seed %llx\n", (unsigned long long)s);
	for (int round = 0; round < 4000; round++) {
		struct walk w;
		struct shf_runs r;
		int64_t c[SHEAF_DIMS_MAX], mem;
		uint64_t at;
		bool more = true;

		random_walk(&s, &w);
		memcpy(c, w.box.start, sizeof(c));
		shf_runs_init(&r, &w.t, &w.m, &w.box);
		while (shf_runs_next(&r, &at, &mem)) {
			for (uint64_t i = 0; i < r.units; i++) {
				uint64_t want_at;
				int64_t want_mem;

				CHECK(more);
				locate(&w, c, &want_at, &want_mem);
				CHECK_INT(at + i, want_at);
				CHECK_INT(mem + (int64_t)i * r.step, want_mem);
				more = advance(&w, c);
			}
		}
		CHECK(!more);
		CHECK(!shf_runs_next(&r, &at, &mem));
	}
}

static uint64_t count_runs(const struct shf_shape *t, const struct shf_mem *m,
                           const struct shf_box *b, struct shf_runs *r)
{
	uint64_t n = 0, at;
	int64_t mem;

	shf_runs_init(r, t, m, b);
	while (shf_runs_next(r, &at, &mem))
		n++;
	return n;
}

TEST(rows_are_the_same_runs_some_at_once)
{
	uint64_t s = SEED + 1;

	for (int round = 0; round < 4000; round++) {
		struct walk w;
		struct shf_runs r, by_one;
		struct shf_rows rows;
		int64_t mem;
		uint64_t at;

		random_walk(&s, &w);
		shf_runs_init(&r, &w.t, &w.m, &w.box);
		by_one = r;
		while (shf_runs_rows(&r, &rows))
			for (uint64_t i = 0; i < rows.rows; i++) {
				CHECK(shf_runs_next(&by_one, &at, &mem));
				CHECK_INT(rows.at + i * (uint64_t)rows.at_step, at);
				CHECK_INT(rows.mem + (int64_t)i * rows.mem_step, mem);
			}
		CHECK(!shf_runs_next(&by_one, &at, &mem));
	}
}

TEST(runs_are_as_long_as_tensor_and_memory_allow)
{
	struct shf_shape t = { .ndim = 3, .dim = { 4, 6, 8 } };
	struct shf_mem m = { .box = shf_box_of(&t), .stride = { 48, 8, 1 } };
	struct shf_box cut = { .ndim = 3, .start = { 1, 2, 0 }, .count = { 2, 3, 8 } };
	struct shf_box column = { .ndim = 3, .start = { 0, 0, 5 }, .count = { 4, 6, 1 } };
	struct shf_runs r;

	CHECK_INT(count_runs(&t, &m, &m.box, &r), 1);
	CHECK_INT(r.units, 192);
	CHECK_INT(count_runs(&t, &m, &cut, &r), 2);
	CHECK_INT(r.units, 24);
	/* Single units, but one loop: the outer dimensions join. */
	CHECK_INT(count_runs(&t, &m, &column, &r), 24);
	CHECK(r.units == 1 && r.levels == 1);
	/* Transposed: evenly strided, never step 1. */
	m.stride[0] = 1;
	m.stride[1] = 4;
	m.stride[2] = 24;
	CHECK_INT(count_runs(&t, &m, &m.box, &r), 24);
	CHECK(r.units == 8 && r.step == 24);
	/* Padded rows split what the tensor joins. */
	m.stride[0] = 60;
	m.stride[1] = 10;
	m.stride[2] = 1;
	CHECK_INT(count_runs(&t, &m, &m.box, &r), 24);
	CHECK(r.units == 8 && r.step == 1 && r.levels == 1);
}

TEST(a_scalar_is_one_run_and_an_empty_box_none)
{
	struct shf_shape t = { 0 };
	struct shf_mem m = { .origin = 9, .lo = 4, .hi = 10 };
	struct shf_box b = { 0 };
	struct shf_runs r;
	uint64_t at;
	int64_t mem;

	shf_runs_init(&r, &t, &m, &b);
	CHECK(shf_runs_next(&r, &at, &mem));
	CHECK(at == 0 && mem == 5 && r.units == 1);
	CHECK(!shf_runs_next(&r, &at, &mem));
	t.ndim = m.box.ndim = b.ndim = 1;
	t.dim[0] = 3;
	CHECK_INT(count_runs(&t, &m, &b, &r), 0);
}
