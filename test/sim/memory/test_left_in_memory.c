/* SPDX-License-Identifier: Apache-2.0 */
/* A step that a job has acknowledged in memory alone is what the next job finds, whatever came
 * between: a rewind that failed, a mark, a flush by the agent. */
#include <errno.h>
#include "flush.h"
#include "one_rank.h"
#include "run_open.h"
#include "run_ops.h"
#include "save.h"
#include "save_commit.h"
#include "save_end.h"
#include "simover.h"
#include "t.h"
#include "sheaf-admin.h"
#include "aside_restore.h"
#include "manifest.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Begins and commits. Returns what the first call that failed returned, or 0. */
static int tries(struct one *o, int64_t step, uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;
	int rc;

	re_paint(&o->mine, step);
	rc = shf_save_begin(&save, o->run, step, o->state, &opts, &o->err);
	return rc < 0 ? rc : one_commit(o, save);
}

/* Each call of a rewind fails once. What is saved then may be refused, but not lost. */
TEST(a_rewind_that_fails_loses_nothing_that_is_saved_to_memory_after_it)
{
	int failed = 0, found = 0;

	for (int nth = 1, fired = 1; fired; nth++) {
		struct one o = one_new(0);
		int64_t last = -1;
		bool memory;
		int rc;

		one_saves(&o, 1, 0);
		one_saves(&o, 2, 0);
		one_saves(&o, 3, SHEAF_SAVE_NO_DISK);
		simdisk_fail_at(o.disk, nth, EIO);
		rc = shf_run_rewind(o.run, 1, &o.err);
		fired = simdisk_fired(o.disk);
		simdisk_faults_clear(o.disk);
		if (fired && rc < 0) {
			failed++;
			for (int step = 4; step <= 6; step++)
				if (tries(&o, step, step == 5 && nth % 2 ? 0
				          : SHEAF_SAVE_NO_DISK) == 0)
					last = step;
			one_dies(&o);
			one_next(&o);
			if (last >= 0) {
				found++;
				CHECK_INT(one_loads(&o, SHEAF_LATEST, &memory), last);
				CHECK(memory);
			}
		}
		one_end(&o);
	}
	print_message("# %d rewinds failed, %d steps were found after them\n", failed, found);
	CHECK(failed > 20 && found > 10);
}

/* 5 is on disk by the agent, not by the job that saved it, and 6 in memory follows it. */
TEST(what_follows_a_flushed_step_goes_with_it_when_that_is_marked_bad)
{
	for (int bad = 0; bad < 2; bad++) {
		struct one o = one_new(0);
		struct sheaf_save *five;
		bool memory;

		one_saves(&o, 4, 0);
		five = one_begin(&o, 5, 0);
		CHECK_RC(shf_save_commit(five, 0, &o.err), SHEAF_EAGAIN, &o.err);
		one_saves(&o, 6, SHEAF_SAVE_NO_DISK);
		one_dies(&o);
		shf_save_free(five);
		CHECK_INT(one_flush(&o, true), 5);
		one_next(&o);
		if (bad)
			CHECK_RC(shf_run_mark(o.run, 5, SHEAF_MARK_BAD, &o.err), 0,
			         &o.err);
		CHECK_INT(one_loads(&o, SHEAF_LATEST, &memory), bad ? 4 : 6);
		CHECK(bad || memory);
		one_end(&o);
	}
}

/* The job goes on from the step that it has marked bad, or from one in memory that follows it. What
 * it saves to disk then is found, and so is what it saves to memory. */
TEST(what_is_saved_to_memory_after_a_mark_is_found_as_on_disk)
{
	for (int way = 0; way < 4; way++) {
		struct one o = one_new(0);
		bool memory = true;

		one_saves(&o, 1, 0);
		one_saves(&o, 2, 0);
		if (way & 1)
			one_saves(&o, 3, SHEAF_SAVE_NO_DISK);
		CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
		one_saves(&o, 4, way & 2 ? 0 : SHEAF_SAVE_NO_DISK);
		one_saves(&o, 5, SHEAF_SAVE_NO_DISK);
		one_dies(&o);
		one_next(&o);
		CHECK_INT(one_loads(&o, SHEAF_LATEST, &memory), 5);
		CHECK(memory);
		one_end(&o);
	}
}

/* The commit of 2 ended in doubt, and 2 is there. What follows it in memory goes with it when it is
 * marked bad, and what is saved after the mark does not. */
TEST(what_is_saved_to_memory_after_a_doubtful_step_was_marked_is_found)
{
	for (int way = 0; way < 2; way++) {
		struct one o = one_new(0);
		bool memory = true;

		one_saves(&o, 1, 0);
		one_doubts(&o, one_begin(&o, 2, 0), false);
		if (way)
			one_saves(&o, 3, SHEAF_SAVE_NO_DISK);
		CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
		one_saves(&o, 4, SHEAF_SAVE_NO_DISK);
		one_dies(&o);
		one_next(&o);
		CHECK_INT(one_loads(&o, SHEAF_LATEST, &memory), 4);
		CHECK(memory);
		one_end(&o);
	}
}

/* A mark that is taken away makes the step the newest again. */
TEST(what_is_saved_to_memory_after_a_mark_was_taken_back_is_found)
{
	struct one o = one_new(0);
	bool memory = true;

	one_saves(&o, 1, 0);
	one_saves(&o, 2, 0);
	CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	one_saves(&o, 3, SHEAF_SAVE_NO_DISK);
	CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_NONE, &o.err), 0, &o.err);
	one_saves(&o, 4, SHEAF_SAVE_NO_DISK);
	one_dies(&o);
	one_next(&o);
	CHECK_INT(one_loads(&o, SHEAF_LATEST, &memory), 4);
	CHECK(memory);
	one_end(&o);
}

/* ---- two jobs on two nodes ---- */

/* A flush of each agent, again and again, as agents do: what is due, or what is the latest. Returns
 * how often one said that it had written a step. */
static int flush_on_both(struct simdisk *d, bool due)
{
	static uint64_t pid = 66000;
	int wrote = 0;

	for (int i = 0; i < 6; i++) {
		const struct shf_sys *sys = simdisk_process(d, pid++, i % 2);
		struct sheaf_error err;
		int64_t step;
		int rc = shf_flush_newest("run", NULL, due, 0, sys, &step, NULL, &err);

		CHECK_RC(rc == SHEAF_EAGAIN ? 0 : rc, 0, &err);
		wrote += rc == 0 && step >= 0;
		simdisk_kill(d, sys);
	}
	return wrote;
}

static int64_t next_loads(struct simdisk *d, struct re_plan plan)
{
	struct re_job next = re_on(d, 2, (struct re_plan){ .stop = true, .nodes = 2,
	                                                   .copies = plan.copies });

	PLAYED(next, 0);
	return next.loaded;
}

/* The first job leaves 2 in memory, due. The second loads it from there and acknowledges 4 in
 * memory; whether an agent will have written 2 to disk by the next start, it cannot know. 2 may be
 * whole on one node, and 4 never is. */
TEST(a_flush_of_what_a_job_went_on_from_leaves_what_it_saved)
{
	static const struct re_plan seconds[] = {
		{ .first = 4, .last = 4, .images = 4, .nodes = 2, .copies = 2, .behind = true },
		{ .first = 4, .last = 4, .images = 4, .nodes = 2, .disk_every = 4, .late = true } };

	for (int i = 0; i < 2 * 2 * 3; i++) {
		int nodes = i % 2 + 1, how = i / 4; /* how: no flush; of what is due; of all */
		struct simdisk *d = re_world(3);
		struct re_plan plan = seconds[i / 2 % 2];
		struct re_job first = re_on(d, nodes, (struct re_plan){ .last = 2, .disk_every = 2,
			.late = true, .dies = true, .images = 4, .nodes = nodes }), second;

		plan.dies = true;
		second = re_on(d, 2, plan);
		PLAYED(first, 0);
		simdisk_set_task_steps(d, 0);
		PLAYED(second, 0);
		simdisk_set_task_steps(d, -1);
		CHECK_INT(second.loaded, 2);
		CHECK(second.memory_bytes > 0);
		if (how)
			flush_on_both(d, how == 1);
		if (how == 1)
			CHECK(simdisk_exists(d, plan.late ? "run/checkpoint-4"
			                                  : "run/checkpoint-2"));
		CHECK_INT(next_loads(d, plan), 4);
		simdisk_free(d);
	}
}

/* The first job leaves 3 on disk, and 4 and 5 in memory. The second goes on from 3, which it names,
 * and acknowledges a 4 of its own. */
TEST(what_the_latest_job_saved_comes_before_what_it_left)
{
	for (int i = 0; i < 3 * 3; i++) {
		struct simdisk *d = re_world(7);
		struct re_plan plan = { .resume = 3, .first = 4, .last = 4, .images = 4, .nodes = 2,
			.copies = i % 3 ? 2 : 0, .behind = i % 3 == 2, .dies = true };
		struct re_job first = re_on(d, 2, (struct re_plan){ .last = 5, .disk_every = 3,
			.images = 4, .nodes = 2, .copies = plan.copies, .dies = true });
		struct re_job second = re_on(d, 2, plan);

		PLAYED(first, 0);
		simdisk_set_task_steps(d, 0);
		PLAYED(second, 0);
		simdisk_set_task_steps(d, -1);
		CHECK_INT(second.loaded, 3);
		if (i / 3)
			flush_on_both(d, i / 3 == 1);
		CHECK_INT(next_loads(d, plan), 4);
		simdisk_free(d);
	}
}

static void mark_bad(struct simdisk *d, int64_t step)
{
	static uint64_t pid = 67000;
	struct shf_opts opts = { .io_threads = 1 };
	const struct shf_sys *sys = simdisk_process(d, pid++, 0);
	struct sheaf_run *run = NULL;
	struct sheaf_error err;

	CHECK_RC(shf_run_open(&run, "run", NULL, &opts, sys, &err), 0, &err);
	CHECK_RC(shf_run_mark(run, step, SHEAF_MARK_BAD, &err), 0, &err);
	shf_run_close(run);
	simdisk_kill(d, sys);
}

/* The next job goes on from 1 and saves another 2, or 2 and 3, in memory alone. Whoever marks what
 * was flushed bad finds nothing newer in memory either, and no flush writes it again. */
TEST(a_flush_sets_the_bad_step_of_a_number_aside)
{
	for (int i = 0; i < 4; i++) {
		int nodes = i % 2 + 1, last = i / 2 + 2;
		struct re_plan plan = { .last = last, .images = 4, .nodes = nodes, .dies = true };
		struct simdisk *d = re_world(7);
		struct re_job first = re_on(d, 2, (struct re_plan){ .last = 2, .disk_every = 1,
			.nodes = nodes }), second = re_on(d, 2, plan);

		PLAYED(first, 0);
		mark_bad(d, 2);
		PLAYED(second, 0);
		CHECK_INT(second.loaded, 1);
		flush_on_both(d, false);
		for (int node = 0; node < 2; node++)
			simdisk_kill_agent(d, node);
		CHECK_INT(next_loads(d, plan), last);
		simdisk_free(d);
	}
}

TEST(a_flush_writes_no_step_again_that_was_marked_bad)
{
	for (int nodes = 1; nodes <= 2; nodes++) {
		struct re_plan plan = { .last = 2, .images = 4, .nodes = nodes, .dies = true };
		struct simdisk *d = re_world(7);
		struct re_job first = re_on(d, 2, (struct re_plan){ .last = 1, .disk_every = 1,
			.nodes = nodes }), second = re_on(d, 2, plan);

		PLAYED(first, 0);
		PLAYED(second, 0);
		CHECK_INT(flush_on_both(d, false), 1);
		mark_bad(d, 2);
		CHECK_INT(flush_on_both(d, false), 0);
		CHECK_INT(next_loads(d, plan), 1);
		simdisk_free(d);
	}
}

/* A flush that has no descriptors left never says that another save is in the way, and the next one
 * writes what it did not. */
TEST(a_flush_that_cannot_look_at_the_bad_step_says_why)
{
	int failed = 0;

	for (int nth = 1, fired = 1; fired; nth++) {
		struct one o = one_new(0);
		int64_t rc;

		one_saves(&o, 1, 0);
		one_saves(&o, 2, 0);
		CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
		one_dies(&o);
		one_next(&o);
		CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), 1);
		one_saves(&o, 2, SHEAF_SAVE_NO_DISK);
		one_dies(&o);
		simdisk_fail_at(o.disk, nth, EMFILE);
		rc = one_flush(&o, false);
		fired = simdisk_fired(o.disk);
		simdisk_faults_clear(o.disk);
		failed += rc < -1;
		if (rc == SHEAF_EEXIST)
			fail_msg("call %d: %s", nth, o.err.msg);
		(void)one_flush(&o, false);
		simdisk_kill_agent(o.disk, 0);
		one_next(&o);
		CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), 2);
		one_end(&o);
	}
	print_message("# %d flushes failed\n", failed);
	CHECK(failed > 20);
}

/* 6 follows 5, which is marked bad. Each call of a load fails once, among them those that read the
 * mark. doubt: 5 was in doubt when 6 was saved, so that 6 may follow 4. Returns how many loads
 * failed. */
static int loads_that_fail(bool doubt)
{
	int failed = 0;

	for (int nth = 1, fired = 1; fired; nth++) {
		struct one o = one_new(0);
		int64_t found;

		one_saves(&o, 4, 0);
		if (doubt)
			one_doubts(&o, one_begin(&o, 5, 0), false);
		else
			one_saves(&o, 5, 0);
		one_saves(&o, 6, SHEAF_SAVE_NO_DISK);
		CHECK_RC(shf_run_mark(o.run, 5, SHEAF_MARK_BAD, &o.err), 0, &o.err);
		one_dies(&o);
		one_next(&o);
		simdisk_fail_at(o.disk, nth, EIO);
		found = one_loads(&o, SHEAF_LATEST, NULL);
		fired = simdisk_fired(o.disk);
		simdisk_faults_clear(o.disk);
		failed += found < 0;
		if (found >= 0)
			CHECK_INT(found, 4);
		CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), 4);
		one_end(&o);
	}
	return failed;
}

TEST(no_load_takes_what_may_follow_a_bad_step)
{
	int failed = loads_that_fail(false), in_doubt = loads_that_fail(true);

	print_message("# %d and %d loads failed\n", failed, in_doubt);
	CHECK(failed > 20 && in_doubt > 20);
}

/* 5 is on disk (by a flush, or in doubt) and bad, and 6 in memory may follow it. The next job goes
 * on from 4 and begins its own 5, by which the bad one loses its mark and is set aside, but this
 * save comes to nothing. */
static void bad_goes_aside(bool doubt, bool dies)
{
	struct one o = one_new(0);
	struct sheaf_save *five, *again;

	one_saves(&o, 4, 0);
	five = one_begin(&o, 5, 0);
	if (doubt) {
		one_doubts(&o, five, false);
	} else {
		CHECK_RC(shf_save_commit(five, 0, &o.err), SHEAF_EAGAIN, &o.err);
	}
	one_saves(&o, 6, SHEAF_SAVE_NO_DISK);
	one_dies(&o);
	if (!doubt) {
		shf_save_free(five);
		CHECK_INT(one_flush(&o, true), 5);
	}
	one_next(&o);
	CHECK_RC(shf_run_mark(o.run, 5, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), 4);
	again = one_begin(&o, 5, 0);
	if (!dies)
		shf_save_free(again);
	one_dies(&o);
	if (dies)
		shf_save_free(again);
	CHECK_INT(one_flush(&o, false), -1);
	one_next(&o);
	CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), 4);
	one_end(&o);
}

TEST(what_follows_a_bad_step_stays_away_when_that_is_set_aside)
{
	for (int way = 0; way < 4; way++)
		bad_goes_aside(way & 1, way & 2);
}

/* A text that is no mark may have said that 4 is bad. */
TEST(what_follows_a_step_whose_mark_is_odd_is_not_taken)
{
	struct one o = one_new(0);

	one_saves(&o, 4, 0);
	one_saves(&o, 5, SHEAF_SAVE_NO_DISK);
	CHECK_RC(shf_run_mark(o.run, 4, SHEAF_MARK_KEEP, &o.err), 0, &o.err);
	one_dies(&o);
	CHECK_INT(simdisk_put(o.disk, "run/.sheaf/marks/4", "c 0", 3), 0);
	one_next(&o);
	CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), SHEAF_EIO);
	CHECK(strstr(o.err.msg, ".sheaf/marks") != NULL);
	CHECK_RC(shf_run_mark(o.run, 4, SHEAF_MARK_KEEP, &o.err), 0, &o.err);
	CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), 5);
	one_end(&o);
}

/* 2 is acknowledged in memory. Saves of 3 to disk are in memory too, when they are given up or the
 * disk fails. looks: the job has loaded 1; back: and then 2 again. */
static void comes_to_nothing(bool looks, bool back, bool fails)
{
	struct one o = one_new(0);
	struct sheaf_save *three;
	bool memory;

	one_saves(&o, 1, 0);
	one_saves(&o, 2, SHEAF_SAVE_NO_DISK);
	if (looks)
		CHECK_INT(one_loads(&o, 1, NULL), 1);
	if (back)
		CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), 2);
	three = one_begin(&o, 3, 0);
	CHECK_RC(shf_save_commit(three, 0, &o.err), SHEAF_EAGAIN, &o.err);
	if (fails)
		simdisk_fault(o.disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
		        .kind = SIMDISK_RENAME, .name = "sheaf.json", .always = true });
	else
		CHECK_INT(sheaf_save_abort(three, "no good", NULL), 0);
	CHECK(shf_save_commit(three, -1, &o.err) < 0);
	simdisk_faults_clear(o.disk);
	one_dies(&o);
	shf_save_free(three);
	one_next(&o);
	CHECK_INT(one_loads(&o, SHEAF_LATEST, &memory), 2);
	CHECK(memory);
	one_end(&o);
}

TEST(a_save_that_comes_to_nothing_takes_no_older_step_out_of_memory)
{
	for (int way = 0; way < 6; way++)
		comes_to_nothing(way % 3 > 0, way % 3 > 1, way >= 3);
}

static struct one *overtaken;
static int (*lock_real)(void *arg, int fd, bool exclusive);

/* Before the flush has the lock, a job goes on from 3 and acknowledges a 4 of its own. */
static int lock_after_a_job(void *arg, int fd, bool exclusive)
{
	struct one *o = overtaken;

	overtaken = NULL;
	if (o) {
		one_next(o);
		CHECK_INT(one_loads(o, 3, NULL), 3);
		one_saves(o, 4, SHEAF_SAVE_NO_DISK);
		one_dies(o);
	}
	return lock_real(arg, fd, exclusive);
}

TEST(a_flush_that_waited_for_the_lock_leaves_what_a_later_job_saved)
{
	struct one o = one_new(0);
	const struct shf_sys *sys;
	int64_t step = -1;

	one_saves(&o, 3, 0);
	one_saves(&o, 4, SHEAF_SAVE_NO_DISK);
	one_saves(&o, 5, SHEAF_SAVE_NO_DISK);
	one_dies(&o);
	sys = simdisk_process(o.disk, 68000, 0);
	lock_real = simover_real()->file.lock;
	overtaken = &o;
	simover(sys)->file.lock = lock_after_a_job;
	CHECK_RC(shf_flush_newest("run", NULL, false, 0, sys, &step, NULL, &o.err), SHEAF_EBUSY,
	         &o.err);
	CHECK(strstr(o.err.msg, "a later job has resumed") != NULL);
	simdisk_kill(o.disk, sys);
	one_next(&o);
	CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), 4);
	one_end(&o);
}

/* ---- the parent of what is flushed ---- */

static void manifest_of(struct simdisk *d, int64_t step, struct shf_manifest *m)
{
	struct shf_arena arena = { 0 };
	struct sheaf_error err;
	char path[60];
	size_t n = 0;
	uint8_t *text;

	snprintf(path, sizeof(path), "run/checkpoint-%" PRId64 "/sheaf.json", step);
	text = simdisk_get(d, path, &n);
	CHECK(text != NULL);
	CHECK_RC(shf_manifest_decode(m, &arena, text, n, path, &err), 0, &err);
	shf_arena_release(&arena); /* only numbers and sessions are looked at */
	free(text);
}

/* Whether the step names that one as its parent, by number and session. */
static bool follows(struct simdisk *d, int64_t step, int64_t parent)
{
	struct shf_manifest m, p;

	manifest_of(d, step, &m);
	manifest_of(d, parent, &p);
	return m.has_parent && m.parent_step == parent && strcmp(m.parent_session, p.session) == 0;
}

/* 11 comes to memory alone while 10 is on its way to disk. due: the job dies before 10 is there. */
static struct one left_behind_one_in_flight(bool due)
{
	struct one o = one_new(0);
	struct sheaf_save *ten;

	one_saves(&o, 5, 0);
	ten = one_begin(&o, 10, 0);
	if (due)
		CHECK_RC(shf_save_commit(ten, 0, &o.err), SHEAF_EAGAIN, &o.err);
	one_saves(&o, 11, SHEAF_SAVE_NO_DISK);
	if (!due)
		CHECK_RC(one_commit(&o, ten), 0, &o.err);
	one_dies(&o);
	if (due)
		shf_save_free(ten);
	return o;
}

static void restores(struct one *o, int64_t step, const char *session)
{
	char name[60];

	snprintf(name, sizeof(name), "%" PRId64 "-%s", step, session);
	CHECK_RC(shf_aside_restore(&o->run->store, name, &o->err), 0, &o->err);
}

/* Then a prune deletes all three, or what was set aside is restored in turn. */
TEST(a_flushed_step_follows_the_one_that_came_to_disk_after_it)
{
	for (int i = 0; i < 4; i++) {
		bool due = i / 2;
		struct one o = left_behind_one_in_flight(due);
		struct shf_manifest ten, eleven;

		if (due)
			CHECK_INT(one_flush(&o, true), 10);
		CHECK_INT(one_flush(&o, false), 11);
		CHECK(follows(o.disk, 10, 5) && follows(o.disk, 11, 10));
		manifest_of(o.disk, 10, &ten);
		manifest_of(o.disk, 11, &eleven);
		one_next(&o);
		CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), 11);
		if (i % 2) {
			CHECK_RC(shf_run_rewind(o.run, 5, &o.err), 0, &o.err);
			restores(&o, 10, ten.session);
			restores(&o, 11, eleven.session);
			CHECK_INT(one_loads(&o, SHEAF_LATEST, NULL), 11);
		} else {
			one_saves(&o, 20, 0);
			o.run->opts.keep_last = 1;
			CHECK_INT(shf_run_prune(o.run, false, NULL, NULL, &o.err), 3);
			CHECK(!one_on_disk(&o, 5) && !one_on_disk(&o, 10) && !one_on_disk(&o, 11));
		}
		one_end(&o);
	}
}

TEST(so_does_one_that_several_agents_write)
{
	for (int nodes = 1; nodes <= 2; nodes++) {
		struct simdisk *d = re_world(7);
		struct re_job job = re_on(d, 2, (struct re_plan){ .last = 3, .disk_every = 2,
			.late = true, .dies = true, .images = 4, .nodes = nodes });

		PLAYED(job, 0);
		CHECK_INT(flush_on_both(d, false), 1);
		CHECK(follows(d, 3, 2));
		simdisk_free(d);
	}
}

/* Wherever a flush fails, the next one names the same parent. */
TEST(each_call_of_a_flush_may_fail_and_the_parent_is_right)
{
	for (int nth = 1, fired = 1; fired; nth++) {
		struct one o = left_behind_one_in_flight(false);
		int64_t rc;

		simdisk_fail_at(o.disk, nth, EIO);
		rc = one_flush(&o, false);
		fired = simdisk_fired(o.disk);
		simdisk_faults_clear(o.disk);
		if (rc != 11)
			(void)one_flush(&o, false);
		CHECK(follows(o.disk, 11, 10));
		one_end(&o);
	}
}

/* Before the flush has the lock, another one writes the step. */
static int lock_after_a_flush(void *arg, int fd, bool exclusive)
{
	struct one *o = overtaken;

	overtaken = NULL;
	if (o)
		CHECK_INT(one_flush(o, false), 11);
	return lock_real(arg, fd, exclusive);
}

TEST(a_flush_knows_the_step_that_another_has_written_with_a_new_parent)
{
	struct one o = left_behind_one_in_flight(false);
	struct sheaf_report report = { .size = sizeof(report) };
	const struct shf_sys *sys = simdisk_process(o.disk, 68001, 0);
	int64_t step = -1;

	lock_real = simover_real()->file.lock;
	overtaken = &o;
	simover(sys)->file.lock = lock_after_a_flush;
	CHECK_RC(shf_flush_newest("run", NULL, false, 0, sys, &step, &report, &o.err), 0, &o.err);
	CHECK(step == 11 && report.held == 0 && report.loaded > 0);
	CHECK(follows(o.disk, 11, 10));
	simdisk_kill(o.disk, sys);
	one_end(&o);
}
