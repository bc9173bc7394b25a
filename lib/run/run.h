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
/* An open run. It belongs to the caller's thread, apart from what is atomic, what says which lock
 * guards it, and the store while a thread prunes or publishes. Most fields of the second half
 * remember what this handle loaded, saved and verified: they decide what the next save follows, and
 * what a prune may delete. */
struct sheaf_run {
	int refs;                       /* the caller, saves, steps */
	uint64_t pid;                   /* of the process that opened it */
	uint64_t made;                  /* number of that call, see shf_call_enter */
	uint64_t id;                    /* random: plans remember for whom they were made */
	/* Set by the function that opened the run; may be NULL. Ends the tasks that work for the
	 * run, before its memory and descriptors are freed. Not called in a forked child. */
	void (*end)(struct sheaf_run *run);
	/* Set if an agent keeps the images, too; else NULL. Called when an image has got new
	 * memory, and with `goes` before its memory is freed. */
	void (*image_moves)(struct sheaf_run *run, int image, bool goes);
	bool clean;                     /* all ranks came to close it */
	bool closed, foreign;           /* foreign: no run directory behind it (open_path) */
	const struct shf_sys *sys;
	struct shf_team team;
	struct shf_store store;
	struct sheaf_opts opts;         /* taken, defaults filled; ignore is owned */
	struct shf_place_info place;
	/* By number, which is the same on all ranks; the last is used by a load. */
	struct shf_image images[SHF_IMAGE_OF_LOAD + 1];
	atomic_uint images_busy;        /* that saves in flight have */
	struct shf_queue *queue;
	struct sheaf_save *first, *last;        /* in flight, in begin's order */
	int in_flight;
	pthread_mutex_t in_lock;        /* guards in_taken, in_submits, the taking of requests */
	uint64_t in_submits;            /* requests submitted to the queue, refused ones too */
	pthread_cond_t in_turn;         /* somebody has taken one, or gone */
	bool in_taken;                  /* a thread waits for the queue; the others for it */
	int64_t loaded;                 /* the step this handle loaded; -1 */
	struct shf_saved verified;      /* the newest that this handle verified */
	/* Owned. run_open.c makes these; they are NULL in a run without a directory. */
	struct shf_behind *behind;      /* what is being read again */
	struct shf_pruning *pruning;    /* rank 0's */
	struct shf_tier *tier;          /* the memory tier */
	struct sheaf_run *of;           /* counted; the run whose step that is, or NULL */
	struct shf_base {               /* the step on disk that it follows; -1: none */
		int64_t step;
		char session[33];
		uint64_t tries;         /* and how many loaded the one in memory before */
		int64_t beyond;         /* a newer one in memory when it was opened by its number;
		                         * -1 */
		int64_t newest;         /* of this job in memory then; -1 */
	} base;
	bool unsure;                    /* a load was counted, and nothing has come of it yet */
	struct shf_pace pace;           /* of its saves so far */
	unsigned rewinds;               /* so far: a step opened before one may be set aside */
	unsigned loads;                 /* so far: saves begun before one and after it may follow
	                                 * different steps */
	int64_t parent;                 /* of the next save to begin; -1: what is newest */
	int64_t doubtful; /* published in doubt by this handle, and not seen since; -1 */
	char parent_session[33];
	struct shf_stalls *stalls;      /* where callers were blocked */
	bool metrics_said;              /* that they cannot be written */
	char *told;                     /* owned; room for the path of a step, where somebody is
	                                 * told of commits; or NULL */
	size_t told_bytes;
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

/* Files below it are not worth a descriptor of their own past the page cache. */
#define SHF_DIRECT_MIN (UINT64_C(1) << 20)
#endif
