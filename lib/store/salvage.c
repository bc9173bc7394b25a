/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes the complete stage of a dead writer, because a person asks for it. Recovery must not do
 * that by itself (I7, I11). The files of the stage are durable, since it has a manifest (I2); its
 * name and place are made durable by C5 and C7 to C9.
 *
 * While every byte is checked, the text of the dead writer stays in the lock file, because it may
 * be all that proves the writer dead; our text is appended to it. Then we take over the stage: our
 * session begins with the same 16 digits as that of the dead writer, so the stage is protected
 * while we live and counts as ours if we die. */
#include "salvage.h"
#include "err.h"
#include "lock.h"
#include "publish.h"
#include "recover.h"
#include "stage.h"
#include "step_look.h"
#include "run_files.h"
#include "run_id.h"

#include <errno.h>
#include <string.h>

/* What was found of the stages of the step: the first complete stage, and counts. */
struct staged {
	char whole[64], session[33];
	int whole_n, part_n;            /* number of complete stages; number of stages without a
	                                 * manifest */
};

static int fail_stage(const struct shf_store *s, int rc, struct sheaf_error *err)
{
	return shf_fail_io(err, -rc, "%s/.sheaf/stage", s->path);
}

/* Counts a stage whose writer is dead as complete or not. sheaf.json is the last name that a writer
 * makes durable, so a stage that has it is complete. */
static int count(struct shf_store *s, int dir, const char *name, const char *session,
                 struct staged *found)
{
	struct shf_stat st;
	int rc = shf_sys_stat(s->sys, dir, "sheaf.json", false, &st);

	if (rc < 0 && rc != -ENOENT)
		return rc;
	if (rc < 0) {
		found->part_n++;
	} else if (found->whole_n++ == 0) {
		memcpy(found->whole, name, strlen(name) + 1);
		memcpy(found->session, session, sizeof(found->session));
	}
	return 0;
}

/* Looks at one stage of the step. Any stage whose writer may be alive ends the search with EBUSY:
 * that writer may be about to publish the same step. */
static int staged_look_at(struct shf_store *s, const char *name, const char *session,
                          struct staged *found, struct sheaf_error *err)
{
	struct shf_names names;
	bool dead = false;
	int dir = shf_dir_open(s->sys, s->stage, name), rc;

	if (dir < 0)
		return fail_stage(s, dir, err);
	rc = shf_names_read(s->sys, dir, &names);
	if (rc == 0) {
		dead = shf_stage_is_dead(s, dir, &names, session, false);
		shf_names_release(&names);
		if (dead)
			rc = count(s, dir, name, session, found);
	}
	shf_fd_close(s->sys, &dir);
	if (rc < 0)
		return fail_stage(s, rc, err);
	return dead ? 0 : shf_fail(err, SHEAF_EBUSY, "%s/.sheaf/stage/%s: its writer may be alive; "
	                           "end that job, or wait a day after its last write", s->path,
	                           name);
}

/* Looks at all stages of the step. If several are complete, a person has to choose: they are
 * different saves, and nothing shows from which one the job went on. */
static int staged_find(struct shf_store *s, int64_t step, struct staged *found,
                       struct sheaf_error *err)
{
	struct shf_names names;
	char session[33];
	int64_t of;
	int rc = shf_names_read(s->sys, s->stage, &names);

	if (rc < 0)
		return fail_stage(s, rc, err);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; )
		if (shf_step_split(p, &of, session) && of == step &&
		    !shf_tree_is_step(s, s->stage, p, step))
			rc = staged_look_at(s, p, session, found, err);
	shf_names_release(&names);
	if (rc < 0)
		return rc;
	if (found->whole_n > 1)
		return shf_fail(err, SHEAF_EINVAL, "%s: %d complete saves of step %lld are in the "
		                "stage; move all but one out of .sheaf/stage", s->path,
		                found->whole_n, (long long)step);
	if (found->whole_n == 0 && found->part_n)
		return shf_fail(err, SHEAF_ECORRUPT, "%s: step %lld is in the stage, but "
		                "incomplete: it has no manifest", s->path, (long long)step);
	return found->whole_n ? 0
	     : shf_fail(err, SHEAF_ENOENT, "%s: step %lld is not in the stage (sheaf recover lists "
	                "what is)", s->path, (long long)step);
}

/* Checks that T does not exist, before anything is changed. Remains do not count: shf_stage_room
 * sets them aside later. */
static int check_free(struct shf_store *s, int64_t step, struct sheaf_error *err)
{
	struct shf_stat st;
	char t[SHF_STEP_NAME];
	int dir, rc;

	shf_name_of_step(s, t, step);
	rc = shf_sys_stat(s->sys, s->dir, t, false, &st);
	if (rc == -ENOENT)
		return 0;
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/%s", s->path, t);
	dir = shf_dir_open(s->sys, s->dir, t);
	rc = dir >= 0 && shf_dir_is_remains(s->sys, dir);
	shf_fd_close(s->sys, &dir);
	return rc ? 0 : shf_fail(err, SHEAF_EEXIST, "%s/%s: exists; rewind the run, or move it "
	                         "away first", s->path, t);
}

/* The first half of our session is replaced by the first half of the dead writer's session. Once
 * our text is in the lock file, the stage then counts as ours: it is protected while we live, and
 * the next job's recovery recognises it if we die (bare_is_dead). */
int shf_salvage_begin(struct shf_store *s, struct shf_stage *g, const struct shf_sys *sys,
                      const char *path, int wait_ms, int64_t step, struct sheaf_error *err)
{
	struct staged found = { .whole_n = 0 };
	struct shf_owning how = { .wait_ms = wait_ms };
	int rc = shf_store_own_begin(s, sys, path, &how, err);

	/* The stage must be safe to close, whatever fails below. */
	memset(g, 0, sizeof(*g));
	g->dir = g->alive = -1;
	g->step = step;
	if (rc < 0)
		return rc;
	rc = shf_lock_visit(s, err);
	if (rc == 0)
		rc = shf_run_id_read(s, err);   /* it says how steps are named */
	if (rc == 0)
		rc = check_free(s, step, err);
	if (rc == 0)
		rc = staged_find(s, step, &found, err);
	if (rc == 0) {
		rc = g->dir = shf_dir_open(sys, s->stage, found.whole);
		rc = rc < 0 ? fail_stage(s, rc, err) : 0;
	}
	if (rc < 0) {
		shf_store_close(s);
		return rc;
	}
	memcpy(g->name, found.whole, sizeof(g->name));
	memcpy(s->session, found.session, 16);
	memcpy(g->session, s->session, sizeof(g->session));
	return 0;
}

/* Checks that no other job has taken the lock since shf_lock_visit: the last text in its file must
 * be ours. Only the second half of our session can be compared, because the first half is the dead
 * writer's by now. Returns 0 or ELOST. */
static int check_visit(struct shf_store *s, struct sheaf_error *err)
{
	struct shf_owner owner;
	char session[33];
	int rc = shf_lock_holder(s, &owner, session);

	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/.sheaf/lock", s->path);
	if (!session[0])
		return shf_fail(err, SHEAF_ELOST, "%s: the lock file no longer names this job: it "
		                "was overwritten or deleted; try again",
		                s->path);
	if (strcmp(session + 16, s->session + 16) != 0)
		return shf_fail(err, SHEAF_ELOST, "%s: the lock was taken meanwhile by pid %llu on "
		                "%s, session %s; wait for that job", s->path,
		                (unsigned long long)owner.pid,
		                owner.host, session);
	return 0;
}

/* Takes over the run before it publishes: our text replaces the dead writer's in the lock file, as
 * C7 demands. sheaf.json.tmp, which an interrupted rename may have left, is removed, because C5
 * would not know it. */
int shf_salvage_finish(struct shf_store *s, struct shf_stage *g, const struct shf_buf *text,
                       const char *run, struct sheaf_error *err)
{
	int rc = check_visit(s, err);

	if (rc == 0)
		rc = shf_store_own_end(s, run, err);
	if (rc == 0 && strcmp(s->run, run) != 0)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s/.sheaf/stage/%s: its manifest is that of "
		              "run %s, but this is run %s", s->path, g->name, run, s->run);
	if (rc == 0)
		rc = shf_stage_room(s, g->step, NULL, err);
	if (rc < 0)
		return rc;
	rc = shf_sys_unlink(s->sys, g->dir, "sheaf.json.tmp", false);
	if (rc < 0 && rc != -ENOENT)
		return shf_fail_io(err, -rc, "%s/.sheaf/stage/%s", s->path, g->name);
	return shf_stage_publish_as(s, g, text, true, err);
}
