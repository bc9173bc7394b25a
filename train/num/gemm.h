/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices whose bits do not depend on blocking, calls or the instruction set.
 *
 * An element is made of parts: k is cut every TR_CHAIN from its start, and where `cut` says. A part
 * is one chain of fused multiply-adds from +0, in ascending k. Parts are added in ascending
 * order to what C has, or to +0. */
#ifndef GEMM_H
#define GEMM_H
#include <stdint.h>

#define TR_CHAIN 256
/* A tile of the micro-kernel is at most this large. */
#define TR_TILE_ROWS 16
#define TR_TILE_COLUMNS 32

struct tr_isa;

/* C[m, n] = or += A[m, k] B[k, n]. Element (i, j) of a matrix is at i * row + j * column. */
struct tr_matrix {
	const float *at;
	int64_t row, column;
};
struct tr_gemm {
	int64_t m, n, k;
	struct tr_matrix a, b;
	float *c;
	int64_t c_row;                  /* elements from one row of C to the next */
	int add;                        /* add to C; otherwise C is overwritten */
	/* NULL: the sum runs from 0 to k. Otherwise it runs over the ranges from cut[i] to
	 * cut[i + 1], one after the other, for i < cut_n, and `k` is not used. Each range begins a
	 * new chain. */
	const int64_t *cut;
	int64_t cut_n;
};
/* Floats of workspace that tr_gemm needs. */
#define TR_GEMM_WORK ((int64_t)TR_CHAIN * (192 + 1024) + 64)

/* work  TR_GEMM_WORK floats, aligned to 64 bytes. */
void tr_gemm(const struct tr_isa *isa, const struct tr_gemm *g, float *work);
/* The definition, element by element. For tests, and for the check at the start. */
void tr_gemm_chain(const struct tr_gemm *g);

/* A tile of C: tile_rows x tile_columns. a is packed by k, then row; b by k, then column. */
typedef void tr_tile_fn(int64_t k, const float *a, const float *b, float *c, int64_t c_row,
			int add);
tr_tile_fn tr_tile_portable, tr_tile_avx2;
#endif
