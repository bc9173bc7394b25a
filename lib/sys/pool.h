/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads as the carrier of parts (io_parts.h). A thread is started when there is a piece
 * that no idle thread can take. All calls but init and release are made with the queue's lock held,
 * which guards the members. */
#ifndef SHF_POOL_H
#define SHF_POOL_H
#include "io_parts.h"

struct shf_pool_write;

struct shf_pool {
	struct shf_queue_shared *works;        /* borrowed */
	pthread_cond_t work;            /* todo got a part, or stop was set */
	struct shf_parts todo;          /* parts from which pieces are to be cut */
	size_t todo_n;                  /* pieces in todo, roughly */
	struct shf_pool_write *writes;  /* what is being written through the page cache; each item
	                                 * lies on the stack of its thread */
	pthread_t *threads;             /* owned */
	int thread_n, thread_max;
	int waiting, fresh;             /* idle threads; threads started but not yet running */
	bool stop;
};
/* Returns 0 or a negative errno. */
int shf_pool_init(struct shf_pool *pool, struct shf_queue_shared *works, int threads);
/* Joins the threads. ours: false in a forked child, where they do not exist. */
void shf_pool_release(struct shf_pool *pool, bool ours);
/* Makes sure that the pool has a thread. Returns 0 or a positive errno. */
int shf_pool_ready(struct shf_pool *pool);
/* Gives a part to the threads. If the pool has none and cannot start one, the calling thread
 * carries the part and drops the lock during system calls. */
void shf_pool_push(struct shf_pool *pool, struct shf_part *part);
#endif
