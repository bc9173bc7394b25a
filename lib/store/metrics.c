/* SPDX-License-Identifier: Apache-2.0 */
/* .sheaf/metrics.jsonl: a line for each finished save, for people who want to see where time went.
 * Nothing relies on the file, so it is appended to without fsync. A power cut may leave half a
 * line; the next line then begins on a line of its own. A full file is renamed to metrics.1.jsonl
 * and replaces an older file of that name. */
#include "metrics.h"
#include "err.h"
#include "run_files.h"

#include <errno.h>
#include <string.h>

static const char NAME[] = "metrics.jsonl", OLD[] = "metrics.1.jsonl";

/* Opens the file for appending and sets *end to its size. Returns a descriptor or -errno. */
static int open_end(struct shf_store *s, uint64_t *end)
{
	const struct shf_sys *sys = s->sys;
	struct shf_stat st;
	int fd = shf_sys_open(sys, s->dot, NAME,
			      SHF_O_WRITE | SHF_O_CREATE | SHF_O_APPEND | SHF_O_NOFOLLOW, 0666);
	int rc = fd < 0 ? fd : shf_sys_fstat(sys, fd, &st);

	if (rc >= 0 && st.type != SHF_T_FILE)
		rc = -EINVAL;
	if (rc < 0) {
		shf_fd_close(sys, &fd);
		return rc;
	}
	*end = st.bytes;
	return fd;
}

/* Returns whether the file is empty or ends with a complete line. */
static bool ends_whole(const struct shf_sys *sys, int fd, uint64_t end)
{
	char last = 0;

	return end == 0 ||
	       (shf_sys_pread(sys, fd, &last, 1, end - 1) == 1 && last == '\n');
}

int shf_metrics_add(struct shf_store *s, const char *line, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	struct shf_buf text = SHF_BUF_INIT;
	uint64_t end = 0;
	int fd, rc;

	if (!s->writer)
		return shf_fail(err, SHEAF_EINVAL, "%s: not open for writing", s->path);
	rc = fd = open_end(s, &end);
	/* A full file is rotated. */
	if (rc >= 0 && end > 0 && end + strlen(line) + 2 > SHF_METRICS_MAX) {
		shf_fd_close(sys, &fd);
		rc = shf_sys_rename(sys, s->dot, NAME, s->dot, OLD, false);
		if (rc >= 0)
			rc = fd = open_end(s, &end);
	}
	if (rc >= 0) {
		if (!ends_whole(sys, fd, end))
			shf_buf_adds(&text, "\n");
		shf_buf_adds(&text, line);
		shf_buf_adds(&text, "\n");
		rc = text.oom ? -ENOMEM : 0;
	}
	if (rc >= 0) {
		int64_t put = shf_sys_pwrite(sys, fd, text.data, text.len, end);

		rc = put < 0 ? (int)put : 0;
	}
	shf_fd_close(sys, &fd);
	shf_buf_release(&text);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/%s", s->path, NAME) : 0;
}
