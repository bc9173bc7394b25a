/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW on the weights of a model, and the norm of its gradient. */
#ifndef ADAMW_H
#define ADAMW_H
#include "backend.h"
#include "ranks.h"
#include "registry.h"

struct tr_adamw {
	double beta1, beta2, eps, decay;
	float *m, *v;                   /* moments, as the flat buffer of weights */
	int64_t step;                   /* updates that were made */
};
/* Waits until the memory of a parameter may change: a save may still read it. */
struct tr_gate {
	int (*wait)(void *arg, int param, struct tr_error *err);
	void *arg;
};
/* Sets *norm to the norm of the gradient of all weights, by integers: no order, number of ranks or
 * cut changes it. NaN or infinite if an item is. [collective] */
int tr_gradient_norm(const struct tr_registry *reg, const struct tr_isa *isa,
		     const struct tr_ranks *ranks, const float *grad, double *norm,
		     struct tr_error *err);
/* Makes an update with rate lr and the gradients times scale. gate NULL: none. */
int tr_adamw_update(struct tr_adamw *a, const struct tr_registry *reg, const struct tr_isa *isa,
		    float *weights, const float *grad, double lr, double scale,
		    const struct tr_gate *gate, struct tr_error *err);
#endif
