/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO 1 and 2: which items of the flat buffer of weights each rank of dp updates. Only that rank
 * has their moments, and with ZeRO 2 their gradients. After an update all ranks get the new weights
 * from the rank that has made them (weightgather.h). */
#ifndef ZEROSHARES_H
#define ZEROSHARES_H
#include "backend.h"
#include "ranks.h"
#include "registry.h"

/* Whether a share has whole parameters only, or begins and ends at any item. */
enum tr_zero_form { TR_ZERO_TENSOR, TR_ZERO_FLAT };
struct tr_shares {
	const struct tr_ranks *dp;      /* borrowed */
	/* The buffer has two areas: the embedding or the head, if they have the same weights, and
	 * everything after it. In area a, rank r has items [cut[a][r], cut[a][r + 1]). So two
	 * stages of a pipeline cut the parameter that both have alike, and in form flat each rank
	 * has an equal share of the gradients of the head, too. */
	int64_t *cut[2];
	int gradients;                  /* 1: gradients are cut as well (ZeRO 2) */
};
int tr_shares_make(struct tr_shares *s, const struct tr_registry *reg, const struct tr_ranks *dp,
		   enum tr_zero_form form, struct tr_error *err);
void tr_shares_release(struct tr_shares *s);

/* In the calls below, NULL for the shares means that this rank has all items. */

/* Returns how many items this rank has: the size of its buffers of moments. */
int64_t tr_shares_items(const struct tr_shares *s, const struct tr_registry *reg);
/* Returns where an item of this rank is in its buffers of moments. */
int64_t tr_shares_at(const struct tr_shares *s, int64_t item);
/* Returns the items of an area that this rank has. */
struct tr_span tr_shares_own(const struct tr_shares *s, const struct tr_registry *reg, int area);
/* Sets *own to the items of a parameter that this rank has, perhaps none. Returns where the first
 * of them is in its buffers of moments, or 0 if there are none. */
int64_t tr_shares_of(const struct tr_shares *s, const struct tr_param *p, struct tr_span *own);
#endif
