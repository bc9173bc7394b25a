/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in a run: steps, foreign directories, steps set aside and stages. Looking never
 * changes anything, needs no lock, and no single directory, however broken, stops it. */
#include "err.h"
#include "tree.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LISTS 8                 /* how often steps are listed anew when a listed one has gone */
#define GONE 3                  /* so it has, since the list was read */

/* Judges the steps that are listed. If one of those that count has gone since, the list is old: a
 * job may have committed newer steps before it pruned that one. Then they are listed and judged
 * again, so that nothing is concluded from what an old list does not have. */
static int judge_list(struct shf_store *s,
                      int (*judge)(struct shf_store *s, const struct shf_steps *steps, void *arg,
                                   struct sheaf_error *err), void *arg, struct sheaf_error *err)
{
	for (int lists = 0; lists < LISTS; lists++) {
		struct shf_steps steps;
		int rc = shf_steps_read(s, &steps);

		/* .sheaf after the list: it is there, with all marks, before the first step is. */
		rc = rc < 0 ? shf_fail_io(err, -rc, "%s: its list of steps", s->path)
		            : shf_store_see(s, err);
		if (rc == 0)
			rc = judge(s, &steps, arg, err);
		shf_free(steps.all);
		if (rc != GONE)
			return rc;
	}
	return shf_fail_io(err, ENOENT, "%s: of its steps one had gone each time they were listed",
	                   s->path);
}

static bool is_ours(int rc)             /* our own lack, not the directory's fault */
{
	return rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE;
}

int shf_manifest_read(const struct shf_sys *sys, int dir, const char *where,
                      struct shf_manifest *m, struct shf_arena *arena, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	char name[300];
	int rc;

	rc = shf_text_read(sys, dir, "sheaf.json", &text, SHF_MANIFEST_MAX);
	snprintf(name, sizeof(name), "%.280s/sheaf.json", where);
	if (rc == -EFBIG || rc == -ELOOP || rc == -EISDIR)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s: cannot be a manifest: %s", name,
		              rc == -EFBIG ? "longer than 1 MiB" : "not a plain file");
	else if (rc < 0)
		rc = shf_fail_sys(err, -rc, "%s", name);
	else
		rc = shf_manifest_decode(m, arena, text.data, text.len, name, err);
	shf_buf_release(&text);
	return rc;
}

/* The files of a step, folder by folder. */
struct files {
	struct shf_store *s;
	int top, dir;                   /* dir: of folder, -1: not open */
	char folder[64];
	const char *where;
	struct sheaf_error *err;
};

static int open_folder(struct files *f, const char *name, size_t n)
{
	if (f->dir >= 0 && strlen(f->folder) == n && memcmp(f->folder, name, n) == 0)
		return 0;
	shf_fd_close(f->s->sys, &f->dir);
	if (!always(n > 0 && n < sizeof(f->folder) && name[0] != '.')) /* it is a family */
		return -EINVAL;
	memcpy(f->folder, name, n);
	f->folder[n] = '\0';
	f->dir = shf_dir_open(f->s->sys, f->top, f->folder);
	return f->dir < 0 ? f->dir : 0;
}

/* 0; -errno of our own lack; 1: not as the manifest says, and err tells. */
static int check_file(struct files *f, const struct shf_mf_file *file)
{
	const char *slash = strchr(file->name, '/'), *name = slash ? slash + 1 : file->name;
	const struct shf_sys *sys = f->s->sys;
	struct shf_stat st;
	int rc = 0;

	if (!always(!strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..")))
		rc = -EINVAL;   /* of a decoded manifest */
	if (rc == 0 && slash)
		rc = open_folder(f, file->name, (size_t)(slash - file->name));
	if (rc == 0)
		rc = sys->ops->stat(sys->arg, slash ? f->dir : f->top, name, false, &st);
	if (is_ours(rc))
		return rc;
	if (rc < 0)
		shf_fail_sys(f->err, -rc, "%s/%s: named by the manifest", f->where, file->name);
	else if (st.type != SHF_T_FILE || st.bytes != file->bytes)
		shf_fail(f->err, SHEAF_ECORRUPT, "%s/%s: has %llu bytes, the manifest says %llu",
		         f->where, file->name, (unsigned long long)st.bytes,
		         (unsigned long long)file->bytes);
	else
		return 0;
	return 1;
}

static int check_files(struct files *f, const struct shf_manifest *m)
{
	int rc = check_file(f, &m->sums);

	for (size_t i = 0; rc == 0 && i < m->files_n; i++)
		rc = check_file(f, &m->files[i]);
	for (size_t i = 0; rc == 0 && i < m->attached_n; i++)
		rc = check_file(f, &m->attached[i]);
	shf_fd_close(f->s->sys, &f->dir);
	return rc;
}

/* The note that was asked for: a decimal number, or not. */
static void entry_note(struct shf_entry *e, const struct shf_manifest *m)
{
	for (size_t i = 0; e->note && i < m->notes_n; i++) {
		const char *value = m->notes[i].value;

		if (strcmp(m->notes[i].key, e->note) != 0)
			continue;
		e->noted = SHF_NOTE_ODD;
		if (!shf_decimal_read(&e->number, value))
			continue;
		e->noted = SHF_NOTE_NUMBER;
		snprintf(e->value, sizeof(e->value), strlen(value) < sizeof(e->value) ? "%s"
		         : "%.44s...", value);
	}
}

static void entry_fill(struct shf_entry *e, const struct shf_manifest *m)
{
	entry_note(e, m);
	memcpy(e->session, m->session, sizeof(e->session));
	memcpy(e->created, m->created, sizeof(e->created));
	e->bytes = m->sums.bytes;
	for (size_t i = 0; i < m->files_n; i++)
		e->bytes += m->files[i].bytes;
	for (size_t i = 0; i < m->attached_n; i++)
		e->bytes += m->attached[i].bytes;
	/* A parent in another run is no step of this one. */
	if (m->has_parent && m->parent_run[0] == '\0') {
		e->parent = m->parent_step;
		memcpy(e->parent_session, m->parent_session, sizeof(e->parent_session));
	}
}

/* Another number, or another run's: copied or renamed by hand. */
static int check_names(struct shf_store *s, const struct shf_manifest *m, int64_t step,
                       const char *where, struct sheaf_error *err)
{
	if (m->step != step)
		return shf_fail(err, SHEAF_ECORRUPT, "%s: its manifest says step %lld", where,
		                (long long)m->step);
	if (s->run[0] && strcmp(m->run, s->run) != 0)
		return shf_fail(err, SHEAF_ECORRUPT, "%s: its manifest says run %s, %s/.sheaf/run "
		                "says %s", where, m->run, s->path, s->run);
	return 0;
}

static int not_empty(void *arg, const char *name)
{
	(void)name;
	*(bool *)arg = true;
	return 1;
}

bool shf_dir_is_remains(const struct shf_sys *sys, int dir)
{
	struct shf_stat st;
	bool full = false;

	if (sys->ops->stat(sys->arg, dir, "sheaf.json", false, &st) != -ENOENT)
		return false;
	if (sys->ops->stat(sys->arg, dir, "sheaf.sums", false, &st) >= 0)
		return true;
	return sys->ops->list(sys->arg, dir, not_empty, &full) == 0 && !full;
}

/* The kernel would not say, which is no verdict on the step. Where a link or a directory stands for
 * a file, or a name cannot be one, it has said enough. */
static bool is_unread(const struct sheaf_error *why)
{
	return why->code == SHEAF_EIO && why->sys != ELOOP && why->sys != EISDIR &&
	       why->sys != EINVAL && why->sys != ENAMETOOLONG;
}

/* files: are they there, too; else a step whose manifest is good counts as committed. */
static int look(struct shf_store *s, int dir, const char *name, bool files, struct shf_entry *e,
                struct sheaf_error *err)
{
	struct shf_arena arena = { NULL, 0 };
	struct sheaf_error why;
	struct shf_manifest m;
	char where[300];
	int fd, rc;
	bool gone;

	e->state = SHF_DAMAGED;
	e->parent = -1;
	snprintf(where, sizeof(where), "%.200s/%.90s", s->path, e->path);
	shf_error_clear(&why);
	fd = shf_dir_open(s->sys, dir, name);
	if (fd == -ENOENT)
		return 1;
	if (fd == -ENOTDIR || fd == -ELOOP) {
		e->state = SHF_FOREIGN;
		return 0;
	}
	if (fd < 0) {
		rc = shf_fail_sys(&why, -fd, "%s", where);
		e->unread = is_unread(&why);
		if (err)
			*err = why;
		return is_ours(fd) ? rc : 0;
	}
	rc = shf_manifest_read(s->sys, fd, where, &m, &arena, &why);
	if (rc == 0) {
		struct files f = { s, fd, -1, "", where, &why };

		entry_fill(e, &m);
		rc = check_names(s, &m, e->step, where, &why);
		if (rc == 0 && files)
			rc = check_files(&f, &m);
		if (rc < 0 && is_ours(rc))
			rc = shf_fail_sys(&why, -rc, "%s", where);
		else if (rc == 0)
			e->state = SHF_COMMITTED;
	} else if (rc == SHEAF_ENOENT) {
		e->remains = shf_dir_is_remains(s->sys, fd);
		e->state = e->remains ? SHF_DAMAGED : SHF_FOREIGN;
		if (e->remains)
			shf_fail(&why, SHEAF_ECORRUPT, "%s: its manifest is gone", where);
	}
	e->unread = e->state == SHF_DAMAGED && is_unread(&why);
	gone = e->state != SHF_COMMITTED && shf_dir_has_gone(s->sys, dir, name, false, fd);
	shf_arena_release(&arena);
	shf_fd_close(s->sys, &fd);
	if (gone)       /* what this directory lacks was deleted with it */
		return 1;
	if (err)
		*err = why;
	return rc == SHEAF_ENOMEM || is_ours(-why.sys) ? rc : 0;
}

int shf_step_look(struct shf_store *s, int dir, const char *name, struct shf_entry *e,
                  struct sheaf_error *err)
{
	return look(s, dir, name, true, e, err);
}

/* A step of the run: 1 when it is one, 0 when it is foreign or remains, GONE, or a code. */
static int look_at(struct shf_store *s, int64_t step, bool files, struct shf_entry *e,
                   struct sheaf_error *err)
{
	int rc;

	memset(e, 0, sizeof(*e));
	e->step = step;
	shf_name_of_step(e->path, step);
	rc = look(s, s->dir, e->path, files, e, err);
	if (rc == 1)
		return GONE;
	return rc < 0 ? rc : e->state != SHF_FOREIGN && !e->remains;
}

/* As far as its manifest tells. */
static int look_briefly(struct shf_store *s, int64_t step, struct shf_entry *e,
                        struct sheaf_error *err)
{
	return look_at(s, step, false, e, err);
}

struct older {
	int64_t than, found;
};

static int judge_older(struct shf_store *s, const struct shf_steps *steps, void *arg,
                       struct sheaf_error *err)
{
	struct older *o = arg;
	struct shf_entry e;

	(void)err;
	for (size_t i = 0; i < steps->n && o->found < 0; i++) {
		int rc = steps->all[i] < o->than ? look_at(s, steps->all[i], true, &e, NULL) : 0;
		char mark;

		if (rc == GONE)
			return GONE;
		if (rc != 1 || e.state != SHF_COMMITTED)
			continue;
		mark = shf_mark_read(s, e.step, NULL);
		o->found = mark == 0 || mark == 'k' ? e.step : -1;
	}
	return 0;
}

int64_t shf_step_older(struct shf_store *s, int64_t step)
{
	struct older o = { .than = step, .found = -1 };

	(void)judge_list(s, judge_older, &o, NULL);
	return o.found;
}

/* LATEST passes over such a checkpoint, and a save of its number sets it aside. */
static bool is_condemned(struct shf_store *s, const struct shf_entry *e)
{
	return e->mark == 'b' || shf_tries_condemn(s, e->step, e->session);
}

int shf_step_is_condemned(struct shf_store *s, int64_t step)
{
	struct shf_entry e;
	int rc = look_briefly(s, step, &e, NULL);

	if (rc != 1)
		return rc == GONE ? 0 : rc;
	e.mark = shf_mark_read(s, step, NULL);
	return is_condemned(s, &e);
}

struct newest {
	int64_t below, step;            /* as shf_store_newest_below is asked */
	struct shf_newest n;
};

static int judge_newest(struct shf_store *s, const struct shf_steps *steps, void *arg,
                        struct sheaf_error *err)
{
	struct newest *q = arg;
	struct shf_newest *n = &q->n;
	struct shf_entry e;
	int rc;

	*n = (struct shf_newest){ .exists = false, .newest = -1, .known = -1 };
	for (size_t i = 0; i < steps->n && !n->exists; i++)
		if (steps->all[i] == q->step) {
			rc = look_briefly(s, q->step, &e, err);
			if (rc < 0 || rc == GONE)
				return rc;
			n->exists = rc == 1;
			e.mark = shf_mark_read(s, q->step, NULL);
			n->is_bad = n->exists && is_condemned(s, &e);
		}
	for (size_t i = 0; i < steps->n && n->known < 0; i++) {
		int64_t step = steps->all[i];
		char mark = step < q->below ? shf_mark_read(s, step, NULL) : 'b';

		if (mark == 'b')
			continue;
		rc = look_briefly(s, step, &e, err);
		if (rc < 0 || rc == GONE)
			return rc;
		/* Recovery marks those that are condemned, but for what somebody wants kept. */
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
	int rc = judge_list(s, judge_newest, &q, err);

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

static int add(struct shf_list *list, const struct shf_entry *e)
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

struct listing {
	const char *note;
	struct shf_list *list;
};

static int list_steps(struct shf_store *s, const struct shf_steps *steps, void *arg,
                      struct sheaf_error *err)
{
	const struct listing *l = arg;
	struct shf_entry e;
	char name[40];
	int rc = 0;

	shf_list_release(l->list);
	for (size_t i = 0; rc == 0 && i < steps->n; i++) {
		memset(&e, 0, sizeof(e));
		e.step = steps->all[i];
		e.note = l->note;
		shf_name_of_step(name, e.step);
		memcpy(e.path, name, sizeof(name));
		rc = shf_step_look(s, s->dir, name, &e, err);
		if (rc != 0)
			return rc < 0 ? rc : GONE;
		e.mark = shf_mark_read(s, e.step, NULL);
		e.tries = shf_tries_read(s, e.step, e.session);
		rc = add(l->list, &e);
	}
	return rc < 0 ? shf_fail_io(err, -rc, "%s: its list of steps", s->path) : 0;
}

/* Stages and steps set aside: <step>-<session> under a folder of .sheaf. */
static int list_folder(struct shf_store *s, const char *folder, enum shf_step_state state,
                       struct shf_list *list, struct sheaf_error *err)
{
	struct shf_names names = { SHF_BUF_INIT };
	struct shf_entry e;
	char session[33];
	int dir, rc = 0;

	dir = s->dot < 0 ? -ENOENT : shf_dir_open(s->sys, s->dot, folder);
	if (dir < 0)
		return is_ours(dir) ? shf_fail_io(err, -dir, "%s/.sheaf/%s", s->path, folder) : 0;
	rc = shf_names_read(s->sys, dir, &names);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; ) {
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
		rc = rc == 1 ? 0 : add(list, &e);
	}
	if (rc < 0)
		rc = shf_fail_io(err, -rc, "%s/.sheaf/%s", s->path, folder);
out:
	shf_names_release(&names);
	shf_fd_close(s->sys, &dir);
	return rc;
}

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
	rc = judge_list(s, list_steps, &l, err);
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

int shf_store_manifest(struct shf_store *s, int64_t step, struct shf_manifest *m,
                       struct shf_arena *arena, struct sheaf_error *err)
{
	char t[40], where[300];
	int fd, rc;

	if (step < 0)
		return shf_fail(err, SHEAF_EINVAL, "%s: a step's number is not negative", s->path);
	shf_name_of_step(t, step);
	snprintf(where, sizeof(where), "%.250s/%s", s->path, t);
	fd = shf_dir_open(s->sys, s->dir, t);
	if (fd < 0)
		return shf_fail_sys(err, -fd, "%s", where);
	rc = shf_manifest_read(s->sys, fd, where, m, arena, err);
	shf_fd_close(s->sys, &fd);
	if (rc == 0)
		rc = check_names(s, m, step, where, err);
	else if (rc == SHEAF_ENOENT)    /* which would mean that there is no such step */
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: no manifest, so it is not a step of ours",
		              where);
	return rc;
}

void shf_store_remedy(struct shf_store *s, int64_t step, char out[SHF_REMEDY])
{
	int64_t older = shf_step_older(s, step);

	if (older >= 0)
		snprintf(out, SHF_REMEDY, " (sheaf rewind %.100s@%lld goes back to the one before "
		         "it)", s->path, (long long)older);
	else
		snprintf(out, SHF_REMEDY, " (no older one is left: bring its files back, or name a "
		         "new run)");
}

/* The latest: what is newer, if anything, was passed over and named. */
static int latest_is_bad(struct shf_store *s, int64_t step, const struct sheaf_error *why,
                         struct sheaf_error *err)
{
	char remedy[SHF_REMEDY];
	int rc;

	if (is_unread(why)) {
		rc = shf_fail(err, SHEAF_EIO, "step %lld, the latest, cannot be read: %.400s",
		              (long long)step, why->msg);
		if (err)
			err->sys = why->sys;
		return rc;
	}
	shf_store_remedy(s, step, remedy);
	if (why->code == SHEAF_EFORMAT)
		return shf_fail(err, SHEAF_EFORMAT, "%.290s: use the sheaf that wrote it%s",
		                why->msg, remedy);
	return shf_fail(err, SHEAF_ECORRUPT, "step %lld, the latest, is damaged: %.290s%s",
	                (long long)step, why->msg, remedy);
}

struct seeking {
	const struct shf_seek *k;
	int64_t step;
	struct shf_buf passed;          /* of each that was passed over: u64 number, why, NUL */
};

static void pass(struct seeking *q, int64_t step, const char *why)
{
	shf_buf_u64(&q->passed, (uint64_t)step);
	shf_buf_add(&q->passed, why, strlen(why) + 1);
}

/* Names those that were passed over when it is settled that they were, each of them once. */
static void tell_passed(const struct seeking *q)
{
	const char *p = (const char *)q->passed.data, *end = p + q->passed.len;

	for (; !q->passed.oom && p < end; p += strlen(p) + 1) {
		int64_t step = (int64_t)shf_get64((const uint8_t *)p);

		p += 8;
		q->k->passed(q->k->arg, step, p);
	}
}

/* Is this one it? 0; ENOENT: an older one is; GONE; else why nobody is. */
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
		return GONE;
	if (e->state == SHF_FOREIGN || e->remains) {
		pass(q, e->step, "has no manifest, so it is no checkpoint");
		return SHEAF_ENOENT;
	}
	if (e->mark == '?')     /* perhaps somebody condemned it */
		return shf_fail(err, SHEAF_ECORRUPT, "%s/.sheaf/marks/%lld: not to be read as a "
		                "mark; mark step %lld again", s->path, (long long)e->step,
		                (long long)e->step);
	return e->state == SHF_COMMITTED ? 0 : latest_is_bad(s, e->step, &why, err);
}

/* Must LATEST pass over the step, and why? Returns 0: no; 1: yes; 2: yes, and it is a checkpoint;
 * GONE; or a code, if we lack memory or descriptors, or if its mark cannot be read: it might say
 * bad. */
static int is_passed(struct shf_store *s, struct shf_entry *e, char why[80],
                     struct sheaf_error *err)
{
	struct shf_entry brief;
	int sys, rc;

	e->mark = shf_mark_read(s, e->step, &sys);
	if (e->mark == '?' && sys)
		return shf_fail_io(err, -sys, "%s/.sheaf/marks/%lld", s->path,
		                   (long long)e->step);
	rc = look_briefly(s, e->step, &brief, err);
	if (rc < 0 || rc == GONE)
		return rc;
	snprintf(why, 80, "marked bad");
	if (rc == 1 && shf_tries_condemn(s, e->step, brief.session)) {
		snprintf(why, 80, "%d resumes from it came to nothing",
		         shf_tries_read(s, e->step, brief.session));
		return 2;
	}
	return e->mark != 'b' ? 0 : rc == 1 ? 2 : 1;
}

/* The run has checkpoints, but each was passed over. newest is one of them. */
static int only_bad(const struct shf_store *s, int64_t newest, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ECORRUPT, "%s: step %lld is marked bad, as is all that is left "
	                "(sheaf mark %s@%lld none takes it back; to start afresh, name a new run)",
	                s->path, (long long)newest, s->path, (long long)newest);
}

/* Was this directory a checkpoint? A step is published with its manifest in it. So sheaf.sums
 * without sheaf.json means that the manifest was removed. Returns 1, 0, GONE, or a code if the disk
 * would not say. */
static int had_manifest(struct shf_store *s, int64_t step, struct sheaf_error *err)
{
	struct shf_stat st;
	char t[40];
	int fd, rc;

	shf_name_of_step(t, step);
	rc = fd = shf_dir_open(s->sys, s->dir, t);
	if (fd == -ENOENT)
		return GONE;
	if (fd >= 0)
		rc = s->sys->ops->stat(s->sys->arg, fd, "sheaf.sums", false, &st);
	shf_fd_close(s->sys, &fd);
	if (rc >= 0 || rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP)
		return rc >= 0;
	return shf_fail_io(err, -rc, "%s/%s/sheaf.sums", s->path, t);
}

/* No checkpoint is left: ENOENT, or ECORRUPT if some directories were checkpoints. Or GONE. */
static int none_left(struct shf_store *s, const struct shf_steps *steps, const struct shf_seek *k,
                     struct sheaf_error *err)
{
	int64_t newest = -1;
	int n = 0;

	for (size_t i = 0; i < steps->n; i++) {
		int64_t step = steps->all[i];
		int rc = step > k->floor && step < k->below ? had_manifest(s, step, err) : 0;

		if (rc < 0 || rc == GONE)
			return rc;
		n += rc;
		newest = rc && newest < 0 ? step : newest;
	}
	if (n == 0)
		return shf_fail(err, SHEAF_ENOENT, "%s: has no step", s->path);
	return shf_fail(err, SHEAF_ECORRUPT, "%.150s: no checkpoint has a sheaf.json, but %d had "
	                "one, checkpoint-%lld the newest (sheaf recover %.150s lists them; bring "
	                "sheaf.json back from a copy, or name a new run to start afresh)",
	                s->path, n, (long long)newest, s->path);
}

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
		shf_name_of_step(e.path, e.step);
		passed = is_passed(s, &e, why, err);
		if (passed == 0)
			rc = latest_one(s, &e, q, err);
		else if (passed < 0 || passed == GONE)
			rc = passed;
		else
			pass(q, e.step, why);
		if (rc != SHEAF_ENOENT)
			q->step = e.step;
		if (passed == 2 && bad < 0)
			bad = e.step;
	}
	if (rc == SHEAF_ENOENT && bad >= 0)
		return only_bad(s, bad, err);
	return rc == SHEAF_ENOENT ? none_left(s, steps, k, err) : rc;
}

int shf_store_seek(struct shf_store *s, const struct shf_seek *k, int64_t *step,
                   struct sheaf_error *err)
{
	struct seeking q = { .k = k, .step = -1, .passed = SHF_BUF_INIT };
	int rc = judge_list(s, judge_latest, &q, err);

	tell_passed(&q);
	if (rc == 0 && q.passed.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what was passed over");
	*step = q.step;
	shf_buf_release(&q.passed);
	return rc;
}

struct saying {
	struct shf_store *s;
	void (*log)(void *arg, int level, const char *line);
	void *arg;
};

static void say(void *arg, int64_t step, const char *why)
{
	const struct saying *l = arg;
	char line[500];

	if (!l->log)
		return;
	snprintf(line, sizeof(line), "%.250s/checkpoint-%lld: skipped: %s", l->s->path,
	         (long long)step, why);
	l->log(l->arg, 1, line);
}

int shf_store_latest(struct shf_store *s, int64_t *step,
                     void (*log)(void *arg, int level, const char *line), void *log_arg,
                     struct sheaf_error *err)
{
	struct saying saying = { s, log, log_arg };
	struct shf_seek k = { .below = INT64_MAX, .floor = -1, .passed = say, .arg = &saying };
	int64_t found;
	int rc = shf_store_seek(s, &k, &found, err);

	if (rc == 0)
		*step = found;
	return rc;
}
