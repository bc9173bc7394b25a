/* SPDX-License-Identifier: Apache-2.0 */
/* Token sequences of different lengths, one after another: what a model gets in one call. */
#ifndef ROWS_H
#define ROWS_H
#include <stdint.h>

#include "sumtree.h"

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
};
/* Sets `rows` to sequences [from, to) of `all`, without gradient buffers and dropout. begin has
 * room for to - from + 1 numbers, and part for one more than these sequences have tokens. */
void tr_rows_slice(const struct tr_rows *all, int64_t from, int64_t to, int64_t *begin,
		   int64_t *part, struct tr_rows *rows);
/* Returns how many tokens are in these pieces, if the tokens of each sequence are cut into them. */
int64_t tr_rows_in(const struct tr_rows *rows, const struct tr_pieces *pieces);
#endif
