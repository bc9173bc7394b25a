/* SPDX-License-Identifier: Apache-2.0 */
#include "pruning.h"
#include <inttypes.h>
#include <string.h>
#include "run.h"
#include "run_env.h"

static void went(void *arg, int64_t step, char what, const char *why)
{
	struct shf_pruning *p = arg;

	if (what != 'r')
		return;
	shf_buf_add(&p->told, &step, sizeof(step));
	shf_buf_add(&p->told, why, strlen(why) + 1);
}

/* All of it: a task of one turn. */
static bool prune(void *arg)
{
	struct sheaf_run *run = arg;
	struct shf_pruning *p = &run->pruning;

	p->rc = shf_store_prune(&run->store, &p->rules, went, p, &p->err);
	p->done = true;
	return false;
}

void shf_pruning_late(const struct sheaf_run *run)
{
	if (run->store.late)
		shf_log(run, 1, "%s: not all that was pruned could be deleted in time: the next "
		        "prune goes on with it", run->store.path);
}

static void tell(struct sheaf_run *run)
{
	struct shf_pruning *p = &run->pruning;
	int64_t step;

	for (size_t at = 0; at < p->told.len && !p->told.oom; ) {
		const char *why = (const char *)p->told.data + at + sizeof(step);

		memcpy(&step, p->told.data + at, sizeof(step));
		shf_log(run, 2, "%s: step %" PRId64 " pruned: %s", run->store.path, step, why);
		at += sizeof(step) + strlen(why) + 1;
	}
	if (p->rc >= 0)
		shf_pruning_late(run);
	if (p->rc < 0)
		shf_log(run, 1, "%s: nothing pruned: %s", run->store.path, p->err.msg);
	shf_buf_release(&p->told);
}

void shf_pruning_settle(struct sheaf_run *run)
{
	struct shf_pruning *p = &run->pruning;

	if (!p->task)
		return;
	run->sys->ops->task_free(run->sys->arg, p->task);
	p->task = NULL;
	if (!p->done)
		(void)prune(run);
	tell(run);
}

bool shf_pruning_goes_on(struct sheaf_run *run)
{
	const struct shf_sys *sys = run->sys;

	if (run->pruning.task && !sys->ops->task_over(sys->arg, run->pruning.task))
		return true;
	shf_pruning_settle(run);
	return false;
}

void shf_pruning_begin(struct sheaf_run *run, const struct shf_prune *rules, bool behind)
{
	const struct shf_sys *sys = run->sys;
	struct shf_pruning *p = &run->pruning;

	if (behind && shf_pruning_goes_on(run))
		return;
	shf_pruning_settle(run);
	p->rules = *rules;
	p->done = false;
	if (behind && sys->ops->task_new(sys->arg, &p->task, prune, run, NULL) >= 0)
		return;
	p->task = NULL;
	(void)prune(run);
	tell(run);
}
