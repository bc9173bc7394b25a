/* SPDX-License-Identifier: Apache-2.0 */
/* Plays sequences: the calls are made in the world, told to the model, and the two are compared. */
#ifndef PLAY_H
#define PLAY_H
#include <stdio.h>
#include "call.h"

struct play_opts {
	uint64_t seed;
	int calls, ranks_max; /* of a sequence, at most */
	bool faults;
};
struct play_counts { /* all uint64_t: they are added up word by word */
	uint64_t sequences, calls, refused, looks, loads, faults_met;
	uint64_t kinds[CALL_KINDS], pairs[CALL_KINDS][CALL_KINDS];
};
struct sequence {
	struct call calls[CALLS_MAX];
	int n;
	uint64_t world; /* its seed */
	bool agents;
};
/* Draws a sequence and plays it, until the model and the world disagree: false, and why; s has the
 * calls that were made. story: each call and what came of it; NULL: nowhere. */
bool play_draw(const struct play_opts *o, struct sequence *s, struct play_counts *counts,
	       FILE *story, char why[500]);
/* Plays one that is given. */
bool play_again(const struct sequence *s, FILE *story, char why[500]);
/* The same in a process of its own, which may end by a signal: that is why, then. */
bool play_apart(const struct sequence *s, char why[500]);
/* The shortest that still fails, as far as leaving out calls and making them plainer gets. again:
 * play_apart for one that ends the process, else NULL. */
void play_shrink(struct sequence *s, bool (*again)(const struct sequence *s, char why[500]),
		 char why[500]);
#endif
