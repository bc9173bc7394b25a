/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at one name in a run's directory: is it a step, the remains of one, or something else? */
#include "step_look.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "manifest_read.h"
#include "run_files.h"

/* A check of the files of a step, one folder after the other. */
struct files {
	struct shf_store *s;
	int top, dir;                   /* descriptors of the step and of `folder` in it; dir -1:
	                                 * not open */
	char folder[64];
	const char *where;
	struct sheaf_error *err;
};

/* Opens a folder of the step, unless it is open. Files of a manifest are ordered by folder, so each
 * folder is opened once. */
static int step_folder_open(struct files *f, const char *name, size_t n)
{
	if (f->dir >= 0 && strlen(f->folder) == n && memcmp(f->folder, name, n) == 0)
		return 0;
	shf_fd_close(f->s->sys, &f->dir);
	/* The decoder lets only names of families through. */
	if (!always(n > 0 && n < sizeof(f->folder) && name[0] != '.'))
		return -EINVAL;
	memcpy(f->folder, name, n);
	f->folder[n] = '\0';
	f->dir = shf_dir_open(f->s->sys, f->top, f->folder);
	return f->dir < 0 ? f->dir : 0;
}

/* Checks that a file is a regular file of the size that the manifest says. Returns 0; 1 if it is
 * not, and then err says what is wrong; -errno if this process lacks memory or descriptors, which
 * says nothing about the step. */
static int check_step_file(struct files *f, const struct shf_mf_file *file)
{
	const char *slash = strchr(file->name, '/'), *name = slash ? slash + 1 : file->name;
	const struct shf_sys *sys = f->s->sys;
	struct shf_stat st;
	int rc = 0;

	if (!always(!strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..")))
		rc = -EINVAL;   /* the decoder has checked the names */
	if (rc == 0 && slash)
		rc = step_folder_open(f, file->name, (size_t)(slash - file->name));
	if (rc == 0)
		rc = shf_sys_stat(sys, slash ? f->dir : f->top, name, false, &st);
	if (shf_is_own_lack(rc))
		return rc;
	if (rc < 0)
		shf_fail_sys(f->err, -rc, "%s/%s: finding the file that the manifest names",
		             f->where, file->name);
	else if (st.type != SHF_T_FILE)
		shf_fail(f->err, SHEAF_ECORRUPT, "%s/%s: not a regular file", f->where, file->name);
	else if (st.bytes != file->bytes)
		shf_fail(f->err, SHEAF_ECORRUPT, "%s/%s: has %llu bytes, the manifest says %llu",
		         f->where, file->name, (unsigned long long)st.bytes,
		         (unsigned long long)file->bytes);
	else
		return 0;
	return 1;
}

/* Checks the sizes of all files that the manifest names. Returns what check_step_file returns. */
static int check_step_files(struct files *f, const struct shf_manifest *m)
{
	int rc = check_step_file(f, &m->sums);

	for (size_t i = 0; rc == 0 && i < m->files_n; i++)
		rc = check_step_file(f, &m->files[i]);
	for (size_t i = 0; rc == 0 && i < m->attached_n; i++)
		rc = check_step_file(f, &m->attached[i]);
	shf_fd_close(f->s->sys, &f->dir);
	return rc;
}

/* Finds the note with the key e->note, and reads its value as a decimal number. */
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

/* Fills in what the manifest says. */
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
	/* A parent in another run is not a step of this one. */
	if (m->has_parent && m->parent_run[0] == '\0') {
		e->parent = m->parent_step;
		memcpy(e->parent_session, m->parent_session, sizeof(e->parent_session));
	}
}

/* A callback of shf_sys_list: stores that there is an entry, and ends the listing. */
static int not_empty(void *arg, const char *name)
{
	(void)name;
	*(bool *)arg = true;
	return 1;
}

/* A step is published with its manifest, so if a directory has sheaf.sums but no manifest, somebody
 * has removed the manifest by hand. An empty directory is what a removal of the files leaves. */
bool shf_dir_is_remains(const struct shf_sys *sys, int dir)
{
	struct shf_stat st;
	bool full = false;

	if (shf_sys_stat(sys, dir, "sheaf.json", false, &st) != -ENOENT)
		return false;
	if (shf_sys_stat(sys, dir, "sheaf.sums", false, &st) >= 0)
		return true;
	return shf_sys_list(sys, dir, not_empty, &full) == 0 && !full;
}

bool shf_step_is_unread(const struct sheaf_error *why)
{
	return why->code == SHEAF_EIO && why->sys != ELOOP && why->sys != EISDIR &&
	       why->sys != EINVAL && why->sys != ENAMETOOLONG;
}

/* files: also compare the sizes of all files; otherwise a step with a good manifest counts as
 * committed. While a directory is being deleted, it lacks files. So if the verdict is bad, the
 * function checks whether the directory still has its name, and returns 1 ("gone") if not. */
static int look_at_name(struct shf_store *s, int dir, const char *name, bool files,
                        struct shf_entry *e, struct sheaf_error *err)
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
	/* A file or a symlink has the name of a step: somebody else made it. */
	if (fd == -ENOTDIR || fd == -ELOOP) {
		e->state = SHF_FOREIGN;
		return 0;
	}
	if (fd < 0) {
		rc = shf_fail_sys(&why, -fd, "%s", where);
		e->unread = shf_step_is_unread(&why);
		if (err)
			*err = why;
		return shf_is_own_lack(fd) ? rc : 0;
	}
	rc = shf_manifest_read(s->sys, fd, where, &m, &arena, &why);
	if (rc == 0) {
		struct files f = { s, fd, -1, "", where, &why };

		entry_fill(e, &m);
		rc = shf_manifest_is_of(s, &m, e->step, where, &why);
		if (rc == 0 && files)
			rc = check_step_files(&f, &m);
		if (rc < 0 && shf_is_own_lack(rc))
			rc = shf_fail_sys(&why, -rc, "%s", where);
		else if (rc == 0)
			e->state = SHF_COMMITTED;
	} else if (rc == SHEAF_ENOENT) {
		e->remains = shf_dir_is_remains(s->sys, fd);
		e->state = e->remains ? SHF_DAMAGED : SHF_FOREIGN;
		if (e->remains)
			shf_fail(&why, SHEAF_ECORRUPT, "%s: sheaf.json is missing", where);
	}
	e->unread = e->state == SHF_DAMAGED && shf_step_is_unread(&why);
	gone = e->state != SHF_COMMITTED && shf_dir_has_gone(s->sys, dir, name, false, fd);
	shf_arena_release(&arena);
	shf_fd_close(s->sys, &fd);
	if (gone)
		return 1;
	if (err)
		*err = why;
	return rc == SHEAF_ENOMEM || shf_is_own_lack(-why.sys) ? rc : 0;
}

int shf_step_look(struct shf_store *s, int dir, const char *name, struct shf_entry *e,
                  struct sheaf_error *err)
{
	return look_at_name(s, dir, name, true, e, err);
}

int shf_step_look_at(struct shf_store *s, int64_t step, bool files, struct shf_entry *e,
                     struct sheaf_error *err)
{
	int rc;

	memset(e, 0, sizeof(*e));
	e->step = step;
	shf_name_of_step(s, e->path, step);
	rc = look_at_name(s, s->dir, e->path, files, e, err);
	if (rc == 1)
		return SHF_STEP_GONE;
	return rc < 0 ? rc : e->state != SHF_FOREIGN && !e->remains;
}

int shf_step_look_briefly(struct shf_store *s, int64_t step, struct shf_entry *e,
                          struct sheaf_error *err)
{
	return shf_step_look_at(s, step, false, e, err);
}
