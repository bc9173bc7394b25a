/* SPDX-License-Identifier: Apache-2.0 */
/* Compares whole tensors with their digests. Each rank has summed what it read, whoever wanted it.
 * The home of a tensor, one rank for each, adds these sums up. If they cover all bytes of the
 * tensor, the result is its digest. Tensors that were read only in part are reported as unverified;
 * their blocks were checked all the same. */
#include "load_digests.h"
#include <inttypes.h>
#include "digest_homes.h"
#include "err.h"
#include "load.h"
#include "load_base.h"

/* Adds what this rank has read of each tensor, or asked for. */
static void add_load_digests(struct shf_load *ld, struct shf_digests *d)
{
	for (uint32_t t = 0; t < d->n; t++) {
		bool asked = shf_holds_first(&ld->holds, t) < ld->holds.n;

		if (asked || ld->got_bytes[t] != 0)
			shf_digests_add(d, t, ld->got[t], ld->got_bytes[t], asked);
	}
}

/* The reason that is reported for a tensor whose digest was not compared. */
static const char *why_unverified(const struct shf_load *ld)
{
	if (!ld->step->sound)
		return SHF_FOREIGN_MSG;
	return shf_pass_sums(ld->step) ? "read in part: its blocks were checked"
	                               : "read without a look at any sum, as the run was opened";
}

/* Compares one tensor, at its home. A tensor that nobody asked for, and that was not read whole, is
 * no news: its bytes lay between others. */
static int compare_whole_tensor(struct shf_load *ld, uint64_t n, const struct shf_whole *x,
                                struct sheaf_error *err)
{
	const struct shf_lt_tensor *lt = &ld->step->layout.tensors[n];
	const char *family = shf_load_family(ld, lt);
	bool check = shf_pass_sums(ld->step);

	if (check && x->bytes == lt->bytes && x->digest != lt->digest)
		return shf_fail(err, SHEAF_ECORRUPT,
		                "%s: %s/%s has digest %016" PRIx64 ", want %016" PRIx64,
		                ld->step->path, family, lt->name, x->digest, lt->digest);
	if (x->asked && (!check || x->bytes != lt->bytes)) {
		shf_tally_add(&ld->tally, SHF_T_UNVERIFIED, family, lt->name, 0);
		shf_report_item(&ld->report, 'V', family, lt->name, why_unverified(ld));
	}
	return 0;
}

int shf_prove(struct shf_load *ld, struct sheaf_error *err)
{
	struct shf_team *team = &ld->step->run->team;
	struct shf_digests d;
	int rc = shf_digests_init(&d, team, ld->step->layout.tensors_n, err), bad = 0;

	if (rc == 0)
		add_load_digests(ld, &d);
	rc = shf_digests_exchange(&d, rc, err);
	for (uint64_t t = d.first; rc == 0 && bad == 0 && t < d.end; t++)
		bad = compare_whole_tensor(ld, t, &d.whole[t - d.first], err);
	if (rc == 0)
		rc = shf_agree(team, bad, err);
	shf_digests_release(&d);
	return rc;
}
