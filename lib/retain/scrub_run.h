/* SPDX-License-Identifier: Apache-2.0 */
/* Reads committed steps again in the background of the training: one step at a time, in a thread on
 * the lowest rank of each node. The threads never use the group; their results are collected when
 * all ranks call shf_scrub_run_poll.
 *
 * The room lib/retain owns these threads and the one that deletes old steps (prune_task.h). It may
 * include lib/run and lib/store. */
#ifndef SHF_SCRUB_RUN_H
#define SHF_SCRUB_RUN_H
#include "background.h"
#include "scrub.h"
#include "prune_steps.h"

struct sheaf_run;
/* Which step is being read again, and which is next. */
struct shf_scrub_run {
	/* these members are the same on all ranks */
	struct shf_saved now;           /* the step that is being read again; now.step -1: no step
	                                 * is */
	struct shf_saved next;          /* the newest committed step that is still to be read again;
	                                 * next.step -1: no such step */
	uint64_t bytes;                 /* size of the tensor files of the step that was committed
	                                 * last */
	uint64_t damaged_n;             /* number of steps found damaged so far */
	/* the members below belong to this rank alone */
	struct shf_background task;     /* the thread; not running on ranks that are not the lowest
	                                 * of their node, or if it could not be started */
	struct shf_scrub *reread;      /* owned; belongs to the thread until that has ended */
};
/* Opens a step on disk to read this node's share of it again. session: as in struct shf_scrub.
 * [local] */
int shf_scrub_open(struct sheaf_run *run, int64_t step, const char *session, struct shf_scrub *r,
                   struct sheaf_error *err);
/* Notes a step that was just committed as the one to read next. bytes: size of its tensor files.
 * [local], with the same arguments on all ranks */
void shf_scrub_run_next(struct sheaf_run *run, int64_t step, const char *session, uint64_t bytes);
/* Starts to read the step that shf_scrub_run_next has noted, unless a step is being read already or
 * the noted one is verified. A failure is logged by the next shf_scrub_run_poll. [local], on all
 * ranks alike */
void shf_scrub_run_start(struct sheaf_run *run);
/* Finds out, without waiting, whether all nodes have finished reading. If so and the step is whole,
 * it becomes run->lineage.verified, even if the step verified before it has a larger number. Damage
 * is logged. [collective] */
int shf_scrub_run_poll(struct sheaf_run *run, struct sheaf_error *err);
/* Returns whether this rank's thread still reads. [local] */
bool shf_scrub_run_is_busy(const struct sheaf_run *run);
/* Returns whether a node's share is so small that a close waits until it is read. [local] */
bool shf_scrub_run_is_small(const struct sheaf_run *run);
/* Waits until this rank's thread has read its share, but for at most some seconds and at most half
 * the group's timeout. [local] */
void shf_scrub_run_wait(struct sheaf_run *run);
/* Stops reading and drops the result. Waits for the turn in progress. [local] */
void shf_scrub_run_stop(struct sheaf_run *run);
/* Stops the reading of that step and forgets that it was verified. Called when the step is marked
 * bad or set aside. [local], on all ranks alike */
void shf_scrub_run_forget(struct sheaf_run *run, int64_t step);
#endif
