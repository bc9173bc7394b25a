/* SPDX-License-Identifier: Apache-2.0 */
/* The copy behind, inside (save_copier.h is what others see of it): pieces that are taken, copied
 * and waited for. save_copier.c has its threads, save_gates.c who asks.
 *
 * Locks: `tasks_lock`, then the save's `looking`; `lock`, then that of the segments in no image
 * (unstaged.c), which is a leaf. */
#ifndef SHF_SAVE_PIECES_H
#define SHF_SAVE_PIECES_H
#include "save_copier.h"

#define SHF_ANY SIZE_MAX                /* slice: the next in the order */
#define SHF_PIECE_ITEMS ((int64_t)(SHF_PIECE / sizeof(float)))  /* averages of a piece */

enum { SHF_UNCHECKED, SHF_CHECKING, SHF_CHECKED };      /* a slice, at its gate */

struct shf_lazy {
	struct sheaf_save *save;        /* borrowed */
	const struct shf_turns *turns;  /* of its plan; NULL: nothing is left to copy */
	pthread_mutex_t lock;
	pthread_cond_t moved;           /* a piece is done, or nothing more is taken */
	size_t at;                      /* guarded by lock: all before this slice is taken */
	uint32_t *taken;                /* guarded by lock; of each slice's pieces */
	uint32_t *done;                 /* guarded by lock; of those, also what was not copied */
	uint32_t *due;                  /* by slice: its first pieces have averages with them */
	uint32_t *slotted;              /* guarded by lock; by slice: moves of such segments that
	                                 * are taken and not done */
	size_t busy;                    /* guarded by lock: taken and not done */
	int askers;                     /* guarded by lock: who wait for a slot, before threads */
	uint64_t since;                 /* guarded by lock: bytes copied since somebody looked */
	uint64_t *sums;                 /* guarded by lock; by slice, of what was copied; or NULL */
	bool *put;                      /* guarded by lock; by slice: may be read; NULL: all may */
	void **data;                    /* by slice: where it lies, if not where the state says;
	                                 * written before it is put */
	size_t unput;                   /* guarded by lock: slices that may not be read yet */
	uint32_t *overlaps;             /* owned; by slice: the next slice in the same memory, in a
	                                 * ring (slice_overlaps.h); NULL: no two slices overlap */
	bool elsewhere;                 /* guarded by lock: some slice was put elsewhere */
	uint32_t *fresh;                /* owned; guarded by lock: slices that were put; those that
	                                 * are read no more may be left out */
	size_t fresh_n;
	uint8_t *checks;                /* guarded by lock; by slice: with SHEAF_CHECK, or NULL */
	uint64_t *begun;                /* with checks: by slice, of its memory when the save began,
	                                 * or when it was put; written before that slice is read */
	bool headers;                   /* guarded by lock: header pages are taken */
	bool stop;                      /* guarded by lock: nothing more is copied */
	atomic_uint *left;              /* by slice: pieces not copied; released when one is,
	                                 * acquired by who then changes the slice */
	atomic_size_t open;             /* pieces of all slices not copied; in the same way */
	atomic_bool *asked;             /* by slice */
	atomic_size_t unasked;          /* of those saved; changed by who asks, read by commit */
	pthread_mutex_t tasks_lock;
	struct shf_task **tasks;        /* guarded by tasks_lock; owned */
	int tasks_n;                    /* guarded by tasks_lock */
};
struct shf_taken {              /* a piece that nobody else copies */
	size_t slice;
	uint32_t i;
	bool copied;                    /* false: nothing is copied any more */
};

/* A piece of that slice (SHF_ANY: of the next in the order), if there is one. Waits, no longer than
 * that, where only averages are left whose weights are under way. */
bool shf_piece_take(struct shf_lazy *lz, size_t slice, int64_t until_ns, struct shf_taken *p);
void shf_piece_copy(struct shf_lazy *lz, const struct shf_taken *p);
/* The next segment in no image that has some of the slice (SHF_ANY: the next), if there is a slot
 * in so many ms; asks: for somebody who wants it, before the threads. 1: it is copied; 0: there is
 * none that nobody has taken; EAGAIN. */
int  shf_piece_slotted(struct shf_lazy *lz, size_t slice, bool asks, int ms);
/* Returns the slice, its data being the memory that this save reads. */
struct shf_slice shf_piece_slice(const struct sheaf_save *save, size_t slice);
/* For something to be done; the lock is held. False: the time is up. */
bool shf_pieces_moved(struct shf_lazy *lz, int64_t until_ns);
/* How many pieces the slice has, with those that have averages to update and nothing to copy. */
uint32_t shf_pieces_in(const struct shf_lazy *lz, size_t slice);
/* How many moves of segments in no image (unstaged.h) come from the slice. */
uint32_t shf_slotted_in(const struct shf_lazy *lz, size_t slice);
/* What is whole goes to the disk. */
void shf_pieces_look(struct sheaf_save *save);
/* Until nothing of the slice (SHF_ANY: of any) is under way, nor due to be; false: the time is
 * up. */
bool shf_pieces_settled(struct shf_lazy *lz, size_t slice, int64_t until_ns);
#endif
