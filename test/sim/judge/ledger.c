/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const struct foreign {
	const char *path, *text;
} foreign[] = {
	{ "run/notes.txt", "lr 3e-4" },
	{ "run/checkpoint-abc/model.safetensors", "abc" },
	{ "run/.sheaf/mine", "kept" },
	{ "run/.sheaf/stage/thoughts", "kept too" },
};

void ledger_put_foreign(struct ledger *l, struct simdisk *disk)
{
	for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
		if (simdisk_put(disk, foreign[i].path, foreign[i].text, strlen(foreign[i].text)))
			abort();
	l->foreign = true;
}

struct attempt *ledger_begin(struct ledger *l, int64_t step, int64_t begun)
{
	struct attempt *a = &l->attempts[l->n++];

	if (l->n > ATTEMPTS)
		abort();
	*a = (struct attempt){ .step = step, .begun = begun, .acked = NEVER, .pruning = NEVER,
	                       .rewinding = NEVER, .gone = NEVER };
	return a;
}

struct attempt *ledger_of(struct ledger *l, int64_t step)
{
	for (int i = l->n; i-- > 0;) {
		struct attempt *a = &l->attempts[i];

		if (a->step == step && a->acked != NEVER && a->pruning == NEVER &&
		    a->rewinding == NEVER && a->gone == NEVER)
			return a;
	}
	return NULL;
}

void ledger_mark(struct ledger *l, int64_t step, char mark, int64_t begun, int64_t acked)
{
	int i;

	if (l->marks_n == MARKINGS)
		abort();
	for (i = l->marks_n++; i > 0 && l->marks[i - 1].begun > begun; i--)
		l->marks[i] = l->marks[i - 1];
	l->marks[i] = (struct marking){ step, begun, acked, mark };
}

enum { MARK_NONE = 1, MARK_KEEP = 2, MARK_BAD = 4, MARK_ODD = 8 };

static unsigned mark_bit(char mark)
{
	return mark == 0 ? MARK_NONE : mark == 'k' ? MARK_KEEP : mark == 'b' ? MARK_BAD : MARK_ODD;
}

/* Returns the marks that a step may have at the cut, as bits. */
static unsigned marks_of(const struct ledger *l, int64_t step, int64_t cut)
{
	unsigned may = MARK_NONE;

	for (int i = 0; i < l->marks_n; i++) {
		const struct marking *m = &l->marks[i];

		if (m->step != step || m->begun > cut)
			continue;
		may = m->acked <= cut ? mark_bit(m->mark) : may | mark_bit(m->mark);
	}
	return may;
}

bool ledger_marked(const struct ledger *l, int64_t step, char mark, int64_t cut)
{
	return marks_of(l, step, cut) == mark_bit(mark);
}

/* ---- judging ---- */

struct judge {
	struct ledger *l;
	struct simdisk *disk;
	struct view *view;
	int64_t cut;
	bool fresh, bad;
	char *why;
};

__attribute__((format(printf, 2, 3)))
static void bad(struct judge *j, const char *fmt, ...)
{
	va_list args;

	if (j->bad)
		return;
	j->bad = true;
	va_start(args, fmt);
	vsnprintf(j->why, 300, fmt, args);
	va_end(args);
}

static char raw_mark(struct simdisk *disk, int64_t step)
{
	char path[80], mark = 0, *text;
	size_t n = 0;

	snprintf(path, sizeof(path), "run/.sheaf/marks/%lld", (long long)step);
	text = simdisk_get(disk, path, &n);
	if (text)
		mark = n == 1 || (n == 34 && text[1] == ' ') ? text[0] : '?';
	free(text);
	return mark;
}

/* Parses "12" or "12-<session>", in canonical form. */
static bool number(const char *s, int64_t *step, bool session)
{
	char *end, again[40];

	*step = strtoll(s, &end, 10);
	snprintf(again, sizeof(again), "%lld", (long long)*step);
	if (end == s || strlen(again) != (size_t)(end - s) || memcmp(again, s, strlen(again)))
		return false;
	return session ? *end == '-' && strlen(end + 1) == 32 : *end == '\0';
}

static struct attempt *attempt_of(struct judge *j, const struct raw_step *r)
{
	struct ledger *l = j->l;

	if (r->salt < 1 || r->salt > (uint64_t)l->n || l->attempts[r->salt - 1].step != r->step)
		return NULL;
	return &l->attempts[r->salt - 1];
}

/* checkpoint-<n> */
static void judge_step(void *arg, const char *name)
{
	struct judge *j = arg;
	struct attempt *a;
	struct raw_step r;
	char path[160], why[300];
	int64_t step;
	int rc;

	if (strncmp(name, "checkpoint-", 11) != 0 || !number(name + 11, &step, false))
		return;
	snprintf(path, sizeof(path), "run/%.100s", name);
	rc = raw_step_read(j->disk, path, &j->l->state, &r, why);
	if (rc != 1) {
		bad(j, "I8: %s is visible and not whole: %.180s", name,
		    rc ? why : "it has no manifest");
		return;
	}
	a = attempt_of(j, &r);
	if (!a || r.step != step)
		bad(j, "I5: %s is of no known save (step %lld, salt %llu)", name,
		    (long long)r.step, (unsigned long long)r.salt);
	else if (a->begun > j->cut)
		bad(j, "I1: %s appeared before its save began", name);
	else if (a->failed || a->over)
		bad(j, "I7: %s exists though %s", name,
		    a->failed ? "its save failed" : "it was absent before");
	else if (a->gone <= j->cut)
		bad(j, "%s is back, though it was %s", name,
		    a->rewinding != NEVER ? "rewound" : "pruned");
	if (!a || j->bad)
		return;
	j->view->here[a - j->l->attempts] = true;
	j->view->mark[a - j->l->attempts] = raw_mark(j->disk, step);
}

static void judge_marks(struct judge *j)
{
	struct view *v = j->view;

	for (int i = 0; i < j->l->n; i++) {
		int64_t step = j->l->attempts[i].step;

		if (!v->here[i])
			continue;
		if (!(mark_bit(v->mark[i]) & marks_of(j->l, step, j->cut)))
			bad(j, "the mark of step %lld is %d, and may be of 0x%x", (long long)step,
			    v->mark[i], marks_of(j->l, step, j->cut));
		if (v->mark[i] != 'b' && step > v->newest)
			v->newest = step;
	}
}

static void judge_aside(void *arg, const char *name)
{
	struct judge *j = arg;
	struct attempt *a;
	struct raw_step r;
	char path[160], why[300];
	int64_t step;

	if (!number(name, &step, true))
		return;
	snprintf(path, sizeof(path), "run/.sheaf/aside/%.100s", name);
	if (raw_step_read(j->disk, path, &j->l->state, &r, why) != 1)
		return;
	a = attempt_of(j, &r);
	if (a && a->rewinding > j->cut && !j->view->here[a - j->l->attempts])
		bad(j, "step %lld is aside, and nobody rewound it", (long long)step);
	if (a)
		j->view->aside[a - j->l->attempts] = true;
}

/* I2: a stage with a manifest has all that it names. */
static void judge_stage(void *arg, const char *name)
{
	struct judge *j = arg;
	struct raw_step r = { .step = -1 };
	char path[160], why[300];
	int64_t step;
	int rc;

	if (!number(name, &step, true))
		return;
	snprintf(path, sizeof(path), "run/.sheaf/stage/%.100s", name);
	rc = raw_step_read(j->disk, path, &j->l->state, &r, why);
	/* A stage that was given up may be deleted in any order, by its own job or a later one. */
	if (rc < 0 && r.step >= 0 && attempt_of(j, &r) && attempt_of(j, &r)->acked != NEVER)
		bad(j, "I2: a stage has its manifest and is not whole: %.200s", why);
}

/* Returns whether a newer step is there, so that a prune may have removed this one. */
static bool newer_is_here(const struct judge *j, const struct attempt *a)
{
	for (int i = 0; i < j->l->n; i++)
		if (j->view->here[i] && j->l->attempts[i].step > a->step)
			return true;
	return false;
}

static void judge_promises(struct judge *j)
{
	for (int i = 0; i < j->l->n; i++) {
		const struct attempt *a = &j->l->attempts[i];
		bool here = j->view->here[i], aside = j->view->aside[i];

		if (a->acked > j->cut || here || (a->gone <= j->cut && a->rewinding == NEVER))
			continue;
		if (a->rewinding <= j->cut) {
			/* A stage that is a second name of a directory set aside is deleted as a
			 * stage: a disk that was repaired has no such names. */
			if (!aside && !j->l->twice && a->pruning > j->cut &&
			    (!j->l->halves || a->gone <= j->cut))
				bad(j, "step %lld was rewound and is not aside",
				    (long long)a->step);
		} else if (a->pruning > j->cut) {
			bad(j, "I7: step %lld was acknowledged and is gone", (long long)a->step);
		} else if (!newer_is_here(j, a)) {
			bad(j, "I9: step %lld was pruned, and nothing newer is there",
			    (long long)a->step);
		}
	}
	for (size_t i = 0; j->l->foreign && i < sizeof(foreign) / sizeof(foreign[0]); i++) {
		size_t n = 0;
		char *text = simdisk_get(j->disk, foreign[i].path, &n);

		if (!text || n != strlen(foreign[i].text) || memcmp(text, foreign[i].text, n))
			bad(j, "%s, which is not ours, was touched", foreign[i].path);
		free(text);
	}
}

const char *ledger_judge(struct ledger *l, struct simdisk *disk, int64_t cut, bool fresh,
                         struct view *view, char why[300])
{
	struct judge j = { l, disk, view, cut, fresh, false, why };

	*view = (struct view){ .newest = -1 };
	why[0] = '\0';
	view->journal = simdisk_exists(disk, "run/.sheaf/rewind");
	raw_list(disk, "run", judge_step, &j);
	raw_list(disk, "run/.sheaf/aside", judge_aside, &j);
	if (fresh)
		raw_list(disk, "run/.sheaf/stage", judge_stage, &j);
	judge_marks(&j);
	judge_promises(&j);
	return why;
}

/* ---- continuation ---- */

static void marks_settle(struct ledger *l, struct simdisk *disk, int64_t cut)
{
	int n = 0;

	for (int i = 0; i < l->marks_n; i++) {
		struct marking *m = &l->marks[i];
		bool known = m->begun > cut;

		for (int k = 0; k < n && !known; k++)
			known = l->marks[k].step == m->step;
		if (!known)
			l->marks[n++] = (struct marking){ m->step, -1, -1,
			                                  raw_mark(disk, m->step) };
	}
	l->marks_n = n;
}

/* Updates attempt i when everything that is there is durable. If half a rename lost it, it was
 * still in progress. */
static void attempt_settle(struct ledger *l, int i, int64_t cut, const struct view *view)
{
	struct attempt *a = &l->attempts[i];
	bool rewinds = a->rewinding <= cut, stays = view->aside[i] && rewinds;

	if (a->over && a->acked == NEVER)
		return;
	a->over = !view->here[i];
	a->pruning = NEVER;
	a->rewinding = stays || (rewinds && view->journal) ? -1 : NEVER;
	a->gone = stays && a->over ? -1 : NEVER;
	a->acked = view->here[i] || (stays && a->acked <= cut) ? -1 : NEVER;
	a->begun = a->begun <= cut ? -1 : NEVER;
}

void ledger_crashed(struct ledger *l, struct simdisk *disk, int64_t cut, const struct view *view)
{
	for (int i = 0; i < l->n; i++)
		attempt_settle(l, i, cut, view);
	marks_settle(l, disk, cut);
}

void ledger_go_on(struct ledger *l, struct simdisk *disk, const struct view *view, int64_t since,
                  int64_t opened, bool all)
{
	for (int i = 0; i < l->n; i++) {
		struct attempt *a = &l->attempts[i];
		bool leaves = a->pruning != NEVER || a->rewinding != NEVER;

		if (all)
			attempt_settle(l, i, NEVER - 1, view);
		if (all || a->over)
			continue;
		if (a->failed || (!view->here[i] && !leaves && a->acked == NEVER))
			a->over = true;
		/* A process that opens the run syncs what it sees, and finishes what it finds half
		 * done. */
		if (opened == NEVER || a->begun >= since)
			continue;
		if (view->here[i] && !leaves && a->acked > opened)
			a->acked = opened;
	}
	if (all)
		marks_settle(l, disk, NEVER - 1);
}
