/* SPDX-License-Identifier: Apache-2.0 */
#include "modelconfig.h"

#include <jansson.h>
#include <string.h>

#define SIZE_MAX_OF_MODEL ((int64_t)1 << 31)
#define WEIGHTS_MAX 1e13

struct reading {
	const json_t *json;
	const char *name;
	struct tr_error *err;
	int rc;                         /* of the first failure */
};

static int64_t integer(struct reading *r, const char *key, int64_t otherwise)
{
	const json_t *x = json_object_get(r->json, key);
	int64_t value;

	if ((!x || json_is_null(x)) && otherwise)
		return otherwise;
	value = json_is_integer(x) ? (int64_t)json_integer_value(x) : 0;
	if ((value < 1 || value > SIZE_MAX_OF_MODEL) && !r->rc)
		r->rc = tr_fail(r->err, TR_EFORMAT, "%s: %s must be a whole number from 1 to 2^31",
				r->name, key);
	return value;
}

static double number(struct reading *r, const json_t *from, const char *key, double otherwise)
{
	const json_t *x = json_object_get(from, key);

	if (!x || json_is_null(x))
		return otherwise;
	if ((!json_is_number(x) || !(json_number_value(x) > 0)) && !r->rc)
		r->rc = tr_fail(r->err, TR_EFORMAT, "%s: %s must be a number above 0", r->name,
				key);
	return json_number_value(x);
}

/* Returns whether a member is true. One that is missing or null is not. */
static int is_true(struct reading *r, const char *key)
{
	const json_t *x = json_object_get(r->json, key);

	if (x && !json_is_boolean(x) && !json_is_null(x) && !r->rc)
		r->rc = tr_fail(r->err, TR_EFORMAT, "%s: %s must be true or false", r->name, key);
	return json_is_true(x);
}

static void refuse(struct reading *r, const char *what, const char *instead)
{
	if (!r->rc)
		r->rc = tr_fail(r->err, TR_EFORMAT, "%s: %s; use a model with %s", r->name, what,
				instead);
}

static const char *string(const json_t *from, const char *key, const char *otherwise)
{
	const char *s = json_string_value(json_object_get(from, key));

	return s ? s : otherwise;
}

/* A scaled rotary embedding needs other tables, and is refused. transformers 5 writes all
 * properties of the embedding into the object rope_parameters. */
static void read_rope(struct reading *r, struct tr_model_config *c)
{
	const json_t *scaling = json_object_get(r->json, "rope_scaling");
	const json_t *all = json_object_get(r->json, "rope_parameters");
	const json_t *of = json_is_object(all) ? all : scaling;

	c->rope_theta = number(r, r->json, "rope_theta", 10000);
	if (json_is_object(all))
		c->rope_theta = number(r, all, "rope_theta", c->rope_theta);
	if (strcmp(string(of, "rope_type", string(of, "type", "default")), "default") != 0)
		refuse(r, "its rotary embedding is scaled", "rope_type default");
}

static void read_kind(struct reading *r, struct tr_model_config *c)
{
	const char *type = string(r->json, "model_type", "");

	c->qkv_bias = strcmp(type, "qwen2") == 0;
	if (!c->qkv_bias && strcmp(type, "llama") != 0)
		refuse(r, "its model_type is neither qwen2 nor llama", "one of these");
	if (strcmp(string(r->json, "hidden_act", "silu"), "silu") != 0)
		refuse(r, "its hidden_act is not silu", "hidden_act silu");
	if (is_true(r, "use_sliding_window"))
		refuse(r, "it has a sliding window", "use_sliding_window false");
	if (is_true(r, "attention_bias") || is_true(r, "mlp_bias"))
		refuse(r, "it has biases that are not of Qwen2", "none");
}

/* With these limits no number of weights or activations overflows. */
static void check_size(struct reading *r, const struct tr_model_config *c)
{
	double q = (double)c->heads * (double)c->head_size;
	double kv = (double)c->kv_heads * (double)c->head_size;
	double layer = 2 * q + 2 * kv + 3 * (double)c->ffn;
	double rows = 2 * (double)c->vocab + (double)c->layers * (layer + 2);

	if (q > (double)SIZE_MAX_OF_MODEL || rows * (double)c->hidden > WEIGHTS_MAX)
		refuse(r, "its sizes make heads of more than 2^31 items in all, or more than 10^13 "
		       "weights", "smaller ones");
}

int tr_model_config_read(struct tr_model_config *c, const char *text, size_t n, const char *name,
			 struct tr_error *err)
{
	json_error_t why;
	json_t *json = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
	struct reading r = { .json = json, .name = name, .err = err };

	if (json && !json_is_object(json)) {
		json_decref(json);
		return tr_fail(err, TR_EFORMAT, "%s: not the JSON of a model, which is an object; "
			       "use a config.json of Hugging Face", name);
	}
	if (!json) {
		return tr_fail(err, TR_EFORMAT, "%s: line %d: not the JSON of a model: %s; use a "
			       "config.json of Hugging Face", name, why.line, why.text);
	}
	*c = (struct tr_model_config){ .vocab = 0 };
	read_kind(&r, c);
	c->vocab = integer(&r, "vocab_size", 0);
	c->hidden = integer(&r, "hidden_size", 0);
	c->layers = integer(&r, "num_hidden_layers", 0);
	c->heads = integer(&r, "num_attention_heads", 0);
	c->kv_heads = integer(&r, "num_key_value_heads", c->heads);
	c->ffn = integer(&r, "intermediate_size", 0);
	c->positions_max = integer(&r, "max_position_embeddings", 32768);
	c->head_size = integer(&r, "head_dim", c->heads ? c->hidden / c->heads : 1);
	c->norm_eps = number(&r, json, "rms_norm_eps", 1e-6);
	c->init_range = number(&r, json, "initializer_range", 0.02);
	c->tied = is_true(&r, "tie_word_embeddings");
	read_rope(&r, c);
	if (c->kv_heads && c->heads % c->kv_heads)
		refuse(&r, "num_key_value_heads does not divide num_attention_heads",
		       "heads that are a multiple of the kv heads");
	if (c->head_size % 2)
		refuse(&r, "its heads have an odd size, which cannot be rotated", "even ones");
	check_size(&r, c);
	json_decref(json);
	return r.rc;
}

const char *tr_model_config_differ(const struct tr_model_config *a,
				   const struct tr_model_config *b)
{
	const struct {
		const char *key;
		int same;
	} property[] = {
		{ "vocab_size", a->vocab == b->vocab },
		{ "hidden_size", a->hidden == b->hidden },
		{ "num_hidden_layers", a->layers == b->layers },
		{ "num_attention_heads", a->heads == b->heads },
		{ "num_key_value_heads", a->kv_heads == b->kv_heads },
		{ "head_dim", a->head_size == b->head_size },
		{ "intermediate_size", a->ffn == b->ffn },
		{ "rms_norm_eps", !(a->norm_eps < b->norm_eps || a->norm_eps > b->norm_eps) },
		{ "rope_theta",
		  !(a->rope_theta < b->rope_theta || a->rope_theta > b->rope_theta) },
		{ "tie_word_embeddings", a->tied == b->tied },
		{ "model_type", a->qkv_bias == b->qkv_bias },
	};

	for (size_t i = 0; i < sizeof(property) / sizeof(property[0]); i++)
		if (!property[i].same)
			return property[i].key;
	return NULL;
}

char *tr_model_config_typed(const char *text, size_t n, enum tr_type type)
{
	static const char *const keys[] = { "dtype", "torch_dtype" };
	json_t *name = json_string(type == TR_BF16 ? "bfloat16" : "float32");
	json_t *json = json_loadb(text, n, 0, NULL);
	int found = 0, same = 1;
	char *typed;

	for (int i = 0; i < 2; i++) {
		const json_t *x = json_object_get(json, keys[i]);

		if (!x || json_is_null(x))
			continue;
		found = 1;
		same &= json_equal(x, name);
		json_object_set(json, keys[i], name);
	}
	if (!found && type == TR_BF16)
		json_object_set(json, keys[1], name);
	typed = same && (found || type == TR_F32) ? strndup(text, n) :
		json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
	json_decref(json);
	json_decref(name);
	return typed;
}
