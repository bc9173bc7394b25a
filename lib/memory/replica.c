/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas that this rank keeps: for which ranks, their memory, and changes to their cards.
 *
 * Each rank sends its image to a rank of the next node. If nodes have different numbers of ranks, a
 * rank may keep the replicas of several ranks or of no rank. The lock guards the cards and numbers
 * of steps, because a thread in the background completes the cards of new replicas while the
 * caller's thread changes those of older ones. */
#include "replica.h"
#include <errno.h>
#include <inttypes.h>
#include "err.h"
#include "memory_growth.h"
#include "memory_tier.h"
#include "node_rank.h"
#include "nodes.h"
#include "run.h"
#include "run_env.h"

#define BEHIND_MS 60000         /* longest wait for another rank in the background */

struct shf_card_head *shf_replica_head(const struct shf_replica_owner *g, int slot)
{
	return g->cards[slot].base ? shf_card_head(&g->cards[slot]) : NULL;
}

/* ---- which rank keeps the replicas of which ---- */

/* Returns how many ranks of the node of `rank` are below `rank`. */
static int32_t place_in_node(const struct sheaf_run *run, int32_t rank)
{
	int32_t n = 0;

	for (int32_t r = 0; r < rank; r++)
		n += run->place.nodes[r] == run->place.nodes[rank];
	return n;
}

/* Sender and receiver compute the pairs from the same table of nodes, so nothing is exchanged. */
int shf_replicas_open(struct sheaf_run *run, struct sheaf_error *err)
{
	const struct shf_nodes *place = &run->place;
	struct shf_replicas *g = &run->tier->guests;
	int32_t here = place_in_node(run, run->team.rank), turn = 0;
	int32_t next = (place->node + 1) % place->nodes_n;
	int32_t before = (place->node + place->nodes_n - 1) % place->nodes_n;

	g->wanted = run->opts.copies == 2 && place->nodes_n > 1;
	if (run->opts.copies == 2 && place->nodes_n == 1 && run->team.rank == 0)
		shf_log(run, 1, "%s: opts.memory_tier.copies is 2, but all ranks are on one node: "
		        "checkpoints in memory have no second copy",
		        run->store.path);
	if (!g->wanted)
		return 0;
	if (run->opts.copies_group) {
		shf_group_get(run->opts.copies_group);
		g->behind = run->team;
		g->behind.group = run->opts.copies_group;
		if (g->behind.timeout_ms > BEHIND_MS) /* a rank that stops must not block the others
		                                       * for long */
			g->behind.timeout_ms = BEHIND_MS;
	}
	g->to = (int32_t)shf_node_rank(place->nodes, (uint32_t)run->team.ranks, next,
	                               (uint64_t)here);
	g->of = shf_zalloc((size_t)run->team.ranks, sizeof(*g->of));
	if (!g->of)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for what other nodes keep here");
	for (int32_t r = 0; r < run->team.ranks; r++) {
		if (place->nodes[r] != before || turn++ % place->node_ranks != here)
			continue;
		g->of[g->n++] = (struct shf_replica_owner){ .rank = r, .steps = { -1, -1 },
			.cards = { { .fd = -1 }, { .fd = -1 } },
			.images = { { .fd = -1 }, { .fd = -1 } } };
	}
	return 0;
}

/* ---- memory ---- */

/* Hands the memory of a replica, or of its card, to the agent of this node. Returns 0 or a negative
 * errno. */
static int offer_replica(const struct sheaf_run *run, const struct shf_replica_owner *g, int slot,
                         bool card)
{
	const struct shf_sys *sys = run->sys;
	const struct shf_shm *shm = card ? &g->cards[slot] : &g->images[slot];
	char name[SHF_KEEP_NAME];

	if (run->tier->keep < 0 || !shm->base)
		return 0;
	shf_card_name(name, run->tier->job, g->rank, SHF_CARD_REPLICA + slot, card);
	return shf_sys_keep_put(sys, run->tier->keep, name, shm);
}

/* If the agent has no room for the replicas that it had before, this rank receives no more
 * (failed). */
int shf_replicas_put_all(struct sheaf_run *run)
{
	struct shf_replicas *g = &run->tier->guests;
	int rc = 0;

	for (size_t i = 0; i < g->n && rc == 0; i++)
		for (int k = 0; k < SHF_REPLICA_SLOTS && rc == 0; k++) {
			rc = offer_replica(run, &g->of[i], k, false);
			if (rc == 0)
				rc = offer_replica(run, &g->of[i], k, true);
		}
	g->failed = g->failed || rc == -ENOSPC;
	return g->failed ? 0 : rc;
}

/* Memory that is too small is freed before the new one is allocated, also at the agent: there may
 * not be room for both. */
int shf_replica_reserve(const struct sheaf_run *run, struct shf_replica_owner *g, int slot,
                        bool card, uint64_t bytes, struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	struct shf_shm *shm = card ? &g->cards[slot] : &g->images[slot];
	char name[SHF_KEEP_NAME];
	int rc;

	if (shm->base && shm->bytes >= bytes)
		return 0;
	if (bytes > SIZE_MAX / 2)
		return shf_fail(err, SHEAF_ENOMEM, "a replica of %" PRIu64 " bytes is larger than "
		                "any memory", bytes);
	if (shm->base) {
		shf_card_name(name, run->tier->job, g->rank, SHF_CARD_REPLICA + slot, card);
		if (run->tier->keep >= 0)
			(void)shf_sys_keep_drop(sys, run->tier->keep, name);
		shf_sys_shm_free(sys, shm);
	}
	*shm = (struct shf_shm){ .fd = -1 };
	rc = shf_sys_shm_new(sys, shm, (size_t)shf_growth_bytes(bytes), true);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "allocating %" PRIu64 " MiB for the replica of rank "
		                    "%d",
		                    bytes >> 20, g->rank);
	if (card)
		shf_card_head(shm)->magic = SHF_CARD_MAGIC;
	rc = offer_replica(run, g, slot, card);
	return rc < 0 ? shf_fail_sys(err, -rc, "passing the replica of rank %d to the agent",
	                             g->rank) : 0;
}

/* ---- changes to the cards of replicas ---- */

/* The position of a walk over all replicas. */
struct each {
	size_t guest;
	int slot;
};

/* Returns the card of the next replica of the step, or NULL at the end. Step -1 has no replicas. */
static struct shf_card_head *next_of(const struct shf_replicas *g, struct each *e, int64_t step)
{
	for (; step >= 0 && e->guest < g->n; e->guest++, e->slot = 0)
		while (e->slot < SHF_REPLICA_SLOTS) {
			const struct shf_replica_owner *of = &g->of[e->guest];

			if (of->steps[e->slot++] == step)
				return shf_replica_head(of, e->slot - 1);
		}
	return NULL;
}

void shf_replicas_clear(struct shf_replicas *g, int64_t step)
{
	struct each e = { 0 };
	struct shf_card_head *h;

	pthread_mutex_lock(&g->lock);
	while ((h = next_of(g, &e, step))) {
		atomic_store(&h->whole, 0);
		g->of[e.guest].steps[e.slot - 1] = -1;
	}
	if (g->coming == step)
		g->coming = -1;
	pthread_mutex_unlock(&g->lock);
}

void shf_replicas_written(struct shf_replicas *g, int64_t step)
{
	struct each e = { 0 };
	struct shf_card_head *h;

	pthread_mutex_lock(&g->lock);
	while ((h = next_of(g, &e, step)))
		atomic_store(&h->due, 0);
	pthread_mutex_unlock(&g->lock);
}

void shf_replicas_follow(struct shf_replicas *g, int64_t step, uint64_t on, bool published)
{
	struct each e = { 0 };
	struct shf_card_head *h;

	pthread_mutex_lock(&g->lock);
	while ((h = next_of(g, &e, step)))
		atomic_store(published ? &h->base : &h->next, on);
	pthread_mutex_unlock(&g->lock);
}
