/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of rowops.h, written once and compiled for each instruction set: ISA is its name.
 * Vectors of 16 floats are an extension of gcc and clang. An operation on vectors is defined as
 * that on each of their items, so all compilers give the same bits. They must not contract anything
 * here into FMAs (train/meson.build). */
#include <math.h>
#include <string.h>

#include "rowops.h"

#define PASTE2(a, b) a##_##b
#define PASTE(a, b) PASTE2(a, b)
#define OP(name) PASTE(tr_##name, ISA)

enum { LANES = 16 };
typedef float vec __attribute__((vector_size(64)));
typedef int32_t veci __attribute__((vector_size(64)));

static inline vec all(float x)
{
	return (vec){ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x };
}

static inline veci alli(int32_t x)
{
	return (veci){ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x };
}

static inline vec load(const float *x)
{
	vec v;

	memcpy(&v, x, sizeof(v));
	return v;
}

static inline void store(float *x, vec v)
{
	memcpy(x, &v, sizeof(v));
}

/* Loads n items, 0 < n < LANES, and sets the other lanes to `rest`. */
static inline vec load_some(const float *x, int64_t n, float rest)
{
	vec v = all(rest);

	memcpy(&v, x, (size_t)n * sizeof(*x));
	return v;
}

static inline void store_some(float *x, vec v, int64_t n)
{
	memcpy(x, &v, (size_t)n * sizeof(*x));
}

/* Returns a where the mask is set, and b elsewhere. */
static inline vec choose(veci mask, vec a, vec b)
{
	return (vec)(((veci)a & mask) | ((veci)b & ~mask));
}

static inline vec larger(vec a, vec b)
{
	return choose((veci)(a > b), a, b);
}

static inline float lanes_sum(vec v)
{
	float x[LANES];

	memcpy(x, &v, sizeof(v));
	for (int n = LANES / 2; n; n /= 2)
		for (int i = 0; i < n; i++)
			x[i] += x[i + n];
	return x[0];
}

static inline float lanes_max(vec v)
{
	float x[LANES];

	memcpy(x, &v, sizeof(v));
	for (int i = 1; i < LANES; i++)
		x[0] = x[i] > x[0] ? x[i] : x[0];
	return x[0];
}

/* Runs `whole` for each full vector of n items, which begins at item `at`, and `some` for the
 * `left` items behind the last full vector. The lanes behind these are computed, but not stored. */
#define EACH(n, whole, some)                                                  \
	do {                                                                  \
		int64_t at = 0;                                               \
		for (; at + LANES <= (n); at += LANES) {                      \
			whole;                                                \
		}                                                             \
		if (at < (n)) {                                               \
			const int64_t left = (n) - at;                        \
			some;                                                 \
		}                                                             \
	} while (0)

/* Computes e^x with an error of at most 2 units in the last place, also where the result is
 * subnormal. The polynomial is that of Cephes. */
static inline vec exponential(vec x)
{
	const vec magic = all(12582912.0f);
	vec n, r, p;
	veci k, half;

	x = choose((veci)(x < all(-104.0f)), all(-104.0f), x);
	x = choose((veci)(x > all(89.0f)), all(89.0f), x);
	n = (x * all(1.44269504f) + magic) - magic;
	r = x - n * all(0.693359375f) - n * all(-2.12194440e-4f);
	p = all(1.9875691500e-4f);
	p = p * r + all(1.3981999507e-3f);
	p = p * r + all(8.3334519073e-3f);
	p = p * r + all(4.1665795894e-2f);
	p = p * r + all(1.6666665459e-1f);
	p = p * r + all(5.0000001201e-1f);
	p = p * r * r + r + all(1.0f);
	/* n is a whole number of at most 150, or NaN. Then p is NaN, whatever it is multiplied
	 * by. */
	k = __builtin_convertvector(choose((veci)(n == n), n, all(0.0f)), veci);
	half = k >> alli(1);
	p = p * (vec)((half + alli(127)) << alli(23));
	return p * (vec)((k - half + alli(127)) << alli(23));
}

/* 1 / (1 + e^-x). */
static inline vec sigmoid(vec x)
{
	return all(1.0f) / (all(1.0f) + exponential(-x));
}

float OP(dot)(const float *x, const float *y, int64_t n)
{
	vec s = all(0.0f);

	EACH(n, s += load(x + at) * load(y + at),
	     s += load_some(x + at, left, 0) * load_some(y + at, left, 0));
	return lanes_sum(s);
}

float OP(dot3)(const float *dy, const float *w, const float *x, int64_t n)
{
	vec s = all(0.0f);

	EACH(n, s += load(dy + at) * load(w + at) * load(x + at),
	     s += load_some(dy + at, left, 0) * load_some(w + at, left, 0) *
		     load_some(x + at, left, 0));
	return lanes_sum(s);
}

float OP(max)(const float *x, int64_t n)
{
	vec m = all(-INFINITY);

	EACH(n, m = larger(load(x + at), m), m = larger(load_some(x + at, left, -INFINITY), m));
	return lanes_max(m);
}

void OP(softmax)(float *x, int64_t n, float scale, float *max, float *inverse)
{
	const vec by = all(scale);
	vec m, s = all(0.0f), e;

	*max = OP(max)(x, n) * scale;
	m = all(*max);
	EACH(n, {
		e = exponential(load(x + at) * by - m);
		s += e;
		store(x + at, e);
	}, {
		e = exponential(load_some(x + at, left, -INFINITY) * by - m);
		store_some(x + at, e, left);
		s += load_some(x + at, left, 0);
	});
	*inverse = 1.0f / lanes_sum(s);
	s = all(*inverse);
	EACH(n, store(x + at, load(x + at) * s),
	     store_some(x + at, load_some(x + at, left, 0) * s, left));
}

void OP(softmax_again)(float *x, int64_t n, float scale, float max, float inverse)
{
	const vec by = all(scale), m = all(max), s = all(inverse);

	EACH(n, store(x + at, exponential(load(x + at) * by - m) * s),
	     store_some(x + at, exponential(load_some(x + at, left, 0) * by - m) * s, left));
}

void OP(softmax_bwd)(float *dp, const float *p, float delta, float scale, int64_t n)
{
	const vec d = all(delta), by = all(scale);

	EACH(n, store(dp + at, load(p + at) * (load(dp + at) - d) * by),
	     store_some(dp + at, load_some(p + at, left, 0) *
			(load_some(dp + at, left, 0) - d) * by, left));
}

float OP(exp_sum)(const float *x, int64_t n, float max)
{
	const vec m = all(max);
	vec s = all(0.0f);

	EACH(n, s += exponential(load(x + at) - m),
	     s += exponential(load_some(x + at, left, -INFINITY) - m));
	return lanes_sum(s);
}

void OP(exp_times)(float *x, int64_t n, float max, float factor)
{
	const vec m = all(max), by = all(factor);

	EACH(n, store(x + at, exponential(load(x + at) - m) * by),
	     store_some(x + at, exponential(load_some(x + at, left, 0) - m) * by, left));
}

void OP(norm)(float *y, const float *x, float factor, const float *w, int64_t n)
{
	const vec f = all(factor);

	EACH(n, store(y + at, load(x + at) * f * load(w + at)),
	     store_some(y + at, load_some(x + at, left, 0) * f * load_some(w + at, left, 0), left));
}

void OP(norm_bwd)(float *dx, const float *dy, const float *x, float factor, float mean,
		  const float *w, int64_t n)
{
	const vec f = all(factor), by = all(mean);

	EACH(n, store(dx + at, load(dx + at) + f * (load(dy + at) * load(w + at) -
						    load(x + at) * by)),
	     store_some(dx + at, load_some(dx + at, left, 0) +
			f * (load_some(dy + at, left, 0) * load_some(w + at, left, 0) -
			     load_some(x + at, left, 0) * by), left));
}

void OP(norm_weight)(float *sum, const float *dy, const float *x, float factor, int64_t n)
{
	const vec f = all(factor);

	EACH(n, store(sum + at, load(sum + at) + load(dy + at) * (load(x + at) * f)),
	     store_some(sum + at, load_some(sum + at, left, 0) +
			load_some(dy + at, left, 0) * (load_some(x + at, left, 0) * f), left));
}

void OP(add)(float *y, const float *x, int64_t n)
{
	EACH(n, store(y + at, load(y + at) + load(x + at)),
	     store_some(y + at, load_some(y + at, left, 0) + load_some(x + at, left, 0), left));
}

void OP(swiglu)(float *h, const float *g, const float *u, int64_t n)
{
	vec a;

	EACH(n, {
		a = load(g + at);
		store(h + at, a * sigmoid(a) * load(u + at));
	}, {
		a = load_some(g + at, left, 0);
		store_some(h + at, a * sigmoid(a) * load_some(u + at, left, 0), left);
	});
}

static inline void swiglu_gradient(vec *dh, vec *du, vec g, vec u)
{
	vec s = sigmoid(g), d = *dh;

	*du = d * (g * s);
	*dh = d * u * (s * (all(1.0f) + g * (all(1.0f) - s)));
}

void OP(swiglu_bwd)(float *dh, float *du, const float *g, const float *u, int64_t n)
{
	vec d, e;

	EACH(n, {
		d = load(dh + at);
		swiglu_gradient(&d, &e, load(g + at), load(u + at));
		store(dh + at, d);
		store(du + at, e);
	}, {
		d = load_some(dh + at, left, 0);
		swiglu_gradient(&d, &e, load_some(g + at, left, 0), load_some(u + at, left, 0));
		store_some(dh + at, d, left);
		store_some(du + at, e, left);
	});
}

void OP(rope)(float *x, const float *cosine, const float *sine, int64_t half, float turn)
{
	for (int64_t i = 0; i < half; i++) {
		float a = x[i], b = x[i + half], s = turn * sine[i];

		x[i] = a * cosine[i] - b * s;
		x[i + half] = b * cosine[i] + a * s;
	}
}

static inline vec root(vec x)
{
	for (int i = 0; i < LANES; i++)
		x[i] = sqrtf(x[i]);
	return x;
}

static inline void adamw_items(vec *p, vec *m, vec *v, vec g, const struct tr_adamw_step *s)
{
	g = g * all(s->scale);
	*m = *m + (g - *m) * all(s->beta1_rest);
	*v = *v * all(s->beta2) + g * g * all(s->beta2_rest);
	*p = *p * all(s->keep) - *m / (root(*v) * all(s->root) + all(s->eps)) * all(s->rate);
}

void OP(adamw)(float *p, float *m, float *v, const float *g, int64_t n,
	       const struct tr_adamw_step *s)
{
	vec a, b, c;

	EACH(n, {
		a = load(p + at);
		b = load(m + at);
		c = load(v + at);
		adamw_items(&a, &b, &c, load(g + at), s);
		store(p + at, a);
		store(m + at, b);
		store(v + at, c);
	}, {
		a = load_some(p + at, left, 0);
		b = load_some(m + at, left, 0);
		c = load_some(v + at, left, 0);
		adamw_items(&a, &b, &c, load_some(g + at, left, 0), s);
		store_some(p + at, a, left);
		store_some(m + at, b, left);
		store_some(v + at, c, left);
	});
}

float OP(absmax)(const float *x, int64_t n)
{
	const veci sign = alli(0x7FFFFFFF);
	/* Without the sign, floats are in the order of their bits as integers, and NaNs are
	 * last. */
	veci m = alli(0), a;
	int32_t most = 0;
	float result;

	EACH(n, {
		a = (veci)load(x + at) & sign;
		m = (veci)choose((veci)(a > m), (vec)a, (vec)m);
	}, {
		a = (veci)load_some(x + at, left, 0) & sign;
		m = (veci)choose((veci)(a > m), (vec)a, (vec)m);
	});
	for (int i = 0; i < LANES; i++)
		most = m[i] > most ? m[i] : most;
	memcpy(&result, &most, sizeof(result));
	return result;
}

void OP(squares)(const float *x, int64_t n, double scale, int64_t sum[2])
{
	/* Adding 1.5 * 2^52 rounds to a whole number, which is in the low bits of the result. */
	const double magic = 6755399441055744.0;
	int64_t high = 0, low = 0, zero, bits;

	memcpy(&zero, &magic, sizeof(zero));
	for (int64_t i = 0; i < n; i++) {
		double a = (double)x[i] * scale, q = a * a * 0x1p31, whole = q + magic, rest;

		memcpy(&bits, &whole, sizeof(bits));
		high += bits - zero;
		rest = (q - (whole - magic)) * 0x1p31 + magic;
		memcpy(&bits, &rest, sizeof(bits));
		low += bits - zero;
	}
	sum[0] += high;
	sum[1] += low;
}
