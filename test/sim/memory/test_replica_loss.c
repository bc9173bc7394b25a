/* SPDX-License-Identifier: Apache-2.0 */
/* Steps with replicas in the memory of two nodes (lib/memory/replica.h): one of the nodes may be
 * lost at any moment. */
#include <stdlib.h>
#include "background.h"
#include "flush.h"
#include "memory_steps.h"
#include "memory_tier.h"
#include "restarts.h"
#include "run_open.h"
#include "run_ops.h"
#include "run_resume.h"
#include "save.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "step.h"
#include "t.h"

/* Columns: within a block; of several blocks; several pieces of what travels. */
enum { SMALL = 700, LARGE = 60000, LONG = 200000 };

static struct re_plan twice(int nodes, struct re_plan plan)
{
	plan.nodes = nodes;
	plan.copies = 2;
	return plan;
}

/* One node is lost with all that it had; the job goes on with as many, or with those left. */
static void lose(int nodes, int ranks, int lost, uint64_t flags, int disk_every)
{
	struct simdisk *d = re_world((uint64_t)ranks);
	struct re_job j = re_on(d, ranks, twice(nodes, (struct re_plan){ .last = 8, .images = 3,
		.flags = flags, .disk_every = disk_every }));
	struct re_job k = re_on(d, ranks, twice(nodes, (struct re_plan){ .last = 10,
		.images = 3 }));

	PLAYED(j, 0);
	CHECK_INT(j.acked, 8);
	CHECK_INT(j.once, 0);
	simdisk_kill_agent(d, lost);
	if (lost == nodes - 1) { /* on the nodes that are left, which are the first */
		struct re_job look = re_on(d, nodes + lost, twice(lost, (struct re_plan){
			.stop = true, .backwards = lost % 2 }));

		PLAYED(look, 0);
		CHECK_INT(look.loaded, 8);
		CHECK_INT(look.disk_bytes, 0);
		CHECK(look.peers);
	}
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 8);
	CHECK_INT(k.disk_bytes, 0);
	CHECK(k.peers);
	CHECK_INT(k.acked, 10);
	simdisk_free(d);
}

TEST(a_lost_node_costs_nothing)
{
	for (int cols = 0; cols < 2; cols++) {
		re_cols = cols ? LARGE : SMALL;
		for (int nodes = 2; nodes <= RE_NODES; nodes++)
			for (int ranks = cols ? nodes + 1 : nodes;
			     ranks <= (cols ? nodes + 1 : 2 * nodes) && ranks <= RE_RANKS; ranks++)
				for (int lost = t_from(T_STRIDE < nodes ? T_STRIDE : nodes);
				     lost < nodes; lost += T_STRIDE) {
					lose(nodes, ranks, lost, 0, 0);
					lose(nodes, ranks, lost, SHEAF_SAVE_LAZY, 3);
				}
	}
	re_cols = LONG;
	for (int ranks = 2; ranks <= 3; ranks++)
		lose(2, ranks, ranks % 2, 0, 0);
	re_cols = SMALL;
}

/* It follows what was newest on disk, and then what came there after it. */
TEST(a_step_before_which_another_comes_to_disk_is_found)
{
	for (int behind = 0; behind < 2; behind++)
		for (int last = 6; last <= 8; last++) {
			struct simdisk *d = re_world((uint64_t)last);
			struct re_job j = re_on(d, 3, twice(2, (struct re_plan){ .last = last,
				.images = 5, .disk_every = 3, .late = true, .behind = behind }));
			struct re_job k = re_on(d, 4, twice(2, (struct re_plan){ .stop = true }));

			simdisk_set_task_steps(d, 4);
			PLAYED(j, 0);
			CHECK_INT(j.once, 0);
			simdisk_kill_agent(d, last % 2);
			PLAYED(k, 0);
			CHECK_INT(k.loaded, last);
			CHECK_INT(k.disk_bytes, 0);
			CHECK(k.peers);
			simdisk_free(d);
		}
}

TEST(while_all_nodes_are_there_nobody_reads_a_copy)
{
	struct simdisk *d = re_world(2);
	struct re_job j = re_on(d, 5, twice(3, (struct re_plan){ .last = 4 }));
	struct re_job k = re_on(d, 4, twice(3, (struct re_plan){ .stop = true }));

	PLAYED(j, 0);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 4);
	CHECK_INT(k.disk_bytes, 0);
	CHECK(!k.peers);
	simdisk_free(d);
}

TEST(one_node_keeps_steps_once_and_says_so)
{
	struct simdisk *d = re_world(3);
	struct re_job j = re_on(d, 3, twice(1, (struct re_plan){ .last = 4 }));

	PLAYED(j, 0);
	CHECK_INT(j.acked, 4);
	CHECK_INT(j.once, 1);
	simdisk_free(d);
}

/* A rank dies anywhere, and then a node is lost: what a rank knew to be committed comes back, but
 * for the last of what goes behind. */
static void die(bool behind)
{
	long deaths = 0, peers = 0;
	bool fired;

	for (int lazy = 0; lazy < 2; lazy++)
		for (int rank = 0; rank < 3; rank++)
			for (int at = 1 + rank + 7 * t_from(T_STRIDE);;
			     at += 7 * T_STRIDE) {
				struct simdisk *d = re_world((uint64_t)at);
				struct simgroup_stat stat = { 0 };
				struct re_job j = re_on(d, 3, twice(2, (struct re_plan){ .last = 6,
					.images = 3, .flags = lazy ? SHEAF_SAVE_LAZY : 0,
					.disk_every = 3, .behind = behind }));
				struct re_job k = re_on(d, 2 + at % 3, twice(2, (struct re_plan){
					.last = 9, .images = 3 }));
				long long acked;

				simdisk_set_task_steps(d, 4);
				j.group.die_rank = rank;
				j.group.die_at = at;
				j.group.quiet = true;
				j.group.stat = &stat;
				(void)re_play(&j, (uint64_t)at);
				acked = j.acked - behind;
				fired = stat.fired;
				if (!fired) {
					simdisk_free(d);
					break;
				}
				deaths++;
				simdisk_kill_agent(d, at % 2);
				PLAYED(k, 0);
				if (k.loaded < acked && (!behind || acked > 0))
					print_error("rank %d at %d: acked %lld, found %lld\n",
					            rank, at, acked, (long long)k.loaded);
				CHECK(k.loaded >= acked || (behind && acked < 1));
				peers += k.peers;
				CHECK_INT(k.acked, 9);
				simdisk_free(d);
			}
	print_message("# %ld deaths, %ld restarts from copies\n", deaths, peers);
	CHECK(deaths > 100 / T_STRIDE && peers > 20 / T_STRIDE);
}

TEST(each_rank_may_die_at_each_operation_and_a_node_with_it)
{
	die(false);
}

TEST(each_rank_may_die_while_copies_go_behind)
{
	die(true);
}

/* However long a copy takes, nobody waits for it; what has come when a node is lost is used. */
TEST(copies_that_go_behind_keep_nobody_waiting)
{
	re_cols = LARGE;
	for (int nodes = 2; nodes <= 3; nodes++)
		for (int images = 3; images <= (T_SANITIZED ? 3 : 4); images++)
			for (int turns = 0; turns < 3; turns += T_STRIDE > 1 ? 2 : 1) {
				struct simdisk *d = re_world(8);
				struct re_job j = re_on(d, 4, twice(nodes, (struct re_plan){
					.last = 12, .images = images, .flags = SHEAF_SAVE_LAZY,
					.disk_every = 5, .behind = true }));
				struct re_job k = re_on(d, 4, twice(nodes, (struct re_plan){
					.stop = true }));

				simdisk_set_task_steps(d, turns);
				PLAYED(j, 0);
				CHECK_INT(j.acked, 12);
				CHECK_INT(j.refused, 0);
				CHECK_INT(j.once, 0);
				simdisk_kill_agent(d, 1);
				PLAYED(k, 0);
				CHECK_INT(k.loaded, turns ? 12 : 10);
				CHECK_INT(k.peers, turns > 0);
				simdisk_free(d);
			}
	re_cols = SMALL;
}

/* Rank 0 gives up a step that lies in both memories; whoever has heard of it never sees it again,
 * wherever another rank died. */
TEST(what_is_given_up_has_no_copy)
{
	long deaths = 0, given_up = 0;
	bool fired = true;

	for (int rank = 0; rank < 3; rank++)
		for (int at = 0; at == 0 || fired;
		     at += at ? 2 * T_STRIDE : 2 + 2 * t_from(T_STRIDE)) {
			struct simdisk *d = re_world((uint64_t)at);
			struct simgroup_stat stat = { 0 };
			struct re_job j = re_on(d, 3, twice(2, (struct re_plan){ .last = 3,
				.images = 4, .disk_every = 3, .late = true, .fail = 3 }));
			struct re_job k = re_on(d, 3, twice(2, (struct re_plan){ .stop = true }));

			if (at) {
				j.group.die_rank = rank;
				j.group.die_at = at;
			}
			j.group.quiet = true;
			j.group.stat = &stat;
			(void)re_play(&j, (uint64_t)at);
			fired = stat.fired || at == 0;
			deaths += stat.fired;
			given_up += j.given_up != 0;
			CHECK(at > 0 || j.given_up == 3);
			k.loaded = 0;
			PLAYED(k, 0);
			CHECK(j.given_up == 0 || k.loaded < 3);
			simdisk_free(d);
		}
	print_message("# %ld deaths, a step given up %ld times\n", deaths, given_up);
	CHECK(deaths > 50 / T_STRIDE && given_up > 1);
}

/* A call fails, and no node is lost; where the copies have not been given up for it, one is. */
TEST(each_call_may_fail)
{
	long faults = 0, once = 0, peers = 0;

	for (int nth = 1 + t_from(2 * T_STRIDE);; nth += 2 * T_STRIDE) {
		struct simdisk *d = re_world((uint64_t)nth);
		struct re_job j = re_on(d, 3, twice(2, (struct re_plan){ .last = 4, .images = 3,
			.disk_every = 3 }));
		struct re_job k = re_on(d, 2 + nth % 2, twice(2, (struct re_plan){ .last = 9,
			.images = 3 }));
		long long acked;
		int hit;

		simdisk_fail_at(d, nth, nth % 2 ? 5 : 28);
		(void)re_play(&j, (uint64_t)nth);
		acked = j.acked;
		hit = simdisk_fired(d);
		simdisk_faults_clear(d);
		if (!hit) {
			simdisk_free(d);
			break;
		}
		faults++;
		once += j.once > 0;
		/* While ranks look for each other, one node may come to look like two. */
		if (nth > 24 && j.once == 0 && j.refused == 0)
			simdisk_kill_agent(d, nth / 2 % 2);
		PLAYED(k, 0);
		if (k.loaded < acked)
			print_error("call %d: acked %lld, found %lld: %s\n", nth, acked,
			            (long long)k.loaded, j.why);
		CHECK(k.loaded >= acked);
		peers += k.peers;
		simdisk_free(d);
	}
	print_message("# %ld failed calls: %ld times without copies, %ld restarts from copies\n",
	              faults, once, peers);
	CHECK(faults > 100 / T_STRIDE && peers > 25 / T_STRIDE);
	CHECK(once > 0 || T_STRIDE > 17);
}

/* Bits of what one agent keeps change: its own images and copies of the other's. */
TEST(a_copy_that_changed_is_never_taken_for_right)
{
	re_cols = LARGE;
	for (int node = 0; node < 2; node++)
		for (int lost = T_FEWER > 1 ? node : 0; lost < 2; lost += T_FEWER) {
			struct simdisk *d = re_world(4);
			struct re_job j = re_on(d, 4, twice(2, (struct re_plan){ .last = 5,
				.images = 3, .disk_every = 2 }));
			struct re_job k = re_on(d, 4, twice(2, (struct re_plan){ .stop = true }));

			PLAYED(j, 0);
			CHECK(re_flip(d, node) > 0);
			if (lost)
				simdisk_kill_agent(d, 1 - node);
			for (int opens = 0; opens < 3; opens++) { /* and nothing older either */
				k.why[0] = '\0';
				PLAYED(k, SHEAF_ECORRUPT);
			}
			simdisk_free(d);
		}
	re_cols = SMALL;
}

TEST(what_is_rewound_has_no_copy)
{
	struct simdisk *d = re_world(5);
	struct re_job j = re_on(d, 4, twice(2, (struct re_plan){ .last = 8, .images = 3,
		.disk_every = 3 }));
	struct re_job back = re_on(d, 4, twice(2, (struct re_plan){ .resume = 3,
		.rewind_first = true, .last = 4, .images = 3 }));
	struct re_job k = re_on(d, 3, twice(3, (struct re_plan){ .stop = true }));

	PLAYED(j, 0);
	PLAYED(back, 0);
	CHECK_INT(back.loaded, 3);
	simdisk_kill_agent(d, 0);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 4);
	CHECK(k.peers);
	simdisk_free(d);
}

TEST(without_room_for_copies_training_goes_on)
{
	long once = 0;

	for (uint64_t room = 200000; room < 600000; room += 10000) {
		struct simdisk *d = re_world(6);
		struct re_job j = re_on(d, 4, twice(2, (struct re_plan){ .last = 6, .images = 3,
			.disk_every = 3 }));
		struct re_job k = re_on(d, 2, twice(2, (struct re_plan){ .stop = true }));

		int rc;

		simdisk_set_agents(d, room);
		rc = re_play(&j, 1);    /* EFAILED: an image has room, its card has not */
		CHECK(rc == 0 || rc == SHEAF_EFAILED);
		once += rc == 0 && j.once > 0;
		PLAYED(k, 0);
		CHECK_INT(k.loaded, rc == 0 ? 6 : k.loaded);
		simdisk_free(d);
	}
	CHECK(once > 0);
}

static int flush(struct simdisk *d, int node, int64_t *step, struct sheaf_error *err)
{
	static uint64_t pid = 30000;
	const struct shf_sys *sys = simdisk_process(d, pid++, node);
	struct sheaf_report report = { .size = sizeof(report) };
	int rc = shf_flush_newest("run", NULL, false, 0, sys, step, &report, err);

	simdisk_kill(d, sys);
	return rc;
}

/* All that the agents of two nodes know of each card: its own, or a copy. */
static void ask_all(struct simdisk *d, struct shf_buf *told)
{
	static uint64_t pid = 40000;

	for (int node = 0; node < 2; node++) {
		const struct shf_sys *sys = simdisk_process(d, pid++, node);
		struct sheaf_error err;
		struct shf_store store;
		int keep;

		CHECK_RC(shf_store_open(&store, sys, "run", &err), 0, &err);
		CHECK_INT(shf_sys_keep_open(sys, "auto/x", "", "", &keep, NULL), 0);
		CHECK_INT(shf_memory_steps_read_cards(sys, keep, store.run, true, told), 0);
		shf_sys_keep_close(sys, keep, true);
		shf_store_close(&store);
		simdisk_kill(d, sys);
	}
}

/* How many copies there are; all else that the card says is what the rank's own says. */
static int copies_equal(struct simdisk *d, int *due)
{
	struct shf_buf told = SHF_BUF_INIT;
	struct shf_card_info *t;
	size_t n;
	int copies = 0;

	ask_all(d, &told);
	t = (struct shf_card_info *)(void *)told.data;
	n = told.len / sizeof(*t);
	for (size_t i = 0; i < n; i++) {
		int own = 0;

		*due += t[i].due && !t[i].guest;
		for (size_t k = 0; k < n && t[i].guest; k++) {
			if (t[k].guest || t[k].step != t[i].step || t[k].rank != t[i].rank)
				continue;
			own++;
			CHECK_STR(t[i].job, t[k].job);
			CHECK_STR(t[i].session, t[k].session);
			CHECK_INT(t[i].ranks, t[k].ranks);
			CHECK(t[i].base == t[k].base && t[i].next == t[k].next);
			CHECK(t[i].due == t[k].due && t[i].turn == t[k].turn);
			CHECK(t[i].tries == t[k].tries && t[i].bytes == t[k].bytes);
		}
		CHECK_INT(own, t[i].guest);
		copies += t[i].guest;
	}
	shf_buf_release(&told);
	return copies;
}

/* Steps to memory alone; each third to disk; the last of them in the middle of that. */
TEST(a_copy_says_of_its_step_what_the_card_of_the_rank_says)
{
	static const struct re_plan plans[] = { { .last = 5, .images = 3 },
		{ .last = 5, .images = 3, .disk_every = 3 },
		{ .last = 6, .images = 4, .disk_every = 3, .late = true, .dies = true } };
	static const int copies[] = { 8, 8, 8 }, dues[] = { 0, 0, 4 };

	for (int i = 0; i < 3; i++) {
		struct simdisk *d = re_world(9);
		struct re_job first = re_on(d, 4, twice(2, (struct re_plan){ .last = 1,
			.disk_every = 1 })), j = re_on(d, 4, twice(2, plans[i]));
		int due = 0;

		PLAYED(first, 0);
		PLAYED(j, 0);
		CHECK_INT(copies_equal(d, &due), copies[i]);
		CHECK_INT(due, dues[i]);
		simdisk_free(d);
	}
}

/* Each agent writes its own parts; no agent writes replicas. */
TEST(agents_write_their_own_and_no_copies)
{
	struct simdisk *d = re_world(7);
	struct re_job j = re_on(d, 4, twice(2, (struct re_plan){ .last = 8, .images = 3,
		.disk_every = 3 }));
	struct re_job k = re_on(d, 3, twice(2, (struct re_plan){ .stop = true }));
	struct sheaf_error err = { 0 };
	int64_t step = -1;

	PLAYED(j, 0);
	CHECK_RC(flush(d, 0, &step, &err), SHEAF_EAGAIN, &err);
	CHECK(strstr(err.msg, "2 of its 4 ranks") != NULL);
	CHECK_RC(flush(d, 1, &step, &err), SHEAF_EAGAIN, &err);
	CHECK_RC(flush(d, 0, &step, &err), 0, &err);
	CHECK_INT(step, 8);
	simdisk_kill_agent(d, 0);
	simdisk_kill_agent(d, 1);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 8);
	CHECK_INT(k.memory_bytes, 0);
	simdisk_free(d);
}

/* A job that goes on from 5, gives 6 up after its replicas have come, and saves 7 to memory. */
static int gives_six_up(void *arg, int rank, struct sheaf_group *group)
{
	struct re_job *j = arg;
	struct shf_opts opts = { .timeout_ms = 60000, .images_max = 4,
		.copies = 2, .agent = "auto" };
	struct sheaf_save_opts memory = { .size = sizeof(memory), .flags = SHEAF_SAVE_NO_DISK };
	struct sheaf_error err = { 0 };
	struct sheaf_run *run = NULL;
	struct re_mine m = { 0 };
	struct sheaf_state *state = re_state(&m, rank, j->ranks);
	struct sheaf_save *six = NULL, *seven = NULL;
	int rc = sheaf_group_new(&opts.copies_group, &group->ops, NULL);

	if (rc == 0)
		rc = shf_run_open(&run, "run", group, &opts, j->sys[rank], &err);
	if (rc == 0)
		rc = shf_run_resume(run, state, 0, NULL, &err);
	if (rc == 0)
		rc = shf_save_begin(&six, run, 6, state, NULL, &err);
	if (rc == 0)
		rc = shf_save_commit(six, 0, &err) == SHEAF_EAGAIN ? 0 : -99;
	for (int i = 0; rc == 0 && i < 1000 && shf_background_runs(&run->tier->guests.task); i++)
		;
	if (rc == 0 && rank == 0)
		rc = sheaf_save_abort(six, "the loss is no number", NULL);
	if (rc == 0)
		rc = shf_save_commit(six, -1, &err) == SHEAF_EFAILED ? 0 : -98;
	shf_save_free(six);
	if (rc == 0)
		rc = shf_save_begin(&seven, run, 7, state, &memory, &err);
	if (rc == 0)
		rc = shf_save_commit(seven, -1, &err);
	simdisk_kill(j->disk, j->sys[rank]);
	shf_save_free(seven);
	shf_run_close(run);
	sheaf_group_free(opts.copies_group);
	shf_state_put(state);
	re_free(&m);
	return rc;
}

/* What the job before left goes when the new job has a step in memory twice, and not before. */
TEST(a_step_that_is_given_up_after_its_copy_came_frees_no_earlier_job)
{
	struct simdisk *d = re_world(5);
	struct re_job a = re_on(d, 2, twice(2, (struct re_plan){ .last = 5, .images = 4,
		.disk_every = 3, .dies = true }));
	struct re_job b = re_on(d, 2, twice(2, (struct re_plan){ .images = 4 }));
	struct re_job next = re_on(d, 2, twice(2, (struct re_plan){ .stop = true }));
	int results[RE_RANKS];

	PLAYED(a, 0);
	b.group = (struct simgroup_opts){ .seed = 1, .ranks = 2, .died = re_died };
	for (int r = 0; r < 2; r++)
		b.sys[r] = simdisk_process(d, 81000 + (uint64_t)r, r);
	simdisk_set_task_steps(d, 1000);
	simgroup_run(&b.group, gives_six_up, &b, results);
	simdisk_set_task_steps(d, -1);
	CHECK_INT(results[0] | results[1], 0);
	simdisk_kill_agent(d, 1);       /* before 7 has travelled */
	PLAYED(next, 0);
	CHECK_INT(next.loaded, 5);
	simdisk_free(d);
}
