/* SPDX-License-Identifier: Apache-2.0 */
#include "rankmesh.h"

int tr_mesh_make(struct tr_mesh *m, const struct tr_ranks *all, int dp, int tp, int pp,
		 struct tr_error *err)
{
	int place = all->rank % tp, line = tp * pp, in_line = all->rank % line, rc;

	*m = (struct tr_mesh){ .all = all };
	rc = tr_agree(all, tr_ranks_split(all, &m->tp, all->rank - place, 1, tp, err), err);
	if (rc == 0)
		rc = tr_agree(all, tr_ranks_split(all, &m->dp, in_line, line, dp, err), err);
	if (rc == 0)
		rc = tr_agree(all, tr_ranks_split(all, &m->background, in_line, line, dp, err),
			      err);
	if (rc == 0)
		rc = tr_agree(all, tr_ranks_split(all, &m->pp, all->rank - in_line + place, tp, pp,
						 err), err);
	if (rc == 0)
		rc = tr_agree(all, tr_ranks_split(all, &m->line, all->rank - in_line, 1, line,
						  err), err);
	if (rc < 0)
		tr_mesh_release(m);
	return rc;
}

void tr_mesh_plan(struct tr_mesh *m, int rank, int dp, int tp, int pp)
{
	*m = (struct tr_mesh){ .tp = { .rank = rank % tp, .n = tp },
			       .pp = { .rank = rank / tp % pp, .n = pp },
			       .dp = { .rank = rank / (tp * pp), .n = dp } };
}

void tr_mesh_release(struct tr_mesh *m)
{
	tr_ranks_free(&m->line);
	tr_ranks_free(&m->pp);
	tr_ranks_free(&m->background);
	tr_ranks_free(&m->dp);
	tr_ranks_free(&m->tp);
}
