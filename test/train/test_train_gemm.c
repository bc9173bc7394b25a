/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices: beside their definition, on each instruction set of this machine, and on
 * AVX-512 BF16 with the instruction in plain C. */
#include "t.h"

#include <math.h>

#include "trainemulated.h"
#include "trainsets.h"

static float work[TR_GEMM_WORK] __attribute__((aligned(64)));

/* A product whose operands may be transposed, cut where cut says. */
struct product {
	struct tr_gemm g;
	float a[90 * 700], b[90 * 700], c[90 * 90], want[90 * 90];
};

static void make(struct product *p, int64_t m, int64_t n, int64_t k, int how, uint64_t of)
{
	int ta = how & 1, tb = how >> 1 & 1;
	enum tr_type a = how & 8 ? TR_BF16 : TR_F32, b = how & 16 ? TR_BF16 : TR_F32;
	const struct tr_isa *isa[SETS_MAX];

	draw(p->a, m * k, of);
	draw(p->b, n * k, of + 1);
	draw(p->c, m * n, of + 2);
	p->g = (struct tr_gemm){ .m = m, .n = n, .k = k, .c = p->c, .c_row = n, .add = how >> 2 & 1,
		.a = { p->a, ta ? 1 : k, ta ? m : 1, a },
		.b = { p->b, tb ? 1 : n, tb ? k : 1, b } };
	sets(isa);
	isa[0]->items[a].round(p->a, p->a, m * k);
	isa[0]->items[b].round(p->b, p->b, n * k);
	memcpy(p->want, p->c, sizeof(p->c));
}

TEST(products_have_the_bits_of_their_definition_on_every_instruction_set)
{
	static const int64_t cut[] = { 0, 5, 5, 300, 612 };
	static struct product p;
	const struct tr_isa *isa[SETS_MAX];
	int n = sets(isa);

	for (int s = 0; s < n; s++) {
		for (int i = t_from(T_STRIDE); i < 120; i += T_STRIDE) {
			int64_t k = i % 5 ? 1 + i * 5 : 612;

			make(&p, 1 + i * 7 % 90, 1 + i * 11 % 90, k, i, (uint64_t)i);
			if (k == 612) {
				p.g.cut = cut;
				p.g.cut_n = 4;
			}
			tr_gemm(isa[s], &p.g, work);
			p.g.c = p.want;
			tr_gemm_chain(&p.g);
			CHECK(memcmp(p.c, p.want, sizeof(p.c)) == 0);
		}
	}
}

/* Computes a product over 37 and then over the rest of 411, and compares it with what p->c has. */
static void in_two_calls(const struct tr_isa *isa, struct product *p, enum tr_type type)
{
	p->g.c = p->want;
	p->g.cut = NULL;
	p->g.k = 37;
	tr_gemm(isa, &p->g, work);
	p->g.a.at = tr_item(type, p->g.a.at, 37 * p->g.a.column);
	p->g.b.at = tr_item(type, p->g.b.at, 37 * p->g.b.row);
	p->g.k = 411 - 37;
	tr_gemm(isa, &p->g, work);
	CHECK(memcmp(p->c, p->want, sizeof(p->c)) == 0);
}

TEST(a_product_made_in_two_calls_has_the_bits_of_one)
{
	static const int64_t cut[] = { 0, 37, 411 };
	static struct product p;
	const struct tr_isa *isa[SETS_MAX];
	int n = sets(isa);

	make(&p, 50, 40, 411, 1 | 4, 3);        /* C += A^T B, as gradients of weights are */
	p.g.cut = cut;
	p.g.cut_n = 2;
	tr_gemm(isa[n - 1], &p.g, work);
	in_two_calls(isa[n - 1], &p, TR_F32);
}

TEST(products_of_many_rows_and_columns_leave_nothing_out)
{
	enum { M = 401, N = 1100, K = 20 };
	static float a[M * K], b[K * N], c[M * N];
	const struct tr_isa *isa[SETS_MAX];
	struct tr_gemm g = { .m = M, .n = N, .k = K, .a = { a, K, 1, TR_F32 },
			     .b = { b, N, 1, TR_F32 }, .c = c, .c_row = N };
	double worst = 0;

	draw(a, M * K, 1);
	draw(b, K * N, 2);
	tr_gemm(isa[sets(isa) - 1], &g, work);
	for (int i = 0; i < M; i++) {
		for (int j = 0; j < N; j++) {
			double want = 0;

			for (int k = 0; k < K; k++)
				want += (double)a[i * K + k] * (double)b[k * N + j];
			worst = fmax(worst, fabs(c[i * N + j] - want));
		}
	}
	CHECK(worst < 5e-6);
}

/* ---- pairs of bf16 ---- */

/* The kernels for pairs: emulated, and those of this CPU if it has them. */
static int pair_sets(struct tr_isa *isa)
{
	const struct tr_isa *real;
	struct tr_error err;

	isa[0] = emulated_set();
	if (tr_isa_find(&real, "avx512-bf16", &err) < 0) {
		print_message("# skip avx512-bf16: not run, the machine cannot\n");
		return 1;
	}
	isa[1] = *real;
	return 2;
}

/* The tile of AVX-512 has one source for floats and for pairs. */
TEST(the_tile_of_avx512_emulated_has_the_bits_of_the_definition)
{
	static struct product p;
	const struct tr_isa isa = emulated_set();

	for (int i = t_from(T_STRIDE); i < 120; i += T_STRIDE) {
		int how = i % 32;

		if ((how & 24) == 24)
			continue;
		make(&p, 1 + i * 7 % 90, 1 + i * 11 % 90, 1 + i * 5, how, (uint64_t)i);
		tr_gemm(&isa, &p.g, work);
		p.g.c = p.want;
		tr_gemm_chain(&p.g);
		CHECK(memcmp(p.c, p.want, sizeof(p.c)) == 0);
	}
}

static uint16_t bf16_at(const struct tr_matrix *x, int64_t i, int64_t j)
{
	return ((const uint16_t *)x->at)[i * x->row + j * x->column];
}

/* Computes an element over k in [from, to), which is at most a part. */
static float part_of_pairs(const struct tr_gemm *g, int64_t i, int64_t j, int64_t from, int64_t to)
{
	float sum = 0;

	for (int64_t k = from; k < to; k += 2) {
		int both = k + 1 < to;
		const uint16_t a[2] = { bf16_at(&g->a, i, k), both ? bf16_at(&g->a, i, k + 1) : 0 };
		const uint16_t b[2] = { bf16_at(&g->b, k, j), both ? bf16_at(&g->b, k + 1, j) : 0 };

		sum = dot_pairs(sum, a, b);
	}
	return sum;
}

/* Computes a product by pairs, as gemm.h defines it. */
static void gemm_of_pairs(const struct tr_gemm *g)
{
	const int64_t whole[2] = { 0, g->k }, *cut = g->cut ? g->cut : whole;
	int64_t cut_n = g->cut ? g->cut_n : 1;

	for (int64_t at = 0; at < g->m * g->n; at++) {
		float *c = g->c + at / g->n * g->c_row + at % g->n;
		int add = g->add;

		for (int64_t s = 0; s < cut_n; s++) {
			for (int64_t k = cut[s]; k < cut[s + 1]; k += TR_CHAIN, add = 1) {
				int64_t end = k + TR_CHAIN < cut[s + 1] ? k + TR_CHAIN : cut[s + 1];
				float sum = part_of_pairs(g, at / g->n, at % g->n, k, end);

				*c = add ? *c + sum : sum;
			}
		}
	}
}

/* Makes some items of bf16 subnormal, and others so small that their products are. */
static void make_small(void *items, int64_t n)
{
	uint16_t *x = items;

	for (int64_t i = 0; i < n; i++) {
		if (i % 7 == 3)
			x[i] &= 0x807F;
		else if (i % 11 == 5)
			x[i] = (uint16_t)((x[i] & 0x807F) | 63 << 7);
	}
}

static const int64_t odd_cuts[] = { 0, 5, 5, 300, 611 };

/* Products of both types, of which half have cuts that make parts of odd numbers. */
static void make_pairs(struct product *p, int i)
{
	make(p, 1 + i * 7 % 90, 1 + i * 11 % 90, i % 2 ? 1 + i * 5 : 611, i % 8 | 24, (uint64_t)i);
	if (i % 2)
		return;
	p->g.cut = odd_cuts;
	p->g.cut_n = 4;
}

TEST(products_of_pairs_have_the_bits_of_their_definition)
{
	static struct product p;
	const struct tr_isa isa = emulated_set();

	for (int i = t_from(T_STRIDE); i < 120; i += T_STRIDE) {
		make_pairs(&p, i);
		if (i % 3 == 0) {
			make_small(p.a, p.g.m * p.g.k);
			make_small(p.b, p.g.n * p.g.k);
		}
		tr_gemm(&isa, &p.g, work);
		p.g.c = p.want;
		gemm_of_pairs(&p.g);
		CHECK(memcmp(p.c, p.want, sizeof(p.c)) == 0);
	}
}

/* Takes the signs off, so that an element becomes the sum of the magnitudes of its products. */
static void take_signs_off(struct product *p)
{
	uint16_t *a = (uint16_t *)p->a, *b = (uint16_t *)p->b;

	for (int64_t i = 0; i < p->g.m * p->g.k; i++)
		a[i] &= 0x7FFF;
	for (int64_t i = 0; i < p->g.n * p->g.k; i++)
		b[i] &= 0x7FFF;
	for (int64_t i = 0; i < p->g.m * p->g.n; i++)
		p->c[i] = fabsf(p->c[i]);
}

/* Each of the two sums has at most one rounding for a product or a part, of half an FLT_EPSILON. */
TEST(products_of_pairs_are_those_of_floats_but_for_rounding)
{
	static struct product p;
	static float got[90 * 90];
	struct tr_isa isa[2];
	int n = pair_sets(isa), differ = 0;

	for (int s = 0; s < n; s++) {
		for (int i = t_from(T_STRIDE); i < 120; i += T_STRIDE) {
			double bound;

			make_pairs(&p, i);
			bound = (double)(p.g.k + 8) * (double)FLT_EPSILON;
			memcpy(got, p.c, sizeof(got));
			p.g.c = got;
			tr_gemm(&isa[s], &p.g, work);
			p.g.c = p.want;
			tr_gemm_chain(&p.g);
			take_signs_off(&p);
			p.g.c = p.c;
			tr_gemm_chain(&p.g);
			for (int64_t at = 0; at < p.g.m * p.g.n; at++) {
				CHECK(fabs((double)got[at] - (double)p.want[at]) <=
				      bound * (double)p.c[at]);
				differ += memcmp(&got[at], &p.want[at], sizeof(*got)) != 0;
			}
		}
	}
	CHECK(differ > 0);      /* so `avx512-bf16` is another name in the events and notes */
}

/* More rows and columns than a block and a panel have. */
TEST(an_element_of_pairs_has_the_same_bits_wherever_it_is)
{
	enum { M = 217, N = 1061, K = 37 };
	static uint16_t a[M * K], b[K * N];
	static float c[M * N], x[N * K], one;
	struct tr_isa isa[2];
	int n = pair_sets(isa);
	struct tr_gemm g = { .m = M, .n = N, .k = K, .a = { a, K, 1, TR_BF16 },
			     .b = { b, 1, K, TR_BF16 }, .c = c, .c_row = N };

	draw(x, M * K, 1);
	isa[0].items[TR_BF16].round(a, x, M * K);
	draw(x, N * K, 2);
	isa[0].items[TR_BF16].round(b, x, N * K);
	for (int s = 0; s < n; s++) {
		tr_gemm(&isa[s], &g, work);
		for (int64_t i = t_from(211); i < M * N; i += 211) {
			struct tr_gemm alone = g;

			alone.m = alone.n = 1;
			alone.a.at = a + i / N * K;
			alone.b.at = b + i % N * K;
			alone.c = &one;
			tr_gemm(&isa[s], &alone, work);
			CHECK(memcmp(&one, &c[i], sizeof(one)) == 0);
		}
	}
}

TEST(a_product_of_pairs_made_in_two_calls_has_the_bits_of_one)
{
	static const int64_t cut[] = { 0, 37, 411 };
	static struct product p;
	struct tr_isa isa[2];
	int n = pair_sets(isa);

	for (int s = 0; s < n; s++) {
		make(&p, 50, 40, 411, 1 | 4 | 24, 3);
		p.g.cut = cut;
		p.g.cut_n = 2;
		tr_gemm(&isa[s], &p.g, work);
		in_two_calls(&isa[s], &p, TR_BF16);
	}
}

/* ---- the check at the start ---- */

TEST(the_kernels_pass_the_check_that_a_start_makes)
{
	const struct tr_isa *isa[SETS_MAX];
	struct tr_isa pairs[2];
	struct tr_error err;
	int n = sets(isa);

	for (int i = 0; i < n; i++)
		CHECK_RC(tr_isa_check(isa[i], work, &err), 0, &err);
	n = pair_sets(pairs);
	for (int i = 0; i < n; i++)
		CHECK_RC(tr_isa_check(&pairs[i], work, &err), 0, &err);
}

static void tile_off(int64_t k, const float *a, const float *b, float *c, int64_t c_row, int add)
{
	tr_tile_portable(k, a, b, c, c_row, add);
	c[0] = nextafterf(c[0], 100);
}

TEST(a_kernel_with_one_wrong_bit_is_found_at_the_start)
{
	const struct tr_isa *isa[SETS_MAX];
	struct tr_isa off;
	struct tr_error err;

	sets(isa);
	off = *isa[0];
	off.tile = tile_off;
	CHECK_INT(tr_isa_check(&off, work, &err), TR_EBUG);
	CHECK_INT(tr_isa_find(&isa[0], "vliw", &err), TR_EINVAL);
}

/* Leaves out the products of the second items of pairs, so it is off by more than rounding. */
static void half_of_pairs(int64_t cells, const float *a, const float *b, float *c, int64_t c_row,
			  int add)
{
	static float half[TR_CHAIN * TR_TILE_ROWS] __attribute__((aligned(64)));

	for (int64_t i = 0; i < cells * 12; i++) {
		uint16_t pair[2];

		memcpy(pair, a + i, sizeof(pair));
		pair[1] = 0;
		memcpy(half + i, pair, sizeof(pair));
	}
	emulated_tile_bf16(cells, half, b, c, c_row, add);
}

/* The first element of a tile is one bit off: less than rounding, but it depends on the place. */
static void place_off(int64_t cells, const float *a, const float *b, float *c, int64_t c_row,
		      int add)
{
	emulated_tile_bf16(cells, a, b, c, c_row, add);
	c[0] = nextafterf(c[0], 100);
}

TEST(a_kernel_for_pairs_that_is_wrong_is_found_at_the_start)
{
	static tr_tile_fn *const wrong[] = { half_of_pairs, place_off };
	struct tr_isa isa = emulated_set();
	struct tr_error err;

	for (int i = 0; i < 2; i++) {
		isa.tile_bf16 = wrong[i];
		CHECK_INT(tr_isa_check(&isa, work, &err), TR_EBUG);
		CHECK(strstr(err.msg, "the avx512-bf16 kernel computes wrong products of bf16; use "
			     "isa avx512") != NULL);
	}
}

/* A CPU that lacks it says so, and auto has the bits of all others in any case. */
TEST(auto_has_no_bits_of_its_own)
{
	const struct tr_isa *isa;
	struct tr_error err;
	int rc = tr_isa_find(&isa, "avx512-bf16", &err);

	CHECK(rc == 0 || rc == TR_EINVAL);
	CHECK(rc < 0 ? strstr(err.msg, "isa avx512-bf16: this ") != NULL : isa->tile_bf16 != NULL);
	CHECK_INT(tr_isa_find(&isa, "auto", &err), 0);
	CHECK(!isa->tile_bf16);
}
