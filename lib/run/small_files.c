/* SPDX-License-Identifier: Apache-2.0 */
/* Writes small files of a step and fsyncs them together (small_files.h). */
#include "small_files.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include "run_io.h"
#include "stage.h"

/* Writes the error for a file and returns its code. ENOENT means that another process has removed
 * the stage. */
static int fail(const struct shf_small_files *smalls, const struct shf_small_file *f, int64_t rc,
                struct sheaf_error *err)
{
	if (rc == -ENOENT)
		return shf_stage_fail(err, ENOENT, "step %" PRId64 ": %s", smalls->step, f->name);
	return shf_submit_fail(err, (int)rc, "step %" PRId64 ": %s: writing %zu bytes",
	                       smalls->step, f->name, f->bytes);
}

/* A full table is fsynced first, which makes room for the new file. */
int shf_small_files_put(struct shf_small_files *smalls, int dir, const char *name,
                        const void *bytes, size_t n, struct sheaf_error *err)
{
	const struct shf_sys *sys = smalls->run->sys;
	struct shf_small_file *f;
	int64_t put = 0;

	if (smalls->n == SHF_SMALL_FILES_MAX) {
		int rc = shf_small_files_sync(smalls, 0, err);

		if (rc < 0)
			return rc;
	}
	f = &smalls->files[smalls->n];
	*f = (struct shf_small_file){ .bytes = n };
	snprintf(f->name, sizeof(f->name), "%.127s", name);
	f->fd = shf_sys_open(sys, dir, name,
			     SHF_O_WRITE | SHF_O_CREATE | SHF_O_EXCL | SHF_O_NOFOLLOW, 0666);
	if (f->fd < 0)
		return fail(smalls, f, f->fd, err);
	smalls->n++;
	if (n)
		put = shf_sys_pwrite(sys, f->fd, bytes, n, 0);
	return put < 0 ? fail(smalls, f, put, err) : 0;
}

/* All fsyncs are submitted before the first is waited for, so that a file system with a journal
 * commits once for all of them. */
int shf_small_files_sync(struct shf_small_files *smalls, int rc, struct sheaf_error *err)
{
	const struct shf_sys *sys = smalls->run->sys;

	for (int i = 0; i < smalls->n && rc == 0; i++) {
		struct shf_small_file *f = &smalls->files[i];
		int put;

		f->io = (struct shf_io){ .op = SHF_IO_FSYNC, .fd = f->fd };
		put = shf_io_submit(smalls->run, &smalls->owner, &f->io);
		rc = put < 0 ? fail(smalls, f, put, err) : 0;
	}
	(void)shf_io_drain(smalls->run, &smalls->owner, -1); /* the queue uses f->io until then */
	for (int i = 0; i < smalls->n; i++) {
		struct shf_small_file *f = &smalls->files[i];
		int closed;

		if (rc == 0 && f->io.result < 0)
			rc = fail(smalls, f, f->io.result, err);
		closed = shf_sys_close(sys, f->fd);
		if (rc == 0 && closed < 0)
			rc = fail(smalls, f, closed, err);
	}
	smalls->n = 0;
	return rc;
}
