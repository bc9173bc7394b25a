/* SPDX-License-Identifier: Apache-2.0 */
/* What dead or living jobs left in a run, for a person to see. */
#ifndef SHF_LEFTOVERS_H
#define SHF_LEFTOVERS_H
#include "store.h"

struct shf_left {               /* members as in struct sheaf_leftover; the strings are valid during
                                 * the call of item only */
	int32_t kind, action;
	const char *why;
	int64_t step;                   /* -1: the entry is about no step */
	uint64_t bytes;
	int lives;
	bool whole;
	char path[96], session[33];
};
/* Calls item for the lock first, then for each damaged step, stage, step set aside, step in the
 * trash, directory of a flush, and interrupted rewind. A non-zero result of item ends the
 * listing and is returned. */
int shf_store_left(struct shf_store *s, int (*item)(void *arg, const struct shf_left *left),
                   void *arg, struct sheaf_error *err);
#endif
