/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out which ranks are on the same node, which means that they can share memory. */
#ifndef SHF_NODES_H
#define SHF_NODES_H
#include <stdint.h>
#include "group.h"
#include "sys.h"

struct shf_nodes {         /* where this rank is */
	int32_t *nodes;                 /* owned; nodes[r]: the node of rank r, counted from 0 */
	int32_t nodes_n;                /* number of nodes */
	int32_t node, node_ranks;       /* this rank's node, and how many ranks it has */
	int32_t node_first;             /* the lowest rank of this node */
};
/* Fills *place. Ranks are on one node if they could all map memory of that node's lowest rank.
 * [collective] */
int shf_nodes_find(struct shf_team *team, const struct shf_sys *sys, struct shf_nodes *place,
                   struct sheaf_error *err);
/* Frees what shf_nodes_find allocated, and zeroes *place. Does nothing if *place is zeroed
 * already. */
void shf_nodes_release(struct shf_nodes *place);
#endif
