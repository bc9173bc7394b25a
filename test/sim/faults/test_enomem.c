/* SPDX-License-Identifier: Apache-2.0 */
/* Every single allocation of a small save, of the reads of its step and of a plan fails once, with
 * one process and with two: the call returns an error, leaves nothing behind, and succeeds when it
 * is repeated. */
#include "acts.h"
#include <stdlib.h>
#include "averages.h"
#include "err.h"
#include "run_salvage.h"
#include "sheaf-plan.h"
#include "starve.h"
#include "step_attached.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "step.h"
#include "step_open.h"
#include "read_slice.h"
#include "plan_job.h"
#include "run_ops.h"
#include "load.h"

enum { ROWS = 6, COLUMNS = 8 };

/* ---- one process alone ---- */

struct lone {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_error err;
	float w[ROWS][COLUMNS], gone[ROWS][COLUMNS];
	uint8_t rng[16];
};

static float number(int r, int c)
{
	return (float)(r * 100 + c);
}

static struct shf_opts opts_of(uint64_t flags)
{
	return (struct shf_opts){ .flags = flags,
		.io_threads = 1 };
}

/* Tensors of two families, one that is tied, a stream, averages; what failed sticks to it. */
static struct sheaf_state *state_of(struct lone *l, void *memory)
{
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 2,
		.shape = { ROWS, COLUMNS }, .count = { ROWS, COLUMNS }, .data = memory };
	struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };
	struct sheaf_state *state = shf_state_new();

	(void)shf_state_add(state, &s, NULL);
	s.name = "head";
	s.tied_to = "w";
	(void)shf_state_add(state, &s, NULL);
	s.tied_to = NULL;
	s.family = "optimizer";
	(void)shf_state_add(state, &s, NULL);
	(void)shf_state_stream(state, "rng", "drop", 0, 1, l->rng, sizeof(l->rng), NULL);
	(void)shf_state_ema(state, "model", &ema, NULL);
	return state;
}

static int save_to(struct lone *l, struct sheaf_run *run, struct sheaf_state *state)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, run, 5, state, NULL, &l->err);

	if (rc < 0)
		return rc;
	(void)shf_save_attach(save, "tokens.json", "{}", 2, NULL);
	(void)shf_save_note(save, "epoch", "3", NULL);
	rc = shf_save_commit(save, -1, &l->err);
	shf_save_free(save);
	return rc;
}

static int saves(struct lone *l)
{
	struct shf_opts opts = opts_of(SHEAF_RUN_CREATE);
	struct sheaf_run *run = NULL;
	struct sheaf_state *state = NULL;
	int rc = shf_run_open(&run, "run", NULL, &opts, l->sys, &l->err);

	if (rc == 0) {
		for (int i = 0; i < ROWS * COLUMNS; i++)
			l->w[i / COLUMNS][i % COLUMNS] = number(i / COLUMNS, i % COLUMNS);
		state = state_of(l, l->w);
		rc = save_to(l, run, state);
	}
	shf_state_put(state);
	shf_run_close(run);
	return rc;
}

static int is_wrong(struct lone *l, const char *what)
{
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < COLUMNS; c++)
			if (l->gone[r][c] != number(r, c))
				return shf_fail(&l->err, SHEAF_EBUG, "%s: [%d, %d] is wrong", what,
				                r, c);
	memset(l->gone, 0, sizeof(l->gone));
	return 0;
}

/* The step that is open: a slice, its file, then all of it if wanted. */
static int reads_from(struct lone *l, struct sheaf_checkpoint *step, bool all)
{
	struct sheaf_slice s = { .size = sizeof(s), .name = "head", .dtype = SHEAF_F32, .ndim = 2,
		.shape = { ROWS, COLUMNS }, .count = { ROWS, COLUMNS }, .data = l->gone };
	struct sheaf_report report = { .size = sizeof(report) };
	const void *bytes;
	size_t n;
	int rc = shf_step_read(step, &s, &l->err);

	if (rc == 0)
		rc = is_wrong(l, "a slice");
	if (rc == 0)
		rc = shf_step_attached(step, "tokens.json", &bytes, &n, &l->err);
	if (rc == 0 && (n != 2 || memcmp(bytes, "{}", 2)))
		rc = shf_fail(&l->err, SHEAF_EBUG, "another file");
	if (rc == 0 && all) {
		struct sheaf_state *state = state_of(l, l->gone);

		rc = shf_step_load(step, state, 0, &report, &l->err);
		shf_state_put(state);
	}
	if (rc == 0 && all)
		rc = is_wrong(l, "a load");
	if (rc == 0 && all) {           /* of one step the average is what was averaged */
		s.family = "ema";
		s.name = "w";
		rc = shf_step_read(step, &s, &l->err);
	}
	return rc == 0 && all ? is_wrong(l, "an average") : rc;
}

static int reads_run(struct lone *l)
{
	struct shf_opts opts = opts_of(SHEAF_RUN_READONLY);
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_run_open(&run, "run", NULL, &opts, l->sys, &l->err);

	if (rc == 0)
		rc = shf_step_open(&step, run, 5, &l->err);
	if (rc == 0)
		rc = reads_from(l, step, true);
	shf_step_put(step);
	shf_run_close(run);
	return rc;
}

static int reads_path(struct lone *l)
{
	struct shf_opts opts = opts_of(0);
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, "run/checkpoint-5", NULL, &opts, l->sys, &l->err);

	if (rc == 0)
		rc = reads_from(l, step, false);
	shf_step_put(step);
	return rc;
}

static int reads_theirs(struct lone *l)
{
	struct shf_opts opts = opts_of(0);
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 9 }, .count = { 9 }, .data = l->gone };
	struct sheaf_checkpoint *step = NULL;
	const void *bytes;
	size_t n;
	int rc = shf_step_open_path(&step, "hf", NULL, &opts, l->sys, &l->err);

	if (rc == 0)
		rc = shf_step_read(step, &s, &l->err);
	for (int i = 0; rc == 0 && i < 9; i++) {
		uint64_t want = hand_value("model", "w", SHEAF_F32, i);

		if (memcmp(&l->gone[i / COLUMNS][i % COLUMNS], &want, 4))
			rc = shf_fail(&l->err, SHEAF_EBUG, "item %d is wrong", i);
	}
	if (rc == 0)
		rc = shf_step_attached(step, "config.json", &bytes, &n, &l->err);
	if (rc == 0 && (n != 2 || memcmp(bytes, "{}", 2)))
		rc = shf_fail(&l->err, SHEAF_EBUG, "another file");
	shf_step_put(step);
	return rc;
}

/* The act without its nth allocation; false: it has none such. */
static bool without(struct lone *l, int (*act)(struct lone *l), long nth)
{
	static uint64_t pid = 500;
	int rc;

	l->sys = simdisk_process(l->disk, pid++, 0);
	memset(l->gone, 0, sizeof(l->gone));
	starved = false;
	starve_left = nth;
	rc = act(l);
	starve_left = 0;
	if (rc != 0 && (rc != SHEAF_ENOMEM || !starved || !l->err.msg[0]))
		print_error("allocation %ld: %d: %s\n", nth, rc, l->err.msg);
	CHECK(rc == 0 || (rc == SHEAF_ENOMEM && starved));
	CHECK(rc == 0 || l->err.msg[0]);
	CHECK_INT(simdisk_open_n(l->sys), 0);
	simdisk_kill(l->disk, l->sys);
	return starved;
}

TEST(a_save_goes_without_any_of_its_allocations)
{
	long nth = 0;
	bool more = true;

	while (more) {
		struct lone l = { .disk = disk_new() };

		simdisk_set_trace(l.disk, false);
		more = without(&l, saves, ++nth);
		if (!simdisk_exists(l.disk, "run/checkpoint-5"))
			(void)without(&l, saves, 0);
		(void)without(&l, reads_run, 0);
		simdisk_free(l.disk);
	}
	printf("# %ld allocations\n", nth - 1);
	CHECK(nth > 100);
}

TEST(a_step_is_read_without_any_of_the_allocations)
{
	static const struct hand_tensor theirs = { "w", SHEAF_F32, 1, { 9 } };
	int (*const acts[])(struct lone *l) = { reads_run, reads_path, reads_theirs };
	struct lone l = { .disk = disk_new() };

	simdisk_set_trace(l.disk, false);
	(void)without(&l, saves, 0);
	hands_file(l.disk, "hf/model.safetensors", &theirs, 1, 0);
	CHECK_INT(simdisk_put(l.disk, "hf/config.json", "{}", 2), 0);
	for (int i = 0; i < 3; i++) {
		long nth = 1;

		while (without(&l, acts[i], nth))
			nth++;
		printf("# %ld allocations\n", nth - 1);
		CHECK(nth > 40);
	}
	simdisk_free(l.disk);
}

/* A step of the dead: it stays in its stage until all of a salvage has its memory. */
static int salvages(struct lone *l)
{
	struct shf_opts opts = opts_of(0);
	struct sheaf_report report = { .size = sizeof(report) };

	opts.timeout_ms = 1000;
	return shf_run_salvage("run", 13, &opts, l->sys, &report, &l->err);
}

TEST(a_salvage_goes_without_any_of_its_allocations)
{
	struct simdisk *base = acts_disk(1);
	struct lone l = { .disk = acts_disk_copy(base) };
	long nth = 0;

	simdisk_set_trace(l.disk, false);
	do {
		CHECK(!simdisk_exists(l.disk, "run/checkpoint-13"));
		(void)without(&l, salvages, ++nth);
	} while (!simdisk_exists(l.disk, "run/checkpoint-13"));
	printf("# %ld allocations\n", nth - 1);
	CHECK(nth > 100);
	simdisk_free(l.disk);
	simdisk_free(base);
}

/* ---- a plan ---- */

enum { PLANNED = 4, CUT = 6 };

static void count(void *arg, const struct sheaf_plan_rank *rank)
{
	(void)rank;
	++*(int *)arg;
}

/* Columns over two nodes, which travel, and replicas, whose digests do; a file of each tensor. */
static void states_of(struct sheaf_state *states[PLANNED])
{
	static const char *const names[CUT] = { "a", "b", "c", "d", "e", "f" };

	for (int r = 0; r < PLANNED; r++) {
		struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2,
			.shape = { 64, 1024 }, .start = { 0, 256 * r }, .count = { 64, 256 } };

		states[r] = shf_state_new();
		for (int k = 0; k < CUT; k++) {
			s.name = names[k];
			CHECK_INT(shf_state_add(states[r], &s, NULL), k);
		}
		s.name = "all";
		s.start[1] = 0;
		s.count[1] = 1024;
		CHECK_INT(shf_state_add(states[r], &s, NULL), CUT);
		s.name = "tied";
		s.tied_to = "all";
		CHECK_INT(shf_state_add(states[r], &s, NULL), CUT + 1);
	}
}

TEST(a_plan_goes_without_any_of_its_allocations)
{
	static const int32_t node[PLANNED] = { 0, 0, 1, 1 };
	struct shf_opts opts = { .flags = SHEAF_RUN_REPLICAS,
		.file_bytes_max = 1 };
	struct sheaf_state *states[PLANNED];
	long nth = 0;

	states_of(states);
	do {
		struct sheaf_error err = { 0 };
		int n = 0, rc;

		starved = false;
		starve_left = ++nth;
		rc = shf_plan_job(states, node, PLANNED, &opts, count, &n, &err);
		starve_left = 0;
		CHECK_RC(rc, starved ? SHEAF_ENOMEM : 0, &err);
		CHECK_INT(n, starved ? 0 : PLANNED);
		CHECK(!starved || err.msg[0]);
	} while (starved);
	printf("# %ld allocations\n", nth - 1);
	CHECK(nth > 40);
	for (int r = 0; r < PLANNED; r++)
		shf_state_put(states[r]);
}
