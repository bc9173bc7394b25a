/* SPDX-License-Identifier: Apache-2.0 */
/* Converts floats of at most 32 bits from one type to another, LANES items at once: through the
 * bits of an fp32, of which every smaller type is a subset, with one rounding. The bytes are those
 * that convert.c gives. Like it, this uses integers only; the one conversion to float is of small
 * integers, which is exact. A template, not compiled alone: the including file defines ON, the
 * target attribute, LANES, and CONVERT, the name of the function.
 *
 * A value below the smallest normal number of the smaller type is a case of its own: widened from
 * its mantissa as an integer, narrowed by a shift that depends on the value. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "dtype.h"
#include "sheaf.h"

#define INLINE static inline ON __attribute__((always_inline))
#define BLOCK 256
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

#define SIGN UINT32_C(0x80000000)
#define INF UINT32_C(0x7f800000)
#define QUIET UINT32_C(0x400000)

/* The types have the meaning that convert.c gives them. */
enum kind { IEEE, FN, FNUZ };
struct shape {
	int exp, man, bias;
	enum kind kind;
};
static const struct shape f16 = { 5, 10, 15, IEEE }, bf16 = { 8, 7, 127, IEEE },
			  e5m2 = { 5, 2, 15, IEEE }, e4m3 = { 4, 3, 7, FN },
			  e5m2_fnuz = { 5, 2, 16, FNUZ }, e4m3_fnuz = { 4, 3, 8, FNUZ };

/* Selects lane by lane: a where yes is all ones, b where it is zero. */
INLINE words either(ints yes, words a, words b)
{
	return ((words)yes & a) | (~(words)yes & b);
}

/* Widens LANES items at once. All cases are computed and selected by masks, as lanes cannot
 * branch.
 *
 * A denormal is mag units of 2^(1 - bias - man). mag has few bits, so it converts to fp32
 * exactly, and subtracting from the exponent field scales it. Zero has no exponent to subtract
 * from and is kept. */
INLINE words widen(struct shape s, words v)
{
	const uint32_t sign_bit = UINT32_C(1) << (s.exp + s.man), inf = sign_bit - (1u << s.man);
	words sign = (v & sign_bit) << (31 - s.exp - s.man), mag = v & (sign_bit - 1), out, small;

	if (s.bias == 127)
		return either(mag > inf, (v << 16) | QUIET, v << 16);
	small = (words) __builtin_convertvector((ints)mag, floats);
	small = either(mag == 0, mag, small - ((uint32_t)(s.bias + s.man - 1) << 23));
	out = (mag << (23 - s.man)) + ((uint32_t)(127 - s.bias) << 23);
	out = either(mag < (1u << s.man), small, out);
	if (s.kind == IEEE) {
		words top = INF | (mag << (23 - s.man));

		out = either(mag >= inf, either(mag > inf, top | QUIET, top), out);
	}
	if (s.kind == FN)
		out = either(mag == sign_bit - 1, mag - mag + (INF | QUIET), out);
	if (s.kind == FNUZ)
		return either(v == sign_bit, mag - mag + (INF | QUIET), sign | out);
	return sign | out;
}

/* Rounds LANES values at once, to nearest even. by counts the bits to drop: `drop` for a normal
 * result, and one more for each power of two that the value lies below the smallest normal one. It
 * is limited so that no shift reaches 32, which C leaves undefined; with that many bits dropped the
 * result is 0 in any case.
 *
 * Half of the last kept bit, minus one, is added, and one more if the last kept bit is 1. The sum
 * carries into the kept bits exactly if the dropped bits are more than half of the last kept bit,
 * or are exactly half of it and the last kept bit is 1. */
INLINE words narrow(struct shape s, words v)
{
	const uint32_t sign_bit = UINT32_C(1) << (s.exp + s.man), inf = sign_bit - (1u << s.man);
	const uint32_t drop = (uint32_t)(23 - s.man), under = (uint32_t)(127 - s.bias);
	const uint32_t max = s.kind == IEEE ? inf : s.kind == FN ? sign_bit - 1 : sign_bit;
	words sign = (v >> 31) * sign_bit, mag = v & (SIGN - 1), exp = mag >> 23, by, out;
	ints nan = mag > INF;

	if (s.bias == 127) {
		out = (v + 0x7fff + (v >> 16 & 1)) >> 16;
		return either(nan, v >> 16 | 0x40, out);
	}
	/* A number is denormal in the smaller type if its fp32 exponent is at most `under`. */
	by = under + 1 - exp;
	by = either(by > 31 - drop, by - by + (31 - drop), by);
	out = either(exp > under, mag - (under << 23), (mag & (QUIET * 2 - 1)) | QUIET * 2);
	by = drop + either(exp > under, by - by, by);
	out = (out + ((((out - out) + 1) << (by - 1)) - 1) + (out >> by & 1)) >> by;
	out = either(out > max, out - out + max, out);
	if (s.kind == IEEE)
		out = either(nan, inf | 1u << (s.man - 1) | (mag & (QUIET * 2 - 1)) >> drop, out);
	if (s.kind == FN)
		out = either(nan, out - out + max, out);
	if (s.kind == FNUZ)
		return either(nan | (out == max), out - out + max,
		              either(out == 0, out, sign | out));
	return sign | out;
}

/* Items are loaded by memcpy() of a whole vector, which compiles to one load at any address. */
#define LOAD_EACH(type, expr) \
	for (size_t i = 0; i < n; i += LANES) { \
		type in; \
		words v; \
		memcpy(&in, src + i * sizeof(in) / LANES, sizeof(in)); \
		v = __builtin_convertvector(in, words); \
		v = expr; \
		memcpy(out + i, &v, sizeof(v)); \
	}
#define STORE_EACH(type, expr) \
	for (size_t i = 0; i < n; i += LANES) { \
		words v; \
		type to; \
		memcpy(&v, in + i, sizeof(v)); \
		v = expr; \
		to = __builtin_convertvector(v, type); \
		memcpy(dst + i * sizeof(to) / LANES, &to, sizeof(to)); \
	}

/* Reads n items as the bits of fp32. n is a multiple of LANES and at most BLOCK. The default case
 * is F32. */
ON static void load_block(uint32_t *out, int dtype, const uint8_t *src, size_t n)
{
	switch (dtype) {
	case SHEAF_F16:
		LOAD_EACH(halves, widen(f16, v));
		break;
	case SHEAF_BF16:
		LOAD_EACH(halves, widen(bf16, v));
		break;
	case SHEAF_F8_E4M3:
		LOAD_EACH(bytes, widen(e4m3, v));
		break;
	case SHEAF_F8_E5M2:
		LOAD_EACH(bytes, widen(e5m2, v));
		break;
	case SHEAF_F8_E4M3FNUZ:
		LOAD_EACH(bytes, widen(e4m3_fnuz, v));
		break;
	case SHEAF_F8_E5M2FNUZ:
		LOAD_EACH(bytes, widen(e5m2_fnuz, v));
		break;
	default:
		memcpy(out, src, n * sizeof(*out));
	}
}

/* Writes n values, given as the bits of fp32, as items of a float type. */
ON static void store_block(uint8_t *dst, int dtype, const uint32_t *in, size_t n)
{
	switch (dtype) {
	case SHEAF_F16:
		STORE_EACH(halves, narrow(f16, v));
		break;
	case SHEAF_BF16:
		STORE_EACH(halves, narrow(bf16, v));
		break;
	case SHEAF_F8_E4M3:
		STORE_EACH(bytes, narrow(e4m3, v));
		break;
	case SHEAF_F8_E5M2:
		STORE_EACH(bytes, narrow(e5m2, v));
		break;
	case SHEAF_F8_E4M3FNUZ:
		STORE_EACH(bytes, narrow(e4m3_fnuz, v));
		break;
	case SHEAF_F8_E5M2FNUZ:
		STORE_EACH(bytes, narrow(e5m2_fnuz, v));
		break;
	default:
		memcpy(dst, in, n * sizeof(*in));
	}
}

/* Whole blocks are converted where they lie. The rest is copied to a padded buffer, so that
 * vectors never reach past the caller's memory; the padding is zeroed, as its lanes are
 * computed too. */
ON void CONVERT(uint8_t *dst, int dst_dtype, const uint8_t *src, int src_dtype, size_t n)
{
	const size_t from = shf_dtype(src_dtype)->bits / 8, to = shf_dtype(dst_dtype)->bits / 8;
	_Alignas(64) uint32_t wide[BLOCK];
	uint8_t in[BLOCK * 4], out[BLOCK * 4];
	size_t full;

	for (; n >= BLOCK; n -= BLOCK, src += BLOCK * from, dst += BLOCK * to) {
		load_block(wide, src_dtype, src, BLOCK);
		store_block(dst, dst_dtype, wide, BLOCK);
	}
	if (!n)
		return;
	full = (n + LANES - 1) / LANES * LANES;
	memcpy(in, src, n * from);
	memset(in + n * from, 0, (full - n) * from);
	load_block(wide, src_dtype, in, full);
	store_block(out, dst_dtype, wide, full);
	memcpy(dst, out, n * to);
}
