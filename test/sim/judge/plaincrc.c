/* SPDX-License-Identifier: Apache-2.0 */
#include "plaincrc.h"

#include <string.h>

uint64_t plain_crc(const void *bytes, size_t n)
{
	static uint64_t by[8][256];     /* effect of a byte, and of one that so many bytes follow */
	uint64_t c = ~UINT64_C(0), x;
	const uint8_t *p = bytes;

	for (unsigned i = 0; !by[7][255] && i < 256; i++) {
		x = i;
		for (int k = 0; k < 64; k++) {
			x = (x >> 1) ^ (x & 1 ? UINT64_C(0x9A6C9329AC4BC9B5) : 0);
			if (k % 8 == 7)
				by[k / 8][i] = x;
		}
	}
	for (; n >= 8; n -= 8, p += 8) {
		memcpy(&x, p, 8);
		x ^= c;
		c = 0;
		for (int k = 0; k < 8; k++)
			c ^= by[7 - k][x >> (8 * k) & 255];
	}
	while (n--)
		c = (c >> 8) ^ by[0][(c ^ *p++) & 255];
	return ~c;
}
