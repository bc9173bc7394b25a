/* SPDX-License-Identifier: Apache-2.0 */
/* Slices that lie in the same memory: tied weights, a slice that was added twice, pieces of a rank
 * that overlap, a BF16 model and its F32 masters over one buffer. A slice lies in the bytes from
 * its first item to its last one, whatever lies between them. */
#ifndef SHF_SLICE_OVERLAPS_H
#define SHF_SLICE_OVERLAPS_H
#include "state.h"

/* Do two slices lie in some of the same memory? */
bool shf_slices_overlap(const struct shf_slice *a, const struct shf_slice *b);
/* Finds which slices overlap, directly or through others. (*next)[s] is the next slice of the ring
 * that s is in; a slice that overlaps with none is its own next. *next is NULL if no two slices
 * overlap. It belongs to the state, and is valid until a slice is added or moved. Averages, whose
 * memory is the state's own, overlap with nothing. ENOMEM. [local] */
int  shf_overlaps_find(struct sheaf_state *state, const uint32_t **next);
#endif
