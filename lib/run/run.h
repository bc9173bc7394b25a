/* SPDX-License-Identifier: Apache-2.0 */
/* An open run, or a checkpoint opened by path: the group, the machine, the directory, the nodes
 * and the images.
 *
 * The room lib/run owns struct sheaf_run, its images (image.h) and its queue of requests to the
 * disk (run_io.h). It sees store, group, sys and layout, and what works for a run by name alone. */
#ifndef SHF_RUN_H
#define SHF_RUN_H
#include <pthread.h>
#include <stdatomic.h>
#include "group.h"
#include "nodes.h"
#include "opts.h"
#include "save_pace.h"
#include "sys.h"
#include "trash.h"

/* An image: this rank's share of it and, mapped, those of the ranks of its node. Allocated and
 * touched once and kept between saves. */
struct shf_image {
	struct shf_shm own;
	struct shf_shm *peers;          /* by rank; base NULL: not of this node, or none yet */
	bool dirty;                     /* its save ended while others may copy into it: until the
	                                 * next agreement */
};
#define SHF_IMAGE_OF_LOAD SHF_IMAGES_MAX        /* freed when the load returns */
struct sheaf_save;
/* How long it lives, and for whom. */
struct shf_run_life {
	int refs;                       /* the caller, saves, steps */
	uint64_t pid;                   /* of the process that opened it */
	uint64_t made;                  /* number of that call, see shf_call_enter */
	uint64_t id;                    /* random: plans remember for whom they were made */
	bool foreign;                   /* no run directory behind it (open_path) */
	bool closed;
	bool clean;                     /* all ranks came to close it */
	/* Set by the function that opened the run; may be NULL. Ends the tasks that work for the
	 * run, before its memory and descriptors are freed. Not called in a forked child. */
	void (*end)(struct sheaf_run *run);
};
struct shf_run_images {
	/* By number, which is the same on all ranks; the last is used by a load. */
	struct shf_image all[SHF_IMAGE_OF_LOAD + 1];
	atomic_uint busy;               /* that saves in flight have */
	/* Set if an agent keeps the images, too; else NULL. Called when an image has got new
	 * memory, and with `goes` before its memory is freed. */
	void (*moves)(struct sheaf_run *run, int image, bool goes);
};
/* Its requests to the disk; see run_io.h. */
struct shf_run_io {
	struct shf_queue *queue;
	pthread_mutex_t lock;           /* guards taken, submits, the taking of requests */
	uint64_t submits;               /* requests submitted to the queue, refused ones too */
	pthread_cond_t turn;            /* somebody has taken one, or gone */
	bool taken;                     /* a thread waits for the queue; the others for it */
};
/* Its saves: those in flight, and what earlier ones took. */
struct shf_run_saves {
	struct sheaf_save *first, *last;        /* in flight, in begin's order */
	int in_flight;
	struct shf_pace pace;
	struct shf_stalls *stalls;      /* where callers were blocked */
	bool metrics_said;              /* that they cannot be written */
	char *commit_path;              /* owned; room for the path of a step, if opts has a
	                                 * function that is called after commits; or NULL */
	size_t commit_path_bytes;
};
/* What this handle loaded, saved and verified. It decides which step the next save follows, and
 * what a prune may delete. */
struct shf_lineage {
	int64_t loaded;                 /* the step this handle loaded; -1 */
	struct shf_saved verified;      /* the newest that this handle verified */
	/* A step in the memory of agents is opened as a run of its own. Then: the run whose step it
	 * is, counted; else NULL. */
	struct sheaf_run *memory_of;
	struct shf_base {               /* the step on disk that it follows; -1: none */
		int64_t step;
		char session[33];
		uint64_t tries;         /* and how many loaded the one in memory before */
		int64_t beyond;         /* a newer one in memory when it was opened by its number;
		                         * -1 */
		int64_t newest;         /* of this job in memory then; -1 */
	} base;
	bool unsure;                    /* a load was counted, and nothing has come of it yet */
	unsigned rewinds;               /* so far: a step opened before one may be set aside */
	unsigned loads;                 /* so far: saves begun before one and after it may follow
	                                 * different steps */
	int64_t parent;                 /* of the next save to begin; -1: what is newest */
	char parent_session[33];
	int64_t doubtful;               /* published in doubt by this handle, and not seen since;
	                                 * -1 */
};
/* Owned. Made by run_open.c; NULL in a run without a directory. */
struct shf_run_retain {
	struct shf_behind *behind;      /* what is being read again */
	struct shf_pruning *pruning;    /* rank 0's */
};
/* An open run. It belongs to the caller's thread, apart from what is atomic, what says which lock
 * guards it, and the store while a thread prunes or publishes. */
struct sheaf_run {
	const struct shf_sys *sys;
	struct shf_team team;
	struct shf_store store;
	struct sheaf_opts opts;         /* taken, defaults filled; ignore is owned */
	struct shf_place_info place;
	struct shf_run_life life;
	struct shf_run_images image;
	struct shf_run_io io;
	struct shf_run_saves saves;
	struct shf_lineage lineage;
	struct shf_run_retain retain;
	struct shf_tier *tier;          /* owned; its link to agents; NULL without any */
};

/* Only group, machine and nodes; for steps opened by path. place: on which nodes the ranks are, or
 * NULL to find out; a machine that is asked twice may answer differently. call: the call that
 * begins with this. [collective] */
int shf_run_open_bare(struct sheaf_run **run, struct sheaf_group *group,
                      const struct sheaf_opts *opts, const struct shf_sys *sys,
                      const struct shf_place_info *place, enum shf_call_kind call,
                      struct sheaf_error *err);
/* Counts one user more. The run is freed when the last one has put it. Only the caller's thread
 * does either. [local] */
void shf_run_get(struct sheaf_run *run);
void shf_run_put(struct sheaf_run *run);

/* The run that saves: the run itself, or for a step in memory the one whose step it is. */
static inline struct sheaf_run *shf_run_that_saves(struct sheaf_run *run)
{
	return run->lineage.memory_of ? run->lineage.memory_of : run;
}

/* Files below it are not worth a descriptor of their own past the page cache. */
#define SHF_DIRECT_MIN (UINT64_C(1) << 20)
#endif
