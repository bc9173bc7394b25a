/* SPDX-License-Identifier: Apache-2.0 */
/* One process deletes the files of dead jobs and pruned steps while other ranks wait. On a disk
 * that deletes slowly each call spends its share of the deadline on it, and later calls delete the
 * rest. */
#include <errno.h>
#include "step.h"
#include "restarts.h"
#include "run.h"
#include "save.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_status.h"
#include "state.h"
#include "run_ops.h"

enum { DEADLINE_MS = 60000, SHARE_MS = DEADLINE_MS / 4, UNLINK_MS = 7000 };

struct trainer {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_error err;
	int late;                       /* log lines that say that not all could be deleted */
};

static void hear(void *arg, int level, const char *line)
{
	struct trainer *t = arg;

	t->late += level == 1 && strstr(line, "are not deleted yet") != NULL;
}

static struct trainer trainer_on(struct simdisk *disk)
{
	static uint64_t pid = 70000;

	return (struct trainer){ .disk = disk, .sys = simdisk_process(disk, pid++, 0) };
}

static void open_run(struct trainer *t, int keep_last)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .io_threads = 1,
		.timeout_ms = DEADLINE_MS, .keep_last = keep_last, .log = hear, .arg = t };

	CHECK_RC(shf_run_open(&t->run, "run", NULL, &opts, t->sys, &t->err), 0, &t->err);
}

static struct sheaf_save *begun(struct trainer *t, int64_t step)
{
	struct sheaf_save *save = NULL;
	struct re_mine m = { 0 };
	struct sheaf_state *state = re_state(&m, 0, 1);

	CHECK_RC(shf_save_begin(&save, t->run, step, state, NULL, &t->err), 0, &t->err);
	shf_state_put(state);
	re_free(&m);
	return save;
}

static void saved(struct trainer *t, int64_t step)
{
	struct sheaf_save *save = begun(t, step);

	CHECK_RC(shf_save_commit(save, -1, &t->err), 0, &t->err);
	shf_save_free(save);
}

static void killed(struct trainer *t)
{
	simdisk_kill(t->disk, t->sys);
	shf_run_close(t->run);
}

struct entries {
	char names[64][96];
	int n;
};

static int note(void *arg, const char *name)
{
	struct entries *e = arg;

	snprintf(e->names[e->n++], sizeof(e->names[0]), "%s", name);
	return 0;
}

/* How many names are below that folder, at any depth. */
static int below(struct simdisk *d, const struct shf_sys *sys, const char *path)
{
	int fd = shf_sys_open(sys, SHF_CWD, path, SHF_O_DIR, 0), n = 0;
	struct entries e = { .n = 0 };
	char more[400];

	if (fd < 0)
		return 0;
	CHECK_INT(shf_sys_list(sys, fd, note, &e), 0);
	shf_sys_close(sys, fd);
	for (int i = 0; i < e.n; i++) {
		snprintf(more, sizeof(more), "%s/%s", path, e.names[i]);
		n += 1 + below(d, sys, more);
	}
	return n;
}

static int left(struct trainer *t)
{
	const struct shf_sys *sys = simdisk_process(t->disk, 90000, 0);
	int n = below(t->disk, sys, "run/.sheaf/trash") + below(t->disk, sys, "run/.sheaf/stage");

	simdisk_kill(t->disk, sys);
	return n;
}

TEST(a_prune_deletes_for_its_share_of_the_deadline_and_the_next_goes_on)
{
	struct simdisk *disk = re_world(1);
	struct trainer t = trainer_on(disk);
	int64_t gone, began;
	int before, first;

	open_run(&t, 0);
	for (int step = 1; step <= 6; step++)
		saved(&t, step);
	shf_run_close(t.run);
	open_run(&t, 1);
	CHECK_RC(shf_run_prune(t.run, false, NULL, NULL, &t.err) < 0, 0, &t.err);
	simdisk_advance(disk, 100000);  /* the grace is over */
	first = before = left(&t);
	CHECK(before > 20);
	simdisk_set_takes(disk, SIMDISK_UNLINK, UNLINK_MS);
	for (int calls = 0; left(&t); calls++) {
		CHECK(calls < first);
		began = simdisk_clock_ms(disk);
		t.late = 0;
		gone = shf_run_prune(t.run, false, NULL, NULL, &t.err);
		CHECK_INT(gone, 0);
		CHECK_INT(t.late, left(&t) > 0);
		CHECK(simdisk_clock_ms(disk) - began < SHARE_MS + 2 * UNLINK_MS + 1000);
		CHECK(left(&t) < before);
		before = left(&t);
	}
	simdisk_set_takes(disk, SIMDISK_UNLINK, 0);
	killed(&t);
	simdisk_free(disk);
}

TEST(an_open_deletes_what_the_dead_left_for_its_share_of_the_deadline)
{
	struct simdisk *disk = re_world(2);
	struct trainer t = trainer_on(disk);
	int first, opens = 0;

	for (int step = 1; step <= 4; step++) {
		struct sheaf_save *save;

		t = trainer_on(disk);
		open_run(&t, 0);
		save = begun(&t, step);
		simdisk_kill(disk, t.sys);
		shf_save_free(save);
		shf_run_close(t.run);
		if (step < 4)
			simdisk_set_takes(disk, SIMDISK_UNLINK, 10 * DEADLINE_MS);
	}
	simdisk_set_takes(disk, SIMDISK_UNLINK, UNLINK_MS);
	first = left(&t);
	CHECK(first > 6);
	for (; left(&t); opens++) {
		int64_t began = simdisk_clock_ms(disk);

		CHECK(opens < first);
		t = trainer_on(disk);
		open_run(&t, 0);
		CHECK(simdisk_clock_ms(disk) - began < SHARE_MS + 2 * UNLINK_MS + 2000);
		CHECK_INT(t.late, left(&t) > 0);
		killed(&t);
	}
	CHECK(opens > 1);
	simdisk_free(disk);
}

TEST(a_save_that_failed_is_deleted_for_its_share_of_the_deadline_and_the_rest_later)
{
	struct simdisk *disk = re_world(3);
	struct trainer t = trainer_on(disk);
	struct sheaf_save *save;
	int64_t began;
	int calls = 0;

	open_run(&t, 1);
	saved(&t, 1);
	save = begun(&t, 2);
	CHECK_INT(shf_save_fail(save, "the loss is no number", NULL), 0);
	simdisk_set_takes(disk, SIMDISK_UNLINK, UNLINK_MS);
	began = simdisk_clock_ms(disk);
	CHECK_INT(shf_save_commit(save, -1, &t.err), SHEAF_EFAILED);
	shf_save_free(save);
	CHECK(simdisk_clock_ms(disk) - began < SHARE_MS + 3 * UNLINK_MS + 2000);
	CHECK(left(&t) > 0);
	for (; left(&t); calls++) {
		CHECK(calls < 20);
		CHECK_RC(shf_run_prune(t.run, false, NULL, NULL, &t.err), 0, &t.err);
	}
	killed(&t);
	simdisk_free(disk);
}
