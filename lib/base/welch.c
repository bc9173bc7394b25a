/* SPDX-License-Identifier: Apache-2.0 */
#include "welch.h"
#include <stdlib.h>

double shf_root(double x)
{
	double r = x > 1 ? x : 1, next;

	if (!(x > 0))
		return 0;
	/* From above Newton's steps go down until rounding stops them. */
	while ((next = (r + x / r) / 2) < r)
		r = next;
	return r;
}

double shf_student_95(double df)
{
	static const double at[] = { 12.706205, 4.302653, 3.182447, 2.776446, 2.570582, 2.446912,
		2.364625, 2.306005, 2.262158, 2.228139, 2.200986, 2.178813, 2.160369, 2.144787,
		2.131450, 2.119906, 2.109816, 2.100923, 2.093025, 2.085964, 2.079614, 2.073874,
		2.068658, 2.063899, 2.059539, 2.055530, 2.051831, 2.048408, 2.045230, 2.042273 };
	const double z = 1.959963984540054, z2 = z * z;
	size_t n = sizeof(at) / sizeof(at[0]), i = (size_t)df;

	if (!(df > 1))
		return at[0];
	if (df < (double)n) { /* straight in 1 / df, of which the curve is convex */
		double lo = 1 / (double)i, hi = 1 / (double)(i + 1), w = (lo - 1 / df) / (lo - hi);

		return at[i - 1] + w * (at[i] - at[i - 1]);
	}
	/* Fisher and Cornish's expansion around the normal distribution. */
	return z * (1 + ((z2 + 1) / 4 + ((5 * z2 + 16) * z2 + 3) / 96 / df +
			 (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384 / (df * df) +
			 ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / 92160 /
			     (df * df * df)) / df);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The square of the error of the mean. */
static double describe(double *x, size_t n, double *mean, double *median)
{
	double sum = 0, squares = 0;

	qsort(x, n, sizeof(*x), by_size);
	*median = (x[(n - 1) / 2] + x[n / 2]) / 2;
	for (size_t i = 0; i < n; i++)
		sum += x[i];
	*mean = sum / (double)n;
	for (size_t i = 0; i < n; i++)
		squares += (x[i] - *mean) * (x[i] - *mean);
	return squares / (double)(n - 1) / (double)n;
}

bool shf_welch(struct shf_welch *out, double *a, size_t a_n, double *b, size_t b_n)
{
	struct shf_welch w = { .df = 0 };
	double va, vb, v, wide = 0;

	if (a_n < 2 || b_n < 2)
		return false;
	va = describe(a, a_n, &w.mean[0], &w.median[0]);
	vb = describe(b, b_n, &w.mean[1], &w.median[1]);
	v = va + vb;
	w.diff = w.mean[1] - w.mean[0];
	if (v > 0) {
		w.df = v * v / (va * va / (double)(a_n - 1) + vb * vb / (double)(b_n - 1));
		wide = shf_student_95(w.df) * shf_root(v);
	}
	w.low = w.diff - wide;
	w.high = w.diff + wide;
	*out = w;
	return true;
}
