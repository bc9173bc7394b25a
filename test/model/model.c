/* SPDX-License-Identifier: Apache-2.0 */
#include "model_inside.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void model_init(struct model *m, bool agents)
{
	memset(m, 0, sizeof(*m));
	m->agents = agents;
}

/* ---- the checkpoints ---- */

bool is_there(const struct entry *e)
{
	return !e->gone && !e->aside;
}

struct entry *entry_of(struct run_model *r, int64_t step)
{
	for (int i = r->n; i-- > 0;)
		if (is_there(&r->e[i]) && r->e[i].step == step)
			return &r->e[i];
	return NULL;
}

struct entry *entry_by_id(struct run_model *r, int id)
{
	for (int i = 0; i < r->n; i++)
		if (r->e[i].id == id)
			return &r->e[i];
	return NULL;
}

struct entry *newest(struct run_model *r, bool bad_too, bool unsure_too)
{
	struct entry *best = NULL;

	for (int i = 0; i < r->n; i++)
		if (is_there(&r->e[i]) && (bad_too || r->e[i].mark != 'b') &&
		    (unsure_too || !r->e[i].unsure) && (!best || r->e[i].step > best->step))
			best = &r->e[i];
	return best;
}

/* Returns how many sessions loaded it without progress, as `who` counts: a session does not count
 * its own attempt, and a reader not that of the writer that has the run open. who NULL: counts
 * all. */
int tries_of(const struct run_model *r, const struct job_model *who, int id)
{
	return r->tries[id] - (who && who->counted[id]);
}

/* Returns whether so many sessions loaded it without progress, and there is an older step. */
bool is_spent(const struct run_model *r, const struct entry *e, int attempts,
	      const struct job_model *who)
{
	if (!attempts || (tries_of(r, who, e->id) < attempts))
		return false;
	for (int i = 0; i < r->n; i++)
		if (is_there(&r->e[i]) && r->e[i].mark != 'b' && r->e[i].step < e->step)
			return true;
	return false;
}

struct entry *model_newest(struct run_model *r)
{
	return newest(r, false, false);
}

int64_t model_top(const struct model *m, int run)
{
	const struct run_model *r = &m->runs[run];
	int64_t top = 0;

	for (int i = 0; i < r->n; i++)
		if (r->e[i].step > top && is_there(&r->e[i]))
			top = r->e[i].step;
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].here && m->mems[i].identity == r->identity && m->mems[i].step > top)
			top = m->mems[i].step;
	for (int j = 0; j < JOBS; j++) {
		if (!m->jobs[j].open || m->jobs[j].as.run != run)
			continue;
		for (int k = 0; k < SAVES; k++)
			if (m->jobs[j].saves[k].open && m->jobs[j].saves[k].step > top)
				top = m->jobs[j].saves[k].step;
		if (m->jobs[j].most > top)
			top = m->jobs[j].most;
	}
	return top;
}

struct job_model *model_writer(struct model *m, int run)
{
	for (int j = 0; j < JOBS; j++)
		if (m->jobs[j].open && m->jobs[j].as.run == run &&
		    !(m->jobs[j].as.flags & SHEAF_RUN_READONLY))
			return &m->jobs[j];
	return NULL;
}

bool is_used(const struct model *m, int run)
{
	for (int j = 0; j < JOBS; j++)
		if (m->jobs[j].open && m->jobs[j].as.run == run)
			return true;
	return false;
}

/* ---- the newest step ---- */

static bool is_condemned(struct run_model *r, int id)
{
	const struct entry *e = entry_by_id(r, id);

	return e && ((e->mark == 'b' && !e->gone) || e->aside);
}

/* Returns whether a process on these nodes may get the step from memory: it follows the newest step
 * on disk, and no newer one is on disk. */
static bool is_offered(const struct model *m, struct run_model *r, const struct memory *x,
		       int nodes, const struct entry *disk)
{
	const struct entry *any = newest(r, true, true);
	int on = disk ? disk->id : -1;

	(void)m;
	return x->here && x->identity == r->identity && (x->nodes & ~nodes) == 0 &&
	       !is_condemned(r, x->id) && (!disk || x->step > disk->step) &&
	       (x->base == on || x->adrift || (x->coming && disk && x->coming == disk->id) ||
		(any && x->base == any->id));
}

/* Returns whether it certainly gets it. A bad step makes this unsure: it is not promised that the
 * step in memory follows the newest then.
 */
static bool is_sure(struct run_model *r, const struct memory *x, const struct entry *disk,
		    const struct job_model *asks)
{
	const struct entry *own = entry_by_id(r, x->id);

	/* A mark may outlive its step, and a job may still use an agent that died. */
	return x->sure && !(asks && asks->shaken) && newest(r, true, true) == disk &&
	       !(own && own->mark == 'b');
}

static void offer(struct latest *l, int id)
{
	for (int i = 0; i < l->n; i++)
		if (l->ids[i] == id)
			return;
	l->ids[l->n++] = id;
}

/* Adds the steps that memory may return instead of this one on disk. Returns true if there
 * certainly is one. */
static bool offer_memory(const struct model *m, struct run_model *r, int nodes,
			 const struct entry *disk, struct latest *l)
{
	int64_t sure = INT64_MIN;
	bool is[MEMORIES];

	for (int i = 0; i < MEMORIES; i++) {
		const struct memory *x = &m->mems[i];
		bool spent = l->attempts && tries_of(r, l->who, x->id) >= l->attempts;

		/* Without a step on disk, even a spent one in memory is returned. If its count may
		 * be 0, it is possible, too. */
		is[i] = is_offered(m, r, x, nodes, disk) &&
			!(spent && disk && !l->blind && !r->fuzzy[x->id]);
		if (is[i] && !spent && is_sure(r, x, disk, l->asks) && x->step > sure)
			sure = x->step;
	}
	for (int i = 0; i < MEMORIES; i++)
		if (is[i] && m->mems[i].step >= sure)
			offer(l, m->mems[i].id);
	return sure != INT64_MIN;
}

void latest_of(const struct model *m, int run, int nodes, const struct job_model *asks,
	       struct latest *l)
{
	static struct run_model r; /* a copy, in which the steps to be skipped are gone */
	const struct job_model *who =
	    asks && asks->as.flags & SHEAF_RUN_READONLY ? model_writer((struct model *)m,
	                                                               run) : asks;
	int attempts = asks ? asks->as.attempts : 0;
	struct entry *disk;

	r = m->runs[run];
	for (int i = r.n; i-- > 0;) {
		if (!is_there(&r.e[i]) || !is_spent(&m->runs[run], &r.e[i], attempts, who))
			continue;
		if (r.fuzzy[r.e[i].id] || who != asks)
			r.e[i].unsure = true;
		else
			r.e[i].mark = 'b';
	}
	disk = newest(&r, false, true);
	*l = (struct latest){
		.attempts = attempts, .who = who, .asks = asks, .blind = who != asks
	};
	/* An unsure step may not be there. */
	while (disk && disk->unsure) {
		(void)offer_memory(m, &r, nodes, disk, l);
		offer(l, disk->id);
		disk->gone = true;
		disk = newest(&r, false, true);
	}
	if (offer_memory(m, &r, nodes, disk, l))
		return;
	if (disk)
		offer(l, disk->id);
	l->none = !disk;
}

bool latest_allows(const struct latest *l, int id)
{
	for (int i = 0; i < l->n; i++)
		if (l->ids[i] == id)
			return true;
	return false;
}

int64_t step_of_id(const struct model *m, int run, int id)
{
	const struct run_model *r = &m->runs[run];

	for (int i = 0; i < r->n; i++)
		if (r->e[i].id == id)
			return r->e[i].step;
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].id == id)
			return m->mems[i].step;
	return -1;
}

/* Finds the ids that a read may return, by number or as the newest, and whether there may be
 * none. */
void wanted(const struct model *m, int run, int nodes, const struct job_model *asks, int64_t step,
	    struct latest *l)
{
	struct run_model *r = (struct run_model *)&m->runs[run];
	struct entry *e = step >= 0 ? entry_of(r, step) : NULL;

	if (step < 0) {
		latest_of(m, run, nodes, asks, l);
		return;
	}
	*l = (struct latest){ .none = !e || e->unsure || e->may_go };
	if (e)
		offer(l, e->id);
	for (int i = 0; i < MEMORIES; i++) {
		const struct memory *x = &m->mems[i];
		const struct latest all = *l;

		if (x->step != step || !is_offered(m, r, x, nodes, newest(r, false, false)))
			continue;
		offer(l, x->id);
		l->none = all.none && !is_sure(r, x, newest(r, false, false), asks);
	}
}

/* ---- memory ---- */

void memory_forget(struct model *m, int identity, int64_t above)
{
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].identity == identity && m->mems[i].step > above)
			m->mems[i].here = false;
}

void memory_forget_left(struct model *m, const struct job_model *j, const struct save_model *s)
{
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].job == j->serial && m->mems[i].left && m->mems[i].left < s->order)
			m->mems[i].here = false;
}

/* Marks all steps in memory as unsure: there is a newer one, or the agents may have dropped
 * some. */
void memory_shake(struct model *m, int identity)
{
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].identity == identity)
			m->mems[i].sure = false;
}

void memory_add(struct model *m, const struct job_model *j, const struct save_model *s)
{
	struct run_model *r = &m->runs[j->as.run];
	const struct entry *disk = newest(r, false, false);
	const struct entry *of = s->parent >= 0 ? entry_by_id(r, s->parent) : NULL;
	/* If the base is marked bad, the step has no base once that one is gone. */
	bool drifts = j->marked || s->parent == -2 || (of && of->aside);
	bool sure = !m->tight && !drifts && !(of && of->mark == 'b');
	/* If the base is being published, the step also names the one before it. */
	const struct entry *on = of && of->mark != 'b' && !of->unsure ? of : disk;
	struct memory *x = NULL;

	memory_shake(m, r->identity);
	memory_forget_left(m, j, s);
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].here && m->mems[i].id == s->id) {
			m->mems[i].sure = sure;
			return;
		}
	for (int i = 0; i < MEMORIES && !x; i++)
		if (!m->mems[i].here)
			x = &m->mems[i];
	if (!x)
		return;
	*x = (struct memory){ .here = true,
			      .sure = sure,
			      .adrift = drifts,
			      .identity = r->identity,
			      .average = s->average,
			      .nodes = j->nodes,
			      .id = s->id,
			      .step = s->step,
			      .job = j->serial,
			      .left = s->order < j->went_back ? j->went_back : 0,
			      .base = on ? on->id : -1,
			      .coming = of && of->mark == 'b' ? of->id : 0 };
	for (int k = 0; k < SAVES; k++)
		if (j->saves[k].open && j->saves[k].asked_publish && j->saves[k].step < s->step)
			x->coming = j->saves[k].id;
}

/* ---- saves ---- */

bool in_flight(const struct save_model *s)
{
	return s->open && !s->over;
}

bool all_of(const bool *is, int n)
{
	for (int i = 0; i < n; i++)
		if (!is[i])
			return false;
	return true;
}

bool is_first(const struct job_model *j, const struct save_model *s)
{
	for (int k = 0; k < SAVES; k++) {
		const struct save_model *o = &j->saves[k];

		if (o->open && !o->over && o->order < s->order &&
		    !((o->flags ^ s->flags) & SHEAF_SAVE_NO_DISK))
			return false;
	}
	return true;
}

int flying(const struct job_model *j)
{
	int n = 0;

	for (int k = 0; k < SAVES; k++)
		n += in_flight(&j->saves[k]);
	return n;
}

bool unput(const struct job_model *j, bool failed_too)
{
	for (int k = 0; k < SAVES; k++)
		if (in_flight(&j->saves[k]) && j->saves[k].flags & SHEAF_SAVE_LATER &&
		    (failed_too || !(j->saves[k].failed || j->saves[k].spoiled)) &&
		    !all_of(j->saves[k].put, j->slices))
			return true;
	return false;
}

bool publishes(const struct job_model *j)
{
	for (int k = 0; k < SAVES; k++)
		if (in_flight(&j->saves[k]) && j->saves[k].asked_publish)
			return true;
	return false;
}

/* Returns whether a save that follows `parent` would follow a step that is older than the newest,
 * or that is set aside. */
bool is_back(const struct model *m, const struct job_model *j, int parent, bool unsure_too)
{
	struct run_model *r = (struct run_model *)&m->runs[j->as.run];
	const struct entry *top = newest(r, false, unsure_too), *e;

	e = parent >= 0 ? entry_by_id(r, parent) : NULL;
	return e && (e->aside || (top && top->id != e->id && top->step > e->step));
}

void give_number(struct model *m, int run, struct entry *e)
{
	e->aside = true;
	e->mark = 0;
	/* Saves that would have followed it follow the newest remaining step. */
	for (int j = 0; j < JOBS; j++) {
		struct job_model *job = &m->jobs[j];

		if (!job->open || job->as.run != run)
			continue;
		job->parent = job->parent == e->id ? -1 : job->parent;
		for (int k = 0; k < SAVES; k++)
			if (job->saves[k].parent == e->id)
				job->saves[k].parent = -1;
	}
}

bool broken(char why[400], const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, 400, fmt, args);
	va_end(args);
	return false;
}
