/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf rewind: sets later steps aside, so that training resumes from an older one. */
#include "cli.h"
#include "sheaf-admin.h"

#include <string.h>
#include <unistd.h>

/* Prints which steps were set aside, for a person at a terminal. */
static void tell(struct sheaf_run *r, const struct cli_list *before)
{
	struct cli_list after;
	int told = 0;

	if (cli_list_read(&after, r, NULL) < 0)
		return;
	for (size_t i = 0; i < before->n; i++) {
		const struct cli_item *it = &before->items[i];

		for (size_t k = 0; k < after.n && it->state != SHEAF_ITEM_ASIDE; k++)
			if (after.items[k].state == SHEAF_ITEM_ASIDE &&
			    after.items[k].step == it->step &&
			    strcmp(after.items[k].session, it->session) == 0)
				printf(told++ ? ", %lld" : "set aside: step %lld",
				       (long long)it->step);
	}
	puts(told ? "" : "no later step to set aside");
	cli_list_release(&after);
}

static int run(const struct cli_args *a)
{
	struct sheaf_opts opts = { .size = sizeof(opts) };
	struct sheaf_error err = { .msg = "" };
	int64_t timeout = 60000;
	struct sheaf_run *r = NULL;
	struct cli_list before = { 0 };
	bool watched = !a->json && isatty(STDOUT_FILENO);
	struct cli_place place;
	int rc = cli_int(a, "timeout-ms", 1, INT32_MAX, &timeout);

	if (!rc)
		rc = cli_place_step(&place, a, a->pos[0]);
	if (rc)
		return rc;
	opts.timeout_ms = (int32_t)timeout;
	rc = sheaf_run_open(&r, place.path, NULL, &opts, &err);
	if (rc == 0 && place.step == SHEAF_LATEST)
		rc = cli_newest(r, place.path, &place.step, &err);
	if (rc == 0 && watched)
		rc = cli_list_read(&before, r, &err);
	if (rc == 0)
		rc = sheaf_run_rewind(r, place.step, &err);
	if (rc < 0)
		rc = cli_error(a, rc, a->pos[0], err.msg,
		               r && rc == SHEAF_ENOENT ? "sheaf ls lists the checkpoints" : NULL);
	else if (a->json)
		cli_line(json_pack("{s:I,s:s}", "step", (json_int_t)place.step, "action",
				   "rewind"));
	else if (watched)
		tell(r, &before);
	cli_list_release(&before);
	sheaf_run_close(r);
	cli_place_release(&place);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "timeout-ms", "N", "deadline; half of it to wait for the lock (60000)" },
	{ 0 },
};
const struct cli_verb cli_rewind = {
	.name = "rewind",
	.brief = "set later steps aside and resume from this one",
	.synopsis = "sheaf rewind RUN@N|RUN@latest [--timeout-ms N] [--json]",
	.text = "Moves the steps after N to .sheaf/aside, newest first, where they are kept\n"
		"but no longer found: a step number is no timeline, and saving after going\n"
		"back needs the later ones out of the way. RUN@latest is the newest that is not\n"
		"marked bad: bad ones after it go. It is refused where N is marked bad, because\n"
		"the next job would resume from an older step; `sheaf mark RUN@N none` takes the\n"
		"mark away. RUN@latest is also refused while the agent of this node has a newer\n"
		"step in memory alone, which would go, too. A crash half way leaves a shorter,\n"
		"valid run. `sheaf ls` shows them as aside. Silent when it worked; a terminal is\n"
		"told which steps went.\n\n"
		"Nothing deletes what is set aside, not even a prune: `sheaf aside RUN` lists\n"
		"it, brings it back (--restore) and deletes it (--delete).",
	.exits = "  0  rewound\n"
		 "  2  no such step, it is marked bad, or the run is locked",
	.examples = "  sheaf rewind runs/gpt@8000",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "RUN@N",
	.run = run,
};
