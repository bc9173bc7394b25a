/* SPDX-License-Identifier: Apache-2.0 */
#include "elementary.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static const double ln2_hi = 6.93147180369123816490e-01, ln2_lo = 1.90821492927058770002e-10;

static uint64_t bits_of(double x)
{
	uint64_t b;

	memcpy(&b, &x, sizeof(b));
	return b;
}

static double of_bits(uint64_t b)
{
	double x;

	memcpy(&x, &b, sizeof(x));
	return x;
}

double tr_exp(double x)
{
	double n, r, sum = 1;
	int64_t k;

	if (!(x > -745.2))
		return x != x ? x : 0;
	if (x > 709.78)
		return INFINITY;
	/* Adding 1.5 * 2^52 and subtracting it again rounds to the nearest whole number. */
	n = (x * 1.44269504088896338700 + 0x1.8p52) - 0x1.8p52;
	r = x - n * ln2_hi - n * ln2_lo;
	/* Taylor's series by Horner's rule. As |r| < 0.35, the first term that is left out is below
	 * 2^-80. */
	for (int i = 18; i >= 1; i--)
		sum = 1 + sum * (r / i);
	k = (int64_t)n;
	/* 2^k is multiplied in two factors, because it may be subnormal or overflow. */
	sum *= of_bits((uint64_t)(1023 + k / 2) << 52);
	return sum * of_bits((uint64_t)(1023 + (k - k / 2)) << 52);
}

double tr_log(double x)
{
	double f, f2, sum = 0, e = 0;
	int64_t k;

	if (!(x > 0))
		return x == 0 ? -INFINITY : NAN;
	if (x == INFINITY)
		return x;
	if (x < 0x1p-1022) {
		x *= 0x1p54;
		e = -54;
	}
	k = (int64_t)(bits_of(x) >> 52) - 1023;
	x = of_bits((bits_of(x) & 0xFFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
	if (x > 1.4142135623730951) {
		x *= 0.5;
		k++;
	}
	e += (double)k;
	/* log(x) = 2 atanh(f) = 2 (f + f^3 / 3 + f^5 / 5 ...) with |f| < 0.172. */
	f = (x - 1) / (x + 1);
	f2 = f * f;
	for (int i = 23; i >= 3; i -= 2)
		sum = (sum + 1.0 / i) * f2;
	return e * ln2_hi + (2 * f + (2 * f * sum + e * ln2_lo));
}

void tr_sincos(double x, double *s, double *c)
{
	/* The sum of these is pi/2, and n times each of the first two is exact for |n| < 2^20. */
	const double p1 = 1.57079632673412561417e+00, p2 = 6.07710050630396597660e-11,
		     p3 = 2.02226624879595063154e-21;
	double n = (x * 0.63661977236758138 + 0x1.8p52) - 0x1.8p52;
	double r = x - n * p1 - n * p2 - n * p3, r2 = r * r, sine = 0, cosine = 0;

	for (int i = 19; i >= 3; i -= 2)
		sine = (1 + sine) * -r2 / (i * (i - 1));
	for (int i = 20; i >= 2; i -= 2)
		cosine = (1 + cosine) * -r2 / (i * (i - 1));
	sine = r + r * sine;
	cosine = 1 + cosine;
	switch ((int64_t)n & 3) {
	case 0: *s = sine; *c = cosine; break;
	case 1: *s = cosine; *c = -sine; break;
	case 2: *s = -sine; *c = -cosine; break;
	default: *s = -cosine; *c = sine;
	}
}

double tr_power(double x, long long n)
{
	double result = 1;

	/* Not by squaring: the bits are those of a product to which each step adds a factor. */
	for (long long i = 0; i < n; i++)
		result *= x;
	return result;
}
