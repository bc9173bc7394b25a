/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting numbers, as plans do: many short keys that mostly come in order, or nearly. */
#ifndef SHF_KEYS_H
#define SHF_KEYS_H
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
#endif
