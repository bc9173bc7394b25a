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

/* Returns the beginning of the parameter, or the end of the buffer, that is nearest to share r. */
static int64_t nearest_end(const struct tr_shares *s, const struct tr_registry *reg, int r)
{
	int64_t all = whole_items(reg, reg->weights), item = tr_cut(all, s->dp->n, r);
	int64_t best = reg->weights, distance = all - item;

	for (int i = 0; i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];
		int64_t to = llabs(whole_items(reg, p->offset) - item);

		if (p->tied_to < 0 && to < distance) {
			best = p->offset;
			distance = to;
		}
	}
	return best;
}

/* Cuts the areas [0, both) and [both, weights). In form tensor rank 0 has the first of them. */
static void cut_areas(struct tr_shares *s, const struct tr_registry *reg, int64_t both,
		      enum tr_zero_form form)
{
	int64_t rest = reg->weights - both;

	for (int r = 0; r <= s->dp->n; r++) {
		int64_t end = form == TR_ZERO_FLAT ? 0 : r == 0 ? both : r == s->dp->n ?
			reg->weights : nearest_end(s, reg, r);

		s->cut[0][r] = form == TR_ZERO_FLAT ? tr_cut(both, s->dp->n, r) : r ? both : 0;
		s->cut[1][r] = form == TR_ZERO_FLAT ? both + tr_cut(rest, s->dp->n, r) :
			end > both ? end : both;
	}
}

int tr_shares_make(struct tr_shares *s, const struct tr_registry *reg, const struct tr_ranks *dp,
		   enum tr_zero_form form, struct tr_error *err)
{
	size_t n = (size_t)dp->n;
	int is_tied = reg->head >= 0 && reg->param[reg->head].tied_to >= 0;
	int first = is_tied ? reg->embedding : reg->shared;
	int64_t both = first >= 0 ? reg->param[first].items : 0;

	assert(!both || reg->param[first].offset == 0);
	*s = (struct tr_shares){ .dp = dp };
	s->cut[0] = calloc(2 * (n + 1), sizeof(*s->cut[0]));
	if (!s->cut[0])
		return tr_fail(err, TR_ENOMEM, "no memory for the shares of %d ranks", dp->n);
	s->cut[1] = s->cut[0] + n + 1;
	cut_areas(s, reg, both, form);
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
