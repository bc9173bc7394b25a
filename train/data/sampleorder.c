/* SPDX-License-Identifier: Apache-2.0 */
#include "sampleorder.h"

#include "philox.h"

enum { ROUNDS = 6 };

/* Permutes [0, 4^half) by a Feistel network on twice `half` bits. */
static uint64_t permute(uint64_t seed, uint64_t epoch, unsigned half, uint64_t x)
{
	uint64_t mask = ((uint64_t)1 << half) - 1, left = x >> half, right = x & mask;

	for (uint64_t round = 0; round < ROUNDS; round++) {
		uint32_t r[4];
		uint64_t next;

		tr_random(seed, TR_RANDOM_SHUFFLE, epoch, round << 32 | right, r);
		next = left ^ (((uint64_t)r[0] << 32 | r[1]) & mask);
		left = right;
		right = next;
	}
	return left << half | right;
}

int64_t tr_sample_at(uint64_t seed, int shuffle, int64_t n, int64_t position)
{
	uint64_t epoch = (uint64_t)(position / n), x = (uint64_t)(position % n);
	unsigned half = 1;

	if (!shuffle)
		return (int64_t)x;
	while ((uint64_t)1 << (2 * half) < (uint64_t)n)
		half++;
	/* If the result is n or more, it is permuted again until it is below n (cycle walking).
	 * The results for all x below n are then a permutation of [0, n). */
	do
		x = permute(seed, epoch, half, x);
	while (x >= (uint64_t)n);
	return (int64_t)x;
}

int64_t tr_epochs_positions(int64_t epochs, int64_t n)
{
	return epochs > INT64_MAX / n ? INT64_MAX : epochs * n;
}
