/* SPDX-License-Identifier: Apache-2.0 */
/* The agents of several nodes write a step that none of them has all of. They meet in the run:
 *
 *   .sheaf/flush-<job>/have-<id>       the cards that one of them has; id: which they are
 *                     /<step>-<session>/...     files of the step: each writes its own bytes
 *                     /done-<id>-<step>         what that one has of the step is on disk
 *
 * A have is written before anything else and never changes, so all who see those of every rank
 * choose the same step. Bytes are fsynced before the done that says so. When all are done (one that
 * came twice with other cards counts for what he did), the one
 * that has rank 0, or after some patience any, makes the folder the stage of a copy (copy_out.c):
 * every byte of it is proved before the step appears, by C0-C10 as ever. */
#ifndef SHF_MEET_H
#define SHF_MEET_H
#include "recall.h"

struct shf_meeting {
	const char *dir;                /* the run's */
	const struct shf_sys *sys;
	int keep;                       /* the agent of this node */
	bool due;                       /* only a step that was to be on disk */
	char job[33];                   /* whose memory it is */
	int wait_ms;                    /* for the others to come; ten times that for their bytes */
};
/* *step: what is on disk now that was not, by whomever; -1: nothing is to be written. EAGAIN: some
 * have not come, or not written what they have: a later try goes on from there. [local] */
int shf_meet(const struct shf_meeting *m, int64_t *step, struct sheaf_report *report,
             struct sheaf_error *err);
#endif
