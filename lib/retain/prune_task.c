/* SPDX-License-Identifier: Apache-2.0 */
/* Deletes old steps after a commit, by the retention rules, on rank 0. Deleting large files takes
 * long on some file systems, so if the caller does not wait for the commit, a thread does it. What
 * it deleted is logged by the next call that settles the thread, because the caller's log function
 * is never called from another thread. */
#include "prune_task.h"
#include <inttypes.h>
#include <string.h>
#include "run.h"
#include "run_env.h"
#include "scrub_run.h"
#include "sheaf-admin.h"
#include "tries.h"

/* Callback of shf_store_prune, in the thread: records a deleted step for log_pruned(). action:
 * SHEAF_PRUNE_REMOVE if the step was removed; other values are ignored. */
static void went(void *arg, int64_t step, int32_t action, const char *why)
{
	struct shf_prune_task *p = arg;

	if (action != SHEAF_PRUNE_REMOVE)
		return;
	shf_buf_add(&p->told, &step, sizeof(step));
	shf_buf_add(&p->told, why, strlen(why) + 1);
}

/* The work of the thread: a single turn, because it is a single call of lib/store. */
static bool prune(void *arg)
{
	struct sheaf_run *run = arg;
	struct shf_prune_task *p = run->retain.pruning;

	p->rc = shf_store_prune(&run->store, &p->rules, went, p, &p->err);
	return false;
}

void shf_prune_task_warn_late(struct sheaf_run *run)
{
	if (run->store.late)
		shf_log(run, 1, "%s: some pruned checkpoints are not deleted yet, because time was "
		        "short; the next prune goes on", run->store.path);
}

/* Logs each deleted step with the reason, or why the prune failed. */
static void log_pruned(struct sheaf_run *run)
{
	struct shf_prune_task *p = run->retain.pruning;
	int64_t step;

	for (size_t at = 0; at < p->told.len && !p->told.oom; ) {
		const char *why = (const char *)p->told.data + at + sizeof(step);

		memcpy(&step, p->told.data + at, sizeof(step));
		shf_log(run, 2, "%s: step %" PRId64 " pruned: %s", run->store.path, step, why);
		at += sizeof(step) + strlen(why) + 1;
	}
	if (p->rc >= 0)
		shf_prune_task_warn_late(run);
	if (p->rc < 0)
		shf_log(run, 1, "%s: nothing pruned: %s", run->store.path, p->err.msg);
	shf_buf_release(&p->told);
}

/* If the thread has not begun its turn, the prune is done here, so that it takes place in any
 * case. */
void shf_prune_task_finish(struct sheaf_run *run)
{
	struct shf_prune_task *p = run->retain.pruning;

	if (!p->task.task)
		return;
	shf_background_finish(&p->task);
	log_pruned(run);
}

bool shf_prune_task_runs(struct sheaf_run *run)
{
	if (shf_background_runs(&run->retain.pruning->task))
		return true;
	shf_prune_task_finish(run);
	return false;
}

/* Rank 0 counted the try, so rank 0 takes it back. A prune in the background reads what this
 * session has counted, so it is finished first. If the disk fails, the count stays. A count that is
 * too high may make a later search for the latest step pass over a good one, but never load a bad
 * one. */
void shf_run_resumed(struct sheaf_run *run)
{
	bool unsure = run->lineage.unsure;
	struct sheaf_error err;

	run->lineage.unsure = false;
	if (!unsure || run->team.rank != 0)
		return;
	shf_prune_task_finish(run);
	if (shf_tries_forget(&run->store, &err) < 0)
		shf_log(run, 1, "%s: a successful resume could not be recorded, so it still counts "
		        "as a failed attempt: %s (sheaf mark RUN@N none resets the count)",
		        run->store.path, err.msg);
}

/* If no thread can be started, the prune is done here. */
void shf_prune_task_begin(struct sheaf_run *run, const struct shf_prune *rules, bool behind)
{
	struct shf_prune_task *p = run->retain.pruning;

	if (behind && shf_prune_task_runs(run))
		return;
	shf_prune_task_finish(run);
	p->rules = *rules;
	if (behind && shf_background_start(&p->task, run->sys, prune, run) >= 0)
		return;
	(void)prune(run);
	log_pruned(run);
}

struct shf_prune shf_run_prune_rules(const struct sheaf_run *run, const struct shf_saved *verified,
                              bool dry)
{
	const struct shf_opts *o = &run->opts;

	return (struct shf_prune){ .keep_last = o->keep_last, .keep_every = o->keep_every,
		.keep_best = o->keep_best, .best_largest = o->best_largest != 0,
		.best_note = o->best_note,
		.verified = *verified, .likely.step = -1, .keep = run->lineage.loaded, .dry = dry,
		.grace_s = o->grace_s };
}

/* Only steps older than the newest verified step may be deleted. A step that was not read again
 * since its commit may be damaged, so no older step is deleted on account of it. [collective] */
void shf_run_prune_auto(struct sheaf_run *run, bool scrubbing, bool behind)
{
	struct shf_prune r;
	struct sheaf_error err;

	/* Without keep_last, nothing is deleted automatically. */
	if (run->opts.keep_last <= 0 || (!scrubbing && shf_scrub_run_poll(run, &err) < 0))
		return;
	shf_scrub_run_start(run);
	/* Only rank 0 works in the directory; the others need not wait for it. */
	if (run->team.rank != 0 || run->lineage.verified.step < 0)
		return;
	r = shf_run_prune_rules(run, &run->lineage.verified, false);
	shf_prune_task_begin(run, &r, behind);
}

int shf_run_prune_now(struct sheaf_run *run, struct sheaf_error *err)
{
	struct shf_prune r;
	int rc = shf_scrub_run_poll(run, err);

	if (rc < 0)
		return rc;
	shf_scrub_run_start(run);
	if (run->team.rank == 0) {
		r = shf_run_prune_rules(run, &run->lineage.verified, false);
		shf_prune_task_begin(run, &r, false);
	}
	return 0;
}
