/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of a step. Each leaf that is being computed has a buffer. The buffers of leaves
 * that are complete are added up to nodes of the tree, and in the end those of all ranks of dp. */
#ifndef LEAFGRADS_H
#define LEAFGRADS_H
#include "backend.h"
#include "rankmesh.h"
#include "registry.h"
#include "zeroshares.h"

struct tr_leafgrads;

/* leaves  of all ranks of dp, whose number divides it.
 * shares  borrowed; NULL: each rank gets the sums of all items. */
int tr_leafgrads_new(struct tr_leafgrads **lg, const struct tr_registry *reg,
		     struct tr_backend *be, const struct tr_mesh *mesh,
		     const struct tr_shares *shares, int leaves, struct tr_error *err);
void tr_leafgrads_free(struct tr_leafgrads *lg);
/* Sets *from and *to to the leaves [from, to) of this rank. */
void tr_leafgrads_range(const struct tr_leafgrads *lg, int *from, int *to);
/* Returns the buffer of a leaf of this rank. The first call for a leaf in a step makes it, filled
 * with zeros; these calls must come in ascending order of leaves. NULL: no memory. */
float *tr_leafgrads_of(struct tr_leafgrads *lg, int leaf);
/* Closes a leaf and all before it: nothing must be added to them any more. */
void tr_leafgrads_close(struct tr_leafgrads *lg, int leaf);
/* Sets *grad to the sum over the leaves of all ranks, for the items of this rank. Adds up the
 * gradients of the norms over the pieces of the tokens, and adds the gradient of a tied head to
 * that of the embedding. All leaves must be closed. *grad is valid until the next tr_leafgrads_of.
 * [collective] */
int tr_leafgrads_reduce(struct tr_leafgrads *lg, float **grad, struct tr_error *err);
#endif
