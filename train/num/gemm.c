/* SPDX-License-Identifier: Apache-2.0 */
/* Cache blocking as in Goto and van de Geijn (2008): the micro-kernel computes tiles of C from a
 * packed block of A, which stays in the L2 cache, and a packed panel of B, which stays in L3. k is
 * cut only into the parts of gemm.h, so each call of the micro-kernel computes a whole part.
 *
 * A packed operand has cells of 32 bits. They are floats, unless the kernel computes from pairs. */
#include "gemm.h"

#include <math.h>
#include <string.h>

#include "isa.h"

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline float item_at(const struct tr_matrix *x, int64_t i)
{
	return x->type == TR_BF16 ? tr_widen(((const uint16_t *)x->at)[i]) :
		((const float *)x->at)[i];
}

/* What a cell of a packed operand has: an item of fp32, an item of bf16 as a float, or two items of
 * bf16 that follow each other in k. */
enum form { FLOATS, WIDENED, PAIRS };

/* Returns the cell that begins with item i. Of the last pair of an odd number of items only the
 * first one is there; the other one is a zero. */
static inline uint32_t cell_at(const struct tr_matrix *x, enum form form, int64_t i, int is_whole)
{
	const uint16_t *h = x->at;
	uint16_t pair[2];
	uint32_t cell;

	if (form == FLOATS) {
		memcpy(&cell, (const float *)x->at + i, sizeof(cell));
		return cell;
	}
	if (form == WIDENED)
		return (uint32_t)h[i] << 16;
	pair[0] = h[i];
	pair[1] = is_whole ? h[i + x->column] : 0;
	memcpy(&cell, pair, sizeof(cell));
	return cell;
}

static inline void store_cell(float *to, uint32_t cell)
{
	memcpy(to, &cell, sizeof(cell));
}

typedef uint32_t four __attribute__((vector_size(16)));

/* Loads four cells. The items of a pair must be next to each other. */
static inline four load_four(const struct tr_matrix *x, enum form form, int64_t i)
{
	typedef uint16_t half __attribute__((vector_size(8)));
	four v;
	half h;

	if (form != WIDENED) {
		memcpy(&v, tr_item(form == PAIRS ? TR_BF16 : TR_F32, x->at, i), sizeof(v));
		return v;
	}
	memcpy(&h, (const uint16_t *)x->at + i, sizeof(h));
	return __builtin_convertvector(h, four) << 16;
}

static inline void store_four(float *to, four v)
{
	memcpy(to, &v, sizeof(v));
}

/* Packs four columns of cells of four rows, of which item `from` is the first, if columns are next
 * to each other. */
static inline void turn(const struct tr_matrix *x, enum form form, int64_t from, int64_t tile,
			float *to)
{
	four a = load_four(x, form, from), b = load_four(x, form, from + x->row);
	four c = load_four(x, form, from + 2 * x->row), d = load_four(x, form, from + 3 * x->row);
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
 * this function for each form, and for the tiles that are whole. */
static inline __attribute__((always_inline)) void strip(const struct tr_matrix *x, enum form form,
							int64_t from, int64_t n, int64_t kc,
							int64_t tile, float *to)
{
	int64_t items = form == PAIRS ? 2 : 1, step = items * x->column;
	int64_t whole = kc / items, cells = (kc + items - 1) / items;
	int64_t rows = x->column == 1 ? n / 4 * 4 : 0, columns = whole / 4 * 4;

	if (x->row == 1) {
		for (int64_t k = 0; k < cells; k++)
			for (int64_t r = 0; r < n; r++)
				store_cell(to + k * tile + r,
					   cell_at(x, form, from + k * step + r, k < whole));
		return;
	}
	for (int64_t k = 0; k < columns; k += 4)
		for (int64_t r = 0; r < rows; r += 4)
			turn(x, form, from + r * x->row + k * step, tile, to + k * tile + r);
	for (int64_t r = 0; r < n; r++)
		for (int64_t k = r < rows ? columns : 0; k < cells; k++)
			store_cell(to + k * tile + r, cell_at(x, form, from + r * x->row + k * step,
							      k < whole));
}

static inline __attribute__((always_inline)) void strip_of(const struct tr_matrix *x,
							   enum form form, int64_t from, int64_t n,
							   int64_t kc, int64_t tile, float *to)
{
	switch (n == tile ? tile : 0) {
	case 6:
		strip(x, form, from, 6, kc, 6, to);
		break;
	case 12:
		strip(x, form, from, 12, kc, 12, to);
		break;
	case 16:
		strip(x, form, from, 16, kc, 16, to);
		break;
	case 32:
		strip(x, form, from, 32, kc, 32, to);
		break;
	default:
		strip(x, form, from, n, kc, tile, to);
	}
}

/* The kernel of a product, and what it computes from. */
struct kernel {
	tr_tile_fn *tile;
	int64_t rows, columns;          /* of a tile */
	enum form a, b;
};

static struct kernel kernel_of(const struct tr_isa *isa, const struct tr_gemm *g)
{
	struct kernel x = { isa->tile, isa->tile_rows, isa->tile_columns,
			    g->a.type == TR_BF16 ? WIDENED : FLOATS,
			    g->b.type == TR_BF16 ? WIDENED : FLOATS };

	if (isa->tile_bf16 && x.a == WIDENED && x.b == WIDENED) {
		x.tile = isa->tile_bf16;
		x.a = x.b = PAIRS;
	}
	return x;
}

/* Returns how many cells a row of kc items has. */
static int64_t cells_of(enum form form, int64_t kc)
{
	return form == PAIRS ? (kc + 1) / 2 : kc;
}

/* Packs columns [k0, k0 + kc) of rows [r0, r0 + rows) into strips of `tile` rows. A strip is
 * ordered by k, then by row. The last strip is padded with zeros. */
static void pack(const struct tr_matrix *of, enum form form, int64_t r0, int64_t rows, int64_t k0,
		 int64_t kc, int64_t tile, float *to)
{
	/* Of a copy the compiler sees that no cell is stored into it. */
	const struct tr_matrix copy = *of, *x = &copy;
	int64_t size = tile * cells_of(form, kc);

	for (int64_t s = 0; s < rows; s += tile, to += size) {
		int64_t n = least(tile, rows - s), from = (r0 + s) * x->row + k0 * x->column;

		if (n < tile)
			memset(to, 0, (size_t)size * sizeof(*to));
		if (form == FLOATS)
			strip_of(x, FLOATS, from, n, kc, tile, to);
		else if (form == WIDENED)
			strip_of(x, WIDENED, from, n, kc, tile, to);
		else
			strip_of(x, PAIRS, from, n, kc, tile, to);
	}
}

/* Computes the m x n elements of a tile at the edge of C in a buffer that has room for a whole
 * tile. Only the elements that C has are copied into the buffer and back. */
static void edge_tile(const struct kernel *of, int64_t cells, const float *a, const float *b,
		      float *c, int64_t c_row, int add, int64_t m, int64_t n)
{
	float whole[TR_TILE_ROWS * TR_TILE_COLUMNS] __attribute__((aligned(64)));

	memset(whole, 0, sizeof(whole));
	for (int64_t i = 0; add && i < m; i++)
		memcpy(whole + i * of->columns, c + i * c_row, (size_t)n * sizeof(*c));
	of->tile(cells, a, b, whole, of->columns, add);
	for (int64_t i = 0; i < m; i++)
		memcpy(c + i * c_row, whole + i * of->columns, (size_t)n * sizeof(*c));
}

static void block(const struct kernel *of, int64_t cells, const float *a, const float *b, float *c,
		  int64_t c_row, int add, int64_t m, int64_t n)
{
	for (int64_t j = 0; j < n; j += of->columns) {
		for (int64_t i = 0; i < m; i += of->rows) {
			float *at = c + i * c_row + j;

			if (m - i >= of->rows && n - j >= of->columns)
				of->tile(cells, a + i * cells, b + j * cells, at, c_row, add);
			else
				edge_tile(of, cells, a + i * cells, b + j * cells, at, c_row, add,
					  least(of->rows, m - i), least(of->columns, n - j));
		}
	}
}

/* Computes part [k0, k0 + kc) of k for the panel of columns that begins at j0. */
static void part(const struct kernel *of, const struct tr_gemm *g, int64_t k0, int64_t kc, int add,
		 int64_t j0, float *work)
{
	float *b = work, *a = work + (int64_t)TR_CHAIN * TR_PANEL_COLUMNS;
	struct tr_matrix bt = { g->b.at, g->b.column, g->b.row, g->b.type };
	int64_t n = least(TR_PANEL_COLUMNS, g->n - j0);

	pack(&bt, of->b, j0, n, k0, kc, of->columns, b);
	for (int64_t i0 = 0; i0 < g->m; i0 += TR_BLOCK_ROWS) {
		int64_t m = least(TR_BLOCK_ROWS, g->m - i0);

		pack(&g->a, of->a, i0, m, k0, kc, of->rows, a);
		block(of, cells_of(of->a, kc), a, b, g->c + i0 * g->c_row + j0, g->c_row, add, m,
		      n);
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
	const struct kernel of = kernel_of(isa, g);

	for (int64_t j = 0; j < g->n; j += TR_PANEL_COLUMNS) {
		int add = g->add;

		for (int64_t s = 0; s < cuts(g); s++) {
			int64_t from, to;

			cut_range(g, s, &from, &to);
			for (int64_t k = from; k < to; k += TR_CHAIN, add = 1)
				part(&of, g, k, least(TR_CHAIN, to - k), add, j, work);
		}
	}
}

static float chain(const struct tr_gemm *g, int64_t i, int64_t j, int64_t k0, int64_t k1)
{
	float sum = 0;

	for (int64_t k = k0; k < k1; k++)
		sum = fmaf(item_at(&g->a, i * g->a.row + k * g->a.column),
			   item_at(&g->b, k * g->b.row + j * g->b.column), sum);
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
