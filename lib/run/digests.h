/* SPDX-License-Identifier: Apache-2.0 */
/* Combines the digests of parts of tensors that each rank has read into digests of whole
 * tensors. */
#ifndef SHF_DIGESTS_H
#define SHF_DIGESTS_H
#include "group.h"

/* Adds up what ranks have seen of n tensors, in place, on all of them: digests, shifted to their
 * places, by XOR, and bytes by sum. bytes has n + 1 members and `more`, which are summed as well;
 * member n is used here. rc: what came of this rank's work before it; where a rank failed all are
 * spoilt. Two operations of the group and no memory. [collective] */
int shf_digests_add_up(struct shf_team *team, int rc, uint64_t *digests, uint64_t *bytes, size_t n,
                       size_t more, struct sheaf_error *err);
/* Of n tensors this rank's share is [first, end): what only one rank need do about a tensor. */
struct shf_share {
	uint64_t first, end;
};
/* Returns this rank's share of n tensors, for work that one rank does for each tensor. The shares
 * of all ranks are equal, up to one tensor. [local] */
struct shf_share shf_digests_share(const struct shf_team *team, uint64_t n);
#endif
