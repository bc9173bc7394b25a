/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed binary tree over n leaves. A node of more than one leaf has a left part with the
 * largest power of two that is below its number of leaves, and a right part with the rest. Each
 * rank holds consecutive leaves. */
#ifndef SUMTREE_H
#define SUMTREE_H
#include <stdint.h>

enum { TR_TREE_NODES_MAX = 64 };        /* of tr_tree_nodes */

/* Leaves of the left part of a node with n > 1 leaves. */
int tr_tree_left(int n);
/* Returns whether leaves [from, to) are a node of the tree over n. */
int tr_tree_is_node(int n, int from, int to);
/* Cuts leaves [from, to) into the largest nodes of the tree over n. The first node begins at
 * `from`, each other one where the node before it ends, and end[i] is where node i ends. Returns
 * the number of nodes, which is at most TR_TREE_NODES_MAX. */
int tr_tree_nodes(int n, int from, int to, int *end);
/* Returns where piece i begins if n things are cut into `pieces`: floor(i n / pieces). Leaves and
 * items are dealt to ranks by it. */
int64_t tr_cut(int64_t n, int64_t pieces, int64_t i);
struct tr_span {                        /* [from, to) */
	int64_t from, to;
};
/* Pieces [from, to) of n. A dimension is cut into n pieces by tr_cut. */
struct tr_pieces {
	int n, from, to;
};
#endif
