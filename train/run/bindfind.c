/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint that a training begins with. */
#include "bindstore.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sheaf-admin.h"
#include "sheaf-inspect.h"

static const char config_file[] = "train.yaml";

/* Sets *own to whether `dir` is the directory of the run, perhaps by another path. EINVAL: that is
 * so on some ranks only. */
static int is_own_run(const struct tr_store *s, const char *dir, int *own, struct tr_error *err)
{
	struct stat a, b;
	uint64_t x[2];
	int rc;

	*own = stat(dir, &a) == 0 && stat(s->run_dir, &b) == 0 && a.st_dev == b.st_dev &&
		a.st_ino == b.st_ino;
	x[0] = (uint64_t)*own;
	x[1] = !*own;
	rc = tr_allreduce(s->ranks, x, 2, TR_MAX, err);
	if (rc == 0 && x[0] && x[1])
		rc = tr_fail(err, TR_EINVAL, "resume: %s is the run itself on some ranks only; "
			     "use a path that means the same on all of them", dir);
	return rc;
}

/* Opens the checkpoint of "RUN@STEP". */
static int open_named(struct tr_store *s, const char *resume, int rewind, struct tr_error *err)
{
	const char *at = strrchr(resume, '@');
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = s->ranks->timeout_ms,
				   .flags = SHEAF_RUN_READONLY };
	struct sheaf_run *run = s->run;
	struct sheaf_error e;
	char dir[4096], *end;
	long long n;
	int own, rc;

	n = at ? strtoll(at + 1, &end, 10) : -1;
	if (!at || n < 0 || at[1] == 0 || *end || at == resume || at - resume >= 4096)
		return tr_fail(err, TR_EINVAL, "resume: it must be auto, none or RUN@STEP, not "
			       "'%s'", resume);
	snprintf(dir, sizeof(dir), "%.*s", (int)(at - resume), resume);
	rc = is_own_run(s, dir, &own, err);
	if (rc == 0 && !own && rewind)
		rc = tr_fail(err, TR_EINVAL, "rewind: %s is another run than %s, and a training "
			     "rewinds its own run only; leave rewind out", dir, s->run_dir);
	if (rc == 0 && !own) {
		rc = tr_store_pass(err, &e, sheaf_run_open(&s->other, dir, s->group, &opts, &e));
		run = s->other;
	}
	if (rc == 0 && rewind)
		s->rewind_to = n;
	if (rc < 0)
		return rc;
	snprintf(s->name, sizeof(s->name), "%s@%lld", dir, n);
	return tr_store_pass(err, &e, sheaf_checkpoint_open(&s->found, run, n, &e));
}

static int note(const struct tr_store *s, const char *key, uint64_t *x, struct tr_error *err)
{
	const char *text = sheaf_checkpoint_note(s->found, key);
	char *end;

	if (text)
		*x = strtoull(text, &end, 10);
	if (!text || !*text || *end)
		return tr_fail(err, TR_EFORMAT, "%s has no note %s: it was not saved by "
			       "sheaf-train; use init model to begin with its weights", s->name,
			       key);
	return 0;
}

const char *const tr_store_keys[TR_NOTES] = {
	"train.consumed_samples", "train.tokens", "train.seed", "train.virtual", "adam.step",
	"train.data_tokens", "train.data_hash", "train.virtual_tp" };

static int read_notes(const struct tr_store *s, struct tr_progress *p, struct tr_error *err)
{
	uint64_t x[TR_NOTES] = { 0 };

	for (int i = 0; i < TR_NOTES; i++) {
		int rc = i < TR_NOTES_NEEDED || sheaf_checkpoint_note(s->found, tr_store_keys[i]) ?
			note(s, tr_store_keys[i], &x[i], err) : 0;

		if (rc < 0)
			return rc;
	}
	*p = (struct tr_progress){ .step = sheaf_checkpoint_number(s->found),
		.consumed = (int64_t)x[0], .tokens = (int64_t)x[1], .seed = x[2],
		.virtual_dp = (int64_t)x[3], .adam_step = (int64_t)x[4],
		.data_tokens = (int64_t)x[5], .data_hash = x[6], .virtual_tp = (int64_t)x[7] };
	return 0;
}

static int see_newest(void *arg, const struct sheaf_item *item)
{
	int64_t *newest = arg;

	if (item->state == SHEAF_ITEM_COMMITTED && item->mark != SHEAF_MARK_BAD &&
	    item->step > *newest)
		*newest = item->step;
	return 0;
}

/* Fails if the run has a newer step than the training begins with. The library would refuse to save
 * an older one, but only at the first save. Sets *on_disk to whether the run has the step itself on
 * disk. */
static int check_newest(const struct tr_store *s, int64_t step, int *on_disk,
			struct tr_error *err)
{
	struct sheaf_error e;
	int64_t newest = -1;
	int rc = tr_store_pass(err, &e, sheaf_run_list(s->run, see_newest, &newest, &e));

	if (rc == 0 && newest > step && s->rewind_to < 0)
		rc = tr_fail(err, TR_EINVAL, "%s has step %" PRId64 ", and the training begins "
			     "with step %" PRId64 "; use resume auto, another run, or resume "
			     "RUN@STEP with rewind", s->run_dir, newest, step);
	*on_disk = newest >= step;
	return rc;
}

/* It is no error if the checkpoint has no such file. It is one if the file is listed but cannot be
 * read. */
int tr_store_file(struct tr_store *s, const char *name, const char **text, size_t *n,
		  struct tr_error *err)
{
	const void *bytes = NULL;
	const char *file;
	struct sheaf_error e;
	uint64_t size;
	int rc = 0;

	for (size_t i = 0; rc == 0; i++) {
		rc = sheaf_checkpoint_file_at(s->found, i, &file, &size, &e);
		if (rc == 0 && strcmp(file, name) == 0) {
			rc = sheaf_checkpoint_file(s->found, name, &bytes, n, &e);
			break;
		}
	}
	*text = rc == 0 ? bytes : NULL;
	return rc == SHEAF_EEND ? 0 : tr_store_pass(err, &e, rc);
}

int tr_store_find(struct tr_store *s, const char *resume, int rewind, struct tr_progress *p,
		  const char **config, size_t *n, struct tr_error *err)
{
	struct sheaf_error e;
	int rc;

	*p = (struct tr_progress){ .step = 0 };
	*config = NULL;
	if (strcmp(resume, "none") == 0)
		return check_newest(s, 0, &p->on_disk, err);
	if (strcmp(resume, "auto") == 0) {
		rc = sheaf_checkpoint_open(&s->found, s->run, SHEAF_LATEST, &e);
		if (rc == SHEAF_ENOENT)
			return check_newest(s, 0, &p->on_disk, err);
		rc = tr_store_pass(err, &e, rc);
		if (rc == 0)
			snprintf(s->name, sizeof(s->name), "%s@%" PRId64, s->run_dir,
				 sheaf_checkpoint_number(s->found));
	} else {
		rc = open_named(s, resume, rewind, err);
	}
	if (rc == 0)
		rc = read_notes(s, p, err);
	if (rc == 0)
		rc = check_newest(s, p->step, &p->on_disk, err);
	return rc == 0 ? tr_store_file(s, config_file, config, n, err) : rc;
}

int tr_store_is_other(const struct tr_store *s)
{
	return s->other != NULL;
}

int tr_store_rewind(struct tr_store *s, struct tr_error *err)
{
	struct sheaf_error e;
	int rc;

	if (s->rewind_to < 0)
		return 0;
	/* A dry load checks the names, shapes and types of all tensors, and reads none. */
	rc = tr_store_fill(s, SHEAF_LOAD_DRY, &e);
	if (rc == 0)
		rc = sheaf_run_rewind(s->run, s->rewind_to, &e);
	return tr_store_pass(err, &e, rc);
}

const char *tr_store_found(const struct tr_store *s)
{
	return s->name;
}
