/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of the real machine. It splits a request into the part that can bypass the page cache
 * and the edges that cannot, gives each part to a carrier (io_parts.h), and joins the results.
 * Invariants: a request is with the carriers until all of its `left` parts have come back, and in
 * the list `done` from then until complete returns it; `under_way` counts both. */
#include "queue.h"
#include "host.h"
#include "pool.h"
#include "ring.h"
#include "thread.h"
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "mem.h"

#define THREADS_MAX 256
#define DEPTH 16                /* pieces in the ring at a time; the default */
#define DEPTH_MAX 1024
#define PIECE_BYTES ((size_t)8 << 20)           /* the default */
#define PIECE_BYTES_MAX ((size_t)1 << 30)       /* the ring has lengths of 32 bits */

struct shf_queue {
	struct shf_queue_shared works;  /* first: a pointer to it is one to the queue. Its lock
	                                 * guards what follows */
	pthread_cond_t finished;        /* a request was added to done, or none is under way */
	struct shf_io *done, **done_end; /* finished requests, oldest first; borrowed from the
	                                  * submitter */
	size_t under_way;               /* requests submitted and not yet returned by complete */
	size_t carried;                 /* requests under way that are not in done */
	struct shf_queue_stat stat;
	struct shf_pool pool;
	struct shf_ring *ring;          /* owned; NULL: threads carry all requests */
	bool buffered;                  /* never use direct I/O */
	pid_t pid;                      /* the process that made the queue; a forked child has none
	                                 * of its threads */
};

/* File systems refuse direct I/O in different ways, and some only at the first transfer. ENOMEM and
 * EAGAIN are in the list because the page cache may still have the means that direct I/O lacks. */
bool shf_direct_is_refused(int64_t result)
{
	return result == -EINVAL || result == -EOPNOTSUPP || result == -EAGAIN ||
	       result == -ENOMEM;
}

/* Finishes a request of which all parts are back: sets its result and puts it in done, for the next
 * call of complete. The lock is held. */
static void request_finish(struct shf_queue *q, struct shf_io *io)
{
	io->result = io->error ? io->error : (int64_t)(io->reached - io->off);
	if (!shf_io_moves(io->op))
		io->result = io->error;
	io->done_ns = shf_real_mono_ns(NULL);
	io->next = NULL;
	*q->done_end = io;
	q->done_end = &io->next;
	q->carried--;
	pthread_cond_broadcast(&q->finished);
}

/* Gives a part to the ring if it is direct and the ring takes it, else to the threads. The lock is
 * held. */
static void queue_push_part(struct shf_queue *q, struct shf_part *part)
{
	if (part->direct && q->ring && !shf_ring_push(q->ring, part))
		return;
	shf_pool_push(&q->pool, part);
}

/* After an error, no more pieces of this part are cut. Pieces that are out still come back. */
static void abandon(struct shf_queue *q, struct shf_part *part)
{
	if (part->at == part->end)
		return;
	part->at = part->end;
	/* The part is not cut up completely, so it is still in the list of its carrier (Q1). */
	if (!shf_parts_remove(&q->pool.todo, part))
		shf_ring_drop(q->ring, part);
}

/* Widens the range of the part that is to be repeated through the page cache. */
static void redo(struct shf_part *part, uint64_t at, uint64_t end)
{
	if (part->redo_at == part->redo_end) {
		part->redo_at = at;
		part->redo_end = end;
		return;
	}
	part->redo_at = at < part->redo_at ? at : part->redo_at;
	part->redo_end = end > part->redo_end ? end : part->redo_end;
}

/* Handles a direct piece that has come back. What a short transfer left is repeated through the
 * page cache, because direct I/O cannot tell whether it stopped at the end of the file. If the
 * kernel refuses direct I/O, all that is left of the part goes through the page cache. */
static void back_direct(struct shf_queue *q, const struct shf_piece *p, int64_t result)
{
	struct shf_part *part = p->part;

	if (result >= 0) {
		q->stat.direct_bytes += (uint64_t)result;
		if ((uint64_t)result < p->len)
			redo(part, p->at + (uint64_t)result, p->at + p->len);
	} else if (shf_direct_is_refused(result)) {
		/* The range is still empty at the first refusal, so a part counts once. */
		q->stat.refused += part->redo_at == part->redo_end;
		redo(part, p->at, part->end);
		abandon(q, part);
	} else {
		part->io->error = (int)result;
		abandon(q, part);
	}
}

/* Handles a piece that went through the page cache and has come back. A short read shows the end of
 * the file; the request ends at the lowest such place of all its pieces. */
static void back_buffered(struct shf_queue *q, const struct shf_piece *p, int64_t result)
{
	struct shf_io *io = p->part->io;

	if (result < 0) {
		io->error = (int)result;
		abandon(q, p->part);
	} else if (shf_io_moves(io->op)) {
		q->stat.buffered_bytes += (uint64_t)result;
		if ((uint64_t)result < p->len && p->at + (uint64_t)result < io->reached)
			io->reached = p->at + (uint64_t)result;
	}
}

/* Called by a carrier that has finished a piece. When the last piece of a part is back, the part is
 * either repeated through the page cache or done; when the last part is done, so is the request.
 * The lock is held (io_parts.h). */
static void back(struct shf_queue_shared *w, const struct shf_piece *p, int64_t result)
{
	struct shf_queue *q = (struct shf_queue *)w;
	struct shf_part *part = p->part;
	struct shf_io *io = part->io;

	part->out--;
	if (p->direct)
		back_direct(q, p, result);
	else
		back_buffered(q, p, result);
	if (part->out || part->at < part->end)
		return;
	if (part->redo_at < part->redo_end && !io->error) {
		part->direct = false;
		part->at = part->redo_at;
		part->end = part->redo_end;
		part->redo_at = part->redo_end = 0;
		queue_push_part(q, part);
		return;
	}
	if (!--io->left)
		request_finish(q, io);
}

/* Gives the threads a part that the ring cannot carry. */
static void pass_on(struct shf_queue_shared *w, struct shf_part *part)
{
	shf_pool_push(&((struct shf_queue *)w)->pool, part);
}

/* Returns whether the range fits the kernel's signed 64-bit offsets. */
static bool request_range_fits(const struct shf_io *io)
{
	return io->len <= INT64_MAX && io->off <= (uint64_t)INT64_MAX - io->len;
}

static void request_add_part(struct shf_io *io, uint64_t at, uint64_t end, bool direct)
{
	if (at < end)
		io->part[io->left++] =
			(struct shf_part){ .io = io, .at = at, .end = end, .direct = direct };
}

/* Divides a request into at most three parts: the aligned middle, which uses direct I/O, and its
 * two edges, which go through the page cache. If no direct I/O is possible, the request is one
 * part. The kernel demands that buffer and offset are both aligned, so they must agree modulo the
 * alignment. A request of 0 bytes or with a range that cannot be has no part. */
static void split(const struct shf_queue *q, struct shf_io *io)
{
	uint64_t end = io->off + io->len, lo, hi;

	io->left = 0;
	io->error = 0;
	io->reached = end;
	if (!shf_io_moves(io->op)) {
		request_add_part(io, 0, 1, false);
		return;
	}
	if (!request_range_fits(io)) {
		io->error = io->op == SHF_IO_READ ? -EINVAL : -EFBIG;
		return;
	}
	lo = (io->off + SHF_ALIGN - 1) / SHF_ALIGN * SHF_ALIGN;
	hi = end / SHF_ALIGN * SHF_ALIGN;
	if (io->direct <= 0 || q->buffered || lo >= hi ||
	    ((uintptr_t)io->buf - io->off) % SHF_ALIGN) {
		request_add_part(io, io->off, end, false);
		return;
	}
	request_add_part(io, lo, hi, true);     /* the longest part first */
	request_add_part(io, io->off, lo, false);
	request_add_part(io, hi, end, false);
}

/* A forked child is refused: it has none of the threads, and a thread of the parent may have held
 * the lock at the fork, so that it is never free in the child. */
static int real_submit(void *arg, struct shf_queue *q, struct shf_io *io)
{
	uint32_t n;
	int rc;

	(void)arg;
	if (q->pid != getpid())
		return -EINVAL;
	if (!shf_io_moves(io->op) && io->op != SHF_IO_FSYNC && io->op != SHF_IO_RESIZE)
		return -EINVAL;
	/* The open of the second descriptor failed, and the caller did not notice. */
	if (io->direct < 0)
		return -EBADF;
	pthread_mutex_lock(&q->works.lock);
	split(q, io);
	n = io->left;
	/* The thread is started before the request is accepted. If that fails, the caller still
	 * owns the request and gets the error. */
	rc = n && (!io->part[0].direct || n > 1 || !q->ring) ? shf_pool_ready(&q->pool) : 0;
	if (!rc) {
		q->under_way++;
		q->carried++;
		for (uint32_t i = 0; i < n; i++)
			queue_push_part(q, &io->part[i]);
		if (!n)
			request_finish(q, io);
	}
	pthread_mutex_unlock(&q->works.lock);
	return -rc;
}

/* Returns the time at which a wait ends, by the monotonic clock, which the condition variable
 * uses. */
static struct timespec deadline(int timeout_ms)
{
	int64_t at = shf_real_mono_ns(NULL) + shf_ms_ns(timeout_ms);

	return (struct timespec){ .tv_sec = (time_t)(at / 1000000000),
	                          .tv_nsec = (long)(at % 1000000000) };
}

/* Waits for a finished request. If several threads wait and the last request is taken by one of
 * them, the others are woken so that they can return 0. */
static int real_complete(void *arg, struct shf_queue *q, struct shf_io **io, int timeout_ms)
{
	struct timespec until = deadline(timeout_ms > 0 ? timeout_ms : 0);
	int rc = 0;

	(void)arg;
	if (q->pid != getpid())
		return -EINVAL;
	pthread_mutex_lock(&q->works.lock);
	while (!q->done && q->under_way && !rc) {
		if (timeout_ms < 0)
			rc = pthread_cond_wait(&q->finished, &q->works.lock);
		else if (!timeout_ms)
			rc = ETIMEDOUT;
		else
			rc = pthread_cond_timedwait(&q->finished, &q->works.lock, &until);
	}
	if (q->done) {
		*io = q->done;
		q->done = (*io)->next;
		if (!q->done)
			q->done_end = &q->done;
		(*io)->next = NULL;
		q->under_way--;
		rc = 1;
	} else {
		rc = !q->under_way ? 0 : rc == ETIMEDOUT ? -EAGAIN : -rc;
	}
	if (!q->under_way)
		pthread_cond_broadcast(&q->finished);
	pthread_mutex_unlock(&q->works.lock);
	return rc;
}

/* A hint, so a queue without a ring does nothing. */
static void real_queue_pin(void *arg, struct shf_queue *q, int i, void *base, size_t bytes)
{
	(void)arg;
	if (q->pid != getpid() || !q->ring || i < 0 || i >= SHF_PINS)
		return;
	pthread_mutex_lock(&q->works.lock);
	shf_ring_pin(q->ring, i, base, base ? bytes : 0);
	pthread_mutex_unlock(&q->works.lock);
}

/* A forked child gets zeros: it cannot take the lock. */
static void real_queue_stat(void *arg, struct shf_queue *q, struct shf_queue_stat *stat)
{
	(void)arg;
	memset(stat, 0, sizeof(*stat));
	if (q->pid != getpid())
		return;
	pthread_mutex_lock(&q->works.lock);
	*stat = q->stat;
	stat->ring = q->ring && shf_ring_is_up(q->ring);
	pthread_mutex_unlock(&q->works.lock);
}

static int sync_init(struct shf_queue *q)
{
	int rc = pthread_mutex_init(&q->works.lock, NULL);

	if (rc)
		return -rc;
	rc = shf_cond_init(&q->finished);
	if (rc)
		pthread_mutex_destroy(&q->works.lock);
	return -rc;
}

static void sync_release(struct shf_queue *q)
{
	pthread_cond_destroy(&q->finished);
	pthread_mutex_destroy(&q->works.lock);
}

/* Without io_uring, or without memory for it, q->ring is NULL and threads carry all requests. */
int shf_real_queue_make(struct shf_queue **queue, int threads, const struct shf_queue_how *how)
{
	size_t piece = how->piece_bytes ? how->piece_bytes : PIECE_BYTES;
	int depth = how->depth ? how->depth : DEPTH, rc;
	struct shf_queue *q;

	if (threads < 1 || depth < 1 || piece % SHF_ALIGN || piece > PIECE_BYTES_MAX)
		return -EINVAL;
	q = shf_zalloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->pid = getpid();
	q->buffered = how->carrier == SHF_CARRY_BUFFERED;
	q->done_end = &q->done;
	q->works.piece_bytes = piece;
	q->works.back = back;
	q->works.pass_on = pass_on;
	rc = sync_init(q);
	if (rc)
		goto fail;
	rc = shf_pool_init(&q->pool, &q->works, threads < THREADS_MAX ? threads : THREADS_MAX);
	if (rc)
		goto fail_sync;
	if (how->carrier == SHF_CARRY_BEST)
		q->ring = shf_ring_new(&q->works, depth < DEPTH_MAX ? depth : DEPTH_MAX);
	*queue = q;
	return 0;
fail_sync:
	sync_release(q);
fail:
	shf_free(q);
	return rc;
}

static int real_queue_new(void *arg, struct shf_queue **queue, int threads)
{
	struct shf_queue_how how = { .carrier = SHF_CARRY_BEST };

	(void)arg;
	return shf_real_queue_make(queue, threads, &how);
}

/* Waits for requests that are under way, because their buffers belong to the caller and may be
 * freed after this. In a forked child the threads do not exist and the lock is in an unknown state,
 * so only memory is freed. */
static void real_queue_free(void *arg, struct shf_queue *q)
{
	bool ours;

	(void)arg;
	if (!q)
		return;
	ours = q->pid == getpid();
	if (ours) {
		pthread_mutex_lock(&q->works.lock);
		while (q->carried)
			pthread_cond_wait(&q->finished, &q->works.lock);
		pthread_mutex_unlock(&q->works.lock);
	}
	shf_ring_free(q->ring, ours);
	shf_pool_release(&q->pool, ours);
	if (ours)
		sync_release(q);
	shf_free(q);
}

const struct shf_queue_ops shf_real_queue = {
	.queue_new = real_queue_new,
	.queue_free = real_queue_free,
	.submit = real_submit,
	.complete = real_complete,
	.queue_pin = real_queue_pin,
	.queue_stat = real_queue_stat,
};
