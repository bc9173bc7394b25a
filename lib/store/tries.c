/* SPDX-License-Identifier: Apache-2.0 */
/* Counts failed resumes. .sheaf/tries/<step>-<session of the step> holds, in decimal, how many
 * sessions loaded the step, from memory or from disk, and made no progress. A session raises the
 * count, durably, before it reads the first byte. It removes the count when its next save has a
 * stage or is in memory, and at a clean close.
 *
 * By itself a count is no evidence against a step: jobs are preempted, nodes die. A step is to be
 * marked bad (shf_tries_condemn) only if the caller set attempts_max and the step was tried that
 * often, and only while an older one is left. The oldest is never marked, because nothing would be
 * left to load.
 *
 * A step in memory may be counted before any step of its number is on disk, so a count stays until
 * the disk has a newer step.
 *
 * No failure here stops a job; the caller logs it. A session counts a step once, and ignores its
 * own count when it decides whether the step is to be marked bad. */

#include "tries.h"
#include "fresh_list.h"
#include "lock.h"
#include "run_files.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TRIES_MOST 9999         /* the largest count */

int shf_tries_open(struct shf_store *s)
{
	return s->dot < 0 ? -ENOENT : shf_dir_open(s->sys, s->dot, "tries");
}

/* Sets out to the name that the step's file has in .sheaf/tries. */
static void tries_file_name(char out[64], int64_t step, const char *session)
{
	snprintf(out, 64, "%lld-%.32s", (long long)step, session);
}

/* At most four digits are read, so no text can overflow the count. */
int shf_tries_count(const struct shf_sys *sys, int dir, const char *name)
{
	struct shf_buf text = SHF_BUF_INIT;
	int n = 0, rc = shf_text_read(sys, dir, name, &text, 16);

	for (size_t i = 0; rc == 0 && i < text.len && i < 4; i++) {
		if (text.data[i] < '0' || text.data[i] > '9')
			break;
		n = n * 10 + (text.data[i] - '0');
	}
	shf_buf_release(&text);
	return rc == 0 ? n : rc == -ENOENT ? 0 : rc;
}

/* A step whose session is unknown has no count. */
int shf_tries_read(struct shf_store *s, int64_t step, const char *session)
{
	int dir = session[0] ? shf_tries_open(s) : -ENOENT, n;
	char name[64];

	if (dir < 0)
		return dir == -ENOENT ? 0 : -1;
	tries_file_name(name, step, session);
	n = shf_tries_count(s->sys, dir, name);
	shf_fd_close(s->sys, &dir);
	return n >= 0 ? n : -1;
}

/* Returns whether this session has counted the step already. */
static bool step_is_counted(const struct shf_store *s, int64_t step, const char *session)
{
	for (int i = 0; i < s->tried_n; i++)
		if (s->tried[i].step == step && strcmp(s->tried[i].session, session) == 0)
			return true;
	return false;
}

/* The newest try may still be under way: a job that loaded the step and has not saved yet has not
 * failed. A writer knows whether it counted that try itself. A reader assumes that, if a job holds
 * the lock, that job counted it. */
bool shf_tries_spent(struct shf_store *s, int64_t step, const char *session)
{
	int max = s->attempts_max, n = max ? shf_tries_read(s, step, session) : 0;

	if (max && n >= max &&
	    (s->writer ? step_is_counted(s, step, session) : shf_lock_is_held(s)))
		n--;
	return max && n >= max;
}

bool shf_tries_condemn(struct shf_store *s, int64_t step, const char *session)
{
	return shf_tries_spent(s, step, session) && shf_step_older(s, step) >= 0;
}

/* The step is remembered as counted before the file is written: if the write fails after its
 * rename, the count is in the file all the same, and must be removed again when this session makes
 * progress. */
int shf_tries_add(struct shf_store *s, int64_t step, const char *session,
                  struct sheaf_error *err)
{
	char name[64], text[16];
	int dir, n = 0, rc;

	if (!s->writer || step_is_counted(s, step, session) || s->tried_n == SHF_TRIED_MAX)
		return 0;
	tries_file_name(name, step, session);
	rc = dir = shf_dir_make(s->sys, s->dot, "tries");
	if (rc >= 0) {
		s->tried[s->tried_n].step = step;
		snprintf(s->tried[s->tried_n++].session, 33, "%.32s", session);
		rc = n = shf_tries_count(s->sys, dir, name);
	}
	if (rc >= 0) {
		n += n < TRIES_MOST;
		snprintf(text, sizeof(text), "%d\n", n);
		rc = shf_text_write(s, dir, name, text, strlen(text), false);
	}
	if (rc >= 0)
		rc = shf_dir_sync(s, dir);
	if (rc >= 0)
		rc = shf_dir_sync(s, s->dot);   /* tries itself may be new */
	shf_fd_close(s->sys, &dir);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/tries/%s", s->path, name) : n;
}

int shf_name_remove(struct shf_store *s, int dir, const char *name)
{
	int rc = shf_sys_unlink(s->sys, dir, name, false);

	return rc == -ENOENT ? 0 : rc < 0 ? rc : 1;
}

/* Goes on after an error, so that as few counts as possible are left: each that is left counts
 * against a step from which this session made progress. */
int shf_tries_forget(struct shf_store *s, struct sheaf_error *err)
{
	int dir, rc = 0, gone = 0, n = s->tried_n;
	char name[64];

	if (n == 0)
		return 0;
	s->tried_n = 0;
	dir = shf_tries_open(s);
	if (dir < 0)
		return dir == -ENOENT ? 0 : shf_fail_io(err, -dir, "%s/.sheaf/tries", s->path);
	for (int i = 0; i < n; i++) {
		int was;

		tries_file_name(name, s->tried[i].step, s->tried[i].session);
		was = shf_name_remove(s, dir, name);
		rc = rc < 0 ? rc : was;
		gone += was == 1;
	}
	if (rc >= 0 && gone)
		rc = shf_dir_sync(s, dir);
	shf_fd_close(s->sys, &dir);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/tries", s->path) : 0;
}

int shf_tries_clear(struct shf_store *s, int64_t step)
{
	struct shf_names names = { SHF_BUF_INIT };
	char session[33];
	int64_t of;
	int dir = shf_tries_open(s), rc, gone = 0;

	if (dir < 0)
		return dir == -ENOENT ? 0 : dir;
	rc = shf_names_read(s->sys, dir, &names);
	for (const char *p = NULL; rc >= 0 && (p = shf_names_next(&names, p)) != NULL; )
		if (shf_step_split(p, &of, session) && of == step) {
			rc = shf_name_remove(s, dir, p);
			gone += rc == 1;
		}
	shf_names_release(&names);
	if (rc >= 0 && gone)
		rc = shf_dir_sync(s, dir);
	shf_fd_close(s->sys, &dir);
	return rc < 0 ? rc : 0;
}
