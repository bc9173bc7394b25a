/* SPDX-License-Identifier: Apache-2.0 */
/* Gives work to the ranks of a node in turn. */
#ifndef SHF_NODE_RANK_H
#define SHF_NODE_RANK_H
#include <stdint.h>

/* Returns the rank of `node` whose turn it is: of the node's ranks, in ascending order, the one
 * with index `turn` modulo their number. nodes[r] is the node of rank r, for `ranks` ranks. -1: the
 * node has no rank. */
int64_t shf_node_rank(const int32_t *nodes, uint32_t ranks, int32_t node, uint64_t turn);
#endif
