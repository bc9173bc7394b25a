/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-agent.h - the memory tier: agents, which keep checkpoints in the memory of their nodes, so
 * that the next job resumes from memory. A trainer needs none of these calls, only struct
 * sheaf_memory_tier of sheaf-opts.h.
 *
 * The rules at the head of sheaf.h apply to these calls, too.
 *
 * Agent      A process on each node that the launcher starts with `sheaf agent RUN`. It outlives
 *            the trainer. If a job opens the run with a memory tier (sheaf_opts.memory_tier), the
 *            agent keeps the staging buffers of the newest checkpoints as they were committed.
 * Resuming   A later job opens the run on the same nodes with a memory tier. Then
 *            sheaf_checkpoint_open of SHEAF_LATEST finds the newest checkpoint in memory or on
 *            disk. One in memory is loaded at the speed of memory, in any layout, and every block
 *            is verified as when it is read from disk.
 * Rewinds    A checkpoint in memory that does not descend from the newest one on disk is skipped.
 *            This happens after a rewind.
 * Owner      An agent belongs to one run directory. A directory that is renamed keeps its agent. A
 *            copy (by sheaf_checkpoint_copy, cp -a or a snapshot) is another directory and needs an
 *            agent of its own.
 */
#ifndef SHEAF_AGENT_H
#define SHEAF_AGENT_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Options of sheaf_agent_serve. 0 or NULL in a field is its default; each function may be NULL. */
struct sheaf_agent_opts {
	uint32_t size;                  /* sizeof(struct sheaf_agent_opts) */
	int32_t idle_s;                 /* the agent exits after this many seconds without a
	                                 * connected process; 0: never */
	const char *agent;              /* path of its socket, as sheaf_memory_tier.agent; NULL:
	                                 * "auto" */
	uint64_t memory_max;            /* limit for all memory it keeps, in bytes; 0: no limit */
	/* Limit on the checkpoints kept for a job; 0: no limit, otherwise at least 2, because one
	 * is kept while the next one is copied. A job then has at most this many staging buffers.
	 * If the agents of its nodes have different limits, the smallest applies. Two things are
	 * kept in addition: checkpoints of the previous job, until the present one has a newer
	 * checkpoint, and replicas. */
	int32_t steps_max;
	void *arg;                      /* passed to the functions below */
	/* Called when processes can connect. A result other than 0 ends the agent. The caller may
	 * write a log to the file <socket>.log; the agent removes that file at its end if it is
	 * empty. */
	int  (*ready)(void *arg, const char *socket);
	/* Called when the last process of a job has exited, if something may still have to be
	 * written to disk: this job, or an earlier one whose checkpoints are still in memory, did
	 * not close the run. The function may start a flush (sheaf_agent_flush). The flush must run
	 * in another process, because the agent answers no request until this function returns.
	 * job: an id of the job, for logs. */
	void (*died)(void *arg, const char *job);
	/* Called when the trainer reports that a checkpoint is on disk. */
	void (*committed)(void *arg, int64_t step);
	/* Called when a signal has interrupted the agent, which installs no handlers: the caller
	 * does. A result other than 0 ends the agent. */
	int  (*stop)(void *arg);
	/* Called with the path of the run's directory when a job connects, and at each commit to
	 * disk. If the directory was renamed, the path differs from the `dir` of the call. */
	void (*at)(void *arg, const char *dir);
	const char *about;              /* a text that sheaf_agent_get_info returns; NULL: "" */
	const char *folder;             /* name pattern of checkpoints, as sheaf_opts.folder */
};
/* Runs the agent of this node in the calling thread, until the agent is stopped. What it kept is
 * then lost. The thread sleeps while no request comes. The agent ends in one of these cases:
 * - A process called sheaf_agent_stop.
 * - No process was connected for opts->idle_s seconds.
 * - opts->ready or opts->stop returned a result other than 0.
 *
 * dir     directory of the run, which is created if there is none.
 * opts    NULL: defaults.
 * Returns 0 when the agent has ended, or an error code.
 * EBUSY: another agent of this run is active on this node.
 * [local] */
int  sheaf_agent_serve(const char *dir, const struct sheaf_agent_opts *opts,
                       struct sheaf_error *err);

/* What an agent reports about itself, see sheaf_agent_get_info. */
struct sheaf_agent_info {
	uint32_t size;                  /* sizeof(struct sheaf_agent_info), set by the caller */
	int32_t users;                  /* connected processes of jobs, without readers */
	uint64_t pid;                   /* its process id */
	uint64_t bytes;                 /* memory that it keeps */
	uint64_t names;                 /* number of memory objects that it keeps: a staging buffer
	                                 * and a short description for each rank and checkpoint */
	int32_t steps_max;              /* sheaf_agent_opts.steps_max; 0: no limit, or unknown */
	int32_t reserved;
	char about[112];                /* sheaf_agent_opts.about, cut to this size; "": unknown */
	char dir[112];                  /* path of the run's directory as the agent knows it; a
	                                 * longer one is "..." and its end; "": unknown */
};
/* Asks the agent of this node about itself.
 * dir     directory of the run; NULL: of any run; `agent` must then be a path, not NULL or "auto".
 * agent   path of the agent's socket, as sheaf_memory_tier.agent; NULL: "auto".
 * info    receives the answer.
 * ENOENT: no agent answers.
 * EINVAL: the agent at that path belongs to another run directory.
 * [local] */
int  sheaf_agent_get_info(const char *dir, const char *agent, struct sheaf_agent_info *info,
                          struct sheaf_error *err);
/* Finds this user's agents on this node, and asks each about itself. An agent whose socket is not
 * in /tmp, because sheaf_agent_opts.agent named another path, is not found.
 * item    called for each agent with the path of its socket. The strings are valid during the
 *         callback only. A result other than 0 ends the list, and the call returns it.
 * arg     passed to item.
 * Returns 0 or an error code.
 * [local] */
int  sheaf_agent_find(int (*item)(void *arg, const char *socket,
                                  const struct sheaf_agent_info *info), void *arg,
                      struct sheaf_error *err);
/* Stops the agent of this node and waits until it has ended. What it kept is then lost, and another
 * agent may be started.
 * dir     directory of the run; NULL: of any run; `agent` must then be a path, not NULL or "auto".
 *         So an agent can be stopped whose run was deleted.
 * agent   path of the agent's socket, as sheaf_memory_tier.agent; NULL: "auto".
 * ENOENT: no agent answers.
 * EINVAL: the agent at that path belongs to another run directory.
 * [local] */
int  sheaf_agent_stop(const char *dir, const char *agent, struct sheaf_error *err);

/* A checkpoint that an agent keeps. Strings are valid during the callback only. */
struct sheaf_memory {
	uint32_t size;                  /* sizeof(struct sheaf_memory) of the library */
	int32_t due;                    /* 1: the save was meant for the disk too, but the
	                                 * checkpoint is not on disk yet */
	int64_t step;                   /* its number */
	const char *session;            /* identifies the save, as in sheaf_item */
	uint64_t bytes;                 /* size of its staging buffers on this node */
	int32_t ranks;                  /* how many ranks saved it */
	int32_t here;                   /* for how many of them this node has the staging buffer */
	int32_t tries;                  /* jobs that loaded it and got no further */
	int32_t lost;                   /* 1: the run has been rewound since, so it is skipped */
};
/* Lists the checkpoints that the agent of this node keeps. Those of the latest job come first. For
 * each job the newest checkpoint comes first.
 * dir     directory of the run.
 * agent   path of the agent's socket, as sheaf_memory_tier.agent; NULL: "auto".
 * item    called for each checkpoint. A result other than 0 ends the list, and the call returns it.
 * arg     passed to item.
 * ENOENT: no agent answers.
 * EINVAL: the agent at that path belongs to another run directory.
 * [local] */
int  sheaf_agent_list(const char *dir, const char *agent,
                      int (*item)(void *arg, const struct sheaf_memory *m), void *arg,
                      struct sheaf_error *err);
/* Takes the newest checkpoint that is in memory and not on disk, writes it to disk, and publishes
 * it as every commit does. If there is none, returns 0 and sets *step to -1. A checkpoint is left
 * out if a later job has resumed from another one.
 *
 * If parts of the checkpoint are on several nodes, a process on each of these nodes must call this,
 * with the same `due`. Each writes what its node has, and one of them publishes the checkpoint. The
 * others get 0 in report->held.
 * dir     directory of the run.
 * agent   path of the agent's socket, as sheaf_memory_tier.agent; NULL: "auto".
 * due     not 0: only a checkpoint whose save was meant for the disk.
 * step    receives the number of the checkpoint that was written, even if the call fails after
 *         that; -1: none was written. May be NULL.
 * report  receives what was found and written; may be NULL. Here report->held is the number of
 *         bytes written, in the process that published the checkpoint, and 0 in the others.
 * EAGAIN: processes of other nodes did not join within 1 minute, or 15 minutes with `due`, or did
 *         not finish writing within ten minutes. Another call continues from there.
 * EBUSY: a job has the run open for writing, or another process of this node is in this call.
 * ENOENT: no agent answers.
 * EINVAL: the agent at that path belongs to another run directory.
 * [local] */
int  sheaf_agent_flush(const char *dir, const char *agent, int due, int64_t *step,
                       struct sheaf_report *report, struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
