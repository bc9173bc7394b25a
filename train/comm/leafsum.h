/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over the leaves of all ranks, by the tree of num/sumtree.h. */
#ifndef LEAFSUM_H
#define LEAFSUM_H
#include "ranks.h"

/* The leaves of this rank are [rank * leaves / n, (rank + 1) * leaves / n); n divides `leaves`. */
void tr_leaves_of(const struct tr_ranks *g, int leaves, int *from, int *to);
/* Adds up n items over the leaves of all ranks. node[i] has the items of node i of this rank, in
 * the order of tr_tree_nodes. Afterwards node[0] has the sum, on all ranks with the same bits. The
 * others have been overwritten.
 *
 * Each rank receives the nodes of all ranks for its share of the items, completes the tree for it,
 * and sends the result to all: nothing is added by MPI. Items are taken block by block.
 * add  y += x for n items. [collective] */
int tr_sum_leaves(const struct tr_ranks *g, int leaves, float *const *node, int64_t n,
		  void (*add)(float *y, const float *x, int64_t n), struct tr_error *err);
#endif
