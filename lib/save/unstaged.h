/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that have no place in the image, because this rank has every byte of them in slices with
 * SHEAF_SLICE_IN_PLACE. Each is copied into one of a few bounce buffers (slots) behind the image,
 * checksummed like any other segment, and written from there; then the slot is free again. So a
 * state of any size needs only a few slots, and its memory is released as fast as the disk accepts
 * it.
 *
 * One thread copies a whole segment. A thread that has a slot never waits for another slot, so
 * there is no deadlock. */
#ifndef SHF_UNSTAGED_H
#define SHF_UNSTAGED_H
#include "save.h"

#define SHF_UNSTAGED_NONE (-1)             /* no segment is left to take */
#define SHF_UNSTAGED_FULL (-2)             /* a segment is left, but all slots are in use */

/* Allocates save->copy.slots, if this rank has such segments. ENOMEM. [local] */
int  shf_unstaged_new(struct sheaf_save *save, struct sheaf_error *err);
/* Frees *slots. ours: false in a forked child, where a thread of the parent may have held the
 * lock. */
void shf_unstaged_free(struct shf_unstaged *slots, bool ours);
/* Takes a segment that no thread has taken, and a slot for it. slice: only a segment that has bytes
 * of this slice; SIZE_MAX: of any. Returns the segment, SHF_UNSTAGED_NONE or SHF_UNSTAGED_FULL.
 * [any thread] */
int64_t shf_unstaged_take(struct sheaf_save *save, size_t slice);
/* Waits until a write of the save has finished, so that a slot may be free, for timeout_ms at most.
 * Returns false at once if no write is in flight. */
bool shf_unstaged_wait(struct sheaf_save *save, int timeout_ms);
/* Adds the digests of a copied segment to those of its tensors (copy.held) and, if sums is not
 * NULL, to sums[slice]. The caller serialises calls. */
void shf_unstaged_add(struct sheaf_save *save, size_t seg, uint64_t *sums);
/* Returns the slot that the segment was copied into. */
uint8_t *shf_unstaged_slot(const struct sheaf_save *save, size_t seg);
/* Returns the array of the digests of moves, by move of the plan. The thread that took a segment
 * writes the digests of its moves. */
uint64_t *shf_unstaged_digests(const struct sheaf_save *save);
/* Frees the slot of the segment, whose write has finished. [any thread] */
void shf_unstaged_written(struct sheaf_save *save, size_t seg);
#endif
