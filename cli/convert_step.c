/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf convert and sheaf export: write any checkpoint in a format of other software. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "sheaf-admin.h"
#include "workload.h"

static bool is_to_hf(const struct cli_args *a)
{
	const char *format = cli_value(a, "format");

	return !format || strcmp(format, "hf") == 0;
}

/* Returns whether DST is a directory whose readers need a config.json. */
static bool is_to_model(const struct cli_args *a)
{
	return is_to_hf(a) || cli_is_for_paddle(cli_value(a, "format"));
}

static int answer(const struct cli_args *a, const char *dst, const struct sheaf_report *r,
                  double seconds)
{
	char size[32];

	if (a->json)
		cli_line(json_pack("{s:o,s:I,s:I,s:I,s:I,s:f}", "to", cli_str(dst), "files",
		                   (json_int_t)r->files, "tensors", (json_int_t)r->loaded,
		                   "bytes", (json_int_t)r->bytes, "written", (json_int_t)r->held,
		                   "seconds", seconds));
	else if (isatty(STDOUT_FILENO))
		printf("%llu tensors, %s, in %llu files; read back and found equal\n",
		       (unsigned long long)r->loaded, wl_size(size, r->bytes),
		       (unsigned long long)r->files);
	/* Without a configuration transformers cannot know which model this is. */
	if (is_to_model(a) && !cli_has(dst, "config.json") &&
	    !cli_has(dst, "adapter_config.json")) {
		cli_say_of(dst);
		fputs("has no config.json, because none lies beside the source; transformers needs "
		      "one\n", stderr);
	}
	return 0;
}

/* Says how many tensors were not written because the format has their value elsewhere. */
static void say_steps(const char *dst, const struct sheaf_report *r)
{
	if (!r->ignored)
		return;
	cli_say_of(dst);
	fprintf(stderr, "numbers of updates of single parameters (<parameter>/step) that were not "
	        "copied: %llu; it has one for all\n", (unsigned long long)r->ignored);
}

/* Rejects --step and --betas for formats whose AdamW moments do not need them. */
static int check_adam_options(const struct cli_args *a)
{
	static const char *const names[] = { "step", "betas" };
	const char *format = cli_value(a, "format");
	char why[100], option[20];

	if (format && (cli_is_for_paddle(format) || strcmp(format, "deepspeed-universal") == 0))
		return 0;
	snprintf(why, sizeof(why), "does not go with --format %.40s", format ? format : "hf");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (cli_flag(a, names[i])) {
			snprintf(option, sizeof(option), "--%s", names[i]);
			return cli_usage(a, option, why, "paddle-uc, paddle-fc, sharding-io and "
			                 "deepspeed-universal need it for the moments of AdamW");
		}
	return 0;
}

/* Rejects options that cannot be combined. */
static int check_options(const struct cli_args *a)
{
	static const char *const alone[] = { "family", "dtype" };
	static const struct { const char *name, *makes; } formats[] = { { "hf", NULL },
		{ "torch", "one file" }, { "dcp", NULL }, { "npz", "one file" },
		{ "paddle", "one file" }, { "paddle-uc", NULL }, { "paddle-fc", NULL },
		{ "sharding-io", NULL }, { "deepspeed-universal", "a file for each tensor" },
		{ "gguf", "one file" },
		{ "megatron", NULL } };
	const char *format = cli_value(a, "format"), *makes = NULL;
	bool known = false;
	char hint[80];

	for (size_t i = 0; format && i < sizeof(formats) / sizeof(formats[0]); i++)
		if (strcmp(format, formats[i].name) == 0) {
			known = true;
			makes = formats[i].makes;
		}
	if (format && !known)
		return cli_usage(a, "--format", "no such format",
		                 "hf, torch, dcp, npz, paddle, paddle-uc, paddle-fc, "
		                 "sharding-io, deepspeed-universal, gguf, megatron");
	if (cli_flag(a, "max-shard-size") && makes) {
		snprintf(hint, sizeof(hint), "--format %s makes %s", format, makes);
		return cli_usage(a, "--max-shard-size", "does not go with --format", hint);
	}
	if (cli_flag(a, "all") && is_to_hf(a))
		return cli_usage(a, "--all", "does not go with --format hf",
		                 "a Hugging Face directory has one family");
	if (check_adam_options(a))
		return 2;
	for (size_t i = 0; cli_flag(a, "all") && i < sizeof(alone) / sizeof(alone[0]); i++)
		if (cli_flag(a, alone[i])) {
			snprintf(hint, sizeof(hint), "--%s is for one family", alone[i]);
			return cli_usage(a, "--all", "does not go with another option", hint);
		}
	return 0;
}

/* Reads --step and --betas. */
static int adam_options(const struct cli_args *a, struct sheaf_export *how)
{
	const char *betas = cli_value(a, "betas");
	char end;

	if (betas && (sscanf(betas, "%lf,%lf%c", &how->beta1, &how->beta2, &end) != 2 ||
	              !(how->beta1 > 0 && how->beta1 < 1 && how->beta2 > 0 && how->beta2 < 1)))
		return cli_usage(a, "--betas", "is not two numbers between 0 and 1",
		                 "for example --betas 0.9,0.95");
	return cli_int(a, "step", 1, INT64_MAX - 1, &how->adam_step);
}

static int options(const struct cli_args *a, struct sheaf_export *how)
{
	int rc = check_options(a);

	if (rc)
		return rc;
	rc = adam_options(a, how);
	if (rc)
		return rc;
	how->format = cli_value(a, "format");
	how->all_families = cli_flag(a, "all");
	how->family = cli_value(a, "family");
	how->prefix = cli_value(a, "map") ? NULL : cli_value(a, "prefix");
	return cli_writing_options(a, &how->dtype, &how->file_bytes_max, &how->memory_bytes);
}

/* Lists the classes that have another name in DST's config.json than in the source: Paddle's
 * pipelines and helpers, which other programs do not know. */
static void say_classes(const struct cli_step *s, const char *dst)
{
	json_t *was = cli_config_of(s, NULL), *is;
	char *path;

	if (asprintf(&path, "%s/config.json", dst) < 0) {
		json_decref(was);
		return;
	}
	is = json_load_file(path, 0, NULL);
	free(path);
	for (size_t i = 0;; i++) {
		const char *a = json_string_value(json_array_get(json_object_get(was,
		                                                  "architectures"), i));
		const char *b = json_string_value(json_array_get(json_object_get(is,
		                                                  "architectures"), i));

		if (!a || !b)
			break;
		if (strcmp(a, b) == 0)
			continue;
		cli_say_of(dst);
		fputs("config.json names the class ", stderr);
		cli_put(stderr, b);
		fputs(" instead of ", stderr);
		cli_put(stderr, a);
		fputs(", which is one of Paddle's own\n", stderr);
	}
	json_decref(was);
	json_decref(is);
}

static int run(const struct cli_args *a)
{
	struct cli_progress p;
	struct sheaf_export how = { .size = sizeof(how), .progress = cli_progress_show, .arg = &p };
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { .msg = "" };
	const char *dst = a->pos[1];
	char hint[100];
	struct cli_step s;
	int rc = options(a, &how);

	if (rc)
		return rc;
	rc = cli_step_open(&s, a, a->pos[0], false);
	if (rc)
		return rc;
	rc = cli_step_map(&s, a, how.all_families ? NULL : how.family ? how.family : "model");
	if (rc) {
		cli_step_close(&s);
		return rc;
	}
	cli_progress_begin(&p, a);
	rc = sheaf_checkpoint_export(s.step, dst, &how, &report, &err);
	cli_progress_end(&p);
	rc = rc < 0 ? cli_error(a, rc, rc == SHEAF_EEXIST ? dst : a->pos[0], err.msg,
	                        cli_hint_for(&err, hint))
	            : answer(a, dst, &report, p.seconds);
	if (rc == 0) {
		cli_say_unread(a->pos[0], s.step);
		if (how.all_families)
			cli_say_assumed(a->pos[0], s.step);
		say_classes(&s, dst);
		cli_say_left_out(a, &s, dst);
		say_steps(dst, &report);
	}
	cli_step_close(&s);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "format", "FORMAT", "the format of DST, see above (hf)" },
	{ "family", "F", "the family to write as the model (model)" },
	{ "all", NULL, "write all families, each as a dictionary of its own" },
	{ "prefix", "TEXT", "write only tensors whose names begin with TEXT, and remove it" },
	{ "map", "MAP", "map names and shapes: a file, or a map that comes with sheaf" },
	{ "to", "SIDE", "the side of the map that is made (the right one)" },
	{ "set", "NAME=N,...", "numbers for the map, such as tp=2" },
	{ "config", "FILE", "the config.json for the map; a directory gets it if SRC has none" },
	{ "dtype", "TYPE", "convert floating-point tensors to TYPE, such as BF16" },
	{ "step", "N", "updates of AdamW, for moments (what SRC says)" },
	{ "betas", "B1,B2", "betas of AdamW, for moments, such as 0.9,0.95" },
	{ "max-shard-size", "BYTES", "largest size of a file (5 GB)" },
	{ "mem", "BYTES", "largest memory for buffers (256M)" },
	{ 0 },
};
const struct cli_verb cli_convert = {
	.name = "convert",
	.brief = "write any checkpoint in a format of other software",
	.synopsis = "sheaf convert SRC DST [--format FORMAT] [--family F | --all]\n"
		    "                     [--prefix TEXT] [--dtype TYPE]\n"
		    "                     [--map MAP [--to SIDE] [--set NAME=N,...]\n"
		    "                      [--config FILE]]\n"
		    "                     [--step N] [--betas B1,B2]\n"
		    "                     [--max-shard-size BYTES] [--mem BYTES] [--json]",
	.text = "Writes SRC, a step of a run or a checkpoint of another program (see sheaf help\n"
		"show), as the new directory or file DST. FORMAT is one of:\n"
		"  hf     a Hugging Face directory: model.safetensors, or several files and an\n"
		"         index, with copies of config.json, the tokenizer and similar files\n"
		"         beside SRC; files and folders that are not copied are listed\n"
		"  torch  one file for torch.load, with a dictionary from names to tensors;\n"
		"         with --all, one from families to dictionaries\n"
		"  dcp    a directory of torch.distributed.checkpoint, with the same names\n"
		"  npz    one file for numpy.load; NumPy has no BF16: see --dtype; with --all a\n"
		"         name begins with that of the family and a slash\n"
		"  paddle one file for paddle.load; with --all a dictionary of dictionaries\n"
		"  paddle-uc\n"
		"         a unified checkpoint of PaddleNLP and PaddleFormers, with an index for\n"
		"         each family. See --map for Paddle's names and shapes. With --all and\n"
		"         moments, Paddle needs the betas of AdamW: see --betas\n"
		"  paddle-fc\n"
		"         a flex checkpoint, for paddle.distributed.load_state_dict. With --all\n"
		"         it has the folders and the names of PaddleFormers' trainer, and for\n"
		"         moments it needs what paddle-uc needs\n"
		"  sharding-io\n"
		"         what sharding_io of PaddleNLP and PaddleFormers loads, with --all: the\n"
		"         families model, master_weights, optimizer and ema, for any number of\n"
		"         ranks that share the optimizer (load_sharded_model)\n"
		"  deepspeed-universal\n"
		"         a directory that DeepSpeed resumes from with any ZeRO and any number of\n"
		"         ranks (load_universal), with --all: the families model, master_weights\n"
		"         and optimizer, which must have F32 weights and the moments of AdamW\n"
		"  gguf   one file for llama.cpp, of the types F32, F16 and BF16: Llama, Mistral,\n"
		"         Qwen2 or Qwen3, with the tokenizer beside SRC. Tensors with names of\n"
		"         Hugging Face are mapped: --map is not needed\n"
		"  megatron\n"
		"         a checkpoint of Megatron-Core (torch_dist) as Megatron-LM has it. See\n"
		"         --map for its names. With --all also master_weights and optimizer\n"
		"Nothing in SRC is executed. No tensor is in memory as a whole: memory is used\n"
		"for the buffers and the list of tensors only.\n\n"
		"The checksums of SRC are compared if it has any, and all files are read back\n"
		"from the disk and compared. The files are written in DST.partial. It, or the\n"
		"one file in it, is renamed when all of it is durable. If SRC has no checksums\n"
		"and was changed meanwhile, DST does not appear. If the command was killed, run\n"
		"it again: finished files are compared with SRC, and written again only if they\n"
		"differ.\n\n"
		"With --map the tensors get the names and the shapes that another program gives\n"
		"them: they are renamed, divided, joined, transposed and so on while they are\n"
		"written. A map is a text, see doc/mapping.md. It must take every tensor of\n"
		"SRC, and says which program is on which side.\n\n"
		"With --json one line: {to, files, tensors, bytes, written, seconds}.",
	.exits = "  0  DST is written\n  1  SRC is damaged, has no such tensors, or DST exists\n"
		 "  2  no such checkpoint, wrong arguments, or a disk failed",
	.examples = "  sheaf convert runs/gpt@1000 gpt-1000-bf16 --dtype BF16\n"
		    "  sheaf convert checkpoint.pt hf --prefix model.\n"
		    "  sheaf convert runs/gpt@latest averages --family ema\n"
		    "  sheaf convert qwen2-hf qwen2-paddle --map qwen2-hf-paddle\n"
		    "  sheaf convert runs/gpt@1000 gpt.pt --format torch --all\n"
		    "  sheaf convert runs/qwen@1000 qwen-paddle --format paddle-uc --all \\\n"
		    "      --betas 0.9,0.95 --map qwen2-hf-paddle\n"
		    "  sheaf convert runs/gpt@1000 gpt-ds --format deepspeed-universal --all\n"
		    "  sheaf convert qwen2-hf qwen2.gguf --format gguf",
	.opts = opts,
	.pos_min = 2,
	.pos_max = 2,
	.pos_names = "SRC DST",
	.run = run,
};
const struct cli_verb cli_export = {
	.name = "export",
	.brief = "write a step in a format of other software",
	.synopsis = "sheaf export RUN@STEP DST [--format FORMAT] [--family F | --all]\n"
		    "                    [--prefix TEXT] [--dtype TYPE]\n"
		    "                    [--map MAP [--to SIDE] [--set NAME=N,...]\n"
		    "                     [--config FILE]]\n"
		    "                    [--step N] [--betas B1,B2]\n"
		    "                    [--max-shard-size BYTES] [--mem BYTES] [--json]",
	.text = "Does what sheaf convert does, under the name of the opposite of sheaf import.\n"
		"sheaf help convert lists the formats, and says how DST is written.\n\n"
		"With --json one line: {to, files, tensors, bytes, written, seconds}.",
	.exits = "  0  DST is written\n"
		 "  1  the step is damaged, has no such tensors, or DST exists\n"
		 "  2  no such step, wrong arguments, or a disk failed",
	.examples = "  sheaf export runs/gpt@1000 gpt-1000\n"
		    "  sheaf export runs/gpt@latest gpt.pt --format torch",
	.opts = opts,
	.pos_min = 2,
	.pos_max = 2,
	.pos_names = "RUN@STEP DST",
	.run = run,
};
