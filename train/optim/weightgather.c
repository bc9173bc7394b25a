/* SPDX-License-Identifier: Apache-2.0 */
#include "weightgather.h"

#include <stdlib.h>

#include "leafsum.h"

int tr_weightgather_init(struct tr_weightgather *g, const struct tr_registry *reg,
			 const struct tr_shares *shares, struct tr_queue *queue,
			 struct tr_error *err)
{
	*g = (struct tr_weightgather){ .reg = reg, .shares = shares, .queue = queue };
	g->cut = calloc((size_t)shares->dp->n + 1, sizeof(*g->cut));
	g->ticket = calloc((size_t)reg->layers + 2, sizeof(*g->ticket));
	return g->cut && g->ticket ? 0 : tr_fail(err, TR_ENOMEM, "no memory to gather weights");
}

void tr_weightgather_release(struct tr_weightgather *g)
{
	free(g->cut);
	free(g->ticket);
	*g = (struct tr_weightgather){ .reg = NULL };
}

/* Begins to get some weights, which are in one area. */
static int gather(struct tr_weightgather *g, struct tr_span span, enum tr_type type, void *weights,
		  struct tr_error *err)
{
	const struct tr_ranks *dp = g->shares->dp;
	const int64_t *cut = g->shares->cut[span.from >= g->shares->cut[0][dp->n]];
	struct tr_series *s;

	if (span.from >= span.to)
		return 0;
	for (int r = 0; r <= dp->n; r++)
		g->cut[r] = cut[r] < span.from ? span.from : cut[r] > span.to ? span.to : cut[r];
	s = tr_gather_series(g->queue->g, g->cut, type, weights);
	if (!s) {
		tr_fail(err, TR_ENOMEM, "no memory to gather weights");
		return tr_ranks_abandon(dp, err);
	}
	tr_queue_add(g->queue, s);
	return 0;
}

/* Norms come first, because all layers have some. A tied head has no weights of its own. */
int tr_weightgather_begin(struct tr_weightgather *g, enum tr_type type, void *weights,
			  struct tr_error *err)
{
	const struct tr_registry *reg = g->reg;
	int rc = gather(g, (struct tr_span){ reg->norms, reg->weights }, type, weights,
			err);

	for (int64_t l = -1; rc == 0 && l <= reg->layers; l++) {
		struct tr_span span = tr_registry_layer(reg, l);

		if (span.from < reg->norms)
			rc = gather(g, span, type, weights, err);
		g->ticket[l + 1] = g->queue->added;
	}
	return rc;
}

int tr_weightgather_wait(struct tr_weightgather *g, int64_t layer, struct tr_error *err)
{
	return tr_queue_wait(g->queue, g->ticket[layer + 1], err);
}
