/* SPDX-License-Identifier: Apache-2.0 */
/* Token sequences of different lengths, one after another: what a model gets in one call. */
#ifndef ROWS_H
#define ROWS_H
#include <stdint.h>

struct tr_rows {
	int64_t n;                      /* tokens */
	int64_t seqs;
	const int64_t *begin;           /* [seqs + 1]: sequence s ends where s + 1 begins */
	const int32_t *token;           /* [n] */
	const int32_t *target;          /* [n] */
	const float *weight;            /* [n], of a token's loss; 0: it is masked */
	const int32_t *position;        /* [n], in its sequence */

	float *const *grad;             /* [seqs], the gradient buffer of the sequence's leaf */
};
#endif
