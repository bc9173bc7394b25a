/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on a run as a whole: prune, rewind, mark, close. Rank 0 works in the directory.
 * All ranks agree on the arguments before, and on the outcome after.
 *
 * Each operation first waits for this handle's own threads that work in the directory
 * (settle_background), so that there is one writer at a time. */
#include "run_ops.h"
#include <inttypes.h>
#include <string.h>
#include "aside.h"
#include "err.h"
#include "list.h"
#include "manifest_read.h"
#include "marks.h"
#include "marks_read.h"
#include "memory_tier.h"
#include "opts.h"
#include "prune_task.h"
#include "replica_send.h"
#include "run_env.h"
#include "save.h"
#include "save_end.h"
#include "save_submit.h"
#include "scrub_run.h"
#include "sheaf-admin.h"
#include "step.h"
#include "step_open.h"
#include "verify_step.h"

/* Returns 0, or EINVAL if the run is not open for writing. what: the operation, for the message. */
static int writable(const struct sheaf_run *run, const char *what, struct sheaf_error *err)
{
	if (run->life.closed || run->opts.flags & SHEAF_RUN_READONLY)
		return shf_fail(err, SHEAF_EINVAL, "%s: %s needs a run that is open for writing; "
		                "open it without SHEAF_RUN_READONLY",
		                run->store.path, what);
	return 0;
}

/* Waits until no thread of this handle works in the directory: neither a publish nor a prune. */
static void settle_background(struct sheaf_run *run)
{
	shf_save_publish_finish(run);
	shf_prune_task_finish(run);
}

/* Enters a collective call with arguments a and b. EINVAL if they differ between ranks; otherwise
 * returns what shf_call_enter does. [collective] */
static int enter_run_call(struct sheaf_run *run, enum shf_call_kind call, int64_t a, int64_t b,
                          int rc, struct sheaf_error *err)
{
	struct shf_call m = { .kind = call, .handle = run->life.made,
		.x = { (uint64_t)a, (uint64_t)b } };
	const char *what = call == SHF_CALL_PRUNE ? "prune" : call == SHF_CALL_MARK ? "mark"
	                                                                           : "rewind";
	unsigned i;

	rc = shf_call_enter(&run->team, &m, rc, err);
	i = shf_call_differs(&m, 0) ? 0 : 1;
	if (rc < 0 || !shf_call_differs(&m, i))
		return rc;
	return shf_fail(err, SHEAF_EINVAL, "%s: %s: ranks pass different arguments (%" PRId64
	                " and %" PRId64 ")", run->store.path, what, (int64_t)m.lo[i],
	                (int64_t)m.hi[i]);
}

/* ---- pruning ---- */

/* The argument of pruned. */
struct pruning {
	struct sheaf_run *run;
	bool dry;
	void (*item)(void *arg, int64_t step, int32_t action, const char *why);
	void *arg;
};

/* Callback of shf_store_prune, for each step that is deleted or kept, with the reason. */
static void pruned(void *arg, int64_t step, int32_t action, const char *why)
{
	const struct pruning *p = arg;

	if (action == SHEAF_PRUNE_REMOVE && !p->dry)
		shf_log(p->run, 2, "%s: step %" PRId64 " pruned: %s", p->run->store.path, step,
		        why);
	if (p->item)
		p->item(p->arg, step, action, why);
}

/* Finds the newest good step: older steps may be deleted once it is verified. newest->step is -1 if
 * there is no good step. The list is sorted, so its last good entry is the newest. [rank 0] */
static int newest_sound(struct sheaf_run *run, struct shf_saved *newest, struct sheaf_error *err)
{
	struct shf_list list = { 0 };
	int rc = shf_store_list(&run->store, &list, err);

	newest->step = -1;
	for (size_t i = 0; rc == 0 && i < list.n; i++) {
		const struct shf_entry *e = &list.entries[i];

		if (!shf_entry_is_good(e)) /* ascending by step */
			continue;
		newest->step = e->step;
		memcpy(newest->session, e->session, sizeof(newest->session));
	}
	shf_list_release(&list);
	return rc;
}

/* Removes the files of the step from this node's page cache, because cached bytes may be right
 * where the bytes on disk are wrong. */
static void drop_cached(const struct sheaf_run *run, int64_t step)
{
	char name[SHF_STEP_NAME];
	int dir;

	shf_name_of_step(&run->store, name, step);
	dir = shf_dir_open(run->sys, run->store.dir, name);
	if (dir >= 0)
		shf_scrub_drop_cache(run->sys, dir);
	shf_fd_close(run->sys, &dir);
}

/* Reads every byte of the newest step again from disk (I9). It opens the copy on disk even if the
 * step is in memory, because the files are to be proved. [collective] */
static int verify_newest(struct sheaf_run *run, int64_t newest, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step = NULL;
	int rc;

	if (run->place.node_first == run->team.rank)
		drop_cached(run, newest);
	rc = shf_step_open_disk(&step, run, newest, err); /* collective, so every node has removed
	                                                   * its cached bytes before any rank
	                                                   * reads */
	if (rc == 0)
		rc = shf_step_verify_named(step, &report, err);
	if (rc == 0)
		run->lineage.verified = shf_step_saved(step);
	shf_step_put(step);
	return rc;
}

/* Finds the newest good step on rank 0, and how many older ones a prune would delete if it is whole
 * (*would), and broadcasts both. [collective] */
static int agree_on_newest(struct sheaf_run *run, struct shf_saved *newest, uint64_t *would,
                           struct sheaf_error *err)
{
	struct { struct shf_saved newest; uint64_t would; } told = { .newest.step = -1 };
	int rc = 0;

	if (run->team.rank == 0) {
		rc = newest_sound(run, &told.newest, err);
		if (rc == 0) {
			/* A dry prune, as if the newest step were verified, tells whether reading
			 * it is worth while. */
			struct shf_prune p = shf_run_prune_rules(run, &told.newest, true);

			rc = shf_store_prune(&run->store, &p, NULL, NULL, err);
			told.would = rc < 0 ? 0 : (uint64_t)rc;
			rc = rc < 0 ? rc : 0;
		}
	}
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, 0, &told, sizeof(told), err);
	*newest = told.newest;
	*would = told.would;
	return rc;
}

/* The newest step is read whole before any older one is deleted, but only if a prune would delete
 * some. If the newest step is already being read in the background, its end is awaited. The reading
 * of an older step is stopped, because that step may be among those that are deleted.
 * [collective] */
int shf_run_prune(struct sheaf_run *run, bool dry,
                  void (*item)(void *arg, int64_t step, int32_t action, const char *why), void *arg,
                  struct sheaf_error *err)
{
	struct pruning p = { run, dry, item, arg };
	struct sheaf_error own;
	uint64_t would = 0;
	struct shf_saved newest = { .step = -1 };
	int64_t gone = 0;
	int rc;

	err = err ? err : &own;
	settle_background(run);
	rc = run->life.closed ? shf_fail(err, SHEAF_EINVAL, "the run is closed")
	   : dry ? 0 : writable(run, "pruning", err);
	rc = enter_run_call(run, SHF_CALL_PRUNE, dry, (int64_t)run->opts.keep_last << 32 |
	                    run->opts.keep_every, rc, err);
	if (rc == 0)
		rc = shf_scrub_run_poll(run, err);
	if (rc == 0)
		rc = agree_on_newest(run, &newest, &would, err);
	/* A step is read again only if some other step is then deleted. */
	if (rc == 0 && !dry && would && shf_saved_is_same(&run->retain.behind->now, &newest)) {
		shf_scrub_run_wait(run);
		rc = shf_scrub_run_poll(run, err);
	}
	if (rc == 0 && !dry && would && !shf_saved_is_same(&run->lineage.verified, &newest)) {
		shf_scrub_run_stop(run);
		rc = verify_newest(run, newest.step, err);
	}
	if (rc < 0)
		return rc;
	if (run->team.rank == 0) {
		const struct shf_saved *verified = dry ? &newest : &run->lineage.verified;
		struct shf_prune r = shf_run_prune_rules(run, verified, dry);

		r.likely = newest;
		rc = shf_store_prune(&run->store, &r, pruned, &p, err);
		if (rc >= 0 && !dry)
			shf_prune_task_warn_late(run);
		gone = rc;
		rc = rc < 0 ? rc : 0;
	}
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, 0, &gone, sizeof(gone), err);
	return rc < 0 ? rc : (int)gone;
}

/* ---- rewind ---- */

/* Refuses a rewind to a step that is marked bad. It would set aside good steps after it, and the
 * next job would pass over this one and continue from an older step. If the mark
 * cannot be read, the rewind goes on: the search for the latest step will stop at this step, and
 * take no older one. [rank 0] */
static int refuse_bad(struct sheaf_run *run, int64_t step, struct sheaf_error *err)
{
	if (shf_mark_read(&run->store, step, NULL) != 'b')
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "%s: step %" PRId64 " is marked bad, so no job would "
	                "resume from it (sheaf mark %s@%" PRId64 " none takes that back)",
	                run->store.path, step, run->store.path, step);
}

/* Sets newer steps aside. Sets session to that of `step`, which the next save records as the
 * session of its parent. [rank 0] */
static int rewind_here(struct sheaf_run *run, int64_t step, char session[33],
                       struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	int rc = shf_store_manifest(&run->store, step, &m, &arena, err);

	if (rc == 0)
		rc = refuse_bad(run, step, err);
	if (rc == 0) {
		memcpy(session, m.session, sizeof(m.session));
		rc = shf_store_rewind(&run->store, step, err);
	}
	shf_arena_release(&arena);
	return rc;
}

/* Sets newer steps aside, and makes the handle forget them: their reading in the background, their
 * place in memory, and that they were verified. [collective] */
int shf_run_rewind_loaded(struct sheaf_run *run, int64_t step, bool loaded, struct sheaf_error *err)
{
	struct sheaf_error own;
	char session[33] = "";
	int rc;

	err = err ? err : &own;
	rc = writable(run, "a rewind", err);
	if (rc == 0 && run->saves.first)
		rc = shf_fail(err, SHEAF_EINVAL, "%s: step %" PRId64 " is being saved; commit or "
		              "free that save before a rewind", run->store.path,
		              run->saves.first->id.step);
	if (rc == 0 && step < 0)
		rc = shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is negative", step);
	rc = enter_run_call(run, SHF_CALL_REWIND, step, 0, rc, err);
	if (rc < 0)
		return rc;
	settle_background(run);
	rc = run->team.rank == 0 ? rewind_here(run, step, session, err) : 0;
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, 0, session, sizeof(session), err);
	if (rc < 0) {
		/* It may have been counted all the same, so the next step in memory must ask the
		 * disk again which state it follows. */
		run->tier->based = false;
		return rc;
	}
	/* The next save follows `step`. Later steps are out of reach, and their numbers are
	 * free. */
	if (run->retain.behind->now.step > step)
		shf_scrub_run_stop(run);
	if (run->retain.behind->next.step > step)
		run->retain.behind->next.step = -1;
	run->lineage.rewinds++;
	shf_memory_tier_rewind(run, step, loaded);
	run->lineage.parent = step;
	run->lineage.doubtful = -1;
	/* The number alone does not identify the parent, because a step may be saved again under
	 * the same number. */
	memcpy(run->lineage.parent_session, session, sizeof(session));
	if (run->lineage.loaded > step)
		run->lineage.loaded = -1;
	if (run->lineage.verified.step > step)
		run->lineage.verified.step = -1;
	shf_log(run, 2, "%s: rewound to step %" PRId64 ", rank %d", run->store.path, step,
	        run->team.rank);
	return 0;
}

int shf_run_rewind(struct sheaf_run *run, int64_t step, struct sheaf_error *err)
{
	return shf_run_rewind_loaded(run, step, false, err);
}

/* ---- marks ---- */

/* If a step is marked bad, no older step may be deleted on account of it. So its reading is
 * stopped, and it no longer counts as verified. [collective] */
int shf_run_mark(struct sheaf_run *run, int64_t step, int32_t mark, struct sheaf_error *err)
{
	static const char letters[] = { 0, 'k', 'b' }; /* as the store has them */
	struct sheaf_error own;
	int rc;

	err = err ? err : &own;
	rc = writable(run, "a mark", err);
	if (rc == 0 && step < 0)
		rc = shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is negative", step);
	if (rc == 0 && (mark < SHEAF_MARK_NONE || mark > SHEAF_MARK_BAD))
		rc = shf_fail(err, SHEAF_EINVAL, "mark is %d; use SHEAF_MARK_KEEP, SHEAF_MARK_BAD "
		              "or SHEAF_MARK_NONE", (int)mark);
	rc = enter_run_call(run, SHF_CALL_MARK, step, mark, rc, err);
	if (rc < 0)
		return rc;
	settle_background(run);
	rc = run->team.rank == 0 ? shf_store_mark(&run->store, step, letters[mark], err) : 0;
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0 && mark == SHEAF_MARK_BAD)
		shf_scrub_run_forget(run, step);
	/* The next step in memory must ask again which step on disk it follows. A mark that failed
	 * may be there, too. */
	run->tier->based = false;
	return rc;
}

/* ---- closing ---- */

/* Makes the last prune, at close. Steps are deleted only after a newer one was read again. If
 * little is left to read, close waits for the reading: first of the step that is being read, then
 * of the newest. So a run of small steps ends with as many steps as its keep rules say.
 * [collective] */
static void last_prune(struct sheaf_run *run)
{
	if (run->retain.behind->now.step < 0 && run->retain.behind->next.step < 0)
		return;
	/* A large step that was not begun yet is not read any more. */
	if (!shf_scrub_run_is_small(run))
		run->retain.behind->next.step = -1;
	/* The first pass waits for the step that is being read, the second for the step whose
	 * reading the first one has started. */
	for (int i = 0; i < 2; i++) {
		if (shf_scrub_run_is_small(run))
			shf_scrub_run_wait(run);
		shf_run_prune_auto(run, false, false);
	}
}

/* In a forked child this only frees memory and closes descriptors, because the parent still uses
 * the run. */
void shf_run_close(struct sheaf_run *run)
{
	if (!run)
		return;
	if (shf_run_is_ours(run) && !run->life.closed) {
		shf_committer_close(run);
		/* All ranks meet here, so that no rank is still in a save when rank 0 deletes the
		 * stages. This rank closes even if others do not come, but the close is clean only
		 * if all do. */
		int rc = enter_run_call(run, SHF_CALL_RUN_CLOSE, 0, 0, 0, NULL);

		run->life.clean = rc == 0;
		settle_background(run);
		if (rc == 0)
			shf_run_resumed(run);
		if (rc == 0)
			last_prune(run);
		shf_scrub_run_stop(run);
		shf_save_abandon(run);
		shf_replicas_stop(run, run->life.clean);
	}
	if (!shf_run_is_ours(run))
		shf_committer_reap(run);
	run->life.closed = true;
	shf_run_put(run);
}
