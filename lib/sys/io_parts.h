/* SPDX-License-Identifier: Apache-2.0 */
/* How the queue of the real machine works. queue.c splits a request into parts; a carrier, either
 * threads (pool.c) or io_uring (ring.c), cuts parts into pieces; and each piece comes back once.
 * The lock of the queue guards everything that is not said to belong to one thread.
 *
 * Q1. A part is in at most one list, and in none once all of it has been cut or abandoned.
 * Q2. A part has come back when all of it has been cut and all its pieces have come back. From then
 *     on only the queue touches it.
 * Q3. Neither submitting nor carrying allocates memory. */
#ifndef SHF_IO_PARTS_H
#define SHF_IO_PARTS_H
#include <pthread.h>
#include "sys_queue.h"

/* A list of parts, first in, first out, linked by shf_part.next. */
struct shf_parts {
	struct shf_part *head, *tail;
};

/* Bytes of a request that are moved in one go. The carrier that cut the piece may read it without
 * the lock. */
struct shf_piece {
	struct shf_part *part;
	bool direct;                    /* whether it uses io->direct */
	uint8_t *buf;                   /* in the request's buffer; NULL: the request moves no
	                                 * bytes */
	uint64_t at;                    /* offset in the file */
	size_t len;
};

/* What a carrier sees of its queue: the lock and the two functions that it reports to. */
struct shf_queue_shared {
	pthread_mutex_t lock;
	size_t piece_bytes;             /* the largest piece */
	/* The carrier calls this when it has finished a piece. result: the number of bytes moved,
	 * or a negative errno. The lock is held; the call may drop it for a while, as shf_pool_push
	 * does. */
	void (*back)(struct shf_queue_shared *w, const struct shf_piece *piece, int64_t result);
	/* The carrier calls this for a part that it cannot move, and another carrier gets the part.
	 * The lock is held and may be dropped, as for `back`. */
	void (*pass_on)(struct shf_queue_shared *w, struct shf_part *part);
};

/* Appends a part to the list. */
void shf_parts_push(struct shf_parts *l, struct shf_part *part);
/* Removes the head and returns it, no matter how much of it is left; NULL: the list is empty. */
struct shf_part *shf_parts_pop(struct shf_parts *l);
/* Removes a part from the list; false if it is not in it. */
bool shf_parts_remove(struct shf_parts *l, struct shf_part *part);
/* Cuts a piece of at most max bytes from a part that is in the list. */
void shf_parts_cut(struct shf_parts *l, struct shf_part *part, size_t max,
                   struct shf_piece *piece);
#endif
