/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that somebody has open while a job prunes. */
#include <errno.h>
#include "aside.h"
#include "manifest_read.h"
#include "step.h"
#include "jobs.h"
#include "run_open.h"
#include "step_open.h"
#include "run_ops.h"

#include "t.h"

static struct job job_on(struct simdisk *disk, enum deed_kind kind, int64_t last)
{
	struct job j = { .disk = disk, .ranks = 2, .group = { .seed = 7 } };

	for (int64_t step = 1; step <= last; step++)
		j.deeds[j.deeds_n++] = (struct deed){ .kind = kind, .step = step };
	return j;
}

static void run_it(struct job *j)
{
	job_prepare(j);
	CHECK(job_run(j));
	CHECK_STR(j->why, "");
	CHECK_INT(job_rc(j), 0);
}

static bool has(struct simdisk *disk, int step)
{
	char path[80];

	snprintf(path, sizeof(path), "run/checkpoint-%d/sheaf.json", step);
	return simdisk_exists(disk, path);
}

TEST(a_step_that_is_open_for_reading_is_not_pruned_before_it_is_closed)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	struct simdisk *disk = simdisk_new(JOB_SEED, SIMDISK_STRICT);
	struct job saves = job_on(disk, DEED_SAVE, 4), prunes[2];
	struct sheaf_run *reader = NULL;
	struct sheaf_checkpoint *step = NULL;
	const struct shf_sys *sys;
	struct sheaf_error err;

	run_it(&saves);
	sys = simdisk_process(disk, 4000, 1);
	CHECK_RC(shf_run_open(&reader, "run", NULL, &opts, sys, &err), 0, &err);
	CHECK_RC(shf_step_open(&step, reader, 2, &err), 0, &err);
	for (int i = 0; i < 2; i++) {
		prunes[i] = job_on(disk, DEED_PRUNE, 1);
		prunes[i].keep_last = 2;
		run_it(&prunes[i]);
		CHECK(has(disk, 2) == (i == 0));
		CHECK(!has(disk, 1) && has(disk, 3) && has(disk, 4));
		if (i == 0) {
			shf_step_put(step);
			shf_run_close(reader);
			CHECK_INT(simdisk_open_n(sys), 0);
		}
	}
	simdisk_free(disk);
}

/* The lock of a lease is shared with forked children, and a killed reader gives nothing up. */
TEST(a_step_that_a_killed_reader_had_open_stays_until_its_children_have_exited)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	struct simdisk *disk = simdisk_new(JOB_SEED, SIMDISK_STRICT);
	struct job saves = job_on(disk, DEED_SAVE, 4), prunes;
	struct sheaf_run *reader = NULL;
	struct sheaf_checkpoint *step = NULL;
	const struct shf_sys *sys, *child;
	struct sheaf_error err;

	run_it(&saves);
	sys = simdisk_process(disk, 4000, 1);
	CHECK_RC(shf_run_open(&reader, "run", NULL, &opts, sys, &err), 0, &err);
	CHECK_RC(shf_step_open(&step, reader, 2, &err), 0, &err);
	child = simdisk_fork(disk, sys, 4001);
	simdisk_kill(disk, sys);
	for (int i = 0; i < 2; i++) {
		prunes = job_on(disk, DEED_PRUNE, 1);
		prunes.keep_last = 2;
		run_it(&prunes);
		CHECK(has(disk, 2) == (i == 0));
		simdisk_kill(disk, child);
	}
	shf_step_put(step);
	shf_run_close(reader);
	simdisk_free(disk);
}

/* ---- a prune and an open at the same time ---- */

static struct both {
	struct simdisk *disk;
	struct shf_store owner;
	struct sheaf_run *reader;
	struct sheaf_checkpoint *step;  /* once the reader has it open */
	long left;                      /* calls until the other one has its turn */
	char aside[100];                /* the step of that number that was saved first */
	int64_t number;
	int rc;
	struct sheaf_error err;
} both;

static void prune_all_but_the_newest(void)
{
	struct shf_prune p = { .keep_last = 1, .verified = { .step = 4 }, .keep = -1,
		.grace_s = -1 };

	CHECK(shf_store_prune(&both.owner, &p, NULL, NULL, &both.err) >= 0);
}

static void open_it(void)
{
	both.rc = shf_step_open(&both.step, both.reader, both.number, &both.err);
}

static void reader_opens(void *arg)
{
	(void)arg;
	if (--both.left == 0)
		open_it();
}

static void owner_prunes(void *arg)
{
	(void)arg;
	if (--both.left == 0)
		prune_all_but_the_newest();
}

/* Steps 1 to n of a job, a run that is open to read, and one who may prune. */
static void begin_both(int64_t n, long at, int64_t number)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	struct job saves;

	memset(&both, 0, sizeof(both));
	both.disk = simdisk_new(JOB_SEED, SIMDISK_STRICT);
	saves = job_on(both.disk, DEED_SAVE, n);
	both.number = number;
	both.left = at;
	run_it(&saves);
	CHECK_RC(shf_store_own(&both.owner, simdisk_process(both.disk, 5000, 0), "run", false, 0,
	                       &both.err), 0, &both.err);
	CHECK_RC(shf_run_open(&both.reader, "run", NULL, &opts,
	                      simdisk_process(both.disk, 4000, 1), &both.err), 0, &both.err);
}

static void end_both(void)
{
	shf_step_put(both.step);
	shf_run_close(both.reader);
	shf_store_close(&both.owner);
	simdisk_free(both.disk);
}

/* What is open is there and stays there; what is not has gone, or a prune is about to take it. */
static int opened_or_told(void)
{
	if (both.rc == 0) {
		CHECK_INT(both.step->number, both.number);
		CHECK(has(both.disk, 2));
		prune_all_but_the_newest();
		CHECK(has(both.disk, 2));
		return 1;
	}
	CHECK_RC(both.rc, both.rc == SHEAF_ENOENT ? SHEAF_ENOENT : SHEAF_EIO, &both.err);
	CHECK(both.rc == SHEAF_ENOENT || strstr(both.err.msg, "was deleted or moved"));
	return both.rc == SHEAF_ENOENT ? 0 : 2;
}

TEST(whenever_a_reader_opens_a_step_during_a_prune_it_has_it_or_is_told)
{
	int seen[3] = { 0 };
	bool came;

	for (long at = 1;; at++) {
		begin_both(4, at, 2);
		simdisk_set_turn(both.disk, reader_opens, NULL);
		prune_all_but_the_newest();
		came = both.left <= 0;
		simdisk_set_turn(both.disk, NULL, NULL);
		if (came)
			seen[opened_or_told()]++;
		end_both();
		if (!came)
			break;
	}
	CHECK(seen[0] > 1 && seen[1] > 1 && seen[2] > 0);
}

TEST(whenever_a_step_is_pruned_while_a_reader_opens_it_the_reader_has_it_or_is_told)
{
	int seen[3] = { 0 };
	bool came;

	for (long at = 1;; at++) {
		begin_both(4, at, 2);
		simdisk_set_turn(both.disk, owner_prunes, NULL);
		open_it();
		came = both.left <= 0;
		simdisk_set_turn(both.disk, NULL, NULL);
		if (came)
			seen[opened_or_told()]++;
		end_both();
		if (!came)
			break;
	}
	CHECK(seen[0] > 1 && seen[1] > 1 && seen[2] == 0);
}

/* A hand puts the step that was set aside back into the place of the one that is being opened. */
static void hand_replaces(void *arg)
{
	const struct shf_sys *s = both.owner.sys;

	(void)arg;
	if (--both.left != 0)
		return;
	CHECK_INT(shf_sys_rename(s, SHF_CWD, "run/checkpoint-2", SHF_CWD, "was", true), 0);
	CHECK_INT(shf_sys_rename(s, SHF_CWD, both.aside, SHF_CWD, "run/checkpoint-2", true), 0);
}

TEST(a_step_that_is_replaced_while_it_is_opened_is_one_of_the_two)
{
	int seen[2] = { 0 };
	bool came;

	for (long at = 1;; at++) {
		struct shf_arena arena = { NULL, 0 };
		struct shf_manifest m, now;
		struct job again;
		bool second;

		begin_both(2, at, 2);
		CHECK_RC(shf_store_manifest(&both.owner, 2, &m, &arena, &both.err), 0, &both.err);
		snprintf(both.aside, sizeof(both.aside), "run/.sheaf/aside/2-%s", m.session);
		CHECK_RC(shf_store_rewind(&both.owner, 1, &both.err), 0, &both.err);
		shf_store_close(&both.owner);
		again = job_on(both.disk, DEED_SAVE, 1);
		again.deeds[0] = (struct deed){ .kind = DEED_SAVE, .step = 2, .salt = 5 };
		run_it(&again);
		CHECK_RC(shf_store_own(&both.owner, simdisk_process(both.disk, 5001, 0), "run",
		                       false, 0, &both.err), 0, &both.err);
		simdisk_set_turn(both.disk, hand_replaces, NULL);
		open_it();
		came = both.left <= 0;
		simdisk_set_turn(both.disk, NULL, NULL);
		CHECK_RC(both.rc, 0, &both.err);
		CHECK_RC(shf_manifest_read(both.reader->sys, both.step->dir, "it", &now, &arena,
		                           &both.err), 0, &both.err);
		CHECK_STR(both.step->manifest.session, now.session);
		second = strcmp(now.session, m.session) != 0;
		seen[second]++;
		shf_arena_release(&arena);
		end_both();
		if (!came)
			break;
	}
	CHECK(seen[0] > 1 && seen[1] > 1);
}
