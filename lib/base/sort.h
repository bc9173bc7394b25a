/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting what mostly comes in order, or nearly: the short keys of plans, and whole records. */
#ifndef SHF_SORT_H
#define SHF_SORT_H
#include <stddef.h>
#include <stdint.h>

/* What is sorted and what it is for, in one word. */
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

/* By key, those of one key in the order they came. spare: room for n, which is spoilt. Time is
 * linear; where they ascend already it is one look. */
void shf_keys_sort(uint64_t *words, uint64_t *spare, size_t n);
/* qsort, which is left out where they ascend already. a may be NULL where n is 0. */
void shf_records_sort(void *a, size_t n, size_t bytes, int (*order)(const void *, const void *));
#endif
