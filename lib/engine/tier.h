/* SPDX-License-Identifier: Apache-2.0 */
/* The memory tier of a run that is open: this rank's images and their cards, kept by the agent of
 * its node. Where no agent answers, or one is lost, the run does without, and asks again later. */
#ifndef SHF_TIER_H
#define SHF_TIER_H
#include <stdint.h>
#include "guest.h"
#include "sheaf.h"
#include "sys.h"

struct sheaf_run;
struct sheaf_save;
struct shf_tier {
	bool wanted;                    /* opts.agent: the same on all ranks */
	int keep;                       /* the agent; -1: none now */
	int steps_told;                 /* it has room for so many steps; 0: it does not say */
	int steps_max;                  /* the fewest that agents of all ranks said; 0: none did */
	bool bounded;                   /* they were heard */
	char job[33];                   /* of this opening of the run, on all ranks */
	struct shf_shm cards[SHF_PINS]; /* by image; base NULL: none yet */
	int64_t steps[SHF_PINS];        /* by image: which step its card is of; -1: none */
	char tried[33];                 /* session of the step that was loaded from memory last */
	uint64_t commits;               /* of this job */
	struct shf_guests guests;       /* copies that this rank keeps of another node's */
	/* What on disk the next step in memory follows, once `based`; alike on all ranks. */
	bool based;
	int64_t base_step;              /* -1: an empty run */
	char base_session[33];
	uint64_t rewinds;
	uint64_t doubt;                 /* what is on disk instead, perhaps; 0: nothing */
	uint64_t coming;                /* the same of what is being published; 0: nothing */
	int64_t back;                   /* this handle went back to that step of the disk: what it
	                                 * has later in memory goes with its next; INT64_MAX */
	int newest;                     /* image of the newest step that is there, on all ranks;
	                                 * -1: none of this job */
	bool said;                      /* that there is none, or why */
	bool alone;                     /* what other jobs left here has been let go */
	int64_t ask_ns;                 /* when the agent is looked for again */
	int64_t wait_ns;                /* then, if it does not answer, after so long */
};
/* By run_open, when the run is known. An agent that does not answer is no failure. [collective] */
int  shf_tier_open(struct sheaf_run *run, struct sheaf_error *err);
/* bye: this job ends as it should. [local] */
void shf_tier_close(struct sheaf_run *run, bool bye);
/* The agent of a run, to look only; steps: as keep_open says. ENOENT: none answers. [local] */
int  shf_tier_reach(const struct shf_sys *sys, const char *agent, const char *run_id, int *keep,
                    int *steps, struct sheaf_error *err);
/* Where it listens, as sys wants it. */
void shf_tier_where(char where[SHF_KEEP_NAME], const char *agent, const char *run_id);
/* Is there an agent? Where there was none, asks again now and then. [local] */
bool shf_tier_is_up(struct sheaf_run *run);
/* What agents allow of so many images, alike on all ranks. */
int  shf_tier_allows(const struct sheaf_run *run, int images);
/* 0: no agent; else the more, the fewer images it has room for. Asks, as shf_tier_is_up. [local] */
uint64_t shf_tier_room(struct sheaf_run *run);
/* The most that any rank's room says. Only the first one counts: an image that is in use, and the
 * newest step, have no other place. [local], alike on all ranks */
void shf_tier_bound(struct sheaf_run *run, uint64_t most);
/* Saves have images below that; the rest are for loads, and no agent's. */
int  shf_tier_images(const struct sheaf_run *run);
/* An image is new memory: to the agent. Its failure is the tier's alone. [local] */
void shf_tier_image(struct sheaf_run *run, int image);
/* Somebody will copy into that image (M1). [local] */
void shf_tier_reuse(struct sheaf_run *run, int image);
/* All of the save is in images on all ranks: from here on it is there (M2). Its failure leaves it
 * as if it had never been in memory. [collective] */
int  shf_tier_commit(struct sheaf_save *save, struct sheaf_error *err);
/* Around the publication of a save: what is in memory follows it, perhaps, and then surely. By
 * then rank 0 knows what came of a step that was in doubt before it. [collective], [local] */
int  shf_tier_publishing(struct sheaf_save *save, struct sheaf_error *err);
void shf_tier_published(struct sheaf_save *save);
/* The disk may have it, or not: what follows in memory is right either way. [local] */
void shf_tier_doubt(struct sheaf_save *save);
/* A save has ended without being committed: it is not in memory either. [local] */
void shf_tier_unsaved(struct sheaf_save *save);
/* One that commit said is in memory, and that nobody has failed, stays there. [local] */
void shf_tier_left(struct sheaf_save *save);
/* This handle goes on from that step of the disk. [local] */
void shf_tier_went_back(struct sheaf_run *run, int64_t step);
/* May a save of that step begin, as far as memory knows? [local], alike on all ranks */
bool shf_tier_is_later(const struct sheaf_run *run, int64_t step);
/* Steps after this one are no longer to be found in memory. [local] */
void shf_tier_rewind(struct sheaf_run *run, int64_t step);
#endif
