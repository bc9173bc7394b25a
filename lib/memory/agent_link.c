/* SPDX-License-Identifier: Apache-2.0 */
/* This rank's connection to the agent of its node. The agent receives the images of saves and their
 * cards as shared memory, and keeps them when this process ends. If no agent answers, or the
 * connection is lost, the run goes on without one and asks again later, after twice as long each
 * time.
 *
 * Nothing here waits for other ranks. The agreement that a step is in memory on all ranks is in
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

struct shf_card_head *shf_memory_tier_card_head(const struct shf_memory_tier *t, int image)
{
	return t->cards[image].base ? shf_card_head(&t->cards[image]) : NULL;
}

/* The card is cleared first: a job that restarts uses only cards that are whole. */
void shf_memory_tier_card_clear(struct shf_memory_tier *t, int image)
{
	struct shf_card_head *h = shf_memory_tier_card_head(t, image);

	if (h)
		atomic_store_explicit(&h->whole, 0, memory_order_seq_cst);
	if (t->steps[image] >= 0)
		shf_replicas_clear(&t->guests, t->steps[image]);
	if (t->guests.copied == image)
		t->guests.copied = -1;
	t->steps[image] = -1;
	t->left[image] = 0;
	t->on_disk[image] = false;
}

/* Logged once, not for each save. The connection is closed with `bye`, because this process goes
 * on: otherwise the agent would regard it as crashed and begin to flush. */
void shf_agent_lost(struct sheaf_run *run, int sys, const char *doing)
{
	struct shf_memory_tier *t = run->tier;
	struct sheaf_error why;

	shf_fail_sys(&why, sys, "%s", doing);
	if (!t->said)
		shf_log(run, 1, "%s: checkpoints are not kept in memory until an agent answers: "
		        "%s, rank %d", run->store.path, why.msg, run->team.rank);
	t->said = true;
	shf_sys_keep_close(run->sys, t->keep, true);
	t->keep = -1;
	t->ask_ns = shf_now(run) + t->wait_ns;
}

void shf_agent_put(struct sheaf_run *run, int image, bool card)
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
		shf_agent_lost(run, -rc, "passing a staging buffer to the agent");
}

void shf_agent_socket_name(char where[SHF_KEEP_NAME], const char *agent, const char *identity)
{
	bool itself = !agent || strcmp(agent, "auto") == 0;

	snprintf(where, SHF_KEEP_NAME, "%s%s", itself ? "auto/" : "", itself ? identity : agent);
}

/* Connects to an agent, and checks that it is the agent of this run directory. Informs the agent of
 * the directory's current path. job: "" for a process that only reads. */
static int connect_to_agent(const struct shf_store *store, const char *agent, const char *job,
                            int *keep, int *steps, struct sheaf_error *err)
{
	const struct shf_sys *sys = store->sys;
	char where[SHF_KEEP_NAME], identity[SHF_IDENTITY];
	int rc = shf_store_identity(store, identity, err);

	if (rc < 0)
		return rc;
	shf_agent_socket_name(where, agent, identity);
	rc = shf_sys_keep_open(sys, where, identity, job, keep, steps);
	if (rc >= 0) {
		rc = shf_sys_keep_at(sys, *keep, store->dir);
		if (rc < 0) {
			shf_sys_keep_close(sys, *keep, true);
			*keep = -1;
		}
	}
	if (rc == -ENOENT || rc == -ECONNREFUSED)
		return shf_fail(err, SHEAF_ENOENT, "no agent answers (start one on this node: "
		                "sheaf agent RUN --detach)");
	if (rc == -EXDEV)
		return shf_fail(err, SHEAF_EINVAL, "the agent on this socket serves another run, "
		                "or a copy of this run; give each its own socket (sheaf agent RUN "
		                "--socket PATH, opts.memory_tier.agent)");
	return rc < 0 ? shf_fail_sys(err, -rc, "connecting to the agent") : 0;
}

int shf_agent_connect(const struct shf_store *store, const char *agent, int *keep, int *steps,
                      struct sheaf_error *err)
{
	return connect_to_agent(store, agent, "", keep, steps, err);
}

#define ASK_SELDOM_NS INT64_C(64000000000)      /* longest time between attempts: 64 s */

/* A failure doubles the time until the next attempt, up to ASK_SELDOM_NS: if the agent is stopped
 * by a signal (SIGSTOP), every attempt waits for its timeout. */
int shf_agent_reconnect(struct sheaf_run *run, struct sheaf_error *err)
{
	struct shf_memory_tier *t = run->tier;
	const char *job = run->opts.flags & SHEAF_RUN_READONLY ? "" : t->job;
	int rc = connect_to_agent(&run->store, run->opts.agent, job, &t->keep, &t->steps_told, err);

	if (rc < 0) {
		t->keep = -1;
		t->ask_ns = shf_now(run) + t->wait_ns;
		t->wait_ns = 2 * t->wait_ns < ASK_SELDOM_NS ? 2 * t->wait_ns : ASK_SELDOM_NS;
	} else {
		t->wait_ns = SHF_AGENT_RETRY_NS;
		if (t->steps_told == 1) /* the newest step stays while the next is copied */
			t->steps_told = 2;
	}
	return rc;
}

/* Returns the lesser of images and bound; bound 0 means that there is no bound. */
static int at_most(int images, int bound)
{
	return bound && bound < images ? bound : images;
}

int shf_agent_images_allowed(const struct sheaf_run *run, int images)
{
	return at_most(images, run->tier->steps_max);
}

int shf_agent_images(const struct sheaf_run *run)
{
	return shf_agent_images_allowed(run, run->opts.images_max ? run->opts.images_max
	                                                          : run->tier->wanted ? 2 : 1);
}

/* Hands the image to the agent if it is an image for saves. */
static void offer_image(struct sheaf_run *run, int image)
{
	if (run->tier->wanted && image < shf_agent_images(run))
		shf_agent_put(run, image, false);
}

/* Makes the agent drop memory that is about to be freed. Failures are ignored: if the agent is
 * lost, the next put finds out. */
static void image_goes(struct sheaf_run *run, int image)
{
	const struct shf_sys *sys = run->sys;
	char name[SHF_KEEP_NAME];

	if (!run->tier->wanted || run->tier->keep < 0)
		return;
	shf_card_name(name, run->tier->job, run->team.rank, image, false);
	(void)shf_sys_keep_drop(sys, run->tier->keep, name);
}

/* Each image is handed over before its card, so that the agent never has a card without its image.
 */
void shf_agent_put_all(struct sheaf_run *run)
{
	int rc;

	for (int i = 0; i < SHF_IMAGES_MAX; i++) {
		offer_image(run, i);
		shf_agent_put(run, i, true);
	}
	rc = shf_replicas_put_all(run);
	if (rc < 0)
		shf_agent_lost(run, -rc, "passing a replica to the agent");
}

/* A connection that has broken is noticed here. After a new connection all images and cards are
 * handed over. */
bool shf_agent_is_up(struct sheaf_run *run)
{
	struct shf_memory_tier *t = run->tier;

	if (!t->wanted)
		return false;
	if (t->keep >= 0 && shf_sys_keep_lives(run->sys, t->keep) < 0)
		shf_agent_lost(run, EPIPE, "the connection to the agent");
	if (t->keep < 0 && shf_now(run) >= t->ask_ns) {
		(void)shf_agent_reconnect(run, NULL);
		shf_agent_put_all(run);
	}
	return t->keep >= 0;
}

/* The ranks take the maximum of these numbers, so a rank with less room must return a larger
 * one. */
uint64_t shf_agent_limit(struct sheaf_run *run)
{
	if (!shf_agent_is_up(run))
		return 0;
	return (uint64_t)(1 + SHF_IMAGES_MAX - at_most(SHF_IMAGES_MAX, run->tier->steps_told));
}

/* most 0: no rank has an agent; 1: no agent is limited below SHF_IMAGES_MAX. */
void shf_agent_set_limit(struct sheaf_run *run, uint64_t most)
{
	struct shf_memory_tier *t = run->tier;

	if (t->bounded)
		return;
	t->bounded = true;
	t->steps_max = most > 1 ? (int)(1 + SHF_IMAGES_MAX - most) : 0;
	if (t->steps_max && run->opts.images_max > t->steps_max && run->team.rank == 0)
		shf_log(run, 1, "%s: an agent keeps %d checkpoints at most, so saves have that "
		        "many staging buffers, not %d (sheaf agent --steps)", run->store.path,
		        t->steps_max, run->opts.images_max);
}

/* If a replica of the image is being sent in the background, waits until it is sent. This happens
 * only if there are few images. */
static void stop_copy(struct sheaf_run *run, int image)
{
	if (run->tier->guests.image == image)
		shf_replicas_stop(run, true);
}

uint64_t shf_memory_tier_card_hide(struct sheaf_run *run, int image)
{
	struct shf_card_head *h = run->tier->wanted ? shf_memory_tier_card_head(run->tier, image)
	                                            : NULL;

	if (run->tier->wanted)
		stop_copy(run, image);
	return h ? atomic_exchange_explicit(&h->whole, 0, memory_order_seq_cst) : 0;
}

void shf_memory_tier_card_show(struct sheaf_run *run, int image, uint64_t whole)
{
	struct shf_card_head *h = run->tier->wanted ? shf_memory_tier_card_head(run->tier, image)
	                                            : NULL;

	if (h)
		atomic_store_explicit(&h->whole, whole, memory_order_seq_cst);
}

/* A replica that is being sent from the image is finished first. */
void shf_memory_tier_card_reuse(struct sheaf_run *run, int image)
{
	struct shf_memory_tier *t = run->tier;

	if (!t->wanted)
		return;
	stop_copy(run, image);
	if (t->newest == image) { /* there is only one image, as for a very large state */
		shf_log(run, 1, "%s: step %" PRId64 " is no longer in memory: a newer save needed "
		        "its staging buffer",
		        run->store.path, t->steps[image]);
		t->newest = -1;
	}
	shf_memory_tier_card_clear(t, image);
}

void shf_memory_tier_set_newest(struct shf_memory_tier *t, int image)
{
	if (t->newest < 0 || t->steps[image] >= t->steps[t->newest])
		t->newest = image;
}

void shf_memory_tier_newest_until(struct sheaf_run *run, int64_t step)
{
	struct shf_memory_tier *t = run->tier;

	t->newest = -1;
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (t->steps[i] >= 0 && t->steps[i] <= step)
			shf_memory_tier_set_newest(t, i);
}

int64_t shf_memory_tier_newest(const struct sheaf_run *run)
{
	const struct shf_memory_tier *t = run->tier;

	return t->newest < 0 ? -1 : t->steps[t->newest];
}

/* True also if an older step was loaded since the newest one in memory was saved (t->left). If this
 * handle has published that step, or may have, a save to disk may have its number or a smaller one:
 * the step may be marked bad by now, or missing after a publish in doubt. C0 finds out whether the
 * number is free on disk. */
bool shf_memory_tier_is_later(const struct sheaf_run *run, int64_t step, bool to_disk)
{
	const struct shf_memory_tier *t = run->tier;

	return t->newest < 0 || step > t->steps[t->newest] || t->left[t->newest] ||
	       (to_disk && t->on_disk[t->newest]);
}

void shf_memory_tier_image_moves(struct sheaf_run *run, int image, bool goes)
{
	if (goes)
		image_goes(run, image);
	else
		offer_image(run, image);
}
