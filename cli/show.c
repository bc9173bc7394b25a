/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf show: prints what is in a step. */
#include "cli.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "sheaf-inspect.h"
#include "workload.h"

/* Returns whether a tensor is in the family that was asked for, and its name matches a pattern
 * after PATH. Without patterns, every name does. */
static bool wanted(const struct cli_args *a, const struct sheaf_tensor *t, bool *hit)
{
	const char *family = cli_value(a, "family");
	bool any = a->pos_n < 2;

	if (family && strcmp(family, t->family) != 0)
		return false;
	for (int i = 1; i < a->pos_n; i++) {
		if (strcmp(a->pos[i], t->name) == 0 || fnmatch(a->pos[i], t->name, 0) == 0) {
			hit[i] = true;
			any = true;
		}
	}
	return any;
}

static json_t *tensor_json(const struct sheaf_tensor *t)
{
	char digest[17];
	json_t *v;

	snprintf(digest, sizeof(digest), "%016" PRIx64, t->digest);
	v = json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:I,s:o}", "family", cli_str(t->family), "name",
		      cli_str(t->name), "dtype", cli_str(sheaf_dtype_name(t->dtype)), "shape",
		      cli_shape_json(t->ndim, cli_dims(t)), "file", cli_str(t->file), "offset",
		      t->offset == UINT64_MAX ? json_null() : json_integer((json_int_t)t->offset),
		      "bytes", (json_int_t)t->bytes, "digest",
		      t->verified ? json_string(digest) : json_null());
	if (v && t->tied_to)
		json_object_set_new(v, "tied_to", cli_str(t->tied_to));
	return v;
}

static void tensor_line(const struct sheaf_tensor *t)
{
	char size[32];
	const char *dtype = sheaf_dtype_name(t->dtype);

	printf("  %-8s %10s  ", dtype ? dtype : "?", wl_size(size, t->bytes));
	cli_put(stdout, t->name);
	putchar(' ');
	cli_shape(stdout, t->ndim, cli_dims(t));
	if (t->tied_to) {
		fputs(" tied to ", stdout);
		cli_put(stdout, t->tied_to);
	}
	putchar('\n');
}

/* --- the header --------------------------------------------------------------------------- */

static json_t *notes_json(struct sheaf_checkpoint *step)
{
	json_t *v = json_object();
	const char *key, *value;

	for (size_t i = 0; sheaf_checkpoint_note_at(step, i, &key, &value, NULL) == 0; i++)
		/* An empty note is "", not null. */
		json_object_set_new(v, key, *value ? cli_str(value) : json_string(""));
	return v;
}

static json_t *attached_json(struct sheaf_checkpoint *step)
{
	json_t *v = json_array();
	const char *file;
	uint64_t bytes;

	for (size_t i = 0; sheaf_checkpoint_file_at(step, i, &file, &bytes, NULL) == 0; i++)
		json_array_append_new(v, cli_str(file));
	return v;
}

#define FAMILIES_MAX 256

struct families {
	struct {
		const char *name;
		uint64_t tensors, bytes;
	} f[FAMILIES_MAX];
	size_t n;
};

/* Tensors are sorted by family, so a name other than the last is a new family. */
static void families_count(struct families *fs, struct sheaf_checkpoint *step)
{
	struct sheaf_tensor t = { .size = sizeof(t) };

	fs->n = 0;
	for (size_t i = 0; sheaf_checkpoint_tensor(step, i, &t, NULL) == 0; i++) {
		if (fs->n == 0 || strcmp(fs->f[fs->n - 1].name, t.family) != 0) {
			if (fs->n == FAMILIES_MAX)
				return;
			fs->f[fs->n].name = t.family;
			fs->f[fs->n].tensors = fs->f[fs->n].bytes = 0;
			fs->n++;
		}
		fs->f[fs->n - 1].tensors++;
		fs->f[fs->n - 1].bytes += t.tied_to ? 0 : t.bytes;
	}
}

static json_t *averages_json(struct sheaf_checkpoint *step)
{
	struct sheaf_ema_info e = { .size = sizeof(e) };
	json_t *all = json_array();

	for (size_t i = 0; sheaf_checkpoint_ema_at(step, i, &e, NULL) == 0; i++, e.size = sizeof(e))
		json_array_append_new(all, json_pack("{s:s,s:o,s:f,s:I,s:I}", "family", e.name,
			"of", e.of ? cli_str(e.of) : json_null(), "coef", e.coef, "interval",
			(json_int_t)e.interval, "updates", (json_int_t)e.updates));
	return all;
}

static void head_json(struct sheaf_checkpoint *step, const struct sheaf_checkpoint_info *info)
{
	struct families fs;
	json_t *names = json_array(), *head;

	families_count(&fs, step);
	for (size_t i = 0; i < fs.n; i++)
		json_array_append_new(names, cli_str(fs.f[i].name));
	head = json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:i,s:I,s:o}", "format",
			 info->format, "step", cli_num(info->step), "session",
			 cli_str(info->session), "parent", cli_num(info->parent), "created",
			 cli_str(info->created), "writer", cli_str(info->writer), "commit",
			 cli_str(info->commit), "compiler", cli_str(info->compiler), "families",
			 names, "ranks", (int)info->ranks, "bytes", (json_int_t)info->bytes,
			 "notes", notes_json(step));
	json_object_set_new(head, "evidence", cli_str(info->evidence));
	json_object_set_new(head, "attached", attached_json(step));
	json_object_set_new(head, "averages", averages_json(step));
	cli_open(head); /* the tensors follow one by one, because they may be many */
}

static void head_line(const char *key, const char *value)
{
	if (!value || !*value)
		return;
	printf("%-10s ", key);
	cli_put(stdout, value);
	putchar('\n');
}

static void head_lists(struct sheaf_checkpoint *step)
{
	const char *key, *value;
	struct families fs;
	uint64_t bytes;
	char size[32];

	families_count(&fs, step);
	for (size_t i = 0; i < fs.n; i++) {
		fputs("  family   ", stdout);
		cli_put(stdout, fs.f[i].name);
		printf(": %llu tensor%s, %s\n", (unsigned long long)fs.f[i].tensors,
		       fs.f[i].tensors == 1 ? "" : "s", wl_size(size, fs.f[i].bytes));
	}
	for (size_t i = 0; sheaf_checkpoint_note_at(step, i, &key, &value, NULL) == 0; i++) {
		fputs("  note     ", stdout);
		cli_put(stdout, key);
		fputs(" = ", stdout);
		cli_put(stdout, value);
		putchar('\n');
	}
	for (size_t i = 0; sheaf_checkpoint_file_at(step, i, &key, &bytes, NULL) == 0; i++) {
		fputs("  file     ", stdout);
		cli_put(stdout, key);
		printf(", %s\n", wl_size(size, bytes));
	}
}

static void head_averages(struct sheaf_checkpoint *step)
{
	struct sheaf_ema_info e = { .size = sizeof(e) };

	for (size_t i = 0; sheaf_checkpoint_ema_at(step, i, &e, NULL) == 0; i++, e.size = sizeof(e))
		printf("%-10s %s of %s: %lld updates, coefficient %.12g, every %lld step%s\n",
		       i ? "" : "averages", e.name, e.of ? e.of : "the weights",
		       (long long)e.updates, e.coef, (long long)e.interval,
		       e.interval == 1 ? "" : "s");
}

static void head_text(struct sheaf_checkpoint *step, const struct sheaf_checkpoint_info *info)
{
	char size[32];

	head_line("path", info->path);
	if (strcmp(info->format, "sheaf") == 0)
		head_line("format", info->format);
	else
		printf("%-10s %s (%s)\n", "format", info->format, info->evidence);
	if (info->step >= 0)
		printf("%-10s %lld\n", "step", (long long)info->step);
	if (info->parent >= 0)
		printf("%-10s %lld\n", "parent", (long long)info->parent);
	head_line("session", info->session);
	head_line("created", info->created);
	head_line("writer", info->writer);
	if (info->ranks > 0)
		printf("%-10s %d\n", "ranks", (int)info->ranks);
	printf("%-10s %s in %llu file%s\n", "tensors", wl_size(size, info->bytes),
	       (unsigned long long)info->files, info->files == 1 ? "" : "s");
	head_averages(step);
	head_lists(step);
}

/* --- the verb ----------------------------------------------------------------------------- */

static bool tensors(const struct cli_args *a, struct sheaf_checkpoint *step, bool *hit)
{
	struct sheaf_tensor t = { .size = sizeof(t) };
	const char *family = NULL;
	bool any = false;

	for (size_t i = 0; sheaf_checkpoint_tensor(step, i, &t, NULL) == 0; i++) {
		if (!wanted(a, &t, hit))
			continue;
		if (a->json) {
			if (any)
				putchar(',');
			cli_part(tensor_json(&t));
		} else {
			if (!family || strcmp(family, t.family) != 0) {
				cli_put(stdout, t.family);
				puts(":");
			}
			family = t.family;
			tensor_line(&t);
		}
		any = true;
	}
	return any;
}

static int show(const struct cli_args *a, struct sheaf_checkpoint *step)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	bool hit[CLI_POS_MAX] = { false }, any;
	int rc = sheaf_checkpoint_get_info(step, &info, NULL);

	if (rc < 0)
		return cli_error(a, rc, a->pos[0], "", NULL);
	if (a->json) {
		head_json(step, &info);
		fputs(",\"tensors\":[", stdout);
		any = tensors(a, step, hit);
		puts("]}");
	} else {
		head_text(step, &info);
		any = tensors(a, step, hit);
	}
	for (int i = 1; i < a->pos_n; i++)
		if (!hit[i])
			return cli_error(a, SHEAF_ELAYOUT, a->pos[i], "no such tensor", NULL);
	if (!any && cli_value(a, "family"))
		return cli_error(a, SHEAF_ELAYOUT, cli_value(a, "family"), "no such family", NULL);
	return 0;
}

static int run(const struct cli_args *a)
{
	struct cli_step s;
	int rc;

	if (cli_flag(a, "hf") && cli_value(a, "map"))
		return cli_usage(a, "--hf", "does not go with --map",
		                 "sheaf convert --map makes a directory to look at");
	rc = cli_step_open(&s, a, a->pos[0], false);

	if (rc)
		return rc;
	rc = cli_step_map(&s, a, cli_value(a, "family"));
	if (rc == 0)
		rc = cli_flag(a, "hf") ? cli_show_hf(a, &s) : show(a, s.step);
	cli_step_close(&s);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "family", "F", "only the tensors of this family" },
	{ "map", "MAP", "map names and shapes: a file, or a map that comes with sheaf" },
	{ "to", "SIDE", "the side of the map that is made (the right one)" },
	{ "set", "NAME=N,...", "numbers for the map, such as tp=2" },
	{ "config", "FILE", "the config.json for the map (that of PATH)" },
	{ "hf", NULL, "say what a Hugging Face loader would miss, and nothing else" },
	{ 0 },
};
const struct cli_verb cli_show = {
	.name = "show",
	.brief = "what a step holds",
	.synopsis = "sheaf show PATH [NAME...] [--family F] [--hf] [--json]\n"
		    "           [--map MAP [--to SIDE] [--set NAME=N,...] [--config FILE]]",
	.text = "Prints where a step comes from, its families, notes and attached files, and\n"
		"its tensors with dtype, shape and size. NAMEs restrict the list; they may be\n"
		"patterns as a shell knows them. A run alone is its latest step. No tensor is\n"
		"read. With --map the tensors are those that the map makes (doc/mapping.md).\n\n"
		"With --json it is one object: format (sheaf, hf, safetensors, torch.save,\n"
		"torch.save (legacy), torch.save (hf), torch.dcp, torch.dcp (safetensors),\n"
		"torch.checkpointing, paddle.save, paddle.unified, paddle.sharding_io,\n"
		"paddle.flex, deepspeed, megatron.torch_dist, megatron.torch, hf.trainer,\n"
		"lightning, orbax, zarr, npy, npz, gguf), evidence (what that was recognised by),\n"
		"step, families, notes, attached, averages [family, of, coef, interval,\n"
		"updates],\n"
		"tensors [family, name, dtype, shape, file, offset, bytes, digest].\n\n"
		"--hf names what transformers or vLLM would stumble over: config.json and\n"
		"what it must say, tensors that the architecture wants and that are absent or\n"
		"of another shape, the index, a tokenizer.",
	.exits = "  0  shown; with --hf: nothing is missing\n  1  no tensor of that name, damaged, "
		 "or no checkpoint; with --hf: something is\n     missing\n  2  no such step, or "
		 "it could not be read",
	.examples = "  sheaf show runs/gpt@latest 'model.layers.0.*'\n"
		    "  sheaf show runs/gpt@1000 --hf\n"
		    "  sheaf show megatron/iter_0000100 --map qwen2-hf-megatron --to hf",
	.opts = opts,
	.pos_min = 1,
	.pos_max = CLI_POS_MAX,
	.pos_names = "PATH",
	.run = run,
};
