/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh of a training: all its ranks, and the two groups that each of them is in. Rank r has
 * place r / tp in data parallelism and place r mod tp in tensor parallelism. */
#ifndef RANKMESH_H
#define RANKMESH_H
#include "ranks.h"

struct tr_mesh {
	const struct tr_ranks *all;     /* borrowed */
	struct tr_ranks dp;             /* the ranks that have the same shards of the weights */
	struct tr_ranks tp;             /* the ranks that compute the same samples */
};
/* Makes the groups. dp * tp is the number of ranks. [collective] */
int tr_mesh_make(struct tr_mesh *m, const struct tr_ranks *all, int dp, int tp,
		 struct tr_error *err);
void tr_mesh_release(struct tr_mesh *m);
#endif
