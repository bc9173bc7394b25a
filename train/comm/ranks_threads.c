/* SPDX-License-Identifier: Apache-2.0 */
/* In an exchange each rank publishes its pieces, waits for the others at a barrier (`meet`), copies
 * what is sent to it, and waits at a second barrier. After that its pieces may change. */
#include "ranks_threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct seat {
	struct tr_hub *hub;
	int rank;
	const struct tr_piece *out;     /* valid between the two meetings of an exchange */
	int fail_at;
	int exchanges;
};
struct tr_hub {
	pthread_mutex_t lock;
	pthread_cond_t met;
	int n;
	int waiting;                    /* guarded by lock, and the next two */
	unsigned meetings;
	int broken;                     /* rank + 1 of the first that failed */
	struct seat seat[];
};

struct tr_hub *tr_hub_new(int n)
{
	struct tr_hub *hub = calloc(1, sizeof(*hub) + (size_t)n * sizeof(hub->seat[0]));
	pthread_condattr_t how;

	if (!hub)
		return NULL;
	hub->n = n;
	pthread_mutex_init(&hub->lock, NULL);
	pthread_condattr_init(&how);
	pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
	pthread_cond_init(&hub->met, &how);
	pthread_condattr_destroy(&how);
	for (int r = 0; r < n; r++)
		hub->seat[r] = (struct seat){ .hub = hub, .rank = r };
	return hub;
}

void tr_hub_free(struct tr_hub *hub)
{
	if (!hub)
		return;
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
	unsigned meeting = hub->meetings;
	int rc = 0;

	if (hub->broken)
		return 0;
	if (++hub->waiting == hub->n) {
		hub->waiting = 0;
		hub->meetings++;
		pthread_cond_broadcast(&hub->met);
		return 1;
	}
	while (hub->meetings == meeting && !hub->broken && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&hub->met, &hub->lock, end);
	if (hub->meetings != meeting)
		return 1;
	if (!hub->broken)
		hub->broken = rank + 1;
	pthread_cond_broadcast(&hub->met);
	return 0;
}

/* Waits at the barrier until all ranks have come. Returns 0 if one has failed, or did not come in
 * time. */
static int meet(struct tr_hub *hub, int rank, const struct timespec *end)
{
	int met;

	pthread_mutex_lock(&hub->lock);
	met = meet_locked(hub, rank, end);
	pthread_mutex_unlock(&hub->lock);
	return met;
}

static int lost(struct tr_hub *hub, struct tr_error *err)
{
	int rank;

	pthread_mutex_lock(&hub->lock);
	rank = hub->broken - 1;
	pthread_mutex_unlock(&hub->lock);
	tr_fail(err, TR_ELOST, "an exchange failed on rank %d", rank);
	if (err)
		err->rank = rank;
	return TR_ELOST;
}

static int exchange_threads(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			    int timeout_ms, struct tr_error *err)
{
	struct seat *me = arg;
	struct tr_hub *hub = me->hub;
	struct timespec end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += timeout_ms / 1000;
	end.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	end.tv_sec += end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	if (++me->exchanges == me->fail_at) {
		pthread_mutex_lock(&hub->lock);
		hub->broken = hub->broken ? hub->broken : me->rank + 1;
		pthread_cond_broadcast(&hub->met);
		pthread_mutex_unlock(&hub->lock);
		return lost(hub, err);
	}
	me->out = out;
	if (!meet(hub, me->rank, &end))
		return lost(hub, err);
	for (int r = 0; r < hub->n; r++)
		if (in[r].bytes)
			memcpy(in[r].at, hub->seat[r].out[me->rank].at, in[r].bytes);
	return meet(hub, me->rank, &end) ? 0 : lost(hub, err);
}

void tr_ranks_hub(struct tr_ranks *g, struct tr_hub *hub, int rank, int timeout_ms)
{
	*g = (struct tr_ranks){ .rank = rank, .n = hub->n, .timeout_ms = timeout_ms,
				.exchange = exchange_threads, .arg = &hub->seat[rank] };
}
