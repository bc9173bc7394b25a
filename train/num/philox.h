/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers without a state: Philox-4x32-10 of a key and a counter (Salmon et al., 2011).
 * Numbers depend only on the arguments, so they are the same in every layout. */
#ifndef PHILOX_H
#define PHILOX_H
#include <stdint.h>

enum tr_purpose {
	TR_RANDOM_INIT = 1, TR_RANDOM_SHUFFLE = 2,
	/* Dropout of the embedding, of probabilities, and of the outputs of attention and MLP. */
	TR_RANDOM_EMBEDDING = 3, TR_RANDOM_PROBABILITIES = 4, TR_RANDOM_ATTENTION = 5,
	TR_RANDOM_MLP = 6
};

/* Ten rounds of Philox on a 128-bit counter and a 64-bit key. */
void tr_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* Draws four random words: those of item `index` of the sequence `of`, which is the hash of a
 * tensor's name or the number of an epoch. */
void tr_random(uint64_t seed, enum tr_purpose purpose, uint64_t of, uint64_t index,
	       uint32_t out[4]);
/* Draws two normally distributed numbers: items 2 * pair and 2 * pair + 1 of the sequence `of`. */
void tr_random_normal(uint64_t seed, enum tr_purpose purpose, uint64_t of, uint64_t pair,
		      double out[2]);
#endif
