/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf prune: lists the steps that the retention rules do not keep, and with --apply removes
 * them. */
#include "cli.h"
#include "sheaf-admin.h"
#include "sheaf-opts.h"
#include "workload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct pruning {
	const struct cli_args *a;
	struct cli_list list;           /* the entries of the run; empty if it could not be read */
	int64_t removed;                /* number of steps to remove */
	uint64_t bytes;                 /* their total size */
};

/* Returns the size of a step of the run, or -1 if unknown. */
static int64_t bytes_of(const struct pruning *p, int64_t step)
{
	for (size_t i = 0; i < p->list.n; i++) {
		const struct cli_item *it = &p->list.items[i];

		if (it->step == step && (it->state == SHEAF_ITEM_COMMITTED ||
		                         it->state == SHEAF_ITEM_DAMAGED))
			return (int64_t)it->bytes;
	}
	return -1;
}

static void item(void *arg, int64_t step, int32_t action, const char *why)
{
	struct pruning *p = arg;
	int64_t bytes = bytes_of(p, step);
	char size[32] = "-";

	if (action == SHEAF_PRUNE_REMOVE) {
		p->removed++;
		p->bytes += bytes > 0 ? (uint64_t)bytes : 0;
	}
	if (p->a->json) {
		cli_line(json_pack("{s:I,s:s,s:o,s:o}", "step", (json_int_t)step, "action",
				   sheaf_prune_action_name(action), "bytes", cli_num(bytes),
				   "why", cli_str(why)));
		return;
	}
	printf("%10lld  %-6s  %10s  ", (long long)step, sheaf_prune_action_name(action),
	       bytes < 0 ? size : wl_size(size, (uint64_t)bytes));
	cli_put(stdout, why ? why : "");
	putchar('\n');
}

/* Warnings of the library go to stderr. */
static void log_line(void *arg, int level, const char *line)
{
	(void)arg;
	if (level > 1)
		return;
	fputs("sheaf: prune: ", stderr);
	cli_put(stderr, line);
	fputc('\n', stderr);
}

/* Parses K:NOTE:min|max; note receives NOTE. The library checks the key. */
static int best(const struct cli_args *a, struct sheaf_retention *keep, char note[80])
{
	const char *text = cli_value(a, "best"), *from, *to;
	char *end;
	long long k;

	if (!text)
		return 0;
	errno = 0;
	k = strtoll(text, &end, 10);
	from = *end == ':' ? end + 1 : end;
	to = strrchr(from, ':');
	if (*text < '0' || *text > '9' || errno || k < 1 || k > INT32_MAX || *end != ':' || !to ||
	    to == from || to - from >= 80 || (strcmp(to, ":min") && strcmp(to, ":max")))
		return cli_usage(a, "--best", "the value must be K:NOTE:min or K:NOTE:max", "as in "
		                 "3:loss:min");
	memcpy(note, from, (size_t)(to - from));
	note[to - from] = '\0';
	keep->keep_best = (int32_t)k;
	keep->best_largest = to[2] == 'a';
	keep->best_note = note;
	return 0;
}

static int run(const struct cli_args *a)
{
	struct sheaf_retention keep = { .size = sizeof(keep) };
	struct sheaf_opts opts = { .size = sizeof(opts), .arg = (void *)(uintptr_t)a };
	struct pruning p = { .a = a };
	struct sheaf_error err = { .msg = "" };
	int64_t keep_last = 0, keep_every = 0, grace = 600, timeout = 60000;
	bool apply = cli_flag(a, "apply");
	char note[80], size[32];
	struct sheaf_run *r = NULL;
	struct cli_place place = { 0 };
	int rc = cli_int(a, "keep-last", 1, INT32_MAX, &keep_last);

	if (!rc)
		rc = cli_int(a, "keep-every", 1, INT32_MAX, &keep_every);
	if (!rc)
		rc = cli_int(a, "grace", 0, INT32_MAX, &grace);
	if (!rc)
		rc = cli_int(a, "timeout-ms", 1, INT32_MAX, &timeout);
	if (!rc)
		rc = best(a, &keep, note);
	if (!rc && !keep_last)
		rc = cli_usage(a, "--keep-last", "this option must be given", NULL);
	if (!rc)
		rc = cli_place_run(&place, a, a->pos[0]);
	if (rc)
		goto out;
	/* Listing changes nothing, so it needs no lock. */
	opts.flags = apply ? 0 : SHEAF_RUN_READONLY;
	keep.keep_last = (int32_t)keep_last;
	keep.keep_every = (int32_t)keep_every;
	keep.grace_s = grace ? (int32_t)grace : -1;
	opts.retention = &keep;
	opts.timeout_ms = (int32_t)timeout;
	opts.log = a->json ? NULL : log_line;
	rc = sheaf_run_open(&r, place.path, NULL, &opts, &err);
	if (rc == 0) {
		(void)cli_list_read(&p.list, r, NULL);
		rc = sheaf_run_prune(r, !apply, item, &p, &err);
	}
	if (rc >= 0 && p.removed && !a->json)
		printf("%s%s in %lld step%s\n", apply ? "removed: " : "to remove: ",
		       wl_size(size, p.bytes), (long long)p.removed, p.removed == 1 ? "" : "s");
	if (rc >= 0 && p.removed && !a->json && apply && grace)
		printf("their space is freed by the next job that opens the run after 600 s, or by "
		       "`sheaf prune` with the same options after %lld s (--grace 0: now)\n",
		       (long long)grace);
	rc = rc < 0 ? cli_error(a, rc, place.path, err.msg, NULL) : 0;
out:
	cli_list_release(&p.list);
	sheaf_run_close(r);
	cli_place_release(&place);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "keep-last", "N", "keep the newest N" },
	{ "keep-every", "N", "keep steps that N divides" },
	{ "best", "K:NOTE:min|max", "keep the K with the least, or largest, note" },
	{ "apply", NULL, "remove them; without it they are only listed" },
	{ "grace", "SECONDS", "before removed bytes are deleted (600)" },
	{ "timeout-ms", "N", "deadline; half of it to wait for the lock (60000)" },
	{ 0 },
};
const struct cli_verb cli_prune = {
	.name = "prune",
	.brief = "list, or remove, steps that newer ones replace",
	.synopsis = "sheaf prune RUN --keep-last N [--keep-every N] [--best K:NOTE:min|max]\n"
		    "       [--apply] [--grace SECONDS]",
	.text = "Says of each step whether it stays or goes, its size, and why, and then how\n"
		"many bytes the removal frees. Only steps go that a newer, verified step of the\n"
		"same branch replaces; marked ones (`sheaf mark`) stay. The newest step is\n"
		"verified first if that has not been done since its commit. --best looks at a\n"
		"note of the steps that is a decimal number, as in 1.25e-3; of equal ones the\n"
		"newer is better, and a step without such a note is kept by the other rules\n"
		"only. Removed steps lie in .sheaf/trash until the grace is over, and the next\n"
		"prune deletes them; --grace 0 does so at once. The grace is not stored: a job\n"
		"that opens the run deletes what was removed 600 s ago or earlier.",
	.exits = "  0  listed, or removed\n"
		 "  1  the newest step is damaged, so nothing goes\n"
		 "  2  no such run, it is locked, or it could not be read",
	.examples = "  sheaf prune runs/gpt --keep-last 5 --keep-every 10000\n"
		    "  sheaf prune runs/gpt --keep-last 5 --best 3:val.loss:min --apply",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "RUN",
	.run = run,
};
