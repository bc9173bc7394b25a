/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of rowops.h, written once and compiled for each instruction set: ISA is its name.
 * Those on floats are here, and those on items in itemops_body.h. */
#include <math.h>
#include <string.h>

#include "lanes.h"
#include "rowops.h"

#define OP2(name, isa) tr_##name##_##isa
#define OP1(name, isa) OP2(name, isa)
#define OP(name) OP1(name, ISA)

float OP(max)(const float *x, int64_t n)
{
	union parts u;
	part m[PARTS];
	int64_t at = 0;

	for (int i = 0; i < PARTS; i++)
		m[i] = every(-INFINITY);
	for (; at + LANES <= n; at += LANES)
		for (int i = 0; i < PARTS; i++)
			m[i] = larger(load_part(x + at + i * PART), m[i]);
	u.v = at < n ? load_some(x + at, n - at, -INFINITY) : all(-INFINITY);
	for (int i = 0; i < PARTS; i++)
		u.p[i] = larger(u.p[i], m[i]);
	return lanes_max(u.v);
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

void OP(add)(float *y, const float *x, int64_t n)
{
	EACH(n, store(y + at, load(y + at) + load(x + at)),
	     store_some(y + at, load_some(y + at, left, 0) + load_some(x + at, left, 0), left));
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

void OP(momentum)(float *m, float *g, int64_t n, float scale, float rest)
{
	const vec by = all(scale), r = all(rest);
	vec a, b;

	EACH(n, {
		a = load(g + at) * by;
		b = load(m + at);
		b = b + (a - b) * r;
		store(m + at, b);
		store(g + at, b + (a - b) * r);
	}, {
		a = load_some(g + at, left, 0) * by;
		b = load_some(m + at, left, 0);
		b = b + (a - b) * r;
		store_some(m + at, b, left);
		store_some(g + at, b + (a - b) * r, left);
	});
}

void OP(blend)(float *y, const float *x, int64_t n, float a, float b)
{
	const vec p = all(a), q = all(b);

	EACH(n, store(y + at, p * load(x + at) + q * load(y + at)),
	     store_some(y + at, p * load_some(x + at, left, 0) + q * load_some(y + at, left, 0),
			left));
}

void OP(average)(float *e, const float *x, int64_t n, float rest)
{
	const vec r = all(rest);
	vec a;

	EACH(n, {
		a = load(e + at);
		store(e + at, a + (load(x + at) - a) * r);
	}, {
		a = load_some(e + at, left, 0);
		store_some(e + at, a + (load_some(x + at, left, 0) - a) * r, left);
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
		m = larger_integers(a, m);
	}, {
		a = (veci)load_some(x + at, left, 0) & sign;
		m = larger_integers(a, m);
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

#define TYPE f32
#include "itemops_body.h"
#undef TYPE
#define TYPE bf16
#define ITEMS_ARE_BF16
#include "itemops_body.h"
