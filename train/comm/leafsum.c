/* SPDX-License-Identifier: Apache-2.0 */
#include "leafsum.h"

#include <stdlib.h>
#include <string.h>

#include "sumtree.h"

enum { NODES_MAX = 64 };
#define BLOCK ((int64_t)1 << 20)        /* items that are added up at once, over all ranks */

struct leafsum {
	const struct tr_ranks *g;
	int leaves;
	void (*add)(float *, const float *, int64_t);
	/* The nodes of all ranks, for the share of the items that this rank adds up: the items of
	 * node [from, end[from]) are at at[from]. */
	int *end;
	float **at;
	float *received;                /* space for the nodes of the other ranks */
	struct tr_piece *out, *in;
	int rounds;                     /* the most nodes that a rank has */
};

void tr_leaves_of(const struct tr_ranks *g, int leaves, int *from, int *to)
{
	*from = (int)tr_cut(leaves, g->n, g->rank);
	*to = (int)tr_cut(leaves, g->n, g->rank + 1);
}

/* Lists the nodes of a rank, as tr_tree_nodes does. *from receives its first leaf. */
static int nodes_of(const struct leafsum *s, int rank, int *from, int *end)
{
	*from = (int)tr_cut(s->leaves, s->g->n, rank);
	return tr_tree_nodes(s->leaves, *from, (int)tr_cut(s->leaves, s->g->n, rank + 1), end);
}

/* Returns the sum of node [low, low + n) of the tree, which is computed in the memory of the node's
 * first part. */
static float *complete(struct leafsum *s, int low, int n, int64_t items)
{
	int left;
	float *a, *b;

	if (s->end[low] == low + n)
		return s->at[low];
	left = tr_tree_left(n);
	a = complete(s, low, left, items);
	b = complete(s, low + left, n - left, items);
	s->add(a, b, items);
	return a;
}

/* Sends each rank its share of node `round` of this rank, and receives this rank's share of node
 * `round` of each other rank into *space. */
static int send_nodes(struct leafsum *s, float *const *node, int64_t first, int64_t n, int round,
		      float **space, struct tr_error *err)
{
	int me = s->g->rank, ends[NODES_MAX], from, have = nodes_of(s, me, &from, ends);
	int64_t mine = tr_cut(n, s->g->n, me + 1) - tr_cut(n, s->g->n, me);

	for (int r = 0; r < s->g->n; r++) {
		int64_t a = tr_cut(n, s->g->n, r), b = tr_cut(n, s->g->n, r + 1);
		int low, end[NODES_MAX], count = nodes_of(s, r, &low, end);
		size_t bytes = r != me && round < have ? (size_t)(b - a) * sizeof(float) : 0;

		s->out[r] = (struct tr_piece){ bytes ? node[round] + first + a : NULL, bytes };
		s->in[r] = (struct tr_piece){ NULL, 0 };
		if (round >= count)
			continue;
		low = round ? end[round - 1] : low;
		s->end[low] = end[round];
		if (r == me) {
			s->at[low] = node[round] + first + a;
			continue;
		}
		s->at[low] = *space;
		s->in[r] = (struct tr_piece){ *space, (size_t)mine * sizeof(float) };
		*space += mine;
	}
	return tr_exchange(s->g, s->out, s->in, err);
}

/* Sends the share that this rank has added up to all others, and receives theirs. */
static int send_sum(struct leafsum *s, float *to, int64_t n, struct tr_error *err)
{
	int me = s->g->rank;

	for (int r = 0; r < s->g->n; r++) {
		int64_t a = tr_cut(n, s->g->n, r), b = tr_cut(n, s->g->n, r + 1);
		int64_t mine = tr_cut(n, s->g->n, me);

		s->in[r] = (struct tr_piece){ to + a, (size_t)(b - a) * sizeof(float) };
		s->out[r] = (struct tr_piece){ to + mine,
			(size_t)(tr_cut(n, s->g->n, me + 1) - mine) * sizeof(float) };
	}
	s->in[me].bytes = s->out[me].bytes = 0;
	return tr_exchange(s->g, s->out, s->in, err);
}

static int sum_block(struct leafsum *s, float *const *node, int64_t first, int64_t n,
		     struct tr_error *err)
{
	int64_t a = tr_cut(n, s->g->n, s->g->rank), b = tr_cut(n, s->g->n, s->g->rank + 1);
	float *space = s->received, *sum;
	int rc = 0;

	for (int round = 0; rc == 0 && round < s->rounds; round++)
		rc = send_nodes(s, node, first, n, round, &space, err);
	if (rc < 0)
		return rc;
	sum = complete(s, 0, s->leaves, b - a);
	if (sum != node[0] + first + a)
		memcpy(node[0] + first + a, sum, (size_t)(b - a) * sizeof(float));
	return send_sum(s, node[0] + first, n, err);
}

static int prepare(struct leafsum *s, int64_t n, struct tr_error *err)
{
	int64_t share = (n < BLOCK ? n : BLOCK) / s->g->n + 1;
	size_t ranks = (size_t)s->g->n;

	for (int r = 0; r < s->g->n; r++) {
		int from, end[NODES_MAX], count = nodes_of(s, r, &from, end);

		s->rounds = count > s->rounds ? count : s->rounds;
	}
	s->end = calloc((size_t)s->leaves, sizeof(*s->end));
	s->at = calloc((size_t)s->leaves, sizeof(*s->at));
	s->received = malloc(ranks * (size_t)s->rounds * (size_t)share * sizeof(float));
	s->out = calloc(ranks, sizeof(*s->out));
	s->in = calloc(ranks, sizeof(*s->in));
	if (!s->end || !s->at || !s->received || !s->out || !s->in)
		return tr_fail(err, TR_ENOMEM, "no memory to add up the gradients of %d ranks",
			       s->g->n);
	return 0;
}

int tr_sum_leaves(const struct tr_ranks *g, int leaves, float *const *node, int64_t n,
		  void (*add)(float *y, const float *x, int64_t n), struct tr_error *err)
{
	struct leafsum s = { .g = g, .leaves = leaves, .add = add };
	int rc;

	if (g->n == 1)
		return 0; /* its one node is the sum */
	rc = prepare(&s, n, err);
	for (int64_t at = 0; rc == 0 && at < n; at += BLOCK)
		rc = sum_block(&s, node, at, n - at < BLOCK ? n - at : BLOCK, err);
	free(s.end);
	free(s.at);
	free(s.received);
	free(s.out);
	free(s.in);
	return rc;
}
