/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of a copy go through the caches or past them. Which way is faster differs between
 * machines, up to twice, and nothing tells beforehand: the first large copies of each save and each
 * load go both ways in turn and are timed. */
#ifndef SHF_STORE_WAY_H
#define SHF_STORE_WAY_H
#include <stdbool.h>
#include <stdint.h>

#define SHF_STORES_MIN (UINT64_C(64) << 10)     /* bytes; of less the time says little */
#define SHF_STORES_TURNS 16                     /* half of them each way */
struct shf_stores {             /* zeros at first */
	uint64_t best[2];               /* least 1/4096 ns a byte; [1]: past the caches */
	unsigned turns;
};
/* Whether the next copy is to go past the caches. */
static inline bool shf_stores_past(const struct shf_stores *s)
{
	return s->turns < SHF_STORES_TURNS ? s->turns & 1 : s->best[1] < s->best[0];
}

/* What that copy took. */
static inline void shf_stores_took(struct shf_stores *s, uint64_t bytes, int64_t ns)
{
	uint64_t *best = &s->best[s->turns & 1], cost;

	if (s->turns >= SHF_STORES_TURNS || bytes < SHF_STORES_MIN || ns < 0)
		return;
	cost = (uint64_t)ns * 4096 / bytes;
	*best = s->turns < 2 || cost < *best ? cost : *best;
	s->turns++;
}
#endif
