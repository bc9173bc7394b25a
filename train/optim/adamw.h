/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW on the weights of a model, alone or beside Muon, the moving average of the weights, and the
 * norm of the gradient. */
#ifndef ADAMW_H
#define ADAMW_H
#include "backend.h"
#include "rankmesh.h"
#include "registry.h"
#include "zeroshares.h"

struct tr_muon;

struct tr_adamw {
	double beta1, beta2, eps, decay;
	/* Updates the matrices of the layers; borrowed. NULL: AdamW does. beta1 is their momentum,
	 * which is in m, and they have no second moments. */
	struct tr_muon *muon;
	/* With Muon, where the second moments of each parameter begin in v; owned by the caller.
	 * NULL: where the first ones begin in m. */
	int64_t *second;
	const struct tr_shares *shares; /* borrowed; NULL: this rank updates all items */
	float *m, *v;                   /* moments of the items of this rank, in their order */
	/* The fp32 weights of the same items, if the weights of the model have another type, and
	 * are these, rounded. NULL: the weights of the model are fp32. */
	float *master;
	/* The moving average (EMA) of the fp32 weights of the same items, and its decay. NULL:
	 * there is none. */
	float *ema;
	double ema_decay;
	int first;                      /* the parameter with which an update begins */
	int64_t step;                   /* updates that were made */
};
/* Called before a parameter and its moments change: waits until no save reads their memory, and for
 * an update until its gradient is there. */
struct tr_gate {
	int (*wait)(void *arg, int param, struct tr_error *err);
	void *arg;
};
/* Sets *norm to the norm of the whole gradient. A weight that several ranks have counts once. The
 * squares are added as integers, so the result has the same bits in any order and on any number of
 * ranks. The norm is NaN or infinite if an item is.
 * shares  of tr_leafgrads_new
 * grad    of tr_leafgrads_reduce. [collective] */
int tr_gradient_norm(const struct tr_registry *reg, const struct tr_isa *isa,
		     const struct tr_mesh *mesh, const struct tr_shares *shares, const float *grad,
		     double *norm, struct tr_error *err);
/* Returns the fp32 weights of a parameter that this rank updates, and sets *own to these items,
 * perhaps none. *at receives where the first of them is in the buffers of moments.
 * weights  of the model */
float *tr_adamw_of(const struct tr_adamw *a, const struct tr_param *p, void *weights,
		   struct tr_span *own, int64_t *at);
/* Returns where the gradients of items of this rank begin in those of tr_leafgrads_reduce; 0 if
 * there are none. */
int64_t tr_gradient_index(const struct tr_shares *s, struct tr_span own);
/* Returns the second moments of parameter i, whose first ones begin at m + at. */
float *tr_adamw_second(const struct tr_adamw *a, int i, int64_t at);
/* Brings the average of items of this rank up to date, if there is one. All code that updates
 * weights must call this for them afterwards.
 * at  where their average begins, and w their fp32 weights, as of tr_adamw_of */
void tr_adamw_average(const struct tr_adamw *a, const struct tr_isa *isa, int64_t at,
		      const float *w, int64_t n);
/* Makes an update of the items of this rank, with learning rate lr and the gradients multiplied by
 * scale. It changes the masters, or without them the weights of the model, and the average. When
 * it has returned 0, the gates of all parameters have been called, so that the weights of other
 * ranks may be received.
 * grad  overwritten with Muon
 * gate  NULL: no save can be in flight.
 * [local], [collective] over tp with Muon */
int tr_adamw_update(struct tr_adamw *a, const struct tr_registry *reg, const struct tr_isa *isa,
		    void *weights, float *grad, double lr, double scale,
		    const struct tr_gate *gate, struct tr_error *err);
#endif
