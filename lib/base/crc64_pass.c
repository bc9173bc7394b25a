/* SPDX-License-Identifier: Apache-2.0 */
/* The pass over bytes by carry-less multiplication: sum, or copy and sum. A template, not
 * compiled alone: the file that includes it says by the macros below how wide a vector is and which
 * instructions there are.
 *
 * A vector holds lanes of 16 bytes. The first word of a lane counts x^64 times what the second does
 * (bytes come highest power first), and d lanes that follow count it x^(128 d) more, so a lane with
 * the words a and b is a * x^(128 d + 64) + b * x^(128 d), modulo P the sum of two products with
 * constants, which leaves 128 bits to add to the lane d further on. This is folding as in
 * V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
 * Intel 2009. The instruction gives the product of two reflected words times x, so each constant
 * has one power of x less (tools/crctab.c makes them).
 *
 * What follows the last whole vectors is not folded from lane to lane but each lane at once to the
 * last one, by a row of constants with one entry a lane: no multiplication waits for another. The
 * sum before a short run goes by one more product to the last lane too, so that the next of many
 * short runs starts while this one is reduced.
 *
 *	V               vector of LANES lanes           ON      target attribute
 *	LOAD STORE      at any address                  STREAM  past the caches, aligned
 *	MUL(a, b, i)    of each lane                    SUM(a, b, c)  XOR of three
 *	SPREAD(p)       one lane in memory to all       LAST(v) XOR of all lanes
 *	ZERO            FIRST(w)  the word w, then zeros
 *	ACC             vectors in flight               PATH    the struct defined here
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "crc64.h"
#include "crc64_fold.h" /* made by tools/crctab.c */

#define INLINE static inline ON __attribute__((always_inline))
#define WIDE (16 * LANES)
#define ROUND (WIDE * ACC)
_Static_assert(2 * LANES * ACC <= CRC64_FOLDS, "the row of constants reaches over what is left");

enum how { LOOK, COPY, PAST };          /* PAST: the destination starts on a cache line */
#define LINE 64
/* Shorter runs are not worth the two cuts at the lines of the destination. */
#define LONG 2048
/* Bytes ahead of the loads: the hardware's prefetch ends with each page. */
#define AHEAD 1024

struct pass {
	const uint8_t *from;
	uint8_t *to;
};

INLINE uint64_t word_at(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, 8);
	return v;
}

INLINE __m128i lane_at(const void *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

/* The next lane, copied if the pass copies. */
INLINE __m128i next_lane(struct pass *p, enum how how)
{
	__m128i v = lane_at(p->from);

	p->from += 16;
	if (how != LOOK) {
		_mm_storeu_si128((__m128i *)p->to, v);
		p->to += 16;
	}
	return v;
}

INLINE V next(struct pass *p, enum how how)
{
	V v = LOAD(p->from);

	p->from += WIDE;
	if (how == COPY)
		STORE(p->to, v);
	if (how == PAST)
		STREAM(p->to, v);
	if (how != LOOK)
		p->to += WIDE;
	return v;
}

/* a, as far on as the constants k say, and b. */
INLINE V fold(V a, V k, V b)
{
	return SUM(MUL(a, k, 0x00), MUL(a, k, 0x11), b);
}

INLINE __m128i fold_lane(__m128i a, __m128i k, __m128i b)
{
	return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(a, k, 0x00),
	                                   _mm_clmulepi64_si128(a, k, 0x11)), b);
}

/* Constants of the first of n lanes that are folded to the last of them. */
INLINE const uint64_t *row(size_t n)
{
	return crc64_fold[CRC64_FOLDS - n];
}

/* a * x^64 modulo P. The upper word goes down by a product; then the quotient of Barrett: as many
 * words of it as are needed come from one product, the remainder from another. */
INLINE uint64_t reduce(__m128i a)
{
	const __m128i k = _mm_set_epi64x((long long)CRC64_QUOTIENT, (long long)CRC64_X127);
	const __m128i p = _mm_set_epi64x(0, (long long)CRC64_P_OVER_X);
	__m128i v = _mm_xor_si128(_mm_clmulepi64_si128(a, k, 0x00), _mm_srli_si128(a, 8));
	__m128i q = _mm_clmulepi64_si128(v, k, 0x10), r = _mm_clmulepi64_si128(q, p, 0x00);

	/* P has x^64 and 1 besides what the product saw: the quotient itself, above and below. */
	r = _mm_xor_si128(_mm_xor_si128(r, v), _mm_slli_si128(q, 8));
	return (uint64_t)_mm_extract_epi64(r, 1);
}

/* n < 16: the message behind as many zeros as make a lane, which add nothing. */
INLINE uint64_t tiny(uint64_t crc, struct pass p, size_t n, enum how how)
{
	uint64_t a = 0, b;

	if (n >= 8) {
		a = word_at(p.from);
		b = word_at(p.from + n - 8);
		if (how != LOOK) {
			memcpy(p.to, &a, 8);
			memcpy(p.to + n - 8, &b, 8);
		}
		a = n > 8 ? (a ^ crc) << 8 * (16 - n) : 0;
		b ^= crc >> 8 * (n - 8);
		return reduce(_mm_set_epi64x((long long)b, (long long)a));
	}
	for (size_t i = 0; i < n; i++) {
		if (how != LOOK)
			p.to[i] = p.from[i];
		a |= (uint64_t)p.from[i] << 8 * i;
	}
	if (!n)
		return crc;
	return reduce(_mm_set_epi64x((long long)((a ^ crc) << 8 * (8 - n)), 0)) ^ crc >> 8 * n;
}

/* The last n < 16 bytes, with a of all before them: the first n bytes of a fold to a lane made of
 * the rest of a and the bytes. There are 16 bytes to load and store again. */
INLINE __m128i tail(__m128i a, struct pass p, size_t n, enum how how)
{
	static const uint8_t shuffle[48] = {
		128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
		0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
		128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
	};
	__m128i up = lane_at(shuffle + n), down = lane_at(shuffle + 16 + n);
	__m128i last = lane_at(p.from + n - 16);

	if (how != LOOK)
		_mm_storeu_si128((__m128i *)(p.to + n - 16), last);
	last = _mm_blendv_epi8(last, _mm_shuffle_epi8(a, down), up);
	return fold_lane(_mm_shuffle_epi8(a, up), lane_at(row(2)), last);
}

/* n >= 2 * ROUND: whole rounds, ACC sums at once. Gives what they are at the last lane of all
 * lanes, of which `left` lanes come after the rounds. */
INLINE V rounds(uint64_t crc, struct pass *p, size_t n, size_t left, enum how how)
{
	const V k = SPREAD(row(LANES * ACC + 1));
	const uint64_t *to_last = row(LANES * ACC + left);
	V acc[ACC], sum = ZERO;

	for (int i = 0; i < ACC; i++)
		acc[i] = next(p, how);
	acc[0] = SUM(acc[0], FIRST(crc), ZERO);
	for (n -= ROUND; n >= ROUND; n -= ROUND) {
		for (int i = 0; i < ROUND / LINE; i++)
			_mm_prefetch((const char *)p->from + AHEAD + LINE * i, _MM_HINT_T0);
		for (int i = 0; i < ACC; i++)
			acc[i] = fold(acc[i], k, next(p, how));
	}
	for (int i = 0; i < ACC; i++)
		sum = fold(acc[i], LOAD(to_last + (size_t)(2 * LANES * i)), sum);
	return sum;
}

INLINE uint64_t pass(uint64_t crc, struct pass p, size_t n, enum how how)
{
	size_t lanes = n / 16, left = lanes;
	bool is_long = lanes > CRC64_FOLDS;
	V sum = ZERO;
	__m128i a, crc_lane;

	if (n < 16)
		return tiny(crc, p, n, how);
	if (is_long) {
		left = n % ROUND / 16;
		sum = rounds(crc, &p, n, left, how);
	}
	for (; left >= LANES; left -= LANES)
		sum = fold(next(&p, how == PAST ? COPY : how), LOAD(row(left)), sum);
	a = LAST(sum);
	for (; LANES > 1 && left > 0; left--)
		a = fold_lane(next_lane(&p, how), lane_at(row(left)), a);
	if (!is_long) {
		crc_lane = _mm_set_epi64x(0, (long long)crc);
		a = _mm_xor_si128(a, _mm_clmulepi64_si128(crc_lane, lane_at(row(lanes)), 0x00));
	}
	if (n % 16)
		a = tail(a, p, n % 16, how);
	return reduce(a);
}

ON static uint64_t raw(uint64_t crc, const void *bytes, size_t n)
{
	return pass(crc, (struct pass){ .from = bytes }, n, LOOK);
}

ON static uint64_t copy(uint64_t crc, void *restrict to, const void *restrict from, size_t n,
                        bool past_cache)
{
	struct pass p = { .from = from, .to = to };
	size_t edge = n >= LONG ? (0 - (uintptr_t)to) % LINE : 0;

	if (edge) {
		crc = pass(crc, p, edge, COPY);
		p.from += edge;
		p.to += edge;
		n -= edge;
	}
	if (n < LONG || !past_cache)
		return pass(crc, p, n, COPY);
	crc = pass(crc, p, n, PAST);
	/* Who is told that the copy is done may be another thread, or a device. */
	_mm_sfence();
	return crc;
}

/* a * b modulo P from b over x, because a product comes times x. */
ON static uint64_t times(uint64_t a, uint64_t b_over_x)
{
	__m128i v = _mm_clmulepi64_si128(_mm_set_epi64x(0, (long long)a),
	                                 _mm_set_epi64x(0, (long long)b_over_x), 0x00);
	const __m128i k = _mm_set_epi64x((long long)CRC64_QUOTIENT, (long long)CRC64_P_OVER_X);
	__m128i q = _mm_clmulepi64_si128(v, k, 0x10), r = _mm_clmulepi64_si128(q, k, 0x00);

	r = _mm_xor_si128(_mm_xor_si128(r, v), _mm_slli_si128(q, 8));
	return (uint64_t)_mm_extract_epi64(r, 1);
}

const struct shf_crc64_path PATH = { .raw = raw, .copy = copy, .times = times };
