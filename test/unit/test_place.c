/* SPDX-License-Identifier: Apache-2.0 */
/* Natural order and placement: pure functions, so their results are written down here. */
#include "rng.h"
#include "natural.h"
#include "t.h"
#include <stdlib.h>
#include "place.h"

#define SEED UINT64_C(0x5eaf0201)

static int sign(int x)
{
	return (x > 0) - (x < 0);
}

TEST(names_sort_as_people_count)
{
	static const char *const sorted[] = {
		"", "0", "00", "0a", "1", "01", "1a", "2", "9", "10", "010", "10a",
		"18446744073709551616", "18446744073709551617", "99999999999999999999999",
		"A", "a", "a0", "a0b", "a00b0", "a1", "a1.b", "a01.b", "a2", "a10", "a.b", "ab",
		"layers.9.w", "layers.10.w", "layers.10.w2", "layers.10.w10", "\xc3\xa9",
	};
	size_t n = sizeof(sorted) / sizeof(*sorted);

	for (size_t i = 0; i < n; i++) {
		for (size_t j = 0; j < n; j++) {
			int got = sign(shf_natural(sorted[i], sorted[j]));

			if (got != sign((int)i - (int)j))
				print_error("'%s' and '%s': %d\n", sorted[i], sorted[j], got);
			CHECK_INT(got, sign((int)i - (int)j));
		}
	}
}

TEST(equal_values_sort_by_all_leading_zeros_then_bytes)
{
	CHECK(shf_natural("a1b01", "a01b01") < 0);
	CHECK(shf_natural("a01b1", "a1b01") < 0);
	CHECK(shf_natural("a1b001", "a01b1") > 0);
}

/* The rule of place.h run by run, from the first byte. */
struct said {
	int order, zeros;
};

static struct said say_run(const char **p, const char **q)
{
	bool digits = **p >= '0' && **p <= '9', other = **q >= '0' && **q <= '9';
	size_t n[2] = { 0, 0 }, zeros[2] = { 0, 0 };
	const char **at[2] = { p, q }, *from[2];
	struct said s = { 0, 0 };

	if (digits != other)
		return (struct said){ digits ? -1 : 1, 0 };
	for (int k = 0; k < 2; k++) {
		for (; digits && **at[k] == '0'; *at[k] += 1)
			zeros[k]++;
		from[k] = *at[k];
		for (; **at[k] && (**at[k] >= '0' && **at[k] <= '9') == digits; *at[k] += 1)
			n[k]++;
	}
	s.zeros = (int)zeros[0] - (int)zeros[1];
	if (digits && n[0] != n[1])
		s.order = n[0] < n[1] ? -1 : 1;
	if (s.order == 0)
		s.order = sign(memcmp(from[0], from[1], n[0] < n[1] ? n[0] : n[1]));
	if (s.order == 0)
		s.order = sign((int)n[0] - (int)n[1]);
	return s;
}

static int say(const char *p, const char *q)
{
	const char *a = p, *b = q;
	int zeros = 0;

	while (*p && *q) {
		struct said s = say_run(&p, &q);

		if (s.order)
			return s.order;
		zeros += s.zeros;
	}
	if (*p || *q)
		return *p ? 1 : -1;
	return zeros ? sign(zeros) : sign(strcmp(a, b));
}

TEST(a_common_start_changes_no_order)
{
	uint64_t seed = SEED + 2, s = 0;
	int alike = 0, pairs = 200000;
	char name[2][16];

	for (int round = 0; round < pairs; round++) {
		for (size_t k = 0; k < 15; k++) { /* the second mostly as the first */
			s = rng_next(&seed);
			name[0][k] = "0012a.9"[(s >> 33) % 7];
			name[1][k] = (s >> 40) % 8 ? name[0][k] : "0012a.9"[(s >> 45) % 7];
		}
		name[0][(s >> 50) % 16] = name[1][(s >> 54) % 16] = '\0';
		name[0][15] = name[1][15] = '\0';
		alike += name[0][0] == name[1][0];
		if (sign(shf_natural(name[0], name[1])) != say(name[0], name[1]))
			fail_msg("'%s' and '%s', seed %llx", name[0], name[1],
			         (unsigned long long)(SEED + 2));
	}
	print_message("# %d pairs, %d begin alike; seed %llx\n", pairs, alike,
	              (unsigned long long)(SEED + 2));
	CHECK(alike > pairs / 2);
}

TEST(natural_is_a_total_order)
{
	uint64_t seed = SEED, s = 0;
	char name[60][8];

	for (size_t i = 0; i < 60; i++) {
		for (size_t k = 0; k < 8; k++) {
			s = rng_next(&seed);
			name[i][k] = "001a.9"[(s >> 33) % 6];
		}
		name[i][(s >> 40) % 8] = '\0';
	}
	for (int i = 0; i < 60; i++) {
		for (int j = 0; j < 60; j++) {
			int ij = sign(shf_natural(name[i], name[j]));

			CHECK_INT(ij, -sign(shf_natural(name[j], name[i])));
			CHECK_INT(ij == 0, strcmp(name[i], name[j]) == 0);
			for (int k = 0; k < 60 && ij <= 0; k++)
				CHECK(shf_natural(name[j], name[k]) > 0 ||
				      shf_natural(name[i], name[k]) <= 0);
		}
	}
}

TEST(whole_pages_come_first_then_falling_alignment)
{
	static const struct shf_place_in in[] = {
		{ 3, 50, 1 }, { 4096, 50, 2 }, { 10, 50, 2 }, { 0, 50, 1 }, { 16, 50, 8 },
		{ 8192, 50, 1 }, { 12, 50, 4 }, { 24, 50, 8 }, { 0, 50, 8 },
	};
	static const struct shf_place_out want[] = {
		{ 0, 7, 12350 }, { 0, 0, 0 }, { 0, 6, 12340 }, { 0, 8, 12353 }, { 0, 2, 12288 },
		{ 0, 1, 4096 }, { 0, 5, 12328 }, { 0, 3, 12304 }, { 0, 4, 12328 },
	};
	struct shf_place_out out[9];
	struct shf_arena arena = { 0 };
	struct shf_place_file *f;
	size_t n;

	CHECK_INT(shf_place(&arena, in, 9, 1 << 20, out, &f, &n), 0);
	CHECK_INT(n, 1);
	CHECK(f[0].tensors_n == 9 && f[0].payload_bytes == 12353);
	for (int i = 0; i < 9; i++)
		CHECK(out[i].file == want[i].file && out[i].order == want[i].order &&
		      out[i].off == want[i].off);
	shf_arena_release(&arena);
}

TEST(a_file_closes_before_it_overflows_and_a_giant_stands_alone)
{
	static const struct shf_place_in in[] = {
		{ 60, 50, 1 }, { 40, 50, 1 }, { 1, 50, 1 }, { 500, 50, 1 }, { 0, 50, 1 },
		{ 7, (32 << 20) - 60, 1 }, { 7, 10, 1 }, { 7, 1, 1 }, { UINT64_MAX, 1, 1 },
	};
	static const uint32_t want[] = { 0, 0, 1, 2, 3, 3, 3, 4, 5 };
	struct shf_place_out out[9];
	struct shf_arena arena = { 0 };
	struct shf_place_file *f;
	size_t n;

	CHECK_INT(shf_place(&arena, in, 9, 100, out, &f, &n), 0);
	CHECK_INT(n, 6);
	for (int i = 0; i < 9; i++)
		CHECK_INT(out[i].file, want[i]);
	CHECK_INT(f[5].payload_bytes, UINT64_MAX);
	CHECK_INT(shf_place(&arena, in, 0, 100, out, &f, &n), 0);
	CHECK_INT(n, 0);
	shf_arena_release(&arena);
}

TEST(offsets_go_on_behind_4_gib)
{
	const uint64_t giga = UINT64_C(1) << 30;
	const struct shf_place_in in[] = {
		{ 3 * giga, 50, 2 }, { 3 * giga, 50, 2 }, { 40, 50, 4 }, { 4096, 50, 2 },
	};
	const uint64_t want[] = { 0, 3 * giga, 6 * giga + 4096, 6 * giga };
	struct shf_place_out out[4];
	struct shf_arena arena = { 0 };
	struct shf_place_file *f;
	size_t n;

	CHECK_INT(shf_place(&arena, in, 4, 8 * giga, out, &f, &n), 0);
	CHECK_INT(n, 1);
	for (int i = 0; i < 4; i++)
		CHECK_INT(out[i].off, want[i]);
	CHECK_INT(f[0].payload_bytes, 6 * giga + 4096 + 40);
	shf_arena_release(&arena);
}

TEST(files_have_no_gaps_and_every_tensor_its_alignment)
{
	uint64_t seed = SEED + 1, s;

	for (int round = 0; round < 200; round++) {
		struct shf_place_in in[64];
		struct shf_place_out out[64];
		struct shf_arena arena = { 0 };
		struct shf_place_file *f;
		size_t n, seen = 0;

		for (int i = 0; i < 64; i++) {
			s = rng_next(&seed);
			in[i].align = (uint8_t)(1u << (s >> 60) % 4);
			in[i].header_bytes = 100;
			in[i].bytes = (s >> 33) % 5 == 0 ? (s >> 40) % 3 * 4096
			                                 : (s >> 40) % 9000 * in[i].align;
		}
		CHECK_INT(shf_place(&arena, in, 64, 100000, out, &f, &n), 0);
		for (size_t k = 0; k < n; k++) {
			uint64_t at = 0;

			for (uint32_t o = 0; o < f[k].tensors_n; o++) {
				int i = 0;

				for (; i < 64 && (out[i].file != k || out[i].order != o); i++)
					;
				CHECK(i < 64);
				CHECK_INT(out[i].off, at);
				CHECK_INT(at % in[i].align, 0);
				CHECK(in[i].bytes == 0 || in[i].bytes % 4096 || at % 4096 == 0);
				at += in[i].bytes;
				seen++;
			}
			CHECK_INT(at, f[k].payload_bytes);
			CHECK(at <= 100000);
		}
		CHECK_INT(seen, 64);
		shf_arena_release(&arena);
	}
}
