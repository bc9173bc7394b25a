/* SPDX-License-Identifier: Apache-2.0 */
#include "leafgrads.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "leafsum.h"
#include "sumtree.h"

struct node {                           /* leaves [from, to), added up */
	int from, to;
	int block;                      /* its number, or HOME: in the whole gradient */
};
enum { HOME = -1, NO_BLOCK = -2 };
struct bucket {
	int64_t from, to;               /* items of a whole gradient */
	int64_t weight;                 /* where the weights of these items begin */
	int is_norms;
	int64_t *cut;                   /* [dp + 1]: the share of rank r begins here; owned */
	int64_t own;                    /* where this rank's share is in a level, with ZeRO 2 */
	/* Of the rounds that are not added up, in order of leaves: closed nodes, then leaves that
	 * are open. Owned. */
	struct node *node;
	int closed, n;
	int rounds;                     /* that were given to be added up */
};
struct block {                          /* memory for one node */
	float *at;
	int64_t items;
	int used, was_used;
};
/* A sum that is being made, and the blocks that it has. It is complete when so many series of the
 * queue are. */
struct reduction {
	struct reduction *next;
	int64_t ticket;
	int n, block[TR_TREE_NODES_MAX];
};
struct tr_leafgrads {
	struct tr_leafgrads_opts o;
	struct tr_backend *be;
	/* 1: nothing is computed. The passes of a step are carried out to count the blocks. */
	int dry;
	int64_t dry_added;              /* series that would be in the queue */
	int compact;                    /* a rank keeps its share only */
	int count, each, rounds;        /* leaves of this rank, in a round, and rounds */
	struct bucket *bucket;          /* the embedding, the layers, the head, the norms */
	int buckets;
	struct block *block;
	int blocks;
	/* The whole gradient, where the first node of each bucket is. With ZeRO 2, levels instead:
	 * each has the shares of one node in each bucket, and there are as many as the leaves of
	 * some rounds make nodes. The sums of the norms are in a buffer of their own then. */
	float *whole, *level[TR_TREE_NODES_MAX], *norms;
	int levels;
	int64_t moments;                /* items of a level that are in the order of moments */
	int64_t level_items;
	struct reduction *reduction, **last;    /* in the order of the queue */
	struct tr_queue queue;
	/* The backward pass. */
	struct tr_rows *rows;
	struct bucket *current;
	int closes;
	int *leaf;
	float **grad, **norm_grad;
	int64_t seqs;                   /* for which there is room */
	/* [2 * stages], and the gradient of the shared parameter in the other stage. */
	struct tr_piece *pieces;
	float *other;
	int done;                       /* the sum was made: the next pass begins a step */
};

static int is_empty(const struct bucket *b)
{
	return b->from == b->to;
}

static int is_tied(const struct tr_registry *reg)
{
	return reg->head >= 0 && reg->param[reg->head].tied_to >= 0;
}

/* ---- what is made once ---- */

/* Returns the items of a bucket: none if another stage has them. */
static struct tr_span span_of(const struct tr_registry *reg, int bucket)
{
	if (bucket < reg->layers + 2)
		return tr_registry_layer(reg, bucket - 1);
	return (struct tr_span){ reg->norms, reg->norms + (reg->weights - reg->norms) *
				 (reg->tokens.to - reg->tokens.from) };
}

/* Cuts the items of a bucket into the shares of the ranks. All ranks need the norms. */
static void cut_bucket(const struct tr_leafgrads *lg, struct bucket *b)
{
	const struct tr_ranks *dp = &lg->o.mesh->dp;
	const struct tr_shares *s = b->is_norms ? NULL : lg->o.shares;
	int64_t items = b->to - b->from;

	for (int r = 0; r <= dp->n; r++) {
		int64_t cut = s ? s->cut[b->weight >= s->cut[0][dp->n]][r] - b->weight :
			tr_cut(items, dp->n, r);

		b->cut[r] = cut < 0 ? 0 : cut > items ? items : cut;
	}
}

static int64_t own_items(const struct tr_leafgrads *lg, const struct bucket *b)
{
	int me = lg->o.mesh->dp.rank;

	return b->cut[me + 1] - b->cut[me];
}

/* Places the shares of this rank in a level. Returns the items of a level. */
static int64_t place_shares(struct tr_leafgrads *lg)
{
	const struct tr_shares *s = lg->o.shares;
	int64_t at = lg->moments = tr_shares_items(s, lg->o.reg);

	for (int i = 0; i < lg->buckets; i++) {
		struct bucket *b = &lg->bucket[i];

		if (b->from < lg->o.reg->norms) {
			b->own = tr_shares_at(s, b->weight + b->cut[lg->o.mesh->dp.rank]);
			continue;
		}
		b->own = at;            /* norms, or a tied head */
		at += own_items(lg, b);
	}
	return lg->level_items = at;
}

static int make_buckets(struct tr_leafgrads *lg, struct tr_error *err)
{
	const struct tr_registry *reg = lg->o.reg;
	int good;

	lg->buckets = (int)reg->layers + 3;
	lg->bucket = calloc((size_t)lg->buckets, sizeof(*lg->bucket));
	good = lg->bucket != NULL;
	for (int i = 0; good && i < lg->buckets; i++) {
		struct bucket *b = &lg->bucket[i];
		struct tr_span span = span_of(reg, i);

		*b = (struct bucket){ .from = span.from, .to = span.to, .weight = span.from,
			.is_norms = i == lg->buckets - 1,
			.cut = calloc((size_t)lg->o.mesh->dp.n + 1, sizeof(*b->cut)),
			.node = calloc((size_t)lg->count, sizeof(*b->node)) };
		if (i == reg->layers + 1 && is_tied(reg))
			b->weight = reg->param[reg->embedding].offset;
		good = b->cut && b->node;
		if (good)
			cut_bucket(lg, b);
	}
	return good ? 0 : tr_fail(err, TR_ENOMEM, "no memory for gradients");
}

static struct tr_round round_of(const struct tr_leafgrads *lg, int i)
{
	int n = lg->o.mesh->dp.n, left = lg->count - i * lg->each;

	return (struct tr_round){ lg->o.leaves, i * lg->each * n,
				  left < lg->each ? left : lg->each };
}

/* Asks for the buffers of sums. */
static void ask_for_sums(struct tr_leafgrads *lg, struct tr_arenas *a)
{
	const struct tr_registry *reg = lg->o.reg;
	const struct bucket *norms = &lg->bucket[lg->buckets - 1];
	int64_t items = lg->compact ? place_shares(lg) : 0;
	struct tr_span own;

	for (int i = 0; i < lg->rounds; i++) {
		struct tr_round round = round_of(lg, i);
		int nodes = tr_round_nodes(&round, lg->o.mesh->dp.n);

		lg->levels = nodes > lg->levels ? nodes : lg->levels;
	}
	for (int i = 0; lg->compact && i < lg->levels; i++)
		tr_arena_ask(a, TR_GRADS, items, &lg->level[i]);
	if (lg->compact)
		tr_arena_ask(a, TR_GRADS, norms->to - norms->from, &lg->norms);
	else
		tr_arena_ask(a, TR_GRADS, reg->gradients, &lg->whole);
	if (reg->shared < 0)
		return;
	tr_shares_of(lg->o.shares, &reg->param[reg->shared], &own);
	tr_arena_ask(a, TR_BUFFERS, own.to - own.from, &lg->other);
}

static int plan_blocks(struct tr_leafgrads *lg, struct tr_error *err);

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
	rc = make_buckets(g, err);
	if (rc == 0)
		rc = plan_blocks(g, err);
	g->pieces = calloc(2 * (size_t)o->mesh->pp.n, sizeof(*g->pieces));
	if (rc == 0 && !g->pieces)
		rc = tr_fail(err, TR_ENOMEM, "no memory for gradients");
	if (rc < 0) {
		tr_leafgrads_free(g);
		return rc;
	}
	ask_for_sums(g, a);
	for (int i = 0; i < g->blocks; i++)
		tr_arena_ask(a, TR_GRADS, g->block[i].items, &g->block[i].at);
	*lg = g;
	return 0;
}

/* Releases the blocks of the sums that are complete when so many series of the queue are. */
static void release_reductions(struct tr_leafgrads *lg, int64_t series)
{
	while (lg->reduction && lg->reduction->ticket <= series) {
		struct reduction *r = lg->reduction;

		for (int i = 0; i < r->n; i++)
			if (r->block[i] != HOME)
				lg->block[r->block[i]].used = 0;
		lg->reduction = r->next;
		if (!lg->reduction)
			lg->last = &lg->reduction;
		free(r);
	}
}

void tr_leafgrads_free(struct tr_leafgrads *lg)
{
	if (!lg)
		return;
	tr_queue_release(&lg->queue);
	release_reductions(lg, INT64_MAX);
	for (int i = 0; lg->bucket && i < lg->buckets; i++) {
		free(lg->bucket[i].cut);
		free(lg->bucket[i].node);
	}
	free(lg->bucket);
	free(lg->block);
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
	struct tr_round round = round_of(lg, i / lg->each);

	return round.first + lg->o.mesh->dp.rank * round.each + i % lg->each;
}

/* ---- blocks and nodes ---- */

/* Returns a block of this size that is not used, or NO_BLOCK if there is none. Most buckets have
 * equal sizes, those of the layers. A plan makes a further one. */
static int take_block(struct tr_leafgrads *lg, int64_t items)
{
	struct block *more;
	int i = 0;

	while (i < lg->blocks && (lg->block[i].used || lg->block[i].items != items))
		i++;
	if (i == lg->blocks) {
		more = lg->dry ? realloc(lg->block, (size_t)(i + 1) * sizeof(*more)) : NULL;
		if (!more)
			return NO_BLOCK;
		lg->block = more;
		lg->block[lg->blocks++] = (struct block){ .items = items };
	}
	lg->block[i].used = lg->block[i].was_used = 1;
	return i;
}

/* Returns the memory of a node, or NULL in a plan. */
static float *memory_of(const struct tr_leafgrads *lg, const struct bucket *b,
			const struct node *node)
{
	if (lg->dry)
		return NULL;
	return node->block == HOME ? lg->whole + b->from : lg->block[node->block].at;
}

/* Returns the node of a leaf of this rank. The first call for a leaf makes it, filled with zeros.
 * These calls come in ascending order of leaves. The first node has its place in the whole
 * gradient. NULL: there is no block left. */
static struct node *leaf_node(struct tr_leafgrads *lg, struct bucket *b, int i)
{
	int leaf = tr_leafgrads_leaf(lg, i), block = HOME;
	int64_t items = b->to - b->from;
	float *grad;

	for (int k = b->closed; k < b->n; k++)
		if (b->node[k].from == leaf)
			return &b->node[k];
	assert(b->n < lg->count);
	if (lg->compact || b->n > 0)
		block = take_block(lg, items);
	if (block == NO_BLOCK)
		return NULL;
	b->node[b->n] = (struct node){ leaf, leaf + 1, block };
	grad = memory_of(lg, b, &b->node[b->n]);
	if (grad)
		lg->be->zero(lg->be, grad, items);
	return &b->node[b->n++];
}

/* Merges the last two closed nodes while they are the parts of a node. */
static void merge(struct tr_leafgrads *lg, struct bucket *b)
{
	while (b->closed >= 2) {
		struct node *x = &b->node[b->closed - 2], *y = x + 1;

		if (x->to != y->from || !tr_tree_is_node(lg->o.leaves, x->from, y->to) ||
		    x->from + tr_tree_left(y->to - x->from) != x->to)
			return;
		if (!lg->dry)
			lg->be->add(lg->be, memory_of(lg, b, x), memory_of(lg, b, y),
				    b->to - b->from);
		x->to = y->to;
		lg->block[y->block].used = 0;
		for (int i = b->closed - 1; i + 1 < b->n; i++)
			b->node[i] = b->node[i + 1];
		b->closed--;
		b->n--;
	}
}

/* ---- sums over ranks ---- */

/* Returns the sums of the norms: those of each piece of the tokens. */
static float *norm_sums(const struct tr_leafgrads *lg)
{
	return lg->compact ? lg->norms : lg->whole + lg->o.reg->norms;
}

/* Returns the memory for this rank's share of node i of the leaves so far. */
static float *sum_at(const struct tr_leafgrads *lg, const struct bucket *b, int i)
{
	int64_t from = b->cut[lg->o.mesh->dp.rank];

	if (b->is_norms && i == 0)
		return norm_sums(lg) + from;
	return lg->compact ? lg->level[i] + b->own : lg->whole + b->from + from;
}

static int no_memory(const struct tr_leafgrads *lg, struct tr_error *err)
{
	int rc = tr_fail(err, TR_ENOMEM, "no memory to add up gradients");

	return lg->dry ? rc : tr_ranks_abandon(lg->o.mesh->all, err);
}

/* Puts the sum of a round of a bucket into the queue, and after the last round the gather of those
 * sums that all ranks need. */
static int queue_round(struct tr_leafgrads *lg, const struct bucket *b, int n,
		       struct tr_error *err)
{
	const struct tr_ranks *g = lg->queue.g;
	struct tr_round round = round_of(lg, b->rounds);
	float *node[TR_TREE_NODES_MAX], *sum[TR_TREE_NODES_MAX];
	struct tr_series *s;

	for (int i = 0; i < n; i++)
		node[i] = memory_of(lg, b, &b->node[i]);
	for (int i = 0; i < tr_round_nodes(&round, g->n); i++)
		sum[i] = sum_at(lg, b, i);
	s = tr_leafsum_series(g, &round, node, b->cut, sum, lg->be->isa->row.add);
	if (!s)
		return no_memory(lg, err);
	tr_queue_add(&lg->queue, s);
	return 0;
}

static int queue_gather(struct tr_leafgrads *lg, const struct bucket *b, struct tr_error *err)
{
	struct tr_series *s = tr_gather_series(lg->queue.g, b->cut, TR_F32, b->is_norms ?
					       norm_sums(lg) : lg->whole + b->from);

	if (!s)
		return no_memory(lg, err);
	tr_queue_add(&lg->queue, s);
	return 0;
}

/* Returns how many series were put into the queue. */
static int64_t series_added(const struct tr_leafgrads *lg)
{
	return lg->dry ? lg->dry_added : lg->queue.added;
}

/* Gives the nodes of a round, which are the first n, to be added up. */
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
	if (++b->rounds < lg->rounds || (lg->o.shares && !b->is_norms))
		return 0;
	lg->dry_added += lg->dry;
	return lg->dry ? 0 : queue_gather(lg, b, err);
}

/* With ZeRO 2, waits until the next bucket can have its blocks. With overlap it has others than the
 * series that was added last, so that one may still be under way. */
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
		release_reductions(lg, series);
	return rc;
}

/* Gives those rounds to be added up whose leaves are all closed. */
static int add_up(struct tr_leafgrads *lg, struct bucket *b, struct tr_error *err)
{
	const struct tr_ranks *dp = &lg->o.mesh->dp;
	int rc = 0;

	while (rc == 0 && dp->n > 1 && b->rounds < lg->rounds) {
		struct tr_round round = round_of(lg, b->rounds);
		int to = round.first + (dp->rank + 1) * round.each, n = 0;

		while (n < b->closed && b->node[n].to < to)
			n++;
		if (n == b->closed || b->node[n].to > to)
			break;
		n++;
		rc = add_up_round(lg, b, n, err);
		b->closed -= n;
		b->n -= n;
		memmove(b->node, b->node + n, (size_t)b->n * sizeof(*b->node));
	}
	return rc == 0 ? wait_for_blocks(lg, err) : rc;
}

/* Closes the first leaves of this rank in a bucket. */
static int close_leaves(struct tr_leafgrads *lg, struct bucket *b, int closed,
			struct tr_error *err)
{
	int last = closed ? tr_leafgrads_leaf(lg, closed - 1) : -1;

	while (b->closed < b->n && b->node[b->closed].from <= last) {
		b->closed++;
		merge(lg, b);
	}
	return add_up(lg, b, err);
}

int tr_leafgrads_close(struct tr_leafgrads *lg, int closed, struct tr_error *err)
{
	int rc = 0;

	for (int i = 0; rc == 0 && i < lg->buckets; i++)
		if (!is_empty(&lg->bucket[i]))
			rc = close_leaves(lg, &lg->bucket[i], closed, err);
	return rc;
}

/* ---- the backward pass ---- */

static void begin_step(struct tr_leafgrads *lg)
{
	for (int i = 0; i < lg->buckets; i++) {
		struct bucket *b = &lg->bucket[i];

		for (int k = 0; k < b->n; k++)
			if (b->node[k].block != HOME)
				lg->block[b->node[k].block].used = 0;
		b->closed = b->n = b->rounds = 0;
	}
	lg->done = 0;
}

static int set_blocks(struct tr_leafgrads *lg, struct bucket *b, float **grad,
		      struct tr_error *err)
{
	for (int64_t s = 0; s < lg->rows->seqs; s++) {
		const struct node *node = leaf_node(lg, b, lg->leaf[s]);

		if (!node)
			return tr_fail(err, TR_EBUG, "the plan has too few gradient blocks");
		grad[s] = memory_of(lg, b, node);
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
	if (lg->current && !is_empty(lg->current))
		rc = close_leaves(lg, lg->current, lg->closes, err);
	lg->current = next;
	if (rc < 0 || !next)
		return rc;
	lg->rows->first = next->from;
	return is_empty(next) ? 0 : set_blocks(lg, next, lg->grad, err);
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
	if (lg->done)
		begin_step(lg);
	for (int i = 0; i < lg->buckets; i++) {
		struct bucket *b = &lg->bucket[i];

		if (p->offset >= b->from && p->offset < b->to) {
			const struct node *node = leaf_node(lg, b, leaf);

			return node ? memory_of(lg, b, node) + p->offset - b->from : NULL;
		}
	}
	return NULL;
}

/* ---- the plan ---- */

static int open_leaves(struct tr_leafgrads *lg, struct bucket *b, int first, int last)
{
	for (int leaf = first; leaf <= last && !is_empty(b); leaf++)
		if (!leaf_node(lg, b, leaf))
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
		if (good && !is_empty(b))
			rc = close_leaves(lg, b, use->closed, err);
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
	release_reductions(lg, INT64_MAX);
	begin_step(lg);
	for (int i = 0; i < lg->blocks; i++)
		lg->block[i].was_used = 0;
	lg->dry = 0;
	return rc;
}

/* ---- the end of a step ---- */

/* Adds up pieces [low, low + n) of the gradients of the norms in place of the first of them, which
 * is returned. */
static float *sum_norms(struct tr_leafgrads *lg, int low, int n)
{
	const struct tr_registry *reg = lg->o.reg;
	int64_t items = reg->weights - reg->norms;
	float *first = norm_sums(lg) + (low - reg->tokens.from) * items;

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
	return tr_sum_leaves(&lg->o.mesh->tp, tokens->n, node, reg->weights - reg->norms,
			     lg->be->isa->row.add, err);
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

/* Returns the gradient of this rank's items of a parameter that is cut. */
static float *own_gradient(const struct tr_leafgrads *lg, const struct tr_param *p,
			   struct tr_span *own)
{
	const struct tr_registry *reg = lg->o.reg;
	const struct tr_param *weights = p->tied_to < 0 ? p : &reg->param[p->tied_to];
	int64_t at = tr_shares_of(lg->o.shares, weights, own);

	if (!lg->compact)
		return lg->whole + own->from - weights->offset + p->offset;
	return lg->level[0] + (p == weights ? at : lg->moments);
}

/* Adds the gradient of the embedding and that of the head to each other. If the first and the last
 * stage of a pipeline have one each, they exchange them, and both get the sum. */
static int add_tied(struct tr_leafgrads *lg, struct tr_error *err)
{
	const struct tr_registry *reg = lg->o.reg;
	const struct tr_ranks *pp = &lg->o.mesh->pp;
	int peer = pp->rank ? 0 : pp->n - 1, rc;
	struct tr_piece *out = lg->pieces, *in = out + pp->n;
	struct tr_span own = { 0, 0 };
	float *grad = NULL;

	if (is_tied(reg)) {
		grad = own_gradient(lg, &reg->param[reg->embedding], &own);
		lg->be->add(lg->be, grad, own_gradient(lg, &reg->param[reg->head], &own),
			      own.to - own.from);
	}
	if (pp->n == 1)
		return 0;
	if (reg->shared >= 0) {
		size_t bytes;

		grad = own_gradient(lg, &reg->param[reg->shared], &own);
		bytes = (size_t)(own.to - own.from) * sizeof(*grad);
		out[peer] = (struct tr_piece){ grad, bytes };
		in[peer] = (struct tr_piece){ lg->other, bytes };
	}
	rc = tr_exchange(pp, out, in, err);
	if (rc == 0 && reg->shared >= 0)
		lg->be->add(lg->be, grad, lg->other, own.to - own.from);
	return rc;
}

/* Returns whether all leaves of a bucket were closed, and given to be added up. */
static int is_complete(const struct tr_leafgrads *lg, const struct bucket *b)
{
	if (is_empty(b))
		return 1;
	if (lg->o.mesh->dp.n > 1)
		return b->rounds == lg->rounds;
	return b->closed == 1 && b->n == 1 && b->node[0].to - b->node[0].from == lg->o.leaves;
}

int tr_leafgrads_reduce(struct tr_leafgrads *lg, float **grad, struct tr_error *err)
{
	int rc;

	for (int i = 0; i < lg->buckets; i++)
		if (!is_complete(lg, &lg->bucket[i]))
			return tr_fail(err, TR_EBUG, "the gradients of a step are not complete");
	rc = tr_queue_wait(&lg->queue, lg->queue.added, err);
	release_reductions(lg, INT64_MAX);
	if (rc == 0)
		rc = reduce_norms(lg, err);
	if (rc < 0)
		return rc;
	place_norms(lg);
	rc = add_tied(lg, err);
	if (rc < 0)
		return rc;
	lg->done = 1;
	*grad = lg->compact ? lg->level[0] : lg->whole;
	return 0;
}
