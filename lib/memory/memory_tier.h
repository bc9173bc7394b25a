/* SPDX-License-Identifier: Apache-2.0 */
/* The memory tier of a run that is open: this rank's images and their cards, kept by the agent of
 * its node. Where no agent answers, or one is lost, the run does without, and asks again later.
 *
 * What an agent may hold of a run, in names and in bytes:
 *
 * T1. A process that opened the run SHEAF_READONLY leaves nothing with the agent: it saves nothing,
 *     and the image of a load is not handed over (agent_link.c).
 * T2. Of the job that has the run open the agent holds, for each rank on the node, as many images
 *     as saves may have (shf_tier_images), and a card for each. No image is larger than the largest
 *     save or load of that rank needed. For each rank whose copies are kept here there are
 *     SHF_GUEST_SLOTS images and cards more. An image that grows is dropped before the new one is
 *     made.
 * T3. When a job opens the run (shf_tier_settle), what earlier jobs left is dropped, but for one of
 *     them: the one with the newest step that a load would take. If there is none, it is the one
 *     with the newest step of which any rank's part is here, because the other parts may be on
 *     nodes that this job does not have. A job without a whole card on the node keeps nothing.
 * T4. What earlier jobs left is dropped altogether once a step of this job is in memory or on disk,
 *     and at a rewind, but for one to a step that a resume with SHEAF_FALLBACK read in memory.
 *
 * The room lib/memory owns struct shf_tier, the cards (image_card.h), the copies kept for another
 * node (replica.h), and the view of a step in memory (memory_dir.h). It sees run, layout and store,
 * and neither a save nor a load: what a save does here is save_memory.c.
 *
 * So an agent never holds more than two jobs may have: the one that lives, or was the last to die,
 * and one before it. If an agent did not answer at an open, T3 waits for the next open, while T4
 * holds. */
#ifndef SHF_MEMORY_TIER_H
#define SHF_MEMORY_TIER_H
#include <stdint.h>
#include "replica.h"
#include "sheaf.h"
#include "store.h"
#include "sys.h"

struct sheaf_run;
struct sheaf_save;
struct shf_store;
/* What this handle knows of its images as steps in memory. It belongs to the caller's thread. The
 * thread that sends replicas reads cards, with the lock of guests held. */
struct shf_tier {
	bool wanted;                    /* opts.agent: the same on all ranks */
	int keep;                       /* the agent; -1: none now */
	int steps_told;                 /* it has room for so many steps; 0: it does not say */
	int steps_max;                  /* the fewest that agents of all ranks said; 0: none did */
	bool bounded;                   /* they were heard */
	char job[33];                   /* of this opening of the run, on all ranks */
	uint64_t turn;                  /* of this job, for its cards (image_card.h) */
	struct shf_shm cards[SHF_PINS]; /* by image; base NULL: none yet */
	int64_t steps[SHF_PINS];        /* by image: which step its card is of; -1: none */
	unsigned left[SHF_PINS];        /* by image: the first load (run->loads) of an older step
	                                 * of the disk since its step was saved: that goes when one
	                                 * is there that was begun after the load. 0: none */
	bool on_disk[SHF_PINS];         /* by image: this handle has brought its step to disk */
	unsigned went_back;             /* the last load of a step of the disk; 0: none */
	char tried[33];                 /* session of the step that was loaded from memory last */
	int64_t passed;                 /* the newest whole step in memory that the last look for
	                                 * the latest passed over; -1 [rank 0] */
	uint64_t commits;               /* of this job */
	struct shf_guests guests;       /* copies that this rank keeps of another node's */
	/* What on disk the next step in memory follows, once `based`; alike on all ranks. */
	bool based;
	int64_t base_step;              /* -1: an empty run */
	char base_session[33];
	uint64_t rewinds;
	uint64_t doubt;                 /* what is on disk instead, perhaps; 0: nothing */
	uint64_t coming;                /* the same of what is being published; 0: nothing */
	int newest;                     /* image of the newest step that is there, on all ranks;
	                                 * -1: none of this job */
	int64_t beyond;                 /* this handle loaded an older step from memory, which goes
	                                 * on to this one; -1 */
	bool said;                      /* that there is none, or why */
	bool alone;                     /* what other jobs left here has been let go */
	int64_t ask_ns;                 /* when the agent is looked for again */
	int64_t wait_ns;                /* then, if it does not answer, after so long */
};
/* By run_open, when the run is known. An agent that does not answer is no failure. [collective] */
int  shf_tier_open(struct sheaf_run *run, struct sheaf_error *err);
/* bye: this job ends as it should. [local] */
void shf_tier_close(struct sheaf_run *run, bool bye);
/* This handle goes on from that step of the disk. [local] */
void shf_tier_went_back(struct sheaf_run *run, int64_t step);
/* The caller has loaded a step that is in memory and not on disk. beyond: a newer step in memory,
 * which makes the next save EINVAL until a rewind; -1: there is none. [local] */
void shf_tier_took(struct sheaf_run *run, int64_t beyond);
/* This handle goes on from that step in memory, since later ones are damaged: they go, and it stays
 * until a newer one is there (M3). No save is in flight. [local] */
void shf_tier_fell_back(struct sheaf_run *run, int64_t step);
/* Steps after this one are no longer to be found in memory. loaded: this one was read there, and
 * stays until a newer one is there. [local] */
void shf_tier_rewind(struct sheaf_run *run, int64_t step, bool loaded);
#endif
