/* SPDX-License-Identifier: Apache-2.0 */
/* An open run, or a checkpoint opened by path: the group, the system layer (sys.h), the directory,
 * the nodes and the images.
 *
 * The room lib/run owns struct sheaf_run, its images (image.h) and its queue of requests to the
 * disk (run_io.h). It sees store, group, sys and layout. Of the parts that work for a run, such as
 * saves or the memory tier, it knows only the names of their structs. */
#ifndef SHF_RUN_H
#define SHF_RUN_H
#include <pthread.h>
#include <stdatomic.h>
#include "group.h"
#include "nodes.h"
#include "opts.h"
#include "save_pace.h"
#include "sys.h"
#include "prune_steps.h"
#include "turns.h"

/* An image, a staging buffer: this rank's part of it, and mappings of the parts of the other ranks
 * of the node. It is allocated and touched once and kept between saves. */
struct shf_image {
	struct shf_shm own;
	struct shf_shm *peers;          /* owned; by rank; base NULL: the rank is on another node,
	                                 * or has no memory in this image yet */
	bool dirty;                     /* its save has ended, but other ranks may still copy into
	                                 * it; cleared after the next agreement of all ranks */
};
#define SHF_IMAGE_OF_LOAD SHF_IMAGES_MAX        /* freed when the load returns */
struct sheaf_save;
/* The lifetime of a run, and the process that may use it. */
struct shf_run_life {
	int refs;                       /* references: one for the caller's handle, one for each
	                                 * save and each step */
	uint64_t pid;                   /* process that opened the run */
	uint64_t made;                  /* number of the call that opened the run
	                                 * (shf_call_enter) */
	uint64_t id;                    /* random; a plan notes the id of the run it was made for */
	bool foreign;                   /* no run directory: sheaf_checkpoint_open_path */
	bool closed;                    /* the caller has closed it; saves may still use it */
	bool clean;                     /* all ranks took part in the close */
	int64_t reported_ns;            /* when a load or verification last called opts.progress */
	/* Ends the threads that work for the run, before its memory and descriptors are freed. Set
	 * by the function that opened the run; may be NULL. Not called in a forked child. */
	void (*end)(struct sheaf_run *run);
	void (*sys_free)(void *arg);    /* frees what shf_run_set_sys was given; NULL: nothing */
	void *sys_arg;
};
struct shf_run_images {
	/* By number, which is the same on all ranks; the last is used by a load. */
	struct shf_image all[SHF_IMAGE_OF_LOAD + 1];
	atomic_uint busy;               /* number of images that saves in flight use */
	/* Called when an image has got new memory, and with `goes` before its memory is freed. Set
	 * if the run wants an agent, which keeps the memory of images too; else NULL. */
	void (*moves)(struct sheaf_run *run, int image, bool goes);
};
/* The run's queue of requests to the disk; see run_io.h. */
struct shf_run_io {
	struct shf_queue *queue;
	pthread_mutex_t lock;           /* guards taken and submits, and is held in calls of
	                                 * shf_io_owner.done */
	uint64_t submits;               /* requests submitted to the queue, failed ones too */
	pthread_cond_t turn;            /* signalled after each submit, and when a thread has
	                                 * returned from waiting for the queue */
	bool taken;                     /* a thread waits for the queue; others wait for `turn` */
};
/* The saves of a run: the saves in flight, and how long earlier ones took. */
struct shf_run_saves {
	struct sheaf_save *first, *last;        /* saves in flight, in the order in which they
	                                         * began */
	int in_flight;
	struct shf_save_pace pace;
	struct shf_run_blocked *stalls;      /* owned; where callers were blocked, and how long */
	bool metrics_said;              /* the log has the warning that metrics cannot be written */
	char *commit_path;              /* owned; buffer for the path of a step, which is passed to
	                                 * opts.notify.committed; NULL without that function */
	size_t commit_path_bytes;
	struct shf_committer *committer;        /* owned; the thread that commits (turns.h); NULL:
	                                         * there is none */
};
/* What this handle loaded, saved and verified. It decides which step the next save follows, and
 * which steps a prune may delete. */
struct shf_lineage {
	int64_t loaded;                 /* the step this handle loaded; -1: none */
	struct shf_saved verified;      /* the newest step that this handle verified */
	/* A step in the memory of agents is opened as a run of its own. In such a run: the run of
	 * which it is a step, with a reference held; else NULL. */
	struct sheaf_run *memory_of;
	struct shf_base {               /* in the run of a step in memory: the step on disk which
	                                 * that step follows */
		int64_t step;           /* number of the step on disk; -1: none */
		char session[33];
		uint64_t tries;         /* how often the step in memory was loaded before */
		int64_t beyond;         /* if the step in memory was opened by its number: the
		                         * newest usable step in memory that is newer than it and
		                         * than all steps on disk; -1: none */
		int64_t newest;         /* newest step of this job in memory at that time; -1:
		                         * none */
	} base;
	bool unsure;                    /* a load was counted as a try (.sheaf/tries), and this
	                                 * session has not come further than the loaded step yet */
	unsigned rewinds;               /* number of rewinds so far; a step opened before the last
	                                 * one may have been set aside */
	unsigned loads;                 /* number of loads so far; saves that began before and after
	                                 * a load may follow different steps */
	int64_t parent;                 /* step that the next save follows; -1: the newest */
	char parent_session[33];
	int64_t doubtful;               /* step whose publish by this handle ended in doubt, and
	                                 * that was not seen on disk since; -1: none */
};
/* Owned. Made by run_open.c; NULL in a run without a directory. */
struct shf_run_retain {
	struct shf_scrub_run *behind;      /* steps that are being read again in the background */
	struct shf_prune_task *pruning;    /* deletion of old steps; used on rank 0 */
};
/* An open run. Only the thread that has the run uses it (turns.h): the caller's, or the one that
 * commits. Exceptions are atomic members, members guarded by a lock, and the store while a
 * background thread prunes or publishes. */
struct sheaf_run {
	const struct shf_sys *sys;      /* borrowed */
	struct shf_team team;
	struct shf_store store;
	struct shf_opts opts;           /* from shf_opts_take; owns its strings */
	struct shf_nodes place;
	struct shf_run_life life;
	struct shf_turns turns;
	struct shf_run_images image;
	struct shf_run_io io;
	struct shf_run_saves saves;
	struct shf_lineage lineage;
	struct shf_run_retain retain;
	struct shf_memory_tier *tier;   /* owned; the memory tier: steps in the memory of agents;
	                                 * NULL in a run without a directory */
};

/* Opens a run without a directory: group, system layer and nodes only. For steps opened by path,
 * and as the first part of opening a run. place: the nodes of the ranks, which are copied, or NULL
 * to find them; finding them twice may give different results. call: the public call that begins
 * with this one. [collective] */
int shf_run_open_bare(struct sheaf_run **run, struct sheaf_group *group,
                      const struct shf_opts *opts, const struct shf_sys *sys,
                      const struct shf_nodes *place, enum shf_call_kind call,
                      struct sheaf_error *err);
/* Replaces the system layer of a bare run that has no file open, by one over the current layer. On
 * success the run owns it: sys_free(arg) is called when the run is freed. [local] */
int shf_run_set_sys(struct sheaf_run *run, const struct shf_sys *sys, void (*sys_free)(void *arg),
                    void *arg, struct sheaf_error *err);
/* Take and drop a reference. The run is freed with the last one. Only the caller's thread may call
 * these. [local] */
void shf_run_get(struct sheaf_run *run);
void shf_run_put(struct sheaf_run *run);

/* Returns the run that saves: the run itself or, for a step in memory that was opened as a run of
 * its own, the run of which it is a step. */
static inline struct sheaf_run *shf_run_that_saves(struct sheaf_run *run)
{
	return run->lineage.memory_of ? run->lineage.memory_of : run;
}

/* Files smaller than this are not worth a second descriptor for direct I/O. */
#define SHF_DIRECT_MIN (UINT64_C(1) << 20)
#endif
