/* SPDX-License-Identifier: Apache-2.0 */
/* Settles the counts of loads that earlier jobs left: marks a step bad if too many jobs loaded it
 * and made no progress, and removes counts of steps that are gone. */
#include "tries_settle.h"
#include "fresh_list.h"
#include "manifest_read.h"
#include "marks.h"
#include "marks_read.h"
#include "steps.h"
#include "run_files.h"
#include "tries.h"
#include <errno.h>
#include <string.h>

/* Calls item for each count in .sheaf/tries, until a result of item is not 0. Returns 0 or
 * -ENOMEM. */
static int each_count(struct shf_store *s,
                      int (*item)(struct shf_store *s, int dir, const char *name, int64_t step,
                                  const char *session, int64_t newest), int64_t newest)
{
	struct shf_names names = { SHF_BUF_INIT };
	char session[33];
	int64_t step;
	int dir = shf_tries_open(s), rc;

	if (dir < 0)
		return dir == -ENOMEM ? dir : 0;
	rc = shf_names_read(s->sys, dir, &names);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; )
		if (shf_step_split(p, &step, session))
			rc = item(s, dir, p, step, session, newest);
	shf_names_release(&names);
	shf_fd_close(s->sys, &dir);
	return rc == -ENOMEM ? rc : 0;
}

/* Removes the count of a step that is not on disk, if a newer step is on disk: then no agent has
 * the step in memory either (tries.c). */
static int clean_one(struct shf_store *s, int dir, const char *name, int64_t step,
                     const char *session, int64_t newest)
{
	struct shf_stat st;
	char t[SHF_STEP_NAME];

	(void)session;
	shf_name_of_step(s, t, step);
	if (step < newest &&
	    shf_sys_stat(s->sys, s->dir, t, false, &st) == -ENOENT)
		(void)shf_name_remove(s, dir, name);
	return 0;
}

int shf_tries_clean(struct shf_store *s)
{
	struct shf_steps steps;
	int rc = shf_steps_read(s, &steps);

	if (rc >= 0)
		rc = each_count(s, clean_one, steps.n ? steps.all[0] : -1);
	shf_free(steps.all);
	return rc == -ENOMEM ? rc : 0;
}

/* Marks a step bad if it was tried too often. A step that a person has marked keeps that mark, and
 * the oldest step is never marked. The manifest must be of the session that was counted: the number
 * may have been saved again. */
static int settle_one(struct shf_store *s, int dir, const char *name, int64_t step,
                      const char *session, int64_t newest)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;

	(void)newest;
	if (shf_tries_count(s->sys, dir, name) >= s->attempts_max &&
	    !shf_mark_read(s, step, NULL) &&
	    shf_step_older(s, step) >= 0 && shf_store_manifest(s, step, &m, &arena, NULL) == 0 &&
	    strcmp(m.session, session) == 0)
		(void)shf_store_mark(s, step, 'b', NULL);
	shf_arena_release(&arena);
	return 0;
}

int shf_tries_settle(struct shf_store *s)
{
	return s->attempts_max ? each_count(s, settle_one, -1) : 0;
}
