/* SPDX-License-Identifier: Apache-2.0 */
/* A run's queue of requests to the disk. Saves, loads and verifications share it; each is an owner
 * of the requests that it submits. */
#ifndef SHF_RUN_IO_H
#define SHF_RUN_IO_H
#include <pthread.h>
#include <stdatomic.h>
#include "run.h"

struct shf_io_owner {           /* first member of each struct that submits requests */
	/* Called for each finished request, with io.lock of the run held; or NULL. */
	void (*done)(struct shf_io_owner *owner, struct shf_io *io);
	atomic_uint pending;            /* requests submitted and not finished */
};
/* Submits a request; owner->done, if not NULL, is called when it has finished. Returns a negative
 * errno if it could not be submitted; then done is not called. [any thread] */
int shf_io_submit(struct sheaf_run *run, struct shf_io_owner *owner, struct shf_io *io);
/* Writes the error for rc, the negative errno of a submit, and returns its code. EAGAIN means that
 * the queue could not create a thread; the message says so, because the disk is not at fault. */
int shf_submit_fail(struct sheaf_error *err, int rc, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Waits until none of the owner's requests is in flight. Returns 0, or EAGAIN when timeout_ms have
 * passed. timeout_ms 0: does not wait; negative: waits without a limit. [any thread] */
int shf_io_drain(struct sheaf_run *run, struct shf_io_owner *owner, int timeout_ms);
/* Waits until a request of any owner has finished, at most timeout_ms, and returns true. Returns
 * false at once if this owner has no request in flight. [any thread] */
bool shf_io_wait_one(struct sheaf_run *run, struct shf_io_owner *owner, int timeout_ms);
#endif
