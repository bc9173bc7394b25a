/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank does in a training step, so that a save has something to slow down: products of
 * matrices, a sum of gradients over the ranks, Adam over all that it holds.
 *
 * The work is counted, not timed: a save that takes a core or the memory away makes it last longer.
 * What an item becomes depends on its old value, its place in its box and the step, so that
 * replicas and tied tensors stay equal. */
#ifndef DRILL_H
#define DRILL_H
#include "bench.h"

struct drill_opts {
	int threads;                    /* for the products, this one included */
	size_t grad_items;              /* equal on all ranks */
	bool adam;                      /* of what a rank holds of a parameter it holds all of
	                                 * Adam's; false: each byte changes by itself */
};
struct drill;
/* Memory of held is used, not owned. */
int drill_new(struct drill **d, const struct wl_held *held, const struct wl_model *model,
              const struct drill_opts *opts, struct sheaf_error *err);
void drill_free(struct drill *d);
/* Moments become zero: values of any sign have no square root. */
void drill_start(struct drill *d);
/* Forward and backward: units of about 4 million multiplications and additions. */
void drill_compute(struct drill *d, int64_t units);
/* Makes gradients of step and sums them over the ranks. All ranks. */
int drill_reduce(struct drill *d, const struct bench_comm *c, int64_t step,
                 struct sheaf_error *err);
/* Every byte of every piece may change; gate hears of each piece just before. */
void drill_update(struct drill *d, int64_t step, void (*gate)(void *arg, int piece), void *arg);
#endif
