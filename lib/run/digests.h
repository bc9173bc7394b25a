/* SPDX-License-Identifier: Apache-2.0 */
/* Combines the digests of parts of tensors that each rank has read into digests of whole
 * tensors. */
#ifndef SHF_DIGESTS_H
#define SHF_DIGESTS_H
#include "group.h"

/* Combines the digests and byte counts of n tensors over all ranks, in place: digests[i], which
 * each rank has shifted to the end of the tensor, by XOR, and bytes[i] by sum. bytes has n + 1 +
 * more members: the one after the counts is used internally, and the last `more`, which belong to
 * the caller, are summed as well. rc: 0, or a failure of this rank before the call; then all ranks
 * return a code, and the arrays are not usable. Makes two operations of the group and allocates
 * nothing. [collective] */
int shf_digests_add_up(struct shf_team *team, int rc, uint64_t *digests, uint64_t *bytes, size_t n,
                       size_t more, struct sheaf_error *err);
struct shf_share {              /* tensors [first, end) */
	uint64_t first, end;
};
/* Returns this rank's share of n tensors, for work that one rank does for each tensor. The shares
 * of all ranks are equal, up to one tensor. [local] */
struct shf_share shf_digests_share(const struct shf_team *team, uint64_t n);
#endif
