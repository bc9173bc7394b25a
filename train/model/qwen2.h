/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder of Qwen2 or Llama: the shard of its weights that this rank has, and the activations of
 * some micro-batches. A model may be cut into parts, of which other ranks have some; the caller
 * moves the activations between them. Each part keeps the activations of a micro-batch in a slot.
 * All ranks of the group of tensor parallelism make the calls that are [collective], with the same
 * rows. A process may have several models. */
#ifndef QWEN2_H
#define QWEN2_H
#include "arenas.h"
#include "tensorpar.h"

struct tr_model;

/* Makes a model. Its weights are zero.
 * a         gives its memory, and must be allocated before the calls below
 * tp        the group of tensor parallelism, and the pieces
 * parts     those of this rank; NULL: the whole model, with one slot
 * seqs_max  largest number of sequences in a call
 * seq_max   largest number of tokens in a sequence */
int tr_model_new(struct tr_model **model, const struct tr_model_config *c, struct tr_arenas *a,
		 const struct tr_tensorpar_opts *tp, const struct tr_parts *parts, int64_t seqs_max,
		 int64_t seq_max, struct tr_error *err);
void tr_model_free(struct tr_model *m);
const struct tr_registry *tr_model_registry(const struct tr_model *m);
/* Returns the flat buffer of the weights of this rank, which are items of the type of the back
 * end. */
void *tr_model_weights(struct tr_model *m);

/* What moves between the parts of a model has a row for each local row (tensorpar.h). Returns the
 * bytes of an output, or with `backward` of its gradient, for these rows; NULL: for the most rows
 * that a call can have. */
size_t tr_model_passed(struct tr_model *m, const struct tr_rows *rows, int backward);
/* Returns the memory for the input of a part that is not the first one. Fill it before
 * tr_model_forward. */
void *tr_model_input(struct tr_model *m, int part, int slot);
/* Returns the output of a part after tr_model_forward. It is valid until the slot is used again. */
void *tr_model_output(struct tr_model *m, int part, int slot);
/* Returns the memory for the gradient of the output of a part that is not the last one. Fill it
 * before tr_model_backward, which writes the gradient of the input there. It is valid until the
 * next call of the model. */
float *tr_model_gradient(struct tr_model *m);

/* Computes the layers of a part. The first part looks up the embedding before.
 * keep  1: keeps the activations that tr_model_backward needs. 0: only tr_model_loss may follow,
 *       or the next part.
 * [collective] */
int tr_model_forward(struct tr_model *m, int part, int slot, const struct tr_rows *rows, int keep,
		     struct tr_error *err);
/* Computes the hidden state of each token, which is the norm of the output of the last part, and
 * the loss of each token, which is 0 if the weight of the token is 0. With grad it also computes
 * the gradients of the sum of weight * scale * loss: those of the hidden states, for a call of
 * tr_model_backward that follows, and those of the head, which it adds to rows->grad.
 * [collective] */
int tr_model_loss(struct tr_model *m, int slot, const struct tr_rows *rows, double scale,
		  float *loss, int grad, struct tr_error *err);
/* Adds the gradients of all parameters of a part except the head to rows->grad. [collective] */
int tr_model_backward(struct tr_model *m, int part, int slot, const struct tr_rows *rows,
		      struct tr_error *err);
#endif
