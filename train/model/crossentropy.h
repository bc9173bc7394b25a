/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy over a vocabulary that is cut into pieces. */
#ifndef CROSSENTROPY_H
#define CROSSENTROPY_H
#include "tensorpar.h"

struct tr_crossentropy {
	struct tr_tensorpar *tp;        /* borrowed */
	const struct tr_registry *reg;  /* borrowed */
	const struct tr_param *head;    /* its rows are cut */
	struct tr_span has;             /* the tokens of this rank */
	/* max: the largest logit of each row; after these, for each rank, the largest ones of the
	 * logits that it has. node[i]: the sum of exponentials of each row over node i of this
	 * rank; after these the logits of the targets. */
	float *max, *node[TR_TREE_NODES_MAX];
};
/* rows_max  largest number of rows in a call
 * a         gives the memory */
void tr_crossentropy_init(struct tr_crossentropy *x, struct tr_tensorpar *tp,
			  const struct tr_registry *reg, int64_t rows_max, struct tr_arenas *a);
/* Computes the losses of rows [first, last) from their logits; that of a masked row is 0. With grad
 * the gradients of weight * scale * loss are written over the logits. [collective] */
int tr_crossentropy(struct tr_crossentropy *x, const struct tr_rows *rows, int64_t first,
		    int64_t last, float *logits, float *loss, double scale, int grad,
		    struct tr_error *err);
#endif
