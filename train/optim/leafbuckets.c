/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets and their shares, rounds, and the blocks in which nodes are. */
#include "leafbuckets.h"

#include <assert.h>
#include <stdlib.h>

#include "sumtree.h"

enum { LATE = 2 };                      /* how many of the first buckets are late */

int tr_leaf_is_tied(const struct tr_registry *reg)
{
	return reg->head >= 0 && reg->param[reg->head].tied_to >= 0;
}

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

struct tr_span tr_leafgrads_share(const struct tr_registry *reg, int64_t i, int n, int rank)
{
	struct tr_span all = i < reg->layers + 2 ? tr_registry_layer(reg, i - 1) :
		(struct tr_span){ reg->norms, reg->weights };
	int64_t items = all.to - all.from;

	return (struct tr_span){ all.from + tr_cut(items, n, rank),
				 all.from + tr_cut(items, n, rank + 1) };
}

struct bucket *tr_leaf_bucket(const struct tr_leafgrads *lg, const struct tr_param *p)
{
	for (int i = 0; i < lg->buckets; i++)
		if (p->offset >= lg->bucket[i].from && p->offset < lg->bucket[i].to)
			return &lg->bucket[i];
	return NULL;
}

struct bucket *tr_leaf_shared(const struct tr_leafgrads *lg)
{
	const struct tr_registry *reg = lg->o.reg;

	return &lg->bucket[reg->shared == reg->embedding ? 0 : reg->layers + 1];
}

int64_t tr_leaf_own(const struct tr_leafgrads *lg, const struct bucket *b)
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
		at += tr_leaf_own(lg, b);
	}
	return lg->level_items = at;
}

/* Returns the index of a block size, and adds it if it is new. */
static int size_of(struct tr_leafgrads *lg, int64_t items)
{
	int i = 0;

	while (i < lg->sizes && lg->size[i].items != items)
		i++;
	if (i == lg->sizes)
		lg->size[lg->sizes++] = (struct size){ items, NO_BLOCK };
	return i;
}

/* Marks the buckets whose sums are collected during the update: the first ones that are not empty,
 * because a backward pass ends with them, and a tied head and embedding, whose sums are added to
 * each other before they are collected. */
static void find_late(struct tr_leafgrads *lg)
{
	const struct tr_registry *reg = lg->o.reg;
	int last = 0;

	for (int i = 0; last < LATE && i < lg->buckets - 1; i++) {
		lg->bucket[i].late = 1;
		last += !tr_leaf_is_empty(&lg->bucket[i]);
	}
	if (tr_leaf_is_tied(reg))
		lg->bucket[reg->layers + 1].late = lg->bucket[0].late = 1;
	if (reg->shared >= 0)
		tr_leaf_shared(lg)->late = 1;
}

int tr_leaf_buckets(struct tr_leafgrads *lg, struct tr_error *err)
{
	const struct tr_registry *reg = lg->o.reg;
	int good;

	lg->buckets = (int)reg->layers + 3;
	lg->bucket = calloc((size_t)lg->buckets, sizeof(*lg->bucket));
	lg->size = calloc((size_t)lg->buckets, sizeof(*lg->size));
	good = lg->bucket && lg->size;
	for (int i = 0; good && i < lg->buckets; i++) {
		struct bucket *b = &lg->bucket[i];
		struct tr_span span = span_of(reg, i);

		*b = (struct bucket){ .from = span.from, .to = span.to, .weight = span.from,
			.is_norms = i == lg->buckets - 1,
			.size = size_of(lg, span.to - span.from),
			.cut = calloc((size_t)lg->o.mesh->dp.n + 1, sizeof(*b->cut)),
			.node = calloc((size_t)lg->count, sizeof(*b->node)) };
		if (i == reg->layers + 1 && tr_leaf_is_tied(reg))
			b->weight = reg->param[reg->embedding].offset;
		good = b->cut && b->node;
		if (good)
			cut_bucket(lg, b);
	}
	if (!good)
		return tr_fail(err, TR_ENOMEM, "no memory for gradients");
	if (!lg->o.shares)
		find_late(lg);
	return 0;
}

struct tr_round tr_leaf_round(const struct tr_leafgrads *lg, int i)
{
	int n = lg->o.mesh->dp.n, left = lg->count - i * lg->each;

	return (struct tr_round){ lg->o.leaves, i * lg->each * n,
				  left < lg->each ? left : lg->each };
}

static int64_t larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* Returns the largest share of a bucket that a rank has. */
static int64_t largest_share(const struct tr_leafgrads *lg)
{
	int64_t most = 0;

	for (int i = 0; i < lg->buckets; i++)
		for (int r = 0; r < lg->o.mesh->dp.n; r++)
			most = larger(most, lg->bucket[i].cut[r + 1] - lg->bucket[i].cut[r]);
	return most;
}

/* Finds how many levels there are, and returns the items that a rank receives in the sums over dp
 * and, of the norms, over tp. These sums are made one after another. */
static int64_t measure_sums(struct tr_leafgrads *lg)
{
	const struct tr_registry *reg = lg->o.reg;
	int dp = lg->o.mesh->dp.n, tp = lg->o.mesh->tp.n;
	const struct tr_round tokens = { reg->tokens.n, 0, reg->tokens.n / tp };
	int64_t share = largest_share(lg), room = 0;

	for (int i = 0; i < lg->rounds; i++) {
		struct tr_round round = tr_leaf_round(lg, i);

		lg->levels = (int)larger(lg->levels, tr_round_nodes(&round, dp));
		room = larger(room, tr_leafsum_room(&round, dp, share));
	}
	share = (reg->weights - reg->norms) / tp + 1;
	if (reg->tokens.to - reg->tokens.from < reg->tokens.n)
		room = larger(room, tr_leafsum_room(&tokens, tp, share));
	return room;
}

void tr_leaf_ask(struct tr_leafgrads *lg, struct tr_arenas *a)
{
	const struct tr_registry *reg = lg->o.reg;
	const struct bucket *norms = &lg->bucket[lg->buckets - 1];
	int64_t items = lg->compact ? place_shares(lg) : 0, room = measure_sums(lg);

	if (room)
		tr_arena_ask(a, TR_BUFFERS, room, &lg->received);
	for (int i = 0; lg->compact && i < lg->levels; i++)
		tr_arena_ask(a, TR_GRADS, items, &lg->level[i]);
	if (lg->compact)
		tr_arena_ask(a, TR_GRADS, norms->to - norms->from, &lg->norms);
	else
		tr_arena_ask(a, TR_GRADS, reg->gradients, &lg->whole);
	if (reg->shared >= 0)
		tr_arena_ask(a, TR_BUFFERS, tr_leaf_own(lg, tr_leaf_shared(lg)), &lg->other);
}

/* ---- blocks and nodes ---- */

/* Makes another block. Returns its number, or NO_BLOCK if there is no memory. */
static int new_block(struct tr_leafgrads *lg, int64_t items)
{
	int room = lg->blocks_max ? 2 * lg->blocks_max : 64;
	struct block *more = lg->block;

	if (lg->blocks == lg->blocks_max) {
		more = realloc(lg->block, (size_t)room * sizeof(*more));
		if (!more)
			return NO_BLOCK;
		lg->block = more;
		lg->blocks_max = room;
	}
	lg->block[lg->blocks] = (struct block){ .items = items, .next = NO_BLOCK };
	return lg->blocks++;
}

/* Returns a block of this size that is not used, or NO_BLOCK if there is none. A plan makes another
 * one. */
static int take_block(struct tr_leafgrads *lg, struct size *size)
{
	int i = size->free;

	if (i != NO_BLOCK)
		size->free = lg->block[i].next;
	else if (lg->dry)
		i = new_block(lg, size->items);
	if (i != NO_BLOCK)
		lg->block[i].was_used = 1;
	return i;
}

void tr_leaf_put_block(struct tr_leafgrads *lg, int block)
{
	struct size *size = lg->size;

	while (size->items != lg->block[block].items)
		size++;
	lg->block[block].next = size->free;
	size->free = block;
}

float *tr_leaf_memory(const struct tr_leafgrads *lg, const struct bucket *b,
		      const struct node *node)
{
	if (lg->dry)
		return NULL;
	return node->block == HOME ? lg->whole + b->from : lg->block[node->block].at;
}

/* Returns the node of a leaf that is open, or NULL if there is none. */
static struct node *open_node(struct bucket *b, int leaf)
{
	int low = b->open, high = b->end;

	while (low < high) {
		int middle = low + (high - low) / 2;

		if (b->node[middle].from < leaf)
			low = middle + 1;
		else
			high = middle;
	}
	return low < b->end && b->node[low].from == leaf ? &b->node[low] : NULL;
}

/* If there is a whole gradient, the first node of a bucket is in it and needs no block. */
struct node *tr_leaf_node(struct tr_leafgrads *lg, struct bucket *b, int i)
{
	int leaf = tr_leafgrads_leaf(lg, i), block = HOME;
	struct node *node = open_node(b, leaf);
	float *grad;

	if (node)
		return node;
	assert(b->end < lg->count);
	if (lg->compact || b->closed > 0 || b->open < b->end)
		block = take_block(lg, &lg->size[b->size]);
	if (block == NO_BLOCK)
		return NULL;
	node = &b->node[b->end++];
	*node = (struct node){ leaf, leaf + 1, block };
	grad = tr_leaf_memory(lg, b, node);
	if (grad)
		lg->be->zero(lg->be, grad, b->to - b->from);
	return node;
}

void tr_leaf_merge(struct tr_leafgrads *lg, struct bucket *b)
{
	while (b->closed >= 2) {
		struct node *x = &b->node[b->closed - 2], *y = x + 1;

		if (x->to != y->from || !tr_tree_is_node(lg->o.leaves, x->from, y->to) ||
		    x->from + tr_tree_left(y->to - x->from) != x->to)
			return;
		if (!lg->dry)
			lg->be->add(lg->be, tr_leaf_memory(lg, b, x), tr_leaf_memory(lg, b, y),
				    b->to - b->from);
		x->to = y->to;
		tr_leaf_put_block(lg, y->block);
		b->closed--;
	}
}

float *tr_leaf_norms(const struct tr_leafgrads *lg)
{
	return lg->compact ? lg->norms : lg->whole + lg->o.reg->norms;
}
