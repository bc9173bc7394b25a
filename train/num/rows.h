/* SPDX-License-Identifier: Apache-2.0 */
/* Token sequences of different lengths, one after another: what a model gets in one call. */
#ifndef ROWS_H
#define ROWS_H
#include <stdint.h>

#include "sumtree.h"
#include "tr_error.h"

struct tr_dropout;

struct tr_rows {
	int64_t n;                      /* tokens */
	int64_t seqs;
	const int64_t *begin;           /* [seqs + 1]: sequence s ends where s + 1 begins */
	/* [parts + 1]: attention stays inside a part, which is inside a sequence. Part p ends where
	 * p + 1 begins. NULL: each sequence is one part. */
	const int64_t *part;
	int64_t parts;
	const int64_t *sample;          /* [seqs], position in the run; NULL: unknown */
	const int32_t *token;           /* [n] */
	const int32_t *target;          /* [n] */
	const float *weight;            /* [n], of a token's loss; 0: it is masked */
	const int32_t *position;        /* [n], in its part */
	float *const *grad;             /* [seqs], the gradient buffer of the sequence's leaf */
	const struct tr_dropout *drop;  /* NULL: none; otherwise `sample` is known */
	/* A model calls this before it computes a layer. The number of a layer is -1 for the
	 * embedding, and the number of layers for the head; one more stands for the end of a
	 * backward pass. In a forward pass the call waits until the weights are there; it is not
	 * made for the head. In a backward pass it sets `grad` and `first` for the layer. NULL: all
	 * weights are there, or `grad` has the buffers of all layers. */
	int (*turn)(void *arg, int64_t layer, struct tr_error *err);
	void *arg;
	/* The buffers of `grad` begin with this item of a whole gradient. Norms have buffers of
	 * their own, which begin with item norms_first. NULL: they are in those of `grad`. */
	int64_t first;
	float *const *norm_grad;
	int64_t norms_first;
};
/* Sets `rows` to sequences [from, to) of `all`, without gradient buffers and dropout. begin has
 * room for to - from + 1 numbers, and part for one more than these sequences have tokens. */
void tr_rows_slice(const struct tr_rows *all, int64_t from, int64_t to, int64_t *begin,
		   int64_t *part, struct tr_rows *rows);
/* Returns how many tokens are in these pieces, if the tokens of each sequence are cut into them. */
int64_t tr_rows_in(const struct tr_rows *rows, const struct tr_pieces *pieces);
#endif
