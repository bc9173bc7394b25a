/* SPDX-License-Identifier: Apache-2.0 */
#include "leafgrads.h"

#include <stdlib.h>
#include <string.h>

#include "leafbuckets.h"

/* Makes the blocks of nodes [from, to) of a bucket free. */
static void put_blocks(struct tr_leafgrads *lg, const struct bucket *b, int from, int to)
{
	for (int i = from; i < to; i++)
		if (b->node[i].block != HOME)
			tr_leaf_put_block(lg, b->node[i].block);
}

static void begin_step(struct tr_leafgrads *lg)
{
	for (int i = 0; i < lg->buckets; i++) {
		struct bucket *b = &lg->bucket[i];

		put_blocks(lg, b, 0, b->closed);
		put_blocks(lg, b, b->open, b->end);
		b->closed = b->open = b->end = b->rounds = 0;
	}
	lg->done = 0;
}

/* ---- the plan ---- */

static int open_leaves(struct tr_leafgrads *lg, struct bucket *b, int first, int last)
{
	for (int leaf = first; leaf <= last && !tr_leaf_is_empty(b); leaf++)
		if (!tr_leaf_node(lg, b, leaf))
			return 0;
	return 1;
}

/* Does what a backward pass would do: from the head to the embedding, if its part has them. */
static int plan_pass(struct tr_leafgrads *lg, const struct tr_leafuse *use, struct tr_error *err)
{
	const struct tr_part *part = &lg->o.parts->part[use->part];
	int64_t layers = lg->o.reg->layers;
	int64_t low = part->from == 0 ? -1 : part->from, high = part->to == layers ? layers :
		part->to - 1;
	int good = open_leaves(lg, &lg->bucket[lg->buckets - 1], use->first, use->last), rc = 0;

	for (int64_t l = high; good && rc == 0 && l >= low; l--) {
		struct bucket *b = &lg->bucket[l + 1];

		good = open_leaves(lg, b, use->first, use->last);
		if (good && !tr_leaf_is_empty(b))
			rc = tr_leaf_close(lg, b, use->closed, err);
	}
	if (!good)
		return tr_fail(err, TR_ENOMEM, "no memory to count the gradient blocks");
	return rc == 0 && use->part == 0 ? tr_leafgrads_close(lg, use->closed, err) : rc;
}

/* Lists the blocks that the passes of a step need at once. */
static int plan_blocks(struct tr_leafgrads *lg, struct tr_error *err)
{
	int rc = 0;

	lg->dry = 1;
	for (int64_t i = 0; rc == 0 && i < lg->o.uses; i++)
		rc = plan_pass(lg, &lg->o.use[i], err);
	for (int i = 0; rc == 0 && !lg->o.uses && i < lg->buckets; i++)
		if (!open_leaves(lg, &lg->bucket[i], 0, lg->count - 1))
			rc = tr_fail(err, TR_ENOMEM, "no memory to count the gradient blocks");
	tr_leaf_release(lg, INT64_MAX);
	begin_step(lg);
	for (int i = 0; i < lg->blocks; i++)
		lg->block[i].was_used = 0;
	lg->dry = 0;
	return rc;
}

/* ---- what is made once ---- */

int tr_leafgrads_new(struct tr_leafgrads **lg, const struct tr_leafgrads_opts *o,
		     struct tr_arenas *a, struct tr_error *err)
{
	struct tr_leafgrads *g = calloc(1, sizeof(*g));
	int rc;

	if (!g)
		return tr_fail(err, TR_ENOMEM, "no memory for gradients");
	g->o = *o;
	g->be = a->be;
	g->last = &g->reduction;
	g->compact = o->shares && o->shares->gradients;
	g->count = o->leaves / o->mesh->dp.n;
	g->each = g->compact && o->round && o->round < g->count ? o->round : g->count;
	g->rounds = (g->count + g->each - 1) / g->each;
	tr_queue_init(&g->queue, &o->mesh->background);
	rc = tr_leaf_buckets(g, err);
	if (rc == 0)
		rc = plan_blocks(g, err);
	g->pieces = calloc(2 * (size_t)o->mesh->pp.n, sizeof(*g->pieces));
	if (rc == 0 && !g->pieces)
		rc = tr_fail(err, TR_ENOMEM, "no memory for gradients");
	if (rc < 0) {
		tr_leafgrads_free(g);
		return rc;
	}
	tr_leaf_ask(g, a);
	for (int i = 0; i < g->blocks; i++)
		tr_arena_ask(a, TR_GRADS, g->block[i].items, &g->block[i].at);
	*lg = g;
	return 0;
}

void tr_leafgrads_free(struct tr_leafgrads *lg)
{
	if (!lg)
		return;
	tr_queue_release(&lg->queue);
	tr_leaf_release(lg, INT64_MAX);
	for (int i = 0; lg->bucket && i < lg->buckets; i++) {
		free(lg->bucket[i].cut);
		free(lg->bucket[i].node);
	}
	free(lg->bucket);
	free(lg->block);
	free(lg->size);
	free(lg->leaf);
	free(lg->grad);
	free(lg->norm_grad);
	free(lg->pieces);
	free(lg);
}

int64_t tr_leafgrads_used(const struct tr_leafgrads *lg)
{
	const struct bucket *norms = &lg->bucket[lg->buckets - 1];
	int64_t bytes = 0;

	for (int i = 0; i < lg->blocks; i++)
		if (lg->block[i].was_used)
			bytes += tr_arena_bytes(lg->block[i].items);
	if (!lg->compact)
		return bytes + tr_arena_bytes(lg->o.reg->gradients);
	return bytes + tr_arena_bytes(norms->to - norms->from) +
		lg->levels * tr_arena_bytes(lg->level_items);
}

int tr_leafgrads_is_early(const struct tr_leafgrads *lg)
{
	return lg->compact || (lg->o.overlap && lg->o.mesh->dp.n > 1);
}

struct tr_queue *tr_leafgrads_queue(struct tr_leafgrads *lg)
{
	return &lg->queue;
}

int tr_leafgrads_count(const struct tr_leafgrads *lg)
{
	return lg->count;
}

int tr_leafgrads_leaf(const struct tr_leafgrads *lg, int i)
{
	struct tr_round round = tr_leaf_round(lg, i / lg->each);

	return round.first + lg->o.mesh->dp.rank * round.each + i % lg->each;
}

/* ---- the backward pass ---- */

static int set_blocks(struct tr_leafgrads *lg, struct bucket *b, float **grad,
		      struct tr_error *err)
{
	for (int64_t s = 0; s < lg->rows->seqs; s++) {
		const struct node *node = tr_leaf_node(lg, b, lg->leaf[s]);

		if (!node)
			return tr_fail(err, TR_EBUG, "the plan has too few gradient blocks");
		grad[s] = tr_leaf_memory(lg, b, node);
	}
	return 0;
}

/* Closes the leaves of the bucket before, and sets the blocks of the next one. A bucket without
 * items has no blocks: a rank of tp may have no token of a small vocabulary. */
static int turn(void *arg, int64_t layer, struct tr_error *err)
{
	struct tr_leafgrads *lg = arg;
	struct bucket *next = layer > lg->o.reg->layers ? NULL : &lg->bucket[layer + 1];
	int rc = 0;

	if (next == lg->current)
		return 0;
	if (lg->current && !tr_leaf_is_empty(lg->current))
		rc = tr_leaf_close(lg, lg->current, lg->closes, err);
	lg->current = next;
	if (rc < 0 || !next)
		return rc;
	lg->rows->first = next->from;
	return tr_leaf_is_empty(next) ? 0 : set_blocks(lg, next, lg->grad, err);
}

static int make_room(struct tr_leafgrads *lg, int64_t seqs, struct tr_error *err)
{
	size_t n = (size_t)seqs;

	if (seqs <= lg->seqs)
		return 0;
	free(lg->leaf);
	free(lg->grad);
	free(lg->norm_grad);
	lg->leaf = calloc(n, sizeof(*lg->leaf));
	lg->grad = calloc(n, sizeof(*lg->grad));
	lg->norm_grad = calloc(n, sizeof(*lg->norm_grad));
	lg->seqs = lg->leaf && lg->grad && lg->norm_grad ? seqs : 0;
	return lg->seqs ? 0 : tr_fail(err, TR_ENOMEM, "no memory for a micro-batch; use a smaller "
				      "one");
}

int tr_leafgrads_begin(struct tr_leafgrads *lg, struct tr_rows *rows, const int *leaf, int closed,
		       struct tr_error *err)
{
	int rc = make_room(lg, rows->seqs, err);

	if (rc < 0)
		return rc;
	if (lg->done)
		begin_step(lg);
	memcpy(lg->leaf, leaf, (size_t)rows->seqs * sizeof(*leaf));
	lg->rows = rows;
	lg->current = NULL;
	lg->closes = closed;
	rows->turn = turn;
	rows->arg = lg;
	rows->grad = lg->grad;
	rows->norm_grad = lg->norm_grad;
	rows->norms_first = lg->o.reg->norms;
	return set_blocks(lg, &lg->bucket[lg->buckets - 1], lg->norm_grad, err);
}

float *tr_leafgrads_param(struct tr_leafgrads *lg, int leaf, const struct tr_param *p)
{
	const struct node *node;
	struct bucket *b;

	if (lg->done)
		begin_step(lg);
	b = tr_leaf_bucket(lg, p);
	node = b ? tr_leaf_node(lg, b, leaf) : NULL;
	return node ? tr_leaf_memory(lg, b, node) + p->offset - b->from : NULL;
}
