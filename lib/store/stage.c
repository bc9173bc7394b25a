/* SPDX-License-Identifier: Apache-2.0 */
/* The stage of a save: .sheaf/stage/<step>-<session of this save>/. The session begins with the
 * first half of the writer's session, by which the next job knows whose stage it was. The second
 * half is drawn for each save, so that no save ever finds files of another one (I5).
 *
 * The stage of a copy: .sheaf/stage/copy-<step>-<session of the step>/. Every job that copies this
 * step uses the same name, so that the next copy continues one that was interrupted, and recovery
 * does not take it for a failed save. Two jobs that copy at once write the same bytes under names
 * of their own, and C7 lets one of them through. */
#include "stage.h"
#include "aside.h"
#include "err.h"
#include "list.h"
#include "lock.h"
#include "marks_read.h"
#include "step_look.h"
#include "run_files.h"
#include "tries.h"
#include "valid.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Makes *g empty, so that closing it is safe at any point of a failure. */
static void stage_init(struct shf_store *s, struct shf_stage *g, int64_t step)
{
	memset(g, 0, sizeof(*g));
	g->dir = g->alive = -1;
	g->step = step;
	memcpy(g->session, s->session, sizeof(g->session));
}

/* Returns whether it is the name of a family. Folders have no other names, so no name can lead out
 * of the stage. */
static bool folder_is_valid(const char *name)
{
	for (const char *p = name; *p; p++)
		if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '_'))
			return false;
	return name[0] != '\0';
}

/* A missing file becomes EIO, because callers take ENOENT for "there is no such step". */
int shf_stage_fail(struct sheaf_error *err, int sys, const char *fmt, ...)
{
	char what[400];
	va_list args;

	va_start(args, fmt);
	shf_message(what, sizeof(what), fmt, args);
	va_end(args);
	if (shf_code_of(sys) != SHEAF_ENOENT)
		return shf_fail_sys(err, sys, "%s", what);
	return shf_fail_io(err, sys, "%s: the files of this save were deleted from .sheaf/stage by "
	                   "another job or by hand; save again", what);
}

/* Makes the folders of the families. A folder that exists already, as in the stage of a copy, is no
 * error. */
static int make_folders(struct shf_store *s, struct shf_stage *g, const char *const *folders,
                        struct sheaf_error *err)
{
	int rc;

	for (; folders && *folders; folders++) {
		if (strcmp(*folders, ".") == 0)
			continue;
		if (!folder_is_valid(*folders))
			return shf_fail(err, SHEAF_EINVAL, "%s: a checkpoint cannot have a "
			                "directory '%s'",
			                s->path, *folders);
		rc = shf_sys_mkdir(s->sys, g->dir, *folders, 0777);
		if (rc < 0 && rc != -EEXIST)
			return shf_fail_io(err, -rc, "%s/.sheaf/stage/%s/%s", s->path, g->name,
			                   *folders);
	}
	return 0;
}

/* Moves the remains of a step aside. If somebody deleted a step by hand and left an empty or
 * half-empty directory, that must not stop the job which saves the step again. The directory is
 * moved, not deleted, since nobody knows what the person meant to do with it. */
static int set_remains_aside(struct shf_store *s, int64_t step, const char *t,
                             struct sheaf_error *err)
{
	int dir = shf_dir_open(s->sys, s->dir, t), aside = -1, rc = 0;
	bool remains = dir >= 0 && shf_dir_is_remains(s->sys, dir);

	shf_fd_close(s->sys, &dir);
	if (!remains)
		return 0;
	aside = shf_dir_make(s->sys, s->dot, "aside");
	rc = aside < 0 ? shf_fail_io(err, -aside, "%s/.sheaf/aside", s->path)
	               : shf_step_move(s, step, aside, NULL, err);
	if (rc == 0) {
		rc = shf_dir_sync(s, aside);
		if (rc == 0)
			rc = shf_dir_sync(s, s->dir);
		if (rc < 0)
			rc = shf_fail_io(err, -rc, "%s: fsync of the directory after moving the "
			                 "remains of %s",
					 s->path, t);
	}
	shf_fd_close(s->sys, &aside);
	return rc;
}

/* Sets the step aside if it is marked bad or to be marked bad: a job that resumed from an older
 * step has come to the same number again. Removes the tries of the step; the caller removes its
 * mark. */
static int set_bad_aside(struct shf_store *s, int64_t step, struct sheaf_error *err)
{
	int rc = shf_step_is_condemned(s, step);

	if (rc <= 0)
		return rc < 0 ? shf_fail(err, rc, "%s: finding out whether step %lld is marked bad",
		                         s->path,
		                         (long long)step) : 0;
	rc = shf_step_set_aside(s, step, err);
	if (rc == 0)
		(void)shf_tries_clear(s, step);
	return rc;
}

/* Makes sure that T does not exist. If T is remains, or a bad step, it is set aside; anything else
 * is EEXIST (I6). */
static int check_target(struct shf_store *s, int64_t step, struct sheaf_error *err)
{
	struct shf_stat st;
	char t[SHF_STEP_NAME];
	int rc;

	shf_name_of_step(s, t, step);
	rc = shf_sys_stat(s->sys, s->dir, t, false, &st);
	if (rc >= 0) {
		rc = set_remains_aside(s, step, t, err);
		if (rc == 0)
			rc = set_bad_aside(s, step, err);
		if (rc < 0)
			return rc;
		rc = shf_sys_stat(s->sys, s->dir, t, false, &st);
	}
	if (rc >= 0)
		return shf_fail(err, SHEAF_EEXIST, "%s/%s: exists; save another step, or rewind "
		                "the run", s->path, t);
	if (rc != -ENOENT)
		return shf_fail_io(err, -rc, "%s/%s", s->path, t);
	return 0;
}

/* A save after a failed rewind is refused: the next job will finish that rewind and set aside steps
 * that this save would follow. A mark of the number is removed if it was made for a step that no
 * longer has the number. It stays if the step that comes is the one that was marked. */
int shf_stage_room(struct shf_store *s, int64_t step, const char *session, struct sheaf_error *err)
{
	char marked[33] = "";
	int rc = shf_rewind_is_over(s, err);

	if (rc == 0)
		rc = check_target(s, step, err);
	if (rc < 0)
		return rc;
	if (session)
		(void)shf_mark_of(s, step, marked, NULL);
	if (session && strcmp(marked, session) == 0)
		return 0;
	rc = shf_mark_clear(s, step);
	return rc < 0 ? shf_fail_io(err, -rc, "%s: step %lld", s->path, (long long)step) : 0;
}

/* The second half of the session in the name is drawn anew for each save, so that a second try of
 * the same step never finds files of the first (I5). */
int shf_stage_new(struct shf_store *s, struct shf_stage *g, int64_t step,
                  const char *const *folders, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	char fresh[17];
	int rc;

	stage_init(s, g, step);
	if (!s->writer || step < 0)
		return shf_fail(err, SHEAF_EINVAL, "%s: saving step %lld needs a run that is open "
		                "for writing, and a step that is not negative", s->path,
		                (long long)step);
	rc = shf_stage_room(s, step, NULL, err);
	if (rc < 0)
		return rc;
	rc = shf_id_draw(sys, fresh, 16);
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s: step %lld", s->path, (long long)step);
	snprintf(g->name, sizeof(g->name), "%lld-%.16s%s", (long long)step, s->session, fresh);
	rc = shf_sys_mkdir(sys, s->stage, g->name, 0777);
	if (rc < 0) {
		rc = shf_fail_io(err, -rc, "%s/.sheaf/stage/%s", s->path, g->name);
		g->name[0] = '\0';      /* if a stage has this name, it is not ours */
		return rc;
	}
	g->dir = shf_dir_open(sys, s->stage, g->name);
	rc = g->dir < 0 ? shf_fail_io(err, -g->dir, "%s/.sheaf/stage/%s", s->path, g->name)
	               : make_folders(s, g, folders, err);
	if (rc < 0)
		shf_stage_discard(s, g);
	return rc;
}

/* The name depends only on the step, so that the next copy finds what an interrupted one left. Two
 * copiers at once write the same bytes, because each file is a copy of the same source. */
int shf_stage_copy(struct shf_store *s, struct shf_stage *g, int64_t step, const char *session,
                   const char *const *folders, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	int rc;

	stage_init(s, g, step);
	if (!s->writer || step < 0 || !shf_id_is_valid(session, 32))
		return shf_fail(err, SHEAF_EINVAL, "%s: a copy of step %lld needs a run that is "
		                "open for writing, and the session of the step", s->path,
		                (long long)step);
	rc = shf_stage_room(s, step, session, err);
	if (rc < 0)
		return rc;
	snprintf(g->name, sizeof(g->name), "copy-%lld-%s", (long long)step, session);
	rc = shf_sys_mkdir(sys, s->stage, g->name, 0777);
	if (rc >= 0 || rc == -EEXIST)
		rc = g->dir = shf_dir_open(sys, s->stage, g->name);
	rc = rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/stage/%s", s->path, g->name)
	            : make_folders(s, g, folders, err);
	if (rc < 0)
		shf_stage_close(s, g);
	return rc;
}

/* Only the stage of a save can be joined, not that of a copy. */
int shf_stage_join(struct shf_store *s, struct shf_stage *g, int64_t step, const char *name,
                   struct sheaf_error *err)
{
	char session[33];
	int64_t of;

	stage_init(s, g, step);
	if (!shf_step_split(name, &of, session) || of != step || s->stage < 0)
		return shf_fail(err, SHEAF_EINVAL, "%s: '%.60s' is not a stage of step %lld",
		                s->path, name, (long long)step);
	g->dir = shf_dir_open(s->sys, s->stage, name);
	if (g->dir < 0) {
		int rc = -g->dir;

		g->dir = -1;
		return shf_stage_fail(err, rc, "%s/.sheaf/stage/%s", s->path, name);
	}
	snprintf(g->name, sizeof(g->name), "%s", name);
	return 0;
}

/* Locks an alive file. Another process that tests whether we are alive may hold the lock for a
 * moment, so the lock is tried for up to half a second. Returns 0 also if the file system has no
 * locks. */
static int lock_alive(const struct shf_sys *sys, int fd)
{
	int rc = -EAGAIN;

	for (int ms = 1; rc == -EAGAIN && ms <= 256; ms *= 2) {
		rc = shf_sys_lock(sys, fd, true);
		if (rc == -EAGAIN)
			shf_sys_sleep_ms(sys, ms);
	}
	return rc < 0 && shf_lock_is_absent(rc) ? 0 : rc;
}

/* The lock is taken before the text is written: a text without a lock would look like the text of a
 * process that has exited. */
int shf_stage_alive(struct shf_store *s, struct shf_stage *g, int node, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	struct shf_owner self = s->self;
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_stat st;
	char name[32];
	int64_t put;
	int fd, rc;

	snprintf(name, sizeof(name), "alive-%d", node);
	fd = shf_sys_open(sys, g->dir, name,
			  SHF_O_WRITE | SHF_O_CREATE | SHF_O_EXCL | SHF_O_NOFOLLOW, 0666);
	if (fd < 0)
		return shf_stage_fail(err, -fd, "%s/.sheaf/stage/%s/%s", s->path, g->name, name);
	rc = lock_alive(sys, fd);
	if (rc == 0)
		rc = shf_sys_fstat(sys, fd, &st);
	if (rc < 0)
		goto out;
	/* The device shows recovery whether we locked the file through the same mount
	 * (kernel_let_go). */
	self.dev = st.dev;
	shf_owner_put(&text, &self, s->session);
	put = text.oom ? -ENOMEM : shf_sys_pwrite(sys, fd, text.data, text.len, 0);
	rc = put < 0 ? (int)put : 0;
out:
	shf_buf_release(&text);
	if (rc < 0) {
		shf_lock_close(sys, &fd);
		return shf_stage_fail(err, -rc, "%s/.sheaf/stage/%s/%s", s->path, g->name, name);
	}
	shf_lock_close(sys, &g->alive);
	g->alive = fd;
	return 0;
}

void shf_stage_leave(struct shf_store *s, struct shf_stage *g)
{
	shf_fd_close(s->sys, &g->alive);
	shf_fd_close(s->sys, &g->dir);
}

void shf_stage_close(struct shf_store *s, struct shf_stage *g)
{
	shf_lock_close(s->sys, &g->alive);
	shf_stage_leave(s, g);
}

/* Deletes by name below .sheaf/stage, never through g->dir: once the rename was tried, g->dir may
 * be the directory of a published step. That is also why the rename clears g->name. */
void shf_stage_discard(struct shf_store *s, struct shf_stage *g)
{
	struct shf_clear clear;
	char session[33];
	int64_t step;

	shf_clear_begin(&clear, s);
	if (g->name[0] && s->stage >= 0 &&
	    (shf_step_split(g->name, &step, session) || shf_copy_split(g->name, &step, session)) &&
	    !shf_tree_is_step(s, s->stage, g->name, g->step))
		shf_clear_stage(&clear, g->name, step, session);
	shf_stage_close(s, g);
	g->name[0] = '\0';
}
