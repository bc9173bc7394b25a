/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that cannot be made, and how many there are: of tasks, and of a queue's pool. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include "sys.h"
#include "t.h"

static struct {
	bool none;                      /* a thread cannot be made */
	int made;
	atomic_int held;                /* reads that wait */
	atomic_bool open;               /* they go on */
} threads;

int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg)
{
	if (threads.none)
		return EAGAIN;
	threads.made++;
	return __real_pthread_create(t, a, f, arg);
}

ssize_t __real_pread64(int fd, void *buf, size_t n, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t n, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t n, off_t off)
{
	threads.held++;
	while (!threads.open)
		sched_yield();
	return __real_pread64(fd, buf, n, off);
}

static const struct shf_sys *real(void)
{
	return shf_sys_real();
}

static bool count(void *work)
{
	atomic_int *n = work;

	atomic_fetch_add(n, 1);
	return false;
}

static void until_over(struct shf_task *task)
{
	while (!shf_sys_task_over(real(), task))
		sched_yield();
}

TEST(without_a_thread_there_is_no_task)
{
	struct shf_task *task = NULL;
	atomic_int n = 0;

	threads.none = true;
	CHECK_INT(shf_sys_task_new(real(), &task, count, &n, NULL), -EAGAIN);
	CHECK(!task);
	CHECK_INT(shf_sys_task_new(real(), &task, count, &n, "0"), -EAGAIN);
	CHECK(!task);
	threads.none = false;
	CHECK_INT(n, 0);
}

/* It is over, and goes on when there is one again; once it goes on, its thread stays. */
TEST(a_task_that_gets_no_thread_to_go_on_is_over_until_the_next_time)
{
	struct shf_task *task = NULL;
	atomic_int n = 0;

	CHECK_INT(shf_sys_task_new(real(), &task, count, &n, NULL), 0);
	until_over(task);
	CHECK_INT(n, 1);
	threads.none = true;
	for (int i = 0; i < 2; i++) {
		shf_sys_task_again(real(), task);
		CHECK(shf_sys_task_over(real(), task));
		CHECK_INT(n, 1);
	}
	threads.none = false;
	threads.made = 0;
	for (int i = 2; i < 5; i++) {
		shf_sys_task_again(real(), task);
		until_over(task);
		CHECK_INT(n, i);
		CHECK_INT(threads.made, 1);
	}
	shf_sys_task_free(real(), task);
}

/* Each request that waits has a thread, up to so many; what is more waits for one of them. */
TEST(a_queue_has_as_many_threads_as_it_has_work_for)
{
	enum { IOS = 6 };
	char path[] = "./sheaf-tasks-XXXXXX", bytes[IOS];
	int fd = mkstemp(path);

	CHECK(fd >= 0);
	unlink(path);
	CHECK_INT(write(fd, "abcdef", IOS), IOS);
	for (int most = 1; most <= IOS + 1; most++) {
		struct shf_io io[IOS], *done;
		struct shf_queue *q = NULL;

		threads.made = 0;
		threads.held = 0;
		threads.open = false;
		CHECK_INT(shf_sys_queue_new(real(), &q, most), 0);
		CHECK_INT(threads.made, 0);
		for (int i = 0; i < IOS; i++) {
			io[i] = (struct shf_io){ .op = SHF_IO_READ, .fd = fd, .buf = &bytes[i],
				.len = 1, .off = (uint64_t)i };
			CHECK_INT(shf_sys_submit(real(), q, &io[i]), 0);
			CHECK_INT(threads.made, i + 1 < most ? i + 1 : most);
		}
		while (threads.held < (most < IOS ? most : IOS))
			sched_yield();
		CHECK_INT(shf_sys_complete(real(), q, &done, 0), -EAGAIN);
		threads.open = true;
		for (int i = 0; i < IOS; i++) {
			CHECK_INT(shf_sys_complete(real(), q, &done, -1), 1);
			CHECK_INT(done->result, 1);
		}
		CHECK_INT(shf_sys_complete(real(), q, &done, -1), 0);
		CHECK(memcmp(bytes, "abcdef", IOS) == 0);
		CHECK_INT(threads.made, most < IOS ? most : IOS);
		shf_sys_queue_free(real(), q);
	}
	close(fd);
	CHECK_INT(shf_sys_queue_new(real(), &(struct shf_queue *){ NULL }, 0), -EINVAL);
}
