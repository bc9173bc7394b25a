/* SPDX-License-Identifier: Apache-2.0 */
/* Deals work to the ranks of a node by turns. */
#ifndef SHF_NODE_RANK_H
#define SHF_NODE_RANK_H
#include <stdint.h>

/* The rank of `node` whose turn it is: turn 0 is the lowest of its ranks, turn 1 the next, and
 * after the last of them they begin again. nodes: the node of each rank. -1: it has no rank. */
int64_t shf_node_rank(const int32_t *nodes, uint32_t ranks, int32_t node, uint64_t turn);
#endif
