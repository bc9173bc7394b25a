/* SPDX-License-Identifier: Apache-2.0 */
/* Marks: .sheaf/marks/<step>, one byte. They lie outside the steps, which never change (I1), and
 * belong to a number: a step that is gone leaves its mark until that number is saved again. */
#include "err.h"
#include "tree.h"

#include <errno.h>
#include <stdio.h>

static void name_of(char out[24], int64_t step)
{
	snprintf(out, 24, "%lld", (long long)step);
}

static int open_marks(struct shf_store *s)
{
	return s->dot < 0 ? -ENOENT : shf_dir_open(s->sys, s->dot, "marks");
}

char shf_mark_read(struct shf_store *s, int64_t step, int *why)
{
	struct shf_buf text = SHF_BUF_INIT;
	char name[24], mark = '?';
	int dir = open_marks(s), rc = dir;

	if (dir >= 0) {
		name_of(name, step);
		rc = shf_text_read(s->sys, dir, name, &text, 16);
	}
	if (why)
		*why = rc < 0 ? rc : 0;
	if (rc == -ENOENT)
		mark = 0;
	else if (rc == 0 && text.len >= 1 && (text.data[0] == 'k' || text.data[0] == 'b') &&
	         (text.len == 1 || text.data[1] == '\n'))
		mark = (char)text.data[0];
	shf_buf_release(&text);
	shf_fd_close(s->sys, &dir);
	return mark;
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

int shf_store_mark(struct shf_store *s, int64_t step, char mark, struct sheaf_error *err)
{
	struct shf_stat st;
	char t[40], name[24];
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
	name_of(name, step);
	rc = shf_text_write(s, dir, name, &mark, 1, false);
	if (rc == 0)
		rc = shf_dir_sync(s, dir);
	if (rc == 0)
		rc = shf_dir_sync(s, s->dot);   /* marks itself may be new */
out:
	shf_fd_close(s->sys, &dir);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/marks/%lld", s->path, (long long)step)
	             : 0;
}
