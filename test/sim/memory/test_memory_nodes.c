/* SPDX-License-Identifier: Apache-2.0 */
/* The memory tier of a job on several nodes, each with its own agent: what the next job finds when
 * the step is whole in the agents' memory, when parts of it are lost, and when the rest is on disk.
 */
#include <stdlib.h>
#include <string.h>
#include "flush.h"
#include "step.h"
#include "memory_steps.h"
#include "restarts.h"
#include "t.h"
#include "run_open.h"
#include "state.h"
#include "step_open.h"
#include "read_slice.h"
#include "run_ops.h"

#define BYTES ((uint64_t)RE_TENSORS * RE_ROWS * (uint64_t)re_cols * sizeof(float))
enum { SMALL = 700, LARGE = 60000 };    /* columns: within a block; of several blocks */

static struct re_plan on(int nodes, struct re_plan plan)
{
	plan.nodes = nodes;
	return plan;
}

/* Jobs of two nodes, whose ranks are on them one way or the other, save what the next ones load;
 * one of three nodes looks at it. */
static void in_any_layout(int ranks)
{
	struct simdisk *d = re_world((uint64_t)ranks);
	struct re_job j = re_on(d, ranks, on(2, (struct re_plan){ .last = 5 }));
	int last = 5;

	PLAYED(j, 0);
	CHECK_INT(j.acked, last);
	for (int next = 2; next <= RE_RANKS; next++) {
		struct re_job look = re_on(d, next, on(3, (struct re_plan){ .stop = true }));
		struct re_job k = re_on(d, next, on(2, (struct re_plan){ .last = last + 2,
			.backwards = next % 2 }));

		if (next >= 3) {
			PLAYED(look, 0);
			CHECK_INT(look.loaded, last);
			CHECK_INT(look.disk_bytes, 0);
		}
		PLAYED(k, 0);
		CHECK_INT(k.loaded, last);
		CHECK_INT(k.disk_bytes, 0);
		CHECK(k.memory_bytes >= BYTES);
		last += 2;
	}
	simdisk_free(d);
}

TEST(what_several_memories_have_comes_back_in_any_layout)
{
	for (int ranks = 2; ranks <= 5; ranks++)
		in_any_layout(ranks);
	re_cols = LARGE;
	for (int ranks = 2; ranks <= 4; ranks += 2)
		in_any_layout(ranks);
	re_cols = SMALL;
}

TEST(a_node_that_is_lost_takes_the_steps_with_it_that_were_in_memory_alone)
{
	for (int lost = 0; lost < 2; lost++) {
		struct simdisk *d = re_world(2);
		struct re_job j = re_on(d, 4, on(2, (struct re_plan){ .last = 8, .disk_every = 3,
		                                                      .images = 3 }));
		struct re_job k = re_on(d, 4, on(2, (struct re_plan){ .stop = true }));

		PLAYED(j, 0);
		CHECK_INT(j.acked, 8);
		simdisk_kill_agent(d, lost);
		PLAYED(k, 0);
		CHECK_INT(k.loaded, 6);
		CHECK(k.disk_bytes > 0);
		simdisk_free(d);
	}
}

/* The newest is on disk as well: each byte is read there that no memory has, and no other. */
TEST(of_a_step_on_disk_a_lost_node_costs_what_it_had)
{
	for (int cols = 0; cols < 2; cols++)
		for (int lost = 0; lost < 2; lost++) {
			struct simdisk *d = re_world(3);

			re_cols = cols ? LARGE : SMALL;
			struct re_job j = re_on(d, 4, on(2, (struct re_plan){ .last = 6,
				.disk_every = 3, .images = 3 }));
			struct re_job k = re_on(d, 4, on(2, (struct re_plan){ .stop = true }));
			struct re_job l = re_on(d, 3, on(3, (struct re_plan){ .stop = true }));

			PLAYED(j, 0);
			simdisk_kill_agent(d, lost);
			PLAYED(k, 0);
			CHECK_INT(k.loaded, 6);
			CHECK(k.disk_bytes + k.memory_bytes >= BYTES);
			if (cols) { /* about its half; small files are one node's */
				CHECK(k.disk_bytes > 0 && k.disk_bytes < BYTES * 3 / 4);
				CHECK(k.memory_bytes > 0 && k.memory_bytes < BYTES * 3 / 4);
			}
			PLAYED(l, 0);
			CHECK_INT(l.loaded, 6);
			CHECK_INT(l.memory_bytes > 0, k.memory_bytes > 0);
			simdisk_kill_agent(d, 1 - lost);
			l.why[0] = '\0';
			PLAYED(l, 0);
			CHECK_INT(l.loaded, 6);
			CHECK_INT(l.memory_bytes, 0);
			simdisk_free(d);
		}
	re_cols = SMALL;
}

TEST(without_an_agent_on_one_node_no_step_is_in_memory_and_training_goes_on)
{
	struct simdisk *d = re_world(4);
	struct re_job j = re_on(d, 4, on(2, (struct re_plan){ .last = 6, .disk_every = 3 }));
	struct re_job k = re_on(d, 2, on(2, (struct re_plan){ .stop = true }));

	simdisk_set_agents(d, 4096);    /* too little for anybody */
	PLAYED(j, 0);
	CHECK_INT(j.acked, 6);
	CHECK(j.refused > 0);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 6);
	simdisk_free(d);
}

TEST(on_some_of_its_nodes_a_step_is_not_taken_for_whole)
{
	struct simdisk *d = re_world(5);
	struct re_job j = re_on(d, 4, on(2, (struct re_plan){ .last = 7, .disk_every = 3,
	                                                      .images = 3 }));
	struct re_job half = re_on(d, 2, (struct re_plan){ .stop = true });
	struct re_job all = re_on(d, 2, on(2, (struct re_plan){ .stop = true }));

	PLAYED(j, 0);
	PLAYED(half, 0);
	CHECK_INT(half.loaded, 6);
	PLAYED(all, 0);
	CHECK_INT(all.loaded, 7);
	CHECK_INT(all.disk_bytes, 0);
	simdisk_free(d);
}

static long long play_dying(struct simdisk *d, int rank, int at, uint64_t flags, bool *fired)
{
	struct simgroup_stat stat = { 0 };
	struct re_job j = re_on(d, 3, on(2, (struct re_plan){ .last = 4, .disk_every = 3,
		.images = 3, .flags = flags }));

	j.group.die_rank = rank;
	j.group.die_at = at;
	j.group.quiet = true;
	j.group.stat = &stat;
	(void)re_play(&j, (uint64_t)at);
	*fired = stat.fired;
	return j.acked;
}

TEST(each_rank_may_die_at_each_operation_of_two_nodes)
{
	long deaths = 0, found = 0;
	bool fired;

	for (int lazy = 0; lazy < 2; lazy++)
		for (int rank = 0; rank < 3; rank++)
			for (int at = 1 + rank + 3 * t_from(T_STRIDE);;
			     at += 3 * T_STRIDE) {
				struct simdisk *d = re_world((uint64_t)at);
				long long acked = play_dying(d, rank, at, lazy ? SHEAF_SAVE_LAZY
				                             : 0,
				                             &fired);
				struct re_job k = re_on(d, 2 + at % 3, on(2, (struct re_plan){
					.last = 9, .disk_every = 4, .images = 3 }));

				if (!fired) {
					simdisk_free(d);
					break;
				}
				deaths++;
				PLAYED(k, 0);
				if (k.loaded < acked)
					print_error("rank %d at %d: acked %lld, found %lld\n",
					            rank, at, acked, (long long)k.loaded);
				CHECK(k.loaded >= acked);
				found += k.loaded > 0 && k.disk_bytes == 0;
				CHECK_INT(k.acked, 9);
				simdisk_free(d);
			}
	print_message("# %ld deaths, %ld restarts from memory\n", deaths, found);
	CHECK(deaths > 100 / T_STRIDE && found > 20 / T_STRIDE);
}

/* Calls fail in the job that saves, or in the one that takes what it left. */
TEST(each_call_may_fail_on_two_nodes)
{
	long faults = 0, found = 0;

	for (int late = 0; late < 2; late++)
		for (int nth = 1 + t_from(T_STRIDE);; nth += T_STRIDE) {
			struct simdisk *d = re_world((uint64_t)nth);
			struct re_job j = re_on(d, 3, on(2, (struct re_plan){ .last = 4,
				.disk_every = 3, .images = 3 }));
			struct re_job k = re_on(d, 2 + nth % 2, on(2, (struct re_plan){
				.last = 9, .disk_every = 4, .images = 3 }));
			long long acked;
			int hit;

			if (!late)
				simdisk_fail_at(d, nth, nth % 2 ? 5 : 28);
			(void)re_play(&j, (uint64_t)nth);
			acked = j.acked;
			if (late) {
				simdisk_fail_at(d, nth, 5);
				(void)re_play(&k, (uint64_t)nth);
				acked = k.acked > acked ? k.acked : acked;
				CHECK(strstr(k.why, "wrong") == NULL);
				k.why[0] = '\0';
			}
			hit = simdisk_fired(d);
			simdisk_faults_clear(d);
			if (!hit) {
				simdisk_free(d);
				break;
			}
			faults++;
			PLAYED(k, 0);
			if (k.loaded < acked)
				print_error("%s call %d: acked %lld, found %lld\n",
				            late ? "late" : "early", nth, acked,
				            (long long)k.loaded);
			CHECK(k.loaded >= acked);
			found += k.loaded > 0 && k.disk_bytes == 0;
			simdisk_free(d);
		}
	print_message("# %ld failed calls, %ld restarts from memory\n", faults, found);
	CHECK(faults > 300 / T_STRIDE && found > 100 / T_STRIDE);
}

/* ---- what dead trainers left, written by the agents of its nodes ---- */

static int flush(struct simdisk *d, int node, bool due, int64_t *step, struct sheaf_error *err)
{
	static uint64_t pid = 30000;
	const struct shf_sys *sys = simdisk_process(d, pid++, node);
	struct sheaf_report report = { .size = sizeof(report) };
	int rc = shf_flush_newest("run", NULL, due, 0, sys, step, &report, err);

	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(d, sys);
	return rc;
}

static struct simdisk *left_by_the_dead(uint64_t seed)
{
	struct simdisk *d = re_world(seed);
	struct re_job j = re_on(d, 4, on(2, (struct re_plan){ .last = 8, .disk_every = 3,
	                                                      .images = 3 }));

	PLAYED(j, 0);
	return d;
}

static void is_on_disk(struct simdisk *d, int64_t step)
{
	struct re_job k = re_on(d, 3, on(2, (struct re_plan){ .stop = true }));

	simdisk_kill_agent(d, 0);
	simdisk_kill_agent(d, 1);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, step);
	CHECK_INT(k.memory_bytes, 0);
}

TEST(agents_write_together_what_none_has_all_of)
{
	for (int cols = 0; cols < 2; cols++)
		for (int first = 0; first < 2; first++) {
			struct simdisk *d;
			struct sheaf_error err = { 0 };
			int64_t step = -1;

			re_cols = cols ? LARGE : SMALL;
			d = left_by_the_dead(6);
			CHECK_RC(flush(d, first, true, &step, &err), 0, &err);
			CHECK_INT(step, -1);    /* 7 and 8 were never to be on disk */
			CHECK_RC(flush(d, first, false, &step, &err), SHEAF_EAGAIN, &err);
			CHECK(strstr(err.msg, "2 of its 4 ranks") != NULL);
			CHECK_RC(flush(d, 1 - first, false, &step, &err), SHEAF_EAGAIN, &err);
			CHECK(strstr(err.msg, "the parts of only 2 of its 4 ranks were "
			             "written") != NULL);
			CHECK_RC(flush(d, first, false, &step, &err), 0, &err);
			CHECK_INT(step, 8);
			for (int node = 0; node < 2; node++) {
				CHECK_RC(flush(d, node, false, &step, &err), 0, &err);
				CHECK_INT(step, -1);
			}
			is_on_disk(d, 8);
			simdisk_free(d);
		}
	re_cols = SMALL;
}

/* Whichever comes first knows what the step follows, though its job saved nothing to disk. */
TEST(a_job_that_saved_to_memory_alone_is_written_too)
{
	for (int first = 0; first < 2; first++) {
		struct simdisk *d = re_world(11);
		struct re_job i = re_on(d, 4, on(2, (struct re_plan){ .first = 3, .last = 3,
			.disk_every = 3, .no_agent = true }));
		struct re_job j = re_on(d, 4, on(2, (struct re_plan){ .last = 5 }));
		struct sheaf_error err = { 0 };
		int64_t step = -1;

		PLAYED(i, 0);
		PLAYED(j, 0);
		CHECK_INT(j.loaded, 3);
		CHECK_RC(flush(d, first, false, &step, &err), SHEAF_EAGAIN, &err);
		CHECK_RC(flush(d, 1 - first, false, &step, &err), SHEAF_EAGAIN, &err);
		CHECK_RC(flush(d, first, false, &step, &err), 0, &err);
		CHECK_INT(step, 5);
		is_on_disk(d, 5);
		simdisk_free(d);
	}
}

struct sought {
	int64_t step;
	bool whole;
};

static int seek(void *arg, const struct shf_memory_step *r)
{
	struct sought *s = arg;

	s->whole = s->whole || (r->step == s->step && r->here == r->ranks);
	return 0;
}

static bool is_whole(struct simdisk *d, int node, int64_t step)
{
	static uint64_t pid = 50000;
	const struct shf_sys *sys = simdisk_process(d, pid++, node);
	struct shf_store store = { .dir = -1, .dot = -1, .stage = -1, .lock = -1 };
	struct sought s = { .step = step };
	struct sheaf_error err;
	int keep;

	if (shf_store_open(&store, sys, "run", &err) == 0) {
		CHECK_INT(shf_sys_keep_open(sys, "auto/x", "", "", &keep, NULL), 0);
		CHECK_INT(shf_memory_steps_list(sys, keep, store.run, seek, &s), 0);
		shf_store_close(&store);
	}
	simdisk_kill(d, sys);
	return s.whole;
}

/* A job of two nodes dies over its first step; what one of one node had left is whole. */
TEST(a_newer_part_does_not_hide_an_older_whole)
{
	long kept = 0;

	for (int at = 1 + t_from(T_STRIDE);; at += T_STRIDE) {
		struct simdisk *d = re_world((uint64_t)at);
		struct simgroup_stat stat = { 0 };
		struct re_job j = re_on(d, 2, (struct re_plan){ .last = 5 });
		struct re_job k = re_on(d, 2, on(2, (struct re_plan){ .last = 6 }));
		struct sheaf_error err = { 0 };
		int64_t step = -1;

		PLAYED(j, 0);
		k.group.die_rank = 1;
		k.group.die_at = at;
		k.group.quiet = true;
		k.group.stat = &stat;
		(void)re_play(&k, (uint64_t)at);
		if (!stat.fired) {
			simdisk_free(d);
			break;
		}
		simdisk_kill_agent(d, 1);
		if (is_whole(d, 0, 5)) {        /* else the newer one is there, and it was let go */
			CHECK_RC(flush(d, 0, false, &step, &err), 0, &err);
			CHECK_INT(step, 5);
			is_on_disk(d, 5);
			kept++;
		}
		simdisk_free(d);
	}
	print_message("# %ld deaths before the newer one was there\n", kept);
	CHECK(kept > 20 / T_STRIDE);
}

static int note_meeting(void *arg, const char *name)
{
	if (strncmp(name, "flush-", 6) == 0)
		snprintf(arg, 100, "run/.sheaf/%s/have-9", name);
	return 0;
}

static void put_table(struct simdisk *d, const char *line, int sum)
{
	const struct shf_sys *sys = simdisk_process(d, 35000, 0);
	struct shf_buf text = SHF_BUF_INIT;
	char path[100] = "";
	int dot = shf_sys_open(sys, SHF_CWD, "run/.sheaf", SHF_O_DIR, 0);

	CHECK_INT(shf_sys_list(sys, dot, note_meeting, path), 0);
	CHECK(path[0]);
	simdisk_kill(d, sys);
	shf_buf_adds(&text, line);
	if (sum)
		shf_line_sum(&text, 0);
	if (sum < 0)
		text.data[text.len - 2] ^= 1;
	CHECK_INT(simdisk_put(d, path, text.data, text.len), 0);
	shf_buf_release(&text);
}

/* Of an agent that died while it wrote, of another version, of somebody who means no good. */
TEST(a_table_that_no_agent_wrote_has_not_come)
{
#define ID "0123456789abcdef0123456789abcdef"
	static const struct {
		const char *text;
		int sum;                        /* 1: right; -1: wrong; 0: none */
	} all[] = {
		{ "", 0 }, { ID, 0 }, { "x\n", 1 }, { ID " 8 2 4 0 0 0 0 9\n", 0 },
		{ ID " 8 2 4 0 0 0 0 9\n", -1 }, { ID " 8 4 4 0 0 0 0 9\n", 1 },
		{ ID " 8 -1 4 0 0 0 0 9\n", 1 }, { ID " -8 2 4 0 0 0 0 9\n", 1 },
		{ ID " 8 2 999999999 0 0 0 0 9\n", 1 }, { "0123 8 2 4 0 0 0 0 9\n", 1 },
		{ ID " 8 2 4 0 0 0 0\n", 1 },
		{ ID ID ID ID ID ID ID ID ID ID ID ID ID "\n", 1 },
	};
#undef ID
	struct simdisk *d = left_by_the_dead(12);
	struct sheaf_error err = { 0 };
	int64_t step = -1;

	CHECK_RC(flush(d, 0, false, &step, &err), SHEAF_EAGAIN, &err);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		put_table(d, all[i].text, all[i].sum);
		CHECK_RC(flush(d, 0, false, &step, &err), SHEAF_EAGAIN, &err);
		if (!strstr(err.msg, "2 of its 4 ranks"))
			print_error("table %zu: %s\n", i, err.msg);
		CHECK(strstr(err.msg, "2 of its 4 ranks") != NULL);
	}
	CHECK_RC(flush(d, 1, false, &step, &err), SHEAF_EAGAIN, &err);
	CHECK_RC(flush(d, 0, false, &step, &err), 0, &err);
	CHECK_INT(step, 8);
	is_on_disk(d, 8);
	simdisk_free(d);
}

TEST(an_agent_that_does_not_come_leaves_the_disk_as_it_is)
{
	struct simdisk *d = left_by_the_dead(7);
	struct sheaf_error err = { 0 };
	int64_t step = -1;

	simdisk_kill_agent(d, 1);
	for (int i = 0; i < 3; i++)
		CHECK_RC(flush(d, 0, false, &step, &err), SHEAF_EAGAIN, &err);
	is_on_disk(d, 6);
	simdisk_free(d);
}

TEST(a_part_that_is_found_wrong_is_written_again)
{
	struct sheaf_error err = { 0 };
	struct simdisk *d;
	int64_t step = -1;
	int rc = SHEAF_EAGAIN;

	re_cols = LARGE;
	d = left_by_the_dead(9);
	CHECK(re_flip(d, 1) > 0);
	for (int i = 0; i < 4 && rc == SHEAF_EAGAIN; i++)
		rc = flush(d, i % 2, false, &step, &err);
	CHECK(rc == SHEAF_ECORRUPT || rc == SHEAF_EIO);
	print_message("# %s\n", err.msg);
	CHECK(re_flip(d, 1) > 0);
	for (int i = 0; i < 6 && step != 8; i++)
		(void)flush(d, i % 2, false, &step, &err);
	CHECK_INT(step, 8);
	is_on_disk(d, 8);
	simdisk_free(d);
	re_cols = SMALL;
}

/* One who wants what was due, and one who wants the newest, do not wait for each other's bytes. */
TEST(who_wants_another_step_meets_elsewhere)
{
	struct simdisk *d = left_by_the_dead(10);
	struct sheaf_error err = { 0 };
	int64_t step = -1;

	CHECK_RC(flush(d, 0, true, &step, &err), 0, &err);
	CHECK_RC(flush(d, 1, false, &step, &err), SHEAF_EAGAIN, &err);
	CHECK_RC(flush(d, 0, true, &step, &err), 0, &err);
	CHECK_RC(flush(d, 0, false, &step, &err), SHEAF_EAGAIN, &err);
	CHECK_RC(flush(d, 1, false, &step, &err), 0, &err);
	CHECK_INT(step, 8);
	is_on_disk(d, 8);
	simdisk_free(d);
}

/* Tries until nothing is left to do; the n-th call of the first of them fails. */
static bool flush_failing(struct simdisk *d, int nth, int sys)
{
	struct sheaf_error err = { 0 };
	int64_t step = -1;
	bool hit;
	int done = 0;

	simdisk_fail_at(d, nth, sys);
	for (int i = 0; i < 12 && done < 2; i++) {
		int rc = flush(d, i % 2, false, &step, &err);

		done = rc == 0 && step < 0 ? done + 1 : 0;
		if (i > 9)
			print_error("call %d: %d %s\n", nth, rc, err.msg);
	}
	hit = simdisk_fired(d) > 0;
	simdisk_faults_clear(d);
	CHECK_INT(done, 2);
	return hit;
}

TEST(each_call_of_agents_that_write_together_may_fail)
{
	long n = 0;
	bool hit = true;

	for (int nth = 1 + t_from(T_STRIDE); hit; nth += T_STRIDE) {
		struct simdisk *d = left_by_the_dead(8);

		hit = flush_failing(d, nth, nth % 2 ? 5 : 28);
		is_on_disk(d, 8);
		n += hit;
		simdisk_free(d);
	}
	print_message("# %ld failed calls\n", n);
	CHECK(n > 100 / T_STRIDE);
}

/* A step that was to be on disk is written when its job has died, in whatever order they come, and
 * training goes on from what lies behind it in memory. */
TEST(what_was_due_is_written_by_agents_that_are_told)
{
	long wrote = 0, behind = 0;

	for (int at = 1;; at += 2) {
		struct simdisk *d = re_world((uint64_t)at);
		struct sheaf_error err = { 0 };
		bool fired;
		long long acked = play_dying(d, at % 3, at, 0, &fired);
		struct re_job k = re_on(d, 4, on(2, (struct re_plan){ .stop = true }));
		int64_t step = -1;

		if (!fired) {
			simdisk_free(d);
			break;
		}
		for (int i = 0; i < 5; i++) {
			int rc = flush(d, (i + at) % 2, true, &step, &err);

			if (rc < 0 && rc != SHEAF_EAGAIN && rc != SHEAF_ENOENT)
				CHECK_RC(rc, 0, &err);
			wrote += rc == 0 && step >= 0;
		}
		PLAYED(k, 0);
		CHECK(k.loaded >= acked);
		behind += k.loaded > 3 && k.disk_bytes == 0;
		simdisk_free(d);
	}
	print_message("# %ld written, %ld times memory had something newer\n", wrote, behind);
	CHECK(wrote > 0);
}

/* ---- a slice of it, by one who does not load ---- */

static int read_rank(void *arg, int rank, struct sheaf_group *group)
{
	struct re_job *j = arg;
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY,
		.timeout_ms = 60000, .agent = "auto" };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err = { 0 };
	struct sheaf_run *run = NULL;
	struct re_mine m = { 0 };
	struct sheaf_state *state = re_state(&m, 0, 1);
	size_t bytes = (size_t)(RE_ROWS * re_cols) * sizeof(float);
	float *got = calloc(1, bytes);
	struct sheaf_slice s = { .size = sizeof(s), .name = "b", .family = "optimizer",
		.dtype = SHEAF_F32, .ndim = 2, .shape = { RE_ROWS, re_cols },
		.count = { RE_ROWS, re_cols }, .data = got };
	int rc = shf_run_open(&run, "run", group, &opts, j->sys[rank], &err);

	if (rc == 0)
		rc = shf_step_open(&step, run, SHEAF_LATEST, &err);
	if (rc == 0)
		rc = shf_step_read(step, &s, &err);
	re_paint(&m, 2);
	if (rc == 0 && memcmp(got, m.data[1], bytes))
		rc = SHEAF_EBUG;
	if (rc < 0 && rank == 0)
		snprintf(j->why, sizeof(j->why), "%s", err.msg);
	shf_step_put(step);
	shf_run_close(run);
	shf_state_put(state);
	re_free(&m);
	free(got);
	return rc;
}

TEST(a_slice_is_read_from_the_memory_of_one_node_and_not_of_several)
{
	for (int nodes = 1; nodes <= 2; nodes++) {
		struct simdisk *d = re_world((uint64_t)nodes);
		struct re_job j = re_on(d, 2, on(nodes, (struct re_plan){ .last = 2 }));
		struct simgroup_opts o = { .seed = 3, .ranks = 2 };
		int rc[2];

		PLAYED(j, 0);
		for (int r = 0; r < 2; r++)
			j.sys[r] = simdisk_process(d, 7000 + (uint64_t)r, nodes == 2 ? r : 0);
		CHECK_INT(simgroup_run(&o, read_rank, &j, rc), 0);
		for (int r = 0; r < 2; r++) {
			CHECK_INT(rc[r], nodes == 1 ? 0 : SHEAF_EINVAL);
			CHECK_INT(simdisk_open_n(j.sys[r]), 0);
			simdisk_kill(d, j.sys[r]);
		}
		CHECK(nodes == 1 || strstr(j.why, "memory of several nodes; use "
		                           "sheaf_checkpoint_load"));
		simdisk_free(d);
	}
}
