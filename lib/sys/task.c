/* SPDX-License-Identifier: Apache-2.0 */
/* Work in the background: each task has a thread of its own, with a low priority for processors and
 * disks. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "cpulist.h"
#include "mem.h"
#include "task.h"
#include "thread.h"

#define NICE 10
/* From linux/ioprio.h, which not every system has: the class best-effort, the last of its eight
 * levels. The class idle would be lower still, but on a disk that is always busy such work would
 * never end. */
#define IOPRIO_THREAD 1
#define IOPRIO_LAST (2 << 13 | 7)

struct shf_task {
	pthread_t thread;
	bool joinable;                  /* the thread was started and is not joined; used only by
	                                 * the owner */
	const char *cpus;               /* borrowed; NULL: any */
	bool (*step)(void *work);
	void *work;
	atomic_bool stop;               /* set by free; the thread reads it before each step */
	atomic_bool over;               /* stored with release by the thread after its last step,
	                                 * loaded with acquire by real_task_over, so that what the
	                                 * steps wrote is visible then */
	pthread_mutex_t lock;
	pthread_cond_t woken;           /* more or stop was set */
	bool more;                      /* guarded by lock; task_again was called since the last
	                                 * steps began */
	bool stays;                     /* guarded by lock; task_again was called at some time, so
	                                 * the thread waits for more work. Otherwise it ends when
	                                 * the task is over, and task_free need not wait until a
	                                 * busy machine runs it */
	bool ended;                     /* guarded by lock */
};

/* Lowers the priority of this thread for processors and disks. If the kernel does not allow that,
 * the thread runs as it is. */
static void step_back(void)
{
	id_t self = (id_t)syscall(SYS_gettid);

	(void)setpriority(PRIO_PROCESS, self, NICE);
	(void)syscall(SYS_ioprio_set, IOPRIO_THREAD, 0, IOPRIO_LAST);
}

/* Called when step has returned false. Publishes that the task is over, then waits for more work,
 * if task_again was ever called. Returns false if the thread is to end. Threads of tasks that were
 * never continued end at once, so that freeing them is quick even on a busy machine. */
static bool rest(struct shf_task *task)
{
	bool more;

	pthread_mutex_lock(&task->lock);
	if (!task->more)
		atomic_store_explicit(&task->over, true, memory_order_release);
	while (task->stays && !task->more && !atomic_load(&task->stop))
		pthread_cond_wait(&task->woken, &task->lock);
	more = task->more && !atomic_load(&task->stop);
	task->more = false;
	task->ended = !more;
	pthread_mutex_unlock(&task->lock);
	return more;
}

/* The thread: runs steps until they are over, then rests until there is more. */
static void *task_run(void *arg)
{
	struct shf_task *task = arg;

	step_back();
	do {
		while (!atomic_load(&task->stop) && task->step(task->work))
			;
	} while (rest(task));
	return NULL;
}

/* Binds the thread to its processors. Returns 0, or 1 if the kernel does not allow it. */
static int place(pthread_t thread, const char *cpus)
{
	uint64_t bits[SHF_CPUS_WORDS];
	cpu_set_t set[SHF_CPUS_MAX / CPU_SETSIZE];

	if (!shf_cpulist(cpus, bits))
		return 1;
	CPU_ZERO_S(sizeof(set), set);
	for (int i = 0; i < SHF_CPUS_MAX; i++)
		if (bits[i / 64] >> i % 64 & 1)
			CPU_SET_S((size_t)i, sizeof(set), set);
	return pthread_setaffinity_np(thread, sizeof(set), set) != 0;
}

/* The affinity mask of the calling thread counts, not the processors of the machine. */
static int real_cpus(void *arg)
{
	cpu_set_t set[SHF_CPUS_MAX / CPU_SETSIZE];
	int n;

	(void)arg;
	CPU_ZERO_S(sizeof(set), set);
	if (sched_getaffinity(0, sizeof(set), set) < 0)
		return 1;
	n = CPU_COUNT_S(sizeof(set), set);
	return n > 0 ? n : 1;
}

static void task_end(struct shf_task *task)
{
	pthread_cond_destroy(&task->woken);
	pthread_mutex_destroy(&task->lock);
	shf_free(task);
}

/* Returns 0, 1 or a negative errno as task_new does. */
static int task_start(struct shf_task *task)
{
	int rc = shf_thread_start(&task->thread, task_run, task);

	/* After a failure there is no thread to join. */
	task->joinable = rc == 0;
	return rc ? -rc : task->cpus ? place(task->thread, task->cpus) : 0;
}

static int real_task_new(void *arg, struct shf_task **out, bool (*step)(void *work), void *of,
                         const char *cpus)
{
	struct shf_task *task = shf_zalloc(1, sizeof(*task));
	int rc;

	(void)arg;
	if (!task)
		return -ENOMEM;
	task->step = step;
	task->work = of;
	task->cpus = cpus;
	pthread_mutex_init(&task->lock, NULL);
	pthread_cond_init(&task->woken, NULL);
	rc = task_start(task);
	if (rc < 0)
		task_end(task);
	else
		*out = task;
	return rc;
}

static bool real_task_over(void *arg, struct shf_task *task)
{
	(void)arg;
	return atomic_load_explicit(&task->over, memory_order_acquire);
}

/* If the thread has ended, it is joined and a new one is started. If that fails, the task counts as
 * over, and the next call tries again. */
static void real_task_again(void *arg, struct shf_task *task)
{
	bool ended;

	(void)arg;
	pthread_mutex_lock(&task->lock);
	ended = task->ended;
	task->stays = true;
	task->more = !ended;
	task->ended = false;
	atomic_store(&task->over, false);
	pthread_cond_signal(&task->woken);
	pthread_mutex_unlock(&task->lock);
	if (!ended)
		return;
	if (task->joinable)
		pthread_join(task->thread, NULL);
	if (task_start(task) < 0) { /* the next call tries again */
		task->ended = true;
		atomic_store(&task->over, true);
	}
}

/* The lock is held while stop is set, so that a thread in rest() cannot miss the signal. */
static void real_task_free(void *arg, struct shf_task *task)
{
	(void)arg;
	if (!task)
		return;
	pthread_mutex_lock(&task->lock);
	atomic_store(&task->stop, true);
	pthread_cond_signal(&task->woken);
	pthread_mutex_unlock(&task->lock);
	if (task->joinable)
		pthread_join(task->thread, NULL);
	task_end(task);
}

const struct shf_task_ops shf_real_task = {
	.cpus = real_cpus,
	.task_new = real_task_new,
	.task_over = real_task_over,
	.task_again = real_task_again,
	.task_free = real_task_free,
};
