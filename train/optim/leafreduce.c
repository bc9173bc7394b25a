/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of gradients over the ranks: those of rounds, which go on in the background, and what is
 * added at the end of a step. */
#include "leafbuckets.h"

#include <stdlib.h>
#include <string.h>

#include "leafsum.h"
#include "sumtree.h"

/* Returns the memory for this rank's share of node i of the leaves so far. */
static float *sum_at(const struct tr_leafgrads *lg, const struct bucket *b, int i)
{
	int64_t from = b->cut[lg->o.mesh->dp.rank];

	if (b->is_norms && i == 0)
		return tr_leaf_norms(lg) + from;
	return lg->compact ? lg->level[i] + b->own : lg->whole + b->from + from;
}

static int no_memory(const struct tr_leafgrads *lg, struct tr_error *err)
{
	int rc = tr_fail(err, TR_ENOMEM, "no memory to add up gradients");

	return lg->dry ? rc : tr_ranks_abandon(lg->o.mesh->all, err);
}

/* Puts the sum of a round of a bucket into the queue. The first n nodes of the bucket are those of
 * the round. */
static int queue_round(struct tr_leafgrads *lg, const struct bucket *b, int n,
		       struct tr_error *err)
{
	const struct tr_ranks *g = lg->queue.g;
	struct tr_round round = tr_leaf_round(lg, b->rounds);
	float *node[TR_TREE_NODES_MAX], *sum[TR_TREE_NODES_MAX];
	struct tr_series *s;

	for (int i = 0; i < n; i++)
		node[i] = tr_leaf_memory(lg, b, &b->node[i]);
	for (int i = 0; i < tr_round_nodes(&round, g->n); i++)
		sum[i] = sum_at(lg, b, i);
	s = tr_leafsum_series(g, &round, node, lg->received, b->cut, sum, lg->be->isa->row.add);
	if (!s)
		return no_memory(lg, err);
	tr_queue_add(&lg->queue, s);
	return 0;
}

/* Puts the gather of the sums of a bucket into the queue, after which all ranks have them. */
static int queue_gather(struct tr_leafgrads *lg, struct bucket *b, struct tr_error *err)
{
	struct tr_series *s = tr_gather_series(lg->queue.g, b->cut, TR_F32, b->is_norms ?
					       tr_leaf_norms(lg) : lg->whole + b->from);

	if (!s)
		return no_memory(lg, err);
	tr_queue_add(&lg->queue, s);
	b->ticket = lg->queue.added;
	return 0;
}

/* Returns how many series were put into the queue. */
static int64_t series_added(const struct tr_leafgrads *lg)
{
	return lg->dry ? lg->dry_added : lg->queue.added;
}

void tr_leaf_release(struct tr_leafgrads *lg, int64_t series)
{
	while (lg->reduction && lg->reduction->ticket <= series) {
		struct reduction *r = lg->reduction;

		for (int i = 0; i < r->n; i++)
			if (r->block[i] != HOME)
				tr_leaf_put_block(lg, r->block[i]);
		lg->reduction = r->next;
		if (!lg->reduction)
			lg->last = &lg->reduction;
		free(r);
	}
}

/* Queues the sum of the next round of a bucket, whose nodes are the first n; and after the last
 * round the gather, if all ranks need all sums of the bucket and it is not a late one. */
static int add_up_round(struct tr_leafgrads *lg, struct bucket *b, int n, struct tr_error *err)
{
	struct reduction *r = calloc(1, sizeof(*r));
	int rc = r ? 0 : no_memory(lg, err);

	if (rc == 0 && !lg->dry)
		rc = queue_round(lg, b, n, err);
	if (rc < 0) {
		free(r);
		return rc;
	}
	lg->dry_added += lg->dry;
	r->ticket = series_added(lg);
	r->n = n;
	for (int i = 0; i < n; i++)
		r->block[i] = b->node[i].block;
	*lg->last = r;
	lg->last = &r->next;
	if (++b->rounds < lg->rounds || b->late || (lg->o.shares && !b->is_norms))
		return 0;
	lg->dry_added += lg->dry;
	return lg->dry ? 0 : queue_gather(lg, b, err);
}

/* With ZeRO 2, waits until there are free blocks for the next bucket. With overlap there is a
 * second set of blocks, so the series that was added last need not be complete. */
static int wait_for_blocks(struct tr_leafgrads *lg, struct tr_error *err)
{
	int64_t series = series_added(lg) - lg->o.overlap;
	int rc = 0;

	if (lg->o.overlap && !lg->dry)
		tr_queue_poll(&lg->queue);
	if (!lg->compact)
		return 0;
	if (!lg->dry)
		rc = tr_queue_wait(&lg->queue, series, err);
	if (rc == 0)
		tr_leaf_release(lg, series);
	return rc;
}

/* Queues the sums of those rounds of a bucket whose leaves are all closed. */
static int add_up(struct tr_leafgrads *lg, struct bucket *b, struct tr_error *err)
{
	const struct tr_ranks *dp = &lg->o.mesh->dp;
	int rc = 0;

	while (rc == 0 && dp->n > 1 && b->rounds < lg->rounds) {
		struct tr_round round = tr_leaf_round(lg, b->rounds);
		int to = round.first + (dp->rank + 1) * round.each, n = 0;

		while (n < b->closed && b->node[n].to < to)
			n++;
		if (n == b->closed || b->node[n].to > to)
			break;
		n++;
		rc = add_up_round(lg, b, n, err);
		b->closed -= n;
		memmove(b->node, b->node + n, (size_t)b->closed * sizeof(*b->node));
	}
	return rc == 0 ? wait_for_blocks(lg, err) : rc;
}

int tr_leaf_close(struct tr_leafgrads *lg, struct bucket *b, int closed, struct tr_error *err)
{
	int last = closed ? tr_leafgrads_leaf(lg, closed - 1) : -1;

	while (b->open < b->end && b->node[b->open].from <= last) {
		b->node[b->closed++] = b->node[b->open++];
		tr_leaf_merge(lg, b);
	}
	return add_up(lg, b, err);
}

int tr_leafgrads_close(struct tr_leafgrads *lg, int closed, struct tr_error *err)
{
	int rc = 0;

	for (int i = 0; rc == 0 && i < lg->buckets; i++)
		if (!tr_leaf_is_empty(&lg->bucket[i]))
			rc = tr_leaf_close(lg, &lg->bucket[i], closed, err);
	return rc;
}

/* ---- the end of a step ---- */

/* Adds up pieces [low, low + n) of the gradients of the norms in place of the first of them, which
 * is returned. */
static float *sum_norms(struct tr_leafgrads *lg, int low, int n)
{
	const struct tr_registry *reg = lg->o.reg;
	int64_t items = reg->weights - reg->norms;
	float *first = tr_leaf_norms(lg) + (low - reg->tokens.from) * items;

	if (n > 1) {
		int left = tr_tree_left(n);

		sum_norms(lg, low, left);
		lg->be->add(lg->be, first, sum_norms(lg, low + left, n - left), items);
	}
	return first;
}

/* Adds up the gradients of the norms over the pieces of the tokens. With sequence parallelism the
 * ranks of tp have different pieces. */
static int reduce_norms(struct tr_leafgrads *lg, struct tr_error *err)
{
	const struct tr_registry *reg = lg->o.reg;
	const struct tr_pieces *tokens = &reg->tokens;
	int end[TR_TREE_NODES_MAX], low = tokens->from;
	int nodes = tr_tree_nodes(tokens->n, tokens->from, tokens->to, end);
	float *node[TR_TREE_NODES_MAX];

	for (int i = 0; i < nodes; low = end[i++])
		node[i] = sum_norms(lg, low, end[i] - low);
	if (tokens->to - tokens->from == tokens->n)
		return 0;
	return tr_sum_leaves(&lg->o.mesh->tp, tokens->n, node, lg->received,
			     reg->weights - reg->norms, lg->be->isa->row.add, err);
}

/* With ZeRO 2, copies the sums of those norms that this rank updates to their place. */
static void place_norms(struct tr_leafgrads *lg)
{
	const struct tr_registry *reg = lg->o.reg;

	for (int i = 0; lg->compact && i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];
		struct tr_span own;
		int64_t at = tr_shares_of(lg->o.shares, p, &own);

		if (p->axis < 0)
			memcpy(lg->level[0] + at, lg->norms + own.from - reg->norms,
			       (size_t)(own.to - own.from) * sizeof(float));
	}
}

/* Adds the gradient of the embedding and that of the head to each other. If the first and the last
 * stage of a pipeline have one each, they exchange them, and both get the sum. */
static int add_tied(struct tr_leafgrads *lg, struct tr_error *err)
{
	const struct tr_registry *reg = lg->o.reg;
	const struct tr_ranks *pp = &lg->o.mesh->pp;
	int peer = pp->rank ? 0 : pp->n - 1, rc;
	struct tr_piece *out = lg->pieces, *in = out + pp->n;
	const struct bucket *b;
	int64_t items = 0;
	float *grad = NULL;

	if (tr_leaf_is_tied(reg)) {
		b = &lg->bucket[reg->layers + 1];
		lg->be->add(lg->be, sum_at(lg, &lg->bucket[0], 0), sum_at(lg, b, 0),
			    tr_leaf_own(lg, b));
	}
	if (pp->n == 1)
		return 0;
	if (reg->shared >= 0) {
		b = tr_leaf_shared(lg);
		grad = sum_at(lg, b, 0);
		items = tr_leaf_own(lg, b);
		out[peer] = (struct tr_piece){ grad, (size_t)items * sizeof(*grad) };
		in[peer] = (struct tr_piece){ lg->other, (size_t)items * sizeof(*grad) };
	}
	rc = tr_exchange(pp, out, in, err);
	if (rc == 0 && reg->shared >= 0)
		lg->be->add(lg->be, grad, lg->other, items);
	return rc;
}

/* Begins to collect the sums of late buckets. A head that was added to the embedding is not needed
 * any more. */
static int collect_late(struct tr_leafgrads *lg, struct tr_error *err)
{
	int all = tr_leaf_is_tied(lg->o.reg) ? lg->buckets - 2 : lg->buckets - 1, rc = 0;

	for (int i = 0; rc == 0 && lg->o.mesh->dp.n > 1 && i < all; i++)
		if (lg->bucket[i].late && !tr_leaf_is_empty(&lg->bucket[i]))
			rc = queue_gather(lg, &lg->bucket[i], err);
	return rc;
}

int tr_leafgrads_wait(struct tr_leafgrads *lg, const struct tr_param *p, struct tr_error *err)
{
	const struct bucket *b = p ? tr_leaf_bucket(lg, p) : NULL;

	if (lg->o.overlap)
		tr_queue_poll(&lg->queue);
	return tr_queue_wait(&lg->queue, b ? b->ticket : p ? 0 : lg->queue.added, err);
}

int tr_leafgrads_first(const struct tr_leafgrads *lg)
{
	const struct tr_registry *reg = lg->o.reg;

	for (int i = 0; i < reg->n; i++) {
		const struct bucket *b = tr_leaf_bucket(lg, &reg->param[i]);

		if (b && !b->late && !b->is_norms)
			return i;
	}
	return 0;
}

/* Returns whether all leaves of a bucket were closed and added up, or queued to be. */
static int is_complete(const struct tr_leafgrads *lg, const struct bucket *b)
{
	if (tr_leaf_is_empty(b))
		return 1;
	if (lg->o.mesh->dp.n > 1)
		return b->rounds == lg->rounds;
	return b->closed == 1 && b->open == b->end &&
		b->node[0].to - b->node[0].from == lg->o.leaves;
}

int tr_leafgrads_reduce(struct tr_leafgrads *lg, float **grad, struct tr_error *err)
{
	int rc;

	for (int i = 0; i < lg->buckets; i++)
		if (!is_complete(lg, &lg->bucket[i]))
			return tr_fail(err, TR_EBUG, "the gradients of a step are not complete");
	rc = tr_queue_wait(&lg->queue, lg->queue.added, err);
	tr_leaf_release(lg, INT64_MAX);
	if (rc == 0)
		rc = reduce_norms(lg, err);
	if (rc < 0)
		return rc;
	place_norms(lg);
	rc = add_tied(lg, err);
	if (rc == 0)
		rc = collect_late(lg, err);
	if (rc < 0)
		return rc;
	lg->done = 1;
	*grad = lg->compact ? lg->level[0] : lg->whole;
	return 0;
}
