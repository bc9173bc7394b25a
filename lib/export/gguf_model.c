/* SPDX-License-Identifier: Apache-2.0 */
/* Source: conversion/base.py, llama.py and qwen.py of llama.cpp (the version in llama-cpp-python
 * 0.3.36), and the names of the package gguf 0.19. */
#include "gguf_model.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "decimal.h"
#include "err.h"
#include "step_beside.h"

#define CONFIG "config.json"

static const char *const llama_needs[] = { "attn_norm.weight", "attn_q.weight", "attn_k.weight",
	"attn_v.weight", "attn_output.weight", "ffn_norm.weight", "ffn_gate.weight",
	"ffn_up.weight", "ffn_down.weight", NULL };
static const char *const llama_may[] = { "attn_q.bias", "attn_k.bias", "attn_v.bias",
	"attn_output.bias", NULL };
static const char *const qwen2_needs[] = { "attn_norm.weight", "attn_q.weight", "attn_q.bias",
	"attn_k.weight", "attn_k.bias", "attn_v.weight", "attn_v.bias", "attn_output.weight",
	"ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", NULL };
static const char *const qwen3_needs[] = { "attn_norm.weight", "attn_q.weight",
	"attn_q_norm.weight", "attn_k.weight", "attn_k_norm.weight", "attn_v.weight",
	"attn_output.weight", "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight",
	"ffn_down.weight", NULL };
static const char *const none[] = { NULL };
static const struct shf_gguf_arch archs[] = {
	{ "llama", "llama", "llama-hf-gguf", llama_needs, llama_may },
	{ "mistral", "llama", "llama-hf-gguf", llama_needs, llama_may },
	{ "qwen2", "qwen2", "qwen2-hf-gguf", qwen2_needs, none },
	{ "qwen3", "qwen3", "qwen3-hf-gguf", qwen3_needs, none },
};
#define ARCHS (sizeof(archs) / sizeof(archs[0]))

/* ---- values of config.json ---- */

/* Sets *v to a number. Returns whether there is one of that key. */
static bool config_number(const struct shf_json_facts *facts, const char *key, double *v)
{
	const struct shf_json_fact *f = shf_json_fact(facts, key);

	if (f && f->kind == SHF_JSON_NUMBER)
		*v = shf_decimal_strtod(f->text, NULL);
	return f && f->kind == SHF_JSON_NUMBER;
}

static bool is_true(const struct shf_json_facts *facts, const char *key)
{
	const struct shf_json_fact *f = shf_json_fact(facts, key);

	return f && f->kind == SHF_JSON_TRUE;
}

/* Sets *v to a number of the object that describes RoPE, which is called rope_parameters since
 * transformers 5, and rope_scaling before. Returns whether there is one of that key. */
static bool rope_number(const struct shf_json_facts *facts, const char *key, double *v)
{
	char path[100];

	snprintf(path, sizeof(path), "rope_parameters.%s", key);
	if (config_number(facts, path, v))
		return true;
	snprintf(path, sizeof(path), "rope_scaling.%s", key);
	return config_number(facts, path, v);
}

/* Returns the kind of RoPE. */
static const char *rope_type(const struct shf_json_facts *facts)
{
	static const char *const keys[] = { "rope_parameters.rope_type", "rope_scaling.rope_type",
		"rope_scaling.type" };

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (shf_json_fact_text(facts, keys[i]))
			return shf_json_fact_text(facts, keys[i]);
	return "default";
}

static bool rope_theta(const struct shf_json_facts *facts, double *theta)
{
	return rope_number(facts, "rope_theta", theta) || config_number(facts, "rope_theta", theta);
}

/* ---- checks ---- */

static const struct field {     /* a number of config.json, and its key in GGUF */
	const char *from, *to;
	bool real, must;
} fields[] = {
	{ "num_hidden_layers", "block_count", false, true },
	{ "max_position_embeddings", "context_length", false, true },
	{ "hidden_size", "embedding_length", false, true },
	{ "intermediate_size", "feed_forward_length", false, true },
	{ "num_attention_heads", "attention.head_count", false, true },
	{ "num_key_value_heads", "attention.head_count_kv", false, false },
	{ "rms_norm_eps", "attention.layer_norm_rms_epsilon", true, true },
	{ "head_dim", "attention.key_length", false, false },
	{ "head_dim", "attention.value_length", false, false },
};
#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static int cannot(struct sheaf_error *err, const char *path, const char *what)
{
	return shf_fail(err, SHEAF_EINVAL, "%s: " CONFIG " has %.200s, which cannot be written "
	                "as GGUF; use the converter of llama.cpp", path, what);
}

static int check_fields(const struct shf_json_facts *c, const char *path, struct sheaf_error *err)
{
	for (size_t i = 0; i < FIELDS; i++) {
		double v = 0;
		bool is = config_number(c, fields[i].from, &v);

		if (!is && fields[i].must)
			return shf_fail(err, SHEAF_EINVAL, "%s: " CONFIG " has no number %s, which "
			                "a GGUF file needs", path, fields[i].from);
		if (is && !(fields[i].real ? v > 0 : v >= 1 && v <= INT32_MAX && v == (int32_t)v))
			return shf_fail(err, SHEAF_EINVAL, "%s: " CONFIG ": %s is %.40s, which is "
			                "out of range", path, fields[i].from,
			                shf_json_fact(c, fields[i].from)->text);
	}
	return 0;
}

/* Refuses a model that llama.cpp would compute differently from transformers. */
static int check_model(const struct shf_gguf_model *m, const char *path, struct sheaf_error *err)
{
	static const char *const ropes[] = { "default", "linear", "yarn", "llama3" };
	const struct shf_json_facts *c = &m->config;
	const char *act = shf_json_fact_text(c, "hidden_act"), *rope = rope_type(c);
	char what[120];
	double v;
	size_t r = 0;

	if (act && strcmp(act, "silu")) {
		snprintf(what, sizeof(what), "the activation %.60s", act);
		return cannot(err, path, what);
	}
	if (is_true(c, "use_sliding_window"))
		return cannot(err, path, "use_sliding_window");
	if (shf_json_fact(c, "quantization_config.quant_method"))
		return cannot(err, path, "quantization_config");
	if ((config_number(c, "partial_rotary_factor", &v) ||
	     rope_number(c, "partial_rotary_factor", &v)) && v != 1)
		return cannot(err, path, "partial_rotary_factor");
	while (r < sizeof(ropes) / sizeof(ropes[0]) && strcmp(ropes[r], rope))
		r++;
	if (r == sizeof(ropes) / sizeof(ropes[0])) {
		snprintf(what, sizeof(what), "RoPE of type %.60s", rope);
		return cannot(err, path, what);
	}
	if (r > 0 && !(rope_number(c, "factor", &v) && v > 0))
		return cannot(err, path, "RoPE without its factor");
	if (r > 1 && !(rope_number(c, "original_max_position_embeddings", &v) && v >= 1 &&
	               v <= INT32_MAX))
		return cannot(err, path, "RoPE without original_max_position_embeddings");
	return 0;
}

/* ---- RoPE ---- */

static double head_dim(const struct shf_json_facts *c)
{
	double dim, hidden = 0, heads = 1;

	if (config_number(c, "head_dim", &dim))
		return dim;
	config_number(c, "hidden_size", &hidden);
	config_number(c, "num_attention_heads", &heads);
	return (double)((int64_t)hidden / (int64_t)heads);
}

/* Computes the factors by which Llama 3 divides the frequencies of RoPE, which llama.cpp reads as a
 * tensor: `factor` for low frequencies, 1 for high ones, and a value in between for the others. */
static void make_factors(struct shf_gguf_model *m)
{
	const struct shf_json_facts *c = &m->config;
	double theta = 10000, factor = 8, low = 1, high = 4, context = 8192, dim = head_dim(c);

	if (strcmp(rope_type(c), "llama3") || dim > 65536)
		return;
	rope_theta(c, &theta);
	rope_number(c, "factor", &factor);
	rope_number(c, "low_freq_factor", &low);
	rope_number(c, "high_freq_factor", &high);
	rope_number(c, "original_max_position_embeddings", &context);
	for (int i = 0; i + 1 < (int)dim; i += 2) {
		double wave = 2 * 3.14159265358979323846 * pow(theta, i / dim);
		double smooth = (context / wave - low) / (high - low), by = factor;

		if (wave < context / high)
			by = 1;
		else if (wave <= context / low)
			by = 1 / ((1 - smooth) / factor + smooth);
		shf_gguf_f32(&m->factors, (float)by);
	}
}

int shf_gguf_model_read(struct shf_gguf_model *m, struct sheaf_checkpoint *step,
                        struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	const char *path = step->path, *type;
	double layers = 0;
	int rc = shf_step_beside(step, CONFIG, &text, err);

	if (rc == 0)
		rc = shf_fail(err, SHEAF_EINVAL, "%s: has no " CONFIG ", from which a GGUF file "
		              "gets the architecture and the sizes of the model", path);
	if (rc > 0)
		rc = shf_json_facts_read(&m->config, text.data, text.len, CONFIG, err);
	shf_buf_release(&text);
	if (rc < 0)
		return rc;
	type = shf_json_fact_text(&m->config, "model_type");
	for (size_t i = 0; type && i < ARCHS && !m->arch; i++)
		m->arch = strcmp(archs[i].model_type, type) == 0 ? &archs[i] : NULL;
	if (!m->arch)
		return shf_fail(err, SHEAF_EINVAL, "%s: " CONFIG " says model_type %.60s, which "
		                "cannot be written as GGUF; llama, mistral, qwen2 and qwen3 can",
		                path, type ? type : "(none)");
	rc = check_fields(&m->config, path, err);
	if (rc == 0)
		rc = check_model(m, path, err);
	if (rc < 0)
		return rc;
	config_number(&m->config, "num_hidden_layers", &layers);
	m->layers = (uint64_t)layers;
	m->tied = is_true(&m->config, "tie_word_embeddings");
	make_factors(m);
	if (m->factors.oom)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for the factors of RoPE", path);
	return 0;
}

/* ---- metadata ---- */

static const char *keyed(char key[120], const struct shf_gguf_model *m, const char *what)
{
	snprintf(key, 120, "%s.%s", m->arch->name, what);
	return key;
}

static void put_rope(struct shf_gguf_out *o, const struct shf_gguf_model *m)
{
	static const struct { const char *from, *to; } yarn[] = {
		{ "extrapolation_factor", "rope.scaling.yarn_ext_factor" },
		{ "attention_factor", "rope.scaling.yarn_attn_factor" },
		{ "beta_fast", "rope.scaling.yarn_beta_fast" },
		{ "beta_slow", "rope.scaling.yarn_beta_slow" },
	};
	const struct shf_json_facts *c = &m->config;
	const char *type = rope_type(c);
	char key[120];
	double v;

	if (rope_theta(c, &v))
		shf_gguf_put_f32(o, keyed(key, m, "rope.freq_base"), v);
	if (strcmp(type, "linear") && strcmp(type, "yarn"))
		return;
	shf_gguf_put_text(o, keyed(key, m, "rope.scaling.type"), type);
	if (rope_number(c, "factor", &v))
		shf_gguf_put_f32(o, keyed(key, m, "rope.scaling.factor"), v);
	if (strcmp(type, "yarn"))
		return;
	if (rope_number(c, "original_max_position_embeddings", &v))
		shf_gguf_put_u32(o, keyed(key, m, "rope.scaling.original_context_length"),
		                 (uint32_t)v);
	for (size_t i = 0; i < sizeof(yarn) / sizeof(yarn[0]); i++)
		if (rope_number(c, yarn[i].from, &v))
			shf_gguf_put_f32(o, keyed(key, m, yarn[i].to), v);
}

void shf_gguf_model_put(struct shf_gguf_out *o, const struct shf_gguf_model *m, uint32_t rows)
{
	const struct shf_json_facts *c = &m->config;
	const char *name = shf_json_fact_text(c, "_name_or_path");
	char key[120];
	double v;

	shf_gguf_put_text(o, "general.architecture", m->arch->name);
	shf_gguf_put_text(o, "general.type", "model");
	if (name && name[0])
		shf_gguf_put_text(o, "general.name", name);
	for (size_t i = 0; i < FIELDS; i++) {
		if (!config_number(c, fields[i].from, &v))
			continue;
		keyed(key, m, fields[i].to);
		if (fields[i].real)
			shf_gguf_put_f32(o, key, v);
		else
			shf_gguf_put_u32(o, key, (uint32_t)v);
	}
	if (!config_number(c, "num_key_value_heads", &v) &&
	    config_number(c, "num_attention_heads", &v))
		shf_gguf_put_u32(o, keyed(key, m, "attention.head_count_kv"), (uint32_t)v);
	put_rope(o, m);
	if (strcmp(m->arch->name, "llama") == 0)
		shf_gguf_put_u32(o, keyed(key, m, "rope.dimension_count"),
		                 (uint32_t)head_dim(c));
	shf_gguf_put_u32(o, keyed(key, m, "vocab_size"), rows);
}

void shf_gguf_model_release(struct shf_gguf_model *m)
{
	shf_json_facts_release(&m->config);
	shf_buf_release(&m->factors);
	*m = (struct shf_gguf_model){ 0 };
}
