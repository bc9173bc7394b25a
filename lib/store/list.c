/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what is in a run: steps, foreign directories, steps set aside and stages. Listing changes
 * nothing, needs no lock, and goes on past any directory that is broken. */
#include "list.h"
#include "err.h"
#include "fresh_list.h"
#include "marks_read.h"
#include "step_look.h"
#include "steps.h"
#include "run_files.h"
#include "tries.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns whether a search for the latest step skips this one, and a save of its number sets it
 * aside. */
static bool entry_is_condemned(struct shf_store *s, const struct shf_entry *e)
{
	return e->mark == 'b' || shf_tries_condemn(s, e->step, e->session);
}

int shf_step_is_condemned(struct shf_store *s, int64_t step)
{
	struct shf_entry e;
	int why, rc = shf_step_look_briefly(s, step, &e, NULL);

	if (rc != 1)
		return rc == SHF_STEP_GONE ? 0 : rc;
	e.mark = shf_mark_read(s, step, &why);
	if (e.mark == '?' && why)
		return SHEAF_EIO;
	return entry_is_condemned(s, &e);
}

/* What shf_store_newest_below looks for, and what it finds. */
struct newest {
	int64_t below, step;            /* the arguments of shf_store_newest_below */
	struct shf_newest n;
};

/* Judges a list of steps for shf_store_newest_below (fresh_list.h). It stops at the first step
 * whose session can be read, so mostly one manifest is read, even in a run of thousands of
 * steps. */
static int judge_newest(struct shf_store *s, const struct shf_steps *steps, void *arg,
                        struct sheaf_error *err)
{
	struct newest *q = arg;
	struct shf_newest *n = &q->n;
	struct shf_entry e;
	int rc;

	*n = (struct shf_newest){ .exists = false, .newest = -1, .known = -1 };
	/* Find out whether a checkpoint has the number itself, and whether it is bad. */
	for (size_t i = 0; i < steps->n && !n->exists; i++)
		if (steps->all[i] == q->step) {
			rc = shf_step_look_briefly(s, q->step, &e, err);
			if (rc < 0 || rc == SHF_STEP_GONE)
				return rc;
			n->exists = rc == 1;
			e.mark = shf_mark_read(s, q->step, NULL);
			n->is_bad = n->exists && entry_is_condemned(s, &e);
		}
	/* Then find the newest steps below the limit. The list is descending. */
	for (size_t i = 0; i < steps->n && n->known < 0; i++) {
		int64_t step = steps->all[i];
		char mark = step < q->below ? shf_mark_read(s, step, NULL) : 'b';

		if (mark == 'b')
			continue;
		rc = shf_step_look_briefly(s, step, &e, err);
		if (rc < 0 || rc == SHF_STEP_GONE)
			return rc;
		/* Recovery has marked steps that failed too often (tries_settle.c), but not those
		 * that a person marked keep. So the tries are read only for steps marked keep. */
		if (rc != 1 || (mark == 'k' && shf_tries_condemn(s, e.step, e.session)))
			continue;
		n->newest = n->newest < 0 ? e.step : n->newest;
		if (e.session[0]) {
			n->known = e.step;
			memcpy(n->session, e.session, sizeof(n->session));
		}
	}
	return 0;
}

int shf_store_newest_below(struct shf_store *s, int64_t below, int64_t step,
                           struct shf_newest *out, struct sheaf_error *err)
{
	struct newest q = { .below = below, .step = step };
	int rc = shf_fresh_list_judge(s, judge_newest, &q, err);

	if (rc == 0)
		*out = q.n;
	return rc;
}

int shf_store_newest(struct shf_store *s, int64_t step, struct shf_newest *out,
                     struct sheaf_error *err)
{
	return shf_store_newest_below(s, INT64_MAX, step, out, err);
}

bool shf_entry_is_good(const struct shf_entry *e)
{
	return e->state == SHF_COMMITTED && e->mark != 'b' && e->mark != '?';
}

/* The array doubles when it is full, which it is at each power of two, so no capacity is stored. */
static int list_append_entry(struct shf_list *list, const struct shf_entry *e)
{
	struct shf_entry *more;

	if ((list->n & (list->n - 1)) == 0) {           /* full at each power of two */
		more = shf_realloc(list->entries, list->n ? 2 * list->n : 1, sizeof(*more));
		if (!more)
			return -ENOMEM;
		list->entries = more;
	}
	list->entries[list->n++] = *e;
	return 0;
}

/* The argument of list_steps. */
struct listing {
	const char *note;
	struct shf_list *list;
};

/* Looks at every step of the list. If one has gone meanwhile, the list is old and the caller lists
 * again (fresh_list.h). */
static int list_steps(struct shf_store *s, const struct shf_steps *steps, void *arg,
                      struct sheaf_error *err)
{
	const struct listing *l = arg;
	struct shf_entry e;
	char name[SHF_STEP_NAME];
	int rc = 0;

	shf_list_release(l->list);
	for (size_t i = 0; rc == 0 && i < steps->n; i++) {
		memset(&e, 0, sizeof(e));
		e.step = steps->all[i];
		e.note = l->note;
		shf_name_of_step(s, name, e.step);
		memcpy(e.path, name, sizeof(name));
		rc = shf_step_look(s, s->dir, name, &e, err);
		if (rc != 0)
			return rc < 0 ? rc : SHF_STEP_GONE;
		e.mark = shf_mark_read(s, e.step, NULL);
		e.tries = shf_tries_read(s, e.step, e.session);
		rc = list_append_entry(l->list, &e);
	}
	return rc < 0 ? shf_fail_io(err, -rc, "%s: listing its steps", s->path) : 0;
}

/* Returns whether a folder that could not be opened has nothing to list: it is missing, something
 * else has its name, or this user may not look into it. */
static bool has_nothing_to_list(int rc)
{
	return rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP || rc == -EACCES || rc == -EPERM;
}

/* Adds what is in .sheaf/stage or .sheaf/aside, whose names are <step>-<session>. Any other failure
 * is an error, because the list would be short without anybody noticing. */
static int list_folder(struct shf_store *s, const char *folder, enum shf_step_state state,
                       struct shf_list *list, struct sheaf_error *err)
{
	struct shf_names names = { SHF_BUF_INIT };
	struct shf_entry e;
	char session[33];
	int dir, rc = 0;

	dir = s->dot < 0 ? -ENOENT : shf_dir_open(s->sys, s->dot, folder);
	if (dir < 0)
		return has_nothing_to_list(dir)
		       ? 0 : shf_fail_io(err, -dir, "%s/.sheaf/%s", s->path, folder);
	rc = shf_names_read(s->sys, dir, &names);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; ) {
		/* Other names, such as those of copies, are not listed. */
		memset(&e, 0, sizeof(e));
		if (!shf_step_split(p, &e.step, session))
			continue;
		snprintf(e.path, sizeof(e.path), ".sheaf/%s/%.60s", folder, p);
		e.parent = -1;
		if (state == SHF_ASIDE && (rc = shf_step_look(s, dir, p, &e, err)) < 0)
			goto out;
		if (e.session[0] == '\0')
			memcpy(e.session, session, sizeof(e.session));
		e.state = state;
		rc = rc == 1 ? 0 : list_append_entry(list, &e);
	}
	if (rc < 0)
		rc = shf_fail_io(err, -rc, "%s/.sheaf/%s", s->path, folder);
out:
	shf_names_release(&names);
	shf_fd_close(s->sys, &dir);
	return rc;
}

/* Compares entries by step, then state, then path. */
static int in_order(const void *pa, const void *pb)
{
	const struct shf_entry *a = pa, *b = pb;

	if (a->step != b->step)
		return a->step < b->step ? -1 : 1;
	if (a->state != b->state)
		return a->state < b->state ? -1 : 1;
	return strcmp(a->path, b->path);
}

int shf_list_noted(struct shf_store *s, const char *note, struct shf_list *list,
                   struct sheaf_error *err)
{
	struct listing l = { note, list };
	int rc;

	list->entries = NULL;
	list->n = 0;
	rc = shf_fresh_list_judge(s, list_steps, &l, err);
	if (rc == 0)
		rc = list_folder(s, "aside", SHF_ASIDE, list, err);
	if (rc == 0)
		rc = list_folder(s, "stage", SHF_STAGED, list, err);
	if (rc < 0)
		shf_list_release(list);
	else if (list->n)
		qsort(list->entries, list->n, sizeof(*list->entries), in_order);
	return rc;
}

int shf_store_list(struct shf_store *s, struct shf_list *list, struct sheaf_error *err)
{
	return shf_list_noted(s, NULL, list, err);
}

void shf_list_release(struct shf_list *list)
{
	if (!list)
		return;
	shf_free(list->entries);
	list->entries = NULL;
	list->n = 0;
}

/* Returns the path of the run as a command in a message has it: whole, or RUN if it is longer than
 * `most` bytes. A path that is cut would be that of something else. */
static const char *run_in_command(const struct shf_store *s, size_t most)
{
	return strlen(s->path) <= most ? s->path : "RUN";
}

void shf_store_remedy(struct shf_store *s, int64_t step, char out[SHF_REMEDY])
{
	int64_t older = shf_step_older(s, step);

	if (older >= 0)
		snprintf(out, SHF_REMEDY, " (sheaf rewind %s@%lld goes back to the step before it)",
		         run_in_command(s, 100), (long long)older);
	else
		snprintf(out, SHF_REMEDY, " (no older step is left: restore its files from a copy, "
		         "or open a new run directory)");
}

/* Makes the error for the latest step if it cannot be loaded. If there are newer steps, they were
 * skipped and are reported. An older step is not taken instead, because the work since that step
 * would silently be lost. */
static int latest_is_bad(struct shf_store *s, int64_t step, const struct sheaf_error *why,
                         struct sheaf_error *err)
{
	char remedy[SHF_REMEDY];
	int rc;

	if (shf_step_is_unread(why)) {
		rc = shf_fail(err, SHEAF_EIO, "step %lld, the latest, cannot be read: %.400s",
		              (long long)step, why->msg);
		if (err)
			err->sys = why->sys;
		return rc;
	}
	shf_store_remedy(s, step, remedy);
	if (why->code == SHEAF_EFORMAT)
		return shf_fail(err, SHEAF_EFORMAT, "%.290s: use the version of sheaf that wrote "
		                "it%s",
		                why->msg, remedy);
	return shf_fail(err, SHEAF_ECORRUPT, "step %lld, the latest, is damaged: %.290s%s",
	                (long long)step, why->msg, remedy);
}

/* A search by shf_store_seek: what is asked for, and what was found so far. */
struct seeking {
	const struct shf_seek *k;
	int64_t step;
	struct shf_buf passed;          /* for each skipped step: its number as u64, the reason,
	                                 * NUL */
};

/* Remembers a skipped step until it is certain that the list was not old. */
static void seek_note_passed(struct seeking *q, int64_t step, const char *why)
{
	shf_buf_u64(&q->passed, (uint64_t)step);
	shf_buf_add(&q->passed, why, strlen(why) + 1);
}

/* Reports the skipped steps, each of them once, although a step may have been judged several
 * times. */
static void report_passed(const struct seeking *q)
{
	const char *p = (const char *)q->passed.data, *end = p + q->passed.len;

	for (; !q->passed.oom && p < end; p += strlen(p) + 1) {
		int64_t step = (int64_t)shf_get64((const uint8_t *)p);

		p += 8;
		q->k->passed(q->k->arg, step, p);
	}
}

/* Fails if a symbolic link has the name of a step. A run does not follow it, but what it leads to,
 * maybe on a disk that is not mounted now, may be the latest checkpoint. */
static int fail_if_link(struct shf_store *s, const char *name, struct sheaf_error *err)
{
	struct shf_stat st;

	if (shf_sys_stat(s->sys, s->dir, name, false, &st) < 0 || st.type != SHF_T_LINK)
		return 0;
	return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: is a symbolic link, which a run does not "
	                "follow; move the checkpoint itself there, mount its directory there, or "
	                "remove the link if an older one is wanted", s->path, name);
}

/* Looks at the newest step that is not skipped. Returns 0 if it can be loaded; ENOENT if it is no
 * checkpoint, and an older one may be the latest; SHF_STEP_GONE; else the reason why no step can be
 * loaded. */
static int latest_one(struct shf_store *s, struct shf_entry *e, struct seeking *q,
                      struct sheaf_error *err)
{
	struct sheaf_error why;
	int rc = shf_step_look(s, s->dir, e->path, e, &why);

	if (rc < 0) {
		if (err)
			*err = why;
		return rc;
	}
	if (rc == 1)
		return SHF_STEP_GONE;
	rc = e->state == SHF_FOREIGN ? fail_if_link(s, e->path, err) : 0;
	if (rc < 0)
		return rc;
	if (e->state == SHF_FOREIGN || e->remains) {
		seek_note_passed(q, e->step, "has no manifest, so it is not a checkpoint");
		return SHEAF_ENOENT;
	}
	if (e->mark == '?')     /* the mark may say that the step is bad */
		return shf_fail(err, SHEAF_ECORRUPT, "%s/.sheaf/marks/%lld: not a valid mark; mark "
		                "step %lld again", s->path, (long long)e->step,
		                (long long)e->step);
	return e->state == SHF_COMMITTED ? 0 : latest_is_bad(s, e->step, &why, err);
}

/* Decides whether the search skips the step, and writes the reason to why. Returns 0: not skipped;
 * 1: skipped; 2: skipped, and it is a checkpoint; SHF_STEP_GONE; or a code, if this process lacks
 * memory or descriptors, or if an I/O error hides the mark, which might say bad. */
static int is_passed(struct shf_store *s, struct shf_entry *e, char why[80],
                     struct sheaf_error *err)
{
	struct shf_entry brief;
	int sys, rc;

	e->mark = shf_mark_read(s, e->step, &sys);
	if (e->mark == '?' && sys)
		return shf_fail_io(err, -sys, "%s/.sheaf/marks/%lld", s->path,
		                   (long long)e->step);
	rc = shf_step_look_briefly(s, e->step, &brief, err);
	if (rc < 0 || rc == SHF_STEP_GONE)
		return rc;
	snprintf(why, 80, "marked bad");
	if (rc == 1 && shf_tries_condemn(s, e->step, brief.session)) {
		snprintf(why, 80, "%d jobs resumed from it and ended without saving",
		         shf_tries_read(s, e->step, brief.session));
		return 2;
	}
	return e->mark != 'b' ? 0 : rc == 1 ? 2 : 1;
}

/* Makes the error for a run whose checkpoints were all skipped. newest: the newest of them. The
 * code is not ENOENT: a job that starts afresh on ENOENT would ignore a run full of steps. */
static int only_bad(const struct shf_store *s, int64_t newest, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ECORRUPT, "%s: step %lld is marked bad, like all that are left "
	                "(sheaf mark %s@%lld none undoes it; to start afresh, open a new run "
	                "directory)",
	                s->path, (long long)newest, s->path, (long long)newest);
}

/* Returns whether this directory was a checkpoint once. A step is published with its manifest in
 * it, so sheaf.sums without sheaf.json means that the manifest was removed. The result is 1, 0,
 * SHF_STEP_GONE, or a code if the disk gives an error. */
static int had_manifest(struct shf_store *s, int64_t step, struct sheaf_error *err)
{
	struct shf_stat st;
	char t[SHF_STEP_NAME];
	int fd, rc;

	shf_name_of_step(s, t, step);
	rc = fd = shf_dir_open(s->sys, s->dir, t);
	if (fd == -ENOENT)
		return SHF_STEP_GONE;
	if (fd >= 0)
		rc = shf_sys_stat(s->sys, fd, "sheaf.sums", false, &st);
	shf_fd_close(s->sys, &fd);
	if (rc >= 0 || rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP)
		return rc >= 0;
	return shf_fail_io(err, -rc, "%s/%s/sheaf.sums", s->path, t);
}

/* Makes the error if no checkpoint is left: ENOENT, or ECORRUPT if some directories were
 * checkpoints once. It may also return SHF_STEP_GONE. */
static int none_left(struct shf_store *s, const struct shf_steps *steps, const struct shf_seek *k,
                     struct sheaf_error *err)
{
	char t[SHF_STEP_NAME];
	int64_t newest = -1;
	int n = 0;

	for (size_t i = 0; i < steps->n; i++) {
		int64_t step = steps->all[i];
		int rc = step > k->floor && step < k->below ? had_manifest(s, step, err) : 0;

		if (rc < 0 || rc == SHF_STEP_GONE)
			return rc;
		n += rc;
		newest = rc && newest < 0 ? step : newest;
	}
	if (n == 0)
		return shf_fail(err, SHEAF_ENOENT, "%s: has no checkpoint", s->path);
	shf_name_of_step(s, t, newest);
	return shf_fail(err, SHEAF_ECORRUPT, "%.200s: no checkpoint has its sheaf.json, but %d had "
	                "one, the newest is %s (sheaf recover %s lists them; restore sheaf.json "
	                "from a copy, or open a new run directory)", s->path, n, t,
	                run_in_command(s, 100));
}

/* Judges a list of steps for shf_store_seek, newest first, until one is not skipped. */
static int judge_latest(struct shf_store *s, const struct shf_steps *steps, void *arg,
                        struct sheaf_error *err)
{
	struct seeking *q = arg;
	const struct shf_seek *k = q->k;
	int64_t bad = -1;
	int rc = SHEAF_ENOENT;

	q->step = -1;
	shf_buf_reset(&q->passed);
	for (size_t i = 0; rc == SHEAF_ENOENT && i < steps->n && steps->all[i] > k->floor; i++) {
		struct shf_entry e = { .step = steps->all[i] };
		char why[80];
		int passed;

		if (e.step >= k->below)
			continue;
		shf_name_of_step(s, e.path, e.step);
		passed = is_passed(s, &e, why, err);
		if (passed == 0)
			rc = latest_one(s, &e, q, err);
		else if (passed < 0 || passed == SHF_STEP_GONE)
			rc = passed;
		else
			seek_note_passed(q, e.step, why);
		if (rc != SHEAF_ENOENT)
			q->step = e.step;
		/* The newest skipped checkpoint, for the message of only_bad. */
		if (passed == 2 && bad < 0)
			bad = e.step;
	}
	if (rc == SHEAF_ENOENT && bad >= 0)
		return only_bad(s, bad, err);
	return rc == SHEAF_ENOENT ? none_left(s, steps, k, err) : rc;
}

/* The skipped steps are reported after the search, because judge_latest may run several times. */
int shf_store_seek(struct shf_store *s, const struct shf_seek *k, int64_t *step,
                   struct sheaf_error *err)
{
	struct seeking q = { .k = k, .step = -1, .passed = SHF_BUF_INIT };
	int rc = shf_fresh_list_judge(s, judge_latest, &q, err);

	report_passed(&q);
	if (rc == 0 && q.passed.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what was passed over");
	*step = q.step;
	shf_buf_release(&q.passed);
	return rc;
}

/* The argument of log_passed_step: where it reports to. */
struct saying {
	struct shf_store *s;
	void (*log)(void *arg, int level, const char *line);
	void *arg;
};

static void log_passed_step(void *arg, int64_t step, const char *why)
{
	const struct saying *l = arg;
	char line[500], t[SHF_STEP_NAME];

	if (!l->log)
		return;
	shf_name_of_step(l->s, t, step);
	snprintf(line, sizeof(line), "%.250s/%s: skipped: %s", l->s->path, t, why);
	l->log(l->arg, 1, line);
}

int shf_store_latest(struct shf_store *s, int64_t *step,
                     void (*log)(void *arg, int level, const char *line), void *log_arg,
                     struct sheaf_error *err)
{
	struct saying saying = { s, log, log_arg };
	struct shf_seek k = { .below = INT64_MAX, .floor = -1, .passed = log_passed_step,
		.arg = &saying };
	int64_t found;
	int rc = shf_store_seek(s, &k, &found, err);

	if (rc == 0)
		*step = found;
	return rc;
}
