/* SPDX-License-Identifier: Apache-2.0 */
/* The real machine, tried on a directory of its own under the temporary one. */
#define T_STDIN_CLOSED
#include "t.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "sys.h"

struct place {
	char path[64];
	int dir;
};

static const struct shf_sys *real(void)
{
	return shf_sys_real();
}

static struct place place_new(void)
{
	struct place p;

	strcpy(p.path, "/tmp/sheaf-sys-XXXXXX");
	CHECK(mkdtemp(p.path));
	p.dir = shf_sys_open(real(), SHF_CWD, p.path, SHF_O_DIR, 0);
	CHECK(p.dir >= 0);
	return p;
}

static int remove_one(void *arg, const char *name)
{
	int dir = *(int *)arg;

	if (shf_sys_unlink(real(), dir, name, false))
		CHECK_INT(shf_sys_unlink(real(), dir, name, true), 0);
	return 0;
}

static void place_free(struct place *p)
{
	CHECK_INT(shf_sys_list(real(), p->dir, remove_one, &p->dir), 0);
	CHECK_INT(shf_sys_close(real(), p->dir), 0);
	CHECK_INT(rmdir(p->path), 0);
}

static int file_new(const struct place *p, const char *name)
{
	int fd = shf_sys_open(real(), p->dir, name, SHF_O_WRITE | SHF_O_CREATE | SHF_O_EXCL, 0666);

	CHECK(fd >= 0);
	return fd;
}

TEST(descriptors_are_close_on_exec_and_flags_mean_what_they_say)
{
	struct place p = place_new();
	int fd = file_new(&p, "a");
	char buf[8];

	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK(fcntl(p.dir, F_GETFD) & FD_CLOEXEC);
	CHECK_INT(shf_sys_open(real(), p.dir, "a", SHF_O_WRITE | SHF_O_CREATE | SHF_O_EXCL, 0666),
	          -EEXIST);
	CHECK_INT(shf_sys_open(real(), p.dir, "b", 0, 0), -ENOENT);
	CHECK_INT(shf_sys_open(real(), p.dir, "a", SHF_O_DIR, 0), -ENOTDIR);
	CHECK_INT(shf_sys_pwrite(real(), fd, "hello", 5, 0), 5);
	CHECK_INT(shf_sys_close(real(), fd), 0);
	fd = shf_sys_open(real(), p.dir, "a", 0, 0);
	CHECK_INT(shf_sys_pwrite(real(), fd, "x", 1, 0), -EBADF);
	CHECK_INT(shf_sys_pread(real(), fd, buf, 8, 2), 3);
	CHECK(!memcmp(buf, "llo", 3));
	CHECK_INT(shf_sys_pread(real(), fd, buf, 8, UINT64_MAX), -EINVAL);
	CHECK_INT(shf_sys_close(real(), fd), 0);
	fd = shf_sys_open(real(), p.dir, "a", SHF_O_WRITE | SHF_O_TRUNC, 0);
	CHECK_INT(shf_sys_pread(real(), fd, buf, 8, 0), 0);
	CHECK_INT(shf_sys_close(real(), fd), 0);
	CHECK_INT(shf_sys_close(real(), fd), -EBADF);
	place_free(&p);
}

TEST(bytes_behind_4_gib_lie_where_they_belong)
{
	const uint64_t far[] = { (UINT64_C(1) << 31) - 2, (UINT64_C(1) << 32) - 2,
	                         (UINT64_C(1) << 32) + 4096, UINT64_C(5) << 32 };
	struct place p = place_new();
	int fd = file_new(&p, "sparse");
	char buf[8];

	CHECK_INT(shf_sys_pwrite(real(), fd, "front", 5, 0), 5);
	for (int i = 0; i < 4; i++) {
		char text[6] = { 'f', 'a', 'r', ' ', (char)('0' + i), '\0' };
		int64_t put = shf_sys_pwrite(real(), fd, text, 5, far[i]);

		if (put == -EFBIG)
			break;  /* not on this file system */
		CHECK_INT(put, 5);
		CHECK_INT(shf_sys_pread(real(), fd, buf, 8, far[i]), 5);
		CHECK(!memcmp(buf, text, 5));
		CHECK_INT(shf_sys_pread(real(), fd, buf, 5, 0), 5);
		CHECK(!memcmp(buf, "front", 5));
	}
	CHECK_INT(shf_sys_close(real(), fd), 0);
	place_free(&p);
}

TEST(bytes_that_are_read_once_are_the_bytes)
{
	enum { BYTES = (8 << 20) + 5 };
	static const uint64_t from[] = { 0, 1, 4095, BYTES - 5, BYTES, BYTES + 1, UINT64_MAX };
	uint8_t *made = malloc(BYTES), *a = malloc(BYTES), *b = malloc(BYTES);
	struct place p = place_new();
	int fd = file_new(&p, "once");

	for (size_t i = 0; i < BYTES; i++)
		made[i] = (uint8_t)(i * 2654435761u >> 24);
	CHECK_INT(shf_sys_pwrite(real(), fd, made, BYTES, 0), BYTES);
	shf_sys_close(real(), fd);
	fd = shf_sys_open(real(), p.dir, "once", 0, 0);
	for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
		int64_t want = shf_sys_pread(real(), fd, a, BYTES, from[i]);

		CHECK_INT(shf_sys_read(real(), fd, b, BYTES, from[i], true), want);
		CHECK(want <= 0 || memcmp(a, b, (size_t)want) == 0);
	}
	shf_sys_close(real(), fd);
	CHECK_INT(shf_sys_read(real(), fd, b, 8, 0, true), -EBADF);
	free(made);
	free(a);
	free(b);
	place_free(&p);
}

TEST(an_fsync_that_fails_says_so)
{
	int ends[2];

	CHECK_INT(pipe(ends), 0);
	CHECK_INT(shf_sys_fsync(real(), ends[1]), -EINVAL);
	close(ends[0]);
	close(ends[1]);
	CHECK_INT(shf_sys_fsync(real(), ends[1]), -EBADF);
}

TEST(a_link_is_never_followed_where_that_is_asked)
{
	struct place p = place_new();
	struct shf_stat st;
	char buf[8];

	CHECK_INT(symlinkat("/tmp", p.dir, "link"), 0);
	CHECK_INT(shf_sys_open(real(), p.dir, "link", SHF_O_NOFOLLOW, 0), -ELOOP);
	CHECK_INT(shf_sys_open(real(), p.dir, "link", SHF_O_NOFOLLOW | SHF_O_DIR, 0), -ELOOP);
	CHECK_INT(shf_sys_stat(real(), p.dir, "link", false, &st), 0);
	CHECK_INT(st.type, SHF_T_LINK);
	CHECK_INT(shf_sys_stat(real(), p.dir, "link", true, &st), 0);
	CHECK_INT(st.type, SHF_T_DIR);
	CHECK_INT(shf_sys_readlink(real(), p.dir, "link", buf, 8), 4);
	CHECK_STR(buf, "/tmp");
	CHECK_INT(shf_sys_readlink(real(), p.dir, "link", buf, 4), -ERANGE);
	CHECK_INT(shf_sys_readlink(real(), p.dir, "link", buf, 0), -ERANGE);
	place_free(&p);
}

TEST(a_fifo_in_place_of_a_file_does_not_hang)
{
	struct place p = place_new();
	struct shf_stat st;
	int fd;

	CHECK_INT(mkfifoat(p.dir, "fifo", 0600), 0);
	fd = shf_sys_open(real(), p.dir, "fifo", 0, 0);
	CHECK(fd >= 0);
	CHECK_INT(shf_sys_fstat(real(), fd, &st), 0);
	CHECK_INT(st.type, SHF_T_OTHER);
	CHECK_INT(shf_sys_close(real(), fd), 0);
	place_free(&p);
}

TEST(rename_never_replaces_when_told_so)
{
	struct place p = place_new();

	CHECK_INT(shf_sys_mkdir(real(), p.dir, "from", 0777), 0);
	CHECK_INT(shf_sys_mkdir(real(), p.dir, "empty", 0777), 0);
	CHECK_INT(shf_sys_mkdir(real(), p.dir, "empty", 0777), -EEXIST);
	CHECK_INT(shf_sys_rename(real(), p.dir, "from", p.dir, "empty", true), -EEXIST);
	CHECK_INT(shf_sys_rename(real(), p.dir, "from", p.dir, "new", true), 0);
	CHECK_INT(shf_sys_rename(real(), p.dir, "from", p.dir, "newer", true), -ENOENT);
	CHECK_INT(shf_sys_rename(real(), p.dir, "new", p.dir, "empty", false), 0);
	CHECK_INT(shf_sys_fsync(real(), p.dir), 0);
	place_free(&p);
}

TEST(resize_reserves_and_cuts)
{
	struct place p = place_new();
	int fd = file_new(&p, "a");
	struct shf_stat st;
	struct stat raw;
	struct statfs fs;
	uint64_t free_bytes = 0;

	CHECK_INT(shf_sys_resize(real(), fd, 1 << 20), 0);
	CHECK_INT(shf_sys_fstat(real(), fd, &st), 0);
	CHECK_INT(st.bytes, 1 << 20);
	CHECK_INT(fstat(fd, &raw), 0);
	CHECK_INT(fstatfs(fd, &fs), 0);
	CHECK_INT(raw.st_blocks > 0, fs.f_type != TMPFS_MAGIC); /* on tmpfs it is a hole */
	CHECK_INT(shf_sys_resize(real(), fd, 100), 0);
	CHECK_INT(shf_sys_fstat(real(), fd, &st), 0);
	CHECK_INT(st.bytes, 100);
	CHECK_INT(st.type, SHF_T_FILE);
	CHECK_INT(shf_sys_resize(real(), fd, 0), 0);
	CHECK_INT(shf_sys_resize(real(), fd, UINT64_MAX), -EFBIG);
	CHECK_INT(shf_sys_fsync(real(), fd), 0);
	CHECK_INT(shf_sys_free_bytes(real(), fd, &free_bytes), 0);
	CHECK(free_bytes > 0);
	CHECK_INT(shf_sys_close(real(), fd), 0);
	place_free(&p);
}

TEST(files_of_one_file_system_have_one_number_for_it)
{
	struct place p = place_new();
	int fd = file_new(&p, "a"), proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	uint64_t dir = 0, file = 1, other = 2;

	CHECK_INT(shf_sys_fs_id(real(), p.dir, &dir), 0);
	CHECK_INT(shf_sys_fs_id(real(), fd, &file), 0);
	CHECK(dir == file && dir != 0);
	CHECK_INT(proc < 0 ? 0 : shf_sys_fs_id(real(), proc, &other), 0);
	CHECK(other != dir && other != 0);
	CHECK_INT(shf_sys_fs_id(real(), -1, &dir), -EBADF);
	CHECK_INT(shf_sys_close(real(), fd), 0);
	if (proc >= 0)
		close(proc);
	place_free(&p);
}

static int stop_at_second(void *arg, const char *name)
{
	int *n = arg;

	CHECK(strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
	return ++*n == 2 ? 77 : 0;
}

/* In a child, which the signal would kill. A bit of its exit status for each thing wrong. */
static int grow_beyond_the_limit(const struct place *p, bool held)
{
	struct rlimit most = { .rlim_cur = 8192, .rlim_max = RLIM_INFINITY };
	struct shf_shm shm = { .fd = -1 };
	int fd = file_new(p, "limited");
	sigset_t xfsz, pending;
	int rc = 0;

	sigemptyset(&xfsz);
	sigaddset(&xfsz, SIGXFSZ);
	if (setrlimit(RLIMIT_FSIZE, &most) || signal(SIGXFSZ, SIG_DFL) == SIG_ERR ||
	    (held && (pthread_sigmask(SIG_BLOCK, &xfsz, NULL) || raise(SIGXFSZ))))
		return 1;
	rc |= shf_sys_resize(real(), fd, 8192) == 0 ? 0 : 2;
	rc |= shf_sys_resize(real(), fd, 8193) == -EFBIG ? 0 : 4;
	rc |= shf_sys_pwrite(real(), fd, "x", 1, 8192) == -EFBIG ? 0 : 8;
	rc |= shf_sys_shm_new(real(), &shm, 65536, true) == -EFBIG ? 0 : 16;
	/* The host's own is where it was, and ours is gone. */
	rc |= sigpending(&pending) || sigismember(&pending, SIGXFSZ) != held ? 32 : 0;
	rc |= pthread_sigmask(SIG_BLOCK, NULL, &pending) ||
	      sigismember(&pending, SIGXFSZ) != held ? 64 : 0;
	return rc;
}

TEST(a_limit_of_file_size_is_an_answer_and_no_signal)
{
	for (int held = 0; held < 2; held++) {
		struct place p = place_new();
		pid_t child = fork();
		int status = -1;

		CHECK(child >= 0);
		if (child == 0)
			_exit(grow_beyond_the_limit(&p, held));
		CHECK_INT(waitpid(child, &status, 0), child);
		CHECK_INT(status, 0);
		place_free(&p);
	}
}

TEST(list_gives_each_name_once_and_stops_when_told)
{
	struct place p = place_new();
	int n = 0;

	for (int i = 0; i < 3; i++)
		CHECK_INT(shf_sys_close(real(), file_new(&p, i == 0 ? "a" : i == 1 ? "b" : "c")),
		          0);
	CHECK_INT(shf_sys_list(real(), p.dir, stop_at_second, &n), 77);
	CHECK_INT(n, 2);
	n = 10;
	CHECK_INT(shf_sys_list(real(), p.dir, stop_at_second, &n), 0);
	CHECK_INT(n, 13);       /* and again from the start */
	place_free(&p);
}

TEST(locks_belong_to_the_description_and_go_with_it)
{
	struct place p = place_new();
	int a = file_new(&p, "lock");
	int b = shf_sys_open(real(), p.dir, "lock", SHF_O_WRITE, 0);

	CHECK_INT(shf_sys_lock(real(), a, true), 0);
	CHECK_INT(shf_sys_lock(real(), b, true), -EAGAIN);
	CHECK_INT(shf_sys_lock(real(), b, false), -EAGAIN);
	CHECK_INT(shf_sys_lock(real(), a, false), 0);
	CHECK_INT(shf_sys_lock(real(), b, false), 0);
	CHECK_INT(shf_sys_lock(real(), b, true), -EAGAIN);
	CHECK_INT(shf_sys_close(real(), a), 0);
	CHECK_INT(shf_sys_lock(real(), b, true), 0);
	CHECK_INT(shf_sys_close(real(), b), 0);
	place_free(&p);
}

TEST(an_unlock_frees_what_a_forked_child_still_has_open)
{
	struct place p = place_new();
	int a = file_new(&p, "lock");
	int b = shf_sys_open(real(), p.dir, "lock", SHF_O_WRITE, 0), ends[2], status;
	pid_t child;

	CHECK_INT(pipe(ends), 0);
	CHECK_INT(shf_sys_lock(real(), a, true), 0);
	child = fork();
	if (child == 0) {
		char c;

		close(ends[1]);
		_exit(read(ends[0], &c, 1) != 0);
	}
	close(ends[0]);
	CHECK_INT(shf_sys_lock(real(), b, true), -EAGAIN);
	CHECK_INT(shf_sys_unlock(real(), a), 0);
	CHECK_INT(shf_sys_lock(real(), b, true), 0);
	CHECK_INT(shf_sys_close(real(), b), 0);
	CHECK_INT(shf_sys_close(real(), a), 0);
	close(ends[1]);
	CHECK_INT(waitpid(child, &status, 0), child);
	CHECK_INT(status, 0);
	place_free(&p);
}

TEST(random_differs_and_clocks_go_forward)
{
	uint8_t a[32] = { 0 }, b[32] = { 0 };
	int64_t t = shf_sys_mono_ns(real());

	CHECK_INT(shf_sys_random(real(), a, 32), 0);
	CHECK_INT(shf_sys_random(real(), b, 32), 0);
	CHECK(memcmp(a, b, 32) != 0);
	shf_sys_sleep_ms(real(), 3);
	CHECK(shf_sys_mono_ns(real()) >= t + 3000000);
	CHECK(shf_sys_wall_s(real()) > 1600000000);
}

#define IO_N 64
#define IO_BYTES 3000

TEST(the_queue_does_what_is_submitted_and_gives_each_back_once)
{
	static uint8_t bytes[IO_N][IO_BYTES], back[IO_N][IO_BYTES];
	struct place p = place_new();
	struct shf_queue *q = NULL;
	struct shf_io io[IO_N], *done;
	struct shf_stat st;
	int fd = file_new(&p, "a"), other = file_new(&p, "b"), n = 0;

	CHECK_INT(shf_sys_queue_new(real(), &q, 0), -EINVAL);
	CHECK_INT(shf_sys_queue_new(real(), &q, 4), 0);
	CHECK_INT(shf_sys_complete(real(), q, &done, -1), 0);
	for (int pass = 0; pass < 2; pass++) {
		for (int i = 0; i < IO_N; i++) {
			memset(bytes[i], i + 1, IO_BYTES);
			io[i] = (struct shf_io){ .op = pass ? SHF_IO_READ : SHF_IO_WRITE, .fd = fd,
			                         .buf = pass ? back[i] : bytes[i], .len = IO_BYTES,
			                         .off = (uint64_t)i * IO_BYTES, .user = &bytes[i] };
			CHECK_INT(shf_sys_submit(real(), q, &io[i]), 0);
		}
		for (n = 0; shf_sys_complete(real(), q, &done, n % 2 ? -1 : 10000) == 1; n++) {
			CHECK_INT(done->result, IO_BYTES);
			CHECK(done->user == &bytes[done - io]);
		}
		CHECK_INT(n, IO_N);
	}
	CHECK(!memcmp(bytes, back, sizeof(bytes)));
	io[0] = (struct shf_io){ .op = SHF_IO_READ, .fd = -1, .buf = back, .len = 1 };
	io[1] = (struct shf_io){ .op = SHF_IO_FSYNC, .fd = fd };
	io[2] = (struct shf_io){ .op = SHF_IO_READ, .fd = fd, .buf = back, .len = 10,
	                         .off = IO_N * IO_BYTES - 4 };
	io[3] = (struct shf_io){ .op = SHF_IO_RESIZE, .fd = other, .len = 5 * IO_BYTES, .off = 9 };
	io[4] = (struct shf_io){ .op = SHF_IO_RESIZE, .fd = -1, .len = 1 };
	for (int i = 0; i < 5; i++)
		CHECK_INT(shf_sys_submit(real(), q, &io[i]), 0);
	while (shf_sys_complete(real(), q, &done, -1) == 1)
		;
	CHECK_INT(io[0].result, -EBADF);
	CHECK_INT(io[1].result, 0);
	CHECK_INT(io[2].result, 4);
	CHECK_INT(io[3].result, 0);
	CHECK_INT(shf_sys_fstat(real(), other, &st), 0);
	CHECK_INT(st.bytes, 5 * IO_BYTES);
	CHECK_INT(io[4].result, -EBADF);
	io[0].op = 99;
	CHECK_INT(shf_sys_submit(real(), q, &io[0]), -EINVAL);
	shf_sys_queue_free(real(), q);
	shf_sys_queue_free(real(), NULL);
	CHECK_INT(shf_sys_close(real(), other), 0);
	CHECK_INT(shf_sys_close(real(), fd), 0);
	place_free(&p);
}

TEST(freeing_a_queue_waits_for_what_is_submitted)
{
	static uint8_t bytes[1 << 20];
	struct place p = place_new();
	struct shf_queue *q = NULL;
	struct shf_io io[8];
	struct shf_stat st;
	int fd = file_new(&p, "a");

	CHECK_INT(shf_sys_queue_new(real(), &q, 2), 0);
	for (int i = 0; i < 8; i++) {
		io[i] = (struct shf_io){ .op = SHF_IO_WRITE, .fd = fd, .buf = bytes,
		                         .len = sizeof(bytes), .off = (uint64_t)i << 20 };
		CHECK_INT(shf_sys_submit(real(), q, &io[i]), 0);
	}
	shf_sys_queue_free(real(), q);
	CHECK_INT(shf_sys_fstat(real(), fd, &st), 0);
	CHECK_INT(st.bytes, 8 << 20);
	for (int i = 0; i < 8; i++)
		CHECK_INT(io[i].result, sizeof(bytes));
	CHECK_INT(shf_sys_close(real(), fd), 0);
	place_free(&p);
}

TEST(an_error_is_a_completion_and_a_forked_child_frees_in_peace)
{
	struct shf_queue *q = NULL;
	struct shf_io io, *done;
	char byte;
	int fds[2], status;
	int64_t t;
	pid_t pid;

	CHECK_INT(pipe(fds), 0);
	CHECK_INT(shf_sys_queue_new(real(), &q, 1), 0);
	io = (struct shf_io){ .op = SHF_IO_READ, .fd = fds[0], .buf = &byte, .len = 1 };
	CHECK_INT(shf_sys_submit(real(), q, &io), 0);
	CHECK_INT(shf_sys_complete(real(), q, &done, 10000), 1);
	CHECK_INT(io.result, -ESPIPE);
	t = shf_sys_mono_ns(real());
	CHECK_INT(shf_sys_complete(real(), q, &done, 10000), 0);
	CHECK(shf_sys_mono_ns(real()) - t < 5000000000); /* idle, so nothing to wait for */
	pid = fork();
	if (!pid) {
		int bad = shf_sys_submit(real(), q, &io) != -EINVAL;

		bad |= shf_sys_complete(real(), q, &done, -1) != -EINVAL;
		shf_sys_queue_free(real(), q);
		_exit(bad);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK_INT(status, 0);
	shf_sys_queue_free(real(), q);
	close(fds[0]);
	close(fds[1]);
}

static volatile sig_atomic_t signals;

static void count_signal(int sig)
{
	(void)sig;
	signals++;
}

TEST(queue_threads_take_no_signals)
{
	struct sigaction act = { .sa_handler = count_signal }, old;
	struct shf_queue *q = NULL;
	struct shf_io io = { .op = SHF_IO_READ, .fd = -1, .len = 1 }, *done;
	sigset_t usr1, was;

	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	CHECK_INT(sigaction(SIGUSR1, &act, &old), 0);
	CHECK_INT(shf_sys_queue_new(real(), &q, 3), 0);
	CHECK_INT(shf_sys_submit(real(), q, &io), 0);      /* a thread */
	CHECK_INT(shf_sys_complete(real(), q, &done, -1), 1);
	CHECK_INT(pthread_sigmask(SIG_BLOCK, &usr1, &was), 0);
	CHECK(!sigismember(&was, SIGUSR1)); /* ours came back as it was */
	CHECK_INT(kill(getpid(), SIGUSR1), 0);
	shf_sys_sleep_ms(real(), 20);
	CHECK_INT(signals, 0);
	CHECK_INT(pthread_sigmask(SIG_SETMASK, &was, NULL), 0);
	CHECK_INT(signals, 1);
	shf_sys_queue_free(real(), q);
	CHECK_INT(sigaction(SIGUSR1, &old, NULL), 0);
}

TEST(memory_is_zeroed_aligned_and_not_inherited)
{
	for (int shared = 0; shared < 2; shared++) {
		struct shf_shm m;
		int status;
		pid_t pid;

		CHECK_INT(shf_sys_shm_new(real(), &m, 10000, shared), 0);
		CHECK_INT((uintptr_t)m.base % 4096, 0);
		CHECK_INT(m.bytes, 10000);
		for (size_t i = 0; i < m.bytes; i++)
			CHECK(!((uint8_t *)m.base)[i]);
		memset(m.base, 1, m.bytes);
		pid = fork();
		if (!pid) {
			int fds[2];

			/* The kernel says EFAULT where touching it would be a fault. */
			_exit(pipe(fds) || write(fds[1], m.base, 1) >= 0 || errno != EFAULT);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK_INT(status, 0);
		shf_sys_shm_free(real(), &m);
		shf_sys_shm_free(real(), &m);
		CHECK(!m.base);
		CHECK_INT(shf_sys_shm_new(real(), &m, SIZE_MAX - 5, shared), -ENOMEM);
		CHECK(shf_sys_shm_new(real(), &m, (size_t)1 << 60, shared) < 0);
		CHECK_INT(shf_sys_shm_new(real(), &m, 0, shared), 0);
		CHECK(m.base);
		shf_sys_shm_free(real(), &m);
	}
}

static int taker(const uint8_t token[16], int go)
{
	struct shf_shm m;
	char byte;
	int h;

	if (shf_sys_shm_connect(real(), token, &h))
		return 1;
	if (write(go, "x", 1) != 1 || shf_sys_shm_take(real(), h, &m, 10000))
		return 2;
	byte = ((char *)m.base)[5];
	((char *)m.base)[6] = 'b';
	if (m.bytes != 5000 || byte != 'a' || ftruncate(m.fd, 0) == 0)
		return 3;
	shf_sys_shm_free(real(), &m);
	shf_sys_shm_drop(real(), h);
	return 0;
}

/* Handed over as it is said to be: what a taker answers. */
static int taken(const struct shf_shm *said)
{
	struct shf_shm got = { .fd = -1 };
	uint8_t token[16];
	int offer, h, rc;

	CHECK_INT(shf_sys_shm_offer(real(), token, &offer), 0);
	CHECK_INT(shf_sys_shm_connect(real(), token, &h), 0);
	CHECK_INT(shf_sys_shm_serve(real(), offer, said, 1, 10000), 0);
	rc = shf_sys_shm_take(real(), h, &got, 10000);
	CHECK(rc == 0 || (!got.base && got.fd == -1));
	shf_sys_shm_free(real(), &got);
	shf_sys_shm_drop(real(), h);
	shf_sys_shm_drop(real(), offer);
	return rc;
}

TEST(memory_that_is_not_what_it_says_is_not_taken)
{
	struct shf_shm m, lie;

	CHECK_INT(shf_sys_shm_new(real(), &m, 5000, true), 0);
	CHECK_INT(taken(&m), 0);
	lie = m;
	lie.bytes = 50000;              /* reading its end would end in SIGBUS */
	CHECK_INT(taken(&lie), -EPROTO);
	lie = m;
	lie.fd = memfd_create("sheaf", MFD_CLOEXEC);    /* may still be cut short */
	CHECK(lie.fd >= 0);
	CHECK_INT(ftruncate(lie.fd, 1 << 20), 0);
	CHECK_INT(taken(&lie), -EPROTO);
	close(lie.fd);
	shf_sys_shm_free(real(), &m);
}

TEST(another_process_takes_memory_by_token)
{
	uint8_t token[16], wrong[16];
	struct shf_shm m;
	int offer, h, status, go[2];
	char byte;
	pid_t pid;

	CHECK_INT(pipe(go), 0);
	CHECK_INT(shf_sys_shm_offer(real(), token, &offer), 0);
	CHECK_INT(shf_sys_shm_new(real(), &m, 5000, false), 0);
	CHECK_INT(shf_sys_shm_serve(real(), offer, &m, 1, 1), -EINVAL);
	shf_sys_shm_free(real(), &m);
	shf_sys_shm_drop(real(), offer);
	CHECK_INT(shf_sys_shm_new(real(), &m, 5000, true), 0);
	CHECK_INT(shf_sys_shm_offer(real(), token, &offer), 0);
	memcpy(wrong, token, 16);
	wrong[3] ^= 1;
	CHECK_INT(shf_sys_shm_connect(real(), wrong, &h), -ECONNREFUSED);
	((char *)m.base)[5] = 'a';
	pid = fork();
	if (!pid)
		_exit(taker(token, go[1]));
	CHECK_INT(read(go[0], &byte, 1), 1);
	CHECK_INT(shf_sys_shm_serve(real(), offer, &m, 1, 10000), 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK_INT(status, 0);
	CHECK(((char *)m.base)[6] == 'b');
	shf_sys_shm_drop(real(), offer);
	shf_sys_shm_drop(real(), -1);
	shf_sys_shm_free(real(), &m);
	close(go[0]);
	close(go[1]);
}

TEST(each_offer_has_a_token_of_its_own)
{
	uint8_t token[2][16] = { { 0 }, { 0 } };
	struct shf_shm m[2], got;
	int offer[2], h;

	for (int i = 0; i < 2; i++) {
		CHECK_INT(shf_sys_shm_new(real(), &m[i], (size_t)i + 1, true), 0);
		CHECK_INT(shf_sys_shm_offer(real(), token[i], &offer[i]), 0);
	}
	CHECK(memcmp(token[0], token[1], 16) != 0);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(shf_sys_shm_connect(real(), token[i], &h), 0);
		CHECK_INT(shf_sys_shm_serve(real(), offer[i], &m[i], 1, 10000), 0);
		CHECK_INT(shf_sys_shm_take(real(), h, &got, 10000), 0);
		CHECK_INT(got.bytes, i + 1);
		shf_sys_shm_free(real(), &got);
		shf_sys_shm_free(real(), &m[i]);
		shf_sys_shm_drop(real(), h);
		shf_sys_shm_drop(real(), offer[i]);
		CHECK_INT(fcntl(offer[i], F_GETFD), -1);
	}
}

TEST(pages_are_told_apart_that_were_used_and_that_were_not)
{
	enum { PAGES = 10, PAGE = 4096 };
	char *mem = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
	                 -1, 0);
	bool populates;

	CHECK(mem != MAP_FAILED);
	(void)madvise(mem, PAGES * PAGE, MADV_NOHUGEPAGE);
	populates = !madvise(mem + 9 * PAGE, PAGE, 23); /* MADV_POPULATE_WRITE */
	for (int i = 0; i < 9; i++)
		CHECK(!shf_sys_touched(real(), mem + i * PAGE + 100 * i));
	mem[2 * PAGE + 5] = 1;
	CHECK(shf_sys_touched(real(), mem + 2 * PAGE));
	CHECK(shf_sys_touched(real(), mem + 3 * PAGE - 1));
	CHECK(!shf_sys_touched(real(), mem + 2 * PAGE - 1));
	CHECK(!shf_sys_touched(real(), mem + 3 * PAGE));
	for (int write = 0; write < 2 && populates; write++) {
		int at = write ? 7 : 4; /* and the page after it, of which one byte is meant */

		shf_sys_touch(real(), mem + at * PAGE + 10, PAGE - 9, write);
		CHECK(!shf_sys_touched(real(), mem + at * PAGE - 1));
		CHECK(shf_sys_touched(real(), mem + at * PAGE));
		CHECK(shf_sys_touched(real(), mem + at * PAGE + PAGE));
		CHECK(write || !shf_sys_touched(real(), mem + at * PAGE + 2 * PAGE));
		CHECK_INT(mem[at * PAGE + 10], 0);
	}
	munmap(mem, PAGES * PAGE);
	CHECK(shf_sys_touched(real(), mem));       /* nobody knows */
}

TEST(nobody_waits_longer_than_told)
{
	uint8_t token[16];
	struct shf_shm m, got;
	int offer, h;

	CHECK_INT(shf_sys_shm_new(real(), &m, 1, true), 0);
	CHECK_INT(shf_sys_shm_offer(real(), token, &offer), 0);
	CHECK_INT(shf_sys_shm_serve(real(), offer, &m, 1, 5), -ETIMEDOUT);
	CHECK_INT(shf_sys_shm_connect(real(), token, &h), 0);
	CHECK_INT(shf_sys_shm_take(real(), h, &got, 5), -ETIMEDOUT);
	CHECK_INT(shf_sys_shm_serve(real(), offer, &m, 2, 5), -ETIMEDOUT);
	CHECK_INT(shf_sys_shm_take(real(), h, &got, 5), 0);
	shf_sys_shm_free(real(), &got);
	CHECK_INT(shf_sys_shm_take(real(), h, &got, 5), -ECONNRESET);
	shf_sys_shm_drop(real(), h);
	CHECK_INT(shf_sys_shm_connect(real(), token, &h), 0);
	shf_sys_shm_drop(real(), offer);
	CHECK_INT(shf_sys_shm_take(real(), h, &got, 1000), -ECONNRESET);
	shf_sys_shm_drop(real(), h);
	CHECK_INT(shf_sys_shm_connect(real(), token, &h), -ECONNREFUSED);
	shf_sys_shm_free(real(), &m);
}

/* ---- tasks ---- */

struct errand {
	int turns, of;                  /* taken; how many there are */
	bool blocked;                   /* all signals, in the thread of the turns */
	pthread_t thread;
	atomic_int begun;
};

static bool turn(void *work)
{
	struct errand *e = work;
	sigset_t set;

	if (e->turns == 0) {
		(void)pthread_sigmask(SIG_SETMASK, NULL, &set);
		e->blocked = sigismember(&set, SIGINT) == 1 && sigismember(&set, SIGTERM) == 1 &&
		             sigismember(&set, SIGUSR1) == 1;
		e->thread = pthread_self();
	}
	atomic_store(&e->begun, 1);
	return ++e->turns < e->of;
}

TEST(a_task_takes_its_turns_behind_and_takes_no_signals)
{
	struct errand e = { .of = 1000 };
	struct shf_task *task;

	CHECK_INT(shf_sys_task_new(real(), &task, turn, &e, NULL), 0);
	while (!shf_sys_task_over(real(), task))
		shf_sys_sleep_ms(real(), 1);
	CHECK_INT(e.turns, 1000);
	CHECK(e.blocked);
	CHECK(!pthread_equal(e.thread, pthread_self()));
	shf_sys_task_free(real(), task);
	shf_sys_task_free(real(), NULL);
}

TEST(a_task_that_is_over_goes_on_when_there_is_more)
{
	struct errand e = { .of = 1 };
	struct shf_task *task;
	int turns = 0;

	CHECK_INT(shf_sys_task_new(real(), &task, turn, &e, NULL), 0);
	for (int i = 0; i < 200; i++) {
		if (i % 3 == 0)
			shf_sys_sleep_ms(real(), i % 2);
		shf_sys_task_again(real(), task);
		while (!shf_sys_task_over(real(), task))
			shf_sys_sleep_ms(real(), 0);
		CHECK(e.turns > turns); /* none is lost; one may do for two */
		turns = e.turns;
	}
	CHECK(turns <= 1 + 200);
	shf_sys_task_again(real(), task);
	shf_sys_task_free(real(), task);
}

static struct {
	atomic_int turns, let;          /* begun; how many may end */
	int ioprio;
} waiting;

static bool wait_in_turn(void *work)
{
	int turn = atomic_fetch_add(&waiting.turns, 1);

	(void)work;
	waiting.ioprio = (int)syscall(SYS_ioprio_get, 1, 0);
	while (atomic_load(&waiting.let) <= turn)
		sched_yield();
	return false;
}

/* What is asked for while the last turn is taken is still to be done after it. */
TEST(a_task_that_was_asked_again_meanwhile_is_not_over)
{
	struct shf_task *task;

	atomic_store(&waiting.turns, 0);
	atomic_store(&waiting.let, 0);
	CHECK_INT(shf_sys_task_new(real(), &task, wait_in_turn, NULL, NULL), 0);
	while (atomic_load(&waiting.turns) < 1)
		sched_yield();
	shf_sys_task_again(real(), task);
	atomic_store(&waiting.let, 1);
	while (atomic_load(&waiting.turns) < 2)
		sched_yield();
	CHECK(!shf_sys_task_over(real(), task));
	atomic_store(&waiting.let, 2);
	while (!shf_sys_task_over(real(), task))
		sched_yield();
	CHECK_INT(atomic_load(&waiting.turns), 2);
	shf_sys_task_again(real(), task);
	CHECK(!shf_sys_task_over(real(), task));
	atomic_store(&waiting.let, 3);
	while (!shf_sys_task_over(real(), task))
		sched_yield();
	CHECK_INT(atomic_load(&waiting.turns), 3);
	/* The disk serves everybody else first: the last level of best effort. */
	CHECK_INT(waiting.ioprio, 2 << 13 | 7);
	shf_sys_task_free(real(), task);
}

static bool look_where(void *work)
{
	cpu_set_t *set = work;

	(void)sched_getaffinity(0, sizeof(*set), set);
	return false;
}

TEST(a_task_runs_where_it_is_told_to)
{
	cpu_set_t mine, set;
	struct shf_task *task;
	char cpu[24];
	size_t at = 0;

	CHECK_INT(sched_getaffinity(0, sizeof(mine), &mine), 0);
	while (!CPU_ISSET(at, &mine))
		at++;
	snprintf(cpu, sizeof(cpu), "%zu", at);
	for (int told = 0; told < 200; told++) {        /* it may look before it is placed */
		CPU_ZERO(&set);
		CHECK_INT(shf_sys_task_new(real(), &task, look_where, &set, cpu), 0);
		while (!shf_sys_task_over(real(), task))
			shf_sys_sleep_ms(real(), 1);
		shf_sys_task_free(real(), task);
		if (CPU_COUNT(&set) == 1)
			break;
	}
	CHECK(CPU_COUNT(&set) == 1 && CPU_ISSET(at, &set));
	CHECK_INT(shf_sys_task_new(real(), &task, look_where, &set, "4095"), 1);
	shf_sys_task_free(real(), task);
}

TEST(a_task_that_is_freed_takes_no_other_turn)
{
	struct errand e = { .of = INT32_MAX };
	struct shf_task *task;
	int turns;

	CHECK_INT(shf_sys_task_new(real(), &task, turn, &e, NULL), 0);
	while (!atomic_load(&e.begun))
		shf_sys_sleep_ms(real(), 1);
	CHECK(!shf_sys_task_over(real(), task));
	shf_sys_task_free(real(), task);
	turns = e.turns;
	CHECK(turns > 0 && turns < INT32_MAX);
	/* It may be freed before it was ever seen to run. */
	for (int i = 0; i < 50; i++) {
		e = (struct errand){ .of = INT32_MAX };
		CHECK_INT(shf_sys_task_new(real(), &task, turn, &e, NULL), 0);
		shf_sys_task_free(real(), task);
	}
}
