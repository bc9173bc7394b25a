/* SPDX-License-Identifier: Apache-2.0 */
/* Plays sequences: makes the calls in the world, reports them to the model, and compares the
 * two. */
#ifndef PLAY_H
#define PLAY_H
#include <stdio.h>
#include "call.h"

struct play_opts {
	uint64_t seed;
	int calls, ranks_max; /* maximum in a sequence */
	bool faults;
};
struct play_counts { /* only uint64_t: they are added up word by word */
	uint64_t sequences, calls, refused, looks, loads, faults_met;
	uint64_t kinds[CALL_KINDS], pairs[CALL_KINDS][CALL_KINDS];
};
struct sequence {
	struct call calls[CALLS_MAX];
	int n;
	uint64_t world; /* seed of the world */
	bool agents;
};
/* Draws a sequence and plays it until the model and the world disagree. Then returns false, with
 * the reason in why. s: the calls made. story: receives each call and its result; may be NULL. */
bool play_draw(const struct play_opts *o, struct sequence *s, struct play_counts *counts,
	       FILE *story, char why[500]);
/* Plays a given sequence. */
bool play_again(const struct sequence *s, FILE *story, char why[500]);
/* The same in a separate process, which a signal may kill; that is then the reason. */
bool play_apart(const struct sequence *s, char why[500]);
/* Shortens a failing sequence as far as possible by omitting and simplifying calls. again:
 * play_apart for a sequence that kills its process, else NULL. */
void play_shrink(struct sequence *s, bool (*again)(const struct sequence *s, char why[500]),
		 char why[500]);
#endif
