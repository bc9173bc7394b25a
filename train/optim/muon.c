/* SPDX-License-Identifier: Apache-2.0 */
#include "muon.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sumtree.h"

enum { ITERATIONS = 5 };

struct tr_muon {
	const struct tr_registry *reg;
	struct tr_backend *be;
	const struct tr_ranks *tp;
	const struct tr_shares *shares;
	const struct tr_param **list;   /* the matrices that this rank updates a part of */
	int n;
	/* Scratch: a matrix and the next iteration of it, its parts one after another, and two
	 * square matrices of its smaller dimension. */
	float *x, *next, *parts, *gram, *square;
	struct tr_piece *pieces;        /* [2 * ranks of tp] */
};

static int64_t smaller(const struct tr_param *p)
{
	return p->shape[0] < p->shape[1] ? p->shape[0] : p->shape[1];
}

/* Lists the matrices, and sets *items to the size of the largest one and *side to the largest
 * smaller dimension. All ranks of tp have the same list. */
static int make_list(struct tr_muon *u, const struct tr_shares *shares, int64_t *items,
		     int64_t *side, struct tr_error *err)
{
	u->list = calloc((size_t)u->reg->n, sizeof(*u->list));
	if (!u->list)
		return tr_fail(err, TR_ENOMEM, "no memory to list the matrices");
	for (int i = 0; i < u->reg->n; i++) {
		const struct tr_param *p = &u->reg->param[i];
		int64_t size = p->shape[0] * p->shape[1];
		struct tr_span own;

		if (!p->matrix)
			continue;
		if (!p->items)
			return tr_fail(err, TR_EINVAL, "optimizer muon: a rank of tp has no part "
				       "of %s; use a smaller tp in mesh", p->name);
		tr_shares_of(shares, p, &own);
		if (own.from == own.to)
			continue;
		u->list[u->n++] = p;
		*items = size > *items ? size : *items;
		*side = smaller(p) > *side ? smaller(p) : *side;
	}
	return 0;
}

int tr_muon_new(struct tr_muon **muon, const struct tr_registry *reg, struct tr_arenas *a,
		const struct tr_ranks *tp, const struct tr_shares *shares, struct tr_error *err)
{
	struct tr_muon *u = calloc(1, sizeof(*u));
	int64_t items = 0, side = 0;
	int rc;

	if (!u)
		return tr_fail(err, TR_ENOMEM, "no memory to list the matrices");
	*u = (struct tr_muon){ .reg = reg, .be = a->be, .tp = tp, .shares = shares };
	rc = make_list(u, shares, &items, &side, err);
	u->pieces = calloc(2 * (size_t)tp->n, sizeof(*u->pieces));
	if (rc == 0 && !u->pieces)
		rc = tr_fail(err, TR_ENOMEM, "no memory to list the matrices");
	if (rc < 0) {
		tr_muon_free(u);
		return rc;
	}
	tr_arena_ask(a, TR_BUFFERS, items, &u->x);
	tr_arena_ask(a, TR_BUFFERS, items, &u->next);
	tr_arena_ask(a, TR_BUFFERS, items, &u->parts);
	tr_arena_ask(a, TR_BUFFERS, side * side, &u->gram);
	tr_arena_ask(a, TR_BUFFERS, side * side, &u->square);
	*muon = u;
	return 0;
}

void tr_muon_free(struct tr_muon *u)
{
	if (!u)
		return;
	free(u->pieces);
	free(u->list);
	free(u);
}

/* ---- Newton-Schulz ---- */

/* Divides x by its norm. Rows are added in their order. */
static void normalise(struct tr_muon *u, int64_t rows, int64_t columns)
{
	const struct tr_isa *isa = u->be->isa;
	double sum = 0;

	for (int64_t i = 0; i < rows; i++)
		sum += (double)isa->items[TR_F32].square(u->x + i * columns, columns);
	sum = sqrt(sum);
	isa->row.blend(u->x, u->x, rows * columns, (float)(1 / (sum > 1e-7 ? sum : 1e-7)), 0);
}

/* Makes one iteration: with X as it is if it is wide, or transposed if it is tall, A = X X^T and
 * X' = a X + (b A + c A A) X. */
static void iterate(struct tr_muon *u, int64_t rows, int64_t columns)
{
	const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
	const struct tr_rowops *op = &u->be->isa->row;
	int tall = rows > columns;
	int64_t side = tall ? columns : rows, other = tall ? rows : columns;
	struct tr_matrix x = { u->x, columns, 1, TR_F32 }, turned = { u->x, 1, columns, TR_F32 };
	struct tr_matrix gram = { u->gram, side, 1, TR_F32 };
	struct tr_matrix square = { u->square, side, 1, TR_F32 };
	struct tr_gemm product = { .m = side, .n = side, .k = other, .a = tall ? turned : x,
				   .b = tall ? x : turned, .c = u->gram, .c_row = side };
	float *last = u->x;

	u->be->gemm(u->be, &product);
	product = (struct tr_gemm){ .m = side, .n = side, .k = side, .a = gram, .b = gram,
				    .c = u->square, .c_row = side };
	u->be->gemm(u->be, &product);
	op->blend(u->square, u->gram, side * side, b, c);
	product = (struct tr_gemm){ .m = rows, .n = columns, .k = side, .a = tall ? x : square,
				    .b = tall ? square : x, .c = u->next, .c_row = columns };
	u->be->gemm(u->be, &product);
	op->blend(u->next, u->x, rows * columns, a, 1);
	u->x = u->next;
	u->next = last;
}

/* ---- collecting a matrix ---- */

/* Copies the parts of all ranks, one after another, to their places in x; or back. */
static void move_parts(const struct tr_muon *u, const struct tr_param *p, int back)
{
	int64_t units = p->shape[p->axis] / p->unit, at = 0;

	for (int r = 0; r < u->tp->n; r++) {
		int64_t start[2] = { 0, 0 }, count[2] = { p->shape[0], p->shape[1] };
		int low = (int)tr_cut(u->reg->pieces.n, u->tp->n, r);
		int high = (int)tr_cut(u->reg->pieces.n, u->tp->n, r + 1);

		start[p->axis] = tr_cut(units, u->reg->pieces.n, low) * p->unit;
		count[p->axis] = tr_cut(units, u->reg->pieces.n, high) * p->unit - start[p->axis];
		for (int64_t row = 0; row < count[0]; row++, at += count[1]) {
			float *x = u->x + (start[0] + row) * p->shape[1] + start[1];

			memcpy(back ? u->parts + at : x, back ? x : u->parts + at,
			       (size_t)count[1] * sizeof(*x));
		}
	}
}

/* Returns the items of the part of a rank. */
static int64_t part_items(const struct tr_muon *u, const struct tr_param *p, int rank)
{
	int64_t units = p->shape[p->axis] / p->unit, n = u->reg->pieces.n;
	int64_t low = tr_cut(units, n, (int)tr_cut(n, u->tp->n, rank));
	int64_t high = tr_cut(units, n, (int)tr_cut(n, u->tp->n, rank + 1));

	return (high - low) * p->unit * p->shape[1 - p->axis];
}

/* Returns the direction of the part of a matrix that this rank has. */
static float *direction(const struct tr_muon *u, const struct tr_param *p, float *grad)
{
	return grad + tr_gradient_index(u->shares,
					(struct tr_span){ p->offset, p->offset + p->items });
}

/* Exchanges the parts of matrices list[0], list[1] and so on, of which rank i of tp computes number
 * i: from their places in `grad` to that rank, or back. */
static int exchange(struct tr_muon *u, const struct tr_param *const *list, int n, float *grad,
		    int back, struct tr_error *err)
{
	struct tr_piece *parts = u->pieces, *own = parts + u->tp->n;
	const struct tr_param *mine = u->tp->rank < n ? list[u->tp->rank] : NULL;
	int64_t at = 0, items;

	for (int r = 0; r < u->tp->n; r++) {
		items = mine ? part_items(u, mine, r) : 0;
		parts[r] = (struct tr_piece){ u->parts + at, (size_t)items * sizeof(*grad) };
		own[r] = r < n ? (struct tr_piece){ direction(u, list[r], grad),
			(size_t)list[r]->items * sizeof(*grad) } : (struct tr_piece){ NULL, 0 };
		at += items;
	}
	if (mine)
		memcpy(back ? own[u->tp->rank].at : parts[u->tp->rank].at,
		       back ? parts[u->tp->rank].at : own[u->tp->rank].at,
		       own[u->tp->rank].bytes);
	parts[u->tp->rank].bytes = own[u->tp->rank].bytes = 0;
	return tr_exchange(u->tp, back ? parts : own, back ? own : parts, err);
}

/* Replaces the directions of at most one matrix for each rank by nearly orthogonal matrices. */
static int orthogonalise(struct tr_muon *u, const struct tr_param *const *list, int n, float *grad,
			 struct tr_error *err)
{
	const struct tr_param *p = u->tp->rank < n ? list[u->tp->rank] : NULL;
	int rc = exchange(u, list, n, grad, 0, err);

	if (rc < 0)
		return rc;
	if (p) {
		move_parts(u, p, 0);
		normalise(u, p->shape[0], p->shape[1]);
		for (int i = 0; i < ITERATIONS; i++)
			iterate(u, p->shape[0], p->shape[1]);
		move_parts(u, p, 1);
	}
	return exchange(u, list, n, grad, 1, err);
}

int tr_muon_update(struct tr_muon *u, const struct tr_adamw *a, void *weights, float *grad,
		   double lr, int code, struct tr_error *err)
{
	int rc = tr_agree(u->tp, code, err);

	for (int i = 0; rc == 0 && i < u->n; i += u->tp->n)
		rc = orthogonalise(u, u->list + i, u->n - i < u->tp->n ? u->n - i : u->tp->n, grad,
				   err);
	for (int i = 0; rc == 0 && i < u->n; i++) {
		const struct tr_param *p = u->list[i];
		int64_t larger = p->shape[0] * p->shape[1] / smaller(p), at;
		/* The root mean square of an update is then about that of AdamW. */
		double rate = lr * 0.2 * sqrt((double)larger);
		struct tr_span own;
		float *w = tr_adamw_of(a, p, weights, &own, &at);

		u->be->isa->row.blend(w, direction(u, p, grad), p->items, (float)-rate,
				      p->decay ? (float)(1 - lr * a->decay) : 1.0f);
		tr_adamw_average(a, u->be->isa, at, w, p->items);
	}
	return rc;
}
