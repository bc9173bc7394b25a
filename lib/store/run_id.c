/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the id of a run, and opens .sheaf if it was made after the run was opened. */
#include "run_id.h"
#include "err.h"
#include "run_files.h"
#include "valid.h"
#include <errno.h>
#include <string.h>

int shf_run_id_read(struct shf_store *s, struct sheaf_error *err)
{
	static const char head[] = "sheaf-run 1\n";
	const size_t n = sizeof(head) - 1;
	struct shf_buf text = SHF_BUF_INIT;
	int rc;

	s->run[0] = '\0';
	rc = shf_text_read(s->sys, s->dot, "run", &text, SHF_RUN_TEXT_MAX);
	/* The NUL is counted below: an empty file has length 1. */
	shf_buf_u8(&text, 0);
	if (rc == 0 && text.oom)
		rc = -ENOMEM;
	if (rc < 0) {
		rc = rc == -ENOENT ? 0 : shf_fail_io(err, -rc, "%s/.sheaf/run", s->path);
	} else if (text.len == n + 34 && memcmp(text.data, head, n) == 0 &&
	           text.data[n + 32] == '\n') {
		text.data[n + 32] = '\0';
		if (shf_id_is_valid((char *)text.data + n, 32))
			memcpy(s->run, text.data + n, 33);
	} else if (text.len > n && memcmp(text.data, head, 10) == 0 && text.data[10] != '1') {
		rc = shf_fail(err, SHEAF_EFORMAT, "%s/.sheaf/run: made by a newer sheaf", s->path);
	}
	if (rc == 0 && s->run[0] == '\0' && text.len > 1)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s/.sheaf/run: not a run's identity; remove "
		              "the file and the next save makes one", s->path);
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
