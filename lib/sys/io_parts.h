/* SPDX-License-Identifier: Apache-2.0 */
/* How the queue of the real machine works. queue.c splits a request into parts; a carrier, either
 * threads (pool.c) or io_uring (ring.c), cuts parts into pieces; and each piece comes back once.
 * The lock of the queue guards everything that is not said to belong to one thread.
 *
 * Q1. A part is in at most one list. A part with pieces out of which more is to be cut is the head
 *     of its list.
 * Q2. A part has come back when it is cut up completely and no piece is out. From then on only the
 *     queue touches it.
 * Q3. Neither submitting nor carrying allocates memory. */
#ifndef SHF_IO_PARTS_H
#define SHF_IO_PARTS_H
#include <pthread.h>
#include "sys_queue.h"

struct shf_parts {
	struct shf_part *head, *tail;
};

/* Bytes of a request that move in one system call. Whoever cut it may read it without the lock. */
struct shf_piece {
	struct shf_part *part;
	bool direct;
	uint8_t *buf;
	uint64_t at;
	size_t len;
};

/* What a carrier knows of its queue. */
struct shf_works {
	pthread_mutex_t lock;
	size_t piece_bytes;
	/* A piece has come back, with a count or a negative errno. Called with the lock held; drops
	 * it meanwhile if need be. */
	void (*back)(struct shf_works *w, const struct shf_piece *piece, int64_t result);
	/* This carrier cannot move the part: gives it to another one. The lock as for back. */
	void (*pass_on)(struct shf_works *w, struct shf_part *part);
};

void shf_parts_push(struct shf_parts *l, struct shf_part *part);
/* Takes the head out, no matter how much of it is left. */
struct shf_part *shf_parts_pop(struct shf_parts *l);
/* Cuts a piece of at most max bytes from the head; false if the list is empty. */
bool shf_parts_cut(struct shf_parts *l, size_t max, struct shf_piece *piece);
#endif
