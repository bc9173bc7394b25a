/* SPDX-License-Identifier: Apache-2.0 */
/* Combines digests of parts of tensors over all ranks (digests.h). */
#include "digests.h"

/* bytes[n] counts the ranks that failed, so the first reduction also agrees on rc. */
int shf_digests_add_up(struct shf_team *team, int rc, uint64_t *digests, uint64_t *bytes, size_t n,
                       size_t more, struct sheaf_error *err)
{
	int lost;

	bytes[n] = rc < 0;
	lost = shf_allreduce(team, bytes, n + 1 + more, SHEAF_SUM, err);
	if (lost < 0)
		return lost;
	if (bytes[n] > 0)
		return shf_agree(team, rc, err);
	return shf_allreduce(team, digests, n, SHEAF_XOR, err);
}

struct shf_share shf_digests_share(const struct shf_team *team, uint64_t n)
{
	uint64_t ranks = (uint64_t)team->ranks, rank = (uint64_t)team->rank;

	return (struct shf_share){ (rank * n + ranks - 1) / ranks,
		((rank + 1) * n + ranks - 1) / ranks };
}
