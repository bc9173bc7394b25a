/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting a slice as torch.chunk does. */
#ifndef SHF_SLICE_CHUNK_H
#define SHF_SLICE_CHUNK_H
#include "sheaf.h"

/* Narrow slice to piece i of n along dim: ceil(count / n) units each, the last ones short or
 * empty. Strides that are not all 0 keep their meaning, and origin moves along; where they are
 * all 0 the memory is the piece itself, dense. 0, or SHEAF_EINVAL with slice untouched: no such
 * dimension or piece, a negative count, or numbers past 63 bits. */
int shf_slice_shard(struct sheaf_slice *slice, int dim, int64_t i, int64_t n);
#endif
