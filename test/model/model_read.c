/* SPDX-License-Identifier: Apache-2.0 */
#include "model_inside.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- loads ---- */

void let_go(struct model *m, struct job_model *j, int slot)
{
	struct run_model *r = &m->runs[j->held_run[slot]];
	struct entry *e = entry_by_id(r, j->held[slot]), *other = entry_by_id(r, j->held_or[slot]);

	if (e && e->readers && j->held_leases[slot] & 1)
		e->readers--;
	if (other && other->readers && j->held_leases[slot] & 2)
		other->readers--;
	j->held[slot] = j->held_or[slot] = 0;
	j->held_leases[slot] = 0;
}

/* Before memory is changed, the gates of all saves are passed, but for slices that are not
 * ready. */
void pass_gates(struct job_model *j)
{
	for (int k = 0; k < SAVES; k++)
		for (int i = 0; i < j->slices && j->saves[k].open; i++)
			j->saves[k].gated[i] |=
			    !(j->saves[k].flags & SHEAF_SAVE_LATER) || j->saves[k].put[i];
}

const struct average *average_of(const struct model *m, int run, int id)
{
	for (int i = 0; i < m->runs[run].n; i++)
		if (m->runs[run].e[i].id == id)
			return &m->runs[run].e[i].average;
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].here && m->mems[i].id == id)
			return &m->mems[i].average;
	return NULL;
}

bool check_values(const struct reply *r, const struct latest *l, char why[400])
{
	if (!latest_allows(l, r->id))
		return broken(why, "it holds the values of %d, wanted %s%d (step %" PRId64 ")",
			      r->id, l->n > 1 ? "among others " : "", l->n ? l->ids[0] : -1,
			      r->step);
	if (r->wrong)
		return broken(why, "%ld items are not those of %d", r->wrong, r->id);
	return true;
}

/* Checks the average: e = w at first, then fma(c, e, d * w), with c = d = 1/2. */
bool check_average(const struct model *m, int run, const struct reply *r, char why[400])
{
	const struct average *a = average_of(m, run, r->id);

	if (!a || a->unsure || m->faulty)
		return true;
	if (a->has != r->has_average)
		return broken(why, "step %" PRId64 " has %s averages", r->step,
			      r->has_average ? "got" : "lost its");
	for (int p = 0; p < ACTOR_PROBES && a->has && !r->average_unread; p++) {
		float e = 0;

		for (int i = 0; i < a->n; i++) {
			float w = actor_value(p, a->ids[i]);

			e = i ? fmaf(0.5f, e, 0.5f * w) : w;
		}
		if (memcmp(&e, &r->average[p], sizeof(e)))
			return broken(why, "the average of item %d is %a, wanted %a of %d updates",
				      actor_probes[p], (double)r->average[p], (double)e, a->n);
	}
	return true;
}

static void load_average(const struct model *m, struct job_model *j, int id)
{
	const struct average *a = average_of(m, j->as.run, id);

	if (!(j->as.variant & V_AVERAGE))
		return;
	if (a && a->has)
		j->average = *a;
	else
		j->average = (struct average){ .unsure = !a };
}

/* Returns the base of a save by a job that resumes from that step, if it is opened now: the step
 * itself, or the base of a step in memory. -2: unknown. */
static int follows(const struct model *m, int run, int id)
{
	const struct entry *e = entry_by_id((struct run_model *)&m->runs[run], id);

	if (e && is_there(e))
		return e->unsure ? -2 : id;
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].here && m->mems[i].id == id)
			return m->mems[i].coming ? -2 : m->mems[i].base;
	return -2;
}

/* A job goes back to an older step. If it is on disk, the job's newer steps in memory stay until
 * the next save. Otherwise the job may also resume from those that it had left behind. */
static void leave_behind(struct model *m, struct job_model *j, int64_t step, bool on_disk)
{
	int now = ++m->order;

	for (int i = 0; i < MEMORIES; i++) {
		struct memory *x = &m->mems[i];

		if (x->job != j->serial)
			continue;
		if (on_disk && x->step > step && !x->left)
			x->left = now;
		if (!on_disk && x->left)
			x->left = 0, x->sure = false;
	}
	j->went_back = on_disk ? now : j->went_back;
}

/* Records that a job resumes from what it loaded. from: the result of `follows` when it was
 * opened. */
static void goes_on(struct model *m, struct job_model *j, int id, int64_t step, int from)
{
	struct run_model *run = &m->runs[j->as.run];

	if (j->as.flags & SHEAF_RUN_READONLY)
		return;
	j->loaded = id;
	j->loaded_step = step;
	if (!j->counted[id]) {
		j->counted[id] = true;
		run->tries[id]++;
	}
	/* A load may have to make the stage of a save in flight. */
	for (int k = 0; k < SAVES; k++)
		run->fuzzy[id] |= in_flight(&j->saves[k]);
	if (j->parent != id) /* this job may have saved it to disk since it was opened */
		j->parent = from;
	j->loaded_on = j->parent;
	leave_behind(m, j, step, j->parent == id);
	j->beyond = false;
	j->from_memory = j->as.agent && j->parent != id;
}

void find_numbers(const struct model *m, struct job_model *j)
{
	for (int k = 0; k < SAVES; k++)
		if (in_flight(&j->saves[k]) && j->saves[k].late_check)
			j->saves[k].found |= codes_of_number(
				m, j, j->saves[k].parent, j->saves[k].step);
}

/* A load counts as a try before it reads the first byte, so one that failed may have counted. */
static void may_have_tried(struct model *m, const struct job_model *j, int id)
{
	struct run_model *r = &m->runs[j->as.run];

	if (!j->as.attempts || j->as.flags & SHEAF_RUN_READONLY || id <= 0 || j->counted[id])
		return;
	r->tries[id]++;
	r->fuzzy[id] = true;
}

/* A load that ends in the middle leaves slices, and averages, undefined. */
static void take_half_load(struct job_model *j, int rc)
{
	j->average.unsure |= rc == SHEAF_EAGAIN || rc == SHEAF_ECORRUPT;
}

bool take_load(struct model *m, const struct call *c, const struct reply *r, char why[400])
{
	struct job_model *j = &m->jobs[c->job];
	struct latest l;
	int from;

	find_numbers(m, j);
	if (c->kind == C_RESUME) /* it may change memory, whatever it finds */
		pass_gates(j);
	take_half_load(j, r->rc);
	if (r->rc < 0)
		return true;
	wanted(m, j->as.run, j->as.agent && m->agents ? j->nodes : 0, j,
	       c->kind == C_RESUME ? -1 : c->step, &l);
	if (!m->faulty && (!check_values(r, &l, why) ||
			   (c->kind == C_LOAD && !check_average(m, j->as.run, r, why))))
		return false;
	if (r->wrong)
		return broken(why, "%ld items are not those of %d", r->wrong, r->id);
	pass_gates(j);
	load_average(m, j, r->id);
	from = follows(m, j->as.run, r->id);
	goes_on(m, j, r->id, r->step, from);
	latest_of(m, j->as.run, j->as.agent && m->agents ? j->nodes : 0, j, &l);
	j->beyond = from != r->id && from != -2 && j->parent != r->id && l.n == 1 && !l.none &&
		    !(j->as.flags & SHEAF_RUN_READONLY) &&
		    !entry_by_id(&m->runs[j->as.run], l.ids[0]) &&
		    step_of_id(m, j->as.run, l.ids[0]) > r->step;
	return true;
}

bool take_hold(struct model *m, const struct call *c, const struct reply *r, char why[400])
{
	struct job_model *j = &m->jobs[c->job];
	struct latest l;
	struct entry *e;

	let_go(m, j, c->slot);
	if (r->rc < 0)
		return true;
	wanted(m, j->as.run, j->as.agent && m->agents ? j->nodes : 0, j, c->step, &l);
	for (int i = 0; i < l.n; i++) {
		if (step_of_id(m, j->as.run, l.ids[i]) != r->step)
			continue;
		e = entry_by_id(&m->runs[j->as.run], l.ids[i]);
		if (e) {
			e->readers++;
			j->held_leases[c->slot] |= j->held[c->slot] ? 2 : 1;
		}
		j->held_from[c->slot] = j->held[c->slot] ? -2 : follows(m, j->as.run, l.ids[i]);
		*(j->held[c->slot] ? &j->held_or[c->slot] : &j->held[c->slot]) = l.ids[i];
		j->held_run[c->slot] = j->as.run;
	}
	return m->faulty || j->held[c->slot] ||
	       broken(why, "step %" PRId64 " was opened, wanted %s%" PRId64, r->step,
		      l.n > 1 ? "among others " : "",
		      l.n ? step_of_id(m, j->as.run, l.ids[0]) : -1);
}

bool take_held(struct model *m, const struct call *c, const struct reply *r, char why[400])
{
	struct job_model *j = &m->jobs[c->job];
	struct latest l = { .ids = { j->held[c->slot], j->held_or[c->slot] },
			    .n = j->held_or[c->slot] ? 2 : 1 };

	find_numbers(m, j);
	pass_gates(j);
	take_half_load(j, r->rc);
	if (r->rc < 0) {
		may_have_tried(m, j, j->held[c->slot]);
		may_have_tried(m, j, j->held_or[c->slot]);
		return true;
	}
	if (!m->faulty && !check_values(r, &l, why))
		return false;
	load_average(m, j, r->id);
	goes_on(m, j, r->id, r->step, j->held_from[c->slot]);
	return true;
}

/* ---- what a new process sees ---- */

static bool saves_number(const struct model *m, const struct run_model *run, int64_t step)
{
	for (int j = 0; j < JOBS; j++)
		for (int k = 0; k < SAVES; k++)
			if (m->jobs[j].open && &m->runs[m->jobs[j].as.run] == run &&
			    m->jobs[j].saves[k].open && m->jobs[j].saves[k].step == step)
				return true;
	return false;
}

/* Returns whether the step names another parent than it should. */
static bool parent_wrong(const struct model *m, struct run_model *run, const struct entry *e,
			 const struct listed *l, char why[400])
{
	const struct entry *of = e->parent < 0 ? NULL : entry_by_id(run, e->parent);

	if (m->faulty || e->parent == -2 || (e->parent >= 0 && !of) ||
	    l->parent == (of ? of->step : -1))
		return false;
	return !broken(why, "step %" PRId64 " follows step %" PRId64 ", wanted %" PRId64, l->step,
		       l->parent, of ? of->step : -1);
}

static bool listed_wrong(struct model *m, struct run_model *run, const struct listed *l,
			 char why[400])
{
	struct entry *e = entry_of(run, l->step);

	switch (l->state) {
	case 'c':
		if (!e)
			return !broken(why, "step %" PRId64 " is listed, and should not be there",
				       l->step);
		if (e->mark == '?')
			e->mark = l->mark;
		if (e->mark != l->mark && !m->faulty)
			return !broken(why, "step %" PRId64 " is marked '%c', wanted '%c'", l->step,
				       l->mark ? l->mark : '-', e->mark ? e->mark : '-');
		e->unsure = false;
		return parent_wrong(m, run, e, l, why);
	case 'a':
		for (int i = 0; i < run->n; i++)
			if (run->e[i].step == l->step && (run->e[i].aside || run->e[i].was_aside))
				return false;
		/* A save in flight that takes its number has made its stage. */
		if (e && e->mark == 'b' && saves_number(m, run, l->step)) {
			give_number(m, (int)(run - m->runs), e);
			return false;
		}
		return !broken(why, "step %" PRId64 " is aside, and nobody rewound it", l->step);
	case 's':
		return false;
	default:
		return !broken(why, "step %" PRId64 " is listed as '%c'", l->step, l->state);
	}
}

static bool missing_wrong(struct model *m, struct run_model *run, struct entry *e,
			  const struct reply *r, char why[400])
{
	for (int i = 0; i < r->list_n; i++)
		if (r->list[i].state == 'c' && r->list[i].step == e->step)
			return false;
	/* As above, if another one of that number was set aside before. */
	if (e->mark == 'b' && saves_number(m, run, e->step)) {
		give_number(m, (int)(run - m->runs), e);
		return false;
	}
	if (e->unsure && !e->may_go) {
		for (int j = 0; j < JOBS; j++) /* it may still be in flight */
			if (m->jobs[j].open && &m->runs[m->jobs[j].as.run] == run)
				return false;
		e->gone = true;
		return false;
	}
	if (e->may_go) {
		e->gone = true;
		return false;
	}
	return !broken(why, "step %" PRId64 " is not listed", e->step);
}

bool model_looked(struct model *m, int run, int nodes, bool loaded, const struct reply *r,
		  char why[400])
{
	struct run_model *of = &m->runs[run];
	struct latest l;

	if (!of->exists)
		return true;
	for (int i = 0; i < r->list_n; i++)
		if (listed_wrong(m, of, &r->list[i], why))
			return false;
	for (int i = 0; i < of->n; i++)
		if (is_there(&of->e[i]) && missing_wrong(m, of, &of->e[i], r, why))
			return false;
	latest_of(m, run, m->agents ? nodes : 0, NULL, &l);
	if (r->rc == SHEAF_ENOENT || r->rc == SHEAF_ECORRUPT) {
		if (l.none && codes_of_nothing(m, run, -1) & CODE(r->rc))
			return true;
		return broken(why, "the newest step: %d (%.200s), wanted %d", r->rc, r->msg,
			      l.ids[0]);
	}
	if (r->rc < 0)
		return broken(why, "looking at run%d: %d (%.200s)", run, r->rc, r->msg);
	for (int i = 0; i < l.n; i++)
		if (step_of_id(m, run, l.ids[i]) == r->step && (!loaded || l.ids[i] == r->id))
			return !loaded ||
			       (check_values(r, &l, why) && check_average(m, run, r, why));
	return broken(why, "the newest step is %" PRId64 " (values %d), wanted %s%" PRId64 " (%d)",
		      r->step, r->id, l.n > 1 ? "among others " : "",
		      l.n ? step_of_id(m, run, l.ids[0]) : -1, l.n ? l.ids[0] : -1);
}

bool model_survives(const struct model *m, int run, const struct reply *r, char why[400])
{
	struct run_model *of = (struct run_model *)&m->runs[run];
	int64_t floor = of->floor;

	if (!of->exists)
		return true;
	/* A step that a failed cp left is damaged, and may be the newest. It is refused, and the
	 * steps saved beside it are intact. */
	for (int i = 0; i < r->list_n; i++)
		if (r->list[i].state == 'd' && !(of->torn && !entry_of(of, r->list[i].step)))
			return broken(why, "step %" PRId64 " is damaged", r->list[i].step);
	if (of->torn && (r->rc == SHEAF_ECORRUPT || r->rc == SHEAF_EFORMAT))
		return true;
	if (r->rc < 0 && floor >= 0)
		return broken(why, "step %" PRId64 " was committed, and: %d (%.200s)", floor, r->rc,
			      r->msg);
	if (r->rc < 0)
		return r->rc == SHEAF_ENOENT || r->rc == SHEAF_ECORRUPT ||
		       broken(why, "%d (%.200s)", r->rc, r->msg);
	if (r->wrong)
		return broken(why, "%ld items are not those of %d", r->wrong, r->id);
	return r->step >= floor ||
	       broken(why, "step %" PRId64 " was committed, and the newest is %" PRId64, floor,
		      r->step);
}
