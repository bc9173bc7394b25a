/* SPDX-License-Identifier: Apache-2.0 */
/* Source: conversion/base.py and gguf-py/gguf/vocab.py of llama.cpp (the version in
 * llama-cpp-python 0.3.36), and src/llama-vocab.cpp for the pre-tokenizers. */
#include "gguf_vocab.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"

#define TOKENIZER "tokenizer.json"
#define ID_NONE UINT64_MAX

struct added {                  /* an entry of added_tokens of tokenizer.json */
	const char *text;               /* in the arena; NULL: not read yet */
	size_t n;
	uint64_t id;
	bool special;
};

static int no_memory(struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ENOMEM, "no memory for the tokens of a vocabulary");
}

int shf_gguf_vocab_set(struct shf_gguf_vocab *v, uint64_t id, struct shf_gguf_token token,
                       struct sheaf_error *err)
{
	if (id >= v->rows)
		return shf_fail(err, SHEAF_EINVAL, "the tokenizer has token %" PRIu64 ", and the "
		                "embedding %zu rows; check that both are of this model", id,
		                v->rows);
	token.text = shf_arena_strdup(&v->arena, token.text, token.n);
	if (!token.text)
		return no_memory(err);
	v->tokens[id] = token;
	return 0;
}

/* ---- tokenizer.json ---- */

/* Reads the number of a token. Returns whether the text is one. */
static bool is_token_id(const char *text, uint64_t *id)
{
	char *end;

	*id = strtoull(text, &end, 10);
	return text[0] >= '0' && text[0] <= '9' && !*end && *id < UINT32_MAX;
}

static int add_token(struct shf_gguf_vocab *v, struct added a, struct sheaf_error *err)
{
	shf_buf_add(&v->added, &a, sizeof(a));
	return v->added.oom ? no_memory(err) : 0;
}

static int set_text(struct shf_gguf_vocab *v, struct added *a, const char *text, size_t n,
                    struct sheaf_error *err)
{
	a->n = n;
	a->text = shf_arena_strdup(&v->arena, text, n);
	return a->text ? 0 : no_memory(err);
}

/* Takes a member of an entry of added_tokens: path is what follows "added_tokens.". */
static int added_leaf(struct shf_gguf_vocab *v, const char *path, const struct shf_json_leaf *x,
                      struct sheaf_error *err)
{
	char *key;
	uint64_t i = strtoull(path, &key, 10), n = v->added.len / sizeof(struct added);
	struct added *a;

	if (*key != '.' || i > n)
		return shf_fail(err, SHEAF_EFORMAT, TOKENIZER ": added_tokens.%.60s is not a value "
		                "of an added token", path);
	if (i == n && add_token(v, (struct added){ .id = ID_NONE }, err) < 0)
		return SHEAF_ENOMEM;
	a = (struct added *)(void *)v->added.data + i;
	if (strcmp(key, ".content") == 0 && x->kind == SHF_JSON_STRING)
		return set_text(v, a, x->text, x->text_n, err);
	if (strcmp(key, ".special") == 0)
		a->special = x->kind == SHF_JSON_TRUE;
	if (strcmp(key, ".id") == 0 && !is_token_id(x->text, &a->id))
		return shf_fail(err, SHEAF_EFORMAT, TOKENIZER ": %.60s is not a token's number",
		                x->text);
	return 0;
}

/* Appends one of the two texts of a merge. A space in it becomes the letter U+0120, which stands
 * for a space in the tokens, because GGUF separates the two texts by a space. */
static void add_half(struct shf_buf *out, const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (text[i] == ' ')
			shf_buf_add(out, "\xc4\xa0", 2);
		else
			shf_buf_u8(out, (uint8_t)text[i]);
}

/* Takes a merge, which is a text "a b", or one of the two texts of an array. path: what follows
 * "model.merges.". */
static int merge_leaf(struct shf_gguf_vocab *v, const char *path, const struct shf_json_leaf *x,
                      struct sheaf_error *err)
{
	struct shf_buf *out = &v->merges;
	char *item;
	int half;

	(void)strtoull(path, &item, 10);
	half = !*item ? 0 : strcmp(item, ".0") == 0 ? 1 : strcmp(item, ".1") == 0 ? 2 : -1;
	if (x->kind != SHF_JSON_STRING || half < 0 || (half == 2) != (v->merge_half == 1))
		return shf_fail(err, SHEAF_EFORMAT, TOKENIZER ": %.60s is not a pair of texts",
		                x->path);
	v->merge_half = half;
	if (half < 2) {
		v->merges_n++;
		v->merge_at = out->len;
		shf_buf_u64(out, 0);
	}
	if (half == 2)
		shf_buf_u8(out, ' ');
	if (half == 0)
		shf_buf_add(out, x->text, x->text_n);
	else
		add_half(out, x->text, x->text_n);
	if (out->oom)
		return no_memory(err);
	shf_put64(out->data + v->merge_at, out->len - v->merge_at - 8);
	return 0;
}

/* Returns what follows the prefix in the path, or NULL if it does not begin so. */
static const char *path_after(const struct shf_json_leaf *x, const char *prefix)
{
	size_t n = strlen(prefix);

	return strncmp(x->path, prefix, n) == 0 ? x->path + n : NULL;
}

int shf_gguf_tokenizer_leaf(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err)
{
	struct shf_gguf_vocab *v = arg;
	struct shf_gguf_token t = { .type = SHF_GGUF_NORMAL };
	uint64_t id;

	if (path_after(x, "added_tokens."))
		return added_leaf(v, path_after(x, "added_tokens."), x, err);
	if (path_after(x, "model.merges."))
		return merge_leaf(v, path_after(x, "model.merges."), x, err);
	if (!path_after(x, "model.vocab."))
		return shf_json_facts_add(&v->json, x, err);
	t.text = path_after(x, "model.vocab.");
	t.n = x->path_n - strlen("model.vocab.");
	if (x->in_n != strlen("model.vocab") || x->in_array || !is_token_id(x->text, &id))
		return shf_fail(err, SHEAF_EINVAL, TOKENIZER ": its vocabulary is not one of BPE, "
		                "which alone can be written as GGUF");
	return v->is_spm ? 0 : shf_gguf_vocab_set(v, id, t, err);
}

/* ---- the pre-tokenizer ---- */

/* Parts of the regular expressions by which Llama 3 and Qwen2 split a text. */
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define FIRST "pre_tokenizer.pretokenizers.0."
#define SECOND "pre_tokenizer.pretokenizers.1."

/* Returns the name that llama.cpp has for the pre-tokenizer, or NULL. llama.cpp implements each of
 * them in code of its own, and a file gives only the name. tokenizer.json describes the steps of
 * the pre-tokenizer instead, so the name is found by comparing these. */
static const char *pre_of(const struct shf_json_facts *f)
{
	const char *type = shf_json_fact_text(f, "pre_tokenizer.type");
	const char *split = shf_json_fact_text(f, FIRST "pattern.Regex");
	const char *first = shf_json_fact_text(f, FIRST "type");
	const char *second = shf_json_fact_text(f, SECOND "type");
	const struct shf_json_fact *whole = shf_json_fact(f, "model.ignore_merges");
	const struct shf_json_fact *regex = shf_json_fact(f, "pre_tokenizer.use_regex");
	const struct shf_json_fact *second_regex = shf_json_fact(f, SECOND "use_regex");
	bool ignores = whole && whole->kind == SHF_JSON_TRUE;

	if (type && strcmp(type, "ByteLevel") == 0)
		return (!regex || regex->kind == SHF_JSON_TRUE) && !ignores ? "gpt-2" : NULL;
	if (!type || strcmp(type, "Sequence") || !first || !second ||
	    strcmp(second, "ByteLevel") ||
	    shf_json_fact(f, "pre_tokenizer.pretokenizers.2.type"))
		return NULL;
	if (strcmp(first, "Digits") == 0)
		return (!second_regex || second_regex->kind == SHF_JSON_TRUE) && !ignores ?
			"smollm" : NULL;
	if (!split || !second_regex || second_regex->kind != SHF_JSON_FALSE)
		return NULL;
	if (strcmp(split, WORDS "\\p{N}{1,3}" REST) == 0 && ignores)
		return "llama-bpe";
	return strcmp(split, WORDS "\\p{N}" REST) == 0 && !ignores ? "qwen2" : NULL;
}

int shf_gguf_vocab_check(struct shf_gguf_vocab *v, struct sheaf_error *err)
{
	const char *type = shf_json_fact_text(&v->json, "model.type");
	const struct shf_json_fact *bytes = shf_json_fact(&v->json, "model.byte_fallback");

	if (v->merge_half == 1)
		return shf_fail(err, SHEAF_EFORMAT, TOKENIZER ": its last merge is not a pair of "
		                "texts");
	if (!type || strcmp(type, "BPE"))
		return shf_fail(err, SHEAF_EINVAL, TOKENIZER ": is of type %.60s, which cannot be "
		                "written as GGUF; BPE can", type ? type : "(none)");
	if (bytes && bytes->kind == SHF_JSON_TRUE)
		return shf_fail(err, SHEAF_EINVAL, TOKENIZER ": is a form of a model of "
		                "SentencePiece without its scores; put the file tokenizer.model "
		                "beside it");
	v->pre = pre_of(&v->json);
	if (!v->pre)
		return shf_fail(err, SHEAF_EINVAL, TOKENIZER ": its pre_tokenizer is not known; "
		                "those of Llama 3, Qwen2, GPT-2 and SmolLM can be written as GGUF; "
		                "use the converter of llama.cpp");
	return 0;
}

/* ---- added tokens ---- */

static bool text_begins(const char *s, size_t n, const char *with)
{
	return n >= strlen(with) && memcmp(s, with, strlen(with)) == 0;
}

static bool text_ends(const char *s, size_t n, const char *with)
{
	return n >= strlen(with) && memcmp(s + n - strlen(with), with, strlen(with)) == 0;
}

/* Returns whether a text is that of a special token. The files of some models do not say so of all
 * their special tokens. */
static bool looks_special(const char *s, size_t n)
{
	return (text_begins(s, n, "<|") && text_ends(s, n, "|>")) ||
	       (text_begins(s, n, "<\xef\xbd\x9c") && text_ends(s, n, "\xef\xbd\x9c>")) ||
	       (text_begins(s, n, "<unused") && text_ends(s, n, ">")) ||
	       (n == 5 && text_begins(s, n, "<pad>")) || (n == 6 && text_begins(s, n, "<mask>")) ||
	       (n == 7 && text_begins(s, n, "<2mass>")) || (n == 7 && text_begins(s, n, "[@BOS@]"));
}

/* Sets a token that was added to the vocabulary. If it is not special, each character U+2581, which
 * SentencePiece has for a space, becomes a space. */
static int set_added(struct shf_gguf_vocab *v, const struct added *a, struct sheaf_error *err)
{
	struct shf_gguf_token t = { a->text, a->n, v->is_spm ? -1000 : 0, SHF_GGUF_CONTROL };
	struct shf_buf plain = SHF_BUF_INIT;
	int rc;

	if (!a->text || a->id == ID_NONE)
		return shf_fail(err, SHEAF_EFORMAT, TOKENIZER ": an added token has no number or "
		                "no text");
	if (!a->special && !looks_special(a->text, a->n)) {
		t.type = SHF_GGUF_USER_DEFINED;
		for (size_t i = 0; i < a->n; i++) {
			bool is = text_begins(a->text + i, a->n - i, "\xe2\x96\x81");

			shf_buf_u8(&plain, (uint8_t)(is ? ' ' : a->text[i]));
			i += is ? 2 : 0;
		}
		t.text = (const char *)plain.data;
		t.n = plain.len;
	}
	rc = plain.oom ? no_memory(err) : shf_gguf_vocab_set(v, a->id, t, err);
	shf_buf_release(&plain);
	return rc;
}

int shf_gguf_vocab_end(struct shf_gguf_vocab *v, struct sheaf_error *err)
{
	const struct added *a = (const void *)v->added.data;
	int rc = 0;

	for (size_t i = 0; i < v->added.len / sizeof(*a) && rc == 0; i++)
		rc = set_added(v, &a[i], err);
	return rc;
}

/* Reads the added tokens from tokenizer_config.json only for SentencePiece models, because they may
 * have no tokenizer.json. */
int shf_gguf_config_leaf(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err)
{
	struct shf_gguf_vocab *v = arg;
	const char *path = path_after(x, "added_tokens_decoder.");
	uint64_t id = ID_NONE, n = v->added.len / sizeof(struct added);
	struct added *a;
	char *key;
	int rc = 0;

	if (!path)
		return shf_json_facts_add(&v->config, x, err);
	id = strtoull(path, &key, 10);
	if (!v->is_spm || *key != '.')
		return 0;
	a = (struct added *)(void *)v->added.data;
	if (!n || a[n - 1].id != id) {
		rc = add_token(v, (struct added){ .id = id }, err);
		n++;
	}
	if (rc < 0)
		return rc;
	a = (struct added *)(void *)v->added.data + n - 1;
	if (strcmp(key, ".special") == 0)
		a->special = x->kind == SHF_JSON_TRUE;
	return strcmp(key, ".content") || x->kind != SHF_JSON_STRING ? 0
	     : set_text(v, a, x->text, x->text_n, err);
}

int shf_gguf_added_leaf(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err)
{
	struct added a = { .id = ID_NONE };
	int rc = 0;

	if (is_token_id(x->text, &a.id) && x->in_n == 0)
		rc = set_text(arg, &a, x->path, x->path_n, err);
	return rc < 0 || !a.text ? rc : add_token(arg, a, err);
}

void shf_gguf_vocab_release(struct shf_gguf_vocab *v)
{
	shf_free(v->tokens);
	shf_buf_release(&v->merges);
	shf_buf_release(&v->added);
	shf_buf_release(&v->chat);
	shf_json_facts_release(&v->json);
	shf_json_facts_release(&v->config);
	shf_arena_release(&v->arena);
	*v = (struct shf_gguf_vocab){ 0 };
}

/* ---- metadata ---- */

static const struct { const char *name, *key; } specials[] = {
	{ "bos", "tokenizer.ggml.bos_token_id" }, { "eos", "tokenizer.ggml.eos_token_id" },
	{ "unk", "tokenizer.ggml.unknown_token_id" },
	{ "sep", "tokenizer.ggml.seperator_token_id" },
	{ "pad", "tokenizer.ggml.padding_token_id" }, { "mask", "tokenizer.ggml.mask_token_id" },
};

/* Returns the text of a special token in tokenizer_config.json, where it is a string or the member
 * content of an object; or NULL. */
static const char *special_text(const struct shf_gguf_vocab *v, const char *name)
{
	const char *text;
	char path[60];

	snprintf(path, sizeof(path), "%s_token", name);
	text = shf_json_fact_text(&v->config, path);
	snprintf(path, sizeof(path), "%s_token.content", name);
	return text ? text : shf_json_fact_text(&v->config, path);
}

/* Returns the number of a special token, or ID_NONE. */
static uint64_t special_id(const struct shf_gguf_vocab *v, const char *name,
                           const struct shf_json_facts *model)
{
	const struct added *a = (const void *)v->added.data;
	const char *text = special_text(v, name);
	const struct shf_json_fact *f;
	uint64_t id = ID_NONE;
	char path[60];

	for (size_t i = 0; text && i < v->added.len / sizeof(*a); i++)
		if (strlen(text) == a[i].n && memcmp(a[i].text, text, a[i].n) == 0)
			return a[i].id;
	snprintf(path, sizeof(path), "%s_token_id", name);
	f = shf_json_fact(model, path);
	if (f && f->kind == SHF_JSON_NUMBER && is_token_id(f->text, &id) && id < v->rows)
		return id;
	return ID_NONE;
}

/* Returns whether the template of a post-processor adds the token `name` at the beginning of a text
 * (first) or at its end: 1, 0, or -1 if it has no special token there. prefix: the path of the
 * template. */
static int template_adds(const struct shf_gguf_vocab *v, const char *prefix, bool first,
                         const char *name)
{
	const char *want = special_text(v, name), *is;
	char path[160];
	int n = 0, adds;

	for (; n < 64; n++) {
		snprintf(path, sizeof(path), "%s.single.%d.SpecialToken.id", prefix, n);
		adds = shf_json_fact(&v->json, path) != NULL;
		snprintf(path, sizeof(path), "%s.single.%d.Sequence.id", prefix, n);
		if (!adds && !shf_json_fact(&v->json, path))
			break;
	}
	if (n < 2)
		return -1;
	snprintf(path, sizeof(path), "%s.single.%d.SpecialToken.id", prefix, first ? 0 : n - 1);
	is = shf_json_fact_text(&v->json, path);
	return is ? !want || strcmp(is, want) == 0 : -1;
}

/* Returns whether texts get the token `name` at their beginning (first) or end: 1, 0, or -1 if no
 * file says it. */
static int adds_special(const struct shf_gguf_vocab *v, bool first, const char *name)
{
	const struct shf_json_fact *f;
	char path[80] = "post_processor";
	const char *type;
	int adds = -1;

	for (int i = -1; i < 8; i++) {
		char key[100];
		int one;

		if (i >= 0)
			snprintf(path, sizeof(path), "post_processor.processors.%d", i);
		snprintf(key, sizeof(key), "%s.type", path);
		type = shf_json_fact_text(&v->json, key);
		if (type && strcmp(type, "ByteLevel") == 0 && adds < 0)
			adds = 0;
		one = type && strcmp(type, "TemplateProcessing") == 0
		    ? template_adds(v, path, first, name) : -1;
		adds = one >= 0 ? one : adds;
	}
	snprintf(path, sizeof(path), "add_%s_token", name);
	f = shf_json_fact(&v->config, path);
	if (adds < 0 && f && (f->kind == SHF_JSON_TRUE || f->kind == SHF_JSON_FALSE))
		adds = f->kind == SHF_JSON_TRUE;
	return adds;
}

static void put_tokens(struct shf_gguf_out *o, const struct shf_gguf_vocab *v)
{
	char unused[40];

	shf_gguf_put_array(o, "tokenizer.ggml.tokens", SHF_GGUF_TEXT, v->rows);
	for (size_t i = 0; i < v->rows; i++) {
		const struct shf_gguf_token *t = &v->tokens[i];

		snprintf(unused, sizeof(unused), "[PAD%zu]", i);
		shf_gguf_text(&o->bytes, t->text ? t->text : unused,
		              t->text ? t->n : strlen(unused));
	}
	if (v->is_spm)
		shf_gguf_put_array(o, "tokenizer.ggml.scores", SHF_GGUF_F32, v->rows);
	for (size_t i = 0; v->is_spm && i < v->rows; i++)
		shf_gguf_f32(&o->bytes, v->tokens[i].text ? v->tokens[i].score : -10000);
	shf_gguf_put_array(o, "tokenizer.ggml.token_type", SHF_GGUF_I32, v->rows);
	for (size_t i = 0; i < v->rows; i++)
		shf_buf_u32(&o->bytes, v->tokens[i].text ? (uint32_t)v->tokens[i].type
		                                         : SHF_GGUF_UNUSED);
	if (v->is_spm || !v->merges_n)
		return;
	shf_gguf_put_array(o, "tokenizer.ggml.merges", SHF_GGUF_TEXT, v->merges_n);
	shf_buf_add(&o->bytes, v->merges.data, v->merges.len);
}

void shf_gguf_vocab_put(struct shf_gguf_out *o, const struct shf_gguf_vocab *v,
                        const struct shf_json_facts *model)
{
	const struct shf_json_fact *space = shf_json_fact(&v->config, "add_prefix_space");
	int bos = adds_special(v, true, "bos"), eos = adds_special(v, false, "eos");

	shf_gguf_put_text(o, "tokenizer.ggml.model", v->is_spm ? "llama" : "gpt2");
	shf_gguf_put_text(o, "tokenizer.ggml.pre", v->pre);
	put_tokens(o, v);
	for (size_t i = 0; i < sizeof(specials) / sizeof(specials[0]); i++) {
		uint64_t id = special_id(v, specials[i].name, model);

		if (id != ID_NONE)
			shf_gguf_put_u32(o, specials[i].key, (uint32_t)id);
	}
	if (bos >= 0)
		shf_gguf_put_bool(o, "tokenizer.ggml.add_bos_token", bos > 0);
	if (eos >= 0)
		shf_gguf_put_bool(o, "tokenizer.ggml.add_eos_token", eos > 0);
	if (v->is_spm && space &&
	    (space->kind == SHF_JSON_TRUE || space->kind == SHF_JSON_FALSE))
		shf_gguf_put_bool(o, "tokenizer.ggml.add_space_prefix",
		                  space->kind == SHF_JSON_TRUE);
	if (v->chat.len)
		shf_gguf_put_text(o, "tokenizer.chat_template", (const char *)v->chat.data);
}
