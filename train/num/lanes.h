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

/* A vector is cut into parts that fit into one register each. Compilers compare and convert longer
 * vectors item by item, so functions that compare or convert work on parts. */
#if defined(__AVX512F__)
enum { PART = 16 };
#elif defined(__AVX2__)
enum { PART = 8 };
#else
enum { PART = 4 };
#endif
enum { PARTS = LANES / PART };
typedef float part __attribute__((vector_size(4 * PART)));
typedef int32_t parti __attribute__((vector_size(4 * PART)));
typedef uint32_t partu __attribute__((vector_size(4 * PART)));
union parts {
	vec v;
	veci i;
	vecu u;
	part p[PARTS];
	parti pi[PARTS];
	partu pu[PARTS];
};

/* Returns a part whose items are all x. */
static inline part every(float x)
{
	return x - (part){ 0 };
}

/* Returns a where the mask is set, and b elsewhere. */
static inline part choose(parti mask, part a, part b)
{
	return (part)(((parti)a & mask) | ((parti)b & ~mask));
}

static inline part load_part(const float *x)
{
	part p;

	memcpy(&p, x, sizeof(p));
	return p;
}

/* Returns a where a > b, and b elsewhere. */
static inline part larger(part a, part b)
{
	return choose((parti)(a > b), a, b);
}

static inline veci larger_integers(veci a, veci b)
{
	union parts x = { .i = a }, y = { .i = b };

	for (int i = 0; i < PARTS; i++)
		x.p[i] = choose((parti)(x.pi[i] > y.pi[i]), x.p[i], y.p[i]);
	return x.i;
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
	union parts x = { .v = v };

	for (int i = 0; i < PARTS; i++) {
		const partu bits = x.pu[i], one = (bits >> 16) & 1;

		x.p[i] = choose((parti)(x.p[i] == x.p[i]), (part)(bits + one + 0x7FFF),
				(part)(bits | 0x400000));
	}
	return x.u;
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
 * `left` items after the last full vector. The lanes after these are computed, but not stored. */
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
static inline part exponential_part(part x)
{
	const part magic = every(12582912.0f);
	part n, r, p;
	parti k, half;

	x = choose((parti)(x < every(-104.0f)), every(-104.0f), x);
	x = choose((parti)(x > every(89.0f)), every(89.0f), x);
	n = (x * every(1.44269504f) + magic) - magic;
	r = x - n * every(0.693359375f) - n * every(-2.12194440e-4f);
	p = every(1.9875691500e-4f);
	p = p * r + every(1.3981999507e-3f);
	p = p * r + every(8.3334519073e-3f);
	p = p * r + every(4.1665795894e-2f);
	p = p * r + every(1.6666665459e-1f);
	p = p * r + every(5.0000001201e-1f);
	p = p * r * r + r + every(1.0f);
	/* n is a whole number of at most 150, or NaN. Then p is NaN, whatever it is multiplied
	 * by. */
	k = __builtin_convertvector(choose((parti)(n == n), n, every(0.0f)), parti);
	half = k >> 1;
	p = p * (part)((half + 127) << 23);
	return p * (part)((k - half + 127) << 23);
}

static inline vec exponential(vec x)
{
	union parts u = { .v = x };

	for (int i = 0; i < PARTS; i++)
		u.p[i] = exponential_part(u.p[i]);
	return u.v;
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
