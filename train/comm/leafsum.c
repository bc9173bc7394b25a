/* SPDX-License-Identifier: Apache-2.0 */
#include "leafsum.h"

#include <stdlib.h>
#include <string.h>

#include "sumtree.h"

#define BLOCK ((int64_t)1 << 20)        /* items that are added up at once, over all ranks */

struct leafsum {
	const struct tr_ranks *g;
	int leaves;
	void (*add)(float *, const float *, int64_t);
	const int64_t *from, *to;       /* the share of rank r: items [from[r], to[r]) */
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

static int64_t share(const struct leafsum *s, int r)
{
	return s->to[r] - s->from[r];
}

/* Sends each rank its share of node `round` of this rank, and receives this rank's share of node
 * `round` of each other rank into *space. */
static int send_nodes(struct leafsum *s, float *const *node, int round, float **space,
		      struct tr_error *err)
{
	int me = s->g->rank, ends[TR_TREE_NODES_MAX], from, have = nodes_of(s, me, &from, ends);

	for (int r = 0; r < s->g->n; r++) {
		int low, end[TR_TREE_NODES_MAX], count = nodes_of(s, r, &low, end);
		size_t bytes = r != me && round < have ? (size_t)share(s, r) * sizeof(float) : 0;

		s->out[r] = (struct tr_piece){ bytes ? node[round] + s->from[r] : NULL, bytes };
		s->in[r] = (struct tr_piece){ NULL, 0 };
		if (round >= count)
			continue;
		low = round ? end[round - 1] : low;
		s->end[low] = end[round];
		if (r == me) {
			s->at[low] = node[round] + s->from[me];
			continue;
		}
		s->at[low] = *space;
		s->in[r] = (struct tr_piece){ *space, (size_t)share(s, me) * sizeof(float) };
		*space += share(s, me);
	}
	return tr_exchange(s->g, s->out, s->in, err);
}

/* Adds up the share of this rank, in node[0]. */
static int sum_share(struct leafsum *s, float *const *node, struct tr_error *err)
{
	float *space = s->received, *sum, *to = node[0] + s->from[s->g->rank];
	int64_t items = share(s, s->g->rank);
	int rc = 0;

	for (int round = 0; rc == 0 && round < s->rounds; round++)
		rc = send_nodes(s, node, round, &space, err);
	if (rc < 0)
		return rc;
	sum = complete(s, 0, s->leaves, items);
	if (sum != to)
		memcpy(to, sum, (size_t)items * sizeof(float));
	return 0;
}

/* Makes room for shares of at most `most` items. */
static int prepare(struct leafsum *s, int64_t most, struct tr_error *err)
{
	size_t ranks = (size_t)s->g->n;

	for (int r = 0; r < s->g->n; r++) {
		int from, end[TR_TREE_NODES_MAX], count = nodes_of(s, r, &from, end);

		s->rounds = count > s->rounds ? count : s->rounds;
	}
	s->end = calloc((size_t)s->leaves, sizeof(*s->end));
	s->at = calloc((size_t)s->leaves, sizeof(*s->at));
	s->received = malloc((ranks - 1) * (size_t)s->rounds * (size_t)most * sizeof(float) + 1);
	s->out = calloc(ranks, sizeof(*s->out));
	s->in = calloc(ranks, sizeof(*s->in));
	if (s->end && s->at && s->received && s->out && s->in)
		return 0;
	tr_fail(err, TR_ENOMEM, "no memory to add up the numbers of %d ranks", s->g->n);
	return tr_ranks_abandon(s->g, err);
}

static void release(struct leafsum *s)
{
	free(s->end);
	free(s->at);
	free(s->received);
	free(s->out);
	free(s->in);
}

int tr_sum_leaves_share(const struct tr_ranks *g, int leaves, float *const *node,
			const int64_t *cut, void (*add)(float *y, const float *x, int64_t n),
			struct tr_error *err)
{
	struct leafsum s = { .g = g, .leaves = leaves, .add = add };
	int64_t *from, *to, most = 0, size = BLOCK / g->n + 1;
	int rc;

	if (g->n == 1)
		return 0;       /* its one node is the sum */
	from = calloc(2 * (size_t)g->n, sizeof(*from));
	if (!from) {
		tr_fail(err, TR_ENOMEM, "no memory for the shares of %d ranks", g->n);
		return tr_ranks_abandon(g, err);
	}
	s.from = from;
	s.to = to = from + g->n;
	for (int r = 0; r < g->n; r++)
		most = most > cut[r + 1] - cut[r] ? most : cut[r + 1] - cut[r];
	rc = prepare(&s, most < size ? most : size, err);
	for (int64_t at = 0; rc == 0 && at < most; at += size) {
		for (int r = 0; r < g->n; r++) {
			from[r] = cut[r] + at < cut[r + 1] ? cut[r] + at : cut[r + 1];
			to[r] = from[r] + size < cut[r + 1] ? from[r] + size : cut[r + 1];
		}
		rc = sum_share(&s, node, err);
	}
	release(&s);
	free(from);
	return rc;
}

int tr_gather_shares(const struct tr_ranks *g, const int64_t *cut, float *all,
		     struct tr_error *err)
{
	struct tr_piece *out = calloc(2 * (size_t)g->n, sizeof(*out)), *in;
	int me = g->rank, rc;

	if (!out) {
		tr_fail(err, TR_ENOMEM, "no memory for the pieces of %d ranks", g->n);
		return tr_ranks_abandon(g, err);
	}
	in = out + g->n;
	for (int r = 0; r < g->n; r++) {
		if (r == me)
			continue;
		in[r] = (struct tr_piece){ all + cut[r],
					   (size_t)(cut[r + 1] - cut[r]) * sizeof(*all) };
		out[r] = (struct tr_piece){ all + cut[me],
					    (size_t)(cut[me + 1] - cut[me]) * sizeof(*all) };
	}
	rc = tr_exchange(g, out, in, err);
	free(out);
	return rc;
}

int tr_sum_leaves(const struct tr_ranks *g, int leaves, float *const *node, int64_t n,
		  void (*add)(float *y, const float *x, int64_t n), struct tr_error *err)
{
	int64_t *cut;
	int rc;

	if (g->n == 1)
		return 0;       /* its one node is the sum */
	cut = calloc((size_t)g->n + 1, sizeof(*cut));
	if (!cut) {
		tr_fail(err, TR_ENOMEM, "no memory for the shares of %d ranks", g->n);
		return tr_ranks_abandon(g, err);
	}
	for (int r = 0; r <= g->n; r++)
		cut[r] = tr_cut(n, g->n, r);
	rc = tr_sum_leaves_share(g, leaves, node, cut, add, err);
	if (rc == 0)
		rc = tr_gather_shares(g, cut, node[0], err);
	free(cut);
	return rc;
}
