/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the attached files of a step: small files beside the tensors, each at most 64 MiB, besides
 * the header of files with the opaque bytes of ranks. */
#include "step_attached.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "rank_files.h"
#include "step_files.h"
#include "valid.h"

#define ATTACHED_MAX (UINT64_C(64) << 20)

/* Returns the attached file of that name, or NULL. */
static const struct shf_mf_file *plain_of(const struct sheaf_checkpoint *step, const char *file)
{
	for (size_t i = 0; i < step->plain_n; i++)
		if (strcmp(step->plain[i].name, file) == 0)
			return &step->plain[i];
	return NULL;
}

/* Reads a whole attached file and checks it. `to` has room for the size in the manifest. */
static int plain_read(struct sheaf_checkpoint *step, const struct shf_mf_file *f, uint8_t *to,
                      struct sheaf_error *err)
{
	const struct shf_sys *sys = step->run->sys;
	const char *what;
	char folder[64];
	struct shf_stat st;
	int64_t got;
	int fd = shf_step_file_open(step, f->name, 0, folder);

	what = folder[0] ? folder : f->name;
	/* A file that the manifest names must exist. A file of a foreign directory may just have
	 * been deleted, which is no damage. */
	if ((fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP) && step->sound)
		return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: missing%s", step->path, what,
		                fd == -ELOOP ? ": a symbolic link has its name"
		                : fd == -ENOTDIR ? ": its name belongs to something that is not a "
		                                   "directory" : "");
	if (fd < 0)
		return shf_fail_sys(err, -fd, "%s/%s", step->path, what);
	got = shf_sys_fstat(sys, fd, &st);
	if (got >= 0 && st.bytes == f->bytes)
		got = shf_sys_pread(sys, fd, to, (size_t)f->bytes, 0);
	shf_sys_close(sys, fd);
	if (got < 0)
		return shf_fail_sys(err, (int)-got, "%s/%s", step->path, f->name);
	if (st.bytes != f->bytes || (uint64_t)got != f->bytes)
		return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: %" PRIu64 " bytes, want %" PRIu64,
		                step->path, f->name, st.bytes, f->bytes);
	if (step->sound && !(step->run->opts.flags & SHEAF_RUN_UNVERIFIED) &&
	    shf_crc64(to, (size_t)f->bytes) != f->crc)
		return shf_fail(err, SHEAF_ECORRUPT,
				"%s/%s: checksum %016" PRIx64 ", want %016" PRIx64, step->path,
				f->name, shf_crc64(to, (size_t)f->bytes), f->crc);
	return 0;
}

/* A file that was read is kept until the step is closed, because the caller holds pointers into
 * it. */
int shf_step_attached(struct sheaf_checkpoint *step, const char *file, const void **bytes,
                      size_t *n, struct sheaf_error *err)
{
	const struct shf_mf_file *f = file ? plain_of(step, file) : NULL;
	struct shf_step_file *more;
	uint8_t *data;
	int rc;

	for (size_t i = 0; file && i < step->files_n; i++)
		if (strcmp(step->files[i].name, file) == 0) {
			*bytes = step->files[i].bytes;
			*n = step->files[i].n;
			return 0;
		}
	if (!f)
		return shf_fail(err, SHEAF_ENOENT, "%s: no attached file %.140s (sheaf show lists "
		                "them)", step->path,
		                file ? file : "");
	if (f->bytes > ATTACHED_MAX + (shf_rank_file_is(file) ? SHF_RANK_FILE_HEAD : 0))
		return shf_fail(err, SHEAF_EINVAL, "%s/%s: %" PRIu64 " bytes, at most 64 MiB",
		                step->path, file, f->bytes);
	/* Room for one entry more. If a later call fails, it stays unused. */
	more = shf_realloc(step->files, step->files_n + 1, sizeof(*more));
	if (more)
		step->files = more;
	data = shf_alloc((size_t)f->bytes, 1);
	rc = more && data ? plain_read(step, f, data, err)
	                  : shf_fail(err, SHEAF_ENOMEM, "%s: no memory", file);
	char *name = rc == 0 ? shf_strdup(file) : NULL;
	if (rc == 0 && !name)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory", file);
	if (rc < 0) {
		shf_free(data);
		return rc;
	}
	more[step->files_n++] = (struct shf_step_file){ name, data, (size_t)f->bytes };
	*bytes = data;
	*n = (size_t)f->bytes;
	return 0;
}

/* Returns the attached file of the stream that has the bytes of the rank, if any has: the one whose
 * lowest rank is the largest that is not above it. NULL: there is none. */
static const char *rank_file_for(const struct sheaf_checkpoint *step, const char *stream,
                                 uint32_t rank)
{
	const char *found = NULL;
	uint32_t first, best = 0;

	for (size_t i = 0; i < step->plain_n; i++)
		if (shf_rank_file_of(step->plain[i].name, stream, &first) && first <= rank &&
		    (!found || first > best)) {
			found = step->plain[i].name;
			best = first;
		}
	return found;
}

int shf_step_rank_bytes(struct sheaf_checkpoint *step, const char *stream, int32_t rank,
                        const void **bytes, size_t *n, struct sheaf_error *err)
{
	struct shf_rank_part part;
	const char *file;
	const void *all;
	char where[300];
	size_t all_n;
	int rc;

	if (!shf_stream_is_valid(stream) || rank < 0)
		return shf_fail(err, SHEAF_EINVAL, "stream '%.60s', rank %d: the name must match "
		                "[a-z0-9._-]{1,57}, and the rank must not be negative", stream,
		                rank);
	file = rank_file_for(step, stream, (uint32_t)rank);
	if (!file)
		return shf_fail(err, SHEAF_ENOENT, "%s: has no bytes of rank %d in stream %s "
		                "(sheaf_save_rank_bytes)", step->path, rank, stream);
	rc = shf_step_attached(step, file, &all, &all_n, err);
	if (rc < 0)
		return rc;
	snprintf(where, sizeof(where), "%.200s/%s", step->path, file);
	rc = shf_rank_file_find(&part, stream, (uint32_t)rank, all, all_n, where, err);
	if (rc == 0) {
		*bytes = part.bytes;
		*n = (size_t)part.n;
	}
	return rc;
}
