/* SPDX-License-Identifier: Apache-2.0 */
#include "experts.h"
#include "rng.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "items.h"

const struct expert_layout expert_layouts[] = {
	{ .name = "one", .dp = 1, .tp = 1, .ep = 1 },
	{ .name = "dp2ep2", .dp = 2, .tp = 1, .ep = 2 },
	{ .name = "dp4ep4", .dp = 4, .tp = 1, .ep = 4, .zero = 1 },
	{ .name = "dp4ep2", .dp = 4, .tp = 1, .ep = 2, .zero = 1, .deal = EXPERTS_LOPSIDED },
	{ .name = "dp8ep8", .dp = 8, .tp = 1, .ep = 8, .zero = 1, .deal = EXPERTS_IN_TURN },
	{ .name = "dp4ep3idle1", .dp = 4, .tp = 1, .ep = 3, .zero = 3, .idle = 1,
	  .deal = EXPERTS_LOPSIDED },
	{ .name = "tp4cut", .dp = 1, .tp = 4, .ep = 1, .mesh = EXPERTS_CUT_BY_TP, .stacked = true },
	{ .name = "tp4dealt", .dp = 1, .tp = 4, .ep = 1, .mesh = EXPERTS_DEALT_OVER_TP },
	{ .name = "dp2ep2tp3dealt", .dp = 2, .tp = 3, .ep = 2, .zero = 1,
	  .mesh = EXPERTS_DEALT_OVER_TP, .deal = EXPERTS_IN_TURN },
	{ .name = "dp2ep2tp2cut", .dp = 2, .tp = 2, .ep = 2, .zero = 1, .mesh = EXPERTS_CUT_BY_TP,
	  .deal = EXPERTS_LOPSIDED },
	{ .name = "dp2ep1tp2cut", .dp = 2, .tp = 2, .ep = 1, .zero = 3, .mesh = EXPERTS_CUT_BY_TP },
	{ .name = "tp2sh2=ep4", .dp = 2, .tp = 2, .ep = 4, .zero = 1, .moe_sharding = 1,
	  .mesh = EXPERTS_OWN_MESH, .stacked = true },
	{ .name = "tp2sh4=ep4msh2", .dp = 4, .tp = 2, .ep = 4, .zero = 1, .moe_sharding = 2,
	  .mesh = EXPERTS_OWN_MESH, .deal = EXPERTS_IN_TURN },
	{ .name = "tp3sh2=ep2msh3", .dp = 2, .tp = 3, .ep = 2, .zero = 1, .moe_sharding = 3,
	  .mesh = EXPERTS_OWN_MESH_OUTER, .stacked = true },
	{ .name = "tp4sh2=ep1msh8", .dp = 2, .tp = 4, .ep = 1, .zero = 3, .moe_sharding = 8,
	  .mesh = EXPERTS_OWN_MESH },
	{ .name = "tp1sh8=ep8", .dp = 8, .tp = 1, .ep = 8, .zero = 3, .moe_sharding = 1,
	  .mesh = EXPERTS_OWN_MESH_OUTER, .deal = EXPERTS_IN_BLOCKS },
};
const int expert_layouts_n = sizeof(expert_layouts) / sizeof(expert_layouts[0]);

int experts_ranks(const struct expert_layout *l)
{
	return l->dp * l->tp;
}

/* ---- the model ---- */

enum { LAYERS = 3 };
static const int experts_of[LAYERS] = { 0, 10, 5 };

static const struct expert_tensor dense[] = {
	{ "embed", SHEAF_BF16, 2, { 37, 12 }, 0, -1, -1 },
	{ "layers.0.attn.q", SHEAF_BF16, 2, { 14, 12 }, 0, 0, -1 },
	{ "layers.0.norm", SHEAF_F32, 1, { 12 }, -1, 0, -1 },
	{ "layers.0.mlp.up", SHEAF_BF16, 2, { 21, 12 }, 0, 0, -1 },
	{ "layers.0.mlp.down", SHEAF_BF16, 2, { 12, 21 }, 1, 0, -1 },
	{ "layers.1.attn.q", SHEAF_BF16, 2, { 14, 12 }, 0, 1, -1 },
	{ "layers.1.mlp.router", SHEAF_F32, 2, { 10, 12 }, -1, 1, -1 },
	{ "layers.1.mlp.shared.up", SHEAF_BF16, 2, { 9, 12 }, 0, 1, -1 },
	{ "layers.2.attn.o", SHEAF_BF16, 2, { 12, 14 }, 1, 2, -1 },
	{ "layers.2.mlp.router", SHEAF_F32, 2, { 5, 12 }, -1, 2, -1 },
};
enum { DENSE = sizeof(dense) / sizeof(dense[0]) };

bool expert_tensor(int i, struct expert_tensor *t)
{
	if (i < DENSE) {
		*t = dense[i];
		return true;
	}
	i -= DENSE;
	for (int layer = 0; layer < LAYERS; i -= 2 * experts_of[layer++])
		if (i < 2 * experts_of[layer]) {
			bool up = i % 2 == 0;

			*t = (struct expert_tensor){ .dtype = SHEAF_BF16, .ndim = 2,
				.shape = { up ? 9 : 12, up ? 12 : 9 }, .axis = !up,
				.layer = layer, .expert = i / 2 };
			snprintf(t->name, sizeof(t->name), "layers.%d.mlp.experts.%d.%s", layer,
			         i / 2, up ? "up" : "down");
			return true;
		}
	return false;
}

/* Returns whether a tensor has this part. An fp32 tensor has no separate master, and is averaged
 * itself. */
static bool has_part(const struct expert_tensor *t, enum expert_part part)
{
	return part != EXPERT_MASTER || t->dtype != SHEAF_F32;
}

static int32_t dtype_of(const struct expert_tensor *t, enum expert_part part)
{
	return part == EXPERT_MODEL ? t->dtype : SHEAF_F32;
}

static int64_t item_bytes(int32_t dtype)
{
	return dtype == SHEAF_BF16 ? 2 : 4;
}

uint64_t experts_bytes(unsigned parts)
{
	struct expert_tensor t;
	uint64_t bytes = 0;

	for (int i = 0; expert_tensor(i, &t); i++)
		for (int k = 0; k < EXPERT_PARTS; k++) {
			enum expert_part part = (enum expert_part)k;
			int64_t n = t.shape[0] * (t.ndim > 1 ? t.shape[1] : 1);

			if (parts & 1u << part && has_part(&t, part))
				bytes += (uint64_t)(n * item_bytes(dtype_of(&t, part)));
		}
	return bytes;
}

/* ---- values ---- */

static uint64_t mixed(const char *name, uint64_t part, int64_t item, int64_t step)
{
	uint64_t x = 0xcbf29ce484222325u ^ part << 56;

	for (const char *p = name; *p; p++)
		x = (x ^ (uint8_t)*p) * 0x100000001b3u;
	x += 0x9E3779B97F4A7C15u * (uint64_t)(item + 1) + 0xD1B54A32D192ED03u * (uint64_t)step;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	return x ^ x >> 32;
}

/* Uses all 24 bits of the fraction, so that rounding to bf16 loses some. */
static float number(const char *name, uint64_t part, int64_t item, int64_t step)
{
	return ldexpf((float)(int32_t)(mixed(name, part, item, step) & 0xffffff) - 8388608.0f, -23);
}

static uint32_t bits_of(float f)
{
	uint32_t x;

	memcpy(&x, &f, sizeof(x));
	return x;
}

static float average(const struct expert_tensor *t, int64_t item, int64_t step)
{
	float e = number(t->name, EXPERT_MODEL, item, 1);

	for (int64_t n = 2; n <= step; n++) {
		volatile float term = (float)(1 - EXPERT_COEF) *
				      number(t->name, EXPERT_MODEL, item, n);

		e = fmaf((float)EXPERT_COEF, e, term);
	}
	return e;
}

uint32_t expert_value(const struct expert_tensor *t, enum expert_part part, int64_t item,
                      int64_t step)
{
	uint32_t x;

	if (part == EXPERT_AVERAGE)
		return bits_of(average(t, item, step));
	if (part == EXPERT_MOMENT1 || part == EXPERT_MOMENT2)
		return bits_of(number(t->name, part, item, step));
	x = bits_of(number(t->name, EXPERT_MODEL, item, step));
	if (part == EXPERT_MODEL && t->dtype == SHEAF_BF16)
		x = (x + 0x7fff + (x >> 16 & 1)) >> 16; /* to nearest even */
	return x;
}

/* ---- layouts ---- */

struct share {
	int piece, pieces;
};
struct place {
	int dp, tp;
	int groups, group;              /* of experts; group -1: none are here */
	struct share dense, expert;     /* expert: share among the ranks with these experts */
};

static struct place place_of(const struct expert_layout *l, int rank)
{
	struct place p = { .dp = rank / l->tp, .tp = rank % l->tp, .groups = l->ep,
		.dense = { rank / l->tp, l->dp } };
	int with = l->dp - l->idle;     /* dp ranks that have experts */

	if (l->mesh == EXPERTS_OWN_MESH) {
		p.group = rank % l->ep;
		p.expert = (struct share){ rank / l->ep, l->moe_sharding };
	} else if (l->mesh == EXPERTS_OWN_MESH_OUTER) {
		p.group = rank / l->moe_sharding;
		p.expert = (struct share){ rank % l->moe_sharding, l->moe_sharding };
	} else if (p.dp < with) {
		p.group = p.dp % l->ep;
		p.expert = (struct share){ p.dp / l->ep, (with - p.group + l->ep - 1) / l->ep };
	} else {
		p.group = -1;
	}
	if (l->mesh == EXPERTS_DEALT_OVER_TP) {
		p.groups *= l->tp;
		p.group = p.group < 0 ? -1 : p.group * l->tp + p.tp;
	}
	return p;
}

static int group_of(enum expert_deal deal, int expert, int experts, int groups)
{
	if (deal == EXPERTS_IN_TURN)
		return expert % groups;
	if (deal == EXPERTS_IN_BLOCKS || groups == 1)
		return expert * groups / experts;
	return expert < experts / 2 ? 0 : 1 + expert % (groups - 1);
}

static bool is_here(const struct expert_layout *l, const struct expert_tensor *t,
                    const struct place *p)
{
	return t->expert < 0 ||
	       group_of(l->deal, t->expert, experts_of[t->layer], p->groups) == p->group;
}

static bool is_flat(const struct expert_layout *l, enum expert_part part)
{
	return l->zero == 3 || (l->zero == 1 && part != EXPERT_MODEL);
}

/* ---- memory ---- */

static void *block(struct expert_hold *h, int64_t bytes)
{
	size_t n = (size_t)(bytes ? bytes : 1);
	void *p = malloc(n);

	if (!p)
		abort();
	memset(p, 0xA5, n);
	return h->blocks[h->blocks_n++] = p;
}

/* Returns whether two slices are in one buffer. */
static bool is_beside(const struct expert_hold *h, int a, int b)
{
	const struct expert_slice *x = &h->of[a], *y = &h->of[b];
	bool flat = h->slices[a].flags & SHEAF_SLICE_FLAT;

	if (x->part != y->part || h->slices[a].dtype != h->slices[b].dtype ||
	    (x->t.expert < 0) != (y->t.expert < 0))
		return false;
	return flat || (x->t.layer == y->t.layer && x->t.axis == y->t.axis);
}

/* Makes consecutive flat slices, of which each of `pieces` ranks has an equal number of items;
 * those of the last one end with padding. */
static void share_flat(struct expert_hold *h, int first, struct share share)
{
	int64_t total = 0, per;
	void *data;

	for (int i = first; i < h->n; i++)
		if (is_beside(h, first, i)) {
			h->slices[i].origin = total;
			total += items_n(&h->slices[i]);
		}
	per = (total + share.pieces - 1) / share.pieces;
	data = block(h, per * item_bytes(h->slices[first].dtype));
	for (int i = first; i < h->n; i++)
		if (is_beside(h, first, i)) {
			h->slices[i].flat_start = share.piece * per;
			h->slices[i].flat_count = per;
			h->slices[i].data = data;
		}
}

/* Stacks the experts of a layer: [expert][rows][columns], or [expert][columns][rows] for `up`. */
static void stack(struct expert_hold *h, int first)
{
	int64_t total = 0;
	void *data;

	for (int i = first; i < h->n; i++)
		if (is_beside(h, first, i)) {
			struct sheaf_slice *s = &h->slices[i];

			s->origin = total;
			s->stride[0] = h->of[i].t.axis == 0 ? 1 : s->count[1];
			s->stride[1] = h->of[i].t.axis == 0 ? s->count[0] : 1;
			total += items_n(s);
		}
	data = block(h, total * item_bytes(h->slices[first].dtype));
	for (int i = first; i < h->n; i++)
		if (is_beside(h, first, i))
			h->slices[i].data = data;
}

static void make_memory(struct expert_hold *h, const struct expert_layout *l,
                        const struct place *p)
{
	for (int i = 0; i < h->n; i++) {
		struct sheaf_slice *s = &h->slices[i];
		bool expert = h->of[i].t.expert >= 0;

		if (s->data)
			continue;
		if (s->flags & SHEAF_SLICE_FLAT)
			share_flat(h, i, expert ? p->expert : p->dense);
		else if (l->stacked && expert && h->of[i].part == EXPERT_MODEL)
			stack(h, i);
		else
			s->data = block(h, items_n(s) * item_bytes(s->dtype));
	}
}

static void add(struct expert_hold *h, const struct expert_layout *l, const struct place *p,
                const struct expert_tensor *t, enum expert_part part)
{
	static const char *const families[EXPERT_PARTS] = { "model", "master_weights", "optimizer",
		"optimizer", "ema" };
	static const char *const kinds[EXPERT_PARTS] = { "", "", "/moment1_0", "/moment2_0", "" };
	struct expert_slice *of = &h->of[h->n];
	struct sheaf_slice *s = &h->slices[h->n++];

	*of = (struct expert_slice){ .t = *t, .part = part };
	snprintf(of->name, sizeof(of->name), "%s%s", t->name, kinds[part]);
	*s = (struct sheaf_slice){ .size = sizeof(*s), .family = families[part], .name = of->name,
		.dtype = dtype_of(t, part), .ndim = t->ndim,
		.shape = { t->shape[0], t->shape[1] }, .count = { t->shape[0], t->shape[1] },
		.flags = is_flat(l, part) ? SHEAF_SLICE_FLAT : 0 };
	if (t->axis >= 0 && (t->expert < 0 || l->mesh == EXPERTS_CUT_BY_TP))
		items_cut(s, t->axis, p->tp, l->tp);
}

struct expert_hold *experts_hold(const struct expert_layout *l, int rank, unsigned parts)
{
	struct expert_hold *h = calloc(1, sizeof(*h));
	struct place p = place_of(l, rank);
	struct expert_tensor t;
	size_t n = 0;

	while (expert_tensor((int)n, &t))
		n++;
	n *= EXPERT_PARTS;
	if (!h)
		abort();
	h->slices = calloc(n, sizeof(*h->slices));
	h->of = calloc(n, sizeof(*h->of));
	h->blocks = calloc(n, sizeof(*h->blocks));
	if (!h->slices || !h->of || !h->blocks)
		abort();
	for (int i = 0; expert_tensor(i, &t); i++)
		for (int part = 0; part < EXPERT_PARTS && is_here(l, &t, &p); part++)
			if (parts & 1u << part && has_part(&t, (enum expert_part)part))
				add(h, l, &p, &t, (enum expert_part)part);
	make_memory(h, l, &p);
	return h;
}

void experts_free(struct expert_hold *h)
{
	if (!h)
		return;
	for (int i = 0; i < h->blocks_n; i++)
		free(h->blocks[i]);
	free(h->blocks);
	free(h->of);
	free(h->slices);
	free(h);
}

/* ---- painting and comparing ---- */

struct look {
	const struct expert_slice *of;
	const struct sheaf_slice *s;
	int64_t step, wrong;
	char *why;
	size_t why_n;
};

static uint8_t *address(const struct look *l, int64_t at)
{
	return (uint8_t *)l->s->data + at * item_bytes(l->s->dtype);
}

static void paint(void *arg, int64_t global, int64_t at)
{
	struct look *l = arg;
	uint32_t x = expert_value(&l->of->t, l->of->part, global, l->step);

	memcpy(address(l, at), &x, (size_t)item_bytes(l->s->dtype));
}

void experts_paint(struct expert_hold *h, int64_t step)
{
	for (int i = 0; i < h->n; i++)
		items_each(&h->slices[i], paint,
		           &(struct look){ .of = &h->of[i], .s = &h->slices[i], .step = step });
}

static void compare(void *arg, int64_t global, int64_t at)
{
	struct look *l = arg;
	uint32_t want = expert_value(&l->of->t, l->of->part, global, l->step), got = 0;

	memcpy(&got, address(l, at), (size_t)item_bytes(l->s->dtype));
	if (got != want && l->wrong++ == 0)
		snprintf(l->why, l->why_n, "%s/%s item %lld: %x, want %x", l->s->family,
		         l->of->name, (long long)global, got, want);
}

int64_t experts_wrong(const struct expert_hold *h, int64_t step, char *why, size_t n)
{
	int64_t wrong = 0;

	for (int i = 0; i < h->n; i++) {
		struct look l = { .of = &h->of[i], .s = &h->slices[i], .step = step,
			.why = why, .why_n = wrong ? 0 : n };

		items_each(&h->slices[i], compare, &l);
		wrong += l.wrong;
	}
	return wrong;
}

/* ---- drawing ---- */

static int one_to(uint64_t *seed, int n)
{
	return 1 + (int)rng_below(seed, n);
}

struct expert_layout experts_draw(uint64_t seed, int ranks_max)
{
	struct expert_layout l = { .name = "drawn" };
	int ranks;

	(void)one_to(&seed, 2);
	l.tp = one_to(&seed, ranks_max < 4 ? ranks_max : 4);
	l.dp = one_to(&seed, ranks_max / l.tp);
	ranks = l.dp * l.tp;
	l.mesh = (enum expert_mesh)(one_to(&seed, EXPERTS_OWN_MESH_OUTER + 1) - 1);
	l.deal = (enum expert_deal)(one_to(&seed, EXPERTS_LOPSIDED + 1) - 1);
	l.zero = (const int[]){ 0, 1, 3 }[one_to(&seed, 3) - 1];
	l.stacked = one_to(&seed, 2) == 1;
	if (l.mesh >= EXPERTS_OWN_MESH) {
		do
			l.ep = one_to(&seed, ranks);
		while (ranks % l.ep);
		l.moe_sharding = ranks / l.ep;
		return l;
	}
	l.ep = one_to(&seed, l.dp);
	l.idle = one_to(&seed, l.dp - l.ep + 1) - 1;
	return l;
}
