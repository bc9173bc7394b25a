/* SPDX-License-Identifier: Apache-2.0 */
/* The carrier that is a pool of threads. Threads are started when there is work for them, never
 * more than that. All calls but init and release are made with the lock held. */
#ifndef SHF_POOL_H
#define SHF_POOL_H
#include "io_parts.h"

struct shf_pool {
	struct shf_works *works;        /* borrowed */
	pthread_cond_t work;
	struct shf_parts todo;
	size_t todo_n;                  /* pieces in it, about */
	pthread_t *threads;             /* owned */
	int thread_n, thread_max;
	int waiting, fresh;             /* idle threads; started ones that do not run yet */
	bool stop;
};
int shf_pool_init(struct shf_pool *pool, struct shf_works *works, int threads);
/* Joins the threads. ours: false in a forked child, where they do not exist. */
void shf_pool_release(struct shf_pool *pool, bool ours);
/* Returns 0 once there is a thread, else a positive errno. */
int shf_pool_ready(struct shf_pool *pool);
/* If no thread can be started, the caller's carries the part, with the lock dropped meanwhile. */
void shf_pool_push(struct shf_pool *pool, struct shf_part *part);
#endif
