/* SPDX-License-Identifier: Apache-2.0 */
/* The memory tier of an open run: the agent of each node keeps the images of the node's ranks, and
 * their cards, so that steps in memory outlive the job. If no agent answers, or it is lost, the run
 * goes on without it and tries again later.
 *
 * What an agent may hold of a run, in names and in bytes:
 *
 * T1. A process that opened the run SHEAF_RUN_READONLY leaves nothing with the agent: it saves
 * nothing,
 *     and the image of a load is not handed over (agent_link.c).
 * T2. Of the job that has the run open, the agent holds for each rank of the node as many images as
 *     saves may use (shf_agent_images), and a card for each. No image is larger than the largest
 *     save or load of that rank needed. For each rank whose replicas this node keeps there are
 *     SHF_REPLICA_SLOTS more images and cards. An image that grows is dropped before the new one is
 *     allocated.
 * T3. When a job opens the run (shf_memory_jobs_drop_old), the agent drops what earlier jobs left,
 * except
 *     for one job: the one with the newest step that a load would take. If there is none, it is the
 *     job with the newest step of which a whole card was found, because the other cards may be on
 *     nodes that this job does not have. A job without a whole card on the node keeps nothing
 *     there.
 * T4. The agent drops everything that earlier jobs left once a step of this job is in memory or on
 * disk, and at a rewind, unless a resume with SHEAF_LOAD_FALLBACK rewinds to a step that it read in
 *     memory.
 *
 * So an agent never holds more than the memory of two jobs: the job that runs, or the last one that
 * died, and one before it. If an agent did not answer when the run was opened, T3 is done at the
 * next open; T4 is done in any case.
 *
 * The room lib/memory owns struct shf_memory_tier, the cards (image_card.h), the replicas kept for
 * another node (replica.h), and the view of a step in memory (memory_dir.h). It sees run, layout
 * and store, and neither a save nor a load; what a save does with the memory tier is in
 * save_memory.c. */
#ifndef SHF_MEMORY_TIER_H
#define SHF_MEMORY_TIER_H
#include <stdint.h>
#include "replica.h"
#include "sheaf.h"
#include "store.h"
#include "sys.h"

struct sheaf_run;
/* The state of the memory tier on this rank. Only the thread that has the run changes it (turns.h).
 * The thread that sends replicas reads cards, with guests.lock held. */
struct shf_memory_tier {
	bool wanted;                    /* opts.memory_tier.agent is set; the same on all ranks */
	int keep;                       /* connection to the agent; -1: not connected now */
	int steps_told;                 /* steps that this rank's agent allows; 0: no limit */
	int steps_max;                  /* minimum of these limits over all ranks; 0: no limit */
	bool bounded;                   /* steps_max is set (shf_agent_set_limit) */
	char job[33];                   /* random name of this opening of the run; the same on all
	                                 * ranks */
	uint64_t turn;                  /* number of this job, for its cards (image_card.h) */
	struct shf_shm cards[SHF_PINS]; /* by image; base NULL: the image has no card yet */
	int64_t steps[SHF_PINS];        /* by image: the step that its card describes; -1: none */
	unsigned left[SHF_PINS];        /* by image: number (lineage.loads) of the first load of an
	                                 * older step from disk since its step was saved; 0: none.
	                                 * The card is cleared when a save that began after that
	                                 * load is in memory */
	bool on_disk[SHF_PINS];         /* by image: this handle has published its step, or may have
	                                 * (EINDOUBT) */
	unsigned went_back;             /* number of the last load of a step from disk; 0: none */
	char tried[33];                 /* session of the step that was loaded from memory last */
	int64_t passed;                 /* the newest complete step in memory that the last search
	                                 * for the latest passed over; -1: it passed over no such
	                                 * step. [rank 0] */
	uint64_t commits;               /* number of this job's steps in memory so far */
	struct shf_replicas guests;       /* replicas */
	/* If `based`, the step on disk that the next step in memory follows; equal on all ranks. */
	bool based;
	int64_t base_step;              /* -1: an empty run */
	char base_session[33];
	int64_t from_step;              /* the step that this handle loaded last, if it came from
	                                 * memory and no step was published since; -1: none */
	char from_session[33];
	uint64_t rewinds;               /* number of rewinds of the run when base_step was found */
	uint64_t doubt;                 /* shf_card_disk_state of a step whose publish ended in
	                                 * doubt: that step, and not base_step, may be the newest on
	                                 * disk; 0: none */
	uint64_t coming;                /* shf_card_disk_state of the step that is being published;
	                                 * 0: none */
	int newest;                     /* image of the newest step of this job that is in memory on
	                                 * all ranks; -1: none */
	int64_t beyond;                 /* a usable step in memory that is newer than the one this
	                                 * handle loaded, so that saves are refused; -1: none */
	bool said;                      /* the log says that there is no agent, and why */
	bool alone;                     /* the agent has dropped all that other jobs left */
	int64_t ask_ns;                 /* time of the next attempt to reach the agent */
	int64_t wait_ns;                /* time between that attempt and the one after it */
};
/* Call it when a run is opened. It is no failure if an agent does not answer. [collective] */
int  shf_memory_tier_open(struct sheaf_run *run, struct sheaf_error *err);
/* Frees this rank's cards and closes the connection. bye: reports to the agent that the job ends in
 * order and has not crashed. [local] */
void shf_memory_tier_close(struct sheaf_run *run, bool bye);
/* Call it when this handle has loaded that step from disk. [local] */
void shf_memory_tier_disk_loaded(struct sheaf_run *run, int64_t step);
/* Call it when this handle has loaded a step that is in memory and not on disk. step, session: that
 * step. beyond: a newer step in memory, because of which saves return EINVAL until a rewind; -1:
 * there is none. [local] */
void shf_memory_tier_step_loaded(struct sheaf_run *run, int64_t step, const char session[33],
                                 int64_t beyond);
/* Call it when this handle goes on from that step in memory because later ones are damaged. Clears
 * the cards of later steps; the step stays until a newer one is in memory (M3). No save may be in
 * flight. [local] */
void shf_memory_tier_fallback(struct sheaf_run *run, int64_t step);
/* Call it at a rewind to that step. Clears the cards of later steps. loaded: the step was loaded
 * from memory, and stays until a newer one is in memory. [local] */
void shf_memory_tier_rewind(struct sheaf_run *run, int64_t step, bool loaded);
#endif
