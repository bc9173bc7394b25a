/* SPDX-License-Identifier: Apache-2.0 */
/* Averages, bit for bit: by the formula one item at a time, over every way, cut and type. */
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "rng.h"
#include "t.h"
#include "average.h"
#include "dtype.h"
#include "hexfloat.h"
#include "mem.h"

#define N 1500
#define STEPS 100

static uint32_t bits_of(float v)
{
	uint32_t b;

	memcpy(&b, &v, sizeof(b));
	return b;
}

static float of_bits(uint32_t b)
{
	float v;

	memcpy(&v, &b, sizeof(v));
	return v;
}

/* Weights as they are, and now and then as they should not be. */
static float draw(uint64_t *s, bool any)
{
	static const uint32_t odd[] = { 0, 0x80000000, 1, 0x807fffff, 0x7f800000, 0xff800000,
					0x7fc12345, 0xffa00001, 0x7f7fffff, 0x00800000 };
	uint64_t r = rng_next(s);

	if (any && r % 50 == 0)
		return of_bits(odd[(r >> 32) % (sizeof(odd) / sizeof(odd[0]))]);
	return ldexpf((float)(int32_t)(r >> 32), (int)(r % 40) - 66);
}

static uint32_t want(float e, float w, double coef)
{
	volatile float term = (float)(1.0 - coef) * w;
	float v = fmaf((float)coef, e, term);

	return v != v ? 0x7fc00000 : bits_of(v);
}

TEST(each_way_gives_the_bits_of_the_formula)
{
	static const double coefs[] = { 0.999, 0.9, 0.0, 0.99999999 };
	float e[N], w[N], got[N];
	const char *name;
	uint64_t s = 88172645463325252;
	int here, ways = 0;

	for (int i = 0; shf_average_way(i, &name, &here); i++) {
		shf_average_path *way = shf_average_way(i, &name, &here);

		if (!here) {
			printf("# %s: not on this machine\n", name);
			continue;
		}
		ways++;
		for (size_t n = 0; n < 200; n++)
			for (size_t k = 0; k < 4; k++) {
				size_t off = (n * 7 + k) % 64;

				for (size_t j = 0; j < n + 2; j++) {
					e[off + j] = got[off + j] = draw(&s, true);
					w[k + j] = draw(&s, true);
				}
				way(got + off + 1, w + k + 1, n, (float)coefs[k],
				    (float)(1.0 - coefs[k]));
				CHECK(bits_of(got[off]) == bits_of(e[off]));
				CHECK(bits_of(got[off + n + 1]) == bits_of(e[off + n + 1]));
				for (size_t j = 1; j <= n; j++)
					CHECK(bits_of(got[off + j]) ==
					      want(e[off + j], w[k + j], coefs[k]));
			}
	}
	CHECK(ways > 0);
}

/* e over STEPS steps of weights of the type, cut at `cut` each time. */
static void run(float *e, int dtype, size_t cut)
{
	uint64_t s = 42;
	float wide[N];
	uint8_t w[N * 4 + 1];
	size_t bytes = shf_dtype(dtype)->bits / 8;

	for (int step = 0; step < STEPS; step++) {
		uint8_t *at = w + step % 2; /* at no address in particular */

		for (size_t i = 0; i < N; i++)
			wide[i] = draw(&s, i % 3 == 0);
		CHECK_INT(shf_convert(at, dtype, wide, SHEAF_F32, N), 0);
		if (step == 0)
			CHECK_INT(shf_convert(e, SHEAF_F32, at, dtype, N), 0);
		else
			for (size_t i = 0; i < N; i += cut)
				shf_average(e + i, at + i * bytes, dtype, N - i < cut ? N - i : cut,
				            0.99);
	}
}

TEST(a_hundred_steps_are_the_same_whatever_the_cut_and_the_callers_rounding)
{
	static const int dtypes[] = { SHEAF_F32, SHEAF_BF16, SHEAF_F16 };
	static float one[N], other[N];

	for (int t = 0; t < 3; t++) {
		size_t numbers = 0;

		run(one, dtypes[t], N);
		for (size_t i = 0; i < N; i++)
			numbers += one[i] == one[i] && one[i] != 0;
		CHECK(numbers > N / 20);
		for (size_t cut = 1; cut <= 64; cut++) {
			run(other, dtypes[t], cut);
			CHECK(memcmp(one, other, sizeof(one)) == 0);
		}
		CHECK_INT(fesetround(FE_UPWARD), 0);
#if defined(__x86_64__)
		unsigned was = __builtin_ia32_stmxcsr();

		__builtin_ia32_ldmxcsr(was | 0x8040); /* denormals are zero, in and out */
#endif
		/* Their making, not only their averaging, would be upward. */
		float e = 1, w = of_bits(1);
		shf_average(&e, &w, SHEAF_F32, 1, 0.75);
		CHECK_INT(fegetround(), FE_UPWARD);
#if defined(__x86_64__)
		CHECK((__builtin_ia32_stmxcsr() & 0x8040) == 0x8040);
		__builtin_ia32_ldmxcsr(was);
#endif
		CHECK_INT(fesetround(FE_TONEAREST), 0);
		CHECK(bits_of(e) == want(1, of_bits(1), 0.75));
		e = of_bits(3);
		shf_average(&e, &w, SHEAF_F32, 1, 0.75);
		CHECK(bits_of(e) == want(of_bits(3), of_bits(1), 0.75) && e > 0);
	}
}

static void made_in(int mode, float *e, const float *w, double coef)
{
	for (size_t i = 0; i < N; i++)
		e[i] = 1;
	CHECK_INT(fesetround(mode), 0);
	shf_average(e, w, SHEAF_F32, N, coef);
	CHECK_INT(fesetround(FE_TONEAREST), 0);
}

TEST(the_coefficients_do_not_depend_on_the_callers_rounding)
{
	static const int modes[] = { FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
	static const double coefs[] = { 0.999, 0.9999, 0.1, 1.0 / 3 };
	static float w[N], e[N], other[N];
	uint64_t s = 11;

	for (size_t i = 0; i < N; i++)
		w[i] = draw(&s, false);
	for (int k = 0; k < 4 * 3; k++) {
		made_in(FE_TONEAREST, e, w, coefs[k / 3]);
		made_in(modes[k % 3], other, w, coefs[k / 3]);
		CHECK(memcmp(e, other, sizeof(e)) == 0);
	}
	for (int64_t n = 0; n < 300; n++)
		for (int k = 0; k < 3; k++) {
			double want = shf_average_coef(0.999, 10, n), got;

			CHECK_INT(fesetround(modes[k]), 0);
			got = shf_average_coef(0.999, 10, n);
			CHECK_INT(fesetround(FE_TONEAREST), 0);
			CHECK(memcmp(&got, &want, sizeof(got)) == 0);
		}
}

TEST(a_hex_float_keeps_every_bit_and_nothing_else_is_one)
{
	static const char *const none[] = { "", "1", "0x", "0x1", "0x1p", "0x1p+", "0x1.p+0",
		"0x1.0p+0", "0x2p+0", "0x1p0", "0x1,8p+0", "0x1p+0 ", " 0x1p+0", "0x1p+1024",
		"0x1.00000000000001p+0", "0x1.Ap+0", "nan", "inf", "0x0p+1", "--0x1p+0",
		"0x1.123456789abcdep-1074", "00000000000000000000000000000000000" };
	uint64_t s = 7, bits;
	char text[SHF_HEXFLOAT];
	double v, got;

	shf_hexfloat_put(text, 0.999);
	CHECK_STR(text, "0x1.ff7ced916872bp-1");
	CHECK(shf_hexfloat_get(&got, "0x1.ffcb923a29c78p-1") && got == 0x1.ffcb923a29c78p-1);
	for (int i = 0; i < 20000; i++) {
		bits = rng_next(&s) & (i % 3 ? UINT64_MAX : UINT64_MAX << (i % 64));
		bits >>= i % 7 == 0 ? 12 : 0; /* denormal */
		memcpy(&v, &bits, sizeof(v));
		if (!isfinite(v))
			continue;
		shf_hexfloat_put(text, v);
		CHECK(shf_hexfloat_get(&got, text) && memcmp(&got, &v, sizeof(v)) == 0);
		CHECK(strtod(text, NULL) == v);
	}
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		CHECK(!shf_hexfloat_get(&got, none[i]));
}
