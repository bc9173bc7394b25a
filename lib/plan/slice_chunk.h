/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting a slice as torch.chunk does. */
#ifndef SHF_SLICE_CHUNK_H
#define SHF_SLICE_CHUNK_H
#include "sheaf.h"

/* Narrows slice to piece i of n along dim: ceil(count / n) units each, so the last ones may be
 * short or empty. If its strides are not all 0 they stay, and origin moves to the piece; if they
 * are all 0, memory holds only the piece, dense. Returns 0, or SHEAF_EINVAL with slice as it was:
 * no such dimension or piece, a negative count, or numbers beyond 63 bits. */
int shf_slice_shard(struct sheaf_slice *slice, int dim, int64_t i, int64_t n,
                    struct sheaf_error *err);
#endif
