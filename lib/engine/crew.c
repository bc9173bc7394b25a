/* SPDX-License-Identifier: Apache-2.0 */
/* A step in memory is taken by several threads: no disk is waited for, and one core copies and sums
 * less than memory gives. Each takes segment after segment and has sums of its own, which are added
 * up when all are done. The caller's thread works too, and meets the other ranks after each lap. */
#include <string.h>
#include "err.h"
#include "load.h"
#include "view.h"

#define LAP (UINT64_C(256) << 20)
#define AT_ONCE (UINT64_C(256) << 10)   /* looked at before the clock and the error are */

struct crew;
struct hand {
	struct crew *crew;
	struct shf_load ld;             /* the load's, with sums of its own */
	struct shf_task *task;          /* NULL: the caller's thread */
	struct sheaf_error err;
	size_t bad;                     /* the segment of err; SIZE_MAX: none */
};
struct crew {
	struct hand *hands;             /* owned */
	int n;
	atomic_size_t next;             /* segment */
	size_t end;
	atomic_uint_fast64_t done;      /* bytes */
	atomic_bool failed;
};

/* The next segment, in one piece or as it lies. */
static bool take(struct hand *h)
{
	struct crew *c = h->crew;
	struct shf_load *ld = &h->ld;
	size_t i = atomic_fetch_add(&c->next, 1);
	const struct shf_seg *g;
	int rc;

	if (i >= c->end || atomic_load(&c->failed))
		return false;
	g = &ld->work.segs[i];
	rc = shf_load_begin(ld, g, g->lo, g->hi - g->lo, &h->err);
	for (uint64_t at = g->lo, n; at < g->hi && rc == 0; at += n) {
		const uint8_t *held;

		n = g->hi - at < AT_ONCE ? g->hi - at : AT_ONCE;
		held = shf_view_at(ld->step->run->view, g->file, at, &n);
		rc = held ? shf_load_look(ld, held, n, &h->err)
		          : shf_fail(&h->err, SHEAF_EBUG, "a byte of a step in memory is nowhere");
		ld->disk_bytes += n;
	}
	atomic_fetch_add(&c->done, g->hi - g->lo);
	if (rc == 0)
		return true;
	h->bad = i;
	atomic_store(&c->failed, true);
	return false;
}

static bool turn(void *work)
{
	return take(work);
}

static int hand_new(struct crew *c, struct hand *h, struct shf_load *ld)
{
	size_t n = ld->step->layout.tensors_n;

	*h = (struct hand){ .crew = c, .ld = *ld, .bad = SIZE_MAX };
	h->ld.wants = NULL;
	h->ld.wants_cap = 0;
	h->ld.disk_bytes = 0;
	h->ld.verify_ns = 0;
	h->ld.got = shf_zalloc(n, sizeof(*h->ld.got));
	h->ld.got_bytes = shf_zalloc(n, sizeof(*h->ld.got_bytes));
	h->ld.pass.got = h->ld.got;
	h->ld.pass.got_bytes = h->ld.got_bytes;
	return h->ld.got && h->ld.got_bytes ? 0 : SHEAF_ENOMEM;
}

/* What it has summed counts for the load. */
static void hand_end(struct hand *h, struct shf_load *ld)
{
	for (size_t t = 0; h->ld.got && h->ld.got_bytes && t < ld->step->layout.tensors_n; t++) {
		ld->got[t] ^= h->ld.got[t];
		ld->got_bytes[t] += h->ld.got_bytes[t];
	}
	ld->disk_bytes += h->ld.disk_bytes;
	ld->verify_ns += h->ld.verify_ns;
	shf_free(h->ld.wants);
	shf_free(h->ld.got);
	shf_free(h->ld.got_bytes);
}

/* Only the caller's thread is left. */
static void gather(struct crew *c, const struct shf_load *ld)
{
	const struct shf_sys *sys = ld->step->run->sys;

	for (int i = 1; i < c->n; i++)
		if (c->hands[i].task) {
			sys->ops->task_free(sys->arg, c->hands[i].task);
			c->hands[i].task = NULL;
		}
}

/* Of the first segment that failed, whoever had it. Once they are gathered. */
static int failure(const struct crew *c, struct sheaf_error *err)
{
	const struct hand *first = NULL;

	for (int i = 0; i < c->n; i++)
		if (c->hands[i].bad != SIZE_MAX && (!first || c->hands[i].bad < first->bad))
			first = &c->hands[i];
	if (!first)
		return 0;
	if (err)
		*err = first->err;
	return first->err.code;
}

static int crew_new(struct crew *c, struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_sys *sys = ld->step->run->sys;
	struct shf_span own = shf_work_segs(&ld->work, SHF_ROUND_OWN);
	int each = sys->ops->cpus(sys->arg) / ld->step->run->place.node_ranks, rc = 0;
	int want = ld->step->run->opts.io_threads;

	want = want < each ? want : each > 0 ? each : 1;
	if ((size_t)want > own.end - own.first)
		want = own.end > own.first ? (int)(own.end - own.first) : 1;
	atomic_init(&c->next, own.first);
	c->end = own.end;
	c->hands = shf_zalloc((size_t)want, sizeof(*c->hands));
	if (!c->hands)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %d threads", want);
	while (c->n < want && rc == 0)
		rc = hand_new(c, &c->hands[c->n++], ld);
	if (rc < 0)
		return shf_fail(err, rc, "no memory for %d threads", want);
	/* Where a thread cannot be had, the others take what it would have taken. */
	for (int i = 1; i < c->n; i++)
		if (sys->ops->task_new(sys->arg, &c->hands[i].task, turn, &c->hands[i], NULL) < 0)
			c->hands[i].task = NULL;
	return 0;
}

static int lap_end(struct crew *c, const struct shf_load *ld, struct sheaf_error *err)
{
	if (!atomic_load(&c->failed))
		return 0;
	gather(c, ld);
	return failure(c, err);
}

static int crew_end(struct crew *c, struct shf_load *ld, int rc, struct sheaf_error *err)
{
	gather(c, ld);
	if (rc == 0)
		rc = failure(c, err);
	for (int k = 0; k < c->n; k++)
		hand_end(&c->hands[k], ld);
	shf_free(c->hands);
	return rc;
}

int shf_crew_run(struct shf_load *ld, struct sheaf_error *err)
{
	struct shf_team *team = &ld->step->run->team;
	struct crew c = { .n = 0 };
	int rc = shf_agree(team, crew_new(&c, ld, err), err);

	for (uint64_t lap = 0; lap < ld->work.own_most && rc == 0; lap += LAP) {
		while (atomic_load(&c.done) < lap + LAP && take(&c.hands[0]))
			;
		rc = shf_agree(team, lap_end(&c, ld, err), err);
		shf_load_progress(ld);
	}
	return shf_agree(team, crew_end(&c, ld, rc, err), err);
}
