/* SPDX-License-Identifier: Apache-2.0 */
/* Every invalid argument gets its code and a sentence with the word that matters, on all ranks, and
 * nothing is done. Calls on handles that have ended are refused too. */
#include "acts.h"
#include <limits.h>
#include <stdlib.h>
#include "run_aside.h"
#include "run_salvage.h"
#include "sheaf-stat.h"
#include "step_attached.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"
#include "save_status.h"
#include "state.h"
#include "step.h"
#include "step_open.h"
#include "step_copy.h"
#include "run_ops.h"
#include "load.h"
#include "sheaf-admin.h"

static const int32_t apart[] = { 1, 2 };

/* One process alone, and what it has in hand. */
struct alone {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct sheaf_error err;
	float w[12];
	char said[600]; /* the last warning */
};

static void warned(void *arg, int level, const char *line)
{
	struct alone *a = arg;

	if (level == 1)
		snprintf(a->said, sizeof(a->said), "%s", line);
}

static struct sheaf_slice slice_of(struct alone *a)
{
	return (struct sheaf_slice){ .size = sizeof(struct sheaf_slice), .name = "w",
		.dtype = SHEAF_F32, .ndim = 2, .shape = { 3, 4 }, .count = { 3, 4 },
		.data = a->w };
}

static void begin(struct alone *a, uint64_t flags)
{
	struct shf_opts opts = { .flags = flags, .io_threads = 1,
		.log = warned, .arg = a };
	struct sheaf_slice s = slice_of(a);

	if (!a->disk)
		a->disk = disk_new();
	a->sys = simdisk_process(a->disk, 77, 0);
	a->state = shf_state_new();
	CHECK_INT(shf_state_add(a->state, &s, NULL), 0);
	CHECK_RC(shf_run_open(&a->run, "run", NULL, &opts, a->sys, &a->err), 0, &a->err);
}

static void end(struct alone *a)
{
	shf_run_close(a->run);
	shf_state_put(a->state);
	CHECK_INT(simdisk_open_n(a->sys), 0);
	simdisk_free(a->disk);
}

static struct sheaf_save *save_begun(struct alone *a, int64_t step)
{
	struct sheaf_save *save = NULL;

	CHECK_RC(shf_save_begin(&save, a->run, step, a->state, NULL, &a->err), 0, &a->err);
	return save;
}

static void saved(struct alone *a, int64_t step)
{
	struct sheaf_save *save = save_begun(a, step);

	CHECK_RC(shf_save_commit(save, -1, &a->err), 0, &a->err);
	shf_save_free(save);
}

TEST(the_path_of_a_step_is_whole_however_long_it_is)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE,
	                           .io_threads = 1 };
	struct alone a = { .disk = disk_new() };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_slice s = slice_of(&a);
	char dir[700];

	for (int i = 0; i < 3; i++) {
		memset(dir + 201 * i, 'a' + i, 200);
		dir[201 * i + 200] = i < 2 ? '/' : '\0';
	}
	a.sys = simdisk_process(a.disk, 77, 0);
	a.state = shf_state_new();
	CHECK_INT(shf_state_add(a.state, &s, NULL), 0);
	CHECK_RC(shf_run_open(&a.run, dir, NULL, &opts, a.sys, &a.err), 0, &a.err);
	saved(&a, 1);
	CHECK_RC(shf_step_open(&step, a.run, 1, &a.err), 0, &a.err);
	CHECK(strlen(step->path) > 600 && simdisk_exists(a.disk, step->path));
	shf_step_put(step);
	end(&a);
}

/* ---- options ---- */

static int open_with(const struct shf_opts *opts, struct sheaf_error *err)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 7, 0);
	struct sheaf_run *run = NULL;
	int rc = shf_run_open(&run, "run", NULL, opts, sys, err);

	shf_run_close(run);
	CHECK_INT(simdisk_open_n(sys), 0);
	CHECK(rc == 0 || !simdisk_exists(disk, "run"));
	simdisk_free(disk);
	return rc;
}

TEST(options_that_make_no_sense_open_nothing)
{
	static const struct {
		struct shf_opts opts;
		const char *word;
	} wrong[] = {
		{ { .flags = SHEAF_LOAD_ZERO }, "opts.flags: SHEAF_LOAD_ZERO belongs to" },
		{ { .io_threads = -1 }, "opts.io_threads is -1, must be at least 0" },
		{ { .io_threads = 257 }, "opts.io_threads is 257, must be at most 256" },
		{ { .images_max = -1 }, "opts.staging.buffers_max is -1, must be at least 0" },
		{ { .keep_last = -1 }, "opts.retention.keep_last is -1, must be at least 0" },
		{ { .keep_every = -1 }, "opts.retention.keep_every is -1, must be at least 0" },
		{ { .keep_best = -1 }, "opts.retention.keep_best is -1, must be at least 0" },
		{ { .grace_s = -2 }, "opts.retention.grace_s is -2, must be at least -1" },
		{ { .timeout_ms = -1 }, "opts.timeout_ms is -1, must be at least 0" },
		{ { .images_max = 9 }, "opts.staging.buffers_max is 9, must be at most 8" },
		{ { .copy_threads = -1 }, "opts.staging.copy_threads is -1, must be at least 0" },
		{ { .copy_threads = 257 }, "opts.staging.copy_threads is 257, must be at most "
			"256" },
		{ { .copies = -1 }, "opts.memory_tier.copies is -1, must be at least 0" },
		{ { .copies = 3 }, "opts.memory_tier.copies is 3, must be at most 2" },
		{ { .resume_attempts_max = -1 },
		  "opts.resume_attempts_max is -1, must be at least 0" },
		{ { .keep_every = 5 }, "opts.retention.keep_every needs opts.retention.keep_last" },
		{ { .keep_best = 1, .best_note = "loss" }, "opts.retention.keep_best needs "
			"opts.retention.keep_last" },
		{ { .agent = "" }, "opts.memory_tier.agent must be" },
		{ { .agent = "/a/path/that/is/longer/than/the/address/of/a/unix/socket/can/be"
		             "/which/is/a/hundred/and/eight/bytes/or/more" },
		  "opts.memory_tier.agent must be" },
		{ { .copies = 2 }, "but opts.memory_tier.agent is NULL" },
		{ { .copy_cpus = "1-" }, "expected a list of processors" },
		{ { .signal_dir = "" }, "opts.notify.signal_dir is an empty string" },
		{ { .flags = SHEAF_RUN_READONLY | SHEAF_RUN_METRICS },
		  "SHEAF_RUN_METRICS and SHEAF_RUN_READONLY" },
		{ { .keep_best = 1 }, "keep_best needs opts.retention.best_note" },
		{ { .keep_best = 1, .best_note = "a key" }, "keep_best needs "
		  "opts.retention.best_note" },
		{ { .staging_bytes_max = 1 }, "opts.staging.bytes_max is 1" },
		{ { .flags = SHEAF_RUN_CREATE | SHEAF_RUN_READONLY }, "cannot be combined" },
	};
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		SAID(open_with(&wrong[i].opts, &err), SHEAF_EINVAL, wrong[i].word, &err);
	}
}

static int save_with(struct alone *a, const struct sheaf_save_opts *opts)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, a->run, 1, a->state, opts, &a->err);

	shf_save_free(save);
	return rc;
}

TEST(options_of_a_save_are_checked_like_those_of_a_run)
{
	struct alone a = { .disk = NULL };
	struct {
		struct sheaf_save_opts opts;
		uint64_t newer;
	} o = { { .flags = SHEAF_SAVE_MAY_DROP }, 0 };

	begin(&a, SHEAF_RUN_CREATE);
	o.opts.size = sizeof(o);
	CHECK_RC(save_with(&a, &o.opts), 0, &a.err);
	o.newer = 1;
	SAID(save_with(&a, &o.opts), SHEAF_EINVAL, "does not know", &a.err);
	o.opts.size = 4;
	SAID(save_with(&a, &o.opts), SHEAF_EINVAL, "save_opts.size is 4", &a.err);
	o.opts.size = 1 << 20;
	SAID(save_with(&a, &o.opts), SHEAF_EINVAL, "save_opts.size is 1048576", &a.err);
	o.opts = (struct sheaf_save_opts){ .size = sizeof(o.opts),
		.flags = SHEAF_SLICE_FLAT };
	SAID(save_with(&a, &o.opts), SHEAF_EINVAL,
	     "save_opts.flags: SHEAF_SLICE_FLAT belongs to sheaf_slice.flags", &a.err);
	o.opts = (struct sheaf_save_opts){ .size = sizeof(o.opts), .reserved = 1 };
	SAID(save_with(&a, &o.opts), SHEAF_EINVAL, "save_opts.reserved is 1", &a.err);
	end(&a);
}

TEST(nowhere_is_no_run_and_no_step)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 7, 0);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err;

	SAID(shf_run_open(&run, NULL, NULL, NULL, sys, &err), SHEAF_EINVAL, "'dir' is", &err);
	SAID(shf_run_open(&run, "", NULL, NULL, sys, &err), SHEAF_EINVAL, "'dir' is", &err);
	SAID(shf_step_open_path(&step, NULL, NULL, NULL, sys, &err), SHEAF_EINVAL, "'path'", &err);
	SAID(shf_step_open_path(&step, "", NULL, NULL, sys, &err), SHEAF_EINVAL, "'path'", &err);
	SAID(shf_run_salvage(NULL, 1, NULL, sys, NULL, &err), SHEAF_EINVAL, "'dir' is", &err);
	SAID(shf_run_salvage("", 1, NULL, sys, NULL, &err), SHEAF_EINVAL, "'dir' is", &err);
	SAID(shf_run_salvage("run", -1, NULL, sys, NULL, &err), SHEAF_EINVAL, "negative", &err);
	SAID(shf_run_restore(NULL, "3", NULL, sys, &err), SHEAF_EINVAL, "pass the path", &err);
	SAID(shf_run_restore("run", NULL, NULL, sys, &err), SHEAF_EINVAL, "pass the path", &err);
	SAID(shf_run_discard("run", "", NULL, sys, &err), SHEAF_EINVAL, "pass the path", &err);
	SAID(shf_run_discard("", "3", NULL, sys, &err), SHEAF_EINVAL, "pass the path", &err);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
}

TEST(a_run_that_is_opened_twice_in_one_process_is_said_to_be)
{
	struct shf_opts opts = { .timeout_ms = 1000 };
	struct alone a = { .disk = NULL };
	struct sheaf_run *again = NULL;

	begin(&a, SHEAF_RUN_CREATE);
	SAID(shf_run_open(&again, "run", NULL, &opts, a.sys, &a.err), SHEAF_EBUSY,
	     "run: this process (pid 77) has the run open for writing already; close that first",
	     &a.err);
	SAID(shf_run_open(&again, "run", NULL, &opts, simdisk_process(a.disk, 78, 0), &a.err),
	     SHEAF_EBUSY, "another job has the run open for writing: pid 77", &a.err);
	opts.flags = SHEAF_RUN_READONLY;
	CHECK_RC(shf_run_open(&again, "run", NULL, &opts, a.sys, &a.err), 0, &a.err);
	shf_run_close(again);
	end(&a);
}

/* ---- saves ---- */

/* Refused with its sentence, and nothing but that call failed. */
static void refused(struct alone *a, const char *word, int rc)
{
	CHECK_INT(rc, SHEAF_EINVAL);
	if (!strstr(a->said, word))
		fail_msg("want '%s' in: %s", word, a->said);
	a->said[0] = '\0';
}

TEST(what_is_attached_or_noted_wrongly_is_refused_and_the_step_is_saved)
{
	static char long_value[65538];
	static const struct {
		const char *file, *key, *value, *word;
		size_t n;
	} wrong[] = {
		{ "a/b.json", NULL, NULL, "attached file 'a/b.json'", 0 },
		{ "sheaf.json", NULL, NULL, "not sheaf.*", 0 },
		{ NULL, NULL, NULL, "attached file ''", 0 },
		{ "big.bin", NULL, NULL, "at most 64 MiB", (size_t)65 << 20 },
		{ "null.bin", NULL, NULL, "null.bin: 1 bytes", 1 },
		{ "twice.json", NULL, NULL, "given twice", 0 },
		{ "optimizer", NULL, NULL, "a family has this name", 0 },
		{ "", "a key", "v", "note 'a key'", 0 },
		{ "", "a:key", "v", "its key must match [A-Za-z0-9._/-]{1,64}", 0 },
		{ "", NULL, "v", "note ''", 0 },
		{ "", "key", NULL, "note 'key'", 0 },
		{ "", "key", "\xff", "note 'key'", 0 },
		{ "", "twice", "v", "note twice: given twice", 0 },
		{ "", "ranks.rng", "drop", "reserved for sheaf_state_rank_bytes", 0 },
		{ "", "long", long_value, "at most 64 KiB", 0 },
	};
	struct alone a = { .disk = NULL };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_slice moment;
	struct sheaf_save *save;

	memset(long_value, 'x', sizeof(long_value) - 1);
	begin(&a, SHEAF_RUN_CREATE);
	moment = slice_of(&a);
	moment.family = "optimizer";
	CHECK_INT(shf_state_add(a.state, &moment, NULL), 1);
	save = save_begun(&a, 1);
	CHECK_INT(shf_save_attach(save, "twice.json", "{}", 2, NULL), 0);
	CHECK_INT(shf_save_note(save, "twice", "v", NULL), 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		refused(&a, wrong[i].word, wrong[i].file && wrong[i].file[0] == '\0'
		        ? shf_save_note(save, wrong[i].key, wrong[i].value, NULL)
		        : shf_save_attach(save, wrong[i].file, wrong[i].n > 1 ? "" : NULL,
		                          wrong[i].n, NULL));
	CHECK_INT(shf_save_note(save, "train/Loss", "0.5", NULL), 0);
	CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
	CHECK_INT(shf_save_attach(save, "late.json", "{}", 2, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_save_note(save, "late", "v", NULL), SHEAF_EINVAL);
	shf_save_free(save);
	CHECK_RC(shf_step_open(&step, a.run, 1, &a.err), 0, &a.err);
	CHECK_INT(step->manifest.notes_n, 2);
	CHECK_STR(step->manifest.notes[0].key, "train/Loss");
	CHECK_STR(step->manifest.notes[1].key, "twice");
	shf_step_put(step);
	end(&a);
}

TEST(a_step_of_no_tensor_is_saved_with_a_warning)
{
	struct sheaf_state *nothing = shf_state_new();
	struct alone a = { .disk = NULL };
	struct sheaf_save *save = NULL;

	begin(&a, SHEAF_RUN_CREATE);
	CHECK_RC(shf_save_begin(&save, a.run, 1, nothing, NULL, &a.err), 0, &a.err);
	CHECK_STR(a.said, "run: step 1 will have no tensors: opts.ignore matches all slices, or no "
	          "slice was added");
	CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
	shf_save_free(save);
	a.said[0] = '\0';
	saved(&a, 2);
	CHECK_STR(a.said, "");
	shf_state_put(nothing);
	end(&a);
}

/* Gives notes of 65,000 times this byte until one is refused, and returns how many were taken. */
static int notes_taken(struct alone *a, struct sheaf_save *save, int byte, const char *refusal)
{
	static char value[65001];
	int rc = 0, n = -1;
	char key[12];

	memset(value, byte, sizeof(value) - 1);
	while (rc == 0 && n < 20) {
		snprintf(key, sizeof(key), "n%d", ++n);
		rc = shf_save_note(save, key, value, NULL);
	}
	refused(a, refusal, rc);
	return n;
}

TEST(all_notes_together_are_bounded_too)
{
	struct alone a = { .disk = NULL };
	struct sheaf_save *save;

	begin(&a, SHEAF_RUN_CREATE);
	save = save_begun(&a, 1);
	/* 8 of 65,000 bytes fit into 524,288. */
	CHECK_INT(notes_taken(&a, save, 'x', "512 KiB"), 8);
	/* the refused one is not counted */
	CHECK_INT(shf_save_note(save, "a.little", "fits", NULL), 0);
	CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
	shf_save_free(save);
	end(&a);
}

/* 260 KB of control characters are 1.5 MB of JSON. */
TEST(a_note_that_the_manifest_has_no_room_for_is_refused_when_it_is_given)
{
	struct alone a = { .disk = NULL };
	struct sheaf_save *save;

	begin(&a, SHEAF_RUN_CREATE);
	save = save_begun(&a, 1);
	/* 2 of 390,000 bytes each fit into 1,048,576. */
	CHECK_INT(notes_taken(&a, save, 1, "a control character takes 6 bytes"), 2);
	CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
	shf_save_free(save);
	end(&a);
}

/* As many as fit, to the last: whatever attach takes the commit can write down. */
TEST(what_was_attached_and_noted_without_an_error_fits_into_the_manifest)
{
	struct alone a = { .disk = NULL };
	struct sheaf_save *save;
	char name[130];
	int rc = 0, n = 0;

	begin(&a, SHEAF_RUN_CREATE);
	save = save_begun(&a, 1);
	for (; rc == 0 && n < 20000; n++) {
		snprintf(name, sizeof(name), "%0120d.json", n);
		rc = shf_save_attach(save, name, "", 0, NULL);
	}
	CHECK_INT(rc, SHEAF_EINVAL);
	CHECK(n > 4000 && n < 9000);
	CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
	shf_save_free(save);
	end(&a);
}

/* n tensors of one item, each with a file of its own or another name for the one before. */
static int begin_with(int n, bool tied, struct sheaf_error *err)
{
	struct alone a = { .disk = NULL };
	struct sheaf_state *state = shf_state_new();
	struct sheaf_save *save = NULL;
	char name[420], to[420];
	float item = 1;
	int rc;

	begin(&a, SHEAF_RUN_CREATE);
	a.run->opts.file_bytes_max = 1;
	for (int i = 0; i < n; i++) {
		struct sheaf_slice s = { .size = sizeof(s), .name = name, .dtype = SHEAF_F32,
			.ndim = 1, .shape = { 1 }, .count = { 1 }, .data = &item };

		snprintf(name, sizeof(name), tied ? "%0400d" : "t%d", i);
		snprintf(to, sizeof(to), "%0400d", i - i % 2);
		s.tied_to = tied && i % 2 ? to : NULL;
		CHECK(shf_state_add(state, &s, NULL) >= 0);
	}
	rc = shf_save_begin(&save, a.run, 1, state, NULL, err);
	shf_save_free(save);
	shf_state_put(state);
	end(&a);
	return rc;
}

TEST(a_state_whose_manifest_is_too_long_is_refused_at_the_beginning)
{
	struct sheaf_error err;

	CHECK_RC(begin_with(1000, false, &err), 0, &err);
	SAID(begin_with(14000, false, &err), SHEAF_EINVAL, "14000 files and 0 tied names", &err);
	SAID(begin_with(3000, true, &err), SHEAF_EINVAL, "1500 tied names", &err);
}

/* Each rank alone is within its bounds, and all together are not. */
static void much_to_say(struct hand *h, struct sheaf_save *save)
{
	static char value[60001];
	char key[12];

	memset(value, 'x', sizeof(value) - 1);
	for (int i = 0; i < 6; i++) {
		snprintf(key, sizeof(key), "r%d.%d", h->rank, i);
		(void)shf_save_note(save, key, value, NULL);
	}
}

TEST(notes_of_all_ranks_together_are_bounded_too)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, acts_hold);

	p.during = much_to_say;
	SAID(hands_save(&p), SHEAF_EFAILED, "512 KiB", &p.err);
	CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
	simdisk_free(disk);
}

TEST(steps_being_saved_are_in_the_way_of_the_same_and_of_older_ones)
{
	struct alone a = { .disk = NULL };
	struct sheaf_save *save, *other = NULL;
	struct sheaf_error *err = &a.err;

	begin(&a, SHEAF_RUN_CREATE);
	SAID(shf_save_begin(&other, a.run, -1, a.state, NULL, err), SHEAF_EINVAL, "negative", err);
	SAID(shf_save_begin(&other, a.run, 1, NULL, NULL, err), SHEAF_ENOMEM, "state", err);
	save = save_begun(&a, 5);
	SAID(shf_save_begin(&other, a.run, 5, a.state, NULL, err), SHEAF_EEXIST, "being saved",
	     err);
	SAID(shf_save_begin(&other, a.run, 4, a.state, NULL, err), SHEAF_EINVAL, "older than step "
	     "5", err);
	CHECK(other == NULL);
	other = save_begun(&a, 6);
	SAID(shf_save_commit(other, -1, err), SHEAF_EINVAL, "5", err);
	CHECK_RC(shf_save_commit(save, -1, err), 0, err);
	shf_save_free(save);
	shf_save_free(other);
	CHECK(simdisk_exists(a.disk, "run/checkpoint-5") &&
	      !simdisk_exists(a.disk, "run/checkpoint-6"));
	end(&a);
}

TEST(a_save_says_how_far_it_is_and_what_became_of_it)
{
	struct alone a = { .disk = NULL };
	struct sheaf_save *save;
	struct sheaf_stat stat;

	begin(&a, SHEAF_RUN_CREATE);
	save = save_begun(&a, 1);
	CHECK_INT(shf_save_wait(save, -1, NULL), 0);
	shf_save_stat(save, &stat);
	CHECK_INT(stat.phase, 2);
	CHECK(stat.held == sizeof(a.w) && stat.written == stat.to_write);
	CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
	shf_save_stat(save, &stat);
	CHECK_INT(stat.phase, 3);
	CHECK_INT(shf_save_wait(save, -1, NULL), 0);
	SAID(shf_save_exchange(save, 0, &a.err), SHEAF_EINVAL, "has ended", &a.err);
	SAID(shf_save_commit(save, -1, &a.err), SHEAF_EINVAL, "has ended", &a.err);
	shf_save_free(save);
	save = save_begun(&a, 2);
	CHECK_INT(shf_save_fail(save, NULL, NULL), 0);
	CHECK_INT(shf_save_fail(save, "the second reason", NULL), 0);
	SAID(shf_save_commit(save, -1, &a.err), SHEAF_EFAILED, "called without a reason", &a.err);
	CHECK_INT(shf_save_wait(save, -1, NULL), SHEAF_EFAILED);
	shf_save_free(save);
	CHECK(!simdisk_exists(a.disk, "run/checkpoint-2"));
	end(&a);
}

/* ---- a save that must still travel keeps its image ---- */

static void columns(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_U8, 2, 512, 1024), 1, h->rank, h->ranks);
}

static int second_save(struct hand *h)
{
	static const uint64_t flags[] = { SHEAF_SAVE_MAY_DROP, 0 };
	struct sheaf_save_opts opts = { .size = sizeof(opts),
		.flags = flags[h->play->variant] };
	struct sheaf_save *one = NULL, *two = NULL;
	int rc;

	rc = shf_run_open(&h->run, "run", h->group, &h->play->opts, h->sys, &h->err);
	if (rc == 0)
		rc = shf_save_begin(&one, h->run, 1, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_begin(&two, h->run, 2, h->state, &opts, &h->err);
	if (two)
		rc = shf_save_commit(one, -1, &h->err);
	if (two && rc == 0)
		rc = shf_save_commit(two, -1, &h->err);
	shf_save_free(one);
	shf_save_free(two);
	return rc;
}

TEST(a_save_that_may_be_dropped_does_not_wait_for_an_image)
{
	static const struct {
		int code;
		const char *word;
	} all[] = { { SHEAF_EAGAIN, "no staging buffer is free" }, { 0, "" } };

	for (int i = 0; i < 2; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, columns);

		p.nodes = apart;
		p.path = "";
		p.variant = i;
		SAID(hands_run(&p, second_save, true), all[i].code, all[i].word, &p.err);
		CHECK(simdisk_exists(disk, "run/checkpoint-2") == (i == 1));
		simdisk_free(disk);
	}
}

/* ---- pieces that no rank has added a slice for ---- */

static void with_a_gap(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "w", SHEAF_F32, 2, 16, 8);
	int rows[2][2][2] = { { { 0, 4 }, { 8, 8 } }, { { 0, 8 }, { 8, 4 } } };
	int v = h->play->variant;

	s->start[0] = v < 2 ? rows[v][h->rank][0] : 4 + 6 * h->rank;
	s->count[0] = v < 2 ? rows[v][h->rank][1] : 6;
	if (v == 3)
		s->count[0] = 0;
	if (v == 4)
		s->count[0] = h->rank ? 4 : 6;
}

TEST(a_gap_is_told_with_who_holds_what_is_beside_it)
{
	static const char *const word[] = { "(rank 0 holds the part before, rank 1 the part after)",
		"(rank 1 holds the part before)", "(rank 0 holds the part after)",
		"no rank has added a slice for", "no rank has added a slice for" };

	for (int i = 0; i < 5; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, with_a_gap);

		p.variant = i;
		SAID(hands_save(&p), SHEAF_ELAYOUT, word[i], &p.err);
		CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
		simdisk_free(disk);
	}
}

/* ---- ranks that open differently ---- */

static int open_differently(struct hand *h)
{
	struct shf_opts o = h->play->opts;

	if (h->rank == 1 && h->play->variant == 0)
		o.file_bytes_max = 1 << 20;
	if (h->rank == 1 && h->play->variant == 1)
		o.flags |= SHEAF_RUN_BUFFERED;
	if (h->rank == 1 && h->play->variant == 3)
		o.images_max = 3;
	if (h->rank == 1 && h->play->variant == 4)
		o.agent = "auto";
	if (h->play->variant > 4)
		o.agent = "auto";
	if (h->play->variant == 6 || (h->rank == 1 && h->play->variant == 5))
		o.copies = 2;
	if (h->play->variant == 6)
		o.copies_group = h->group;
	return shf_run_open(&h->run, h->rank == 1 && h->play->variant == 2 ? "walk" : "run",
	                    h->group, &o, h->sys, &h->err);
}

TEST(ranks_that_open_a_run_differently_are_told_in_what)
{
	static const char *const word[] = {
		"different opts.file_bytes_max (1048576 and 5000000000)",
		"with SHEAF_RUN_BUFFERED and without", "different directories",
		"different opts.staging.buffers_max", "with opts.memory_tier.agent and without",
		"with opts.memory_tier.copies 2 and without", "the run's own group" };

	for (int i = 0; i < 7; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, acts_hold);

		p.path = "";
		p.variant = i;
		SAID(hands_run(&p, open_differently, false), SHEAF_EINVAL, word[i], &p.err);
		simdisk_free(disk);
	}
}

static int ask_differently(struct hand *h)
{
	struct sheaf_save *save = NULL;
	struct sheaf_checkpoint *step = NULL;
	int rc = 0, v = h->play->variant;

	switch (v) {
	case 0:
	case 1:
		rc = shf_save_begin(&save, h->run, 8, h->state, NULL, &h->err);
		if (rc == 0)
			rc = shf_save_exchange(save, v == 0 && h->rank ? 5000 : 6000, &h->err);
		break;
	case 2:
		rc = shf_step_open(&step, h->run, h->rank ? 7 : SHEAF_LATEST, &h->err);
		break;
	case 3:
		rc = shf_run_rewind(h->run, 7 + h->rank, &h->err);
		break;
	case 4:
		rc = shf_run_mark(h->run, 7, h->rank ? SHEAF_MARK_KEEP : SHEAF_MARK_BAD, &h->err);
		break;
	default:
		rc = shf_step_open(&step, h->run, -2, &h->err);
		break;
	}
	shf_save_free(save);
	shf_step_put(step);
	return rc;
}

TEST(ranks_that_ask_for_different_things_are_told_which)
{
	static const struct {
		int variant, code;
		const char *word;
	} all[] = {
		{ 0, SHEAF_EINVAL, "sheaf_save_advance: 5000 and 6000" },
		{ 2, SHEAF_EINVAL, "different steps to sheaf_checkpoint_open: 7 and -1" },
		{ 3, SHEAF_EINVAL, "different arguments (7 and 8)" },
		{ 4, SHEAF_EINVAL, "different arguments (1 and 2)" },
		{ 5, SHEAF_EINVAL, "step -2 is negative" },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, columns);

		p.nodes = apart;
		SAVED(p);
		p.variant = all[i].variant;
		SAID(hands_run(&p, ask_differently, true), all[i].code, all[i].word, &p.err);
		simdisk_free(disk);
	}
}

/* ---- handles whose time is over ---- */

TEST(a_run_that_was_closed_answers_for_those_who_still_hold_it)
{
	struct alone a = { .disk = NULL };
	struct sheaf_checkpoint *step = NULL, *more = NULL;
	struct sheaf_save *save = NULL;
	struct sheaf_error *err = &a.err;

	begin(&a, SHEAF_RUN_CREATE);
	saved(&a, 1);
	CHECK_RC(shf_step_open(&step, a.run, 1, err), 0, err);
	shf_run_close(a.run);
	SAID(shf_step_open(&more, a.run, 1, err), SHEAF_EINVAL, "is closed", err);
	SAID(shf_save_begin(&save, a.run, 2, a.state, NULL, err), SHEAF_EINVAL, "not open", err);
	SAID(shf_run_prune(a.run, true, NULL, NULL, err), SHEAF_EINVAL, "is closed", err);
	CHECK_INT(shf_run_prune(a.run, true, NULL, NULL, NULL), SHEAF_EINVAL);
	SAID(shf_run_rewind(a.run, 1, err), SHEAF_EINVAL, "open for writing", err);
	SAID(shf_run_mark(a.run, 1, SHEAF_MARK_KEEP, err), SHEAF_EINVAL, "open for writing", err);
	CHECK_RC(shf_step_load(step, a.state, 0, NULL, err), 0, err);
	a.run = NULL;
	shf_step_put(step);
	end(&a);
}

TEST(rewinds_and_marks_want_a_step_and_a_mark)
{
	struct alone a = { .disk = NULL };
	struct sheaf_error *err = &a.err;

	begin(&a, SHEAF_RUN_CREATE);
	saved(&a, 1);
	SAID(shf_run_rewind(a.run, -1, err), SHEAF_EINVAL, "step -1 is negative", err);
	CHECK_INT(shf_run_rewind(a.run, 2, NULL), SHEAF_ENOENT);
	SAID(shf_run_mark(a.run, -1, SHEAF_MARK_KEEP, err), SHEAF_EINVAL, "step -1 is negative",
	     err);
	SAID(shf_run_mark(a.run, 1, SHEAF_MARK_UNREAD, err), SHEAF_EINVAL, "mark is 3; use", err);
	CHECK_INT(shf_run_mark(a.run, 2, SHEAF_MARK_KEEP, NULL), SHEAF_ENOENT);
	CHECK(simdisk_exists(a.disk, "run/checkpoint-1"));
	end(&a);
}

TEST(what_is_no_step_of_ours_is_not_copied_and_has_no_such_file)
{
	struct simdisk *disk = acts_disk(1);
	const struct shf_sys *sys = simdisk_process(disk, 7, 0);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	const void *bytes;
	size_t n;

	CHECK_RC(shf_step_open_path(&step, "hf", NULL, NULL, sys, &err), 0, &err);
	SAID(shf_step_copy(step, "other", NULL, &err), SHEAF_EFORMAT, "no manifest", &err);
	CHECK_INT(shf_step_copy(step, "other", NULL, NULL), SHEAF_EFORMAT);
	SAID(shf_step_attached(step, "no.json", &bytes, &n, &err), SHEAF_ENOENT, "no.json", &err);
	SAID(shf_step_attached(step, NULL, &bytes, &n, &err), SHEAF_ENOENT, "no attached", &err);
	shf_step_put(step);
	step = NULL;
	CHECK_RC(shf_step_open_path(&step, "run/checkpoint-12", NULL, NULL, sys, &err), 0, &err);
	SAID(shf_step_copy(step, NULL, NULL, &err), SHEAF_EINVAL, "argument 'dir' is NULL", &err);
	SAID(shf_step_copy(step, "", NULL, &err), SHEAF_EINVAL, "argument 'dir' is NULL", &err);
	CHECK_RC(shf_step_attached(step, "extra-3.json", &bytes, &n, &err), 0, &err);
	CHECK_RC(shf_step_attached(step, "extra-4.json", &bytes, &n, &err), 0, &err);
	CHECK_INT(simdisk_remove(disk, "run/checkpoint-12/extra-5.json"), 0);
	SAID(shf_step_attached(step, "extra-5.json", &bytes, &n, &err), SHEAF_ECORRUPT, "missing",
	     &err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
}

/* By its path a step may be a hub's cache, whose files are links; in a run it has none. */
TEST(a_link_is_a_file_of_a_step_by_path_and_none_of_a_run)
{
	struct alone a = { .disk = acts_disk(1) };
	struct sheaf_checkpoint *step = NULL;
	const void *bytes;
	size_t n;

	CHECK_INT(simdisk_remove(a.disk, "run/checkpoint-12/extra-5.json"), 0);
	CHECK_INT(simdisk_symlink(a.disk, "extra-4.json", "run/checkpoint-12/extra-5.json"), 0);
	begin(&a, SHEAF_RUN_READONLY);
	CHECK_RC(shf_step_open_path(&step, "run/checkpoint-12", NULL, NULL, a.sys, &a.err), 0,
	         &a.err);
	CHECK_RC(shf_step_attached(step, "extra-5.json", &bytes, &n, &a.err), 0, &a.err);
	shf_step_put(step);
	step = NULL;
	CHECK_RC(shf_step_open(&step, a.run, 12, &a.err), 0, &a.err);
	SAID(shf_step_attached(step, "extra-5.json", &bytes, &n, &a.err), SHEAF_ECORRUPT,
	                       "a symbolic link", &a.err);
	shf_step_put(step);
	end(&a);
}

/* ---- states ---- */

static void sticks(struct sheaf_state *state, int rc, const char *word)
{
	struct sheaf_error err;

	CHECK_INT(rc, SHEAF_EINVAL);
	SAID(shf_state_ready(state, true, &err), SHEAF_EINVAL, word, &err);
	CHECK_INT(shf_state_ready(state, true, NULL), SHEAF_EINVAL);
	shf_state_put(state);
}

TEST(a_state_remembers_the_first_thing_that_was_wrong)
{
	static const char long_name[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	                                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
	static const struct {
		const char *stream, *rule, *word;
		int32_t rank, ranks;
	} wrong[] = {
		{ NULL, NULL, "stream ''", 0, 1 }, { "UP", NULL, "stream 'UP'", 0, 1 },
		{ long_name, NULL, "must match [a-z0-9._-]{1,57}", 0, 1 },
		{ "rng", "never", "rule 'never'", 0, 1 }, { "rng", NULL,
		  "rank 0 must be at least 0 and less than ranks, 0", 0, 0 },
		{ "rng", NULL, "rank -1 must be at least 0", -1, 2 }, { "rng", NULL,
		  "rank 2 must be at least 0 and less than ranks, 2", 2, 2 },
	};
	struct alone a = { .disk = NULL };
	struct sheaf_slice s = slice_of(&a);
	struct sheaf_state *held;
	char byte = 0;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		held = shf_state_new();
		sticks(held, shf_state_stream(held, wrong[i].stream, wrong[i].rule, wrong[i].rank,
		                               wrong[i].ranks, &byte, 1, NULL), wrong[i].word);
	}
	held = shf_state_new();
	CHECK_INT(shf_state_add(held, &s, NULL), 0);
	sticks(held, shf_state_move(held, 1, &byte, NULL), "slice 1 does not exist");
	held = shf_state_new();
	sticks(held, shf_state_move(held, -1, &byte, NULL), "slice -1 does not exist");
	held = shf_state_new();
	CHECK_INT(shf_state_add(held, &s, NULL), 0);
	sticks(held, shf_state_move(held, 0, NULL, NULL), "cannot be moved to NULL");
	CHECK_INT(shf_state_move(NULL, 0, &byte, NULL), SHEAF_ENOMEM);
	CHECK_INT(shf_state_stream(NULL, "rng", NULL, 0, 1, &byte, 1, NULL), SHEAF_ENOMEM);
}

/* Overflowing numbers, one at a time, of a slice that is right otherwise. */
TEST(numbers_that_no_memory_has_are_refused)
{
	static const struct {
		size_t at;
		int64_t value;
	} wrong[] = {
		{ offsetof(struct sheaf_slice, shape[0]), INT64_MAX },
		{ offsetof(struct sheaf_slice, shape[0]), -1 },
		{ offsetof(struct sheaf_slice, start[0]), -1 },
		{ offsetof(struct sheaf_slice, start[0]), 4 },
		{ offsetof(struct sheaf_slice, count[0]), -1 },
		{ offsetof(struct sheaf_slice, count[1]), 5 },
		{ offsetof(struct sheaf_slice, stride[0]), INT64_MAX },
		{ offsetof(struct sheaf_slice, stride[1]), INT64_MAX / 2 },
		{ offsetof(struct sheaf_slice, origin), -1 },
		{ offsetof(struct sheaf_slice, origin), INT64_MAX },
	};
	struct alone a = { .disk = NULL };

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct sheaf_state *held = shf_state_new();
		struct sheaf_slice s = slice_of(&a);
		struct sheaf_error err;
		int rc;

		s.stride[0] = 4;
		s.stride[1] = 1;
		memcpy((char *)&s + wrong[i].at, &wrong[i].value, sizeof(wrong[i].value));
		rc = shf_state_add(held, &s, NULL);
		if (rc != SHEAF_EINVAL)
			print_error("number %zu: %d\n", i, rc);
		CHECK_INT(rc, SHEAF_EINVAL);
		SAID(shf_state_ready(held, true, &err), SHEAF_EINVAL, "w", &err);
		shf_state_put(held);
	}
}
