/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-64/NVME, portable: sixteen bytes a turn by table.
 *
 * A word is a polynomial over GF(2), reflected: bit 63 - i is the coefficient of x^i. The raw CRC
 * of a message is the message times x^64 modulo P, so a run that n bytes follow counts in the whole
 * as its own raw CRC times x^(8n), and parts add by XOR. */
#include "crc64.h"

#include <string.h>
#include "crc64_tab.h"  /* made by tools/crctab.c */

#define POLY UINT64_C(0x9a6c9329ac4bc9b5)
#define ONE (UINT64_C(1) << 63)
#define ALL UINT64_MAX

static uint64_t times_x(uint64_t v)
{
	return v >> 1 ^ (POLY & (0 - (v & 1)));
}

/* Eight coefficients of a at a time, the highest powers of x first. by[0] is the multiples of b by
 * the four higher of them, by[1] by the four lower. */
static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t by[2][16] = { { 0 }, { 0 } }, product = 0;

	for (int k = 1; k >= 0; k--)
		for (unsigned bit = 8; bit; bit >>= 1, b = times_x(b))
			by[k][bit] = b;
	for (int k = 0; k < 2; k++)
		for (unsigned i = 3; i < 16; i++)
			by[k][i] = by[k][i & (i - 1)] ^ by[k][i & (0 - i)];
	for (int i = 0; i < 64; i += 8)
		product = product >> 8 ^ crc64_slice[0][product & 255] ^ by[0][a >> i & 15] ^
			  by[1][a >> i >> 4 & 15];
	return product;
}

/* x^(8n): a factor a byte of n. */
static uint64_t zeros(uint64_t n)
{
	uint64_t product = ONE;

	for (int k = 0; n; k++, n >>= 8)
		if (n & 255)
			product = product == ONE ? crc64_zeros[k][n & 255] :
				  times(product, crc64_zeros[k][n & 255]);
	return product;
}

/* Here and not by a call, for the speed of the loop below. */
static inline uint64_t load64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	v = __builtin_bswap64(v);
#endif
	return v;
}

uint64_t shf_crc64_raw(uint64_t crc, const void *bytes, size_t n)
{
	const uint64_t (*t)[256] = crc64_slice;
	const uint8_t *p = bytes;

	for (; n >= 16; n -= 16, p += 16) {
		uint64_t a = load64(p) ^ crc, b = load64(p + 8);

		crc = t[15][a & 255] ^ t[14][a >> 8 & 255] ^ t[13][a >> 16 & 255] ^
		      t[12][a >> 24 & 255] ^ t[11][a >> 32 & 255] ^ t[10][a >> 40 & 255] ^
		      t[9][a >> 48 & 255] ^ t[8][a >> 56] ^
		      t[7][b & 255] ^ t[6][b >> 8 & 255] ^ t[5][b >> 16 & 255] ^
		      t[4][b >> 24 & 255] ^ t[3][b >> 32 & 255] ^ t[2][b >> 40 & 255] ^
		      t[1][b >> 48 & 255] ^ t[0][b >> 56];
	}
	for (; n; n--, p++)
		crc = crc >> 8 ^ t[0][(crc ^ *p) & 255];
	return crc;
}

uint64_t shf_crc64_copy(uint64_t crc, void *restrict to, const void *restrict from, size_t n,
                        bool past_cache)
{
	(void)past_cache;
	memcpy(to, from, n);
	return shf_crc64_raw(crc, to, n);
}

uint64_t shf_crc64_more(uint64_t crc, const void *bytes, size_t n)
{
	return shf_crc64_raw(crc ^ ALL, bytes, n) ^ ALL;
}

uint64_t shf_crc64(const void *bytes, size_t n)
{
	return shf_crc64_more(0, bytes, n);
}

uint64_t shf_crc64_shift(uint64_t crc, uint64_t n)
{
	/* Most sums of a plan are of nothing, and most shifts go nowhere. */
	return crc && n ? times(crc, zeros(n)) : crc;
}

uint64_t shf_crc64_ones(uint64_t n)
{
	return shf_crc64_shift(ALL, n) ^ ALL;
}

uint64_t shf_crc64_join(uint64_t a, uint64_t b, uint64_t b_bytes)
{
	/* What init and xorout added to a is exactly what b's own init takes away again. */
	return shf_crc64_shift(a, b_bytes) ^ b;
}

void shf_crc64_by_init(struct shf_crc64_by *by, uint64_t n)
{
	uint64_t factor = zeros(n);

	for (int k = 7; k >= 0; k--) {
		uint64_t *t = by->t[k];

		t[0] = 0;
		for (unsigned bit = 128; bit; bit >>= 1, factor = times_x(factor))
			t[bit] = factor;
		for (unsigned b = 1; b < 256; b++)
			t[b] = t[b & (b - 1)] ^ t[b & (0 - b)];
	}
}

uint64_t shf_crc64_by(const struct shf_crc64_by *by, uint64_t crc)
{
	uint64_t product = 0;

	for (int k = 0; k < 8; k++)
		product ^= by->t[k][crc >> 8 * k & 255];
	return product;
}
