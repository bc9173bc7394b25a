/* SPDX-License-Identifier: Apache-2.0 */
/* The copy behind: a save that has begun while nothing of it is copied. Threads of the library copy
 * the slices in the order in which they were added, in pieces; whoever asks for a slice copies what
 * nobody has taken of it yet, and waits for what somebody has.
 *
 * L1. A piece is copied once, by who took it, and memory of a slice is not read any more when its
 *     `left` has come to nothing.
 * L2. Nothing here waits for another process: what other ranks copy into this one's image is found
 *     whole by whoever looks, and that all have copied is agreed before anything relies on it.
 * L3. Averages that are due are brought up to date with the pieces of their weights, each part by
 *     who took the piece, also when the save has failed: no gate opens before. They are copied
 *     after the last of these, and their slices come after those of their weights, so that who
 *     waits for them waits for pieces that are under way.
 * L4. Segments that lie in no image (unstaged.h) come last, or when somebody asks for a slice of
 *     theirs, who then may wait for the disk.
 * L5. Memory of a slice is not read before it is put, where slices are (SHEAF_LATER).
 * L6. The gate of a slice opens when everything has been copied from all slices in the same memory
 *     (slice_overlaps.h). The slice's own pieces are not enough: a box that several slices hold is
 *     copied through the first of them, and the others may have no pieces at all.
 */
#ifndef SHF_SAVE_COPIER_H
#define SHF_SAVE_COPIER_H
#include "save.h"

#define SHF_PIECE (UINT64_C(2) << 20)   /* bytes; who asks waits for no more than one,
                                         * or for a segment of no image */

/* Memory for it. now: all is copied inside begin, and only who asks is remembered. [local] */
int shf_lazy_new(struct sheaf_save *save, bool now, struct sheaf_error *err);
/* What needs no copy, then the threads. The controls are set on all ranks. [collective] */
int shf_lazy_begin(struct sheaf_save *save, struct sheaf_error *err);
/* The threads alone: everything else is at hand, on all ranks. [local] */
void shf_lazy_start(struct sheaf_save *save);
/* All averages that are due with it are up to date. [local] */
void shf_lazy_update(struct sheaf_save *save);
/* Nothing more is copied, averages are up to date, and nothing is under way. [local] */
void shf_lazy_stop(struct sheaf_save *save);
/* Takes the save off the list of those that read the state. */
void shf_lazy_forget(struct sheaf_save *save);
void shf_lazy_free(struct shf_lazy *lazy, bool ours);
/* Machines without threads do some of it now. [any thread] */
void shf_lazy_tick(struct sheaf_save *save);
#endif
