/* SPDX-License-Identifier: Apache-2.0 */
/* A run whose checkpoints are not named checkpoint-<n>: all that makes or reads the name of a
 * folder follows the pattern that the run was made with, and another pattern is refused. */
#include <errno.h>
#include <stdlib.h>
#include "err.h"
#include "leftovers.h"
#include "list.h"
#include "simdisk.h"
#include "simgroup.h"
#include "t.h"
#include "flush.h"
#include "load.h"
#include "prune_steps.h"
#include "run_open.h"
#include "run_ops.h"
#include "run_resume.h"
#include "run_salvage.h"
#include "save.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "step_copy.h"
#include "step_folder.h"
#include "step_open.h"
#include "verify_step.h"
#include "sheaf-admin.h"

enum { RANKS = 2, ITEMS = 64 };

struct world {
	struct simdisk *disk;
	const struct shf_sys *sys[RANKS];
	struct shf_opts opts;
	const char *folders[RANKS];     /* opts.folder of each rank */
	int (*play)(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err);
	bool dies;                      /* the job does not close its run */
	uint64_t save_flags;
	int64_t step;                   /* what play saves, or has loaded */
	uint32_t memory;                /* it was loaded from there */
	char said[400], log[2000];      /* of rank 0: the path of the last commit; warnings */
	struct sheaf_error err;
};

static void log_line(void *arg, int level, const char *line)
{
	struct world *w = arg;
	size_t n = strlen(w->log);

	if (level <= 1)
		snprintf(w->log + n, sizeof(w->log) - n, "%s\n", line);
}

static void committed(void *arg, int64_t step, const char *path)
{
	struct world *w = arg;

	(void)step;
	snprintf(w->said, sizeof(w->said), "%s", path);
}

static int play_rank(void *arg, int rank, struct sheaf_group *group)
{
	struct world *w = arg;
	struct shf_opts opts = w->opts;
	struct sheaf_run *run = NULL;
	struct sheaf_error err = { 0 };
	int rc;

	opts.folder = w->folders[rank];
	opts.arg = w;
	opts.log = rank ? NULL : log_line;
	opts.committed_arg = w;
	opts.committed = rank ? NULL : committed;
	rc = shf_run_open(&run, "run", group, &opts, w->sys[rank], &err);
	if (rc == 0)
		rc = w->play(w, rank, run, &err);
	if (rank == 0)
		w->err = err;
	if (w->dies)
		simdisk_kill(w->disk, w->sys[rank]);
	if (run)
		shf_run_close(run);
	return rc;
}

static const struct shf_sys *process(struct world *w)
{
	static uint64_t pid = 500;

	return simdisk_process(w->disk, pid++, 0);
}

/* One job; what both ranks returned. */
static int play(struct world *w, int (*fn)(struct world *, int, struct sheaf_run *,
                                           struct sheaf_error *))
{
	static uint64_t seed = 1;
	struct simgroup_opts o = { .seed = seed++, .ranks = RANKS };
	int results[RANKS];

	w->play = fn;
	w->log[0] = '\0';
	for (int r = 0; r < RANKS; r++)
		w->sys[r] = process(w);
	CHECK_INT(simgroup_run(&o, play_rank, w, results), 0);
	CHECK_INT(results[0], results[1]);
	for (int r = 0; r < RANKS; r++) {
		CHECK_INT(simdisk_open_n(w->sys[r]), 0);
		simdisk_kill(w->disk, w->sys[r]);
	}
	return results[0];
}

static void want(struct world *w, const char *folder)
{
	for (int r = 0; r < RANKS; r++)
		w->folders[r] = folder;
}

static void world_init(struct world *w, const char *folder)
{
	*w = (struct world){ .disk = simdisk_new(7, SIMDISK_STRICT),
		.opts = { .flags = SHEAF_RUN_CREATE, .timeout_ms = 60000,
		          .grace_s = -1 } };
	want(w, folder);
}

static struct sheaf_slice slice(int rank, float *data)
{
	return (struct sheaf_slice){ .size = sizeof(struct sheaf_slice), .name = "w",
		.dtype = SHEAF_F32, .ndim = 1, .shape = { RANKS * ITEMS },
		.start = { rank * ITEMS }, .count = { ITEMS }, .data = data };
}

static int save_one(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	float data[ITEMS] = { (float)w->step };
	struct sheaf_slice s = slice(rank, data);
	struct sheaf_save_opts o = { .size = sizeof(o), .flags = w->save_flags };
	struct sheaf_state *st = shf_state_new();
	struct sheaf_save *sv = NULL;
	int rc;

	(void)shf_state_add(st, &s, NULL);
	rc = shf_save_begin(&sv, run, w->step, st, &o, err);
	if (rc == 0)
		rc = shf_save_commit(sv, -1, err);
	shf_save_free(sv);
	shf_state_put(st);
	return rc;
}

/* Steps first to last, a job each. */
static void save(struct world *w, int64_t first, int64_t last)
{
	for (w->step = first; w->step <= last; w->step++)
		CHECK_RC(play(w, save_one), 0, &w->err);
}

static int resume(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	float data[ITEMS] = { -1 };
	struct sheaf_slice s = slice(rank, data);
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_state *st = shf_state_new();
	int rc;

	(void)shf_state_add(st, &s, NULL);
	rc = shf_run_resume(run, st, SHEAF_LOAD_FALLBACK, &report, err);
	if (rc == 0 && data[0] != (float)report.step)
		rc = shf_fail(err, SHEAF_EBUG, "step %d has %g", (int)report.step, (double)data[0]);
	if (rank == 0) {
		w->step = report.step;
		w->memory = report.memory;
	}
	shf_state_put(st);
	return rc;
}

static int prune(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	(void)rank;
	return shf_run_prune(run, false, NULL, NULL, err);
}

static int rewind_to_3(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	(void)rank;
	return shf_run_rewind(run, 3, err);
}

static int mark_3(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	(void)rank;
	return shf_run_mark(run, 3, SHEAF_MARK_BAD, err);
}

static int nothing(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	(void)rank;
	(void)run;
	(void)err;
	return 0;
}

static bool has(struct world *w, const char *name)
{
	char path[120];

	snprintf(path, sizeof(path), "%s/sheaf.json", name);
	return simdisk_exists(w->disk, path);
}

static void spoil(struct world *w, const char *name)
{
	char path[120];
	uint8_t *bytes;
	size_t n;

	snprintf(path, sizeof(path), "%s/model-00001-of-00001.safetensors", name);
	bytes = simdisk_get(w->disk, path, &n);
	CHECK(bytes != NULL && n > 4100);
	bytes[4100] ^= 1;
	(void)simdisk_put(w->disk, path, bytes, n);
	free(bytes);
}

static void check_text(struct world *w, const char *path, const char *head, const char *tail)
{
	size_t n = 0;
	char *text = simdisk_get(w->disk, path, &n);

	CHECK(text != NULL);
	CHECK_INT(n, strlen(head) + 33 + strlen(tail));
	CHECK(memcmp(text, head, strlen(head)) == 0);
	CHECK(memcmp(text + strlen(head) + 33, tail, strlen(tail)) == 0);
	free(text);
}

TEST(a_run_is_saved_loaded_pruned_and_rewound_under_its_own_names)
{
	struct world w;

	world_init(&w, "step-{n}");
	save(&w, 1, 5);
	CHECK_STR(w.said, "run/step-5");
	check_text(&w, "run/.sheaf/run", "sheaf-run 2\n", "folder step-{n}\n");
	CHECK(has(&w, "run/step-1") && has(&w, "run/step-5") && !has(&w, "run/checkpoint-1"));
	want(&w, NULL);
	CHECK_RC(play(&w, resume), 0, &w.err);
	CHECK_INT(w.step, 5);
	w.opts.keep_last = 3;
	CHECK_RC(play(&w, prune), 2, &w.err);
	w.opts.keep_last = 0;
	CHECK(!has(&w, "run/step-2") && has(&w, "run/step-3"));
	spoil(&w, "run/step-5");
	CHECK_RC(play(&w, resume), 0, &w.err);
	CHECK_INT(w.step, 4);
	CHECK(strstr(w.log, "run: step-5 is passed over") && strstr(w.log, "step-5 is set aside"));
	CHECK(!has(&w, "run/step-5"));
	CHECK_RC(play(&w, rewind_to_3), 0, &w.err);
	CHECK(!has(&w, "run/step-4") && has(&w, "run/step-3"));
	save(&w, 4, 4);
	CHECK(has(&w, "run/step-4") && !simdisk_exists(w.disk, "run/checkpoint-4"));
	CHECK_RC(play(&w, mark_3), 0, &w.err);
	simdisk_free(w.disk);
}

TEST(folders_of_the_usual_pattern_are_foreign_there)
{
	struct world w;

	world_init(&w, "step-{n}");
	save(&w, 1, 1);
	CHECK_INT(simdisk_put(w.disk, "run/checkpoint-7/sheaf.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(w.disk, "run/step-07/sheaf.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(w.disk, "run/step-/sheaf.json", "{}", 2), 0);
	CHECK_RC(play(&w, resume), 0, &w.err);
	CHECK_INT(w.step, 1);
	save(&w, 2, 2);
	simdisk_free(w.disk);
}

TEST(another_pattern_is_refused_and_both_are_named)
{
	static const struct {
		const char *made, *asked, *says;
	} cases[] = {
		{ "step-{n}", "checkpoint-{n}", "run: its checkpoints are named step-{n}, and "
		  "opts.folder is checkpoint-{n}: leave it NULL, or name another run" },
		{ NULL, "step-{n}", "run: its checkpoints are named checkpoint-{n}, and "
		  "opts.folder is step-{n}: leave it NULL, or name another run" },
	};

	for (size_t i = 0; i < 2; i++) {
		struct world w;
		uint64_t before;

		world_init(&w, cases[i].made);
		save(&w, 1, 1);
		before = simdisk_hash(w.disk, "/");
		want(&w, cases[i].asked);
		CHECK_RC(play(&w, nothing), SHEAF_EINVAL, &w.err);
		CHECK_STR(w.err.msg, cases[i].says);
		w.opts.flags = SHEAF_RUN_READONLY;
		CHECK_RC(play(&w, nothing), SHEAF_EINVAL, &w.err);
		CHECK_STR(w.err.msg, cases[i].says);
		CHECK(simdisk_hash(w.disk, "/") == before);
		want(&w, cases[i].made);
		CHECK_RC(play(&w, resume), 0, &w.err);
		CHECK_INT(w.step, 1);
		simdisk_free(w.disk);
	}
}

TEST(ranks_name_one_pattern)
{
	struct world w;

	world_init(&w, "step-{n}");
	w.folders[1] = "save-{n}";
	CHECK_RC(play(&w, nothing), SHEAF_EINVAL, &w.err);
	CHECK(strstr(w.err.msg, "ranks opened with different opts.folder"));
	CHECK(!simdisk_exists(w.disk, "run"));
	simdisk_free(w.disk);
}

/* The default pattern is not stored, so .sheaf/run has the bytes that it had before patterns. */
TEST(the_usual_pattern_named_is_the_usual_run)
{
	static const char *const usual[] = { "checkpoint-{n}", NULL };
	uint64_t hash[2];

	for (size_t i = 0; i < 2; i++) {
		struct world w;

		world_init(&w, usual[i]);
		save(&w, 1, 1);
		check_text(&w, "run/.sheaf/run", "sheaf-run 1\n", "");
		hash[i] = simdisk_hash(w.disk, "run/checkpoint-1/model-00001-of-00001.safetensors");
		want(&w, usual[!i]);
		CHECK_RC(play(&w, resume), 0, &w.err);
		simdisk_free(w.disk);
	}
	CHECK(hash[0] == hash[1]);
}

/* Without .sheaf a reader names the pattern, or finds the usual one. A writer is refused where it
 * would pass over checkpoints of another. */
TEST(a_run_that_lost_its_identity_is_read_by_the_pattern_that_is_asked_for)
{
	struct world w;

	world_init(&w, "step-{n}");
	save(&w, 1, 2);
	CHECK_INT(simdisk_remove(w.disk, "run/.sheaf"), 0);
	w.opts.flags = SHEAF_RUN_READONLY;
	CHECK_RC(play(&w, resume), 0, &w.err);
	CHECK_INT(w.step, 2);
	want(&w, NULL);
	CHECK_RC(play(&w, resume), SHEAF_ENOENT, &w.err);
	w.opts.flags = SHEAF_RUN_CREATE;
	CHECK_RC(play(&w, nothing), SHEAF_EINVAL, &w.err);
	CHECK_STR(w.err.msg + strcspn(w.err.msg, ";"), "; opts.folder step-{n} would find it, "
	          "checkpoint-{n} does not");
	want(&w, "step-{n}");
	save(&w, 3, 3);
	CHECK(has(&w, "run/step-3"));
	simdisk_free(w.disk);
	world_init(&w, NULL);
	save(&w, 1, 1);
	CHECK_INT(simdisk_remove(w.disk, "run/.sheaf"), 0);
	want(&w, "step-{n}");
	CHECK_RC(play(&w, nothing), SHEAF_EINVAL, &w.err);
	CHECK_STR(w.err.msg, "run: has checkpoint checkpoint-1, but no .sheaf/run; opts.folder "
	          "checkpoint-{n} would find it, step-{n} does not");
	simdisk_free(w.disk);
}

/* ---- what dead jobs left ---- */

static int hear(void *arg, const struct shf_left *l)
{
	char *text = arg;
	size_t n = strlen(text);

	if (strcmp(sheaf_leftover_kind_name(l->kind), "lock") != 0)
		snprintf(text + n, 200 - n, "%s %d %s;", sheaf_leftover_kind_name(l->kind),
		         (int)l->step,
		         strcmp(sheaf_leftover_kind_name(l->kind), "staged") ? l->path : "");
	return 0;
}

static void check_left(struct world *w, const char *says)
{
	const struct shf_sys *sys = process(w);
	struct sheaf_error err;
	struct shf_store s;
	char text[200] = "";

	CHECK_RC(shf_store_open(&s, sys, "run", &err), 0, &err);
	CHECK_RC(shf_store_left(&s, hear, text, &err), 0, &err);
	CHECK_STR(text, says);
	shf_store_close(&s);
	simdisk_kill(w->disk, sys);
}

static void die_before_the_rename(struct world *w, int64_t step)
{
	struct simdisk_fault fault = { .how = SIMDISK_KILL, .nth = 1, .name = "2-",
		.kind = SIMDISK_RENAME };
	struct simgroup_opts o = { .seed = 5, .ranks = RANKS, .quiet = true };
	int results[RANKS];

	w->step = step;
	w->play = save_one;
	for (int r = 0; r < RANKS; r++)
		w->sys[r] = process(w);
	fault.process = w->sys[0];
	simdisk_fault(w->disk, &fault);
	(void)simgroup_run(&o, play_rank, w, results);
	CHECK(simdisk_fired(w->disk) > 0);
	simdisk_faults_clear(w->disk);
	for (int r = 0; r < RANKS; r++)
		simdisk_kill(w->disk, w->sys[r]);
}

TEST(what_a_dead_job_left_is_recovered_or_salvaged_under_the_runs_names)
{
	struct shf_opts opts = { .timeout_ms = 1000 };
	struct sheaf_report report = { .size = sizeof(report) };
	const struct shf_sys *sys;
	struct world w;

	world_init(&w, "step-{n}");
	save(&w, 1, 1);
	die_before_the_rename(&w, 2);
	check_left(&w, "staged 2 ;");
	opts.folder = "other-{n}";
	sys = process(&w);
	CHECK_RC(shf_run_salvage("run", 2, &opts, sys, &report, &w.err), SHEAF_EINVAL, &w.err);
	CHECK(strstr(w.err.msg, "named step-{n}, and opts.folder is other-{n}"));
	opts.folder = NULL;
	CHECK_RC(shf_run_salvage("run", 2, &opts, sys, &report, &w.err), 0, &w.err);
	CHECK_RC(shf_run_salvage("run", 2, &opts, sys, &report, &w.err), SHEAF_EEXIST, &w.err);
	CHECK_STR(w.err.msg, "run/step-2: exists; rewind the run, or move it away first");
	simdisk_kill(w.disk, sys);
	CHECK(has(&w, "run/step-2"));
	CHECK_INT(simdisk_remove(w.disk, "run/step-2/sheaf.json"), 0);
	check_left(&w, "remains 2 step-2;");
	simdisk_free(w.disk);
}

TEST(the_next_job_clears_the_stage)
{
	struct world w;

	world_init(&w, "step-{n}");
	save(&w, 1, 1);
	die_before_the_rename(&w, 2);
	CHECK_RC(play(&w, nothing), 0, &w.err);
	check_left(&w, "");
	save(&w, 2, 2);
	CHECK(has(&w, "run/step-2"));
	simdisk_free(w.disk);
}

/* ---- another run ---- */

static int copy_to(struct world *w, const char *to)
{
	const struct shf_sys *sys = process(w);
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_run *run = NULL;
	int rc = shf_run_open(&run, "run", NULL, &opts, sys, &w->err);

	if (rc == 0)
		rc = shf_step_open(&step, run, 1, &w->err);
	if (rc == 0)
		rc = shf_step_copy(step, to, &report, &w->err);
	shf_step_put(step);
	if (run)
		shf_run_close(run);
	simdisk_kill(w->disk, sys);
	return rc;
}

TEST(a_copy_has_the_names_of_the_run_that_it_lies_in)
{
	struct world w;
	char *id, text[64];
	size_t n;

	world_init(&w, "step-{n}");
	save(&w, 1, 1);
	CHECK_RC(copy_to(&w, "new"), 0, &w.err);
	CHECK(has(&w, "new/step-1"));
	check_text(&w, "new/.sheaf/run", "sheaf-run 2\n", "folder step-{n}\n");
	CHECK_RC(copy_to(&w, "new"), 0, &w.err);        /* it is there: verified */
	CHECK_INT(simdisk_remove(w.disk, "new"), 0);
	id = simdisk_get(w.disk, "run/.sheaf/run", &n);
	snprintf(text, sizeof(text), "sheaf-run 1\n%.32s\n", id + 12);
	free(id);
	CHECK_INT(simdisk_put(w.disk, "old/.sheaf/run", text, strlen(text)), 0);
	CHECK_RC(copy_to(&w, "old"), 0, &w.err);
	CHECK(has(&w, "old/checkpoint-1") && !simdisk_exists(w.disk, "old/step-1"));
	simdisk_free(w.disk);
}

/* ---- memory ---- */

TEST(a_step_in_memory_is_loaded_and_flushed_under_the_runs_names)
{
	struct sheaf_report report = { .size = sizeof(report) };
	const struct shf_sys *sys;
	struct world w;
	int64_t step = -1;

	world_init(&w, "step-{n}");
	simdisk_set_agents(w.disk, UINT64_C(1) << 30);
	w.opts.agent = "auto";
	w.opts.images_max = 2;
	save(&w, 1, 1);
	w.dies = true;
	w.save_flags = SHEAF_SAVE_NO_DISK;
	save(&w, 2, 2);
	w.dies = false;
	CHECK(!has(&w, "run/step-2"));
	w.opts.flags = SHEAF_RUN_READONLY;
	CHECK_RC(play(&w, resume), 0, &w.err);
	CHECK(w.step == 2 && w.memory);
	sys = process(&w);
	CHECK_RC(shf_flush_newest("run", NULL, false, 0, sys, &step, &report, &w.err), 0, &w.err);
	simdisk_kill(w.disk, sys);
	CHECK_INT(step, 2);
	CHECK(has(&w, "run/step-2") && !simdisk_exists(w.disk, "run/checkpoint-2"));
	simdisk_free(w.disk);
}

/* ---- patterns ---- */

TEST(a_pattern_is_a_plain_prefix_and_the_number)
{
	static const char *const good[] = { "step-{n}", "{n}", "Ab.c_d-{n}", "v2.{n}",
		"aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd{n}" };
	static const struct {
		const char *pattern, *why;
	} bad[] = {
		{ "", "must be up to 40" }, { "step-", "must be up to 40" },
		{ "step-{n}x", "must be up to 40" },
		{ "step-{n}{n}", "must be up to 40" }, { "a/{n}", "must be up to 40" },
		{ "st\xc3\xa9p-{n}", "must be up to 40" }, { "a b{n}", "must be up to 40" },
		{ "{n", "must be up to 40" }, { "step-{N}", "must be up to 40" },
		{ ".{n}", "it must not begin with a dot" }, { ".sheaf{n}", "begin with a dot" },
		{ "..{n}", "begin with a dot" }, { "step1{n}", "not have a digit before {n}" },
		{ "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddx{n}", "must be up to 40" },
	};
	struct sheaf_error err;
	char name[SHF_STEP_NAME];
	int64_t step;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct shf_store s = { .run = "" };

		CHECK_RC(shf_folder_set(&s, good[i], &err), 0, &err);
		shf_name_of_step(&s, name, SHF_STEP_MAX);
		CHECK(shf_step_of_name(&s, name, &step) && step == SHF_STEP_MAX);
		shf_name_of_step(&s, name, 10);
		CHECK(shf_step_of_name(&s, name, &step) && step == 10);
		CHECK(!shf_step_of_name(&s, "checkpoint-1", &step));
		CHECK(!shf_step_of_name(&s, ".sheaf", &step));
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err.msg[0] = '\0';
		CHECK_INT(shf_folder_check(bad[i].pattern, &err), SHEAF_EINVAL);
		if (!strstr(err.msg, bad[i].why))
			print_error("%s: %s\n", bad[i].pattern, err.msg);
		CHECK(strstr(err.msg, bad[i].why) != NULL);
	}
}
