/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of the real machine: threads that read, write and sync what is submitted. Always
 * true here: a request is in exactly one of todo, a thread's hands, or done; `under_way` counts
 * all three; the threads take no signals and never allocate.
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#include "mem.h"
#include "real.h"

#define THREADS_MAX 256

struct list {
	struct shf_io *head, *tail;
};

struct shf_queue {
	pthread_mutex_t lock;
	pthread_cond_t work, finished;
	struct list todo, done;         /* guarded by lock; borrowed from the submitter */
	size_t under_way;               /* guarded by lock: submitted, not yet handed back */
	bool stop;                      /* guarded by lock */
	pid_t pid;                      /* who has the threads: a forked child does not */
	int thread_n;
	pthread_t *threads;             /* owned */
};

static void list_push(struct list *l, struct shf_io *io)
{
	io->next = NULL;
	if (l->tail)
		l->tail->next = io;
	else
		l->head = io;
	l->tail = io;
}

static struct shf_io *list_pop(struct list *l)
{
	struct shf_io *io = l->head;

	if (!io)
		return NULL;
	l->head = io->next;
	if (!l->head)
		l->tail = NULL;
	io->next = NULL;
	return io;
}

static int64_t perform(const struct shf_io *io)
{
	switch (io->op) {
	case SHF_IO_READ:
		return shf_real_pread(NULL, io->fd, io->buf, io->len, io->off);
	case SHF_IO_WRITE:
		return shf_real_pwrite(NULL, io->fd, io->buf, io->len, io->off);
	case SHF_IO_FSYNC:
		return shf_real_fsync(NULL, io->fd);
	default:
		return -EINVAL;
	}
}

static void *work(void *arg)
{
	struct shf_queue *q = arg;

	pthread_mutex_lock(&q->lock);
	for (;;) {
		struct shf_io *io = list_pop(&q->todo);

		if (io) {
			pthread_mutex_unlock(&q->lock);
			io->result = perform(io);
			pthread_mutex_lock(&q->lock);
			list_push(&q->done, io);
			pthread_cond_signal(&q->finished);
		} else if (q->stop) {
			break;
		} else {
			pthread_cond_wait(&q->work, &q->lock);
		}
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

static int sync_init(struct shf_queue *q)
{
	pthread_condattr_t attr;
	int rc = pthread_condattr_init(&attr);

	if (rc)
		return rc;
	rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (!rc)
		rc = pthread_mutex_init(&q->lock, NULL);
	if (rc)
		goto out;
	rc = pthread_cond_init(&q->work, NULL);
	if (rc)
		goto out_lock;
	rc = pthread_cond_init(&q->finished, &attr);
	if (!rc)
		goto out;
	pthread_cond_destroy(&q->work);
out_lock:
	pthread_mutex_destroy(&q->lock);
out:
	pthread_condattr_destroy(&attr);
	return rc;
}

static void sync_release(struct shf_queue *q)
{
	pthread_cond_destroy(&q->finished);
	pthread_cond_destroy(&q->work);
	pthread_mutex_destroy(&q->lock);
}

/* As many as we get; one is enough to go on. */
static int threads_start(struct shf_queue *q, int n)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	rc = pthread_sigmask(SIG_SETMASK, &all, &old);
	if (rc)
		return rc;
	while (q->thread_n < n) {
		rc = pthread_create(&q->threads[q->thread_n], NULL, work, q);
		if (rc)
			break;
		q->thread_n++;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return q->thread_n ? 0 : rc;
}

int shf_real_queue_new(void *arg, struct shf_queue **queue, int threads)
{
	struct shf_queue *q;
	int rc = ENOMEM;

	(void)arg;
	if (threads < 1)
		return -EINVAL;
	if (threads > THREADS_MAX)
		threads = THREADS_MAX;
	q = shf_zalloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->pid = getpid();
	q->threads = shf_zalloc((size_t)threads, sizeof(*q->threads));
	if (!q->threads)
		goto fail;
	rc = sync_init(q);
	if (rc)
		goto fail;
	rc = threads_start(q, threads);
	if (rc) {
		sync_release(q);
		goto fail;
	}
	*queue = q;
	return 0;
fail:
	shf_free(q->threads);
	shf_free(q);
	return -rc;
}

void shf_real_queue_free(void *arg, struct shf_queue *q)
{
	(void)arg;
	if (!q)
		return;
	/* In a forked child the threads are gone and the lock is in any state: memory only. */
	if (q->pid == getpid()) {
		pthread_mutex_lock(&q->lock);
		q->stop = true;
		pthread_cond_broadcast(&q->work);
		pthread_mutex_unlock(&q->lock);
		for (int i = 0; i < q->thread_n; i++)
			pthread_join(q->threads[i], NULL);
		sync_release(q);
	}
	shf_free(q->threads);
	shf_free(q);
}

int shf_real_submit(void *arg, struct shf_queue *q, struct shf_io *io)
{
	(void)arg;
	if (q->pid != getpid())
		return -EINVAL;
	if (io->op != SHF_IO_READ && io->op != SHF_IO_WRITE && io->op != SHF_IO_FSYNC)
		return -EINVAL;
	pthread_mutex_lock(&q->lock);
	list_push(&q->todo, io);
	q->under_way++;
	pthread_cond_signal(&q->work);
	pthread_mutex_unlock(&q->lock);
	return 0;
}

void shf_real_queue_pin(void *arg, struct shf_queue *q, void *base, size_t bytes)
{
	(void)arg;
	(void)q;
	(void)base;
	(void)bytes;
}

static struct timespec deadline(int timeout_ms)
{
	int64_t at = shf_real_mono_ns(NULL) + (int64_t)timeout_ms * 1000000;

	return (struct timespec){ .tv_sec = (time_t)(at / 1000000000),
	                          .tv_nsec = (long)(at % 1000000000) };
}

int shf_real_complete(void *arg, struct shf_queue *q, struct shf_io **io, int timeout_ms)
{
	struct timespec until = deadline(timeout_ms > 0 ? timeout_ms : 0);
	int rc = 0;

	(void)arg;
	if (q->pid != getpid())
		return -EINVAL;
	pthread_mutex_lock(&q->lock);
	while (!q->done.head && q->under_way && !rc) {
		if (timeout_ms < 0)
			rc = pthread_cond_wait(&q->finished, &q->lock);
		else if (!timeout_ms)
			rc = ETIMEDOUT;
		else
			rc = pthread_cond_timedwait(&q->finished, &q->lock, &until);
	}
	if (q->done.head) {
		*io = list_pop(&q->done);
		q->under_way--;
		rc = 1;
	} else {
		rc = !q->under_way ? 0 : rc == ETIMEDOUT ? -EAGAIN : -rc;
	}
	if (!q->under_way)
		pthread_cond_broadcast(&q->finished);
	pthread_mutex_unlock(&q->lock);
	return rc;
}
