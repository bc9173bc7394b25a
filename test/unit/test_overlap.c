/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes in one piece of memory, against painting each byte of both. */
#include "rng.h"
#include "t.h"
#include <stdlib.h>
#include "memory_overlap.h"

#define SEED UINT64_C(0x5eaf0a11)
enum { MEMORY = 8192, ROUNDS = 40000 };
static uint8_t memory[MEMORY];

/* A box somewhere in memory: dense, permuted, with gaps between rows, or, now and then, askew; and
 * of half of them only a window. *unit: bytes of an item. */
static struct shf_mem random_mem(uint64_t *s, uint32_t *unit, bool *askew)
{
	struct shf_mem m = { .box = { .ndim = (int32_t)rng_below(s, 4) } };
	int64_t by = 1, top = 0;
	int first = (int)rng_below(s, 2);

	*unit = (uint32_t)1 << rng_below(s, 4);
	*askew = m.box.ndim > 1 && rng_below(s, 8) == 0;
	for (int k = 0; k < m.box.ndim; k++) {
		int d = first ? k : m.box.ndim - 1 - k;

		m.box.start[d] = rng_below(s, 3);
		m.box.count[d] = 1 + rng_below(s, 5);
		m.stride[d] = *askew ? 1 + rng_below(s, 4)
		                     : by + (rng_below(s, 2) ? rng_below(s, 6) : 0);
		by = m.stride[d] * m.box.count[d];
		top += (m.box.count[d] - 1) * m.stride[d];
	}
	m.origin = rng_below(s, 8);
	top += m.origin + 1;
	m.lo = rng_below(s, 2) ? rng_below(s, top) : 0;
	m.hi = rng_below(s, 2) ? m.lo + rng_below(s, top - m.lo + 1) : top;
	m.base = memory + rng_below(s, 256) * *unit;
	return m;
}

/* Bytes of the box get the bit; the first and last of them. False: there are none. */
static bool paint(const struct shf_mem *m, uint32_t unit, uint8_t *on, uint8_t bit, int64_t *lo,
                  int64_t *hi)
{
	int64_t items = (int64_t)shf_box_units(&m->box);
	bool any = false;

	for (int64_t i = 0; i < items; i++) {
		int64_t at = m->origin, left = i, from;

		for (int d = 0; d < m->box.ndim; d++) {
			at += left % m->box.count[d] * m->stride[d];
			left /= m->box.count[d];
		}
		if (at < m->lo || at >= m->hi)
			continue;
		from = (m->base - memory) + (at - m->lo) * unit;
		for (uint32_t b = 0; b < unit; b++)
			on[from + b] |= bit;
		*lo = !any || from < *lo ? from : *lo;
		*hi = !any || from + unit > *hi ? from + unit : *hi;
		any = true;
	}
	return any;
}

TEST(boxes_overlap_where_some_byte_is_of_both)
{
	static uint8_t on[MEMORY];
	uint64_t s = SEED;
	int apart_inside = 0, met = 0;

	for (int round = 0; round < ROUNDS; round++) {
		uint32_t a_unit, b_unit;
		bool a_askew, b_askew, both = false, claim;
		struct shf_mem a = random_mem(&s, &a_unit, &a_askew);
		struct shf_mem b = random_mem(&s, &b_unit, &b_askew);
		int64_t a_lo = 0, a_hi = 0, b_lo = 0, b_hi = 0;

		memset(on, 0, sizeof(on));
		(void)paint(&a, a_unit, on, 1, &a_lo, &a_hi);
		(void)paint(&b, b_unit, on, 2, &b_lo, &b_hi);
		for (int i = 0; i < MEMORY; i++)
			both |= on[i] == 3;
		claim = shf_mem_overlap(&a, a_unit, &b, b_unit);
		if (claim != shf_mem_overlap(&b, b_unit, &a, a_unit))
			fail_msg("round %d: not both ways", round);
		if (both && !claim)
			fail_msg("round %d: an overlap is not seen", round);
		if (!both && claim && !a_askew && !b_askew)
			fail_msg("round %d: an overlap that is none", round);
		apart_inside += !both && !claim && a_lo < b_hi && b_lo < a_hi;
		met += both;
	}
	CHECK(apart_inside > 100 && met > 1000);
}

TEST(a_span_has_every_byte_of_its_box)
{
	static uint8_t on[MEMORY];
	uint64_t s = SEED + 1, from, to;

	for (int round = 0; round < ROUNDS; round++) {
		uint32_t unit;
		bool askew;
		struct shf_mem m = random_mem(&s, &unit, &askew);
		int64_t lo = 0, hi = 0;
		uint64_t zero = (uint64_t)(uintptr_t)memory;

		if (!paint(&m, unit, on, 1, &lo, &hi))
			continue;
		CHECK(shf_mem_span(&m, unit, &from, &to));
		CHECK(from <= zero + (uint64_t)lo && to >= zero + (uint64_t)hi);
		m.lo = 0;                       /* all of it is here */
		m.hi = MEMORY;
		CHECK(paint(&m, unit, on, 1, &lo, &hi) && shf_mem_span(&m, unit, &from, &to));
		CHECK(from == zero + (uint64_t)lo && to == zero + (uint64_t)hi);
	}
}

/* Rows between the rows of others, in as many dimensions as there are. */
TEST(eight_dimensions_with_gaps_are_walked_to_the_end)
{
	struct shf_mem even = { .box = { .ndim = 8 }, .hi = MEMORY, .base = memory }, odd;
	uint64_t lo, hi;

	for (int d = 0; d < 8; d++) {
		even.box.count[d] = 2;
		even.stride[d] = 2 << (7 - d);
	}
	odd = even;
	odd.base = memory + 1;
	CHECK(shf_mem_span(&even, 1, &lo, &hi));
	CHECK(lo == (uintptr_t)memory && hi == (uintptr_t)memory + 511);
	CHECK(!shf_mem_overlap(&even, 1, &odd, 1) && !shf_mem_overlap(&odd, 1, &even, 1));
	odd.base = memory + 510;                /* its first byte is the last of the other */
	CHECK(shf_mem_overlap(&even, 1, &odd, 1) && shf_mem_overlap(&odd, 1, &even, 1));
	odd.base = memory + 511;
	CHECK(!shf_mem_overlap(&even, 1, &odd, 1) && !shf_mem_overlap(&odd, 1, &even, 1));
}

/* The memory of a program that is not position-independent begins at 4 MiB. What a rank has of a
 * large tensor may begin further into the tensor than that. */
TEST(a_window_far_into_its_buffer_may_lie_at_a_low_address)
{
	const uint64_t base = 4 << 20, n = 1 << 20;

	for (int64_t lo = 0; lo <= INT64_C(1) << 40; lo = lo ? lo * 8 : 1 << 10) {
		struct shf_mem m = { .box = { .ndim = 1, .count = { INT64_C(1) << 41 } },
			.stride = { 1 }, .lo = lo, .hi = lo + (int64_t)n, .unit = 4,
			.base = (uint8_t *)(uintptr_t)base }, behind = m;
		uint64_t from = 0, to = 0;

		behind.base += 4 * n;
		CHECK(shf_mem_span(&m, 4, &from, &to));
		CHECK(from == base && to == base + 4 * n);
		CHECK(shf_mem_overlap(&m, 4, &m, 4));
		CHECK(!shf_mem_overlap(&m, 4, &behind, 4));
		behind.base--;
		CHECK(shf_mem_overlap(&m, 4, &behind, 4));
	}
}

TEST(a_window_without_end_reaches_to_the_end_of_the_box)
{
	struct shf_mem a = { .box = { .ndim = 1, .count = { 8 } }, .stride = { 1 }, .hi = 8,
		.base = memory };
	struct shf_mem b = a;
	uint64_t lo, hi;
	static const int64_t ends[] = { INT64_C(1) << 61, (INT64_C(1) << 61) + 1, INT64_C(1) << 62,
		INT64_MAX };

	/* In 64 bits, as many bytes are 0, 8, 0 and -8. */
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		b.hi = ends[i];
		CHECK(shf_mem_overlap(&a, 8, &b, 8));
		CHECK(shf_mem_span(&b, 8, &lo, &hi));
		CHECK_INT(hi - lo, 64);
	}
	b.lo = INT64_C(1) << 61;
	CHECK(!shf_mem_overlap(&a, 8, &b, 8));
}

TEST(an_empty_box_lies_nowhere)
{
	struct shf_mem none = { .box = { .ndim = 1, .count = { 0 } }, .stride = { 1 }, .hi = 4,
		.base = memory };
	struct shf_mem some = { .box = { .ndim = 1, .count = { 4 } }, .stride = { 1 }, .hi = 4,
		.base = memory };
	uint64_t lo, hi;

	CHECK(!shf_mem_span(&none, 4, &lo, &hi) && shf_mem_span(&some, 4, &lo, &hi));
	CHECK(!shf_mem_overlap(&none, 4, &some, 4) && shf_mem_overlap(&some, 4, &some, 4));
}

