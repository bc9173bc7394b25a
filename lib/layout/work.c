/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the segments and serves of a round in a rank's work. */
#include "work.h"
#include <string.h>

/* Finds the records of a round among n records of `size` bytes that are sorted by round; `round`
 * points to the member of that name in the first record. The beginning is found by halves, the end
 * by walking, since the caller will visit the records anyway. */
static struct shf_span span_of(const uint32_t *round, size_t size, size_t n, uint32_t want)
{
	const uint8_t *first = (const uint8_t *)round;
	struct shf_span s = { 0, n };
	uint32_t at;

	while (s.first < s.end) {
		size_t mid = s.first + (s.end - s.first) / 2;

		memcpy(&at, first + mid * size, sizeof(at));
		if (at < want)
			s.first = mid + 1;
		else
			s.end = mid;
	}
	for (; s.end < n; s.end++) {
		memcpy(&at, first + s.end * size, sizeof(at));
		if (at != want)
			break;
	}
	return s;
}

struct shf_span shf_work_segs(const struct shf_work *w, uint32_t round)
{
	return w->segs_n ? span_of(&w->segs->round, sizeof(*w->segs), w->segs_n, round)
	                 : (struct shf_span){ 0, 0 };
}

struct shf_span shf_work_serves(const struct shf_work *w, uint32_t round)
{
	return w->serves_n ? span_of(&w->serves->round, sizeof(*w->serves), w->serves_n, round)
	                   : (struct shf_span){ 0, 0 };
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
