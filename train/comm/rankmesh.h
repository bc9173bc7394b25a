/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh of a job: all its ranks, and the groups that each of them is in. Rank r has place r mod
 * tp in tensor parallelism, is in stage r / tp mod pp of the pipeline, and has place r / (tp * pp)
 * in data parallelism. */
#ifndef RANKMESH_H
#define RANKMESH_H
#include "ranks.h"

struct tr_mesh {
	const struct tr_ranks *all;     /* borrowed */
	struct tr_ranks dp;             /* the ranks that have the same shards of the weights */
	struct tr_ranks tp;             /* those that compute the same layers of the same samples */
	struct tr_ranks pp;             /* one rank of each stage; they pass samples on */
	struct tr_ranks background;     /* those of dp, for exchanges while they compute */
	struct tr_ranks line;           /* the ranks that process the same samples: tp in every
	                                 * stage */
};
/* Makes the groups. dp * tp * pp is the number of ranks. [collective] */
int tr_mesh_make(struct tr_mesh *m, const struct tr_ranks *all, int dp, int tp, int pp,
		 struct tr_error *err);
/* Sets the number of a rank in each group, and the numbers of their ranks: for plans, in which
 * nothing is exchanged. [local] */
void tr_mesh_plan(struct tr_mesh *m, int rank, int dp, int tp, int pp);
void tr_mesh_release(struct tr_mesh *m);
#endif
