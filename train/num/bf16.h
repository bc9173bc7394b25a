/* SPDX-License-Identifier: Apache-2.0 */
/* The types of items in memory. Arithmetic is in floats: an item of bf16 is widened when it is
 * read, and rounded to nearest, ties to even, when it is written. */
#ifndef BF16_H
#define BF16_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum tr_type { TR_F32, TR_BF16 };

static inline size_t tr_type_bytes(enum tr_type type)
{
	return type == TR_BF16 ? 2 : 4;
}

/* Returns the address of item i. */
static inline void *tr_item(enum tr_type type, const void *items, int64_t i)
{
	return (char *)(uintptr_t)items + i * (int64_t)tr_type_bytes(type);
}

/* An item of bf16 is the upper half of a float. */
static inline float tr_widen(uint16_t x)
{
	uint32_t bits = (uint32_t)x << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}
#endif
