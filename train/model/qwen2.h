/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder of Qwen2 or Llama: its weights, and the activations of one micro-batch. A model is a
 * value: a job may have several. */
#ifndef QWEN2_H
#define QWEN2_H
#include "backend.h"
#include "registry.h"

struct tr_model;

/* tokens_max   largest number of tokens in a call
 * seq_max      of one sequence */
int tr_model_new(struct tr_model **model, const struct tr_model_config *c, struct tr_backend *be,
		 int64_t tokens_max, int64_t seq_max, struct tr_error *err);
void tr_model_free(struct tr_model *m);
const struct tr_registry *tr_model_registry(const struct tr_model *m);
float *tr_model_weights(struct tr_model *m);
/* Bytes of activations and scratch that a model of this size allocates. */
int64_t tr_model_activation_bytes(const struct tr_model_config *c, int64_t tokens_max,
				  int64_t seq_max);

/* Computes the hidden state of each token before the head.
 * keep  keep what a backward pass needs; otherwise only the head's part can follow. */
void tr_model_forward(struct tr_model *m, const struct tr_rows *rows, int keep);
/* The hidden states of the last forward, and their gradients, which tr_model_backward reads:
 * [n, hidden]. */
const float *tr_model_hidden(const struct tr_model *m);
float *tr_model_hidden_gradient(struct tr_model *m);
/* Computes the loss of each token, which is 0 if its weight is 0. With grad also the gradients of
 * sum of weight * scale * loss: of the hidden states, and of the head. */
void tr_model_loss(struct tr_model *m, const struct tr_rows *rows, double scale, float *loss,
		   int grad);
/* Adds the gradients of all parameters but the head to rows->grad. */
void tr_model_backward(struct tr_model *m, const struct tr_rows *rows);
#endif
