/* SPDX-License-Identifier: Apache-2.0 */
/* Done files. They tell other programs, such as one that uploads finished steps, that a family of a
 * step, or the whole step, is complete.
 *
 * D1. They are written after the publish is durable, from the manifest in the published step, so
 *     no done file ever names a step that does not exist.
 * D2. Each appears by a rename, complete. The file of the whole step is written only when those of
 *     all its families are durable.
 * D3. Only a regular file is ever replaced, and only if its content differs. */
#include "done_files.h"
#include "err.h"
#include "json.h"
#include "manifest.h"
#include "list.h"
#include "step_look.h"
#include "run_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WHOLE "whole-step"      /* in place of a family's name; no family can have it */
#define DONE_MAX (UINT64_C(4) << 20)

/* What all functions that write done files need. */
struct telling {
	struct shf_store *s;
	const char *where;              /* the folder, as the caller named it */
	int dir;
	const struct shf_manifest *m;   /* of the published step */
	uint64_t manifest_bytes;        /* size of its sheaf.json */
	struct sheaf_error *err;
};

static void done_add_text(struct shf_buf *b, const char *s)
{
	shf_json_put(b, s, strlen(s));
}

/* Appends the members that every done file has, up to the list of files. */
static void done_add_head(struct shf_buf *b, const struct telling *t, const char *kind,
                          uint64_t bytes)
{
	const struct shf_manifest *m = t->m;
	struct shf_buf path = SHF_BUF_INIT;
	char name[SHF_STEP_NAME];

	shf_name_of_step(t->s, name, m->step);
	shf_buf_addf(&path, "%s/%s", t->s->path, name);
	b->oom |= path.oom;
	shf_buf_addf(b, "{\"sheaf_done\": 1,\n \"kind\": \"%s\",\n \"step\": %" PRId64
	             ",\n \"session\": \"%s\",\n \"run\": \"%s\",\n \"path\": ", kind, m->step,
	             m->session, m->run);
	if (!path.oom)
		shf_json_put(b, (const char *)path.data, path.len);
	shf_buf_addf(b, ",\n \"bytes\": %" PRIu64 ",\n \"files\": [", bytes);
	shf_buf_release(&path);
}

/* Appends an entry of the list of files. */
static void done_add_file(struct shf_buf *b, const char *name, uint64_t bytes, bool first)
{
	shf_buf_adds(b, first ? "\n  {\"name\": " : ",\n  {\"name\": ");
	done_add_text(b, name);
	shf_buf_addf(b, ", \"bytes\": %" PRIu64 "}", bytes);
}

/* Finds the index of a family among the attached files; NULL: the step has no index of this
 * family. */
static const struct shf_mf_file *family_index(const struct shf_manifest *m,
                                              const struct shf_mf_family *f)
{
	bool top = strcmp(f->dir, ".") == 0;
	char name[128];

	snprintf(name, sizeof(name), "%.40s%s%.40s.safetensors.index.json", top ? "" : f->dir,
	         top ? "" : "/", f->name);
	for (size_t i = 0; i < m->attached_n; i++)
		if (strcmp(m->attached[i].name, name) == 0)
			return &m->attached[i];
	return NULL;
}

/* Makes the done file of one family. files: the first of its f->files files. */
static void family_text(struct shf_buf *b, const struct telling *t, const struct shf_mf_family *f,
                        const struct shf_mf_file *files)
{
	const struct shf_mf_file *index = family_index(t->m, f);
	uint64_t bytes = index ? index->bytes : 0;

	for (uint64_t i = 0; i < f->files; i++)
		bytes += files[i].bytes;
	done_add_head(b, t, f->name, bytes);
	for (uint64_t i = 0; i < f->files; i++)
		done_add_file(b, files[i].name, files[i].bytes, i == 0);
	if (index)
		done_add_file(b, index->name, index->bytes, f->files == 0);
	shf_buf_adds(b, "]}\n");
}

/* Makes the done file of the whole step. It lists all files of the step, the manifest first. */
static void whole_text(struct shf_buf *b, const struct telling *t)
{
	const struct shf_manifest *m = t->m;
	uint64_t bytes = m->sums.bytes + t->manifest_bytes;

	for (size_t i = 0; i < m->files_n; i++)
		bytes += m->files[i].bytes;
	for (size_t i = 0; i < m->attached_n; i++)
		bytes += m->attached[i].bytes;
	done_add_head(b, t, WHOLE, bytes);
	done_add_file(b, "sheaf.json", t->manifest_bytes, true);
	done_add_file(b, m->sums.name, m->sums.bytes, false);
	for (size_t i = 0; i < m->files_n; i++)
		done_add_file(b, m->files[i].name, m->files[i].bytes, false);
	for (size_t i = 0; i < m->attached_n; i++)
		done_add_file(b, m->attached[i].name, m->attached[i].bytes, false);
	shf_buf_adds(b, "]}\n");
}

/* Returns whether the file has this content already. */
static bool says(const struct shf_sys *sys, int dir, const char *name, const struct shf_buf *text)
{
	struct shf_buf there = SHF_BUF_INIT;
	bool same = shf_text_read(sys, dir, name, &there, DONE_MAX) == 0 &&
	            there.len == text->len && memcmp(there.data, text->data, text->len) == 0;

	shf_buf_release(&there);
	return same;
}

/* Writes one done file, unless the file has that content already: a program that watches the folder
 * would otherwise see it change. If the name belongs to something other than a regular file, it is
 * left alone (D3). */
static int done_file_put(const struct telling *t, const char *kind, const struct shf_buf *text)
{
	const struct shf_sys *sys = t->s->sys;
	struct shf_stat st;
	char name[80];
	int rc;

	snprintf(name, sizeof(name), "%.40s.%" PRId64 ".done", kind, t->m->step);
	if (text->oom)
		return shf_fail(t->err, SHEAF_ENOMEM, "%s/%s: no memory for it", t->where, name);
	rc = shf_sys_stat(sys, t->dir, name, false, &st);
	if (rc >= 0 && st.type != SHF_T_FILE)
		return shf_fail(t->err, SHEAF_EINVAL, "%s/%s: is not a regular file and is not "
		                "replaced; remove it, or choose another opts.notify.signal_dir",
		                t->where, name);
	if (rc >= 0 && says(sys, t->dir, name, text))
		return 0;
	if (rc >= 0 || rc == -ENOENT)
		rc = shf_text_put(sys, t->dir, t->dir, name, text->data, text->len, rc < 0);
	return rc < 0 ? shf_fail_io(t->err, -rc, "%s/%s", t->where, name) : 0;
}

/* Like shf_dir_sync, but never sets no_dir_fsync of the store: the folder may be on a file system
 * other than the run's. */
static int sync_dir(const struct telling *t, int dir)
{
	int rc = dir < 0 ? dir : shf_dir_fsync(t->s->sys, dir);

	return rc < 0 ? shf_fail_io(t->err, -rc, "%s: fsync of the directory", t->where) : 0;
}

/* Writes the files of the families, syncs them, and then writes the file of the whole step (D2). */
static int done_files_write(const struct telling *t)
{
	const struct shf_manifest *m = t->m;
	const struct shf_mf_file *files = m->files;
	struct shf_buf text = SHF_BUF_INIT;
	int rc = 0;

	for (size_t i = 0; i < m->families_n && rc == 0; i++) {
		shf_buf_reset(&text);
		family_text(&text, t, &m->families[i], files);
		files += m->families[i].files;
		rc = done_file_put(t, m->families[i].name, &text);
	}
	if (rc == 0)
		rc = sync_dir(t, t->dir);
	if (rc == 0) {
		shf_buf_reset(&text);
		whole_text(&text, t);
		rc = done_file_put(t, WHOLE, &text);
	}
	if (rc == 0)
		rc = sync_dir(t, t->dir);
	shf_buf_release(&text);
	return rc;
}

/* Makes the folder and syncs the directory above it, because nothing else does. */
static int make_folder(struct telling *t)
{
	const struct shf_sys *sys = t->s->sys;
	int rc = shf_sys_mkdir(sys, SHF_CWD, t->where, 0777), up;

	t->dir = rc < 0 && rc != -EEXIST
		? rc : shf_sys_open(sys, SHF_CWD, t->where, SHF_O_DIR, 0);
	if (t->dir < 0)
		return shf_fail_io(t->err, -t->dir, "%s", t->where);
	up = shf_sys_open(sys, t->dir, "..", SHF_O_DIR, 0);
	rc = sync_dir(t, up);
	shf_fd_close(sys, &up);
	return rc;
}

/* Opens the folder, and makes it if it is missing. */
static int done_folder_open(struct telling *t)
{
	const struct shf_sys *sys = t->s->sys;

	t->dir = shf_sys_open(sys, SHF_CWD, t->where, SHF_O_DIR, 0);
	if (t->dir == -ENOENT)
		return make_folder(t);
	return t->dir < 0 ? shf_fail_io(t->err, -t->dir, "%s", t->where) : 0;
}

/* Reads the manifest from the published step rather than taking the caller's, so that a done file
 * never names what does not exist (D1). Another save of the same number is refused. */
int shf_done_put(struct shf_store *s, const char *where, int64_t step, const char *session,
                 struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct telling t = { .s = s, .where = where, .dir = -1, .m = &m, .err = err };
	char name[SHF_STEP_NAME];
	int rc, dir;

	shf_name_of_step(s, name, step);
	dir = shf_dir_open(s->sys, s->dir, name);
	rc = dir < 0 ? dir : shf_text_read(s->sys, dir, "sheaf.json", &text, SHF_MANIFEST_MAX);
	shf_fd_close(s->sys, &dir);
	rc = rc < 0 ? shf_fail_io(err, -rc, "%s/%s/sheaf.json", s->path, name)
	            : shf_manifest_decode(&m, &arena, text.data, text.len, name, err);
	if (rc == 0 && (m.step != step || strcmp(m.session, session) != 0))
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s/%s: is another save of this step", s->path,
		              name);
	t.manifest_bytes = text.len;
	if (rc == 0)
		rc = done_folder_open(&t);
	if (rc == 0)
		rc = done_files_write(&t);
	shf_fd_close(s->sys, &t.dir);
	shf_arena_release(&arena);
	shf_buf_release(&text);
	return rc;
}

int shf_done_put_newest(struct shf_store *s, const char *where, struct sheaf_error *err)
{
	struct shf_entry e = { .step = -1 };
	struct shf_newest newest;
	char name[SHF_STEP_NAME];
	int rc = shf_store_newest(s, -1, &newest, err);

	if (rc < 0 || newest.known < 0)
		return rc;
	shf_name_of_step(s, name, newest.known);
	e.step = newest.known;
	snprintf(e.path, sizeof(e.path), "%s", name);
	/* A step that has lost files is not announced. */
	rc = shf_step_look(s, s->dir, name, &e, err);
	if (rc != 0 || e.state != SHF_COMMITTED)
		return rc < 0 ? rc : 0;
	return shf_done_put(s, where, newest.known, newest.session, err);
}
