/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of a step: a buffer for each leaf that is being computed, merged as nodes of the
 * tree become complete, and at last added up over all ranks. */
#ifndef LEAFGRADS_H
#define LEAFGRADS_H
#include "backend.h"
#include "ranks.h"
#include "registry.h"

struct tr_leafgrads;

/* leaves  V, which the number of ranks divides. */
int tr_leafgrads_new(struct tr_leafgrads **lg, const struct tr_registry *reg,
		     struct tr_backend *be, const struct tr_ranks *ranks, int leaves,
		     struct tr_error *err);
void tr_leafgrads_free(struct tr_leafgrads *lg);
/* The leaves of this rank. */
void tr_leafgrads_range(const struct tr_leafgrads *lg, int *from, int *to);
/* The gradients of a leaf of this rank; zero when it is first asked for in a step. Leaves are
 * asked for in ascending order. NULL: no memory. */
float *tr_leafgrads_of(struct tr_leafgrads *lg, int leaf);
/* The leaf and all before it are complete. */
void tr_leafgrads_close(struct tr_leafgrads *lg, int leaf);
/* When all leaves are closed: sets *grad to the sum over the leaves of all ranks. The gradient of a
 * tied head is added to that of the embedding. Valid until the next tr_leafgrads_of.
 * [collective] */
int tr_leafgrads_reduce(struct tr_leafgrads *lg, float **grad, struct tr_error *err);
/* Largest number of buffers that were in use. */
int tr_leafgrads_buffers(const struct tr_leafgrads *lg);
#endif
