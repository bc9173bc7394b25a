/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of AVX-512 and AVX-512 BF16 with their instructions in plain C, for every CPU. */
#ifndef TRAINEMULATED_H
#define TRAINEMULATED_H
#include "t.h"

#include <float.h>
#include <math.h>

#include "isa.h"
#include "lanes.h"

static inline float without_subnormals(float x)
{
	return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

/* VDPBF16PS in one lane, as Intel documents it: the product of the second items of two pairs is
 * added first, then that of the first ones. A sum is rounded once, to nearest and ties to even.
 * Subnormal operands and sums are zeros. */
static inline float dot_pairs(float sum, const uint16_t *a, const uint16_t *b)
{
	sum = without_subnormals(sum);
	for (int i = 1; i >= 0; i--) {
		float x = without_subnormals(tr_widen(a[i]));

		sum = without_subnormals(fmaf(x, without_subnormals(tr_widen(b[i])), sum));
	}
	return sum;
}

static inline vec emulated_dot(vec sum, vec a, vec b)
{
	for (int i = 0; i < LANES; i++) {
		const float cells[2] = { a[i], b[i] };
		uint16_t pair[4];

		memcpy(pair, cells, sizeof(pair));
		sum[i] = dot_pairs(sum[i], pair, pair + 2);
	}
	return sum;
}

static inline vec emulated_fma(vec sum, vec a, vec b)
{
	for (int i = 0; i < LANES; i++)
		sum[i] = fmaf(a[i], b[i], sum[i]);
	return sum;
}

static tr_tile_fn emulated_tile, emulated_tile_bf16;
#define TILE emulated_tile
#define MADD(s, a, b) emulated_fma(s, a, b)
#include "gemm_wide_body.h"
#define TILE emulated_tile_bf16
#define MADD(s, a, b) emulated_dot(s, a, b)
#include "gemm_wide_body.h"

/* Returns what avx512-bf16 is, emulated. Without tile_bf16 it is avx512. */
static inline struct tr_isa emulated_set(void)
{
	const struct tr_isa *isa;
	struct tr_error err;
	struct tr_isa x;

	CHECK_INT(tr_isa_find(&isa, "auto", &err), 0);
	x = *isa;
	x.name = "avx512-bf16";
	x.tile_rows = 12;
	x.tile_columns = 32;
	x.tile = emulated_tile;
	x.tile_bf16 = emulated_tile_bf16;
	return x;
}
#endif
