/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of whole tensors, of which each rank has seen a part. The parts of a tensor are added up
 * on one rank, its home: tensor t of n belongs to rank t * ranks / n. So each rank receives its
 * share of the tensors, and none receives something of every tensor from every rank. */
#ifndef SHF_DIGEST_HOMES_H
#define SHF_DIGEST_HOMES_H
#include "group.h"
#include "mem.h"

struct shf_whole {              /* what all ranks have seen of one tensor */
	uint64_t digest, bytes;
	bool asked;                     /* some rank wants to know */
};
struct shf_digests {
	struct shf_team *team;          /* borrowed */
	uint64_t n, first, end;         /* tensors; this rank is home of [first, end) */
	struct shf_buf *to;             /* owned; by rank */
	struct shf_whole *whole;        /* owned; of [first, end), after the exchange */
};
/* ENOMEM; to be released also then. [local] */
int shf_digests_init(struct shf_digests *d, struct shf_team *team, uint64_t n,
                     struct sheaf_error *err);
/* Adds what this rank has seen of a tensor: the digest of these bytes, shifted to their place. */
void shf_digests_add(struct shf_digests *d, uint32_t tensor, uint64_t digest, uint64_t bytes,
                     bool asked);
/* Brings the parts together. rc: whether this rank has all that it wants to add. [collective] */
int shf_digests_exchange(struct shf_digests *d, int rc, struct sheaf_error *err);
void shf_digests_release(struct shf_digests *d);
#endif
