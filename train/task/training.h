/* SPDX-License-Identifier: Apache-2.0 */
/* A model that is trained on the ranks of a mesh. A process may have several. The phases of a step
 * are functions of their own, so that a task decides on their order: tr_model_forward, a loss,
 * tr_model_backward (pipeline.h does these for all micro-batches), then tr_trainer_reduce and
 * tr_trainer_update. */
#ifndef TRAINING_H
#define TRAINING_H
#include "adamw.h"
#include "leafgrads.h"
#include "muon.h"
#include "pipeorder.h"
#include "qwen2.h"
#include "schedule.h"
#include "weightgather.h"

struct tr_trainer {
	const struct tr_mesh *mesh;     /* borrowed */
	struct tr_backend *be;          /* borrowed */
	enum tr_type type;              /* of weights and activations */
	struct tr_model *model;         /* owned, as the next two */
	struct tr_leafgrads *grads;
	struct tr_arenas arenas;        /* owned */
	struct tr_adamw adamw;
	int averaged;                   /* 1: there is a moving average of the weights */
	int muon;                       /* 1: Muon updates the matrices of the layers */
	struct tr_schedule schedule;
	double clip;                    /* of the norm of the gradient; 0: off */
	int leaves, pieces;             /* V and W of train/README.md: dp and tp divide them */
	/* Samples of a step, whose leaves are those of tr_trainer_leaf. 0: they come in any
	 * order. */
	int64_t batch;
	int sp;                         /* 1: sequence parallelism */
	int recompute;                  /* 1: a layer keeps its input only, and is computed again */
	/* 1: each rank of dp updates a share of the weights; 2: it has the gradients of its share
	 * only. */
	int zero;
	int overlap;                    /* 1: sums over dp go on while this rank computes */
	enum tr_zero_form zero_form;
	struct tr_weightgather gather;  /* owned, as the next one; made with shares */
	struct tr_shares shares;        /* made with zero if dp has several ranks */
	struct tr_pipe pipe;
	const int64_t *layers;          /* of each part of the model; NULL: nearly equal */
	struct tr_parts parts;          /* of this rank; owned, as the next one */
	struct tr_work *work;           /* of a step, tr_work_count(&pipe) */
	int64_t step;                   /* updates that were made */
	float *grad;                    /* of this step, after tr_trainer_reduce */
};
/* Makes the model, the moments and the gradient buffers, and fp32 masters of weights that have
 * another type. The caller has zeroed the trainer, and set mesh, be, type, adamw (without moments,
 * masters, average, shares and what Muon needs), averaged, muon, schedule, clip, leaves, pieces,
 * batch, sp, recompute, zero, overlap and zero_form; order, chunks and micros of pipe, where 0
 * chunks or micros mean 1; and layers, unless the parts are nearly equal.
 * seqs_max, seq_max  as of tr_model_new; a micro-batch has seqs_max samples */
int tr_trainer_init(struct tr_trainer *t, const struct tr_model_config *c, int64_t seqs_max,
		    int64_t seq_max, struct tr_error *err);
/* Does the same without allocating the arenas, so that t->arenas has their sizes. It uses the ranks
 * and the numbers of ranks in t->mesh only, and no back end: `be` may be NULL. */
int tr_trainer_plan(struct tr_trainer *t, const struct tr_model_config *c, int64_t seqs_max,
		    int64_t seq_max, struct tr_error *err);
void tr_trainer_release(struct tr_trainer *t);
/* Returns which of its leaves sample j of this rank is in. */
int tr_trainer_leaf(const struct tr_trainer *t, int64_t j);
/* Sets bytes[kind] to the memory that has been used of each arena. Of that of the gradients it is
 * the blocks that have been in use. */
void tr_trainer_used(const struct tr_trainer *t, int64_t bytes[TR_MEMORY_KINDS]);
/* Sets rows->turn for a forward pass. The pass then waits, before each layer, until the ranks that
 * have updated the weights of this layer have sent them. */
void tr_trainer_forward(struct tr_trainer *t, struct tr_rows *rows);
/* Waits until the ranks that have updated the weights have sent all of them. Call it before
 * anything but such a forward pass reads the weights. [collective] */
int tr_trainer_settle(struct tr_trainer *t, struct tr_error *err);
/* Sets the initial weights of the items that this rank updates, as tr_param_draw does. Call
 * tr_trainer_spread afterwards. [local] */
void tr_trainer_draw(struct tr_trainer *t, uint64_t seed, double range);
/* Sets the average to the fp32 weights of the items that this rank updates. [local] */
void tr_trainer_average(struct tr_trainer *t);
/* Exchanges the average and the fp32 weights of the items that this rank updates, and sends the
 * weights of the model to all ranks. So an evaluation between two calls is one of the average, and
 * the second call restores every bit.
 * gate  as of tr_trainer_update: a save in flight may read both. [collective] */
int tr_trainer_swap(struct tr_trainer *t, const struct tr_gate *gate, struct tr_error *err);
/* Rounds the masters to the weights of the model, and begins to get those of the other ranks, for
 * which tr_trainer_settle waits. Call both after the weights were set, or loaded. [collective] with
 * zero */
int tr_trainer_spread(struct tr_trainer *t, struct tr_error *err);
/* Adds up the gradients of all ranks, and computes their norm. [collective] */
int tr_trainer_reduce(struct tr_trainer *t, double *norm, struct tr_error *err);
/* Clips the gradients, updates the weights, and counts the step. *lr receives its learning rate.
 * With overlap the weights of other ranks may come later; see tr_trainer_settle. [collective] with
 * zero */
int tr_trainer_update(struct tr_trainer *t, double norm, const struct tr_gate *gate, double *lr,
		      struct tr_error *err);
/* Sets *hash to the hash of all weights, in fp32. [collective] */
int tr_trainer_hash(struct tr_trainer *t, uint64_t *hash, struct tr_error *err);
#endif
