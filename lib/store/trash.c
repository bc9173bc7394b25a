/* SPDX-License-Identifier: Apache-2.0 */
/* Old steps go: chosen by keep rules and I9, renamed into .sheaf/trash, both parents
 * synced, and only then, after a grace for readers who know nothing of us, deleted.
 *
 *   I9  No step is deleted unless a newer one on the same branch has been re-read and verified
 *       since its commit, and keep rules allow; marks k and the loaded step are never deleted.
 *
 * A cut after the rename may bring the step back, whole: that is why nothing in it is touched
 * before the sync. sheaf.pruned, made in it after that, carries the time from which the grace
 * runs; sheaf.json is deleted first, so that a deletion that was cut is known by its absence. */
#include "err.h"
#include "tree.h"

#include <errno.h>
#include <string.h>

/* Whether a folder of the trash may be deleted now; starts its grace when it has none yet. */
static bool grace_is_over(struct shf_store *s, int dir, int grace_s)
{
	const struct shf_sys *sys = s->sys;
	struct shf_stat st;
	int fd;

	if (grace_s < 0 || sys->ops->stat(sys->arg, dir, "sheaf.json", false, &st) == -ENOENT)
		return true;
	if (sys->ops->stat(sys->arg, dir, "sheaf.pruned", false, &st) >= 0)
		return sys->ops->wall_s(sys->arg) - st.mtime_s >= grace_s;
	fd = sys->ops->open(sys->arg, dir, "sheaf.pruned",
	                    SHF_O_WRITE | SHF_O_CREATE | SHF_O_EXCL | SHF_O_NOFOLLOW, 0666);
	shf_fd_close(sys, &fd);
	return false;
}

static void empty_one(struct shf_store *s, int trash, const char *name, int grace_s)
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
	over = grace_is_over(s, dir, grace_s);
	if (over)
		sys->ops->unlink(sys->arg, dir, "sheaf.json", false);
	shf_fd_close(sys, &dir);
	if (over)
		shf_tree_remove(sys, trash, name);
}

int shf_trash_empty(struct shf_store *s, int grace_s, struct sheaf_error *err)
{
	struct shf_names names = { SHF_BUF_INIT };
	char session[33];
	int64_t step;
	bool any = false;
	int trash, rc;

	trash = shf_dir_open(s->sys, s->dot, "trash");
	if (trash < 0)
		return shf_fail_io(err, -trash, "%s/.sheaf/trash", s->path);
	rc = shf_names_read(s->sys, trash, &names);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; )
		any |= shf_step_split(p, &step, session);
	if (rc == 0 && any) {
		rc = shf_dir_sync(s, trash);
		if (rc == 0)
			rc = shf_dir_sync(s, s->dir);
	}
	if (rc < 0)
		rc = shf_fail_io(err, -rc, "%s/.sheaf/trash: sync before deleting", s->path);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; )
		empty_one(s, trash, p, grace_s);
	shf_names_release(&names);
	shf_fd_close(s->sys, &trash);
	return rc;
}

static struct shf_entry *find(struct shf_list *list, int64_t step)
{
	for (size_t i = 0; i < list->n; i++)
		if (list->entries[i].step == step && list->entries[i].state <= SHF_DAMAGED)
			return &list->entries[i];
	return NULL;
}

/* Follow the parents of the verified step; `tries` of an entry becomes 1 where it is on that
 * branch. A link to a step that is gone ends it: what lies beyond cannot be proven and stays. */
static void find_branch(struct shf_list *list, const struct shf_entry *from)
{
	struct shf_entry *e;

	for (size_t i = 0; i < list->n; i++)
		list->entries[i].tries = 0;
	while (from && from->parent >= 0 && from->parent < from->step) {
		e = find(list, from->parent);
		if (!e || strcmp(e->session, from->parent_session) != 0)
			break;
		e->tries = 1;
		from = e;
	}
}

/* Why a step stays; NULL: nothing keeps it. newer_n: good steps above it. */
static const char *why_stays(struct shf_store *s, const struct shf_prune *p,
                             const struct shf_entry *e, const struct shf_entry *verified,
                             int64_t newer_n)
{
	char mark = shf_mark_read(s, e->step, NULL);

	if (e->state == SHF_DAMAGED)
		return "damaged: a person decides";
	if (mark == 'k')
		return "marked keep";
	if (mark == '?')
		return "its mark cannot be read";
	if (e->step == p->keep)
		return "loaded";
	if (p->keep_last <= 0)
		return "all steps are kept";
	if (mark != 'b' && newer_n < p->keep_last)
		return "among the newest";
	if (p->keep_every > 0 && e->step % p->keep_every == 0)
		return "kept by its number";
	if (!verified)
		return "no newer step is verified";
	if (e->step >= verified->step)
		return "not older than the verified step";
	if (!e->tries)
		return "not on the branch of the verified step";
	return NULL;
}

/* P2 under the manifest's lock, which our own readers share. 1: went; 0: stays, *why says so. */
static int remove_step(struct shf_store *s, int trash, const struct shf_entry *e,
                       const char **why, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	int dir, fd, rc;

	dir = shf_dir_open(sys, s->dir, e->path);
	if (dir < 0)
		return shf_fail_io(err, -dir, "%s/%s", s->path, e->path);
	fd = sys->ops->open(sys->arg, dir, "sheaf.json", SHF_O_WRITE | SHF_O_NOFOLLOW, 0);
	rc = fd < 0 ? fd : sys->ops->lock(sys->arg, fd, true);
	if (fd >= 0 && rc < 0 && shf_lock_is_absent(rc))
		rc = 0;
	if (rc < 0) {
		*why = rc == -EAGAIN ? "being read" : "its manifest cannot be locked";
		rc = 0;
	} else {
		rc = shf_step_move(s, e->step, trash, e->session, err);
		if (rc == 0)
			rc = 1;
	}
	shf_fd_close(sys, &fd);
	shf_fd_close(sys, &dir);
	return rc;
}

/* Oldest first. Returns how many went, or a code. */
static int walk(struct shf_store *s, const struct shf_prune *p, struct shf_list *list, int trash,
                void (*item)(void *arg, int64_t step, char what, const char *why), void *arg,
                struct sheaf_error *err)
{
	struct shf_entry *verified = p->verified >= 0 ? find(list, p->verified) : NULL;
	int64_t newer_n = 0;
	int gone = 0, rc;

	if (verified && !shf_entry_is_good(verified))
		verified = NULL;
	find_branch(list, verified);
	for (size_t i = 0; i < list->n; i++)
		newer_n += shf_entry_is_good(&list->entries[i]);
	for (size_t i = 0; i < list->n; i++) {
		const struct shf_entry *e = &list->entries[i];
		const char *why;

		if (e->state > SHF_DAMAGED)
			continue;
		newer_n -= shf_entry_is_good(e);
		why = why_stays(s, p, e, verified, newer_n);
		rc = why == NULL;
		if (rc && !p->dry)
			rc = remove_step(s, trash, e, &why, err);
		if (rc < 0)
			return rc;
		if (item)
			item(arg, e->step, rc ? 'r' : 'k', !rc ? why
			     : p->dry ? "if the newest step proves sound"
				      : "a newer step is verified");
		gone += rc;
	}
	return gone;
}

int shf_store_prune(struct shf_store *s, const struct shf_prune *p,
                    void (*item)(void *arg, int64_t step, char what, const char *why), void *arg,
                    struct sheaf_error *err)
{
	struct shf_list list = { NULL, 0 };
	int trash = -1, rc = 0, gone;

	if (!s->writer && !p->dry)
		return shf_fail(err, SHEAF_EINVAL, "%s: pruning needs the run open for writing",
		                s->path);
	if (!p->dry)
		rc = shf_lock_check(s, err);
	if (rc == 0)
		rc = shf_rewind_is_over(s, err);
	if (rc == 0)
		rc = shf_store_list(s, &list, err);
	if (rc < 0)
		return rc;
	if (!p->dry) {
		trash = shf_dir_make(s->sys, s->dot, "trash");
		if (trash < 0) {
			shf_list_release(&list);
			return shf_fail_io(err, -trash, "%s/.sheaf/trash", s->path);
		}
	}
	gone = walk(s, p, &list, trash, item, arg, err);
	shf_list_release(&list);
	shf_fd_close(s->sys, &trash);
	if (gone >= 0 && !p->dry)
		rc = shf_trash_empty(s, p->grace_s ? p->grace_s : SHF_GRACE_S, err);
	return rc < 0 ? rc : gone;
}
