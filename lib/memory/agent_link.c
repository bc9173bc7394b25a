/* SPDX-License-Identifier: Apache-2.0 */
/* This rank's connection to the agent of its node. The agent receives the images of saves and their
 * cards as shared memory, and keeps them when this process ends. If no agent answers, or the
 * connection is lost, the run goes on without one and asks again later, after twice as long each
 * time.
 *
 * Nothing here waits for other ranks. Whether a step is in memory on all of them is agreed on in
 * save_memory.c. */
#include "agent_link.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "image_card.h"
#include "memory_tier.h"
#include "opts.h"
#include "replica_send.h"
#include "run_env.h"

struct shf_card_head *shf_tier_head(const struct shf_tier *t, int image)
{
	return t->cards[image].base ? shf_card_head(&t->cards[image]) : NULL;
}

/* The card is cleared before anything else: a job that restarts believes whole cards only. */
void shf_tier_make_nothing(struct shf_tier *t, int image)
{
	struct shf_card_head *h = shf_tier_head(t, image);

	if (h)
		atomic_store_explicit(&h->whole, 0, memory_order_seq_cst);
	if (t->steps[image] >= 0)
		shf_guests_forget(&t->guests, t->steps[image]);
	if (t->guests.copied == image)
		t->guests.copied = -1;
	t->steps[image] = -1;
	t->left[image] = 0;
	t->on_disk[image] = false;
}

/* Logged once, not for each save. The connection is closed politely, because this process lives on:
 * the agent must not take it for dead and begin to flush. */
void shf_tier_lost(struct sheaf_run *run, int sys, const char *doing)
{
	struct shf_tier *t = run->tier;
	struct sheaf_error why;

	shf_fail_sys(&why, sys, "%s", doing);
	if (!t->said)
		shf_log(run, 1, "%s: steps are not kept in memory until an agent answers: %s, "
		        "rank %d", run->store.path, why.msg, run->team.rank);
	t->said = true;
	shf_sys_keep_close(run->sys, t->keep, true); /* we live */
	t->keep = -1;
	t->ask_ns = shf_now(run) + t->wait_ns;
}

void shf_tier_put(struct sheaf_run *run, int image, bool card)
{
	const struct shf_sys *sys = run->sys;
	const struct shf_shm *shm = card ? &run->tier->cards[image] : &run->image.all[image].own;
	char name[SHF_KEEP_NAME];
	int rc;

	if (run->tier->keep < 0 || !shm->base)
		return;
	shf_card_name(name, run->tier->job, run->team.rank, image, card);
	rc = shf_sys_keep_put(sys, run->tier->keep, name, shm);
	if (rc < 0)
		shf_tier_lost(run, -rc, "handing memory to the agent");
}

void shf_tier_where(char where[SHF_KEEP_NAME], const char *agent, const char *identity)
{
	bool itself = !agent || strcmp(agent, "auto") == 0;

	snprintf(where, SHF_KEEP_NAME, "%s%s", itself ? "auto/" : "", itself ? identity : agent);
}

/* Connects to an agent, and checks that it is the agent of this run directory and not of a copy
 * with the same identity. job "": to look only. */
static int knock(const struct shf_store *store, const char *agent, const char *job, int *keep,
                 int *steps, struct sheaf_error *err)
{
	const struct shf_sys *sys = store->sys;
	char where[SHF_KEEP_NAME], identity[SHF_IDENTITY];
	int rc = shf_store_identity(store, identity, err);

	if (rc < 0)
		return rc;
	shf_tier_where(where, agent, identity);
	rc = shf_sys_keep_open(sys, where, identity, job, keep, steps);
	if (rc >= 0) {
		rc = shf_sys_keep_at(sys, *keep, store->dir);
		if (rc < 0) {
			shf_sys_keep_close(sys, *keep, true);
			*keep = -1;
		}
	}
	if (rc == -ENOENT || rc == -ECONNREFUSED)
		return shf_fail(err, SHEAF_ENOENT, "no agent answers (sheaf agent RUN is one)");
	if (rc == -EXDEV)
		return shf_fail(err, SHEAF_EINVAL, "the agent there is another run's, or that of a "
		                "copy of this run: give each a socket of its own");
	return rc < 0 ? shf_fail_sys(err, -rc, "the agent") : 0;
}

int shf_tier_reach(const struct shf_store *store, const char *agent, int *keep, int *steps,
                   struct sheaf_error *err)
{
	return knock(store, agent, "", keep, steps, err);
}

#define ASK_SELDOM_NS INT64_C(64000000000)      /* one that is stopped costs its deadline */

/* A failure doubles the time until the next attempt, up to 64 s: an agent that was stopped by a
 * signal makes every attempt wait. */
int shf_tier_reach_again(struct sheaf_run *run, struct sheaf_error *err)
{
	struct shf_tier *t = run->tier;
	const char *job = run->opts.flags & SHEAF_READONLY ? "" : t->job;
	int rc = knock(&run->store, run->opts.agent, job, &t->keep, &t->steps_told, err);

	if (rc < 0) {
		t->keep = -1;
		t->ask_ns = shf_now(run) + t->wait_ns;
		t->wait_ns = 2 * t->wait_ns < ASK_SELDOM_NS ? 2 * t->wait_ns : ASK_SELDOM_NS;
	} else {
		t->wait_ns = SHF_TIER_ASK_NS;
		if (t->steps_told == 1) /* one is kept while the next is being copied */
			t->steps_told = 2;
	}
	return rc;
}

/* bound 0: there is none. */
static int at_most(int images, int bound)
{
	return bound && bound < images ? bound : images;
}

int shf_tier_allows(const struct sheaf_run *run, int images)
{
	return at_most(images, run->tier->steps_max);
}

int shf_tier_images(const struct sheaf_run *run)
{
	return shf_tier_allows(run, run->opts.images_max ? run->opts.images_max
	                                                 : run->tier->wanted ? 2 : 1);
}

/* Hands the image to the agent if it is one of those for saves. */
static void offer_image(struct sheaf_run *run, int image)
{
	if (run->tier->wanted && image < shf_tier_images(run))
		shf_tier_put(run, image, false);
}

/* Has the agent drop memory that is about to be freed. If it has nothing of that name, good; if the
 * agent is gone, the next put finds out. */
static void image_goes(struct sheaf_run *run, int image)
{
	const struct shf_sys *sys = run->sys;
	char name[SHF_KEEP_NAME];

	if (!run->tier->wanted || run->tier->keep < 0)
		return;
	shf_card_name(name, run->tier->job, run->team.rank, image, false);
	/* If it has nothing of that name, good; if it is gone, the next put finds out. */
	(void)shf_sys_keep_drop(sys, run->tier->keep, name);
}

/* The images go before the cards: a card that the agent has must not name an image that it has not.
 */
void shf_tier_offer(struct sheaf_run *run)
{
	int rc;

	for (int i = 0; i < SHF_IMAGES_MAX; i++) {
		offer_image(run, i);
		shf_tier_put(run, i, true);
	}
	rc = shf_guests_offer(run);
	if (rc < 0)
		shf_tier_lost(run, -rc, "handing copies to the agent");
}

/* Asks at most once per call whether the connection lives, and connects again when it is time to.
 */
bool shf_tier_is_up(struct sheaf_run *run)
{
	struct shf_tier *t = run->tier;

	if (!t->wanted)
		return false;
	if (t->keep >= 0 && shf_sys_keep_lives(run->sys, t->keep) < 0)
		shf_tier_lost(run, EPIPE, "the agent");
	if (t->keep < 0 && shf_now(run) >= t->ask_ns) {
		(void)shf_tier_reach_again(run, NULL);
		shf_tier_offer(run);
	}
	return t->keep >= 0;
}

/* Ranks agree on a maximum, so less room must be a larger number. */
uint64_t shf_tier_room(struct sheaf_run *run)
{
	if (!shf_tier_is_up(run))
		return 0;
	return (uint64_t)(1 + SHF_IMAGES_MAX - at_most(SHF_IMAGES_MAX, run->tier->steps_told));
}

void shf_tier_bound(struct sheaf_run *run, uint64_t most)
{
	struct shf_tier *t = run->tier;

	if (t->bounded)
		return;
	t->bounded = true;
	t->steps_max = most > 1 ? (int)(1 + SHF_IMAGES_MAX - most) : 0;
	if (t->steps_max && run->opts.images_max > t->steps_max && run->team.rank == 0)
		shf_log(run, 1, "%s: an agent keeps %d steps at most: saves have as many images, "
		        "not %d", run->store.path, t->steps_max, run->opts.images_max);
}

/* Stops a copy of the image that is on its way to the next node, as happens if images are few. */
static void stop_copy(struct sheaf_run *run, int image)
{
	if (run->tier->guests.image == image)
		shf_guests_stop(run, true);
}

uint64_t shf_tier_hide(struct sheaf_run *run, int image)
{
	struct shf_card_head *h = run->tier->wanted ? shf_tier_head(run->tier, image) : NULL;

	if (run->tier->wanted)
		stop_copy(run, image);
	return h ? atomic_exchange_explicit(&h->whole, 0, memory_order_seq_cst) : 0;
}

void shf_tier_show(struct sheaf_run *run, int image, uint64_t whole)
{
	struct shf_card_head *h = run->tier->wanted ? shf_tier_head(run->tier, image) : NULL;

	if (h)
		atomic_store_explicit(&h->whole, whole, memory_order_seq_cst);
}

/* Called before somebody copies into the image (M1). A step whose replica is being sent from it is
 * finished first. */
void shf_tier_reuse(struct sheaf_run *run, int image)
{
	struct shf_tier *t = run->tier;

	if (!t->wanted)
		return;
	stop_copy(run, image);
	if (t->newest == image) { /* a state so large that it has one image */
		shf_log(run, 1, "%s: step %" PRId64 " is in memory no more: its image is needed",
		        run->store.path, t->steps[image]);
		t->newest = -1;
	}
	shf_tier_make_nothing(t, image);
}

void shf_tier_is_newest(struct shf_tier *t, int image)
{
	if (t->newest < 0 || t->steps[image] >= t->steps[t->newest])
		t->newest = image;
}

void shf_tier_newest_until(struct sheaf_run *run, int64_t step)
{
	struct shf_tier *t = run->tier;

	t->newest = -1;
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (t->steps[i] >= 0 && t->steps[i] <= step)
			shf_tier_is_newest(t, i);
}

int64_t shf_tier_newest(const struct sheaf_run *run)
{
	const struct shf_tier *t = run->tier;

	return t->newest < 0 ? -1 : t->steps[t->newest];
}

/* A step in memory that was left behind by a load of an older one (left) is no bound any more. */
bool shf_tier_is_later(const struct sheaf_run *run, int64_t step, bool to_disk)
{
	const struct shf_tier *t = run->tier;

	return t->newest < 0 || step > t->steps[t->newest] || t->left[t->newest] ||
	       (to_disk && t->on_disk[t->newest]);
}

void shf_tier_image_moves(struct sheaf_run *run, int image, bool goes)
{
	if (goes)
		image_goes(run, image);
	else
		offer_image(run, image);
}
