/* SPDX-License-Identifier: Apache-2.0 */
/* C4: what all ranks know of a save is gathered on rank 0, once: for the card of a step in memory,
 * or else for the manifest on disk. If it was gathered for the card, the commit to disk uses the
 * same data. */
#include "save_gather.h"
#include "err.h"
#include "save_attach_gather.h"
#include "save_sums.h"

/* Decodes what each rank sent, in the order of ranks, and makes sums and lists from it. EBUG,
 * ENOMEM, ECORRUPT (I4), EINVAL if ranks gave different contents. [rank 0] */
static int read_all_ranks(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_save_publish *p = &save->publishing;
	struct shf_cur c = { p->in.data, p->in.data + p->in.len, false };
	struct shf_save_attach_in given = { 0 };
	struct shf_layout_sums sums;
	int rc = shf_save_sums_new(&sums, save, err);

	for (uint32_t r = 0; rc == 0 && r < (uint32_t)save->run->team.ranks; r++) {
		rc = shf_save_sums_take(&sums, &save->plan->layout, &c);
		if (rc == 0)
			rc = shf_save_attach_take(&given, r, p->carried, &p->arena, &c);
		if (rc < 0)
			shf_fail(err, rc, "what rank %u sent of a save: %s", r, shf_strerror(rc));
	}
	if (rc == 0)
		rc = shf_save_sums_make(save, &sums, &p->arena, &p->sums, err);
	if (rc == 0)
		rc = shf_save_attach_unite(&given, &p->arena, &p->given, &p->owners, err);
	shf_save_sums_free(&sums);
	shf_save_attach_free(&given);
	return rc;
}

int shf_save_gather(struct sheaf_save *save, int rc, bool carry, struct sheaf_error *err)
{
	struct shf_save_publish *p = &save->publishing;
	struct shf_team *team = &save->run->team;
	struct shf_buf mine = SHF_BUF_INIT;
	int lost = 0;

	if (save->at.sums == SHF_SUMS_APART)
		lost = shf_allreduce(team, save->copy.held, save->plan->layout.tensors_n,
		                     SHEAF_XOR, err);
	if (lost < 0)
		return lost;
	save->at.sums = SHF_SUMS_UNITED; /* the XOR was done in place, so doing it a second time
	                                  * would undo it */
	p->carried = carry;
	shf_save_sums_put(save, &mine);
	shf_save_attach_put(save, carry, &mine);
	rc = shf_gatherv(team, rc, &mine, &p->in, err);
	shf_buf_release(&mine);
	if (rc < 0)
		return rc;
	save->at.sums = SHF_SUMS_GATHERED;
	if (team->rank == 0)
		p->rc = read_all_ranks(save, &p->err);
	return 0;
}

void shf_save_gather_again(struct sheaf_save *save)
{
	struct shf_save_publish *p = &save->publishing;

	if (save->run->team.rank || p->rc != SHEAF_ENOMEM)
		return;
	shf_buf_release(&p->sums.table);
	shf_buf_release(&p->owners);
	p->given = (struct shf_given){ 0 };
	p->rc = read_all_ranks(save, &p->err);
}
