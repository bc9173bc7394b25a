/* SPDX-License-Identifier: Apache-2.0 */
/* What a dead job left, settled under the lock, in this order: stages of the dead deleted, the
 * trash emptied further, a rewind that was cut finished, steps that nobody could go on from
 * marked bad. Never a step created (I11): a failure that was reported must stay a failure, so a
 * whole stage is deleted like half of one (I7). A person who knows better salvages it before
 * (salvage.c).
 * Litter that cannot be deleted stops nobody; it is tried again by the next job. */
#include "err.h"
#include "tree.h"

#include <errno.h>
#include <string.h>

#define OWNER_TEXT_MAX 512

static bool is_old(struct shf_store *s, const struct shf_stat *st, int64_t age_s)
{
	int64_t now = s->sys->ops->wall_s(s->sys->arg);

	return st->mtime_s < now && now - st->mtime_s > age_s;
}

/* A process of another PID namespace cannot be asked after. But if it locked the file through
 * this very kernel and this very mount, then the lock we now hold was in the same table: it is
 * gone. Provided that locks exclude here at all: not even ourselves, then nobody. */
static bool kernel_let_go(struct shf_store *s, int dir, const char *name,
                          const struct shf_stat *st, const struct shf_owner *owner)
{
	const struct shf_sys *sys = s->sys;
	bool excludes;
	int fd;

	if (!owner->dev || owner->dev != st->dev || !s->self.boot[0] ||
	    strcmp(owner->boot, s->self.boot) != 0)
		return false;
	fd = sys->ops->open(sys->arg, dir, name, SHF_O_WRITE | SHF_O_NOFOLLOW, 0);
	if (fd < 0)
		return false;
	excludes = sys->ops->lock(sys->arg, fd, true) == -EAGAIN;
	sys->ops->close(sys->arg, fd);
	return excludes;
}

bool shf_prev_is_gone(struct shf_store *s, int fd)
{
	const struct shf_sys *sys = s->sys;
	struct shf_stat st;

	if (!s->prev_session[0])
		return false;
	return sys->ops->owner_is_dead(sys->arg, &s->prev) ||
	       (sys->ops->fstat(sys->arg, fd, &st) >= 0 &&
	        kernel_let_go(s, s->dot, "lock", &st, &s->prev));
}

/* What an alive-<node> file proves. DEAD only if its lock can be had and then its process is
 * proven dead, or its kernel, which is ours, let go of it, or it gave no sign for a day. SILENT:
 * the lock is free, but the text was not yet written, or a power cut took it. */
enum proof { ALIVE, DEAD, SILENT };

static enum proof alive_proof(struct shf_store *s, int dir, const char *name, bool look)
{
	const struct shf_sys *sys = s->sys;
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_owner owner;
	struct shf_stat st;
	char session[33];
	enum proof proof = ALIVE;
	int fd, rc;

	fd = sys->ops->open(sys->arg, dir, name, (look ? 0 : SHF_O_WRITE) | SHF_O_NOFOLLOW, 0);
	if (fd < 0)
		return ALIVE;
	rc = sys->ops->lock(sys->arg, fd, !look);
	if (rc < 0 && !shf_lock_is_absent(rc))
		goto out;
	if (sys->ops->fstat(sys->arg, fd, &st) < 0)
		goto out;
	if (is_old(s, &st, SHF_DAY_S)) {
		proof = DEAD;
	} else if (rc >= 0 && shf_text_read(sys, dir, name, &text, OWNER_TEXT_MAX) == 0) {
		if (!shf_owner_get(text.data, text.len, &owner, session))
			proof = SILENT;
		else if (sys->ops->owner_is_dead(sys->arg, &owner) ||
		         kernel_let_go(s, dir, name, &st, &owner))
			proof = DEAD;
	}
out:
	shf_buf_release(&text);
	sys->ops->close(sys->arg, fd);
	return proof;
}

/* No alive file that says something: not yet made, lost, or already removed (C5). Then the lock's
 * own text speaks for the session whose stage it is. */
static bool bare_is_dead(struct shf_store *s, int dir, const char *session)
{
	struct shf_stat st;

	if (strncmp(session, s->session, 16) == 0)
		return false;
	if (s->prev_gone && strncmp(session, s->prev_session, 16) == 0)
		return true;
	return s->sys->ops->fstat(s->sys->arg, dir, &st) >= 0 && is_old(s, &st, SHF_DAY_S);
}

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

/* The alive files go last, so that a cleaner who is cut leaves the proof to the next one. */
static int clean_stage(struct shf_store *s, const char *name, const char *session)
{
	struct shf_names names;
	int dir, rc;

	dir = shf_dir_open(s->sys, s->stage, name);
	if (dir < 0)
		return dir == -ENOMEM ? dir : 0;
	rc = shf_names_read(s->sys, dir, &names);
	if (rc < 0) {
		shf_fd_close(s->sys, &dir);
		return rc == -ENOMEM ? rc : 0;
	}
	if (shf_stage_is_dead(s, dir, &names, session, false)) {
		for (const char *p = NULL; (p = shf_names_next(&names, p)) != NULL; )
			if (strncmp(p, "alive-", 6) != 0)
				shf_tree_remove(s->sys, dir, p);
		shf_fd_close(s->sys, &dir);
		shf_tree_remove(s->sys, s->stage, name);
	}
	shf_fd_close(s->sys, &dir);
	shf_names_release(&names);
	return 0;
}

bool shf_copy_is_old(struct shf_store *s, int dir)
{
	struct shf_stat st;

	return s->sys->ops->fstat(s->sys->arg, dir, &st) >= 0 && is_old(s, &st, SHF_COPY_S);
}

/* Half a copy is no failed save: it is left for the next try, but not for ever. */
static void clean_copy(struct shf_store *s, const char *name)
{
	int dir = shf_dir_open(s->sys, s->stage, name);
	bool old = dir >= 0 && shf_copy_is_old(s, dir);

	shf_fd_close(s->sys, &dir);
	if (old)
		shf_tree_remove(s->sys, s->stage, name);
}

static int clean_stages(struct shf_store *s)
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
			clean_copy(s, p);
		else
			rc = clean_stage(s, p, session);
	}
	shf_names_release(&names);
	return rc;
}

/* Proofs of jobs that died while they opened the run, and texts that they were writing. */
static bool is_litter(const char *name)
{
	return (strncmp(name, "proof-", 6) == 0 && shf_id_is_valid(name + 6, 32)) ||
	       (strncmp(name, "tmp-", 4) == 0 && shf_id_is_valid(name + 4, 32));
}

/* Where agents met that never came to an end. */
static bool is_meeting(const char *name)
{
	return (strncmp(name, "flush-", 6) == 0 && shf_id_is_valid(name + 6, 32)) ||
	       (strncmp(name, "due-", 4) == 0 && shf_id_is_valid(name + 4, 32));
}

static void clean_meeting(struct shf_store *s, const char *name)
{
	int dir = shf_dir_open(s->sys, s->dot, name);
	bool old = dir >= 0 && shf_copy_is_old(s, dir);

	shf_fd_close(s->sys, &dir);
	if (old)
		shf_tree_remove(s->sys, s->dot, name);
}

static int clean_litter(struct shf_store *s)
{
	const struct shf_sys *sys = s->sys;
	struct shf_names names;
	struct shf_stat st;
	int rc = shf_names_read(sys, s->dot, &names);

	if (rc < 0)
		return rc;
	for (const char *p = NULL; (p = shf_names_next(&names, p)) != NULL; )
		if (is_meeting(p))
			clean_meeting(s, p);
		else if (is_litter(p) && sys->ops->stat(sys->arg, s->dot, p, false, &st) >= 0 &&
		    st.type == SHF_T_FILE && is_old(s, &st, SHF_DAY_S))
			sys->ops->unlink(sys->arg, s->dot, p, false);
	shf_names_release(&names);
	return 0;
}

int shf_store_recover(struct shf_store *s, struct sheaf_error *err)
{
	int rc;

	if (!s->writer)
		return shf_fail(err, SHEAF_EINVAL, "%s: recovery needs the lock", s->path);
	rc = clean_stages(s);
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/.sheaf/stage: what dead jobs left", s->path);
	rc = shf_trash_empty(s, SHF_GRACE_S, err);
	if (rc == 0)
		rc = shf_rewind_finish(s, err);
	if (rc < 0)
		return rc;
	rc = shf_tries_settle(s);
	if (rc == 0)
		rc = clean_litter(s);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf", s->path) : 0;
}
