/* SPDX-License-Identifier: Apache-2.0 */
/* Loads into memory that was never touched (lib/load/load_prefault.h): which of it a thread touches
 * ahead, and when it must not. The disk is real; what is untouched and what is cached is decided by
 * the test. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "rmtree.h"
#include "run.h"
#include "sys.h"
#include "t.h"
#include "run_open.h"
#include "step.h"
#include "sys_tables.h"

/* Of 2^20 items, 4 MiB each. The last three are cut in rows, half of a flat range, and small. */
enum { WHOLE = 18, ROWS = WHOLE, FLAT, SMALL, SLICES, ITEMS = 1 << 20, FEW = 1000 };

struct world {
	char dir[32];
	struct shf_sys sys;
	struct sheaf_state *saved, *loaded;
	uint32_t *from[SLICES], *to[SLICES];
	size_t to_bytes[SLICES];
};
static struct {
	struct sys_tables ops;
	int cpus;
	bool cached;
	const uint32_t *used;           /* the slice whose memory was written before */
	uint32_t *const *to;
	const size_t *bytes;
	atomic_int touches, astray;
	atomic_uint_fast64_t touched;   /* bytes */
} s;

static const struct shf_sys *real(void)
{
	return shf_sys_real();
}

static int slice_of(const void *at, uint64_t n)
{
	const uint8_t *p = at;

	for (int i = 0; i < SLICES; i++)
		if (p >= (const uint8_t *)s.to[i] && p + n <= (const uint8_t *)s.to[i] + s.bytes[i])
			return i;
	return -1;
}

static bool on_touched(void *arg, const void *at)
{
	int i = slice_of(at, 1);

	(void)arg;
	return i < 0 || s.to[i] == s.used;
}

static void on_touch(void *arg, const void *at, uint64_t n, bool write)
{
	int i = slice_of(at, n);

	if (!write || i < 0 || i == ROWS || i == SMALL || s.to[i] == s.used)
		atomic_fetch_add(&s.astray, 1);
	real()->shm.ops->touch(arg, at, n, write);
	atomic_fetch_add(&s.touched, n);
	atomic_fetch_add(&s.touches, 1);
}

static int on_cpus(void *arg)
{
	(void)arg;
	return s.cpus;
}

static int64_t on_resident(void *arg, int fd, uint64_t off, uint64_t n)
{
	(void)arg;
	(void)fd;
	(void)off;
	return s.cached ? (int64_t)n : 0;
}

/* The disk is slow enough for a thread to begin. */
static int on_complete(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms)
{
	for (int i = 0; i < 500 && atomic_load(&s.touches) == 0 && s.cpus > 1; i++)
		real()->host.ops->sleep_ms(arg, 1);
	return real()->queue.ops->complete(arg, queue, io, timeout_ms);
}

static uint32_t value(int slice, size_t i)
{
	return (uint32_t)(slice * 40503 + 7) * 2654435761u + (uint32_t)i;
}

static uint32_t *memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static struct sheaf_slice slice(int i, char name[16], uint32_t *data)
{
	struct sheaf_slice l = { .size = sizeof(l), .ndim = 1, .dtype = SHEAF_U32, .data = data };

	snprintf(name, 16, "t.%02d", i);
	l.name = name;
	l.family = i % 2 ? "optimizer" : "model";
	l.shape[0] = l.count[0] = i == SMALL ? FEW : ITEMS;
	if (i == ROWS) {
		l.ndim = 2;
		l.shape[0] = l.shape[1] = l.count[0] = l.count[1] = 1024;
	}
	return l;
}

static size_t bytes_of(int i)
{
	size_t items = i == SMALL ? FEW : i == FLAT ? ITEMS / 2 : i == ROWS ? 2 * ITEMS : ITEMS;

	return items * sizeof(uint32_t);
}

static void world_init(struct world *w)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE };
	struct sheaf_run *run;
	struct sheaf_save *save;
	struct sheaf_error err;
	char name[16];

	*w = (struct world){ .dir = "ahead.XXXXXX" };
	CHECK(mkdtemp(w->dir) != NULL);
	w->saved = sheaf_state_new();
	w->loaded = sheaf_state_new();
	for (int i = 0; i < SLICES; i++) {
		struct sheaf_slice in;

		w->from[i] = memory(ITEMS * sizeof(uint32_t));
		for (size_t k = 0; k < ITEMS; k++)
			w->from[i][k] = value(i, k);
		w->to_bytes[i] = bytes_of(i);
		w->to[i] = memory(w->to_bytes[i]);
		in = slice(i, name, w->from[i]);
		CHECK_INT(sheaf_state_add(w->saved, &in, NULL), i);
	}
	/* Of two files, and in no order of theirs. */
	for (int n = 0; n < SLICES; n++) {
		int i = n * 5 % SLICES;
		struct sheaf_slice out = slice(i, name, w->to[i]);

		if (i == ROWS) {
			out.stride[0] = 2048;
			out.stride[1] = 1;
		}
		if (i == FLAT) {
			out.flags = SHEAF_SLICE_FLAT;
			out.flat_start = out.flat_count = ITEMS / 2;
		}
		CHECK_INT(sheaf_state_add(w->loaded, &out, NULL), n);
	}
	CHECK_RC(sheaf_run_open(&run, w->dir, NULL, &opts, &err), 0, &err);
	CHECK_RC(sheaf_save_begin(&save, run, 1, w->saved, NULL, &err), 0, &err);
	CHECK_RC(sheaf_save_commit(save, -1, &err), 0, &err);
	sheaf_save_free(save);
	sheaf_run_close(run);
	s.ops = sys_tables_of(real());
	s.ops.shm.touched = on_touched;
	s.ops.shm.touch = on_touch;
	s.ops.task.cpus = on_cpus;
	s.ops.file.resident = on_resident;
	s.ops.queue.complete = on_complete;
	s.cpus = 2;
	s.cached = false;
	s.used = NULL;
	s.to = w->to;
	s.bytes = w->to_bytes;
	w->sys = sys_tables_sys(&s.ops, NULL);
}

static void world_release(struct world *w)
{
	sheaf_state_free(w->saved);
	sheaf_state_free(w->loaded);
	for (int i = 0; i < SLICES; i++) {
		munmap(w->from[i], ITEMS * sizeof(uint32_t));
		munmap(w->to[i], w->to_bytes[i]);
	}
	rmtree(w->dir);
}

/* Into memory that is new again. Whoever touched it is done when the load is. */
static int load(struct world *w, struct sheaf_error *err)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY, .io_threads = 2 };
	struct sheaf_run *run;
	struct sheaf_checkpoint *step;
	int rc, touches;

	for (int i = 0; i < SLICES; i++)
		CHECK_INT(madvise(w->to[i], w->to_bytes[i], MADV_DONTNEED), 0);
	atomic_store(&s.touches, 0);
	atomic_store(&s.astray, 0);
	atomic_store(&s.touched, 0);
	CHECK_RC(shf_run_open(&run, w->dir, NULL, &opts, &w->sys, err), 0, err);
	CHECK_RC(sheaf_checkpoint_open(&step, run, 1, err), 0, err);
	rc = sheaf_checkpoint_load(step, w->loaded, 0, NULL, err);
	touches = atomic_load(&s.touches);
	sheaf_checkpoint_close(step);
	sheaf_run_close(run);
	CHECK_INT(atomic_load(&s.touches), touches);
	CHECK_INT(atomic_load(&s.astray), 0);
	return rc;
}

static size_t wrong(const struct world *w)
{
	size_t bad = 0;

	for (int i = 0; i < SLICES; i++)
		for (size_t k = 0; k < (i == SMALL ? FEW : i == FLAT ? ITEMS / 2 : ITEMS); k++)
			bad += i == ROWS ? w->to[i][k / 1024 * 2048 + k % 1024] != value(i, k)
			                 : w->to[i][k] != value(i, i == FLAT ? k + ITEMS / 2 : k);
	return bad;
}

TEST(new_memory_is_touched_before_it_is_filled)
{
	struct world w;
	struct sheaf_error err;

	world_init(&w);
	CHECK_RC(load(&w, &err), 0, &err);
	CHECK_INT(wrong(&w), 0);
	CHECK(atomic_load(&s.touches) > 0);
	CHECK(atomic_load(&s.touched) <= WHOLE * w.to_bytes[0] + w.to_bytes[FLAT]);
	s.used = w.to[3]; /* 70 MiB are left that are new */
	CHECK_RC(load(&w, &err), 0, &err);
	CHECK_INT(wrong(&w), 0);
	CHECK(atomic_load(&s.touches) > 0);
	world_release(&w);
}

TEST(no_thread_where_it_would_spare_nothing)
{
	struct world w;
	struct sheaf_error err;

	world_init(&w);
	s.cpus = 1;
	CHECK_RC(load(&w, &err), 0, &err);
	CHECK_INT(atomic_load(&s.touches), 0);
	CHECK_INT(wrong(&w), 0);
	s.cpus = 2;
	s.cached = true;
	CHECK_RC(load(&w, &err), 0, &err);
	CHECK_INT(atomic_load(&s.touches), 0);
	CHECK_INT(wrong(&w), 0);
	world_release(&w);
}

static int no_task(void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
                   const char *cpus)
{
	(void)arg;
	(void)task;
	(void)step;
	(void)work;
	(void)cpus;
	return -EAGAIN;
}

TEST(where_no_thread_can_be_had_the_load_goes_without)
{
	struct world w;
	struct sheaf_error err;

	world_init(&w);
	s.ops.task.task_new = no_task;
	s.ops.queue.complete = real()->queue.ops->complete; /* which would wait for it */
	CHECK_RC(load(&w, &err), 0, &err);
	CHECK_INT(atomic_load(&s.touches), 0);
	CHECK_INT(wrong(&w), 0);
	world_release(&w);
}

TEST(a_load_that_fails_waits_for_the_thread)
{
	struct world w;
	struct sheaf_error err;
	char path[100], c;
	int fd;

	world_init(&w);
	snprintf(path, sizeof(path), "%s/checkpoint-1/model-00001-of-00001.safetensors", w.dir);
	fd = open(path, O_RDWR);
	CHECK_INT(pread(fd, &c, 1, 9 << 20), 1);
	c ^= 1;
	CHECK_INT(pwrite(fd, &c, 1, 9 << 20), 1);
	close(fd);
	CHECK_RC(load(&w, &err), SHEAF_ECORRUPT, &err);
	CHECK(strstr(err.msg, "model-00001-of-00001.safetensors"));
	world_release(&w);
}
