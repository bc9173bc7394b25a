/* SPDX-License-Identifier: Apache-2.0 */
/* The files of an open step: their descriptors, which are opened at first use. */
#include "step_files.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "foreign_dir.h"
#include "memory_dir.h"
#include "name_in_step.h"
#include "read_ring.h"
#include "step.h"

#define ONCE_MIN ((uint64_t)64 << 10)   /* of fewer bytes the pages may be needed again */

void shf_step_read_once(struct sheaf_checkpoint *step, bool once)
{
	step->reads_once = once && !step->source;
	if (step->foreign)
		step->foreign->reads_once = step->reads_once;
}

int shf_step_follow(const struct sheaf_checkpoint *step)
{
	return step->run->life.foreign ? 0 : SHF_O_NOFOLLOW;
}

/* Opens the family's folder first, then the file in it. Neither may be a symbolic link, unless the
 * step was opened by its path. */
int shf_step_file_open(const struct sheaf_checkpoint *step, const char *name, int flags,
                       char where[64])
{
	const struct shf_sys *sys = step->run->sys;
	int follow = shf_step_follow(step), in, fd;
	const char *base;

	where[0] = '\0';
	in = shf_in_step_enter(sys, step->dir, name, follow, &base);
	if (in < 0) {
		snprintf(where, 64, "%.*s", (int)(base - name - 1), name);
		return in;
	}
	fd = shf_sys_open(sys, in, base, follow | flags, 0);
	shf_in_step_leave(sys, step->dir, in);
	return fd;
}

/* Opens each file only at first use, because a step may have more files than a process may have
 * descriptors, and most readers need few of them. */
int shf_step_fd(struct sheaf_checkpoint *step, uint32_t f, struct sheaf_error *err)
{
	char folder[64];
	int fd;

	if (step->fds[f] >= 0)
		return step->fds[f];
	fd = shf_step_file_open(step, step->layout.files[f].name, 0, folder);
	if (fd < 0)
		return shf_fail_io(err, -fd, "%s/%s", step->path,
		                   folder[0] ? folder : step->layout.files[f].name);
	step->fds[f] = fd;
	return fd;
}

int shf_step_file_got(const struct sheaf_checkpoint *step, uint32_t f, uint64_t off, uint64_t n,
                      int64_t got, struct sheaf_error *err)
{
	const char *name = step->layout.files[f].name;

	if (got == -EBADMSG && step->foreign && shf_foreign_failure(step->foreign, err))
		return err->code;
	if (got < 0)
		return shf_fail_sys(err, (int)-got, "%s/%s: reading %" PRIu64 " bytes at %" PRIu64,
		                    step->path, name, n, off);
	if ((uint64_t)got != n)
		return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: ends at byte %" PRIu64, step->path,
		                name, off + (uint64_t)got);
	return 0;
}

int shf_step_file_read(struct sheaf_checkpoint *step, uint32_t f, void *to, uint64_t n,
                       uint64_t off, uint64_t *retries, struct sheaf_error *err)
{
	int fd = shf_step_fd(step, f, err);

	if (fd < 0)
		return fd;
	return shf_step_file_got(step, f, off, n, shf_read_now(step->run->sys, fd, to, n, off,
	                                                       step->reads_once && n > ONCE_MIN,
	                                                       retries), err);
}

/* Small files and runs with SHEAF_RUN_BUFFERED use no direct I/O. If the file system refuses
 * O_DIRECT, 0 is stored, so that it is not tried again. */
int shf_step_direct(struct sheaf_checkpoint *step, uint32_t f)
{
	char folder[64];
	int fd;

	if (step->run->opts.flags & SHEAF_RUN_BUFFERED ||
	    step->layout.files[f].bytes < SHF_DIRECT_MIN)
		return 0;
	if (step->direct[f] < 0) {
		fd = shf_step_file_open(step, step->layout.files[f].name, SHF_O_DIRECT, folder);
		step->direct[f] = fd < 0 ? 0 : fd;
	}
	return step->direct[f];
}

void shf_step_direct_close(struct sheaf_checkpoint *step, uint32_t end)
{
	const struct shf_sys *sys = step->run->sys;

	for (uint32_t f = 0; step->direct && f < end; f++)
		if (step->direct[f] > 0) {
			shf_sys_close(sys, step->direct[f]);
			step->direct[f] = -1;
		}
}

/* Checks whether the files that the manifest names have at least `want` bytes together. Returns 1
 * if so, 0 if not. If a file could not be examined, the result is unknown: returns the negative
 * errno. */
static int has_bytes(const struct sheaf_checkpoint *step, uint64_t want)
{
	const struct shf_sys *sys = step->run->sys;
	const struct shf_manifest *m = &step->manifest;
	struct shf_stat st;
	char folder[64];
	int unread = 0;

	for (size_t f = 0; f < m->files_n && want; f++) {
		int fd = shf_step_file_open(step, m->files[f].name, 0, folder), rc = fd;

		if (fd >= 0) {
			rc = shf_sys_fstat(sys, fd, &st);
			shf_sys_close(sys, fd);
		}
		/* A missing file has no bytes. After any other error its size is unknown. */
		if (rc >= 0)
			want -= st.bytes < want ? st.bytes : want;
		else if (rc != -ENOENT && rc != -ENOTDIR && rc != -ELOOP)
			unread = rc;
	}
	return want == 0 ? 1 : unread;
}

/* The size of a table comes from a few bytes of the manifest, which may be damaged. Before memory
 * is allocated for a large table, three things must hold: its head is valid, its counts are
 * possible for the manifest's files, and these files exist and have at least a quarter of its
 * length together. */
int shf_step_sums_fit(const struct sheaf_checkpoint *step, int fd, struct sheaf_error *err)
{
	const struct shf_sys *sys = step->run->sys;
	uint64_t want = step->manifest.sums.bytes;
	uint8_t head[SHF_SUMS_HEADER];
	struct shf_sums_head h;
	char where[600];
	int64_t got;
	int rc, there;

	/* A small table costs little memory even if its size is wrong. */
	if (want <= SHF_SUMS_SMALL)
		return 0;
	snprintf(where, sizeof(where), "%.500s/sheaf.sums", step->path);
	got = shf_sys_pread(sys, fd, head, sizeof(head), 0);
	if (got < 0)
		return shf_fail_sys(err, (int)-got, "%s", where);
	if ((size_t)got < sizeof(head))
		return shf_fail(err, SHEAF_ECORRUPT, "%s: shorter than its header says", where);
	rc = shf_sums_get_head(&h, head, want, where, err);
	if (rc == 0 && !shf_sums_is_likely(&h, &step->manifest))
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s: does not fit the files that the manifest "
		              "names", where);
	/* A valid table can be longer than the files: for tensors of one item each it is 2.3 times
	 * as long as headers and data. A factor of 4 leaves some margin. */
	there = rc == 0 ? has_bytes(step, want / 4) : 1;
	if (there < 0)
		rc = shf_fail_sys(err, -there, "%s: the files that it lists", where);
	else if (!there)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s: is implausibly large for the files that it "
		              "describes", where);
	return rc;
}

int shf_step_exclude_reuse(const struct sheaf_checkpoint *step, int rc, struct sheaf_error *err)
{
	struct sheaf_error own;
	int moved;

	/* Same branch on all ranks: rc is agreed on, and memory_of is set on all ranks or on
	 * none. */
	if (rc != SHEAF_ECORRUPT || !step->run->lineage.memory_of)
		return rc;
	moved = shf_agree(&step->run->team,
	                  shf_view_check_unchanged(step->view, step->path, &own), &own);
	if (moved < 0 && err)
		*err = own;
	return moved < 0 ? moved : rc;
}

int shf_step_check_unchanged(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	const struct shf_sys *sys = step->run->sys;

	if (step->foreign)
		return shf_foreign_check_unchanged(step->foreign, err);
	for (uint32_t f = 0; f < step->layout.files_n; f++) {
		const char *name = step->layout.files[f].name;
		struct shf_stat st;
		int rc;

		if (step->fds[f] < 0 || !step->seen[f].type)
			continue;
		rc = shf_sys_fstat(sys, step->fds[f], &st);
		if (rc < 0)
			return shf_fail_io(err, -rc, "%s/%s", step->path, name);
		if (!shf_stat_is_same(&st, &step->seen[f]))
			return shf_fail(err, SHEAF_EAGAIN, "%s/%s: was changed while it was being "
			                "read; open it again when it is complete", step->path,
			                name);
	}
	return 0;
}
