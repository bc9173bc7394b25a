/* SPDX-License-Identifier: Apache-2.0 */
/* Which way a disk is read faster, past the page cache or through it, is tried at the start of a
 * long read: some requests past the page cache, as many through it, the first half of each while
 * the other way's requests are still under way. */
#ifndef SHF_READ_WAY_H
#define SHF_READ_WAY_H
#include <stdbool.h>
#include <stdint.h>

struct shf_trial {              /* zeros at first, but for turn */
	uint64_t turn;                  /* requests each way: twice what is under way at a time */
	uint64_t started, done;
	int64_t from, ns[2];            /* [1]: through the page cache */
};
/* Past the page cache, unless the trial says or is about to say otherwise: the next request. */
static inline bool shf_trial_past(struct shf_trial *t)
{
	uint64_t i = t->started++;

	if (t->ns[1])
		return t->ns[0] <= t->ns[1] + t->ns[1] / 8;
	return i < t->turn || i >= 2 * t->turn;
}

/* The next in the order of their starts is done, now. */
static inline void shf_trial_done(struct shf_trial *t, int64_t now)
{
	t->done++;
	if (t->done % t->turn == t->turn / 2)
		t->from = now;
	if (t->done == t->turn)
		t->ns[0] = now - t->from;
	if (t->done == 2 * t->turn)
		t->ns[1] = now - t->from + 1;
}
#endif
