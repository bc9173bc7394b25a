/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether a disk is read faster with direct I/O or through the page cache. The first
 * requests of a long read are a trial: `turn` of them use direct I/O, then as many use the page
 * cache. In each group the first half is not timed, because requests of the group before are still
 * in flight. */
#ifndef SHF_DIRECT_READS_H
#define SHF_DIRECT_READS_H
#include <stdbool.h>
#include <stdint.h>

struct shf_read_trial {              /* all zero at first, except for turn */
	uint64_t turn;                  /* requests in each group: twice as many as are in flight */
	uint64_t started, done;         /* numbers of requests started and finished */
	int64_t from, ns[2];            /* from: time when the timed half of a group began; ns: how
	                                 * long the two timed halves took, ns[0] with direct I/O,
	                                 * ns[1] through the page cache; 0: not known */
};
/* Counts the next request and returns whether it is to use direct I/O. The first `turn` requests
 * do, the next `turn` do not. The requests after these do until the result is known, and then
 * unless direct I/O was more than an eighth slower. */
static inline bool shf_read_trial_direct(struct shf_read_trial *t)
{
	uint64_t i = t->started++;

	if (t->ns[1])
		return t->ns[0] <= t->ns[1] + t->ns[1] / 8;
	return i < t->turn || i >= 2 * t->turn;
}

/* Call it when a request has finished, in the order in which requests were started. now: ns. */
static inline void shf_read_trial_done(struct shf_read_trial *t, int64_t now)
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
