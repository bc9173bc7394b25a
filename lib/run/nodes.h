/* SPDX-License-Identifier: Apache-2.0 */
/* On which node each rank is: ranks of one node share memory. */
#ifndef SHF_NODES_H
#define SHF_NODES_H
#include <stdint.h>
#include "group.h"
#include "sys.h"

struct shf_place_info {         /* where this rank is */
	int32_t *nodes;                 /* owned; of every rank, numbered from 0 */
	int32_t nodes_n;                /* how many there are */
	int32_t node, node_ranks;       /* own node; how many ranks it has */
	int32_t node_first;             /* its lowest rank */
};
/* Which ranks share memory. [collective] */
int shf_place_find(struct shf_team *team, const struct shf_sys *sys, struct shf_place_info *place,
                   struct sheaf_error *err);
/* Frees what shf_place_find allocated. A zeroed one may be released. */
void shf_place_release(struct shf_place_info *place);
#endif
