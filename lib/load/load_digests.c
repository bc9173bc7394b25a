/* SPDX-License-Identifier: Apache-2.0 */
/* Compares whole tensors with their digests. Each rank has summed what it read, whoever wanted it;
 * these sums are added up over all ranks. If they cover all bytes of a tensor, the result is its
 * digest. Tensors that were read only in part are reported as unverified; their blocks were checked
 * all the same. */
#include "load_digests.h"
#include <inttypes.h>
#include "digests.h"
#include "err.h"
#include "load.h"
#include "load_asked.h"
#include "load_common.h"

/* The reason that is reported for a tensor whose digest was not compared. */
static const char *why_unverified(const struct shf_load *ld)
{
	if (!ld->step->sound)
		return SHF_FOREIGN_MSG;
	return shf_pass_sums(ld->step) ? "read in part: its blocks were checked"
	                               : "read without a look at any sum, as the run was opened";
}

/* Compares one tensor: every rank does, so that all find the same. A tensor of this rank's share
 * (mine) that could not be compared is reported; one that nobody wanted, and that was not read
 * whole, is no news, because its bytes lay between others. */
static int compare_whole_tensor(struct shf_load *ld, uint64_t n, bool mine,
                                struct sheaf_error *err)
{
	const struct shf_lt_tensor *lt = &ld->step->layout.tensors[n];
	const char *family = shf_load_family(ld, lt);
	uint64_t digest = atomic_load_explicit(&ld->got[n], memory_order_relaxed);
	uint64_t bytes = atomic_load_explicit(&ld->got_bytes[n], memory_order_relaxed);
	bool check = shf_pass_sums(ld->step);

	if (check && bytes == lt->bytes && digest != lt->digest)
		return shf_fail(err, SHEAF_ECORRUPT,
		                "%s: %s/%s has digest %016" PRIx64 ", want %016" PRIx64,
		                ld->step->path, family, lt->name, digest, lt->digest);
	if (mine && (!check || bytes != lt->bytes) && shf_asked_wanted(ld, n)) {
		shf_tally_add(&ld->tally, SHF_T_UNVERIFIED, family, lt->name, 0);
		shf_report_item(&ld->report, 'V', family, lt->name, why_unverified(ld));
	}
	return 0;
}

_Static_assert(sizeof(atomic_uint_fast64_t) == sizeof(uint64_t), "sums are added up in place");

int shf_prove(struct shf_load *ld, int rc, struct sheaf_error *err)
{
	struct shf_team *team = &ld->step->run->team;
	size_t n = ld->step->layout.tensors_n;
	struct shf_share own = shf_digests_share(team, n);

	/* No thread of this load counts any more. */
	rc = shf_digests_add_up(team, rc, (uint64_t *)(void *)ld->got,
	                        (uint64_t *)(void *)ld->got_bytes, n, err);
	for (uint64_t t = 0; rc == 0 && t < n; t++)
		rc = compare_whole_tensor(ld, t, t >= own.first && t < own.end, err);
	return rc;
}
