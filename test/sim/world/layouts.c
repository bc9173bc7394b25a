/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "layouts.h"
#include "items.h"

#define T(f, n, d, ax, st, ex, fu, nd, ...) { f, n, d, nd, { __VA_ARGS__ }, ax, st, ex, fu }
const struct lay_tensor lay_tensors[] = {
	T("model", "embed.weight", SHEAF_BF16, 0, 0, -1, 0, 2, 1031, 37),
	T("model", "layers.0.k", SHEAF_BF16, 0, 0, -1, 1, 2, 13, 29),
	T("model", "layers.0.q", SHEAF_BF16, 0, 0, -1, 1, 2, 23, 29),
	T("model", "layers.0.v", SHEAF_BF16, 0, 0, -1, 1, 2, 13, 29),
	T("model", "layers.0.conv", SHEAF_F16, 1, 0, -1, 0, 3, 7, 5, 3),
	T("model", "layers.0.norm", SHEAF_F32, -1, 0, -1, 0, 1, 37),
	T("model", "layers.1.up", SHEAF_F32, 1, 1, -1, 0, 2, 301, 1033),
	T("model", "layers.1.mask", SHEAF_BOOL, 0, 1, -1, 0, 1, 13),
	T("model", "layers.2.down", SHEAF_BF16, 0, 1, -1, 0, 2, 512, 128),
	T("model", "layers.10.out", SHEAF_F64, 1, 2, -1, 0, 2, 11, 17),
	T("model", "layers.10.void", SHEAF_F32, 0, 2, -1, 0, 2, 0, 4),
	T("model", "layers.10.void2", SHEAF_F32, 0, 2, -1, 0, 2, 3, 0),
	T("model", "steps", SHEAF_I64, -1, -1, -1, 0, 0, 0),
	T("model", "layers.1.experts.0.w", SHEAF_BF16, 0, 1, 0, 0, 2, 11, 9),
	T("model", "layers.1.experts.1.w", SHEAF_BF16, 0, 1, 1, 0, 2, 11, 9),
	T("model", "layers.1.experts.2.w", SHEAF_BF16, 0, 1, 2, 0, 2, 11, 9),
	T("model", "layers.1.experts.3.w", SHEAF_BF16, 0, 1, 3, 0, 2, 11, 9),
	T("model", "layers.1.experts.4.w", SHEAF_BF16, 0, 1, 4, 0, 2, 11, 9),
	T("model", "layers.1.experts.5.w", SHEAF_BF16, 0, 1, 5, 0, 2, 11, 9),
	T("model", "layers.1.experts.6.w", SHEAF_BF16, 0, 1, 6, 0, 2, 11, 9),
	T("model", "layers.1.experts.7.w", SHEAF_BF16, 0, 1, 7, 0, 2, 11, 9),
	T("master_weights", "layers.2.down", SHEAF_F32, 0, 1, -1, 0, 2, 512, 128),
	T("master_weights", "layers.1.experts.5.w", SHEAF_F32, 0, 1, 5, 0, 2, 11, 9),
	T("optimizer", "layers.1.up/moment1_0", SHEAF_F32, 1, 1, -1, 0, 2, 61, 103),
	T("optimizer", "layers.0.q/moment2_0", SHEAF_F32, 0, 0, -1, 0, 2, 23, 29),
	T("optimizer", "layers.1.experts.5.w/moment1_0", SHEAF_F32, 0, 1, 5, 0, 2, 11, 9),
	T("optimizer", "layers.1.experts.6.w/moment1_0", SHEAF_F32, 0, 1, 6, 0, 2, 11, 9),
	T("ema", "layers.0.norm", SHEAF_F32, -1, 0, -1, 0, 1, 37),
};
const int lay_tensors_n = sizeof(lay_tensors) / sizeof(lay_tensors[0]);

const struct layout layouts[] = {
	{ .name = "one", .ranks = 1, .dp = 1, .pp = 1, .tp = 1, .ep = 1 },
	{ .name = "dp2", .ranks = 2, .dp = 2, .pp = 1, .tp = 1, .ep = 1 },
	{ .name = "dp3", .ranks = 3, .dp = 3, .pp = 1, .tp = 1, .ep = 1 },
	{ .name = "tp2", .ranks = 2, .dp = 1, .pp = 1, .tp = 2, .ep = 1 },
	{ .name = "tp4", .ranks = 4, .dp = 1, .pp = 1, .tp = 4, .ep = 1 },
	{ .name = "pp2", .ranks = 2, .dp = 1, .pp = 2, .tp = 1, .ep = 1 },
	{ .name = "pp3", .ranks = 3, .dp = 1, .pp = 3, .tp = 1, .ep = 1 },
	{ .name = "zero1x2", .ranks = 2, .dp = 2, .pp = 1, .tp = 1, .ep = 1, .zero = 1 },
	{ .name = "zero1x3", .ranks = 3, .dp = 3, .pp = 1, .tp = 1, .ep = 1, .zero = 1 },
	{ .name = "zero3x2", .ranks = 2, .dp = 2, .pp = 1, .tp = 1, .ep = 1, .zero = 3 },
	{ .name = "dp2tp2pp2", .ranks = 8, .dp = 2, .pp = 2, .tp = 2, .ep = 1, .zero = 1 },
	{ .name = "dp2ep2", .ranks = 2, .dp = 2, .pp = 1, .tp = 1, .ep = 2 },
	{ .name = "dp4ep4", .ranks = 4, .dp = 4, .pp = 1, .tp = 1, .ep = 4, .zero = 1 },
	{ .name = "tp2sh2=ep4",
	  .ranks = 4,
	  .dp = 2,
	  .pp = 1,
	  .tp = 2,
	  .ep = 4,
	  .zero = 1,
	  .own_experts = true },
	{ .name = "tp3fused", .ranks = 3, .dp = 1, .pp = 1, .tp = 3, .ep = 1, .fused = true },
	{ .name = "tp2transposed",
	  .ranks = 2,
	  .dp = 1,
	  .pp = 1,
	  .tp = 2,
	  .ep = 1,
	  .transposed = true },
	{ .name = "cut2x3",
	  .ranks = 6,
	  .dp = 6,
	  .pp = 1,
	  .tp = 1,
	  .ep = 1,
	  .cut_a = 2,
	  .cut_b = 3 },
	{ .name = "hsdp2x2", .ranks = 4, .dp = 4, .pp = 1, .tp = 1, .ep = 1, .shard = 2 },
};
const int layouts_n = sizeof(layouts) / sizeof(layouts[0]);

int lay_bytes(int32_t dtype)
{
	switch (dtype) {
	case SHEAF_BOOL: case SHEAF_U8: return 1;
	case SHEAF_BF16: case SHEAF_F16: return 2;
	case SHEAF_F32: return 4;
	default: return 8;
	}
}

uint64_t lay_salt(const struct lay_tensor *t, uint64_t seed)
{
	uint64_t x = seed;

	for (const char *p = t->family; *p; p++)
		x = (x ^ (uint8_t)*p) * 0x100000001b3u;
	for (const char *p = t->name; *p; p++)
		x = (x ^ (uint8_t)*p) * 0x100000001b3u;
	return x;
}

uint64_t lay_salted(uint64_t x, bool boolean, int64_t i)
{
	x += 0x9E3779B97F4A7C15u * (uint64_t)(i + 1);
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 32;
	return boolean ? x & 1 : x;
}

uint64_t lay_value(const struct lay_tensor *t, int64_t i, uint64_t seed)
{
	return lay_salted(lay_salt(t, seed), t->dtype == SHEAF_BOOL, i);
}

struct held {                   /* memory of one slice */
	const struct lay_tensor *t;
	struct sheaf_slice s;
	uint64_t salt;
	size_t bytes;                   /* of an item */
};
struct lay_memory {
	struct held held[128];
	void *blocks[256];
	int n, blocks_n;
	uint64_t seed;
};

static void *block(struct lay_memory *m, int64_t bytes)
{
	void *p = malloc((size_t)(bytes ? bytes : 1));

	memset(p, 0xA5, (size_t)(bytes ? bytes : 1));
	return m->blocks[m->blocks_n++] = p;
}

struct each {
	const struct held *h;
	void (*item)(void *arg, const struct held *h, int64_t global, uint8_t *at);
	void *arg;
};

static void each_item(void *arg, int64_t global, int64_t at)
{
	const struct each *e = arg;

	e->item(e->arg, e->h, global, (uint8_t *)e->h->s.data + at * (int64_t)e->h->bytes);
}

/* Calls item for every item of the slice that is here, with its address. */
static void each(const struct held *h,
                 void (*item)(void *arg, const struct held *h, int64_t global, uint8_t *at),
                 void *arg)
{
	items_each(&h->s, each_item, &(struct each){ h, item, arg });
}

static void paint(void *arg, const struct held *h, int64_t global, uint8_t *at)
{
	uint64_t v = lay_salted(h->salt, h->s.dtype == SHEAF_BOOL, global);

	(void)arg;
	memcpy(at, &v, h->bytes);
}

struct wrong {
	int64_t n;
	char *why;
	size_t why_n;
};

static void look(void *arg, const struct held *h, int64_t global, uint8_t *at)
{
	struct wrong *w = arg;
	uint64_t want = lay_salted(h->salt, h->s.dtype == SHEAF_BOOL, global), got = 0;
	size_t n = h->bytes;

	memcpy(&got, at, n);
	if (n < 8)
		want &= (UINT64_C(1) << 8 * n) - 1;
	if (got != want && w->n++ == 0)
		snprintf(w->why, w->why_n, "%s/%s item %lld: %llx, want %llx", h->t->family,
			 h->t->name, (long long)global, (unsigned long long)got,
			 (unsigned long long)want);
}

int64_t lay_wrong(const struct lay_memory *m, char *why, size_t n)
{
	struct wrong w = { 0, why, n };

	for (int i = 0; i < m->n; i++)
		each(&m->held[i], look, &w);
	return w.n;
}

void lay_free(struct lay_memory *m)
{
	for (int i = 0; m && i < m->blocks_n; i++)
		free(m->blocks[i]);
	free(m);
}

struct where {
	int dp, pp, tp, ep;
};

/* Returns whether it has more than 200,000 bytes: such tensors have most of the bytes, but few
 * shapes. */
static bool big(const struct lay_tensor *t)
{
	int64_t n = lay_bytes(t->dtype);

	for (int d = 0; d < t->ndim; d++)
		n *= t->shape[d];
	return n > 200000;
}

static bool here(const struct layout *l, const struct lay_tensor *t, const struct where *w)
{
	if (l->small && big(t))
		return false;
	/* Three stages, distributed over pp: unevenly for 2. */
	if (t->stage >= 0 && t->stage * l->pp / 3 != w->pp)
		return false;
	return t->expert < 0 || l->ep == 1 || t->expert * l->ep / LAY_EXPERTS == w->ep;
}

static bool flat(const struct layout *l, const struct lay_tensor *t)
{
	if (l->zero == 0)
		return false;
	/* Experts with a mesh of their own are not shared. */
	if (t->expert >= 0 && l->ep > 1)
		return false;
	return l->zero == 3 || strcmp(t->family, "model");
}

static void narrow(const struct layout *l, const struct lay_tensor *t, const struct where *w,
                   struct sheaf_slice *s)
{
	if (t->axis >= 0 && l->tp > 1 && !(t->expert >= 0 && l->own_experts))
		items_cut(s, t->axis, w->tp, l->tp);
	if (l->cut_a && t->ndim > 0) {
		items_cut(s, 0, w->dp / l->cut_b, l->cut_a);
		items_cut(s, 0, w->dp % l->cut_b, l->cut_b);
	}
	if (l->shard && t->ndim > 0)
		items_cut(s, 0, w->dp % l->shard, l->shard);
}

/* Allocates memory for a single slice. */
static void lone(const struct layout *l, struct lay_memory *m, struct sheaf_slice *s)
{
	if (l->transposed && s->ndim == 2 && items_n(s) > 1) {
		s->stride[0] = 1;
		s->stride[1] = s->count[0] + 3; /* columns, each with three items of padding */
		s->data = block(m, lay_bytes(s->dtype) * (s->stride[1] * s->count[1]));
		return;
	}
	s->data = block(m, lay_bytes(s->dtype) * items_n(s));
}

/* Puts the flat slices of one type into one buffer, of which this rank has its dp share. */
static void share_flat(const struct layout *l, struct lay_memory *m, const struct where *w,
                       int32_t dtype)
{
	int64_t total = 0, per, lo, hi;
	uint8_t *data;

	for (int i = 0; i < m->n; i++)
		if (m->held[i].s.flags & SHEAF_SLICE_FLAT && m->held[i].s.dtype == dtype) {
			m->held[i].s.origin = total;
			total += items_n(&m->held[i].s);
		}
	per = (total + l->dp - 1) / l->dp;
	lo = w->dp * per < total ? w->dp * per : total;
	hi = lo + per < total ? lo + per : total;
	data = block(m, (hi - lo) * lay_bytes(dtype));
	for (int i = 0; i < m->n; i++)
		if (m->held[i].s.flags & SHEAF_SLICE_FLAT && m->held[i].s.dtype == dtype) {
			m->held[i].s.flat_start = lo;
			m->held[i].s.flat_count = hi - lo;
			m->held[i].s.data = data;
		}
}

/* Puts q, k and v into one buffer: [k rows | q rows | v rows][columns], transposed, so that every
 * row of memory has a column of each. */
static void fuse(struct lay_memory *m)
{
	int64_t rows = 0, columns = 0, at = 0;
	uint8_t *data;

	for (int i = 0; i < m->n; i++)
		if (m->held[i].t->fused) {
			rows += m->held[i].s.count[0];
			columns = m->held[i].s.count[1];
		}
	data = block(m, rows * columns * 2);
	for (int i = 0; i < m->n; i++) {
		struct sheaf_slice *s = &m->held[i].s;

		if (!m->held[i].t->fused)
			continue;
		s->stride[0] = 1;
		s->stride[1] = rows;
		s->origin = at;
		s->data = data;
		at += s->count[0];
	}
}

struct lay_memory *lay_hold(const struct layout *l, int rank, struct sheaf_slice *slices, int max,
                            int *n, bool fill, uint64_t seed)
{
	struct lay_memory *m = calloc(1, sizeof(*m));
	struct where w = { .tp = rank % l->tp,
			   .dp = rank / l->tp % l->dp,
			   .pp = rank / l->tp / l->dp };
	static const int32_t types[] = { SHEAF_BOOL, SHEAF_F16, SHEAF_BF16, SHEAF_F32, SHEAF_F64,
	                                 SHEAF_I64 };

	w.ep = l->own_experts ? rank % l->ep : w.dp % l->ep;
	for (int i = 0; i < lay_tensors_n; i++) {
		const struct lay_tensor *t = &lay_tensors[i];
		struct held *h = &m->held[m->n];

		if (!here(l, t, &w))
			continue;
		h->t = t;
		h->salt = lay_salt(t, seed);
		h->bytes = (size_t)lay_bytes(t->dtype);
		h->s = (struct sheaf_slice){ .size = sizeof(h->s),
					     .family = t->family,
					     .name = t->name,
					     .dtype = t->dtype,
					     .ndim = t->ndim };
		memcpy(h->s.shape, t->shape, sizeof(h->s.shape));
		memcpy(h->s.count, t->shape, sizeof(h->s.count));
		narrow(l, t, &w, &h->s);
		if (flat(l, t))
			h->s.flags |= SHEAF_SLICE_FLAT;
		else if (!(l->fused && t->fused))
			lone(l, m, &h->s);
		m->n++;
	}
	for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++)
		share_flat(l, m, &w, types[k]);
	if (l->fused)
		fuse(m);
	*n = 0;
	for (int i = 0; i < m->n && *n < max; i++) {
		if (fill)
			each(&m->held[i], paint, NULL);
		slices[(*n)++] = m->held[i].s;
	}
	return m;
}
