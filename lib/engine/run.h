/* SPDX-License-Identifier: Apache-2.0 */
/* An open run, or a checkpoint opened by path: the group, the machine, the directory, the nodes
 * and the images. */
#ifndef SHF_RUN_H
#define SHF_RUN_H
#include <pthread.h>
#include <stdatomic.h>
#include "behind.h"
#include "group.h"
#include "mem.h"
#include "pace.h"
#include "pruning.h"
#include "stall.h"
#include "store.h"
#include "sys.h"
#include "tier.h"

/* An image: this rank's share of it and, mapped, those of the ranks of its node. Allocated and
 * touched once and kept between saves. */
struct shf_image {
	struct shf_shm own;
	struct shf_shm *peers;          /* by rank; base NULL: not of this node, or none yet */
	bool dirty;                     /* its save ended while others may copy into it: until the
	                                 * next agreement */
};
#define SHF_IMAGES_MAX SHF_PINS /* each is pinned */
struct shf_place_info {         /* where this rank is */
	int32_t *nodes;                 /* owned; of every rank, numbered from 0 */
	int32_t nodes_n;                /* how many there are */
	int32_t node, node_ranks;       /* own node; how many ranks it has */
	int32_t node_first;             /* its lowest rank */
};
struct sheaf_save;
struct shf_view;
#define SHF_LOCK_WAIT_MS 30000  /* for another job to leave the run, at most */
#define SHF_AGENT_MAX 104      /* bytes of the path of a socket, and its end */
#define SHF_STRUCT_MAX 4096     /* a caller's `size` above it was never set */
struct sheaf_run {
	int refs;                       /* the caller, saves, steps */
	uint64_t pid;                   /* of the process that opened it */
	uint64_t made;                  /* number of that call, see shf_call_enter */
	uint64_t id;                    /* random: plans remember for whom they were made */
	bool clean;                     /* all ranks came to close it */
	bool closed, foreign;           /* foreign: no run directory behind it (open_path) */
	const struct shf_sys *sys;
	struct shf_team team;
	struct shf_store store;
	struct sheaf_opts opts;         /* taken, defaults filled; ignore is owned */
	struct shf_place_info place;
	struct shf_image images[SHF_IMAGES_MAX]; /* by number, the same on all ranks */
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
	struct shf_behind behind;       /* what is being read again */
	struct shf_pruning pruning;     /* rank 0's */
	struct shf_tier tier;
	struct shf_view *view;          /* owned; sys is its: a step in memory is read */
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
	struct shf_stalls stalls;
	bool metrics_said;              /* that they cannot be written */
	char *told;                     /* owned; room for the path of a step, where somebody is
	                                 * told of commits; or NULL */
	size_t told_bytes;
};
/* Take the caller's options. EINVAL. ignore is copied. */
int shf_opts_take(struct sheaf_opts *out, const struct sheaf_opts *in, struct sheaf_error *err);
void shf_opts_release(struct sheaf_opts *opts);

/* How long a rank may keep the others waiting in an agreement: half their deadline, most_ms at
 * most. */
int shf_opts_wait_ms(const struct sheaf_opts *opts, int most_ms);
/* How long of that it may spend deleting old files: a quarter of their deadline. */
int shf_opts_clear_ms(const struct sheaf_opts *opts);

/* sheaf_run_open over a given machine: the seam of the simulator. [collective] */
int shf_run_open(struct sheaf_run **run, const char *dir, struct sheaf_group *group,
                 const struct sheaf_opts *opts, const struct shf_sys *sys,
                 struct sheaf_error *err);
/* Only group, machine and nodes; for steps opened by path. place: on which nodes the ranks are, or
 * NULL to find out; a machine that is asked twice may answer differently. call: the call that
 * begins with this. [collective] */
int shf_run_open_bare(struct sheaf_run **run, struct sheaf_group *group,
                      const struct sheaf_opts *opts, const struct shf_sys *sys,
                      const struct shf_place_info *place, enum shf_call_kind call,
                      struct sheaf_error *err);
void shf_run_get(struct sheaf_run *run);
void shf_run_put(struct sheaf_run *run);
bool shf_run_is_ours(const struct sheaf_run *run);      /* not a forked child's */
/* EINVAL unless this process has the run open for writing, and a step may have that number. */
int  shf_run_may_train(const struct sheaf_run *run, int64_t step, struct sheaf_error *err);
void shf_log(const struct sheaf_run *run, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Which ranks share memory. [collective] */
int shf_place_find(struct shf_team *team, const struct shf_sys *sys, struct shf_place_info *place,
                   struct sheaf_error *err);
void shf_place_release(struct shf_place_info *place);
/* An image that no save uses: a free one with a number below `below`, or that of the oldest save
 * once it is written everywhere. Flags: SHEAF_MAY_DROP, SHEAF_MAY_FAIL instead of waiting for that.
 * Who takes it says so by save->image. [collective] */
int shf_image_take(struct sheaf_run *run, int below, uint32_t flags, int *image,
                   struct sheaf_error *err);
/* Which one shf_image_take would take, where the saves in flight are alike on all ranks; *of: whose
 * it is until then. [local] */
int shf_image_choose(const struct sheaf_run *run, int below, struct sheaf_save **of);
/* May it be set up for a save of so many bytes, as far as this rank knows? [local] */
bool shf_image_is_free(struct sheaf_run *run, int image, struct sheaf_save *of, uint64_t bytes);
/* All ranks have found that it is free: it is that save's no more. [local] */
void shf_image_leave(struct sheaf_save *of);
/* Of the saves in flight. */
uint64_t shf_saves_hash(const struct sheaf_run *run);
/* The save needs its image no more. Waits for who looks at it. */
void shf_image_give(struct sheaf_save *save);
/* Image number `image`, taken: at least `bytes` here, and everyone's of this node mapped.
 * [collective] */
int shf_image_need(struct sheaf_run *run, int image, uint64_t bytes, struct sheaf_error *err);
void shf_images_release(struct sheaf_run *run);
/* A rank's share of the image: own, a node peer's, or NULL: bytes must travel. */
uint8_t *shf_image_of(const struct sheaf_run *run, int image, uint32_t rank);
int64_t shf_now(const struct sheaf_run *run);   /* monotonic ns */
/* The wall clock, as in manifests: 2026-01-31T12:00:00Z. [local] */
void shf_run_time(const struct sheaf_run *run, char out[32]);
/* Until then, whole ones, the last one begun counts; 0: it is over. */
int shf_ms_left(const struct sheaf_run *run, int64_t until_ns);
/* This session has come further than the step it loaded (R5), so the try that it counted for that
 * step is taken back. [local], on all ranks */
void shf_run_resumed(struct sheaf_run *run);

struct shf_io_owner {           /* first member of what submits requests */
	void (*done)(struct shf_io_owner *owner, struct shf_io *io);    /* under the run's lock */
	atomic_uint pending;
};
void shf_io_turn_init(pthread_cond_t *turn);
/* Negative errno when it could not be submitted. [local] */
int shf_io_submit(struct sheaf_run *run, struct shf_io_owner *owner, struct shf_io *io);
/* Fails with the errno rc of a submit. EAGAIN means that the queue could not make a thread, and the
 * sentence says so, because the disk is not at fault. */
int shf_submit_fail(struct sheaf_error *err, int rc, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Until none of the owner's requests is under way: 0, or EAGAIN after timeout_ms (< 0: for ever,
 * 0: at once, whoever else waits). [any thread] */
int shf_io_drain(struct sheaf_run *run, struct shf_io_owner *owner, int timeout_ms);
/* Until some request of the run has finished, no longer than that; false, at once: the owner has
 * none. [any thread] */
bool shf_io_some(struct sheaf_run *run, struct shf_io_owner *owner, int timeout_ms);
/* Files below it are not worth a descriptor of their own past the page cache. */
#define SHF_DIRECT_MIN (UINT64_C(1) << 20)
#endif
