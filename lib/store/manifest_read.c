/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the manifest of a step, and checks that it belongs to this run and has the step's
 * number. */
#include "manifest_read.h"
#include "err.h"
#include "run_files.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

int shf_manifest_read(const struct shf_sys *sys, int dir, const char *where,
                      struct shf_manifest *m, struct shf_arena *arena, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	char name[300];
	int rc;

	rc = shf_text_read(sys, dir, "sheaf.json", &text, SHF_MANIFEST_MAX);
	snprintf(name, sizeof(name), "%.280s/sheaf.json", where);
	/* These errors are about the file and not about the disk, so the step is damaged. */
	if (rc == -EFBIG || rc == -ELOOP || rc == -EISDIR)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s: cannot be a manifest: %s", name,
		              rc == -EFBIG ? "longer than 1 MiB" : "not a regular file");
	else if (rc < 0)
		rc = shf_fail_sys(err, -rc, "%s", name);
	else
		rc = shf_manifest_decode(m, arena, text.data, text.len, name, err);
	shf_buf_release(&text);
	return rc;
}

/* A run without .sheaf, such as a copy of some steps, has no id and takes manifests of any run. */
int shf_manifest_is_of(struct shf_store *s, const struct shf_manifest *m, int64_t step,
                       const char *where, struct sheaf_error *err)
{
	if (m->step != step)
		return shf_fail(err, SHEAF_ECORRUPT, "%s: its manifest is that of step %lld", where,
		                (long long)m->step);
	if (s->run[0] && strcmp(m->run, s->run) != 0)
		return shf_fail(err, SHEAF_ECORRUPT, "%s: its manifest is that of run %s, but "
		                "%s/.sheaf/run says %s", where, m->run, s->path, s->run);
	return 0;
}

int shf_store_manifest(struct shf_store *s, int64_t step, struct shf_manifest *m,
                       struct shf_arena *arena, struct sheaf_error *err)
{
	char t[SHF_STEP_NAME], where[320];
	int fd, rc;

	if (step < 0)
		return shf_fail(err, SHEAF_EINVAL, "%s: the step must not be negative", s->path);
	shf_name_of_step(s, t, step);
	snprintf(where, sizeof(where), "%.250s/%s", s->path, t);
	fd = shf_dir_open(s->sys, s->dir, t);
	if (fd < 0)
		return shf_fail_sys(err, -fd, "%s", where);
	rc = shf_manifest_read(s->sys, fd, where, m, arena, err);
	shf_fd_close(s->sys, &fd);
	if (rc == 0)
		rc = shf_manifest_is_of(s, m, step, where, err);
	else if (rc == SHEAF_ENOENT)    /* returned as it is, it would mean that the step does not
	                                 * exist */
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: no sheaf.json, so it is not a checkpoint of "
		              "Sheaf",
		              where);
	return rc;
}
