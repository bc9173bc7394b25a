/* SPDX-License-Identifier: Apache-2.0 */
#include "isa.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "philox.h"

static const struct tr_isa portable = { "portable", 4, 8, tr_tile_portable, NULL,
	TR_ROWOPS(portable), { TR_ITEMOPS(portable_f32), TR_ITEMOPS(portable_bf16) } };
#ifdef TR_X86
static const struct tr_isa avx2 = { "avx2", 6, 16, tr_tile_avx2, NULL, TR_ROWOPS(avx2),
	{ TR_ITEMOPS(avx2_f32), TR_ITEMOPS(avx2_bf16) } };

static const struct tr_isa avx512 = { "avx512", 12, 32, tr_tile_avx512, NULL, TR_ROWOPS(avx512),
	{ TR_ITEMOPS(avx512_f32), TR_ITEMOPS(avx512_bf16) } };

/* Differs from avx512 in products of two matrices of bf16 only. */
static const struct tr_isa avx512_bf16 = { "avx512-bf16", 12, 32, tr_tile_avx512,
	tr_tile_avx512_bf16, TR_ROWOPS(avx512),
	{ TR_ITEMOPS(avx512_f32), TR_ITEMOPS(avx512_bf16) } };

static int has_avx2(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") &&
		__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
		__builtin_cpu_supports("avx512vl");
}

static int has_avx512_bf16(void)
{
	return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif

static int has_c(void)
{
	return 1;
}

/* The fastest first. */
static const struct {
	const struct tr_isa *isa;
	int (*is_there)(void);
	const char *needs;
} sets[] = {
#ifdef TR_X86
	{ &avx512_bf16, has_avx512_bf16, "AVX-512 BF16" },
	{ &avx512, has_avx512, "AVX-512 (F, BW, DQ and VL)" },
	{ &avx2, has_avx2, "AVX2 and FMA" },
#endif
	{ &portable, has_c, "C" },
};

int tr_isa_find(const struct tr_isa **isa, const char *name, struct tr_error *err)
{
	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
		int any = strcmp(name, "auto") == 0;

		if (any ? sets[i].isa->tile_bf16 != NULL : strcmp(name, sets[i].isa->name) != 0)
			continue;
		if (sets[i].is_there()) {
			*isa = sets[i].isa;
			return 0;
		}
		if (!any)
			return tr_fail(err, TR_EINVAL, "isa %s: this CPU has no %s; use isa auto",
				       name, sets[i].needs);
	}
	return tr_fail(err, TR_EINVAL, "isa %s: this build has no such kernels; use isa auto",
		       name);
}

static void fill(float *x, int64_t n, uint64_t of)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t r[4];

		tr_random(1, TR_RANDOM_INIT, of, (uint64_t)i, r);
		x[i] = (float)((double)(int32_t)r[0] * 0x1p-29);
	}
}

enum { CHECK_M = 13, CHECK_N = 37, CHECK_K = 300, CHECK_ROW = 61, CHECK_CUTS = 2,
       CHECK_PARTS = CHECK_CUTS + 1 };
static const int64_t check_cut[] = { 0, 19, CHECK_K };

/* A product of some rows and columns more than a tile has, of parts that have odd numbers of
 * items. */
struct check {
	float a[CHECK_M * CHECK_K], b[CHECK_N * CHECK_K], c[CHECK_M * CHECK_N];
	struct tr_gemm g;
};

static void fill_check(struct check *x)
{
	fill(x->a, CHECK_M * CHECK_K, 1);
	fill(x->b, CHECK_N * CHECK_K, 2);
	fill(x->c, CHECK_M * CHECK_N, 3);
	x->g = (struct tr_gemm){ .m = CHECK_M, .n = CHECK_N, .k = CHECK_K,
		.a = { x->a, CHECK_K, 1, TR_F32 }, .b = { x->b, 1, CHECK_K, TR_F32 }, .c = x->c,
		.c_row = CHECK_N, .add = 1, .cut = check_cut, .cut_n = CHECK_CUTS };
}

static int check_product(const struct tr_isa *isa, float *work)
{
	struct check x;
	float got[CHECK_M * CHECK_N];

	fill_check(&x);
	memcpy(got, x.c, sizeof(got));
	x.g.c = got;
	tr_gemm(isa, &x.g, work);
	x.g.c = x.c;
	tr_gemm_chain(&x.g);
	return memcmp(got, x.c, sizeof(got)) == 0;
}

/* Makes the operands of a product bf16. */
static void round_check(struct check *x)
{
	portable.items[TR_BF16].round(x->a, x->a, CHECK_M * CHECK_K);
	portable.items[TR_BF16].round(x->b, x->b, CHECK_N * CHECK_K);
	x->g.a.type = x->g.b.type = TR_BF16;
}

/* Computes, for each element of a product, the sum of the magnitudes of its terms. */
static void sum_magnitudes(struct check *x)
{
	fill_check(x);
	for (int64_t i = 0; i < CHECK_M * CHECK_K; i++)
		x->a[i] = fabsf(x->a[i]);
	for (int64_t i = 0; i < CHECK_N * CHECK_K; i++)
		x->b[i] = fabsf(x->b[i]);
	for (int64_t i = 0; i < CHECK_M * CHECK_N; i++)
		x->c[i] = fabsf(x->c[i]);
	round_check(x);
	tr_gemm_chain(&x->g);
}

/* Checks that the bits of a product are the same if rows and columns are in the opposite order.
 * Then all elements but one are elsewhere in a tile, and others are at the edges. */
static int check_places(const struct tr_isa *isa, struct check *x, const float *want, float *work)
{
	float got[CHECK_M * CHECK_N];
	int same = 1;

	x->g.add = 0;
	x->g.a.at = tr_item(TR_BF16, x->a, (CHECK_M - 1) * CHECK_K);
	x->g.b.at = tr_item(TR_BF16, x->b, (CHECK_N - 1) * CHECK_K);
	x->g.a.row = x->g.b.column = -CHECK_K;
	x->g.c = got;
	tr_gemm(isa, &x->g, work);
	for (int64_t i = 0; i < CHECK_M * CHECK_N; i++)
		same &= memcmp(&got[CHECK_M * CHECK_N - 1 - i], &want[i], sizeof(*got)) == 0;
	return same;
}

/* An element is the result of at most n roundings, one for each product and each part and one for
 * what C had. Each of them changes it by at most half an FLT_EPSILON of the sum of magnitudes, and
 * so it is in the portable chain. The bound is twice what both make together, so that it also holds
 * for a CPU that rounds to one of the two neighbours. */
static int check_bf16(const struct tr_isa *isa, float *work)
{
	const double n = CHECK_K + CHECK_PARTS + 1, bound = 2 * n * (double)FLT_EPSILON;
	struct check x, size;
	float got[CHECK_M * CHECK_N], sums[CHECK_M * CHECK_N];
	int good = 1;

	fill_check(&x);
	round_check(&x);
	memcpy(got, x.c, sizeof(got));
	x.g.c = got;
	tr_gemm(isa, &x.g, work);
	x.g.c = x.c;
	tr_gemm_chain(&x.g);
	sum_magnitudes(&size);
	for (int64_t i = 0; i < CHECK_M * CHECK_N; i++)
		good &= fabs((double)got[i] - (double)x.c[i]) <= bound * (double)size.c[i];
	x.g.add = 0;
	x.g.c = sums;
	tr_gemm(isa, &x.g, work);
	return good && check_places(isa, &x, sums, work);
}

/* Compares the operations on items of a type with the portable ones. */
static int check_items(const struct tr_isa *isa, enum tr_type type)
{
	const struct tr_itemops *op = &isa->items[type], *want = &portable.items[type];
	float x[CHECK_ROW], y[CHECK_ROW], a[CHECK_ROW] = { 0 }, b[CHECK_ROW] = { 0 }, s[2];

	fill(x, CHECK_ROW, 4);
	fill(y, CHECK_ROW, 5);
	op->round(x, x, CHECK_ROW);     /* now x has items of the type */
	op->sum(a, y, x, CHECK_ROW);
	want->sum(b, y, x, CHECK_ROW);
	op->swiglu(a, x, a, CHECK_ROW);
	want->swiglu(b, x, b, CHECK_ROW);
	s[0] = op->dot(x, y, CHECK_ROW);
	s[1] = want->dot(x, y, CHECK_ROW);
	return memcmp(a, b, sizeof(a)) == 0 && memcmp(&s[0], &s[1], sizeof(*s)) == 0;
}

static int check_rows(const struct tr_isa *isa)
{
	float a[CHECK_ROW], b[CHECK_ROW], s[2], t[2];

	fill(a, CHECK_ROW, 4);
	memcpy(b, a, sizeof(a));
	isa->row.softmax(a, CHECK_ROW, 0.5f, &s[0], &s[1]);
	portable.row.softmax(b, CHECK_ROW, 0.5f, &t[0], &t[1]);
	return memcmp(a, b, sizeof(a)) == 0 && memcmp(s, t, sizeof(s)) == 0 &&
		check_items(isa, TR_F32) && check_items(isa, TR_BF16);
}

int tr_isa_check(const struct tr_isa *isa, float *work, struct tr_error *err)
{
	if (!check_product(isa, work))
		return tr_fail(err, TR_EBUG, "the products of the %s kernel differ from the "
			       "portable ones; use isa portable, and report this", isa->name);
	if (isa->tile_bf16 && !check_bf16(isa, work))
		return tr_fail(err, TR_EBUG, "the %s kernel computes wrong products of bf16; "
			       "use isa avx512, and report this", isa->name);
	if (!check_rows(isa))
		return tr_fail(err, TR_EBUG, "the %s row operations differ from the portable ones; "
			       "use isa portable, and report this", isa->name);
	return 0;
}
