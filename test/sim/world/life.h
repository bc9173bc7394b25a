/* SPDX-License-Identifier: Apache-2.0 */
/* The whole life of a run, drawn from one number: jobs of one to four ranks on one or two nodes
 * that save, load, prune, rewind and mark, and what befalls them: calls that fail, ranks that die,
 * hang or come late, clocks that jump, memory and disk that run out, a second job, and after any
 * call a power cut with any legal loss. After each job the disk is judged by ledger.h. */
#ifndef LIFE_H
#define LIFE_H
#include <stdio.h>
#include "ledger.h"

enum trouble {
	T_CALL, T_RENAME, T_FSYNC, T_KILL, T_DIE, T_LATE, T_STARVE, T_CLOCK, T_SPACE, T_RIVAL,
	TROUBLES
};
struct life_counts {            /* all uint64_t: they are added up word by word */
	uint64_t lives, jobs, deeds, deeds_done, cuts, judged, loads;
	uint64_t met[TROUBLES];         /* jobs that met it */
	uint64_t failing_calls, quiet;
};
extern const char *const life_troubles[TROUBLES];

/* Of memory: the program provides it, see starve.h. */
struct life_starve {
	void (*begin)(long nth);        /* on this thread, the nth allocation from now fails */
	bool (*end)(void);              /* no more; did one? */
};
/* The life of that number: "" or what went wrong. Leaves nothing behind. story: what happens goes
 * there; NULL: nowhere. flaw: the nth fsync of each job is left out, which the judge must find. */
const char *life_run(uint64_t seed, const struct life_starve *starve, long flaw,
                     struct life_counts *counts, FILE *story, char why[600]);
#endif
