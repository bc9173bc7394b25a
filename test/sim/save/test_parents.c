/* SPDX-License-Identifier: Apache-2.0 */
/* Which step a save follows, as its manifest says: what the run went on from when the save began,
 * or what was committed since, and never a step that has been set aside. */
#include <stdlib.h>
#include <string.h>
#include "flush.h"
#include "step.h"
#include "err.h"
#include "save_publish.h"
#include "memory_steps.h"
#include "restarts.h"
#include "save.h"
#include "simover.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"
#include "save_status.h"
#include "state.h"
#include "step_open.h"
#include "run_ops.h"
#include "load.h"
#include "sheaf-admin.h"

struct one {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct re_mine m;
	struct sheaf_error err;
};

static struct one one_job(const char *agent)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .agent = agent,
		.images_max = 3, .io_threads = 1, .keep_last = 1 };
	struct one o = { .disk = re_world(8) };

	o.sys = simdisk_process(o.disk, 71000, 0);
	o.state = re_state(&o.m, 0, 1);
	re_paint(&o.m, 1);
	CHECK_RC(shf_run_open(&o.run, "run", NULL, &opts, o.sys, &o.err), 0, &o.err);
	return o;
}

static void end(struct one *o)
{
	shf_run_close(o->run);
	shf_state_put(o->state);
	re_free(&o->m);
	simdisk_kill(o->disk, o->sys);
	simdisk_free(o->disk);
}

static struct sheaf_save *begun(struct one *o, int64_t step)
{
	struct sheaf_save *save = NULL;

	CHECK_RC(shf_save_begin(&save, o->run, step, o->state, NULL, &o->err), 0, &o->err);
	return save;
}

static void commits(struct one *o, struct sheaf_save *save)
{
	CHECK_RC(shf_save_commit(save, -1, &o->err), 0, &o->err);
	shf_save_free(save);
}

static struct sheaf_checkpoint *opened(struct one *o, int64_t step)
{
	struct sheaf_checkpoint *s = NULL;

	CHECK_RC(shf_step_open_disk(&s, o->run, step, &o->err), 0, &o->err);
	return s;
}

static struct sheaf_checkpoint *from_memory(struct one *o, int64_t step)
{
	struct sheaf_checkpoint *s = NULL;

	CHECK_RC(shf_step_open(&s, o->run, step, &o->err), 0, &o->err);
	CHECK(s->run->lineage.memory_of != NULL);
	return s;
}

static void loads(struct one *o, struct sheaf_checkpoint *step)
{
	CHECK_RC(shf_step_load(step, o->state, SHEAF_LOAD_STRICT, NULL, &o->err), 0, &o->err);
	shf_step_put(step);
}

static int64_t parent_of(struct one *o, int step)
{
	char path[80], *text, *at;
	int64_t parent = -1;
	size_t n = 0;

	snprintf(path, sizeof(path), "run/checkpoint-%d/sheaf.json", step);
	text = simdisk_get(o->disk, path, &n);
	at = text ? memmem(text, n, "\"parent\": {\"step\": ", 19) : NULL;
	if (at)
		parent = atoll(at + 19);
	free(text);
	return parent;
}

static bool has(struct one *o, int step)
{
	char path[80];

	snprintf(path, sizeof(path), "run/checkpoint-%d", step);
	return simdisk_exists(o->disk, path);
}

static int prunes(struct one *o)
{
	return shf_run_prune(o->run, false, NULL, NULL, &o->err);
}

TEST(a_load_does_not_change_what_the_saves_in_flight_follow)
{
	static const char *const agents[] = { NULL, "auto" };

	for (int i = 0; i < 2; i++) {
		struct one o = one_job(agents[i]);
		struct sheaf_save *three, *four;
		struct sheaf_checkpoint *one;

		commits(&o, begun(&o, 1));
		one = opened(&o, 1);
		commits(&o, begun(&o, 2));
		three = begun(&o, 3);
		four = begun(&o, 4);
		loads(&o, one);
		commits(&o, three);
		loads(&o, opened(&o, 2));
		commits(&o, four);
		CHECK_INT(parent_of(&o, 3), 2);
		CHECK_INT(parent_of(&o, 4), 3);
		CHECK(prunes(&o) >= 0);
		CHECK(!has(&o, 1) && !has(&o, 2) && !has(&o, 3) && has(&o, 4));
		end(&o);
	}
}

static void refuses(struct one *o, int64_t step, uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, o->run, step, o->state, &opts, &o->err);

	if (rc == 0) { /* memory is looked at by the commit */
		CHECK(flags & SHEAF_SAVE_NO_DISK);
		rc = shf_save_commit(save, -1, &o->err) == SHEAF_EFAILED ? SHEAF_EINVAL : 0;
		shf_save_free(save);
	}
	CHECK_INT(rc, SHEAF_EINVAL);
	CHECK(strstr(o->err.msg, "step 2 was loaded, but was set aside in run since; rewind") !=
	      NULL);
}

TEST(who_loaded_a_step_that_was_set_aside_rewinds_before_saving)
{
	struct one o = one_job("auto");
	struct sheaf_checkpoint *two;

	commits(&o, begun(&o, 1));
	commits(&o, begun(&o, 2));
	two = opened(&o, 2);
	CHECK_RC(shf_run_rewind(o.run, 1, &o.err), 0, &o.err);
	loads(&o, two);
	refuses(&o, 4, 0);
	refuses(&o, 4, SHEAF_SAVE_NO_DISK);
	CHECK_RC(shf_run_rewind(o.run, 1, &o.err), 0, &o.err);
	commits(&o, begun(&o, 4));
	CHECK_INT(parent_of(&o, 4), 1);
	CHECK(prunes(&o) >= 0);
	CHECK(!has(&o, 1) && has(&o, 4));
	end(&o);
}

/* Step 2 of the manifest would be another one than the 2 that is there. */
TEST(who_loaded_a_bad_step_whose_number_was_saved_again_rewinds_before_saving)
{
	struct one o = one_job(NULL);
	struct sheaf_checkpoint *two;

	commits(&o, begun(&o, 1));
	commits(&o, begun(&o, 2));
	two = opened(&o, 2);
	CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	commits(&o, begun(&o, 2));
	loads(&o, two);
	refuses(&o, 4, 0);
	end(&o);
}

/* The same with a step that was opened from memory: on disk it was set aside when its number was
 * taken, so no save can follow it. */
TEST(who_loaded_a_bad_step_from_memory_whose_number_is_saved_again_rewinds_before_saving)
{
	struct one o = one_job("auto");
	struct sheaf_checkpoint *two;
	struct sheaf_save *again;

	commits(&o, begun(&o, 2));
	two = from_memory(&o, 2);
	CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	again = begun(&o, 2);
	loads(&o, two);
	refuses(&o, 4, 0);
	commits(&o, again);
	end(&o);
}

/* While 3 takes the number of a bad step it follows 1; a mark that is taken back then makes 2 the
 * newest, and 4 follows that until it follows 3. */
TEST(a_mark_that_is_taken_back_while_a_save_flies_is_in_no_saves_way)
{
	struct one o = one_job(NULL);
	struct sheaf_save *three, *four;

	commits(&o, begun(&o, 1));
	commits(&o, begun(&o, 2));
	CHECK_RC(shf_run_mark(o.run, 1, SHEAF_MARK_KEEP, &o.err), 0, &o.err);
	CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	commits(&o, begun(&o, 3));
	CHECK_RC(shf_run_mark(o.run, 3, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	three = begun(&o, 3);
	CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_KEEP, &o.err), 0, &o.err);
	four = begun(&o, 4);
	commits(&o, three);
	commits(&o, four);
	CHECK_INT(parent_of(&o, 4), 3);
	end(&o);
}

/* 2 is marked bad, so that what lies in memory follows 1, or nothing; 2 itself is there. */
static struct sheaf_save *begun_lazily(struct one *o, int64_t step)
{
	static const struct sheaf_save_opts lazily = { .size = sizeof(lazily),
		.flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;

	CHECK_RC(shf_save_begin(&save, o->run, step, o->state, &lazily, &o->err), 0, &o->err);
	CHECK_INT(shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL), 0);
	return save;
}

/* A later lazy save makes its stage, and sets the bad step aside, when it is committed or when the
 * next save needs its image, which is inside that one's begin. */
TEST(a_save_that_is_begun_while_a_bad_step_goes_aside_follows_what_is_left)
{
	for (int i = 0; i < 2; i++) {
		struct one o = one_job(NULL);
		struct sheaf_save *again, *next;

		o.run->opts.images_max = i;
		commits(&o, begun_lazily(&o, 1));
		commits(&o, begun_lazily(&o, 2));
		CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
		again = begun_lazily(&o, 2);
		next = i ? begun_lazily(&o, 3) : begun(&o, 3);
		commits(&o, again);
		commits(&o, next);
		CHECK_INT(parent_of(&o, 2), 1);
		CHECK_INT(parent_of(&o, 3), 2);
		end(&o);
	}
}

TEST(a_prune_leaves_a_bad_step_that_was_loaded_from_memory)
{
	struct one o = one_job("auto");
	struct sheaf_save *two = begun(&o, 2), *three = begun(&o, 3);
	struct sheaf_checkpoint *bad;

	commits(&o, two);
	CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	bad = from_memory(&o, 2);
	commits(&o, three);
	loads(&o, bad);
	CHECK(prunes(&o) >= 0);
	CHECK(has(&o, 2) && has(&o, 3));
	end(&o);
}

/* The job knows that 3 is on disk, which is not what it goes on from. */
TEST(who_loaded_an_older_step_from_memory_saves_none_to_memory_beside_a_newer_one)
{
	struct sheaf_save_opts memory = { .size = sizeof(memory), .flags = SHEAF_SAVE_NO_DISK };
	struct one o = one_job("auto");
	struct sheaf_save *save = NULL;
	struct sheaf_checkpoint *one;

	commits(&o, begun(&o, 1));
	one = from_memory(&o, 1);
	commits(&o, begun(&o, 3));
	loads(&o, one);
	CHECK_RC(shf_save_begin(&save, o.run, 6, o.state, &memory, &o.err), 0, &o.err);
	CHECK_RC(shf_save_commit(save, -1, &o.err), SHEAF_EFAILED, &o.err);
	CHECK(strstr(o.err.msg, "would not follow step 3") != NULL);
	shf_save_free(save);
	end(&o);
}

/* While a save is in doubt nobody knows whether it is there; those begun after it follow it if it
 * is, also if what shows it is a load. */
static struct sheaf_save *begun_in_doubt(struct one *o, int64_t doubtful, int64_t step,
                                         uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = begun(o, doubtful), *next = NULL;

	while (!shf_save_publish_current(o->run))
		CHECK_RC(shf_save_commit(save, 0, &o->err), SHEAF_EAGAIN, &o->err);
	shf_save_free(save); /* and nobody has been told what came of it */
	CHECK_RC(shf_save_begin(&next, o->run, step, o->state, &opts, &o->err), 0, &o->err);
	return next;
}

TEST(a_save_that_was_begun_in_doubt_follows_the_step_that_a_load_then_found)
{
	static const uint64_t flags[] = { SHEAF_SAVE_NO_DISK, SHEAF_SAVE_LAZY };

	for (int i = 0; i < 2; i++) {
		struct one o = one_job("auto");
		struct sheaf_save *six;

		commits(&o, begun_lazily(&o, 1));
		six = begun_in_doubt(&o, 3, 6, flags[i]);
		if (flags[i] & SHEAF_SAVE_LAZY)
			CHECK_INT(shf_save_copied(six, SHEAF_ALL_SLICES, -1, NULL), 0);
		loads(&o, opened(&o, 3));
		commits(&o, six);
		if (flags[i] & SHEAF_SAVE_LAZY)
			CHECK_INT(parent_of(&o, 6), 3);
		else
			shf_step_put(from_memory(&o, 6));
		end(&o);
	}
}

/* Its mark outlives it, and the one on 4 makes it follow the newest step on disk, which is none. */
TEST(a_bad_step_that_was_pruned_is_not_opened_by_its_number_from_memory)
{
	struct sheaf_checkpoint *three = NULL;
	struct one o = one_job("auto");

	commits(&o, begun(&o, 3));
	CHECK_RC(shf_run_mark(o.run, 3, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	shf_step_put(from_memory(&o, 3)); /* while it is on disk */
	commits(&o, begun(&o, 4));
	CHECK(prunes(&o) >= 0);
	CHECK(!has(&o, 3));
	CHECK_RC(shf_run_mark(o.run, 4, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	CHECK_RC(shf_step_open(&three, o.run, 3, &o.err), SHEAF_ENOENT, &o.err);
	end(&o);
}

static void saves_to_memory(struct one *o, int64_t step)
{
	struct sheaf_save_opts memory = { .size = sizeof(memory), .flags = SHEAF_SAVE_NO_DISK };
	struct sheaf_save *save = NULL;

	CHECK_RC(shf_save_begin(&save, o->run, step, o->state, &memory, &o->err), 0, &o->err);
	commits(o, save);
}

static void is_killed(struct one *o)
{
	simdisk_kill(o->disk, o->sys);
	shf_run_close(o->run); /* frees memory only */
}

/* The next job of the run, whose agent lives. */
static void is_followed(struct one *o)
{
	static uint64_t pid = 72000;
	struct shf_opts opts = { .agent = "auto", .images_max = 3,
		.io_threads = 1, .keep_last = 1 };

	o->sys = simdisk_process(o->disk, pid++, 0);
	CHECK_RC(shf_run_open(&o->run, "run", NULL, &opts, o->sys, &o->err), 0, &o->err);
}

/* Steps 11 to 13 are in memory alone, and follow 10 on disk. */
static void goes_ahead(struct one *o)
{
	commits(o, begun(o, 10));
	for (int step = 11; step <= 13; step++)
		saves_to_memory(o, step);
}

static void goes_back(struct one *o)
{
	goes_ahead(o);
	loads(o, opened(o, 10));
}

/* Of a state that is written in place memory has nothing. */
static struct sheaf_save *begun_in_place(struct one *o, int64_t step)
{
	static float values[13 * 700];
	struct sheaf_state *state = shf_state_new();
	struct sheaf_slice slice = { .size = sizeof(slice), .name = "a", .dtype = SHEAF_F32,
		.ndim = 2, .shape = { 13, 700 }, .count = { 13, 700 }, .data = values,
		.flags = SHEAF_SLICE_IN_PLACE };
	struct sheaf_save *save = NULL;

	CHECK(shf_state_add(state, &slice, NULL) >= 0);
	CHECK_RC(shf_save_begin(&save, o->run, step, state, NULL, &o->err), 0, &o->err);
	shf_state_put(state);
	return save;
}

static void latest_is(struct one *o, int64_t step, bool memory)
{
	struct sheaf_checkpoint *s = NULL;

	CHECK_RC(shf_step_open(&s, o->run, SHEAF_LATEST, &o->err), 0, &o->err);
	CHECK_INT(s->number, step);
	CHECK_INT(s->run->lineage.memory_of != NULL, memory);
	shf_step_put(s);
}

/* Only the first save after the second load is begun from what that load has left. */
TEST(a_step_on_disk_is_not_followed_by_what_was_left_behind_in_memory)
{
	for (int i = 0; i < 3; i++) {
		struct one o = one_job("auto");
		struct sheaf_save *save;

		goes_back(&o);
		save = begun_in_place(&o, 11);
		if (i == 1)
			loads(&o, opened(&o, 10));
		if (i == 2)
			while (!shf_save_publish_current(o.run))
				CHECK_RC(shf_save_commit(save, 0, &o.err), SHEAF_EAGAIN, &o.err);
		commits(&o, save);
		latest_is(&o, 11, false);
		end(&o);
	}
}

/* It may be there when the job dies, and what was left behind may not be taken to follow it. */
TEST(what_was_left_behind_in_memory_follows_no_step_that_is_being_published)
{
	struct one o = one_job("auto");
	struct sheaf_save *save;

	goes_back(&o);
	save = begun_in_place(&o, 11);
	while (!shf_save_publish_current(o.run))
		CHECK_RC(shf_save_commit(save, 0, &o.err), SHEAF_EAGAIN, &o.err);
	shf_save_free(save); /* which leaves it there */
	latest_is(&o, 11, false);
	end(&o);
}

/* 20 was begun before the job went back, and so is of the branch that 21 is of. */
TEST(a_save_that_was_begun_before_its_job_went_back_is_followed_in_memory)
{
	struct one o = one_job("auto");
	struct sheaf_save *twenty;

	commits(&o, begun(&o, 10));
	twenty = begun_in_place(&o, 20);
	saves_to_memory(&o, 21);
	loads(&o, opened(&o, 10));
	commits(&o, twenty);
	latest_is(&o, 21, true);
	end(&o);
}

static void is_refused(struct one *o, int64_t step, uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;

	CHECK_RC(shf_save_begin(&save, o->run, step, o->state, &opts, &o->err), SHEAF_EINVAL,
	         &o->err);
	CHECK(strstr(o->err.msg, "an older step was loaded, but step 1"));
}

/* The newest is of the same job, or of one that has died. A load of the newest is in no save's way;
 * nor is a rewind, after which the run goes on from the disk. */
TEST(who_loads_an_older_step_from_memory_rewinds_before_saving)
{
	for (int i = 0; i < 4; i++) {
		struct one o = one_job("auto");
		bool rewinds = i & 1;

		goes_ahead(&o);
		if (i & 2) {
			is_killed(&o);
			is_followed(&o);
		}
		loads(&o, from_memory(&o, 12));
		is_refused(&o, 14, 0);
		is_refused(&o, 14, SHEAF_SAVE_NO_DISK);
		latest_is(&o, 13, true);
		if (rewinds)
			CHECK_RC(shf_run_rewind(o.run, 10, &o.err), 0, &o.err);
		else
			loads(&o, from_memory(&o, 13));
		commits(&o, begun(&o, 14));
		CHECK_INT(parent_of(&o, 14), 10);
		end(&o);
	}
}

static int64_t flushed_due(struct one *o)
{
	const struct shf_sys *sys = simdisk_process(o->disk, 73000, 0);
	int64_t step = -1;

	CHECK_RC(shf_flush_newest("run", "auto", true, 0, sys, &step, NULL, &o->err), 0, &o->err);
	simdisk_kill(o->disk, sys);
	return step;
}

/* The next job goes on from 10, which it names, and is killed with its 11 in memory, due. */
TEST(a_flush_of_what_was_due_takes_up_no_other_jobs_branch)
{
	struct one o = one_job("auto");
	struct sheaf_save *save;

	goes_ahead(&o);
	is_killed(&o);
	is_followed(&o);
	loads(&o, opened(&o, 10));
	save = begun(&o, 11);
	CHECK_RC(shf_save_commit(save, 0, &o.err), SHEAF_EAGAIN, &o.err);
	CHECK(strstr(o.err.msg, "it is safe in the agents' memory") != NULL);
	is_killed(&o);
	shf_save_free(save);
	CHECK_INT(flushed_due(&o), 11);
	is_followed(&o);
	latest_is(&o, 11, true);
	end(&o);
}

/* It was the newest when it was opened. */
TEST(who_loads_from_memory_what_is_the_newest_no_more_rewinds_before_saving)
{
	struct one o = one_job("auto");
	struct sheaf_checkpoint *held;

	goes_ahead(&o);
	held = from_memory(&o, SHEAF_LATEST);
	saves_to_memory(&o, 14);
	loads(&o, held);
	is_refused(&o, 15, 0);
	loads(&o, from_memory(&o, SHEAF_LATEST));
	commits(&o, begun(&o, 15));
	end(&o);
}

TEST(a_save_that_was_begun_in_doubt_follows_what_was_committed_since)
{
	struct one o = one_job(NULL);
	struct sheaf_save *one = begun_lazily(&o, 1), *two = begun_lazily(&o, 2), *four, *six;

	commits(&o, one);
	commits(&o, two);
	four = begun_in_doubt(&o, 3, 4, 0);
	/* no prune takes it */
	CHECK_RC(shf_run_mark(o.run, 3, SHEAF_MARK_KEEP, &o.err), 0, &o.err);
	six = begun_lazily(&o, 6);
	CHECK(six->at.disk == SHF_DISK_UNSTAGED); /* what it follows is looked for by its commit */
	commits(&o, four);
	CHECK_RC(shf_run_mark(o.run, 4, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	commits(&o, six); /* 3 is the newest that is not bad */
	CHECK_INT(parent_of(&o, 6), 4);
	end(&o);
}

TEST(who_loads_the_very_step_that_is_being_saved_goes_on_from_it)
{
	struct one o = one_job("auto");
	struct sheaf_save *twenty;

	commits(&o, begun(&o, 10));
	simdisk_set_takes(o.disk, SIMDISK_FSYNC, 20);
	twenty = begun(&o, 20);
	CHECK_RC(shf_save_commit(twenty, 0, &o.err), SHEAF_EAGAIN, &o.err);
	CHECK(strstr(o.err.msg, "it is safe in the agents' memory") != NULL);
	loads(&o, from_memory(&o, 20));
	commits(&o, twenty);
	commits(&o, begun(&o, 21));
	CHECK_INT(parent_of(&o, 21), 20);
	end(&o);
}

TEST(a_save_in_doubt_fails_none_that_was_begun_before_it)
{
	struct one o = one_job("auto");
	struct sheaf_save_opts memory = { .size = sizeof(memory), .flags = SHEAF_SAVE_NO_DISK };
	struct sheaf_save *nine = NULL, *ten;

	commits(&o, begun(&o, 5));
	CHECK_RC(shf_save_begin(&nine, o.run, 9, o.state, &memory, &o.err), 0, &o.err);
	ten = begun(&o, 10);
	while (!shf_save_publish_current(o.run))
		CHECK_RC(shf_save_commit(ten, 0, &o.err), SHEAF_EAGAIN, &o.err);
	shf_save_free(ten);
	commits(&o, nine);
	end(&o);
}

/* The step is whole in memory, whatever becomes of its files. */
TEST(a_disk_that_fails_takes_no_step_from_memory)
{
	struct one o = one_job("auto");
	struct sheaf_save *save;
	struct sheaf_error why;

	commits(&o, begun(&o, 1));
	simdisk_set_takes(o.disk, SIMDISK_FSYNC, 20);
	save = begun(&o, 4);
	CHECK_RC(shf_save_commit(save, 0, &o.err), SHEAF_EAGAIN, &o.err);
	CHECK(strstr(o.err.msg, "it is safe in the agents' memory") != NULL);
	shf_save_stick(save, shf_fail(&why, SHEAF_EIO, "the disk is full"), &why);
	shf_save_free(save);
	loads(&o, from_memory(&o, 4));
	end(&o);
}

/* A disk so slow that nothing that was asked of it is done yet. */
static int nothing_is_complete(void *arg, struct shf_queue *queue, struct shf_io **io, int ms)
{
	(void)arg;
	(void)queue;
	(void)ms;
	*io = NULL;
	return 0;
}

/* A note that is on disk and not in memory would come and go with the agent. */
TEST(what_is_in_memory_already_takes_no_notes_and_files)
{
	struct one o = one_job("auto");
	struct sheaf_save *save = begun(&o, 4);

	CHECK_INT(shf_save_note(save, "loss", "3", NULL), 0);
	simover(o.sys)->queue.complete = nothing_is_complete;
	CHECK_RC(shf_save_commit(save, 0, &o.err), SHEAF_EAGAIN, &o.err);
	simover(o.sys)->queue.complete = simover_real()->queue.complete;
	CHECK(strstr(o.err.msg, "it is safe in the agents' memory") != NULL);
	CHECK(save->at.disk < SHF_DISK_PUBLISHING);
	CHECK_INT(shf_save_note(save, "eval.loss", "3.5", NULL), SHEAF_EINVAL);
	CHECK_INT(shf_save_attach(save, "config.json", "{}", 2, NULL), SHEAF_EINVAL);
	commits(&o, save);
	end(&o);
}
