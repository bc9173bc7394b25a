/* SPDX-License-Identifier: Apache-2.0 */
/* Brings a step that was set aside back under its number, or deletes it.
 *
 * A job continues from the step with the largest number that is not marked bad. A step that comes
 * back must not change to which branch of the training that step belongs, neither now nor when the
 * steps above it are marked bad. So it comes back only if it fits the steps that are there, which
 * it does if
 *   - it is newer than all that could be the latest, and the newest of these is its parent (or the
 *     next ancestor that was not pruned): the end of a rewind is undone; or
 *   - a step that is there has it for its parent: a hole in that branch is closed.
 * Its mark returns with it: a step that was bad is bad again.
 *
 * The move is one rename that replaces nothing. Before it the mark is durable, and so is the
 * removal of the last rewind's journal: the journal names this very manifest, and would set the
 * step aside again. After it the run directory is synced before .sheaf/aside, so that a power cut
 * leaves the step under one of the two names at least; where it leaves both, they are the same
 * directory (shf_tree_is_step). */
#include "aside_restore.h"
#include "descent.h"
#include "err.h"
#include "list.h"
#include "lock.h"
#include "marks.h"
#include "marks_read.h"
#include "run_files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Opens .sheaf/aside and splits the name. Returns the descriptor or a code. */
static int open_aside(struct shf_store *s, const char *name, int64_t *step,
                      struct sheaf_error *err)
{
	char session[33];
	int aside, rc = shf_lock_check(s, err);

	if (rc < 0)
		return rc;
	if (!shf_step_split(name, step, session))
		return shf_fail(err, SHEAF_EINVAL, "%s: '%.80s' is not the name of a step that was "
		                "set aside, which must be <step>-<32 hex digits>", s->path, name);
	aside = shf_dir_open(s->sys, s->dot, "aside");
	if (aside == -ENOENT)
		return shf_fail(err, SHEAF_ENOENT, "%s: no step is set aside", s->path);
	return aside >= 0 ? aside : shf_fail_io(err, -aside, "%s/.sheaf/aside", s->path);
}

/* ---- bringing back ---- */

/* Looks at the step in .sheaf/aside: it must be whole. Sets e. */
static int look_aside(struct shf_store *s, int aside, const char *name, struct shf_entry *e,
                      struct sheaf_error *err)
{
	struct sheaf_error why = { .msg = "" };
	int rc;

	snprintf(e->path, sizeof(e->path), ".sheaf/aside/%.60s", name);
	rc = shf_step_look(s, aside, name, e, &why);
	if (rc == 1)
		return shf_fail(err, SHEAF_ENOENT, "%s/.sheaf/aside/%s: no such directory",
		                s->path, name);
	if (rc < 0 || e->unread) {
		if (err)
			*err = why;
		return rc < 0 ? rc : SHEAF_EIO;
	}
	if (e->state == SHF_COMMITTED)
		return 0;
	return shf_fail(err, SHEAF_ECORRUPT, "%s/.sheaf/aside/%s is not brought back, because it "
	                "is damaged: %.300s", s->path, name,
	                e->state == SHF_FOREIGN || !why.msg[0] ? "it has no manifest" : why.msg);
}

/* Returns whether a job may go on from the step. A step that cannot be read counts. */
static bool may_be_latest(const struct shf_entry *e)
{
	return e->state <= SHF_DAMAGED && !e->remains && e->mark != 'b';
}

static bool is_parent(const struct shf_entry *parent, const struct shf_entry *e)
{
	return e->parent == parent->step && parent->session[0] &&
	       strcmp(e->parent_session, parent->session) == 0;
}

/* Writes the error for a step that does not fit. */
static int fail_descent(const struct shf_store *s, const struct shf_entry *e,
                        const struct shf_entry *newest, struct sheaf_error *err)
{
	if (e->unread || newest->unread)
		return shf_fail_io(err, EIO, "%s/%s: finding the step that it follows", s->path,
		                   e->unread ? e->path : newest->path);
	if (newest->step > e->step)
		return shf_fail(err, SHEAF_EINVAL, "%s: step %lld is on another branch than step "
		                "%lld, the newest (sheaf copy %s/%s DST makes a run of it)",
		                s->path, (long long)e->step, (long long)newest->step, s->path,
		                e->path);
	return shf_fail(err, SHEAF_EINVAL, "%s: step %lld follows step %lld of session %.8s, and "
	                "the newest here is step %lld of session %.8s (bring back what is between, "
	                "or rewind to the one that it follows)", s->path, (long long)e->step,
	                (long long)e->parent, e->parent_session[0] ? e->parent_session : "-",
	                (long long)newest->step, newest->session[0] ? newest->session : "-");
}

/* Checks that the step fits the steps that are there. */
static int check_descent(struct shf_store *s, const char *name, struct sheaf_error *err)
{
	const struct shf_entry *e = NULL, *newest = NULL;
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_list list = { 0 };
	bool fits = false;
	char path[96];
	int rc = shf_store_list(s, &list, err);

	if (rc == 0)
		rc = shf_descent_read(s, &list, &text, err);
	snprintf(path, sizeof(path), ".sheaf/aside/%.60s", name);
	for (size_t i = 0; rc == 0 && i < list.n; i++) {
		if (list.entries[i].state == SHF_ASIDE && strcmp(list.entries[i].path, path) == 0)
			e = &list.entries[i];
		if (may_be_latest(&list.entries[i]))
			newest = &list.entries[i];      /* ascending by step */
	}
	if (rc == 0 && !e)
		rc = shf_fail_io(err, EIO, "%s/%s: finding the step that it follows", s->path,
		                 path);
	for (size_t i = 0; rc == 0 && i < list.n; i++) {
		const struct shf_entry *o = &list.entries[i];

		if (o->state > SHF_DAMAGED)
			continue;
		fits |= newest && newest->step > e->step ? is_parent(e, o)
		                                         : o == newest && is_parent(o, e);
		if (!newest && is_parent(o, e))
			rc = shf_fail(err, SHEAF_EINVAL, "%s: step %lld follows step %lld, which "
			              "is marked bad (sheaf mark %s@%lld none takes that back)",
			              s->path, (long long)e->step, (long long)o->step, s->path,
			              (long long)o->step);
	}
	if (rc == 0 && newest && !fits)
		rc = fail_descent(s, e, newest, err);
	shf_buf_release(&text);
	shf_list_release(&list);
	return rc;
}

/* Gives the step the mark that it had when it was set aside, and removes any other mark of that
 * number. */
static int restore_mark(struct shf_store *s, const struct shf_entry *e, struct sheaf_error *err)
{
	char marked[33], mark, kept, name[24];
	int why, rc = 0;

	mark = shf_mark_of(s, e->step, marked, &why);
	if (mark == '?' && why < 0)
		return shf_fail_io(err, -why, "%s/.sheaf/marks/%lld", s->path, (long long)e->step);
	/* A mark that names no save, or is invalid, may be this one's. */
	if (mark && (!marked[0] || strcmp(marked, e->session) == 0))
		return 0;
	kept = shf_mark_of_aside(s, e->step, e->session, &why);
	if (kept == '?')
		return shf_fail_io(err, why < 0 ? -why : EBADMSG, "%s/.sheaf/marks/%lld-%s",
		                   s->path, (long long)e->step, e->session);
	shf_mark_name(name, e->step);
	if (kept)
		rc = shf_mark_write(s, name, kept, e->session);
	else if (mark)
		rc = shf_mark_clear(s, e->step);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/marks/%lld", s->path, (long long)e->step)
	             : 0;
}

/* Writes the error for a number that is taken, and says how to free it. */
static int fail_taken(struct shf_store *s, const struct shf_entry *e, struct sheaf_error *err)
{
	struct shf_stat st;
	char t[SHF_STEP_NAME];
	int dir, rc;

	shf_name_of_step(s, t, e->step);
	dir = shf_dir_open(s->sys, s->dir, t);
	rc = dir < 0 ? dir : shf_sys_stat(s->sys, dir, "sheaf.json", false, &st);
	shf_fd_close(s->sys, &dir);
	if (rc == -ENOENT || rc == -ENOTDIR)
		return shf_fail(err, SHEAF_EEXIST, "%s/%s exists and is not a checkpoint of a run "
		                "(move it away first)", s->path, t);
	if (e->parent < 0)
		return shf_fail(err, SHEAF_EEXIST, "%s/%s exists (sheaf copy %s/%s DST makes a run "
		                "of the one that was set aside)", s->path, t, s->path, e->path);
	return shf_fail(err, SHEAF_EEXIST, "%s/%s exists (sheaf rewind %s@%lld makes room)",
	                s->path, t, s->path, (long long)e->parent);
}

/* Renames the step back, and makes that durable. */
static int move_back(struct shf_store *s, int aside, const char *name, const struct shf_entry *e,
                     struct sheaf_error *err)
{
	struct shf_stat st;
	char t[SHF_STEP_NAME];
	int rc = shf_dir_sync(s, s->dot);       /* the last rewind's journal is gone for good */

	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/.sheaf", s->path);
	shf_name_of_step(s, t, e->step);
	rc = shf_sys_rename(s->sys, aside, name, s->dir, t, true);
	/* A network file system may perform a rename and report an error. */
	if (rc < 0 && shf_sys_stat(s->sys, aside, name, false, &st) == -ENOENT &&
	    shf_sys_stat(s->sys, s->dir, t, false, &st) >= 0)
		rc = 0;
	if (rc == -EEXIST || rc == -ENOTEMPTY)
		return fail_taken(s, e, err);
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/.sheaf/aside/%s: moving it back", s->path, name);
	rc = shf_dir_sync(s, s->dir);
	if (rc == 0)
		rc = shf_dir_sync(s, aside);
	if (rc == 0)
		return 0;
	shf_fail_io(err, -rc, "%s/%s: brought back, but a power failure may set it aside again: "
	            "fsync of the directory", s->path, t);
	if (err)
		err->code = SHEAF_EINDOUBT;
	return SHEAF_EINDOUBT;
}

int shf_aside_restore(struct shf_store *s, const char *name, struct sheaf_error *err)
{
	struct shf_entry e = { .parent = -1 };
	struct shf_stat st;
	char t[SHF_STEP_NAME];
	int aside = open_aside(s, name, &e.step, err), rc = aside;

	if (rc >= 0)
		rc = look_aside(s, aside, name, &e, err);
	if (rc == 0) {
		/* The rename would find this, too, but by then the mark would have changed. */
		shf_name_of_step(s, t, e.step);
		rc = shf_sys_stat(s->sys, s->dir, t, false, &st);
		if (rc >= 0)
			rc = fail_taken(s, &e, err);
		else
			rc = rc == -ENOENT ? 0 : shf_fail_io(err, -rc, "%s/%s", s->path, t);
	}
	if (rc == 0)
		rc = check_descent(s, name, err);
	if (rc == 0)
		rc = restore_mark(s, &e, err);
	if (rc == 0)
		rc = move_back(s, aside, name, &e, err);
	shf_fd_close(s->sys, &aside);
	return rc;
}

/* ---- deleting ---- */

/* Takes an exclusive lock on the manifest, which fails while a reader has the step open (lease.h).
 * A manifest that is missing, or that cannot be locked for another reason, protects nobody. *fd is
 * to be closed. */
static int check_unread(struct shf_store *s, int dir, const char *name, int *fd,
                        struct sheaf_error *err)
{
	int rc;

	*fd = shf_sys_open(s->sys, dir, "sheaf.json", SHF_O_WRITE | SHF_O_NOFOLLOW, 0);
	if (*fd < 0)
		return 0;
	rc = shf_sys_lock(s->sys, *fd, true);
	return rc == -EAGAIN ? shf_fail(err, SHEAF_EBUSY, "%s/.sheaf/aside/%s: a process has it "
	                                "open (close it first)", s->path, name) : 0;
}

/* The run directory is synced before anything is deleted: if a power cut undid the move into
 * .sheaf/aside after that, the run would have a damaged step. The manifest goes first, so that what
 * is left of an interrupted deletion cannot be taken for a step. */
static int delete_tree(struct shf_store *s, int aside, int dir, const char *name)
{
	int rc = shf_dir_sync(s, s->dir);

	if (rc < 0)
		return rc;
	rc = shf_sys_unlink(s->sys, dir, "sheaf.json", false);
	if (rc >= 0 || rc == -ENOENT || rc == -EISDIR)
		rc = shf_tree_remove(s->sys, aside, name);
	return rc == 0 ? shf_dir_sync(s, aside) : rc;
}

int shf_aside_delete(struct shf_store *s, const char *name, struct sheaf_error *err)
{
	int64_t step;
	int aside = open_aside(s, name, &step, err), dir = -1, fd = -1, rc = aside;

	if (rc >= 0) {
		rc = dir = shf_dir_open(s->sys, aside, name);
		if (rc == -ENOENT)
			rc = shf_fail(err, SHEAF_ENOENT, "%s/.sheaf/aside/%s: no such directory",
			              s->path, name);
		else if (rc < 0)
			rc = shf_fail_io(err, -rc, "%s/.sheaf/aside/%s", s->path, name);
	}
	if (rc >= 0 && shf_tree_is_step(s, aside, name, step)) {
		char t[SHF_STEP_NAME];

		shf_name_of_step(s, t, step);
		rc = shf_fail(err, SHEAF_EINVAL, "%s/.sheaf/aside/%s is another name of %s, which "
		              "is not set aside", s->path, name, t);
	}
	if (rc >= 0)
		rc = check_unread(s, dir, name, &fd, err);
	if (rc == 0) {
		rc = delete_tree(s, aside, dir, name);
		rc = rc == 0 ? 0 : shf_fail_io(err, -rc, "%s/.sheaf/aside/%s: deleting it", s->path,
		                               name);
	}
	shf_fd_close(s->sys, &fd);
	shf_fd_close(s->sys, &dir);
	shf_fd_close(s->sys, &aside);
	return rc;
}
