/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what a person may want to know about a run before the next job opens it: who holds the
 * lock, which steps are damaged, what dead jobs left, what was set aside or pruned. Nothing is
 * changed. But shared locks are taken for a moment, because nothing else proves that a writer is
 * alive. */

#include "leftovers.h"
#include "lock.h"
#include "recover.h"
#include "sheaf-admin.h"
#include "step_look.h"
#include "steps.h"
#include "prune_steps.h"
#include "run_files.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct looking {
	struct shf_store s;             /* a copy of the reader's store; prev and prev_gone are what
	                                 * recovery would find */
	bool held;                      /* a living process holds the lock now */
	int (*item)(void *arg, const struct shf_left *left);
	void *arg;
	struct sheaf_error *err;
};

/* Completes the entry and hands it to the caller. */
static int left_report(struct looking *l, struct shf_left *left, int32_t kind,
                       int32_t action, const char *why)
{
	left->kind = kind;
	left->action = action;
	left->why = why;
	return l->item(l->arg, left);
}

/* Makes the error for a name in .sheaf. */
static int left_fail(const struct looking *l, int rc, const char *what)
{
	return shf_fail_io(l->err, -rc, "%s/.sheaf/%s", l->s.path, what);
}

/* ---- the lock ---- */

/* Reports the lock, and finds out what recovery would know of its last holder. This comes first,
 * because whether stages are dead depends on it. A shared lock is tried only for a moment, and the
 * file is never changed. */
static int report_lock(struct looking *l)
{
	struct shf_left left = { .step = -1, .path = ".sheaf/lock", .lives = 1 };
	const struct shf_sys *sys = l->s.sys;
	char why[200];
	struct shf_owner holder;
	char session[33] = "";
	bool free;
	int fd, rc;

	fd = shf_sys_open(sys, l->s.dot, "lock", SHF_O_NOFOLLOW, 0);
	if (fd == -ENOENT)
		return 0;
	if (fd < 0)
		return left_fail(l, fd, "lock");
	rc = shf_sys_lock(sys, fd, false);
	/* A lock that only the forked child of a dead owner has does not count as held. */
	l->held = rc == -EAGAIN && shf_lock_is_held(&l->s);
	free = !l->held && (rc >= 0 || rc == -EAGAIN || shf_lock_is_absent(rc));
	rc = shf_lock_read(&l->s, &l->s.prev, l->s.prev_session);
	l->s.prev_gone = rc == 0 && free && shf_prev_is_gone(&l->s, fd);
	shf_lock_close(sys, &fd);
	if (rc < 0)
		return rc == -ENOENT ? 0 : left_fail(l, rc, "lock");
	if (!l->s.prev_session[0] && !l->held)
		return 0;
	holder = l->s.prev;
	memcpy(session, l->s.prev_session, sizeof(session));
	rc = l->held ? shf_lock_holder(&l->s, &holder, session) : 0;
	if (rc < 0 && rc != -ENOENT)
		return left_fail(l, rc, "lock");
	left.lives = !l->s.prev_gone;
	memcpy(left.session, session, sizeof(left.session));
	snprintf(why, sizeof(why), "%s by pid %llu on %s%s", l->held ? "held" : "held last",
	         (unsigned long long)holder.pid, holder.host,
	         l->held ? "" : left.lives ? ", which may be alive" : ", which has exited");
	if (!session[0])
		snprintf(why, sizeof(why), "held, but the lock file does not name the job");
	return left_report(l, &left, SHEAF_LEFTOVER_LOCK, l->held ? SHEAF_ACTION_WAIT
	                   : SHEAF_ACTION_NONE, why);
}

/* ---- steps ---- */

/* Fills in what is known from a look at a step. */
static void left_of(struct shf_left *left, const struct shf_entry *e)
{
	*left = (struct shf_left){ .step = e->step, .bytes = e->bytes, .lives = -1 };
	memcpy(left->path, e->path, sizeof(left->path));
	memcpy(left->session, e->session, sizeof(left->session));
}

/* Reports damaged steps, oldest first. */
static int report_damaged(struct looking *l)
{
	static const char remains[] = "no manifest: left over from a deletion by hand; the next "
	                              "save of this step sets it aside";
	struct shf_steps steps;
	struct sheaf_error why;
	struct shf_left left;
	struct shf_entry e;
	int rc = shf_steps_read(&l->s, &steps);

	if (rc < 0)
		rc = shf_fail_io(l->err, -rc, "%s: listing its steps", l->s.path);
	for (size_t i = steps.n; i-- > 0 && rc == 0; ) {
		memset(&e, 0, sizeof(e));
		e.step = steps.all[i];
		shf_name_of_step(&l->s, e.path, e.step);
		rc = shf_step_look(&l->s, l->s.dir, e.path, &e, &why);
		if (rc < 0 && l->err)
			*l->err = why;
		if (rc != 0 || e.state != SHF_DAMAGED) {
			rc = rc == 1 ? 0 : rc;  /* the step was removed meanwhile */
			continue;
		}
		left_of(&left, &e);
		rc = e.remains ? left_report(l, &left, SHEAF_LEFTOVER_REMAINS, SHEAF_ACTION_DECIDE,
		                             remains)
		               : left_report(l, &left, e.unread ? SHEAF_LEFTOVER_UNREAD
		                                              : SHEAF_LEFTOVER_DAMAGED,
		                             SHEAF_ACTION_DECIDE, why.msg);
	}
	shf_free(steps.all);
	return rc;
}

/* Like shf_step_look, but the message of a code is in l->err. */
static int left_look_at(struct looking *l, int dir, const char *name, struct shf_entry *e)
{
	struct sheaf_error why;
	int rc = shf_step_look(&l->s, dir, name, e, &why);

	if (rc < 0 && l->err)
		*l->err = why;
	return rc;
}

/* Reports a stage of a save, and whether its writer may be alive. */
static int report_staged(struct looking *l, const char *name, struct shf_left *left)
{
	struct shf_entry e = { .step = left->step };
	struct shf_names names;
	char text[400];
	int dir, rc;

	snprintf(e.path, sizeof(e.path), "%s", left->path);
	dir = shf_dir_open(l->s.sys, l->s.stage, name);
	/* The stage may be published or discarded while we look. Recovery passes over a name that
	 * is no folder, or that it may not read. */
	if (dir < 0)
		return dir == -ENOENT || dir == -ENOTDIR || dir == -ELOOP || dir == -EACCES
		       ? 0 : left_fail(l, dir, "stage");
	rc = shf_names_read(l->s.sys, dir, &names);
	if (rc == 0) {
		left->lives = !shf_stage_is_dead(&l->s, dir, &names, left->session, true);
		shf_names_release(&names);
	}
	shf_fd_close(l->s.sys, &dir);
	if (rc < 0)
		return left_fail(l, rc, "stage");
	rc = left_look_at(l, l->s.stage, name, &e);
	if (rc != 0)
		return rc == 1 ? 0 : rc;
	left->whole = e.state == SHF_COMMITTED;
	left->bytes = e.bytes;
	if (left->lives)
		return left_report(l, left, SHEAF_LEFTOVER_STAGED, SHEAF_ACTION_WAIT,
		                   left->whole ? "complete, but its writer may be alive"
		                               : "its writer may be alive");
	if (!left->whole)
		return left_report(l, left, SHEAF_LEFTOVER_STAGED, SHEAF_ACTION_DELETE,
		                   "an incomplete save of a job that has exited");
	snprintf(text, sizeof(text), "a complete save that was not published, of a job that has "
	         "exited: --salvage %lld publishes it", (long long)left->step);
	return left_report(l, left, SHEAF_LEFTOVER_STAGED, SHEAF_ACTION_DELETE, text);
}

/* Reports an incomplete copy or import. */
static int report_copy(struct looking *l, const char *name, struct shf_left *left)
{
	int dir = shf_dir_open(l->s.sys, l->s.stage, name);
	bool old = dir >= 0 && shf_stage_copy_is_old(&l->s, dir);

	shf_fd_close(l->s.sys, &dir);
	if (old)
		return left_report(l, left, SHEAF_LEFTOVER_COPY, SHEAF_ACTION_DELETE,
		                   "an incomplete copy or import that was not resumed for a week");
	return left_report(l, left, SHEAF_LEFTOVER_COPY, SHEAF_ACTION_WAIT,
	                   "an incomplete copy or import: run the same command again to resume it");
}

/* ---- folders of .sheaf ---- */

/* Reports a step in aside or trash. */
static int report_away(struct looking *l, int dir, const char *name, struct shf_left *left,
                       bool aside)
{
	struct shf_entry e = { .step = left->step };
	bool over;
	int fd, rc;

	snprintf(e.path, sizeof(e.path), "%s", left->path);
	rc = left_look_at(l, dir, name, &e);
	if (rc != 0)
		return rc == 1 ? 0 : rc;
	left->bytes = e.bytes;
	left->whole = e.state == SHF_COMMITTED;
	if (aside)
		return left_report(l, left, SHEAF_LEFTOVER_ASIDE, SHEAF_ACTION_DECIDE,
		                   "set aside; sheaf aside brings it back or deletes it");
	fd = shf_dir_open(l->s.sys, dir, name);
	over = fd >= 0 && shf_grace_is_over(&l->s, fd, SHF_GRACE_S);
	shf_fd_close(l->s.sys, &fd);
	return over ? left_report(l, left, SHEAF_LEFTOVER_TRASH, SHEAF_ACTION_DELETE,
	                          "pruned; its grace period is over")
	            : left_report(l, left, SHEAF_LEFTOVER_TRASH, SHEAF_ACTION_WAIT,
	                          "pruned; deleted when its grace period is over");
}

/* Reports what is in one folder of .sheaf. A name that is the same directory as a step of the run
 * is left out: an interrupted rename can leave both names. */
static int report_folder(struct looking *l, const char *folder)
{
	bool stage = strcmp(folder, "stage") == 0, aside = strcmp(folder, "aside") == 0;
	struct shf_names names;
	int dir = shf_dir_open(l->s.sys, l->s.dot, folder), rc;

	if (dir < 0)
		return dir == -ENOENT ? 0 : left_fail(l, dir, folder);
	rc = shf_names_read(l->s.sys, dir, &names);
	if (rc < 0) {
		shf_fd_close(l->s.sys, &dir);
		return left_fail(l, rc, folder);
	}
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; ) {
		struct shf_left left = { .lives = -1 };
		bool copy = stage && shf_copy_split(p, &left.step, left.session);

		if (!copy && !shf_step_split(p, &left.step, left.session))
			continue;
		snprintf(left.path, sizeof(left.path), ".sheaf/%s/%.60s", folder, p);
		if (shf_tree_is_step(&l->s, dir, p, left.step))
			continue;
		rc = copy ? report_copy(l, p, &left) : stage ? report_staged(l, p, &left)
		   : report_away(l, dir, p, &left, aside);
	}
	shf_names_release(&names);
	shf_fd_close(l->s.sys, &dir);
	return rc;
}

/* Reports the directories in which agents of several nodes write, or wrote, a step. */
static int report_flushes(struct looking *l)
{
	struct shf_names names;
	int rc = shf_names_read(l->s.sys, l->s.dot, &names), dir;

	if (rc < 0)
		return shf_fail_io(l->err, -rc, "%s/.sheaf", l->s.path);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; ) {
		struct shf_left left = { .step = -1, .lives = -1 };
		bool old;

		if (!shf_is_flush_folder(p))
			continue;
		dir = shf_dir_open(l->s.sys, l->s.dot, p);
		if (dir < 0)
			continue;
		old = shf_stage_copy_is_old(&l->s, dir);
		shf_fd_close(l->s.sys, &dir);
		snprintf(left.path, sizeof(left.path), ".sheaf/%.60s", p);
		rc = old ? left_report(l, &left, SHEAF_LEFTOVER_FLUSH, SHEAF_ACTION_DELETE,
		                       "agents of several nodes wrote a step here a week ago")
		         : left_report(l, &left, SHEAF_LEFTOVER_FLUSH, SHEAF_ACTION_WAIT,
		                       "agents of several nodes write a step here, or one of them "
		                       "was lost");
	}
	shf_names_release(&names);
	return rc;
}

/* Reports the journal of an interrupted rewind. */
static int report_rewind(struct looking *l)
{
	struct shf_left left = { .step = -1, .path = ".sheaf/rewind", .lives = -1 };
	struct shf_stat st;
	int rc = shf_sys_stat(l->s.sys, l->s.dot, "rewind", false, &st);

	if (rc < 0)
		return rc == -ENOENT ? 0 : left_fail(l, rc, "rewind");
	return left_report(l, &left, SHEAF_LEFTOVER_REWIND, SHEAF_ACTION_FINISH,
	                   "a rewind that was interrupted");
}

/* Works on a copy of the store, because report_lock writes what it learns of the last holder into
 * it, and the reader's own store must stay as it is. */
int shf_store_left(struct shf_store *s, int (*item)(void *arg, const struct shf_left *left),
                   void *arg, struct sheaf_error *err)
{
	struct looking l = { .s = *s, .item = item, .arg = arg, .err = err };
	int rc = shf_sys_owner(s->sys, &l.s.self);

	if (rc < 0)
		return shf_fail_io(err, -rc, "%s: identifying this process", s->path);
	rc = s->dot < 0 ? 0 : report_lock(&l);
	if (rc == 0)
		rc = report_damaged(&l);
	if (s->dot < 0)
		return rc;
	if (rc == 0 && s->stage >= 0)
		rc = report_folder(&l, "stage");
	if (rc == 0)
		rc = report_folder(&l, "aside");
	if (rc == 0)
		rc = report_folder(&l, "trash");
	if (rc == 0)
		rc = report_flushes(&l);
	return rc == 0 ? report_rewind(&l) : rc;
}
