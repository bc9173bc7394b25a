/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out which bytes of a file are in the page cache and which pages of memory are present,
 * without reading the file or faulting pages in. shf_real_touch faults them in. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "resident.h"

#ifndef __NR_cachestat
#define __NR_cachestat 451              /* the same on all machines that have it */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22           /* since Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif
#define WINDOW_PAGES 4096               /* pages that one call of mincore looks at */

/* The arguments of cachestat, laid out as in linux/mman.h. */
struct cachestat_range {
	uint64_t off, len;
};
struct cachestat {
	uint64_t cached, dirty, writeback, evicted, recently_evicted; /* pages */
};

/* Counts the cached bytes by the system call cachestat, which does not touch the pages. Since Linux
 * 6.5. */
static int64_t by_cachestat(int fd, uint64_t off, uint64_t n, uint64_t page)
{
	struct cachestat_range r = { off, n };
	struct cachestat st;
	uint64_t bytes;

	if (syscall(__NR_cachestat, fd, &r, &st, 0))
		return -errno;
	bytes = st.cached * page;
	return (int64_t)(bytes < n ? bytes : n);
}

/* For older kernels: maps the file piece by piece and asks which pages of the mapping are present,
 * without touching it. The kernel answers only to users who may write the file; for others it
 * reports every page as present. */
static int64_t by_mincore(int fd, uint64_t off, uint64_t n, uint64_t page)
{
	unsigned char there[WINDOW_PAGES];
	uint64_t at = off / page * page, end = off + n, count = 0;

	while (at < end) {
		size_t len = (size_t)(end - at < WINDOW_PAGES * page ? end - at
		                                                     : WINDOW_PAGES * page);
		void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, (off_t)at);
		int rc;

		if (map == MAP_FAILED)
			return -ENOTSUP;
		rc = mincore(map, len, there);
		munmap(map, len);
		if (rc)
			return -ENOTSUP;
		for (size_t i = 0; i < (len + page - 1) / page; i++)
			count += there[i] & 1;
		at += len;
	}
	return (int64_t)(count * page < n ? count * page : n);
}

int64_t shf_real_resident(void *arg, int fd, uint64_t off, uint64_t n)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct stat st;
	int64_t rc;

	(void)arg;
	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOTSUP;
	if (off >= (uint64_t)st.st_size || !n)
		return 0;
	n = (uint64_t)st.st_size - off < n ? (uint64_t)st.st_size - off : n;
	/* Any error of cachestat, such as that of a kernel without it, leads to the older way. */
	rc = by_cachestat(fd, off, n, page);
	return rc < 0 ? by_mincore(fd, off, n, page) : rc;
}

void shf_real_forget(void *arg, int fd, uint64_t off, uint64_t n)
{
	(void)arg;
	(void)posix_fadvise(fd, (off_t)off, (off_t)n, POSIX_FADV_DONTNEED);
}

static uintptr_t page_of(const void *at)
{
	return (uintptr_t)at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
}

/* An error counts as present, as sys_shm.h says. */
bool shf_real_touched(void *arg, const void *at)
{
	unsigned char there = 0;

	(void)arg;
	return mincore((void *)page_of(at), 1, &there) || there & 1;
}

/* Populating faults pages in without storing to them, so it cannot overwrite what another thread
 * writes. */
void shf_real_touch(void *arg, const void *at, uint64_t n, bool write)
{
	uintptr_t from = page_of(at);

	(void)arg;
	(void)madvise((void *)from, (uintptr_t)at + n - from,
	              write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}
