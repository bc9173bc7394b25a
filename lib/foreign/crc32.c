/* SPDX-License-Identifier: Apache-2.0 */
/* Eight bytes a step by eight tables (M. Kounavis, F. Berry, "A Systematic Approach to Building
 * High Performance Software-based CRC Generators", 2005). */
#include "crc32.h"
#include "mem.h"

static void make_tables(struct shf_crc32 *c, uint32_t polynomial)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t v = i;

		for (int bit = 0; bit < 8; bit++)
			v = v >> 1 ^ (v & 1 ? polynomial : 0);
		c->table[0][i] = v;
	}
	for (int k = 1; k < 8; k++)
		for (uint32_t i = 0; i < 256; i++)
			c->table[k][i] = c->table[k - 1][i] >> 8 ^
			                 c->table[0][c->table[k - 1][i] & 0xff];
}

void shf_crc32_init(struct shf_crc32 *c)
{
	make_tables(c, 0xedb88320u);
}

void shf_crc32c_init(struct shf_crc32 *c)
{
	make_tables(c, 0x82f63b78u);
}

uint32_t shf_crc32_more(const struct shf_crc32 *c, uint32_t sum, const void *bytes, size_t n)
{
	const uint32_t (*t)[256] = c->table;
	const uint8_t *p = bytes;

	sum = ~sum;
	for (; n >= 8; n -= 8, p += 8) {
		uint32_t a = shf_get32(p) ^ sum, b = shf_get32(p + 4);

		sum = t[7][a & 0xff] ^ t[6][a >> 8 & 0xff] ^ t[5][a >> 16 & 0xff] ^ t[4][a >> 24] ^
		      t[3][b & 0xff] ^ t[2][b >> 8 & 0xff] ^ t[1][b >> 16 & 0xff] ^ t[0][b >> 24];
	}
	for (; n; n--, p++)
		sum = sum >> 8 ^ t[0][(sum ^ *p) & 0xff];
	return ~sum;
}

/* Multiplies two polynomials modulo that of the sum. The highest bit is the coefficient of x^0. */
static uint32_t crc32_times(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (uint32_t bit = UINT32_C(1) << 31; bit; bit >>= 1) {
		product ^= a & bit ? b : 0;
		b = b >> 1 ^ (b & 1 ? 0xedb88320u : 0);
	}
	return product;
}

uint32_t shf_crc32_shift(uint32_t sum, uint64_t n)
{
	uint32_t factor = UINT32_C(1) << 23;    /* x^8 */

	for (; n; n >>= 1) {
		if (n & 1)
			sum = crc32_times(sum, factor);
		factor = crc32_times(factor, factor);
	}
	return sum;
}
