/* SPDX-License-Identifier: Apache-2.0 */
#include "offload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int fail_with(struct tr_error *err, const char *dir, int why)
{
	return tr_fail(err, why == ENOENT ? TR_ENOENT : TR_EIO, "offload %s: %s; use a directory "
		       "on a disk that has room for the moments", dir, strerror(why));
}

/* The space is reserved now: if the disk had none for a page when it is written, the process would
 * be killed. */
static int map_file(struct tr_offload *f, const char *dir, int fd, size_t bytes,
		    struct tr_error *err)
{
	int why = posix_fallocate(fd, 0, (off_t)bytes);
	void *memory;

	if (why)
		return fail_with(err, dir, why);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return fail_with(err, dir, errno);
	*f = (struct tr_offload){ memory, bytes };
	return 0;
}

int tr_offload_open(struct tr_offload *f, const char *dir, size_t bytes, struct tr_error *err)
{
	char path[PATH_MAX];
	int fd, rc;

	snprintf(path, sizeof(path), "%s/sheaf-offload-XXXXXX", dir);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return fail_with(err, dir, errno);
	unlink(path);
	rc = map_file(f, dir, fd, bytes, err);
	close(fd);
	return rc;
}

void tr_offload_evict(const struct tr_offload *f)
{
	if (f->memory)
		madvise(f->memory, f->bytes, MADV_DONTNEED);
}

void tr_offload_close(struct tr_offload *f)
{
	if (f->memory)
		munmap(f->memory, f->bytes);
	*f = (struct tr_offload){ .memory = NULL };
}
