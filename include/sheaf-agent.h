/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-agent.h - the memory tier: agents, which keep checkpoints in the memory of their nodes
 * while trainers come and go. The rules at the head of sheaf.h apply to these calls, too. */
#ifndef SHEAF_AGENT_H
#define SHEAF_AGENT_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* The memory tier. Where a run is opened with opts.agent, each node has an agent: a process that
 * the launcher starts (`sheaf agent RUN`), that outlives the trainer and keeps what is in memory:
 * the images of the newest steps as they were committed. A later job that opens the run on the same
 * nodes with opts.agent is given by sheaf_checkpoint_open the newest of memory and disk, at the
 * speed of memory, in any layout, every block proved as from the disk. A step in memory that does
 * not follow the newest step on disk, as after a rewind, is passed over. `agent` as in sheaf_opts.
 * An agent belongs to one run directory. A directory that is renamed keeps its agent, but a copy
 * (by sheaf_checkpoint_copy, cp -a or a snapshot) is another directory and needs its own agent. */
struct sheaf_agent_opts {
	uint32_t size;
	int32_t idle_s;                 /* ends after so long without anybody; 0: never */
	const char *agent;              /* NULL: "auto" */
	uint64_t memory_max;            /* of all that is kept; 0: no bound */
	/* 0, or 2 at least, for one is kept while the next is copied: a job whose first save begins
	 * with the agent uses so many images at most, whatever its images_max; of several agents
	 * the least. What the job before left stays beside it until a newer step is there; as do
	 * copies (opts.copies) */
	int32_t steps_max;
	void *arg;
	/* Called when the agent can be reached. If it returns non-zero, the agent ends. The
	 * caller may log to a file <socket>.log: the agent removes it at its end if it is empty. */
	int  (*ready)(void *arg, const char *socket);
	/* Called when the last process of a job has gone, if this job, or one before it, ended
	 * without closing the run. It may start a flush of what was due, in another process,
	 * because the agent serves nobody until this returns. */
	void (*died)(void *arg, const char *job);
	void (*committed)(void *arg, int64_t step);     /* the trainer says: it is on disk */
	int  (*stop)(void *arg);        /* asked when a signal has come: not 0: ends */
	/* Called with the path of the run's directory when a job connects and at each commit to
	 * disk. After a rename it is another path than `dir`. */
	void (*at)(void *arg, const char *dir);
	const char *about;              /* what sheaf_agent_get_info says of it; NULL: "" */
	const char *folder;             /* as in sheaf_opts, for a run that is made or exists */
};
/* Is the agent of this node for the run `dir`, which is made where there is none, until it is told
 * to stop; then what it kept is gone. One thread; sleeps until somebody asks. EBUSY: another one
 * serves. [local] */
int  sheaf_agent_serve(const char *dir, const struct sheaf_agent_opts *opts,
                       struct sheaf_error *err);
struct sheaf_agent_info {
	uint32_t size;
	int32_t users;                  /* connected processes of jobs; readers do not count */
	uint64_t pid, bytes, names;     /* bytes it keeps, under so many names */
	int32_t steps_max, reserved;    /* as it was told; 0: no bound, or it does not say */
	char about[112];                /* as it was told, cut to that; "": it does not say */
};
/* ENOENT: no agent answers. agent NULL: "auto". [local] */
int  sheaf_agent_get_info(const char *dir, const char *agent, struct sheaf_agent_info *info,
                          struct sheaf_error *err);
/* Returns when it has left: what it kept is gone, and another one may serve. [local] */
int  sheaf_agent_stop(const char *dir, const char *agent, struct sheaf_error *err);
struct sheaf_memory {                   /* a step that an agent has; strings live during the call */
	uint32_t size;
	int32_t due;                    /* 1: its save was to disk, too, and is not there */
	int64_t step;
	const char *session;
	uint64_t bytes;                 /* of its images on this node */
	int32_t ranks, here;            /* that saved it; of which on this node */
	int32_t tries, lost;            /* loads; 1: the run was rewound since */
};
/* What the agent has: of the latest job first, of each job the newest first. A non-zero result of
 * item ends it and is returned. [local] */
int  sheaf_agent_list(const char *dir, const char *agent,
                      int (*item)(void *arg, const struct sheaf_memory *m), void *arg,
                      struct sheaf_error *err);
/* Publish the newest step that lies in memory and that the disk has not, by the commit of every
 * save; none that a later job has left behind by going on from another. due: only one that was to
 * be on disk. *step: which; -1: there was nothing to do. Where it lies on several nodes a process
 * on each must call this, with the same `due`: they write what their nodes have, and one of them
 * publishes (report->held is 0 in the others). EAGAIN: some have not come within a minute (due: a
 * quarter of an hour), or not written theirs within ten; another call goes on from there. EBUSY: a
 * job writes to the run, or another process of this node does this. [local] */
int  sheaf_agent_flush(const char *dir, const char *agent, int due, int64_t *step,
                       struct sheaf_report *report, struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
