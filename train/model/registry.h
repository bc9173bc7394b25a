/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a model: what allocation, initialisation, optimizer, hash and checkpoint
 * read. */
#ifndef REGISTRY_H
#define REGISTRY_H
#include <stdint.h>

#include "modelconfig.h"

enum tr_sum_group { TR_SUM_DENSE };     /* the ranks that add up its gradients */

struct tr_param {
	char name[96];                  /* of Hugging Face */
	uint64_t crc;                   /* of the name */
	int ndim;
	int64_t shape[2];
	int64_t items;
	int64_t offset;                 /* in a flat buffer of weights or gradients */
	/* -1, or the number of the parameter that owns the weights. This one has a gradient of its
	 * own all the same, behind the weights: both are added after the reduction. */
	int tied_to;
	int expert;                     /* its global number; -1: dense */
	enum tr_sum_group sum;
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
	int64_t gradients;              /* of gradients: more where the head is tied */
	int64_t distinct;               /* items without padding and tied ones */
	int embedding, norm, head;      /* numbers; head is tied_to the embedding, perhaps */
	int *layer;                     /* [layers * TR_LAYER_PARAMS]; -1: absent */
};
int tr_registry_make(struct tr_registry *r, const struct tr_model_config *c, struct tr_error *err);
void tr_registry_release(struct tr_registry *r);
/* Sum over all distinct parameters of tr_item_hash, for share i of n of the items of each. The
 * shares add up to the hash of the model. */
uint64_t tr_registry_hash(const struct tr_registry *r, const float *weights, int64_t i, int64_t n);
/* Draws the weights: matrices from a normal distribution, by name, row and column. */
void tr_registry_draw(const struct tr_registry *r, float *weights, uint64_t seed, double range);
#endif
