/* SPDX-License-Identifier: Apache-2.0 */
/* Prunes old steps. Keep rules and I9 choose them. A step is renamed into .sheaf/trash; then both
 * directories are synced; only then, after a grace for readers that take no lease, is it deleted.
 *
 *   I9  No step is deleted unless a newer one on the same branch has been re-read and verified
 *       since its commit, and keep rules allow; marks k are never deleted, nor is the loaded
 *       step before this job has committed one.
 *
 * A power cut after the rename may bring the step back, complete: that is why nothing in it is
 * touched before the sync. The file sheaf.pruned, made in it after that, carries the time from
 * which the grace runs. sheaf.json is deleted first, so that an interrupted deletion is recognised
 * by its absence. */
#include "prune_steps.h"
#include "aside.h"
#include "best.h"
#include "descent.h"
#include "err.h"
#include "list.h"
#include "lock.h"
#include "sheaf-admin.h"
#include "step_look.h"
#include "run_files.h"

#include <errno.h>
#include <stdio.h>
#include <errno.h>
#include <string.h>

bool shf_saved_is_same(const struct shf_saved *a, const struct shf_saved *b)
{
	return a->step == b->step && strcmp(a->session, b->session) == 0;
}

/* The grace begins when sheaf.pruned is made. Without sheaf.json the deletion has begun already: no
 * reader can open the step, so there is nothing to wait for. */
bool shf_grace_is_over(struct shf_store *s, int dir, int grace_s)
{
	const struct shf_sys *sys = s->sys;
	struct shf_stat st;

	if (grace_s < 0 || shf_sys_stat(sys, dir, "sheaf.json", false, &st) == -ENOENT)
		return true;
	return shf_sys_stat(sys, dir, "sheaf.pruned", false, &st) >= 0 &&
	       shf_sys_wall_s(sys) - shf_stat_mtime_s(&st) >= grace_s;
}

/* Starts the grace, unless it has started. The time stamp of the file is the start, so it survives
 * a restart of the job. The file of a step that a person takes back from the trash stays in it;
 * remove_step deletes it before the step goes to the trash again. */
static void begin_grace(const struct shf_sys *sys, int dir)
{
	int fd = shf_sys_open(sys, dir, "sheaf.pruned",
			      SHF_O_WRITE | SHF_O_CREATE | SHF_O_EXCL | SHF_O_NOFOLLOW, 0666);

	shf_fd_close(sys, &fd);
}

/* Deletes one folder of the trash if its grace is over. sheaf.json goes first: if the deletion is
 * interrupted, what remains can no longer be mistaken for a step. */
static void empty_one(struct shf_store *s, int trash, const char *name, int grace_s,
                      struct shf_clear *c)
{
	const struct shf_sys *sys = s->sys;
	char session[33];
	int64_t step;
	bool over;
	int dir;

	if (!shf_step_split(name, &step, session) || shf_tree_is_step(s, trash, name, step))
		return;
	dir = shf_dir_open(sys, trash, name);
	if (dir < 0)
		return;
	over = shf_grace_is_over(s, dir, grace_s);
	if (over && !c->late)
		shf_sys_unlink(sys, dir, "sheaf.json", false);
	else if (!over)
		begin_grace(sys, dir);
	shf_fd_close(sys, &dir);
	if (over)
		(void)shf_clear_tree(c, trash, name);
}

/* Both directories are synced before anything is deleted, but only if there is a folder in the
 * trash. The move from the run into the trash may not be durable yet. If a power cut undid it after
 * files were deleted, the run would have a damaged step. */
int shf_trash_empty(struct shf_store *s, int grace_s, struct shf_clear *c,
                    struct sheaf_error *err)
{
	struct shf_names names = { SHF_BUF_INIT };
	const char *what = ": sync before deleting";
	char session[33];
	int64_t step;
	bool any = false;
	int trash, rc;

	trash = shf_dir_open(s->sys, s->dot, "trash");
	if (trash < 0)
		return shf_fail_io(err, -trash, "%s/.sheaf/trash", s->path);
	rc = shf_names_read(s->sys, trash, &names);
	if (rc < 0)
		what = "";
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; )
		any |= shf_step_split(p, &step, session);
	if (rc == 0 && any) {
		rc = shf_dir_sync(s, trash);
		if (rc == 0)
			rc = shf_dir_sync(s, s->dir);
	}
	if (rc < 0)
		rc = shf_fail_io(err, -rc, "%s/.sheaf/trash%s", s->path, what);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; )
		empty_one(s, trash, p, grace_s, c);
	shf_names_release(&names);
	shf_fd_close(s->sys, &trash);
	s->late = c->late;
	return rc;
}

/* Returns the entry of the step in the run directory, or NULL if the list has no such entry. */
static struct shf_entry *list_find_step(struct shf_list *list, int64_t step)
{
	for (size_t i = 0; i < list->n; i++)
		if (list->entries[i].step == step && list->entries[i].state <= SHF_DAMAGED)
			return &list->entries[i];
	return NULL;
}

/* Returns the entry of the step that was verified. NULL: no step was verified, or the step is gone,
 * or another save has its number by now. */
static const struct shf_entry *find_saved(struct shf_list *list, const struct shf_saved *saved)
{
	const struct shf_entry *e = saved->step >= 0 ? list_find_step(list, saved->step) : NULL;

	return e && saved->session[0] && strcmp(e->session, saved->session) != 0 ? NULL : e;
}

/* Marks the ancestors of the verified step as on its branch. The chain ends at a parent that is
 * gone and for which .sheaf/descent names no ancestor: older steps cannot be proven to be of the
 * same branch, and stay. Returns the step where the chain ends. */
static const struct shf_entry *find_branch(struct shf_list *list, const struct shf_entry *from)
{
	struct shf_entry *e;

	while (from && from->parent >= 0 && from->parent < from->step) {
		e = list_find_step(list, from->parent);
		if (!e || strcmp(e->session, from->parent_session) != 0)
			break;
		e->on_branch = true;
		from = e;
	}
	return from;
}

/* One decision over all steps: its inputs, and room for the sentence about one step. */
struct judge {
	struct shf_store *s;
	const struct shf_prune *p;
	const struct shf_entry *verified;       /* NULL: no step is verified */
	const struct shf_entry *likely;         /* verified, or else the one that would be; only for
	                                         * reasons */
	const struct shf_entry *end;            /* oldest step of the branch of `likely` */
	bool full;                              /* the disk is, so only the oldest steps go */
	char text[200];
};

/* Makes the reason for keeping one of the best steps. */
static const char *why_best(struct judge *j, const struct shf_entry *e)
{
	if (j->p->keep_best == 1)
		snprintf(j->text, sizeof(j->text), "the best by %s (%s)", e->note, e->value);
	else
		snprintf(j->text, sizeof(j->text), "among the %d best by %s (%s)",
		         (int)j->p->keep_best, e->note, e->value);
	return j->text;
}

/* Explains a deletion to the user. If a note decides which steps are the best, a step without that
 * note is mentioned: a misspelt key would otherwise delete all but the newest steps silently. */
static const char *why_goes(struct judge *j, const struct shf_entry *e)
{
	const char *why = j->p->dry ? "if the newest step is verified as valid"
	                            : "a newer step is verified";

	if (j->p->keep_best <= 0 || e->noted == SHF_NOTE_NUMBER)
		return why;
	snprintf(j->text, sizeof(j->text), e->noted == SHF_NOTE_ODD
	         ? "%s; its note %s is not a decimal number" : "%s; it has no note %s", why,
	                 e->note);
	return j->text;
}

/* Makes the reason for keeping a step that no newer one is known to descend from. A person who
 * deleted a step, or copied only some, must see which one the branch lacks. Its session is named as
 * well, because another save of that number may be here or set aside, and to bring that one back
 * would mix two branches. */
static const char *why_off_branch(struct judge *j)
{
	const struct shf_entry *end = j->end;

	snprintf(j->text, sizeof(j->text), "not on the branch of %s step",
	         j->verified && !j->p->dry ? "the verified" : "the newest");
	if (end && end->parent >= 0)
		snprintf(j->text + strlen(j->text), sizeof(j->text) - strlen(j->text),
		         ": %lld follows %lld of session %.8s, which is not here",
		         (long long)end->step, (long long)end->parent, end->parent_session);
	return j->text;
}

/* The retention policy, in order of precedence. Returns the reason why a step stays, in words for
 * the user; NULL: nothing keeps the step. */
static const char *why_stays(struct judge *j, const struct shf_entry *e)
{
	const struct shf_entry *verified = j->verified;
	const struct shf_prune *p = j->p;

	if (e->state == SHF_DAMAGED)
		return e->unread ? "it cannot be read: not deleted automatically"
		                 : "damaged: not deleted automatically";
	if (e->mark == 'k')
		return "marked keep";
	if (e->mark == '?')
		return "its mark cannot be read";
	if (e->step == p->keep)
		return "loaded";
	if (p->keep_last <= 0)
		return "all steps are kept";
	if (e->mark != 'b' && e->newer_n < p->keep_last)
		return "among the newest";
	if (p->keep_every > 0 && e->step % p->keep_every == 0)
		return "kept by its number";
	if (e->best)
		return why_best(j, e);
	if (!verified && j->s->in_doubt)
		return "the newest step may not survive a power failure";
	if (!verified && j->likely && e->step < j->likely->step && !e->on_branch)
		return why_off_branch(j);
	if (!verified)
		return "no newer step is verified";
	if (e->step >= verified->step)
		return "not older than the verified step";
	if (!e->on_branch)
		return why_off_branch(j);
	return j->full && !e->goes ? "the disk is full: it goes when the older ones have made room"
	                           : NULL;
}

/* Moves one step to the trash while holding an exclusive lock on its manifest. Readers of ours hold
 * a shared lock (lease.h) as long as the step is open, so a step in use is not moved. Returns 1 if
 * the step was moved, 0 if it stays (*why says why), or a code. */
static int remove_step(struct shf_store *s, int trash, const struct shf_entry *e,
                       const char **why, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	int dir, fd, rc;

	dir = shf_dir_open(sys, s->dir, e->path);
	if (dir < 0)
		return shf_fail_io(err, -dir, "%s/%s", s->path, e->path);
	fd = shf_sys_open(sys, dir, "sheaf.json", SHF_O_WRITE | SHF_O_NOFOLLOW, 0);
	rc = fd < 0 ? fd : shf_sys_lock(sys, fd, true);
	/* On a file system without locks only the grace protects readers. */
	if (fd >= 0 && rc < 0 && shf_lock_is_absent(rc))
		rc = 0;
	if (rc < 0) {
		*why = rc == -EAGAIN ? "it is being read" : "its manifest cannot be locked";
		rc = 0;
	} else {
		shf_sys_unlink(sys, dir, "sheaf.pruned", false);
		rc = shf_step_move(s, e->step, trash, e->session, err);
		if (rc == 0)
			rc = 1;
	}
	shf_lock_close(sys, &fd);
	shf_fd_close(sys, &dir);
	return rc;
}

/* Decides for each step, from the newest to the oldest, because keep_last counts the good steps
 * that are newer. Returns how many are to be removed. If the verified step is not good any more
 * (shf_entry_is_good), no step counts as verified. */
static int choose_what_goes(struct judge *j, struct shf_list *list)
{
	int64_t newer_n = 0;
	int go = 0;

	if (j->verified && !shf_entry_is_good(j->verified))
		j->verified = NULL;
	j->likely = j->verified ? j->verified : find_saved(list, &j->p->likely);
	j->end = find_branch(list, j->likely);
	for (size_t i = list->n; i-- > 0; ) {
		struct shf_entry *e = &list->entries[i];

		if (e->state > SHF_DAMAGED)
			continue;
		e->newer_n = newer_n;
		e->goes = !why_stays(j, e);
		go += e->goes;
		newer_n += shf_entry_is_good(e);
	}
	return go;
}

/* Leaves all but those steps that are older than every step that stays. Returns whether there are
 * such steps. No step that stays descends from another one by way of them, so they can be removed
 * without new lines in .sheaf/descent. */
static bool leave_all_but_oldest(struct shf_list *list)
{
	bool stays = false, any = false;

	for (size_t i = 0; i < list->n; i++) {
		struct shf_entry *e = &list->entries[i];

		if (e->state > SHF_DAMAGED)
			continue;
		stays = stays || !e->goes;
		e->goes = !stays;
		any = any || e->goes;
	}
	return any;
}

/* Writes .sheaf/descent before any step is removed. On a full disk, where people prune, that may be
 * impossible; then fewer steps go, and the file stays as it is. */
static int note_descent(struct judge *j, struct shf_list *list, struct shf_buf *descent,
                        struct sheaf_error *err)
{
	struct sheaf_error own = { 0 };
	int rc = shf_descent_write(j->s, list, descent, &own);

	if ((own.sys == ENOSPC || own.sys == EDQUOT) && leave_all_but_oldest(list)) {
		j->full = true;
		return 0;
	}
	if (rc < 0 && err)
		*err = own;
	return rc;
}

/* Removes the steps that are to go, oldest first. If a step turns out to be in use and stays, all
 * newer ones still exist, so that their descent from it can be written down before the steps
 * between are removed. Returns how many were removed, or a code. */
static int walk(struct judge *j, struct shf_list *list, struct shf_buf *descent, int trash,
                void (*item)(void *arg, int64_t step, int32_t action, const char *why), void *arg,
                struct sheaf_error *err)
{
	int gone = 0, rc;

	for (size_t i = 0; i < list->n; i++) {
		struct shf_entry *e = &list->entries[i];
		const char *why = NULL;

		if (e->state > SHF_DAMAGED)
			continue;
		rc = e->goes;
		if (!rc)
			why = why_stays(j, e);
		else if (!j->p->dry)
			rc = remove_step(j->s, trash, e, &why, err);
		if (rc == 0 && e->goes) {
			/* The step stays after all, and may now be the ancestor that others
			 * need. */
			e->goes = false;
			if (j->full)
				(void)leave_all_but_oldest(list);
			else
				rc = shf_descent_write(j->s, list, descent, err);
		}
		if (rc < 0)
			return rc;
		if (item)
			item(arg, e->step, rc ? SHEAF_PRUNE_REMOVE : SHEAF_PRUNE_KEEP, rc ?
			     why_goes(j, e) : why);
		gone += rc;
	}
	return gone;
}

/* Reads all that the decision needs: the steps, their notes, and .sheaf/descent, whose text becomes
 * *descent. */
static int prune_read_list(struct shf_store *s, const struct shf_prune *p, struct shf_list *list,
                           struct shf_buf *descent, struct sheaf_error *err)
{
	int rc = p->dry ? 0 : shf_lock_check(s, err);

	if (rc == 0)
		rc = shf_rewind_is_over(s, err);
	if (rc == 0)
		rc = shf_list_noted(s, p->keep_best > 0 ? p->best_note : NULL, list, err);
	if (rc == 0 && p->keep_best > 0)
		rc = shf_best_find(list, p, err);
	if (rc == 0)
		rc = shf_descent_read(s, list, descent, err);
	return rc;
}

/* The descent file is written before any step is removed. If it were written afterwards, a crash in
 * between would cut the chain of parents, and the steps beyond the gap could never be pruned. */
int shf_store_prune(struct shf_store *s, const struct shf_prune *p,
                    void (*item)(void *arg, int64_t step, int32_t action,
                                 const char *why), void *arg,
                    struct sheaf_error *err)
{
	struct judge j = { .s = s, .p = p };
	struct shf_list list = { NULL, 0 };
	struct shf_buf descent = SHF_BUF_INIT;
	struct shf_clear clear;
	int trash = -1, gone = 0, rc;

	if (!s->writer && !p->dry)
		return shf_fail(err, SHEAF_EINVAL, "%s: pruning needs a run that is open for "
		                "writing",
		                s->path);
	rc = prune_read_list(s, p, &list, &descent, err);
	if (rc < 0)
		goto out;
	j.verified = s->in_doubt ? NULL : find_saved(&list, &p->verified);
	if (choose_what_goes(&j, &list) && !p->dry)
		rc = note_descent(&j, &list, &descent, err);
	if (rc == 0 && !p->dry) {
		trash = shf_dir_make(s->sys, s->dot, "trash");
		if (trash < 0)
			rc = shf_fail_io(err, -trash, "%s/.sheaf/trash", s->path);
	}
	if (rc == 0)
		rc = gone = walk(&j, &list, &descent, trash, item, arg, err);
	shf_fd_close(s->sys, &trash);
	if (rc >= 0 && !p->dry) {
		shf_clear_begin(&clear, s);
		rc = shf_trash_empty(s, p->grace_s ? p->grace_s : SHF_GRACE_S, &clear, err);
	}
out:
	shf_buf_release(&descent);
	shf_list_release(&list);
	return rc < 0 ? rc : gone;
}
