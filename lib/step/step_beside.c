/* SPDX-License-Identifier: Apache-2.0 */
#include "step_beside.h"
#include <errno.h>
#include <string.h>
#include "err.h"
#include "foreign.h"
#include "step_attached.h"
#include "step_find.h"

/* Reads a file in the directory of a foreign checkpoint, or beside it if it is a file. Returns 1,
 * or 0 if there is none. */
static int read_beside(const struct shf_foreign *f, const char *name, struct shf_buf *out,
                       struct sheaf_error *err)
{
	const char *slash = strrchr(f->path, '/');
	int n = f->dir >= 0 ? (int)strlen(f->path) : slash ? (int)(slash - f->path) : 1, rc;
	struct shf_buf path = SHF_BUF_INIT;

	shf_buf_addf(&path, "%.*s/%s", n, f->dir >= 0 || slash ? f->path : ".", name);
	shf_buf_u8(&path, 0);
	rc = path.oom ? -ENOMEM : shf_file_slurp(f->in, SHF_CWD, (char *)path.data, 0,
	                                         SHF_BESIDE_MAX, out);
	shf_buf_release(&path);
	if (rc < 0 && rc != -ENOENT)
		return shf_fail_sys(err, -rc, "%s: reading %s", f->path, name);
	return rc == 0;
}

int shf_step_beside(struct sheaf_checkpoint *step, const char *name, struct shf_buf *out,
                    struct sheaf_error *err)
{
	const void *bytes;
	size_t n;
	int rc;

	step = shf_step_behind_maps(step);
	if (step->foreign)
		return read_beside(step->foreign, name, out, err);
	rc = shf_step_attached(step, name, &bytes, &n, err);
	if (rc == SHEAF_ENOENT)
		return 0;
	if (rc == 0)
		shf_buf_add(out, bytes, n);
	if (out->oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory to read %s", step->path, name);
	return rc < 0 ? rc : 1;
}
