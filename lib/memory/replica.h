/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas: steps in memory twice (opts.memory_tier.copies 2). Each rank sends its image and the
 * card of it to a rank of the next node, whose agent keeps them under the name of the rank that
 * sent them. So a step survives the loss of any one node. "Copies" means replicas in this room; a
 * guest is a rank whose replicas this rank keeps.
 *
 * G1. A replica is made after its step is in memory (image_card.h, M2). Unless replicas have a
 *     group of their own (opts.memory_tier.copies_group), it is complete before the commit returns.
 *     So a step whose commit succeeded is in memory twice, or the log says that no more replicas
 *     are made.
 * G2. There are two slots for the replicas of each guest, and a new replica overwrites
 *     the older one: the newest step that is in memory twice stays so until a newer one is (like
 *     M3). In the background this needs two images that no save may overwrite: that of the step
 *     being sent, and that of the newest step that was sent. If there are fewer than four images, a
 *     save that would have to wait overwrites the latter.
 * G3. The card of a replica is cleared when the card of the original is, for example by a
 *     rewind. */
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
struct shf_replica_transfer;
enum { SHF_REPLICA_SLOTS = 2 };
struct shf_replica_owner {              /* a rank of the node before, whose replicas this rank
                                         * keeps */
	int32_t rank;
	/* base NULL: no memory in that slot yet */
	struct shf_shm cards[SHF_REPLICA_SLOTS], images[SHF_REPLICA_SLOTS];
	int64_t steps[SHF_REPLICA_SLOTS];         /* the step in each slot; -1: none */
};
/* The replicas that this rank keeps for ranks of the node before, and the one that it is sending to
 * the next node. */
struct shf_replicas {
	bool wanted;                    /* replicas are made; the same on all ranks */
	bool failed;                    /* after a reconnect the agent had no room for the replicas
	                                 * that this rank keeps; no more are received */
	int32_t to;                     /* rank that keeps the replicas of this rank */
	struct shf_replica_owner *of;   /* owned; the guests, n of them in ascending order */
	size_t n;
	pthread_mutex_t lock;           /* guards coming, and cards and steps of guests */
	int64_t coming;                 /* step whose replicas are being received; -1: no step, or
	                                 * its cards were cleared meanwhile */
	/* The replica that is sent in the background. Image numbers are equal on all ranks. */
	struct shf_team behind;         /* holds a reference to its group,
	                                 * opts.memory_tier.copies_group. Group
	                                 * NULL: replicas are sent inside commits */
	struct shf_replica_transfer *moving;     /* owned; the replica being sent, or sent last */
	struct shf_background task;     /* the thread that sends it */
	int image, copied;              /* image: the image of `moving`; copied: the image of the
	                                 * newest step that was sent; -1: none */
};
/* Finds out which rank keeps the replicas of which other rank. On a single node no replicas are
 * made. [local] */
int  shf_replicas_open(struct sheaf_run *run, struct sheaf_error *err);
/* Hands all replicas that this rank keeps to the agent again, after a new connection. Returns 0, or
 * a negative errno if the agent is lost. [local] */
int  shf_replicas_put_all(struct sheaf_run *run);
/* These change the cards of the replicas of a step that this rank keeps, when its own card of the
 * step is changed (G3). forget clears them. written notes that the step is on disk. follow notes,
 * with `published`, that the step follows the state `on` of the disk (shf_card_disk_state); else
 * that it may follow that state, because a publish has begun. [local] */
void shf_replicas_clear(struct shf_replicas *g, int64_t step);
void shf_replicas_written(struct shf_replicas *g, int64_t step);
void shf_replicas_follow(struct shf_replicas *g, int64_t step, uint64_t on, bool published);
/* Returns a bit for each image that no save may overwrite: the image that is being sent and, with
 * `older`, the image of the newest step that was sent (G2). */
static inline unsigned shf_replicas_pins(const struct shf_replicas *g, bool older)
{
	return (g->image >= 0 ? 1u << g->image : 0) |
	       (older && g->copied >= 0 ? 1u << g->copied : 0);
}
/* Returns whether a step of this job is in memory twice. Also true if no replicas are made, or if
 * they are made inside commits. As long as it is false, the steps of earlier jobs are still of
 * use. */
static inline bool shf_replicas_have_some(const struct shf_replicas *g)
{
	return !g->wanted || !g->behind.group || g->copied >= 0;
}

/* Returns the head of the card in that slot, or NULL if the slot has no card. */
struct shf_card_head *shf_replica_head(const struct shf_replica_owner *g, int slot);
/* Makes the card or image in that slot at least `bytes` bytes large, and hands new memory to the
 * agent. ENOMEM, or the code of the agent's failure. [local] */
int  shf_replica_reserve(const struct sheaf_run *run, struct shf_replica_owner *g, int slot,
                         bool card, uint64_t bytes, struct sheaf_error *err);
#endif
