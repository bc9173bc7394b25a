/* SPDX-License-Identifier: Apache-2.0 */
#include "registry.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "itemhash.h"
#include "philox.h"
#include "sumtree.h"

enum { ALIGN = 16 };                    /* items: a vector of the row operations */
static const char embedding_name[] = "model.embed_tokens.weight";

struct shape {
	const char *suffix;
	int64_t rows, columns;          /* columns 0: a vector */
	int axis;                       /* that is cut; -1: none */
	int64_t unit;
	float fill;
};

/* Adds a parameter, or only counts its items if this rank does not have it. */
static int add(struct tr_registry *r, const char *name, const struct shape *s, int present)
{
	struct tr_param *p = &r->param[r->n];

	r->distinct += s->rows * (s->columns ? s->columns : 1);
	if (!present)
		return -1;
	*p = (struct tr_param){ .ndim = s->columns ? 2 : 1,
				.shape = { s->rows, s->columns ? s->columns : 1 }, .axis = s->axis,
				.unit = s->unit, .tied_to = -1, .decay = s->columns != 0,
				.fill = s->fill };
	snprintf(p->name, sizeof(p->name), "%s", name);
	p->crc = tr_crc64(p->name);
	for (int d = 0; d < 2; d++) {
		int64_t units = p->shape[d] / s->unit;

		p->count[d] = p->shape[d];
		if (d != s->axis)
			continue;
		p->start[d] = tr_cut(units, r->pieces.n, r->pieces.from) * s->unit;
		p->count[d] = tr_cut(units, r->pieces.n, r->pieces.to) * s->unit - p->start[d];
	}
	p->items = p->count[0] * p->count[1];
	return r->n++;
}

/* Queries, keys and values are cut by kv heads, with the queries of each. */
static void add_layer(struct tr_registry *r, const struct tr_model_config *c, int64_t l,
		      int present)
{
	int64_t q = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
	int64_t group = q / c->kv_heads, head = c->head_size;
	const struct shape shapes[TR_LAYER_PARAMS] = {
		[TR_NORM1] = { "input_layernorm.weight", c->hidden, 0, -1, 1, 1 },
		[TR_Q] = { "self_attn.q_proj.weight", q, c->hidden, 0, group, 0 },
		[TR_Q_BIAS] = { "self_attn.q_proj.bias", q, 0, 0, group, 0 },
		[TR_K] = { "self_attn.k_proj.weight", kv, c->hidden, 0, head, 0 },
		[TR_K_BIAS] = { "self_attn.k_proj.bias", kv, 0, 0, head, 0 },
		[TR_V] = { "self_attn.v_proj.weight", kv, c->hidden, 0, head, 0 },
		[TR_V_BIAS] = { "self_attn.v_proj.bias", kv, 0, 0, head, 0 },
		[TR_O] = { "self_attn.o_proj.weight", c->hidden, q, 1, group, 0 },
		[TR_NORM2] = { "post_attention_layernorm.weight", c->hidden, 0, -1, 1, 1 },
		[TR_GATE] = { "mlp.gate_proj.weight", c->ffn, c->hidden, 0, 1, 0 },
		[TR_UP] = { "mlp.up_proj.weight", c->ffn, c->hidden, 0, 1, 0 },
		[TR_DOWN] = { "mlp.down_proj.weight", c->hidden, c->ffn, 1, 1, 0 },
	};
	char name[96];

	for (int i = 0; i < TR_LAYER_PARAMS; i++) {
		int bias = i == TR_Q_BIAS || i == TR_K_BIAS || i == TR_V_BIAS;

		snprintf(name, sizeof(name), "model.layers.%" PRId64 ".%s", l, shapes[i].suffix);
		r->layer[l * TR_LAYER_PARAMS + i] = bias && !c->qkv_bias ? -1 :
			add(r, name, &shapes[i], present);
		if (!shapes[i].columns)
			continue;
		r->matrices += shapes[i].rows * shapes[i].columns;
		if (present)
			r->param[r->n - 1].matrix = 1;
	}
}

static void place(struct tr_param *p, int64_t *at)
{
	p->offset = *at;
	*at += (p->items + ALIGN - 1) / ALIGN * ALIGN;
}

/* Places the parameters in the flat buffers. */
static void lay_out(struct tr_registry *r)
{
	int64_t at = 0;

	for (int i = 0; i < r->n; i++)
		if (r->param[i].copy)
			place(&r->param[i], &at);
	r->counted = at;
	for (int i = 0; i < r->n; i++)
		if (r->param[i].axis >= 0 && r->param[i].tied_to < 0 && !r->param[i].copy)
			place(&r->param[i], &at);
	r->norms = at;
	for (int i = 0; i < r->n; i++)
		if (r->param[i].axis < 0)
			place(&r->param[i], &at);
	r->weights = at;
	at += (r->weights - r->norms) * (r->tokens.to - r->tokens.from - 1);
	if (r->head >= 0 && r->param[r->head].tied_to >= 0)
		place(&r->param[r->head], &at);
	r->gradients = at;
}

static int has_layer(const struct tr_parts *parts, int64_t l)
{
	for (int i = 0; i < parts->n; i++)
		if (l >= parts->part[i].from && l < parts->part[i].to)
			return 1;
	return 0;
}

/* Adds the head. If the embedding has its weights, and another stage has the embedding, the head is
 * a copy of it. */
static void add_head(struct tr_registry *r, const struct tr_model_config *c, int present)
{
	const struct shape vocab = { "", c->vocab, c->hidden, 0, 1, 0 };

	r->shared = c->tied && !present ? r->embedding : -1;
	if (c->tied && present && r->embedding < 0) {
		r->head = r->shared = add(r, embedding_name, &vocab, 1);
		r->param[r->head].copy = 1;
	} else {
		r->head = add(r, "lm_head.weight", &vocab, present);
	}
	if (c->tied)
		r->distinct -= c->vocab * c->hidden;
	if (c->tied && present && r->embedding >= 0)
		r->param[r->head].tied_to = r->embedding;
}

int tr_registry_make(struct tr_registry *r, const struct tr_model_config *c,
		     const struct tr_parts *parts, const struct tr_pieces *pieces,
		     const struct tr_pieces *tokens, struct tr_error *err)
{
	const struct shape vocab = { "", c->vocab, c->hidden, 0, 1, 0 };
	const struct shape norm = { "", c->hidden, 0, -1, 1, 1 };
	size_t layers = (size_t)c->layers;
	int last = has_layer(parts, c->layers - 1);

	*r = (struct tr_registry){ .pieces = *pieces, .tokens = *tokens, .layers = c->layers };
	r->param = calloc(layers * TR_LAYER_PARAMS + 3, sizeof(*r->param));
	r->layer = calloc(layers * TR_LAYER_PARAMS, sizeof(*r->layer));
	if (!r->param || !r->layer) {
		tr_registry_release(r);
		return tr_fail(err, TR_ENOMEM, "no memory for the list of parameters");
	}
	r->embedding = add(r, embedding_name, &vocab, has_layer(parts, 0));
	for (int64_t l = 0; l < c->layers; l++)
		add_layer(r, c, l, has_layer(parts, l));
	r->norm = add(r, "model.norm.weight", &norm, last);
	add_head(r, c, last);
	lay_out(r);
	return 0;
}

void tr_registry_release(struct tr_registry *r)
{
	free(r->param);
	free(r->layer);
	*r = (struct tr_registry){ .n = 0 };
}

struct tr_span tr_registry_layer(const struct tr_registry *r, int64_t layer)
{
	int first = layer < 0 ? r->embedding : r->head, last = first;

	if (layer >= 0 && layer < r->layers) {
		first = r->layer[layer * TR_LAYER_PARAMS + TR_Q];
		last = r->layer[layer * TR_LAYER_PARAMS + TR_DOWN];
	}
	if (first < 0)
		return (struct tr_span){ 0, 0 };
	return (struct tr_span){ r->param[first].offset,
				 r->param[last].offset + r->param[last].items };
}

int64_t tr_param_cut(const struct tr_registry *r, const struct tr_param *p, int piece)
{
	return tr_cut(p->shape[p->axis] / p->unit, r->pieces.n, piece) * p->unit -
		p->start[p->axis];
}

/* Returns the index of an item of the box in the whole parameter. */
static int64_t index_of(const struct tr_param *p, int64_t item)
{
	int64_t row = item / p->count[1], column = item % p->count[1];

	return (p->start[0] + row) * p->shape[1] + p->start[1] + column;
}

/* Returns how many of items [from, to) are in the row of the first one. */
static int64_t in_row(const struct tr_param *p, int64_t from, int64_t to)
{
	int64_t row = p->count[1] - from % p->count[1];

	return to - from < row ? to - from : row;
}

uint64_t tr_param_hash(const struct tr_registry *r, const struct tr_param *p, const float *x,
		       int64_t from, int64_t to)
{
	uint64_t sum = 0;

	if (p->tied_to >= 0 || p->copy || (p->axis < 0 && r->pieces.from > 0))
		return 0;
	for (int64_t n; from < to; from += n, x += n) {
		n = in_row(p, from, to);
		sum += tr_item_hash(p->crc, x, index_of(p, from), n);
	}
	return sum;
}

uint64_t tr_registry_hash(const struct tr_registry *r, const float *weights, int64_t i, int64_t n)
{
	uint64_t sum = 0;

	for (int j = 0; j < r->n; j++) {
		const struct tr_param *p = &r->param[j];
		int64_t from = tr_cut(p->items, n, i), to = tr_cut(p->items, n, i + 1);

		sum += tr_param_hash(r, p, weights + p->offset + from, from, to);
	}
	return sum;
}

/* Two items next to each other come from one draw. The first item here may be the second of one. */
static void draw_items(const struct tr_param *p, float *to, int64_t first, int64_t n,
		       uint64_t seed, double range)
{
	double x[2] = { 0, 0 };

	for (int64_t i = 0; i < n; i++) {
		if (i == 0 || (first + i) % 2 == 0)
			tr_random_normal(seed, TR_RANDOM_INIT, p->crc, (uint64_t)((first + i) / 2),
					 x);
		to[i] = (float)(x[(first + i) % 2] * range);
	}
}

void tr_param_draw(const struct tr_param *p, float *x, int64_t from, int64_t to, uint64_t seed,
		   double range)
{
	for (int64_t i = from; p->ndim == 1 && i < to; i++)
		x[i - from] = p->fill;
	for (int64_t n; p->ndim == 2 && from < to; from += n, x += n) {
		n = in_row(p, from, to);
		draw_items(p, x, index_of(p, from), n, seed, range);
	}
}

void tr_registry_draw(const struct tr_registry *r, float *weights, uint64_t seed, double range)
{
	for (int j = 0; j < r->n; j++) {
		const struct tr_param *p = &r->param[j];

		if (p->tied_to < 0)
			tr_param_draw(p, weights + p->offset, 0, p->items, seed, range);
	}
}
