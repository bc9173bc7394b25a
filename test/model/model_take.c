/* SPDX-License-Identifier: Apache-2.0 */
#include "model_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the changes that a call makes ---- */

static struct entry *entry_add(struct run_model *r, int id, int64_t step, int parent)
{
	struct entry *e;

	for (int i = 0; i < r->n; i++)
		if (r->e[i].id == id) {
			e = &r->e[i];
			if (e->gone || e->aside)
				e->mark = 0;
			e->was_aside |= e->aside;
			e->gone = e->aside = e->unsure = e->may_go = false;
			return e;
		}
	if (r->n == ENTRIES) {
		int k = 0;

		for (int i = 0; i < r->n; i++)
			if (!r->e[i].gone)
				r->e[k++] = r->e[i];
		r->n = k < ENTRIES ? k : ENTRIES - 1;
	}
	e = &r->e[r->n++];
	*e = (struct entry){ .id = id, .step = step, .parent = parent };
	return e;
}

static void make_run(struct model *m, struct run_model *r)
{
	if (!r->exists)
		*r = (struct run_model){ .exists = true,
					 .torn = r->torn,
					 .run_id = ++m->run_ids,
					 .identity = ++m->identities,
					 .floor = -1 };
}

/* Returns whether the chain of ancestors is cut here. A step that was set aside and copied back may
 * name a parent that is still aside. Then no manifest leads further back, and .sheaf/descent does
 * so only if a prune has written it since. */
static bool is_cut_off(const struct entry *e, const struct entry *parent)
{
	return parent && !is_there(parent) && (parent->aside || e->was_aside);
}

static bool has_ancestor(const struct run_model *r, const struct entry *from, int id,
			 bool *known)
{
	*known = true;
	while (from && from->parent != id) {
		const struct entry *next =
		    from->parent >= 0 ? entry_by_id((struct run_model *)r, from->parent) : NULL;

		if (from->parent == -2 || is_cut_off(from, next))
			*known = false;
		from = next;
	}
	return from != NULL;
}

/* Returns what the rules say of an entry, with all others as they are: 'k' keep, 'g' remove, '?'
 * unknown. */
static char fate(struct run_model *r, const struct entry *e, int keep)
{
	const struct entry *top = newest(r, false, false);
	int newer = 0, unsure = 0;
	bool known;

	for (int i = 0; i < r->n; i++)
		if (is_there(&r->e[i]) && r->e[i].mark != 'b' && r->e[i].step > e->step) {
			newer++;
			unsure += r->e[i].unsure;
		}
	if (keep <= 0 || e->mark == 'k' || !top || e->step >= top->step ||
	    (e->mark != 'b' && newer < keep))
		return 'k';
	if (!has_ancestor(r, top, e->id, &known) || !known)
		return known ? 'k' : '?';
	/* Some of the newer ones may not be there, so this one may be among the newest. */
	if (e->mark != 'b' && newer - unsure < keep)
		return '?';
	return e->readers || e->unsure ? '?' : 'g';
}

static void may_prune(struct model *m, int run, int keep)
{
	struct run_model *r = &m->runs[run];

	for (int i = 0; i < r->n && keep > 0; i++)
		if (is_there(&r->e[i]) && fate(r, &r->e[i], keep) != 'k')
			r->e[i].may_go = true;
}

/* A step that the job resumed from stays until a commit succeeds. Returns 'k' if a prune keeps it,
 * '?' if it may, because the prune has to finish a publication, and 0 if this rule does not
 * apply. */
static char kept_by_load(const struct job_model *j, int id)
{
	bool on = id == j->loaded_on || j->loaded_on == -2;

	if (j->loaded < 0 || (!on && id != j->loaded))
		return 0;
	return id == j->loaded_on && !publishes(j) ? 'k' : '?';
}

/* Applies a successful prune. All entries are judged before any is removed. */
static void take_prune(struct model *m, int run, int keep, const struct job_model *j)
{
	struct run_model *r = &m->runs[run];
	char fates[ENTRIES];

	for (int i = 0; i < r->n; i++) {
		char left = j ? kept_by_load(j, r->e[i].id) : 0;

		fates[i] = is_there(&r->e[i]) ? fate(r, &r->e[i], keep) : 'k';
		if (left && fates[i] == 'g')
			fates[i] = left;
	}
	for (int i = 0; i < r->n; i++) {
		if (fates[i] == 'g')
			r->e[i].gone = true;
		else if (is_there(&r->e[i]))
			r->e[i].may_go = fates[i] == '?' || r->e[i].unsure;
	}
}

static void take_rewind(struct model *m, int run, int64_t step)
{
	struct run_model *r = &m->runs[run];

	for (int i = 0; i < r->n; i++)
		if (is_there(&r->e[i]) && r->e[i].step > step) {
			if (r->e[i].unsure)
				r->e[i].gone = true;
			else
				r->e[i].aside = true;
			r->e[i].mark = 0;
		}
	memory_forget(m, r->identity, step);
	memory_shake(m, r->identity);
	for (int i = 0; i < MEMORIES; i++)
		m->mems[i].left = m->mems[i].identity == r->identity ? 0 : m->mems[i].left;
}

static void take_mark(struct model *m, int run, const struct call *c)
{
	struct entry *e = entry_of(&m->runs[run], c->step);

	if (e)
		e->mark = c->n;
	if (e && !c->n)
		m->runs[run].tries[e->id] = 0;
	memory_shake(m, m->runs[run].identity);
	for (int j = 0; j < JOBS; j++)
		m->jobs[j].marked |= e && m->jobs[j].open && m->jobs[j].as.run == run;
}

/* When a job opens a run, the agents keep the steps of only one earlier job (T3 of memory_tier.h),
 * so steps older than the newest may be dropped. */
static void keep_one_heir(struct model *m, const struct job_model *j)
{
	int identity = m->runs[j->as.run].identity;
	int64_t newest_step = -1;

	if (!j->as.agent || j->as.flags & SHEAF_RUN_READONLY)
		return;
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].here && m->mems[i].identity == identity &&
		    m->mems[i].step > newest_step)
			newest_step = m->mems[i].step;
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].identity == identity && m->mems[i].step < newest_step)
			m->mems[i].sure = false;
}

static void take_open(struct model *m, const struct call *c)
{
	struct job_model *j = &m->jobs[c->job];
	struct run_model *r = &m->runs[c->run];

	make_run(m, r);
	*j = (struct job_model){ .open = true,
				 .as = *c,
				 .serial = ++m->serials,
				 .parent = -1,
				 .loaded = -1,
				 .slices = (c->variant & V_PART ? 4 : TENSORS) +
					   !!(c->variant & V_TIED) + !!(c->variant & V_DOUBLED) };
	for (int k = 0; k < SAVES && !(c->flags & SHEAF_RUN_READONLY); k++)
		r->left[k].id = 0;
	for (int i = 0; i < c->n; i++)
		j->nodes |= c->nodes == 3 ? 1 << i % 2 : c->nodes;
	for (int i = r->n; i-- > 0 && !(c->flags & SHEAF_RUN_READONLY);)
		if (is_there(&r->e[i]) && !r->e[i].mark && is_spent(r, &r->e[i], c->attempts, NULL))
			r->e[i].mark = r->fuzzy[r->e[i].id] ? '?' : 'b';
	keep_one_heir(m, j);
}

/* The session made progress: resets the counts of the steps that it loaded. */
static void forget_tries(struct model *m, struct job_model *j)
{
	struct run_model *r = &m->runs[j->as.run];

	for (int id = 0; id < IDS; id++)
		if (j->counted[id]) {
			r->tries[id] = 0;
			r->fuzzy[id] = false;
			j->counted[id] = false;
		}
}

/* Sets a bad or spent step aside, because the stage of a save takes its number. */
static void set_bad_aside(struct model *m, const struct job_model *j, int64_t step)
{
	struct run_model *r = &m->runs[j->as.run];
	struct entry *e = entry_of(r, step);

	if (e && (e->mark == 'b' || is_spent(r, e, j->as.attempts, j)))
		give_number(m, j->as.run, e);
}

/* Ends a save without its commit: if it was being published, the step may be there or not. */
static void leave(struct job_model *j, struct save_model *s)
{
	if (!s->open)
		return;
	if (in_flight(s) && s->asked_publish) {
		j->parent = -1;                 /* the base of the next save is found then */
		for (int k = 0; k < SAVES; k++) /* saves that would follow it */
			if (in_flight(&j->saves[k]) && j->saves[k].order > s->order)
				j->saves[k].failed = true;
	}
	s->open = false;
}

static void take_end(struct model *m, struct job_model *j, bool closed)
{
	if (closed && !(j->as.flags & SHEAF_RUN_READONLY)) {
		may_prune(m, j->as.run, j->as.keep);
		forget_tries(m, j);
	}
	for (int k = 0; k < SAVES; k++) {
		struct save_model *s = &j->saves[k];

		if (!closed && !(j->as.flags & SHEAF_RUN_READONLY)) {
			m->runs[j->as.run].left[k].id = in_flight(s) ? s->id : 0;
			m->runs[j->as.run].left[k].step = s->step;
		}
		leave(j, s);
	}
	for (int k = 0; k < HELD && !j->child; k++) /* a child has inherited the locks */
		let_go(m, j, k);
	j->open = false;
	j->orphan = !closed && j->child && !(j->as.flags & SHEAF_RUN_READONLY);
	j->orphan_of = m->runs[j->as.run].identity;
}

/* A begin may reuse the staging buffer of a save that is written to disk but not committed. */
static void lend_images(struct model *m, const struct job_model *j)
{
	for (int i = 0; i < MEMORIES; i++)
		for (int k = 0; k < SAVES; k++)
			if (m->mems[i].here && in_flight(&j->saves[k]) &&
			    m->mems[i].id == j->saves[k].id)
				m->mems[i].sure = false;
}

static void take_average(struct job_model *j, const struct call *c, int rc)
{
	struct average *a = &j->average;

	if (!(j->as.variant & V_AVERAGE))
		return;
	a->unsure |= rc == SHEAF_EINVAL || rc == SHEAF_EEXIST || a->n == UPDATES ||
		     (a->has && c->step < a->at);
	if (a->n < UPDATES && (!a->has || c->step > a->at)) /* only one update for a step */
		a->ids[a->n++] = c->id;
	a->has = true;
	a->at = c->step;
}

static void take_begin(struct model *m, const struct call *c)
{
	struct job_model *j = &m->jobs[c->job];
	struct save_model *s = &j->saves[c->slot];

	*s = (struct save_model){ .open = true,
				  .id = c->id,
				  .step = c->step,
				  .flags = c->flags,
				  .order = ++m->order,
				  .parent = j->parent,
				  .late_check = c->flags & SHEAF_SAVE_LAZY && j->staged_once };
	if (!s->late_check && !(c->flags & SHEAF_SAVE_NO_DISK)) {
		set_bad_aside(m, j, c->step);
		forget_tries(m, j);
	}
	for (int id = 0; id < IDS; id++) /* its stage may be made now, or later */
		m->runs[j->as.run].fuzzy[id] |= j->counted[id];
	s->average = j->average;
	j->staged_once |= (c->flags & SHEAF_SAVE_LAZY) != 0;
	if (c->step > j->most)
		j->most = c->step;
}

static struct entry *add_saved(struct model *m, struct job_model *j, struct save_model *s)
{
	struct run_model *r = &m->runs[j->as.run];
	const struct entry *top = newest(r, true, true), *of = NULL;
	struct entry *e;
	int parent = -1;

	/* Without a loaded base, the step follows the newest one of the time when its stage was
	 * made. */
	if (s->parent >= 0)
		of = entry_by_id(r, s->parent);
	/* A save that takes its base's number follows the newest step that was left then. */
	if (of && of->mark != 'b' && !of->aside)
		parent = of->id;
	else if (of || top)
		parent = -2;
	set_bad_aside(m, j, s->step);
	e = entry_add(r, s->id, s->step, parent);
	e->average = s->average;
	return e;
}

/* A thread publishes the save: from now on the step may be there. */
static void take_published(struct model *m, struct job_model *j, struct save_model *s)
{
	s->asked_publish = true;
	add_saved(m, j, s)->unsure = true;
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].here && m->mems[i].job == j->serial && m->mems[i].step > s->step &&
		    !(m->mems[i].left && m->mems[i].left < s->order))
			m->mems[i].coming = s->id;
}

/* Calls that change the run directory finish publications of the job first. */
static void settle(struct model *m, struct job_model *j)
{
	struct entry *e;

	for (int k = 0; k < SAVES; k++)
		if (in_flight(&j->saves[k]) && j->saves[k].asked_publish &&
		    (e = entry_by_id(&m->runs[j->as.run], j->saves[k].id)) != NULL)
			e->unsure = false;
}

/* Records that the save is on disk. */
static void take_saved(struct model *m, struct job_model *j, struct save_model *s)
{
	struct run_model *r = &m->runs[j->as.run];

	/* Memory may keep it, too; its base is the step that was the newest before. */
	if (j->as.agent && m->agents && !s->asked_publish) {
		memory_add(m, j, s);
		memory_shake(m, r->identity);
	}
	if (s->asked_publish)
		entry_by_id(r, s->id)->unsure = false;
	else
		add_saved(m, j, s);
	if (s->step > r->floor && !s->asked_publish)
		r->floor = s->step;
	memory_forget_left(m, j, s);
	for (int i = 0; i < MEMORIES; i++) {
		struct memory *x = &m->mems[i];

		if (!x->here || x->identity != r->identity)
			continue;
		if (x->job == j->serial && x->step > s->step)
			x->base = s->id, x->coming = 0;
		else
			x->sure = false;
	}
	j->parent = s->id;
	for (int k = 0; k < SAVES; k++)
		if (in_flight(&j->saves[k]) && j->saves[k].step > s->step)
			j->saves[k].parent = s->id;
	j->loaded = -1;
	j->marked = false;
	may_prune(m, j->as.run, j->as.keep);
}

static bool take_commit(struct model *m, const struct call *c, const struct reply *r)
{
	struct job_model *j = &m->jobs[c->job];
	struct save_model *s = &j->saves[c->slot];
	bool turn = !s->over && is_first(j, s);

	if (r->in_memory)
		memory_add(m, j, s);
	s->kept |= r->in_memory;
	s->asked |= j->as.agent;
	if (r->rc == SHEAF_EAGAIN) {
		if (!s->asked_publish && strstr(r->msg, "being published"))
			take_published(m, j, s);
		return true;
	}
	if (r->rc == SHEAF_EINVAL &&
	    (!turn || (s->flags & SHEAF_SAVE_LATER && !s->spoiled && !all_of(s->put, j->slices))))
		return true;
	s->over = turn;
	if (r->rc == 0 && s->flags & SHEAF_SAVE_NO_DISK)
		forget_tries(m, j);
	for (int id = 0; id < IDS && r->rc == 0;
	     id++) /* its stage was made before the load, or not */
		m->runs[j->as.run].fuzzy[id] |= j->counted[id];
	if (r->rc == 0 && s->flags & SHEAF_SAVE_NO_DISK)
		memory_add(m, j, s);
	else if (r->rc == 0)
		take_saved(m, j, s);
	else {
		for (int i = 0; i < MEMORIES; i++) /* a failed save is not in memory either */
			if (m->mems[i].here && m->mems[i].id == s->id)
				m->mems[i].here = false;
	}
	return true;
}

static void take_gate(struct model *m, const struct call *c, const struct reply *r)
{
	struct job_model *j = &m->jobs[c->job];
	struct save_model *s = &j->saves[c->slot];

	for (int i = 0; i < j->slices && r->rc == 0; i++)
		if (c->n < 0 || i == c->n % j->slices)
			s->gated[i] = true;
}

static void take_put(struct model *m, const struct call *c)
{
	struct job_model *j = &m->jobs[c->job];
	struct save_model *s = &j->saves[c->slot];

	for (int i = 0; i < j->slices && s->flags & SHEAF_SAVE_LATER; i++)
		if (c->n < 0 || i == c->n % j->slices)
			s->put[i] = true;
}

static void take_copy(struct model *m, const struct call *c, const struct reply *r)
{
	struct run_model *from = &m->runs[c->run], *to = &m->runs[c->to];
	const struct entry *e = entry_of(from, r->step);
	struct entry *there;
	bool made = !to->exists;

	if (r->rc < 0 || !e)
		return;
	make_run(m, to);
	if (made)
		to->run_id = from->run_id;
	if (entry_of(to, r->step))
		return;
	there = entry_add(to, e->id, e->step, -2);
	there->unsure = e->unsure;
	there->average = e->average;
	if (!made) /* a mark of the same save may have outlived its step, and counts again */
		there->mark = '?';
	memory_shake(m, to->identity);
}

static void take_cp(struct model *m, const struct call *c)
{
	struct run_model *to = &m->runs[c->to];

	*to = m->runs[c->run];
	to->identity = ++m->identities;
	for (int k = 0; k < SAVES; k++)
		to->left[k].id = 0;
	for (int i = 0; i < to->n; i++)
		to->e[i].readers = 0;
}

/* In the order in which actor_init adds them. */
int model_tensor(const struct job_model *j, int slice)
{
	int plain = j->as.variant & V_PART ? 4 : TENSORS;

	return slice < plain ? slice : slice == plain && j->as.variant & V_TIED ? 0 : 1;
}

/* If the move was too early, it must be repeated before anything else is saved. */
static void take_move(struct job_model *j, const struct call *c, int rc)
{
	unsigned bit = 1u << model_tensor(j, c->n % j->slices);

	j->unmoved = rc < 0 ? j->unmoved | bit : j->unmoved & ~bit;
}

static void take_salvage(struct model *m, const struct call *c, const struct reply *r)
{
	struct run_model *run = &m->runs[c->run];

	for (int k = 0; k < SAVES; k++)
		if (r->rc == 0 && run->left[k].id && run->left[k].step == c->step) {
			entry_add(run, run->left[k].id, c->step, -2)->average.unsure = true;
			run->left[k].id = 0;
			memory_shake(m, run->identity);
		}
}

static bool job_lives(const struct model *m, int serial)
{
	for (int j = 0; j < JOBS; j++)
		if (m->jobs[j].open && m->jobs[j].serial == serial)
			return true;
	return false;
}

static void take_agent_kill(struct model *m, int node)
{
	m->parted = true;
	for (int i = 0; i < MEMORIES; i++) {
		struct memory *x = &m->mems[i];

		if (x->nodes >> node & 1) /* its job, if it is alive, gives it to the next agent */
			x->here = x->here && job_lives(m, x->job), x->sure = false;
	}
	for (int j = 0; j < JOBS; j++)
		if (m->jobs[j].open && m->jobs[j].nodes >> node & 1)
			m->jobs[j].shaken = true;
}

/* Returns the parent of a step that is written from memory: the newest one on disk; -2: unknown. */
static int parent_of_written(struct run_model *run)
{
	const struct entry *top = newest(run, false, false);

	return newest(run, false, true) != top ? -2 : top ? top->id : -1;
}

/* Records that a step in the memory of these nodes is on disk now. Returns whether there is one. A
 * step of the same number in another node's memory does not count. */
static bool take_written(struct model *m, struct run_model *run, int nodes, int64_t step)
{
	const struct memory *x = NULL;

	for (int k = 0; k < MEMORIES; k++)
		if (m->mems[k].here && m->mems[k].step == step &&
		    (m->mems[k].nodes & ~nodes) == 0 && m->mems[k].identity == run->identity &&
		    (!x || m->mems[k].sure || m->mems[k].id > x->id))
			x = &m->mems[k];
	if (x)
		entry_add(run, x->id, x->step, parent_of_written(run))->average = x->average;
	return x;
}

static bool take_flush(struct model *m, const struct call *c, const struct reply *r, char why[400])
{
	struct run_model *run = &m->runs[c->run];
	struct latest l;

	if (r->rc < 0 || r->step < 0)
		return true;
	latest_of(m, c->run, 1 << c->n, NULL, &l);
	for (int i = 0; i < l.n; i++)
		if (step_of_id(m, c->run, l.ids[i]) == r->step) {
			(void)take_written(m, run, 1 << c->n, r->step);
			return true;
		}
	return m->faulty ||
	       broken(why, "step %" PRId64 " was flushed, which is not the newest", r->step);
}

/* Records that a job was killed. A step that it left due is on disk, if its agent had to write
 * it. */
static bool take_kill(struct model *m, const struct call *c, const struct reply *r, char why[400])
{
	int run = m->jobs[c->job].as.run;
	bool locked = false;
	struct latest l;

	take_end(m, &m->jobs[c->job], false);
	if (!r->due)
		return true;
	for (int i = 0; i < MEMORIES; i++) /* steps only for memory may follow it, or not */
		m->mems[i].adrift |= r->written && m->mems[i].step > r->step &&
				     m->mems[i].identity == m->runs[run].identity;
	if (r->written)
		return take_written(m, &m->runs[run], 1, r->step) || m->faulty ||
		       broken(why, "step %" PRId64 " was written, which was in no memory", r->step);
	for (int j = 0; j < JOBS; j++)
		locked |= m->jobs[j].orphan && m->jobs[j].orphan_of == m->runs[run].identity;
	latest_of(m, run, 1, NULL, &l);
	return m->faulty || locked || l.n != 1 || l.none ||
	       step_of_id(m, run, l.ids[0]) != r->step ||
	       broken(why, "step %" PRId64 " was due, and the agent has not written it", r->step);
}

/* Handles calls for a save. */
static bool take_of_save(struct model *m, const struct call *c, const struct reply *r)
{
	struct job_model *j = &m->jobs[c->job];
	struct save_model *s = &j->saves[c->slot];

	switch (c->kind) {
	case C_BEGIN:
		leave(j, s); /* of an earlier save in this slot */
		find_numbers(m, j);
		pass_gates(j);
		lend_images(m, j);
		take_average(j, c, r->rc);
		if (r->rc == 0)
			take_begin(m, c);
		return true;
	case C_AVERAGE:
		pass_gates(j);
		take_average(j, c, r->rc);
		return true;
	case C_COMMIT:
		return take_commit(m, c, r);
	case C_GATE:
		take_gate(m, c, r);
		return true;
	case C_PUT:
		take_put(m, c);
		return true;
	case C_MOVE:
		take_move(j, c, r->rc);
		return true;
	case C_NOTE:
	case C_ATTACH:
		if (r->rc == 0)
			s->notes |= 1u << (c->n % 4 + 4 * (c->kind == C_NOTE));
		return true;
	case C_FAIL:
		s->failed |= !s->over && !s->asked_publish && r->rc == 0;
		for (int i = 0; i < MEMORIES; i++)
			m->mems[i].sure &= m->mems[i].id != s->id;
		return true;
	case C_FREE:
		leave(j, s);
		return true;
	case C_ADVANCE: /* like a commit of 0 ms */
		return take_commit(m, c, r);
	case C_WAIT:
		s->spoiled |= r->rc < 0 && r->rc != SHEAF_EAGAIN && !s->over;
		return true;
	default:
		return true;
	}
}

/* Handles calls of a job for itself, and its reads. */
static bool take_of_job(struct model *m, const struct call *c, const struct reply *r, char why[400])
{
	struct job_model *j = &m->jobs[c->job];

	switch (c->kind) {
	case C_OPEN:
		if (r->rc == 0)
			take_open(m, c);
		return true;
	case C_CLOSE:
		take_end(m, j, true);
		return true;
	case C_KILL:
		return take_kill(m, c, r, why);
	case C_LOAD:
	case C_RESUME:
		return take_load(m, c, r, why);
	case C_HOLD:
		return take_hold(m, c, r, why);
	case C_LOAD_HELD:
		return take_held(m, c, r, why);
	case C_DROP:
		let_go(m, j, c->slot);
		return true;
	case C_FORK:
		j->child = true;
		return true;
	case C_CHILD_CLOSE:
		for (int k = 0; k < HELD && !j->open; k++)
			let_go(m, j, k);
		j->orphan = false;
		return true;
	case C_CHILD_EXIT:
		for (int k = 0; k < HELD && !j->open; k++)
			let_go(m, j, k);
		j->child = j->orphan = false;
		return true;
	default:
		return true;
	}
}

/* From now on, a disk call will fail: steps that are certainly there now must stay. */
static void take_fault(struct model *m)
{
	for (int i = 0; i < RUNS && !m->faulty; i++) {
		const struct entry *e = model_newest(&m->runs[i]);

		m->runs[i].floor = e && !e->may_go ? e->step : -1;
	}
	m->faulty = true;
}

/* Handles what is done to a run, or happens to it. */
static bool take_of_run(struct model *m, const struct call *c, const struct reply *r, char why[400])
{
	struct job_model *j = &m->jobs[c->job];
	int run = c->kind <= C_CHILD_EXIT && j->open ? j->as.run : c->run;

	switch (c->kind) {
	case C_REWIND:
		if (r->rc == 0) {
			const struct entry *e = entry_of(&m->runs[run], c->step);

			take_rewind(m, run, c->step);
			j->parent = e ? e->id : -1;
			j->most = c->step;
			if (j->loaded_step > c->step)
				j->loaded = -1;
			j->beyond = j->from_memory = false;
		}
		return true;
	case C_RUN_REWIND:
		if (r->rc == 0)
			take_rewind(m, c->run, c->step);
		return true;
	case C_MARK:
	case C_RUN_MARK:
		if (c->kind == C_MARK)
			settle(m, j);
		if (r->rc == 0)
			take_mark(m, run, c);
		return true;
	case C_PRUNE:
		settle(m, j);
		if (r->rc >= 0)
			take_prune(m, run, j->as.keep, j);
		return true;
	case C_RUN_PRUNE:
		if (r->rc >= 0)
			take_prune(m, c->run, c->keep, NULL);
		return true;
	case C_COPY:
		take_copy(m, c, r);
		return true;
	case C_CP:
		if (r->rc == 0)
			take_cp(m, c);
		m->runs[c->to].torn |= r->rc < 0;
		return true;
	case C_RENAME:
		if (r->rc < 0)
			return true;
		m->runs[c->to] = m->runs[c->run];
		m->runs[c->run] = (struct run_model){ .exists = false };
		return true;
	case C_FLUSH:
		return take_flush(m, c, r, why);
	case C_SALVAGE:
		take_salvage(m, c, r);
		return true;
	case C_AGENT_LIMIT:
		m->tight = true;
		for (int i = 0; i < MEMORIES; i++)
			m->mems[i].sure = false;
		return true;
	case C_AGENT_KILL:
		take_agent_kill(m, c->n);
		return true;
	case C_FAULT:
		take_fault(m);
		return true;
	default:
		return true;
	}
}

bool model_take(struct model *m, const struct call *c, const struct reply *r, char why[400])
{
	const struct job_model *j = &m->jobs[c->job];
	int run = c->kind <= C_CHILD_EXIT && j->open ? j->as.run : c->run;

	if (c->kind == C_REWIND || c->kind == C_RUN_REWIND || c->kind == C_MARK ||
	    c->kind == C_RUN_MARK || (c->kind == C_OPEN && c->attempts))
		m->runs[run].floor = -1;
	if (!(model_codes(m, c) & CODE(r->rc)))
		return broken(why, "%s returned %d (%.200s)", call_names[c->kind], r->rc, r->msg);
	return take_of_save(m, c, r) && take_of_job(m, c, r, why) && take_of_run(m, c, r, why);
}
