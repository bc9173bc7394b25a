/* SPDX-License-Identifier: Apache-2.0 */
/* Deletes old steps after a commit: at once, or in a background thread of rank 0 if the caller does
 * not wait for the commit. While the thread runs, no save publishes, and no step is opened, marked
 * or set aside: these calls first settle it. A save may create or discard a stage meanwhile,
 * because the number of a new step is never that of a step that may be deleted. */
#ifndef SHF_PRUNE_TASK_H
#define SHF_PRUNE_TASK_H
#include "background.h"
#include "mem.h"
#include "prune_steps.h"

struct sheaf_run;
/* The prune that runs in a thread, or ran last. All members except `task` belong to the thread
 * until it is settled. */
struct shf_prune_task {
	struct shf_background task;
	struct shf_prune rules;
	struct shf_buf told;            /* for each deleted step: its number (int64_t), then the
	                                 * reason, a string with its NUL */
	int rc;
	struct sheaf_error err;
};
/* Deletes steps by these rules, in a thread if `behind`. If `behind` is set and the thread of the
 * last prune still runs, does nothing, because the next commit will prune. The deleted steps are
 * logged here or, if a thread deletes them, by the next call that finds the thread ended. [rank
 * 0] */
void shf_prune_task_begin(struct sheaf_run *run, const struct shf_prune *rules, bool behind);
/* Logs a warning if the last prune ran out of time and left files for the next one to delete. [rank
 * 0] */
void shf_prune_task_warn_late(struct sheaf_run *run);
/* Returns whether the thread still runs. If it has ended, settles it (shf_prune_task_finish).
 * [local] */
bool shf_prune_task_runs(struct sheaf_run *run);
/* Waits for the thread, if there is one, and logs what it deleted. [local] */
void shf_prune_task_finish(struct sheaf_run *run);
/* Call it on all ranks when this session has come further than the step that it loaded (R5). The
 * load counted a try of that step (.sheaf/tries), which is taken back here. [local] */
void shf_run_resumed(struct sheaf_run *run);
/* Returns the rules of a prune, from the options of the run. verified: the newest step that was
 * read again and found whole; only steps older than it may be deleted. dry: as in struct shf_prune.
 * [local] */
struct shf_prune shf_run_prune_rules(const struct sheaf_run *run, const struct shf_saved *verified,
                                     bool dry);
/* The prune after a commit or at close. Collects the result of reading a step again, if that has
 * ended; starts to read the next committed step again; then deletes steps older than the last
 * verified one. scrubbing: the caller knows that some node still reads a step again, so the ranks
 * need not ask each other; equal on all ranks. behind: delete in a thread. [collective] */
void shf_run_prune_auto(struct sheaf_run *run, bool scrubbing, bool behind);
/* Deletes at once what later commits would delete: old steps, as far as a newer one has been read
 * again, and pruned steps whose grace period is over. A failure to delete is only logged.
 * [collective] */
int shf_run_prune_now(struct sheaf_run *run, struct sheaf_error *err);
#endif
