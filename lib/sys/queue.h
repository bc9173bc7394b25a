/* SPDX-License-Identifier: Apache-2.0 */
/* How the queue of the real machine works. A request is split into parts (queue.c), parts are
 * cut into pieces by who carries them: threads (pool.c) or io_uring (ring.c), and each piece
 * comes back once. One lock, the queue's, guards all that is not said to be someone's own.
 *
 * Q1. A part is in at most one list. One of which pieces are out and which is not handed out
 *     whole is the head of its list.
 * Q2. A part has come back when all of it is handed out and no piece is out. Nobody but the
 *     queue touches it then.
 * Q3. Neither submitting nor carrying allocates memory.
 */
#ifndef SHF_QUEUE_H
#define SHF_QUEUE_H
#include <pthread.h>
#include "real.h"

struct shf_parts {
	struct shf_part *head, *tail;
};

/* Bytes of a request that move in one go. Whoever cut it may read it without the lock. */
struct shf_piece {
	struct shf_part *part;
	bool direct;
	uint8_t *buf;
	uint64_t at;
	size_t len;
};

/* What carriers know of their queue. */
struct shf_works {
	pthread_mutex_t lock;
	size_t piece_bytes;
	/* A piece is back, with a count or a negative errno; the lock is held, but may be dropped
	 * meanwhile. */
	void (*back)(struct shf_works *w, const struct shf_piece *piece, int64_t result);
	/* Nobody here carries this part: another does. In the same manner. */
	void (*pass_on)(struct shf_works *w, struct shf_part *part);
};

void shf_parts_push(struct shf_parts *l, struct shf_part *part);
/* Takes the head out, whatever is left of it. */
struct shf_part *shf_parts_pop(struct shf_parts *l);
/* A piece from the head; false: the list is empty. */
bool shf_parts_cut(struct shf_parts *l, size_t max, struct shf_piece *piece);

/* Does the kernel refuse direct I/O of this file, as opposed to an error of the disk? */
bool shf_direct_is_refused(int64_t result);

/* A thread that takes no signals. 0 or a positive errno. */
int shf_thread_start(pthread_t *thread, void *(*work)(void *arg), void *arg);

/* Threads. Started when there is something to do, no more than that takes. All calls but init
 * and release with the lock held. */
struct shf_pool {
	struct shf_works *works;        /* borrowed */
	pthread_cond_t work;
	struct shf_parts todo;
	size_t todo_n;                  /* pieces in it, about */
	pthread_t *threads;             /* owned */
	int thread_n, thread_max;
	int waiting, fresh;             /* threads at rest, threads that have not begun */
	bool stop;
};
int shf_pool_init(struct shf_pool *pool, struct shf_works *works, int threads);
/* Joins the threads; ours false: in a forked child, where there are none. */
void shf_pool_release(struct shf_pool *pool, bool ours);
/* 0 once there is a thread, else a positive errno. */
int shf_pool_ready(struct shf_pool *pool);
/* Carried by the caller, lock dropped meanwhile, where no thread can be had. */
void shf_pool_push(struct shf_pool *pool, struct shf_part *part);

/* io_uring, with a thread of its own, which alone speaks to it: completions never interrupt
 * the caller's threads, and what waits for room goes on while nobody calls. Set up by the first
 * push. Only direct parts. */
struct shf_ring;
struct shf_ring *shf_ring_new(struct shf_works *works, int depth); /* NULL: none here */
void shf_ring_free(struct shf_ring *ring, bool ours);
/* With the lock held. Negative errno: the part is not the ring's, nor will any later one be. */
int shf_ring_push(struct shf_ring *ring, struct shf_part *part);
/* With the lock held. What is left of the head (Q1) is not wanted any more. */
void shf_ring_drop(struct shf_ring *ring);
bool shf_ring_is_up(const struct shf_ring *ring);
/* With the lock held, which is dropped while an earlier stretch is let go. */
void shf_ring_pin(struct shf_ring *ring, int i, void *base, size_t bytes);
#endif
