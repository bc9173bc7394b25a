/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the step that a PATH means. */
#include "cli.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "sheaf-admin.h"
#include "sheaf-agent.h"
#include "sheaf-inspect.h"
#include "workload.h"

static bool ends(const char *s, const char *tail)
{
	size_t n = strlen(s), k = strlen(tail);

	return n >= k && strcmp(s + n - k, tail) == 0;
}

static bool is_number(const char *s)
{
	return *s && strspn(s, "0123456789") == strlen(s);
}

/* Returns whether a file has a name as torch_checkpointing gives a rank: <item>_<rank>.pt. */
static bool is_rank_file(const char *name)
{
	size_t n = strlen(name), at = n > 3 ? n - 3 : 0;

	if (!ends(name, ".pt"))
		return false;
	while (at && name[at - 1] >= '0' && name[at - 1] <= '9')
		at--;
	return at > 1 && at < n - 3 && name[at - 1] == '_';
}

/* Returns whether a directory with this entry is a checkpoint: of this library, of Hugging Face, of
 * torch, of Paddle (flex checkpoints are folders of folders), of DeepSpeed or Megatron (a file
 * names the folder of the newest save), or of Orbax and Zarr. */
static bool is_weights(const char *name)
{
	static const char *const names[] = { "sheaf.json", "sheaf.sums", ".metadata",
		"metadata.pkl",
		"model_meta.json", "model_state", "optimizer_state", "master_weight", "ema_state",
		"latest", "latest_universal", "latest_checkpointed_iteration.txt", "common.pt",
		"manifest.ocdbt", "_METADATA", "_CHECKPOINT_METADATA", ".zarray", ".zgroup",
		"zarr.json" };
	static const char *const heads[] = { "global_step", "ocdbt.process_", "pytorch_model",
		"adapter_model", "mp_rank_" };
	static const char *const tails[] = { ".safetensors", ".safetensors.index.json", ".distcp",
		"_states.pt" };

	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
		if (strncmp(name, heads[i], strlen(heads[i])) == 0)
			return true;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
		if (ends(name, tails[i]))
			return true;
	return is_rank_file(name);
}

/* Returns whether an entry of a directory is a save of an Orbax run or an array of Zarr: neither
 * has a file beside it that shows this. */
static bool is_orbax_folder(int dir, const char *name)
{
	static const char *const files[] = { "_CHECKPOINT_METADATA", ".zarray", "zarr.json" };
	char path[300];

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(path, sizeof(path), "%.255s/%s", name, files[i]);
		if (faccessat(dir, path, F_OK, 0) == 0)
			return true;
	}
	return false;
}

/* Finds out what a directory is. A run has .sheaf or checkpoint-N. A checkpoint has a manifest, an
 * index or weights. A directory that has none of these is a run without steps. */
static int kind_of_dir(const char *path, enum cli_kind *kind, bool *bare)
{
	bool run = false, weights = false, steps = false, snapshots = false, blobs = false;
	struct dirent *e;
	DIR *d = opendir(path);
	int rc;

	if (!d)
		return -errno;
	while (errno = 0, (e = readdir(d))) {
		run |= strcmp(e->d_name, ".sheaf") == 0;
		steps |= strncmp(e->d_name, "checkpoint-", 11) == 0 && is_number(e->d_name + 11);
		weights |= is_weights(e->d_name) || is_orbax_folder(dirfd(d), e->d_name);
		snapshots |= strcmp(e->d_name, "snapshots") == 0;
		blobs |= strcmp(e->d_name, "blobs") == 0 || strcmp(e->d_name, "refs") == 0;
	}
	weights |= snapshots && blobs;  /* a repository in the Hugging Face cache */
	rc = -errno;
	closedir(d);
	/* Trainers that do not know runs put checkpoints beside the final weights. */
	*bare = !run && !steps;
	*kind = run || (steps && !weights) || !weights ? CLI_RUN : CLI_DIR;
	return rc;
}

/* Splits RUN@N or RUN@latest. A path that exists with its @ is that path. */
static int split(struct cli_place *p, const struct cli_args *a, const char *text)
{
	size_t n;

	p->kind = CLI_RUN;
	p->step = SHEAF_LATEST;
	switch (wl_step_at(text, &n, &p->step)) {
	case 0:
		p->path[n] = '\0';
		p->kind = CLI_RUN_STEP;
		return 0;
	case SHEAF_EINVAL:
		return cli_error(a, SHEAF_ENOENT, text, "no such path, and what follows @ is "
				 "neither a number nor latest", "as in RUN@1000 or RUN@latest");
	case SHEAF_ENOENT:
		return cli_error(a, SHEAF_ENOENT, text, "no such step", NULL);
	default:
		return 0;
	}
}

int cli_place_parse(struct cli_place *p, const struct cli_args *a, const char *text)
{
	struct cli_place made = { .path = strdup(text) };
	enum cli_kind kind = CLI_RUN;
	struct stat st;
	int rc;

	if (!made.path)
		return cli_nomem(a);
	rc = split(&made, a, text);
	if (rc)
		goto out;
	if (stat(made.path, &st) < 0) {
		rc = cli_error(a, errno == ENOENT || errno == ENOTDIR ? SHEAF_ENOENT : SHEAF_EIO,
			       made.path, strerror(errno), NULL);
		goto out;
	}
	if (S_ISREG(st.st_mode)) {
		if (made.kind == CLI_RUN_STEP)
			rc = cli_error(a, SHEAF_ENOENT, made.path, "this is a file, and @ must "
			               "follow a run", NULL);
		made.kind = CLI_FILE;
	} else if (!S_ISDIR(st.st_mode)) {
		rc = cli_error(a, SHEAF_ENOENT, made.path, "this is neither a directory nor a "
			       "file", NULL);
	} else if (made.kind == CLI_RUN) {
		int code = kind_of_dir(made.path, &kind, &made.bare);

		if (code < 0)
			rc = cli_error(a, SHEAF_EIO, made.path, strerror(-code), NULL);
		else
			made.kind = kind;
	}
out:
	if (rc)
		cli_place_release(&made);
	else
		*p = made;
	return rc;
}

void cli_place_release(struct cli_place *p)
{
	free(p->path);
	p->path = NULL;
}

int cli_place_run(struct cli_place *p, const struct cli_args *a, const char *text)
{
	int rc = cli_place_parse(p, a, text);

	if (rc)
		return rc;
	if (p->kind == CLI_RUN && !p->bare)
		return 0;
	rc = p->kind == CLI_RUN
	   ? cli_error(a, SHEAF_ENOENT, text, "this directory is not a run: it has neither .sheaf "
	               "nor a checkpoint-N", NULL)
	   : p->kind == CLI_RUN_STEP
	   ? cli_usage(a, text, "this is a step, but a run must be given here", NULL)
	   : cli_usage(a, text, "this is not a run", NULL);
	cli_place_release(p);
	return rc;
}

int cli_place_step(struct cli_place *p, const struct cli_args *a, const char *text)
{
	int rc = cli_place_parse(p, a, text);

	if (rc)
		return rc;
	if (p->kind == CLI_RUN_STEP)
		return 0;
	cli_place_release(p);
	return cli_usage(a, text, "this names no step", "as in RUN@1000 or RUN@latest");
}

bool cli_has(const char *dir, const char *file)
{
	char path[4300];
	struct stat st;

	return snprintf(path, sizeof(path), "%s/%s", dir, file) < (int)sizeof(path) &&
	       stat(path, &st) == 0;
}

bool cli_lacks(const char *dir, const char *file)
{
	char path[4300];
	struct stat st;

	return snprintf(path, sizeof(path), "%s/%s", dir, file) < (int)sizeof(path) &&
	       stat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

/* --- steps -------------------------------------------------------------------------------- */

static int open_path(struct cli_step *s, const char *path, bool unverified,
		     struct sheaf_error *err)
{
	struct sheaf_opts opts = { .size = sizeof(opts) };

	opts.flags = SHEAF_RUN_READONLY | (unverified ? SHEAF_RUN_UNVERIFIED : 0);
	return sheaf_checkpoint_open_path(&s->step, path, NULL, &opts, err);
}

/* Only a step that is opened by path can be read despite damage: finds its number, then its
 * path. */
static int open_in_run(struct cli_step *s, bool unverified, struct sheaf_error *err)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	int64_t n = s->place.step;
	char path[4300];
	int rc = sheaf_run_open(&s->run, s->place.path, NULL, &opts, err);

	if (rc < 0)
		return rc;
	if (!unverified || n == SHEAF_LATEST) {
		rc = sheaf_checkpoint_open(&s->step, s->run, n, err);
		if (rc < 0 || !unverified)
			return rc;
		n = sheaf_checkpoint_number(s->step);
		sheaf_checkpoint_close(s->step);
		s->step = NULL;
	}
	rc = sheaf_run_path(s->run, n, path, sizeof(path), err);
	return rc < 0 ? rc : open_path(s, path, true, err);
}

void cli_want_descriptors(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &r);
	}
}

const char *cli_hint_for(const struct sheaf_error *err, char text[100])
{
	struct rlimit r;

	if (err->sys != EMFILE || getrlimit(RLIMIT_NOFILE, &r) != 0)
		return NULL;
	snprintf(text, 100, "at most %llu files may be open in a process; raise ulimit -Hn",
	         (unsigned long long)r.rlim_cur);
	return text;
}

static bool is_of_sheaf(struct sheaf_checkpoint *step)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };

	return sheaf_checkpoint_get_info(step, &info, NULL) == 0 &&
	       strcmp(info.format, "sheaf") == 0;
}

int cli_step_open(struct cli_step *s, const struct cli_args *a, const char *text, bool unverified)
{
	struct cli_step made = { 0 };
	struct sheaf_error err = { .msg = "" };
	char hint[100];
	int rc = cli_place_parse(&made.place, a, text);

	if (rc)
		return rc;
	cli_want_descriptors();         /* one for each file of the step */
	if (made.place.kind == CLI_RUN || made.place.kind == CLI_RUN_STEP)
		rc = open_in_run(&made, unverified, &err);
	else
		rc = open_path(&made, made.place.path, unverified, &err);
	if (rc == 0)
		rc = wl_step_check(made.step, &err);
	if (rc < 0) {
		rc = cli_error(a, rc, text, err.msg, cli_hint_for(&err, hint));
		cli_step_close(&made);
		return rc;
	}
	made.of_sheaf = is_of_sheaf(made.step);
	*s = made;
	return 0;
}

void cli_step_close(struct cli_step *s)
{
	sheaf_checkpoint_close(s->step);
	sheaf_run_close(s->run);
	cli_place_release(&s->place);
	*s = (struct cli_step){ 0 };
}

/* --- lists -------------------------------------------------------------------------------- */

static int keep(void *arg, const struct sheaf_item *item)
{
	struct cli_list *list = arg;
	struct cli_item *more, *it;

	if (list->n == list->cap) {
		size_t cap = list->cap ? 2 * list->cap : 16;

		more = realloc(list->items, cap * sizeof(*more));
		if (!more)
			return SHEAF_ENOMEM;
		list->items = more;
		list->cap = cap;
	}
	it = &list->items[list->n++];
	*it = (struct cli_item){
		.session = strdup(item->session),
		.created = strdup(item->created), .path = strdup(item->path), .step = item->step,
		.parent = item->parent, .bytes = item->bytes, .tries = item->tries,
		.mark = item->mark, .state = item->state,
	};
	return it->session && it->created && it->path ? 0 : SHEAF_ENOMEM;
}

int cli_list_read(struct cli_list *list, struct sheaf_run *run, struct sheaf_error *err)
{
	int rc;

	*list = (struct cli_list){ 0 };
	rc = sheaf_run_list(run, keep, list, err);
	if (rc < 0)
		cli_list_release(list);
	return rc;
}

void cli_item_release(struct cli_item *it)
{
	free(it->session);
	free(it->created);
	free(it->path);
}

void cli_list_release(struct cli_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		cli_item_release(&list->items[i]);
	free(list->items);
	*list = (struct cli_list){ 0 };
}

/* Returns whether the manifest is gone. The library skips such a step, too. */
static bool is_remains(const struct cli_item *it, const char *run)
{
	char path[4300];

	return snprintf(path, sizeof(path), "%s/%s", run, it->path) < (int)sizeof(path) &&
	       cli_lacks(path, "sheaf.json");
}

/* A damaged step counts, so that the user sees it. */
int64_t cli_list_newest(const struct cli_list *list, const char *run)
{
	int64_t step = -1;

	for (size_t i = 0; i < list->n; i++) {
		const struct cli_item *it = &list->items[i];

		if (it->mark != SHEAF_MARK_BAD && it->step > step &&
		    (it->state == SHEAF_ITEM_COMMITTED || it->state == SHEAF_ITEM_UNREAD ||
		     (it->state == SHEAF_ITEM_DAMAGED && !is_remains(it, run))))
			step = it->step;
	}
	return step;
}

/* Callback of sheaf_agent_list: stores the newest step that a job could resume from memory. */
static int note_newest(void *arg, const struct sheaf_memory *m)
{
	int64_t *newest = arg;

	if (!m->lost && m->step > *newest)
		*newest = m->step;
	return 0;
}

/* A job would resume from a newer step in memory, so that one would be meant by "latest", and to
 * act on an older one without a word would surprise. */
static int refuse_newer_in_memory(const char *path, int64_t step, struct sheaf_error *err)
{
	int64_t newest = step;
	int rc = sheaf_agent_list(path, NULL, note_newest, &newest, err);

	if (rc < 0 && rc != SHEAF_ENOENT)
		return rc;
	return newest == step ? 0
	       : wl_fail(err, SHEAF_EINVAL, "step %lld is the latest, but in the memory of an "
	                 "agent alone (name a step on disk by its number)", (long long)newest);
}

/* A link with the name of a newer step may lead to the latest one, so a search for that one stops
 * there, and so do we. */
static int refuse_newer_link(const struct cli_list *list, const char *path, int64_t step,
                             struct sheaf_error *err)
{
	char name[4300];
	struct stat st;

	for (size_t i = 0; i < list->n; i++) {
		const struct cli_item *it = &list->items[i];

		if (it->state == SHEAF_ITEM_FOREIGN && it->mark != SHEAF_MARK_BAD &&
		    it->step > step &&
		    snprintf(name, sizeof(name), "%s/%s", path, it->path) < (int)sizeof(name) &&
		    lstat(name, &st) == 0 && S_ISLNK(st.st_mode))
			return wl_fail(err, SHEAF_EINVAL, "%.100s is a symbolic link, which may be "
			               "the latest (name a step by its number)", it->path);
	}
	return 0;
}

int cli_newest(struct sheaf_run *r, const char *path, int64_t *step, struct sheaf_error *err)
{
	struct cli_list list;
	int rc = cli_list_read(&list, r, err);

	if (rc < 0)
		return rc;
	*step = cli_list_newest(&list, path);
	rc = refuse_newer_link(&list, path, *step, err);
	cli_list_release(&list);
	if (rc < 0)
		return rc;
	if (*step < 0)
		return wl_fail(err, SHEAF_ENOENT, "every step here is marked bad, or there is none "
		               "(name a step by its number)");
	return refuse_newer_in_memory(path, *step, err);
}
