/* SPDX-License-Identifier: Apache-2.0 */
/* Cache blocking as in Goto and van de Geijn (2008): the micro-kernel computes tiles of C from a
 * packed block of A, which stays in the L2 cache, and a packed panel of B, which stays in L3. k is
 * cut only into the parts of gemm.h, so each call of the micro-kernel computes a whole part. */
#include "gemm.h"

#include <math.h>
#include <string.h>

#include "isa.h"

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline float item_at(const struct tr_matrix *x, int bf16, int64_t i)
{
	return bf16 ? tr_widen(((const uint16_t *)x->at)[i]) : ((const float *)x->at)[i];
}

typedef float four __attribute__((vector_size(16)));

static inline four load_four(const struct tr_matrix *x, int bf16, int64_t i)
{
	typedef uint16_t half __attribute__((vector_size(8)));
	typedef uint32_t bits __attribute__((vector_size(16)));
	four v;
	half h;

	if (!bf16) {
		memcpy(&v, (const float *)x->at + i, sizeof(v));
		return v;
	}
	memcpy(&h, (const uint16_t *)x->at + i, sizeof(h));
	return (four)(__builtin_convertvector(h, bits) << 16);
}

static inline void store_four(float *to, four v)
{
	memcpy(to, &v, sizeof(v));
}

/* Packs four columns of four rows, of which item `from` is the first, if columns are next to each
 * other. */
static inline void turn(const struct tr_matrix *x, int bf16, int64_t from, int64_t tile, float *to)
{
	four a = load_four(x, bf16, from), b = load_four(x, bf16, from + x->row);
	four c = load_four(x, bf16, from + 2 * x->row), d = load_four(x, bf16, from + 3 * x->row);
	four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
	four cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);

	store_four(to, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
	store_four(to + tile, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
	ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
	cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
	store_four(to + 2 * tile, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
	store_four(to + 3 * tile, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
}

/* Packs kc columns of n rows, of which item `from` is the first, as `pack` does. The compiler makes
 * this function for each type, and for the tiles that are whole. */
static inline __attribute__((always_inline)) void strip(const struct tr_matrix *x, int bf16,
							int64_t from, int64_t n, int64_t kc,
							int64_t tile, float *to)
{
	int64_t rows = x->column == 1 ? n / 4 * 4 : 0, columns = kc / 4 * 4;

	if (x->row == 1) {
		for (int64_t k = 0; k < kc; k++)
			for (int64_t r = 0; r < n; r++)
				to[k * tile + r] = item_at(x, bf16, from + k * x->column + r);
		return;
	}
	for (int64_t k = 0; k < columns; k += 4)
		for (int64_t r = 0; r < rows; r += 4)
			turn(x, bf16, from + r * x->row + k, tile, to + k * tile + r);
	for (int64_t r = 0; r < n; r++)
		for (int64_t k = r < rows ? columns : 0; k < kc; k++)
			to[k * tile + r] = item_at(x, bf16, from + r * x->row + k * x->column);
}

static inline __attribute__((always_inline)) void strip_of(const struct tr_matrix *x, int bf16,
							   int64_t from, int64_t n, int64_t kc,
							   int64_t tile, float *to)
{
	switch (n == tile ? tile : 0) {
	case 6:
		strip(x, bf16, from, 6, kc, 6, to);
		break;
	case 12:
		strip(x, bf16, from, 12, kc, 12, to);
		break;
	case 16:
		strip(x, bf16, from, 16, kc, 16, to);
		break;
	case 32:
		strip(x, bf16, from, 32, kc, 32, to);
		break;
	default:
		strip(x, bf16, from, n, kc, tile, to);
	}
}

/* Packs columns [k0, k0 + kc) of rows [r0, r0 + rows) into strips of `tile` rows. A strip is
 * ordered by k, then by row. The last strip is padded with zeros. */
static void pack(const struct tr_matrix *x, int64_t r0, int64_t rows, int64_t k0, int64_t kc,
		 int64_t tile, float *to)
{
	for (int64_t s = 0; s < rows; s += tile, to += tile * kc) {
		int64_t n = least(tile, rows - s), from = (r0 + s) * x->row + k0 * x->column;

		if (n < tile)
			memset(to, 0, (size_t)(tile * kc) * sizeof(*to));
		if (x->type == TR_BF16)
			strip_of(x, 1, from, n, kc, tile, to);
		else
			strip_of(x, 0, from, n, kc, tile, to);
	}
}

/* Computes the m x n elements of a tile at the edge of C in a buffer that has room for a whole
 * tile. Only the elements that C has are copied into the buffer and back. */
static void edge_tile(const struct tr_isa *isa, int64_t kc, const float *a, const float *b,
		      float *c, int64_t c_row, int add, int64_t m, int64_t n)
{
	float whole[TR_TILE_ROWS * TR_TILE_COLUMNS] __attribute__((aligned(64)));

	memset(whole, 0, sizeof(whole));
	for (int64_t i = 0; add && i < m; i++)
		memcpy(whole + i * isa->tile_columns, c + i * c_row, (size_t)n * sizeof(*c));
	isa->tile(kc, a, b, whole, isa->tile_columns, add);
	for (int64_t i = 0; i < m; i++)
		memcpy(c + i * c_row, whole + i * isa->tile_columns, (size_t)n * sizeof(*c));
}

static void block(const struct tr_isa *isa, int64_t kc, const float *a, const float *b, float *c,
		  int64_t c_row, int add, int64_t m, int64_t n)
{
	int64_t rows = isa->tile_rows, columns = isa->tile_columns;

	for (int64_t j = 0; j < n; j += columns) {
		for (int64_t i = 0; i < m; i += rows) {
			float *at = c + i * c_row + j;

			if (m - i >= rows && n - j >= columns)
				isa->tile(kc, a + i * kc, b + j * kc, at, c_row, add);
			else
				edge_tile(isa, kc, a + i * kc, b + j * kc, at, c_row, add,
					  least(rows, m - i), least(columns, n - j));
		}
	}
}

/* Computes part [k0, k0 + kc) of k for the panel of columns that begins at j0. */
static void part(const struct tr_isa *isa, const struct tr_gemm *g, int64_t k0, int64_t kc,
		 int add, int64_t j0, float *work)
{
	float *b = work, *a = work + (int64_t)TR_CHAIN * TR_PANEL_COLUMNS;
	struct tr_matrix bt = { g->b.at, g->b.column, g->b.row, g->b.type };
	int64_t n = least(TR_PANEL_COLUMNS, g->n - j0);

	pack(&bt, j0, n, k0, kc, isa->tile_columns, b);
	for (int64_t i0 = 0; i0 < g->m; i0 += TR_BLOCK_ROWS) {
		int64_t m = least(TR_BLOCK_ROWS, g->m - i0);

		pack(&g->a, i0, m, k0, kc, isa->tile_rows, a);
		block(isa, kc, a, b, g->c + i0 * g->c_row + j0, g->c_row, add, m, n);
	}
}

static int64_t cuts(const struct tr_gemm *g)
{
	return g->cut ? g->cut_n : 1;
}

static void cut_range(const struct tr_gemm *g, int64_t i, int64_t *from, int64_t *to)
{
	*from = g->cut ? g->cut[i] : 0;
	*to = g->cut ? g->cut[i + 1] : g->k;
}

void tr_gemm(const struct tr_isa *isa, const struct tr_gemm *g, float *work)
{
	for (int64_t j = 0; j < g->n; j += TR_PANEL_COLUMNS) {
		int add = g->add;

		for (int64_t s = 0; s < cuts(g); s++) {
			int64_t from, to;

			cut_range(g, s, &from, &to);
			for (int64_t k = from; k < to; k += TR_CHAIN, add = 1)
				part(isa, g, k, least(TR_CHAIN, to - k), add, j, work);
		}
	}
}

static float chain(const struct tr_gemm *g, int64_t i, int64_t j, int64_t k0, int64_t k1)
{
	float sum = 0;

	for (int64_t k = k0; k < k1; k++)
		sum = fmaf(item_at(&g->a, g->a.type == TR_BF16, i * g->a.row + k * g->a.column),
			   item_at(&g->b, g->b.type == TR_BF16, k * g->b.row + j * g->b.column),
			   sum);
	return sum;
}

static void element(const struct tr_gemm *g, int64_t i, int64_t j)
{
	float *c = g->c + i * g->c_row + j;
	int add = g->add;

	for (int64_t s = 0; s < cuts(g); s++) {
		int64_t from, to;

		cut_range(g, s, &from, &to);
		for (int64_t k = from; k < to; k += TR_CHAIN, add = 1) {
			float sum = chain(g, i, j, k, least(k + TR_CHAIN, to));

			*c = add ? *c + sum : sum;
		}
	}
}

void tr_gemm_chain(const struct tr_gemm *g)
{
	for (int64_t i = 0; i < g->m; i++)
		for (int64_t j = 0; j < g->n; j++)
			element(g, i, j);
}
