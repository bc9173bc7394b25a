/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 floats, of which the row operations are made. They are an extension of gcc and
 * clang. An operation on vectors is defined as that on each of their items, so all compilers give
 * the same bits. They must not contract anything here into FMAs (train/meson.build). */
#ifndef LANES_H
#define LANES_H
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };
typedef float vec __attribute__((vector_size(64)));
typedef int32_t veci __attribute__((vector_size(64)));
typedef uint32_t vecu __attribute__((vector_size(64)));

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

/* bf16 is the upper half of a float. */
typedef uint16_t vech __attribute__((vector_size(32)));

static inline vec widen(vech h)
{
	return (vec)(__builtin_convertvector(h, vecu) << 16);
}

/* Returns the bits of the floats, whose upper halves are rounded to bf16: to nearest, ties to even.
 * The lower halves have no meaning. A NaN stays one. */
static inline vecu round_upper(vec v)
{
	const vecu bits = (vecu)v, one = (bits >> 16) & 1;

	return (vecu)choose((veci)(v == v), (vec)(bits + one + 0x7FFF), (vec)(bits | 0x400000));
}

static inline vec rounded(vec v)
{
	return (vec)(round_upper(v) & 0xFFFF0000U);
}

static inline vec load_bf16(const uint16_t *x)
{
	vech h;

	memcpy(&h, x, sizeof(h));
	return widen(h);
}

static inline void store_bf16(uint16_t *x, vec v)
{
	vech h = __builtin_convertvector(round_upper(v) >> 16, vech);

	memcpy(x, &h, sizeof(h));
}

static inline vec load_some_bf16(const uint16_t *x, int64_t n)
{
	vech h = { 0 };

	memcpy(&h, x, (size_t)n * sizeof(*x));
	return widen(h);
}

static inline void store_some_bf16(uint16_t *x, vec v, int64_t n)
{
	vech h = __builtin_convertvector(round_upper(v) >> 16, vech);

	memcpy(x, &h, (size_t)n * sizeof(*x));
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

static inline void swiglu_gradient(vec *dh, vec *du, vec g, vec u)
{
	vec s = sigmoid(g), d = *dh;

	*du = d * (g * s);
	*dh = d * u * (s * (all(1.0f) + g * (all(1.0f) - s)));
}
#endif
