/* SPDX-License-Identifier: Apache-2.0 */
/* Writes to disk a step that lies in the memory of several nodes, of which no node has all. The
 * agents do not communicate; they meet in a directory of the run:
 *
 *   .sheaf/flush-<job>/have-<node>     the cards that one agent has now; node: the lowest of the
 *                                      job's ranks that it has cards of
 *                     /<step>-<session>/...     files of the step: each agent writes its own bytes
 *                     /done-<node>-<step>       what that agent has of the step is on disk
 *                     /lock-<node>              held by the one process of the node that takes part
 *
 * (The directory is due-<job> if only a step that was to be on disk is written, because agents that
 * look for any step may choose another one.)
 *
 * Once there is a have file with a card of every rank, all agents choose the same step: the newest
 * that is whole. Each agent fsyncs its bytes before it writes its done file, and writes that only
 * if the cards of the step have not changed meanwhile. When all agents are done, the one that has
 * rank 0, or any agent once PATIENCE_MS is over, makes the folder the stage of a copy
 * (step_copy.c). The copy verifies every byte before the step appears, by C0 to C10 as for every
 * save. If it fails, all done files are removed and the agents write their bytes again. */
#ifndef SHF_FLUSH_NODES_H
#define SHF_FLUSH_NODES_H
#include "memory_steps.h"

/* The arguments of shf_flush_nodes: what to write, and where. */
struct shf_flush_request {
	const char *dir;                /* path of the run */
	const struct shf_sys *sys;
	int keep;                       /* connection to the agent of this node */
	bool due;                       /* write only a step whose save was to go to disk */
	char job[33];                   /* the job that saved the step */
	int64_t step;                   /* the newest step of the job in this node's memory */
	int wait_ms;                    /* how long to wait for the other agents to come; after
	                                 * that, WRITE_MS is the time for their bytes. 0: do not
	                                 * wait at all */
};
/* Writes a step that lies on several nodes. *step: the step that is on disk now and was not before,
 * whichever agent published it (report->held: bytes written by this process); -1: there is nothing
 * to write. EAGAIN: some agents have not come, or have not written their bytes; a later call
 * continues from there. EBUSY: another process of this node is writing its part. [local] */
int shf_flush_nodes(const struct shf_flush_request *m, int64_t *step, struct sheaf_report *report,
                    struct sheaf_error *err);
#endif
