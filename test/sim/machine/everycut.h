/* SPDX-License-Identifier: Apache-2.0 */
/* Tries every power cut since a simulated disk was settled, with the useful sets of unsynced items
 * at each cut, some of them torn. Each different state that results is judged once. Also the main
 * of programs that do so. */
#ifndef EVERYCUT_H
#define EVERYCUT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "simdisk.h"

/* Options of the command line, and counts */
struct everycut_opt {
	uint64_t seed, states, distinct;
	bool all;                       /* --long: without the limits below */
};
extern struct everycut_opt everycut;

struct everycut_hunt {
	struct simdisk *disk;           /* borrowed */
	size_t first, stride;           /* cuts from `first` on, every stride-th; 0: all */
	unsigned all_max, small_max;    /* as in simdisk_sets; --long has its own */
	uint64_t seeded;
	size_t torn_all;                /* with at most so many items, every set is also torn, at
	                                 * 512 and at 4096; with more, every eighth set is; --long:
	                                 * always every set */
	/* Returns a number that differs between two cuts if the promises differ. */
	uint64_t (*promised)(const void *story, int64_t cut);
	/* Returns what is wrong with the state after the cut, or "". The judge may change the
	 * disk. */
	const char *(*judge)(const void *story, struct simdisk *disk, int64_t cut,
	                     char why[300]);
	const void *story;              /* borrowed */
};
/* Returns true if all states are right. Otherwise the first wrong one is printed. */
bool everycut_hunt(const struct everycut_hunt *h, char why[400]);

/* Parses --long and --seed N, and passes the rest to run. Returns the exit status of run. */
int everycut_main(int argc, char **argv, int (*run)(int argc, char **argv));
#endif
