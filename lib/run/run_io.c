/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of a run is shared by several owners: saves, loads, verifications. Only one thread at a
 * time waits for the queue. When a request finishes, that thread calls `done` of the request's
 * owner, whichever it is, and wakes the others, which check whether they can return. So no thread
 * waits for the queue while it holds the lock, and no thread can take the completion for which
 * another thread sleeps in the kernel.
 *
 * io.lock guards io.taken, io.submits and the calls of `done`. `pending` is atomic because it is
 * also read without the lock. */
#include "run_io.h"
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include "err.h"
#include "run.h"
#include "run_env.h"

/* `pending` is incremented before the request is submitted, because another thread may take the
 * finished request before the submit returns. io.submits lets a thread that just found the queue
 * empty see that a request was added since. */
int shf_io_submit(struct sheaf_run *run, struct shf_io_owner *owner, struct shf_io *io)
{
	io->user = owner;
	atomic_fetch_add(&owner->pending, 1);
	/* The lock is not held here, so that threads that take completions need not wait for the
	 * submit. */
	int rc = shf_sys_submit(run->sys, run->io.queue, io);
	pthread_mutex_lock(&run->io.lock);
	if (rc < 0)
		atomic_fetch_sub(&owner->pending, 1);
	run->io.submits++;
	pthread_cond_broadcast(&run->io.turn);
	pthread_mutex_unlock(&run->io.lock);
	return rc;
}

int shf_submit_fail(struct sheaf_error *err, int rc, const char *fmt, ...)
{
	char what[sizeof(err->msg)];
	va_list ap;

	va_start(ap, fmt);
	shf_message(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (rc == -EAGAIN)
		return shf_fail_sys(err, EAGAIN, "%s: no thread can be started for it (see ulimit "
		                    "-u and -v, and pids.max of the control group)", what);
	return shf_fail_sys(err, -rc, "%s", what);
}

/* Waits until another thread has taken a request from the queue or submitted one. Returns 1, or 0
 * when the time is up. The lock is held on entry and exit. */
static int wait_turn(struct sheaf_run *run, int timeout_ms)
{
	struct timespec until;

	if (timeout_ms < 0)
		return pthread_cond_wait(&run->io.turn, &run->io.lock) == 0;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += timeout_ms % 1000 * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000L;
	}
	return pthread_cond_timedwait(&run->io.turn, &run->io.lock, &until) == 0;
}

/* Waits for the queue and takes one finished request, as the only thread that does so (io.taken).
 * The lock is held on entry and exit, but not while waiting. Returns 1 if the caller should check
 * its condition again, 0 when the time is up. */
static int take_one(struct sheaf_run *run, int timeout_ms)
{
	uint64_t submits = run->io.submits;
	struct shf_io *io = NULL;
	int rc;

	run->io.taken = true;
	pthread_mutex_unlock(&run->io.lock);
	rc = shf_sys_complete(run->sys, run->io.queue, &io, timeout_ms);
	pthread_mutex_lock(&run->io.lock);
	run->io.taken = false;
	if (rc == 1) {
		struct shf_io_owner *of = io->user;

		if (of->done)
			of->done(of, io);
		atomic_fetch_sub(&of->pending, 1);
	}
	pthread_cond_broadcast(&run->io.turn);
	/* The queue was empty, but meanwhile another thread has submitted a request that it had
	 * already counted in `pending`. */
	if (rc == 0 && run->io.submits != submits)
		return 1;
	return rc == 0 && timeout_ms != 0 ? wait_turn(run, timeout_ms) : rc > 0;
}

/* If another thread waits for the queue, this one waits for that thread, which wakes it after each
 * request. With a timeout of 0 requests that have finished are still taken. */
int shf_io_drain(struct sheaf_run *run, struct shf_io_owner *owner, int timeout_ms)
{
	int64_t until = shf_now(run) + shf_ms_ns(timeout_ms);
	int rc = 1;

	pthread_mutex_lock(&run->io.lock);
	while (atomic_load(&owner->pending) > 0 && rc == 1) {
		int wait = timeout_ms < 0 ? -1 : shf_ms_left(run, until);

		if (!run->io.taken)
			rc = take_one(run, wait);
		else
			rc = wait == 0 ? 0 : wait_turn(run, wait);
	}
	rc = atomic_load(&owner->pending) == 0 ? 0 : SHEAF_EAGAIN;
	pthread_mutex_unlock(&run->io.lock);
	return rc;
}

/* `pending` is checked first, so that a thread never waits for a queue that has no request of its
 * owner. */
bool shf_io_wait_one(struct sheaf_run *run, struct shf_io_owner *owner, int timeout_ms)
{
	bool pending;

	pthread_mutex_lock(&run->io.lock);
	pending = atomic_load(&owner->pending) > 0;
	if (pending && !run->io.taken)
		(void)take_one(run, timeout_ms);
	else if (pending)
		(void)wait_turn(run, timeout_ms);
	pthread_mutex_unlock(&run->io.lock);
	return pending;
}
