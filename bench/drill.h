/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a rank in a training step, so that a save has something to slow down: matrix
 * products, a sum of gradients over the ranks, Adam over all that the rank holds.
 *
 * The work is counted, not timed: if a save takes a core or memory bandwidth away, it lasts longer.
 * The new value of an item depends only on its old value, its place in its box and the step, so
 * that replicas and tied tensors stay equal. */
#ifndef DRILL_H
#define DRILL_H
#include "bench.h"

struct drill_opts {
	int threads;                    /* for the products, including the caller */
	size_t grad_items;              /* equal on all ranks */
	bool adam;                      /* a rank that holds a part of a parameter holds Adam's
	                                 * moments of that part, too; false: each byte is changed by
	                                 * itself */
};
struct drill;
/* Uses the memory of `held`, which stays the caller's. */
int drill_new(struct drill **d, const struct wl_held *held, const struct wl_model *model,
              const struct drill_opts *opts, struct sheaf_error *err);
void drill_free(struct drill *d);
/* Sets the moments to zero, because a negative value has no square root. */
void drill_start(struct drill *d);
/* Runs forward and backward: `units` products of about 4 million multiply-adds each. */
void drill_compute(struct drill *d, int64_t units);
/* Makes the gradients of a step and sums them over the ranks. All ranks must call this. */
int drill_reduce(struct drill *d, const struct bench_comm *c, int64_t step,
                 struct sheaf_error *err);
/* Changes every piece, maybe every byte of it; calls gate for each piece just before. */
void drill_update(struct drill *d, int64_t step, void (*gate)(void *arg, int piece), void *arg);
#endif
