/* SPDX-License-Identifier: Apache-2.0 */
/* A model in training on the ranks of a group: what a task works with. A value; a process may have
 * several. The phases of a step are primitives, so that a task decides on their order:
 * tr_model_forward, a loss, tr_model_backward, then tr_trainer_reduce and tr_trainer_update. */
#ifndef TRAINING_H
#define TRAINING_H
#include "adamw.h"
#include "leafgrads.h"
#include "qwen2.h"
#include "schedule.h"

struct tr_trainer {
	struct tr_ranks *ranks;         /* borrowed */
	struct tr_backend *be;          /* borrowed */
	struct tr_model *model;         /* owned, as the next two */
	struct tr_leafgrads *grads;
	struct tr_adamw adamw;
	struct tr_schedule schedule;
	double clip;                    /* of the norm of the gradient; 0: off */
	int leaves;                     /* V */
	int64_t step;                   /* updates that were made */
	float *grad;                    /* of this step, after tr_trainer_reduce */
};
/* What a trainer is made of: the caller sets ranks, be, adamw (without moments), schedule, clip and
 * leaves. */
int tr_trainer_init(struct tr_trainer *t, const struct tr_model_config *c, int64_t tokens_max,
		    int64_t seq_max, struct tr_error *err);
void tr_trainer_release(struct tr_trainer *t);
/* Adds the gradients of all ranks up, and computes their norm. [collective] */
int tr_trainer_reduce(struct tr_trainer *t, double *norm, struct tr_error *err);
/* Makes the update of this step: clips, and counts it. lr receives its rate. */
int tr_trainer_update(struct tr_trainer *t, double norm, const struct tr_gate *gate, double *lr,
		      struct tr_error *err);
/* The hash of all weights. [collective] */
int tr_trainer_hash(struct tr_trainer *t, uint64_t *hash, struct tr_error *err);
#endif
