/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline of `sheaf bench`: the speed of pwrite and pread in a few threads. */
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REQUEST ((uint64_t)8 << 20)
#define PAGE ((uint64_t)4096)

double device_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

double device_cpu(void)
{
	struct rusage u = { 0 };

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* --- threads ---------------------------------------------------------------------------------- */

struct turns {
	const struct device_job *j;
	int fd[DEVICE_FILES_MAX];
	int files;
	uint64_t per_file;              /* number of requests */
	bool writes;
	atomic_uint_fast64_t next;
	atomic_int failed;              /* the first errno; 0: none */
};

static int move(int fd, bool writes, char *at, uint64_t off, uint64_t len)
{
	while (len) {
		ssize_t n = writes ? pwrite(fd, at, len, (off_t)off)
				   : pread(fd, at, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? errno : EIO;
		at += n;
		off += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return 0;
}

static void *work(void *arg)
{
	struct turns *t = arg;
	const struct device_job *j = t->j;

	for (;;) {
		uint64_t i = atomic_fetch_add(&t->next, 1), file = i / t->per_file;
		uint64_t off = i % t->per_file * REQUEST, from = file * j->file_bytes + off, len;
		int bad, none = 0;

		if (file >= (uint64_t)t->files || from >= j->bytes || atomic_load(&t->failed))
			return NULL;
		len = j->file_bytes - off < REQUEST ? j->file_bytes - off : REQUEST;
		if (len > j->bytes - from)
			len = j->bytes - from;
		bad = move(t->fd[file], t->writes, j->memory + from, off, len);
		if (bad)
			atomic_compare_exchange_strong(&t->failed, &none, bad);
	}
}

static int run(struct turns *t)
{
	pthread_t id[DEVICE_THREADS_MAX];
	int n = 0, bad = 0;

	while (n < t->j->threads - 1 && !bad) {
		bad = pthread_create(&id[n], NULL, work, t);
		n += !bad;
	}
	work(t);
	while (n > 0)
		pthread_join(id[--n], NULL);
	return bad ? bad : atomic_load(&t->failed);
}

/* --- files ------------------------------------------------------------------------------------ */

static void name_file(char path[PATH_MAX], const struct device_job *j, int i)
{
	snprintf(path, PATH_MAX, "%s/raw-%d", j->dir, i);
}

static int open_all(struct turns *t, const struct device_job *j, int flags)
{
	*t = (struct turns){ .j = j, .per_file = (j->file_bytes + REQUEST - 1) / REQUEST };
	for (uint64_t at = 0; at < j->bytes; at += j->file_bytes) {
		uint64_t n = j->bytes - at < j->file_bytes ? j->bytes - at : j->file_bytes;
		char path[PATH_MAX];
		int fd;

		if (t->files == DEVICE_FILES_MAX)
			return EFBIG;
		name_file(path, j, t->files);
		fd = open(path, flags | O_CLOEXEC, 0666);
		if (fd < 0)
			return errno;
		t->fd[t->files++] = fd;
		if (!(flags & O_CREAT))
			continue;
		/* If the file system cannot preallocate, the file is written without. */
		if (fallocate(fd, 0, 0, (off_t)n) < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
			return errno;
	}
	return 0;
}

static int close_all(struct turns *t, bool sync)
{
	int bad = 0;

	for (int i = 0; i < t->files; i++) {
		if (sync && fsync(t->fd[i]) < 0 && !bad)
			bad = errno;
		if (close(t->fd[i]) < 0 && !bad)
			bad = errno;
	}
	t->files = 0;
	return bad;
}

static int clocked(struct turns *t, struct device_time *out)
{
	double start = device_now(), cpu = device_cpu();
	int bad = run(t), closed;

	closed = close_all(t, t->writes && !bad);
	out->seconds = device_now() - start;
	out->cpu_s = device_cpu() - cpu;
	return -(bad ? bad : closed);
}

void device_remove(const struct device_job *j)
{
	for (int i = 0; i < DEVICE_FILES_MAX; i++) {
		char path[PATH_MAX];

		name_file(path, j, i);
		if (unlink(path) < 0)
			return;
	}
}

int device_write(const struct device_job *j, bool direct, struct device_time *out)
{
	struct turns t;
	int bad;

	device_remove(j);
	bad = open_all(&t, j, O_WRONLY | O_CREAT | O_EXCL | (direct ? O_DIRECT : 0));
	t.writes = true;
	if (bad) {
		close_all(&t, false);
		return -bad;
	}
	return clocked(&t, out);
}

int device_read(const struct device_job *j, bool direct, struct device_time *out)
{
	struct turns t;
	int bad = -device_forget(j->dir);

	if (bad)
		return -bad;
	bad = open_all(&t, j, O_RDONLY | (direct ? O_DIRECT : 0));
	if (bad) {
		close_all(&t, false);
		return -bad;
	}
	return clocked(&t, out);
}

int device_sync(const struct device_job *j, double *seconds)
{
	char path[PATH_MAX], page[PAGE] = { 1 };
	double start;
	int fd, bad = 0;

	snprintf(path, sizeof(path), "%s/sync", j->dir);
	start = device_now();
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	bad = move(fd, true, page, 0, sizeof(page));
	if (!bad && fsync(fd) < 0)
		bad = errno;
	close(fd);
	*seconds = device_now() - start;
	unlink(path);
	return -bad;
}

/* --- trees ------------------------------------------------------------------------------------ */

static int forget(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	int fd;

	(void)st;
	(void)at;
	if (kind != FTW_F)
		return 0;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno;
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	return 0;
}

int device_forget(const char *dir)
{
	int rc = nftw(dir, forget, 16, FTW_PHYS);

	return rc < 0 ? -errno : -rc;
}

static int clear(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	remove(path);
	return 0;
}

int device_clear(const char *dir)
{
	int rc = nftw(dir, clear, 16, FTW_DEPTH | FTW_PHYS);
	struct stat st;

	if (rc < 0 && errno != ENOENT)
		return -errno;
	return lstat(dir, &st) == 0 ? -ENOTEMPTY : 0;
}
