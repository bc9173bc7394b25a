/* SPDX-License-Identifier: Apache-2.0 */
#include "isa.h"

#include <string.h>

#include "philox.h"

static const struct tr_isa portable = { "portable", 4, 8, tr_tile_portable, TR_ROWOPS(portable),
	{ TR_ITEMOPS(portable_f32), TR_ITEMOPS(portable_bf16) } };
#ifdef TR_X86
static const struct tr_isa avx2 = { "avx2", 6, 16, tr_tile_avx2, TR_ROWOPS(avx2),
	{ TR_ITEMOPS(avx2_f32), TR_ITEMOPS(avx2_bf16) } };

static const struct tr_isa avx512 = { "avx512", 12, 32, tr_tile_avx512, TR_ROWOPS(avx512),
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
	{ &avx512, has_avx512, "AVX-512 (F, BW, DQ and VL)" },
	{ &avx2, has_avx2, "AVX2 and FMA" },
#endif
	{ &portable, has_c, "C" },
};

int tr_isa_find(const struct tr_isa **isa, const char *name, struct tr_error *err)
{
	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
		int any = strcmp(name, "auto") == 0;

		if (!any && strcmp(name, sets[i].isa->name) != 0)
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

enum { CHECK_M = 13, CHECK_N = 37, CHECK_K = 300, CHECK_ROW = 61 };

static int check_product(const struct tr_isa *isa, float *work)
{
	static const int64_t cut[] = { 0, 19, CHECK_K };
	float a[CHECK_M * CHECK_K], b[CHECK_N * CHECK_K], c[CHECK_M * CHECK_N],
		want[CHECK_M * CHECK_N];
	struct tr_gemm g = { .m = CHECK_M, .n = CHECK_N, .k = CHECK_K,
			     .a = { a, CHECK_K, 1, TR_F32 }, .b = { b, 1, CHECK_K, TR_F32 },
			     .c = c, .c_row = CHECK_N, .add = 1, .cut = cut, .cut_n = 2 };

	fill(a, CHECK_M * CHECK_K, 1);
	fill(b, CHECK_N * CHECK_K, 2);
	fill(c, CHECK_M * CHECK_N, 3);
	memcpy(want, c, sizeof(c));
	tr_gemm(isa, &g, work);
	g.c = want;
	tr_gemm_chain(&g);
	return memcmp(c, want, sizeof(c)) == 0;
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
		return tr_fail(err, TR_EBUG, "the %s kernel computes other products than the "
			       "portable one; use isa portable, and report this", isa->name);
	if (!check_rows(isa))
		return tr_fail(err, TR_EBUG, "the %s row operations differ from the portable ones; "
			       "use isa portable, and report this", isa->name);
	return 0;
}
