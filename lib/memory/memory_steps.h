/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the steps that agents have in memory, and opens one of them as a view (memory_dir.h). */
#ifndef SHF_MEMORY_STEPS_H
#define SHF_MEMORY_STEPS_H
#include "list.h"
#include "memory_dir.h"
#include "run.h"

/* The contents of one whole card; ranks send each other arrays of this struct. base to turn are as
 * in the card's head (image_card.h); bytes: size of the image. */
struct shf_card_info {
	char job[33], session[33];
	int64_t step;
	int32_t rank, ranks;
	int32_t guest, reserved;        /* guest 1: a replica, kept by a node other than the
	                                 * rank's */
	uint64_t base, next, from, due, tries, turn, bytes;
};
/* A step in memory, joined from its cards. base to turn are as in struct shf_card_head, joined from
 * all cards; bytes: size of the images of the ranks that `here` counts. */
struct shf_memory_step {
	char job[33], session[33];
	int64_t step;
	int32_t ranks, here;            /* ranks: number of ranks that saved it; here: number of
	                                 * those of which a whole card was found */
	int32_t copied;                 /* number of these of which only replicas were found */
	uint64_t base, next, from, due, tries, turn, bytes;
};
/* Calls item for every step of which this agent has a whole card: those of the latest job first,
 * and of each job the newest first. A step of a later job comes before a newer one of an earlier
 * job, because the later job may have gone on from an older step. If item returns a non-zero value,
 * this stops and returns it. Returns a negative errno if the agent does not answer. [local] */
int shf_memory_steps_list(const struct shf_sys *sys, int keep, const char *run_id,
                          int (*item)(void *arg, const struct shf_memory_step *r), void *arg);
/* Appends a struct shf_card_info to *out for each whole card of this agent. guests: also for
 * replicas; only a caller that looks at several agents needs them. Returns 0 or a negative errno.
 * [local] */
int shf_memory_steps_read_cards(const struct shf_sys *sys, int keep, const char *run_id,
                                bool guests, struct shf_buf *out);
/* Joins cards, of one agent or of several, to steps, and calls item for each as
 * shf_memory_steps_list does. -ENOMEM. [local] */
int shf_memory_steps_join(struct shf_buf *cards, int (*item)(void *arg,
                                                             const struct shf_memory_step *r),
                          void *arg);
/* Appends to *ranks, as int32_t and in ascending order, the ranks of the step of which there are
 * only replicas. ENOMEM. [local] */
int shf_memory_step_replicas(const struct shf_buf *cards, const struct shf_memory_step *which,
                             struct shf_buf *ranks);
/* Makes a view of the parts of one step that this node has; the caller calls shf_view_finish.
 * copied: ranks of which replicas are used; NULL: none. ECORRUPT, ENOMEM. [local] */
int shf_memory_step_open_parts(const struct shf_sys *sys, int keep,
                               const struct shf_memory_step *which,
                               const struct shf_buf *copied, struct shf_view **view,
                               struct sheaf_error *err);
/* Makes and finishes a view of a step. EFORMAT if this node does not have all of it; ECORRUPT,
 * ENOMEM. [local] */
int shf_memory_step_open(const struct shf_sys *sys, int keep, const struct shf_memory_step *which,
                         struct shf_view **view, struct sheaf_error *err);
/* Call it before `which` is written to disk. Later steps in memory of the same job that follow the
 * state `was` of the disk are changed to follow also the state `is`, in which `which` is the newest
 * step (both from shf_card_disk_state). Steps of other jobs may be another branch, and are not
 * changed. Returns 0 or a negative errno. [local] */
int shf_memory_steps_rebase(const struct shf_sys *sys, int keep, const char *run_id,
                            const struct shf_memory_step *which, uint64_t was, uint64_t is);
/* Returns 1 if the step in memory follows the newest step on disk, which also means that the run
 * was not rewound since, and that no step that it may follow is marked bad; 0 if not. EIO: the
 * number of rewinds or the marks cannot be read. [local] */
int shf_memory_step_follows(struct shf_store *store, const struct shf_memory_step *r,
                            const struct shf_newest *disk, struct sheaf_error *err);
/* Returns whether the disk has a bad step of the same number which is another save: when the step
 * in memory is written, the bad one is set aside, as by a save of its number. [local] */
bool shf_memory_step_replaces(struct shf_store *store, const struct shf_memory_step *r,
                              const struct shf_newest *disk);
/* Returns whether a later job has gone on from a step other than this one, so that no flush writes
 * it: it would make the later job's steps unreachable. latest: the first step of the list whose
 * state is SHF_MEMORY_UNWRITTEN; its ranks are 0: there was none yet. [local] */
bool shf_memory_step_is_passed(struct shf_store *store, const struct shf_memory_step *r,
                               const struct shf_memory_step *latest);
/* Returns EBUSY if, by the cards that this agent has now, a later job has gone on from another
 * step. Call it with the run's lock, because jobs come and go between the choice of a step and the
 * lock. [local] */
int shf_memory_step_check_passed(const struct shf_sys *sys, int keep, struct shf_store *store,
                                 const struct shf_memory_step *which, struct sheaf_error *err);
/* A step in memory compared with the steps on disk. */
enum shf_memory_state {
	SHF_MEMORY_UNWRITTEN,           /* newer than all steps on disk, and follows the newest: it
	                                 * can be written */
	SHF_MEMORY_ON_DISK,             /* the disk has a step of the same number, and
	                                 * shf_memory_step_replaces is false */
	SHF_MEMORY_OVERTAKEN,           /* the disk has a newer step, and no step of the same
	                                 * number */
	SHF_MEMORY_LOST,                /* newer than all steps on disk, but does not follow them:
	                                 * the run was rewound */
};
/* Returns the enum shf_memory_state of a step, or a code. *disk: the state of the disk that it was
 * compared with; a bad step that this one replaces does not exist there. [local] */
int shf_memory_step_state(struct shf_store *store, const struct shf_memory_step *r,
                          struct shf_newest *disk, struct sheaf_error *err);
#endif
