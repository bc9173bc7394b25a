/* SPDX-License-Identifier: Apache-2.0 */
#include "crossentropy.h"

#include <string.h>

#include "leafsum.h"

void tr_crossentropy_init(struct tr_crossentropy *x, struct tr_tensorpar *tp,
			  const struct tr_registry *reg, int64_t rows_max, struct tr_arenas *a)
{
	const struct tr_param *head = &reg->param[reg->head];

	*x = (struct tr_crossentropy){ .tp = tp, .reg = reg, .head = head,
		.has = { head->start[0], head->start[0] + head->count[0] } };
	tr_arena_ask(a, TR_BUFFERS, rows_max * (tp->ranks->n + 1), &x->max);
	for (int i = 0; i < tp->nodes; i++)
		tr_arena_ask(a, TR_BUFFERS, 2 * rows_max, &x->node[i]);
}

/* Sets x->max to the largest logits over all ranks. No order of the ranks changes them. */
static int find_max(struct tr_crossentropy *x, const struct tr_rows *rows, int64_t first,
		    int64_t last, const float *logits, struct tr_error *err)
{
	struct tr_backend *be = x->tp->be;
	int64_t n = last - first;
	float *all = x->max + n;
	int rc;

	be->xent_max(be, rows, first, last, logits, x->has, x->max);
	if (x->tp->ranks->n == 1)
		return 0;
	rc = tr_allgather(x->tp->ranks, x->max, all, (size_t)n * sizeof(*all), err);
	for (int r = 0; rc == 0 && r < x->tp->ranks->n; r++)
		for (int64_t i = 0; i < n; i++)
			if (all[r * n + i] > x->max[i])
				x->max[i] = all[r * n + i];
	return rc;
}

struct exponentials {
	const struct tr_crossentropy *x;
	const struct tr_rows *rows;
	int64_t first, last;
	const float *logits;
};

static void sum_of_piece(const struct tr_node_sum *s, int piece, float *to)
{
	const struct exponentials *e = s->arg;
	const struct tr_crossentropy *x = e->x;
	struct tr_span of = { x->has.from + tr_param_cut(x->reg, x->head, piece),
			      x->has.from + tr_param_cut(x->reg, x->head, piece + 1) };

	s->be->xent_sum(s->be, e->rows, e->first, e->last, e->logits, x->has, of, x->max, to);
}

/* Sets x->node[0] to the sums of exponentials and the logits of the targets. The ranks that do not
 * have the target of a row add 0 for it. */
static int find_sums(struct tr_crossentropy *x, const struct exponentials *e, struct tr_error *err)
{
	struct tr_tensorpar *tp = x->tp;
	int64_t n = e->last - e->first;
	struct tr_node_sum s = { .piece = sum_of_piece, .arg = e, .be = tp->be,
				 .scratch = tp->scratch, .items = n };
	int low = tp->pieces.from;

	for (int i = 0; i < tp->nodes; low = tp->end[i++]) {
		tr_node_sum(&s, low, tp->end[i] - low, x->node[i]);
		tp->be->zero(tp->be, x->node[i] + n, n);
	}
	tp->be->xent_hit(tp->be, e->rows, e->first, e->last, e->logits, x->has, x->node[0] + n);
	return tr_sum_leaves(tp->ranks, tp->pieces.n, x->node, tp->received, 2 * n,
			     tp->be->isa->row.add, err);
}

int tr_crossentropy(struct tr_crossentropy *x, const struct tr_rows *rows, int64_t first,
		    int64_t last, float *logits, float *loss, double scale, int grad,
		    struct tr_error *err)
{
	struct exponentials e = { x, rows, first, last, logits };
	struct tr_backend *be = x->tp->be;
	int rc = find_max(x, rows, first, last, logits, err);

	if (rc == 0)
		rc = find_sums(x, &e, err);
	if (rc < 0)
		return rc;
	be->xent_loss(be, rows, first, last, x->max, x->node[0], x->node[0] + (last - first), loss);
	if (grad)
		be->xent_bwd(be, rows, first, last, logits, x->has, x->max, x->node[0], scale);
	return 0;
}
