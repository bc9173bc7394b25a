/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of a step. Each leaf that is being computed has a buffer. The buffers of leaves
 * that are complete are added up to nodes of the tree, and in the end those of all ranks of dp. */
#ifndef LEAFGRADS_H
#define LEAFGRADS_H
#include "arenas.h"
#include "rankmesh.h"
#include "registry.h"
#include "zeroshares.h"

struct tr_leafgrads;

/* A call of tr_leafgrads_of for each leaf from `first` to `last`, and then one of
 * tr_leafgrads_close. */
struct tr_leafuse {
	int first, last;
	int close;                      /* -1: no call */
};
/* Returns how many buffers a rank of dp needs at once for the uses of a step, in this order. -1: no
 * memory. */
int tr_leafgrads_most(const struct tr_ranks *dp, int leaves, const struct tr_leafuse *use,
		      int64_t n);

/* a        gives the memory
 * shares   borrowed; NULL: each rank gets the sums of all items.
 * leaves   of all ranks of dp, whose number divides it.
 * buffers  how many there are: tr_leafgrads_most; 0: one for each leaf of this rank */
int tr_leafgrads_new(struct tr_leafgrads **lg, const struct tr_registry *reg,
		     struct tr_arenas *a, const struct tr_mesh *mesh,
		     const struct tr_shares *shares, int leaves, int buffers,
		     struct tr_error *err);
void tr_leafgrads_free(struct tr_leafgrads *lg);
/* Sets *from and *to to the leaves [from, to) of this rank. */
void tr_leafgrads_range(const struct tr_leafgrads *lg, int *from, int *to);
/* Returns the buffer of a leaf of this rank. The first call for a leaf in a step makes it, filled
 * with zeros; these calls must come in ascending order of leaves. NULL: there is no buffer left. */
float *tr_leafgrads_of(struct tr_leafgrads *lg, int leaf);
/* Returns how many buffers have been in use at once. */
int tr_leafgrads_used(const struct tr_leafgrads *lg);
/* Closes a leaf and all before it: nothing must be added to them any more. */
void tr_leafgrads_close(struct tr_leafgrads *lg, int leaf);
/* Sets *grad to the sum over the leaves of all ranks, for the items of this rank. Adds up the
 * gradients of the norms over the pieces of the tokens, and adds the gradient of a tied head to
 * that of the embedding. All leaves must be closed. *grad is valid until the next tr_leafgrads_of.
 * [collective] */
int tr_leafgrads_reduce(struct tr_leafgrads *lg, float **grad, struct tr_error *err);
#endif
