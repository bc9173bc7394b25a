/* SPDX-License-Identifier: Apache-2.0 */
/* The list of the parameters of a model, and the shard of each that this rank has. Allocation,
 * initialisation, the optimizer, the hash and checkpoints all work from it. */
#ifndef REGISTRY_H
#define REGISTRY_H
#include <stdint.h>

#include "modelconfig.h"
#include "sumtree.h"

struct tr_param {
	char name[96];                  /* of Hugging Face */
	uint64_t crc;                   /* of the name */
	int ndim;
	int64_t shape[2];               /* of the whole parameter; a vector is [n, 1] */
	/* The dimension that is cut into pieces; -1: each rank has the whole parameter. Its
	 * shape[axis] / unit units are cut by tr_cut; the items of a unit stay together. */
	int axis;
	int64_t unit;
	int64_t start[2], count[2];     /* the box of this rank */
	int64_t items;                  /* of the box */
	int64_t offset;                 /* in a flat buffer of weights or gradients */
	int copy;                       /* the first stage of a pipeline has this parameter, too */
	/* -1, or the number of the parameter that has the weights of this one. Each of the two has
	 * a gradient of its own; they are added after the reduction. */
	int tied_to;
	int decay;                      /* weight decay applies */
	int matrix;                     /* it is a matrix of a layer, which Muon updates */
	float fill;                     /* initial value of a vector; matrices are drawn */
};
/* The parameters of a layer, in the order of the file. */
enum tr_layer_param {
	TR_NORM1, TR_Q, TR_Q_BIAS, TR_K, TR_K_BIAS, TR_V, TR_V_BIAS, TR_O, TR_NORM2, TR_GATE, TR_UP,
	TR_DOWN, TR_LAYER_PARAMS
};
/* A part of a model: consecutive layers [from, to). The embedding goes with the first layer, and
 * the final norm and the head with the last. */
struct tr_part {
	int64_t from, to;
	int slots;                      /* micro-batches whose activations are kept at once */
};
struct tr_parts {                       /* those of a rank, in ascending order */
	int n;
	const struct tr_part *part;
	int recompute;                  /* 1: a layer keeps its input only, and is computed again */
};
/* Parameters that this rank does not have are not in the list. */
struct tr_registry {
	struct tr_param *param;
	int n;
	struct tr_pieces pieces;        /* of the dimensions that are cut: those of this rank */
	/* A flat buffer of weights begins with the head that is a copy (see `shared`), if there is
	 * one. From item `counted` on it has the parameters that are cut, and from item `norms` on
	 * those of which each rank of tp has all. Padding is zero. */
	int64_t weights, counted, norms;
	/* One of gradients has the same items. The gradients of the norms are sums over tokens,
	 * which are cut into pieces. Those of the first piece of this rank are at `norms`, those of
	 * each other one after them. A tied head is at the end. */
	int64_t gradients;
	struct tr_pieces tokens;        /* the pieces of tokens of this rank */
	int64_t distinct;               /* items of the whole model, without tied parameters */
	int64_t matrices;               /* those of the matrices of layers */
	/* Numbers in `param`, or -1. The head may be tied to the embedding. If they are in two
	 * stages of a pipeline, each of the two has the weights: the last stage has a copy, which
	 * is its head, and `shared` is the number of the parameter in either. The gradients of the
	 * two have to be added. */
	int embedding, norm, head, shared;
	int64_t layers;                 /* of the whole model */
	int *layer;                     /* [layers * TR_LAYER_PARAMS]; -1: absent */
};
/* Makes the list for the rank that has these parts, these pieces of each dimension that is cut, and
 * sums the gradients of the norms over those pieces of the tokens. pieces->n divides the kv
 * heads. */
int tr_registry_make(struct tr_registry *r, const struct tr_model_config *c,
		     const struct tr_parts *parts, const struct tr_pieces *pieces,
		     const struct tr_pieces *tokens, struct tr_error *err);
void tr_registry_release(struct tr_registry *r);
/* Returns the items of the parameters of a layer that are cut into pieces, in a flat buffer of
 * gradients, or none if this rank does not have them. Layer -1 is the embedding, and the number of
 * layers is the head. */
struct tr_span tr_registry_layer(const struct tr_registry *r, int64_t layer);
/* Returns where piece `piece` of the dimension that is cut begins in the box of this rank. */
int64_t tr_param_cut(const struct tr_registry *r, const struct tr_param *p, int piece);
/* Returns the sum of tr_item_hash over items [from, to) of the box of a parameter, of which x is
 * the first. It is 0 for a parameter that does not count on this rank: a tied one, a copy, and one
 * that is not cut unless this rank has piece 0. So the items of all ranks add up to the hash of the
 * model. */
uint64_t tr_param_hash(const struct tr_registry *r, const struct tr_param *p, const float *x,
		       int64_t from, int64_t to);
/* Returns the sum of tr_param_hash over share i of n of each parameter. */
uint64_t tr_registry_hash(const struct tr_registry *r, const float *weights, int64_t i, int64_t n);
/* Sets x to the initial weights [from, to) of the box of a parameter: those of a matrix are drawn
 * from a normal distribution with deviation `range`, a vector has its fill. An item depends only on
 * the seed, the name and its index in the whole parameter. */
void tr_param_draw(const struct tr_param *p, float *x, int64_t from, int64_t to, uint64_t seed,
		   double range);
/* Sets all initial weights. */
void tr_registry_draw(const struct tr_registry *r, float *weights, uint64_t seed, double range);
#endif
