/* SPDX-License-Identifier: Apache-2.0 */
/* A message that takes part in an exchange is preceded by another one, with the time at which it
 * arrives. A message of tr_send has that time at its beginning. The bytes themselves are sent at
 * once, and the receiver waits until that time has come. */
#include "delaylink.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"

#define NEVER_NS 1000000000000000000    /* more than any rank waits, and far below INT64_MAX */

struct wire {
	double ns_per_byte, latency_ns; /* at most NEVER_NS */
	int64_t free_at;                /* when the last message is sent, by tr_clock_ns */
};
struct link {
	struct tr_ranks under;
	int n, rank;
	int is_sub;                     /* the group that this is part of owns the wire */
	struct wire *wire;
};
struct flow {
	void *times, *data;             /* exchanges of `under`; NULL: complete */
	struct tr_piece *out, *in;      /* [n] of the times; owned, as the next two */
	int64_t *out_time, *in_time;
	const struct tr_piece *data_in;
};

static void sleep_until(int64_t ns)
{
	const struct timespec ts = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

/* Waits until a message that has come from another rank would have arrived over the link. ELOST: it
 * would not within timeout_ms. */
static int await_arrival(const struct link *l, int64_t arrives, int timeout_ms,
			 struct tr_error *err)
{
	int64_t end = tr_clock_ns() + (int64_t)timeout_ms * 1000000;

	sleep_until(arrives < end ? arrives : end);
	if (arrives <= end)
		return 0;
	tr_fail(err, TR_ELOST, "a message does not arrive within %d ms over the link of link-gbps "
		"and link-us; use a faster link, or a larger timeout-ms", timeout_ms);
	return tr_ranks_abandon(&l->under, err);
}

/* Puts a message on the wire. Returns when it arrives. */
static int64_t arrival(struct wire *w, size_t bytes)
{
	int64_t now = tr_clock_ns(), wait = w->free_at > now ? w->free_at - now : 0;
	double takes = (double)bytes * w->ns_per_byte;

	w->free_at = now + (takes < (double)(NEVER_NS - wait) ? wait + (int64_t)takes : NEVER_NS);
	return w->free_at + (int64_t)w->latency_ns;
}

static void free_flow(struct flow *f)
{
	free(f->out);
	free(f->out_time);
	free(f);
}

static struct flow *new_flow(int n)
{
	struct flow *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->out = calloc(2 * (size_t)n, sizeof(*f->out));
	f->out_time = calloc(2 * (size_t)n, sizeof(*f->out_time));
	if (!f->out || !f->out_time) {
		free_flow(f);
		return NULL;
	}
	f->in = f->out + n;
	f->in_time = f->out_time + n;
	return f;
}

/* Ends both exchanges after a failure, so that nothing uses their memory any more. */
static void give_up(struct link *l, struct flow *f)
{
	struct tr_error err;

	tr_exchange_end(&l->under, &f->times, &err);
	tr_exchange_end(&l->under, &f->data, &err);
	free_flow(f);
}

static int begin_link(void *arg, const struct tr_piece *out, const struct tr_piece *in,
		      void **flow, struct tr_error *err)
{
	struct link *l = arg;
	struct flow *f = new_flow(l->n);
	int rc;

	if (!f) {
		tr_fail(err, TR_ENOMEM, "no memory for the messages of %d ranks", l->n);
		return tr_ranks_abandon(&l->under, err);
	}
	for (int r = 0; r < l->n; r++) {
		size_t sends = r != l->rank && out[r].bytes ? sizeof(int64_t) : 0;
		size_t receives = r != l->rank && in[r].bytes ? sizeof(int64_t) : 0;

		f->out_time[r] = sends ? arrival(l->wire, out[r].bytes) : 0;
		f->out[r] = (struct tr_piece){ &f->out_time[r], sends };
		f->in[r] = (struct tr_piece){ &f->in_time[r], receives };
	}
	f->data_in = in;
	rc = tr_exchange_begin(&l->under, f->out, f->in, &f->times, err);
	if (rc == 0)
		rc = tr_exchange_begin(&l->under, out, in, &f->data, err);
	if (rc < 0)
		give_up(l, f);
	else
		*flow = f;
	return rc;
}

/* Continues the exchange of the times, and after it that of the data. */
static int progress_under(struct link *l, struct flow *f, int wait, struct tr_error *err)
{
	int rc = wait ? tr_exchange_end(&l->under, &f->times, err) :
		tr_exchange_poll(&l->under, &f->times, err);

	if (rc == 0 && !f->times)
		rc = wait ? tr_exchange_end(&l->under, &f->data, err) :
			tr_exchange_poll(&l->under, &f->data, err);
	return rc;
}

static int progress_link(void *arg, void *flow, int timeout_ms, int *done, struct tr_error *err)
{
	struct link *l = arg;
	struct flow *f = flow;
	int64_t last = 0;
	int rc;

	l->under.timeout_ms = timeout_ms ? timeout_ms : l->under.timeout_ms;
	rc = progress_under(l, f, timeout_ms != 0, err);
	for (int r = 0; r < l->n; r++)
		if (r != l->rank && f->data_in[r].bytes && f->in_time[r] > last)
			last = f->in_time[r];
	if (rc == 0 && timeout_ms)
		rc = await_arrival(l, last, timeout_ms, err);
	*done = rc == 0 && !f->times && !f->data && tr_clock_ns() >= last;
	if (rc < 0)
		give_up(l, f);
	else if (*done)
		free_flow(f);
	return rc;
}

static int exchange_link(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			 int timeout_ms, struct tr_error *err)
{
	void *flow;
	int done, rc = begin_link(arg, out, in, &flow, err);

	return rc < 0 ? rc : progress_link(arg, flow, timeout_ms, &done, err);
}

static int send_link(void *arg, int to, int channel, const void *at, size_t bytes,
		     struct tr_error *err)
{
	struct link *l = arg;
	int64_t arrives = arrival(l->wire, bytes);
	char *message = malloc(sizeof(arrives) + bytes);
	int rc;

	if (!message)
		return tr_fail(err, TR_ENOMEM, "no memory for a message of %zu bytes", bytes);
	memcpy(message, &arrives, sizeof(arrives));
	if (bytes)
		memcpy(message + sizeof(arrives), at, bytes);
	rc = tr_send(&l->under, to, channel, message, sizeof(arrives) + bytes, err);
	free(message);
	return rc;
}

static int receive_link(void *arg, int from, int channel, const struct tr_piece *in, size_t *got,
			int timeout_ms, struct tr_error *err)
{
	struct link *l = arg;
	int64_t arrives = 0;
	size_t most = sizeof(arrives) + in->bytes;
	char *message = malloc(most);
	int rc;

	if (!message) {
		tr_fail(err, TR_ENOMEM, "no memory for a message of %zu bytes", in->bytes);
		return tr_ranks_abandon(&l->under, err);
	}
	l->under.timeout_ms = timeout_ms;
	rc = tr_receive(&l->under, from, channel, message, most, got, err);
	if (rc == 0) {
		memcpy(&arrives, message, sizeof(arrives));
		*got -= sizeof(arrives);
		if (*got)
			memcpy(in->at, message + sizeof(arrives), *got);
		rc = await_arrival(l, arrives, timeout_ms, err);
	}
	free(message);
	return rc;
}

static int sent_link(void *arg, int most, int timeout_ms, struct tr_error *err)
{
	struct link *l = arg;

	l->under.timeout_ms = timeout_ms;
	return tr_sent(&l->under, most, err);
}

static void abandon_link(void *arg, const struct tr_error *why)
{
	struct link *l = arg;

	l->under.abandon(l->under.arg, why);
}

static void free_link(void *arg)
{
	struct link *l = arg;

	if (l->is_sub)
		tr_ranks_free(&l->under);
	else
		free(l->wire);
	free(l);
}

static void set_group(struct tr_ranks *g, struct link *l);

static int split_link(void *arg, struct tr_ranks *sub, int first, int stride, int n,
		      struct tr_error *err)
{
	struct link *l = arg, *s = calloc(1, sizeof(*s));
	struct tr_ranks under;
	int rc = tr_ranks_split(&l->under, &under, first, stride, n, err);

	if (rc == 0 && !s) {
		tr_ranks_free(&under);
		rc = tr_fail(err, TR_ENOMEM, "no memory for a sub-group of %d ranks", n);
	}
	if (rc < 0) {
		free(s);
		return rc;
	}
	*s = (struct link){ .under = under, .n = n, .rank = under.rank, .is_sub = 1,
			    .wire = l->wire };
	set_group(sub, s);
	return 0;
}

static void set_group(struct tr_ranks *g, struct link *l)
{
	*g = (struct tr_ranks){ .rank = l->rank, .n = l->n, .exchange = exchange_link,
				.begin = begin_link, .progress = progress_link,
				.send = send_link, .receive = receive_link, .sent = sent_link,
				.split = split_link, .abandon = abandon_link, .free = free_link,
				.arg = l };
}

static double at_most(double x, double most)
{
	return x < most ? x : most;
}

int tr_ranks_link(struct tr_ranks *g, const struct tr_ranks *under, double gbps, double us,
		  struct tr_error *err)
{
	struct link *l = calloc(1, sizeof(*l));
	struct wire *w = calloc(1, sizeof(*w));

	if (!l || !w) {
		free(l);
		free(w);
		return tr_fail(err, TR_ENOMEM, "no memory for a link");
	}
	*w = (struct wire){ .ns_per_byte = gbps > 0 ? at_most(8 / gbps, (double)NEVER_NS) : 0,
			    .latency_ns = at_most(us * 1000, (double)NEVER_NS) };
	*l = (struct link){ .under = *under, .n = under->n, .rank = under->rank, .wire = w };
	set_group(g, l);
	g->all_rank = under->all_rank;
	g->timeout_ms = under->timeout_ms;
	return 0;
}
