/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in memory already, a step that an agent keeps or files in the page cache, is copied and
 * checked by several threads. There is no disk to wait for, and one core copies and sums less than
 * memory can deliver. Each worker takes segment after segment. The caller's thread works too,
 * between what else it does.
 *
 * Workers share nothing but the number of the next segment, so they need no lock: each has a pass,
 * counters and an error of its own. Digests are added atomically. */
#include "load_workers.h"
#include "background.h"
#include "err.h"
#include "load.h"
#include "load_common.h"
#include "load_read.h"
#include "memory_dir.h"
#include "step.h"
#include "work.h"

#define MAP_CHUNK (UINT64_C(2) << 20)        /* of memory that is mapped at once */
#define CACHE_CHUNK (UINT64_C(256) << 10)       /* looked at at once: stays in the core's cache */

/* One worker. It belongs to its thread until that is stopped. */
struct worker {
	struct shf_crew *crew;
	struct shf_load ld;             /* the load's, with a pass of its own */
	struct shf_background task;     /* of all but the first, which is the caller's thread */
	uint8_t *buf;                   /* owned; a piece of a file; NULL: all lies in a view */
	struct sheaf_error err;
	size_t bad;                     /* the segment of err; SIZE_MAX: none */
};
/* All workers of a load. What they share is atomic. */
struct shf_crew {
	struct worker *workers;             /* owned */
	int n;
	const size_t *segs;             /* borrowed; of the plan */
	size_t end;
	atomic_size_t next;
	atomic_uint_fast64_t done;      /* bytes */
	atomic_bool failed;
};

/* Checks n bytes of a segment, a piece at a time that stays in the core's cache: in place where the
 * memory is mapped (held), otherwise from a copy of what the page cache has. */
static int check_chunk_of(struct worker *h, const struct shf_seg *g, uint64_t at, uint64_t n,
                          const uint8_t *held)
{
	int rc = 0;

	for (uint64_t k = 0, m; k < n && rc == 0; k += m) {
		m = n - k < CACHE_CHUNK ? n - k : CACHE_CHUNK;
		if (!held)
			rc = shf_load_read_now(&h->ld, g->file, at + k, m, h->buf, &h->err);
		if (rc == 0)
			rc = shf_load_look(&h->ld, held ? held + k : h->buf, m, &h->err);
	}
	return rc;
}

/* Takes the next bytes of a segment, n of them at most. Pages of memory that this process has not
 * looked at yet are mapped many at a time, which is cheaper than a fault for each. */
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
		return shf_fail(&h->err, SHEAF_EBUG, "a byte of a step in memory is nowhere");
	}
	return check_chunk_of(h, g, at, *n, held);
}

/* Takes the next segment. false: there is none left, or a worker has failed. Of several failures,
 * that of the lowest segment is reported (shf_crew_check). */
static bool take_segment(struct worker *h)
{
	struct shf_crew *c = h->crew;
	size_t i = atomic_fetch_add(&c->next, 1);
	const struct shf_seg *g;
	int rc;

	if (i >= c->end || atomic_load(&c->failed))
		return false;
	g = &h->ld.work.segs[c->segs[i]];
	rc = shf_load_begin(&h->ld, g, g->lo, g->hi - g->lo, &h->err);
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

static bool worker_turn(void *work)
{
	return take_segment(work);
}

/* Worker 0 is the caller's thread. */
bool shf_crew_take(struct shf_crew *c)
{
	return take_segment(&c->workers[0]);
}

uint64_t shf_crew_done(const struct shf_crew *c)
{
	return atomic_load(&c->done);
}

/* A worker gets a copy of the load with lists and counters of its own. */
static int worker_new(struct shf_crew *c, const struct shf_load *ld)
{
	struct worker *h = &c->workers[c->n++];

	*h = (struct worker){ .crew = c, .ld = *ld, .bad = SIZE_MAX };
	h->ld.wants = NULL;
	h->ld.wants_cap = 0;
	h->ld.disk_bytes = h->ld.retries = 0;
	h->ld.verify_ns = h->ld.read_ns = 0;
	if (ld->apart)
		return 0;
	h->buf = shf_alloc(CACHE_CHUNK, 1);
	return h->buf ? 0 : SHEAF_ENOMEM;
}

/* What the worker has done counts for the load. */
static void worker_end(struct worker *h, struct shf_load *ld)
{
	ld->disk_bytes += h->ld.disk_bytes;
	ld->retries += h->ld.retries;
	ld->verify_ns += h->ld.verify_ns;
	ld->read_ns += h->ld.read_ns;
	shf_free(h->ld.wants);
	shf_free(h->buf);
}

/* Waits until only the caller's thread is left. */
static void stop_workers(struct shf_crew *c)
{
	for (int i = 1; i < c->n; i++)
		shf_background_stop(&c->workers[i].task);
}

/* The threads are stopped before their errors are read. */
int shf_crew_check(struct shf_crew *c, struct sheaf_error *err)
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

/* How many threads: one for each processor of this rank, and no more than there are segments. A
 * step in the memory of several nodes is taken by one thread, because what no memory has is read
 * from disk through the view. */
static int threads_for(const struct sheaf_step *step, size_t segs)
{
	int want = shf_load_threads(step->run);

	/* Of such a step some bytes come from other nodes or from a disk. */
	if (step->view && shf_view_hads(step->view))
		return 1;       /* what is nowhere in memory comes from a disk, through the view */
	want = (size_t)want < segs ? want : (int)segs;
	return want > 0 ? want : 1;
}

/* If a thread cannot be had, the others take its segments. */
int shf_crew_new(struct shf_crew **crew, const struct shf_load *ld, const size_t *segs, size_t n,
                 struct sheaf_error *err)
{
	int want = threads_for(ld->step, n), rc = 0;
	struct shf_crew *c = shf_zalloc(1, sizeof(*c));

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
	/* Where a thread cannot be had, the others take what it would have taken. */
	for (int i = 1; i < c->n; i++)
		(void)shf_background_start(&c->workers[i].task, ld->step->run->sys, worker_turn,
		                           &c->workers[i]);
	return 0;
}

/* What workers counted is added to the load after the last of them has stopped. */
int shf_crew_end(struct shf_crew *c, struct shf_load *ld, struct sheaf_error *err)
{
	int rc = 0;

	if (!c)
		return 0;
	if (c->n > 0)
		stop_workers(c);
	if (c->n > 0)
		rc = shf_crew_check(c, err);
	for (int k = 0; k < c->n; k++)
		worker_end(&c->workers[k], ld);
	shf_free(c->workers);
	shf_free(c);
	return rc;
}
