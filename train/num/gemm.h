/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices whose bits do not depend on blocking, on calls or, with the one exception
 * below, on the instruction set.
 *
 * An element is a sum of parts: k is cut every TR_CHAIN from its start, and where `cut` says. A
 * part is one chain of fused multiply-adds from +0, in ascending k. Parts are added in ascending
 * order, with `add` to what C has, otherwise to the first part.
 *
 * A kernel for pairs (struct tr_isa.tile_bf16) has bits of its own, but only for a product of two
 * matrices of bf16. A part is then a sum of pairs of products, in ascending k; an odd number of
 * products is filled up with a zero. Everything else is as above, and the bits do not depend on
 * blocking or calls either. */
#ifndef GEMM_H
#define GEMM_H
#include <stdint.h>

#include "bf16.h"

#define TR_CHAIN 256
/* A tile of the micro-kernel is at most this large. */
#define TR_TILE_ROWS 16
#define TR_TILE_COLUMNS 32
/* Rows of a packed block of A and columns of a packed panel of B: multiples of those of each
 * tile. */
#define TR_BLOCK_ROWS 192
#define TR_PANEL_COLUMNS 1024

struct tr_isa;

/* C[m, n] = or += A[m, k] B[k, n]. Element (i, j) of a matrix is item i * row + j * column. A
 * matrix of bf16 is widened when it is packed, unless the kernel computes from pairs. */
struct tr_matrix {
	const void *at;
	int64_t row, column;
	enum tr_type type;
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
#define TR_GEMM_WORK ((int64_t)TR_CHAIN * (TR_BLOCK_ROWS + TR_PANEL_COLUMNS))

/* Computes the product.
 * work  TR_GEMM_WORK floats, aligned to 64 bytes. */
void tr_gemm(const struct tr_isa *isa, const struct tr_gemm *g, float *work);
/* Computes the product element by element, by chains of fused multiply-adds also if it is one of
 * bf16: for tests, and for tr_isa_check. */
void tr_gemm_chain(const struct tr_gemm *g);

/* Computes one part of a tile of C (tile_rows x tile_columns of struct tr_isa). a is ordered by k,
 * then row, and b by k, then column. With `add` the part is added to C, otherwise it replaces C.
 * cells  how many cells of 32 bits a row of a and a column of b have. A cell is a float, or two
 *        items of bf16, of which the first has the smaller k and the lower address. */
typedef void tr_tile_fn(int64_t cells, const float *a, const float *b, float *c, int64_t c_row,
			int add);
tr_tile_fn tr_tile_portable, tr_tile_avx2, tr_tile_avx512;
/* For pairs of bf16. */
tr_tile_fn tr_tile_avx512_bf16;
#endif
