/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the id of a run, and opens .sheaf if it was made after the run was opened. */
#include "run_id.h"
#include "err.h"
#include "run_files.h"
#include "valid.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Decodes the text of .sheaf/run. Version 2 is that of a run whose steps have a prefix of their
 * own, and names it in a third line: an older sheaf refuses such a run, because it would see none
 * of its steps. Returns false if the text is neither. */
static bool run_text_decode(struct shf_store *s, const char *text, size_t n)
{
	const char *p = text, *end = text + n;
	char id[33], pattern[SHF_PATTERN] = "checkpoint-{n}";
	bool own;

	if (n < 12 || memcmp(text, "sheaf-run ", 10) != 0 || text[11] != '\n')
		return false;
	own = text[10] == '2';
	p += 12;
	if ((!own && text[10] != '1') || !shf_line_get(&p, end, "", id, sizeof(id)) ||
	    !shf_id_is_valid(id, 32) ||
	    (own && !shf_line_get(&p, end, "folder ", pattern, sizeof(pattern))) || p != end ||
	    shf_folder_set(s, pattern, NULL) < 0)
		return false;
	memcpy(s->run, id, sizeof(id));
	return true;
}

int shf_run_id_read(struct shf_store *s, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	const char *p;
	int rc;

	s->run[0] = '\0';
	rc = shf_text_read(s->sys, s->dot, "run", &text, SHF_RUN_TEXT_MAX);
	/* The NUL is counted below: an empty file has length 1. */
	shf_buf_u8(&text, 0);
	if (rc == 0 && text.oom)
		rc = -ENOMEM;
	p = (const char *)text.data;
	if (rc < 0)
		rc = rc == -ENOENT ? 0 : shf_fail_io(err, -rc, "%s/.sheaf/run", s->path);
	else if (run_text_decode(s, p, text.len - 1))
		rc = shf_folder_is(s, s->folder[0] ? s->folder : NULL, err);
	else if (text.len > 12 && memcmp(p, "sheaf-run ", 10) == 0 && p[10] != '1' && p[10] != '2')
		rc = shf_fail(err, SHEAF_EFORMAT, "%s/.sheaf/run: made by a newer version of "
		              "sheaf; use that version", s->path);
	if (rc == 0 && s->run[0] == '\0' && text.len > 1)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s/.sheaf/run: not the identity of a run; "
		              "remove the file, and the next save makes one", s->path);
	shf_buf_release(&text);
	return rc;
}

int shf_store_refresh(struct shf_store *s, struct sheaf_error *err)
{
	int rc;

	/* A writer has made .sheaf itself. An id never changes. */
	if (s->writer || s->run[0])
		return 0;
	if (s->dot < 0) {
		rc = shf_dir_open(s->sys, s->dir, ".sheaf");
		if (rc == -ENOENT)
			return 0;
		if (rc < 0)
			return shf_fail_io(err, -rc, "%s/.sheaf", s->path);
		s->dot = rc;
	}
	return shf_run_id_read(s, err);
}
