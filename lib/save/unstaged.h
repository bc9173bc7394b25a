/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that lie in no image, because this rank holds every byte of them in slices with
 * SHEAF_IN_PLACE. Each is copied into one of a few slots behind the image, summed like any other
 * segment, and written from there; then the slot is free again. So a state of any size needs only a
 * few slots, and its memory may change as fast as the disk takes it.
 *
 * A segment is taken whole, by one thread: nobody who has a slot waits for another slot.
 */
#ifndef SHF_UNSTAGED_H
#define SHF_UNSTAGED_H
#include "save.h"

#define SHF_SLOTS_NONE (-1)
#define SHF_SLOTS_FULL (-2)

/* Memory for it. ENOMEM. [local] */
int  shf_slots_new(struct sheaf_save *save, struct sheaf_error *err);
/* In a forked child not ours: somebody may hold its lock. */
void shf_slots_free(struct shf_slots *slots, bool ours);
/* The next segment that nobody has taken, or of those the next with bytes of that slice (SIZE_MAX:
 * of any); a slot comes with it. NONE; FULL: there is one, and no slot. [any thread] */
int64_t shf_slots_take(struct sheaf_save *save, size_t slice);
/* Until a slot may be free, no longer than that. False: nothing of it is being written. */
bool shf_slots_wait(struct sheaf_save *save, int timeout_ms);
/* What one that was copied adds to its tensors' digests; and to sums, by slice, if that is not
 * NULL. The caller guards both. */
void shf_slots_add(struct sheaf_save *save, size_t seg, uint64_t *sums);
/* Where the segment lies, now. */
uint8_t *shf_slots_at(const struct sheaf_save *save, size_t seg);
/* Digests of what is copied from segments in no image, by move of the plan. The thread that took a
 * segment writes those of its moves. */
uint64_t *shf_slots_digests(const struct sheaf_save *save);
/* It is written. [any thread] */
void shf_slots_written(struct sheaf_save *save, size_t seg);
#endif
