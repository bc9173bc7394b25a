/* SPDX-License-Identifier: Apache-2.0 */
/* In an exchange each rank publishes its pieces, waits for the others at a barrier (`meet`), copies
 * what is sent to it, and waits at a second barrier. After that its pieces may change. A sub-group
 * has a hub of its own, with the lock and the condition of the hub of all ranks, so that a failure
 * in any group ends the waits in all of them. */
#include "ranks_threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPLIT_MS = 60000 };              /* deadline for making a sub-group */

struct seat {
	struct tr_hub *hub;
	int rank;
	struct seat *all;               /* of the same thread in the hub of all ranks */
	const struct tr_piece *out;     /* valid between the two meetings of an exchange */
	int fail_at;                    /* this and the next are used in that seat only */
	int exchanges;
};
struct tr_hub {
	struct tr_hub *all;             /* the hub of all ranks, which may be this one */
	struct tr_hub *next;            /* in the list `subs` */
	/* These five are used in the hub of all ranks only. */
	struct tr_hub *subs;            /* hubs of sub-groups; guarded by lock */
	pthread_mutex_t lock;
	pthread_cond_t met;
	int broken;                     /* rank + 1 of the first that failed; guarded by lock */
	struct tr_error why;            /* of tr_ranks_abandon; guarded by lock */
	int n;
	int waiting;                    /* guarded by lock, as the next one */
	unsigned meetings;
	struct seat seat[];
};

static struct tr_hub *hub_of(int n)
{
	struct tr_hub *hub = calloc(1, sizeof(*hub) + (size_t)n * sizeof(hub->seat[0]));

	if (!hub)
		return NULL;
	hub->all = hub;
	hub->n = n;
	for (int r = 0; r < n; r++)
		hub->seat[r] = (struct seat){ .hub = hub, .rank = r, .all = &hub->seat[r] };
	return hub;
}

struct tr_hub *tr_hub_new(int n)
{
	struct tr_hub *hub = hub_of(n);
	pthread_condattr_t how;

	if (!hub)
		return NULL;
	pthread_mutex_init(&hub->lock, NULL);
	pthread_condattr_init(&how);
	pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
	pthread_cond_init(&hub->met, &how);
	pthread_condattr_destroy(&how);
	return hub;
}

void tr_hub_free(struct tr_hub *hub)
{
	if (!hub)
		return;
	while (hub->subs) {
		struct tr_hub *sub = hub->subs;

		hub->subs = sub->next;
		free(sub);
	}
	pthread_cond_destroy(&hub->met);
	pthread_mutex_destroy(&hub->lock);
	free(hub);
}

void tr_hub_fail_at(struct tr_hub *hub, int rank, int nth)
{
	hub->seat[rank].fail_at = nth;
}

static int meet_locked(struct tr_hub *hub, int rank, const struct timespec *end)
{
	struct tr_hub *all = hub->all;
	unsigned meeting = hub->meetings;
	int rc = 0;

	if (end && all->broken)
		return 0;
	if (++hub->waiting == hub->n) {
		hub->waiting = 0;
		hub->meetings++;
		pthread_cond_broadcast(&all->met);
		return 1;
	}
	while (!end && hub->meetings == meeting)
		pthread_cond_wait(&all->met, &all->lock);
	while (hub->meetings == meeting && !all->broken && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&all->met, &all->lock, end);
	if (hub->meetings != meeting)
		return 1;
	if (!all->broken)
		all->broken = rank + 1;
	pthread_cond_broadcast(&all->met);
	return 0;
}

/* Waits at the barrier until all ranks of the group have come. Returns 0 if a rank has failed, or
 * did not come in time.
 * end  NULL: all ranks are sure to come. The wait then goes on also if a rank of another group has
 *      failed, because ranks of this one may still read what this rank has published. */
static int meet(const struct seat *me, const struct timespec *end)
{
	pthread_mutex_t *lock = &me->all->hub->lock;
	int met;

	pthread_mutex_lock(lock);
	met = meet_locked(me->hub, me->all->rank, end);
	pthread_mutex_unlock(lock);
	return met;
}

static int lost(const struct seat *me, struct tr_error *err)
{
	struct tr_hub *all = me->all->hub;
	struct tr_error why;
	int rank;

	pthread_mutex_lock(&all->lock);
	rank = all->broken - 1;
	why = all->why;
	pthread_mutex_unlock(&all->lock);
	if (why.code)
		tr_fail(err, TR_ELOST, "%s", why.msg);
	else
		tr_fail(err, TR_ELOST, "an exchange failed on rank %d", rank);
	if (err)
		err->rank = rank;
	return TR_ELOST;
}

static void abandon_threads(void *arg, const struct tr_error *why)
{
	const struct seat *me = arg;
	struct tr_hub *all = me->all->hub;

	pthread_mutex_lock(&all->lock);
	if (!all->broken) {
		all->broken = me->all->rank + 1;
		all->why = *why;
	}
	pthread_cond_broadcast(&all->met);
	pthread_mutex_unlock(&all->lock);
}

static int exchange_threads(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			    int timeout_ms, struct tr_error *err)
{
	struct seat *me = arg;
	struct tr_hub *hub = me->hub, *all = me->all->hub;
	struct timespec end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += timeout_ms / 1000;
	end.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	end.tv_sec += end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	if (++me->all->exchanges == me->all->fail_at) {
		pthread_mutex_lock(&all->lock);
		all->broken = all->broken ? all->broken : me->all->rank + 1;
		pthread_cond_broadcast(&all->met);
		pthread_mutex_unlock(&all->lock);
		return lost(me, err);
	}
	me->out = out;
	if (!meet(me, &end))
		return lost(me, err);
	for (int r = 0; r < hub->n; r++)
		if (in[r].bytes)
			memcpy(in[r].at, hub->seat[r].out[me->rank].at, in[r].bytes);
	meet(me, NULL);
	return 0;
}

static void set_group(struct tr_ranks *g, struct tr_hub *hub, int rank);

/* Makes the hub of a sub-group of ranks first, first + stride, ... NULL: no memory. */
static struct tr_hub *sub_hub(struct tr_hub *hub, int first, int stride, int n)
{
	struct tr_hub *sub = hub_of(n), *all = hub->all;

	if (!sub)
		return NULL;
	sub->all = all;
	for (int r = 0; r < n; r++)
		sub->seat[r].all = hub->seat[first + r * stride].all;
	pthread_mutex_lock(&all->lock);
	sub->next = all->subs;
	all->subs = sub;
	pthread_mutex_unlock(&all->lock);
	return sub;
}

/* The first rank of a sub-group makes its hub, and sends its address to the others. */
static int split_threads(void *arg, struct tr_ranks *sub, int first, int stride, int n,
			 struct tr_error *err)
{
	struct seat *me = arg;
	struct tr_hub *made = me->rank == first ? sub_hub(me->hub, first, stride, n) : NULL;
	uintptr_t mine = (uintptr_t)made, *hubs = calloc((size_t)me->hub->n, sizeof(*hubs));
	struct tr_ranks g;
	int rc;

	set_group(&g, me->hub, me->rank);
	g.timeout_ms = SPLIT_MS;
	g.all_rank = me->all->rank;
	if (!hubs) {
		tr_fail(err, TR_ENOMEM, "no memory for a sub-group of %d ranks", n);
		return tr_ranks_abandon(&g, err);
	}
	rc = tr_allgather(&g, &mine, hubs, sizeof(mine), err);
	if (rc == 0 && !hubs[first])
		rc = tr_fail(err, TR_ENOMEM, "no memory for a sub-group of %d ranks", n);
	if (rc == 0)
		/* The address is that of a living object of this process. */
		set_group(sub, (struct tr_hub *)hubs[first], (me->rank - first) / stride);
	free(hubs);
	return rc;
}

static void set_group(struct tr_ranks *g, struct tr_hub *hub, int rank)
{
	*g = (struct tr_ranks){ .rank = rank, .n = hub->n, .exchange = exchange_threads,
				.split = split_threads, .abandon = abandon_threads,
				.arg = &hub->seat[rank] };
}

void tr_ranks_hub(struct tr_ranks *g, struct tr_hub *hub, int rank, int timeout_ms)
{
	set_group(g, hub, rank);
	g->all_rank = rank;
	g->timeout_ms = timeout_ms;
}
