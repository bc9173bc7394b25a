/* SPDX-License-Identifier: Apache-2.0 */
#include "registry.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "itemhash.h"
#include "philox.h"
#include "sumtree.h"

enum { ALIGN = 16 };                    /* items: a vector of the row operations */

struct shape {
	const char *suffix;
	int64_t rows, columns;          /* rows 0: a vector */
	float fill;
};

static int add(struct tr_registry *r, const char *name, int64_t rows, int64_t columns, float fill)
{
	struct tr_param *p = &r->param[r->n];

	*p = (struct tr_param){ .ndim = rows ? 2 : 1, .shape = { rows ? rows : columns, columns },
				.items = (rows ? rows : 1) * columns, .offset = r->weights,
				.tied_to = -1, .decay = rows != 0, .fill = fill };
	snprintf(p->name, sizeof(p->name), "%s", name);
	p->crc = tr_crc64(p->name);
	r->weights += (p->items + ALIGN - 1) / ALIGN * ALIGN;
	r->distinct += p->items;
	return r->n++;
}

static void add_layer(struct tr_registry *r, const struct tr_model_config *c, int64_t l)
{
	int64_t q = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
	const struct shape shapes[TR_LAYER_PARAMS] = {
		[TR_NORM1] = { "input_layernorm.weight", 0, c->hidden, 1 },
		[TR_Q] = { "self_attn.q_proj.weight", q, c->hidden, 0 },
		[TR_Q_BIAS] = { "self_attn.q_proj.bias", 0, q, 0 },
		[TR_K] = { "self_attn.k_proj.weight", kv, c->hidden, 0 },
		[TR_K_BIAS] = { "self_attn.k_proj.bias", 0, kv, 0 },
		[TR_V] = { "self_attn.v_proj.weight", kv, c->hidden, 0 },
		[TR_V_BIAS] = { "self_attn.v_proj.bias", 0, kv, 0 },
		[TR_O] = { "self_attn.o_proj.weight", c->hidden, q, 0 },
		[TR_NORM2] = { "post_attention_layernorm.weight", 0, c->hidden, 1 },
		[TR_GATE] = { "mlp.gate_proj.weight", c->ffn, c->hidden, 0 },
		[TR_UP] = { "mlp.up_proj.weight", c->ffn, c->hidden, 0 },
		[TR_DOWN] = { "mlp.down_proj.weight", c->hidden, c->ffn, 0 },
	};
	char name[96];

	for (int i = 0; i < TR_LAYER_PARAMS; i++) {
		int bias = i == TR_Q_BIAS || i == TR_K_BIAS || i == TR_V_BIAS;

		snprintf(name, sizeof(name), "model.layers.%" PRId64 ".%s", l, shapes[i].suffix);
		r->layer[l * TR_LAYER_PARAMS + i] = bias && !c->qkv_bias ? -1 :
			add(r, name, shapes[i].rows, shapes[i].columns, shapes[i].fill);
	}
}

int tr_registry_make(struct tr_registry *r, const struct tr_model_config *c, struct tr_error *err)
{
	size_t layers = (size_t)c->layers;

	*r = (struct tr_registry){ .n = 0 };
	r->param = calloc(layers * TR_LAYER_PARAMS + 3, sizeof(*r->param));
	r->layer = calloc(layers * TR_LAYER_PARAMS, sizeof(*r->layer));
	if (!r->param || !r->layer) {
		tr_registry_release(r);
		return tr_fail(err, TR_ENOMEM, "no memory for the list of parameters");
	}
	r->embedding = add(r, "model.embed_tokens.weight", c->vocab, c->hidden, 0);
	for (int64_t l = 0; l < c->layers; l++)
		add_layer(r, c, l);
	r->norm = add(r, "model.norm.weight", 0, c->hidden, 1);
	r->gradients = r->weights;
	r->head = add(r, "lm_head.weight", c->vocab, c->hidden, 0);
	if (c->tied) {
		int64_t weights = r->gradients;

		r->gradients = r->weights;
		r->weights = weights;
		r->distinct -= r->param[r->head].items;
		r->param[r->head].tied_to = r->embedding;
	} else {
		r->gradients = r->weights;
	}
	return 0;
}

void tr_registry_release(struct tr_registry *r)
{
	free(r->param);
	free(r->layer);
	*r = (struct tr_registry){ .n = 0 };
}

uint64_t tr_registry_hash(const struct tr_registry *r, const float *weights, int64_t i, int64_t n)
{
	uint64_t sum = 0;

	for (int j = 0; j < r->n; j++) {
		const struct tr_param *p = &r->param[j];
		int64_t from = tr_cut(p->items, n, i), to = tr_cut(p->items, n, i + 1);

		if (p->tied_to < 0)
			sum += tr_item_hash(p->crc, weights + p->offset + from, from, to - from);
	}
	return sum;
}

static void draw_matrix(float *to, const struct tr_param *p, uint64_t seed, double range)
{
	for (int64_t i = 0; i < p->items; i += 2) {
		double x[2];

		tr_random_normal(seed, TR_RANDOM_INIT, p->crc, (uint64_t)(i / 2), x);
		to[i] = (float)(x[0] * range);
		if (i + 1 < p->items)
			to[i + 1] = (float)(x[1] * range);
	}
}

void tr_registry_draw(const struct tr_registry *r, float *weights, uint64_t seed, double range)
{
	for (int j = 0; j < r->n; j++) {
		const struct tr_param *p = &r->param[j];
		float *to = weights + p->offset;

		if (p->tied_to >= 0)
			continue;
		if (p->ndim == 2)
			draw_matrix(to, p, seed, range);
		else
			for (int64_t i = 0; i < p->items; i++)
				to[i] = p->fill;
	}
}
