/* SPDX-License-Identifier: Apache-2.0 */
/* Reads with retries, and the ring (read_ring.h). The ring submits reads before it waits: while the
 * caller checks and copies one buffer, the disk fills the others. The oldest read is always taken
 * next, so the caller gets the bytes in the order in which it described the reads. */
#include "read_ring.h"
#include <errno.h>
#include "run.h"
#include "run_env.h"

int64_t shf_read_now(const struct shf_sys *sys, int fd, void *to, uint64_t n, uint64_t off,
                     bool once, uint64_t *retries)
{
	int64_t got = shf_sys_read(sys, fd, to, (size_t)n, off, once);

	for (int tries = 1; got == -EIO && tries < SHF_READ_TRIES; tries++) {
		if (retries)
			++*retries;
		got = shf_sys_read(sys, fd, to, (size_t)n, off, once);
	}
	return got;
}

int shf_read_start(struct sheaf_run *run, struct shf_read *r)
{
	r->req.op = SHF_IO_READ;
	r->rc = shf_io_submit(run, &r->io, &r->req);
	return r->rc;
}

void shf_read_drop(struct sheaf_run *run, struct shf_read *r)
{
	(void)shf_io_drain(run, &r->io, -1);
}

/* If a read cannot be submitted again, there are no more retries: r->rc < 0 shows that the disk is
 * not at fault. */
int64_t shf_read_wait(struct sheaf_run *run, struct shf_read *r, uint64_t *retries)
{
	int64_t got = -EIO;

	for (int tries = 1; ; tries++) {
		if (r->rc < 0)
			return r->rc;
		/* If the queue itself fails, the request has no result. */
		got = shf_io_drain(run, &r->io, -1) < 0 ? -EIO : r->req.result;
		if (got != -EIO || tries == SHF_READ_TRIES)
			return got;
		++*retries;
		(void)shf_read_start(run, r);
	}
}

/* Reads are submitted for all free buffers before the oldest read is waited for; that keeps the
 * disk busy. A failure of `next` is returned at once, with reads still in flight, for which
 * shf_read_ring_drop() waits. */
int shf_read_ring_turn(struct shf_read_ring *g, struct sheaf_error *err)
{
	struct shf_read *r;
	int64_t from, got;
	int rc = 1;

	while (rc == 1 && g->head - g->tail < g->n) {
		r = &g->reads[g->head % g->n];
		rc = g->next(g->arg, r, err);
		if (rc == 1)
			(void)shf_read_start(g->run, r);
		g->head += rc == 1;
	}
	if (rc < 0 || g->head == g->tail)
		return rc < 0 ? rc : 0;
	r = &g->reads[g->tail++ % g->n];
	from = shf_now(g->run);
	got = shf_read_wait(g->run, r, &g->retries);
	g->wait_ns += shf_now(g->run) - from;
	if (r->timed)
		shf_read_trial_done(&g->trial, shf_now(g->run));
	rc = g->took(g->arg, r, got, err);
	return rc < 0 ? rc : 1;
}

void shf_read_ring_drop(struct shf_read_ring *g)
{
	for (; g->tail < g->head; g->tail++)
		shf_read_drop(g->run, &g->reads[g->tail % g->n]);
}
