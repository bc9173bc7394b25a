/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery cleans up after dead jobs, under the lock. In this order, it
 * - deletes their stages,
 * - deletes from the trash what has been there longer than the grace period,
 * - finishes a rewind that was interrupted,
 * - removes the counts of failed resumes (.sheaf/tries) of steps that are gone, and small files
 *   that were left behind.
 * It never creates a step (I11): a save that was reported to have failed must stay failed, so even
 * a complete stage is deleted (I7). A person who wants such a step has to salvage it first
 * (salvage.c). Other ranks may wait for it, so it deletes for clear_ms at most. It is no error
 * if something is not deleted in that time, or cannot be: the next job tries again. */
#include "recover.h"
#include "aside.h"
#include "err.h"
#include "list.h"
#include "lock.h"
#include "prune_steps.h"
#include "run_files.h"
#include "tries_settle.h"
#include "valid.h"

#include <errno.h>
#include <string.h>

#define OWNER_TEXT_MAX 512

/* Returns the time by the clock that stamps files: on a network file system that is the server's
 * clock, which may differ from ours. The writer reads it from the time stamp of the lock file,
 * whose text it has just written. A reader has written nothing and must use this host's clock. */
static int64_t now_there(struct shf_store *s)
{
	struct shf_stat st;

	if (s->lock >= 0 && shf_sys_fstat(s->sys, s->lock, &st) >= 0)
		return shf_stat_mtime_s(&st);
	return shf_sys_wall_s(s->sys);
}

/* Returns whether the file is older than age_s. A file with a time in the future does not count as
 * old: its clock was wrong, so its age is unknown. */
static bool is_old(struct shf_store *s, const struct shf_stat *st, int64_t age_s)
{
	int64_t now = now_there(s), then = shf_stat_mtime_s(st);

	return then < now && now - then > age_s;
}

/* Returns whether the owner locked this file through our kernel, and the lock has been released. A
 * process of another PID namespace cannot be looked up by its pid. But if it locked the file
 * through this kernel and this mount, then its lock and ours are in the same table. We hold the
 * lock now, so the process is gone. This proof is valid only if locks exclude on this mount at all,
 * which is tested by a second descriptor of our own: this one must not get the lock. */
static bool kernel_let_go(struct shf_store *s, int dir, const char *name,
                          const struct shf_stat *st, const struct shf_owner *owner)
{
	const struct shf_sys *sys = s->sys;
	bool excludes;
	int fd;

	if (!owner->dev || owner->dev != st->dev || !s->self.boot[0] ||
	    strcmp(owner->boot, s->self.boot) != 0)
		return false;
	fd = shf_sys_open(sys, dir, name, SHF_O_WRITE | SHF_O_NOFOLLOW, 0);
	if (fd < 0)
		return false;
	excludes = shf_sys_lock(sys, fd, true) == -EAGAIN;
	shf_lock_close(sys, &fd);
	return excludes;
}

/* Returns false if the lock file named no owner, because then no process can be proven gone. */
bool shf_prev_is_gone(struct shf_store *s, int fd)
{
	const struct shf_sys *sys = s->sys;
	struct shf_stat st;

	if (!s->prev_session[0])
		return false;
	return shf_sys_owner_is_dead(sys, &s->prev) ||
	       (shf_sys_fstat(sys, fd, &st) >= 0 &&
		kernel_let_go(s, s->dot, "lock", &st, &s->prev));
}

/* What an alive-<node> file proves.
 * DEAD: its process is proven dead, even if a child that it forked still has the lock; or the lock
 *    is free and either was held through this very kernel or the file is a day old.
 * SILENT: the lock is free, but the file has no text: not written yet, or lost in a power cut.
 * ALIVE: anything else. */
enum proof { ALIVE, DEAD, SILENT };

/* Looks at one alive file. look: the caller changes nothing and opens the file read-only, so it can
 * only ask for a shared lock. */
static enum proof alive_proof(struct shf_store *s, int dir, const char *name, bool look)
{
	const struct shf_sys *sys = s->sys;
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_owner owner;
	struct shf_stat st;
	char session[33];
	enum proof proof = ALIVE;
	bool held;
	int fd, rc;

	fd = shf_sys_open(sys, dir, name, (look ? 0 : SHF_O_WRITE) | SHF_O_NOFOLLOW, 0);
	if (fd < 0)
		return ALIVE;
	rc = shf_sys_lock(sys, fd, !look);
	held = rc == -EAGAIN;
	if (rc < 0 && !held && !shf_lock_is_absent(rc))
		goto out;
	if (shf_sys_fstat(sys, fd, &st) < 0)
		goto out;
	if (!held && is_old(s, &st, SHF_DAY_S)) {
		proof = DEAD;
	} else if ((rc >= 0 || held) &&
	           shf_text_read(sys, dir, name, &text, OWNER_TEXT_MAX) == 0) {
		if (!shf_owner_get(text.data, text.len, &owner, session))
			proof = held ? ALIVE : SILENT;
		else if (shf_sys_owner_is_dead(sys, &owner) ||
			 (!held && kernel_let_go(s, dir, name, &st, &owner)))
			proof = DEAD;
	}
out:
	shf_buf_release(&text);
	shf_lock_close(sys, &fd);
	return proof;
}

/* Returns whether a stage is dead whose alive files prove nothing: they are not made yet, or lost,
 * or already removed by C5. The session of a stage begins with the first 16 digits of its writer's
 * session. So the stage is alive if the writer is this process, and dead if the writer is the
 * previous holder of the lock, who is known to be gone. Otherwise only its age counts. */
static bool bare_is_dead(struct shf_store *s, int dir, const char *session)
{
	struct shf_stat st;

	if (strncmp(session, s->session, 16) == 0)
		return false;
	if (s->prev_gone && strncmp(session, s->prev_session, 16) == 0)
		return true;
	return shf_sys_fstat(s->sys, dir, &st) >= 0 && is_old(s, &st, SHF_DAY_S);
}

/* One living writer is enough to keep the stage. If an alive file is silent, or the stage has no
 * alive file, its session and its age decide. */
bool shf_stage_is_dead(struct shf_store *s, int dir, const struct shf_names *names,
                       const char *session, bool look)
{
	bool any = false, silent = false;

	for (const char *p = NULL; (p = shf_names_next(names, p)) != NULL; ) {
		enum proof proof;

		if (strncmp(p, "alive-", 6) != 0)
			continue;
		proof = alive_proof(s, dir, p, look);
		if (proof == ALIVE)
			return false;
		any = true;
		silent |= proof == SILENT;
	}
	return any && !silent ? true : bare_is_dead(s, dir, session);
}

/* Deletes a stage if its writer is proven dead. The alive files are deleted last: if this cleaner
 * dies too, the next one finds the proof again. Otherwise a half-deleted stage would have to wait
 * for a day. */
static int clean_stage(struct shf_store *s, const char *name, int64_t step, const char *session,
                       struct shf_clear *c)
{
	struct shf_names names;
	int dir, rc;

	dir = shf_dir_open(s->sys, s->stage, name);
	if (dir < 0)
		/* A stage that cannot be opened is left to the next job. */
		return dir == -ENOMEM ? dir : 0;
	rc = shf_names_read(s->sys, dir, &names);
	if (rc < 0) {
		shf_fd_close(s->sys, &dir);
		return rc == -ENOMEM ? rc : 0;
	}
	if (shf_stage_is_dead(s, dir, &names, session, false)) {
		for (const char *p = NULL; (p = shf_names_next(&names, p)) != NULL; )
			if (strncmp(p, "alive-", 6) != 0 && !shf_clear_tree(c, dir, p))
				break;
		shf_fd_close(s->sys, &dir);
		shf_clear_stage(c, name, step, session);
	}
	shf_fd_close(s->sys, &dir);
	shf_names_release(&names);
	return 0;
}

bool shf_stage_copy_is_old(struct shf_store *s, int dir)
{
	struct shf_stat st;

	return shf_sys_fstat(s->sys, dir, &st) >= 0 && is_old(s, &st, SHF_COPY_S);
}

/* Deletes an incomplete copy if it is old. A copy is no failed save: it is kept for some days
 * (SHF_COPY_S), because the next copy of the step goes on with it. */
static void clean_copy(struct shf_store *s, const char *name, int64_t step, const char *session,
                       struct shf_clear *c)
{
	int dir = shf_dir_open(s->sys, s->stage, name);
	bool old = dir >= 0 && shf_stage_copy_is_old(s, dir);

	shf_fd_close(s->sys, &dir);
	if (old)
		shf_clear_stage(c, name, step, session);
}

/* Cleans .sheaf/stage. A name that is the same directory as a published step is left alone: on a
 * file system without a journal, a rename that a power cut interrupted can leave both names. */
static int clean_stages(struct shf_store *s, struct shf_clear *c)
{
	struct shf_names names;
	char session[33];
	int64_t step;
	int rc = shf_names_read(s->sys, s->stage, &names);

	if (rc < 0)
		return rc;
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; ) {
		bool copy = shf_copy_split(p, &step, session);

		if ((!copy && !shf_step_split(p, &step, session)) ||
		    shf_tree_is_step(s, s->stage, p, step))
			continue;
		if (copy)
			clean_copy(s, p, step, session, c);
		else
			rc = clean_stage(s, p, step, session, c);
	}
	shf_names_release(&names);
	return rc;
}

/* Returns whether the file is a token of a job that died while it opened the run, or a text that
 * was being written. */
static bool is_litter(const char *name)
{
	return (strncmp(name, "proof-", 6) == 0 && shf_id_is_valid(name + 6, 32)) ||
	       (strncmp(name, "tmp-", 4) == 0 && shf_id_is_valid(name + 4, 32));
}

bool shf_is_flush_folder(const char *name)
{
	return (strncmp(name, "flush-", 6) == 0 && shf_id_is_valid(name + 6, 32)) ||
	       (strncmp(name, "due-", 4) == 0 && shf_id_is_valid(name + 4, 32));
}

/* Deletes from a directory of agents the bytes of steps that are older than the newest step of the
 * run, because no flush publishes such a step any more. They are whole checkpoints, and a job that
 * is preempted again and again leaves one each time. */
static void clean_overtaken(struct shf_store *s, int dir, struct shf_clear *c)
{
	struct shf_newest disk;
	struct shf_names names;
	char session[33];
	int64_t step;

	if (shf_store_newest(s, 0, &disk, NULL) < 0 || shf_names_read(s->sys, dir, &names) < 0)
		return;
	for (const char *p = NULL; (p = shf_names_next(&names, p)) != NULL; )
		if (shf_step_split(p, &step, session) && step < disk.newest)
			(void)shf_clear_tree(c, dir, p);
	shf_names_release(&names);
}

/* Deletes a directory of agents (shf_is_flush_folder) that was abandoned for as long as an
 * incomplete copy is kept. */
static void clean_flush_folder(struct shf_store *s, const char *name, struct shf_clear *c)
{
	int dir = shf_dir_open(s->sys, s->dot, name);
	bool old = dir >= 0 && shf_stage_copy_is_old(s, dir);

	if (dir >= 0 && !old)
		clean_overtaken(s, dir, c);
	shf_fd_close(s->sys, &dir);
	if (old)
		(void)shf_clear_tree(c, s->dot, name);
}

/* Removes small files from .sheaf when they are a day old. Younger files may belong to a living
 * reader or writer. */
static int clean_litter(struct shf_store *s, struct shf_clear *c)
{
	const struct shf_sys *sys = s->sys;
	struct shf_names names;
	struct shf_stat st;
	int rc = shf_names_read(sys, s->dot, &names);

	if (rc < 0)
		return rc;
	for (const char *p = NULL; (p = shf_names_next(&names, p)) != NULL; )
		if (shf_is_flush_folder(p))
			clean_flush_folder(s, p, c);
		else if (is_litter(p) && shf_sys_stat(sys, s->dot, p, false, &st) >= 0 &&
		    st.type == SHF_T_FILE && is_old(s, &st, SHF_DAY_S))
			shf_sys_unlink(sys, s->dot, p, false);
	shf_names_release(&names);
	return 0;
}

/* All deletions share one time limit. A rewind that was interrupted is finished here, before this
 * session can save: a step that is to be set aside must not become the parent of a new one. */
int shf_store_recover(struct shf_store *s, struct sheaf_error *err)
{
	struct shf_clear clear;
	int rc;

	if (!s->writer)
		return shf_fail(err, SHEAF_EINVAL, "%s: recovery needs a run that is open for "
		                "writing", s->path);
	shf_clear_begin(&clear, s);
	rc = clean_stages(s, &clear);
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/.sheaf/stage: deleting what dead jobs left",
		                   s->path);
	rc = shf_trash_empty(s, SHF_GRACE_S, &clear, err);
	if (rc == 0)
		rc = shf_rewind_finish(s, err);
	if (rc < 0)
		return rc;
	rc = shf_tries_clean(s);
	if (rc == 0)
		rc = clean_litter(s, &clear);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf", s->path) : 0;
}
