/* SPDX-License-Identifier: Apache-2.0 */
/* Old steps go after a commit: at once, or behind a caller who just asks, by a thread of rank 0. No
 * publish begins meanwhile, no step is opened, marked or set aside; a stage may be made and thrown
 * away, for its number is no step's that may go. */
#ifndef SHF_PRUNE_TASK_H
#define SHF_PRUNE_TASK_H
#include "background.h"
#include "mem.h"
#include "trash.h"

struct sheaf_run;
/* The prune that a thread does, or did last. The thread's until it is settled. */
struct shf_pruning {
	struct shf_background task;
	struct shf_prune rules;
	struct shf_buf told;            /* of the steps that went: number, reason, NUL */
	int rc;
	struct sheaf_error err;
};
/* By these rules. Nothing where the one before still deletes: the next one will do. The log hears
 * what went here, or at the next call of these. [rank 0] */
void shf_pruning_begin(struct sheaf_run *run, const struct shf_prune *rules, bool behind);
/* Logs it if the last prune ran out of time and left files for the next one to delete. [rank 0] */
void shf_pruning_late(const struct sheaf_run *run);
/* Does it, behind? [local] */
bool shf_pruning_goes_on(struct sheaf_run *run);
/* What was begun is over. [local] */
void shf_pruning_settle(struct sheaf_run *run);
/* The rules of a prune, from the options of the run. verified: the newest step that was read again.
 * [local] */
struct shf_prune shf_run_rules(const struct sheaf_run *run, const struct shf_saved *verified,
                               bool dry);
/* What a commit, or the close, lets go: by what has been read again so far; then the next step's
 * turn comes. scrubbing: some node is known to be reading still, so ranks need not ask; equal on
 * all of them. behind: by a thread, for whoever does not wait. [collective] */
void shf_run_prune_behind(struct sheaf_run *run, bool scrubbing, bool behind);
/* Deletes at once what later commits would let go: steps, as far as a newer one has been read
 * again, and pruned steps whose grace is over. What could not be deleted is logged. [collective] */
int shf_run_make_room(struct sheaf_run *run, struct sheaf_error *err);
#endif
