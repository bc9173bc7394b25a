/* SPDX-License-Identifier: Apache-2.0 */
/* In an exchange each rank publishes its pieces, waits for the others at a barrier (`meet`), copies
 * what is sent to it, and waits at a second barrier. After that its pieces may change. A sub-group
 * has a hub of its own, with the lock and the condition of the hub of all ranks, so that a failure
 * in any group ends the waits in all of them. Messages are in a list of the hub until they are
 * received. */
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
	/* These two are used in the seat `all` only. Exchanges include the messages that the thread
	 * has sent and received. */
	int fail_at, exchanges;
	int64_t begun;                  /* exchanges in the background, of this seat's hub */
};
struct message {
	struct message *next;
	int from, to;
	int64_t channel;                /* negative: of an exchange in the background */
	size_t n;
	char bytes[];
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
	int waiting;                    /* guarded by lock, as the next three */
	unsigned meetings;
	struct message *messages, **last;       /* the oldest is the first */
	struct seat seat[];
};

static struct tr_hub *hub_of(int n)
{
	struct tr_hub *hub = calloc(1, sizeof(*hub) + (size_t)n * sizeof(hub->seat[0]));

	if (!hub)
		return NULL;
	hub->all = hub;
	hub->n = n;
	hub->last = &hub->messages;
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

static void free_messages(struct tr_hub *hub)
{
	while (hub->messages) {
		struct message *m = hub->messages;

		hub->messages = m->next;
		free(m);
	}
}

void tr_hub_free(struct tr_hub *hub)
{
	if (!hub)
		return;
	while (hub->subs) {
		struct tr_hub *sub = hub->subs;

		hub->subs = sub->next;
		free_messages(sub);
		free(sub);
	}
	free_messages(hub);
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

static struct timespec deadline(int timeout_ms)
{
	struct timespec end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += timeout_ms / 1000;
	end.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	end.tv_sec += end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	return end;
}

/* Returns whether this operation of the rank is the one that fails. */
static int fails(const struct seat *me)
{
	struct tr_hub *all = me->all->hub;

	if (++me->all->exchanges != me->all->fail_at)
		return 0;
	pthread_mutex_lock(&all->lock);
	all->broken = all->broken ? all->broken : me->all->rank + 1;
	pthread_cond_broadcast(&all->met);
	pthread_mutex_unlock(&all->lock);
	return 1;
}

static int exchange_threads(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			    int timeout_ms, struct tr_error *err)
{
	struct seat *me = arg;
	struct tr_hub *hub = me->hub;
	struct timespec end = deadline(timeout_ms);

	if (fails(me))
		return lost(me, err);
	me->out = out;
	if (!meet(me, &end))
		return lost(me, err);
	for (int r = 0; r < hub->n; r++)
		if (in[r].bytes)
			memcpy(in[r].at, hub->seat[r].out[me->rank].at, in[r].bytes);
	meet(me, NULL);
	return 0;
}

/* ---- messages ---- */

/* Sends a copy of the bytes. */
static int put_message(const struct seat *me, int to, int64_t channel, const void *at,
		       size_t bytes, struct tr_error *err)
{
	struct tr_hub *hub = me->hub, *all = me->all->hub;
	struct message *m = malloc(sizeof(*m) + bytes);

	if (!m)
		return tr_fail(err, TR_ENOMEM, "no memory for a message of %zu bytes", bytes);
	*m = (struct message){ .from = me->rank, .to = to, .channel = channel, .n = bytes };
	if (bytes)
		memcpy(m->bytes, at, bytes);
	pthread_mutex_lock(&all->lock);
	*hub->last = m;
	hub->last = &m->next;
	pthread_cond_broadcast(&all->met);
	pthread_mutex_unlock(&all->lock);
	return 0;
}

static int send_threads(void *arg, int to, int channel, const void *at, size_t bytes,
			struct tr_error *err)
{
	struct seat *me = arg;

	return fails(me) ? lost(me, err) : put_message(me, to, channel, at, bytes, err);
}

/* Takes a message out of the list. NULL: it has not been sent. */
static struct message *take_message(struct tr_hub *hub, int from, int to, int64_t channel)
{
	for (struct message **at = &hub->messages; *at; at = &(*at)->next) {
		struct message *m = *at;

		if (m->from != from || m->to != to || m->channel != channel)
			continue;
		*at = m->next;
		if (hub->last == &m->next)
			hub->last = at;
		return m;
	}
	return NULL;
}

static int count_messages(const struct tr_hub *hub, int from)
{
	int n = 0;

	for (const struct message *m = hub->messages; m; m = m->next)
		n += m->from == from;
	return n;
}

/* Waits until a thread has sent or received a message, or has come last to a barrier. Returns 0 if
 * a rank has failed, or at the deadline. */
static int wait_locked(const struct seat *me, const struct timespec *end)
{
	struct tr_hub *all = me->all->hub;

	if (!all->broken &&
	    pthread_cond_timedwait(&all->met, &all->lock, end) == ETIMEDOUT && !all->broken)
		all->broken = me->all->rank + 1;
	if (all->broken)
		pthread_cond_broadcast(&all->met);
	return !all->broken;
}

static int receive_threads(void *arg, int from, int channel, const struct tr_piece *in,
			   size_t *got, int timeout_ms, struct tr_error *err)
{
	struct seat *me = arg;
	struct tr_hub *all = me->all->hub;
	struct timespec end = deadline(timeout_ms);
	struct message *m = NULL;
	int good = !fails(me);

	pthread_mutex_lock(&all->lock);
	while (good && !(m = take_message(me->hub, from, me->rank, channel)))
		good = wait_locked(me, &end);
	pthread_cond_broadcast(&all->met);
	pthread_mutex_unlock(&all->lock);
	if (!m)
		return lost(me, err);
	*got = m->n < in->bytes ? m->n : in->bytes;
	if (*got)
		memcpy(in->at, m->bytes, *got);
	free(m);
	return 0;
}

static int sent_threads(void *arg, int most, int timeout_ms, struct tr_error *err)
{
	struct seat *me = arg;
	struct tr_hub *all = me->all->hub;
	struct timespec end = deadline(timeout_ms);
	int good = 1;

	pthread_mutex_lock(&all->lock);
	while (good && count_messages(me->hub, me->rank) > most)
		good = wait_locked(me, &end);
	pthread_mutex_unlock(&all->lock);
	return good ? 0 : lost(me, err);
}

/* ---- exchanges in the background ---- */

/* All ranks begin the same exchanges in the same order. The messages of the n-th one have a channel
 * of their own, -n. So those of an exchange that is aborted are not taken for those of a later
 * one. */
struct flow {
	int64_t channel;
	const struct tr_piece *in;      /* of the caller */
	struct message *message[];      /* of each rank, when it has come */
};

static int begin_threads(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			 void **flow, struct tr_error *err)
{
	struct seat *me = arg;
	int n = me->hub->n, rc = 0;
	struct flow *f;

	if (fails(me))
		return lost(me, err);
	f = calloc(1, sizeof(*f) + (size_t)n * sizeof(f->message[0]));
	if (!f) {
		struct tr_error why = { .rank = me->all->rank };

		tr_fail(&why, TR_ELOST, "no memory for the messages of %d ranks", n);
		abandon_threads(me, &why);
		return lost(me, err);
	}
	f->in = in;
	f->channel = -++me->begun;
	for (int r = 0; rc == 0 && r < n; r++)
		if (r != me->rank && out[r].bytes)
			rc = put_message(me, r, f->channel, out[r].at, out[r].bytes, err);
	if (rc < 0) {
		free(f);
		abandon_threads(me, err);
		return lost(me, err);
	}
	if (in[me->rank].bytes)
		memcpy(in[me->rank].at, out[me->rank].at, in[me->rank].bytes);
	*flow = f;
	return 0;
}

/* Takes the messages that have come. Returns whether those of all ranks have. */
static int take_exchange(const struct seat *me, struct flow *f)
{
	int all = 1;

	for (int r = 0; r < me->hub->n; r++) {
		if (r != me->rank && f->in[r].bytes && !f->message[r])
			f->message[r] = take_message(me->hub, r, me->rank, f->channel);
		all &= r == me->rank || !f->in[r].bytes || f->message[r];
	}
	return all;
}

/* Copies the bytes of all messages, and releases the flow. */
static void end_exchange(const struct seat *me, struct flow *f, int good)
{
	for (int r = 0; r < me->hub->n; r++) {
		if (good && f->message[r])
			memcpy(f->in[r].at, f->message[r]->bytes, f->in[r].bytes);
		free(f->message[r]);
	}
	free(f);
}

static int progress_threads(void *arg, void *flow, int timeout_ms, int *done,
			    struct tr_error *err)
{
	struct seat *me = arg;
	struct tr_hub *all = me->all->hub;
	struct timespec end = deadline(timeout_ms);
	int good = 1;

	pthread_mutex_lock(&all->lock);
	while (!(*done = take_exchange(me, flow)) && good && timeout_ms)
		good = wait_locked(me, &end);
	/* An exchange that is complete does not fail because a rank fails later. */
	good = *done || !all->broken;
	pthread_mutex_unlock(&all->lock);
	if (*done || !good)
		end_exchange(me, flow, *done);
	return good ? 0 : lost(me, err);
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
				.begin = begin_threads, .progress = progress_threads,
				.send = send_threads, .receive = receive_threads,
				.sent = sent_threads, .split = split_threads,
				.abandon = abandon_threads,
				.arg = &hub->seat[rank] };
}

void tr_ranks_hub(struct tr_ranks *g, struct tr_hub *hub, int rank, int timeout_ms)
{
	set_group(g, hub, rank);
	g->all_rank = rank;
	g->timeout_ms = timeout_ms;
}
