/* SPDX-License-Identifier: Apache-2.0 */
/* An agent never holds more names or bytes than T1 to T4 of lib/memory/memory_tier.h allow, and of
 * two jobs that left a step of the same number in memory the later one is known. */
#include <errno.h>
#include "image_card.h"
#include "step.h"
#include "memory_steps.h"
#include "restarts.h"
#include "save.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_status.h"
#include "state.h"
#include "run_ops.h"

enum { IMAGES = 3, RANKS = 2 };

static struct simdisk_held at_most(struct simdisk *d, struct simdisk_held bound)
{
	struct simdisk_held most = simdisk_held_most(d, 0);

	if (most.names > bound.names || most.bytes > bound.bytes)
		print_error("%zu names and %llu bytes, at most %zu and %llu\n", most.names,
		            (unsigned long long)most.bytes, bound.names,
		            (unsigned long long)bound.bytes);
	CHECK(most.names <= bound.names);
	CHECK(most.bytes <= bound.bytes);
	return most;
}

/* What agents hold of a job of so many ranks that found nothing: all its images and cards. */
static struct simdisk_held of_one(int ranks)
{
	struct simdisk *d = re_world(1);
	struct re_job j = re_on(d, ranks, (struct re_plan){ .last = 2 * IMAGES, .images = IMAGES });
	struct simdisk_held one;

	PLAYED(j, 0);
	one = simdisk_held_most(d, 0);
	simdisk_free(d);
	CHECK(one.names > 0 && one.names <= (size_t)(2 * IMAGES * ranks));
	return one;
}

static struct simdisk_held plus(struct simdisk_held a, struct simdisk_held b)
{
	return (struct simdisk_held){ a.names + b.names, a.bytes + b.bytes };
}

TEST(jobs_that_die_before_their_first_commit_leave_no_more_than_the_last_of_them)
{
	struct simdisk_held one = of_one(RANKS);
	struct simdisk *d = re_world(2);
	int left = 0;

	for (int at = 10;; at++) {
		struct simgroup_stat stat = { 0 };
		struct re_job j = re_on(d, RANKS, (struct re_plan){ .last = 9, .disk_every = 9,
			.fresh = true, .first = 9, .images = IMAGES });

		j.group.die_rank = at % RANKS;
		j.group.die_at = at;
		j.group.quiet = true;
		j.group.stat = &stat;
		(void)re_play(&j, (uint64_t)at);
		if (!stat.fired || j.acked > 0)
			break;
		(void)at_most(d, plus(one, one));
		left += simdisk_kept(d, 0) > 0;
	}
	CHECK(left > 10);
	simdisk_free(d);
}

/* Jobs that die before a commit leave alone what the job before them left. */
TEST(what_is_newest_in_memory_outlives_jobs_that_come_to_nothing)
{
	struct simdisk_held one = of_one(RANKS);
	struct simdisk *d = re_world(3);
	struct re_job first = re_on(d, RANKS, (struct re_plan){ .last = 5, .images = IMAGES });
	int deaths = 0;

	PLAYED(first, 0);
	for (int at = 10;; at += 5) {
		struct simgroup_stat stat = { 0 };
		struct re_job j = re_on(d, RANKS, (struct re_plan){ .last = 9, .disk_every = 9,
			.fresh = true, .first = 9, .images = IMAGES });

		j.group.die_rank = 1;
		j.group.die_at = at;
		j.group.quiet = true;
		j.group.stat = &stat;
		(void)re_play(&j, (uint64_t)at);
		if (!stat.fired || simdisk_exists(d, "run/checkpoint-9"))
			break;
		struct re_job reader = re_on(d, RANKS, (struct re_plan){ .reader = true });

		deaths++;
		(void)at_most(d, plus(one, one));
		PLAYED(reader, 0);
		CHECK(reader.loaded == 5 || reader.loaded == 9);
		CHECK_INT(reader.disk_bytes, 0);
	}
	CHECK(deaths > 10);
	simdisk_free(d);
}

TEST(readers_leave_nothing_with_an_agent)
{
	struct simdisk *d = re_world(4);
	struct re_job j = re_on(d, RANKS, (struct re_plan){ .last = 3, .disk_every = 3 });

	PLAYED(j, 0);
	simdisk_kill_agent(d, 0);
	(void)simdisk_held_most(d, 0);
	for (int ranks = 1; ranks <= 3; ranks++) {
		struct re_job reader = re_on(d, ranks, (struct re_plan){ .reader = true });

		PLAYED(reader, 0);
		CHECK_INT(reader.loaded, 3);
		(void)at_most(d, (struct simdisk_held){ 0 });
	}
	simdisk_free(d);
}

/* Each job goes on from the memory that the one before it left. As soon as it has saved steps of
 * its own, the agents have let go of the older job's. */
TEST(jobs_in_turn_have_no_more_than_two_of_them)
{
	struct simdisk *d = re_world(5);
	struct simdisk_held before = { 0 };

	for (int job = 0; job < 6; job++) {
		int ranks = 1 + job % 3;
		struct simdisk_held mine = of_one(ranks);
		struct re_job j = re_on(d, ranks, (struct re_plan){ .last = 4 * (job + 1),
			.disk_every = job % 2 ? 3 : 0, .images = IMAGES });

		PLAYED(j, 0);
		CHECK_INT(j.loaded, job ? 4 * job : -1);
		(void)at_most(d, plus(before, mine));
		(void)at_most(d, mine);
		before = mine;
	}
	simdisk_free(d);
}

/* A job ran on two nodes, and one of them has lost its agent. So no step in memory is whole, and
 * what is left of them goes when the next job has saved its first step. */
TEST(of_a_step_that_is_in_part_there_nothing_is_kept_beside_a_newer_one)
{
	for (int disk = 0; disk < 2; disk++) {
		struct simdisk *d = re_world(6);
		struct re_job j = re_on(d, 4, (struct re_plan){ .last = 6, .nodes = 2,
			.disk_every = disk ? 6 : 0, .images = IMAGES });
		struct re_job k = re_on(d, 4, (struct re_plan){ .nodes = 2, .stop = true });
		struct re_job l = re_on(d, 4, (struct re_plan){ .last = 8, .nodes = 2,
			.images = IMAGES });
		struct simdisk_held one = of_one(2);

		PLAYED(j, 0);
		simdisk_kill_agent(d, 1);
		PLAYED(k, 0);
		CHECK_INT(k.loaded, disk ? 6 : -1);
		CHECK(simdisk_kept(d, 0) > 0);
		PLAYED(l, 0);
		(void)simdisk_held_most(d, 0);
		(void)at_most(d, one);
		simdisk_free(d);
	}
}

/* A job on one of two nodes sees half of the newest step and saves nothing. The next job, on both
 * nodes, still loads that step. */
TEST(a_job_on_fewer_nodes_takes_no_part_of_a_step_out_of_memory)
{
	struct simdisk *d = re_world(7);
	struct re_job j = re_on(d, 4, (struct re_plan){ .last = 6, .nodes = 2, .images = IMAGES });
	struct re_job small = re_on(d, 2, (struct re_plan){ .stop = true });
	struct re_job k = re_on(d, 4, (struct re_plan){ .nodes = 2, .stop = true });

	PLAYED(j, 0);
	PLAYED(small, 0);
	CHECK_INT(small.loaded, -1);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 6);
	simdisk_free(d);
}

/* ---- one rank by hand ---- */

static void save(struct sheaf_run *run, int64_t cols, int64_t step)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_NO_DISK };
	struct sheaf_error err = { 0 };
	struct sheaf_save *save = NULL;
	struct re_mine m = { 0 };
	struct sheaf_state *state;

	re_cols = cols;
	state = re_state(&m, 0, 1);
	re_cols = 700;
	CHECK_RC(shf_save_begin(&save, run, step, state, &opts, &err), 0, &err);
	CHECK_RC(shf_save_commit(save, -1, &err), 0, &err);
	shf_save_free(save);
	shf_state_put(state);
	re_free(&m);
}

/* The state grows, and the memory of the machine has room for two images of the grown state and no
 * more. */
TEST(an_image_that_grows_is_let_go_by_the_agent_first)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .agent = "auto",
		.images_max = 2, .io_threads = 1 };
	uint64_t room = UINT64_MAX;

	for (int with = 0; with < 2; with++) {
		struct simdisk *d = re_world(7);
		const struct shf_sys *sys = simdisk_process(d, 60000, 0);
		struct sheaf_error err = { 0 };
		struct sheaf_run *run = NULL;

		CHECK_RC(shf_run_open(&run, "run", NULL, &opts, sys, &err), 0, &err);
		save(run, 1000, 1);
		save(run, 1000, 2);
		if (with)
			simdisk_set_shm(d, true, room);
		(void)simdisk_held_most(d, 0);
		save(run, 3000, 3);
		save(run, 3000, 4);
		room = simdisk_held_most(d, 0).bytes + 4096;
		shf_run_close(run);
		simdisk_kill(d, sys);
		simdisk_free(d);
	}
}

/* ---- which job was last ---- */

#define FIRST "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define SECOND "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static int note_first(void *arg, const struct shf_memory_step *r)
{
	*(struct shf_memory_step *)arg = *r;
	return 1;
}

/* Sessions are drawn, so they say nothing of who was there first. */
TEST(of_two_jobs_that_left_one_number_the_last_is_taken)
{
	for (int last = 0; last < 2; last++) {
		struct shf_card_info t[] = {
			{ .job = FIRST, .session = "1111", .step = 1, .ranks = 1,
			  .turn = last ? 1 : 2 },
			{ .job = SECOND, .session = "2222", .step = 1, .ranks = 1,
			  .turn = last ? 2 : 1 } };
		struct shf_buf cards = { (uint8_t *)t, sizeof(t), sizeof(t), false };
		struct shf_memory_step first;

		CHECK_INT(shf_memory_steps_join(&cards, note_first, &first), 1);
		CHECK_STR(first.job, last ? SECOND : FIRST);
		CHECK_INT(first.turn, 2);
	}
}

static int note_card(void *arg, const char *name)
{
	size_t n = strlen(name);

	if (n > 5 && n < SHF_KEEP_NAME && strcmp(name + n - 5, ".card") == 0)
		memcpy(arg, name, n + 1);
	return 0;
}

/* They all save one step, each without a look at what is in memory. */
TEST(a_job_comes_after_those_whose_steps_it_found)
{
	struct simdisk *d = re_world(3);

	for (uint64_t turn = 1; turn <= 3; turn++) {
		struct re_job j = re_on(d, 1, (struct re_plan){ .last = 4, .fresh = true,
			.first = 4, .disk_every = 9, .images = 2, .dies = true });
		const struct shf_sys *sys = simdisk_process(d, 9000 + turn, 0);
		struct shf_shm shm = { NULL, 0, -1 };
		char name[SHF_KEEP_NAME] = "";
		int keep;

		PLAYED(j, 0);
		CHECK_INT(shf_sys_keep_open(sys, "auto/x", "", "", &keep, NULL), 0);
		CHECK_INT(shf_sys_keep_list(sys, keep, note_card, name), 0);
		CHECK_INT(shf_sys_keep_get(sys, keep, name, &shm), 0);
		CHECK_INT(atomic_load(&shf_card_head(&shm)->turn), turn);
		shf_sys_shm_free(sys, &shm);
		shf_sys_keep_close(sys, keep, true);
		simdisk_kill(d, sys);
	}
	simdisk_free(d);
}

/* ---- a step that one rank gives up after all had it in memory ---- */

struct giving {
	struct simdisk *disk;
	const struct shf_sys *sys[2];
};

static int gives_up(void *arg, int rank, struct sheaf_group *group)
{
	struct giving *g = arg;
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .agent = "auto",
		.images_max = 3, .io_threads = 1, .timeout_ms = 60000 };
	struct sheaf_save *save = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err;
	struct re_mine m = { 0 };
	struct sheaf_state *state = re_state(&m, rank, 2);
	int rc = shf_run_open(&run, "run", group, &opts, g->sys[rank], &err);

	re_paint(&m, 4);
	rc = rc == 0 ? shf_save_begin(&save, run, 4, state, NULL, &err) : rc;
	rc = rc == 0 ? shf_save_commit(save, 0, &err) : rc;
	if (rc == SHEAF_EAGAIN && strstr(err.msg, "it is safe in the agents' memory")) {
		if (rank == 1)
			(void)shf_save_fail(save, "not wanted", NULL);
		rc = shf_agree(&run->team, 0, &err);
		shf_save_free(save);
		save = NULL;
		rc = rc == 0 ? shf_save_begin(&save, run, 5, state, NULL, &err) : rc;
		rc = rc == 0 ? shf_save_commit(save, -1, &err) : rc;
	}
	shf_save_free(save);
	if (rc < 0)
		print_error("rank %d: %s\n", rank, err.msg);
	shf_run_close(run);
	shf_state_put(state);
	re_free(&m);
	return rc;
}

TEST(ranks_save_on_when_one_of_them_gave_up_a_step_that_was_in_memory)
{
	struct simgroup_opts group = { .seed = 1, .ranks = 2 };
	struct giving g = { .disk = re_world(8) };
	int rc[2];

	for (int r = 0; r < 2; r++)
		g.sys[r] = simdisk_process(g.disk, 71000 + (uint64_t)r, 0);
	simdisk_set_takes(g.disk, SIMDISK_FSYNC, 20);
	simgroup_run(&group, gives_up, &g, rc);
	CHECK_INT(rc[0], 0);
	CHECK_INT(rc[1], 0);
	for (int r = 0; r < 2; r++)
		simdisk_kill(g.disk, g.sys[r]);
	simdisk_free(g.disk);
}
