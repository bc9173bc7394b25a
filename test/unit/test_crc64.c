/* SPDX-License-Identifier: Apache-2.0 */
#include "rng.h"
#include "t.h"
#include <stdlib.h>
#include "crc64.h"

/* A bit at a time, from the definition. */
static uint64_t times_x(uint64_t v)
{
	return v & 1 ? v >> 1 ^ UINT64_C(0x9a6c9329ac4bc9b5) : v >> 1;
}

static uint64_t slow_byte(uint64_t crc, uint8_t byte)
{
	crc ^= byte;
	for (int i = 0; i < 8; i++)
		crc = times_x(crc);
	return crc;
}

/* crc * x^(8n), bit by bit through the square and multiply of schoolbooks. */
static uint64_t slow_times(uint64_t a, uint64_t b)
{
	uint64_t product = 0;

	for (int i = 63; i >= 0; i--, b = times_x(b))
		if (a >> i & 1)
			product ^= b;
	return product;
}

static uint64_t slow_shift(uint64_t crc, uint64_t n)
{
	uint64_t square = UINT64_C(1) << 55;    /* x^8 */

	for (; n; n >>= 1, square = slow_times(square, square))
		if (n & 1)
			crc = slow_times(crc, square);
	return crc;
}

#define MESSAGE_BYTES ((size_t)5000)
static uint8_t *message(uint64_t seed)
{
	uint8_t *m = malloc(MESSAGE_BYTES);

	assert_non_null(m);
	for (size_t i = 0; i < MESSAGE_BYTES; i++)
		m[i] = (uint8_t)rng_next(&seed);
	return m;
}

TEST(the_check_words_are_those_of_the_format)
{
	CHECK(shf_crc64("123456789", 9) == UINT64_C(0xae8b14860a799888));
	CHECK(shf_crc64_raw(0, "123456789", 9) == UINT64_C(0x7800c064d4a83784));
	CHECK(shf_crc64("", 0) == 0);
	CHECK(shf_crc64(NULL, 0) == 0);
	CHECK(shf_crc64_raw(0, NULL, 0) == 0);
}

TEST(each_offset_and_length_agrees_with_a_bit_at_a_time)
{
	for (size_t off = 0; off < 64; off++) {
		const uint64_t odd = UINT64_C(0x0123456789abcdef);
		uint64_t raw = 0, all = UINT64_MAX, want_odd = odd;

		for (size_t n = 0; n <= 300; n++) {
			/* No byte before or behind: a sanitizer sees reads outside. */
			uint8_t *block = aligned_alloc(64, (off + n + 63) / 64 * 64 + 64), *m;
			uint64_t seed = off;

			assert_non_null(block);
			m = block + off;
			for (size_t i = 0; i < n; i++)
				m[i] = (uint8_t)rng_next(&seed);
			if (n) {
				raw = slow_byte(raw, m[n - 1]);
				all = slow_byte(all, m[n - 1]);
				want_odd = slow_byte(want_odd, m[n - 1]);
			}
			CHECK(shf_crc64_raw(0, m, n) == raw);
			CHECK(shf_crc64_raw(odd, m, n) == want_odd);
			CHECK(shf_crc64(m, n) == (all ^ UINT64_MAX));
			CHECK(shf_crc64_more(0, m, n) == (all ^ UINT64_MAX));
			free(block);
		}
	}
}

TEST(nothing_outside_the_bytes_is_read)
{
	for (size_t n = 1; n <= 70; n++) {
		uint8_t *m = malloc(n);

		assert_non_null(m);
		memset(m, 0xa5, n);
		CHECK(shf_crc64_raw(0, m, n) != 0);
		free(m);
	}
}

TEST(a_shift_is_zero_bytes_behind)
{
	static const uint8_t zeros[1000];
	uint64_t seed = 1;

	for (size_t n = 0; n <= sizeof(zeros); n++) {
		uint64_t crc = rng_next(&seed);

		CHECK(shf_crc64_shift(crc, n) == shf_crc64_raw(crc, zeros, n));
	}
}

TEST(shifts_of_any_distance_agree_with_square_and_multiply)
{
	uint64_t seed = 2;

	for (int i = 0; i < 2000; i++) {
		uint64_t crc = rng_next(&seed), n = rng_next(&seed) >> i % 64;

		CHECK(shf_crc64_shift(crc, n) == slow_shift(crc, n));
	}
	for (int bit = 0; bit < 64; bit++)
		for (int d = -1; d <= 1; d++) {
			uint64_t n = (UINT64_C(1) << bit) + (uint64_t)(int64_t)d;

			CHECK(shf_crc64_shift(0x5a, n) == slow_shift(0x5a, n));
		}
	CHECK(shf_crc64_shift(0, UINT64_MAX) == 0);
}

TEST(shifts_add_up_and_are_linear)
{
	uint64_t seed = 3;

	for (int i = 0; i < 500; i++) {
		uint64_t a = rng_next(&seed), b = rng_next(&seed);
		uint64_t n = rng_next(&seed) >> 1, m = rng_next(&seed) >> 1;

		CHECK(shf_crc64_shift(shf_crc64_shift(a, n), m) == shf_crc64_shift(a, n + m));
		CHECK(shf_crc64_shift(a ^ b, n) == (shf_crc64_shift(a, n) ^ shf_crc64_shift(b, n)));
	}
}

TEST(runs_of_any_cut_in_any_order_add_up_to_the_whole)
{
	uint8_t *m = message(4);
	uint64_t seed = 5;

	for (int round = 0; round < 200; round++) {
		size_t n = (size_t)(rng_next(&seed) % (MESSAGE_BYTES + 1)), cut[40], cuts_n = 0;
		uint64_t sum = 0;

		cut[cuts_n++] = 0;
		while (cuts_n < 39 && cut[cuts_n - 1] < n) {
			size_t left = n - cut[cuts_n - 1];
			size_t run = cuts_n == 38 ? left : (size_t)(rng_next(&seed) % left) / 4 + 1;

			cut[cuts_n] = cut[cuts_n - 1] + run;
			cuts_n++;
		}
		/* Backwards from a random run: XOR knows no order. */
		for (size_t i = 0, k = (size_t)(rng_next(&seed) % cuts_n); i + 1 < cuts_n; i++) {
			size_t r = (k + cuts_n - 1 - i) % (cuts_n - 1);

			sum ^= shf_crc64_shift(shf_crc64_raw(0, m + cut[r], cut[r + 1] - cut[r]),
					       n - cut[r + 1]);
		}
		CHECK(sum == shf_crc64_raw(0, m, n));
		CHECK((sum ^ shf_crc64_ones(n)) == shf_crc64(m, n));
	}
	free(m);
}

TEST(joined_sums_are_the_sum_of_the_joined)
{
	uint8_t *m = message(6);
	uint64_t seed = 7;

	for (int i = 0; i < 500; i++) {
		size_t n = (size_t)(rng_next(&seed) % (MESSAGE_BYTES + 1));
		size_t a = i < 2 ? n * (size_t)i : (size_t)(rng_next(&seed) % (n + 1));
		uint64_t whole = shf_crc64(m, n), first = shf_crc64(m, a);

		CHECK(shf_crc64_join(first, shf_crc64(m + a, n - a), n - a) == whole);
		CHECK(shf_crc64_more(first, m + a, n - a) == whole);
		first = shf_crc64_raw(0, m, a);
		CHECK(shf_crc64_raw(first, m + a, n - a) == shf_crc64_raw(0, m, n));
	}
	free(m);
}

TEST(ones_of_no_bytes_is_nothing)
{
	CHECK(shf_crc64_ones(0) == 0);
	CHECK(shf_crc64_ones(1) != 0);
	CHECK(shf_crc64_ones(UINT64_MAX) == (slow_shift(UINT64_MAX, UINT64_MAX) ^ UINT64_MAX));
}

TEST(a_table_shifts_as_the_shift_does)
{
	static const uint64_t far[] = { 0, 1, 2, 7, 8, 4096, 1 << 20, UINT64_C(5000000000),
					UINT64_MAX };
	static struct shf_crc64_by by;
	uint64_t seed = 8;

	for (size_t i = 0; i < sizeof(far) / sizeof(far[0]); i++) {
		shf_crc64_by_init(&by, far[i]);
		CHECK(shf_crc64_by(&by, 0) == 0);
		for (int k = 0; k < 64; k++)
			CHECK(shf_crc64_by(&by, UINT64_C(1) << k) ==
			      shf_crc64_shift(UINT64_C(1) << k, far[i]));
		for (int k = 0; k < 500; k++) {
			uint64_t crc = rng_next(&seed);

			CHECK(shf_crc64_by(&by, crc) == shf_crc64_shift(crc, far[i]));
		}
	}
}

TEST(equal_strides_add_up_by_horner)
{
	uint8_t *m = message(9);
	static struct shf_crc64_by by;
	const size_t row = 7, stride = 64, rows = 70;
	uint64_t horner = 0, sum = 0;

	shf_crc64_by_init(&by, stride);
	for (size_t r = 0; r < rows; r++) {
		uint64_t crc = shf_crc64_raw(0, m + r * row, row);

		horner = shf_crc64_by(&by, horner) ^ crc;
		sum ^= shf_crc64_shift(crc, stride * (rows - 1 - r));
	}
	CHECK(horner == sum);
	free(m);
}

TEST(every_single_bit_flip_shows)
{
	uint8_t *m = message(10);
	const size_t n = 300;
	uint64_t good = shf_crc64(m, n);

	for (size_t bit = 0; bit < 8 * n; bit++) {
		m[bit / 8] ^= (uint8_t)(1 << bit % 8);
		CHECK(shf_crc64(m, n) != good);
		m[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	CHECK(shf_crc64(m, n) == good);
	free(m);
}

/* The paths of this build, and those of wide multiplications with the multiplication emulated. */
#define PATHS_MAX 7

struct candidate {
	const char *name;
	const struct shf_crc64_path *path;
};

#if defined(__x86_64__)
extern const struct shf_crc64_path emulated_x32, emulated_x64;
#endif

static int candidates(struct candidate *out)
{
	const struct shf_crc64_path *path;
	const char *name;
	bool here;
	int n = 0;

	for (int i = 0; (path = shf_crc64_path(i, &name, &here)) != NULL; i++) {
		if (here)
			out[n++] = (struct candidate){ name, path };
		else
			print_message("# skip %s: not run, the machine cannot\n", name);
	}
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul"))
		out[n++] = (struct candidate){ "avx2, emulated", &emulated_x32 };
	else
		print_message("# skip avx2, emulated: not run, the machine cannot\n");
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
		out[n++] = (struct candidate){ "avx512, emulated", &emulated_x64 };
	else
		print_message("# skip avx512, emulated: not run, the machine cannot\n");
#endif
	assert_in_range(n, 1, PATHS_MAX);
	return n;
}

#define EDGE 64                 /* bytes before and behind a destination that nobody may touch */
#define SHORT_MAX 300
static const uint64_t start = UINT64_C(0x0123456789abcdef);

/* A copy of n bytes to `to`, whose edges are checked. */
static bool copy_is(const struct shf_crc64_path *path, uint8_t *to, const uint8_t *from, size_t n,
                    bool past_cache, uint64_t want)
{
	uint8_t quiet[EDGE];
	uint64_t got;

	memset(quiet, 0xa5, EDGE);
	memset(to - EDGE, 0xa5, n + (size_t)2 * EDGE);
	got = path->copy(start, to, from, n, past_cache);
	return got == want && !memcmp(to, from, n) && !memcmp(to - EDGE, quiet, EDGE) &&
	       !memcmp(to + n, quiet, EDGE);
}

TEST(all_paths_sum_and_copy_alike_at_each_offset_and_short_length)
{
	uint8_t *from = aligned_alloc(64, 512), *to = aligned_alloc(64, 1024);
	struct candidate c[PATHS_MAX];
	uint64_t want[SHORT_MAX + 1], seed = 11;
	int paths_n = candidates(c);

	assert_non_null(from);
	assert_non_null(to);
	for (size_t i = 0; i < 512; i++)
		from[i] = (uint8_t)rng_next(&seed);
	for (size_t off = 0; off < 64; off += T_FEWER) {
		want[0] = start;
		for (size_t n = 1; n <= SHORT_MAX; n++)
			want[n] = slow_byte(want[n - 1], from[off + n - 1]);
		for (int i = 0; i < paths_n; i++)
			for (size_t n = 0; n <= SHORT_MAX; n++) {
				CHECK(c[i].path->raw(start, from + off, n) == want[n]);
				for (size_t at = EDGE; at < EDGE + 64; at++) {
					CHECK(copy_is(c[i].path, to + at, from + off, n, false,
					              want[n]));
					CHECK(copy_is(c[i].path, to + at, from + off, n, true,
					              want[n]));
				}
			}
	}
	free(from);
	free(to);
}

/* Lengths around each boundary in the code paths: constant rows, rounds, lines, pages. */
TEST(all_paths_sum_and_copy_alike_at_long_lengths)
{
	static const size_t about[] = { 512, 1024, 1040, 1280, 2048, 2112, 2304, 4096, 10000,
					16384, 18432, 34816, 100000, 1 << 20 };
	const size_t max = (1 << 20) + 256;
	uint8_t *from = aligned_alloc(64, max), *to = aligned_alloc(64, max + 256);
	struct candidate c[PATHS_MAX];
	int paths_n = candidates(c);
	uint64_t seed = 12;

	assert_non_null(from);
	assert_non_null(to);
	for (size_t i = 0; i < max; i++)
		from[i] = (uint8_t)rng_next(&seed);
	for (size_t k = 0; k < sizeof(about) / sizeof(about[0]); k++)
		for (size_t step = 0; step < (about[k] < 40000 ? 130 : 4); step++) {
			size_t n = about[k] - 65 + step, off = (size_t)(rng_next(&seed) % 64);
			size_t at = EDGE + (k + step) % 64;
			uint64_t want = c[0].path->raw(start, from + off, n);

			for (int i = 0; i < paths_n; i++) {
				CHECK(c[i].path->raw(start, from + off, n) == want);
				CHECK(copy_is(c[i].path, to + at, from + off, n, false, want));
				CHECK(copy_is(c[i].path, to + at, from + off, n, true, want));
			}
			/* Whole lines of the cache. */
			n -= n % 64;
			want = c[0].path->raw(start, from + off, n);
			for (int i = 0; i < paths_n; i++)
				CHECK(copy_is(c[i].path, to + EDGE, from + off, n, true, want));
		}
	free(from);
	free(to);
}

TEST(all_paths_multiply_alike)
{
	struct candidate c[PATHS_MAX];
	int paths_n = candidates(c);
	uint64_t seed = 13;

	for (int round = 0; round < 1000; round++) {
		uint64_t a = rng_next(&seed) >> round % 64, b = rng_next(&seed) << round % 63;
		uint64_t want = slow_times(a, times_x(b));

		for (int i = 0; i < paths_n; i++)
			CHECK(c[i].path->times(a, b) == want);
	}
}

TEST(the_path_taken_is_one_of_those_this_machine_has)
{
	const char *name;
	bool here = false;

	assert_non_null(shf_crc64_path(0, &name, &here));
	CHECK(here);
	CHECK(shf_crc64_path(-1, &name, &here) == NULL);
	CHECK(shf_crc64_path(PATHS_MAX, &name, &here) == NULL);
}

TEST(rows_are_runs_with_gaps_between)
{
	static struct shf_crc64_by gap;
	const size_t max = 40 * 700;
	uint8_t *from = calloc(max, 1), *to = calloc(max, 1), *whole = calloc(max, 1);
	uint64_t seed = 14;

	assert_non_null(from);
	assert_non_null(to);
	assert_non_null(whole);
	for (size_t i = 0; i < max; i++)
		from[i] = (uint8_t)rng_next(&seed);
	for (int round = 0; round < 300; round++) {
		size_t n = (size_t)(rng_next(&seed) % 600), rows = (size_t)(rng_next(&seed) % 40);
		size_t between = (size_t)(rng_next(&seed) % 100), step = n + between;
		struct shf_crc64_rows r = { .from = from, .from_step = (ptrdiff_t)step, .n = n,
			                    .rows = rows, .gap = &gap, .to_step = (ptrdiff_t)n,
			                    .past_cache = round & 1 };
		size_t last = rows ? rows * step - between : 0;

		/* The whole with its gaps zeroed says what the sum is. */
		memset(whole, 0, max);
		for (size_t i = 0; i < rows; i++)
			memcpy(whole + i * step, from + i * step, n);
		shf_crc64_by_init(&gap, between);
		CHECK(shf_crc64_rows(start, &r) == shf_crc64_raw(start, whole, last));
		r.to = to;
		CHECK(shf_crc64_rows(start, &r) == shf_crc64_raw(start, whole, last));
		for (size_t i = 0; i < rows; i++)
			CHECK(!memcmp(to + i * n, from + i * step, n));
	}
	free(from);
	free(to);
	free(whole);
}
