/* SPDX-License-Identifier: Apache-2.0 */
/* From the lowest digit of the key to the highest, each pass keeping the order of the one before.
 * Digits that are the same in all keys cost nothing. */
#include "sort.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DIGIT 11                        /* bits of a digit: the counters of a pass fit the first
                                         * cache */
#define DIGITS (UINT32_C(1) << DIGIT)
#define FEW 48                          /* fewer words are sorted by insertion */

/* Sorts by insertion. This is stable: a word never moves past one of an equal key. */
static void insert_each(uint64_t *words, size_t n)
{
	for (size_t i = 1; i < n; i++) {
		uint64_t word = words[i];
		size_t at = i;

		for (; at > 0 && shf_key_of(words[at - 1]) > shf_key_of(word); at--)
			words[at] = words[at - 1];
		words[at] = word;
	}
}

/* Sorts by one digit, stably. The count of a digit is stored one place after it, so that after the
 * prefix sums at[d] is where digit d begins. */
static void radix_pass(const uint64_t *from, uint64_t *to, size_t n, int shift)
{
	size_t at[DIGITS + 1] = { 0 };

	for (size_t i = 0; i < n; i++)
		at[(shf_key_of(from[i]) >> shift) % DIGITS + 1]++;
	for (size_t d = 1; d < DIGITS; d++)
		at[d] += at[d - 1];
	for (size_t i = 0; i < n; i++)
		to[at[(shf_key_of(from[i]) >> shift) % DIGITS]++] = from[i];
}

/* `differ` has a bit wherever any two keys differ, so passes over digits that are equal in all
 * keys are left out. Three digits of 11 bits cover the 32 bits of a key. The two arrays change
 * places with each pass; an odd number of passes ends in the spare one. */
void shf_keys_sort(uint64_t *words, uint64_t *spare, size_t n)
{
	uint64_t *from = words, *to = spare;
	uint32_t differ = 0;
	bool ascend = true;

	for (size_t i = 1; i < n; i++) {
		differ |= shf_key_of(words[i] ^ words[0]);
		ascend = ascend && shf_key_of(words[i - 1]) <= shf_key_of(words[i]);
	}
	if (ascend)
		return;
	if (n < FEW) {
		insert_each(words, n);
		return;
	}
	for (int shift = 0; shift < 32; shift += DIGIT) {
		uint64_t *swap = from;

		if ((differ >> shift) % DIGITS == 0)
			continue;
		radix_pass(from, to, n, shift);
		from = to;
		to = swap;
	}
	if (from != words)
		memcpy(words, from, n * sizeof(*words));
}

void shf_records_sort(void *a, size_t n, size_t bytes, int (*order)(const void *, const void *))
{
	const char *p = a;
	size_t i = 1;

	for (; i < n && order(p, p + bytes) <= 0; i++)
		p += bytes;
	if (i < n)
		qsort(a, n, bytes, order);
}
