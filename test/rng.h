/* SPDX-License-Identifier: Apache-2.0 */
/* The random numbers of all tests: SplitMix64, the same from a seed on every machine. */
#ifndef RNG_H
#define RNG_H
#include <stdint.h>

/* Another number for each number, without any order. */
static inline uint64_t rng_mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/* The next number of a seed, which it changes. */
static inline uint64_t rng_next(uint64_t *seed)
{
	return rng_mix(*seed += UINT64_C(0x9E3779B97F4A7C15));
}

/* The next one, from 0 to n - 1. */
static inline int64_t rng_below(uint64_t *seed, int64_t n)
{
	return (int64_t)(rng_next(seed) % (uint64_t)n);
}
#endif
