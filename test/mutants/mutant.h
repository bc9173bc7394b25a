/* SPDX-License-Identifier: Apache-2.0 */
/* Which planted bug is awake. In builds with -Dmutants=true alone: each planted source begins by
 * including this. shf_mutant is written to once, before main. */
#ifndef MUTANT_H
#define MUTANT_H
#include "mutant_names.h" /* made by plant */

/* -1: none is awake, and the places that are reached are written down. Libraries beside this one
 * are planted too, so the two are seen outside it. */
extern __attribute__((visibility("default"))) int shf_mutant;
__attribute__((visibility("default"))) _Bool shf_mutant_reached(int mutant); /* returns false */

/* In a build with -DMUTANT_CLOSER each unlock is checked: the program stops if nobody holds the
 * lock. */
#ifdef MUTANT_CLOSER
#include <pthread.h>
int shf_mutant_unlock(pthread_mutex_t *lock);
#define pthread_mutex_unlock(lock) shf_mutant_unlock(lock)
#endif

#define MUTANT(name)                                                                  \
	((_Bool)(__builtin_expect(shf_mutant < 0, 0)                                  \
	         ? shf_mutant_reached(MUTANT_##name)                                  \
	         : __builtin_expect(shf_mutant == MUTANT_##name, 0)))
#endif
