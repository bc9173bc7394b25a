/* SPDX-License-Identifier: Apache-2.0 */
/* Runs micro-batches through the stages of a pipeline. */
#ifndef PIPELINE_H
#define PIPELINE_H
#include "training.h"

/* What a task does for a micro-batch. */
struct tr_phases {
	/* Sets *rows to the rows of a micro-batch, which are valid until the next call. With
	 * backward, rows->grad has the gradient buffers. */
	int (*rows)(void *arg, int64_t micro, int backward, struct tr_rows *rows,
		    struct tr_error *err);
	/* Computes the loss from the output of the last part, with tr_model_loss. It is called
	 * before the backward pass of that part, with grad; in a list of only forward passes, after
	 * the forward pass, without grad. */
	int (*loss)(void *arg, int slot, const struct tr_rows *rows, int grad,
		    struct tr_error *err);
	/* All backward passes of a micro-batch in this stage are done. NULL: it does not matter. */
	int (*done)(void *arg, int64_t micro, struct tr_error *err);
	void *arg;
};
/* Does the work of this stage in the order of a list, which tr_work_list has made for `pipe`. What
 * a part has computed goes to the rank that has the next part.
 *
 * If a phase fails, the rank goes on without computing: its messages are then empty, and stages
 * that receive one do the same, so that no rank waits for another. The result is an error on the
 * ranks where the failure was, and 0 on the others, so the caller agrees on it. Then it calls
 * tr_sent. With ZeRO 2 or overlap a rank takes part in sums during the list, which it cannot do
 * without the gradients that have failed. Then it abandons the exchanges, and all ranks end with
 * ELOST. So does a rank that fails while it computes the rows together with others of tp.
 * [collective] */
int tr_pipeline_run(struct tr_trainer *t, const struct tr_pipe *pipe, const struct tr_work *list,
		    const struct tr_phases *phases, struct tr_error *err);
#endif
