/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of whole tensors, of which each rank has seen a part. */
#ifndef SHF_DIGESTS_H
#define SHF_DIGESTS_H
#include "group.h"

/* Adds up what ranks have seen of n tensors, in place, on all of them: digests, shifted to their
 * places, by XOR, and bytes by sum. bytes has n + 1 members; the last one is used here. rc: what
 * came of this rank's work before it; where a rank failed nothing is added up. Two operations of
 * the group and no memory. [collective] */
int shf_digests_add_up(struct shf_team *team, int rc, uint64_t *digests, uint64_t *bytes, size_t n,
                       struct sheaf_error *err);
/* Of n tensors this rank's share is [first, end): what only one rank need do about a tensor. */
struct shf_share {
	uint64_t first, end;
};
struct shf_share shf_digests_share(const struct shf_team *team, uint64_t n);
#endif
