/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes, ranges and windows against painting: every unit of small tensors is visited. */
#include "rng.h"
#include "t.h"
#include <stdlib.h>
#include "box.h"
#include "slice_chunk.h"

#define SEED UINT64_C(0x5eaf0001)
#define UNITS_MAX 4096

static struct shf_shape random_shape(uint64_t *s)
{
	struct shf_shape t = { .ndim = (int32_t)rng_below(s, SHEAF_DIMS_MAX + 1) };
	int64_t room = UNITS_MAX;

	for (int d = 0; d < t.ndim; d++) {
		int64_t top = room < 9 ? room : 9;

		t.dim[d] = 1 + rng_below(s, top);
		room /= t.dim[d];
	}
	return t;
}

static struct shf_box random_box(uint64_t *s, const struct shf_shape *t)
{
	struct shf_box b = { .ndim = t->ndim };

	for (int d = 0; d < t->ndim; d++) {
		b.start[d] = rng_below(s, t->dim[d]);
		b.count[d] = 1 + rng_below(s, t->dim[d] - b.start[d]);
	}
	return b;
}

/* Coordinates of row-major unit u. */
static void coords(const struct shf_shape *t, uint64_t u, int64_t *c)
{
	for (int d = t->ndim - 1; d >= 0; d--) {
		c[d] = (int64_t)(u % (uint64_t)t->dim[d]);
		u /= (uint64_t)t->dim[d];
	}
}

static bool is_in(const struct shf_box *b, const int64_t *c)
{
	for (int d = 0; d < b->ndim; d++) {
		if (c[d] < b->start[d] || c[d] >= b->start[d] + b->count[d])
			return false;
	}
	return true;
}

TEST(empty_and_scalar_boxes_are_told_apart)
{
	struct shf_box scalar = { 0 }, empty = { .ndim = 2, .count = { 3, 0 } };
	struct shf_shape s = { 0 };
	uint64_t lo, hi;

	CHECK(!shf_box_is_empty(&scalar));
	CHECK_INT(shf_box_units(&scalar), 1);
	CHECK(shf_box_is_empty(&empty));
	CHECK_INT(shf_box_units(&empty), 0);
	CHECK_INT(shf_shape_units(&s), 1);
	shf_box_span(&s, &scalar, &lo, &hi);
	CHECK(lo == 0 && hi == 1);
	CHECK(shf_box_intersect(&scalar, &scalar, &scalar));
	CHECK(!shf_box_intersect(&empty, &empty, &empty));
}

TEST(print_ends_and_is_cut)
{
	struct shf_box b = { .ndim = 2, .start = { 0, 8 }, .count = { 4, 8 } }, all;
	char text[64], big[600];

	CHECK_STR(shf_box_print(&b, text, sizeof(text)), "[0:4, 8:16]");
	CHECK_STR(shf_box_print(&b, text, 5), "[0:4");
	CHECK_STR(shf_box_print(&b, text, 1), "");
	b.ndim = 0;
	CHECK_STR(shf_box_print(&b, text, sizeof(text)), "[]");
	all.ndim = SHEAF_DIMS_MAX;
	for (int d = 0; d < SHEAF_DIMS_MAX; d++) {
		all.start[d] = INT64_MAX / 2;
		all.count[d] = INT64_MAX / 2;
	}
	CHECK_INT(strlen(shf_box_print(&all, big, sizeof(big))), 2 + 8 * 39 + 7 * 2);
}

TEST(intersect_contains_and_span_agree_with_painting)
{
	uint64_t s = SEED;

	print_message("# seed %llx\n", (unsigned long long)s);
	for (int round = 0; round < 2000; round++) {
		struct shf_shape t = random_shape(&s);
		struct shf_box a = random_box(&s, &t), b = random_box(&s, &t), both, old = a;
		uint64_t n_a = 0, n_both = 0, n_b = 0, lo, hi, first = UINT64_MAX, last = 0;
		bool some = shf_box_intersect(&both, &a, &b);

		shf_box_span(&t, &a, &lo, &hi);
		for (uint64_t u = 0; u < shf_shape_units(&t); u++) {
			int64_t c[SHEAF_DIMS_MAX];
			bool in_a, in_b;

			coords(&t, u, c);
			in_a = is_in(&a, c);
			in_b = is_in(&b, c);
			n_a += in_a;
			n_b += in_b;
			n_both += in_a && in_b;
			CHECK_INT(some && is_in(&both, c), in_a && in_b);
			if (in_a) {
				first = u < first ? u : first;
				last = u;
			}
		}
		CHECK_INT(some, n_both > 0);
		CHECK_INT(shf_box_units(&a), n_a);
		CHECK(lo == first && hi == last + 1);
		CHECK_INT(shf_box_contains(&a, &b), n_both == n_b);
		CHECK(shf_box_equal(&a, &old));
		CHECK_INT(shf_box_equal(&a, &b), n_both == n_b && n_a == n_b);
	}
}

TEST(range_boxes_are_the_range_in_order)
{
	uint64_t s = SEED + 1;
	int most = 0;

	for (int round = 0; round < 5000; round++) {
		struct shf_shape t = random_shape(&s);
		struct shf_box b[SHF_RANGE_BOXES_MAX];
		uint64_t hi = rng_next(&s) % (shf_shape_units(&t) + 1);
		uint64_t lo = rng_next(&s) % (hi + 1);
		uint64_t at = lo;
		int n = shf_range_boxes(&t, lo, hi, b);

		most = n > most ? n : most;
		CHECK(n <= SHF_RANGE_BOXES_MAX);
		/* Each box is one run, and the runs follow each other. */
		for (int i = 0; i < n; i++) {
			uint64_t b_lo, b_hi;

			CHECK(!shf_box_is_empty(&b[i]));
			shf_box_span(&t, &b[i], &b_lo, &b_hi);
			CHECK_INT(b_lo, at);
			CHECK_INT(b_hi - b_lo, shf_box_units(&b[i]));
			at = b_hi;
			for (int d = 0; d < t.ndim; d++)
				CHECK(b[i].start[d] >= 0 &&
				      b[i].start[d] + b[i].count[d] <= t.dim[d]);
		}
		CHECK_INT(at, hi);
	}
	CHECK(most >= 9);
}

TEST(range_boxes_reach_their_bound_and_no_more)
{
	struct shf_shape t = { .ndim = 8, .dim = { 3, 3, 3, 3, 3, 3, 3, 3 } };
	struct shf_box b[SHF_RANGE_BOXES_MAX];

	CHECK_INT(shf_range_boxes(&t, 1, 6560, b), SHF_RANGE_BOXES_MAX);
	CHECK_INT(shf_range_boxes(&t, 0, 6561, b), 1);
	CHECK_INT(shf_range_boxes(&t, 7, 7, b), 0);
}

TEST(range_boxes_of_nothing_are_none)
{
	struct shf_shape t = { .ndim = 3, .dim = { 4, 0, 5 } };
	struct shf_box b[SHF_RANGE_BOXES_MAX];

	CHECK_INT(shf_range_boxes(&t, 0, 0, b), 0);
}

struct paint {
	const struct shf_shape *t;
	uint8_t unit[UNITS_MAX];
	int boxes, stop_at;
};

static int paint_box(void *arg, const struct shf_box *b)
{
	struct paint *p = arg;

	CHECK(!shf_box_is_empty(b));
	for (uint64_t u = 0; u < shf_shape_units(p->t); u++) {
		int64_t c[SHEAF_DIMS_MAX];

		coords(p->t, u, c);
		if (is_in(b, c))
			p->unit[u]++;
	}
	return ++p->boxes == p->stop_at ? 77 : 0;
}

/* Dense, permuted, padded, or any small numbers at all. */
static void random_strides(uint64_t *s, struct shf_mem *m)
{
	int kind = (int)rng_below(s, 4), order[SHEAF_DIMS_MAX];
	int64_t step = 1;

	for (int d = 0; d < m->box.ndim; d++)
		order[d] = m->box.ndim - 1 - d;
	for (int d = m->box.ndim - 1; d > 0 && kind; d--) {
		int e = (int)rng_below(s, d + 1), o = order[d];

		order[d] = order[e];
		order[e] = o;
	}
	for (int k = 0; k < m->box.ndim; k++) {
		m->stride[order[k]] = kind == 3 ? rng_below(s, 6) : step;
		step *= m->box.count[order[k]] + (kind == 2 ? rng_below(s, 3) : 0);
	}
}

TEST(windows_of_memory_hold_exactly_what_is_here)
{
	uint64_t s = SEED + 2;

	print_message("# seed %llx\n", (unsigned long long)s);
	for (int round = 0; round < 1500; round++) {
		struct shf_shape t = random_shape(&s);
		struct shf_mem m = { .box = random_box(&s, &t), .origin = rng_below(&s, 50) };
		struct paint p = { .t = &t };
		int64_t far;

		random_strides(&s, &m);
		far = m.origin;
		for (int d = 0; d < t.ndim; d++)
			far += (m.box.count[d] - 1) * m.stride[d];
		m.lo = rng_below(&s, far + 2);
		m.hi = m.lo + rng_below(&s, far + 10 - m.lo);
		CHECK_INT(shf_mem_boxes(&m, paint_box, &p), 0);
		for (uint64_t u = 0; u < shf_shape_units(&t); u++) {
			int64_t c[SHEAF_DIMS_MAX], at = m.origin;

			coords(&t, u, c);
			for (int d = 0; d < t.ndim; d++)
				at += (c[d] - m.box.start[d]) * m.stride[d];
			CHECK_INT(p.unit[u], is_in(&m.box, c) && at >= m.lo && at < m.hi);
		}
	}
}

TEST(a_flat_range_of_a_dense_tensor_is_few_boxes)
{
	struct shf_shape t = { .ndim = 3, .dim = { 16, 16, 16 } };
	struct shf_mem m = { .box = shf_box_of(&t), .stride = { 256, 16, 1 }, .lo = 5, .hi = 4001 };
	struct paint p = { .t = &t };

	CHECK_INT(shf_mem_boxes(&m, paint_box, &p), 0);
	CHECK_INT(p.boxes, 5);
	m.lo = m.hi;
	CHECK_INT(shf_mem_boxes(&m, paint_box, &p), 0);
	CHECK_INT(p.boxes, 5);
}

TEST(the_result_of_item_ends_the_walk)
{
	struct shf_shape t = { .ndim = 2, .dim = { 8, 8 } };
	struct shf_mem m = { .box = shf_box_of(&t), .stride = { 8, 1 }, .lo = 3, .hi = 61 };

	for (int k = 1; k <= 3; k++) {
		struct paint p = { .t = &t, .stop_at = k };

		CHECK_INT(shf_mem_boxes(&m, paint_box, &p), 77);
		CHECK_INT(p.boxes, k);
	}
}

TEST(shards_are_those_of_chunk)
{
	for (int64_t count = 0; count < 20; count++) {
		for (int64_t n = 1; n < 24; n++) {
			int64_t at = 7, piece = (count + n - 1) / n;

			for (int64_t i = 0; i < n; i++) {
				struct sheaf_slice sl = { .ndim = 2, .start = { 1, 7 },
					.count = { 5, count }, .stride = { 100, 3 }, .origin = 11 };
				int64_t left = 7 + count - at, want = piece < left ? piece : left;

				CHECK_INT(shf_slice_shard(&sl, 1, i, n, NULL), 0);
				CHECK_INT(sl.count[1], want);
				CHECK_INT(sl.start[1], at);
				CHECK_INT(sl.origin, 11 + 3 * (at - 7));
				CHECK(sl.count[0] == 5 && sl.start[0] == 1);
				at += want;
			}
			CHECK_INT(at, 7 + count);
		}
	}
}

TEST(shards_of_dense_memory_keep_their_origin)
{
	struct sheaf_slice sl = { .ndim = 1, .count = { 10 } };

	CHECK_INT(shf_slice_shard(&sl, 0, 3, 4, NULL), 0);
	CHECK(sl.start[0] == 9 && sl.count[0] == 1 && sl.origin == 0);
}

TEST(shards_that_make_no_sense_are_refused_untouched)
{
	struct sheaf_slice sl = { .ndim = 1, .count = { INT64_MAX }, .stride = { INT64_MAX } };
	struct sheaf_slice old = sl;

	CHECK_INT(shf_slice_shard(NULL, 0, 0, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_slice_shard(&sl, -1, 0, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_slice_shard(&sl, 1, 0, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_slice_shard(&sl, 0, 1, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_slice_shard(&sl, 0, -1, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_slice_shard(&sl, 0, 0, 0, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_slice_shard(&sl, 0, 1, 2, NULL), SHEAF_EINVAL);
	CHECK_INT(memcmp(&sl, &old, sizeof(sl)), 0);
	sl.stride[0] = 1;
	CHECK_INT(shf_slice_shard(&sl, 0, INT64_MAX - 2, INT64_MAX - 1, NULL), 0);
	CHECK_INT(sl.count[0], 0);
	sl.count[0] = -1;
	CHECK_INT(shf_slice_shard(&sl, 0, 0, 1, NULL), SHEAF_EINVAL);
}
