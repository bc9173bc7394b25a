/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf ls: lists the steps of a run, in whatever state they are. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include "sheaf-admin.h"
#include "sheaf-inspect.h"
#include "sheaf-agent.h"
#include "workload.h"

/* At most four columns wide */
static const char *mark_word(int32_t mark)
{
	return mark == SHEAF_MARK_UNREAD ? "?" : mark ? sheaf_mark_name(mark) : "-";
}

static const char *state_word(int32_t state)
{
	return state ? sheaf_item_state_name(state) : "memory";
}

static void print(const struct cli_args *a, const struct cli_item *it)
{
	char size[32], tries[16] = "?";

	if (a->json) {
		cli_line(json_pack("{s:o,s:s,s:o,s:o,s:o,s:I,s:o,s:o,s:o}", "step",
				   cli_num(it->step), "state", state_word(it->state), "session",
				   cli_str(it->session), "parent", cli_num(it->parent), "created",
				   cli_str(it->created), "bytes", (json_int_t)it->bytes, "mark",
				   cli_str(sheaf_mark_name(it->mark)), "tries", cli_num(it->tries),
				   "path", cli_str(it->path)));
		return;
	}
	if (it->step >= 0)
		printf("%10lld", (long long)it->step);
	else
		printf("%10s", "-");
	if (it->tries >= 0)
		snprintf(tries, sizeof(tries), "%d", (int)it->tries);
	printf("  %-9s  %-20s  %10s  %-4s  %5s  ", state_word(it->state), *it->created ? it->created
	       : "-",
	       wl_size(size, it->bytes), mark_word(it->mark), tries);
	cli_put(stdout, it->path);
	putchar('\n');
}

static void header(const struct cli_args *a)
{
	if (!a->json)
		printf("%10s  %-9s  %-20s  %10s  %-4s  %5s  %s\n", "STEP", "STATE", "CREATED",
		       "SIZE", "MARK", "TRIES", "PATH");
}

/* Prints a checkpoint outside a run as a list of one. */
static int ls_path(const struct cli_args *a)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	struct cli_item it = { 0 };
	struct cli_step s;
	int rc = cli_step_open(&s, a, a->pos[0], false);

	if (rc)
		return rc;
	rc = sheaf_checkpoint_get_info(s.step, &info, NULL);
	if (rc < 0) {
		rc = cli_error(a, rc, a->pos[0], "", NULL);
	} else {
		bool ours = strcmp(info.format, "sheaf") == 0;

		it.state = ours ? SHEAF_ITEM_COMMITTED : SHEAF_ITEM_FOREIGN;
		it.session = (char *)(uintptr_t)info.session;
		it.created = (char *)(uintptr_t)info.created;
		it.path = (char *)(uintptr_t)a->pos[0];
		it.step = info.step;
		it.parent = info.parent;
		it.bytes = info.bytes;
		header(a);
		print(a, &it);
	}
	cli_step_close(&s);
	return rc;
}

struct in_memory {              /* steps of this node's agent, newest first */
	struct cli_list *list;
	bool nomem;
};

/* Adds a step that is in memory but not on disk, if a job could load it. */
static int remember(void *arg, const struct sheaf_memory *m)
{
	struct in_memory *im = arg;
	struct cli_list *l = im->list;
	struct cli_item it;
	size_t at = l->n;

	if (m->lost || m->here < m->ranks)
		return 0;
	for (size_t i = 0; i < l->n; i++)
		if (l->items[i].step >= m->step && l->items[i].state == SHEAF_ITEM_COMMITTED)
			return 0;
	if (l->n == l->cap) {
		struct cli_item *more = realloc(l->items, 2 * (l->cap + 1) * sizeof(*more));

		if (!more) {
			im->nomem = true;
			return 1;
		}
		l->items = more;
		l->cap = 2 * (l->cap + 1);
	}
	it = (struct cli_item){ .created = strdup(""),
		.session = strdup(m->session), .path = strdup(""), .step = m->step, .parent = -1,
		.bytes = m->bytes, .tries = m->tries };
	im->nomem = !it.created || !it.session || !it.path;
	if (im->nomem) {
		cli_item_release(&it);
		return 1;
	}
	while (at > 0 && l->items[at - 1].step > m->step)
		at--;
	memmove(&l->items[at + 1], &l->items[at], (l->n - at) * sizeof(*l->items));
	l->items[at] = it;
	l->n++;
	return 0;
}

static int add_memory(const struct cli_args *a, const char *dir, struct cli_list *list)
{
	const char *socket = cli_value(a, "socket");
	struct in_memory im = { list, false };
	struct sheaf_error err = { .msg = "" };
	int rc = sheaf_agent_list(dir, socket, remember, &im, &err);

	if (im.nomem)
		return cli_nomem(a);
	/* An agent that was named must exist; otherwise most runs have none. */
	if (rc < 0 && (rc != SHEAF_ENOENT || socket))
		return cli_error(a, rc, dir, err.msg, "steps in memory are not listed");
	return 0;
}

/* Lists a run: everything, one step (path NULL), or the entry at a path. */
static int ls_run(const struct cli_args *a, const char *dir, bool one, int64_t only,
		  const char *path)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	struct sheaf_error err = { .msg = "" };
	struct cli_list list = { 0 };
	struct sheaf_run *r = NULL;
	bool any = false;
	int rc = sheaf_run_open(&r, dir, NULL, &opts, &err), unlisted = 0;

	if (rc == 0)
		rc = cli_list_read(&list, r, &err);
	if (rc < 0)
		rc = cli_error(a, rc, dir, err.msg, NULL);
	else if (!path)
		unlisted = add_memory(a, dir, &list);
	if (!rc && one && only == SHEAF_LATEST)
		only = cli_list_newest(&list, dir);
	for (size_t i = 0; i < list.n; i++) {
		if ((one && list.items[i].step != only) ||
		    (path && strcmp(list.items[i].path, path) != 0))
			continue;
		if (!any)
			header(a);
		any = true;
		print(a, &list.items[i]);
	}
	if (!rc && !any && one)
		rc = cli_error(a, SHEAF_ENOENT, a->pos[0], "no such step (sheaf ls RUN lists what "
		               "there is)", NULL);
	cli_list_release(&list);
	sheaf_run_close(r);
	return rc ? rc : unlisted;
}

/* Returns the number of the step whose folder in the run has this name, or -1 if this is not the
 * name of a step's folder. The digits at the end of the name are the number, because no prefix ends
 * in a digit. */
static int64_t number_in_run(const char *run, const char *name)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	size_t n = strlen(name), digits = 0;
	struct sheaf_run *r = NULL;
	int64_t step = -1;
	char path[4300];

	while (digits < n && name[n - digits - 1] >= '0' && name[n - digits - 1] <= '9')
		digits++;
	if (!digits || digits > 18 || sheaf_run_open(&r, run, NULL, &opts, NULL) < 0)
		return -1;
	step = strtoll(name + n - digits, NULL, 10);
	if (sheaf_run_path(r, step, path, sizeof(path), NULL) < 0 ||
	    strcmp(strrchr(path, '/') + 1, name) != 0)
		step = -1;
	sheaf_run_close(r);
	return step;
}

/* Lists a directory. A step's directory in a run is listed as a step of the run: with the same
 * size, mark and path. */
static int ls_dir(const struct cli_args *a, const struct cli_place *place)
{
	char *real = realpath(place->path, NULL), *name = real ? strrchr(real, '/') : NULL;
	int64_t step;
	int rc;

	if (!name || name == real)
		goto alone;
	*name = '\0';
	step = cli_has(real, ".sheaf") ? number_in_run(real, name + 1) : -1;
	if (step < 0)
		goto alone;
	rc = ls_run(a, real, true, step, name + 1);
	free(real);
	return rc;
alone:
	free(real);
	return ls_path(a);
}

static int run(const struct cli_args *a)
{
	struct cli_place place;
	int rc = cli_place_parse(&place, a, a->pos[0]);

	if (!rc && place.kind == CLI_RUN && place.bare) {
		cli_place_release(&place);
		rc = cli_place_run(&place, a, a->pos[0]); /* prints the error */
	}
	if (rc)
		return rc;
	if (place.kind == CLI_RUN)
		rc = ls_run(a, place.path, false, -1, NULL);
	else if (place.kind == CLI_RUN_STEP)
		rc = ls_run(a, place.path, true, place.step, NULL);
	else if (place.kind == CLI_DIR)
		rc = ls_dir(a, &place);
	else
		rc = ls_path(a);
	cli_place_release(&place);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "socket", "PATH", "where the agent listens (by the run's identity, below /tmp)" },
	{ 0 },
};
const struct cli_verb cli_ls = {
	.name = "ls",
	.brief = "list the steps of a run",
	.synopsis = "sheaf ls RUN|RUN@N|PATH [--socket PATH] [--json]",
	.text = "Lists what lies in a run by step: committed steps, damaged ones (their\n"
		"manifest or the size of a file is wrong), unread ones (the disk or the\n"
		"permissions would not let them be looked at), foreign ones (no manifest), steps\n"
		"set aside (`sheaf aside`), steps being made, and steps that the agent of this\n"
		"node (`sheaf agent`) has in memory and the disk has not. SIZE counts all files\n"
		"that the manifest names, TRIES the jobs that loaded a step and died before they\n"
		"saved one. A job that sets opts.resume_attempts_max marks a step bad at that\n"
		"number; `sheaf mark RUN@N none` takes it back. A checkpoint outside a run\n"
		"is a list of one. An empty run prints nothing. A `?` could not be read\n"
		"(--json: a mark is unread, TRIES null).",
	.exits = "  0  listed, perhaps nothing\n"
		 "  1  a damaged checkpoint, or a file that is no safetensors file\n"
		 "  2  no such path, or it, or what the agent has, could not be read",
	.examples = "  sheaf ls runs/gpt\n"
		    "  sheaf ls runs/gpt --json | jq -r 'select(.mark==\"keep\").step'",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "RUN",
	.run = run,
};
