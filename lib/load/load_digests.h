/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the digests of tensors that were read whole with those in the sums. [collective] */
#ifndef SHF_LOAD_DIGESTS_H
#define SHF_LOAD_DIGESTS_H
#include "load.h"

/* Adds up over all ranks what was read of each tensor, compares the tensors that were read whole
 * with their digests, and makes the report. rc: 0, or a failure of this rank before the call, which
 * is then returned on all ranks. ECORRUPT, the same on all ranks. [collective] */
int shf_load_digests_check(struct shf_load *load, int rc, struct sheaf_error *err);
/* Compares `digest`, which is of all bytes of tensor n, with the sums. ECORRUPT. [local] */
int shf_load_digest_compare(const struct shf_load *load, uint64_t n, uint64_t digest,
                            struct sheaf_error *err);
/* Counts tensor n as unverified, and reports it if `mine` is set. */
void shf_load_digest_missing(struct shf_load *load, uint64_t n, bool mine);
/* The reason with which a tensor of a foreign step is reported as unverified. */
#define SHF_FOREIGN_MSG "no manifest: it has no checksums"
#endif
