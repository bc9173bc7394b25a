/* SPDX-License-Identifier: Apache-2.0 */
/* Every power cut of what a simulated disk did since it settled, with the sets of unsynced items
 * worth trying at each, some of them torn. Each different state that this leaves is judged once.
 * And the main of programs that do so. */
#ifndef EVERYCUT_H
#define EVERYCUT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "simdisk.h"

/* Of the program: its command line, and what it counted. */
struct everycut_opt {
	uint64_t seed, states, distinct;
	bool all;                       /* --long: the limits below do not hold */
};
extern struct everycut_opt everycut;

struct everycut_hunt {
	struct simdisk *disk;           /* borrowed */
	size_t first, stride;           /* the cuts from first on, each stride-th; 0: each */
	unsigned all_max, small_max;    /* as of simdisk_sets; with --long its own */
	uint64_t seeded;
	size_t torn_all;                /* up to so many items each set is torn too, at 512 and at
	                                 * 4096; beyond it each eighth; with --long each */
	/* A number that differs where what was promised at two cuts differs. */
	uint64_t (*promised)(const void *story, int64_t cut);
	/* What is wrong with the state the cut left, or "". The disk is the judge's to change. */
	const char *(*judge)(const void *story, struct simdisk *disk, int64_t cut,
	                     char why[300]);
	const void *story;              /* borrowed */
};
/* True: all is well. Otherwise the first wrong state is told. */
bool everycut_hunt(const struct everycut_hunt *h, char why[400]);

/* --long and --seed N are taken; the rest goes to run, whose exit status this is. */
int everycut_main(int argc, char **argv, int (*run)(int argc, char **argv));
#endif
