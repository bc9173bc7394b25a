/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf import: writes any checkpoint as a step of a run. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "sheaf-admin.h"
#include "workload.h"

static int answer(const struct cli_args *a, const char *run, const struct sheaf_report *r,
                  double seconds)
{
	char size[32];

	if (a->json)
		cli_line(json_pack("{s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f}", "to", cli_str(run),
		                   "step", (json_int_t)r->step, "files", (json_int_t)r->files,
		                   "tensors", (json_int_t)r->loaded, "bytes",
		                   (json_int_t)r->bytes, "written", (json_int_t)r->held,
		                   "notes_left_out", (json_int_t)r->ignored, "files_left_out",
		                   (json_int_t)r->unexpected, "seconds", seconds));
	else if (isatty(STDOUT_FILENO))
		printf("step %lld: %llu tensors, %s, in %llu files; read back and found equal\n",
		       (long long)r->step, (unsigned long long)r->loaded, wl_size(size, r->bytes),
		       (unsigned long long)r->files);
	if (r->ignored)
		fprintf(stderr, "sheaf: values of the source that are no notes of the step, for "
		        "their names or lengths: %llu\n", (unsigned long long)r->ignored);
	if (r->unexpected)
		fprintf(stderr, "sheaf: attached files of the source that the step does not have, "
		        "for their names or sizes: %llu\n", (unsigned long long)r->unexpected);
	return 0;
}

/* Says how many tensors were left out because their names do not begin with the prefix. */
static void say_left_out(const struct cli_args *a, const struct sheaf_import *how,
                         struct sheaf_checkpoint *step, uint64_t written)
{
	struct sheaf_tensor t = { .size = sizeof(t) };
	uint64_t n = 0;

	for (size_t i = 0; sheaf_checkpoint_tensor(step, i, &t, NULL) == 0; i++)
		n += !t.tied_to && (!how->family || strcmp(t.family, how->family) == 0);
	if (!how->prefix || n <= written)
		return;
	cli_say_of(a->pos[0]);
	fputs("tensors that the step does not have, because their names do not begin with ",
	      stderr);
	cli_put(stderr, how->prefix);
	fprintf(stderr, ": %llu\n", (unsigned long long)(n - written));
}

/* Splits RUN or RUN@STEP. The caller owns *run. Returns 0, or an exit status after printing the
 * error. */
static int destination(const struct cli_args *a, const char *text, char **run, int64_t *number)
{
	size_t n = strlen(text);
	int rc = wl_step_at(text, &n, number);

	if (rc == SHEAF_EEXIST)
		*number = -1;
	else if (rc < 0 || *number == SHEAF_LATEST)
		return cli_usage(a, text, "what follows @ must be the number of the new step",
		                 "as in RUN@1000");
	*run = strndup(text, n);
	return *run ? 0 : cli_nomem(a);
}

static int run_import(const struct cli_args *a, const char *run, int64_t number)
{
	struct cli_progress p;
	struct sheaf_import how = { .size = sizeof(how), .progress = cli_progress_show, .arg = &p,
		.family = cli_value(a, "family"), .as = cli_value(a, "as"),
		.prefix = cli_value(a, "map") ? NULL : cli_value(a, "prefix") };
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { .msg = "" };
	char hint[100];
	struct cli_step s;
	int rc = cli_writing_options(a, &how.dtype, &how.file_bytes_max, &how.memory_bytes);

	if (rc == 0)
		rc = cli_step_open(&s, a, a->pos[0], false);
	if (rc)
		return rc;
	rc = cli_step_map(&s, a, how.family);
	if (rc) {
		cli_step_close(&s);
		return rc;
	}
	cli_progress_begin(&p, a);
	rc = sheaf_checkpoint_import(s.step, run, number, &how, &report, &err);
	cli_progress_end(&p);
	rc = rc < 0 ? cli_error(a, rc, rc == SHEAF_EEXIST ? run : a->pos[0], err.msg,
	                        cli_hint_for(&err, hint))
	            : answer(a, run, &report, p.seconds);
	if (rc == 0) {
		cli_say_unread(a->pos[0], s.step);
		say_left_out(a, &how, s.step, report.loaded);
		if (!how.family || strcmp(how.family, "optimizer") == 0)
			cli_say_assumed(a->pos[0], s.step);
	}
	cli_step_close(&s);
	return rc;
}

static int run(const struct cli_args *a)
{
	int64_t number;
	char *dst = NULL;
	int rc = destination(a, a->pos[1], &dst, &number);

	if (rc == 0)
		rc = run_import(a, dst, number);
	free(dst);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "family", "F", "the family of SRC to import (all of them)" },
	{ "as", "F", "the family that its tensors become (the one that they are in)" },
	{ "prefix", "TEXT", "import only tensors whose names begin with TEXT, and remove it" },
	{ "map", "MAP", "map names and shapes: a file, or a map that comes with sheaf" },
	{ "to", "SIDE", "the side of the map that is made (the right one)" },
	{ "set", "NAME=N,...", "numbers for the map, such as tp=2" },
	{ "config", "FILE", "the config.json for the map; it is copied if SRC has none" },
	{ "dtype", "TYPE", "convert floating-point tensors to TYPE, such as BF16" },
	{ "max-shard-size", "BYTES", "largest size of a file (5 GB)" },
	{ "mem", "BYTES", "largest memory for buffers (256M)" },
	{ 0 },
};
const struct cli_verb cli_import = {
	.name = "import",
	.brief = "write any checkpoint as a step of a run",
	.synopsis = "sheaf import SRC RUN[@STEP] [--family F] [--as F] [--prefix TEXT]\n"
		    "                    [--map MAP [--to SIDE] [--set NAME=N,...]\n"
		    "                     [--config FILE]]\n"
		    "                    [--dtype TYPE] [--max-shard-size BYTES] [--mem BYTES]\n"
		    "                    [--json]",
	.text = "Writes SRC, a checkpoint of another program (see sheaf help show) or a step of\n"
		"another run, as a new step of RUN, which is made if there is none. A job in any\n"
		"layout can then load it. All tensors come along, values that are no tensors\n"
		"become notes, and files are attached to it. How many values and files the step\n"
		"cannot have is said.\n\n"
		"Without @STEP the step gets the number that SRC has: its own, or the value of\n"
		"step, global_step or iteration in it. If SRC has nothing but tensors it is 0.\n"
		"The tensors of another program are of family model, and state of an optimizer\n"
		"whose parameters are known is of family optimizer; DeepSpeed, Megatron and\n"
		"trainers have more families. --as names another family for the tensors of one.\n\n"
		"With --map the tensors get the names and the shapes that another program gives\n"
		"them, and so does the state of the optimizer. See doc/mapping.md.\n\n"
		"Nothing in SRC is executed. No tensor is in memory as a whole: memory is used\n"
		"for the buffers and the list of tensors only. The checksums of SRC are compared\n"
		"if it has any. All that is written gets checksums, is read back from the disk\n"
		"and compared, and appears whole and durable, or not at all. If SRC has no\n"
		"checksums and was changed meanwhile, the step does not appear. If the command\n"
		"was killed, run it again: finished files are compared with SRC, and written\n"
		"again only if they differ.\n\n"
		"With --json one line: {to, step, files, tensors, bytes, written,\n"
		"notes_left_out, files_left_out, seconds}.",
	.exits = "  0  RUN has the step\n  1  SRC is damaged, has no such tensors, or RUN has a "
		 "step of that number\n  2  no such checkpoint, wrong arguments, RUN is locked, or "
		 "a disk failed",
	.examples = "  sheaf import meta-llama/model runs/finetune\n"
		    "  sheaf import checkpoint.pt runs/gpt@1000 --prefix model.\n"
		    "  sheaf import runs/old@latest runs/new@0",
	.opts = opts,
	.pos_min = 2,
	.pos_max = 2,
	.pos_names = "SRC RUN[@STEP]",
	.run = run,
};
