/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf show --hf: reports what a Hugging Face loader would miss, before someone tries on a
 * cluster. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include "sheaf-inspect.h"
#include "workload.h"

#define CONFIG_MAX (1u << 20)           /* parsed, it takes some twenty times as much memory */

struct hf {
	const struct cli_args *a;
	struct sheaf_checkpoint *step;
	const char *dir;
	json_t *config;                 /* owned; NULL: none */
	uint64_t missing, notes;
};

/* Reports something missing. must: loaders fail without it. Otherwise they work, but with a visible
 * effect. */
static void say(struct hf *h, bool must, const char *what, const char *name, const char *why)
{
	if (must)
		h->missing++;
	else
		h->notes++;
	if (h->a->json) {
		cli_line(json_pack("{s:s,s:o,s:b,s:o}", "missing", what, "name", cli_str(name),
				   "needed", (int)must, "message", cli_str(why)));
		return;
	}
	printf("%s: ", must ? what : "note");
	if (name) {
		cli_put(stdout, name);
		fputs(": ", stdout);
	}
	cli_put(stdout, why);
	putchar('\n');
}

/* --- files -------------------------------------------------------------------------------- */

static bool attached(const struct hf *h, const char *want)
{
	const char *file;
	uint64_t bytes;

	for (size_t i = 0; sheaf_checkpoint_file_at(h->step, i, &file, &bytes, NULL) == 0; i++)
		if (strcmp(file, want) == 0)
			return true;
	return false;
}

/* Returns the known class that is `arch` without a suffix, as Qwen2ForCausalLM for Paddle's
 * Qwen2ForCausalLMPipe, or NULL. */
static const char *longer_name(const char *arch)
{
	static const char *const known[] = { "Qwen2ForCausalLM", "Qwen2MoeForCausalLM",
		"LlamaForCausalLM" };

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		size_t n = strlen(known[i]);

		if (strncmp(arch, known[i], n) == 0 && arch[n])
			return known[i];
	}
	return NULL;
}

static void check_config(struct hf *h)
{
	const void *bytes;
	json_t *arch;
	size_t n;

	if (!attached(h, "config.json")) {
		say(h, true, "config", "config.json", "missing, so no loader knows the "
		    "architecture; attach it to the saves (sheaf_save_attach, in Python files=)");
		return;
	}
	if (sheaf_checkpoint_file(h->step, "config.json", &bytes, &n, NULL) == 0 && n <= CONFIG_MAX)
		h->config = json_loadb(bytes, n, 0, NULL);
	if (!json_is_object(h->config)) {
		say(h, true, "config", "config.json", "this is not a JSON object of up to 1 MiB, "
		    "or it is damaged");
		return;
	}
	arch = json_array_get(json_object_get(h->config, "architectures"), 0);
	if (!json_is_string(arch))
		say(h, true, "config", "config.json", "it has no \"architectures\"");
	else if (longer_name(json_string_value(arch)))
		say(h, true, "config", "config.json", "its \"architectures\" has a class of a "
		    "pipeline or helper, which vLLM does not know; sheaf convert writes the plain "
		    "class");
	if (!json_is_string(json_object_get(h->config, "model_type")))
		say(h, true, "config", "config.json", "it has no \"model_type\"");
}

/* Returns whether there is an index that names other files, but not model.safetensors. */
static bool index_is_of_others(const struct hf *h)
{
	json_t *index, *file;
	const char *name;
	bool others;
	char *path;

	if (asprintf(&path, "%s/model.safetensors.index.json", h->dir) < 0)
		return false;
	index = json_load_file(path, 0, NULL);
	free(path);
	others = json_object_size(json_object_get(index, "weight_map")) > 0;
	json_object_foreach(json_object_get(index, "weight_map"), name, file)
		others &= !json_is_string(file) ||
		          strcmp(json_string_value(file), "model.safetensors") != 0;
	json_decref(index);
	return others;
}

static void check_index(struct hf *h)
{
	struct sheaf_tensor t = { .size = sizeof(t) };
	const char *first = NULL;
	bool many = false;

	for (size_t i = 0; sheaf_checkpoint_tensor(h->step, i, &t, NULL) == 0; i++) {
		if (strcmp(t.family, "model") != 0 || !t.file)
			continue;
		if (!first)
			first = t.file;
		many |= strcmp(first, t.file) != 0;
	}
	if (first && (many || strcmp(first, "model.safetensors") != 0) &&
	    cli_has(h->dir, "model.safetensors"))
		say(h, true, "index", "model.safetensors",
		    "it lies beside the files that the index names, and transformers reads it "
		    "alone; remove what is old");
	if (first && !many && strcmp(first, "model.safetensors") == 0 && index_is_of_others(h))
		say(h, true, "index", "model.safetensors.index.json",
		    "it names other files, but transformers reads model.safetensors alone; remove "
		    "what is old");
	if (cli_has(h->dir, "model.safetensors.index.json"))
		return;
	if (many)
		say(h, true, "index", "model.safetensors.index.json",
		    "missing, and the model is in several files");
	else if (first && strcmp(first, "model.safetensors") != 0)
		say(h, true, "index", "model.safetensors.index.json",
		    "missing, and the only file is not named model.safetensors");
}

static void check_tokenizer(struct hf *h)
{
	static const char *const any[] = { "tokenizer.json", "tokenizer.model", "vocab.json",
					   "vocab.txt", "spiece.model" };

	for (size_t i = 0; i < sizeof(any) / sizeof(any[0]); i++)
		if (attached(h, any[i]))
			return;
	say(h, false, "tokenizer", NULL, "no tokenizer is attached, so a loader can read weights, "
	    "but no text");
}

/* --- names -------------------------------------------------------------------------------- */

static int64_t get(const struct hf *h, const char *key, int64_t none)
{
	json_t *v = json_object_get(h->config, key);

	return json_is_integer(v) && json_integer_value(v) >= 0 ? json_integer_value(v) : none;
}

/* Sets the shapes that a Qwen2, Qwen2-MoE or Llama config requires. Returns false for other
 * architectures. */
static bool shape_of(const struct hf *h, const char *arch, struct wl_shape *s)
{
	bool moe = strcmp(arch, "Qwen2MoeForCausalLM") == 0;
	bool qwen = moe || strcmp(arch, "Qwen2ForCausalLM") == 0;

	if (!qwen && strcmp(arch, "LlamaForCausalLM") != 0)
		return false;
	*s = (struct wl_shape){
		.vocab = get(h, "vocab_size", -1), .hidden = get(h, "hidden_size", -1),
		.layers = get(h, "num_hidden_layers", -1),
		.heads = get(h, "num_attention_heads", -1),
		.inner = get(h, "intermediate_size", -1),
		.tied = json_is_true(json_object_get(h->config, "tie_word_embeddings")),
		.qkv_bias = qwen || json_is_true(json_object_get(h->config, "attention_bias")),
	};
	s->kv_heads = get(h, "num_key_value_heads", s->heads);
	if (s->heads > 0)
		s->head = get(h, "head_dim", s->hidden / s->heads);
	if (moe) {
		s->experts = get(h, "num_experts", 0);
		s->expert_inner = get(h, "moe_intermediate_size", -1);
		s->shared_inner = get(h, "shared_expert_intermediate_size", 0);
	}
	return true;
}

static bool is_size(int64_t v, int64_t least)
{
	return v >= least && v < (1 << 24);
}

static bool is_plausible(const struct wl_shape *s)
{
	return is_size(s->vocab, 0) && is_size(s->hidden, 0) && is_size(s->inner, 0) &&
	       is_size(s->heads, 1) && is_size(s->kv_heads, 1) && is_size(s->head, 1) &&
	       is_size(s->expert_inner, 0) && is_size(s->shared_inner, 0) && s->layers >= 0 &&
	       s->layers < 4096 && s->experts < 4096;
}

/* Returns whether some layers are dense, by a list or a stride, in a mixture of experts: these are
 * not checked. */
static bool is_mixed(const struct hf *h)
{
	return get(h, "decoder_sparse_step", 1) != 1 ||
	       json_array_size(json_object_get(h->config, "mlp_only_layers")) > 0;
}

static void check_expected(struct hf *h, const struct wl_shape *s)
{
	struct wl_model m = { 0 };
	char why[200];

	if (wl_model_hf(&m, s, NULL) < 0)
		say(h, false, "names", NULL, "the names could not be checked: no memory");
	for (size_t i = 0; i < m.n; i++) {
		const struct wl_tensor *want = &m.t[i];
		struct sheaf_tensor t = { .size = sizeof(t) };

		if (sheaf_checkpoint_find(h->step, "model", want->name, &t, NULL) < 0) {
			say(h, true, "tensor", want->name, "missing");
		} else if (t.ndim != want->ndim ||
			   memcmp(t.shape, want->shape, sizeof(int64_t) * (size_t)t.ndim) != 0) {
			snprintf(why, sizeof(why), "its shape is not the one that config.json "
			         "asks for: %lld%s%.0lld", (long long)want->shape[0],
			         want->ndim > 1 ? " x " : "",
			         (long long)(want->ndim > 1 ? want->shape[1] : 0));
			say(h, true, "tensor", want->name, why);
		}
	}
	wl_model_release(&m);
}

static void check_names(struct hf *h)
{
	json_t *archs = json_object_get(h->config, "architectures");
	const char *arch = json_string_value(json_array_get(archs, 0));
	struct sheaf_tensor t = { .size = sizeof(t) };
	struct wl_shape s;
	char why[200];
	size_t n = 0;

	for (size_t i = 0; sheaf_checkpoint_tensor(h->step, i, &t, NULL) == 0; i++)
		n += strcmp(t.family, "model") == 0;
	if (n == 0)
		say(h, true, "family", "model", "it has no tensor");
	if (!arch || n == 0)
		return;
	arch = longer_name(arch) ? longer_name(arch) : arch;
	if (!shape_of(h, arch, &s)) {
		snprintf(why, sizeof(why), "the tensor names of architecture %.100s are not known "
			 "to sheaf and were not checked", arch);
		say(h, false, "names", NULL, why);
	} else if (!is_plausible(&s)) {
		say(h, true, "config", "config.json", "lacks a size that the architecture needs");
	} else if (is_mixed(h)) {
		say(h, false, "names", NULL, "its layers are of several kinds, so names were not "
		    "checked");
	} else {
		check_expected(h, &s);
	}
}

int cli_show_hf(const struct cli_args *a, struct cli_step *s)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	struct hf h = { .a = a, .step = s->step };
	int rc = sheaf_checkpoint_get_info(s->step, &info, NULL);

	if (rc < 0)
		return cli_error(a, rc, a->pos[0], "", NULL);
	if (strcmp(info.format, "safetensors") == 0) {
		say(&h, true, "config", "config.json", "missing: a single file is not a model "
		    "directory");
	} else {
		h.dir = info.path;
		check_config(&h);
		check_index(&h);
		check_tokenizer(&h);
	}
	check_names(&h);
	json_decref(h.config);
	if (a->json)
		cli_line(json_pack("{s:s,s:I,s:I}", "result", h.missing ? "missing" : "complete",
				   "missing", (json_int_t)h.missing, "notes", (json_int_t)h.notes));
	else if (!h.missing)
		puts("a Hugging Face loader finds all it needs");
	return h.missing ? 1 : 0;
}
