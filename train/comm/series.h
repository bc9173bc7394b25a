/* SPDX-License-Identifier: Apache-2.0 */
/* Series of exchanges, such as the sum over leaves of many items, and a queue of them that goes on
 * in the background while a rank computes. No thread of its own does that: the caller polls. */
#ifndef SERIES_H
#define SERIES_H
#include "ranks.h"

/* The ranks of a group have the same series, with the same number of exchanges. */
struct tr_series {
	/* Sets *out and *in to the pieces of the next exchange, after the one before it is
	 * complete. They are valid until the next step. Returns 0 if there is no further one. */
	int (*step)(struct tr_series *s, const struct tr_piece **out, const struct tr_piece **in);
	void (*free)(struct tr_series *s);
	struct tr_series *next;         /* in a queue */
};
/* Makes all exchanges of a series, and frees it. [collective] */
int tr_series_run(const struct tr_ranks *g, struct tr_series *s, struct tr_error *err);

/* The series of a queue come one after the other, so that all ranks make the same exchanges in one
 * order, however often each of them polls. The group must have no other exchanges. */
struct tr_queue {
	const struct tr_ranks *g;       /* borrowed */
	struct tr_series *first, **last;
	int64_t added, finished;        /* series, in total */
	void *flow;                     /* the exchange of `first` that is under way, or NULL */
	int rc;                         /* the first failure, and its message */
	struct tr_error err;
};
void tr_queue_init(struct tr_queue *q, const struct tr_ranks *g);
/* Waits for the series that are left, unless a rank has failed, and frees the queue.
 * [collective] */
void tr_queue_release(struct tr_queue *q);
/* Appends a series, which the queue then owns. */
void tr_queue_add(struct tr_queue *q, struct tr_series *s);
/* Continues without waiting. A failure is reported by the next tr_queue_wait. [local] */
void tr_queue_poll(struct tr_queue *q);
/* Waits until the first `n` series that were ever added are complete. [collective] */
int tr_queue_wait(struct tr_queue *q, int64_t n, struct tr_error *err);
#endif
