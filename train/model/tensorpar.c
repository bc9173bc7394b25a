/* SPDX-License-Identifier: Apache-2.0 */
/* With sequence parallelism, rows go from rank to rank in the order of ranks: first all local rows
 * of rank 0. They are moved to and from the order of tokens by copies. */
#include "tensorpar.h"

#include <stdlib.h>
#include <string.h>

#include "leafsum.h"

enum { BLOCK_ROWS = 512 };              /* so that what is added up is still in a cache */

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* ---- the tree ---- */

static void sum_at(const struct tr_node_sum *s, int low, int n, float *to, int depth)
{
	int left;

	if (n == 1) {
		s->piece(s, low, to);
		return;
	}
	left = tr_tree_left(n);
	sum_at(s, low, left, to, depth);
	if (n - left == 1 && s->add_piece && s->add_piece(s, low + left, to))
		return;
	sum_at(s, low + left, n - left, s->scratch[depth], depth + 1);
	s->be->add(s->be, to, s->scratch[depth], s->items);
}

void tr_node_sum(const struct tr_node_sum *s, int low, int n, float *to)
{
	sum_at(s, low, n, to, 0);
}

/* Levels of the tree over n pieces below its root. */
static int depth_of(int n)
{
	int depth = 0;

	while ((1 << depth) < n)
		depth++;
	return depth;
}

/* ---- memory ---- */

static void ask_for_sums(struct tr_tensorpar *tp, struct tr_arenas *a, int64_t tokens_max)
{
	int64_t whole = tokens_max * tp->size, block = tp->block * tp->size;
	int ranks = tp->ranks->n;
	const struct tr_round all = { tp->pieces.n, 0, tp->pieces.n / ranks };
	int depth = depth_of(tp->pieces.to - tp->pieces.from);

	for (int i = tp->sp ? 0 : 1; i < tp->nodes; i++)
		tr_arena_ask(a, TR_BUFFERS, whole, &tp->node[i]);
	for (int i = 0; i < depth; i++)
		tr_arena_ask(a, TR_BUFFERS, block, &tp->scratch[i]);
	if (tp->sp) {
		tr_arena_ask(a, TR_BUFFERS, block, &tp->one);
		tr_arena_ask(a, TR_BUFFERS, whole, &tp->whole);
	}
	if (ranks > 1)
		tr_arena_ask(a, TR_BUFFERS, tr_leafsum_room(&all, ranks, tp->sp ? whole :
							    whole / ranks + 1), &tp->received);
}

int tr_tensorpar_init(struct tr_tensorpar *tp, const struct tr_tensorpar_opts *o,
		      struct tr_arenas *a, int64_t size, int64_t tokens_max, struct tr_error *err)
{
	size_t ranks = (size_t)o->ranks->n;
	struct tr_pieces own = { .n = o->pieces };
	int adds;

	tr_leaves_of(o->ranks, o->pieces, &own.from, &own.to);
	adds = own.to - own.from > 1;
	*tp = (struct tr_tensorpar){ .be = a->be, .ranks = o->ranks, .pieces = own, .size = size,
				     .sp = o->sp && o->ranks->n > 1 };
	tp->tokens = tp->sp ? own : (struct tr_pieces){ own.n, 0, own.n };
	tp->block = adds || tp->sp ? least(BLOCK_ROWS, tokens_max) : tokens_max;
	tp->nodes = tr_tree_nodes(own.n, own.from, own.to, tp->end);
	tp->cut = calloc(ranks + 1, sizeof(*tp->cut));
	tp->place = calloc(ranks, sizeof(*tp->place));
	if (!tp->cut || !tp->place) {
		tr_tensorpar_release(tp);
		return tr_fail(err, TR_ENOMEM, "no memory to add up pieces of the model");
	}
	ask_for_sums(tp, a, tokens_max);
	return 0;
}

void tr_tensorpar_release(struct tr_tensorpar *tp)
{
	free(tp->cut);
	free(tp->place);
	*tp = (struct tr_tensorpar){ .be = NULL };
}

/* ---- tokens ---- */

void tr_tensorpar_begin(struct tr_tensorpar *tp, const struct tr_rows *rows)
{
	int n = tp->ranks->n, me = tp->ranks->rank;

	for (int r = 0; r < n; r++) {
		struct tr_pieces of = { n, r, r + 1 };

		tp->cut[r + 1] = tp->cut[r] + tr_rows_in(rows, &of) * tp->size;
	}
	tp->local = tp->sp ? (tp->cut[me + 1] - tp->cut[me]) / tp->size : rows->n;
}

/* Copies rows [first, last), which are at `tokens` in the order of tokens, to their places in
 * `ranks`, which has the rows of all ranks in the order of ranks; or back. */
static void move_rows(struct tr_tensorpar *tp, const struct tr_rows *rows, enum tr_type type,
		      int64_t first, int64_t last, void *tokens, void *ranks, int back)
{
	memcpy(tp->place, tp->cut, (size_t)tp->ranks->n * sizeof(*tp->place));
	for (int64_t s = 0; s < rows->seqs; s++) {
		int64_t begin = rows->begin[s], n = rows->begin[s + 1] - begin;

		for (int r = 0; r < tp->ranks->n; r++) {
			int64_t from = begin + tr_cut(n, tp->ranks->n, r);
			int64_t to = begin + tr_cut(n, tp->ranks->n, r + 1);
			int64_t a = from > first ? from : first, b = least(to, last);
			void *y = tr_item(type, ranks, tp->place[r] + (a - from) * tp->size), *x;

			tp->place[r] += (to - from) * tp->size;
			if (a >= b)
				continue;
			x = tr_item(type, tokens, (a - first) * tp->size);
			memcpy(back ? x : y, back ? y : x,
			       (size_t)((b - a) * tp->size) * tr_type_bytes(type));
		}
	}
}

/* Node 0 is used for the rows that arrive: it has no sum at the time. */
int tr_gather_rows(struct tr_tensorpar *tp, const struct tr_rows *rows, enum tr_type type,
		   const void *local, const void **all, struct tr_error *err)
{
	int rc;

	*all = local;
	if (!tp->sp)
		return 0;
	memcpy(tr_item(type, tp->node[0], tp->cut[tp->ranks->rank]), local,
	       (size_t)(tp->local * tp->size) * tr_type_bytes(type));
	rc = tr_gather_shares(tp->ranks, tp->cut, type, tp->node[0], err);
	if (rc < 0)
		return rc;
	move_rows(tp, rows, type, 0, rows->n, tp->whole, tp->node[0], 1);
	*all = tp->whole;
	return 0;
}

/* ---- sums over pieces ---- */

struct products {
	const struct tr_registry *reg;
	const struct tr_term *term;
	int terms;
	int64_t row, n;                 /* rows [row, row + n) of the inputs */
};

static struct tr_span span_of(const struct products *p, const struct tr_term *t, int piece)
{
	return (struct tr_span){ tr_param_cut(p->reg, t->param, piece),
				 tr_param_cut(p->reg, t->param, piece + 1) };
}

static void product(const struct tr_node_sum *s, const struct tr_term *t, int piece, float *to,
		    int add)
{
	const struct products *p = s->arg;
	struct tr_span over = span_of(p, t, piece);
	struct tr_backend *be = s->be;

	if (t->back)
		be->linear_input(be, &t->l, over, tr_item(TR_F32, t->x, p->row * t->l.out), to,
				 p->n, add);
	else
		be->linear(be, &t->l, over, tr_item(be->type, t->x, p->row * t->l.in), to, p->n,
			   add);
}

static void product_of_piece(const struct tr_node_sum *s, int piece, float *to)
{
	const struct products *p = s->arg;

	for (int i = 0; i < p->terms; i++)
		product(s, &p->term[i], piece, to, i > 0);
}

/* A product whose sum is one chain is added to `to` when it is stored. The bits are the same as if
 * it were computed by itself and then added. */
static int add_product(const struct tr_node_sum *s, int piece, float *to)
{
	const struct products *p = s->arg;
	struct tr_span over = span_of(p, p->term, piece);

	if (p->terms > 1 || over.to == over.from || over.to - over.from > TR_CHAIN)
		return 0;
	product(s, p->term, piece, to, 1);
	return 1;
}

void tr_sum_pieces(struct tr_tensorpar *tp, const struct tr_registry *reg,
		   const struct tr_rows *rows, const struct tr_term *term, int terms, int64_t first,
		   int64_t last, float *y)
{
	struct products p = { .reg = reg, .term = term, .terms = terms };
	struct tr_node_sum s = { .piece = product_of_piece, .add_piece = add_product, .arg = &p,
				 .be = tp->be, .scratch = tp->scratch };

	for (int64_t at = first; at < last; at += p.n) {
		int low = tp->pieces.from;

		p.row = at - first;
		p.n = least(tp->block, last - at);
		s.items = p.n * tp->size;
		for (int i = 0; i < tp->nodes; low = tp->end[i++]) {
			float *node = tp->sp || i ? tp->node[i] : y;

			tr_node_sum(&s, low, tp->end[i] - low,
				    tp->sp ? tp->one : node + at * tp->size);
			if (tp->sp)
				move_rows(tp, rows, TR_F32, at, at + p.n, tp->one, node, 0);
		}
	}
}

/* Adds up the nodes of all ranks over a tree with so many leaves. */
static int sum_nodes(struct tr_tensorpar *tp, const struct tr_rows *rows, int leaves, float *y,
		     struct tr_error *err)
{
	float *node[TR_TREE_NODES_MAX];
	int rc;

	memcpy(node, tp->node, sizeof(node));
	if (!tp->sp) {
		node[0] = y;
		return tr_sum_leaves(tp->ranks, leaves, node, tp->received, rows->n * tp->size,
				     tp->be->isa->row.add, err);
	}
	rc = tr_sum_leaves_share(tp->ranks, leaves, node, tp->received, tp->cut,
				 tp->be->isa->row.add, err);
	if (rc == 0)
		memcpy(y, node[0] + tp->cut[tp->ranks->rank],
		       (size_t)(tp->local * tp->size) * sizeof(*y));
	return rc;
}

int tr_sum_pieces_end(struct tr_tensorpar *tp, const struct tr_rows *rows, float *y,
		      struct tr_error *err)
{
	return sum_nodes(tp, rows, tp->pieces.n, y, err);
}

/* The ranks that do not have a token add zeros, so any tree gives the same bits: one with a leaf
 * for each rank. */
int tr_embed_rows(struct tr_tensorpar *tp, const struct tr_rows *rows, struct tr_span has,
		  const void *w, float *x, struct tr_error *err)
{
	tp->be->embed(tp->be, rows, has, tp->sp ? tp->whole : x, w, tp->size);
	if (tp->sp)
		move_rows(tp, rows, TR_F32, 0, rows->n, tp->whole, tp->node[0], 0);
	return sum_nodes(tp, rows, tp->ranks->n, x, err);
}
