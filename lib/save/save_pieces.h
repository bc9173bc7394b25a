/* SPDX-License-Identifier: Apache-2.0 */
/* The internals of the asynchronous copy, of which save_copier.h is the interface. A thread takes a
 * piece, copies it, and counts it as done; other threads may wait until it is done. save_copier.c
 * has the copy threads, save_gates.c the calls of callers at gates.
 *
 * Lock order: `tasks_lock` before the save's end.write_lock; `lock` before the lock in unstaged.c.
 * While the lock in unstaged.c is held, no other lock is taken. */
#ifndef SHF_SAVE_PIECES_H
#define SHF_SAVE_PIECES_H
#include "save_copier.h"

#define SHF_ANY_SLICE SIZE_MAX                /* in place of a slice: the next one in the order */
#define SHF_PIECE_ITEMS ((int64_t)(SHF_PIECE_BYTES / sizeof(float))) /* how many averages are
                                                                      * updated with one piece */

enum { SHF_UNCHECKED, SHF_CHECKING, SHF_CHECKED };      /* SHEAF_SAVE_CHECK: whether a slice was
                                                         * compared */

/* What one save finds out for the next one (save_learn.h); zeroed if begin has copied all. */
struct shf_save_learn {
	uint32_t *order;                /* owned; the slices in the order in which callers asked for
	                                 * them in the save before; NULL: in the order in which they
	                                 * were added */
	atomic_bool *noted;             /* owned; by slice: it is in `asks`, or is being added */
	atomic_uint *asks;              /* owned; the slices that callers asked for, in that order,
	                                 * each as its number plus one; 0: not written yet, or after
	                                 * the last one */
	atomic_size_t asks_n;
	atomic_int_fast64_t first_ns;   /* when a caller first asked at a gate; 0: no caller has
	                                 * asked */
	atomic_int_fast64_t waited_ns;  /* how long callers waited at gates, all of them together */
	bool over;                      /* the plan has what was learned */
};
/* The copy of one lazy save. All arrays are owned, with an item for each slice of the state unless
 * noted. */
struct shf_save_copier {
	struct sheaf_save *save;        /* borrowed */
	const struct shf_save_order *turns;  /* of its plan; NULL: begin has copied everything */
	pthread_mutex_t lock;
	pthread_cond_t piece_done;      /* with lock: a piece was finished, or `stop` was set */
	size_t at;                      /* guarded by lock: all pieces of the slices before this
	                                 * place of the order are taken */
	uint32_t *taken;                /* guarded by lock: how many pieces are taken; they are
	                                 * taken in order */
	uint32_t *done;                 /* guarded by lock: how many of the taken pieces are
	                                 * finished, including pieces that were not copied because
	                                 * the save had failed */
	uint32_t *due;                  /* the first `due` pieces of the slice update its
	                                 * averages */
	uint32_t *slotted;              /* guarded by lock: moves of segments in slots (unstaged.h)
	                                 * that are taken and not done */
	size_t busy;                    /* guarded by lock: pieces and segments that are taken and
	                                 * not finished */
	int askers;                     /* guarded by lock: callers at gates that want a slot; copy
	                                 * threads let them go first */
	uint64_t since;                 /* guarded by lock: bytes copied since a thread last looked
	                                 * for complete segments */
	uint64_t *sums;                 /* guarded by lock: sum of what was copied; NULL: without
	                                 * SHEAF_SAVE_CHECK */
	bool *put;                      /* guarded by lock: the slice was put and may be read; NULL:
	                                 * all slices may be read */
	void **data;                    /* the memory that the slice was put in; NULL: it lies where
	                                 * the state says. Written before the slice is put */
	size_t unput;                   /* guarded by lock: how many slices are still to be put */
	uint32_t *overlaps;             /* the next slice in the same memory, in a ring
	                                 * (slice_overlaps.h); NULL: no two slices overlap */
	bool elsewhere;                 /* guarded by lock: some slice was put elsewhere than the
	                                 * state says */
	uint32_t *fresh;                /* guarded by lock: list of slices that were put; those that
	                                 * are read no more may be left out */
	size_t fresh_n;                 /* guarded by lock: length of the list */
	uint8_t *checks;                /* guarded by lock: SHF_UNCHECKED and so on; NULL: without
	                                 * SHEAF_SAVE_CHECK */
	uint64_t *begun;                /* if `checks` is not NULL: sum of the slice's memory when
	                                 * the save began or when the slice was put. Written before
	                                 * the slice is read */
	bool headers;                   /* guarded by lock: a thread has taken the header pages */
	bool stop;                      /* guarded by lock: no piece is copied any more; averages
	                                 * are still updated */
	atomic_uint *left;              /* pieces and moves in slots not copied yet. Decremented
	                                 * with release by the thread that copied one; read with
	                                 * acquire by the caller, which may then change the slice */
	atomic_size_t open;             /* the pieces of all slices that are not copied yet, plus
	                                 * one for the header pages and one for each segment in a
	                                 * slot; used like `left` */
	atomic_bool *asked;             /* the gate of the slice was asked, and has answered */
	atomic_size_t unasked;          /* how many slices that are saved were not asked for;
	                                 * changed at gates, read by commit */
	pthread_mutex_t tasks_lock;
	/* tasks_lock is held while the copy threads are woken or ended. Begin makes only the first
	 * thread, and the first thread makes the helpers. A thread starts with the priority of its
	 * maker, so one that begin makes may run on the caller's processor before it has lowered
	 * its priority. */
	struct shf_task *first;         /* owned; NULL: it could not be made, or has ended */
	struct shf_task **helpers;      /* owned; room for `wanted` items */
	atomic_int helpers_n;           /* how many were made; stored with release by the first
	                                 * thread */
	int wanted;                     /* how many helpers to make; lowered if one cannot be made.
	                                 * While the first thread runs, only it uses this */
	int copied_by;                  /* how many threads copied, once they have ended */
	struct shf_save_learn learn;
};
struct shf_save_piece {              /* a piece that this thread has taken */
	size_t slice;
	uint32_t i;                     /* number of the piece in the slice */
	bool copied;                    /* it is to be copied; false: the save has failed, so only
	                                 * averages are updated */
};

/* Takes the next piece of that slice (SHF_ANY_SLICE: of the next slice in the order). False: there
 * is no piece to take. If the only pieces left are of averages whose weights are still being
 * copied, waits until until_ns at most. */
bool shf_save_piece_take(struct shf_save_copier *lz, size_t slice, int64_t until_ns,
                         struct shf_save_piece *p);
/* Copies the piece, or only updates its averages, and counts it as finished. */
void shf_save_piece_copy(struct shf_save_copier *lz, const struct shf_save_piece *p);
/* Copies the next segment in no image that has bytes of the slice (SHF_ANY_SLICE: of any), if a
 * slot becomes free within ms milliseconds. asks: the call is made for a caller at a gate, which
 * gets a slot before the copy threads. Returns 1: a segment was copied; 0: none is left to take;
 * EAGAIN: no slot was free. */
int  shf_save_piece_unstaged(struct shf_save_copier *lz, size_t slice, bool asks, int ms);
/* Returns a copy of the slice whose data is the memory that this save reads. */
struct shf_slice shf_save_piece_slice(const struct sheaf_save *save, size_t slice);
/* Waits until a piece is finished. The caller holds `lock`. False: until_ns has passed (< 0: no
 * limit). */
bool shf_pieces_wait(struct shf_save_copier *lz, int64_t until_ns);
/* Returns how many pieces the slice has, including those that only update averages. */
uint32_t shf_save_pieces_count(const struct shf_save_copier *lz, size_t slice);
/* Returns how many moves of segments in no image (unstaged.h) have their bytes in the slice. */
uint32_t shf_save_pieces_unstaged(const struct shf_save_copier *lz, size_t slice);
/* Submits the writes of complete segments, and handles finished ones. */
void shf_save_pieces_write(struct sheaf_save *save);
/* Waits until no piece of the slice (SHF_ANY_SLICE: of any) is being copied and its averages are up
 * to date. False: until_ns has passed, or averages are still due. */
bool shf_save_pieces_wait_slice(struct shf_save_copier *lz, size_t slice, int64_t until_ns);
#endif
