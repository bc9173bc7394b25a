/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of a run to the disk. Several owners share it: saves, loads, verifications. */
#ifndef SHF_RUN_IO_H
#define SHF_RUN_IO_H
#include <pthread.h>
#include <stdatomic.h>
#include "run.h"

struct shf_io_owner {           /* first member of what submits requests */
	void (*done)(struct shf_io_owner *owner, struct shf_io *io);    /* under the run's lock; or
	                                                                 * NULL */
	atomic_uint pending;
};
/* Makes a condition variable that waits by the monotonic clock: the wall clock may be set while a
 * rank waits. */
void shf_io_turn_init(pthread_cond_t *turn);
/* Submits a request; owner->done, if there is one, is called when it has finished. Returns a
 * negative errno if it could not be submitted; then done is not called. [local] */
int shf_io_submit(struct sheaf_run *run, struct shf_io_owner *owner, struct shf_io *io);
/* Fails with the errno rc of a submit. EAGAIN means that the queue could not make a thread, and the
 * sentence says so, because the disk is not at fault. */
int shf_submit_fail(struct sheaf_error *err, int rc, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Until none of the owner's requests is under way: 0, or EAGAIN after timeout_ms (< 0: for ever,
 * 0: at once, whoever else waits). [any thread] */
int shf_io_drain(struct sheaf_run *run, struct shf_io_owner *owner, int timeout_ms);
/* Until some request of the run has finished, no longer than that; false, at once: the owner has
 * none. [any thread] */
bool shf_io_some(struct sheaf_run *run, struct shf_io_owner *owner, int timeout_ms);
#endif
