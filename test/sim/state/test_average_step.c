/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_state_average: averages of steps that are not saved are those of steps that are. */
#include "hands.h"
#include <math.h>
#include <string.h>
#include "average_step.h"
#include "averages.h"
#include "sheaf-stat.h"
#include "starve.h"
#include "save_blocked.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_gates.h"
#include "save_end.h"
#include "state.h"

enum { STEPS = 12, ITEMS = 300 };
enum how { SAVED, APART, LAZILY_APART };
static enum how how;
static const struct sheaf_ema halves = { .size = sizeof(halves), .coef = 0.5, .warmup = 8,
	.loss_max = 2 };

static void hold(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 1, ITEMS), 0, h->rank, h->ranks);
}

static void set_weights(struct hand *h, int64_t step)
{
	float *w = h->s[0].data;

	for (int64_t i = 0; i < h->s[0].count[0]; i++)
		w[i] = (float)((h->s[0].start[0] + i) * 7 % 23 + step * step % 11);
}

static int save(struct hand *h, int64_t step, double loss)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .loss = loss,
		.flags = how == LAZILY_APART ? SHEAF_SAVE_LAZY : 0 };
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, step, h->state, &opts, &h->err);

	if (rc == 0 && how == LAZILY_APART)
		rc = shf_save_gates_copied(save, 0, -1, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

/* Saves every step; or, of three steps, saves the first, averages the second alone, and averages
 * the third before it saves it. */
static int train(struct hand *h)
{
	int rc = shf_state_ema(h->state, NULL, &halves, NULL);

	for (int64_t n = 0; n < STEPS && rc == 0; n++) {
		double loss = n % 5 == 3 ? 4 : 1;

		set_weights(h, n);
		if (how != SAVED && n % 3)
			rc = shf_state_average(h->state, h->run, n, loss, &h->err);
		if (rc == 0 && (how == SAVED || n % 3 != 1))
			rc = save(h, n, loss);
	}
	return rc;
}

static uint64_t averages_of(enum how of, int ranks, int64_t *updates)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, ranks, hold);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_run *run = NULL;
	uint64_t hash;

	how = of;
	CHECK_RC(hands_run(&p, train, false), 0, &p.err);
	hash = hands_hash(disk, "run/checkpoint-11/ema");
	p.opts.flags = SHEAF_RUN_READONLY;
	CHECK_RC(shf_run_open(&run, "run", NULL, &p.opts, simdisk_process(disk, 9, 0), &p.err), 0,
	         &p.err);
	CHECK_RC(shf_step_open(&step, run, 11, &p.err), 0, &p.err);
	CHECK_INT(step->manifest.emas_n, 1);
	*updates = step->manifest.emas[0].updates;
	shf_step_put(step);
	shf_run_close(run);
	simdisk_free(disk);
	return hash;
}

TEST(a_step_that_is_not_saved_is_averaged_once)
{
	for (int ranks = 1; ranks <= 3; ranks++) {
		int64_t updates, again;
		uint64_t hash = averages_of(SAVED, ranks, &updates);

		CHECK(updates == 10); /* of twelve steps two have too large a loss */
		for (enum how of = APART; of <= LAZILY_APART; of++) {
			CHECK(averages_of(of, ranks, &again) == hash);
			CHECK_INT(again, updates);
		}
	}
}

/* The first call on this state: nothing was saved from it. */
static int average_at_once(struct hand *h)
{
	struct sheaf_ema rules = halves;
	int rc;

	rules.coef = h->play->variant == 3 && h->rank ? 0.25 : 0.5;
	rc = shf_state_ema(h->state, NULL, &rules, NULL);

	return rc ? rc : shf_state_average(h->state, h->run, h->play->variant == 1 ? h->rank : 0,
	                                   h->play->variant == 2 ? h->rank : 0, &h->err);
}

TEST(ranks_that_do_not_average_the_same_are_told)
{
	static const char *const said[] = { "", "ranks pass different steps to "
		"sheaf_state_average: 0 and 1",
		"step 0: ranks pass different losses; pass the same one, for example their mean, "
		"on all ranks",
		"step 0: ranks have averages with different rules; call sheaf_state_ema with the "
		"same values on all ranks" };

	for (int variant = 0; variant < 4; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold);

		p.variant = variant;
		CHECK_RC(hands_run(&p, average_at_once, true), variant ? SHEAF_EINVAL : 0, &p.err);
		if (variant)
			CHECK_STR(p.err.msg, said[variant]);
		simdisk_free(disk);
	}
}

/* Losses of both ranks that decide alike: two NaN that differ in their bits, and two zeros. */
static int average_alike(struct hand *h)
{
	double nan = h->rank ? -(double)NAN : (double)NAN, zero = h->rank ? -0.0 : 0.0;
	double loss = h->play->variant ? zero : nan;
	int rc = shf_state_ema(h->state, NULL, &halves, NULL);

	set_weights(h, 0);
	rc = rc ? rc : shf_state_average(h->state, h->run, 0, loss, &h->err);
	return rc ? rc : save(h, 1, loss);
}

TEST(losses_that_decide_alike_are_the_same_loss)
{
	for (int variant = 0; variant < 2; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold);

		p.variant = variant;
		CHECK_RC(hands_run(&p, average_alike, true), 0, &p.err);
		simdisk_free(disk);
	}
}

static int refuses(struct hand *h, struct sheaf_state *state, int64_t step, int code,
                   const char *says)
{
	int rc = shf_state_average(state, h->run, step, 0, &h->err);

	return rc == code && strstr(h->err.msg, says) ? 0
	     : shf_fail(&h->err, SHEAF_EBUG, "rank %d, step %lld: not \"%s\", but %d", h->rank,
	                (long long)step, says, rc);
}

static int average_nonsense(struct hand *h)
{
	int rc = refuses(h, NULL, 1, SHEAF_ENOMEM,
	                 "the state is NULL; sheaf_state_new returns NULL when out of memory");

	rc = rc ? rc : refuses(h, h->state, -1, SHEAF_EINVAL, "step -1 is negative");
	rc = rc ? rc : refuses(h, h->state, INT64_MAX, SHEAF_EINVAL, "larger than the largest "
	                       "step");
	/* Without averages it only agrees. */
	return rc ? rc : shf_state_average(h->state, h->run, 1, 0, &h->err);
}

static int average_read_only(struct hand *h)
{
	return refuses(h, h->state, 1, SHEAF_EINVAL, "the run is not open for writing; open it "
	               "without SHEAF_RUN_READONLY");
}

TEST(a_step_is_averaged_with_a_run_that_is_written)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold);

	CHECK_RC(hands_run(&p, average_nonsense, true), 0, &p.err);
	p.opts.flags = SHEAF_RUN_READONLY;
	CHECK_RC(hands_run(&p, average_read_only, true), 0, &p.err);
	simdisk_free(disk);
}

static void hold_bytes(struct hand *h)
{
	hand_add(h, "model", "b", SHEAF_U8, 1, 77);
}

TEST(averages_of_nothing_are_refused_at_a_step_that_is_not_saved)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold_bytes);

	CHECK_RC(hands_run(&p, average_at_once, true), SHEAF_EINVAL, &p.err);
	CHECK_STR(p.err.msg, "averages ema: no rank has a slice to average; add one, or drop the "
	          "call of sheaf_state_ema");
	simdisk_free(disk);
}

/* What the call needs is this step's alone: the state stays open to what is added later. */
static int average_then_add(struct hand *h)
{
	static float later[4];
	struct sheaf_slice s = { .size = sizeof(s), .name = "later", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 }, .count = { 4 }, .data = later };
	struct sheaf_run_stat stat;
	int rc = average_at_once(h), n;

	if (rc < 0)
		return rc;
	n = shf_state_add(h->state, &s, NULL);
	shf_save_blocked_stat(h->run, &stat);
	if (n < 0 || stat.begin_ns == 0 || stat.begun != 0)
		return shf_fail(&h->err, SHEAF_EBUG, "slice %d, %d ns in begin, %d begun", n,
		                (int)stat.begin_ns, (int)stat.begun);
	return save(h, 1, 0);
}

TEST(a_step_that_is_averaged_alone_fixes_no_slices_and_its_time_is_counted)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold);

	how = SAVED;
	CHECK_RC(hands_run(&p, average_then_add, true), 0, &p.err);
	simdisk_free(disk);
}

static long nth;

/* Of the second rank one allocation fails, once; then the step is averaged, and so often. */
static int average_hungrily(struct hand *h)
{
	int rc = shf_state_ema(h->state, NULL, &halves, NULL);

	starve_left = h->rank == 1 ? nth : 0;
	rc = rc ? rc : shf_state_average(h->state, h->run, 7, 0, &h->err);
	starve_left = 0;
	if (rc == SHEAF_ENOMEM && h->state->emas[0].updates != 0)
		return shf_fail(&h->err, SHEAF_EBUG, "a step that failed is counted");
	if (rc == 0 || rc == SHEAF_ENOMEM)
		rc = shf_state_average(h->state, h->run, 7, 0, &h->err);
	return rc || h->state->emas[0].updates == 1 ? rc
	     : shf_fail(&h->err, SHEAF_EBUG, "%d updates", (int)h->state->emas[0].updates);
}

TEST(a_step_is_averaged_once_whichever_allocation_fails)
{
	starved = true;
	for (nth = 1; starved; nth++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold);

		starved = false;
		CHECK_RC(hands_run(&p, average_hungrily, true), 0, &p.err);
		simdisk_free(disk);
	}
	CHECK(nth > 3);
}

/* 7 is saved, then a number that is taken (by variant) is refused, and 8 is the next step. */
static int refused_between(struct hand *h)
{
	static const int64_t taken[] = { -1, 3, 7 };
	struct sheaf_save *no = NULL;
	int rc = shf_state_ema(h->state, NULL, &halves, NULL);

	set_weights(h, 7);
	rc = rc ? rc : save(h, 7, 1);
	set_weights(h, 8);
	if (rc == 0 && h->play->variant) {
		int64_t step = taken[h->play->variant];
		struct sheaf_save_opts opts = { .size = sizeof(opts), .loss = 1,
			.flags = how == LAZILY_APART ? SHEAF_SAVE_LAZY : 0 };

		CHECK_RC(shf_save_begin(&no, h->run, step, h->state, &opts, &h->err),
		         step == 7 ? SHEAF_EEXIST : SHEAF_EINVAL, &h->err);
	}
	return rc ? rc : save(h, 8, 1);
}

TEST(a_begin_that_is_refused_updates_no_averages)
{
	/* Not LAZILY_APART: from the second lazy save on, begin does not look at the disk. */
	how = SAVED;
	for (int ranks = 1; ranks <= 2; ranks++) {
		uint64_t hash = 0;

		for (int variant = 0; variant < 3; variant++) {
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, ranks, hold);

			p.variant = variant;
			CHECK_RC(hands_run(&p, refused_between, true), 0, &p.err);
			if (variant)
				CHECK(hands_hash(disk, "run/checkpoint-8/ema") == hash);
			hash = hands_hash(disk, "run/checkpoint-8/ema");
			simdisk_free(disk);
		}
	}
}

static int save_by_other_rules(struct hand *h)
{
	struct sheaf_ema rules = halves;
	int rc;

	rules.interval = h->rank ? 2 : 0;
	rc = shf_state_ema(h->state, NULL, &rules, NULL);
	return rc ? rc : save(h, 1, 1);
}

TEST(ranks_that_average_by_different_rules_save_nothing)
{
	for (how = SAVED; how <= LAZILY_APART; how++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold);

		CHECK_RC(hands_run(&p, save_by_other_rules, true), SHEAF_EINVAL, &p.err);
		CHECK(strstr(p.err.msg, "averages with different rules") != NULL);
		CHECK(!simdisk_exists(disk, "run/checkpoint-1"));
		simdisk_free(disk);
	}
}
