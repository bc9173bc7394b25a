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
 * L4. Segments that lie in no image (slots.h) come last, or when somebody asks for a slice of
 *     theirs, who then may wait for the disk.
 * L5. Memory of a slice is not read before it is put, where slices are (SHEAF_LATER).
 * L6. The gate of a slice opens when everything has been copied from all slices in the same memory
 *     (slice_overlaps.h). The slice's own pieces are not enough: a box that several slices hold is
 *     copied through the first of them, and the others may have no pieces at all.
 */
#ifndef SHF_LAZY_H
#define SHF_LAZY_H
#include "save.h"

/* turns.c. Of all that the save's plan has this rank copy. ENOMEM, EBUG. [local] */
int  shf_turns_make(struct shf_turns *turns, const struct sheaf_save *save,
                    struct sheaf_error *err);
void shf_turns_release(struct shf_turns *turns);
/* Of the slice that a move of this rank's segments comes from. */
size_t shf_slice_number(const struct sheaf_save *save, const struct shf_mv *v);

#define SHF_PIECE (UINT64_C(2) << 20)   /* bytes; who asks waits for no more than one,
                                         * or for a segment of no image */
/* A box cut along one dimension into parts of so many bytes, or of one row; the same wherever it
 * is asked. */
uint32_t shf_cuts_of(const struct shf_lt_tensor *t, const struct shf_box *box, uint64_t bytes);
/* Bytes of the box before part i, which becomes *part. */
uint64_t shf_cut_at(const struct shf_lt_tensor *t, const struct shf_box *box, uint64_t bytes,
                    uint32_t i, struct shf_box *part);

/* Memory for it. now: all is copied inside begin, and only who asks is remembered. [local] */
int shf_lazy_new(struct sheaf_save *save, bool now, struct sheaf_error *err);
/* What needs no copy, then the threads. The controls are set on all ranks. [collective] */
int shf_lazy_begin(struct sheaf_save *save, struct sheaf_error *err);
/* The threads alone: everything else is at hand, on all ranks. [local] */
void shf_lazy_start(struct sheaf_save *save);
/* Is there a copy behind? False: begin has copied all. */
bool shf_lazy_is_behind(const struct sheaf_save *save);
/* All averages that are due with it are up to date. [local] */
void shf_lazy_update(struct sheaf_save *save);
/* Nothing more is copied, averages are up to date, and nothing is under way. [local] */
void shf_lazy_stop(struct sheaf_save *save);
/* Takes the save off the list of those that read the state. */
void shf_lazy_forget(struct sheaf_save *save);
void shf_lazy_free(struct shf_lazy *lazy, bool ours);
/* Machines without threads do some of it now. [any thread] */
void shf_lazy_tick(struct sheaf_save *save);
/* All that is left is copied here, by whoever; or what is under way, if the save has failed. EAGAIN
 * after timeout_ms (< 0: for ever; 0: only asks). [any thread] */
int shf_lazy_finish(struct sheaf_save *save, int timeout_ms);
/* All ranks copy together what is left, whether anybody has asked for it or not. A failure of the
 * copy sticks to the save and is not returned; ELOST is. [collective] */
int shf_lazy_rest(struct sheaf_save *save, struct sheaf_error *err);
/* Looks, and tells whether some own segments are not whole yet. [any thread] */
bool shf_lazy_is_partial(struct sheaf_save *save);
/* That it may be read, and where it lies (NULL: where it did): what sheaf_save_put says. */
int shf_lazy_put(struct sheaf_save *save, int slice, void *data);
/* The first slice that may not be read yet; -1. [any thread] */
int64_t shf_lazy_unput(const struct sheaf_save *save);
/* Of a slice, or of all (SHEAF_ALL_SLICES): what sheaf_save_copied says. */
int shf_lazy_copied(struct sheaf_save *save, int slice, int timeout_ms, struct sheaf_error *err);
/* The first slice that was not put, or that is saved and that nobody asked for: EINVAL. [local] */
int shf_lazy_unasked(struct sheaf_save *save, struct sheaf_error *err);
/* Will memory of the slice still be read, for this slice or for another one that lies in it? */
bool shf_lazy_reads(struct sheaf_save *save, size_t slice);
bool shf_lazy_reads_some(struct sheaf_save *save);      /* of any slice */
/* EINVAL if the process that this one was forked from has a lazy save of the state in flight: its
 * threads and its image are not here. [local] */
int shf_lazy_check_forked(const struct sheaf_state *state, struct sheaf_error *err);
/* All ranks have copied all they have, or EAGAIN on all. [collective] */
int shf_lazy_together(struct sheaf_save *save, struct sheaf_error *err);
#endif
