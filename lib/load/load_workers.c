/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that are in memory already, in an agent or in the page cache, are copied and checked by
 * several worker threads: there is no disk to wait for, and one core cannot copy and sum as fast as
 * the memory delivers. Each worker takes one segment after the other. The caller's thread is a
 * worker, too, when it has no other work.
 *
 * Workers share only the number of the next segment and two more atomic members, so they need no
 * lock. Each has a pass, counters and an error of its own; sums by tensor are added atomically. */
#include "load_workers.h"
#include "background.h"
#include "err.h"
#include "load.h"
#include "load_common.h"
#include "load_read.h"
#include "memory_dir.h"
#include "step.h"
#include "work.h"

#define MAP_CHUNK (UINT64_C(2) << 20)           /* bytes whose pages are mapped by one call */
#define CACHE_CHUNK (UINT64_C(256) << 10)       /* bytes checked at once; they fit a core's cache */

/* One worker. Until its thread is stopped, only that thread uses this struct. */
struct worker {
	struct shf_load_workers *crew;
	struct shf_load ld;             /* a copy of the load, with a pass of its own */
	struct shf_background task;     /* its thread; not used in workers[0], which is the caller's
	                                 * thread */
	uint8_t *buf;                   /* owned; CACHE_CHUNK bytes of a file; NULL: all of the step
	                                 * is in memory of a view */
	struct sheaf_error err;
	size_t bad;                     /* index in segs of the segment that failed with err;
	                                 * SIZE_MAX: none has failed */
};
/* All workers of a load. They share the atomic members. */
struct shf_load_workers {
	struct worker *workers;         /* owned; n of them */
	int n;                          /* number of workers; workers[0] belongs to the caller's
	                                 * thread */
	const size_t *segs;             /* borrowed; `end` indices into work.segs */
	size_t end;
	atomic_size_t next;             /* the next index in segs to take */
	atomic_uint_fast64_t done;      /* bytes of the segments that were taken */
	atomic_bool failed;             /* a worker has failed; the others then stop */
};

/* Copies and checks n bytes of a segment from offset `at`, in pieces that fit into the core's
 * cache. held: their address in memory of a view; NULL: they are read from the file, which is in
 * the page cache, into h->buf. */
static int check_chunk_of(struct worker *h, const struct shf_seg *g, uint64_t at, uint64_t n,
                          const uint8_t *held)
{
	int rc = 0;

	for (uint64_t k = 0, m; k < n && rc == 0; k += m) {
		m = n - k < CACHE_CHUNK ? n - k : CACHE_CHUNK;
		if (!held)
			rc = shf_load_read_now(&h->ld, g->file, at + k, m, h->buf, &h->err);
		if (rc == 0)
			rc = shf_load_pass_feed(&h->ld, held ? held + k : h->buf, m, &h->err);
	}
	return rc;
}

/* Copies and checks the next bytes of a segment. *n: how many bytes to take at most; on return how
 * many were taken: fewer if the memory of the view ends before. Pages of a view that this process
 * has not used yet are mapped many at a time, which is cheaper than a fault for each. */
static int take_mapped(struct worker *h, const struct shf_seg *g, uint64_t at, uint64_t *n)
{
	struct shf_load *ld = &h->ld;
	const struct shf_sys *sys = ld->step->run->sys;
	const struct shf_view *view = ld->step->view;
	const uint8_t *held = view ? shf_view_at(view, g->file, at, n) : NULL;

	if (held) {
		shf_sys_touch(sys, held, *n, false);
		ld->disk_bytes += *n;
	} else if (!always(h->buf != NULL)) {
		return shf_fail(&h->err, SHEAF_EBUG, "a byte of a checkpoint in memory is in no "
		                "staging buffer");
	}
	return check_chunk_of(h, g, at, *n, held);
}

/* Takes the next segment. Returns false if no segment is left or a worker has failed, this one
 * included. Segments are handed out in order, so of several failures that of the lowest segment can
 * be reported (shf_load_workers_check). */
static bool take_segment(struct worker *h)
{
	struct shf_load_workers *c = h->crew;
	size_t i = atomic_fetch_add(&c->next, 1);
	const struct shf_seg *g;
	int rc;

	if (i >= c->end || atomic_load(&c->failed))
		return false;
	g = &h->ld.work.segs[c->segs[i]];
	rc = shf_load_pass_begin(&h->ld, g, g->lo, g->hi - g->lo, &h->err);
	for (uint64_t at = g->lo, n; at < g->hi && rc == 0; at += n) {
		n = g->hi - at < MAP_CHUNK ? g->hi - at : MAP_CHUNK;
		rc = take_mapped(h, g, at, &n);
	}
	atomic_fetch_add(&c->done, g->hi - g->lo);
	if (rc == 0)
		return true;
	h->bad = i;
	atomic_store(&c->failed, true);
	return false;
}

/* Makes one turn of a thread (background.h): takes one segment. */
static bool worker_turn(void *work)
{
	return take_segment(work);
}

/* Must be called on the thread that made the crew, because workers[0] is not locked. */
bool shf_load_workers_take(struct shf_load_workers *c)
{
	return take_segment(&c->workers[0]);
}

uint64_t shf_load_workers_done(const struct shf_load_workers *c)
{
	return atomic_load(&c->done);
}

/* Adds a worker, which has a copy of the load with lists and counters of its own. ENOMEM. */
static int worker_new(struct shf_load_workers *c, const struct shf_load *ld)
{
	struct worker *h = &c->workers[c->n++];

	*h = (struct worker){ .crew = c, .ld = *ld, .bad = SIZE_MAX };
	h->ld.wants = NULL;
	h->ld.wants_cap = 0;
	h->ld.disk_bytes = h->ld.retries = 0;
	h->ld.verify_ns = h->ld.read_ns = 0;
	/* If all of the step is in memory of a view, nothing has to be read into a buffer. */
	if (ld->apart)
		return 0;
	h->buf = shf_alloc(CACHE_CHUNK, 1);
	return h->buf ? 0 : SHEAF_ENOMEM;
}

/* Adds the worker's counters to the load's, and frees its memory. */
static void worker_end(struct worker *h, struct shf_load *ld)
{
	ld->disk_bytes += h->ld.disk_bytes;
	ld->retries += h->ld.retries;
	ld->verify_ns += h->ld.verify_ns;
	ld->read_ns += h->ld.read_ns;
	shf_free(h->ld.wants);
	shf_free(h->buf);
}

/* Stops all threads, and waits for them. Their workers may be read after that. */
static void stop_workers(struct shf_load_workers *c)
{
	for (int i = 1; i < c->n; i++)
		shf_background_stop(&c->workers[i].task);
}

/* The threads are stopped first, because until then each may still write its error. */
int shf_load_workers_check(struct shf_load_workers *c, struct sheaf_error *err)
{
	const struct worker *first = NULL;

	if (!atomic_load(&c->failed))
		return 0;
	stop_workers(c);
	for (int i = 0; i < c->n; i++)
		if (c->workers[i].bad != SIZE_MAX && (!first || c->workers[i].bad < first->bad))
			first = &c->workers[i];
	if (err)
		*err = first->err;
	return first->err.code;
}

/* Returns the number of workers: one for each processor of this rank, and no more than there are
 * segments. */
static int threads_for(const struct sheaf_checkpoint *step, size_t segs)
{
	int want = shf_load_threads(step->run);

	/* If the step is in the memory of several nodes, some bytes are on none of them and are
	 * read from disk through the view, which only one thread may do at a time. */
	if (step->view && shf_view_access(step->view))
		return 1;
	want = (size_t)want < segs ? want : (int)segs;
	return want > 0 ? want : 1;
}

int shf_load_workers_new(struct shf_load_workers **crew, const struct shf_load *ld,
                         const size_t *segs, size_t n, struct sheaf_error *err)
{
	int want = threads_for(ld->step, n), rc = 0;
	struct shf_load_workers *c = shf_zalloc(1, sizeof(*c));

	*crew = c;
	if (c)
		c->workers = shf_zalloc((size_t)want, sizeof(*c->workers));
	if (!c || !c->workers)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %d threads", want);
	c->segs = segs;
	c->end = n;
	while (c->n < want && rc == 0)
		rc = worker_new(c, ld);
	if (rc < 0)
		return shf_fail(err, rc, "no memory for %d threads", want);
	/* If a thread cannot be created, the other workers take the segments. */
	for (int i = 1; i < c->n; i++)
		(void)shf_background_start(&c->workers[i].task, ld->step->run->sys, worker_turn,
		                           &c->workers[i]);
	return 0;
}

/* Counters are read after all threads have been stopped. */
int shf_load_workers_end(struct shf_load_workers *c, struct shf_load *ld, struct sheaf_error *err)
{
	int rc = 0;

	if (!c)
		return 0;
	if (c->n > 0)
		stop_workers(c);
	if (c->n > 0)
		rc = shf_load_workers_check(c, err);
	for (int k = 0; k < c->n; k++)
		worker_end(&c->workers[k], ld);
	shf_free(c->workers);
	shf_free(c);
	return rc;
}
