/* SPDX-License-Identifier: Apache-2.0 */
/* The list of the parameters of a model. Allocation, initialisation, the optimizer, the hash and
 * checkpoints all work from it. */
#ifndef REGISTRY_H
#define REGISTRY_H
#include <stdint.h>

#include "modelconfig.h"

struct tr_param {
	char name[96];                  /* of Hugging Face */
	uint64_t crc;                   /* of the name */
	int ndim;
	int64_t shape[2];
	int64_t items;
	int64_t offset;                 /* in a flat buffer of weights or gradients */
	/* -1, or the number of the parameter that has the weights of this one. Each of the two has
	 * a gradient of its own; they are added after the reduction. */
	int tied_to;
	int decay;                      /* weight decay applies */
	float fill;                     /* initial value of a vector; matrices are drawn */
};
/* The parameters of a layer, in the order of the file. */
enum tr_layer_param {
	TR_NORM1, TR_Q, TR_Q_BIAS, TR_K, TR_K_BIAS, TR_V, TR_V_BIAS, TR_O, TR_NORM2, TR_GATE, TR_UP,
	TR_DOWN, TR_LAYER_PARAMS
};
struct tr_registry {
	struct tr_param *param;
	int n;
	int64_t weights;                /* items of a flat buffer of weights; padding is zero */
	int64_t gradients;              /* of one of gradients; a tied head is behind the weights */
	int64_t distinct;               /* items without padding and tied parameters */
	int embedding, norm, head;      /* numbers; the head may be tied to the embedding */
	int *layer;                     /* [layers * TR_LAYER_PARAMS]; -1: absent */
};
int tr_registry_make(struct tr_registry *r, const struct tr_model_config *c, struct tr_error *err);
void tr_registry_release(struct tr_registry *r);
/* Returns the sum of tr_item_hash over all parameters that are not tied, for share i of n of the
 * items of each. The shares add up to the hash of the model. */
uint64_t tr_registry_hash(const struct tr_registry *r, const float *weights, int64_t i, int64_t n);
/* Sets the initial weights: matrices are drawn from a normal distribution with deviation `range`,
 * vectors have their fill. An item depends only on the seed, the name and its index. */
void tr_registry_draw(const struct tr_registry *r, float *weights, uint64_t seed, double range);
#endif
