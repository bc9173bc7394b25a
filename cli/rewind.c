/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf rewind: later steps are set aside, so that training goes on from an older one. */
#include "cli.h"

static int run(const struct cli_args *a)
{
	struct sheaf_opts opts = { .size = sizeof(opts) };
	struct sheaf_error err = { .msg = "" };
	int64_t timeout = 30000;
	struct sheaf_run *r = NULL;
	struct cli_place place;
	int rc = cli_int(a, "timeout-ms", 1, INT32_MAX, &timeout);

	if (!rc)
		rc = cli_place_numbered(&place, a, a->pos[0]);
	if (rc)
		return rc;
	opts.timeout_ms = (int32_t)timeout;
	rc = sheaf_run_open(&r, place.path, NULL, &opts, &err);
	if (rc == 0)
		rc = sheaf_run_rewind(r, place.step, &err);
	if (rc < 0)
		rc = cli_error(a, rc, a->pos[0], err.msg, NULL);
	else if (a->json)
		cli_line(json_pack("{s:I,s:s}", "step", (json_int_t)place.step, "action",
				   "rewind"));
	sheaf_run_close(r);
	cli_place_release(&place);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "timeout-ms", "N", "to wait for the lock, at most 30000 (30000)" },
	{ 0 },
};
const struct cli_verb cli_rewind = {
	.name = "rewind",
	.brief = "set later steps aside and go on from this one",
	.synopsis = "sheaf rewind RUN@N [--timeout-ms N] [--json]",
	.text = "Moves the steps after N to .sheaf/aside, newest first, where they are kept\n"
		"but no longer found: a step number is no timeline, and saving after going\n"
		"back needs the later ones out of the way. A crash half way leaves a shorter,\n"
		"valid run. `sheaf ls` shows them as aside. Silent when it worked.",
	.exits = "  0  rewound\n"
		 "  2  no such step, or the run is locked",
	.examples = "  sheaf rewind runs/gpt@8000",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "RUN@N",
	.run = run,
};
