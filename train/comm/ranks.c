/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

static int exchange_alone(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			  int timeout_ms, struct tr_error *err)
{
	(void)arg;
	(void)timeout_ms;
	(void)err;
	if (in[0].bytes)
		memcpy(in[0].at, out[0].at, in[0].bytes);
	return 0;
}

static int begin_alone(void *arg, const struct tr_piece *out, const struct tr_piece *in,
		       void **flow, struct tr_error *err)
{
	*flow = NULL;
	return exchange_alone(arg, out, in, 0, err);
}

void tr_ranks_alone(struct tr_ranks *g)
{
	*g = (struct tr_ranks){ .rank = 0, .n = 1, .exchange = exchange_alone,
				.begin = begin_alone };
}

void tr_ranks_free(struct tr_ranks *g)
{
	if (g && g->free)
		g->free(g->arg);
	if (g)
		*g = (struct tr_ranks){ .rank = 0 };
}

int tr_ranks_split(const struct tr_ranks *g, struct tr_ranks *sub, int first, int stride, int n,
		   struct tr_error *err)
{
	int rc = 0;

	if (n > 1)
		rc = g->split(g->arg, sub, first, stride, n, err);
	else
		tr_ranks_alone(sub);
	sub->all_rank = g->all_rank;
	sub->timeout_ms = g->timeout_ms;
	return rc;
}

int tr_ranks_abandon(const struct tr_ranks *g, struct tr_error *err)
{
	struct tr_error unknown = { .rank = -1 };
	struct tr_error *why = err ? err : &unknown;

	why->code = TR_ELOST;
	why->rank = g->all_rank;
	if (g->abandon)
		g->abandon(g->arg, why);
	return TR_ELOST;
}

int tr_exchange(const struct tr_ranks *g, const struct tr_piece *out, const struct tr_piece *in,
		struct tr_error *err)
{
	return g->exchange(g->arg, out, in, g->timeout_ms, err);
}

int tr_exchange_begin(const struct tr_ranks *g, const struct tr_piece *out,
		      const struct tr_piece *in, void **flow, struct tr_error *err)
{
	*flow = NULL;
	return g->begin(g->arg, out, in, flow, err);
}

static int progress(const struct tr_ranks *g, void **flow, int timeout_ms, struct tr_error *err)
{
	int done = 0, rc = *flow ? g->progress(g->arg, *flow, timeout_ms, &done, err) : 0;

	if (rc < 0 || done)
		*flow = NULL;
	return rc;
}

int tr_exchange_poll(const struct tr_ranks *g, void **flow, struct tr_error *err)
{
	return progress(g, flow, 0, err);
}

int tr_exchange_end(const struct tr_ranks *g, void **flow, struct tr_error *err)
{
	return progress(g, flow, g->timeout_ms, err);
}

int tr_send(const struct tr_ranks *g, int to, int channel, const void *at, size_t bytes,
	    struct tr_error *err)
{
	return g->send(g->arg, to, channel, at, bytes, err);
}

int tr_receive(const struct tr_ranks *g, int from, int channel, void *at, size_t bytes,
	       size_t *got, struct tr_error *err)
{
	const struct tr_piece in = { at, bytes };

	return g->receive(g->arg, from, channel, &in, got, g->timeout_ms, err);
}

int tr_sent(const struct tr_ranks *g, int most, struct tr_error *err)
{
	return g->sent ? g->sent(g->arg, most, g->timeout_ms, err) : 0;
}

/* In a group of one rank this function and those below allocate no memory, so they cannot fail. A
 * failure in such a group could not be sent to the other ranks of the mesh, which wait for this
 * rank in other groups. */
int tr_allgather(const struct tr_ranks *g, const void *mine, void *all, size_t bytes,
		 struct tr_error *err)
{
	struct tr_piece *p;
	int rc;

	if (g->n == 1) {
		if (bytes)
			memmove(all, mine, bytes);
		return 0;
	}
	p = calloc((size_t)g->n * 2, sizeof(*p));
	if (!p) {
		tr_fail(err, TR_ENOMEM, "no memory for the pieces of %d ranks", g->n);
		return tr_ranks_abandon(g, err);
	}
	for (int r = 0; r < g->n; r++) {
		/* Nothing is written through the pieces of `out`. */
		p[r] = (struct tr_piece){ (void *)(uintptr_t)mine, bytes };
		p[g->n + r] = (struct tr_piece){ (char *)all + (size_t)r * bytes, bytes };
	}
	rc = tr_exchange(g, p, p + g->n, err);
	free(p);
	return rc;
}

int tr_allreduce(const struct tr_ranks *g, uint64_t *x, size_t n, enum tr_op op,
		 struct tr_error *err)
{
	uint64_t *all;
	int rc;

	if (g->n == 1)
		return 0;
	all = calloc((size_t)g->n * n + 1, sizeof(*all));
	if (!all) {
		tr_fail(err, TR_ENOMEM, "no memory for %zu numbers of %d ranks", n, g->n);
		return tr_ranks_abandon(g, err);
	}
	rc = tr_allgather(g, x, all, n * sizeof(*x), err);
	if (rc == 0)
		memcpy(x, all, n * sizeof(*x));
	for (int r = 1; rc == 0 && r < g->n; r++) {
		for (size_t i = 0; i < n; i++) {
			uint64_t y = all[(size_t)r * n + i];

			x[i] = op == TR_SUM ? x[i] + y : op == TR_XOR ? x[i] ^ y :
				x[i] > y ? x[i] : y;
		}
	}
	free(all);
	return rc;
}

int tr_agree_bits(const struct tr_ranks *g, int code, uint64_t *bits, struct tr_error *err)
{
	struct verdict {
		struct tr_error err;
		uint64_t bits;
	} mine = { .err = { .rank = -1 }, .bits = *bits }, *all;
	int rc;

	if (code == TR_ELOST)
		return code; /* no rank may be left to agree with */
	if (code && err)
		mine.err = *err;
	mine.err.code = code;
	mine.err.rank = mine.err.rank < 0 ? g->all_rank : mine.err.rank;
	if (g->n == 1) {
		if (code && err)
			*err = mine.err;
		return code;
	}
	all = calloc((size_t)g->n, sizeof(*all));
	if (!all) {
		tr_fail(err, TR_ENOMEM, "no memory for the results of %d ranks", g->n);
		return tr_ranks_abandon(g, err);
	}
	rc = tr_allgather(g, &mine, all, sizeof(mine), err);
	for (int r = 0; rc == 0 && r < g->n; r++)
		*bits |= all[r].bits;
	for (int r = 0; rc == 0 && r < g->n; r++) {
		if (!all[r].err.code)
			continue;
		rc = all[r].err.code;
		if (err)
			*err = all[r].err;
		break;
	}
	free(all);
	return rc;
}

int tr_agree(const struct tr_ranks *g, int code, struct tr_error *err)
{
	uint64_t none = 0;

	return tr_agree_bits(g, code, &none, err);
}
