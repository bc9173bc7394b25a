/* SPDX-License-Identifier: Apache-2.0 */
#include "series.h"

int tr_series_run(const struct tr_ranks *g, struct tr_series *s, struct tr_error *err)
{
	const struct tr_piece *out, *in;
	int rc = 0;

	while (rc == 0 && s->step(s, &out, &in))
		rc = tr_exchange(g, out, in, err);
	s->free(s);
	return rc;
}

void tr_queue_init(struct tr_queue *q, const struct tr_ranks *g)
{
	*q = (struct tr_queue){ .g = g };
	q->last = &q->first;
}

/* Removes the first series. */
static struct tr_series *take_first(struct tr_queue *q)
{
	struct tr_series *s = q->first;

	q->first = s->next;
	if (!q->first)
		q->last = &q->first;
	q->finished++;
	return s;
}

void tr_queue_add(struct tr_queue *q, struct tr_series *s)
{
	s->next = NULL;
	*q->last = s;
	q->last = &s->next;
	q->added++;
}

/* Begins the next exchange of the first series, or removes the series if it has none. */
static int begin_next(struct tr_queue *q)
{
	const struct tr_piece *out, *in;
	struct tr_series *s = q->first;

	if (s->step(s, &out, &in))
		return tr_exchange_begin(q->g, out, in, &q->flow, &q->err);
	take_first(q);
	s->free(s);
	return 0;
}

void tr_queue_poll(struct tr_queue *q)
{
	while (q->rc == 0 && q->first) {
		if (q->flow)
			q->rc = tr_exchange_poll(q->g, &q->flow, &q->err);
		if (q->flow)
			return;
		if (q->rc == 0)
			q->rc = begin_next(q);
	}
}

int tr_queue_wait(struct tr_queue *q, int64_t n, struct tr_error *err)
{
	while (q->rc == 0 && q->finished < n)
		q->rc = q->flow ? tr_exchange_end(q->g, &q->flow, &q->err) : begin_next(q);
	if (q->rc < 0 && err)
		*err = q->err;
	return q->rc;
}

void tr_queue_release(struct tr_queue *q)
{
	tr_queue_wait(q, q->added, NULL);
	while (q->first) {
		struct tr_series *s = take_first(q);

		s->free(s);
	}
}
