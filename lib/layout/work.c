/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the segments and serves of a round in a rank's work. */
#include "work.h"

/* Returns the index of the first segment whose round is not below `round`. That is 64 bits wide,
 * because SHF_ROUND_OWN + 1 does not fit 32. */
static size_t first_seg(const struct shf_work *w, uint64_t round)
{
	size_t lo = 0, hi = w->segs_n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (w->segs[mid].round < round)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static size_t first_serve(const struct shf_work *w, uint64_t round)
{
	size_t lo = 0, hi = w->serves_n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (w->serves[mid].round < round)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct shf_span shf_work_segs(const struct shf_work *w, uint32_t round)
{
	return (struct shf_span){ first_seg(w, round), first_seg(w, (uint64_t)round + 1) };
}

struct shf_span shf_work_serves(const struct shf_work *w, uint32_t round)
{
	return (struct shf_span){ first_serve(w, round), first_serve(w, (uint64_t)round + 1) };
}

/* Controls lie after the data of the largest round, one for each segment of all rounds, so a round
 * does not overwrite the controls of another. */
uint64_t shf_work_ctl(const struct shf_work *w, size_t i)
{
	return w->ctl_at + i * sizeof(struct shf_ctl);
}

void shf_work_release(struct shf_work *w)
{
	shf_arena_release(&w->arena);
	*w = (struct shf_work){ 0 };
}
