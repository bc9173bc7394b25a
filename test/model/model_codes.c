/* SPDX-License-Identifier: Apache-2.0 */
#include "model_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the codes that a call may return ---- */

static bool has_save(const struct model *m, const struct call *c)
{
	return m->jobs[c->job].open && m->jobs[c->job].saves[c->slot].open;
}

bool model_can(const struct model *m, const struct call *c)
{
	const struct job_model *j = &m->jobs[c->job];

	switch (c->kind) {
	case C_OPEN:
		return !j->open && !j->child;
	case C_BEGIN:
		return j->open && (!has_save(m, c) || j->saves[c->slot].over);
	case C_CLOSE:
	case C_KILL:
	case C_MOVE:
	case C_AVERAGE:
	case C_LOAD:
	case C_RESUME:
	case C_HOLD:
	case C_REWIND:
	case C_MARK:
	case C_PRUNE:
		return j->open;
	case C_LOAD_HELD:
	case C_DROP:
		return j->open && j->held[c->slot];
	case C_GATE:
	case C_PUT:
	case C_COMMIT:
	case C_WAIT:
	case C_ADVANCE:
	case C_FAIL:
	case C_FREE:
	case C_ATTACH:
	case C_NOTE:
		return has_save(m, c);
	case C_FORK:
		return j->open && !j->child;
	case C_CHILD_CLOSE:
	case C_CHILD_EXIT:
		return j->child;
	case C_RUN_REWIND:
	case C_RUN_MARK:
	case C_RUN_PRUNE:
	case C_FLUSH:
	case C_SALVAGE:
		return m->runs[c->run].exists;
	case C_AGENT_LIMIT:
		return m->agents;
	case C_COPY:
		return m->runs[c->run].exists && c->run != c->to;
	case C_CP:
		return m->runs[c->run].exists && !m->runs[c->to].exists &&
		       !model_writer((struct model *)m, c->run);
	case C_RENAME:
		return m->runs[c->run].exists && !m->runs[c->to].exists && !is_used(m, c->run);
	default:
		return true;
	}
}

/* Returns the codes for a process on that node that opens the run for writing. A dead process is
 * known to be dead only on its own node; on another one, a lock that its orphans have stays. */
static uint32_t codes_of_lock(const struct model *m, int run, int node)
{
	if (model_writer((struct model *)m, run))
		return CODE(SHEAF_EBUSY);
	for (int i = 0; i < JOBS; i++) {
		const struct job_model *j = &m->jobs[i];

		if (j->orphan && m->runs[run].identity == j->orphan_of &&
		    (j->as.nodes == 3 ? 0 : j->as.nodes - 1) != node)
			return CODE(0) | CODE(SHEAF_EBUSY);
	}
	return CODE(0);
}

/* Returns whether a lazy save in flight takes the number of that step, which may then be set aside
 * already. */
static bool is_replaced(const struct job_model *j, const struct entry *parent)
{
	for (int k = 0; k < SAVES && parent; k++)
		if (in_flight(&j->saves[k]) && j->saves[k].late_check &&
		    j->saves[k].step == parent->step)
			return true;
	return false;
}

uint32_t codes_of_number(const struct model *m, const struct job_model *j, int parent, int64_t step)
{
	struct run_model *r = (struct run_model *)&m->runs[j->as.run];
	const struct entry *e = entry_of(r, step), *top = newest(r, false, true);
	const struct entry *bad = newest(r, true, true);
	bool back = is_back(m, j, parent, false);
	bool perhaps = is_back(m, j, parent, true) || (back && publishes(j)) || parent == -2;
	bool spent = e && is_spent(r, e, j->as.attempts, j);

	perhaps |= back && j->as.attempts;
	perhaps |= parent >= 0 && is_replaced(j, entry_by_id(r, parent));
	back &= !publishes(j) && !j->as.attempts;

	/* A step that is condemned by its attempts is set aside, as one that is marked bad. */
	if (e && e->mark != 'b' && (!spent || r->fuzzy[e->id]))
		return CODE(SHEAF_EEXIST) | (e->unsure || e->may_go || spent ? CODE(0) : 0) |
		       (perhaps ? CODE(SHEAF_EINVAL) : 0);
	if (back || (top && top->step > step))
		return CODE(SHEAF_EINVAL) | (top && top->unsure ? CODE(0) : 0);
	return CODE(0) | (perhaps || (bad && bad->step > step) ? CODE(SHEAF_EINVAL) : 0);
}

/* Returns whether the job loaded a step that may be only in memory, where there is a newer one. */
static bool was_passed(const struct model *m, const struct job_model *j)
{
	for (int i = 0; i < MEMORIES && j->from_memory; i++)
		if (m->mems[i].identity == m->runs[j->as.run].identity &&
		    m->mems[i].step > j->loaded_step)
			return true;
	return false;
}

static uint32_t codes_of_begin(const struct model *m, const struct call *c)
{
	const struct job_model *j = &m->jobs[c->job];
	uint32_t codes = 0, number;

	if (j->as.flags & SHEAF_RUN_READONLY ||
	    (c->flags & SHEAF_SAVE_LATER && !(c->flags & SHEAF_SAVE_LAZY)) ||
	    unput(j, false) || j->unmoved || (c->flags & SHEAF_SAVE_LATER && j->as.variant &
	                                      V_AVERAGE))
		codes |= CODE(SHEAF_EINVAL) | (c->flags & SHEAF_SAVE_NO_DISK ? CODE(SHEAF_EAGAIN)
		                               : 0);
	for (int k = 0; k < SAVES; k++) {
		if (in_flight(&j->saves[k]) && j->saves[k].step == c->step)
			return CODE(SHEAF_EEXIST) | CODE(SHEAF_EINVAL);
		if (in_flight(&j->saves[k]) && j->saves[k].step > c->step)
			codes |= CODE(SHEAF_EINVAL);
	}
	if (codes)
		return codes;
	if (j->beyond)
		return CODE(SHEAF_EINVAL);
	if (was_passed(m, j))
		codes |= CODE(SHEAF_EINVAL);
	if (c->step <= j->most && j->as.agent) /* memory may have newer steps */
		codes |= CODE(SHEAF_EINVAL) | CODE(SHEAF_EEXIST);
	if (c->flags & SHEAF_SAVE_NO_DISK) {
		if (!j->as.agent)
			return CODE(SHEAF_EINVAL);
		if (!m->agents)
			return CODE(SHEAF_EAGAIN);
		if (j->as.images == 1)
			return CODE(SHEAF_EINVAL) | CODE(SHEAF_EAGAIN);
		codes |= CODE(0) | (j->shaken || m->tight ? CODE(SHEAF_EAGAIN) : 0);
	} else {
		number = codes_of_number(m, j, j->parent, c->step);
		codes |= number;
		if (c->flags & SHEAF_SAVE_LAZY && j->staged_once)
			codes |= CODE(0); /* commit will find it */
	}
	if (c->flags & SHEAF_SAVE_MAY_DROP && flying(j))
		codes |= CODE(SHEAF_EAGAIN);
	for (int k = 0; k < SAVES; k++) /* the wait could be ended only by the caller */
		if (in_flight(&j->saves[k]) && j->saves[k].flags & SHEAF_SAVE_NO_DISK)
			codes |= CODE(SHEAF_EAGAIN);
	return codes;
}

/* Returns whether a step of that number, or a newer one, is on disk. */
static bool lies_beside(const struct model *m, const struct job_model *j, int64_t step)
{
	const struct entry *top = newest((struct run_model *)&m->runs[j->as.run], true, true);

	return top && top->step >= step;
}

/* A commit that returns EINVAL has changed nothing; this one has finished the save, so it returns
 * EFAILED. */
static uint32_t codes_found_late(uint32_t codes)
{
	return codes & CODE(SHEAF_EINVAL) ? (codes & ~CODE(SHEAF_EINVAL)) | CODE(SHEAF_EFAILED)
					  : codes;
}

static uint32_t codes_of_commit(const struct model *m, const struct call *c)
{
	const struct job_model *j = &m->jobs[c->job];
	const struct save_model *s = &j->saves[c->slot];
	uint32_t codes;

	if (s->over || !is_first(j, s))
		return CODE(SHEAF_EINVAL);
	if (s->asked_publish)
		return CODE(0) | CODE(SHEAF_EAGAIN);
	if (s->failed)
		return CODE(SHEAF_EFAILED);
	if (s->spoiled)
		return CODE(SHEAF_EFAILED) | CODE(SHEAF_EEXIST) | CODE(SHEAF_EINVAL);
	/* A commit of 0 ms returns EAGAIN, one that waits EINVAL. */
	if (s->flags & SHEAF_SAVE_LATER && !all_of(s->put, j->slices))
		return CODE(SHEAF_EINVAL) | CODE(SHEAF_EAGAIN);
	if (s->flags & SHEAF_SAVE_NO_DISK)
		codes =
		    CODE(0) | (j->shaken || m->tight ? CODE(SHEAF_EFAILED) : 0) |
		    (is_back(m, j, s->parent, true) || s->parent == -2 ||
				     lies_beside(m, j, s->step)
			 ? CODE(SHEAF_EFAILED)
			 : 0);
	else
		codes = !s->late_check
			    ? CODE(0)
			    : codes_found_late(codes_of_number(m, j, s->parent, s->step)) |
				  codes_found_late(s->found) |
				  (is_back(m, j, s->parent, true) ? CODE(0) | CODE(SHEAF_EFAILED)
								  : 0);
	/* EAGAIN also if the timeout of a commit is too short: publishing has become slower. */
	return codes | CODE(SHEAF_EAGAIN);
}

/* Returns the codes for a read that finds nothing. ENOENT only if there is no step at all: steps in
 * memory without a base on disk count, but the model does not know all steps that agents have. */
uint32_t codes_of_nothing(const struct model *m, int run, int64_t step)
{
	struct run_model *r = (struct run_model *)&m->runs[run];
	const struct entry *any = newest(r, true, true);
	uint32_t codes = CODE(SHEAF_ENOENT);

	if (step < 0 && any && !any->unsure && !any->may_go)
		return CODE(SHEAF_ECORRUPT);
	for (int i = 0; i < MEMORIES; i++)
		if (step < 0 && m->mems[i].identity == r->identity)
			codes |= CODE(SHEAF_ECORRUPT);
	return codes | (step < 0 && any ? CODE(SHEAF_ECORRUPT) : 0);
}

static uint32_t codes_of_load(const struct model *m, const struct call *c)
{
	const struct job_model *j = &m->jobs[c->job];
	struct latest l;
	uint32_t codes;

	wanted(m, j->as.run, j->as.agent && m->agents ? j->nodes : 0, j,
	       c->kind == C_RESUME ? -1 : c->step, &l);
	codes = l.n ? CODE(0) : 0;
	if (l.none)
		codes |= codes_of_nothing(m, j->as.run, c->kind == C_RESUME ? -1 : c->step);
	if ((unput(j, true) || j->unmoved) && c->kind != C_HOLD)
		codes |= CODE(SHEAF_EINVAL);
	return codes;
}

static uint32_t codes_of_step(const struct model *m, int run, int64_t step)
{
	struct entry *e = entry_of((struct run_model *)&m->runs[run], step);

	return !e                       ? CODE(SHEAF_ENOENT)
	       : e->unsure || e->may_go ? CODE(0) | CODE(SHEAF_ENOENT)
					: CODE(0);
}

/* Returns the codes for a mark or a rewind. A rewind to a step that is marked bad is refused. */
static uint32_t codes_of_target(const struct model *m, const struct call *c)
{
	int run = c->kind == C_REWIND ? m->jobs[c->job].as.run : c->run;
	struct entry *e = entry_of((struct run_model *)&m->runs[run], c->step);
	uint32_t codes = codes_of_step(m, run, c->step);

	if (c->kind == C_RUN_MARK || !e || e->mark != 'b')
		return codes;
	return codes == CODE(0) ? CODE(SHEAF_EINVAL) : codes | CODE(SHEAF_EINVAL);
}

static uint32_t codes_of_open(const struct model *m, const struct call *c)
{
	if (!m->runs[c->run].exists && !(c->flags & SHEAF_RUN_CREATE))
		return CODE(SHEAF_ENOENT);
	if (c->flags & SHEAF_RUN_READONLY)
		return m->runs[c->run].exists ? CODE(0) : CODE(SHEAF_ENOENT) | CODE(SHEAF_EINVAL);
	return codes_of_lock(m, c->run, c->nodes == 3 ? 0 : c->nodes - 1);
}

static uint32_t codes_of_copy(const struct model *m, const struct call *c)
{
	struct run_model *r = (struct run_model *)&m->runs[c->run];
	struct run_model *to = (struct run_model *)&m->runs[c->to];
	struct latest l;
	struct entry *there;

	wanted(m, c->run, 0, NULL, c->step, &l);
	if (!l.n)
		return codes_of_nothing(m, c->run, c->step);
	if (l.n > 1 || l.none)
		return CODE(0) | CODE(SHEAF_ENOENT) | CODE(SHEAF_EEXIST) | CODE(SHEAF_EINVAL) |
		       CODE(SHEAF_EBUSY) | (l.none ? codes_of_nothing(m, c->run, c->step) : 0);
	if (!to->exists)
		return CODE(0);
	if (to->run_id != r->run_id)
		return CODE(SHEAF_EINVAL) | CODE(SHEAF_EBUSY);
	there = entry_of(to, step_of_id(m, c->run, l.ids[0]));
	if (codes_of_lock(m, c->to, 0) != CODE(0))
		return (model_writer((struct model *)m, c->to) ? 0 : CODE(0) | CODE(SHEAF_EEXIST)) |
		       CODE(SHEAF_EBUSY) | (there && there->id == l.ids[0] ? CODE(0) : 0);
	if (there && there->id != l.ids[0])
		return CODE(SHEAF_EEXIST);
	return CODE(0);
}

/* The model does not know whether a stage is complete. */
static uint32_t codes_of_salvage(const struct model *m, const struct call *c)
{
	const struct run_model *r = &m->runs[c->run];
	/* The stage of a process on another node is left, because that process may be alive. */
	uint32_t codes = CODE(SHEAF_ENOENT) | CODE(SHEAF_EBUSY) | CODE(SHEAF_ECORRUPT);

	if (entry_of((struct run_model *)r, c->step))
		codes |= CODE(SHEAF_EEXIST);
	if (model_writer((struct model *)m, c->run))
		return codes | CODE(SHEAF_EBUSY);
	for (int k = 0; k < SAVES; k++)
		if (r->left[k].id && r->left[k].step == c->step)
			codes |= CODE(0) | CODE(SHEAF_ECORRUPT) | CODE(SHEAF_EEXIST) |
				 CODE(SHEAF_EBUSY) | CODE(SHEAF_EINVAL);
	return codes;
}

static uint32_t codes_of_rewind(const struct model *m, const struct call *c)
{
	const struct job_model *j = &m->jobs[c->job];

	if (j->as.flags & SHEAF_RUN_READONLY || flying(j) || c->step < 0)
		return CODE(SHEAF_EINVAL);
	return codes_of_target(m, c);
}

/* Returns whether memory has a step of which each node has only a part. */
static bool is_spread(const struct model *m, int run)
{
	for (int i = 0; i < MEMORIES; i++)
		if (m->mems[i].identity == m->runs[run].identity && m->mems[i].nodes == 3)
			return true;
	return m->parted;
}

static uint32_t codes_of_gate(const struct model *m, const struct call *c)
{
	const struct job_model *j = &m->jobs[c->job];
	const struct save_model *s = &j->saves[c->slot];
	uint32_t codes = CODE(0) | (c->to >= 0 ? CODE(SHEAF_EAGAIN) : 0);

	if (s->failed || s->spoiled || s->over)
		codes = ~0u;
	for (int i = 0; i < j->slices && s->flags & SHEAF_SAVE_LATER; i++)
		if ((c->n < 0 || i == c->n % j->slices) && !s->put[i])
			codes |= CODE(SHEAF_EINVAL);
	return codes;
}

uint32_t model_codes(const struct model *m, const struct call *c)
{
	const struct job_model *j = &m->jobs[c->job];
	const struct save_model *s = &j->saves[c->slot];
	uint32_t lock;

	if (m->faulty)
		return ~CODE(SHEAF_EBUG);
	switch (c->kind) {
	case C_OPEN:
		return codes_of_open(m, c);
	case C_BEGIN:
		return codes_of_begin(m, c);
	case C_AVERAGE:
		return j->as.flags & SHEAF_RUN_READONLY || unput(j, false) || j->unmoved
			   ? CODE(SHEAF_EINVAL)
			   : CODE(0);
	case C_COMMIT:
		return codes_of_commit(m, c);
	case C_GATE:
		return codes_of_gate(m, c);
	case C_PUT:
		return s->flags & SHEAF_SAVE_LATER && !s->over && !s->failed && c->n >= 0 &&
			       !s->put[c->n % j->slices]
			   ? CODE(0)
			   : CODE(0) | CODE(SHEAF_EINVAL);
	case C_LOAD:
	case C_RESUME:
	case C_HOLD:
		return codes_of_load(m, c);
	case C_LOAD_HELD:
		/* Memory is reused for newer steps; a read of reused memory fails. */
		return CODE(0) | (unput(j, true) || j->unmoved ? CODE(SHEAF_EINVAL) : 0) |
		       (j->as.agent ? CODE(SHEAF_EAGAIN) : 0);
	case C_REWIND:
		return codes_of_rewind(m, c);
	case C_MARK:
		return j->as.flags & SHEAF_RUN_READONLY ? CODE(SHEAF_EINVAL)
						    : codes_of_step(m, j->as.run, c->step);
	case C_PRUNE:
		return j->as.flags & SHEAF_RUN_READONLY ? CODE(SHEAF_EINVAL) : CODE(0);
	case C_RUN_REWIND:
	case C_RUN_MARK:
		lock = codes_of_lock(m, c->run, 0);
		return (lock & CODE(0) ? codes_of_target(m, c) : 0) | (lock & ~CODE(0));
	case C_RUN_PRUNE:
		return codes_of_lock(m, c->run, 0);
	case C_COPY:
		return codes_of_copy(m, c);
	case C_SALVAGE:
		return codes_of_salvage(m, c);
	case C_MOVE:
		return flying(j) ? CODE(0) | CODE(SHEAF_EINVAL) : CODE(0);
	case C_FLUSH:
		return m->agents && codes_of_lock(m, c->run, c->n) != CODE(0)
			   ? CODE(SHEAF_EBUSY) | CODE(0) | CODE(SHEAF_ENOENT) | CODE(SHEAF_EAGAIN)
		       : !m->agents ? CODE(SHEAF_ENOENT)
				    : CODE(0) | CODE(SHEAF_ENOENT) |
					  (is_spread(m, c->run) ? CODE(SHEAF_EAGAIN) : 0);
	case C_NOTE:
	case C_ATTACH:
		return s->over || s->asked_publish || s->kept || c->n % 4 >= 2 ||
			       s->notes >> (c->n % 4 + 4 * (c->kind == C_NOTE)) & 1
			   ? CODE(SHEAF_EINVAL)
			   : CODE(0) | (s->asked ? CODE(SHEAF_EINVAL) : 0);
	case C_WAIT:
	case C_ADVANCE:
	case C_FAIL:
		return ~0u;
	default:
		return CODE(0);
	}
}
