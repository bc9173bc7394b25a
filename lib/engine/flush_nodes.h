/* SPDX-License-Identifier: Apache-2.0 */
/* The agents of several nodes write a step that none of them has all of. They meet in the run:
 *
 *   .sheaf/flush-<job>/have-<node>     the cards that one of them has now; node: the lowest of the
 *                                      job's ranks that it has cards of
 *                     /<step>-<session>/...     files of the step: each writes its own bytes
 *                     /done-<node>-<step>       what that one has of the step is on disk
 *                     /lock-<node>              held by the one process that does all this there
 *
 * (due-<job> where only what was due is written: who wants another step meets elsewhere.)
 * When some have is there of every rank, all who look choose the same step: the newest that is
 * whole. Bytes are fsynced before the done that says so, and a done is written only if all cards
 * of the step are what they were before. When all are done, the one that has rank 0, or after some
 * patience any, makes the folder the stage of a copy (step_copy.c): every byte of it is proved
 * before the step appears, by C0-C10 as ever. Where that fails nothing counts as done any more. */
#ifndef SHF_FLUSH_NODES_H
#define SHF_FLUSH_NODES_H
#include "memory_steps.h"

/* What an agent wants written, and where. */
struct shf_meeting {
	const char *dir;                /* the run's */
	const struct shf_sys *sys;
	int keep;                       /* the agent of this node */
	bool due;                       /* only a step that was to be on disk */
	char job[33];                   /* whose memory it is */
	int64_t step;                   /* the newest here that may be wanted */
	int wait_ms;                    /* for the others to come; then ten minutes for their bytes
	                                 * (0: none) */
};
/* *step: what is on disk now that was not, by whomever (report->held: by us); -1: nothing is to be
 * written. EAGAIN: some have not come, or not written what they have: a later try goes on from
 * there. EBUSY: another process of this node does it. [local] */
int shf_meet(const struct shf_meeting *m, int64_t *step, struct sheaf_report *report,
             struct sheaf_error *err);
#endif
