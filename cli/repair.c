/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf repair-index: writes the index of a directory anew from the headers of its files. */
#include "cli.h"

#include <unistd.h>
#include "sheaf-admin.h"

static int repair(const struct cli_args *a, const struct cli_step *s)
{
	struct sheaf_error err = { .msg = "" };
	char hint[100];
	int rc = sheaf_checkpoint_repair_index(s->step, &err);

	if (rc < 0)
		return cli_error(a, rc, s->place.path, err.msg, cli_hint_for(&err, hint));
	if (a->json)
		cli_line(json_pack("{s:o,s:i}", "path", cli_str(s->place.path), "written", rc));
	else if (isatty(STDOUT_FILENO))
		puts(rc ? "the index was written" : "the index is right");
	return 0;
}

static int run(const struct cli_args *a)
{
	struct cli_step s;
	int rc = cli_step_open(&s, a, a->pos[0], false);

	if (rc)
		return rc;
	rc = repair(a, &s);
	cli_step_close(&s);
	return rc;
}

static const struct cli_opt opts[] = { { 0 } };
const struct cli_verb cli_repair_index = {
	.name = "repair-index",
	.brief = "rebuild the index of a directory",
	.synopsis = "sheaf repair-index PATH [--json]",
	.text = "Rebuilds model.safetensors.index.json, by which other software finds the tensors\n"
		"of a directory, from the headers of its files, if it is missing or damaged, or\n"
		"does not match the files. Of a step of a run, each family has an index, which\n"
		"gets the very bytes that it had. Sheaf itself opens PATH in any case:\n"
		"`sheaf show` says what is wrong with the index.\n\n"
		"The file is replaced by one rename, and is durable when this command ends. An\n"
		"index that is right, and one that is not needed because the only file is\n"
		"model.safetensors, is left alone. With --json: {path, written}, the number of\n"
		"indexes that were written.",
	.exits = "  0  the index is right now\n"
		 "  1  damaged, or a tensor that the index lists is in no file\n"
		 "  2  no such directory, or it could not be read or written",
	.examples = "  sheaf repair-index models/qwen2",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "PATH",
	.run = run,
};
