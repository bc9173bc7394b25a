/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed binary tree over n leaves: the left part of a node is the largest power of two below
 * its number of leaves, recursively. Ranks hold consecutive leaves. */
#ifndef SUMTREE_H
#define SUMTREE_H
#include <stdint.h>

/* Leaves of the left part of a node with n > 1 leaves. */
int tr_tree_left(int n);
/* Whether leaves [from, to) are a node of the tree over n. */
int tr_tree_is_node(int n, int from, int to);
/* The largest nodes of the tree over n within leaves [from, to), in order, as their ends: node i is
 * [end[i - 1], end[i]), the first begins at `from`. Returns how many there are, at most 64. */
int tr_tree_nodes(int n, int from, int to, int *end);
/* Where piece i of `pieces` begins in n: floor(i n / pieces). Of leaves over ranks, of items over
 * ranks, and of a dimension. */
int64_t tr_cut(int64_t n, int64_t pieces, int64_t i);
#endif
