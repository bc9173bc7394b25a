/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that load a step from memory and get no further are counted, and a step that too many of
 * them loaded is passed over. test_tries.c does the same for steps on disk. */
#include "step.h"
#include "restarts.h"
#include "save.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "step_open.h"
#include "run_ops.h"
#include "load.h"

/* Runs n jobs, one after another, that load, save nothing and die. Job i must load loads[i]. */
static void die_on(struct simdisk *d, int attempts, const int *loads, int n)
{
	for (int i = 0; i < n; i++) {
		struct re_job k = re_on(d, 2, (struct re_plan){ .stop = true, .dies = true,
		                                                .attempts = attempts });

		PLAYED(k, 0);
		if (k.loaded != loads[i])
			print_error("job %d\n", i);
		CHECK_INT(k.loaded, loads[i]);
	}
}

TEST(jobs_that_die_after_a_load_from_memory_condemn_nothing_by_default)
{
	static const int loads[] = { 5, 5, 5, 5, 5 };

	for (int every = 0; every < 4; every += 3) {
		struct simdisk *d = re_world(6);
		struct re_job j = re_on(d, 2, (struct re_plan){ .last = 5, .disk_every = every,
		                                                .images = 3 });

		PLAYED(j, 0);
		die_on(d, 0, loads, 5);
		simdisk_free(d);
	}
}

TEST(a_step_in_memory_that_so_many_jobs_died_of_is_passed_over_if_an_older_one_is_left)
{
	static const int with_disk[] = { 5, 5, 4, 4, 3, 3, 3 }, without[] = { 5, 5, 4, 4, 4, 4, 4 };

	for (int every = 0; every < 4; every += 3) {
		struct simdisk *d = re_world(6);
		struct re_job j = re_on(d, 2, (struct re_plan){ .last = 5, .disk_every = every,
		                                                .images = every ? 3 : 2 });

		PLAYED(j, 0);
		die_on(d, 2, every ? with_disk : without, 7);
		simdisk_free(d);
	}
}

TEST(resumes_from_memory_and_from_disk_are_counted_together)
{
	static const int newest[] = { 6, 6 }, older[] = { 3 };

	for (int deaths = 0; deaths <= 2; deaths++) {
		struct simdisk *d = re_world(6);
		struct re_job j = re_on(d, 2, (struct re_plan){ .last = 6, .disk_every = 3,
		                                                .images = 3 });

		PLAYED(j, 0);
		die_on(d, 2, newest, deaths);
		simdisk_kill_agent(d, 0);
		die_on(d, 2, newest, 2 - deaths);
		die_on(d, 2, older, 1);
		simdisk_free(d);
	}
}

static int count_one(void *arg, const char *name)
{
	(void)name;
	++*(int *)arg;
	return 0;
}

/* Steps whose loads are counted. */
static int tried(struct simdisk *d)
{
	const struct shf_sys *sys = simdisk_process(d, 9700, 0);
	int n = 0, dir = shf_sys_open(sys, SHF_CWD, "run/.sheaf/tries", SHF_O_DIR, 0);

	CHECK(dir >= 0);
	CHECK_INT(shf_sys_list(sys, dir, count_one, &n), 0);
	shf_sys_close(sys, dir);
	simdisk_kill(d, sys);
	return n;
}

TEST(a_save_to_memory_forgets_the_tries_of_what_was_loaded)
{
	static const int four[] = { 4 }, six[] = { 6 };
	struct simdisk *d = re_world(6);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 4, .images = 3 });
	struct re_job k = re_on(d, 2, (struct re_plan){ .last = 6, .images = 3, .dies = true });

	PLAYED(j, 0);
	die_on(d, 0, four, 1);
	CHECK_INT(tried(d), 1);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 4);
	CHECK_INT(tried(d), 0);
	die_on(d, 0, six, 1);
	simdisk_free(d);
}

/* A close says that what was loaded was good. It says nothing of loads that come after it. */
TEST(a_load_after_the_run_was_closed_is_no_try)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE,
	                           .io_threads = 1 };
	struct simdisk *d = re_world(6);
	const struct shf_sys *sys = simdisk_process(d, 71000, 0);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_save *save = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err;
	struct re_mine m = { 0 };
	struct sheaf_state *mine = re_state(&m, 0, 1);

	CHECK_RC(shf_run_open(&run, "run", NULL, &opts, sys, &err), 0, &err);
	CHECK_RC(shf_save_begin(&save, run, 1, mine, NULL, &err), 0, &err);
	CHECK_RC(shf_save_commit(save, -1, &err), 0, &err);
	shf_save_free(save);
	CHECK_RC(shf_step_open(&step, run, 1, &err), 0, &err);
	CHECK_RC(shf_step_load(step, mine, SHEAF_LOAD_STRICT, NULL, &err), 0, &err);
	CHECK_INT(tried(d), 1);
	shf_run_close(run);
	CHECK_INT(tried(d), 0);
	CHECK_RC(shf_step_load(step, mine, SHEAF_LOAD_STRICT, NULL, &err), 0, &err);
	CHECK_INT(tried(d), 0);
	shf_step_put(step);
	shf_state_put(mine);
	re_free(&m);
	simdisk_kill(d, sys);
	simdisk_free(d);
}
