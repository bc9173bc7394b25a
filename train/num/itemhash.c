/* SPDX-License-Identifier: Apache-2.0 */
#include "itemhash.h"

#include <string.h>

uint64_t tr_crc64_more(uint64_t crc, const void *bytes, size_t n)
{
	const unsigned char *byte = bytes;

	for (crc = ~crc; n > 0; n--) {
		crc ^= *byte++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x9A6C9329AC4BC9B5ULL : 0);
	}
	return ~crc;
}

uint64_t tr_crc64(const char *text)
{
	return tr_crc64_more(0, text, strlen(text));
}

uint64_t tr_splitmix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
	x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
	return x ^ x >> 31;
}

uint64_t tr_item_hash(uint64_t name_crc, const float *x, int64_t first, int64_t n)
{
	uint64_t sum = 0;

	for (int64_t i = 0; i < n; i++) {
		uint64_t at = name_crc + (uint64_t)(first + i + 1) * 0x9E3779B97F4A7C15ULL;
		uint32_t bits;

		memcpy(&bits, x + i, sizeof(bits));
		sum += (tr_splitmix(at) | 1) * bits;
	}
	return sum;
}
