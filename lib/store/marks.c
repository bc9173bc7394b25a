/* SPDX-License-Identifier: Apache-2.0 */
/* Marks: .sheaf/marks/<step>. They lie outside the steps, because steps never change (I1). On disk
 * a mark belongs to a number: the mark of a step that is gone stays until that number is saved
 * again. A step in memory with this number may be another save, so a mark also says for which save
 * it was made. */
#include "marks.h"
#include "err.h"
#include "lock.h"
#include "manifest_read.h"
#include "marks_read.h"
#include "run_files.h"
#include "tries.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Writes the mark, with the session of the save that it is made for if the manifest can be read.
 * Returns 0 or a negative errno; the caller syncs dir. */
static int write_mark(struct shf_store *s, int dir, int64_t step, char mark)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	char name[24], text[40];
	int n;

	shf_mark_name(name, step);
	if (shf_store_manifest(s, step, &m, &arena, NULL) == 0)
		n = snprintf(text, sizeof(text), "%c %.32s", mark, m.session);
	else
		n = snprintf(text, sizeof(text), "%c", mark);
	shf_arena_release(&arena);
	return shf_text_write(s, dir, name, text, (size_t)n, false);
}

int shf_mark_write(struct shf_store *s, const char *name, char mark, const char *session)
{
	int dir = shf_dir_make(s->sys, s->dot, "marks"), n, rc = dir;
	char text[40];

	n = snprintf(text, sizeof(text), "%c %.32s", mark, session);
	if (rc >= 0)
		rc = shf_text_write(s, dir, name, text, (size_t)n, false);
	if (rc >= 0)
		rc = shf_dir_sync(s, dir);
	if (rc >= 0)
		rc = shf_dir_sync(s, s->dot);   /* marks itself may be new */
	shf_fd_close(s->sys, &dir);
	return rc < 0 ? rc : 0;
}

/* Removes the copy of an older mark that this save got when it was set aside (mark_of_aside), since
 * the mark that follows is the last word on it. Returns 0 or a negative errno. */
static int clear_aside_mark(struct shf_store *s, int64_t step)
{
	int dir = shf_dir_open(s->sys, s->dot, "marks"), rc = dir;
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	char name[64];

	if (dir >= 0 && shf_store_manifest(s, step, &m, &arena, NULL) == 0) {
		shf_mark_aside_name(name, step, m.session);
		rc = shf_sys_unlink(s->sys, dir, name, false);
		if (rc >= 0)
			rc = shf_dir_sync(s, dir);
	}
	shf_arena_release(&arena);
	shf_fd_close(s->sys, &dir);
	return rc == -ENOENT || rc >= 0 ? 0 : rc;
}

int shf_store_mark(struct shf_store *s, int64_t step, char mark, struct sheaf_error *err)
{
	struct shf_stat st;
	char t[SHF_STEP_NAME];
	int dir = -1, rc;

	if (!s->writer || step < 0 || (mark != 'k' && mark != 'b' && mark != 0))
		return shf_fail(err, SHEAF_EINVAL, "%s: the mark must be k, b or none, and the run "
		                "open for writing", s->path);
	rc = shf_lock_check(s, err);
	if (rc < 0)
		return rc;
	shf_name_of_step(s, t, step);
	rc = shf_sys_stat(s->sys, s->dir, t, false, &st);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s/%s", s->path, t);
	rc = clear_aside_mark(s, step);
	if (rc < 0)
		goto out;
	if (mark == 0) {
		/* The tries go first. If they outlived the mark after a crash, recovery would mark
		 * the step again. */
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

/* A step that is set aside has its session in its name, so it is enough to look for the name. */
bool shf_store_is_aside(struct shf_store *s, int64_t step, const char *session)
{
	int aside = s->dot < 0 ? -ENOENT : shf_dir_open(s->sys, s->dot, "aside"), rc;
	struct shf_stat st;
	char name[64];

	snprintf(name, sizeof(name), "%lld-%.32s", (long long)step, session);
	rc = aside < 0 ? aside : shf_sys_stat(s->sys, aside, name, false, &st);
	shf_fd_close(s->sys, &aside);
	return rc >= 0;
}

/* A step whose session could not be read has 32 random digits instead, which match no step. */
int shf_asides_some(struct shf_store *s, bool (*is)(void *arg, int64_t step, const char *session),
                    void *arg)
{
	struct shf_names names;
	int aside = s->dot < 0 ? -ENOENT : shf_dir_open(s->sys, s->dot, "aside");
	int rc = aside < 0 ? aside : shf_names_read(s->sys, aside, &names);
	char session[33];
	int64_t step;

	if (rc < 0) {
		shf_fd_close(s->sys, &aside);
		return rc == -ENOENT ? 0 : rc;
	}
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL;)
		rc = shf_step_split(p, &step, session) && is(arg, step, session);
	shf_names_release(&names);
	shf_fd_close(s->sys, &aside);
	return rc;
}

/* A mark with a session concerns only the save of that session. A mark without a session was made
 * when the manifest could not be read. Then the session of the step on disk decides; if that cannot
 * be read either, the mark counts, to be on the safe side. */
int shf_store_is_bad(struct shf_store *s, int64_t step, const char *session,
                     struct sheaf_error *err)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	char marked[33], mark;
	bool bad;
	int rc;

	mark = shf_mark_of(s, step, marked, &rc);
	if (mark == '?')
		return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/marks/%lld", s->path,
		                            (long long)step)
		       : shf_fail(err, SHEAF_EIO, "%s/.sheaf/marks/%lld: not a valid mark; mark "
		                  "step %lld again", s->path, (long long)step,
		                  (long long)step);
	/* The mark of the number is about another save: was this one marked before it was set
	 * aside? */
	if (mark != 'b' || (marked[0] && strcmp(marked, session) != 0)) {
		mark = shf_mark_of_aside(s, step, session, &rc);
		return rc < 0 && rc != -ENOENT
		       ? shf_fail_io(err, -rc, "%s/.sheaf/marks/%lld-%.32s", s->path,
		                     (long long)step, session) : mark == 'b';
	}
	if (marked[0])
		return 1;
	rc = shf_store_manifest(s, step, &m, &arena, NULL);
	bad = rc < 0 ? rc != SHEAF_ENOENT : strcmp(m.session, session) == 0;
	shf_arena_release(&arena);
	return bad;
}
