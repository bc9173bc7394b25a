/* SPDX-License-Identifier: Apache-2.0 */
/* The tile of AVX-512 with its instruction in plain C, for every CPU. */
#ifndef TRAINEMULATED_H
#define TRAINEMULATED_H
#include "t.h"

#include <math.h>

#include "isa.h"
#include "lanes.h"

static inline vec emulated_fma(vec sum, vec a, vec b)
{
	for (int i = 0; i < LANES; i++)
		sum[i] = fmaf(a[i], b[i], sum[i]);
	return sum;
}

static tr_tile_fn emulated_tile;
#define TILE emulated_tile
#define MADD(s, a, b) emulated_fma(s, a, b)
#include "gemm_wide_body.h"

/* Returns what avx512 is, with this tile. */
static inline struct tr_isa emulated_set(void)
{
	const struct tr_isa *isa;
	struct tr_error err;
	struct tr_isa x;

	CHECK_INT(tr_isa_find(&isa, "auto", &err), 0);
	x = *isa;
	x.name = "avx512, emulated";
	x.tile_rows = 12;
	x.tile_columns = 32;
	x.tile = emulated_tile;
	return x;
}
#endif
