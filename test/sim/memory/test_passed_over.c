/* SPDX-License-Identifier: Apache-2.0 */
/* What memory has of a step that somebody has rewound or marked bad is passed over; and a commit
 * says that a step is in memory only while it is. */
#include <errno.h>
#include <string.h>
#include "step.h"
#include "restarts.h"
#include "save.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "step_open.h"
#include "run_resume.h"
#include "run_ops.h"
#include "load.h"
#include "sheaf-admin.h"

/* Steps 1 and 2, on disk and in memory. */
static struct simdisk *two_steps(void)
{
	struct simdisk *d = re_world(7);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 2, .disk_every = 1, .images = 2 });

	PLAYED(j, 0);
	CHECK_INT(j.acked, 2);
	return d;
}

static void resumes_from(struct simdisk *d, int64_t want)
{
	struct re_job next = re_on(d, 2, (struct re_plan){ .stop = true });

	PLAYED(next, 0);
	CHECK_INT(next.loaded, want);
}

/* Memory has an older step, but that is not taken for a newest one that is damaged. */
TEST(a_newest_step_whose_manifest_is_damaged_is_not_passed_over_for_memory)
{
	struct simdisk *d = two_steps();
	struct re_job next = re_on(d, 2, (struct re_plan){ .stop = true });

	CHECK_INT(simdisk_flip(d, "run/checkpoint-2/sheaf.json", 800), 0);
	PLAYED(next, SHEAF_ECORRUPT);
	simdisk_free(d);
}

static struct sheaf_run *opened_with(struct simdisk *d, const struct shf_sys **sys,
                                     const char *agent)
{
	struct shf_opts opts = { .io_threads = 1, .agent = agent };
	struct sheaf_run *run = NULL;
	struct sheaf_error err;

	*sys = simdisk_process(d, 70000, 0);
	CHECK_RC(shf_run_open(&run, "run", NULL, &opts, *sys, &err), 0, &err);
	return run;
}

/* Opens the run in a process that has no agent, as the command does. */
static struct sheaf_run *opened(struct simdisk *d, const struct shf_sys **sys)
{
	return opened_with(d, sys, NULL);
}

/* Step 3 is on disk, 4 and 5 are in memory. The agent tells which cards there are, then each. */
TEST(what_an_agent_tells_only_half_of_is_passed_over)
{
	struct simdisk *d = re_world(7);
	struct re_job j = re_on(d, 1, (struct re_plan){ .last = 5, .disk_every = 3, .images = 2 });

	PLAYED(j, 0);
	for (int nth = 0; nth <= 3; nth++) {
		struct sheaf_checkpoint *step = NULL;
		const struct shf_sys *sys;
		struct sheaf_run *run = opened_with(d, &sys, "auto");
		struct sheaf_error err;

		if (nth)
			simdisk_fault(d, &(struct simdisk_fault){ .nth = nth, .error = EPIPE,
			                                          .kind = SIMDISK_KEEP });
		CHECK_RC(shf_step_open(&step, run, SHEAF_LATEST, &err), 0, &err);
		CHECK_INT(step->number, nth ? 3 : 5);
		CHECK_INT(simdisk_fired(d), nth > 0);
		simdisk_faults_clear(d);
		shf_step_put(step);
		shf_run_close(run);
		simdisk_kill(d, sys);
	}
	simdisk_free(d);
}

TEST(a_step_that_was_rewound_on_disk_is_in_no_memory_either)
{
	struct simdisk *d = two_steps();
	const struct shf_sys *sys;
	struct sheaf_run *run = opened(d, &sys);
	struct sheaf_error err;

	CHECK_RC(shf_run_rewind(run, 1, &err), 0, &err);
	shf_run_close(run);
	simdisk_kill(d, sys);
	resumes_from(d, 1);
	simdisk_free(d);
}

/* Copying an older state of the directory over it, a backup for one, is no rewind. What memory has
 * then is passed over if it follows a step that is gone, and taken if it follows the newest one
 * that was restored. */
TEST(a_backup_copied_over_a_run_does_not_go_back_before_what_memory_has)
{
	for (int last = 2; last <= 3; last++) {
		struct simdisk *d = re_world(7);
		struct re_job j = re_on(d, 2, (struct re_plan){ .last = last, .disk_every = 1,
		                                                .images = 2 });

		PLAYED(j, 0);
		CHECK_INT(simdisk_remove(d, "run/checkpoint-2"), 0);
		CHECK_INT(simdisk_remove(d, "run/checkpoint-3"), last == 3 ? 0 : -ENOENT);
		resumes_from(d, 2);
		simdisk_free(d);
	}
}

TEST(a_step_that_is_marked_bad_is_not_the_newest_in_memory_either)
{
	struct simdisk *d = two_steps();
	const struct shf_sys *sys;
	struct sheaf_run *run = opened(d, &sys);
	struct sheaf_error err;

	CHECK_RC(shf_run_mark(run, 2, SHEAF_MARK_BAD, &err), 0, &err);
	shf_run_close(run);
	simdisk_kill(d, sys);
	resumes_from(d, 1);
	run = opened(d, &sys);
	CHECK_RC(shf_run_mark(run, 2, SHEAF_MARK_NONE, &err), 0, &err);
	shf_run_close(run);
	simdisk_kill(d, sys);
	resumes_from(d, 2);
	simdisk_free(d);
}

TEST(what_follows_a_step_that_is_marked_bad_is_not_the_newest_in_memory)
{
	struct simdisk *d = re_world(7);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = 5, .disk_every = 2, .images = 2 });
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_error err;

	PLAYED(j, 0);
	for (int bad = 1; bad >= 0; bad--) {
		run = opened(d, &sys);
		CHECK_RC(shf_run_mark(run, 4, bad ? SHEAF_MARK_BAD : SHEAF_MARK_NONE, &err), 0,
		         &err);
		shf_run_close(run);
		simdisk_kill(d, sys);
		resumes_from(d, bad ? 2 : 5);
	}
	simdisk_free(d);
}

/* Perhaps it says bad. */
TEST(a_mark_that_cannot_be_read_is_not_passed_over_for_memory)
{
	for (int odd = 0; odd < 2; odd++) {
		struct simdisk *d = two_steps();
		struct re_job next = re_on(d, 2, (struct re_plan){ .stop = true });
		struct simdisk_fault f = { .nth = 1, .always = true, .name = "marks",
			.kind = SIMDISK_OPEN, .error = EIO };

		CHECK_INT(simdisk_put(d, "run/.sheaf/marks/2", odd ? "x" : "b", 1), 0);
		if (!odd)
			simdisk_fault(d, &f);
		PLAYED(next, odd ? SHEAF_ECORRUPT : SHEAF_EIO);
		CHECK(strstr(next.why, "marks/2") != NULL);
		simdisk_free(d);
	}
}

/* A save of its number sets it aside and removes the mark. Then that job dies. */
static void bad_is_aside(bool damaged)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts) };
	struct simdisk *d = two_steps();
	const struct shf_sys *sys;
	struct sheaf_run *run = opened(d, &sys);
	struct re_mine mine = { 0 };
	struct sheaf_state *small = re_state(&mine, 0, 1);
	struct sheaf_save *save = NULL;
	struct sheaf_error err;

	CHECK_RC(shf_run_mark(run, 2, SHEAF_MARK_BAD, &err), 0, &err);
	if (damaged)
		CHECK_INT(simdisk_flip(d, "run/checkpoint-2/sheaf.json", 800), 0);
	CHECK_RC(shf_save_begin(&save, run, 2, small, &opts, &err), 0, &err);
	CHECK(!simdisk_exists(d, "run/checkpoint-2"));
	shf_save_free(save);
	shf_run_close(run);
	shf_state_put(small);
	re_free(&mine);
	simdisk_kill(d, sys);
	resumes_from(d, 1);
	simdisk_free(d);
}

TEST(a_bad_step_that_was_set_aside_is_in_no_memory_either)
{
	bad_is_aside(false);
	bad_is_aside(true);     /* so that only the mark says which save it was */
}

struct one {                    /* a job of one rank */
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct re_mine m;
	int rc;
	struct sheaf_error err;
};

static struct sheaf_save *begun(struct one *o, int64_t step)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts) };
	struct sheaf_save *save = NULL;

	CHECK_RC(shf_save_begin(&save, o->run, step, o->state, &opts, &o->err), 0, &o->err);
	return save;
}

/* Commits with no time left, while nothing is written. Does the error say that it is in memory? */
static bool says_in_memory(struct one *o, struct sheaf_save *save)
{
	simdisk_set_task_steps(o->disk, 0);
	CHECK_INT(shf_save_commit(save, 0, &o->err), SHEAF_EAGAIN);
	return strstr(o->err.msg, "it is safe in the agents' memory") != NULL;
}

static struct one one_job(const char *agent)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .agent = agent,
		.images_max = 2, .io_threads = 1 };
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

TEST(a_commit_does_not_say_in_memory_of_an_image_that_is_another_steps)
{
	struct one o = one_job("auto");
	struct sheaf_save *a = begun(&o, 1), *b = begun(&o, 2), *c;

	CHECK(says_in_memory(&o, a));
	c = begun(&o, 3);       /* takes the image of the first, which is written */
	CHECK(!says_in_memory(&o, a));
	shf_save_free(a);
	shf_save_free(b);
	shf_save_free(c);
	end(&o);
}

TEST(a_commit_does_not_say_in_memory_of_an_agent_that_is_gone)
{
	struct one o = one_job("auto");
	struct sheaf_save *a = begun(&o, 1);

	CHECK(says_in_memory(&o, a));
	simdisk_kill_agent(o.disk, 0);
	CHECK(!says_in_memory(&o, a));
	shf_save_free(a);
	end(&o);
}

/* After a load of an older step a save is refused until the run is rewound. */
TEST(a_save_that_is_refused_takes_no_newer_step_out_of_memory)
{
	struct sheaf_save_opts memory = { .size = sizeof(memory), .flags = SHEAF_SAVE_NO_DISK };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_save *save = NULL;
	struct one o = one_job("auto");

	for (int64_t n = 1; n <= 2; n++) {
		save = begun(&o, n);
		CHECK_RC(shf_save_commit(save, -1, &o.err), 0, &o.err);
		shf_save_free(save);
	}
	CHECK_RC(shf_save_begin(&save, o.run, 3, o.state, &memory, &o.err), 0, &o.err);
	CHECK_RC(shf_save_commit(save, -1, &o.err), 0, &o.err);
	shf_save_free(save);
	CHECK_RC(shf_step_open(&step, o.run, 1, &o.err), 0, &o.err);
	CHECK_RC(shf_step_load(step, o.state, 0, NULL, &o.err), 0, &o.err);
	shf_step_put(step);
	CHECK_RC(shf_save_begin(&save, o.run, 4, o.state, &memory, &o.err), 0, &o.err);
	CHECK_RC(shf_save_commit(save, -1, &o.err), SHEAF_EFAILED, &o.err);
	shf_save_free(save);
	CHECK_RC(shf_step_open(&step, o.run, SHEAF_LATEST, &o.err), 0, &o.err);
	CHECK_INT(step->number, 3);
	shf_step_put(step);
	end(&o);
}

static void save_here(struct one *o, int64_t step)
{
	struct sheaf_save *save = begun(o, step);

	CHECK_RC(shf_save_commit(save, -1, &o->err), 0, &o->err);
	shf_save_free(save);
}

static void save_to_memory(struct one *o, int64_t step)
{
	struct sheaf_save_opts memory = { .size = sizeof(memory), .flags = SHEAF_SAVE_NO_DISK };
	struct sheaf_save *save = NULL;

	CHECK_RC(shf_save_begin(&save, o->run, step, o->state, &memory, &o->err), 0, &o->err);
	CHECK_RC(shf_save_commit(save, -1, &o->err), 0, &o->err);
	shf_save_free(save);
}

static void latest_in_memory_is(struct one *o, int64_t step)
{
	struct sheaf_checkpoint *s = NULL;

	CHECK_RC(shf_step_open(&s, o->run, SHEAF_LATEST, &o->err), 0, &o->err);
	CHECK_INT(s->number, step);
	CHECK(s->run->lineage.memory_of != NULL);
	shf_step_put(s);
}

/* Its parent was the bad one, which is nobody's ancestor once it is aside. */
TEST(a_step_that_takes_the_number_of_a_bad_one_is_on_the_branch_of_those_before_it)
{
	struct one o = one_job(NULL);

	save_here(&o, 1);
	save_here(&o, 2);
	CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	save_here(&o, 2);
	o.run->opts.keep_last = 1;
	CHECK_RC(shf_run_prune(o.run, 0, NULL, NULL, &o.err), 1, &o.err);
	CHECK(!simdisk_exists(o.disk, "run/checkpoint-1"));
	CHECK(simdisk_exists(o.disk, "run/checkpoint-2"));
	end(&o);
}

/* While it is not marked, it is in the way, and the error says what makes room. */
TEST(a_number_in_memory_and_on_disk_is_free_when_the_disk_says_so)
{
	struct one o = one_job("auto");
	struct sheaf_save *save = NULL;

	save_here(&o, 1);
	save_here(&o, 5);
	CHECK_RC(shf_save_begin(&save, o.run, 5, o.state, NULL, &o.err), SHEAF_EEXIST, &o.err);
	CHECK(strstr(o.err.msg, "sheaf rewind run@1") != NULL);
	CHECK_RC(shf_save_begin(&save, o.run, 3, o.state, NULL, &o.err), SHEAF_EINVAL, &o.err);
	CHECK_RC(shf_run_mark(o.run, 5, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	save_here(&o, 5);
	latest_in_memory_is(&o, 5);
	CHECK_RC(shf_run_mark(o.run, 5, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	save_here(&o, 3);
	latest_in_memory_is(&o, 3);
	save_to_memory(&o, 4);
	save_to_memory(&o, 6);
	latest_in_memory_is(&o, 6);
	end(&o);
}

/* ---- cut at every call ---- */

static struct one job_on(struct simdisk *d, const char *agent, int attempts)
{
	static uint64_t pid = 73000;
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .agent = agent,
		.images_max = 2, .io_threads = 1, .resume_attempts_max = attempts };
	struct one o = { .disk = d };

	o.sys = simdisk_process(d, pid++, 0);
	o.state = re_state(&o.m, 0, 1);
	o.rc = shf_run_open(&o.run, "run", NULL, &opts, o.sys, &o.err);
	return o;
}

/* Kill -9, unless that has happened. Its agent lives. */
static void job_dies(struct one *o)
{
	simdisk_faults_clear(o->disk);
	simdisk_kill(o->disk, o->sys);
	shf_run_close(o->run); /* frees memory only */
	shf_state_put(o->state);
	re_free(&o->m);
}

/* The values of the step are those of step `paint`. */
static void job_saves(struct one *o, int64_t step, int64_t paint, uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;

	re_paint(&o->m, paint);
	if (o->rc == 0)
		o->rc = shf_save_begin(&save, o->run, step, o->state, &opts, &o->err);
	if (o->rc == 0)
		o->rc = shf_save_commit(save, -1, &o->err);
	shf_save_free(save);
}

/* What the latest step is, and whose values it has. */
static int64_t job_loads(struct one *o, float *value)
{
	struct sheaf_report report = { .size = sizeof(report) };

	if (o->rc == 0)
		o->rc = shf_run_resume(o->run, o->state, 0, &report, &o->err);
	*value = o->m.data[0][0];
	return o->rc == 0 ? report.step : -1;
}

static int64_t found_next(struct simdisk *d, float *value)
{
	struct one o = job_on(d, "auto", 0);
	int64_t step = job_loads(&o, value);

	CHECK_RC(o.rc, 0, &o.err);
	job_dies(&o);
	return step;
}

static float painted(int64_t step)
{
	struct re_mine m = { 0 };
	struct sheaf_state *state = re_state(&m, 0, 1);
	float value;

	re_paint(&m, step);
	value = m.data[0][0];
	shf_state_put(state);
	re_free(&m);
	return value;
}

enum who { SAVER, NEXT_JOB, NO_AGENT };

/* Rewinds to step `to`, cut at every call. Steps 1 to 3 are on disk, and 4 is in memory alone. Once
 * the rewind has begun it is whole for whoever comes next, in memory as on disk. */
static void rewound(int64_t to, enum who who)
{
	int64_t last = 4;
	bool fired = true;

	for (int nth = 1; fired; nth++) {
		struct simdisk_fault f = { .nth = nth, .how = SIMDISK_KILL };
		struct simdisk *d = re_world(7);
		struct one o = job_on(d, "auto", 0);
		int64_t found;
		float value;

		for (int64_t step = 1; step <= 4; step++)
			job_saves(&o, step, step, step == 4 ? SHEAF_SAVE_NO_DISK : 0);
		CHECK_RC(o.rc, 0, &o.err);
		if (who != SAVER) {
			job_dies(&o);
			o = job_on(d, who == NEXT_JOB ? "auto" : NULL, 0);
		}
		simdisk_fault(d, &f);
		o.rc = shf_run_rewind(o.run, to, &o.err);
		fired = simdisk_fired(d) > 0;
		CHECK(fired || o.rc == 0);
		job_dies(&o);
		/* A rewind that comes to nothing may lose step 4, which never comes back. */
		found = found_next(d, &value);
		CHECK(found == 4 || found == 3 || found == to);
		CHECK(found <= last && value == painted(found));
		last = found;
		CHECK_INT(found_next(d, &value), found);
		simdisk_free(d);
	}
	CHECK_INT(last, to);
}

TEST(a_rewind_that_is_cut_leaves_no_later_step_in_memory)
{
	for (enum who who = SAVER; who <= NO_AGENT; who++) {
		rewound(1, who);
		rewound(3, who);
	}
}

enum by { THE_SAME, THE_NEXT, THE_NEXT_CONDEMNED };

/* Step 2 is on disk and in memory, and marked bad, or condemned by the jobs that loaded it. The
 * same job, or the next one, saves its number once more, with other values, and is cut. The old
 * one never comes back. */
static void saved_anew(enum by by, uint64_t flags)
{
	bool condemned = by == THE_NEXT_CONDEMNED;
	bool fired = true;

	for (int nth = 1; fired; nth++) {
		struct simdisk_fault f = { .nth = nth, .how = SIMDISK_KILL };
		struct simdisk *d = re_world(7);
		struct one o = job_on(d, "auto", 0);
		int64_t found;
		float value;

		job_saves(&o, 1, 1, 0);
		job_saves(&o, 2, 2, 0);
		CHECK_RC(o.rc, 0, &o.err);
		if (!condemned)
			CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0,
			         &o.err);
		if (by != THE_SAME)
			job_dies(&o);
		if (condemned)
			CHECK_INT(found_next(d, &value), 2);
		if (by != THE_SAME) {
			o = job_on(d, "auto", condemned);
			CHECK_INT(job_loads(&o, &value), 1);
		}
		simdisk_fault(d, &f);
		job_saves(&o, 2, 77, flags);
		fired = simdisk_fired(d) > 0;
		CHECK(fired || o.rc == 0);
		job_dies(&o);
		found = found_next(d, &value);
		CHECK(found == 1 || (found == 2 && value == painted(77)));
		CHECK(fired || found == 2);
		simdisk_free(d);
	}
}

TEST(a_bad_step_whose_number_is_saved_again_never_comes_back_from_memory)
{
	saved_anew(THE_SAME, 0);
	saved_anew(THE_NEXT, 0);
	saved_anew(THE_NEXT, SHEAF_SAVE_NO_DISK);
}

TEST(a_condemned_step_whose_number_is_saved_again_never_comes_back_from_memory)
{
	saved_anew(THE_NEXT_CONDEMNED, 0);
	saved_anew(THE_NEXT_CONDEMNED, SHEAF_SAVE_NO_DISK);
}

/* The bad step 2 is aside when the stage of the save of its number is there, and 3 follows 1. */
TEST(what_comes_to_memory_while_a_bad_step_goes_aside_follows_what_is_left)
{
	struct simdisk *d = re_world(7);
	struct one o = job_on(d, "auto", 0);
	struct sheaf_save *again;
	float value;

	job_saves(&o, 1, 1, 0);
	job_saves(&o, 2, 2, 0);
	CHECK_RC(o.rc, 0, &o.err);
	CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	again = begun(&o, 2);
	job_saves(&o, 3, 77, SHEAF_SAVE_NO_DISK);
	CHECK_RC(o.rc, 0, &o.err);
	simdisk_kill(d, o.sys);
	shf_save_free(again);
	job_dies(&o);
	CHECK_INT(found_next(d, &value), 3);
	CHECK(value == painted(77));
	simdisk_free(d);
}

/* Somebody has removed its directory, and the mark is left. It is of that save alone, and not of
 * the one that memory has of its number later. */
TEST(a_bad_step_whose_directory_is_gone_is_in_no_memory_either)
{
	struct simdisk *d = re_world(7);
	struct one o = job_on(d, "auto", 0);
	float value;

	job_saves(&o, 1, 1, 0);
	job_saves(&o, 2, 2, 0);
	CHECK_RC(o.rc, 0, &o.err);
	CHECK_RC(shf_run_mark(o.run, 2, SHEAF_MARK_BAD, &o.err), 0, &o.err);
	job_dies(&o);
	CHECK_INT(simdisk_remove(d, "run/checkpoint-2"), 0);
	CHECK_INT(found_next(d, &value), 1);
	o = job_on(d, "auto", 0);
	CHECK_INT(job_loads(&o, &value), 1);
	job_saves(&o, 2, 77, SHEAF_SAVE_NO_DISK);
	CHECK_RC(o.rc, 0, &o.err);
	job_dies(&o);
	CHECK_INT(found_next(d, &value), 2);
	CHECK(value == painted(77));
	simdisk_free(d);
}
