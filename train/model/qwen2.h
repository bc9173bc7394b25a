/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder of Qwen2 or Llama: the shard of its weights that this rank has, and the activations of
 * one micro-batch. All ranks of the group of tensor parallelism make the calls that are
 * [collective], with the same rows. A process may have several models. */
#ifndef QWEN2_H
#define QWEN2_H
#include "tensorpar.h"

struct tr_model;

/* Makes a model. Its weights are zero.
 * tp        the group of tensor parallelism, and the pieces
 * seqs_max  largest number of sequences in a call
 * seq_max   largest number of tokens in a sequence */
int tr_model_new(struct tr_model **model, const struct tr_model_config *c, struct tr_backend *be,
		 const struct tr_tensorpar_opts *tp, int64_t seqs_max, int64_t seq_max,
		 struct tr_error *err);
void tr_model_free(struct tr_model *m);
const struct tr_registry *tr_model_registry(const struct tr_model *m);
/* Returns the flat buffer of the weights of this rank. */
float *tr_model_weights(struct tr_model *m);

/* Computes the hidden state of each token, which is the input of the head.
 * keep  1: keeps the activations that tr_model_backward needs. 0: only tr_model_loss may follow.
 * [collective] */
int tr_model_forward(struct tr_model *m, const struct tr_rows *rows, int keep,
		     struct tr_error *err);
/* Computes the loss of each token, which is 0 if the weight of the token is 0. With grad it also
 * computes the gradients of the sum of weight * scale * loss: those of the hidden states, for
 * tr_model_backward, and those of the head, which it adds to rows->grad. [collective] */
int tr_model_loss(struct tr_model *m, const struct tr_rows *rows, double scale, float *loss,
		  int grad, struct tr_error *err);
/* Adds the gradients of all parameters except the head to rows->grad. [collective] */
int tr_model_backward(struct tr_model *m, const struct tr_rows *rows, struct tr_error *err);
#endif
