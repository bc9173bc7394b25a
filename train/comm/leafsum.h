/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over the leaves of all ranks, by the tree of num/sumtree.h. */
#ifndef LEAFSUM_H
#define LEAFSUM_H
#include "bf16.h"
#include "series.h"

/* Sets *from and *to to the leaves [from, to) of this rank. All ranks have the same number of
 * leaves, so the number of ranks must divide `leaves`. */
void tr_leaves_of(const struct tr_ranks *g, int leaves, int *from, int *to);
/* Adds up n items over the leaves of all ranks. node[i] has the items of node i of this rank, in
 * the order of tr_tree_nodes. Afterwards node[0] has the sum, with the same bits on all ranks, and
 * the other nodes have been overwritten.
 *
 * Each rank receives the nodes of all ranks for its share of the items, block by block, completes
 * the tree for it, and sends the result to all: nothing is added by MPI.
 * received  [tr_leafsum_room]: for the nodes of other ranks
 * add       y += x for n items. [collective] */
int tr_sum_leaves(const struct tr_ranks *g, int leaves, float *const *node, float *received,
		  int64_t n, void (*add)(float *y, const float *x, int64_t n),
		  struct tr_error *err);
/* Does the same, but each rank gets only the sum of items [cut[rank], cut[rank + 1]), which are at
 * the same place in node[0]. cut has g->n + 1 entries. [collective] */
int tr_sum_leaves_share(const struct tr_ranks *g, int leaves, float *const *node, float *received,
			const int64_t *cut, void (*add)(float *y, const float *x, int64_t n),
			struct tr_error *err);
/* Collects the shares of all ranks: rank r has items [cut[r], cut[r + 1]) of its `all`, which then
 * has the items of all ranks. cut has g->n + 1 entries. [collective] */
int tr_gather_shares(const struct tr_ranks *g, const int64_t *cut, enum tr_type type, void *all,
		     struct tr_error *err);

/* A sum over leaves in several rounds. A round has consecutive leaves, which follow those of the
 * round before it. Each rank of the group has equally many of them, in the order of ranks. */
struct tr_round {
	int leaves;                     /* of the tree */
	int first, each;                /* rank r has [first + r * each, first + (r + 1) * each) */
};
/* Returns how many nodes of the tree the leaves before this round make, or those up to its end,
 * whichever are more. */
int tr_round_nodes(const struct tr_round *round, int ranks);
/* Returns how many floats a rank needs for the nodes that it receives from the others in a sum over
 * this round. It does not depend on the number of items if they are many, because they are added up
 * block by block.
 * share_max  the largest share of a rank, or more. A sum over all leaves is one round, and the
 *            largest share of n items has n / ranks + 1. */
int64_t tr_leafsum_room(const struct tr_round *round, int ranks, int64_t share_max);
/* The sum over the leaves of a round and of those before it, of which each rank wants the share
 * [cut[rank], cut[rank + 1]).
 * node      the nodes of this rank in this round; they are overwritten
 * received  as of tr_sum_leaves; series of one queue can use the same memory
 * sum       [tr_round_nodes]: the memory for this rank's share of each node. The first ones have
 *           the nodes of the rounds before it, and afterwards those that include this round.
 * The arrays of pointers and cuts are copied. NULL: no memory. */
struct tr_series *tr_leafsum_series(const struct tr_ranks *g, const struct tr_round *round,
				    float *const *node, float *received, const int64_t *cut,
				    float *const *sum,
				    void (*add)(float *y, const float *x, int64_t n));
/* What tr_gather_shares does. NULL: no memory. */
struct tr_series *tr_gather_series(const struct tr_ranks *g, const int64_t *cut, enum tr_type type,
				   void *all);
#endif
