/* SPDX-License-Identifier: Apache-2.0 */
/* Converts floats from one type to another with integer arithmetic only: the bytes are the same for
 * a caller that flushes denormals, rounds another way or compiles with fast maths.
 *
 * Every type is a subset of fp64, so each conversion is an exact step to the bits of an fp64 and
 * one rounding from there: to nearest, ties to even. */
#include "dtype.h"

#include <string.h>
#include "convert_wide.h"
#include "sheaf.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "items in memory are items in a file");

#define INLINE static inline __attribute__((always_inline))
#define F64_SIGN (UINT64_C(1) << 63)
#define F64_INF (UINT64_C(0x7ff) << 52)
#define F64_QUIET (UINT64_C(1) << 51)
#define F64_MAN (F64_QUIET * 2 - 1)

/* What the top codes of a type mean. IEEE: infinities and NaN at the top exponent. FN: no infinity;
 * NaN where all bits are ones. FNUZ: no infinity and no -0, whose code is the NaN. */
enum kind { IEEE, FN, FNUZ };
/* A float type: bits of exponent and of mantissa, and the bias of the exponent. One description
 * drives widen() and narrow() for all types; both are inlined with a constant shape, so the
 * compiler makes a version for each type. */
struct shape {
	int exp, man, bias;             /* bits of exponent and mantissa; bias of the exponent */
	enum kind kind;
};
static const struct shape f32 = { 8, 23, 127, IEEE }, f16 = { 5, 10, 15, IEEE },
	bf16 = { 8, 7, 127, IEEE }, e5m2 = { 5, 2, 15, IEEE }, e4m3 = { 4, 3, 7, FN },
	e5m2_fnuz = { 5, 2, 16, FNUZ }, e4m3_fnuz = { 4, 3, 8, FNUZ };

/* Returns the bits of the fp64 with the same value. This is exact. A NaN becomes quiet and keeps
 * its sign and payload.
 *
 * Infinities and NaN come first, as each kind of type has other codes for them. A denormal has no
 * implied 1 and becomes a normal fp64: its highest set bit, number top, becomes the implied one,
 * and the exponent follows from its place. */
INLINE uint64_t widen(struct shape s, uint64_t v)
{
	const uint64_t sign_bit = UINT64_C(1) << (s.exp + s.man);
	const uint64_t man_all = (UINT64_C(1) << s.man) - 1;
	const uint64_t exp_all = (UINT64_C(1) << s.exp) - 1;
	uint64_t sign = v & sign_bit ? F64_SIGN : 0, exp = v >> s.man & exp_all, man = v & man_all;
	int top;

	if (s.kind == FNUZ && v == sign_bit)
		return F64_INF | F64_QUIET;
	if (s.kind == FN && (v & ~sign_bit) == sign_bit - 1)
		return sign | F64_INF | F64_QUIET;
	if (s.kind == IEEE && exp == exp_all)
		return sign | F64_INF | (man ? F64_QUIET | man << (52 - s.man) : 0);
	if (!exp && !man)
		return sign;
	if (exp)
		return sign | (exp + (uint64_t)(1023 - s.bias)) << 52 | man << (52 - s.man);
	top = 63 - __builtin_clzll(man);        /* a denormal of the small type is a normal fp64 */
	return sign | (uint64_t)(1024 - s.bias - s.man + top) << 52 | (man << (52 - top) & F64_MAN);
}

/* Rounds v, which has no sign, to s.man bits of mantissa and the bias of s. The exponent of the
 * result may be too large for the type; narrow() limits it. drop is how many of the lowest bits are
 * dropped: 52 - s.man, and more if the result is denormal. If the dropped bits are more than half
 * of the last kept bit, the result is rounded up; if they are exactly half of it, the even
 * neighbour is taken. */
INLINE uint64_t round_even(struct shape s, uint64_t v)
{
	int exp = (int)(v >> 52) - 1023 + s.bias;
	int drop = 52 - s.man + (exp < 1 ? 1 - exp : 0);
	uint64_t man = (v & F64_MAN) | (F64_MAN + 1), kept, rest, half;

	/* The value is less than half of the smallest denormal. Denormals of fp64 are far below
	 * that. */
	if (drop > 53)
		return 0;
	kept = man >> drop;
	rest = man & ((UINT64_C(1) << drop) - 1);
	half = UINT64_C(1) << (drop - 1);
	kept += rest > half || (rest == half && kept & 1);
	/* A carry out of the mantissa raises the exponent, also from the denormals to the first
	 * normal. */
	return exp < 1 ? kept : ((uint64_t)(exp - 1) << s.man) + kept;
}

/* Returns the code of the smaller type that is nearest to v. Overflow gives infinity for IEEE, and
 * NaN for FN and FNUZ. The NaN of FNUZ has the code that -0 would have, so a FNUZ result of 0 loses
 * its sign.
 *
 * A NaN keeps the upper bits of its payload and is made quiet, so that it does not become an
 * infinity when its low bits are dropped. */
INLINE uint64_t narrow(struct shape s, uint64_t v)
{
	const uint64_t sign_bit = UINT64_C(1) << (s.exp + s.man);
	const uint64_t inf = sign_bit - (UINT64_C(1) << s.man);
	uint64_t sign = v & F64_SIGN ? sign_bit : 0, magnitude = v & ~F64_SIGN, out;
	bool is_nan = magnitude > F64_INF;

	if (s.kind == IEEE && is_nan)
		return sign | inf | UINT64_C(1) << (s.man - 1) | (v & F64_MAN) >> (52 - s.man);
	out = magnitude >= F64_INF ? UINT64_MAX : round_even(s, magnitude);
	if (s.kind == IEEE)
		return sign | (out > inf ? inf : out);
	if (s.kind == FN)
		return sign | (out > sign_bit - 1 ? sign_bit - 1 : out);
	if (out > sign_bit - 1)
		return sign_bit;
	return out ? sign | out : 0;
}

/* Returns the bits of the fp64 with the value of an E8M0 code. E8M0 has the powers of two from
 * 2^-127 on and a NaN: no sign, no zero, no infinity. */
INLINE uint64_t widen_e8m0(uint64_t v)
{
	return v == 0xff ? F64_INF | F64_QUIET : (v + 1023 - 127) << 52;
}

/* Returns the E8M0 code for the bits of an fp64, rounded as ml_dtypes does. The mantissa of every
 * code is an implied 1, which is odd, so ties go up. A positive value below the smallest code
 * becomes the smallest, and a value between the two smallest codes becomes the larger of them. */
INLINE uint64_t narrow_e8m0(uint64_t v)
{
	const uint64_t smallest = (uint64_t)(1023 - 127) << 52;
	uint64_t exp = v >> 52;

	if (!v || v >= F64_INF)         /* zero, negative, infinite or NaN */
		return 0xff;
	if (v <= smallest)
		return 0;
	if (exp == smallest >> 52)
		return 1;
	exp = exp - (1023 - 127) + (v & F64_QUIET ? 1 : 0);
	return exp < 0xff ? exp : 0xff;
}

INLINE uint32_t bits_of(float v)
{
	uint32_t bits;

	memcpy(&bits, &v, sizeof(bits));
	return bits;
}

INLINE float float_of(uint64_t v)
{
	uint32_t bits = (uint32_t)v;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* bf16 is the upper half of an fp32, so widening is a shift; a NaN becomes quiet. These two
 * conversions matter most for speed and do not go through fp64. */
INLINE uint32_t bf16_up(uint16_t v)
{
	uint32_t bits = (uint32_t)v << 16;

	return (bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : bits;
}

/* Rounds to nearest even: adding 0x7fff carries into the upper 16 bits if the lower 16 are more
 * than 0x8000; at exactly 0x8000 it carries if the lowest kept bit, which is added too, is 1. A
 * carry out of the mantissa raises the exponent, up to infinity. The addition could turn a NaN into
 * infinity or zero, so a NaN is truncated instead, and made quiet. */
INLINE uint16_t bf16_down(uint32_t bits)
{
	uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

float shf_bf16_to_f32(uint16_t v)
{
	return float_of(bf16_up(v));
}

uint16_t shf_f32_to_bf16(float v)
{
	return bf16_down(bits_of(v));
}

float shf_f16_to_f32(uint16_t v)
{
	return float_of(narrow(f32, widen(f16, v)));
}

uint16_t shf_f32_to_f16(float v)
{
	return (uint16_t)narrow(f16, widen(f32, bits_of(v)));
}

/* memcpy() of `item` bytes into a zeroed word reads an item at any address; items are
 * little-endian in memory, as asserted above. */
INLINE void widen_each(uint64_t *out, struct shape s, const uint8_t *src, size_t item, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t v = 0;

		memcpy(&v, src + i * item, item);
		out[i] = widen(s, v);
	}
}

INLINE void narrow_each(uint8_t *dst, struct shape s, const uint64_t *in, size_t item, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t v = narrow(s, in[i]);

		memcpy(dst + i * item, &v, item);
	}
}

/* Reads n items of a float type as the bits of fp64. The default case is E8M0. */
static void load(uint64_t *out, int dtype, const uint8_t *src, size_t n)
{
	switch (dtype) {
	case SHEAF_F64:
		memcpy(out, src, n * 8);
		break;
	case SHEAF_F32:
		widen_each(out, f32, src, 4, n);
		break;
	case SHEAF_F16:
		widen_each(out, f16, src, 2, n);
		break;
	case SHEAF_BF16:
		widen_each(out, bf16, src, 2, n);
		break;
	case SHEAF_F8_E4M3:
		widen_each(out, e4m3, src, 1, n);
		break;
	case SHEAF_F8_E5M2:
		widen_each(out, e5m2, src, 1, n);
		break;
	case SHEAF_F8_E4M3FNUZ:
		widen_each(out, e4m3_fnuz, src, 1, n);
		break;
	case SHEAF_F8_E5M2FNUZ:
		widen_each(out, e5m2_fnuz, src, 1, n);
		break;
	default:
		for (size_t i = 0; i < n; i++)
			out[i] = widen_e8m0(src[i]);
	}
}

/* Writes n values, given as the bits of fp64, as items of a float type. */
static void store(uint8_t *dst, int dtype, const uint64_t *in, size_t n)
{
	switch (dtype) {
	case SHEAF_F64:
		memcpy(dst, in, n * 8);
		break;
	case SHEAF_F32:
		narrow_each(dst, f32, in, 4, n);
		break;
	case SHEAF_F16:
		narrow_each(dst, f16, in, 2, n);
		break;
	case SHEAF_BF16:
		narrow_each(dst, bf16, in, 2, n);
		break;
	case SHEAF_F8_E4M3:
		narrow_each(dst, e4m3, in, 1, n);
		break;
	case SHEAF_F8_E5M2:
		narrow_each(dst, e5m2, in, 1, n);
		break;
	case SHEAF_F8_E4M3FNUZ:
		narrow_each(dst, e4m3_fnuz, in, 1, n);
		break;
	case SHEAF_F8_E5M2FNUZ:
		narrow_each(dst, e5m2_fnuz, in, 1, n);
		break;
	default:
		for (size_t i = 0; i < n; i++)
			dst[i] = (uint8_t)narrow_e8m0(in[i]);
	}
}

/* Returns whether dtype is a float of whole bytes, which load() and store() can handle. */
static bool is_float(int dtype)
{
	const struct shf_dtype *d = shf_dtype(dtype);

	return d && d->kind == 'f' && d->bits >= 8;
}

static bool is_f8(int dtype)
{
	return is_float(dtype) && shf_dtype(dtype)->bits == 8;
}

float shf_f8_to_f32(int dtype, uint8_t v)
{
	uint64_t wide = F64_INF | F64_QUIET;

	if (is_f8(dtype))
		load(&wide, dtype, &v, 1);
	return float_of(narrow(f32, wide));
}

uint8_t shf_f32_to_f8(int dtype, float v)
{
	uint64_t wide = widen(f32, bits_of(v));
	uint8_t out = 0;

	if (is_f8(dtype))
		store(&out, dtype, &wide, 1);
	return out;
}

/* Converts bf16 to fp32. This pair of types matters most for speed, in both directions; one shift
 * or addition an item is enough. */
static void f32_from_bf16(uint8_t *dst, const uint8_t *src, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t v;
		uint32_t bits;

		memcpy(&v, src + i * 2, 2);
		bits = bf16_up(v);
		memcpy(dst + i * 4, &bits, 4);
	}
}

static void bf16_from_f32(uint8_t *dst, const uint8_t *src, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t v;
		uint32_t bits;

		memcpy(&bits, src + i * 4, 4);
		v = bf16_down(bits);
		memcpy(dst + i * 2, &v, 2);
	}
}

/* Equal types are always convertible, because their bytes are copied. Different types are
 * convertible if both are floats of whole bytes. */
bool shf_can_convert(int dst_dtype, int src_dtype)
{
	if (dst_dtype == src_dtype)
		return shf_dtype(dst_dtype) != NULL;
	return is_float(dst_dtype) && is_float(src_dtype);
}

/* All other pairs go through fp64, 256 items at a time so that the values in between stay in the
 * cache. fp64 holds every value of every type, so there is one rounding, whatever the pair. */
void shf_convert_each(uint8_t *to, int dst_dtype, const uint8_t *from, int src_dtype, size_t n)
{
	uint64_t wide[256];

	if (dst_dtype == SHEAF_F32 && src_dtype == SHEAF_BF16) {
		f32_from_bf16(to, from, n);
		return;
	}
	if (dst_dtype == SHEAF_BF16 && src_dtype == SHEAF_F32) {
		bf16_from_f32(to, from, n);
		return;
	}
	for (size_t k; n; n -= k) {
		k = n < 256 ? n : 256;
		load(wide, src_dtype, from, k);
		store(to, dst_dtype, wide, k);
		from += k * (shf_dtype(src_dtype)->bits / 8);
		to += k * (shf_dtype(dst_dtype)->bits / 8);
	}
}

#define FEW 16  /* for so few items, setting up vectors costs more than it saves */

/* Takes the widest path that runs here. The vector paths go through fp32, which cannot hold
 * fp64; E8M0 rounds by rules of its own. Those pairs take the portable path. */
static void convert(uint8_t *to, int dst_dtype, const uint8_t *from, int src_dtype, size_t n)
{
#if defined(__x86_64__)
	bool narrow_enough = dst_dtype != SHEAF_F64 && dst_dtype != SHEAF_F8_E8M0 &&
			     src_dtype != SHEAF_F64 && src_dtype != SHEAF_F8_E8M0;

	if (narrow_enough && n > FEW) {
		if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
			shf_convert_x16(to, dst_dtype, from, src_dtype, n);
			return;
		}
		if (__builtin_cpu_supports("avx2")) {
			shf_convert_x8(to, dst_dtype, from, src_dtype, n);
			return;
		}
	}
#endif
	shf_convert_each(to, dst_dtype, from, src_dtype, n);
}

/* Sizes are checked before anything is written: n comes from shapes, and n items may not fit
 * size_t. */
int shf_convert(void *dst, int dst_dtype, const void *src, int src_dtype, size_t n)
{
	uint64_t src_bytes, dst_bytes;
	const uint8_t *from = src;
	uint8_t *to = dst;

	if (!shf_can_convert(dst_dtype, src_dtype) ||
	    !shf_dtype_bytes(&src_bytes, src_dtype, n) || src_bytes > SIZE_MAX ||
	    !shf_dtype_bytes(&dst_bytes, dst_dtype, n) || dst_bytes > SIZE_MAX)
		return SHEAF_EINVAL;
	if (!n)
		return 0;
	if (dst_dtype == src_dtype) {
		memcpy(to, from, (size_t)src_bytes);
		return 0;
	}
	/* Two different types are convertible only if both have whole bytes an item. */
	convert(to, dst_dtype, from, src_dtype, n);
	return 0;
}

/* Returns the value of an integer item of any width. A signed one is extended by its sign bit;
 * what does not fit 53 bits is rounded. */
static double integer_value(int dtype, const void *item)
{
	int64_t i64;
	uint64_t v = 0;
	unsigned bits = shf_dtype(dtype)->bits;

	memcpy(&v, item, bits / 8);
	if (shf_dtype(dtype)->kind != 'i')
		return (double)v;
	if (v >> (bits - 1))
		v |= (UINT64_MAX << (bits - 1));
	memcpy(&i64, &v, sizeof(i64));
	return (double)i64;
}

bool shf_value(double *out, int dtype, const void *item)
{
	const struct shf_dtype *d = shf_dtype(dtype);
	uint64_t wide;

	if (!d || d->bits < 8)
		return false;
	if (d->kind != 'f' && d->kind != 'c') {
		*out = integer_value(dtype, item);
		return true;
	}
	/* The real part of a complex item is its first 32 bits. */
	load(&wide, d->kind == 'c' ? SHEAF_F32 : dtype, item, 1);
	memcpy(out, &wide, sizeof(*out));
	return true;
}
