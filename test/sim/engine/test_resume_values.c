/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_run_resume falls back from a damaged step to an older one with other tensors: which values
 * the state has then, and what the report says. All memory of the state is 0xA5 before, so that any
 * byte that was loaded shows. */
#include "hands.h"
#include <stdlib.h>
#include "err.h"
#include "t.h"
#include "save_commit.h"
#include "save_end.h"
#include "averages.h"
#include "state.h"
#include "run_resume.h"

#define MODEL "model-00001-of-00001.safetensors"
enum { STREAM_BYTES = 24, ROWS = 90, COLUMNS = 70 };

/* Bits of a play's variant: what a state has, or how a state that resumes describes it. */
enum { EXTRA = 1, WIDE = 2, MAY_LACK = 4, KEPT = 8, AVERAGED = 16, STREAM = 32,
       EMPTY = 64 };

/* Rank 1 has the tensor model/extra. */
static void held(struct hand *h)
{
	int v = h->play->variant;
	struct sheaf_slice *s;

	hand_cut(hand_add(h, "model", "a", SHEAF_F32, 2, 610, 531), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "a/moment1_0", SHEAF_F32, 2, 61, 53), 0, h->rank,
	         h->ranks);
	if (!(v & EXTRA) || h->rank != 1)
		return;
	s = hand_add(h, "model", "extra", SHEAF_F32, 2, ROWS, v & WIDE ? COLUMNS + 1 : COLUMNS);
	s->count[0] = v & EMPTY ? 0 : ROWS;
	s->flags = v & MAY_LACK ? SHEAF_SLICE_OPTIONAL : 0;
	hand_want(h, v & KEPT ? HAND_KEPT : HAND_VALUES);
}

/* What a state has besides slices. Returns the bytes of the stream. */
static uint8_t *complete(struct hand *h)
{
	struct sheaf_ema e = { .size = sizeof(e), .coef = 0.5 };
	uint8_t *bytes = hand_block(h, STREAM_BYTES);

	if (h->play->variant & AVERAGED)
		(void)shf_state_ema(h->state, NULL, &e, NULL);
	if (h->play->variant & STREAM)
		(void)shf_state_stream(h->state, "rng", "drop", h->rank, h->ranks, bytes,
		                       STREAM_BYTES, NULL);
	return bytes;
}

static int save_complete(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, h->play->step, h->state, NULL, &h->err);

	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static int save_act(struct hand *h)
{
	memset(complete(h), 0x33, STREAM_BYTES);
	return save_complete(h);
}

static int resume_act(struct hand *h)
{
	uint8_t *bytes = complete(h);
	int rc = shf_run_resume(h->run, h->state, h->play->flags, &h->report, &h->err);
	char why[200];

	if (rc == 0 && hand_wrong(h, why, sizeof(why)))
		rc = shf_fail(&h->err, SHEAF_EBUG, "%s", why);
	for (int i = 0; i < STREAM_BYTES && rc == 0; i++)
		if (bytes[i] != 0xA5)
			rc = shf_fail(&h->err, SHEAF_EBUG, "byte %d of the stream was not kept", i);
	return rc;
}

static int rewind_act(struct hand *h)
{
	int rc = shf_run_rewind(h->run, 1, &h->err);

	return rc < 0 ? rc : resume_act(h);
}

/* Step 1 of one variant, step 2 of another, each saved by so many ranks. */
static struct simdisk *saved(int ranks, int older, int newer)
{
	struct simdisk *disk = disk_new();

	for (int step = 1; step <= 2; step++) {
		struct play p = hands_play(disk, step == 1 ? ranks : 2, held);

		p.variant = step == 1 ? older : newer;
		p.step = step;
		CHECK_RC(hands_run(&p, save_act, true), 0, &p.err);
	}
	return disk;
}

/* A byte of the manifest, or one of the tensor a that is not in block 0, which has the header:
 * only a load finds that. */
static void damage(struct simdisk *disk, bool manifest)
{
	CHECK_INT(manifest ? simdisk_flip(disk, "run/checkpoint-2/sheaf.json", 300)
	          : simdisk_flip(disk, "run/checkpoint-2/" MODEL, 8 * 1200000), 0);
}

static struct play falling(struct simdisk *disk, int variant, uint64_t flags)
{
	struct play p = hands_play(disk, 2, held);

	p.variant = variant;
	p.flags = SHEAF_LOAD_FALLBACK | flags;
	return p;
}

static const struct {
	int ranks, older, newer, resumed;
	uint64_t flags;
	const char *names;
	char told;
} mixed[] = {
	{ 2, 0, EXTRA, EXTRA | MAY_LACK | KEPT, 0, "model/extra", 'M' },
	{ 2, 0, EXTRA, EXTRA | KEPT, SHEAF_LOAD_LENIENT, "model/extra", 'M' },
	{ 2, EXTRA | WIDE, EXTRA, EXTRA | KEPT, SHEAF_LOAD_LENIENT, "model/extra", 'X' },
	{ 1, STREAM, STREAM, STREAM, 0, "ranks/rng/", 'R' },
};

TEST(nothing_of_a_damaged_step_is_kept_beside_an_older_one)
{
	for (size_t k = 0; k < sizeof(mixed) / sizeof(*mixed); k++) {
		struct simdisk *disk = saved(mixed[k].ranks, mixed[k].older, mixed[k].newer);
		struct play p = falling(disk, mixed[k].resumed, mixed[k].flags);

		damage(disk, false);
		CHECK_RC(hands_run(&p, resume_act, false), SHEAF_ELAYOUT, &p.err);
		CHECK(strstr(p.err.msg, "checkpoint-1: has no tensor ") != NULL);
		CHECK(strstr(p.err.msg, mixed[k].names) != NULL);
		CHECK(strstr(p.err.msg, "overwritten by step 2, which is damaged") != NULL);
		CHECK(strstr(p.err.msg, "rewind the run to step 1 and start the job "
		             "again") != NULL);
		CHECK_INT(hands_told(&p, 'A'), 0);
		CHECK_INT(p.report.step, 1);
		CHECK_INT(p.report.passed, 1);
		CHECK(simdisk_exists(disk, "run/checkpoint-2"));
		/* What the error says helps. */
		CHECK_RC(hands_run(&p, rewind_act, false), 0, &p.err);
		CHECK_INT(p.report.step, 1);
		CHECK(hands_told(&p, mixed[k].told) > 0);
		simdisk_free(disk);
	}
}

static const struct {
	int older, newer, resumed;
	uint64_t flags;
	bool manifest;                  /* is what is damaged */
	int missing, mismatched;        /* in the older step */
} unchanged[] = {
	/* The damaged step lacks it, too. */
	{ 0, 0, EXTRA | MAY_LACK | KEPT, 0, false, 1, 0 },
	{ 0, 0, EXTRA | KEPT, SHEAF_LOAD_LENIENT, false, 1, 0 },
	{ EXTRA, EXTRA, EXTRA | WIDE | KEPT, SHEAF_LOAD_LENIENT, false, 0, 1 },
	/* The older step has it. */
	{ EXTRA, EXTRA | WIDE, EXTRA, SHEAF_LOAD_LENIENT, false, 0, 0 },
	{ EXTRA, 0, EXTRA | MAY_LACK, 0, false, 0, 0 },
	{ EXTRA, EXTRA, EXTRA | MAY_LACK, 0, false, 0, 0 },
	/* No rank has any of its memory. */
	{ 0, EXTRA, EXTRA | MAY_LACK | EMPTY, 0, false, 1, 0 },
	/* The damage was found before a byte was filled. */
	{ 0, EXTRA, EXTRA | MAY_LACK | KEPT, 0, true, 1, 0 },
};

TEST(what_a_damaged_step_has_not_changed_is_kept_and_only_what_is_loaded_is_reported)
{
	for (size_t k = 0; k < sizeof(unchanged) / sizeof(*unchanged); k++) {
		struct simdisk *disk = saved(2, unchanged[k].older, unchanged[k].newer);
		struct play p = falling(disk, unchanged[k].resumed, unchanged[k].flags);

		damage(disk, unchanged[k].manifest);
		CHECK_RC(hands_run(&p, resume_act, false), 0, &p.err);
		CHECK_INT(p.report.step, 1);
		CHECK_INT(p.report.missing, unchanged[k].missing);
		CHECK_INT(p.report.mismatched, unchanged[k].mismatched);
		CHECK_INT(hands_told(&p, 'M'), unchanged[k].missing);
		CHECK_INT(hands_told(&p, 'X'), unchanged[k].mismatched);
		CHECK_INT(hands_told(&p, 'P'), 1);
		CHECK_INT(hands_told(&p, 'A'), 1);
		simdisk_free(disk);
	}
}

TEST(what_the_last_step_lacks_is_reported_where_nothing_is_loaded_either)
{
	struct simdisk *disk = saved(2, 0, 0);
	struct play p = falling(disk, EXTRA, 0);

	damage(disk, false);
	CHECK_RC(hands_run(&p, resume_act, false), SHEAF_ELAYOUT, &p.err);
	CHECK_INT(hands_told(&p, 'M'), 1);
	CHECK_INT(hands_told(&p, 'P'), 0);
	CHECK_INT(p.report.step, 2);
	CHECK_INT(p.report.passed, 0);
	simdisk_free(disk);
}

/* The search for a damaged step passes over one that is none: that is no item of a tensor. */
TEST(what_was_passed_over_on_the_way_to_a_damaged_step_is_reported)
{
	struct simdisk *disk = saved(2, 0, 0);
	struct play p = hands_play(disk, 2, held);

	p.step = 3;
	CHECK_RC(hands_run(&p, save_act, true), 0, &p.err);
	CHECK_INT(simdisk_remove(disk, "run/checkpoint-3/sheaf.json"), 0);
	damage(disk, false);
	p = falling(disk, 0, 0);
	CHECK_RC(hands_run(&p, resume_act, false), 0, &p.err);
	CHECK_INT(p.report.step, 1);
	CHECK_INT(hands_told(&p, 'P'), 2);
	simdisk_free(disk);
}

/* Resumes and saves. The first averages are the weights. */
static int resume_and_average(struct hand *h)
{
	const struct shf_slice *s;
	int rc = resume_act(h);

	if (rc == 0)
		rc = save_complete(h);
	s = &h->state->slices[h->state->n - 1];
	if (rc == 0 && h->rank == 1 && (!s->owned || memcmp(s->mem.base, h->s[h->n - 1].data,
	                                                    ROWS * COLUMNS * sizeof(float))))
		rc = shf_fail(&h->err, SHEAF_EBUG, "the averages are not the weights");
	return rc;
}

TEST(averages_that_only_a_damaged_step_has_begin_anew)
{
	struct simdisk *disk = saved(2, EXTRA, EXTRA | AVERAGED);
	struct play p = falling(disk, EXTRA | AVERAGED, 0);

	damage(disk, false);
	p.step = 2;
	CHECK_RC(hands_run(&p, resume_and_average, false), 0, &p.err);
	CHECK_INT(p.report.step, 1);
	CHECK_INT(p.report.passed, 1);
	simdisk_free(disk);
}
