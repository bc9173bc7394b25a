/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the checkpoint that a job begins with, and reads its notes and attached files. */
#include "bindstore.h"
#include "configread.h"

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

enum { NO_STEP = -2 };

/* The run or directory that `resume` names. */
struct place {
	char dir[4096];                 /* a run, or the directory of a checkpoint */
	/* Of the run; SHEAF_LATEST for its newest one; NO_STEP: it is the directory of a
	 * checkpoint. */
	int64_t step;
};

/* Reads digits up to the end of a text. Returns NO_STEP if there is anything else. */
static int64_t read_step(const char *digits)
{
	char *end;
	long long n = strtoll(digits, &end, 10);

	return *digits >= '0' && *digits <= '9' && !*end ? n : NO_STEP;
}

/* Returns the step of a directory whose name is that of a checkpoint of sheaf-train, or NO_STEP. */
static int64_t step_of_name(const char *name)
{
	static const char prefix[] = "checkpoint-";
	size_t n = sizeof(prefix) - 1;

	return strncmp(name, prefix, n) == 0 ? read_step(name + n) : NO_STEP;
}

/* Sets *is to whether a path is that of a directory on rank 0. */
static int is_directory(const struct tr_store *s, const char *path, int *is, struct tr_error *err)
{
	uint64_t x = s->ranks->rank == 0 && tr_is_directory(path);
	int rc = tr_allreduce(s->ranks, &x, 1, TR_MAX, err);

	*is = x != 0;
	return rc;
}

/* Reads "RUN@STEP", "RUN@latest" or a directory, whose name may look like that. The directory of a
 * checkpoint of this run is RUN@STEP, too. Any other directory in the run is not a checkpoint of
 * it, for example a copy or an export. */
static int read_place(const struct tr_store *s, const char *resume, struct place *at, int *own,
		      struct tr_error *err)
{
	const char *sign = strrchr(resume, '@'), *base;
	size_t n = strlen(resume);
	char parent[4096];
	int dir, rc = is_directory(s, resume, &dir, err);

	if (rc < 0)
		return rc;
	while (n > 1 && resume[n - 1] == '/')
		n--;
	if (n >= sizeof(at->dir))
		return tr_fail(err, TR_EINVAL, "resume: the path has more than %zu bytes; use a "
			       "shorter one", sizeof(at->dir) - 1);
	at->step = dir || !sign || sign == resume ? NO_STEP : strcmp(sign + 1, "latest") == 0 ?
		SHEAF_LATEST : read_step(sign + 1);
	if (at->step != NO_STEP)
		n = (size_t)(sign - resume);
	snprintf(at->dir, sizeof(at->dir), "%.*s", (int)n, resume);
	if (at->step != NO_STEP)
		return is_own_run(s, at->dir, own, err);
	base = strrchr(at->dir, '/');
	snprintf(parent, sizeof(parent), "%.*s", base ? (int)(base - at->dir) : 1,
		 base ? at->dir : ".");
	rc = is_own_run(s, *parent ? parent : "/", own, err);
	at->step = rc == 0 && *own ? step_of_name(base ? base + 1 : at->dir) : NO_STEP;
	*own = at->step != NO_STEP;
	if (*own)
		memcpy(at->dir, parent, sizeof(at->dir));
	return rc;
}

/* Refuses to rewind to what is no checkpoint of the run. */
static int refuse_rewind(const struct tr_store *s, const char *resume, const struct place *at,
			 struct tr_error *err)
{
	int itself, rc = is_own_run(s, at->dir, &itself, err);

	if (rc < 0)
		return rc;
	if (itself)
		return tr_fail(err, TR_EINVAL, "rewind: resume %s is the run itself; use RUN@STEP "
			       "or RUN@latest", resume);
	return tr_fail(err, TR_EINVAL, "rewind: %s is not in %s, and a training rewinds its own "
		       "run only; leave rewind out", resume, s->run_dir);
}

/* Opens the checkpoint that `resume` names. */
static int open_named(struct tr_store *s, const char *resume, int rewind, struct tr_error *err)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = s->ranks->timeout_ms,
				   .flags = SHEAF_RUN_READONLY };
	struct sheaf_run *run = s->run;
	struct sheaf_error e;
	struct place at;
	int own, rc = read_place(s, resume, &at, &own, err);

	if (rc == 0 && !own && rewind)
		rc = refuse_rewind(s, resume, &at, err);
	if (rc < 0)
		return rc;
	s->elsewhere = !own;
	if (at.step == NO_STEP) {
		snprintf(s->name, sizeof(s->name), "%s", at.dir);
		opts.flags = 0;
		rc = sheaf_checkpoint_open_path(&s->found, at.dir, s->group, &opts, &e);
		if (rc == SHEAF_ENOENT)
			return tr_fail(err, TR_ENOENT, "resume %s: it is neither auto, none, "
				       "RUN@STEP, RUN@latest nor a directory; use one of them",
				       resume);
		return tr_store_pass(err, &e, rc);
	}
	if (!own) {
		rc = tr_store_pass(err, &e, sheaf_run_open(&s->other, at.dir, s->group, &opts, &e));
		run = s->other;
	}
	if (rc == 0)
		rc = tr_store_pass(err, &e, sheaf_checkpoint_open(&s->found, run, at.step, &e));
	if (rc < 0)
		return rc;
	at.step = sheaf_checkpoint_number(s->found);
	snprintf(s->name, sizeof(s->name), "%s@%" PRId64, at.dir, at.step);
	if (rewind)
		s->rewind_to = at.step;
	return 0;
}

/* Looks for the newest checkpoint whose list of tensors is whole, if that of the newest one is
 * damaged. Nothing is set aside yet. */
static int open_older(struct tr_store *s, struct sheaf_error *err)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = s->ranks->timeout_ms,
				   .flags = SHEAF_RUN_READONLY };
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_state *none = sheaf_state_new();
	struct sheaf_run *run = NULL;
	int rc = sheaf_run_open(&run, s->run_dir, s->group, &opts, err);

	if (rc == 0)
		rc = sheaf_run_resume(run, none, SHEAF_LOAD_FALLBACK, &report, err);
	sheaf_state_free(none);
	sheaf_run_close(run);
	return rc < 0 ? rc : sheaf_checkpoint_open(&s->found, s->run, report.step, err);
}

/* Opens the newest checkpoint of the run. ENOENT: there is none. */
static int open_newest(struct tr_store *s, struct sheaf_error *err)
{
	int rc = sheaf_checkpoint_open(&s->found, s->run, s->only ? s->only : SHEAF_LATEST, err);

	s->newest = !s->only;
	if (s->sets_aside)
		s->rewind_to = s->only;
	if (rc == SHEAF_ECORRUPT && !s->only)
		rc = open_older(s, err);
	if (rc == 0)
		snprintf(s->name, sizeof(s->name), "%s@%" PRId64, s->run_dir,
			 sheaf_checkpoint_number(s->found));
	return rc;
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

const char tr_store_loss_key[] = "eval.loss", tr_store_best_key[] = "eval.key";
const char tr_store_isa_key[] = "train.isa";
const char *const tr_store_keys[TR_NOTES] = {
	"train.consumed_samples", "train.tokens", "train.seed", "train.virtual", "adam.step",
	"train.data_tokens", "train.data_hash", "train.virtual_tp" };

/* Reads the notes of a checkpoint that is not in this run. It may have none, because other software
 * has saved it. Then only its tensors count, and its moments if the number of updates is noted. */
static int read_foreign(struct tr_store *s, struct tr_progress *p)
{
	const char *updates = sheaf_checkpoint_note(s->found, "adam.step");

	s->foreign = s->elsewhere && !sheaf_checkpoint_note(s->found, tr_store_keys[0]);
	if (!s->foreign)
		return 0;
	p->adam_step = updates ? read_step(updates) : -1;
	s->moments = p->adam_step >= 0;
	return 1;
}

static int read_notes(struct tr_store *s, struct tr_progress *p, struct tr_error *err)
{
	const char *isa = sheaf_checkpoint_note(s->found, tr_store_isa_key);
	uint64_t x[TR_NOTES] = { 0 };

	p->found = s->moments = 1;
	if (read_foreign(s, p))
		return 0;
	for (int i = 0; i < TR_NOTES; i++) {
		int rc = i < TR_NOTES_NEEDED || sheaf_checkpoint_note(s->found, tr_store_keys[i]) ?
			note(s, tr_store_keys[i], &x[i], err) : 0;

		if (rc < 0)
			return rc;
	}
	*p = (struct tr_progress){ .step = sheaf_checkpoint_number(s->found), .found = 1,
		.consumed = (int64_t)x[0], .tokens = (int64_t)x[1], .seed = x[2],
		.virtual_dp = (int64_t)x[3], .adam_step = (int64_t)x[4],
		.data_tokens = (int64_t)x[5], .data_hash = x[6], .virtual_tp = (int64_t)x[7] };
	snprintf(p->isa, sizeof(p->isa), "%s", isa ? isa : "");
	return 0;
}

/* What the run has on disk. */
struct content_of_run {
	int64_t newest;                 /* committed step that is not marked bad; -1: none */
	int64_t last;                   /* of all directories, also damaged ones; -1: none */
	int64_t step;                   /* which is looked for */
	int has;                        /* 1: it is committed */
};

static int see_content(void *arg, const struct sheaf_item *item)
{
	struct content_of_run *c = arg;
	int committed = item->state == SHEAF_ITEM_COMMITTED;

	if (item->state == SHEAF_ITEM_ASIDE || item->state == SHEAF_ITEM_STAGED)
		return 0;
	c->last = item->step > c->last ? item->step : c->last;
	if (committed && item->mark != SHEAF_MARK_BAD && item->step > c->newest)
		c->newest = item->step;
	c->has |= committed && item->step == c->step;
	return 0;
}

/* Fails if the run has checkpoints after which the job cannot save: a newer step than it begins
 * with, so that the library would refuse the first save, or those of another job. Sets *on_disk to
 * 1 if the checkpoint of the step is on the run's disk, else to 0. */
static int check_newest(struct tr_store *s, int64_t step, int *on_disk, struct tr_error *err)
{
	struct content_of_run c = { .newest = -1, .last = -1, .step = step };
	struct sheaf_error e;
	int rc = tr_store_pass(err, &e, sheaf_run_list(s->run, see_content, &c, &e));

	if (rc == 0 && s->elsewhere && c.newest >= 0)
		return tr_fail(err, TR_EINVAL, "%s has checkpoints of its own, up to step %" PRId64
			       ", and those of a training that resumes %s would mix with them; use "
			       "another run, or resume auto", s->run_dir, c.newest, s->name);
	/* The load of the newest checkpoint that is whole sets damaged ones aside itself. */
	if (rc == 0 && c.newest > step && s->rewind_to < 0 && !s->newest)
		rc = tr_fail(err, TR_EINVAL, "%s has step %" PRId64 ", and the training begins "
			     "with step %" PRId64 "; use resume auto, another run, or resume "
			     "RUN@STEP with rewind", s->run_dir, c.newest, step);
	/* Nothing on disk is newer, for example because the step is in memory only. */
	if (rc == 0 && c.last <= step)
		s->rewind_to = -1;
	*on_disk = c.has && !s->elsewhere;
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

/* Reads all files that are attached to the checkpoint, as a check. [collective] */
static int check_files(const struct tr_store *s, struct tr_error *err)
{
	struct sheaf_error e;
	int rc = 0;

	for (size_t i = 0; rc == 0; i++) {
		const char *file;
		const void *bytes;
		uint64_t size;
		size_t n;

		rc = sheaf_checkpoint_file_at(s->found, i, &file, &size, &e);
		if (rc == 0)
			rc = sheaf_checkpoint_file(s->found, file, &bytes, &n, &e);
	}
	return tr_agree(s->ranks, rc == SHEAF_EEND ? 0 : tr_store_pass(err, &e, rc), err);
}

struct before {
	int64_t at, step;               /* step: the newest one before `at`; -1: none */
};

/* A checkpoint that the list calls damaged counts, too: an attempt to open it says why it is. */
static int see_before(void *arg, const struct sheaf_item *item)
{
	struct before *b = arg;

	if ((item->state == SHEAF_ITEM_COMMITTED || item->state == SHEAF_ITEM_DAMAGED) &&
	    item->mark != SHEAF_MARK_BAD && item->step < b->at && item->step > b->step)
		b->step = item->step;
	return 0;
}

/* Returns the newest step on disk before `at` that is not marked bad, or -1. */
static int64_t step_before(const struct tr_store *s, int64_t at)
{
	struct before b = { at, -1 };

	return sheaf_run_list(s->run, see_before, &b, NULL) == 0 ? b.step : -1;
}

/* Prints that a checkpoint is passed over or set aside, and calls s->passed. */
static void report(const struct tr_store *s, int64_t step, const char *what, const char *why)
{
	char name[40];

	if (s->ranks->rank)
		return;
	snprintf(name, sizeof(name), "checkpoint-%" PRId64, step);
	fprintf(stderr, "sheaf-train: %s: %s is %s: %s\n", s->run_dir, name, what, why);
	if (s->passed)
		s->passed(s->arg, name, why);
}

/* Opens the newest checkpoint before the one that was found, which is damaged, and passes over
 * those that cannot be opened because they are damaged, too. The training rewinds to it when all of
 * it is verified.
 * err  says what is damaged; if no checkpoint is left, also afterwards */
static int open_before(struct tr_store *s, struct tr_error *err)
{
	int64_t at = sheaf_checkpoint_number(s->found);
	struct sheaf_error e;
	int rc = TR_ECORRUPT;

	while (rc == TR_ECORRUPT || rc == TR_ENOENT) {
		uint64_t before = (uint64_t)(step_before(s, at) + 1);
		int none = tr_allreduce(s->ranks, &before, 1, TR_MAX, err);

		if (none < 0 || !before)
			return none < 0 ? none : TR_ECORRUPT;
		/* ENOENT: what is left of a checkpoint that was removed by hand. */
		if (rc == TR_ECORRUPT)
			report(s, at, "passed over", err->msg);
		sheaf_checkpoint_close(s->found);
		s->found = NULL;
		at = (int64_t)before - 1;
		rc = sheaf_checkpoint_open(&s->found, s->run, at, &e);
		if (rc != TR_ENOENT)
			rc = tr_store_pass(err, &e, rc);
	}
	s->newest = 0;
	s->rewind_to = at;
	snprintf(s->name, sizeof(s->name), "%s@%" PRId64, s->run_dir, at);
	return rc;
}

/* Finds the checkpoint of "auto". p->found stays 0 if there is none. */
static int find_newest(struct tr_store *s, struct tr_progress *p, struct tr_error *err)
{
	struct sheaf_error e;
	int rc = s->run ? open_newest(s, &e) : SHEAF_ENOENT;

	if (rc == SHEAF_ENOENT)
		return 0;
	rc = tr_store_pass(err, &e, rc);
	if (rc == 0)
		rc = check_files(s, err);
	while (rc == TR_ECORRUPT && s->found) {
		rc = open_before(s, err);
		if (rc == TR_ECORRUPT)
			break;
		if (rc == 0)
			rc = check_files(s, err);
	}
	return rc == 0 ? read_notes(s, p, err) : rc;
}

/* Reads the loss of eval-data, if the checkpoint has it. */
static void read_loss(const struct tr_store *s, struct tr_progress *p)
{
	const char *text = sheaf_checkpoint_note(s->found, *s->loss_key ? s->loss_key :
						 tr_store_loss_key);

	p->evaluated = text != NULL;
	p->eval_loss = text ? strtod(text, NULL) : 0;
}

/* Refuses keep-best if the checkpoints of the run have losses of something else: the best of them
 * would not count as such, and would be deleted. */
static int check_loss(const struct tr_store *s, struct tr_error *err)
{
	const char *was = s->found && !s->elsewhere ?
		sheaf_checkpoint_note(s->found, tr_store_best_key) : NULL;

	if (!s->keeps_best || !*s->loss_key || !was || strcmp(was, s->loss_key) == 0)
		return 0;
	return tr_fail(err, TR_EINVAL, "keep-best: %s was trained with another eval-data or "
		       "eval-ema, so its loss and those of this training cannot be compared; use "
		       "these, leave keep-best out, or use another run", s->name);
}

int tr_store_find(struct tr_store *s, const char *resume, int rewind, struct tr_progress *p,
		  const char **config, size_t *n, struct tr_error *err)
{
	int rc = 0;

	*p = (struct tr_progress){ .step = 0 };
	*config = NULL;
	s->falls_back = strcmp(resume, "auto") == 0;
	if (s->falls_back) {
		rc = find_newest(s, p, err);
	} else if (strcmp(resume, "none") != 0) {
		rc = open_named(s, resume, rewind, err);
		if (rc == 0)
			rc = read_notes(s, p, err);
	}
	if (rc == 0 && !s->reads_only)
		rc = check_newest(s, p->step, &p->on_disk, err);
	if (rc == 0 && !s->reads_only)
		rc = check_loss(s, err);
	/* A checkpoint that only memory has will be saved to disk, with its loss. */
	if (rc == 0 && p->found && !p->on_disk && !s->elsewhere)
		read_loss(s, p);
	if (rc == 0 && p->found && !s->foreign)
		rc = tr_store_file(s, config_file, config, n, err);
	return rc;
}

int tr_store_is_other(const struct tr_store *s)
{
	return s->elsewhere;
}

int tr_store_has_moments(const struct tr_store *s)
{
	return s->moments;
}

/* Checkpoints of a run. */
struct steps {
	int64_t *step;                  /* owned */
	size_t n;
	int64_t after;                  /* only later ones are listed */
};

static int see_later(void *arg, const struct sheaf_item *item)
{
	struct steps *l = arg;
	int64_t *more;

	if (item->step <= l->after || (item->state != SHEAF_ITEM_COMMITTED &&
				       item->state != SHEAF_ITEM_DAMAGED))
		return 0;
	more = realloc(l->step, (l->n + 1) * sizeof(*more));
	if (!more)
		return SHEAF_ENOMEM;
	l->step = more;
	l->step[l->n++] = item->step;
	return 0;
}

/* Reports those of the listed checkpoints that are no longer in the run, the newest first. */
static void report_set_aside(const struct tr_store *s, const struct steps *l)
{
	char path[4200];
	struct stat st;

	for (size_t i = l->n; i-- > 0;)
		if (sheaf_run_path(s->run, l->step[i], path, sizeof(path), NULL) == 0 &&
		    stat(path, &st) < 0)
			report(s, l->step[i], "set aside", "it is kept in .sheaf/aside");
}

/* Rewinds the run. If nobody has asked for that, what is set aside is reported. */
static int rewind_run(struct tr_store *s, struct sheaf_error *err)
{
	struct steps later = { .after = s->rewind_to };
	int rc;

	/* No more than a report depends on the list. */
	if (s->falls_back && s->ranks->rank == 0)
		(void)sheaf_run_list(s->run, see_later, &later, NULL);
	rc = sheaf_run_rewind(s->run, s->rewind_to, err);
	if (rc == 0)
		report_set_aside(s, &later);
	free(later.step);
	return rc;
}

int tr_store_rewind(struct tr_store *s, int64_t *older, struct tr_error *err)
{
	struct sheaf_error e;
	int rc;

	*older = -1;
	if (s->rewind_to < 0 || (s->reads_only && !s->falls_back))
		return 0;
	/* What is newer may be all that is whole, so every byte is checked before it is set
	 * aside. */
	rc = sheaf_checkpoint_verify(s->found, NULL, &e);
	if (rc < 0) {
		rc = tr_store_pass(err, &e, rc);
		if (rc == TR_ECORRUPT && s->falls_back)
			rc = open_before(s, err);
		if (rc == 0)
			*older = s->rewind_to;
		return rc;
	}
	if (s->reads_only)
		return 0;
	/* A dry load checks the names, shapes and types of all tensors, and reads none. */
	rc = tr_store_fill(s, SHEAF_LOAD_DRY, &e);
	if (rc == 0)
		rc = rewind_run(s, &e);
	return tr_store_pass(err, &e, rc);
}

const char *tr_store_found(const struct tr_store *s)
{
	return s->name;
}
