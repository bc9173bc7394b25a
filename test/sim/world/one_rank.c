/* SPDX-License-Identifier: Apache-2.0 */
#include "one_rank.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "flush.h"
#include "load.h"
#include "run_ops.h"
#include "run_open.h"
#include "save.h"
#include "save_commit.h"
#include "save_end.h"
#include "simover.h"
#include "state.h"
#include "step.h"
#include "step_open.h"

/* Stops the program if a condition of the test is not met. */
static void must(bool does, const char *what, const struct one *o)
{
	if (does)
		return;
	fprintf(stderr, "one_rank: %s: %s\n", what, o->err.msg);
	abort();
}

static void open_run(struct one *o, uint64_t flags, int keep_last)
{
	static uint64_t pid = 60000;
	struct shf_opts opts = { .flags = flags, .agent = "auto",
		.images_max = 4, .io_threads = 1, .keep_last = keep_last, .grace_s = -1 };

	o->sys = simdisk_process(o->disk, pid++, 0);
	must(shf_run_open(&o->run, "run", NULL, &opts, o->sys, &o->err) == 0, "open", o);
}

struct one one_new(int keep_last)
{
	struct one o = { .disk = re_world(3) };

	o.state = re_state(&o.mine, 0, 1);
	open_run(&o, SHEAF_RUN_CREATE, keep_last);
	return o;
}

void one_dies(struct one *o)
{
	simdisk_kill(o->disk, o->sys);
	shf_run_close(o->run);  /* frees memory only */
	o->run = NULL;
}

void one_next(struct one *o)
{
	open_run(o, 0, 0);
}

void one_end(struct one *o)
{
	if (o->run) {
		shf_run_close(o->run);
		must(simdisk_open_n(o->sys) == 0, "descriptors are left", o);
		simdisk_kill(o->disk, o->sys);
	}
	shf_state_put(o->state);
	re_free(&o->mine);
	simdisk_free(o->disk);
}

struct sheaf_save *one_begin(struct one *o, int64_t step, uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;

	re_paint(&o->mine, step);
	must(shf_save_begin(&save, o->run, step, o->state, &opts, &o->err) == 0, "begin", o);
	return save;
}

int one_commit(struct one *o, struct sheaf_save *save)
{
	int rc = shf_save_commit(save, -1, &o->err);

	shf_save_free(save);
	return rc;
}

void one_saves(struct one *o, int64_t step, uint64_t flags)
{
	must(one_commit(o, one_begin(o, step, flags)) == 0, "commit", o);
}

static bool breaks, renamed;

static int rename_seen(void *arg, int from_dir, const char *from, int to_dir, const char *to,
                       bool noreplace)
{
	renamed |= breaks && strncmp(to, "checkpoint-", 11) == 0;
	return simover_real()->disk.rename(arg, from_dir, from, to_dir, to, noreplace);
}

static int fsync_fails(void *arg, int fd)
{
	return renamed ? -EIO : simover_real()->disk.fsync(arg, fd);
}

void one_sync_fails(struct one *o, bool fails)
{
	simover(o->sys)->disk.rename = rename_seen;
	simover(o->sys)->disk.fsync = fsync_fails;
	breaks = fails;
	renamed = false;
}

void one_doubts(struct one *o, struct sheaf_save *save, bool gone)
{
	char path[40];

	snprintf(path, sizeof(path), "run/checkpoint-%lld", (long long)save->id.step);
	one_sync_fails(o, true);
	must(one_commit(o, save) == SHEAF_EINDOUBT, "a commit in doubt", o);
	one_sync_fails(o, false);
	if (gone)
		must(simdisk_remove(o->disk, path) == 0, "remove", o);
}

int64_t one_loads(struct one *o, int64_t step, bool *memory)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *s = NULL;
	int64_t n = shf_step_open(&s, o->run, step, &o->err);
	int rc;

	if (n < 0)
		return n;
	n = s->number;
	rc = shf_step_load(s, o->state, SHEAF_LOAD_STRICT, &report, &o->err);
	shf_step_put(s);
	if (rc < 0)
		return rc;
	must(re_wrong(&o->mine, n) == 0, "wrong values", o);
	if (memory)
		*memory = report.memory_bytes > 0;
	return n;
}

int64_t one_flush(struct one *o, bool due)
{
	static uint64_t pid = 65000;
	const struct shf_sys *sys = simdisk_process(o->disk, pid++, 0);
	int64_t step = -2;
	int rc = shf_flush_newest("run", NULL, due, 0, sys, &step, NULL, &o->err);

	must(simdisk_open_n(sys) == 0, "descriptors of a flush are left", o);
	simdisk_kill(o->disk, sys);
	return rc < 0 ? rc : step;
}

bool one_on_disk(const struct one *o, int64_t step)
{
	char path[60];

	snprintf(path, sizeof(path), "run/checkpoint-%lld/sheaf.json", (long long)step);
	return simdisk_exists(o->disk, path);
}
