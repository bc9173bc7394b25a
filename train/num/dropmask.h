/* SPDX-License-Identifier: Apache-2.0 */
/* The masks of dropout. Whether an item is dropped follows only from the step, the place in the
 * model and the place in the data. So no mask is stored: the backward pass computes it again, and
 * every layout has the same ones. */
#ifndef DROPMASK_H
#define DROPMASK_H
#include "philox.h"

struct tr_dropout {                     /* of a step of a job */
	uint64_t seed;
	int64_t step;
	double rate;                    /* in the residual stream; 0: none */
	double attention_rate;          /* of the probabilities of attention; 0: none */
};
/* The masks of all rows of a layer, or of a head of it. */
struct tr_dropmask {
	uint32_t key[2];
	uint32_t least;                 /* an item is dropped if its 16 random bits are below it */
	float scale;                    /* of the items that are kept: 1 / (1 - rate) */
};
/* Returns the masks of a layer. The rate is below 1, and rounded to a multiple of 2^-16.
 * head  the number of the attention head in the whole model; 0 for masks of the residual stream */
struct tr_dropmask tr_dropmask_of(const struct tr_dropout *d, enum tr_purpose purpose, double rate,
				  int64_t layer, int64_t head);
/* Sets each of n items of y to that of x, times the scale, or to 0. y may be x.
 * sample, row  the row of token `row` of a sample, of which n items from the first one on are
 *              here */
void tr_drop(const struct tr_dropmask *m, int64_t sample, int64_t row, float *y, const float *x,
	     int64_t n);
#endif
