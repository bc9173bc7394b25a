/* SPDX-License-Identifier: Apache-2.0 */
#include "leafsum.h"

#include <stdlib.h>
#include <string.h>

#include "sumtree.h"

#define BLOCK ((int64_t)1 << 20)        /* items that are added up at once, over all ranks */

struct part {                           /* a node that is at hand */
	int end;                        /* the leaf after it */
	float *at;                      /* its items of a block */
};
struct leafsum {
	struct tr_series series;
	const struct tr_ranks *g;
	struct tr_round round;
	void (*add)(float *, const float *, int64_t);
	float *node[TR_TREE_NODES_MAX], *sum[TR_TREE_NODES_MAX];
	int64_t *cut;
	/* A block: the share of rank r is items [from[r], to[r]). */
	int64_t *from, *to;
	int64_t at, size, most;         /* it begins `at` items after each cut */
	/* The nodes of the rounds before this one, and then those of each rank r, which are
	 * [first[r], first[r + 1]). So they are in the order of leaves. */
	struct part *part;
	int *first, parts;
	int next;                       /* the part that complete() takes next */
	float *received, *space;        /* memory of the caller, and what is left of it */
	struct tr_piece *out, *in;
	int turn, turns;                /* of a block: a rank sends one node in each */
	int waits;                      /* an exchange was begun */
};

void tr_leaves_of(const struct tr_ranks *g, int leaves, int *from, int *to)
{
	*from = (int)tr_cut(leaves, g->n, g->rank);
	*to = (int)tr_cut(leaves, g->n, g->rank + 1);
}

int tr_round_nodes(const struct tr_round *round, int ranks)
{
	int end[TR_TREE_NODES_MAX];
	int before = tr_tree_nodes(round->leaves, 0, round->first, end);
	int after = tr_tree_nodes(round->leaves, 0, round->first + ranks * round->each, end);

	return before > after ? before : after;
}

/* Lists the nodes of a rank, as tr_tree_nodes does. *from receives its first leaf. */
static int nodes_of(const struct tr_round *r, int rank, int *from, int *end)
{
	*from = r->first + rank * r->each;
	return tr_tree_nodes(r->leaves, *from, *from + r->each, end);
}

/* Returns how many nodes the rank has that has the most. */
static int most_nodes(const struct tr_round *round, int ranks)
{
	int most = 0, from, end[TR_TREE_NODES_MAX];

	for (int r = 0; r < ranks; r++) {
		int n = nodes_of(round, r, &from, end);

		most = n > most ? n : most;
	}
	return most;
}

/* Returns how many items a block has of the share of a rank. */
static int64_t block_share(int ranks, int64_t share_max)
{
	int64_t size = BLOCK / ranks + 1;

	return share_max < size ? share_max : size;
}

int64_t tr_leafsum_room(const struct tr_round *round, int ranks, int64_t share_max)
{
	return (int64_t)(ranks - 1) * most_nodes(round, ranks) * block_share(ranks, share_max);
}

/* Returns the sum of node [low, low + n) of the tree, which is computed in the memory of the node's
 * first part. Nodes are visited in the order of leaves. */
static float *complete(struct leafsum *s, int low, int n, int64_t items)
{
	int left;
	float *a, *b;

	if (s->part[s->next].end == low + n)
		return s->part[s->next++].at;
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

/* Returns how many nodes a rank has. */
static int count_of(const struct leafsum *s, int r)
{
	return s->first[r + 1] - s->first[r];
}

/* Returns where this rank wants its share of sum i. */
static float *sum_at(const struct leafsum *s, int i)
{
	return s->sum[i] + s->at;
}

/* Begins a block. The nodes of the rounds before this one are at hand. */
static void begin_block(struct leafsum *s)
{
	for (int r = 0; r < s->g->n; r++) {
		int64_t last = s->cut[r + 1], from = s->cut[r] + s->at;

		s->from[r] = from < last ? from : last;
		s->to[r] = from + s->size < last ? from + s->size : last;
	}
	for (int i = 0; i < s->first[0]; i++)
		s->part[i].at = sum_at(s, i);
	s->space = s->received;
}

/* Lists what each rank is to send in this turn: its share of one node of this rank. Lists where
 * this rank's share of such a node of each other rank is to be. */
static void list_pieces(struct leafsum *s)
{
	int me = s->g->rank, sends = s->turn < count_of(s, me);

	for (int r = 0; r < s->g->n; r++) {
		struct part *p = &s->part[s->first[r] + s->turn];
		size_t bytes = r != me && sends ? (size_t)share(s, r) * sizeof(float) : 0;

		s->out[r] = (struct tr_piece){ bytes ? s->node[s->turn] + s->from[r] : NULL,
					       bytes };
		s->in[r] = (struct tr_piece){ NULL, 0 };
		if (s->turn >= count_of(s, r))
			continue;
		if (r == me) {
			p->at = s->node[s->turn] + s->from[me];
			continue;
		}
		p->at = s->space;
		s->in[r] = (struct tr_piece){ s->space, (size_t)share(s, me) * sizeof(float) };
		s->space += share(s, me);
	}
}

/* Adds up the nodes of a block. A node that began in a round before this one stays where it is. */
static void end_block(struct leafsum *s)
{
	int end[TR_TREE_NODES_MAX], low = 0;
	int n = tr_tree_nodes(s->round.leaves, 0, s->round.first + s->g->n * s->round.each, end);
	int64_t items = share(s, s->g->rank);

	s->next = 0;
	for (int i = 0; i < n; low = end[i++]) {
		float *sum = complete(s, low, end[i] - low, items);

		if (items && sum != sum_at(s, i))
			memcpy(sum_at(s, i), sum, (size_t)items * sizeof(float));
	}
}

static int step_sum(struct tr_series *series, const struct tr_piece **out,
		    const struct tr_piece **in)
{
	struct leafsum *s = (struct leafsum *)series;

	if (s->waits && ++s->turn == s->turns) {
		end_block(s);
		s->turn = 0;
		s->at += s->size;
	}
	s->waits = s->at < s->most;
	if (!s->waits)
		return 0;
	if (s->turn == 0)
		begin_block(s);
	list_pieces(s);
	*out = s->out;
	*in = s->in;
	return 1;
}

static void free_sum(struct tr_series *series)
{
	struct leafsum *s = (struct leafsum *)series;

	free(s->cut);
	free(s->part);
	free(s->first);
	free(s->out);
	free(s);
}

static void add_parts(struct leafsum *s, const int *end, int n)
{
	for (int i = 0; i < n; i++)
		s->part[s->parts++].end = end[i];
}

static void list_parts(struct leafsum *s)
{
	const struct tr_round *round = &s->round;
	int from, end[TR_TREE_NODES_MAX];

	add_parts(s, end, tr_tree_nodes(round->leaves, 0, round->first, end));
	for (int r = 0; r < s->g->n; r++) {
		s->first[r] = s->parts;
		add_parts(s, end, nodes_of(round, r, &from, end));
	}
	s->first[s->g->n] = s->parts;
}

/* Makes the lists, for blocks whose shares have at most s->size items. */
static int prepare(struct leafsum *s, const int64_t *cut)
{
	size_t n = (size_t)s->g->n;

	for (int r = 0; r < s->g->n; r++)
		s->most = s->most > cut[r + 1] - cut[r] ? s->most : cut[r + 1] - cut[r];
	s->turns = most_nodes(&s->round, s->g->n);
	s->size = block_share(s->g->n, s->most);
	s->cut = calloc(3 * n + 1, sizeof(*s->cut));
	s->part = calloc(TR_TREE_NODES_MAX + n * (size_t)s->turns, sizeof(*s->part));
	s->first = calloc(n + 1, sizeof(*s->first));
	s->out = calloc(2 * n, sizeof(*s->out));
	if (!s->cut || !s->part || !s->first || !s->out)
		return 0;
	list_parts(s);
	memcpy(s->cut, cut, (n + 1) * sizeof(*cut));
	s->from = s->cut + n + 1;
	s->to = s->from + n;
	s->in = s->out + n;
	return 1;
}

struct tr_series *tr_leafsum_series(const struct tr_ranks *g, const struct tr_round *round,
				    float *const *node, float *received, const int64_t *cut,
				    float *const *sum,
				    void (*add)(float *y, const float *x, int64_t n))
{
	struct leafsum *s = calloc(1, sizeof(*s));
	int from, end[TR_TREE_NODES_MAX];

	if (!s)
		return NULL;
	*s = (struct leafsum){ .series = { .step = step_sum, .free = free_sum }, .g = g,
			       .round = *round, .add = add, .received = received };
	if (!prepare(s, cut)) {
		free_sum(&s->series);
		return NULL;
	}
	memcpy(s->node, node, (size_t)nodes_of(round, g->rank, &from, end) * sizeof(*node));
	memcpy(s->sum, sum, (size_t)tr_round_nodes(round, g->n) * sizeof(*sum));
	return &s->series;
}

/* ---- shares to all ranks ---- */

struct gather {
	struct tr_series series;
	int begun;
	struct tr_piece *in, out[];
};

static int step_gather(struct tr_series *series, const struct tr_piece **out,
		       const struct tr_piece **in)
{
	struct gather *s = (struct gather *)series;

	*out = s->out;
	*in = s->in;
	return !s->begun++;
}

static void free_gather(struct tr_series *series)
{
	free(series);
}

struct tr_series *tr_gather_series(const struct tr_ranks *g, const int64_t *cut, enum tr_type type,
				   void *all)
{
	size_t bytes = tr_type_bytes(type);
	struct gather *s = calloc(1, sizeof(*s) + 2 * (size_t)g->n * sizeof(s->out[0]));
	int me = g->rank;

	if (!s)
		return NULL;
	s->series = (struct tr_series){ .step = step_gather, .free = free_gather };
	s->in = s->out + g->n;
	for (int r = 0; r < g->n; r++) {
		if (r == me)
			continue;
		s->in[r] = (struct tr_piece){ tr_item(type, all, cut[r]),
					      (size_t)(cut[r + 1] - cut[r]) * bytes };
		s->out[r] = (struct tr_piece){ tr_item(type, all, cut[me]),
					       (size_t)(cut[me + 1] - cut[me]) * bytes };
	}
	return &s->series;
}

/* ---- the same, while this rank waits ---- */

/* Makes the exchanges of a series. NULL: there was no memory for it. */
static int run(const struct tr_ranks *g, struct tr_series *s, struct tr_error *err)
{
	if (s)
		return tr_series_run(g, s, err);
	tr_fail(err, TR_ENOMEM, "no memory to add up the numbers of %d ranks", g->n);
	return tr_ranks_abandon(g, err);
}

int tr_sum_leaves_share(const struct tr_ranks *g, int leaves, float *const *node, float *received,
			const int64_t *cut, void (*add)(float *y, const float *x, int64_t n),
			struct tr_error *err)
{
	const struct tr_round all = { leaves, 0, leaves / g->n };
	float *sum = node[0] + cut[g->rank];

	if (g->n == 1)
		return 0;       /* its one node is the sum */
	return run(g, tr_leafsum_series(g, &all, node, received, cut, &sum, add), err);
}

int tr_gather_shares(const struct tr_ranks *g, const int64_t *cut, enum tr_type type, void *all,
		     struct tr_error *err)
{
	return run(g, tr_gather_series(g, cut, type, all), err);
}

int tr_sum_leaves(const struct tr_ranks *g, int leaves, float *const *node, float *received,
		  int64_t n, void (*add)(float *y, const float *x, int64_t n),
		  struct tr_error *err)
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
	rc = tr_sum_leaves_share(g, leaves, node, received, cut, add, err);
	if (rc == 0)
		rc = tr_gather_shares(g, cut, TR_F32, node[0], err);
	free(cut);
	return rc;
}
