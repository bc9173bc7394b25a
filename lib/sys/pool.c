/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that read, write and sync. Invariants: the threads take no signals and never allocate; a
 * thread is started only if there are more pieces to carry than idle threads; no two threads write
 * through the page cache into one file at the same time, because the kernel has a lock of each file
 * for that, for which the second one would wait and use a processor meanwhile. */
#include <errno.h>
#include <signal.h>
#include <unistd.h>
#include "mem.h"
#include "pool.h"
#include "posix.h"
#include "thread.h"

#define EAGAIN_MAX 8            /* how often calls for one piece may return EAGAIN */

/* Moves as much as direct I/O can, and returns the count or a negative errno. It stops at an
 * unaligned count; the queue repeats the rest through the page cache. */
static int64_t move_direct(const struct shf_io *io, const struct shf_piece *p)
{
	size_t done = 0;
	int again = 0;

	while (done < p->len && done % SHF_ALIGN == 0) {
		size_t n = p->len - done;
		off_t at = (off_t)(p->at + done);
		ssize_t got = io->op == SHF_IO_READ ? pread(io->direct, p->buf + done, n, at)
		                                    : pwrite(io->direct, p->buf + done, n, at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN && ++again < EAGAIN_MAX)
			continue;
		if (got < 0)
			return -errno;
		if (!got)
			break;
		done += (size_t)got;
	}
	return (int64_t)done;
}

/* Makes the system calls of one piece, without the lock. Returns the result for
 * shf_queue_shared.back. */
static int64_t carry(const struct shf_piece *p)
{
	const struct shf_io *io = p->part->io;

	if (io->op == SHF_IO_FSYNC)
		return shf_real_fsync(NULL, io->fd);
	if (io->op == SHF_IO_RESIZE)
		return shf_real_resize(NULL, io->fd, io->len);
	if (p->direct)
		return move_direct(io, p);
	if (io->op == SHF_IO_READ)
		return shf_real_pread(NULL, io->fd, p->buf, p->len, p->at);
	return shf_real_pwrite(NULL, io->fd, p->buf, p->len, p->at);
}

/* A write through the page cache that is under way. */
struct shf_pool_write {
	int fd;
	struct shf_pool_write *next;
};

static bool writes_cached(const struct shf_part *part)
{
	return part->io->op == SHF_IO_WRITE && !part->direct;
}

/* Returns the first part of the list of which a piece may be carried now; NULL: there is none. */
static struct shf_part *first_ready(const struct shf_pool *pool)
{
	for (struct shf_part *p = pool->todo.head; p; p = p->next) {
		const struct shf_pool_write *w = writes_cached(p) ? pool->writes : NULL;

		while (w && w->fd != p->io->fd)
			w = w->next;
		if (!w)
			return p;
	}
	return NULL;
}

static void write_is_over(struct shf_pool *pool, struct shf_pool_write *own)
{
	struct shf_pool_write **at = &pool->writes;

	while (*at != own)
		at = &(*at)->next;
	*at = own->next;
	/* This thread may take a part of another file next, so one that waits may take this one. */
	if (pool->waiting && pool->todo.head)
		pthread_cond_signal(&pool->work);
}

/* Cuts one piece and moves it; the lock is dropped during the system calls. Returns false if there
 * is no piece to cut, or other threads are writing to the files of all that are left. */
static bool pool_move_piece(struct shf_pool *pool)
{
	struct shf_queue_shared *w = pool->works;
	struct shf_part *part = first_ready(pool);
	struct shf_pool_write own = { .next = pool->writes };
	struct shf_piece p;
	int64_t result;

	/* todo_n is too high after an error, because the dropped pieces were counted. */
	if (!pool->todo.head)
		pool->todo_n = 0;
	if (!part)
		return false;
	shf_parts_cut(&pool->todo, part, w->piece_bytes, &p);
	if (pool->todo_n)
		pool->todo_n--;
	if (writes_cached(part)) {
		own.fd = part->io->fd;
		pool->writes = &own;
	}
	pthread_mutex_unlock(&w->lock);
	result = carry(&p);
	pthread_mutex_lock(&w->lock);
	if (writes_cached(part))
		write_is_over(pool, &own);
	w->back(w, &p, result);
	return true;
}

/* A thread of the pool. When the pool is stopped, it first finishes what is in the list. */
static void *pool_run(void *arg)
{
	struct shf_pool *pool = arg;

	pthread_mutex_lock(&pool->works->lock);
	pool->fresh--;
	for (;;) {
		if (pool_move_piece(pool))
			continue;
		if (pool->stop)
			break;
		pool->waiting++;
		pthread_cond_wait(&pool->work, &pool->works->lock);
		pool->waiting--;
	}
	pthread_mutex_unlock(&pool->works->lock);
	return NULL;
}

/* Returns 0 or a positive errno. */
static int start_one(struct shf_pool *pool)
{
	int rc = shf_thread_start(&pool->threads[pool->thread_n], pool_run, pool);

	if (rc)
		return rc;
	pool->thread_n++;
	pool->fresh++;
	return 0;
}

int shf_pool_ready(struct shf_pool *pool)
{
	return pool->thread_n ? 0 : start_one(pool);
}

/* Starts threads only while fewer of them are idle than there are pieces in the list: small
 * requests then share one thread, and a large one gets all. If no thread can be started, the
 * caller's thread does the work here; that is slow but makes progress. */
void shf_pool_push(struct shf_pool *pool, struct shf_part *part)
{
	size_t n = (size_t)((part->end - part->at - 1) / pool->works->piece_bytes) + 1;

	shf_parts_push(&pool->todo, part);
	pool->todo_n += n;
	if (n > 1)
		pthread_cond_broadcast(&pool->work);
	else
		pthread_cond_signal(&pool->work);
	while (pool->thread_n < pool->thread_max &&
	       (size_t)(pool->waiting + pool->fresh) < pool->todo_n)
		if (start_one(pool))
			break;
	while (!pool->thread_n && pool_move_piece(pool))
		;
}

int shf_pool_init(struct shf_pool *pool, struct shf_queue_shared *works, int threads)
{
	int rc;

	*pool = (struct shf_pool){ .works = works, .thread_max = threads };
	pool->threads = shf_zalloc((size_t)threads, sizeof(*pool->threads));
	if (!pool->threads)
		return -ENOMEM;
	rc = pthread_cond_init(&pool->work, NULL);
	if (rc) {
		shf_free(pool->threads);
		pool->threads = NULL;
	}
	return -rc;
}

/* The threads first finish what is in the list (pool_run). */
void shf_pool_release(struct shf_pool *pool, bool ours)
{
	if (ours) {
		pthread_mutex_lock(&pool->works->lock);
		pool->stop = true;
		pthread_cond_broadcast(&pool->work);
		pthread_mutex_unlock(&pool->works->lock);
		for (int i = 0; i < pool->thread_n; i++)
			pthread_join(pool->threads[i], NULL);
		pthread_cond_destroy(&pool->work);
	}
	shf_free(pool->threads);
}
