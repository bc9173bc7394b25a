/* SPDX-License-Identifier: Apache-2.0 */
/* The pass over bytes by carry-less multiplication: sum, or copy and sum. A template, not compiled
 * alone: the including file defines the macros below, which say how wide a vector is and which
 * instructions to use.
 *
 * A vector holds lanes of 16 bytes. The first word of a lane counts x^64 times as much as the
 * second (bytes come with the highest power first), and d lanes that follow a lane multiply it by
 * x^(128 d). So a lane with the words a and b counts as a * x^(128 d + 64) + b * x^(128 d). Modulo
 * P that is the sum of two products with constants, which has 128 bits and can be added to the lane
 * d further on. This is folding as in V. Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ Instruction", Intel 2009. The instruction gives the product of two
 * reflected words times x, so each constant has one power of x less (tools/crctab.c makes them).
 *
 * The lanes after the last whole round of vectors are not folded from one to the next: each is
 * folded at once to the last lane, by a row of constants with one entry a lane, so no
 * multiplication waits for another. The sum before a short run enters by one more product after all
 * others, so that in a sequence of many short runs only these last steps wait for each other.
 *
 *	V, LANES                type of a vector; how many lanes it has
 *	ON, PATH                target attribute of functions; name of the struct defined here
 *	LOAD(p), STORE(p, v)    load and store a vector, at any address
 *	STREAM_ONE(to, v)       stores a vector past the caches
 *	STREAM_LINE(to, from)   copies a cache line past the caches
 *	MUL(a, b, i)            carry-less product, in each lane, of the two words that i selects
 *	SUM(a, b, c)            XOR of three vectors
 *	SPREAD(p)               vector with the lane at p in all its lanes
 *	FIRST(w), ZERO          vector of the word w and then zeros; vector of zeros
 *	LAST(v)                 XOR of all lanes of v
 *	ACC                     number of vectors that are folded side by side */
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

/* Loops over accumulators must be unrolled, so that each accumulator is a register. */
#if defined(__clang__)
#define EACH(i, n) _Pragma("clang loop unroll(full)") for (size_t i = 0; i < (n); i++)
#else
#define EACH(i, n) _Pragma("GCC unroll 16") for (size_t i = 0; i < (n); i++)
#endif

/* What a pass does with the bytes besides summing them. LOOK: nothing. COPY: stores them. PAST:
 * stores them past the caches, to a destination that begins on a cache line and, but for pass_long,
 * also ends on one. SENT: they are stored already. */
enum how { LOOK, COPY, PAST, SENT };
#define LINE 64
/* Shorter runs are not cut to begin on a cache line of the destination. */
#define LONG 2048
/* The most bytes that one row of constants can fold, with the sum before them. */
#define SHORT ((size_t)16 * (CRC64_FOLDS - 1))
/* How many bytes ahead of the loads to prefetch: the hardware prefetches up to the end of a page
 * only. */
#define AHEAD 2048
/* The hardware prefetches in several pages at once, so PAGES pages are copied side by side, past
 * the caches, and then summed from the cache. */
#define PAGE 4096
#define PAGES 4

/* The position of a pass; both pointers move on with each lane. `to` is not used with LOOK. */
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

/* Loads the next lane and copies it as `how` says. how is a constant wherever this is inlined,
 * so the tests cost nothing. */
INLINE __m128i next_lane(struct pass *p, enum how how)
{
	__m128i v = lane_at(p->from);

	p->from += 16;
	if (how == COPY)
		_mm_storeu_si128((__m128i *)p->to, v);
	if (how == PAST)
		_mm_stream_si128((__m128i *)(void *)p->to, v);
	if (how != LOOK)
		p->to += 16;
	return v;
}

/* Loads the next vector and copies it as `how` says. */
INLINE V next(struct pass *p, enum how how)
{
	V v = LOAD(p->from);

	p->from += WIDE;
	if (how == COPY)
		STORE(p->to, v);
	if (how == PAST)
		STREAM_ONE(p->to, v);
	if (how != LOOK)
		p->to += WIDE;
	return v;
}

/* Stores a round past the caches, in whole cache lines if there are registers of that size: the
 * write-combining buffers between core and memory wait until a line is complete. */
INLINE void stream_round(const struct pass *p)
{
	EACH(i, ROUND / LINE)
		STREAM_LINE(p->to + LINE * i, p->from + LINE * i);
}

/* Folds a into b: multiplies both words of each lane of a by their constants, which moves the lane
 * as far on as k says, and adds b. */
INLINE V fold(V a, V k, V b)
{
	return SUM(MUL(a, k, 0x00), MUL(a, k, 0x11), b);
}

/* Does what fold() does, for one lane. */
INLINE __m128i fold_lane(__m128i a, __m128i k, __m128i b)
{
	return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(a, k, 0x00),
	                                   _mm_clmulepi64_si128(a, k, 0x11)), b);
}

/* Returns the constants for the first of n lanes, all of which are folded to the last one. */
INLINE const uint64_t *row(size_t n)
{
	return crc64_fold[CRC64_FOLDS - n];
}

/* Returns a * x^64 + b modulo P, where a and b are the two words of v. This is Barrett reduction:
 * one product gives the quotient, another one the multiple of P to subtract. */
INLINE uint64_t remainder_of(__m128i v)
{
	const __m128i k = _mm_set_epi64x((long long)CRC64_QUOTIENT, (long long)CRC64_P_OVER_X);
	__m128i q = _mm_clmulepi64_si128(v, k, 0x10), r = _mm_clmulepi64_si128(q, k, 0x00);

	/* The constant leaves out the terms x^64 and 1 of P. The 1 adds the quotient itself to the
	 * remainder; the x^64 changes only the word that is dropped. */
	r = _mm_xor_si128(_mm_xor_si128(r, v), _mm_slli_si128(q, 8));
	return (uint64_t)_mm_extract_epi64(r, 1);
}

/* Returns two words that are congruent to a * x^64 modulo P. */
INLINE __m128i behind_all(__m128i a)
{
	const __m128i k = _mm_set_epi64x(0, (long long)CRC64_X127);

	return _mm_xor_si128(_mm_clmulepi64_si128(a, k, 0x00), _mm_srli_si128(a, 8));
}

/* Returns the raw CRC of a message that was folded to the lane a. */
INLINE uint64_t reduce(__m128i a)
{
	return remainder_of(behind_all(a));
}

/* Sums fewer than 16 bytes. The message is placed after enough zeros to fill a lane; zeros before a
 * message add nothing to a raw sum. From 8 bytes on, two loads of 8 that may overlap read all of
 * it, and the shift removes the overlap from the first.
 *
 * A message of less than 8 bytes is shorter than crc, the sum before it. The part of crc that lies
 * past the message is added at the end. */
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

/* Adds the last n < 16 bytes; a is the fold of all before them. The last lane is then 16 bytes that
 * end with the message: the last 16 - n bytes of a and the n new bytes. The first n bytes of a are
 * folded onto it. The run has 16 bytes or more, so the load and store of its last 16 stay
 * inside. */
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

/* Sums whole rounds, ACC vectors at once, so that ACC multiplications are in flight and none waits
 * for the result of another. n is at least 2 * ROUND. `left` lanes come after the rounds. Returns
 * the sum folded to the last lane of all: a row of constants moves every accumulator there
 * directly. */
INLINE V rounds(uint64_t crc, struct pass *p, size_t n, size_t left, enum how how)
{
	const V k = SPREAD(row(LANES * ACC + 1));
	const uint64_t *to_last = row(LANES * ACC + left);
	V acc[ACC], sum = ZERO;

	if (how == PAST)
		stream_round(p);
	EACH(i, ACC)
		acc[i] = next(p, how == PAST ? SENT : how);
	acc[0] = SUM(acc[0], FIRST(crc), ZERO);
	for (n -= ROUND; n >= ROUND; n -= ROUND) {
		EACH(i, ROUND / LINE)
			_mm_prefetch((const char *)p->from + AHEAD + LINE * i, _MM_HINT_T0);
		if (how == PAST)
			stream_round(p);
		EACH(i, ACC)
			acc[i] = fold(acc[i], k, next(p, how == PAST ? SENT : how));
	}
	EACH(i, ACC)
		sum = fold(acc[i], LOAD(to_last + 2 * LANES * i), sum);
	return sum;
}

/* Folds the next `left` lanes, the last whole ones of a run, to the last of them, adds sum, and
 * returns one lane. The steps are written out: a compiler would turn a loop over single lanes into
 * a call of memcpy. */
INLINE __m128i settle(struct pass *p, size_t left, V sum, enum how how)
{
	__m128i a;

	for (; left >= 4 * LANES; left -= 4 * LANES)
		EACH(i, 4)
			sum = fold(next(p, how), LOAD(row(left - i * LANES)), sum);
	EACH(i, 3)
		if (left >= LANES) {
			sum = fold(next(p, how), LOAD(row(left)), sum);
			left -= LANES;
		}
	a = LAST(sum);
	EACH(i, 3)
		if (LANES > i + 1 && left > 0)
			a = fold_lane(next_lane(p, how), lane_at(row(left--)), a);
	return a;
}

/* Ends a pass: adds the bytes after the last whole lane, if there are any, and returns the raw
 * CRC. */
INLINE uint64_t finish(__m128i a, struct pass p, size_t n, enum how how)
{
	return reduce(n % 16 ? tail(a, p, n % 16, how) : a);
}

/* Sums a run of at most SHORT bytes. crc, the sum before the run, gets a multiplication of its own,
 * which does not wait for the others nor they for it. */
INLINE uint64_t pass_short(uint64_t crc, struct pass p, size_t n, enum how how)
{
	__m128i a, before = _mm_set_epi64x(0, (long long)crc);
	const uint64_t *k = row(n / 16 + 1);    /* constants of the lane before the first, as which
	                                         * crc counts */

	if (n < 16)
		return tiny(crc, p, n, how);
	a = settle(&p, n / 16, ZERO, how);
	if (n % 16) {
		a = _mm_xor_si128(a, _mm_clmulepi64_si128(before, lane_at(k + 2), 0x00));
		return finish(a, p, n, how);
	}
	/* The product of crc is added as late as possible, because the run before has to compute
	 * crc first. */
	a = _mm_xor_si128(behind_all(a), _mm_clmulepi64_si128(before, lane_at(k), 0x10));
	return remainder_of(a);
}

/* Sums a run that is longer than SHORT. Past the caches, the bytes after the last whole round are
 * streamed too if the run ends on a cache line; otherwise they are stored as usual. */
INLINE uint64_t pass_long(uint64_t crc, struct pass p, size_t n, enum how how)
{
	const enum how rest = how == PAST ? COPY : how;
	size_t left = n % ROUND / 16;
	V sum = rounds(crc, &p, n, left, how);

	if (how == PAST && n % LINE == 0)
		return reduce(settle(&p, left, sum, PAST));
	return finish(settle(&p, left, sum, rest), p, n, rest);
}

/* Copies PAGES pages past the caches, a few lines of each in turn, and prefetches the first lines
 * of the pages that come next. */
INLINE void stream_pages(uint8_t *to, const uint8_t *from)
{
	for (size_t at = 0; at < PAGE; at += 4 * LINE)
		EACH(p, PAGES)
			EACH(i, 4)
				STREAM_LINE(to + PAGE * p + at + LINE * i,
				            from + PAGE * p + at + LINE * i);
	EACH(p, PAGES)
		EACH(i, 4)
			_mm_prefetch((const char *)from + PAGE * (PAGES + p) + LINE * i,
			             _MM_HINT_T0);
}

/* Returns whether the destination consists of whole cache lines. */
INLINE bool are_lines(const void *to, size_t n)
{
	return ((uintptr_t)to | n) % LINE == 0;
}

/* Sums a long run. It is not inlined, so that a short run does not pay for saving the registers
 * that only a long run uses. */
ON static __attribute__((noinline)) uint64_t raw_long(uint64_t crc, const uint8_t *bytes, size_t n)
{
	return pass_long(crc, (struct pass){ .from = bytes }, n, LOOK);
}

/* Copies and sums a long run. If the destination does not begin on a line, the bytes up to the
 * next one are copied first, by a short pass, so that all further stores begin on one. Past the
 * caches several pages are copied side by side and then summed from the cache, as explained at
 * PAGES. */
ON static __attribute__((noinline)) uint64_t copy_long(uint64_t crc, uint8_t *to,
                                                       const uint8_t *from, size_t n,
                                                       bool past_cache)
{
	struct pass p = { .from = from, .to = to };
	bool past = past_cache && (n >= LONG || are_lines(to, n));
	size_t edge = n >= LONG ? (0 - (uintptr_t)to) % LINE : 0;

	if (edge) {
		crc = pass_short(crc, p, edge, COPY);
		p.from += edge;
		p.to += edge;
		n -= edge;
	}
	if (!past)
		return pass_long(crc, p, n, COPY);
	for (; n > PAGES * PAGE + LONG; n -= PAGES * PAGE) {
		stream_pages(p.to, p.from);
		crc = raw_long(crc, p.from, PAGES * PAGE);
		p.from += PAGES * PAGE;
		p.to += PAGES * PAGE;
	}
	return pass_long(crc, p, n, PAST);
}

/* The two functions of a path: short and long runs are summed in different ways. */
ON static uint64_t raw(uint64_t crc, const void *bytes, size_t n)
{
	return n > SHORT ? raw_long(crc, bytes, n) :
	                   pass_short(crc, (struct pass){ .from = bytes }, n, LOOK);
}

ON static uint64_t copy(uint64_t crc, void *restrict to, const void *restrict from, size_t n,
                        bool past_cache)
{
	const struct pass p = { .from = from, .to = to };

	if (n > SHORT)
		return copy_long(crc, to, from, n, past_cache);
	return past_cache && are_lines(to, n) ? pass_short(crc, p, n, PAST)
	                                      : pass_short(crc, p, n, COPY);
}

/* Returns a * b modulo P; b is given divided by x, because the instruction multiplies by x too. */
ON static uint64_t times(uint64_t a, uint64_t b_over_x)
{
	__m128i v = _mm_clmulepi64_si128(_mm_set_epi64x(0, (long long)a),
	                                 _mm_set_epi64x(0, (long long)b_over_x), 0x00);

	return remainder_of(v);
}

const struct shf_crc64_path PATH = { .raw = raw, .copy = copy, .times = times };
