/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the marks of steps, and removes them. */
#include "marks_read.h"
#include "run_files.h"
#include "valid.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

void shf_mark_name(char out[24], int64_t step)
{
	snprintf(out, 24, "%lld", (long long)step);
}

/* Opens .sheaf/marks. -ENOENT: the run has no marks, or no .sheaf. */
static int open_marks(struct shf_store *s)
{
	return s->dot < 0 ? -ENOENT : shf_dir_open(s->sys, s->dot, "marks");
}

/* Reads the text of a mark: "k" or "b"; then, unless the manifest could not be read, a space and
 * the session of the save. For any other text the result is '?'. */
static char mark_of_text(const struct shf_buf *text, char session[33])
{
	const char *p = (const char *)text->data;
	size_t n = text->len;
	char of[33] = "";

	if (n == 0 || (p[0] != 'k' && p[0] != 'b'))
		return '?';
	if (n == 1 || p[1] == '\n')
		return p[0];
	if (p[1] != ' ' || n < 34 || n > 35 || (n == 35 && p[34] != '\n'))
		return '?';
	memcpy(of, p + 2, 32);
	if (!shf_id_is_valid(of, 32))
		return '?';
	memcpy(session, of, sizeof(of));
	return p[0];
}

/* Reads the mark in the file `name` of .sheaf/marks. */
static char mark_in_file(struct shf_store *s, const char *name, char session[33], int *why)
{
	struct shf_buf text = SHF_BUF_INIT;
	char mark = '?';
	int dir = open_marks(s), rc = dir;

	session[0] = '\0';
	if (dir >= 0)
		rc = shf_text_read(s->sys, dir, name, &text, 64);
	if (why)
		*why = rc < 0 ? rc : 0;
	/* Neither a mark nor the folder of marks: the step is not marked. */
	if (rc == -ENOENT)
		mark = 0;
	else if (rc == 0)
		mark = mark_of_text(&text, session);
	shf_buf_release(&text);
	shf_fd_close(s->sys, &dir);
	return mark;
}

char shf_mark_of(struct shf_store *s, int64_t step, char session[33], int *why)
{
	char name[24];

	shf_mark_name(name, step);
	return mark_in_file(s, name, session, why);
}

void shf_mark_aside_name(char out[64], int64_t step, const char *session)
{
	snprintf(out, 64, "%lld-%.32s", (long long)step, session);
}

char shf_mark_of_aside(struct shf_store *s, int64_t step, const char *session, int *why)
{
	char name[64], of[33];

	shf_mark_aside_name(name, step, session);
	return mark_in_file(s, name, of, why);
}

char shf_mark_read(struct shf_store *s, int64_t step, int *why)
{
	char session[33];

	return shf_mark_of(s, step, session, why);
}

int shf_marks_some_bad(struct shf_store *s, int64_t least,
                       bool (*is)(void *arg, int64_t step, const char *session), void *arg)
{
	struct shf_names names;
	int dir = open_marks(s), why = 0;
	int rc = dir < 0 ? dir : shf_names_read(s->sys, dir, &names);
	char session[33], mark;
	int64_t step;

	if (rc < 0) {
		shf_fd_close(s->sys, &dir);
		return rc == -ENOENT ? 0 : rc;
	}
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL;) {
		if (!shf_step_number_get(p, p + strlen(p), &step) &&
		    !shf_step_split(p, &step, session))
			continue;
		if (step < least)
			continue;
		mark = mark_in_file(s, p, session, &why);
		if (mark == 'b')
			rc = session[0] && is(arg, step, session);
		else if (mark == '?')
			rc = why < 0 ? why : -EBADMSG;
	}
	shf_names_release(&names);
	shf_fd_close(s->sys, &dir);
	return rc;
}

int shf_mark_clear(struct shf_store *s, int64_t step)
{
	char name[24];
	int dir = open_marks(s), rc;

	if (dir < 0)
		return dir == -ENOENT ? 0 : dir;
	shf_mark_name(name, step);
	rc = shf_sys_unlink(s->sys, dir, name, false);
	if (rc >= 0)
		rc = shf_dir_sync(s, dir);
	else if (rc == -ENOENT)
		rc = 0;
	shf_fd_close(s->sys, &dir);
	return rc;
}
