/* SPDX-License-Identifier: Apache-2.0 */
/* Draws what happens next. Mostly what a user would do in that state, now and then what he should
 * not. */
#ifndef DRAW_H
#define DRAW_H
#include "model.h"

/* What a sequence is rich in: many things go wrong only where the same few calls come again. */
enum focus { F_ANY, F_RULES, F_AVERAGES, F_MOVES, F_BRANCHES };
struct draw {
	uint64_t state;
	enum focus focus;
	int next_id;
	int ranks_max;
	bool faults, real; /* real: what only a simulated machine has is left out */
};
uint64_t draw_u(struct draw *d, uint64_t n); /* 0 .. n - 1 */
/* A call that has what it speaks of. */
struct call draw_call(struct draw *d, struct model *m);
#endif
