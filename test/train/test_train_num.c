/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the trainer: against published values, doubles, and other instruction sets. */
#include "t.h"

#include <math.h>

#include "dropmask.h"
#include "elementary.h"
#include "exact.h"
#include "itemhash.h"
#include "rows.h"
#include "sumtree.h"
#include "trainsets.h"

/* Messages of each length, of characters of each size: what is left is some of them. */
TEST(a_message_that_is_too_long_ends_with_a_whole_character)
{
	static const char *const characters[] = { "a", "\xc3\xa9", "\xe2\x82\xac",
						  "\xf0\x9f\x98\x80" };
	struct tr_error err;

	for (size_t size = 1; size <= 4; size++) {
		for (size_t before = 0; before < 4; before++) {
			char text[2 * sizeof(err.msg)] = "";
			size_t n;

			memset(text, '.', before);
			while (strlen(text) + size < sizeof(text))
				strcat(text, characters[size - 1]);
			CHECK_INT(tr_fail(&err, TR_EIO, "%s", text), TR_EIO);
			n = strlen(err.msg);
			CHECK(n < sizeof(err.msg) && n + size >= sizeof(err.msg));
			CHECK((n - before) % size == 0 && memcmp(err.msg, text, n) == 0);
			/* The caller cut it. */
			tr_fail(&err, TR_EIO, "%.*s", (int)(before + 2 * size - 1), text);
			CHECK_INT(strlen(err.msg), before + size);
			tr_fail(&err, TR_EIO, "%.*s", (int)(before + 2 * size), text);
			CHECK_INT(strlen(err.msg), before + 2 * size);
		}
	}
}

TEST(philox_has_the_numbers_of_its_authors)
{
	static const uint32_t in[3][6] = {
		{ 0, 0, 0, 0, 0, 0 },
		{ ~0u, ~0u, ~0u, ~0u, ~0u, ~0u },
		{ 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0 },
	};
	static const uint32_t want[3][4] = {
		{ 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
		{ 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
		{ 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 },
	};
	uint32_t out[4];

	for (int i = 0; i < 3; i++) {
		tr_philox(in[i], in[i] + 4, out);
		CHECK(memcmp(out, want[i], sizeof(out)) == 0);
	}
}

TEST(normal_numbers_have_the_moments_of_their_distribution)
{
	double sum = 0, squares = 0, fourth = 0, x[2];
	const int n = 100000;

	for (int i = 0; i < n; i++) {
		tr_random_normal(1, TR_RANDOM_INIT, 5, (uint64_t)i, x);
		for (int j = 0; j < 2; j++) {
			sum += x[j];
			squares += x[j] * x[j];
			fourth += x[j] * x[j] * x[j] * x[j];
		}
	}
	CHECK(fabs(sum / (2 * n)) < 0.01);
	CHECK(fabs(squares / (2 * n) - 1) < 0.02);
	CHECK(fabs(fourth / (2 * n) - 3) < 0.1);
}

enum { MASKED = 40000 };

/* Draws the mask of the first n items of a row of ones, and returns how many are dropped. */
static int64_t drop_ones(const struct tr_dropout *d, enum tr_purpose purpose, const int64_t at[4],
			 float *y, int64_t n)
{
	struct tr_dropmask m = tr_dropmask_of(d, purpose, d->rate, at[0], at[1]);
	int64_t dropped = 0;

	for (int64_t i = 0; i < n; i++)
		y[i] = 1;
	tr_drop(&m, at[2], at[3], y, y, n);
	for (int64_t i = 0; i < n; i++) {
		CHECK(y[i] == 0 || fabsf(y[i] - 1.25f) < 1e-5f);
		dropped += y[i] == 0;
	}
	return dropped;
}

/* The numbers of `at` are the layer, the head, the sample and the row. */
TEST(masks_of_dropout_differ_in_every_part_of_their_key_and_drop_their_share)
{
	static float y[MASKED], other[MASKED];
	const struct tr_dropout d = { .seed = 1, .step = 5, .rate = 0.2 };
	const int64_t at[4] = { 3, 2, 70, 11 };
	int64_t n = drop_ones(&d, TR_RANDOM_MLP, at, y, MASKED);

	CHECK(n > MASKED / 100 * 19 && n < MASKED / 100 * 21);
	drop_ones(&d, TR_RANDOM_MLP, at, other, 77);
	CHECK(memcmp(y, other, 77 * sizeof(*y)) == 0);
	for (int i = 0; i < 8; i++) {
		struct tr_dropout e = d;
		int64_t to[4] = { at[0], at[1], at[2], at[3] }, equal = 0;

		if (i < 4)
			to[i] += 1;
		to[2] += i == 4 ? (int64_t)1 << 32 : 0;
		e.step += i == 5;
		e.seed += i == 6;
		drop_ones(&e, i == 7 ? TR_RANDOM_ATTENTION : TR_RANDOM_MLP, to, other, MASKED);
		for (int64_t k = 0; k < MASKED; k++)
			equal += (y[k] == 0) == (other[k] == 0);
		/* As many as of independent masks: 0.2^2 + 0.8^2. */
		CHECK(equal > MASKED / 100 * 66 && equal < MASKED / 100 * 70);
	}
}

TEST(the_crc_is_that_of_nvme_and_hashes_of_ranges_add_up)
{
	float x[50];
	uint64_t whole;

	CHECK(tr_crc64("123456789") == 0xAE8B14860A799888ULL);
	draw(x, 50, 1);
	whole = tr_item_hash(9, x, 0, 50);
	CHECK(whole == tr_item_hash(9, x, 0, 17) + tr_item_hash(9, x + 17, 17, 33));
	x[3] = nextafterf(x[3], 2);
	CHECK(whole != tr_item_hash(9, x, 0, 50));
}

static double error_of(double got, double want)
{
	return want == 0 ? fabs(got) : fabs(got - want) / fabs(want);
}

TEST(elementary_functions_agree_with_the_c_library)
{
	double worst = 0, s, c;

	for (int i = -70000; i <= 70000; i += 7) {
		double x = i * 0.01;

		worst = fmax(worst, error_of(tr_exp(x), exp(x)));
		if (i > 0)
			worst = fmax(worst, error_of(tr_log(x), log(x)));
		worst = fmax(worst, error_of(tr_log(exp(x)), x));
		tr_sincos(x * 100, &s, &c);
		worst = fmax(worst, fmax(fabs(s - sin(x * 100)), fabs(c - cos(x * 100))));
	}
	CHECK(worst < 1e-14);
	CHECK(tr_log(0) == -INFINITY && isnan(tr_log(-1)) && tr_log(1) == 0);
	CHECK(tr_exp(0) == 1 && tr_exp(-800) == 0 && tr_exp(800) == INFINITY && isnan(tr_exp(NAN)));
	CHECK(tr_power(0.5, 10) == 0x1p-10 && tr_power(3, 0) == 1);
}

/* Rounds a float to bf16, ties to even, by the distances of its two neighbours. */
static uint16_t bf16_of(float x)
{
	uint32_t bits;
	uint16_t low, high;
	double down, up;

	memcpy(&bits, &x, sizeof(bits));
	low = (uint16_t)(bits >> 16);
	high = (uint16_t)(low + 1);
	if (isnan(x) || (bits & 0xFFFF) == 0)
		return isnan(x) ? low | 0x40 : low;
	down = fabs((double)x - (double)tr_widen(low));
	/* The infinity is as far from the largest number as another number would be. */
	up = isinf(tr_widen(high)) ? 0x1p128 - fabs((double)x) :
		fabs((double)tr_widen(high) - (double)x);
	return down < up || (!(up < down) && low % 2 == 0) ? low : high;
}

TEST(floats_are_rounded_to_the_nearest_bf16)
{
	static const uint32_t low[] = { 0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1234, 0xABCD };
	const struct tr_isa *isa[SETS_MAX];
	int n = sets(isa), wrong = 0;
	float x[8], back[8];
	uint16_t y[SETS_MAX][8];

	for (uint32_t high = 0; high < 0x10000; high++) {
		for (int i = 0; i < 8; i++) {
			uint32_t bits = high << 16 | low[i];

			memcpy(&x[i], &bits, sizeof(bits));
		}
		for (int s = 0; s < n; s++)
			isa[s]->items[TR_BF16].round(y[s], x, 8);
		for (int i = 0; i < 8; i++)
			for (int s = 0; s < n; s++)
				wrong += y[s][i] != bf16_of(x[i]);
		memset(back, 0, sizeof(back));
		isa[n - 1]->items[TR_BF16].add(back, y[0], 8);
		for (int i = 0; i < 8; i++)
			wrong += !(isnan(x[i]) && isnan(back[i])) &&
				!(back[i] >= tr_widen(y[0][i]) && back[i] <= tr_widen(y[0][i]));
	}
	CHECK_INT(wrong, 0);
}

/* Calls every row operation on n items; all results go to `out`. */
static void operate(const struct tr_rowops *o, int64_t n, float out[13][80])
{
	struct tr_adamw_step step = { 0.7f, 0.1f, 0.99f, 0.01f, 0.999f, 1.5f, 1e-8f, 0.03f };
	int64_t squares[2] = { 0, 0 };
	float x[80], y[80], w[80];

	draw(x, n, 11);
	draw(y, n, 12);
	draw(w, n, 13);
	for (int64_t i = 0; i < n; i++)
		x[i] *= 20;
	for (int i = 0; i < 13; i++)
		memcpy(out[i], x, (size_t)n * sizeof(*x));
	o->softmax(out[1], n, 0.3f, &out[1][70], &out[1][71]);
	o->softmax_again(out[2], n, 0.3f, out[1][70], out[1][71]);
	o->softmax_bwd(out[3], y, 0.2f, 0.3f, n);
	out[4][70] = o->max(x, n);
	out[4][71] = o->exp_sum(x, n, out[4][70]);
	o->exp_times(out[4], n, out[4][70], 0.25f);
	o->add(out[8], y, n);
	o->adamw(out[11], y, w, x, n, &step);
	o->momentum(out[5], out[6], n, 0.7f, 0.1f);
	o->blend(out[7], y, n, 0.3f, -1.5f);
	o->average(out[12], y, n, 0.3f);
	o->squares(x, n, 0x1p-5, squares);
	out[0][72] = o->absmax(x, n);
	memcpy(&out[0][74], squares, sizeof(squares));
	memcpy(out[9], y, (size_t)n * sizeof(*y));      /* the moments of AdamW */
	memcpy(out[10], w, (size_t)n * sizeof(*w));
}

/* Calls every operation on n items of a type. */
static void operate_on_items(const struct tr_itemops *o, int64_t n, float out[12][80])
{
	float x[80], y[80], w[80], items[80];

	draw(x, n, 21);
	draw(y, n, 22);
	draw(w, n, 23);
	for (int i = 0; i < 12; i++)
		memcpy(out[i], y, (size_t)n * sizeof(*y));
	o->round(items, x, n);
	o->round(out[1], w, n);
	out[0][70] = o->square(items, n);
	out[0][71] = o->dot(items, y, n);
	out[0][72] = o->dot3(y, items, out[1], n);
	o->norm(out[2], items, 0.7f, out[1], n);
	o->norm_bwd(out[3], y, items, 0.7f, 0.1f, out[1], n);
	o->norm_weight(out[4], y, items, 0.7f, n);
	o->swiglu(out[5], items, out[1], n);
	o->swiglu_bwd(out[6], out[7], items, out[1], n);
	o->add(out[8], items, n);
	o->sum(out[9], y, items, n);
	o->round(out[10], y, n);
	o->rope(out[10], y, w, n / 2, -1);
}

TEST(row_operations_have_equal_bits_on_every_instruction_set)
{
	static float got[13][80], want[13][80];
	const struct tr_isa *isa[SETS_MAX];
	int sets_n = sets(isa);

	for (int64_t n = 1; n < 70; n++) {
		for (int i = 1; i < sets_n; i++) {
			memset(got, 0, sizeof(got));
			memset(want, 0, sizeof(want));
			operate(&isa[0]->row, n, want);
			operate(&isa[i]->row, n, got);
			CHECK(memcmp(got, want, sizeof(got)) == 0);
			for (int type = TR_F32; type <= TR_BF16; type++) {
				operate_on_items(&isa[0]->items[type], n, want);
				operate_on_items(&isa[i]->items[type], n, got);
				CHECK(memcmp(got, want, sizeof(got)) == 0);
			}
		}
	}
}

/* A sequence of one part, one of three, and an empty one between them. */
TEST(a_slice_of_rows_has_their_sequences_and_parts)
{
	static const int64_t begin[] = { 0, 4, 4, 9, 11 }, part[] = { 0, 4, 5, 7, 9, 11 };
	static const int64_t sample[] = { 70, 71, 72, 73 };
	static const int32_t token[11] = { 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 };
	static const float weight[11] = { 0 };
	struct tr_rows all = { .n = 11, .seqs = 4, .begin = begin, .part = part, .parts = 5,
		.sample = sample, .token = token, .target = token, .position = token,
		.weight = weight };
	struct tr_rows rows;
	int64_t b[5], p[12];

	tr_rows_slice(&all, 1, 3, b, p, &rows);
	CHECK(rows.n == 5 && rows.seqs == 2 && rows.parts == 3 && !rows.grad);
	CHECK(b[0] == 0 && b[1] == 0 && b[2] == 5 && rows.begin == b);
	CHECK(p[0] == 0 && p[1] == 1 && p[2] == 3 && p[3] == 5 && rows.part == p);
	CHECK(rows.token == token + 4 && rows.target == token + 4 && rows.position == token + 4);
	CHECK(rows.weight == weight + 4 && rows.sample == sample + 1);
	tr_rows_slice(&all, 0, 4, b, p, &rows);
	CHECK(rows.n == 11 && memcmp(b, begin, sizeof(begin)) == 0 && rows.parts == 5);
	CHECK(memcmp(p, part, sizeof(part)) == 0);
	all.part = NULL;
	tr_rows_slice(&all, 3, 4, b, p, &rows);
	CHECK(rows.n == 2 && rows.seqs == 1 && !rows.part && b[1] == 2);
}

TEST(rows_agree_with_doubles)
{
	static float x[12][80];
	const struct tr_isa *isa[SETS_MAX];
	float row[70], max, sum, inverse;
	double total = 0, worst = 0;

	sets(isa);
	draw(row, 70, 11);
	for (int i = 0; i < 70; i++) {
		row[i] *= 20;
		total += exp((double)row[i]);
	}
	max = isa[0]->row.max(row, 70);
	sum = isa[0]->row.exp_sum(row, 70, max);
	CHECK(fabs(log((double)sum) + (double)max - log(total)) < 1e-6);
	memcpy(x[0], row, sizeof(row));
	isa[0]->row.exp_times(x[0], 70, max, 0.5f / sum);
	memcpy(x[1], row, sizeof(row));
	isa[0]->row.softmax(x[1], 70, 1, &max, &inverse);
	isa[0]->items[TR_F32].swiglu(x[2], row, row, 70);
	for (int i = 0; i < 70; i++) {
		double p = exp((double)row[i]) / total, r = (double)row[i];

		worst = fmax(worst, fabs(x[0][i] - 0.5 * p));
		worst = fmax(worst, error_of((double)x[1][i], p) * 0.1);
		worst = fmax(worst, error_of((double)x[2][i], r * r / (1 + exp(-r))) * 0.1);
	}
	CHECK(worst < 2e-7);
}

TEST(rows_carry_what_is_not_a_number)
{
	const struct tr_isa *isa[SETS_MAX];
	int n = sets(isa);
	float x[40], y[40], max, sum;

	for (int s = 0; s < n; s++) {
		draw(x, 40, 1);
		x[20] = NAN;
		CHECK(isnan(isa[s]->row.absmax(x, 40)));
		CHECK(isnan(isa[s]->row.exp_sum(x, 40, isa[s]->row.max(x, 40))));
		isa[s]->items[TR_F32].swiglu(y, x, x, 40);
		CHECK(isnan(y[20]) && !isnan(y[19]));
		isa[s]->row.softmax(x, 40, 1, &max, &sum);
		CHECK(isnan(x[0]));
	}
}

/* Adds a sum limb by limb, as ranks do. */
static void add_limbs(struct tr_exact *sum, struct tr_exact *other)
{
	tr_exact_carry(sum);
	tr_exact_carry(other);
	for (int i = 0; i < TR_EXACT_LIMBS; i++)
		sum->limb[i] += other->limb[i];
	sum->odd += other->odd;
}

TEST(exact_sums_do_not_depend_on_order_or_grouping)
{
	struct tr_exact all, parts[3];
	float x[999];
	double plain = 0;

	draw(x, 999, 5);
	memset(parts, 0, sizeof(parts));
	memset(&all, 0, sizeof(all));
	for (int i = 0; i < 999; i++)
		x[i] = ldexpf(x[i], i % 60 - 30);
	for (int i = 0; i < 999; i++) {
		tr_exact_add(&all, x[i]);
		tr_exact_add(&parts[i % 3], x[998 - i]);
		plain += (double)x[i];
	}
	add_limbs(&parts[1], &parts[2]);
	add_limbs(&parts[0], &parts[1]);
	CHECK(tr_exact_value(&all) == tr_exact_value(&parts[0]));
	CHECK(fabs(tr_exact_value(&all) - plain) <= 1e-9 * fabs(plain));
	tr_exact_add(&parts[2], INFINITY);
	add_limbs(&parts[0], &parts[2]);
	CHECK(isnan(tr_exact_value(&parts[0])));
}

TEST(exact_sums_are_rounded_once)
{
	static const float in[6][4] = {
		{ 0x1p100f, 1, -0x1p100f, 0 },          /* 1 */
		{ 0x1p-149f, 0x1p-149f, 0, 0 },         /* 2^-148 */
		{ -3, 1, 0.5f, 0 },
		{ 0x1p53f, 1, 0, 0 },                   /* a tie: to even */
		{ 0x1p53f, 1, 0x1p-100f, 0 },           /* above the tie */
		{ -0x1p127f, -0x1p127f, -0x1p127f, 0 },
	};
	static const double want[6] = { 1, 0x1p-148, -1.5, 0x1p53, 0x1p53 + 2, -0x1.8p128 };

	for (int i = 0; i < 6; i++) {
		struct tr_exact sum = { .adds = 0 };

		for (int j = 0; j < 4; j++)
			tr_exact_add(&sum, in[i][j]);
		CHECK(tr_exact_value(&sum) == want[i]);
	}
}

static int slow_is_node(int low, int n, int from, int to)
{
	int left;

	if (from == low && to == low + n)
		return 1;
	if (n < 2)
		return 0;
	left = tr_tree_left(n);
	return slow_is_node(low, left, from, to) || slow_is_node(low + left, n - left, from, to);
}

TEST(nodes_of_the_tree_cover_what_a_rank_has)
{
	for (int n = 1; n <= 33; n++) {
		for (int from = 0; from < n; from++) {
			for (int to = from + 1; to <= n; to++) {
				int end[64], count, at = from;

				CHECK_INT(tr_tree_is_node(n, from, to),
					  slow_is_node(0, n, from, to));
				count = tr_tree_nodes(n, from, to, end);
				for (int i = 0; i < count; at = end[i++])
					CHECK(tr_tree_is_node(n, at, end[i]));
				CHECK_INT(at, to);
			}
		}
	}
	CHECK_INT(tr_tree_left(24), 16);
}

TEST(cuts_depend_on_the_pieces_and_cover_all)
{
	CHECK_INT(tr_cut(101, 4, 0), 0);
	CHECK_INT(tr_cut(101, 4, 1), 25);
	CHECK_INT(tr_cut(101, 4, 2), tr_cut(101, 2, 1));
	CHECK_INT(tr_cut(101, 4, 4), 101);
	CHECK(tr_cut(INT64_MAX / 2, 3, 3) == INT64_MAX / 2);
}
