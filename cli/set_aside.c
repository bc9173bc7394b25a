/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf aside: lists steps that were set aside. --restore restores one, --delete deletes it. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "sheaf-admin.h"
#include "workload.h"

#define FOLDER ".sheaf/aside/"

struct aside {
	const struct cli_args *a;
	const char *run;                /* path of the run */
	struct sheaf_opts opts;         /* for calls that change the run */
	struct cli_list list;           /* only what is set aside */
};

/* Lists what is set aside. Returns 0, or an exit status after printing the error. */
static int read_list(struct aside *s)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	struct sheaf_error err = { .msg = "" };
	struct sheaf_run *r = NULL;
	size_t n = 0;
	int rc = sheaf_run_open(&r, s->run, NULL, &opts, &err);

	if (rc == 0)
		rc = cli_list_read(&s->list, r, &err);
	sheaf_run_close(r);
	if (rc < 0)
		return cli_error(s->a, rc, s->run, err.msg, NULL);
	for (size_t i = 0; i < s->list.n; i++) {
		if (s->list.items[i].state == SHEAF_ITEM_ASIDE)
			s->list.items[n++] = s->list.items[i];
		else
			cli_item_release(&s->list.items[i]);
	}
	s->list.n = n;
	return 0;
}

static void print(const struct cli_args *a, const struct cli_item *it)
{
	char size[32], parent[24] = "-";

	if (a->json) {
		cli_line(json_pack("{s:o,s:o,s:o,s:o,s:I,s:o}", "step", cli_num(it->step),
				   "session", cli_str(it->session), "parent",
				   cli_num(it->parent), "created",
				   cli_str(it->created), "bytes", (json_int_t)it->bytes, "path",
				   cli_str(it->path)));
		return;
	}
	if (it->parent >= 0)
		snprintf(parent, sizeof(parent), "%lld", (long long)it->parent);
	printf("%10lld  %10s  %-20s  %10s  ", (long long)it->step, parent,
	       *it->created ? it->created : "-", wl_size(size, it->bytes));
	cli_put(stdout, it->path);
	putchar('\n');
}

static void list(const struct aside *s)
{
	if (!s->a->json && s->list.n)
		printf("%10s  %10s  %-20s  %10s  %s\n", "STEP", "FOLLOWS", "CREATED", "SIZE",
		       "PATH");
	for (size_t i = 0; i < s->list.n; i++)
		print(s->a, &s->list.items[i]);
	if (!s->list.n && !s->a->json && isatty(STDOUT_FILENO))
		puts("nothing is set aside");
}

/* Returns whether `name`, 40 or 40- and the first digits after it, means this item. */
static bool is_named(const struct cli_item *it, const char *name)
{
	const char *full = it->path + strlen(FOLDER);
	size_t n = strlen(name);

	return strncmp(it->path, FOLDER, strlen(FOLDER)) == 0 && strncmp(full, name, n) == 0 &&
	       (strchr(name, '-') || full[n] == '-');
}

/* Finds the one item that `name` means. Returns 0, or an exit status after printing the error. */
static int find(const struct aside *s, const char *option, const char *name,
                const struct cli_item **out)
{
	const struct cli_item *found = NULL;
	char hint[200], why[160];
	size_t n = 0;

	if (name[strspn(name, "0123456789")] != '-' && name[strspn(name, "0123456789")])
		return cli_usage(s->a, option, "its value must be a step's number, or the number, "
		                 "a dash and the first digits of a session", NULL);
	for (size_t i = 0; i < s->list.n; i++) {
		if (!is_named(&s->list.items[i], name))
			continue;
		found = &s->list.items[i];
		n++;
	}
	if (n == 1) {
		*out = found;
		return 0;
	}
	if (n == 0) {
		snprintf(why, sizeof(why), "no step %.80s is set aside here", name);
		return cli_error(s->a, SHEAF_ENOENT, s->run, why, "sheaf aside RUN lists them");
	}
	snprintf(why, sizeof(why), "%zu saves of step %.80s are set aside", n, name);
	snprintf(hint, sizeof(hint), "%s %.52s names one of them", option,
		 found->path + strlen(FOLDER));
	return cli_usage(s->a, s->run, why, hint);
}

/* Reports what was done with the item, as JSON or for a person at a terminal. */
static void done(const struct aside *s, const struct cli_item *it, bool back)
{
	if (s->a->json)
		cli_line(json_pack("{s:I,s:s,s:o}", "step", (json_int_t)it->step, "action",
				   back ? "restore" : "delete", "path", cli_str(it->path)));
	else if (isatty(STDOUT_FILENO))
		printf("%s: step %lld\n", back ? "brought back" : "deleted", (long long)it->step);
}

static int act(const struct aside *s, const struct cli_item *it, bool back)
{
	struct sheaf_error err = { .msg = "" };
	int rc = back ? sheaf_run_restore(s->run, it->path, &s->opts, &err)
	              : sheaf_run_discard(s->run, it->path, &s->opts, &err);

	if (rc == 0) {
		done(s, it, back);
		return 0;
	}
	return cli_error(s->a, rc, s->run, err.msg, NULL);
}

/* Deletes each step that is set aside. Goes on after a step that cannot be deleted, for example
 * because a process has it open. After such a failure it no longer waits for the run's lock: if
 * a job holds it, each further step would wait as long again. Returns the worst exit status. */
static int delete_all(struct aside *s)
{
	int worst = 0;

	for (size_t i = 0; i < s->list.n; i++) {
		int rc = act(s, &s->list.items[i], false);

		worst = rc > worst ? rc : worst;
		if (rc)
			s->opts.timeout_ms = 2;
	}
	return worst;
}

static int run(const struct cli_args *a)
{
	const char *back = cli_value(a, "restore"), *gone = cli_value(a, "delete");
	struct aside s = { .a = a, .opts = { .size = sizeof(s.opts) } };
	const struct cli_item *it = NULL;
	int64_t timeout = 60000;
	struct cli_place place = { 0 };
	int rc = cli_int(a, "timeout-ms", 1, INT32_MAX, &timeout);

	if (!rc && back && gone)
		rc = cli_usage(a, "--restore", "it cannot be given with --delete", NULL);
	if (!rc)
		rc = cli_place_run(&place, a, a->pos[0]);
	if (rc)
		return rc;
	s.run = place.path;
	s.opts.timeout_ms = (int32_t)timeout;
	rc = read_list(&s);
	if (!rc && !back && !gone)
		list(&s);
	else if (!rc && gone && strcmp(gone, "all") == 0)
		rc = delete_all(&s);
	else if (!rc)
		rc = find(&s, back ? "--restore" : "--delete", back ? back : gone, &it);
	if (!rc && (back || (gone && strcmp(gone, "all") != 0)))
		rc = act(&s, it, back != NULL);
	cli_list_release(&s.list);
	cli_place_release(&place);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "restore", "N", "bring step N back under its number" },
	{ "delete", "N|all", "delete what was set aside of step N, or all of it" },
	{ "timeout-ms", "N", "deadline; half of it to wait for the lock (60000)" },
	{ 0 },
};
const struct cli_verb cli_aside = {
	.name = "aside",
	.brief = "list, bring back or delete what was set aside",
	.synopsis = "sheaf aside RUN [--restore N | --delete N|all] [--timeout-ms N] [--json]",
	.text = "Lists the steps that were set aside: by a rewind, by a resume that fell back to\n"
		"an older one, or by a save of the number of a step that was marked bad. `sheaf\n"
		"show`, `verify` and `copy` take the PATH of each as it is listed, below RUN.\n\n"
		"--restore N brings one back, with the mark that it had; the newest step that is\n"
		"not marked bad is then the latest again. It is refused where the number is\n"
		"taken, where the step is damaged, and where it would come between steps that it\n"
		"has nothing to do with: it must follow the newest step that is there, or be what\n"
		"a step that is there follows. So a rewind is undone from the oldest step on.\n\n"
		"--delete N deletes one, --delete all each of them that no process has open;\n"
		"nothing brings them back.\n\n"
		"Where several saves of one step are set aside, N is its number, a dash and the\n"
		"first digits of its session, as in 8000-3fa2. With --json an object a line:\n"
		"{step, session, parent, created, bytes, path}; of what was done {step, action,\n"
		"path}.",
	.exits = "  0  listed, brought back, deleted\n"
		 "  1  its number is taken, or it is damaged\n"
		 "  2  no such run or step, it does not follow those that are there, the run is\n"
		 "     locked, or a disk failed",
	.examples = "  sheaf aside runs/gpt\n"
		    "  sheaf aside runs/gpt --restore 8000\n"
		    "  sheaf aside runs/gpt --delete all",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "RUN",
	.run = run,
};
