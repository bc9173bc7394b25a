/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-opts.h - options of a run that only some runs set: the memory and threads of its saves,
 * which checkpoints are kept, the memory tier, and how a new checkpoint is announced.
 *
 *     struct sheaf_retention retention = { .size = sizeof(retention), .keep_last = 3 };
 *     struct sheaf_opts opts = { .size = sizeof(opts), .retention = &retention };
 *
 * The rules at the head of sheaf.h apply to these structs, too:
 * - Set `size` to the sizeof of the struct. A field that is 0 or NULL has its default. A pointer in
 *   struct sheaf_opts that is NULL means that all fields of that struct have their defaults.
 * - The structs and their strings are copied when the run is opened.
 * - Error messages name a field as in opts.retention.keep_last. */
#ifndef SHEAF_OPTS_H
#define SHEAF_OPTS_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Memory and threads of saves: sheaf_opts.staging. The defaults suit most runs. Set bytes_max if
 * the memory of the host is short, and buffers_max if saves wait for earlier ones. */
struct sheaf_staging {
	uint32_t size;
	/* Staging buffers of this rank, which is how many of its saves may be in flight at once. 0:
	 * 1 at first, and 2 from the first lazy save on. At most 8. Same on all ranks. With more
	 * buffers begin waits less often for an earlier save, and each takes as much memory as this
	 * rank writes, unless bytes_max sets a limit. */
	int32_t buffers_max;
	/* Limit on the host memory that saves of this rank use, in bytes. 0: as much as the staging
	 * buffers need. At least 131072. Half of it is for staging buffers: as many as fit, or one
	 * that holds only a part of the state at a time. In that case begin copies and writes the
	 * state part by part, and returns when all of it is copied. The other half is for what
	 * is on its way to the disk or to other ranks. A load uses what saves leave of the limit,
	 * at most 40 MiB and at least 2 MiB, and frees that when it returns. */
	uint64_t bytes_max;
	/* Processors for the threads that copy lazy saves on this rank, such as "0-3,8". NULL: any
	 * processor. Set it to keep these threads away from processors that the training uses. If
	 * the kernel refuses the list, they run on any processor and log has a warning. */
	const char *copy_cpus;
	/* Limit on how fast those threads together copy one save, in bytes a second. 0: no limit.
	 * Set it if the copy takes memory bandwidth that the training needs. A caller that waits at
	 * a gate or in a commit copies the rest without this limit. */
	uint64_t copy_rate_max;
	/* Limit on the number of those threads for one save; at most 256, and never more are used
	 * than there are processors. 0: 4, or this rank's share of the node's processors minus one,
	 * if that is less. The number is adapted from save to save. The first save has 1. One is
	 * added after a save whose copy was waited for at a gate. One is removed after a save that
	 * fewer threads would have copied before the first gate. */
	int32_t copy_threads;
	int32_t reserved;
};

/* Retention, which decides which checkpoints are kept: sheaf_opts.retention. By default all of them
 * are. With keep_last, a checkpoint is removed if a newer one that descends from it is verified,
 * unless one of these is true:
 * - It is one of the keep_last newest, its number is a multiple of keep_every, or it is one of the
 *   keep_best best.
 * - It is marked SHEAF_MARK_KEEP (sheaf-admin.h), or is the one that this job has loaded, and the
 *   job has not committed another one since.
 * - It is damaged.
 *
 * sheaf_run_prune removes checkpoints at once. Commits remove them in the background: a thread of
 * each node reads its share of the new checkpoint again, at low priority and past the page cache.
 * Once it is known to be undamaged, the next commit or close removes older ones. All fields but
 * grace_s must be the same on all ranks. */
struct sheaf_retention {
	uint32_t size;
	/* How many of the newest checkpoints are kept. 0: all checkpoints are kept, and the other
	 * rules must not be set (EINVAL). */
	int32_t keep_last;
	/* Checkpoints whose number is a multiple of this are kept, too. 0: none. */
	int32_t keep_every;
	/* This many of the best checkpoints by the note best_note are kept, too. 0: none. Of two
	 * with equal values the newer one is better. A checkpoint without such a note is never one
	 * of the best. */
	int32_t keep_best;
	/* Key of the note with the value of a checkpoint, such as "val.loss" (sheaf_save_note). The
	 * note must be a decimal number of at most 40 significant digits. Needed with keep_best,
	 * else not used. */
	const char *best_note;
	int32_t best_largest;           /* 0: the smallest value is the best. 1: the largest */
	/* Seconds from the removal of a checkpoint to its deletion, in which a person can still get
	 * it back from .sheaf/trash. 0: 600. -1: it is deleted at once. Until then the
	 * checkpoint takes space on the disk. This option is not stored: a later job that opens the
	 * run deletes what was removed 600 s ago or earlier. */
	int32_t grace_s;
};

/* The memory tier, which keeps checkpoints in the memory of the nodes, so that the next job resumes
 * from memory: sheaf_opts.memory_tier. It needs an agent on each node, see sheaf-agent.h. By
 * default there is none. */
struct sheaf_memory_tier {
	uint32_t size;
	/* Copies of each checkpoint in memory. 0 or 1: no replica. 2: the memory of the next node
	 * has a replica, so that the checkpoint survives the loss of one node. Other values are
	 * EINVAL. Replicas need `agent`. They take the memory of two staging buffers more, which
	 * do not count for sheaf_staging.buffers_max. They are sent inside the commit, or
	 * in the background with copies_group. If there is only one node, or after a failure, log
	 * has a warning that there are no replicas. Same on all ranks. */
	int32_t copies;
	/* Path of the socket of this node's agent, or "auto", the default socket of `sheaf agent`
	 * for this run. NULL: no memory tier. If no agent answers, or an agent of another run
	 * directory, or if the agent ends, the run goes on without one and log has a warning. NULL
	 * on all ranks or on none. */
	const char *agent;
	/* A second group of the same ranks, to send replicas in the background. NULL: they are sent
	 * inside commits. On all ranks or on none; EINVAL unless `copies` is 2. A thread of each
	 * rank uses this group at any time, also while the caller uses the other one.
	 * sheaf_run_close waits for that thread. Keep the group until the run is closed.
	 * - A checkpoint that is committed while another is being sent is not replicated.
	 * - sheaf_staging.buffers_max must be at least 3; its default is then 4. With 3, a replica
	 *   overwrites the last complete one while it is sent, so that for a while there is none.
	 *   With 4 there is room for both.
	 * - If sheaf_staging.bytes_max leaves room for only 2 buffers, replicas are sent inside
	 *   commits. */
	struct sheaf_group *copies_group;
};

/* What is called or written when a checkpoint is on disk: sheaf_opts.notify. By default nothing is.
 * Set `committed` for a function of this program, and signal_dir for other programs. */
struct sheaf_notify {
	uint32_t size;
	int32_t reserved;
	/* Called on rank 0 for each checkpoint on disk, inside the sheaf_save_commit or
	 * sheaf_save_advance that then returns 0. NULL: none. The checkpoint survives a power loss,
	 * its done files are written, and the other ranks go on. Not called for a save that failed,
	 * is in doubt or is in memory only. For saves that were submitted (sheaf_save_submit) it is
	 * called on the thread that commits, possibly while another thread is in a call of sheaf,
	 * and must not call sheaf. path: the checkpoint's folder, as sheaf_run_path gives it; valid
	 * during the callback. It must not do any of these:
	 * - Call a [collective] function on this run, its checkpoints or its saves.
	 * - Call sheaf_save_free for this save.
	 * - Take timeout_ms or longer: the other ranks wait in their next collective call.
	 * - Leave by longjmp or a C++ exception. */
	void (*committed)(void *arg, int64_t step, const char *path);
	void *arg;                      /* passed to committed */
	/* A folder for done files, which tell other programs of new checkpoints. NULL: none are
	 * written. Only the value of rank 0 is used, and the parent of the folder must exist.
	 * Before a commit returns 0, the file <family>.<step>.done is written for each family of
	 * the checkpoint, and when these are durable, whole-step.<step>.done (doc/format.md).
	 * sheaf_run_open for writing adds those that the newest checkpoint lacks. If one cannot be
	 * written, log has a warning and the save succeeds all the same. Sheaf never deletes done
	 * files: compare the session in them to recognise a checkpoint that was saved again. A
	 * relative path is taken from the working directory of sheaf_run_open. */
	const char *signal_dir;
};

#ifdef __cplusplus
}
#endif
#endif
