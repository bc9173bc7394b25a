/* SPDX-License-Identifier: Apache-2.0 */
/* Muon: the matrices of the layers are updated by their momentum, made nearly orthogonal by
 * Newton-Schulz iterations. They need a whole matrix, and the ranks of tp have parts of it. So each
 * matrix is collected on one of these ranks, which computes it and sends the parts back. */
#ifndef MUON_H
#define MUON_H
#include "adamw.h"
#include "arenas.h"

/* a       gives the scratch memory
 * tp      the ranks that have the parts of a matrix; borrowed
 * shares  borrowed; they cut no parameter. NULL: each rank of dp updates all items. */
int tr_muon_new(struct tr_muon **muon, const struct tr_registry *reg, struct tr_arenas *a,
		const struct tr_ranks *tp, const struct tr_shares *shares, struct tr_error *err);
void tr_muon_free(struct tr_muon *muon);
/* Updates the matrices of this rank from their directions, which are in `grad` and are overwritten.
 * a     has the masters and the weight decay
 * code  whether this rank can take part: the calls on all ranks of tp fail if it is not 0 on one
 * [collective] over tp */
int tr_muon_update(struct tr_muon *muon, const struct tr_adamw *a, void *weights, float *grad,
		   double lr, int code, struct tr_error *err);
#endif
