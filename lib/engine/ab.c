/* SPDX-License-Identifier: Apache-2.0 */
#include "ab.h"
#include <inttypes.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "save.h"
#include "welch.h"

#define KEPT 8192       /* times of each kind; newer ones take the place of the oldest */

struct times {          /* milliseconds */
	double *whole;                  /* owned; from begin to begin */
	double *compute;                /* owned; the same, less what callers were blocked for */
	uint64_t n;                     /* so far */
};
struct shf_ab {
	uint64_t salt;
	bool measures;                  /* rank 0 */
	bool open;                      /* a begin was entered, at `from` */
	bool busy;                      /* and a save before it was not written then */
	int64_t from;
	uint64_t blocked;               /* of the run, then */
	enum shf_ab_kind kind;          /* of the time from there on */
	struct times of[2];             /* WITHOUT, WITH */
	uint64_t aside;                 /* that are neither */
};

void shf_ab_free(struct shf_ab *ab)
{
	for (int k = 0; ab && k < 2; k++) {
		shf_free(ab->of[k].whole);
		shf_free(ab->of[k].compute);
	}
	shf_free(ab);
}

int shf_ab_new(struct sheaf_run *run, struct sheaf_error *err)
{
	struct shf_ab *ab;
	bool good;

	if (!(run->opts.flags & SHEAF_AB))
		return 0;
	ab = shf_zalloc(1, sizeof(*ab));
	good = ab != NULL;
	for (int k = 0; good && run->team.rank == 0 && k < 2; k++) {
		ab->of[k].whole = shf_alloc(KEPT, sizeof(double));
		ab->of[k].compute = shf_alloc(KEPT, sizeof(double));
		good = ab->of[k].whole && ab->of[k].compute;
	}
	if (!good) {
		shf_ab_free(ab);
		return shf_fail(err, SHEAF_ENOMEM, "no memory to compare steps with and without a "
		                "copy");
	}
	ab->salt = shf_crc64(run->store.session, strlen(run->store.session));
	ab->measures = run->team.rank == 0;
	run->ab = ab;
	return 0;
}

static bool may_leave_out(uint32_t flags)
{
	return flags & SHEAF_LAZY && flags & SHEAF_MAY_DROP;
}

bool shf_ab_leaves_out(const struct sheaf_run *run, int64_t step, uint32_t flags)
{
	uint64_t x;

	if (!run->ab || !may_leave_out(flags))
		return false;
	/* A counter and two rounds of mixing: every bit of the step moves the one that is taken. */
	x = run->ab->salt + (uint64_t)step * UINT64_C(0x9E3779B97F4A7C15);
	x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
	return x >> 63;
}

/* Is a save still being copied, written or published here? */
static bool is_busy(const struct sheaf_run *run)
{
	struct sheaf_stat stat;

	for (const struct sheaf_save *s = run->first; s; s = s->next) {
		shf_save_stat(s, &stat);
		if (stat.phase < 2 || stat.phase == 6)
			return true;
	}
	return false;
}

void shf_ab_enter(struct sheaf_run *run, int64_t now)
{
	struct shf_ab *ab = run->ab;
	uint64_t blocked, ns, in;

	if (!ab || !ab->measures)
		return;
	blocked = shf_stall_blocked(run);
	if (ab->open && ab->kind == SHF_AB_NEITHER) {
		ab->aside++;
	} else if (ab->open) {
		struct times *t = &ab->of[ab->kind];

		ns = (uint64_t)(now - ab->from);
		in = blocked - ab->blocked;     /* of several threads it may be more than that */
		t->whole[t->n % KEPT] = (double)ns / 1e6;
		t->compute[t->n % KEPT] = (double)(ns > in ? ns - in : 0) / 1e6;
		t->n++;
	}
	ab->open = true;
	ab->from = now;
	ab->blocked = blocked;
	ab->busy = is_busy(run);
	ab->kind = SHF_AB_NEITHER;
}

void shf_ab_began(struct sheaf_run *run, uint32_t flags, enum shf_ab_kind kind)
{
	struct shf_ab *ab = run->ab;

	if (ab && may_leave_out(flags) && !(kind == SHF_AB_WITHOUT && ab->busy))
		ab->kind = kind;
}

/* ---- what was found ---- */

static size_t kept(const struct times *t)
{
	return t->n < KEPT ? (size_t)t->n : KEPT;
}

/* Of one hundred; 0 where there is nothing to divide by. */
static double part(double x, double of)
{
	return of > 0 ? 100 * x / of : 0;
}

/* A number with three places, and no locale's decimal point; parts of next to nothing are cut. */
static void put(struct shf_buf *b, const char *name, double x)
{
	double much = x < 0 ? -x : x;
	uint64_t v = (uint64_t)((much < 1e12 ? much : 1e12) * 1000 + 0.5);

	shf_buf_addf(b, "%s\"%s\":%s%" PRIu64 ".%03u", b->data[b->len - 1] == '{' ? "" : ",", name,
	             x < 0 && v ? "-" : "", v / 1000, (unsigned)(v % 1000));
}

static void put_found(struct shf_buf *b, const char *name, const struct shf_welch *w)
{
	shf_buf_addf(b, ",\"%s\":{", name);
	if (b->oom)
		return;
	put(b, "with_ms", w->median[SHF_AB_WITH]);
	put(b, "without_ms", w->median[SHF_AB_WITHOUT]);
	put(b, "slower_ms", w->diff);
	put(b, "low_ms", w->low);
	put(b, "high_ms", w->high);
	put(b, "slower_pct", part(w->diff, w->mean[SHF_AB_WITHOUT]));
	put(b, "low_pct", part(w->low, w->mean[SHF_AB_WITHOUT]));
	put(b, "high_pct", part(w->high, w->mean[SHF_AB_WITHOUT]));
	shf_buf_adds(b, "}");
}

static void tell_line(struct sheaf_run *run, const struct shf_welch *whole,
                      const struct shf_welch *compute)
{
	const struct shf_ab *ab = run->ab;
	struct shf_buf b = SHF_BUF_INIT;
	char at[32];

	shf_run_time(run, at);
	shf_buf_addf(&b, "{\"what\":\"ab\",\"session\":\"%s\",\"at\":\"%s\",\"with\":%" PRIu64
	             ",\"without\":%" PRIu64 ",\"aside\":%" PRIu64, run->store.session, at,
	             ab->of[SHF_AB_WITH].n, ab->of[SHF_AB_WITHOUT].n, ab->aside);
	if (whole) {
		put_found(&b, "whole", whole);
		put_found(&b, "compute", compute);
	}
	shf_buf_adds(&b, "}");
	shf_stall_line(run, &b);
	shf_buf_release(&b);
}

static void tell_log(const struct sheaf_run *run, const char *what, const struct shf_welch *w)
{
	const struct shf_ab *ab = run->ab;
	double base = w->mean[SHF_AB_WITHOUT];

	shf_log(run, 2, "%s: %s: %" PRIu64 " with a copy, %" PRIu64 " without: median %.3f and "
	        "%.3f ms; means differ by %.3f ms [%.3f, %.3f], %.3f %% [%.3f, %.3f], at 95 %%",
	        run->store.path, what, ab->of[SHF_AB_WITH].n, ab->of[SHF_AB_WITHOUT].n,
	        w->median[SHF_AB_WITH], w->median[SHF_AB_WITHOUT], w->diff, w->low, w->high,
	        part(w->diff, base), part(w->low, base), part(w->high, base));
}

void shf_ab_tell(struct sheaf_run *run)
{
	struct shf_welch whole, compute;
	struct times *a, *b;

	if (!run->ab || !run->ab->measures)
		return;
	a = &run->ab->of[SHF_AB_WITHOUT];
	b = &run->ab->of[SHF_AB_WITH];
	if (!shf_welch(&whole, a->whole, kept(a), b->whole, kept(b)) ||
	    !always(shf_welch(&compute, a->compute, kept(a), b->compute, kept(b)))) {
		shf_log(run, 2, "%s: %" PRIu64 " steps with a copy and %" PRIu64 " without are "
		        "too few to compare", run->store.path, b->n, a->n);
		tell_line(run, NULL, NULL);
		return;
	}
	tell_log(run, "from begin to begin", &whole);
	tell_log(run, "the same less what calls were blocked for", &compute);
	tell_line(run, &whole, &compute);
}
