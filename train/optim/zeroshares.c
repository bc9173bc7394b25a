/* SPDX-License-Identifier: Apache-2.0 */
#include "zeroshares.h"

#include <assert.h>
#include <stdlib.h>

/* Returns how many items the whole parameters have that begin before an offset in the buffer. The
 * ranks of tp have different parts of the parameters, but the same result for each parameter. */
static int64_t whole_items(const struct tr_registry *reg, int64_t before)
{
	int64_t items = 0;

	for (int i = 0; i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];

		if (p->tied_to < 0 && p->offset < before)
			items += p->shape[0] * p->shape[1];
	}
	return items;
}

/* Returns the beginning of the parameter, or the end of the buffer, that is nearest to an item of
 * the whole parameters.
 * before  of each parameter: the result of whole_items
 * all     the items of all of them */
static int64_t nearest_end(const struct tr_registry *reg, const int64_t *before, int64_t all,
			   int64_t item)
{
	int64_t best = reg->weights, distance = all - item;

	for (int i = 0; i < reg->n; i++) {
		int64_t to = llabs(before[i] - item);

		if (reg->param[i].tied_to < 0 && to < distance) {
			best = reg->param[i].offset;
			distance = to;
		}
	}
	return best;
}

/* Cuts the areas [0, both) and [both, weights) between parameters. Rank 0 has the first of them. */
static void cut_between(struct tr_shares *s, const struct tr_registry *reg, int64_t both,
			int64_t *before)
{
	int64_t all = whole_items(reg, reg->weights);
	int n = s->dp->n;

	for (int i = 0; i < reg->n; i++)
		before[i] = whole_items(reg, reg->param[i].offset);
	for (int r = 0; r <= n; r++) {
		int64_t end = r == 0 ? both : r == n ? reg->weights :
			nearest_end(reg, before, all, tr_cut(all, n, r));

		s->cut[0][r] = r ? both : 0;
		s->cut[1][r] = end > both ? end : both;
	}
}

static void cut_equally(struct tr_shares *s, const struct tr_registry *reg, int64_t both)
{
	for (int r = 0; r <= s->dp->n; r++) {
		s->cut[0][r] = tr_cut(both, s->dp->n, r);
		s->cut[1][r] = both + tr_cut(reg->weights - both, s->dp->n, r);
	}
}

int tr_shares_make(struct tr_shares *s, const struct tr_registry *reg, const struct tr_ranks *dp,
		   enum tr_zero_form form, struct tr_error *err)
{
	size_t n = (size_t)dp->n;
	int is_tied = reg->head >= 0 && reg->param[reg->head].tied_to >= 0;
	int first = is_tied ? reg->embedding : reg->shared;
	int64_t both = first >= 0 ? reg->param[first].items : 0, *before;

	assert(!both || reg->param[first].offset == 0);
	*s = (struct tr_shares){ .dp = dp };
	s->cut[0] = calloc(2 * (n + 1), sizeof(*s->cut[0]));
	before = calloc((size_t)reg->n + 1, sizeof(*before));
	if (!s->cut[0] || !before) {
		free(before);
		return tr_fail(err, TR_ENOMEM, "no memory for the shares of %d ranks", dp->n);
	}
	s->cut[1] = s->cut[0] + n + 1;
	if (form == TR_ZERO_FLAT)
		cut_equally(s, reg, both);
	else
		cut_between(s, reg, both, before);
	free(before);
	return 0;
}

void tr_shares_release(struct tr_shares *s)
{
	free(s->cut[0]);
	*s = (struct tr_shares){ .dp = NULL };
}

int64_t tr_shares_items(const struct tr_shares *s, const struct tr_registry *reg)
{
	int64_t items = 0;

	for (int area = 0; area < 2; area++) {
		struct tr_span own = tr_shares_own(s, reg, area);

		items += own.to - own.from;
	}
	return items;
}

struct tr_span tr_shares_own(const struct tr_shares *s, const struct tr_registry *reg, int area)
{
	if (!s)
		return (struct tr_span){ area ? reg->weights : 0, reg->weights };
	return (struct tr_span){ s->cut[area][s->dp->rank], s->cut[area][s->dp->rank + 1] };
}

int64_t tr_shares_at(const struct tr_shares *s, int64_t item)
{
	int me = s->dp->rank, area = item >= s->cut[0][s->dp->n];

	/* The moments of the first area come first. */
	return (area ? s->cut[0][me + 1] - s->cut[0][me] : 0) + item - s->cut[area][me];
}

int64_t tr_shares_of(const struct tr_shares *s, const struct tr_param *p, struct tr_span *own)
{
	int me, area;

	*own = (struct tr_span){ p->offset, p->offset + p->items };
	if (!s)
		return p->offset;
	me = s->dp->rank;
	area = p->offset >= s->cut[0][s->dp->n];
	if (own->from < s->cut[area][me])
		own->from = s->cut[area][me];
	if (own->to > s->cut[area][me + 1])
		own->to = s->cut[area][me + 1];
	if (own->to <= own->from) {
		own->to = own->from;
		return 0;
	}
	return tr_shares_at(s, own->from);
}
