/* SPDX-License-Identifier: Apache-2.0 */
/* Source: file_download.py of huggingface_hub 1.x, and caches that it made. */
#include "hub_cache.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "err.h"
#include "valid.h"

#define LISTED 5                /* snapshots that a message names */

struct snapshots {              /* the folders in snapshots/ */
	struct shf_buf said;            /* the names of the first ones, for messages */
	struct shf_buf one;             /* the name of the last one, NUL-ended */
	uint64_t n;
};

static bool is_snapshot_folder(const struct shf_sys *sys, int dir, const char *name)
{
	struct shf_stat st;

	return shf_sys_stat(sys, dir, name, true, &st) >= 0 && st.type == SHF_T_DIR;
}

static int see_snapshot(void *arg, const char *name)
{
	struct snapshots *s = arg;

	if (!shf_plain_is_valid(name) || strlen(name) > 80)
		return 0;
	shf_buf_reset(&s->one);
	shf_buf_addf(&s->one, "%s", name);
	shf_buf_u8(&s->one, 0);
	if (s->n++ < LISTED)
		shf_buf_addf(&s->said, "%s%s", s->n > 1 ? ", " : "", name);
	return s->one.oom || s->said.oom ? -ENOMEM : 0;
}

/* Reads the commit of the branch main to `commit`. Returns false if nothing says it. */
static bool read_main(const struct shf_sys *sys, int dir, char commit[81])
{
	struct shf_buf text = SHF_BUF_INIT;
	int refs = shf_sys_open(sys, dir, "refs", SHF_O_DIR, 0);
	bool is = refs >= 0 && shf_file_slurp(sys, refs, "main", 0, 200, &text) == 0;
	size_t n = text.len;

	shf_fd_close(sys, &refs);
	while (is && n && strchr(" \r\n", text.data[n - 1]))
		n--;
	is = is && n > 0 && n <= 80;
	if (is) {
		memcpy(commit, text.data, n);
		commit[n] = '\0';
		is = strlen(commit) == n && shf_plain_is_valid(commit);
	}
	shf_buf_release(&text);
	return is;
}

/* Appends the path of the snapshot that is opened, and returns 1. dir: the repository; in: the
 * directory of its snapshots; path: of the repository. */
static int choose_snapshot(const struct shf_sys *sys, int dir, int in, const char *path,
                           const struct snapshots *s, struct shf_buf *out, struct sheaf_error *err)
{
	char commit[81];
	bool has_main = read_main(sys, dir, commit);

	if (has_main ? is_snapshot_folder(sys, in, commit) : s->n == 1) {
		shf_buf_addf(out, "%s/snapshots/%s", path,
		             has_main ? commit : (const char *)s->one.data);
		return 1;
	}
	if (s->n == 0)
		return shf_fail(err, SHEAF_EFORMAT, "%s: is a repository in the cache of the "
		                "Hugging Face hub, and has no snapshot; download it again", path);
	if (has_main)
		return shf_fail(err, SHEAF_EFORMAT, "%s: refs/main names the snapshot %s, which is "
		                "not there; open one of those that are, as %s/snapshots/%s "
		                "(%.*s)", path, commit, path, (const char *)s->one.data,
		                (int)s->said.len, (const char *)s->said.data);
	return shf_fail(err, SHEAF_EFORMAT, "%s: is a repository in the cache of the Hugging Face "
	                "hub with %" PRIu64 " snapshots, and no refs/main says which is meant; "
	                "open one of them, as %s/snapshots/%s (%.*s)", path, s->n, path,
	                (const char *)s->one.data, (int)s->said.len, (const char *)s->said.data);
}

/* If `path` is the directory of a repository, appends the path of the snapshot that is opened, with
 * a NUL, to *snapshot, and returns 1. Returns 0 if it is any other directory. */
static int find_snapshot(const struct shf_sys *sys, const char *path, struct shf_buf *snapshot,
                         struct sheaf_error *err)
{
	struct snapshots s = { .n = 0 };
	int dir = shf_sys_open(sys, SHF_CWD, path, SHF_O_DIR, 0), in = -1, rc = 0;

	if (dir < 0)
		return dir == -ENOTDIR ? 0 : shf_fail_sys(err, -dir, "%s", path);
	if (is_snapshot_folder(sys, dir, "snapshots") &&
	    (is_snapshot_folder(sys, dir, "blobs") || is_snapshot_folder(sys, dir, "refs")))
		in = shf_sys_open(sys, dir, "snapshots", SHF_O_DIR, 0);
	if (in >= 0) {
		rc = shf_sys_list(sys, in, see_snapshot, &s);
		rc = rc < 0 ? shf_fail_sys(err, -rc, "%s/snapshots", path)
		            : choose_snapshot(sys, dir, in, path, &s, snapshot, err);
		shf_sys_close(sys, in);
	}
	shf_sys_close(sys, dir);
	if (rc > 0)
		shf_buf_u8(snapshot, 0);
	if (rc > 0 && snapshot->oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", path);
	shf_buf_release(&s.said);
	shf_buf_release(&s.one);
	return rc;
}

int shf_hub_cache_find(struct sheaf_run *run, const char *path, struct shf_buf *told,
                       struct sheaf_error *err)
{
	struct shf_buf snapshot = SHF_BUF_INIT;
	struct shf_stat st;
	int rc = shf_sys_stat(run->sys, SHF_CWD, path, true, &st);

	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s", path);
	rc = st.type == SHF_T_DIR ? find_snapshot(run->sys, path, &snapshot, err) : 0;
	if (rc >= 0)
		rc = shf_step_find_path(run, rc ? (const char *)snapshot.data : path, told, err);
	shf_buf_release(&snapshot);
	return rc;
}
