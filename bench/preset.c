/* SPDX-License-Identifier: Apache-2.0 */
/* Lists well-known models by their names and shapes in Hugging Face, and cuts them for --preset and
 * --like. */
#include "workload.h"

#include <stdio.h>
#include <string.h>

static int add(struct wl_model *m, struct sheaf_error *err, const char *name, int ndim, int64_t a,
	       int64_t b)
{
	char copy[160];
	struct wl_tensor t = { .dtype = SHEAF_BF16, .ndim = ndim, .shape = { a, b }, .tp_axis = -1,
			       .stage = -1, .expert = -1, .experts = -1 };

	snprintf(copy, sizeof(copy), "%s", name);
	t.name = copy;
	return wl_model_add(m, &t, err);
}

static int add_mlp(struct wl_model *m, struct sheaf_error *err, const char *at, int64_t inner,
		   int64_t hidden)
{
	char name[160];
	int rc;

	snprintf(name, sizeof(name), "%s.gate_proj.weight", at);
	rc = add(m, err, name, 2, inner, hidden);
	snprintf(name, sizeof(name), "%s.up_proj.weight", at);
	if (rc == 0)
		rc = add(m, err, name, 2, inner, hidden);
	snprintf(name, sizeof(name), "%s.down_proj.weight", at);
	return rc ? rc : add(m, err, name, 2, hidden, inner);
}

static int add_attention(struct wl_model *m, struct sheaf_error *err, const struct wl_shape *s,
			 int64_t layer)
{
	const char *const part[] = { "q", "k", "v" };
	char name[160];
	int rc = 0;

	for (int k = 0; k < 3 && rc == 0; k++) {
		int64_t rows = (k ? s->kv_heads : s->heads) * s->head;

		snprintf(name, sizeof(name), "model.layers.%lld.self_attn.%s_proj.weight",
			 (long long)layer, part[k]);
		rc = add(m, err, name, 2, rows, s->hidden);
		snprintf(name, sizeof(name), "model.layers.%lld.self_attn.%s_proj.bias",
			 (long long)layer, part[k]);
		if (rc == 0 && s->qkv_bias)
			rc = add(m, err, name, 1, rows, 0);
	}
	snprintf(name, sizeof(name), "model.layers.%lld.self_attn.o_proj.weight", (long long)layer);
	return rc ? rc : add(m, err, name, 2, s->hidden, s->heads * s->head);
}

static int add_experts(struct wl_model *m, struct sheaf_error *err, const struct wl_shape *s,
		       const char *mlp)
{
	char name[160];
	int rc;

	snprintf(name, sizeof(name), "%s.gate.weight", mlp);
	rc = add(m, err, name, 2, s->experts, s->hidden);
	for (int64_t e = 0; e < s->experts && rc == 0; e++) {
		snprintf(name, sizeof(name), "%s.experts.%lld", mlp, (long long)e);
		rc = add_mlp(m, err, name, s->expert_inner, s->hidden);
	}
	if (rc || !s->shared_inner)
		return rc;
	snprintf(name, sizeof(name), "%s.shared_expert", mlp);
	rc = add_mlp(m, err, name, s->shared_inner, s->hidden);
	snprintf(name, sizeof(name), "%s.shared_expert_gate.weight", mlp);
	return rc ? rc : add(m, err, name, 2, 1, s->hidden);
}

static int add_layer(struct wl_model *m, struct sheaf_error *err, const struct wl_shape *s,
		     int64_t layer)
{
	char at[48], name[120];
	int rc;

	snprintf(at, sizeof(at), "model.layers.%lld", (long long)layer);
	snprintf(name, sizeof(name), "%s.input_layernorm.weight", at);
	rc = add(m, err, name, 1, s->hidden, 0);
	snprintf(name, sizeof(name), "%s.post_attention_layernorm.weight", at);
	if (rc == 0)
		rc = add(m, err, name, 1, s->hidden, 0);
	if (rc == 0)
		rc = add_attention(m, err, s, layer);
	snprintf(name, sizeof(name), "%s.mlp", at);
	if (rc == 0)
		rc = s->experts ? add_experts(m, err, s, name)
				: add_mlp(m, err, name, s->inner, s->hidden);
	return rc;
}

int wl_model_hf(struct wl_model *m, const struct wl_shape *s, struct sheaf_error *err)
{
	int rc = add(m, err, "model.embed_tokens.weight", 2, s->vocab, s->hidden);

	for (int64_t l = 0; l < s->layers && rc == 0; l++)
		rc = add_layer(m, err, s, l);
	if (rc == 0)
		rc = add(m, err, "model.norm.weight", 1, s->hidden, 0);
	if (rc == 0 && !s->tied)
		rc = add(m, err, "lm_head.weight", 2, s->vocab, s->hidden);
	return rc;
}

/* --- guesses ------------------------------------------------------------------------------ */

/* Returns the first number in s, or -1. */
static int64_t first_number(const char *s)
{
	int64_t v = 0;

	s += strcspn(s, "0123456789");
	if (!*s)
		return -1;
	for (; *s >= '0' && *s <= '9' && v < 100000000; s++)
		v = v * 10 + (*s - '0');
	return v;
}

int wl_model_guess(struct wl_model *m, struct sheaf_error *err)
{
	for (size_t i = 0; i < m->n; i++) {
		struct wl_tensor *t = &m->t[i];
		const char *experts = strstr(t->name, ".experts.");
		int64_t cut = 0, stage = first_number(t->name);

		t->stage = stage < 0 ? 0 : stage;
		if (experts && experts[9] >= '0' && experts[9] <= '9') {
			t->expert = first_number(experts + 9);
			t->experts = -1;
		}
		t->tp_axis = -1;
		if (t->ndim < 2)
			continue;
		/* The tensors are sorted: the cuts alternate with the previous matrix of the
		 * family. */
		for (size_t k = i; k-- > 0;) {
			if (m->t[k].ndim < 2 || strcmp(m->t[k].family, t->family) != 0)
				continue;
			cut = !m->t[k].tp_axis;
			break;
		}
		t->tp_axis = (int32_t)cut;
	}
	return wl_model_seal(m, err); /* stages and experts are known only now */
}

/* --- presets ------------------------------------------------------------------------------ */

static const struct {
	const char *name;
	struct wl_shape s;
} presets[] = {
	{ "qwen2-0.5b", { .vocab = 151936, .hidden = 896, .layers = 24, .heads = 14, .kv_heads = 2,
			  .head = 64, .inner = 4864, .tied = true, .qkv_bias = true } },
	{ "qwen2-mini", { .vocab = 8192, .hidden = 512, .layers = 8, .heads = 8, .kv_heads = 2,
			  .head = 64, .inner = 2816, .tied = true, .qkv_bias = true } },
	{ "qwen2-7b", { .vocab = 152064, .hidden = 3584, .layers = 28, .heads = 28, .kv_heads = 4,
			.head = 128, .inner = 18944, .qkv_bias = true } },
	{ "llama-7b", { .vocab = 32000, .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 32,
			.head = 128, .inner = 11008 } },
	{ "moe-small", { .vocab = 32000, .hidden = 1024, .layers = 12, .heads = 16, .kv_heads = 4,
			 .head = 64, .qkv_bias = true, .experts = 16, .expert_inner = 512,
			 .shared_inner = 2048 } },
};

/* Returns the size of the state with so many layers, or 0 without memory to compute it. */
static uint64_t bytes_of(struct wl_shape s, int64_t layers, bool adam)
{
	struct wl_model m = { 0 };
	uint64_t bytes = 0;

	s.layers = layers;
	if (wl_model_hf(&m, &s, NULL) == 0 && (!adam || wl_model_adam(&m, NULL) == 0))
		for (size_t i = 0; i < m.n; i++)
			bytes += wl_bytes(m.t[i].dtype, wl_items(&m.t[i]));
	wl_model_release(&m);
	return bytes;
}

int wl_model_preset(struct wl_model *m, const char *name, double gb, bool adam,
		    struct sheaf_error *err)
{
	struct wl_shape s;
	size_t i = 0, n = sizeof(presets) / sizeof(presets[0]);
	int rc;

	while (i < n && strcmp(presets[i].name, name) != 0)
		i++;
	if (i == n)
		return wl_fail(err, SHEAF_EINVAL,
			       "no preset '%.60s', there are qwen2-0.5b, qwen2-mini, qwen2-7b, "
			       "llama-7b, moe-small", name);
	s = presets[i].s;
	if (gb > 0) {
		uint64_t one = bytes_of(s, 1, adam), layer = bytes_of(s, 2, adam) - one;
		double more = (gb * 1e9 - (double)one) / (double)(layer ? layer : 1);

		if (!one || more > 100000)
			return wl_fail(err, SHEAF_EINVAL, "%g GB of %s are more than 100000 "
			               "layers; choose a smaller --gb",
				       gb, name);
		s.layers = 1 + (more > 0 ? (int64_t)(more + 0.5) : 0);
	}
	rc = wl_model_hf(m, &s, err);
	if (rc == 0)
		rc = wl_model_seal(m, err);
	if (rc == 0)
		rc = wl_model_guess(m, err);
	return rc;
}
