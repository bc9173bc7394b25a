/* SPDX-License-Identifier: Apache-2.0 */
/* After an update with ZeRO each rank of dp has the new weights of its share. It gets those of the
 * others layer by layer, in the order in which a forward pass reads them, so that the pass may
 * begin before all of them have arrived. */
#ifndef WEIGHTGATHER_H
#define WEIGHTGATHER_H
#include "series.h"
#include "zeroshares.h"

struct tr_weightgather {
	const struct tr_registry *reg;  /* borrowed, as the next two */
	const struct tr_shares *shares;
	struct tr_queue *queue;
	int64_t *cut;                   /* [dp + 1]: scratch; owned, as the next one */
	/* [layers + 2]: how many series of the queue are complete when a layer is there. */
	int64_t *ticket;
};
int tr_weightgather_init(struct tr_weightgather *g, const struct tr_registry *reg,
			 const struct tr_shares *shares, struct tr_queue *queue,
			 struct tr_error *err);
void tr_weightgather_release(struct tr_weightgather *g);
/* Begins to get the weights of the other ranks. */
int tr_weightgather_begin(struct tr_weightgather *g, enum tr_type type, void *weights,
			  struct tr_error *err);
/* Waits until the weights of a layer are there, and those that a forward pass reads before it.
 * Layer -1 is the embedding, and the number of layers is the head. [collective] */
int tr_weightgather_wait(struct tr_weightgather *g, int64_t layer, struct tr_error *err);
#endif
