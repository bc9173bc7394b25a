/* SPDX-License-Identifier: Apache-2.0 */
/* A job from its options to its end. */
#ifndef TRAINLOOP_H
#define TRAINLOOP_H
#include "ranks.h"
#include "trainevents.h"
#include "trainopts.h"
#include "trainsignals.h"

/* Trains. Options that are not set get their values from the checkpoint that is resumed, if there
 * is one. Returns 0 when all steps are done, the data is used up, or a signal has stopped the
 * training, and the last step is saved.
 * signals  what signals ask of this rank, perhaps on one rank only; NULL: nothing
 * EAGAIN: a signal has stopped the training, and the last step was not saved within stop-seconds.
 * [collective] */
int tr_train(struct tr_ranks *ranks, struct tr_opts *o, struct tr_events *events,
	     struct tr_signals *signals, struct tr_error *err);
/* Returns which rank writes the event of an error: rank 0 or, if that is lost, rank 1. */
int tr_teller(const struct tr_error *err);
/* Computes the loss of eval-data with the weights of the checkpoint that `resume` finds. The run is
 * opened for reading, and nothing is saved. [collective] */
int tr_evaluate(struct tr_ranks *ranks, struct tr_opts *o, struct tr_events *events,
		struct tr_error *err);
#endif
