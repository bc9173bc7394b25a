/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated machine as its processes see it: calls and the faults they meet, locks, limits,
 * paths, queues and shared memory. What a power cut leaves is test_simdisk.c's. */
#include "t.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "simdisk.h"

#define SEED 17
#define W (SHF_O_WRITE | SHF_O_CREATE)

static int file_new(const struct shf_sys *s, int dir, const char *name)
{
	int fd = shf_sys_open(s, dir, name, W | SHF_O_EXCL, 0666);

	CHECK(fd >= 0);
	return fd;
}

static void put(const struct shf_sys *s, int fd, const char *text, uint64_t off)
{
	CHECK_INT(shf_sys_pwrite(s, fd, text, strlen(text), off), (int)strlen(text));
}

static int dir_open(const struct shf_sys *s, const char *path)
{
	int fd = shf_sys_open(s, SHF_CWD, path, SHF_O_DIR, 0);

	CHECK(fd >= 0);
	return fd;
}

/* What a file holds: -1 absent, else 1 when it is exactly text, 0 when not. */
static int holds(struct simdisk *d, const char *path, const char *text)
{
	size_t n = 0;
	char *bytes = simdisk_get(d, path, &n);
	int is = bytes ? n == strlen(text) && !memcmp(bytes, text, n) : -1;

	free(bytes);
	return is;
}

TEST(every_call_can_be_made_to_fail_and_is_told)
{
	for (int nth = 1;; nth++) {
		struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
		const struct shf_sys *s = simdisk_process(d, 1, 0);
		int64_t rc = 0;
		int fd, fired;

		simdisk_fail_at(d, nth, ENOMEM);
		fd = shf_sys_open(s, SHF_CWD, "f", W, 0);
		rc = fd < 0 ? fd : shf_sys_pwrite(s, fd, "x", 1, 0);
		rc = rc < 0 ? rc : shf_sys_fsync(s, fd);
		rc = rc < 0 ? rc : shf_sys_close(s, fd);
		rc = rc < 0 ? rc : shf_sys_rename(s, SHF_CWD, "f", SHF_CWD, "g", true);
		fired = simdisk_fired(d);
		CHECK_INT(fired, nth <= 5);
		CHECK_INT(rc, fired ? -ENOMEM : 0);
		CHECK_INT(simdisk_calls(d), fired ? nth : 5);
		simdisk_abandon(d);
		if (!fired)
			break;
	}
}

TEST(a_fault_can_choose_its_call_and_how_it_lies)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0), *other = simdisk_process(d, 2, 0);
	int fd = file_new(s, SHF_CWD, "a.tmp"), g = file_new(other, SHF_CWD, "b");
	struct shf_stat st;

	simdisk_fault(d, &(struct simdisk_fault){ .nth = 2, .error = ENOENT, .how = SIMDISK_AFTER,
	                                          .kind = SIMDISK_RENAME, .process = s });
	simdisk_fault(d, &(struct simdisk_fault){ .nth = 1, .error = EIO, .how = SIMDISK_PART,
	                                          .kind = SIMDISK_PWRITE, .name = ".tmp" });
	CHECK_INT(shf_sys_rename(other, SHF_CWD, "b", SHF_CWD, "c", false), 0);
	put(other, g, "0123456789", 0);
	CHECK_INT(shf_sys_pwrite(s, fd, "0123456789", 10, 0), -EIO);
	CHECK_INT(holds(d, "/a.tmp", "01234"), 1);
	put(s, fd, "0123456789", 0);
	CHECK_INT(shf_sys_rename(s, SHF_CWD, "a.tmp", SHF_CWD, "a", true), 0);
	CHECK_INT(shf_sys_rename(s, SHF_CWD, "a", SHF_CWD, "z", true), -ENOENT);
	CHECK(simdisk_exists(d, "/z") && !simdisk_exists(d, "/a"));
	CHECK_INT(simdisk_fired(d), 2);
	simdisk_faults_clear(d);
	simdisk_fault(d, &(struct simdisk_fault){ .nth = 2, .error = EIO, .always = true,
	                                          .kind = SIMDISK_FSTAT });
	CHECK_INT(shf_sys_fstat(s, fd, &st), 0);
	CHECK_INT(shf_sys_fstat(s, fd, &st), -EIO);
	CHECK_INT(shf_sys_fstat(s, fd, &st), -EIO);
	CHECK(strstr(simdisk_call_text(d, 4), "pwrite(a.tmp, 10 at 0) = -5"));
	simdisk_abandon(d);
}

TEST(a_killed_process_loses_descriptors_and_locks_but_not_its_writes)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *a = simdisk_process(d, 1, 0), *b = simdisk_process(d, 2, 0);
	struct shf_owner owner, later;
	int fa = file_new(a, SHF_CWD, "lock");
	int fb = shf_sys_open(b, SHF_CWD, "lock", SHF_O_WRITE, 0);

	CHECK_INT(shf_sys_owner(a, &owner), 0);
	put(a, fa, "mine", 0);
	CHECK_INT(shf_sys_lock(a, fa, true), 0);
	CHECK_INT(shf_sys_lock(b, fb, false), -EAGAIN);
	CHECK_INT(shf_sys_pread(b, fa, &owner, 0, 0), -EBADF);     /* not its descriptor */
	CHECK(!shf_sys_owner_is_dead(b, &owner));
	simdisk_fault(d, &(struct simdisk_fault){ .nth = 1, .how = SIMDISK_KILL, .process = a });
	CHECK_INT(shf_sys_close(a, fa), -ESHUTDOWN);
	CHECK_INT(shf_sys_mkdir(a, SHF_CWD, "d", 0777), -ESHUTDOWN);
	CHECK_INT(simdisk_open_n(a), 0);
	CHECK_INT(shf_sys_lock(b, fb, true), 0);
	CHECK_INT(holds(d, "/lock", "mine"), 1);
	CHECK(shf_sys_owner_is_dead(b, &owner));
	a = simdisk_process(d, 1, 0);   /* the pid is used again */
	CHECK_INT(shf_sys_owner(a, &later), 0);
	CHECK(shf_sys_owner_is_dead(b, &owner) && !shf_sys_owner_is_dead(b, &later));
	b = simdisk_process(d, 3, 1);
	CHECK(!shf_sys_owner_is_dead(b, &owner));  /* seen from another node */
	simdisk_abandon(d);
}

TEST(a_forked_child_has_the_same_descriptions_until_it_closes_them)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *a = simdisk_process(d, 1, 0), *b = simdisk_process(d, 2, 0), *child;
	int fa = file_new(a, SHF_CWD, "lock"), own;
	int fb = shf_sys_open(b, SHF_CWD, "lock", SHF_O_WRITE, 0);
	struct shf_owner owner;

	CHECK_INT(shf_sys_owner(a, &owner), 0);
	CHECK_INT(shf_sys_lock(a, fa, true), 0);
	child = simdisk_fork(d, a, 3);
	CHECK_INT(shf_sys_pid(child), 3);
	CHECK_INT(shf_sys_lock(child, fa, true), 0);   /* it is the same lock */
	own = file_new(child, SHF_CWD, "own");
	CHECK_INT(shf_sys_close(a, own), -EBADF);
	put(child, fa, "child", 0);
	/* Neither the parent's close nor its death lets go of it. */
	CHECK_INT(shf_sys_close(a, fa), 0);
	CHECK_INT(shf_sys_lock(b, fb, false), -EAGAIN);
	simdisk_kill(d, a);
	CHECK(shf_sys_owner_is_dead(b, &owner));
	CHECK_INT(shf_sys_lock(b, fb, false), -EAGAIN);
	CHECK_INT(shf_sys_close(child, fa), 0);
	CHECK_INT(shf_sys_lock(b, fb, true), 0);
	/* But an unlock does, and a child's death. */
	child = simdisk_fork(d, b, 4);
	CHECK_INT(shf_sys_unlock(b, fb), 0);
	fa = shf_sys_open(child, SHF_CWD, "lock", SHF_O_WRITE, 0);
	CHECK_INT(shf_sys_lock(child, fa, true), 0);
	CHECK_INT(shf_sys_lock(b, fb, true), -EAGAIN);
	simdisk_kill(d, child);
	CHECK_INT(shf_sys_lock(b, fb, true), 0);
	CHECK_INT(simdisk_open_n(b), 1);
	simdisk_abandon(d);
}

TEST(a_view_that_acts_as_a_child_closes_the_childs_descriptors)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *a = simdisk_process(d, 1, 0), *child;
	int fd = file_new(a, SHF_CWD, "f");

	child = simdisk_fork(d, a, 2);
	simdisk_act_as(a, child);
	CHECK_INT(shf_sys_pid(a), 2);
	CHECK_INT(shf_sys_close(a, fd), 0);
	simdisk_act_as(a, NULL);
	CHECK_INT(shf_sys_pid(a), 1);
	CHECK_INT(simdisk_open_n(child), 0);
	put(a, fd, "still here", 0);
	simdisk_abandon(d);
}

static int seen_n(void *arg, const char *name)
{
	(void)name;
	++*(int *)arg;
	return 0;
}

TEST(a_client_with_old_names_sees_them_until_their_time_is_over)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_NFS);
	const struct shf_sys *a = simdisk_process(d, 1, 0), *b = simdisk_process(d, 2, 1);
	int fd, dir, n = 0;
	struct shf_stat st;

	CHECK_INT(shf_sys_mkdir(a, SHF_CWD, "run", 0777), 0);
	dir = dir_open(b, "run");
	fd = file_new(a, SHF_CWD, "run/old");
	CHECK_INT(shf_sys_mkdir(a, SHF_CWD, "run/moved", 0777), 0);
	simdisk_stale(d, b, "/run", 50);
	CHECK_INT(shf_sys_mkdir(a, SHF_CWD, "run/new", 0777), 0);
	CHECK_INT(shf_sys_unlink(a, SHF_CWD, "run/old", false), 0);
	CHECK_INT(shf_sys_rename(a, SHF_CWD, "run/moved", SHF_CWD, "run/there", true), 0);
	CHECK_INT(shf_sys_stat(b, dir, "new", false, &st), -ENOENT);
	CHECK_INT(shf_sys_stat(b, SHF_CWD, "run/moved", false, &st), 0);
	CHECK_INT(shf_sys_open(b, dir, "old", 0, 0), -ESTALE);
	CHECK_INT(shf_sys_list(b, dir, seen_n, &n), 0);
	CHECK_INT(n, 2);
	/* What it makes is made by the server. */
	CHECK_INT(shf_sys_mkdir(b, dir, "new", 0777), -EEXIST);
	CHECK_INT(shf_sys_stat(a, SHF_CWD, "run/new", false, &st), 0);
	shf_sys_sleep_ms(b, 60);
	CHECK_INT(shf_sys_stat(b, dir, "new", false, &st), 0);
	CHECK_INT(shf_sys_stat(b, dir, "old", false, &st), -ENOENT);
	simdisk_stale(d, b, "/run", -1);
	CHECK_INT(shf_sys_unlink(a, SHF_CWD, "run/new", true), 0);
	shf_sys_sleep_ms(b, 60000);
	CHECK_INT(shf_sys_open(b, dir, "new", SHF_O_DIR, 0), -ESTALE);
	simdisk_fresh(d, b);
	CHECK_INT(shf_sys_open(b, dir, "new", SHF_O_DIR, 0), -ENOENT);
	CHECK_INT(shf_sys_close(a, fd), 0);
	simdisk_abandon(d);
}

TEST(locks_are_by_description_and_can_be_made_to_lie)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int a = file_new(s, SHF_CWD, "f"), b = shf_sys_open(s, SHF_CWD, "f", 0, 0);
	int c = shf_sys_open(s, SHF_CWD, "f", SHF_O_WRITE, 0);

	CHECK_INT(shf_sys_lock(s, a, true), 0);
	CHECK_INT(shf_sys_lock(s, b, false), -EAGAIN);
	CHECK_INT(shf_sys_lock(s, b, true), -EBADF);
	CHECK_INT(shf_sys_lock(s, a, false), 0);
	CHECK_INT(shf_sys_lock(s, b, false), 0);
	CHECK_INT(shf_sys_lock(s, c, true), -EAGAIN);
	CHECK_INT(shf_sys_close(s, a), 0);
	CHECK_INT(shf_sys_close(s, b), 0);
	CHECK_INT(shf_sys_lock(s, c, true), 0);
	a = shf_sys_open(s, SHF_CWD, "f", SHF_O_WRITE, 0);
	simdisk_set_locks(d, false);
	CHECK_INT(shf_sys_lock(s, a, true), 0);
	simdisk_abandon(d);
}

TEST(a_full_disk_says_so_and_forgets_what_was_removed)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	static uint8_t bytes[3 * 4096];
	int root = dir_open(s, "/"), fd = file_new(s, root, "f"), g;
	uint64_t left = 0;

	simdisk_set_space(d, 2 * 4096);
	CHECK_INT(shf_sys_resize(s, fd, 3 * 4096), -ENOSPC);
	CHECK_INT(shf_sys_pwrite(s, fd, bytes, sizeof(bytes), 0), -ENOSPC);
	CHECK_INT(shf_sys_resize(s, fd, 4096), 0);
	CHECK_INT(shf_sys_free_bytes(s, fd, &left), 0);
	CHECK_INT(left, 4096);
	g = file_new(s, root, "g");
	CHECK_INT(shf_sys_resize(s, g, 2 * 4096), -ENOSPC);
	CHECK_INT(shf_sys_unlink(s, root, "f", false), 0);
	CHECK_INT(shf_sys_resize(s, g, 2 * 4096), -ENOSPC);        /* still open */
	CHECK_INT(shf_sys_close(s, fd), 0);
	CHECK_INT(shf_sys_resize(s, g, 2 * 4096), 0);
	simdisk_set_read_only(d, true);
	CHECK_INT(shf_sys_resize(s, g, 0), -EROFS);
	CHECK_INT(shf_sys_mkdir(s, root, "d", 0777), -EROFS);
	CHECK_INT(shf_sys_unlink(s, root, "g", false), -EROFS);
	CHECK_INT(shf_sys_open(s, root, "g", SHF_O_WRITE, 0), -EROFS);
	simdisk_abandon(d);
}

TEST(paths_links_and_refusals_are_those_of_the_kernel)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	struct shf_stat st;
	char buf[16];
	int a;

	CHECK_INT(simdisk_put(d, "/a/b/f", "x", 1), 0);
	CHECK_INT(simdisk_symlink(d, "a/b", "/link"), 0);
	CHECK_INT(simdisk_symlink(d, "/loop", "/loop"), 0);
	CHECK_INT(shf_sys_stat(s, SHF_CWD, "link/f", true, &st), 0);
	CHECK_INT(st.bytes, 1);
	CHECK_INT(shf_sys_stat(s, SHF_CWD, "/a/b/../b//f", true, &st), 0);
	CHECK_INT(shf_sys_stat(s, SHF_CWD, "a/f/x", true, &st), -ENOENT);
	CHECK_INT(shf_sys_stat(s, SHF_CWD, "a/b/f/x", true, &st), -ENOTDIR);
	CHECK_INT(shf_sys_stat(s, SHF_CWD, "loop", true, &st), -ELOOP);
	CHECK_INT(shf_sys_stat(s, SHF_CWD, "loop", false, &st), 0);
	CHECK_INT(shf_sys_open(s, SHF_CWD, "link", SHF_O_NOFOLLOW | SHF_O_DIR, 0), -ELOOP);
	CHECK_INT(shf_sys_readlink(s, SHF_CWD, "link", buf, 16), 3);
	CHECK_STR(buf, "a/b");
	a = dir_open(s, "a");
	CHECK_INT(shf_sys_open(s, a, "b/f", 0, 0), -EINVAL);       /* one component */
	CHECK_INT(shf_sys_unlink(s, a, "b", true), -ENOTEMPTY);
	CHECK_INT(shf_sys_unlink(s, a, "b", false), -EISDIR);
	CHECK_INT(shf_sys_mkdir(s, a, "e", 0777), 0);
	CHECK_INT(shf_sys_rename(s, a, "b", a, "e", true), -EEXIST);
	CHECK_INT(shf_sys_rename(s, SHF_CWD, "a", SHF_CWD, "a/b/z", false), -EINVAL);
	CHECK_INT(shf_sys_rename(s, a, "e", a, "b", false), -ENOTEMPTY);
	CHECK_INT(shf_sys_rename(s, a, "b", a, "e", false), 0);
	CHECK_INT(shf_sys_open(s, a, "e", SHF_O_WRITE, 0), -EISDIR);
	CHECK_INT(simdisk_remove(d, "/a"), 0);
	CHECK_INT(shf_sys_mkdir(s, a, "late", 0777), -ENOENT);     /* open but gone */
	simdisk_abandon(d);
}

static int count_names(void *arg, const char *name)
{
	const struct shf_sys *s = ((void **)arg)[0];
	int *n = ((void **)arg)[1];

	++*n;
	return shf_sys_unlink(s, SHF_CWD, name, false);    /* calls from within are fine */
}

TEST(list_may_change_what_it_lists)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int root = dir_open(s, "/"), n = 0;
	void *arg[] = { (void *)(uintptr_t)s, &n };
	char name[2] = "a";

	for (; name[0] < 'k'; name[0]++)
		shf_sys_close(s, file_new(s, root, name));
	CHECK_INT(shf_sys_list(s, root, count_names, arg), 0);
	CHECK_INT(n, 10);
	CHECK_INT(shf_sys_list(s, root, count_names, arg), 0);
	CHECK_INT(n, 10);
	CHECK_INT(simdisk_open_n(s), 1);
	simdisk_abandon(d);
}

TEST(a_queue_performs_in_any_order_at_complete)
{
	bool write_first = false, sync_first = false, later = false;

	for (uint64_t seed = 0; seed < 40; seed++) {
		struct simdisk *d = simdisk_new(seed, SIMDISK_STRICT);
		const struct shf_sys *s = simdisk_process(d, 1, 0);
		int fd = file_new(s, SHF_CWD, "f"), rc, n = 0;
		struct shf_io io[2] = { { .op = SHF_IO_WRITE, .fd = fd, .buf = "hello", .len = 5 },
		                        { .op = SHF_IO_FSYNC, .fd = fd } };
		struct shf_queue_stat st;
		struct shf_io *done;
		struct shf_queue *q = NULL;

		CHECK_INT(shf_sys_queue_new(s, &q, 2), 0);
		CHECK_INT(shf_sys_complete(s, q, &done, -1), 0);
		CHECK_INT(shf_sys_submit(s, q, &io[0]), 0);
		CHECK_INT(shf_sys_submit(s, q, &io[1]), 0);
		CHECK_INT(holds(d, "/f", ""), 1);       /* nothing has happened */
		while ((rc = shf_sys_complete(s, q, &done, 0)) != 0) {
			later |= rc == -EAGAIN;
			n += rc == 1;
			if (rc == 1 && n == 1)
				*(done == io ? &write_first : &sync_first) = true;
		}
		CHECK_INT(n, 2);
		CHECK_INT(io[0].result, 5);
		CHECK_INT(io[1].result, 0);
		shf_sys_queue_stat(s, q, &st);
		CHECK_INT(st.buffered_bytes, 5);
		CHECK_INT(st.direct_bytes + st.refused + st.ring, 0);
		CHECK_INT(shf_sys_submit(s, q, &io[0]), 0);
		io[0].off = 5;
		shf_sys_queue_free(s, q);
		CHECK_INT(holds(d, "/f", "hellohello"), 1);
		simdisk_abandon(d);
	}
	CHECK(write_first && sync_first && later);
}

TEST(memory_is_shared_within_a_node_only)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *a = simdisk_process(d, 1, 0), *b = simdisk_process(d, 2, 0);
	const struct shf_sys *far = simdisk_process(d, 3, 1);
	struct shf_shm m, got;
	uint8_t token[16];
	int offer, h, h2;

	CHECK_INT(shf_sys_shm_new(a, &m, 5000, true), 0);
	CHECK_INT((uintptr_t)m.base % 4096, 0);
	CHECK_INT(((char *)m.base)[4999], 0);
	CHECK_INT(shf_sys_shm_offer(a, token, &offer), 0);
	CHECK_INT(shf_sys_shm_connect(far, token, &h), -ECONNREFUSED);
	simdisk_set_shm(d, false, 10000);
	CHECK_INT(shf_sys_shm_connect(b, token, &h), -ECONNREFUSED);
	simdisk_set_shm(d, true, 10000);
	CHECK_INT(shf_sys_shm_connect(b, token, &h), 0);
	CHECK_INT(shf_sys_shm_take(b, h, &got, 5), -ETIMEDOUT);
	CHECK_INT(shf_sys_shm_serve(a, offer, &m, 1, 5), 0);
	CHECK_INT(shf_sys_shm_serve(a, offer, &m, 1, 5), -ETIMEDOUT);
	CHECK_INT(shf_sys_shm_connect(b, token, &h2), 0);
	shf_sys_shm_drop(a, offer);
	CHECK_INT(shf_sys_shm_take(b, h2, &got, 5), -ECONNRESET);
	shf_sys_shm_free(a, &m);
	CHECK_INT(shf_sys_shm_take(b, h, &got, 5), 0);
	CHECK_INT(got.bytes, 5000);
	memset(got.base, 1, got.bytes);
	CHECK_INT(shf_sys_shm_new(b, &m, 5001, false), -ENOSPC);
	simdisk_kill(d, b);
	shf_sys_shm_free(b, &got); /* memory only, so allowed */
	shf_sys_shm_drop(b, h);
	CHECK(!got.base);
	simdisk_abandon(d);
}

/* What is left to the end of a test is a leak of the library: simdisk_free stops there. */
static bool stops(int what)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	struct shf_queue *queue;
	struct shf_task *task;
	uint8_t token[16];
	struct shf_shm m;
	int offer, status;
	pid_t pid = fork();

	if (pid == 0) {
		fclose(stderr);
		if (what == 1)
			(void)file_new(s, SHF_CWD, "f");
		else if (what == 2)
			(void)shf_sys_shm_offer(s, token, &offer);
		else if (what == 3)
			(void)shf_sys_shm_new(s, &m, 1, true);
		else if (what == 4)
			(void)shf_sys_queue_new(s, &queue, 1);
		else if (what == 5)
			(void)shf_sys_task_new(s, &task, NULL, NULL, NULL);
		simdisk_free(d);
		_exit(0);
	}
	simdisk_free(d);
	CHECK_INT(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGABRT);
	return WIFSIGNALED(status);
}

TEST(a_disk_does_not_end_before_all_that_was_taken_is_given_back)
{
	for (int what = 0; what <= 5; what++)
		CHECK_INT(stops(what), what > 0);
}

TEST(a_descriptor_may_be_0_and_is_like_others)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int first, zero;

	simdisk_fault(d, &(struct simdisk_fault){ .nth = 2, .kind = SIMDISK_OPEN,
	                                          .how = SIMDISK_ZERO });
	CHECK_INT(shf_sys_close(s, 0), -EBADF);
	first = file_new(s, SHF_CWD, "a");
	zero = shf_sys_open(s, SHF_CWD, "b", W, 0666);
	CHECK(first > 0);
	CHECK_INT(zero, 0);
	put(s, first, "one", 0);
	put(s, zero, "two", 0);
	CHECK_INT(holds(d, "a", "one"), 1);
	CHECK_INT(holds(d, "b", "two"), 1);
	CHECK_INT(shf_sys_close(s, zero), 0);
	CHECK_INT(shf_sys_close(s, zero), -EBADF);
	CHECK_INT(shf_sys_close(s, first), 0);
	simdisk_free(d);
}
