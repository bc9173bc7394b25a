/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting what mostly comes in order, or nearly: the short keys of plans, and whole records. */
#ifndef SHF_SORT_H
#define SHF_SORT_H
#include <stddef.h>
#include <stdint.h>

/* Packs a key and the item that it belongs to into one word. */
static inline uint64_t shf_key(uint32_t key, uint32_t item)
{
	return (uint64_t)key << 32 | item;
}

static inline uint32_t shf_key_of(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

static inline uint32_t shf_key_item(uint64_t word)
{
	return (uint32_t)word;
}

/* Sorts words by key, stably. spare has room for n words, which are overwritten. Takes linear time;
 * an array that is sorted already takes one pass. */
void shf_keys_sort(uint64_t *words, uint64_t *spare, size_t n);
/* Sorts n records of `bytes` bytes with qsort, unless they are sorted already. a may be NULL if n
 * is 0. */
void shf_records_sort(void *a, size_t n, size_t bytes, int (*order)(const void *, const void *));
#endif
