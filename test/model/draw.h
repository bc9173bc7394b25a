/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the next call: usually what a user would do in that state, sometimes a mistake. */
#ifndef DRAW_H
#define DRAW_H
#include "model.h"

/* Calls that a sequence has often: many bugs appear only if the same few calls are repeated. */
enum focus { F_ANY, F_RULES, F_AVERAGES, F_MOVES, F_BRANCHES };
struct draw {
	uint64_t state;
	enum focus focus;
	int next_id;
	int ranks_max;
	bool faults, real; /* real: without calls that need the simulated machine */
};
uint64_t draw_u(struct draw *d, uint64_t n); /* 0 .. n - 1 */
/* Draws a call whose objects exist. */
struct call draw_call(struct draw *d, struct model *m);
#endif
