/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether copies use ordinary or non-temporal stores. One may be twice as fast as the
 * other; which one depends on the machine and is unknown beforehand. So the first large copies of
 * each save and each load use both in turn and are timed. */
#ifndef SHF_STREAMING_STORES_H
#define SHF_STREAMING_STORES_H
#include <stdbool.h>
#include <stdint.h>

#define SHF_NT_STORES_MIN (UINT64_C(64) << 10)     /* bytes; smaller copies are not timed */
#define SHF_NT_STORES_TURNS 16                     /* timed copies, half of them of each kind */
struct shf_nt_stores {             /* zeroed at first */
	uint64_t best[2];               /* least time of a byte, in 1/4096 ns; [1]: non-temporal */
	unsigned turns;                 /* copies timed so far */
};
/* Returns whether the next copy is to use non-temporal stores. */
static inline bool shf_nt_stores_next(const struct shf_nt_stores *s)
{
	return s->turns < SHF_NT_STORES_TURNS ? s->turns & 1 : s->best[1] < s->best[0];
}

/* Notes that the copy after the last shf_nt_stores_next took ns for `bytes` bytes. */
static inline void shf_nt_stores_took(struct shf_nt_stores *s, uint64_t bytes, int64_t ns)
{
	uint64_t *best = &s->best[s->turns & 1], cost;

	if (s->turns >= SHF_NT_STORES_TURNS || bytes < SHF_NT_STORES_MIN || ns < 0)
		return;
	cost = (uint64_t)ns * 4096 / bytes;
	*best = s->turns < 2 || cost < *best ? cost : *best;
	s->turns++;
}
#endif
