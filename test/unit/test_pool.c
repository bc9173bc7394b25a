/* SPDX-License-Identifier: Apache-2.0 */
/* How threads share out what is written through the page cache. Writes are counted while they are
 * under way (linker wrap). */
#include "t.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "queue.h"
#include "sys.h"

#define PAGE SHF_ALIGN
#define FDS 64

/* How many writes are under way, and the most that there were: into one file, and in all. */
static struct {
	int now[FDS], all, most_of_one, most;
} writes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER;

/* The first write waits until another one begins, for 1 s at most. */
static void write_begins(int fd)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	pthread_mutex_lock(&lock);
	writes.now[fd]++;
	writes.all++;
	writes.most_of_one = writes.now[fd] > writes.most_of_one ? writes.now[fd]
	                                                         : writes.most_of_one;
	writes.most = writes.all > writes.most ? writes.all : writes.most;
	pthread_cond_broadcast(&begun);
	while (writes.most < 2 && pthread_cond_timedwait(&begun, &lock, &until) == 0)
		;
	pthread_mutex_unlock(&lock);
}

static void write_ends(int fd)
{
	pthread_mutex_lock(&lock);
	writes.now[fd]--;
	writes.all--;
	pthread_mutex_unlock(&lock);
}

ssize_t __real_pwrite64(int fd, const void *buf, size_t n, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t n, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t n, off_t off)
{
	ssize_t done;

	if (fd < 0 || fd >= FDS)
		return __real_pwrite64(fd, buf, n, off);
	write_begins(fd);
	done = __real_pwrite64(fd, buf, n, off);
	write_ends(fd);
	return done;
}

static int file_new(void)
{
	char path[] = "./sheaf-pool-XXXXXX";
	int fd = mkstemp(path);

	CHECK(fd > 0 && fd < FDS);
	unlink(path);
	return fd;
}

/* Writes 24 pages into the first file and 8 into the second one, with 4 threads, a page at a time,
 * and checks what the files have. */
static void write_two_files(const int fd[2])
{
	struct shf_queue_how how = { .carrier = SHF_CARRY_BUFFERED, .piece_bytes = PAGE };
	uint8_t *mem = malloc(32 * PAGE), *got = malloc(32 * PAGE);
	const struct shf_sys *sys = shf_sys_real();
	struct shf_io io[4], *done;
	struct shf_queue *q = NULL;

	CHECK(mem && got);
	for (int i = 0; i < 32 * PAGE; i++)
		mem[i] = (uint8_t)(i / 251 + i);
	CHECK_INT(shf_real_queue_make(&q, 4, &how), 0);
	for (int i = 0; i < 4; i++) {
		io[i] = (struct shf_io){ .op = SHF_IO_WRITE, .fd = fd[i / 3],
			.buf = mem + i * 8 * PAGE, .len = 8 * PAGE,
			.off = (uint64_t)(i % 3) * 8 * PAGE };
		CHECK_INT(shf_sys_submit(sys, q, &io[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		CHECK_INT(shf_sys_complete(sys, q, &done, -1), 1);
		CHECK_INT(done->result, 8 * PAGE);
	}
	shf_sys_queue_free(sys, q);
	CHECK_INT(shf_sys_pread(sys, fd[0], got, 24 * PAGE, 0), 24 * PAGE);
	CHECK_INT(shf_sys_pread(sys, fd[1], got + 24 * PAGE, 8 * PAGE, 0), 8 * PAGE);
	CHECK(memcmp(got, mem, 32 * PAGE) == 0);
	free(mem);
	free(got);
}

TEST(threads_write_into_several_files_at_once_and_into_each_one_after_another)
{
	int fd[2] = { file_new(), file_new() };

	for (int i = 0; i < 20; i++) {
		memset(&writes, 0, sizeof(writes));
		write_two_files(fd);
		CHECK_INT(writes.most_of_one, 1);
		CHECK_INT(writes.most, 2);
	}
	close(fd[0]);
	close(fd[1]);
}

TEST(a_file_in_memory_is_not_opened_for_direct_io)
{
	const struct shf_sys *sys = shf_sys_real();
	int dir = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd;
	char name[64];

	if (dir < 0)
		return;
	snprintf(name, sizeof(name), "sheaf-test-pool-%d", (int)getpid());
	fd = shf_sys_open(sys, dir, name, SHF_O_WRITE | SHF_O_CREATE, 0600);
	CHECK(fd >= 0);
	CHECK_INT(shf_sys_open(sys, dir, name, SHF_O_WRITE | SHF_O_DIRECT, 0), -EINVAL);
	CHECK_INT(shf_sys_close(sys, fd), 0);
	CHECK_INT(shf_sys_unlink(sys, dir, name, false), 0);
	close(dir);
}
