/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of several threads that share a run's queue (lib/run/run_io.h), and the files that they
 * are for. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "t.h"
#include "metrics.h"
#include "run.h"
#include "run_io.h"
#include "sys_tables.h"

static struct {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	bool counted, looked;           /* guarded by lock */
} at = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false };

static void set(bool *what)
{
	pthread_mutex_lock(&at.lock);
	*what = true;
	pthread_cond_broadcast(&at.moved);
	pthread_mutex_unlock(&at.lock);
}

static void await(const bool *what)
{
	pthread_mutex_lock(&at.lock);
	while (!*what)
		pthread_cond_wait(&at.moved, &at.lock);
	pthread_mutex_unlock(&at.lock);
}

/* Submits the request only when another thread, which saw it counted, has found the queue empty. */
static int late_submit(void *arg, struct shf_queue *queue, struct shf_io *io)
{
	set(&at.counted);
	await(&at.looked);
	return shf_sys_real()->queue.ops->submit(arg, queue, io);
}

static int told_complete(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms)
{
	int rc = shf_sys_real()->queue.ops->complete(arg, queue, io, timeout_ms);

	if (rc == 0)
		set(&at.looked);
	return rc;
}

static void done(struct shf_io_owner *owner, struct shf_io *io)
{
	(void)owner;
	(void)io;
}

struct drain {
	struct sheaf_run *run;
	struct shf_io_owner owner;
	int rc;
};

static void *drain(void *arg)
{
	struct drain *d = arg;

	await(&at.counted);
	d->rc = shf_io_drain(d->run, &d->owner, -1);
	return NULL;
}

TEST(a_wait_for_ever_waits_for_a_request_that_another_thread_is_handing_over)
{
	struct sys_tables ops = sys_tables_of(shf_sys_real());
	struct shf_sys sys = sys_tables_sys(&ops, NULL);
	struct drain d = { .owner = { .done = done }, .rc = 1 };
	struct shf_io io = { .op = SHF_IO_FSYNC, .fd = memfd_create("test_run_io", MFD_CLOEXEC) };
	struct sheaf_error err;
	pthread_t thread;

	ops.queue.submit = late_submit;
	ops.queue.complete = told_complete;
	CHECK(io.fd >= 0);
	CHECK_RC(shf_run_open_bare(&d.run, NULL, NULL, &sys, NULL, SHF_CALL_NONE, &err), 0, &err);
	CHECK_INT(pthread_create(&thread, NULL, drain, &d), 0);
	CHECK_INT(shf_io_submit(d.run, &d.owner, &io), 0);
	CHECK_INT(pthread_join(thread, NULL), 0);
	CHECK_INT(d.rc, 0);
	CHECK_INT(io.result, 0);
	shf_run_put(d.run);
	close(io.fd);
}

TEST(what_goes_past_the_page_cache_waits_for_a_busy_disk)
{
	char name[] = "test_run_io.XXXXXX";
	int own = mkstemp(name), fd[2];

	CHECK(own >= 0);
	for (int i = 0; i < 2; i++)
		fd[i] = shf_sys_open(shf_sys_real(), SHF_CWD, name, SHF_O_WRITE | SHF_O_DIRECT, 0);
	CHECK_INT(unlink(name), 0);
	close(own);
	if (fd[0] < 0)
		skip(); /* this file system has no such way */
	for (int i = 0; i < 2; i++) {
		CHECK(fcntl(fd[i], F_GETFL) & O_DIRECT);
		CHECK_INT(fcntl(fd[i], F_GETFL) & O_NONBLOCK, 0);
		CHECK_INT(shf_sys_close(shf_sys_real(), fd[i]), 0);
	}
}

TEST(metrics_are_written_into_no_pipe)
{
	char dir[] = "test_run_io.XXXXXX", text[60];
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE };
	struct sheaf_run *run = NULL;
	struct sheaf_error err;

	CHECK(mkdtemp(dir) != NULL);
	CHECK_RC(sheaf_run_open(&run, dir, NULL, &opts, &err), 0, &err);
	snprintf(text, sizeof(text), "%s/.sheaf/metrics.jsonl", dir);
	CHECK_INT(mkfifo(text, 0600), 0);
	CHECK_RC(shf_metrics_add(&run->store, "{}", &err), SHEAF_EIO, &err);
	CHECK_INT(err.sys, EINVAL);
	sheaf_run_close(run);
	snprintf(text, sizeof(text), "rm -rf %s", dir);
	CHECK_INT(system(text), 0);
}
