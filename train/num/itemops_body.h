/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of rowops.h on items, written once and compiled for each instruction set and type.
 * rowops_body.h includes this file for TYPE f32 and then for bf16. */
#ifdef ITEMS_ARE_BF16
#define ITEM uint16_t
#define LOAD(x) load_bf16((const ITEM *)(x) + at)
#define LOAD_SOME(x) load_some_bf16((const ITEM *)(x) + at, left)
#define STORE(x, v) store_bf16((ITEM *)(x) + at, v)
#define STORE_SOME(x, v) store_some_bf16((ITEM *)(x) + at, v, left)
#define ROUNDED(v) rounded(v)
#else
#define ITEM float
#define LOAD(x) load((const ITEM *)(x) + at)
#define LOAD_SOME(x) load_some((const ITEM *)(x) + at, left, 0)
#define STORE(x, v) store((ITEM *)(x) + at, v)
#define STORE_SOME(x, v) store_some((ITEM *)(x) + at, v, left)
#define ROUNDED(v) (v)
#endif
#define ITEMS3(name, isa, type) tr_##name##_##isa##_##type
#define ITEMS2(name, isa, type) ITEMS3(name, isa, type)
#define ITEMS(name) ITEMS2(name, ISA, TYPE)

float ITEMS(square)(const void *x, int64_t n)
{
	vec s = all(0.0f);

	EACH(n, s += LOAD(x) * LOAD(x), s += LOAD_SOME(x) * LOAD_SOME(x));
	return lanes_sum(s);
}

float ITEMS(dot)(const void *x, const float *y, int64_t n)
{
	vec s = all(0.0f);

	EACH(n, s += LOAD(x) * load(y + at), s += LOAD_SOME(x) * load_some(y + at, left, 0));
	return lanes_sum(s);
}

float ITEMS(dot3)(const float *dy, const void *w, const void *x, int64_t n)
{
	vec s = all(0.0f);

	EACH(n, s += load(dy + at) * LOAD(w) * LOAD(x),
	     s += load_some(dy + at, left, 0) * LOAD_SOME(w) * LOAD_SOME(x));
	return lanes_sum(s);
}

void ITEMS(norm)(void *y, const void *x, float factor, const void *w, int64_t n)
{
	const vec f = all(factor);

	EACH(n, STORE(y, ROUNDED(LOAD(x) * f) * LOAD(w)),
	     STORE_SOME(y, ROUNDED(LOAD_SOME(x) * f) * LOAD_SOME(w)));
}

void ITEMS(norm_bwd)(float *dx, const float *dy, const void *x, float factor, float mean,
		     const void *w, int64_t n)
{
	const vec f = all(factor), by = all(mean);

	EACH(n, store(dx + at, load(dx + at) + f * (load(dy + at) * LOAD(w) - LOAD(x) * by)),
	     store_some(dx + at, load_some(dx + at, left, 0) +
			f * (load_some(dy + at, left, 0) * LOAD_SOME(w) - LOAD_SOME(x) * by),
			left));
}

void ITEMS(norm_weight)(float *sum, const float *dy, const void *x, float factor, int64_t n)
{
	const vec f = all(factor);

	EACH(n, store(sum + at, load(sum + at) + load(dy + at) * (LOAD(x) * f)),
	     store_some(sum + at, load_some(sum + at, left, 0) +
			load_some(dy + at, left, 0) * (LOAD_SOME(x) * f), left));
}

void ITEMS(swiglu)(void *h, const void *g, const void *u, int64_t n)
{
	vec a;

	EACH(n, {
		a = LOAD(g);
		STORE(h, a * sigmoid(a) * LOAD(u));
	}, {
		a = LOAD_SOME(g);
		STORE_SOME(h, a * sigmoid(a) * LOAD_SOME(u));
	});
}

void ITEMS(swiglu_bwd)(float *dh, float *du, const void *g, const void *u, int64_t n)
{
	vec d, e;

	EACH(n, {
		d = load(dh + at);
		swiglu_gradient(&d, &e, LOAD(g), LOAD(u));
		store(dh + at, d);
		store(du + at, e);
	}, {
		d = load_some(dh + at, left, 0);
		swiglu_gradient(&d, &e, LOAD_SOME(g), LOAD_SOME(u));
		store_some(dh + at, d, left);
		store_some(du + at, e, left);
	});
}

void ITEMS(rope)(void *x, const float *cosine, const float *sine, int64_t half, float turn)
{
	ITEM *low = x, *high = low + half;
	const vec by = all(turn);
	vec a, b, c, s;

	EACH(half, {
		a = LOAD(low);
		b = LOAD(high);
		c = load(cosine + at);
		s = by * load(sine + at);
		STORE(low, a * c - b * s);
		STORE(high, b * c + a * s);
	}, {
		a = LOAD_SOME(low);
		b = LOAD_SOME(high);
		c = load_some(cosine + at, left, 0);
		s = by * load_some(sine + at, left, 0);
		STORE_SOME(low, a * c - b * s);
		STORE_SOME(high, b * c + a * s);
	});
}

void ITEMS(add_items)(float *y, const void *x, int64_t n)
{
	EACH(n, store(y + at, load(y + at) + LOAD(x)),
	     store_some(y + at, load_some(y + at, left, 0) + LOAD_SOME(x), left));
}

void ITEMS(sum)(void *y, const float *a, const void *x, int64_t n)
{
	EACH(n, STORE(y, load(a + at) + LOAD(x)),
	     STORE_SOME(y, load_some(a + at, left, 0) + LOAD_SOME(x)));
}

void ITEMS(round)(void *y, const float *x, int64_t n)
{
	EACH(n, STORE(y, load(x + at)), STORE_SOME(y, load_some(x + at, left, 0)));
}

#undef ITEM
#undef LOAD
#undef LOAD_SOME
#undef STORE
#undef STORE_SOME
#undef ROUNDED
#undef ITEMS
#undef ITEMS2
#undef ITEMS3
