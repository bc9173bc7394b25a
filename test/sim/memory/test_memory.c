/* SPDX-License-Identifier: Apache-2.0 */
/* The memory tier: jobs that save to the memory of agents, die, and are followed by others. What
 * the next one finds is judged by values that say of which step they are. */
#include "flush.h"
#include "memory_steps.h"
#include "restarts.h"
#include "memory_tier.h"
#include "save_status.h"
#include "verify_step.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "step_open.h"
#include "read_slice.h"
#include "run_ops.h"
#include "load.h"

TEST(what_memory_has_comes_back_in_any_layout)
{
	for (int ranks = 1; ranks <= 4; ranks++) {
		struct simdisk *d = re_world((uint64_t)ranks);
		struct re_job j = re_on(d, ranks, (struct re_plan){ .last = 5 });

		PLAYED(j, 0);
		CHECK_INT(j.acked, 5);
		CHECK_INT(re_told(d, "\"committed\"", "\"disk\":false"), 5);
		for (int next = 1; next <= 4; next++) {
			struct re_job k = re_on(d, next, (struct re_plan){ .last = 5 + next });

			PLAYED(k, 0);
			CHECK_INT(k.loaded, 4 + next);
			CHECK_INT(k.disk_bytes, 0);
			CHECK(k.memory_bytes >= (uint64_t)(RE_TENSORS * RE_ROWS * re_cols) *
			                        sizeof(float));
			/* A card of each rank, images of those that write, and nothing older. */
			CHECK(simdisk_kept(d, 0) > (size_t)next);
			CHECK(simdisk_kept(d, 0) <= 2 * (size_t)next);
		}
		simdisk_free(d);
	}
}

TEST(the_newer_of_memory_and_disk_is_taken)
{
	struct simdisk *d = re_world(2);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 7, .disk_every = 3, .images = 3 });
	struct re_job k = re_on(d, 3, (struct re_plan){ .stop = true });
	struct re_job l = re_on(d, 2, (struct re_plan){ .last = 9, .disk_every = 3, .images = 3 });
	struct re_job m = re_on(d, 1, (struct re_plan){ .stop = true });

	PLAYED(j, 0);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 7);
	CHECK_INT(k.disk_bytes, 0);
	PLAYED(l, 0);
	CHECK_INT(l.loaded, 7);
	/* Step 9 is on disk and in memory: the same one, from where it is faster. */
	PLAYED(m, 0);
	CHECK_INT(m.loaded, 9);
	CHECK_INT(m.disk_bytes, 0);
	/* Without its agent: from the disk. */
	simdisk_kill_agent(d, 0);
	m.why[0] = '\0';
	PLAYED(m, 0);
	CHECK_INT(m.loaded, 9);
	CHECK(m.disk_bytes > 0);
	simdisk_free(d);
}

TEST(what_was_rewound_is_not_found_in_memory)
{
	for (int with = 0; with < 2; with++) {
		struct simdisk *d = re_world(3);
		struct re_job j = re_on(d, 2, (struct re_plan){ .last = 8, .disk_every = 3,
		                                           .images = 3 });
		struct re_job back = re_on(d, 1, (struct re_plan){ .resume = 3,
		                                                 .rewind_first = true,
		                                              .stop = true, .no_agent = !with });
		struct re_job next = re_on(d, 2, (struct re_plan){ .last = 6, .disk_every = 4 });
		struct re_job last = re_on(d, 2, (struct re_plan){ .stop = true });

		PLAYED(j, 0);
		PLAYED(back, 0);
		PLAYED(next, 0);
		CHECK_INT(next.loaded, 3);
		CHECK(next.disk_bytes > 0);
		PLAYED(last, 0);
		CHECK_INT(last.loaded, 6);
		CHECK_INT(last.disk_bytes, 0);
		simdisk_free(d);
	}
}

TEST(without_an_agent_training_goes_on)
{
	struct simdisk *d = re_world(4);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 6, .disk_every = 3 });
	struct re_job none = re_on(d, 2, (struct re_plan){ .last = 3, .no_agent = true });

	simdisk_set_agents(d, 0);
	PLAYED(j, 0);
	CHECK_INT(j.refused, 4);
	CHECK_INT(j.acked, 6);
	CHECK_INT(re_told(d, "\"dropped\"", "\"disk\":false"), 4);
	CHECK_INT(re_told(d, "\"committed\"", "\"disk\":true"), 2);
	PLAYED(none, 0); /* nothing left to do */
	none.plan.last = 7;
	PLAYED(none, SHEAF_EINVAL);
	CHECK(strstr(none.why, "needs opts.memory_tier.agent") != NULL);
	simdisk_free(d);
}

TEST(more_than_the_agent_may_keep_is_kept_by_nobody)
{
	struct simdisk *d = re_world(5);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 6, .disk_every = 3 });

	simdisk_set_agents(d, 4096);
	PLAYED(j, 0);
	CHECK_INT(j.acked, 6);
	CHECK(j.refused > 0);
	simdisk_free(d);
}

/* However often it is tried: what to go back to is a person's choice, or the caller's. */
TEST(a_byte_that_changes_in_memory_is_found_and_nothing_older_is_taken)
{
	struct simdisk *d = re_world(7);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 5, .disk_every = 3, .images = 3 });
	struct re_job k = re_on(d, 2, (struct re_plan){ .stop = true });
	struct re_job back = re_on(d, 1, (struct re_plan){ .resume = 3, .rewind_first = true,
	                                                   .stop = true });

	PLAYED(j, 0);
	CHECK(re_flip(d, 0) > 0);
	for (int i = 0; i < 3; i++) {
		k.why[0] = '\0';
		PLAYED(k, SHEAF_ECORRUPT);
		CHECK(strstr(k.why, "memory of run/checkpoint-5") != NULL);
		CHECK(strstr(k.why, "sheaf rewind run@3") != NULL);
	}
	PLAYED(back, 0);
	k.why[0] = '\0';
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 3);
	simdisk_free(d);
}

TEST(what_changed_in_memory_is_read_from_the_disk_then_where_the_same_save_is_there)
{
	struct simdisk *d = re_world(7);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 6, .disk_every = 3, .images = 3 });
	struct re_job k = re_on(d, 2, (struct re_plan){ .stop = true });

	PLAYED(j, 0);
	CHECK(re_flip(d, 0) > 0);
	PLAYED(k, SHEAF_ECORRUPT);
	CHECK(strstr(k.why, "the checkpoint is also on disk") != NULL);
	k.why[0] = '\0';
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 6);
	CHECK_INT(k.memory_bytes, 0);
	simdisk_free(d);
}

/* The agent writes what nobody else can write any more, and goes, too: the disk has it then. */
static bool flush(struct simdisk *d)
{
	const struct shf_sys *sys = simdisk_process(d, 9500, 0);
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { 0 };
	int64_t step = -1;
	int rc = shf_flush_newest("run", NULL, false, 0, sys, &step, &report, &err);

	if (rc == SHEAF_ENOENT) /* there is no run yet */
		return false;
	CHECK_RC(rc, 0, &err);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(d, sys);
	simdisk_kill_agent(d, 0);
	return step >= 0;
}

TEST(each_rank_may_die_at_each_operation)
{
	long deaths = 0, found = 0, flushed = 0;

	for (int way = 0; way < 3; way++)
		for (int rank = 0; rank < 2; rank++)
			for (int at = 1 + t_from(T_STRIDE);; at += T_STRIDE) {
				struct simdisk *d = re_world((uint64_t)at);
				struct simgroup_stat stat = { 0 };
				struct re_job j = re_on(d, 2, (struct re_plan){
					.last = way == 2 ? 6 : 4, .disk_every = 3, .images = 3,
					.flags = way == 1 ? SHEAF_SAVE_LAZY : 0, .late = way == 2,
					.asks = way == 2 });
				struct re_job k = re_on(d, 1 + at % 3, (struct re_plan){ .last = 9,
					.disk_every = 4, .images = 3 });
				long long acked;

				j.group.die_rank = rank;
				j.group.die_at = at;
				j.group.quiet = true;
				j.group.stat = &stat;
				(void)re_play(&j, (uint64_t)at);
				acked = j.acked;
				if (!stat.fired) {
					simdisk_free(d);
					break;
				}
				deaths++;
				flushed += at % 3 == 0 && flush(d);
				PLAYED(k, 0);
				if (k.loaded < acked)
					print_error("rank %d at %d: acked %lld, found %lld\n",
					            rank, at, acked, (long long)k.loaded);
				CHECK(k.loaded >= acked);
				found += k.loaded > 0 && k.disk_bytes == 0;
				CHECK_INT(k.acked, 9);
				simdisk_free(d);
			}
	print_message("# %ld deaths, %ld restarts from memory, %ld after a flush\n", deaths, found,
	              flushed);
	CHECK(deaths > 100 / T_STRIDE && found > 20 / T_STRIDE && flushed > 20 / T_STRIDE);
}

static void each_call_may_fail(bool behind)
{
	long faults = 0, found = 0;

	for (int nth = 1 + t_from(T_STRIDE);; nth += T_STRIDE) {
		struct simdisk *d = re_world((uint64_t)nth);
		struct re_job j = re_on(d, 2, (struct re_plan){ .last = behind ? 6 : 4,
			.disk_every = 3, .images = 3, .late = behind, .asks = behind });
		struct re_job k = re_on(d, 1 + nth % 3, (struct re_plan){ .last = 9,
			.disk_every = 4, .images = 3 });
		long long acked;
		int fired;

		simdisk_fail_at(d, nth, nth % 2 ? 5 : 28);
		(void)re_play(&j, (uint64_t)nth);
		acked = j.acked;
		fired = simdisk_fired(d);
		simdisk_faults_clear(d);
		if (!fired) {
			simdisk_free(d);
			break;
		}
		faults++;
		PLAYED(k, 0);
		if (k.loaded < acked)
			print_error("call %d: acked %lld, found %lld\n", nth, acked,
			            (long long)k.loaded);
		CHECK(k.loaded >= acked);
		found += k.loaded > 0 && k.disk_bytes == 0;
		simdisk_free(d);
	}
	print_message("# %ld failed calls, %ld restarts from memory\n", faults, found);
	CHECK(faults > 200 / T_STRIDE && found > 100 / T_STRIDE);
}

TEST(each_call_may_fail_and_no_step_is_lost) { each_call_may_fail(false); }
TEST(nor_is_one_while_another_is_published_behind) { each_call_may_fail(true); }

/* Steps that come to memory while another one is being published follow it, wherever all die. */
TEST(a_step_in_memory_is_found_whatever_came_of_the_one_published_before_it)
{
	int on_disk = 0;

	for (long steps = 0; steps < 3; steps++)
		for (int last = 3; last <= 6; last++) {
			struct simdisk *d = re_world((uint64_t)last);
			struct re_job j = re_on(d, 2, (struct re_plan){ .last = last,
				.disk_every = 3, .images = 4, .late = true, .asks = true });
			struct re_job k = re_on(d, 2, (struct re_plan){ .stop = true });

			simdisk_set_task_steps(d, steps);
			PLAYED(j, 0);
			on_disk += simdisk_exists(d, "run/checkpoint-3");
			PLAYED(k, 0);
			CHECK_INT(k.loaded, last);
			CHECK_INT(k.disk_bytes, 0);
			simdisk_free(d);
		}
	CHECK(on_disk > 0);
}

/* ---- what a second pair of eyes saw ---- */

TEST(the_third_job_finds_what_the_second_saved)
{
	struct simdisk *d = re_world(21);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 4, .disk_every = 3, .images = 3 });
	struct re_job k = re_on(d, 2, (struct re_plan){ .last = 6, .images = 3 });
	struct re_job l = re_on(d, 2, (struct re_plan){ .stop = true });

	PLAYED(j, 0);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 4);
	PLAYED(l, 0);
	CHECK_INT(l.loaded, 6);
	CHECK_INT(l.disk_bytes, 0);
	simdisk_free(d);
}

/* What a job saves to disk that went on from memory follows what was on disk before. */
TEST(a_step_on_disk_behind_one_of_memory_has_the_parent_that_is_there)
{
	struct simdisk *d = re_world(37);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 4, .disk_every = 3, .images = 3 });
	struct re_job k = re_on(d, 2, (struct re_plan){ .last = 5, .disk_every = 5, .images = 3 });
	size_t n = 0;
	char *text;

	PLAYED(j, 0);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 4);
	text = simdisk_get(d, "run/checkpoint-5/sheaf.json", &n);
	CHECK(text && memmem(text, n, "\"parent\": {\"step\": 3", 20));
	free(text);
	simdisk_free(d);
}

TEST(a_rewind_to_the_newest_on_disk_leaves_nothing_in_memory_behind)
{
	struct simdisk *d = re_world(22);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 5, .disk_every = 3, .images = 3 });
	struct re_job back = re_on(d, 1, (struct re_plan){ .resume = 3,
		                                                 .rewind_first = true,
	                                              .stop = true, .no_agent = true });
	struct re_job l = re_on(d, 2, (struct re_plan){ .stop = true });

	PLAYED(j, 0);
	PLAYED(back, 0);
	PLAYED(l, 0);
	CHECK_INT(l.loaded, 3);
	simdisk_free(d);
}

/* A rank by hand; mostly the only one. */
struct one {
	int rank;
	struct re_job *j;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct re_mine m;
	struct sheaf_error err;
	struct sheaf_save *flies;       /* when its process ends */
	int rc;
};

/* Begins, and commits unless `*left` is where to leave it; 0 is kept in rc. */
static void one_save(struct one *o, int64_t step, int64_t values, uint64_t flags,
                     struct sheaf_save **left, int timeout_ms)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;

	if (o->rc < 0)
		return;
	re_paint(&o->m, values);
	o->rc = shf_save_begin(&save, o->run, step, o->state, &opts, &o->err);
	if (o->rc == 0)
		o->rc = shf_save_commit(save, timeout_ms, &o->err);
	if (left) {
		*left = save;
		return;
	}
	if (o->rc == 0)
		atomic_store(&o->j->acked, step);
	shf_save_free(save);
}

static void (*acting)(struct one *o);
static int act_images = 4, act_ranks = 1;

static int act_main(void *arg, int rank, struct sheaf_group *group)
{
	struct one o = { .rank = rank, .j = arg };
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE,
		.timeout_ms = 60000, .images_max = act_images, .agent = "auto" };

	o.state = re_state(&o.m, rank, act_ranks);
	o.rc = shf_run_open(&o.run, "run", group, &opts, o.j->sys[rank], &o.err);
	if (o.rc == 0)
		acting(&o);
	if (o.rc < 0)
		re_say(o.j, rank, "the job", o.rc, &o.err);
	shf_save_free(o.flies);
	simdisk_kill(o.j->disk, o.j->sys[rank]); /* it ends without a word */
	if (o.run)
		shf_run_put(o.run);
	shf_state_put(o.state);
	re_free(&o.m);
	return o.rc;
}

/* Another job; what it acknowledged is in j->acked. */
static void act(struct simdisk *d, struct re_job *j, void (*what)(struct one *o))
{
	static uint64_t pid = 20000;
	struct simgroup_opts g = { .seed = 1, .ranks = act_ranks, .died = re_died };
	int results[2];

	*j = re_on(d, act_ranks, (struct re_plan){ .last = 0 });
	for (int i = 0; i < 3; i++)
		j->sys[i] = simdisk_process(d, pid++, 0);
	atomic_store(&j->acked, -1);
	acting = what;
	(void)simgroup_run(&g, act_main, j, results);
	if (j->why[0])
		print_error("%s\n", j->why);
	for (int r = 0; r < act_ranks; r++)
		CHECK_INT(results[r], 0);
	simdisk_kill(d, j->sys[2]);
}

static int64_t restarted(struct simdisk *d)
{
	struct re_job l = re_on(d, 1, (struct re_plan){ .stop = true });

	PLAYED(l, 0);
	return l.loaded;
}

static int64_t flushed_due(struct simdisk *d)
{
	const struct shf_sys *sys = simdisk_process(d, 9600, 0);
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { 0 };
	int64_t step = -1;

	CHECK_RC(shf_flush_newest("run", NULL, true, 0, sys, &step, &report, &err), 0, &err);
	simdisk_kill(d, sys);
	return step;
}

/* 4 was to be on disk and is not; what is behind it is safe in the agents' memory. */
static void one_in_flight(struct one *o)
{
	one_save(o, 3, 3, 0, NULL, -1);
	one_save(o, 4, 4, 0, &o->flies, 0);
	o->rc = o->rc == SHEAF_EAGAIN ? 0 : SHEAF_EBUG;
	for (int64_t k = 5; k <= 7; k++)
		one_save(o, k, k, SHEAF_SAVE_NO_DISK, NULL, -1);
}

TEST(a_flush_of_what_was_due_hides_nothing_newer)
{
	struct simdisk *d = re_world(23);
	struct re_job j;

	act(d, &j, one_in_flight);
	CHECK_INT(j.acked, 7);
	CHECK_INT(flushed_due(d), 4);
	CHECK_INT(restarted(d), 7);
	simdisk_kill_agent(d, 0);
	CHECK_INT(restarted(d), 4);
	simdisk_free(d);
}

/* Until it is being published. */
static void one_asked(struct one *o, int64_t step, struct sheaf_save **save)
{
	struct sheaf_stat stat = { .phase = 0 };

	one_save(o, step, step, 0, save, 0);
	for (int i = 0; i < 9 && o->rc == SHEAF_EAGAIN && stat.phase != 6; i++) {
		o->rc = shf_save_commit(*save, 0, &o->err);
		shf_save_stat(*save, &stat);
	}
	o->rc = o->rc == SHEAF_EAGAIN && stat.phase == 6 ? 0 : SHEAF_EBUG;
}

static bool renamed;

/* 4 is being published, and perhaps is; then 5 and 6 come to memory, and all dies. */
static void one_published_behind(struct one *o)
{
	one_save(o, 3, 3, 0, NULL, -1);
	one_asked(o, 4, &o->flies);
	if (renamed)
		shf_save_publish_finish(o->run);
	for (int64_t k = 5; k <= 6; k++)
		one_save(o, k, k, SHEAF_SAVE_NO_DISK, NULL, -1);
	simdisk_kill(o->j->disk, o->j->sys[o->rank]);
}

TEST(what_comes_to_memory_while_a_step_is_published_is_found)
{
	for (int i = 0; i < 4; i++) {
		struct simdisk *d = re_world(24);
		struct re_job j;

		simdisk_set_task_steps(d, 0);
		renamed = i % 2;
		act(d, &j, one_published_behind);
		CHECK_INT(j.acked, 6);
		CHECK_INT(simdisk_exists(d, "run/checkpoint-4"), renamed);
		if (i >= 2)
			CHECK_INT(flushed_due(d), renamed ? -1 : 4);
		CHECK_INT(restarted(d), 6);
		simdisk_kill_agent(d, 0);
		CHECK_INT(restarted(d), i == 0 ? 3 : 4);
		simdisk_free(d);
	}
}

/* 4 is given up while it is published, and the disk does it, or refuses. */
static void one_freed(struct one *o)
{
	one_save(o, 3, 3, 0, NULL, -1);
	one_asked(o, 4, &o->flies);
	if (!renamed)
		simdisk_fault(o->j->disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
			.kind = SIMDISK_RENAME, .how = SIMDISK_INSTEAD });
	shf_save_free(o->flies);
	o->flies = NULL;
}

TEST(one_that_is_given_up_while_it_is_published_stays_in_memory)
{
	for (int i = 0; i < 2; i++) {
		struct simdisk *d = re_world(25);
		struct re_job j;

		simdisk_set_task_steps(d, 0);
		renamed = i;
		act(d, &j, one_freed);
		CHECK_INT(simdisk_exists(d, "run/checkpoint-4"), renamed);
		CHECK_INT(restarted(d), 4);
		simdisk_kill_agent(d, 0);
		CHECK_INT(restarted(d), renamed ? 4 : 3);
		simdisk_free(d);
	}
}

/* 4 is given up so, and 6 is published; what comes to memory between them, or behind, is found. */
static void one_after_doubt(struct one *o)
{
	struct sheaf_save *given_up = NULL;

	one_save(o, 3, 3, 0, NULL, -1);
	one_asked(o, 4, &given_up);
	shf_save_free(given_up);
	one_save(o, 5, 5, SHEAF_SAVE_NO_DISK, NULL, -1);
	one_asked(o, 6, &o->flies);
	if (renamed)
		shf_save_publish_finish(o->run);
	one_save(o, 7, 7, SHEAF_SAVE_NO_DISK, NULL, -1);
	simdisk_kill(o->j->disk, o->j->sys[o->rank]);
}

TEST(after_one_that_was_given_up_so_what_is_in_memory_is_found)
{
	act_images = 6;
	for (int i = 0; i < 4; i++) {
		struct simdisk *d = re_world(26);
		struct re_job j;

		act_ranks = 1 + i / 2;
		simdisk_set_task_steps(d, 0);
		renamed = i % 2;
		act(d, &j, one_after_doubt);
		CHECK_INT(j.acked, 7);
		CHECK(simdisk_exists(d, "run/checkpoint-4"));
		CHECK_INT(simdisk_exists(d, "run/checkpoint-6"), renamed);
		CHECK_INT(restarted(d), 7);
		simdisk_free(d);
	}
	act_ranks = 1;
	act_images = 4;
}

/* The disk was rewound once, and no agent was there when 4 was given up so. */
static void one_late_agent(struct one *o)
{
	struct sheaf_save *given_up = NULL;

	one_save(o, 3, 3, 0, NULL, -1);
	o->rc = o->rc ? o->rc : shf_run_rewind(o->run, 3, &o->err);
	one_asked(o, 4, &given_up);
	shf_save_free(given_up);
	simdisk_set_agents(o->j->disk, UINT64_C(1) << 30);
	for (int i = 0; i < 99; i++) {
		one_save(o, 5 + i, 5 + i, SHEAF_SAVE_NO_DISK, NULL, -1);
		if (o->rc != SHEAF_EAGAIN)
			break;
		o->rc = 0;
		simdisk_advance(o->j->disk, 10);
	}
}

TEST(a_doubt_from_before_the_agent_came_hides_nothing)
{
	struct simdisk *d = re_world(27);
	struct re_job j;

	simdisk_set_agents(d, 0);
	simdisk_set_task_steps(d, 0);
	act(d, &j, one_late_agent);
	CHECK(j.acked >= 5);
	CHECK_INT(restarted(d), j.acked);
	simdisk_free(d);
}

/* A save that was found bad after it had come to memory. */
static void one_failed(struct one *o)
{
	struct sheaf_save *flies = NULL;
	int rc;

	one_save(o, 3, 3, 0, NULL, -1);
	one_save(o, 4, 4444, 0, &flies, 0);
	CHECK_INT(o->rc, SHEAF_EAGAIN);
	(void)shf_save_fail(flies, "NaN", NULL);
	rc = shf_save_commit(flies, -1, &o->err);
	o->rc = rc == SHEAF_EFAILED ? 0 : SHEAF_EBUG;
	shf_save_free(flies);
}

/* One whose time was up: commit has said that it is safe in the agents' memory. */
static void one_left(struct one *o)
{
	struct sheaf_save *flies = NULL, *again = NULL;
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_NO_DISK };

	one_save(o, 3, 3, 0, NULL, -1);
	one_save(o, 4, 4, 0, &flies, 0);
	CHECK_INT(o->rc, SHEAF_EAGAIN);
	CHECK(strstr(o->err.msg, "it is safe in the agents' memory") != NULL);
	shf_save_free(flies);
	o->rc = 0;
	/* There is one step 4 in memory, and no other. */
	CHECK_INT(shf_save_begin(&again, o->run, 4, o->state, &opts, &o->err), SHEAF_EINVAL);
}

TEST(a_save_that_failed_is_not_in_memory_and_one_whose_time_was_up_is)
{
	struct simdisk *d = re_world(26);
	struct re_job j;

	act(d, &j, one_failed);
	CHECK_INT(flushed_due(d), -1);
	CHECK_INT(restarted(d), 3);
	simdisk_free(d);
	d = re_world(27);
	act(d, &j, one_left);
	CHECK_INT(restarted(d), 4);
	simdisk_free(d);
}

static int count_step(void *arg, const struct shf_memory_step *r)
{
	*(int *)arg += r->here == r->ranks;
	return 0;
}

static bool planned_anew;        /* ranks do not find all that a begin needs at hand */
/* Four images have a step each; then the oldest is copied into. */
static void one_begun(struct one *o)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_NO_DISK };
	const struct sheaf_run *r = o->run;
	int before = 0, after = 0;

	for (int64_t k = 1; k <= 4; k++)
		one_save(o, k, k, SHEAF_SAVE_NO_DISK, NULL, -1);
	shf_memory_steps_list(r->sys, r->tier->keep, r->store.run, count_step, &before);
	o->state->version += planned_anew;
	CHECK_INT(shf_save_begin(&o->flies, o->run, 5, o->state, &opts, &o->err), 0);
	shf_memory_steps_list(r->sys, r->tier->keep, r->store.run, count_step, &after);
	CHECK_INT(after, before - 1);
}

TEST(an_image_that_is_copied_into_is_no_step)
{
	struct re_job j;

	for (int anew = 0; anew < 2; anew++) {
		struct simdisk *d = re_world(36);

		planned_anew = anew;
		act(d, &j, one_begun);
		CHECK_INT(restarted(d), 4);
		simdisk_free(d);
	}
}

static int read_as(struct one *o, int times)
{
	struct shf_opts ro = { .flags = SHEAF_RUN_READONLY,
	                         .timeout_ms = 60000, .agent = "auto" };
	struct sheaf_run *reader = NULL;
	int64_t at;
	int rc = shf_run_open(&reader, "run", NULL, &ro, o->j->sys[2], &o->err);

	for (int i = 0; i < times && rc == 0; i++)
		rc = re_resume(o->j, 0, reader, o->state, &o->m, &at, &o->err);
	if (reader)
		shf_run_close(reader);
	return rc;
}

static void one_watched(struct one *o)
{
	one_save(o, 3, 3, 0, NULL, -1);
	one_save(o, 4, 4, SHEAF_SAVE_NO_DISK, NULL, -1);
	if (o->rc == 0)
		o->rc = read_as(o, 3);
}

/* A reader holds step 2 until its image is another one's. */
static void one_watched_late(struct one *o)
{
	struct shf_opts ro = { .flags = SHEAF_RUN_READONLY,
	                         .timeout_ms = 60000, .agent = "auto" };
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_slice a = { .size = sizeof(a), .name = "a", .family = "model",
		.dtype = SHEAF_F32, .ndim = 2, .shape = { RE_ROWS, re_cols },
		.count = { RE_ROWS, re_cols }, .data = o->m.data[0] };
	struct sheaf_run *reader = NULL;
	struct sheaf_checkpoint *step = NULL;

	for (int64_t k = 1; k <= 6; k++) {
		one_save(o, k, k, SHEAF_SAVE_NO_DISK, NULL, -1);
		if (o->rc == 0 && k == 2)
			o->rc = shf_run_open(&reader, "run", NULL, &ro, o->j->sys[2], &o->err);
		if (o->rc == 0 && k == 2)
			o->rc = shf_step_open(&step, reader, SHEAF_LATEST, &o->err);
	}
	if (o->rc == 0) {
		CHECK_INT(shf_step_load(step, o->state, SHEAF_LOAD_STRICT, &report, &o->err),
		          SHEAF_EAGAIN);
		CHECK(strstr(o->err.msg, "was overwritten by a newer save"));
		CHECK(strstr(o->err.msg, "rewind") == NULL);
		CHECK_INT(shf_step_verify(step, &report, &o->err), SHEAF_EAGAIN);
		CHECK_INT(shf_step_read(step, &a, &o->err), SHEAF_EAGAIN);
	}
	shf_step_put(step);
	shf_run_close(reader);
}

TEST(readers_cost_a_job_nothing)
{
	struct simdisk *d = re_world(24);
	struct re_job j;

	act(d, &j, one_watched);
	CHECK_INT(restarted(d), 4);
	simdisk_free(d);
	d = re_world(28);
	act(d, &j, one_watched_late);
	CHECK_INT(restarted(d), 6);
	simdisk_free(d);
}

/* The same job goes back to what is on disk, where the disk asks for no rewind. */
static void one_back(struct one *o)
{
	int64_t at = 0;

	one_save(o, 1, 1, 0, NULL, -1);
	for (int64_t k = 2; k <= 5; k++)
		one_save(o, k, 1000 * k, SHEAF_SAVE_NO_DISK, NULL, -1);
	o->j->plan.resume = 1;
	if (o->rc == 0)
		o->rc = re_resume(o->j, 0, o->run, o->state, &o->m, &at, &o->err);
	atomic_store(&o->j->acked, -1);
	for (int64_t k = 2; k <= 3; k++)
		one_save(o, k, k, SHEAF_SAVE_NO_DISK, NULL, -1);
}

TEST(who_went_back_finds_what_he_saved_then)
{
	struct simdisk *d = re_world(30);
	struct re_job j;

	act(d, &j, one_back);
	CHECK_INT(j.acked, 3);
	CHECK_INT(restarted(d), 3);
	simdisk_free(d);
}

/* What a job reads from disk goes through an image, too. */
static void one_that_looks_back(struct one *o)
{
	int64_t at = 0;

	one_save(o, 1, 1, 0, NULL, -1);
	one_save(o, 2, 2, SHEAF_SAVE_NO_DISK, NULL, -1);
	one_save(o, 3, 3, SHEAF_SAVE_NO_DISK, NULL, -1);
	o->j->plan.resume = 1;
	if (o->rc == 0)
		o->rc = re_resume(o->j, 0, o->run, o->state, &o->m, &at, &o->err);
}

TEST(a_load_leaves_what_memory_has_newest)
{
	struct re_job j;

	for (uint64_t seed = 1; seed <= 8; seed++)
		for (act_images = 0; act_images <= 4; act_images++) {
			struct simdisk *d;

			if (act_images == 1)
				continue;       /* too few for memory */
			d = re_world(seed);
			act(d, &j, one_that_looks_back);
			CHECK_INT(restarted(d), 3);
			simdisk_free(d);
		}
	act_images = 4;
}

static int doubt_at;
static bool doubted, fired;

static void one_in_doubt(struct one *o)
{
	one_save(o, 3, 3, 0, NULL, -1);
	simdisk_fail_at(o->j->disk, doubt_at, 5);
	one_save(o, 4, 4, 0, NULL, -1);
	fired = simdisk_fired(o->j->disk) > 0;
	simdisk_faults_clear(o->j->disk);
	doubted = o->rc == SHEAF_EINDOUBT;
	o->rc = 0;
	for (int64_t k = 5; k <= 6 && doubted; k++)
		one_save(o, k, k, SHEAF_SAVE_NO_DISK, NULL, -1);
}

TEST(after_a_step_in_doubt_what_is_in_memory_is_found)
{
	long n = 0;

	for (doubt_at = 1, fired = true; fired; doubt_at++) {
		struct simdisk *d = re_world(33);
		struct re_job j;

		act(d, &j, one_in_doubt);
		if (doubted) {
			CHECK_INT(j.acked, 6);
			CHECK_INT(restarted(d), 6);
		}
		n += doubted;
		simdisk_free(d);
	}
	print_message("# %ld steps in doubt\n", n);
	CHECK(n > 0);
}

static void one_of_two_runs(struct one *o)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE,
		.timeout_ms = 60000, .agent = "auto" };
	struct sheaf_save_opts mem = { .size = sizeof(mem), .flags = SHEAF_SAVE_NO_DISK };
	struct sheaf_save *save = NULL;
	struct sheaf_run *other = NULL;

	for (int64_t k = 1; k <= 3; k++)
		one_save(o, k, k, SHEAF_SAVE_NO_DISK, NULL, -1);
	if (o->rc == 0)
		o->rc = shf_run_open(&other, "other", NULL, &opts, o->j->sys[2], &o->err);
	if (o->rc == 0) /* it has an agent of its own */
		CHECK_INT(shf_save_begin(&save, other, 1, o->state, &mem, &o->err), 0);
	shf_save_free(save);
	for (int64_t k = 4; k <= 6; k++)
		one_save(o, k, k, SHEAF_SAVE_NO_DISK, NULL, -1);
	shf_run_close(other);
}

TEST(an_agent_is_of_one_run)
{
	struct simdisk *d = re_world(34);
	struct re_job j;

	act(d, &j, one_of_two_runs);
	CHECK_INT(restarted(d), 6);
	simdisk_free(d);
}

TEST(an_agent_with_room_for_one_job_serves_the_next_one_too)
{
	struct simdisk *d = re_world(35);
	struct re_job j = re_on(d, 1, (struct re_plan){ .last = 4, .disk_every = 3, .images = 2 });

	PLAYED(j, 0);
	simdisk_set_agents(d, 450 << 10);
	for (int n = 0; n < 3; n++) {
		struct re_job k = re_on(d, 1, (struct re_plan){ .last = 10 + 6 * n, .disk_every = 3,
		                                           .images = 2 });

		PLAYED(k, 0);
		CHECK_INT(k.loaded, n ? 4 + 6 * n : 4);
		CHECK_INT(k.acked, 10 + 6 * n);
		CHECK(k.refused < 4);
	}
	simdisk_free(d);
}
