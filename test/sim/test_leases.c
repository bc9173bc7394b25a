/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that somebody has open while a job prunes. */
#include "engine.h"
#include "jobs.h"

#include "../t.h"

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
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_READONLY };
	struct simdisk *disk = simdisk_new(JOB_SEED, SIMDISK_STRICT);
	struct job saves = job_on(disk, DEED_SAVE, 4), prunes[2];
	struct sheaf_run *reader = NULL;
	struct sheaf_step *step = NULL;
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
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_READONLY };
	struct simdisk *disk = simdisk_new(JOB_SEED, SIMDISK_STRICT);
	struct job saves = job_on(disk, DEED_SAVE, 4), prunes;
	struct sheaf_run *reader = NULL;
	struct sheaf_step *step = NULL;
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
