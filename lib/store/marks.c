/* SPDX-License-Identifier: Apache-2.0 */
/* Marks: .sheaf/marks/<step>. They lie outside the steps, which never change (I1), and on disk they
 * belong to a number: a step that is gone leaves its mark until that number is saved again. What
 * memory has of the number may be another save, so a mark says which one it was made of. */
#include "err.h"
#include "tree.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void name_of(char out[24], int64_t step)
{
	snprintf(out, 24, "%lld", (long long)step);
}

static int open_marks(struct shf_store *s)
{
	return s->dot < 0 ? -ENOENT : shf_dir_open(s->sys, s->dot, "marks");
}

/* "k" or "b"; then, unless the manifest could not be read, a space and the session of the save. */
static char mark_of_text(const struct shf_buf *text, char session[33])
{
	const char *p = (const char *)text->data;
	size_t n = text->len;
	char of[33] = "";

	if (n == 0 || (p[0] != 'k' && p[0] != 'b'))
		return '?';
	if (n == 1 || p[1] == '\n')
		return p[0];
	if (p[1] != ' ' || n < 34 || n > 35 || (n == 35 && p[34] != '\n'))
		return '?';
	memcpy(of, p + 2, 32);
	if (!shf_id_is_valid(of, 32))
		return '?';
	memcpy(session, of, sizeof(of));
	return p[0];
}

char shf_mark_of(struct shf_store *s, int64_t step, char session[33], int *why)
{
	struct shf_buf text = SHF_BUF_INIT;
	char name[24], mark = '?';
	int dir = open_marks(s), rc = dir;

	session[0] = '\0';
	if (dir >= 0) {
		name_of(name, step);
		rc = shf_text_read(s->sys, dir, name, &text, 64);
	}
	if (why)
		*why = rc < 0 ? rc : 0;
	if (rc == -ENOENT)
		mark = 0;
	else if (rc == 0)
		mark = mark_of_text(&text, session);
	shf_buf_release(&text);
	shf_fd_close(s->sys, &dir);
	return mark;
}

char shf_mark_read(struct shf_store *s, int64_t step, int *why)
{
	char session[33];

	return shf_mark_of(s, step, session, why);
}

int shf_mark_clear(struct shf_store *s, int64_t step)
{
	char name[24];
	int dir = open_marks(s), rc;

	if (dir < 0)
		return dir == -ENOENT ? 0 : dir;
	name_of(name, step);
	rc = s->sys->ops->unlink(s->sys->arg, dir, name, false);
	if (rc >= 0)
		rc = shf_dir_sync(s, dir);
	else if (rc == -ENOENT)
		rc = 0;
	shf_fd_close(s->sys, &dir);
	return rc;
}

static int write_mark(struct shf_store *s, int dir, int64_t step, char mark)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	char name[24], text[40];
	int n;

	name_of(name, step);
	if (shf_store_manifest(s, step, &m, &arena, NULL) == 0)
		n = snprintf(text, sizeof(text), "%c %.32s", mark, m.session);
	else
		n = snprintf(text, sizeof(text), "%c", mark);
	shf_arena_release(&arena);
	return shf_text_write(s, dir, name, text, (size_t)n, false);
}

int shf_store_mark(struct shf_store *s, int64_t step, char mark, struct sheaf_error *err)
{
	struct shf_stat st;
	char t[40];
	int dir = -1, rc;

	if (!s->writer || step < 0 || (mark != 'k' && mark != 'b' && mark != 0))
		return shf_fail(err, SHEAF_EINVAL, "%s: a mark is k, b or none, of a step, in "
		                "a run open for writing", s->path);
	rc = shf_lock_check(s, err);
	if (rc < 0)
		return rc;
	shf_name_of_step(t, step);
	rc = s->sys->ops->stat(s->sys->arg, s->dir, t, false, &st);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s/%s", s->path, t);
	if (mark == 0) {
		/* In this order: else recovery would mark it again after a cut between the two. */
		rc = shf_tries_clear(s, step);
		if (rc >= 0)
			rc = shf_mark_clear(s, step);
		goto out;
	}
	rc = dir = shf_dir_make(s->sys, s->dot, "marks");
	if (rc < 0)
		goto out;
	rc = write_mark(s, dir, step, mark);
	if (rc == 0)
		rc = shf_dir_sync(s, dir);
	if (rc == 0)
		rc = shf_dir_sync(s, s->dot);   /* marks itself may be new */
out:
	shf_fd_close(s->sys, &dir);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/marks/%lld", s->path, (long long)step)
	             : 0;
}

bool shf_store_is_aside(struct shf_store *s, int64_t step, const char *session)
{
	int aside = s->dot < 0 ? -ENOENT : shf_dir_open(s->sys, s->dot, "aside"), rc;
	struct shf_stat st;
	char name[64];

	snprintf(name, sizeof(name), "%lld-%.32s", (long long)step, session);
	rc = aside < 0 ? aside : s->sys->ops->stat(s->sys->arg, aside, name, false, &st);
	shf_fd_close(s->sys, &aside);
	return rc >= 0;
}

bool shf_store_is_bad(struct shf_store *s, int64_t step, const char *session)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	char marked[33];
	bool bad;
	int rc;

	if (shf_mark_of(s, step, marked, NULL) != 'b')
		return false;
	if (marked[0])
		return strcmp(marked, session) == 0;
	/* Nobody knows of which save the mark is. If the disk's cannot be read, it counts. */
	rc = shf_store_manifest(s, step, &m, &arena, NULL);
	bad = rc < 0 ? rc != SHEAF_ENOENT : strcmp(m.session, session) == 0;
	shf_arena_release(&arena);
	return bad;
}
