/* SPDX-License-Identifier: Apache-2.0 */
/* The model that train.c trains: a few matrices and Adam, with ZeRO-1 over MPI. Every rank has the
 * BF16 weights whole, and F32 master weights and moments of its own range of each matrix. */
#ifndef TOY_MODEL_H
#define TOY_MODEL_H
#include <stdint.h>

#define LAYERS 3
#define ROWS 37
#define COLS 16
#define ITEMS (ROWS * COLS)
#define BATCH 8

struct layer {
	uint16_t weight[ITEMS];                 /* BF16 */
	float master[ITEMS], moment1[ITEMS], moment2[ITEMS];    /* the first `count` are used */
};
struct model {
	int rank, ranks, first, count;          /* this rank's range of each layer's items */
	struct layer layers[LAYERS];
	uint64_t rng;                           /* random numbers of this rank */
	/* Called before a layer (the generator: -1) changes. */
	void (*before_change)(void *arg, int layer);
	void *arg;
};

void model_init(struct model *m, int rank, int ranks);
/* Reads the weights and returns the loss. Changes the generator. */
double model_forward_backward(struct model *m);
/* Changes weights, master weights and moments, one layer after the other. */
void model_optimizer_step(struct model *m);
#endif
