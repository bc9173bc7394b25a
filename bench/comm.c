/* SPDX-License-Identifier: Apache-2.0 */
/* Communication between ranks outside the library, each call with a deadline */
#include "bench.h"

#include <limits.h>
#include <sched.h>
#include <string.h>
#include <time.h>

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Tests with sleeps that grow to 1 ms: MPI has no timed wait, and two cores may run 8 ranks. */
static int await(const struct bench_comm *c, MPI_Request *req, int started,
		 struct sheaf_error *err)
{
	int64_t end = now_ns() + (int64_t)c->timeout_ms * 1000000;
	long sleep_ns = 10000;
	int done = 0;

	while (started == MPI_SUCCESS) {
		struct timespec ts = { .tv_nsec = sleep_ns };

		if (MPI_Test(req, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
			break;
		if (done)
			return 0;
		if (now_ns() > end)
			return wl_fail(err, SHEAF_ELOST, "a rank did not answer within %d ms, and "
			               "the others cannot tell which; see the log of MPI, or raise "
			               "--timeout-ms",
				       c->timeout_ms);
		nanosleep(&ts, NULL);
		sleep_ns = sleep_ns < 500000 ? sleep_ns * 2 : 1000000;
	}
	return wl_fail(err, SHEAF_ELOST, "MPI lost a rank");
}

int bench_reduce(const struct bench_comm *c, uint64_t *x, int n, MPI_Op op, struct sheaf_error *err)
{
	MPI_Request req;
	int started = MPI_Iallreduce(MPI_IN_PLACE, x, n, MPI_UINT64_T, op, c->comm, &req);

	return await(c, &req, started, err);
}

/* Polls, as MPI does in a trainer: a sleep here would be part of every step. It yields to others
 * that need the core. */
int bench_sum(const struct bench_comm *c, float *x, size_t n, struct sheaf_error *err)
{
	int64_t end = now_ns() + (int64_t)c->timeout_ms * 1000000;
	MPI_Request req;
	int done = 0;

	if (n > INT_MAX)
		return wl_fail(err, SHEAF_EINVAL, "%zu gradients are more than MPI counts", n);
	if (MPI_Iallreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, c->comm, &req) !=
	    MPI_SUCCESS)
		return wl_fail(err, SHEAF_ELOST, "MPI lost a rank");
	while (MPI_Test(&req, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
		if (now_ns() > end)
			return wl_fail(err, SHEAF_ELOST, "a rank did not answer within %d ms, and "
				       "the others cannot tell which; see the log of MPI, or raise "
				       "--timeout-ms", c->timeout_ms);
		sched_yield();
	}
	return done ? 0 : wl_fail(err, SHEAF_ELOST, "MPI lost a rank");
}

int bench_barrier(const struct bench_comm *c, struct sheaf_error *err)
{
	MPI_Request req;
	int started = MPI_Ibarrier(c->comm, &req);

	return await(c, &req, started, err);
}

int bench_agree(const struct bench_comm *c, int code, struct sheaf_error *err)
{
	struct sheaf_error told;
	uint64_t worst, key = 0;
	MPI_Request req;
	int started, rc, who;

	memset(&told, 0, sizeof(told));
	if (code == SHEAF_ELOST)
		return code; /* the others may be gone */
	/* The worst code wins; among ranks with the same code, the lowest rank. */
	if (code)
		key = (uint64_t)(code > 0 ? 1000 : -code) << 32 | (uint32_t)(c->ranks - c->rank);
	worst = key;
	rc = bench_reduce(c, &worst, 1, MPI_MAX, err);
	if (rc < 0 || !worst)
		return rc;
	who = c->ranks - (int)(uint32_t)worst;
	if (who == c->rank) {
		told = *err;
		told.code = code;
		if (told.rank < 0)
			told.rank = who;
	}
	started = MPI_Ibcast(&told, (int)sizeof(told), MPI_BYTE, who, c->comm, &req);
	rc = await(c, &req, started, err);
	if (rc < 0)
		return rc;
	*err = told;
	return told.code;
}
