/* SPDX-License-Identifier: Apache-2.0 */
/* The search for the latest step, in memory and on disk. */
#ifndef SHF_LATEST_SEARCH_H
#define SHF_LATEST_SEARCH_H
#include <stdbool.h>
#include <stdint.h>
#include "mem.h"

/* A step that may be the latest. Candidates are tried by number, the newest first; of one number
 * the copy in memory comes before the one on disk. In memory the steps of a later job come before
 * those of an earlier one, whatever their numbers: see shf_memory_steps_list. */
struct shf_candidate {
	int64_t step;
	bool memory;                    /* true: the copy in memory; false: the copy on disk */
};
#define SHF_FROM_THE_NEWEST ((struct shf_candidate){ INT64_MAX, false })
/* The position of a search for the latest step. If a candidate cannot be loaded, the search is
 * continued after it. */
struct shf_latest_search {
	struct shf_candidate after;     /* in: the search begins with the candidate after this */
	struct shf_candidate at;        /* out: the candidate that was found, even if it cannot be
	                                 * opened; step -1: no candidate is left. [rank 0] */
	struct shf_buf passed;          /* owned; for each candidate that was passed over: its name
	                                 * and the reason, two strings with their NULs. [rank 0] */
};
/* Returns the number below which candidates on disk are searched. */
static inline int64_t shf_latest_search_below(const struct shf_latest_search *s)
{
	return s->after.memory ? s->after.step + 1 : s->after.step;
}
/* Adds to s->passed a step that was passed over, and the reason. */
void shf_latest_search_pass(struct shf_latest_search *s, const char *name, const char *why);
#endif
