/* SPDX-License-Identifier: Apache-2.0 */
/* Averages that a load fills, all or some of them, and what the saves after it make of them. */
#include "average_step.h"
#include "hands.h"
#include "averages.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_gates.h"
#include "save_end.h"
#include "state.h"
#include "read_slice.h"

static struct sheaf_state *four_items(float w[4])
{
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 }, .count = { 4 }, .data = w };
	struct sheaf_ema e = { .size = sizeof(e), .coef = 0.5 };
	struct sheaf_state *state = shf_state_new();

	CHECK_INT(shf_state_add(state, &s, NULL), 0);
	CHECK_INT(shf_state_ema(state, NULL, &e, NULL), 0);
	return state;
}

/* back >= 0: after a rewind to there */
static void save_in(struct simdisk *disk, const char *dir, struct sheaf_state *state, int64_t step,
                    int64_t back)
{
	static uint64_t pid = 9000;
	const struct shf_sys *sys = simdisk_process(disk, pid++, 0);
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE,
	                           .io_threads = 1 };
	struct sheaf_save *save = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err;

	CHECK_RC(shf_run_open(&run, dir, NULL, &opts, sys, &err), 0, &err);
	if (back >= 0)
		CHECK_RC(shf_run_rewind(run, back, &err), 0, &err);
	CHECK_RC(shf_save_begin(&save, run, step, state, NULL, &err), 0, &err);
	CHECK_RC(shf_save_commit(save, -1, &err), 0, &err);
	shf_save_free(save);
	shf_run_close(run);
	simdisk_kill(disk, sys);
}

/* Step 3 of the run "run", whose average of 1 and 5 is 3, loaded into a state of its own. */
static struct sheaf_state *step_3(struct simdisk *disk, float w[4])
{
	const struct shf_sys *sys = simdisk_process(disk, 8000, 0);
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	struct sheaf_state *st = four_items(w);
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;

	w[0] = 1;
	save_in(disk, "run", st, 2, -1);
	w[0] = 5;
	save_in(disk, "run", st, 3, -1);
	shf_state_put(st);
	st = four_items(w);
	CHECK_RC(shf_run_open(&run, "run", NULL, &opts, sys, &err), 0, &err);
	CHECK_RC(shf_step_open(&step, run, 3, &err), 0, &err);
	CHECK_RC(shf_step_load(step, st, 0, NULL, &err), 0, &err);
	shf_step_put(step);
	shf_run_close(run);
	simdisk_kill(disk, sys);
	return st;
}

static float average(const struct sheaf_state *st)
{
	return *(float *)(void *)st->slices[1].mem.base;
}

/* A job that goes on from step 3 saves step 3 again before it trains. */
TEST(a_step_that_is_loaded_and_saved_again_is_averaged_once)
{
	struct simdisk *disk = simdisk_new(0x5eaf, SIMDISK_STRICT);
	float w[4] = { 1, 2, 3, 4 };
	struct sheaf_state *st = step_3(disk, w);

	CHECK(w[0] == 5 && average(st) == 3);
	save_in(disk, "run", st, 3, 2);
	CHECK_INT(st->emas[0].updates, 2);
	CHECK(average(st) == 3);
	save_in(disk, "run", st, 4, -1);
	CHECK_INT(st->emas[0].updates, 3);
	CHECK(average(st) == 4);
	shf_state_put(st);
	simdisk_free(disk);
}

/* A run that is tuned from step 3 of another counts its own steps, and has a step 3. */
TEST(a_step_of_another_run_with_the_number_of_the_loaded_one_is_averaged)
{
	struct simdisk *disk = simdisk_new(0x5eaf, SIMDISK_STRICT);
	float w[4] = { 1, 2, 3, 4 };
	struct sheaf_state *st = step_3(disk, w);

	w[0] = 13;
	save_in(disk, "other", st, 3, -1);
	CHECK_INT(st->emas[0].updates, 3);
	CHECK(average(st) == 8);
	save_in(disk, "third", st, 3, -1); /* the same weights, kept in two places */
	CHECK_INT(st->emas[0].updates, 3);
	CHECK(average(st) == 8);
	shf_state_put(st);
	simdisk_free(disk);
}

/* The same of a step that is averaged and not saved: again in its own run, then in another one. */
TEST(a_loaded_step_is_averaged_alone_in_another_run_and_not_in_its_own)
{
	static const char *const dirs[] = { "run", "other" };
	struct simdisk *disk = simdisk_new(0x5eaf, SIMDISK_STRICT);
	float w[4] = { 1, 2, 3, 4 };
	struct sheaf_state *st = step_3(disk, w);

	w[0] = 13;
	for (int i = 0; i < 2; i++) {
		const struct shf_sys *sys = simdisk_process(disk, 8100 + (uint64_t)i, 0);
		struct shf_opts opts = { .flags = SHEAF_RUN_CREATE };
		struct sheaf_run *run = NULL;
		struct sheaf_error err;

		CHECK_RC(shf_run_open(&run, dirs[i], NULL, &opts, sys, &err), 0, &err);
		CHECK_RC(shf_state_average(st, run, 3, 0, &err), 0, &err);
		CHECK_INT(st->emas[0].updates, 2 + i);
		CHECK(average(st) == (i ? 8 : 3));
		shf_run_close(run);
		simdisk_kill(disk, sys);
	}
	shf_state_put(st);
	simdisk_free(disk);
}

/* A program of its own saved them, as tensors like any. */
TEST(averages_that_no_manifest_counts_go_on_when_they_are_loaded)
{
	struct simdisk *disk = simdisk_new(0x5eaf, SIMDISK_STRICT);
	const struct shf_sys *sys = simdisk_process(disk, 8000, 0);
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	float w[4] = { 1, 2, 3, 4 }, e[4] = { 7, 7, 7, 7 };
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 }, .count = { 4 }, .data = w };
	struct sheaf_state *st = shf_state_new();
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;

	CHECK_INT(shf_state_add(st, &s, NULL), 0);
	s.family = "ema";
	s.data = e;
	CHECK_INT(shf_state_add(st, &s, NULL), 1);
	save_in(disk, "run", st, 2, -1);
	shf_state_put(st);
	st = four_items(w);
	CHECK_RC(shf_run_open(&run, "run", NULL, &opts, sys, &err), 0, &err);
	CHECK_RC(shf_step_open(&step, run, 2, &err), 0, &err);
	CHECK_RC(shf_step_load(step, st, 0, NULL, &err), 0, &err);
	shf_step_put(step);
	shf_run_close(run);
	CHECK_INT(st->emas[0].updates, 1);
	w[0] = 5;
	save_in(disk, "run", st, 3, -1);
	CHECK(average(st) == 6);
	CHECK_INT(st->emas[0].updates, 2);
	shf_state_put(st);
	simdisk_kill(disk, sys);
	simdisk_free(disk);
}

/* ---- a load that fills some of them ---- */

/* Steps 1 and 2 have weights a and c. What is trained from there on has more: */
enum { ADDED = 1, WIDER = 2, OPTIONAL = 4 };    /* b; more rows of c; b need not be stored */
struct goes_on {
	uint64_t load, save;            /* flags */
	int64_t interval, from, to;     /* steps; from > 1: the one before is loaded */
};
static struct goes_on now;

static void grown(struct hand *h)
{
	int v = h->play->variant;
	struct sheaf_slice *s = hand_add(h, "model", "a", SHEAF_F32, 2, 6, 4);

	hand_cut(s, 0, h->rank, h->ranks);
	s = hand_add(h, "model", "c", SHEAF_F32, 2, v & WIDER ? 7 : 5, 4);
	hand_cut(s, 1, h->rank, h->ranks);
	if (!(v & ADDED) || h->rank < h->ranks - 1)
		return; /* only the last rank has b */
	s = hand_add(h, "model", "b", SHEAF_F32, 1, 9);
	s->flags = v & OPTIONAL ? SHEAF_SLICE_OPTIONAL : 0;
}

static int filled(struct hand *h, int64_t n)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, n, &h->err);

	h->report = (struct sheaf_report){ .size = sizeof(h->report) };
	if (rc == 0)
		rc = shf_step_load(step, h->state, now.load, &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

/* All weights of step n are 8 n. */
static int saved(struct hand *h, int64_t n)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = now.save };
	struct sheaf_save *save = NULL;
	int rc;

	for (int k = 0; k < h->n; k++) {
		int64_t columns = h->s[k].ndim > 1 ? h->s[k].count[1] : 1;

		for (int64_t i = 0; i < h->s[k].count[0] * columns; i++)
			((float *)h->s[k].data)[i] = 8 * (float)n;
	}
	rc = shf_save_begin(&save, h->run, n, h->state, &opts, &h->err);
	for (int k = 0; k < h->n && rc == 0 && now.save & SHEAF_SAVE_LAZY; k++)
		rc = shf_save_gates_copied(save, k, -1, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static int train(struct hand *h)
{
	struct sheaf_ema e = { .size = sizeof(e), .coef = 0.5, .interval = now.interval };
	int rc = shf_state_ema(h->state, NULL, &e, NULL);

	if (rc == 0 && now.from > 1)
		rc = filled(h, now.from - 1);
	for (int64_t n = now.from; n <= now.to && rc == 0; n++)
		rc = saved(h, n);
	return rc;
}

static struct play training(struct simdisk *disk, int ranks, int variant, struct goes_on how)
{
	struct play p = hands_play(disk, ranks, grown);

	p.variant = variant;
	now = how;
	return p;
}

/* Every item of ema/<name> in the step is `want`. */
static void holds(struct sheaf_checkpoint *step, const char *name, int64_t rows, float want)
{
	float e[40] = { 0 };
	struct sheaf_slice s = { .size = sizeof(s), .family = "ema", .name = name,
		.dtype = SHEAF_F32, .ndim = name[0] == 'b' ? 1 : 2, .shape = { rows, 4 },
		.count = { rows, 4 }, .data = e };
	struct sheaf_error err;

	CHECK_RC(shf_step_read(step, &s, &err), 0, &err);
	for (int64_t i = 0; i < rows * (s.ndim > 1 ? 4 : 1); i++)
		if (e[i] != want)
			fail_msg("ema/%s[%d] is %g, want %g", name, (int)i, (double)e[i],
			         (double)want);
}

struct outcome {
	int64_t interval, to;
	float loaded, anew;             /* the averages that the load filled, and the others */
	int64_t updates;
};

static void is_as(struct simdisk *disk, int variant, const struct outcome *want)
{
	const struct shf_sys *sys = simdisk_process(disk, 8000, 0);
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;

	CHECK_RC(shf_run_open(&run, "run", NULL, &opts, sys, &err), 0, &err);
	CHECK_RC(shf_step_open(&step, run, want->to, &err), 0, &err);
	holds(step, "a", 6, want->loaded);
	holds(step, "c", variant & WIDER ? 7 : 5, variant & WIDER ? want->anew : want->loaded);
	holds(step, "b", 9, want->anew);
	CHECK_INT(step->manifest.emas_n, 1);
	CHECK_INT(step->manifest.emas[0].updates, want->updates);
	shf_step_put(step);
	shf_run_close(run);
	simdisk_kill(disk, sys);
}

/* Step 2 has 12, or 16 with an interval of 2. */
static const struct outcome outcomes[] = {
	{ 1, 3, 18, 24, 3 }, { 1, 4, 25, 28, 4 },
	{ 2, 3, 16, 24, 1 }, { 2, 4, 24, 32, 2 }, { 2, 6, 36, 40, 3 },
};

static void go_on_alike(int variant, uint64_t load, uint64_t save, uint64_t missing,
                        uint64_t mismatched)
{
	for (size_t i = 0; i < sizeof(outcomes) / sizeof(outcomes[0]); i++) {
		const struct outcome *o = &outcomes[i];
		struct simdisk *disk = disk_new();
		struct goes_on first = { 0, save, o->interval, 1, 2 };
		struct play p = training(disk, 2, 0, first);

		CHECK_RC(hands_run(&p, train, false), 0, &p.err);
		p = training(disk, 3, variant,
		             (struct goes_on){ load, save, o->interval, 3, o->to });
		CHECK_RC(hands_run(&p, train, false), 0, &p.err);
		CHECK_INT(p.report.missing, missing);
		CHECK_INT(p.report.mismatched, mismatched);
		is_as(disk, variant, o);
		simdisk_free(disk);
	}
}

/* A layer and rows of a vocabulary come in. */
TEST(averages_that_a_lenient_load_fills_go_on_and_the_others_begin)
{
	go_on_alike(ADDED | WIDER, SHEAF_LOAD_LENIENT, 0, 2, 2);
	go_on_alike(ADDED | WIDER, SHEAF_LOAD_LENIENT, SHEAF_SAVE_LAZY, 2, 2);
}

TEST(an_optional_weight_that_is_absent_begins_its_average)
{
	go_on_alike(ADDED | OPTIONAL, 0, 0, 2, 0);
	go_on_alike(ADDED | OPTIONAL, 0, SHEAF_SAVE_LAZY, 2, 0);
}

/* The step has the weight and lacks its average. That the weight is optional does not make the
 * average optional. */
TEST(an_optional_weight_that_is_stored_wants_its_average)
{
	static const char *const pattern[] = { "ema/b", NULL };
	struct simdisk *disk = disk_new();
	struct play p = training(disk, 2, ADDED, (struct goes_on){ 0, 0, 1, 1, 2 });

	p.opts.ignore = pattern;
	CHECK_RC(hands_run(&p, train, false), 0, &p.err);
	p = training(disk, 3, ADDED | OPTIONAL, (struct goes_on){ 0, 0, 1, 3, 3 });
	CHECK_RC(hands_run(&p, train, false), SHEAF_ELAYOUT, &p.err);
	CHECK(strstr(p.err.msg, "no tensor ema/b") != NULL);
	p = training(disk, 3, ADDED | OPTIONAL, (struct goes_on){ SHEAF_LOAD_LENIENT, 0, 1, 3, 3 });
	CHECK_RC(hands_run(&p, train, false), 0, &p.err);
	is_as(disk, ADDED, &outcomes[0]);
	simdisk_free(disk);
}
