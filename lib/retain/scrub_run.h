/* SPDX-License-Identifier: Apache-2.0 */
/* The re-read behind the training: of a committed step, node by node, by a task on the lowest rank
 * of each. Tasks never talk to the group; what they found travels when all ranks look.
 *
 * The room lib/retain owns this and the task that deletes old steps (prune_task.h). It sees run and
 * store. */
#ifndef SHF_SCRUB_RUN_H
#define SHF_SCRUB_RUN_H
#include "background.h"
#include "scrub.h"
#include "trash.h"

struct sheaf_run;
/* Which step is being read again, and which is next. */
struct shf_behind {
	/* equal on all ranks */
	struct shf_saved now;           /* being read again */
	struct shf_saved next;          /* the newest that was committed and not begun with */
	uint64_t bytes;                 /* of the tensor files of a step, the newest */
	uint64_t damaged_n;             /* steps that were found damaged so far */
	/* this rank's */
	struct shf_background task;     /* none on this rank, or no thread could be had */
	struct shf_reread *reread;      /* owned; the task's until it is over */
};
/* Opens step `step` on disk for reading this node's share of it. session: as in struct shf_reread.
 * [local] */
int shf_scrub_open(struct sheaf_run *run, int64_t step, const char *session, struct shf_reread *r,
                   struct sheaf_error *err);
/* A step that was just committed: the next one. [local], on all ranks alike */
void shf_behind_next(struct sheaf_run *run, int64_t step, const char *session, uint64_t bytes);
/* Begins with it, once nothing else is being read. Failures are told by the next look. [local], on
 * all ranks alike */
void shf_behind_start(struct sheaf_run *run);
/* Asks all nodes whether the re-read is over. If it is and the step is whole, the step becomes
 * the run's verified step, even if the last one had a larger number. Damage is logged.
 * [collective] */
int shf_behind_look(struct sheaf_run *run, struct sheaf_error *err);
/* Does this rank still read? [local] */
bool shf_behind_is_busy(const struct sheaf_run *run);
/* Is a node's share so little that a close waits for it? */
bool shf_behind_is_little(const struct sheaf_run *run);
/* Until it is read, but no longer than some seconds and half the others' deadline. [local] */
void shf_behind_wait(struct sheaf_run *run);
/* Without an answer; the turn under way is waited for. [local] */
void shf_behind_stop(struct sheaf_run *run);
/* Call it when the step of that number is marked bad or set aside. Stops its re-read, and forgets
 * that it was verified. [local], on all ranks alike */
void shf_behind_forget(struct sheaf_run *run, int64_t step);
#endif
