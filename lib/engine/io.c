/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of several owners share a run's queue; whoever waits takes what has finished, his or
 * not, and tells its owner. */
#include "err.h"
#include "run.h"

int shf_io_submit(struct sheaf_run *run, struct shf_io_owner *owner, struct shf_io *io)
{
	io->user = owner;
	atomic_fetch_add(&owner->pending, 1);
	int rc = run->sys->ops->submit(run->sys->arg, run->queue, io);
	if (rc < 0)
		atomic_fetch_sub(&owner->pending, 1);
	return rc;
}

int shf_io_drain(struct sheaf_run *run, struct shf_io_owner *owner, int timeout_ms)
{
	int64_t until = shf_now(run) + (int64_t)timeout_ms * 1000000;
	int rc = 1;

	pthread_mutex_lock(&run->in_lock);
	while (atomic_load(&owner->pending) > 0 && rc == 1) {
		int64_t left = (until - shf_now(run)) / 1000000;
		struct shf_io *io;

		rc = run->sys->ops->complete(run->sys->arg, run->queue, &io,
		                             timeout_ms < 0 ? -1 : left > 0 ? (int)left : 0);
		if (rc == 1) {
			struct shf_io_owner *of = io->user;

			of->done(of, io);
			atomic_fetch_sub(&of->pending, 1);
		}
	}
	rc = atomic_load(&owner->pending) == 0 ? 0 : SHEAF_EAGAIN;
	pthread_mutex_unlock(&run->in_lock);
	return rc;
}
