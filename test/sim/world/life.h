/* SPDX-License-Identifier: Apache-2.0 */
/* The whole life of a run, derived from one number: jobs of one to four ranks on one or two nodes
 * that save, load, prune, rewind and mark, and their troubles: calls that fail, ranks that die,
 * hang or are late, clocks that jump, memory and disk space that run out, a second job, and after
 * any call a power cut with any possible loss. After each job, ledger.h judges the disk. */
#ifndef LIFE_H
#define LIFE_H
#include <stdio.h>
#include "ledger.h"

enum trouble {
	T_CALL, T_RENAME, T_FSYNC, T_KILL, T_DIE, T_LATE, T_STARVE, T_CLOCK, T_SPACE, T_RIVAL,
	TROUBLES
};
struct life_counts {            /* only uint64_t: they are added up word by word */
	uint64_t lives, jobs, deeds, deeds_done, cuts, judged, loads;
	uint64_t met[TROUBLES];         /* jobs that met it */
	uint64_t failing_calls, quiet;
};
extern const char *const life_troubles[TROUBLES];

/* Failing allocations; the program provides these functions, see starve.h. */
struct life_starve {
	void (*begin)(long nth);        /* on this thread, the nth allocation from now on fails */
	bool (*end)(void);              /* ends that; returns whether one failed */
};
/* Runs the life of that number. Returns "" or what went wrong. Frees everything. story: receives
 * what happens; may be NULL. flaw: the nth fsync of each job is skipped, which the judge must
 * notice. */
const char *life_run(uint64_t seed, const struct life_starve *starve, long flaw,
                     struct life_counts *counts, FILE *story, char why[600]);
#endif
