/* SPDX-License-Identifier: Apache-2.0 */
/* A model with the names of llama.cpp is exported as a GGUF file: what its metadata say, what is
 * refused, and what becomes of damaged files beside it. */
#include "export_format.h"
#include "step_open.h"
#include "t.h"
#include "foreign_plays.h"
#include "starve.h"

#define FROM "m"
#define TO "out.gguf"

enum { HIDDEN = 8, ROWS = 8, COLUMNS = 4 };    /* items of a norm; shape of all matrices */

static const char *const names[] = { "token_embd.weight", "output_norm.weight", "output.weight",
	"blk.0.attn_norm.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight",
	"blk.0.attn_v.weight", "blk.0.attn_output.weight", "blk.0.ffn_norm.weight",
	"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight" };
enum { NAMES_N = sizeof(names) / sizeof(names[0]) };

#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
#define REST "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define PRE "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [" \
	"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" WORDS "\\\\p{N}{1,3}" REST "\"}}, " \
	"{\"type\": \"ByteLevel\", \"use_regex\": false}]}"
#define CONFIG "{\"model_type\": \"llama\", \"hidden_size\": 8, \"intermediate_size\": 6, " \
	"\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, " \
	"\"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-05, \"hidden_act\": \"silu\", " \
	"\"eos_token_id\": 1, \"bos_token_id\": [3], \"rope_theta\": 500000.0, " \
	"\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, " \
	"\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, " \
	"\"original_max_position_embeddings\": 8192}}"
#define TOKENIZER "{\"added_tokens\": [{\"id\": 0, \"content\": \"<s>\", \"special\": true}, " \
	"{\"id\": 5, \"content\": \"new\", \"special\": false}], \"normalizer\": null, " PRE ", " \
	"\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": " \
	"{\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}]}, " \
	"\"model\": {\"type\": \"BPE\", \"ignore_merges\": true, \"vocab\": {\"<s>\": 0, " \
	"\"b.c\": 3, \"a\": 1, \"ab\": 4, \"\xc4\xa0\": 2}, " \
	"\"merges\": [\"a b\", [\"a c\", \"d\"]]}}"
#define TOKENIZER_CONFIG "{\"bos_token\": {\"content\": \"<s>\"}, \"chat_template\": \"{{ x }}\"}"


static void put_text(struct simdisk *disk, const char *name, const char *text)
{
	CHECK_INT(simdisk_put(disk, name, text, strlen(text)), 0);
}

/* Puts a model whose weights are BF16: each byte of a tensor is its number, counted from 1.
 * without: the name of a tensor that is left out, or NULL. */
static struct simdisk *model_on_disk(const char *without)
{
	struct shf_buf out = SHF_BUF_INIT, data = SHF_BUF_INIT;
	struct simdisk *disk = disk_new();

	shf_buf_u64(&out, 0);
	for (int i = 0; i < NAMES_N; i++) {
		int items = strstr(names[i], "norm") ? HIDDEN : ROWS * COLUMNS;
		size_t begin = data.len;

		if (without && strcmp(names[i], without) == 0)
			continue;
		for (int k = 0; k < items * 2; k++)
			shf_buf_u8(&data, (uint8_t)(i + 1));
		shf_buf_addf(&out, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":"
		             "[%zu,%zu]}", out.len > 8 ? "," : "{", names[i],
		             items == HIDDEN ? "8" : "8,4", begin, data.len);
	}
	shf_buf_adds(&out, "}");
	shf_put64(out.data, out.len - 8);
	shf_buf_add(&out, data.data, data.len);
	CHECK_INT(simdisk_put(disk, FROM "/model.safetensors", out.data, out.len), 0);
	shf_buf_release(&out);
	shf_buf_release(&data);
	put_text(disk, FROM "/config.json", CONFIG);
	put_text(disk, FROM "/tokenizer.json", TOKENIZER);
	put_text(disk, FROM "/tokenizer_config.json", TOKENIZER_CONFIG);
	return disk;
}

static int run(struct simdisk *disk, struct sheaf_error *err)
{
	static uint64_t pid = 700;
	const struct shf_sys *sys = simdisk_process(disk, pid++, 0);
	const struct shf_export_opts how = { .format = shf_export_format("gguf"), .family = "model",
		.as = "model", .prefix = "", .file_bytes_max = UINT64_C(5000000000),
		.memory_bytes = 1 };
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY, .io_threads = 1 };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, FROM, NULL, &opts, sys, err);

	if (rc == 0)
		rc = shf_step_export(step, TO, &how, NULL, err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return rc;
}

/* ---- what was written ---- */

struct made { char *bytes; size_t n; };         /* bytes: owned */

static struct made made_from(struct simdisk *disk)
{
	struct sheaf_error err;
	struct made m;
	int rc = run(disk, &err);

	CHECK_RC(rc, 0, &err);
	m.bytes = simdisk_get(disk, TO, &m.n);
	CHECK(m.bytes && memcmp(m.bytes, "GGUF\3\0\0", 8) == 0);
	return m;
}

/* Returns where a key or the name of a tensor ends in the file; NULL: it is not there. */
static const uint8_t *behind(const struct made *m, const char *key)
{
	uint8_t want[100];
	size_t n = strlen(key);
	const uint8_t *at;

	shf_put64(want, n);
	memcpy(want + 8, key, n);
	at = memmem(m->bytes, m->n, want, n + 8);
	return at ? at + n + 8 : NULL;
}

/* Checks that the value of a key has this type and these bytes. */
static void has_value(const struct made *m, const char *key, uint32_t type, const void *bytes,
                      size_t n)
{
	const uint8_t *at = behind(m, key);

	CHECK(at != NULL);
	CHECK_INT(shf_get32(at), type);
	CHECK(memcmp(at + 4, bytes, n) == 0);
}

static void has_number(const struct made *m, const char *key, uint32_t type, uint32_t v)
{
	uint8_t bytes[4];

	shf_put32(bytes, v);
	has_value(m, key, type, bytes, 4);
}

/* Checks that a value is an array of these texts. */
static void has_texts(const struct made *m, const char *key, const char *const *texts, uint64_t n)
{
	const uint8_t *at = behind(m, key);

	CHECK(at != NULL);
	CHECK_INT(shf_get32(at), 9);
	CHECK_INT(shf_get32(at + 4), 8);
	CHECK_INT(shf_get64(at + 8), n);
	at += 16;
	for (uint64_t i = 0; i < n; i++) {
		CHECK_INT(shf_get64(at), strlen(texts[i]));
		CHECK(memcmp(at + 8, texts[i], strlen(texts[i])) == 0);
		at += 8 + strlen(texts[i]);
	}
}

/* Checks the type and the first bytes of a tensor; data: where the data begin. */
static void has_tensor(const struct made *m, const char *name, size_t data, uint32_t type,
                       uint64_t row, const void *bytes, size_t n)
{
	const uint8_t *at = behind(m, name);
	uint32_t ndim;

	CHECK(at != NULL);
	ndim = shf_get32(at);
	CHECK_INT(shf_get64(at + 4), row);      /* the dimension that lies in a row comes first */
	at += 4 + 8 * ndim;
	CHECK_INT(shf_get32(at), type);
	CHECK_INT(shf_get64(at + 4) % 32, 0);
	CHECK(memcmp(m->bytes + data + shf_get64(at + 4), bytes, n) == 0);
}

TEST(a_file_has_the_metadata_the_tokens_and_the_tensors)
{
	static const char *const tokens[] = { "<s>", "a", "\xc4\xa0", "b.c", "ab", "new", "[PAD6]",
		"[PAD7]" }, *const merges[] = { "a b", "a\xc4\xa0" "c d" };
	static const uint32_t types[] = { 3, 1, 1, 1, 1, 4, 5, 5 };
	struct simdisk *disk = model_on_disk(NULL);
	struct made m = made_from(disk);
	const size_t data = m.n - 32 - 3 * 32 - 9 * 64;
	const uint8_t *at;
	float factors[2];

	CHECK_INT(shf_get64((uint8_t *)m.bytes + 8), NAMES_N + 1);
	has_value(&m, "general.architecture", 8, "\5\0\0\0\0\0\0\0llama", 13);
	has_number(&m, "llama.block_count", 4, 1);
	has_number(&m, "llama.attention.head_count_kv", 4, 1);
	has_number(&m, "llama.attention.layer_norm_rms_epsilon", 6, 0x3727c5ac);
	has_number(&m, "llama.rope.freq_base", 6, 0x48f42400);
	has_number(&m, "llama.rope.dimension_count", 4, 4);
	has_number(&m, "general.file_type", 4, 32);
	has_value(&m, "tokenizer.ggml.pre", 8, "\x9\0\0\0\0\0\0\0llama-bpe", 17);
	has_texts(&m, "tokenizer.ggml.tokens", tokens, ROWS);
	has_texts(&m, "tokenizer.ggml.merges", merges, 2);
	at = behind(&m, "tokenizer.ggml.token_type");
	for (int i = 0; i < ROWS; i++)
		CHECK_INT(shf_get32(at + 16 + 4 * i), types[i]);
	has_number(&m, "tokenizer.ggml.bos_token_id", 4, 0);
	has_number(&m, "tokenizer.ggml.eos_token_id", 4, 1);
	has_value(&m, "tokenizer.ggml.add_bos_token", 7, "\1", 1);
	has_value(&m, "tokenizer.chat_template", 8, "\7\0\0\0\0\0\0\0{{ x }}", 15);
	has_tensor(&m, "token_embd.weight", data, 30, COLUMNS, "\1\1\1", 3);
	has_tensor(&m, "blk.0.ffn_down.weight", data, 30, COLUMNS, "\xc\xc\xc", 3);
	/* Norms are F32: a BF16 is the upper half of one. */
	has_tensor(&m, "output_norm.weight", data, 0, 8, "\0\0\2\2\0\0\2\2", 8);
	/* 2 * pi * 500000^(i / 2): 6.3 is a high frequency, and 4442.9 is between both. */
	memcpy(factors, m.bytes + data, 8);
	has_tensor(&m, "rope_freqs.weight", data, 0, 2, factors, 8);
	CHECK(factors[0] == 1);
	CHECK(factors[1] > 2.69f && factors[1] < 2.7f);
	free(m.bytes);
	simdisk_free(disk);
}

/* ---- models of SentencePiece ---- */

static void put_piece(struct shf_buf *out, const char *text, float score, int type)
{
	shf_buf_u8(out, 1 << 3 | 2);
	shf_buf_u8(out, (uint8_t)(2 + strlen(text) + 5 + (type ? 2 : 0)));
	shf_buf_u8(out, 1 << 3 | 2);
	shf_buf_u8(out, (uint8_t)strlen(text));
	shf_buf_adds(out, text);
	shf_buf_u8(out, 2 << 3 | 5);
	shf_buf_add(out, &score, 4);
	if (type) {
		shf_buf_u8(out, 3 << 3);
		shf_buf_u8(out, (uint8_t)type);
	}
}

/* A model of SentencePiece of three tokens. kind: 2 is BPE. */
static struct shf_buf sentences(int kind)
{
	struct shf_buf out = SHF_BUF_INIT;

	put_piece(&out, "<unk>", 0, 2);
	put_piece(&out, "\xe2\x96\x81" "a", -1.5f, 0);
	put_piece(&out, "<0x0A>", -2, 6);
	shf_buf_add(&out, "\x12\x02\x18", 3);
	shf_buf_u8(&out, (uint8_t)kind);
	return out;
}

static void put_sentences(struct simdisk *disk, int kind)
{
	struct shf_buf spm = sentences(kind);

	CHECK_INT(simdisk_put(disk, FROM "/tokenizer.model", spm.data, spm.len), 0);
	CHECK_INT(simdisk_remove(disk, FROM "/tokenizer.json"), 0);
	put_text(disk, FROM "/tokenizer_config.json", "{\"add_bos_token\": true, "
	         "\"added_tokens_decoder\": {\"0\": {\"content\": \"<unk>\", \"special\": true}, "
	         "\"4\": {\"content\": \"x\xe2\x96\x81y\", \"special\": false}, "
	         "\"5\": {\"content\": \"<|z|>\", \"special\": false}}}");
	put_text(disk, FROM "/added_tokens.json", "{\"p.q\": 3}");
	shf_buf_release(&spm);
}

TEST(a_model_of_sentencepiece_has_scores_and_types)
{
	static const char *const tokens[] = { "<unk>", ("\xe2\x96\x81" "a"), "<0x0A>", "p.q", "x y",
		"<|z|>", "[PAD6]", "[PAD7]" };
	static const uint32_t types[] = { 3, 1, 6, 4, 4, 3, 5, 5 };
	static const float scores[] = { -1000, -1.5f, -2, -1000, -1000, -1000, -10000, -10000 };
	struct simdisk *disk = model_on_disk(NULL);
	const uint8_t *at;
	struct made m;
	float score;

	put_sentences(disk, 2);
	m = made_from(disk);
	has_value(&m, "tokenizer.ggml.model", 8, "\5\0\0\0\0\0\0\0llama", 13);
	has_texts(&m, "tokenizer.ggml.tokens", tokens, ROWS);
	CHECK(behind(&m, "tokenizer.ggml.merges") == NULL);
	has_value(&m, "tokenizer.ggml.add_bos_token", 7, "\1", 1);
	at = behind(&m, "tokenizer.ggml.token_type");
	for (int i = 0; i < ROWS; i++)
		CHECK_INT(shf_get32(at + 16 + 4 * i), types[i]);
	at = behind(&m, "tokenizer.ggml.scores");
	for (int i = 0; i < ROWS; i++) {
		memcpy(&score, at + 16 + 4 * i, 4);
		CHECK(score == scores[i]);
	}
	free(m.bytes);
	simdisk_free(disk);
}

/* ---- what is refused ---- */

/* Puts a file with one text in it replaced. */
static void put_edited(struct simdisk *disk, const char *file, const char *text, const char *find,
                       const char *put)
{
	const char *at = strstr(text, find);
	struct shf_buf out = SHF_BUF_INIT;
	char path[60];

	CHECK(at != NULL);
	snprintf(path, sizeof(path), FROM "/%s", file);
	shf_buf_add(&out, text, (size_t)(at - text));
	shf_buf_adds(&out, put);
	shf_buf_adds(&out, at + strlen(find));
	CHECK_INT(simdisk_put(disk, path, out.data, out.len), 0);
	shf_buf_release(&out);
}

static void refuses(struct simdisk *disk, int code, const char *says)
{
	struct sheaf_error err;
	int rc = run(disk, &err);

	if (rc != code || !strstr(err.msg, says))
		fail_msg("want %d '%s', got %d: %s", code, says, rc, rc ? err.msg : "");
	CHECK(!simdisk_exists(disk, TO));
	CHECK(!simdisk_exists(disk, TO ".partial"));
	simdisk_free(disk);
}

TEST(a_config_that_cannot_be_written_is_refused_with_the_reason)
{
	static const struct { const char *find, *put, *says; int code; } edits[] = {
		{ "\"llama\"", "\"gemma\"", "says model_type gemma, which cannot be written", 0 },
		{ "\"model_type\": \"llama\", ", "", "says model_type (none)", 0 },
		{ "silu", "gelu", "has the activation gelu", 0 },
		{ "\"hidden_size\": 8, ", "", "has no number hidden_size", 0 },
		{ "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 0", "is out of range", 0 },
		{ "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 1.5", "is 1.5, which is", 0 },
		{ "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 1e300",
		  "num_key_value_heads is 1e300, which is out of range", 0 },
		{ "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2",
		  "there is no tensor blk.1.attn_norm.weight", 0 },
		{ "\"llama3\"", "\"dynamic\"", "has RoPE of type dynamic", 0 },
		{ "\"factor\": 8.0, ", "", "has RoPE without its factor", 0 },
		{ ", \"original_max_position_embeddings\": 8192", "",
		  "has RoPE without original_max_position_embeddings", 0 },
		{ "{", "{\"use_sliding_window\": true, ", "has use_sliding_window", 0 },
		{ "{", "{\"partial_rotary_factor\": 0.5, ", "has partial_rotary_factor", 0 },
		{ "{", "{\"quantization_config\": {\"quant_method\": \"fp8\"}, ",
		  "has quantization_config", 0 },
		{ "}}", "", "config.json: is not JSON", SHEAF_EFORMAT },
		{ CONFIG, "[]", "config.json: is not a JSON object", SHEAF_EFORMAT },
	};

	for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
		struct simdisk *disk = model_on_disk(NULL);

		put_edited(disk, "config.json", CONFIG, edits[i].find, edits[i].put);
		refuses(disk, edits[i].code ? edits[i].code : SHEAF_EINVAL, edits[i].says);
	}
}

TEST(a_tokenizer_that_cannot_be_written_is_refused_with_the_reason)
{
	static const struct { const char *find, *put, *says; int code; } edits[] = {
		{ "\"BPE\"", "\"Unigram\"", "is of type Unigram", 0 },
		{ "\"a\": 1", "\"a\": {\"b\": 1}", "its vocabulary is not one of BPE", 0 },
		{ "\"a\": 1", "\"a\": -1", "its vocabulary is not one of BPE", 0 },
		{ "\"a\": 1", "\"a\": 8", "has token 8, and the embedding 8 rows", 0 },
		{ "\"ignore_merges\": true", "\"ignore_merges\": false",
		  "its pre_tokenizer is not known", 0 },
		{ "{1,3}", "{1,4}", "its pre_tokenizer is not known", 0 },
		{ "\"ByteLevel\"", "\"Metaspace\"", "its pre_tokenizer is not known", 0 },
		{ "\"use_regex\": false", "\"use_regex\": true",
		  "its pre_tokenizer is not known", 0 },
		{ "\"ignore_merges\"", "\"byte_fallback\": true, \"ignore_merges\"",
		  "put the file tokenizer.model", 0 },
		{ "[\"a c\", \"d\"]", "[\"a\", \"b\", \"c\"]", "is not a pair of texts",
		  SHEAF_EFORMAT },
		{ "[\"a c\", \"d\"]", "7", "is not a pair of texts", SHEAF_EFORMAT },
		{ "[\"a c\", \"d\"]", "[\"a\"]", "its last merge is not a pair", SHEAF_EFORMAT },
		{ "\"a b\", [\"a c\"", "[\"a\"], [\"a c\"",
		  "merges.1.0 is not a pair", SHEAF_EFORMAT },
		{ "[\"a c\", \"d\"]", "[[], \"d\"]", "merges.1.1 is not a pair", SHEAF_EFORMAT },
		{ "{\"added_tokens\": [", "{\"added_tokens\": [{}, ",
		  "added_tokens.1.id is not a value of an added token", SHEAF_EFORMAT },
		{ "\"id\": 5, ", "", "an added token has no number", SHEAF_EFORMAT },
		{ "\"id\": 5, ", "\"id\": \"x\", ", "x is not a token's number", SHEAF_EFORMAT },
		{ "}}", "}", "tokenizer.json: is not JSON", SHEAF_EFORMAT },
	};

	for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
		struct simdisk *disk = model_on_disk(NULL);

		put_edited(disk, "tokenizer.json", TOKENIZER, edits[i].find, edits[i].put);
		refuses(disk, edits[i].code ? edits[i].code : SHEAF_EINVAL, edits[i].says);
	}
}

TEST(what_is_missing_is_named)
{
	struct simdisk *disk = model_on_disk(NULL);

	CHECK_INT(simdisk_remove(disk, FROM "/config.json"), 0);
	refuses(disk, SHEAF_EINVAL, "m: has no config.json");
	disk = model_on_disk(NULL);
	CHECK_INT(simdisk_remove(disk, FROM "/tokenizer.json"), 0);
	refuses(disk, SHEAF_EINVAL, "has neither tokenizer.json nor tokenizer.model");
	for (int i = 0; i < NAMES_N; i++) {
		char says[60];

		snprintf(says, sizeof(says), "there is no tensor %s", names[i]);
		refuses(model_on_disk(names[i]), SHEAF_EINVAL, says);
	}
	disk = model_on_disk("output.weight");
	put_edited(disk, "config.json", CONFIG, "{", "{\"tie_word_embeddings\": true, ");
	free(made_from(disk).bytes);
	simdisk_free(disk);
	disk = model_on_disk(NULL);
	put_sentences(disk, 1);
	refuses(disk, SHEAF_EINVAL, "is a model of SentencePiece that is not BPE");
}

/* Cuts a file at each length: the export has one sentence, or what is left is enough. */
static void cut(const char *name, const char *bytes, size_t n, bool spm)
{
	for (size_t k = (size_t)t_from(T_STRIDE); k < n; k += (size_t)T_STRIDE) {
		struct simdisk *disk = model_on_disk(NULL);
		struct sheaf_error err = { .msg = "" };
		int rc;

		if (spm)
			put_sentences(disk, 2);
		CHECK_INT(simdisk_put(disk, name, bytes, k), 0);
		rc = run(disk, &err);
		CHECK(rc == 0 ? spm : rc == SHEAF_EFORMAT || rc == SHEAF_EINVAL);
		CHECK(rc == 0 || (err.msg[0] && !simdisk_exists(disk, TO)));
		simdisk_free(disk);
	}
}

TEST(files_that_are_cut_short_are_refused)
{
	struct shf_buf spm = sentences(2);

	cut(FROM "/config.json", CONFIG, strlen(CONFIG), false);
	cut(FROM "/tokenizer.json", TOKENIZER, strlen(TOKENIZER), false);
	cut(FROM "/tokenizer.model", (const char *)spm.data, spm.len, true);
	shf_buf_release(&spm);
}

TEST(each_allocation_may_fail)
{
	for (int spm = 0; spm < 2; spm++)
		for (long nth = 1 + t_from(T_STRIDE);; nth += T_STRIDE) {
			struct simdisk *disk = model_on_disk(NULL);
			struct sheaf_error err;
			int rc;

			if (spm)
				put_sentences(disk, 2);
			starved = false;
			starve_left = nth;
			rc = run(disk, &err);
			starve_left = 0;
			CHECK(rc == 0 || rc == SHEAF_ENOMEM);
			CHECK(rc == 0 || !simdisk_exists(disk, TO));
			rc = rc == 0 ? rc : run(disk, &err);
			CHECK_RC(rc, 0, &err);
			simdisk_free(disk);
			if (!starved)
				break;
		}
}
