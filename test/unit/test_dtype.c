/* SPDX-License-Identifier: Apache-2.0 */
/* The oracles here know nothing of bit tricks: codes are valued by ldexp, and a value is rounded
 * by looking for the nearest code, or by dividing by the unit in the last place. */
#include "rng.h"
#include "t.h"
#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include "convert_wide.h"
#include "dtype.h"
#include "sheaf.h"

static const struct layout {
	int dtype, exp, man, bias, bytes;
	double max;                     /* the largest finite */
	bool has_inf, has_minus_zero;
} layouts[] = {
	{ SHEAF_F32, 8, 23, 127, 4, 0x1.fffffep127, true, true },
	{ SHEAF_F16, 5, 10, 15, 2, 65504, true, true },
	{ SHEAF_BF16, 8, 7, 127, 2, 0x1.fep127, true, true },
	{ SHEAF_F8_E5M2, 5, 2, 15, 1, 57344, true, true },
	{ SHEAF_F8_E4M3, 4, 3, 7, 1, 448, false, true },
	{ SHEAF_F8_E5M2FNUZ, 5, 2, 16, 1, 57344, false, false },
	{ SHEAF_F8_E4M3FNUZ, 4, 3, 8, 1, 240, false, false },
};
#define LAYOUTS_N (sizeof(layouts) / sizeof(layouts[0]))

static double f64_of(uint64_t bits)
{
	double d;

	memcpy(&d, &bits, sizeof(d));
	return d;
}

static float f32_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static uint32_t f32_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static uint64_t f64_bits(double d)
{
	uint64_t bits;

	memcpy(&bits, &d, sizeof(bits));
	return bits;
}

static double code_value(const struct layout *t, uint32_t code)
{
	uint32_t sign = code >> (t->exp + t->man), rest = code & ((1u << (t->exp + t->man)) - 1);
	int exp = (int)(rest >> t->man);
	double man = (double)(rest & ((1u << t->man) - 1)), v;

	v = exp ? ldexp(man + ldexp(1, t->man), exp - t->bias - t->man) :
		  ldexp(man, 1 - t->bias - t->man);
	if (v > t->max)
		v = t->has_inf && man == 0 ? (double)INFINITY : (double)NAN;
	if (!t->has_minus_zero && sign && !rest)
		v = (double)NAN;
	return sign ? -v : v;
}

/* What x becomes, as a value; by quotient and unit. */
static double round_value(const struct layout *t, double x)
{
	double over = t->has_inf ? (double)INFINITY : (double)NAN, v, unit;
	int exp;

	if (isnan(x) || isinf(x))
		return isnan(x) ? x : copysign(over, x);
	frexp(x, &exp);
	if (exp - 1 < 1 - t->bias)
		exp = 2 - t->bias;
	unit = ldexp(1, exp - 1 - t->man);
	v = nearbyint(x / unit) * unit;
	if (fabs(v) > t->max)
		v = copysign(over, v);
	return v == 0 && !t->has_minus_zero ? 0 : v;
}

static bool same(double a, double b)
{
	return isnan(a) ? isnan(b) : f64_bits(a) == f64_bits(b);
}

/* Of one item through shf_convert. */
static double through(const struct layout *t, double x)
{
	uint64_t code = 0;
	double back;

	CHECK_INT(shf_convert(&code, t->dtype, &x, SHEAF_F64, 1), 0);
	CHECK_INT(shf_convert(&back, SHEAF_F64, &code, t->dtype, 1), 0);
	CHECK(shf_value(&x, t->dtype, &code) && same(x, back));
	CHECK(same(back, code_value(t, (uint32_t)code)));
	return back;
}

TEST(names_are_spelt_as_safetensors_spells_them)
{
	static const char *const names[] = {
		"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32",
		"F64", "C64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4",
		"F6_E2M3", "F6_E3M2",
	};
	static const int bits[] = { 8, 8, 8, 16, 16, 32, 32, 64, 64, 16, 16, 32,
				    64, 64, 8, 8, 8, 8, 8, 4, 6, 6 };

	for (int i = 0; i < 22; i++) {
		CHECK_STR(sheaf_dtype_name(i + 1), names[i]);
		CHECK_INT(sheaf_dtype_bits(i + 1), bits[i]);
		CHECK_INT(sheaf_dtype_from_name(names[i]), i + 1);
		CHECK_INT(shf_dtype(i + 1)->bits * shf_dtype(i + 1)->group % 8, 0);
		CHECK_INT(shf_dtype(i + 1)->align, bits[i] < 8 ? 1 : bits[i] / 8);
	}
	CHECK_INT(SHEAF_F6_E3M2, 22);
}

/* safetensors has no such type, so no file has one either. */
TEST(complex_numbers_of_two_f64_are_of_slices_alone)
{
	CHECK_INT(SHEAF_C128, 23);
	CHECK_STR(sheaf_dtype_name(SHEAF_C128), "C128");
	CHECK_INT(sheaf_dtype_bits(SHEAF_C128), 128);
	CHECK_INT(sheaf_dtype_from_name("C128"), SHEAF_C128);
	CHECK(!shf_dtype(SHEAF_C128));
	CHECK_INT(shf_dtype_from("C128", 4), 0);
	CHECK(!shf_can_convert(SHEAF_C128, SHEAF_C64) && !shf_can_convert(SHEAF_C128, SHEAF_F64));
	CHECK(!shf_can_convert(SHEAF_C64, SHEAF_C128) && !shf_can_convert(SHEAF_F64, SHEAF_C128));
}

TEST(what_is_no_item_type_has_no_name)
{
	static const int none[] = { 0, -1, 24, 256, INT32_MAX, INT32_MIN };

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		CHECK(!shf_dtype(none[i]) && !sheaf_dtype_name(none[i]));
		CHECK_INT(sheaf_dtype_bits(none[i]), 0);
	}
	CHECK_INT(sheaf_dtype_from_name("f32"), 0);
	CHECK_INT(sheaf_dtype_from_name("F8_E4M3FN"), 0);
	CHECK_INT(sheaf_dtype_from_name("F3"), 0);
	CHECK_INT(sheaf_dtype_from_name("F32 "), 0);
	CHECK_INT(sheaf_dtype_from_name(""), 0);
	CHECK_INT(sheaf_dtype_from_name(NULL), 0);
	CHECK_INT(shf_dtype_from("F32\0", 4), 0);
	CHECK_INT(shf_dtype_from("F324", 3), SHEAF_F32);
}

TEST(bytes_are_whole_or_refused)
{
	uint64_t bytes = 99;

	CHECK(!shf_dtype_bytes(&bytes, SHEAF_F4, 3) && !shf_dtype_bytes(&bytes, SHEAF_F6_E2M3, 6));
	CHECK(!shf_dtype_bytes(&bytes, 0, 1) && !shf_dtype_bytes(&bytes, 99, 0));
	CHECK(!shf_dtype_bytes(&bytes, SHEAF_U64, UINT64_C(1) << 61));
	CHECK(!shf_dtype_bytes(&bytes, SHEAF_U16, UINT64_MAX));
	CHECK(bytes == 99);
	CHECK(shf_dtype_bytes(&bytes, SHEAF_U64, (UINT64_C(1) << 61) - 1));
	CHECK(bytes == UINT64_MAX - 7);
	CHECK(shf_dtype_bytes(&bytes, SHEAF_F6_E3M2, UINT64_MAX - 3));
	CHECK(bytes == UINT64_MAX / 4 * 3);
	CHECK(shf_dtype_bytes(&bytes, SHEAF_F4, 6) && bytes == 3);
	CHECK(shf_dtype_bytes(&bytes, SHEAF_F6_E2M3, 4) && bytes == 3);
	CHECK(shf_dtype_bytes(&bytes, SHEAF_F4, 0) && bytes == 0);
}

TEST(all_codes_of_every_f8_have_their_value_and_come_back)
{
	for (size_t i = 3; i < LAYOUTS_N; i++)
		for (uint32_t code = 0; code < 256; code++) {
			int dtype = layouts[i].dtype;
			double want = code_value(&layouts[i], code);
			float got = shf_f8_to_f32(dtype, (uint8_t)code);

			CHECK(same((double)got, want));
			if (!isnan(want))
				CHECK_INT(shf_f32_to_f8(dtype, got), code);
			else
				CHECK(isnan(shf_f8_to_f32(dtype, shf_f32_to_f8(dtype, got))));
		}
	for (int code = 0; code < 255; code++) {
		float got = shf_f8_to_f32(SHEAF_F8_E8M0, (uint8_t)code);

		CHECK((double)got == ldexp(1, code - 127));
		CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, got), code);
	}
	CHECK(isnan(shf_f8_to_f32(SHEAF_F8_E8M0, 255)));
}

TEST(specials_of_f8_are_those_of_ml_dtypes)
{
	static const struct {
		int dtype;
		uint8_t inf, minus_inf, nan, minus_zero, max, over;
		float largest, half_over;       /* halfway to the code past the largest */
	} cases[] = {
		{ SHEAF_F8_E4M3, 0x7f, 0xff, 0x7f, 0x80, 0x7e, 0x7f, 448, 464 },
		{ SHEAF_F8_E5M2, 0x7c, 0xfc, 0x7e, 0x80, 0x7b, 0x7c, 57344, 61440 },
		{ SHEAF_F8_E4M3FNUZ, 0x80, 0x80, 0x80, 0, 0x7f, 0x80, 240, 248 },
		{ SHEAF_F8_E5M2FNUZ, 0x80, 0x80, 0x80, 0, 0x7f, 0x80, 57344, 61440 },
	};

	for (size_t i = 0; i < 4; i++) {
		int t = cases[i].dtype;
		bool even = !(cases[i].max & 1);

		CHECK_INT(shf_f32_to_f8(t, INFINITY), cases[i].inf);
		CHECK_INT(shf_f32_to_f8(t, -INFINITY), cases[i].minus_inf);
		CHECK_INT(shf_f32_to_f8(t, f32_of(0x7fc00000)), cases[i].nan);
		CHECK_INT(shf_f32_to_f8(t, -0.0f), cases[i].minus_zero);
		CHECK_INT(shf_f32_to_f8(t, -1e-30f), cases[i].minus_zero);
		CHECK_INT(shf_f32_to_f8(t, cases[i].largest), cases[i].max);
		CHECK_INT(shf_f32_to_f8(t, cases[i].half_over),
			  even ? cases[i].max : cases[i].over);
		CHECK_INT(shf_f32_to_f8(t, nextafterf(cases[i].half_over, 0)), cases[i].max);
		CHECK_INT(shf_f32_to_f8(t, nextafterf(cases[i].half_over, 1e9f)), cases[i].over);
	}
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, 0), 0xff);
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, -1), 0xff);
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, INFINITY), 0xff);
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, 1.5f), 0x80);
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, 3), 0x81);
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, nextafterf(3, 0)), 0x80);
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, 0x1.8p127f), 0xff);
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, 0x1.7ffffep127f), 0xfe);
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, 0x1p-149f), 0);
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, 0x1p-127f), 0);
	CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, f32_of(0x400001)), 1);
}

TEST(a_float_becomes_the_nearest_f8_and_of_two_the_even)
{
	for (size_t i = 3; i < LAYOUTS_N; i++)
		for (uint32_t code = 0; code < 127; code++) {
			const struct layout *t = &layouts[i];
			double low = code_value(t, code), high = code_value(t, code + 1);
			float mid = (float)((low + high) / 2);

			if (!isfinite(low) || !isfinite(high))
				continue;
			CHECK_INT(shf_f32_to_f8(t->dtype, mid), code & 1 ? code + 1 : code);
			CHECK_INT(shf_f32_to_f8(t->dtype, nextafterf(mid, 0)), code);
			CHECK_INT(shf_f32_to_f8(t->dtype, nextafterf(mid, 1e9f)), code + 1);
			mid = -nextafterf(mid, 0);
			CHECK_INT(shf_f32_to_f8(t->dtype, mid),
				  code || t->has_minus_zero ? code | 0x80 : 0);
		}
}

TEST(all_patterns_of_f16_and_bf16_have_their_value_and_come_back)
{
	for (uint32_t v = 0; v < 65536; v++) {
		uint16_t code = (uint16_t)v;
		double h = code_value(&layouts[1], v), b = code_value(&layouts[2], v);
		float f;

		f = shf_f16_to_f32(code);
		if (!same((double)f, h))
			fail_msg("F16 %04x", v);
		if (shf_f32_to_f16(f) != (isnan(h) ? code | 0x200 : code))
			fail_msg("F16 %04x comes back as %04x", v, shf_f32_to_f16(f));
		f = shf_bf16_to_f32(code);
		if (!same((double)f, b))
			fail_msg("BF16 %04x", v);
		if (shf_f32_to_bf16(f) != (isnan(b) ? code | 0x40 : code))
			fail_msg("BF16 %04x comes back as %04x", v, shf_f32_to_bf16(f));
	}
}

/* All exponents and signs, with mantissas at the edges of roundings; then whatever comes. */
#define PATTERNS_N 2000000u
static uint32_t pattern(uint32_t i)
{
	static const uint32_t low[] = { 0, 1, 0xfff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001,
					0xffff };
	uint64_t seed = i;

	return i < 655360 ? i / 10 << 16 | low[i % 10] : (uint32_t)rng_next(&seed);
}

TEST(floats_round_as_quotients_do)
{
	for (uint32_t i = 0; i < PATTERNS_N; i++) {
		float f = f32_of(pattern(i));
		uint16_t b = shf_f32_to_bf16(f), h = shf_f32_to_f16(f);

		if (!same(code_value(&layouts[2], b), round_value(&layouts[2], (double)f)))
			fail_msg("BF16 of %08x is %04x", pattern(i), b);
		if (!same(code_value(&layouts[1], h), round_value(&layouts[1], (double)f)))
			fail_msg("F16 of %08x is %04x", pattern(i), h);
		if (i % 4)
			continue;
		for (size_t t = 3; t < LAYOUTS_N; t++) {
			uint8_t v = shf_f32_to_f8(layouts[t].dtype, f);

			if (!same(code_value(&layouts[t], v), round_value(&layouts[t], (double)f)))
				fail_msg("%d of %08x is %02x", layouts[t].dtype, pattern(i), v);
		}
	}
}

TEST(doubles_round_once)
{
	static const double edges[] = {
		0, 1e300, 1e-300, 0x1p-1074, 0x1.fffffefffffffp127, 0x1.ffffffp127, 0x1p128,
		0x1p-149, 0x1p-150, 0x1.0000000000001p-150, 65519.999, 65520, 0x1.0100000001p0,
		0x1.0080000001p0, 0x1.00008p0, 0x1.0000010000001p0, 0x1.ff00000001p127,
	};
	double x = 0x1.0100000001p0;    /* over F32 this would be a tie of BF16, and go down */
	uint64_t seed = 11;
	uint16_t b;

	CHECK_INT(shf_convert(&b, SHEAF_BF16, &x, SHEAF_F64, 1), 0);
	CHECK_INT(b, 0x3f81);
	for (size_t t = 0; t < LAYOUTS_N; t++) {
		for (size_t i = 0; i < 2 * sizeof(edges) / sizeof(edges[0]); i++) {
			x = i & 1 ? -edges[i / 2] : edges[i / 2];
			CHECK(same(through(&layouts[t], x), round_value(&layouts[t], x)));
		}
		for (int i = 0; i < 100000; i++) {
			uint64_t r = rng_next(&seed), exp = 1023 - 160 + rng_next(&seed) % 300;

			/* Few ones in the mantissa, to meet ties; or many. */
			if (i & 1)
				r &= rng_next(&seed) & rng_next(&seed) & rng_next(&seed);
			x = f64_of((r & ~(UINT64_C(0x7ff) << 52)) | exp << 52);
			if (!same(through(&layouts[t], x), round_value(&layouts[t], x)))
				fail_msg("%d of %a", layouts[t].dtype, x);
		}
	}
}

TEST(nan_stays_nan_and_quiet)
{
	static const uint32_t nans[] = { 0x7f800001, 0xff800001, 0x7fc00000, 0xffffffff,
					 0x7fbfffff };

	for (size_t i = 0; i < 5; i++) {
		uint16_t sign = (uint16_t)(nans[i] >> 16 & 0x8000);

		CHECK_INT(shf_f32_to_bf16(f32_of(nans[i])) & 0xffc0, sign | 0x7fc0);
		CHECK_INT(shf_f32_to_f16(f32_of(nans[i])) & 0xfe00, sign | 0x7e00);
		CHECK_INT(f32_bits(shf_bf16_to_f32(sign | 0x7f81)),
			  (uint32_t)sign << 16 | 0x7fc10000);
		CHECK_INT(f32_bits(shf_f16_to_f32(sign | 0x7c01)),
			  (uint32_t)sign << 16 | 0x7fc02000);
		for (size_t t = 3; t < LAYOUTS_N; t++) {
			uint8_t code = shf_f32_to_f8(layouts[t].dtype, f32_of(nans[i]));

			CHECK(isnan(code_value(&layouts[t], code)));
		}
		CHECK_INT(shf_f32_to_f8(SHEAF_F8_E8M0, f32_of(nans[i])), 0xff);
	}
}

TEST(the_callers_rounding_mode_changes_nothing)
{
	static const int modes[] = { FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
	double x[64], seven = 7;
	float want[64], got[64];

	for (int i = 0; i < 64; i++)
		x[i] = (i - 32) / seven;
	CHECK_INT(shf_convert(want, SHEAF_F32, x, SHEAF_F64, 64), 0);
	for (size_t i = 0; i < 3; i++) {
		int rc;

		fesetround(modes[i]);
		rc = shf_convert(got, SHEAF_F32, x, SHEAF_F64, 64);
		fesetround(FE_TONEAREST);
		CHECK_INT(rc, 0);
		assert_memory_equal(got, want, sizeof(want));
	}
}

static const int floats[] = { SHEAF_F64, SHEAF_F32, SHEAF_F16, SHEAF_BF16, SHEAF_F8_E4M3,
	SHEAF_F8_E5M2, SHEAF_F8_E8M0, SHEAF_F8_E4M3FNUZ, SHEAF_F8_E5M2FNUZ };

static size_t item_bytes(int dtype)
{
	return shf_dtype(dtype)->bits / 8u;
}

/* n items by one call, at odd addresses, against n calls of one item. */
static void check_array(int to, int from, size_t n)
{
	uint8_t src[600 * 8 + 1] = { 0 }, dst[600 * 8 + 2], one[8];
	uint64_t seed = (uint64_t)n;

	for (size_t i = 0; i < n; i++) {
		uint64_t bits = rng_next(&seed);

		/* Exponents that all types know, and now and then any. */
		if (i % 8)
			bits = f64_bits((double)(int64_t)bits * 0x1p-62);
		CHECK(!shf_convert(src + 1 + i * item_bytes(from), from, &bits, SHEAF_F64, 1));
	}
	memset(dst, 0xee, sizeof(dst));
	CHECK_INT(shf_convert(dst + 1, to, src + 1, from, n), 0);
	for (size_t i = 0; i < n; i++) {
		CHECK_INT(shf_convert(one, to, src + 1 + i * item_bytes(from), from, 1), 0);
		assert_memory_equal(dst + 1 + i * item_bytes(to), one, item_bytes(to));
	}
	CHECK(dst[0] == 0xee && dst[1 + n * item_bytes(to)] == 0xee);
}

TEST(arrays_convert_as_their_items_do)
{
	static const size_t lengths[] = { 0, 1, 7, 255, 256, 257, 600 };

	for (size_t a = 0; a < 9; a++)
		for (size_t b = 0; b < 9; b++)
			for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
				check_array(floats[a], floats[b], lengths[i]);
}

static void check_pair(const struct layout *to, const struct layout *from)
{
	uint32_t codes_n = from->bytes == 1 ? 256 : 65536;

	for (uint32_t code = 0; code < codes_n; code++) {
		uint32_t got = 0;
		double want = round_value(to, code_value(from, code));

		CHECK(!shf_convert(&got, to->dtype, &code, from->dtype, 1));
		if (!same(code_value(to, got), want))
			fail_msg("%d of %d %x is %x", to->dtype, from->dtype, code, got);
	}
}

TEST(pairs_of_narrow_types_round_once_too)
{
	for (size_t a = 1; a < LAYOUTS_N; a++)
		for (size_t b = 1; b < LAYOUTS_N; b++)
			check_pair(&layouts[b], &layouts[a]);
}

TEST(what_is_not_offered_is_refused_and_equal_types_are_copied)
{
	static const uint8_t src[24] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0xff, 0x7f, 0x80 };

	for (int a = -1; a <= 24; a++)
		for (int b = -1; b <= 24; b++) {
			uint8_t dst[64] = { 0 };
			bool floating = false;
			uint64_t bytes = 0;

			for (size_t i = 0; i < 9; i++)
				for (size_t k = 0; k < 9; k++)
					floating |= floats[i] == a && floats[k] == b;
			CHECK(shf_can_convert(a, b) == (floating || (a == b && a >= 1 && a <= 22)));
			if (!shf_can_convert(a, b)) {
				CHECK_INT(shf_convert(dst, a, src, b, 2), SHEAF_EINVAL);
				CHECK(!memcmp(dst, (uint8_t[64]){ 0 }, 64));
			} else if (a == b && shf_dtype_bytes(&bytes, a, 2)) {
				CHECK_INT(shf_convert(dst, a, src, b, 2), 0);
				CHECK(!memcmp(dst, src, bytes) && dst[bytes] == 0);
			}
		}
	CHECK_INT(shf_convert(NULL, SHEAF_F32, NULL, SHEAF_BF16, 0), 0);
	CHECK_INT(shf_convert(NULL, SHEAF_F64, NULL, SHEAF_F16, SIZE_MAX), SHEAF_EINVAL);
	CHECK_INT(shf_convert(NULL, SHEAF_F4, NULL, SHEAF_F4, 1), SHEAF_EINVAL);
}

TEST(the_value_of_an_item_of_any_whole_byte_type)
{
	static const struct {
		int dtype;
		double want;
		uint8_t item[8];
	} cases[] = {
		{ SHEAF_BOOL, 1, { 1 } },
		{ SHEAF_U8, 255, { 255 } },
		{ SHEAF_I8, -1, { 255 } },
		{ SHEAF_I8, -128, { 128 } },
		{ SHEAF_U16, 65535, { 255, 255 } },
		{ SHEAF_I16, -2, { 254, 255 } },
		{ SHEAF_U32, 4294967295.0, { 255, 255, 255, 255 } },
		{ SHEAF_I32, -2147483648.0, { 0, 0, 0, 128 } },
		{ SHEAF_U64, 0x1p64, { 255, 255, 255, 255, 255, 255, 255, 255 } },
		{ SHEAF_I64, -0x1p63, { 0, 0, 0, 0, 0, 0, 0, 128 } },
		{ SHEAF_I64, -1, { 255, 255, 255, 255, 255, 255, 255, 255 } },
		{ SHEAF_F16, 1, { 0, 0x3c } },
		{ SHEAF_BF16, 1, { 0x80, 0x3f } },
		{ SHEAF_F32, -2, { 0, 0, 0, 0xc0 } },
		{ SHEAF_F64, 1, { 0, 0, 0, 0, 0, 0, 0xf0, 0x3f } },
		{ SHEAF_C64, -2, { 0, 0, 0, 0xc0, 0, 0, 0x80, 0x3f } },
		{ SHEAF_F8_E4M3, 448, { 0x7e } },
		{ SHEAF_F8_E8M0, 2, { 0x80 } },
	};
	double v = 5;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		CHECK(shf_value(&v, cases[i].dtype, cases[i].item));
		CHECK(v == cases[i].want);
	}
	v = 5;
	CHECK(!shf_value(&v, SHEAF_F4, "") && !shf_value(&v, SHEAF_F6_E2M3, "") && v == 5);
	CHECK(!shf_value(&v, 0, "") && !shf_value(&v, 23, ""));
}

#if defined(__x86_64__)
typedef void convert(uint8_t *dst, int dst_dtype, const uint8_t *src, int src_dtype, size_t n);

static const int narrow[] = { SHEAF_F32, SHEAF_F16, SHEAF_BF16, SHEAF_F8_E4M3, SHEAF_F8_E5M2,
			      SHEAF_F8_E4M3FNUZ, SHEAF_F8_E5M2FNUZ };
#define NARROW_N (sizeof(narrow) / sizeof(narrow[0]))
#define ITEMS ((size_t)1 << 16)

/* n items, from src into each type, by one way and by the reference. */
static void check_way(convert *way, int src_dtype, const uint8_t *src, size_t n)
{
	uint8_t *want = malloc(ITEMS * 4 + 1), *got = malloc(ITEMS * 4 + 1);

	assert_non_null(want);
	assert_non_null(got);
	for (size_t i = 0; i < NARROW_N; i++) {
		size_t bytes = n * shf_dtype(narrow[i])->bits / 8;

		if (narrow[i] == src_dtype)
			continue;
		shf_convert_each(want, narrow[i], src, src_dtype, n);
		got[bytes] = 0xa5;
		way(got, narrow[i], src, src_dtype, n);
		CHECK(!memcmp(got, want, bytes));
		CHECK(got[bytes] == 0xa5);
	}
	free(want);
	free(got);
}

/* Every code of the small types; of fp32 each exponent and sign with mantissas about each rounding
 * of the others, and many at random. */
static void check_each_way(convert *way)
{
	uint32_t *src = malloc(ITEMS * 4), at = 0;
	uint64_t z = 15;

	assert_non_null(src);
	for (size_t t = 1; t < NARROW_N; t++) {
		size_t item = shf_dtype(narrow[t])->bits / 8;

		for (size_t i = 0; i < ITEMS; i++)
			memcpy((uint8_t *)src + i * item, &(uint16_t){ (uint16_t)i }, item);
		check_way(way, narrow[t], (uint8_t *)src, ITEMS);
		for (size_t n = 0; n < 600; n += n < 40 ? 1 : 37)
			check_way(way, narrow[t], (uint8_t *)src, n);
	}
	for (uint32_t exp = 0; exp < 512; exp++)
		for (uint32_t bit = 0; bit < 24; bit++)
			for (int d = -2; d <= 2; d++) {
				uint32_t man = (UINT32_C(1) << bit) + (uint32_t)d;

				src[at++ % ITEMS] = exp << 23 | (man & 0x7fffff);
			}
	check_way(way, SHEAF_F32, (uint8_t *)src, at < ITEMS ? at : ITEMS);
	for (int round = 0; round < 30; round++) {
		for (size_t i = 0; i < ITEMS; i++) {
			src[i] = (uint32_t)rng_next(&z);
			/* Half of them where the small types have their numbers. */
			if (i & 1)
				src[i] = (src[i] & 0x8fffffff) | 0x30000000;
		}
		check_way(way, SHEAF_F32, (uint8_t *)src, ITEMS - (size_t)round);
	}
	free(src);
}

TEST(many_at_once_convert_as_one_at_a_time)
{
	if (__builtin_cpu_supports("avx2"))
		check_each_way(shf_convert_x8);
	else
		print_message("# skip avx2: not run, the machine cannot\n");
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
		check_each_way(shf_convert_x16);
	else
		print_message("# skip avx512: not run, the machine cannot\n");
}
#endif
