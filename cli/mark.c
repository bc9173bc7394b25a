/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf mark: marks a step so that it is never pruned, or so that "latest" skips it. */
#include "cli.h"

#include <string.h>
#include "sheaf-admin.h"
#include "workload.h"

static int run(const struct cli_args *a)
{
	struct sheaf_opts opts = { .size = sizeof(opts) };
	struct sheaf_error err = { .msg = "" };
	const char *word = a->pos[1];
	int64_t timeout = 60000;
	struct sheaf_run *r = NULL;
	struct cli_place place;
	int32_t mark;
	int rc = cli_int(a, "timeout-ms", 1, INT32_MAX, &timeout);

	if (rc)
		return rc;
	if (strcmp(word, "keep") == 0)
		mark = SHEAF_MARK_KEEP;
	else if (strcmp(word, "bad") == 0)
		mark = SHEAF_MARK_BAD;
	else if (strcmp(word, "none") == 0)
		mark = SHEAF_MARK_NONE;
	else
		return cli_usage(a, word, "the mark must be keep, bad or none", NULL);
	rc = cli_place_step(&place, a, a->pos[0]);
	if (rc)
		return rc;
	opts.timeout_ms = (int32_t)timeout;
	rc = sheaf_run_open(&r, place.path, NULL, &opts, &err);
	if (rc == 0 && place.step == SHEAF_LATEST)
		rc = cli_newest(r, place.path, &place.step, &err);
	if (rc == 0)
		rc = sheaf_run_mark(r, place.step, mark, &err);
	if (rc < 0)
		rc = cli_error(a, rc, a->pos[0], err.msg,
		               r && rc == SHEAF_ENOENT ? "sheaf ls lists the checkpoints" : NULL);
	else if (a->json)
		cli_line(json_pack("{s:I,s:o}", "step", (json_int_t)place.step, "mark",
				   json_string(sheaf_mark_name(mark))));
	sheaf_run_close(r);
	cli_place_release(&place);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "timeout-ms", "N", "deadline; half of it to wait for the lock (60000)" },
	{ 0 },
};
const struct cli_verb cli_mark = {
	.name = "mark",
	.brief = "mark a step keep, bad or none",
	.synopsis = "sheaf mark RUN@N|RUN@latest keep|bad|none [--timeout-ms N] [--json]",
	.text = "keep: the step is never pruned. bad: latest skips it, for a step that is\n"
		"whole on disk but spoilt in value; a save of its number sets it aside. none\n"
		"takes either mark away, and forgets how often jobs failed to go on from it.\n"
		"The step's own files are not touched. RUN@latest is refused while the agent of\n"
		"this node has a newer step in memory alone. Silent when it worked.",
	.exits = "  0  marked\n"
		 "  2  no such step, the latest is in memory alone, or the run is locked",
	.examples = "  sheaf mark runs/gpt@12000 keep",
	.opts = opts,
	.pos_min = 2,
	.pos_max = 2,
	.pos_names = "RUN@N and keep, bad or none",
	.run = run,
};
