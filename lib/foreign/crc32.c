/* SPDX-License-Identifier: Apache-2.0 */
/* Eight bytes a step by eight tables (M. Kounavis, F. Berry, "A Systematic Approach to Building
 * High Performance Software-based CRC Generators", 2005), or 64 bytes a step by carry-less
 * multiplication, which is several times as fast. base/crc64_pass.c explains how: a lane of 16
 * bytes is replaced by what it is worth some bytes further on. */
#include "crc32.h"
#include "mem.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Returns x^n modulo the polynomial, as a word whose highest bit is the coefficient of x^0. */
static uint64_t power(uint32_t polynomial, unsigned n)
{
	uint32_t v = UINT32_C(1) << 31;

	while (n--)
		v = v >> 1 ^ (v & 1 ? polynomial : 0);
	return (uint64_t)v << 32;
}

static void crc32_init(struct shf_crc32 *c, uint32_t polynomial)
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
	/* The exponents are one less than the distances, because PCLMULQDQ multiplies by x, too.
	 * The first word of a lane is 64 bits further from the end than the second. */
	for (unsigned i = 0; i < 2; i++) {
		unsigned bits = i ? 512 : 128;

		c->ahead[i][0] = power(polynomial, bits + 64 - 1);
		c->ahead[i][1] = power(polynomial, bits - 1);
	}
}

void shf_crc32_init(struct shf_crc32 *c)
{
	crc32_init(c, 0xedb88320u);
}

void shf_crc32c_init(struct shf_crc32 *c)
{
	crc32_init(c, 0x82f63b78u);
}

/* Continues a sum without its init and xorout. */
static uint32_t crc32_by_table(const struct shf_crc32 *c, uint32_t sum, const uint8_t *p, size_t n)
{
	const uint32_t (*t)[256] = c->table;

	for (; n >= 8; n -= 8, p += 8) {
		uint32_t a = shf_get32(p) ^ sum, b = shf_get32(p + 4);

		sum = t[7][a & 0xff] ^ t[6][a >> 8 & 0xff] ^ t[5][a >> 16 & 0xff] ^ t[4][a >> 24] ^
		      t[3][b & 0xff] ^ t[2][b >> 8 & 0xff] ^ t[1][b >> 16 & 0xff] ^ t[0][b >> 24];
	}
	for (; n; n--, p++)
		sum = sum >> 8 ^ t[0][(sum ^ *p) & 0xff];
	return sum;
}

#if defined(__x86_64__)
#define ON __attribute__((target("pclmul")))
#define STEP ((size_t)64)

static inline __m128i lane_at(const void *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

/* Moves a lane ahead by the distance of the factors `by`, and adds it to the lane there, next. */
ON static inline __m128i fold(__m128i lane, __m128i by, __m128i next)
{
	return _mm_xor_si128(next, _mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00),
	                                         _mm_clmulepi64_si128(lane, by, 0x11)));
}

/* Does what crc32_by_table() does, for one or more whole steps. The four lanes of the last step
 * become one, of which the table makes the sum. */
ON static uint32_t crc32_by_product(const struct shf_crc32 *c, uint32_t sum, const uint8_t *p,
                                    size_t n)
{
	__m128i near = lane_at(c->ahead[0]), far = lane_at(c->ahead[1]), v[4];
	uint8_t last[16];

	for (int i = 0; i < 4; i++)
		v[i] = lane_at(p + 16 * i);
	v[0] = _mm_xor_si128(v[0], _mm_cvtsi32_si128((int)sum));
	while ((n -= STEP) > 0) {
		p += STEP;
		for (int i = 0; i < 4; i++)
			v[i] = fold(v[i], far, lane_at(p + 16 * i));
	}
	for (int i = 1; i < 4; i++)
		v[i] = fold(v[i - 1], near, v[i]);
	_mm_storeu_si128((__m128i *)(void *)last, v[3]);
	return crc32_by_table(c, 0, last, sizeof(last));
}

/* Does what crc32_by_table() does, in the faster way that this processor has. */
static uint32_t crc32_raw(const struct shf_crc32 *c, uint32_t sum, const uint8_t *p, size_t n)
{
	size_t steps = __builtin_cpu_supports("pclmul") ? n / STEP * STEP : 0;

	if (steps)
		sum = crc32_by_product(c, sum, p, steps);
	return crc32_by_table(c, sum, p + steps, n - steps);
}
#else
#define crc32_raw crc32_by_table
#endif

uint32_t shf_crc32_more(const struct shf_crc32 *c, uint32_t sum, const void *bytes, size_t n)
{
	return ~crc32_raw(c, ~sum, bytes, n);
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
