/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers drawn from a seed (SplitMix64), the same on every machine. */
#ifndef DRAWN_H
#define DRAWN_H
#include <stdint.h>

static inline uint64_t rnd(uint64_t *s)
{
	uint64_t z = *s += UINT64_C(0x9E3779B97F4A7C15);

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/* 0 .. n - 1 */
static inline int64_t below(uint64_t *s, int64_t n)
{
	return (int64_t)(rnd(s) % (uint64_t)n);
}
#endif
