/* SPDX-License-Identifier: Apache-2.0 */
/* Compares whole tensors with their digests. Each rank has summed the bytes that it read, whichever
 * rank wanted them. The sums are combined over all ranks. If they cover all bytes of a tensor, the
 * result must be its digest. A tensor of which only a part was read is reported as unverified,
 * though the blocks that were read have been checked. */
#include "load_digests.h"
#include <inttypes.h>
#include "digests.h"
#include "err.h"
#include "load.h"
#include "load_asked.h"
#include "load_common.h"
#include "load_report.h"

/* Returns the reason to report for a tensor whose digest was not compared. */
static const char *why_unverified(const struct shf_load *ld)
{
	if (!ld->step->sound)
		return SHF_FOREIGN_MSG;
	return shf_block_pass_sums(ld->step) ? "only a part was read: its blocks were checked"
	                               : "read without any check, because of SHEAF_RUN_UNVERIFIED";
}

int shf_load_digest_compare(const struct shf_load *ld, uint64_t n, uint64_t digest,
                            struct sheaf_error *err)
{
	const struct shf_lt_tensor *lt = &ld->step->layout.tensors[n];

	return digest == lt->digest ? 0
	       : shf_fail(err, SHEAF_ECORRUPT, "%s: %s/%s has digest %016" PRIx64 ", want %016"
	                  PRIx64, ld->step->path, shf_load_family(ld, lt), lt->name, digest,
	                  lt->digest);
}

void shf_load_digest_missing(struct shf_load *ld, uint64_t n, bool mine)
{
	const struct shf_lt_tensor *lt = &ld->step->layout.tensors[n];

	ld->report.unverified++;
	if (mine)
		shf_load_report_item(&ld->report, SHEAF_REPORT_UNVERIFIED, shf_load_family(ld, lt),
		                     lt->name,
		                     why_unverified(ld));
}

/* Compares one tensor. Every rank compares all of them, so that all get the same result. A tensor
 * that could not be compared is counted by every rank, and reported by the rank in whose share of
 * the tensors it is (mine). A tensor that no rank wanted may have been read in part because it
 * shares a block with others; it is not reported. */
static int compare_whole_tensor(struct shf_load *ld, uint64_t n, bool mine,
                                struct sheaf_error *err)
{
	const struct shf_lt_tensor *lt = &ld->step->layout.tensors[n];
	uint64_t digest = atomic_load_explicit(&ld->got[n], memory_order_relaxed);
	uint64_t bytes = atomic_load_explicit(&ld->got_bytes[n], memory_order_relaxed);
	bool check = shf_block_pass_sums(ld->step);
	int rc = 0;

	if (check && bytes == lt->bytes)
		rc = shf_load_digest_compare(ld, n, digest, err);
	else if (shf_load_asked_wanted(ld, n))
		shf_load_digest_missing(ld, n, mine);
	return rc;
}

_Static_assert(sizeof(atomic_uint_fast64_t) == sizeof(uint64_t), "sums are added up in place");

int shf_load_digests_check(struct shf_load *ld, int rc, struct sheaf_error *err)
{
	struct shf_team *team = &ld->step->run->team;
	size_t n = ld->step->layout.tensors_n;
	struct shf_share own = shf_digests_share(team, n);
	uint64_t *bytes = (uint64_t *)(void *)ld->got_bytes;

	/* All threads of the load have been stopped, so the atomic sums are final, and may be used
	 * as plain words from here on. */
	shf_load_report_put(ld, bytes + n + 1);
	rc = shf_digests_add_up(team, rc, (uint64_t *)(void *)ld->got, bytes, n,
	                        SHF_LOAD_REPORT_WORDS, err);
	if (rc == 0)
		shf_load_report_take(ld, bytes + n + 1);
	for (uint64_t t = 0; rc == 0 && t < n; t++)
		rc = compare_whole_tensor(ld, t, t >= own.first && t < own.end, err);
	return rc;
}
