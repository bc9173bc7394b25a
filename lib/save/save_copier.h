/* SPDX-License-Identifier: Apache-2.0 */
/* The asynchronous copy of a lazy save, which runs after begin has returned. Threads of the library
 * copy the slices in pieces, in the order in which callers asked for them in the last save
 * (save_learn.h); the first save of a plan copies them in the order in which they were added to the
 * state. A caller that needs a slice (at its gate, or in commit) copies the pieces of the slice
 * that no thread has taken yet, and waits for those that a thread is copying.
 *
 * L1. A piece is copied once, by the thread that took it. The memory of a slice is no longer read
 *     when its counter `left` has reached 0.
 * L2. Nothing here waits for another process. Other ranks of the node copy into this rank's image;
 *     the control of each segment shows when it is complete. Before anything relies on all ranks
 *     having copied, the ranks agree on it in a collective call.
 * L3. Averages that are due are updated together with the pieces of their weights, by the thread
 *     that took the piece, even if the save has failed: no gate opens before. The averages are
 *     copied after all pieces of their weights are done. A thread that comes to an average before
 *     that takes pieces of its weights, so a thread that waits for an average waits for pieces that
 *     are already being copied.
 * L4. Segments that lie in no image (unstaged.h) come last, or when a caller asks for a slice that
 *     has bytes in them. That caller may have to wait for the disk, which empties the slots.
 * L5. With SHEAF_SAVE_LATER, the memory of a slice is not read before sheaf_save_slice_ready was
 * called for it. L6. The gate of a slice opens when everything has been copied from all slices in
 * the same memory
 *     (slice_overlaps.h). The slice's own pieces are not enough: a box that several slices hold is
 *     copied through the first of them, and the others may have no pieces at all. */
#ifndef SHF_SAVE_COPIER_H
#define SHF_SAVE_COPIER_H
#include "save.h"

#define SHF_PIECE_BYTES (UINT64_C(2) << 20) /* bytes. A caller at a gate waits for at most one piece
                                             * that a thread is copying, or for one segment in a
                                             * slot */

/* Allocates save->copy.lazy. now: begin itself copies everything, and only the calls at gates are
 * tracked. ENOMEM, EBUG. [local] */
int shf_save_copier_new(struct sheaf_save *save, bool now, struct sheaf_error *err);
/* Makes the streams to other nodes, agrees on the length of the longest if the plan does not have
 * it yet, and starts the copy threads. All ranks must have set the controls of their segments
 * before (shf_save_rounds_init). [collective] */
int shf_save_copier_begin(struct sheaf_save *save, struct sheaf_error *err);
/* Starts the copy threads, once streams and controls are ready on all ranks. If no thread can be
 * made, the callers at gates and in commit copy. [local] */
void shf_save_copier_start(struct sheaf_save *save);
/* Whether a thread copies in the background. False: it could not be made, so only callers copy.
 * [any thread] */
bool shf_save_copier_has_thread(struct sheaf_save *save);
/* Brings all averages that this save updates up to date, and copies their weights on the way.
 * [local] */
void shf_save_copier_update(struct sheaf_save *save);
/* Does the same for the averages of one slice of weights. [any thread] */
void shf_save_copier_update_slice(struct sheaf_save *save, size_t slice);
/* Ends the copy: joins the threads, brings averages up to date, and waits for pieces that other
 * callers are copying. [local] */
void shf_save_copier_stop(struct sheaf_save *save);
/* The save is refused, and makes no update of averages. [local] */
void shf_save_copier_leave_averages(struct sheaf_save *save);
/* Removes the save from the list state->readers. [local] */
void shf_save_copier_forget(struct sheaf_save *save);
/* Frees *lazy. ours: false in a forked child, where its locks cannot be destroyed. NULL is
 * allowed. */
void shf_save_copier_free(struct shf_save_copier *lazy, bool ours);
/* On a machine without threads (the tests), does some of the copying in this call. [any thread] */
void shf_save_copier_tick(struct sheaf_save *save);
#endif
