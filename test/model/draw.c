/* SPDX-License-Identifier: Apache-2.0 */
#include "draw.h"
#include "rng.h"
#include "model_inside.h"

#include <errno.h>
#include <string.h>

uint64_t draw_u(struct draw *d, uint64_t n)
{
	return rng_next(&d->state) % n;
}

static bool odds(struct draw *d, unsigned one_in)
{
	return draw_u(d, one_in) == 0;
}

static int some(struct draw *d, int n)
{
	return (int)draw_u(d, (uint64_t)n);
}

/* Many saves are needed, and their gates do not matter. */
static bool is_plain(const struct draw *d)
{
	return d->focus == F_RULES || d->focus == F_AVERAGES || d->focus == F_BRANCHES;
}

/* Returns a step that exists, that existed, or that never will. */
static int64_t some_step(struct draw *d, struct model *m, int run)
{
	const struct run_model *r = &m->runs[run];

	if (odds(d, 16))
		return (int64_t)draw_u(d, 40);
	for (int i = 0; i < 8 && r->n; i++) {
		const struct entry *e = &r->e[some(d, r->n)];

		if ((!e->gone && !e->aside) || odds(d, 10))
			return e->step;
	}
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].here && m->mems[i].identity == r->identity && odds(d, 2))
			return m->mems[i].step;
	return model_top(m, run);
}

static struct call draw_open(struct draw *d, struct model *m)
{
	static const int ranks[] = { 1, 1, 1, 2, 2, 3 }, images[] = { 0, 0, 0, 2, 3, 1 };
	static const int keeps[] = { 0, 0, 1, 2, 3 };
	struct call c = { .kind = C_OPEN,
			  .job = some(d, JOBS),
			  .run = odds(d, 3) ? some(d, RUNS) : 0,
			  .n = ranks[some(d, 6)],
			  .nodes = 1 + some(d, 3),
			  .images = images[some(d, 6)],
			  .keep = keeps[some(d, 5)],
			  .layout = (enum layout)some(d, LAYOUTS),
			  .agent = m->agents && !odds(d, 4),
			  .flags = SHEAF_RUN_CREATE };

	if (c.n > d->ranks_max)
		c.n = d->ranks_max;
	if (d->focus == F_RULES) {
		c.run = odds(d, 8) ? c.run : 0;
		c.agent = m->agents;
		c.keep = 1 + some(d, 2);
		if (odds(d, 2) && d->ranks_max > 1)
			c.n = 2, c.nodes = 3;
	}
	if (d->focus == F_BRANCHES) { /* jobs of one run that keep steps in memory */
		c.run = odds(d, 8) ? c.run : 0;
		c.agent = m->agents;
		c.images = 3;
	}
	if (d->real || (c.nodes == 3 && c.n == 1))
		c.nodes = 1;
	if (m->runs[c.run].exists && (model_writer(m, c.run) ? !odds(d, 8) : odds(d, 5)))
		c.flags = SHEAF_RUN_READONLY, c.variant = odds(d, 3) ? V_PART : 0;
	else if (odds(d, 12))
		c.flags = 0;
	if (odds(d, 3))
		c.variant |= V_TIED;
	if (odds(d, 6))
		c.variant |= V_DOUBLED;
	if (odds(d, d->focus == F_BRANCHES ? 3 : 12)) /* such a save is only on disk */
		c.variant |= V_IN_PLACE;
	if (d->focus == F_AVERAGES || odds(d, 4))
		c.variant |= V_AVERAGE;
	if (odds(d, 5))
		c.attempts = 1 + some(d, 2);
	return c;
}

static int free_slot(const struct job_model *j)
{
	for (int k = 0; k < SAVES; k++)
		if (!j->saves[k].open || j->saves[k].over)
			return k;
	return -1;
}

static int64_t newest_number(struct model *m, int run)
{
	const struct entry *e = model_newest(&m->runs[run]);

	return e ? e->step : model_top(m, run);
}

/* Returns a number that exists but may be taken again, of a bad step or of one with averages, or
 * -1. */
static int64_t number_again(struct draw *d, struct model *m, const struct job_model *j)
{
	const struct run_model *r = &m->runs[j->as.run];

	if (d->focus == F_AVERAGES && j->average.has && odds(d, 3))
		return j->average.at;
	for (int i = r->n; i-- > 0 && d->focus == F_RULES;)
		if (!r->e[i].gone && !r->e[i].aside && r->e[i].mark == 'b' && odds(d, 2))
			return r->e[i].step;
	/* After a load from disk, next to newer steps in memory. */
	if (d->focus == F_BRANCHES && j->loaded >= 0 && odds(d, 2))
		return newest_number(m, j->as.run) + 1;
	return odds(d, 12) ? some_step(d, m, j->as.run) : -1;
}

static struct call draw_begin(struct draw *d, struct model *m, int job)
{
	const struct job_model *j = &m->jobs[job];
	struct call c = { .kind = C_BEGIN, .job = job, .slot = free_slot(j), .id = d->next_id };
	int64_t again;

	if (c.slot < 0)
		return (struct call){ .kind = C_FREE, .job = job, .slot = some(d, SAVES) };
	d->next_id++;
	c.step = model_top(m, j->as.run) + 1 + some(d, 2);
	again = number_again(d, m, j);
	if (again >= 0)
		c.step = again;
	if (is_plain(d) ? odds(d, 4) : !odds(d, 3))
		c.flags |= SHEAF_SAVE_LAZY;
	if (j->as.agent && odds(d, 2))
		c.flags |= SHEAF_SAVE_NO_DISK;
	if (c.flags & SHEAF_SAVE_LAZY && odds(d, 8))
		c.flags |= SHEAF_SAVE_LATER;
	if (odds(d, 5))
		c.flags |= SHEAF_SAVE_MAY_DROP;
	return c;
}

/* Draws a call that advances a save, usually the one that it waits for. */
static struct call draw_onward(struct draw *d, struct model *m, int job, int slot)
{
	static const int waits[] = { -1, -1, -1, 0, 0, 50 };
	const struct job_model *j = &m->jobs[job];
	const struct save_model *s = &j->saves[slot];
	struct call c = { .kind = C_COMMIT, .job = job, .slot = slot, .to = waits[some(d, 6)] };
	int gated = 0, put = 0;

	for (int i = 0; i < j->slices; i++) {
		gated += s->gated[i];
		put += s->put[i];
	}
	if (is_plain(d) && odds(d, 2))
		c.to = -1;
	if (d->real && j->as.agent && odds(d, 2))
		c.to = 0; /* a real disk finishes these before a second call */
	if (s->over) /* before the background verification of the newest step */
		c.kind = d->focus == F_RULES && odds(d, 2) ? C_PRUNE : C_FREE;
	else if (s->flags & SHEAF_SAVE_LATER && put < j->slices && !odds(d, 8))
		c.kind = C_PUT;
	else if (s->flags & SHEAF_SAVE_LAZY && gated < j->slices && !odds(d, 8))
		c.kind = C_GATE;
	c.n = odds(d, 3) ? -1 : some(d, j->slices);
	return c;
}

static struct call draw_odd(struct draw *d, int job, int slot)
{
	static const enum call_kind kinds[] = { C_FREE, C_FREE,   C_FAIL,   C_WAIT, C_ADVANCE,
						C_NOTE, C_ATTACH, C_COMMIT, C_GATE };
	struct call c = { .kind = kinds[some(d, 9)],
			  .job = job,
			  .slot = slot,
			  .n = some(d, 4),
			  .to = odds(d, 2) ? -1 : 0 };

	if (c.kind == C_WAIT)
		c.to = 0;
	return c;
}

static struct call draw_save(struct draw *d, struct model *m, int job)
{
	const struct job_model *j = &m->jobs[job];
	int open[SAVES], n = 0, first = -1;

	for (int k = 0; k < SAVES; k++)
		if (j->saves[k].open) {
			open[n++] = k;
			if (first < 0 || j->saves[k].order < j->saves[first].order)
				first = k;
		}
	if (n == 0 || odds(d, 2 + (unsigned)n * 3))
		return draw_begin(d, m, job);
	if (odds(d, 8))
		return draw_odd(d, job, open[some(d, n)]);
	return draw_onward(d, m, job, odds(d, 4) ? open[some(d, n)] : first);
}

static struct call draw_read(struct draw *d, struct model *m, int job)
{
	static const enum call_kind kinds[] = { C_LOAD, C_LOAD, C_LOAD,      C_RESUME,
						C_HOLD, C_HOLD, C_LOAD_HELD, C_DROP };
	const struct job_model *j = &m->jobs[job];
	struct call c = {
		.kind = kinds[some(d, 8)], .job = job, .slot = some(d, HELD), .step = -1
	};

	if (d->focus == F_RULES && !odds(d, 4)) /* held during many saves, then dropped */
		c.kind = j->held[c.slot] ? C_DROP : C_HOLD;
	if (d->focus == F_BRANCHES && c.kind == C_LOAD && odds(d, 2))
		c.step = newest_number(m, j->as.run); /* on disk */
	else if (odds(d, 4))
		c.step = some_step(d, m, j->as.run);
	return c;
}

/* Returns a slice that must be moved again, or any slice. */
static int some_slice(struct draw *d, const struct job_model *j)
{
	for (int i = 0; i < j->slices && j->unmoved; i++)
		if (j->unmoved >> model_tensor(j, i) & 1)
			return i;
	return some(d, j->slices);
}

static struct call draw_move(struct draw *d, const struct model *m, int job)
{
	return (struct call){ .kind = C_MOVE, .job = job, .n = some_slice(d, &m->jobs[job]) };
}

/* Marks the newest step bad: a save may take its number. */
static struct call condemn(struct model *m, int job)
{
	return (struct call){ .kind = C_MARK,
			      .job = job,
			      .step = newest_number(m, m->jobs[job].as.run),
			      .n = 'b' };
}

static struct call draw_rule(struct draw *d, struct model *m, int job)
{
	static const enum call_kind kinds[] = { C_REWIND, C_MARK, C_MARK, C_PRUNE, C_PRUNE };
	static const int marks[] = { 'b', 'b', 'k', 0 };
	const struct job_model *j = &m->jobs[job];
	struct call c = { .kind = kinds[some(d, 5)], .job = job };

	if (odds(d, 6))
		return draw_move(d, m, job);
	if (d->focus == F_AVERAGES && odds(d, 2))
		c.kind = C_REWIND;
	c.step = some_step(d, m, j->as.run);
	if (d->focus == F_RULES && c.kind == C_MARK && odds(d, 2))
		c.step = -1; /* the newest */
	if (c.step < 0)
		c.step = newest_number(m, j->as.run);
	c.n = c.kind == C_MARK ? marks[some(d, 4)] : 0;
	return c;
}

/* Returns whether a save to disk is in memory, but not yet on disk. */
static bool is_due(const struct model *m, const struct job_model *j)
{
	for (int i = 0; i < MEMORIES; i++)
		for (int k = 0; k < SAVES; k++)
			if (m->mems[i].here && in_flight(&j->saves[k]) &&
			    m->mems[i].id == j->saves[k].id &&
			    !(j->saves[k].flags & SHEAF_SAVE_NO_DISK))
				return true;
	return false;
}

/* Kills a job with a due step, which the agent is to write even while a reader has the run open. */
static struct call draw_death(struct draw *d, struct model *m, int job)
{
	struct call c = draw_open(d, m);

	if (odds(d, 2))
		return (struct call){ .kind = C_KILL, .job = job };
	c.run = m->jobs[job].as.run;
	c.agent = true;
	c.flags = SHEAF_RUN_READONLY;
	return c;
}

/* Averages a new step without saving it, or the last averaged step once more. */
static struct call draw_average(struct draw *d, struct model *m, int job)
{
	const struct job_model *j = &m->jobs[job];
	struct call c = { .kind = C_AVERAGE, .job = job, .id = d->next_id++ };

	c.step = j->average.has && odds(d, 4) ? j->average.at : model_top(m, j->as.run) + 1;
	return c;
}

static struct call draw_of_job(struct draw *d, struct model *m, int job)
{
	static const int save_below[] = { 68, 50, 55, 60, 62 };
	static const int read_below[] = { 76, 65, 75, 64, 84 };
	static const int rule_below[] = { 88, 95, 94, 88, 88 };
	const struct job_model *j = &m->jobs[job];
	int dice = some(d, 100);

	if (j->as.flags & SHEAF_RUN_READONLY) {
		if (dice < 85)
			return draw_read(d, m, job);
		return (struct call){ .kind = odds(d, 2) ? C_CLOSE : C_KILL, .job = job };
	}
	if (d->real && is_due(m, j) && odds(d, 2))
		return draw_death(d, m, job);
	/* Before this job knows anything about the run. */
	if (d->focus == F_RULES && j->most == 0 && m->runs[j->as.run].n && odds(d, 3))
		return odds(d, 2) ? (struct call){ .kind = C_PRUNE, .job = job }
				  : condemn(m, job);
	if (d->focus == F_AVERAGES && j->loaded >= 0 && odds(d, 4))
		return condemn(m, job);
	if (d->focus == F_AVERAGES && j->as.variant & V_AVERAGE && odds(d, 8))
		return draw_average(d, m, job);
	/* A job that finds steps usually resumes from the newest before it saves. */
	if (j->loaded < 0 && j->parent < 0 && m->runs[j->as.run].n && !odds(d, 4))
		return (
		    struct call){ .kind = odds(d, 2) ? C_LOAD : C_RESUME, .job = job, .step = -1 };
	if (j->loaded >= 0 && j->loaded_step < model_top(m, j->as.run) && odds(d, 3))
		return (struct call){ .kind = C_REWIND, .job = job, .step = j->loaded_step };
	if (j->unmoved ? odds(d, 2) : d->focus == F_MOVES && odds(d, 8))
		return draw_move(d, m, job);
	if (dice < save_below[d->focus])
		return draw_save(d, m, job);
	if (dice < read_below[d->focus])
		return draw_read(d, m, job);
	if (dice < rule_below[d->focus])
		return draw_rule(d, m, job);
	if (dice < rule_below[d->focus] + 2 && !j->child)
		return (struct call){ .kind = C_FORK, .job = job };
	return (struct call){ .kind = odds(d, 2) ? C_CLOSE : C_KILL, .job = job };
}

/* Draws a call from outside of all jobs. */
static struct call draw_outside(struct draw *d, struct model *m)
{
	static const enum call_kind kinds[] = { C_RUN_REWIND, C_RUN_MARK,   C_RUN_MARK, C_RUN_PRUNE,
						C_COPY,       C_COPY,       C_FLUSH,    C_CP,
						C_RENAME,     C_AGENT_KILL, C_CLOCK,    C_SALVAGE,
						C_AGENT_LIMIT };
	static const int marks[] = { 'b', 'b', 'k', 0 };
	struct call c = { .kind = kinds[some(d, 13)],
			  .run = odds(d, 3) ? some(d, RUNS) : 0,
			  .to = some(d, RUNS),
			  .keep = 1 + some(d, 3) };

	/* Without a simulated clock, waiting half a minute for a lock takes too long. */
	if (d->real && (c.kind == C_AGENT_LIMIT || c.kind == C_CLOCK ||
			(c.kind == C_FLUSH && model_writer(m, c.run)) ||
			(c.kind == C_COPY && model_writer(m, c.to))))
		c.kind = C_RUN_MARK;
	c.step = some_step(d, m, c.run);
	switch (c.kind) {
	case C_RUN_MARK:
		c.n = marks[some(d, 4)];
		break;
	case C_COPY:
		c.step = odds(d, 2) ? -1 : c.step;
		break;
	case C_FLUSH:
	case C_AGENT_KILL:
		c.n = d->real ? 0 : some(d, NODES);
		break;
	case C_AGENT_LIMIT:
		c.n = odds(d, 3) ? 0 : 4 << some(d, 5);
		break;
	case C_SALVAGE:
		if (m->runs[c.run].left[0].id && !odds(d, 4))
			c.step = m->runs[c.run].left[0].step;
		break;
	case C_CLOCK:
		c.n = odds(d, 2) ? 24 * some(d, 20) : -some(d, 48);
		break;
	default:
		break;
	}
	return c;
}

static struct call draw_one(struct draw *d, struct model *m)
{
	int open[JOBS], n = 0;

	for (int j = 0; j < JOBS; j++) {
		if (m->jobs[j].open)
			open[n++] = j;
		else if (m->jobs[j].child && odds(d, 8))
			return (struct call){ .kind = odds(d, 2) ? C_CHILD_CLOSE : C_CHILD_EXIT,
					      .job = j };
	}
	if (n == 0 || odds(d, 4 + (unsigned)n * 6))
		return odds(d, 4) && m->runs[0].exists ? draw_outside(d, m) : draw_open(d, m);
	if (odds(d, 12))
		return draw_outside(d, m);
	return draw_of_job(d, m, open[some(d, n)]);
}

static struct call draw_fault(struct draw *d)
{
	static const int errors[] = { EIO, ENOSPC, EDQUOT, EMFILE, ENOMEM, EROFS, ESTALE, EACCES };

	return (struct call){ .kind = C_FAULT,
			      .n = 1 + some(d, 1 << (1 + some(d, 9))),
			      .to = errors[some(d, 8)] };
}

struct call draw_call(struct draw *d, struct model *m)
{
	struct call c;

	if (d->faults && !m->faulty && odds(d, 12))
		return draw_fault(d);

	do
		c = draw_one(d, m);
	while (!model_can(m, &c));
	c.look = odds(d, 50) ? 2 : odds(d, 3);
	return c;
}
