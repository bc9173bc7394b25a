/* SPDX-License-Identifier: Apache-2.0 */
/* What is there of a file in memory, by a kernel that counts what the test likes. test_queue.c asks
 * the true one. */
#include "sys.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include "t.h"

enum { CACHESTAT = 451, PAGES = 8 };

static struct {
	uint64_t off, len;              /* asked for last */
	uint64_t pages;                 /* are there */
	bool unknown;                   /* the call, as to older kernels */
} kernel;

long __wrap_syscall(long nr, long a, long b, long c, long d);
long __wrap_syscall(long nr, long a, long b, long c, long d)
{
	const uint64_t *range = (const uint64_t *)b;
	uint64_t *pages = (uint64_t *)c;

	CHECK_INT(nr, CACHESTAT);
	errno = kernel.unknown ? ENOSYS : !range || !pages ? EFAULT : a < 0 || d ? EINVAL : 0;
	if (errno)
		return -1;
	kernel.off = range[0];
	kernel.len = range[1];
	*pages = kernel.pages;
	return 0;
}

/* Of a file that this user may not write a mapping would say that all of it is there. */
TEST(what_the_kernel_counts_is_believed)
{
	const struct shf_sys *sys = shf_sys_real();
	int64_t page = sysconf(_SC_PAGESIZE), bytes = PAGES * page;
	char path[] = "/tmp/sheaf-resident-XXXXXX";
	int fd = mkstemp(path);

	CHECK(fd >= 0 && unlink(path) == 0);
	CHECK_INT(shf_sys_pwrite(sys, fd, path, 1, (uint64_t)bytes - 1), 1);
	kernel.pages = 3;
	CHECK_INT(shf_sys_resident(sys, fd, (uint64_t)(2 * page), (uint64_t)bytes), 3 * page);
	CHECK_INT(kernel.off, 2 * page);
	CHECK_INT(kernel.len, bytes - 2 * page); /* no more than there is */
	CHECK_INT(shf_sys_resident(sys, fd, 0, (uint64_t)page + 1), page + 1);
	kernel.pages = 0;
	CHECK_INT(shf_sys_resident(sys, fd, 0, (uint64_t)bytes), 0);
	kernel.unknown = true;
	CHECK_INT(shf_sys_resident(sys, fd, (uint64_t)bytes - 1, 1), 1);
	close(fd);
}
