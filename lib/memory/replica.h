/* SPDX-License-Identifier: Apache-2.0 */
/* Steps in memory twice (opts.copies 2): each rank sends its image and the card of it to a rank of
 * the next node, where the agent keeps them under the name of the rank that they are of. So a step
 * outlives any one node.
 *
 * G1. A copy is made after the step is there (image_card.h, M2), and, where no group is given for
 *     that, before its commit returns: what a rank knows to be committed is there twice, or the run
 *     has said that it makes no copies any more.
 * G2. There is room for two copies of each image, and the older one makes place: the newest step
 *     that is there twice stays so until a newer one is (as M3). Behind the training that needs the
 *     images of both: of the step that goes, and of the newest that has gone; with fewer than four
 *     a save that would have to wait takes the latter.
 * G3. A copy goes with the card that it is of: what is given up, or rewound, has none.
 */
#ifndef SHF_REPLICA_H
#define SHF_REPLICA_H
#include <pthread.h>
#include <stddef.h>
#include "background.h"
#include "group.h"
#include "image_card.h"
#include "sheaf.h"
#include "sys.h"

struct sheaf_run;
struct sheaf_save;
struct shf_sending;
enum { SHF_GUEST_SLOTS = 2 };
struct shf_guest {              /* a rank of the node before, whose copies are here */
	int32_t rank;
	struct shf_shm cards[SHF_GUEST_SLOTS], images[SHF_GUEST_SLOTS]; /* base NULL: none yet */
	int64_t steps[SHF_GUEST_SLOTS];         /* -1: nothing */
};
/* The replicas that this rank keeps for ranks of the node before, and the one that it is sending to
 * the next node. */
struct shf_guests {
	bool wanted;                    /* the same on all ranks: there are copies to be made */
	bool failed;                    /* the agent has not taken what it was offered again */
	int32_t to;                     /* who keeps this rank's */
	struct shf_guest *of;           /* owned; ascending */
	size_t n;
	pthread_mutex_t lock;           /* guards coming, and cards and steps of guests */
	int64_t coming;                 /* the step that is being copied; -1: none, or no more */
	/* What goes behind the training; numbers are alike on all ranks. */
	struct shf_team behind;         /* its group counted; NULL: inside commits */
	struct shf_sending *moving;     /* owned; what the thread is at, or has done */
	struct shf_background task;
	int image, copied;              /* that it is of; of the newest that has gone; -1 */
};
/* Who keeps whose. Of one node nobody does. [local] */
int  shf_guests_open(struct sheaf_run *run, struct sheaf_error *err);
/* All of them once more to the agent, which has been found again. Negative errno: it is lost. */
int  shf_guests_offer(struct sheaf_run *run);
/* What is done to the card of a step of this rank is done to the copies of that step that are here:
 * they are nothing; the step is on disk; it follows what is, or may be, there. */
void shf_guests_forget(struct shf_guests *g, int64_t step);
void shf_guests_written(struct shf_guests *g, int64_t step);
void shf_guests_follow(struct shf_guests *g, int64_t step, uint64_t on, bool published);
/* Images that nobody may copy into: bits. older: the one of the newest copy as well. */
static inline unsigned shf_guests_pins(const struct shf_guests *g, bool older)
{
	return (g->image >= 0 ? 1u << g->image : 0) |
	       (older && g->copied >= 0 ? 1u << g->copied : 0);
}
/* Is a step of this job there twice, or will none be? Until then what was before it is of use. */
static inline bool shf_guests_have_some(const struct shf_guests *g)
{
	return !g->wanted || !g->behind.group || g->copied >= 0;
}

/* The head of the card in that slot, or NULL. */
struct shf_card_head *shf_guest_head(const struct shf_guest *g, int slot);
/* Gives the card or image in that slot at least so many bytes, and hands the memory to the agent.
 * ENOMEM, and what the agent says. [local] */
int  shf_guest_need(const struct sheaf_run *run, struct shf_guest *g, int slot, bool card,
                    uint64_t bytes, struct sheaf_error *err);
#endif
