/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf recover: lists what dead jobs left in a run. --apply finishes or removes it, --salvage
 * publishes it. */
#include "cli.h"

#include <string.h>
#include <unistd.h>
#include "sheaf-admin.h"
#include "workload.h"

static int item(void *arg, const struct sheaf_leftover *l)
{
	const struct cli_args *a = arg;
	json_t *lives = l->lives < 0 ? json_null() : json_boolean(l->lives);
	char size[32];

	if (a->json) {
		cli_line(json_pack("{s:s,s:o,s:s,s:o,s:o,s:o,s:b,s:o,s:o}", "what",
				   sheaf_leftover_kind_name(l->kind), "step", cli_num(l->step),
				   "action", sheaf_leftover_action_name(l->action), "path",
				   cli_str(l->path),
				   "session", cli_str(l->session), "bytes",
				   l->bytes ? json_integer((json_int_t)l->bytes) : json_null(),
				   "whole", l->whole, "lives", lives, "why", cli_str(l->why)));
		return 0;
	}
	json_decref(lives);
	if (l->step >= 0)
		printf("%10lld", (long long)l->step);
	else
		printf("%10s", "-");
	printf("  %-7s  %-6s  %10s  ", sheaf_leftover_kind_name(l->kind),
	       sheaf_leftover_action_name(l->action),
	       l->bytes ? wl_size(size, l->bytes) : "-");
	cli_put(stdout, l->path);
	fputs("  ", stdout);
	cli_put(stdout, l->why);
	putchar('\n');
	return 0;
}

static int list(const struct cli_args *a, const char *path)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	struct sheaf_error err = { .msg = "" };
	struct sheaf_run *r = NULL;
	int rc = sheaf_run_open(&r, path, NULL, &opts, &err);

	if (rc == 0)
		rc = sheaf_run_leftovers(r, item, (void *)(uintptr_t)a, &err);
	sheaf_run_close(r);
	return rc < 0 ? cli_error(a, rc, path, err.msg, NULL) : 0;
}

/* Warnings of the library go to stderr: what there was no time to delete, for example. */
static void log_line(void *arg, int level, const char *line)
{
	(void)arg;
	if (level > 1)
		return;
	fputs("sheaf: recover: ", stderr);
	cli_put(stderr, line);
	fputc('\n', stderr);
}

static int settle(const struct cli_args *a, const char *path, int32_t timeout_ms)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = timeout_ms,
		.log = log_line };
	struct sheaf_error err = { .msg = "" };
	struct sheaf_run *r = NULL;
	int rc = sheaf_run_open(&r, path, NULL, &opts, &err);

	sheaf_run_close(r);
	return rc < 0 ? cli_error(a, rc, path, err.msg, NULL) : 0;
}

static int salvage(const struct cli_args *a, const char *path, int64_t step, int32_t timeout_ms)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = timeout_ms };
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { .msg = "" };
	int rc = sheaf_run_salvage(path, step, &opts, &report, &err);

	if (rc < 0)
		return cli_error(a, rc, path, err.msg, NULL);
	if (a->json)
		cli_line(json_pack("{s:I,s:s,s:I,s:I}", "step", (json_int_t)step, "action",
				   "salvage", "tensors", (json_int_t)report.loaded, "bytes",
				   (json_int_t)report.bytes));
	else if (isatty(STDOUT_FILENO))
		printf("published: step %lld\n", (long long)step);
	return 0;
}

static int run(const struct cli_args *a)
{
	int64_t step = -1, timeout = 60000;
	struct cli_place place = { 0 };
	int rc = cli_int(a, "salvage", 0, INT64_MAX, &step);

	if (!rc)
		rc = cli_int(a, "timeout-ms", 1, INT32_MAX, &timeout);
	if (!rc && step >= 0 && cli_flag(a, "apply"))
		rc = cli_usage(a, "--apply", "would delete what --salvage publishes",
		               "one, then the other");
	if (!rc)
		rc = cli_place_run(&place, a, a->pos[0]);
	if (!rc && step >= 0)
		rc = salvage(a, place.path, step, (int32_t)timeout);
	else if (!rc)
		rc = list(a, place.path);
	if (!rc && cli_flag(a, "apply"))
		rc = settle(a, place.path, (int32_t)timeout);
	cli_place_release(&place);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "apply", NULL, "settle it; without it everything is only listed" },
	{ "salvage", "N", "publish step N, whole in the stage, of a dead writer" },
	{ "timeout-ms", "N", "deadline; half of it to wait for the lock (60000)" },
	{ 0 },
};
const struct cli_verb cli_recover = {
	.name = "recover",
	.brief = "list, or settle, what dead jobs left",
	.synopsis = "sheaf recover RUN [--apply | --salvage N] [--timeout-ms N] [--json]",
	.text = "Lists who holds the lock, damaged steps and those that could not be looked\n"
		"at (unread), what a removal by hand left, saves\n"
		"and copies that were cut, what was set aside and pruned, what agents of several\n"
		"nodes left of a flush, and a rewind that was not finished; and what the next\n"
		"job that opens the run does with each: none, delete, finish,\n"
		"wait (not yet), decide (never; that is yours). Nothing is changed.\n\n"
		"--apply does it now, after listing it. Deleting takes a quarter of --timeout-ms\n"
		"at most; what then is left is said, and the next job or --apply goes on.\n\n"
		"--salvage N publishes a save that is whole in the stage and whose writer is\n"
		"dead. Recovery deletes such a save, because its commit may have told the\n"
		"trainer that it failed; if you know better, this is the time. Every byte is\n"
		"proved first. It is refused where the save is not whole, where its writer may\n"
		"live, and where the number is taken.\n\n"
		"With --json an object a line: {what, step, action, path, session, bytes,\n"
		"whole, lives, why}; of a salvage {step, action, tensors, bytes}.",
	.exits = "  0  listed, settled, published\n  1  what was to be published is not whole, or "
		 "its number is taken\n  2  no such run or save, its writer may be alive, or a "
		 "disk failed",
	.examples = "  sheaf recover runs/gpt\n"
		    "  sheaf recover runs/gpt --salvage 9000\n"
		    "  sheaf recover runs/gpt --apply",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "RUN",
	.run = run,
};
