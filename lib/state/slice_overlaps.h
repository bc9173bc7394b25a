/* SPDX-License-Identifier: Apache-2.0 */
/* Finds slices that share memory: tied weights, a slice that was added twice, pieces of a tensor
 * that overlap, a BF16 model and its F32 masters in one buffer. A slice counts as all bytes from
 * its first item to its last, including the gaps that its strides leave. */
#ifndef SHF_SLICE_OVERLAPS_H
#define SHF_SLICE_OVERLAPS_H
#include "state.h"

/* Returns whether two slices share memory. [local] */
bool shf_slices_overlap(const struct shf_slice *a, const struct shf_slice *b);
/* Finds which slices overlap, directly or through others, and links each set of them in a ring:
 * (*next)[s] is the slice after s in its ring; a slice that overlaps with no other is its own next.
 * *next is NULL if no two slices overlap. The state owns the array; it is valid until a slice is
 * added or moved. Averages, whose memory the state allocates, overlap with nothing. ENOMEM.
 * [local] */
int  shf_overlaps_find(struct sheaf_state *state, const uint32_t **next);
#endif
