/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets and their shares, rounds, and the blocks in which nodes are. */
#include "leafbuckets.h"

#include <assert.h>
#include <stdlib.h>

#include "sumtree.h"

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

int tr_leaf_buckets(struct tr_leafgrads *lg, struct tr_error *err)
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
		if (i == reg->layers + 1 && tr_leaf_is_tied(reg))
			b->weight = reg->param[reg->embedding].offset;
		good = b->cut && b->node;
		if (good)
			cut_bucket(lg, b);
	}
	return good ? 0 : tr_fail(err, TR_ENOMEM, "no memory for gradients");
}

struct tr_round tr_leaf_round(const struct tr_leafgrads *lg, int i)
{
	int n = lg->o.mesh->dp.n, left = lg->count - i * lg->each;

	return (struct tr_round){ lg->o.leaves, i * lg->each * n,
				  left < lg->each ? left : lg->each };
}

void tr_leaf_ask(struct tr_leafgrads *lg, struct tr_arenas *a)
{
	const struct tr_registry *reg = lg->o.reg;
	const struct bucket *norms = &lg->bucket[lg->buckets - 1];
	int64_t items = lg->compact ? place_shares(lg) : 0;
	struct tr_span own;

	for (int i = 0; i < lg->rounds; i++) {
		struct tr_round round = tr_leaf_round(lg, i);
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

float *tr_leaf_memory(const struct tr_leafgrads *lg, const struct bucket *b,
		      const struct node *node)
{
	if (lg->dry)
		return NULL;
	return node->block == HOME ? lg->whole + b->from : lg->block[node->block].at;
}

/* If there is a whole gradient, the first node of a bucket is in it and needs no block. */
struct node *tr_leaf_node(struct tr_leafgrads *lg, struct bucket *b, int i)
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
	grad = tr_leaf_memory(lg, b, &b->node[b->n]);
	if (grad)
		lg->be->zero(lg->be, grad, items);
	return &b->node[b->n++];
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
		lg->block[y->block].used = 0;
		for (int i = b->closed - 1; i + 1 < b->n; i++)
			b->node[i] = b->node[i + 1];
		b->closed--;
		b->n--;
	}
}

float *tr_leaf_norms(const struct tr_leafgrads *lg)
{
	return lg->compact ? lg->norms : lg->whole + lg->o.reg->norms;
}
