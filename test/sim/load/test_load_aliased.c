/* SPDX-License-Identifier: Apache-2.0 */
/* Slices that share memory, as in programs that keep fp32 parameters alone and save them both as
 * bf16 weights and as master weights: no load may leave a master rounded. */
#include "hands.h"
#include "t.h"
#include "save_commit.h"
#include "save_end.h"

enum { RANKS = 2, ROWS = 6, COLUMNS = 5, ITEMS = ROWS * COLUMNS };
/* By variant: what the slices are, and in which order they are added. */
enum { MASTERS_FIRST = 1, SAVE_ONLY = 2, FUSED = 4, WEIGHTS_ALONE = 8, MASTERS_SAVE_ONLY = 16 };

/* Has 24 significant bits, of which BF16 keeps 8: rounding always shows. */
static float value_of(int64_t item)
{
	return 1.0f + (float)(item + 1) / 65536.0f;
}

static struct sheaf_slice *add(struct hand *h, const char *family, int dtype, float *data)
{
	struct sheaf_slice *s = hand_add(h, family, "w", dtype, 2, ROWS, COLUMNS);

	hand_want(h, HAND_ANY);
	hand_cut(s, 0, h->rank, h->ranks);
	s->data_dtype = SHEAF_F32;
	s->data = data;
	return s;
}

/* With FUSED the rows of one slice lie between those of the other, else both are the same
 * memory. */
static void parameters(struct hand *h)
{
	int v = h->play->variant;
	float *data = hand_block(h, 2 * ITEMS * (int64_t)sizeof(float));

	for (int i = 0; i < 2; i++) {
		bool weights = (i == 0) != ((v & MASTERS_FIRST) != 0);
		struct sheaf_slice *s;

		if (!weights && v & WEIGHTS_ALONE)
			continue;
		s = add(h, weights ? "model" : "master_weights", weights ? SHEAF_BF16 : SHEAF_F32,
		        data);
		if (v & (weights ? SAVE_ONLY : MASTERS_SAVE_ONLY))
			s->flags = SHEAF_SLICE_SAVE_ONLY;
		if (v & FUSED) {
			s->stride[0] = 2 * COLUMNS;
			s->stride[1] = 1;
			s->origin = weights ? 0 : COLUMNS;
		}
	}
}

static float *item_at(const struct hand *h, int64_t i)
{
	int row = h->play->variant & FUSED ? 2 * COLUMNS : COLUMNS;

	return (float *)h->s[0].data + (h->play->variant & FUSED ? COLUMNS : 0) +
	       i / COLUMNS * row + i % COLUMNS;
}

static int64_t first_item(const struct hand *h)
{
	return (int64_t)h->rank * ITEMS / RANKS;
}

static int save(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc;

	for (int64_t i = 0; i < ITEMS / RANKS; i++)
		*item_at(h, i) = value_of(first_item(h) + i);
	rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

/* By rank: how many masters a load got wrong, or after a failure how many items it touched. */
static int64_t wrong[RANKS];

static int load(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	hand_fill(h, 0xA5);
	rc = rc ? rc : shf_step_load(step, h->state, h->play->flags, &h->report, &h->err);
	wrong[h->rank] = 0;
	for (int64_t i = 0; i < ITEMS / RANKS; i++) {
		uint32_t bits;

		memcpy(&bits, item_at(h, i), sizeof(bits));
		wrong[h->rank] += rc ? bits != 0xA5A5A5A5
		                     : *item_at(h, i) != value_of(first_item(h) + i);
	}
	shf_step_put(step);
	return rc;
}

static int64_t play(struct play *p, int variant, uint64_t flags, int want)
{
	struct simdisk *disk = disk_new();

	*p = hands_play(disk, RANKS, parameters);
	p->variant = variant;
	p->flags = flags;
	CHECK_RC(hands_run(p, save, false), 0, &p->err);
	CHECK_RC(hands_run(p, load, false), want, &p->err);
	simdisk_free(disk);
	return wrong[0] + wrong[1];
}

/* Ranks are named before it. */
static bool told_whole(const char *msg, const char *who)
{
	char want[300];
	size_t n = strlen(msg), m;

	snprintf(want, sizeof(want), "%s share memory, so loading one would overwrite the other: "
	         "set SHEAF_SLICE_SAVE_ONLY on the one that is derived", who);
	m = strlen(want);
	return n >= m && strcmp(msg + n - m, want) == 0;
}

TEST(masters_in_the_memory_of_their_weights_are_never_rounded)
{
	for (int order = 0; order <= MASTERS_FIRST; order++) {
		struct play p;

		CHECK_INT(play(&p, order, 0, SHEAF_ELAYOUT), 0);
		CHECK(told_whole(p.err.msg,
		                 "model/w (BF16 is stored) and master_weights/w (F32)") ||
		      told_whole(p.err.msg,
		                 "master_weights/w (F32 is stored) and model/w (BF16)"));
		CHECK_INT(play(&p, order, SHEAF_LOAD_DRY, SHEAF_ELAYOUT), 0);
		CHECK_INT(play(&p, order | SAVE_ONLY, SHEAF_LOAD_STRICT, 0), 0);
		CHECK_INT(p.report.loaded, 1);
		CHECK_INT(p.report.ignored, 1);
		CHECK_INT(p.report.unexpected, 0);
		CHECK_INT(hands_told(&p, 'I'), RANKS);
	}
}

/* A job that only evaluates, for example: then the memory has the weights, rounded. */
TEST(weights_are_loaded_into_the_memory_of_masters_that_are_only_saved)
{
	struct play p;

	CHECK_INT(play(&p, MASTERS_SAVE_ONLY, 0, 0), ITEMS);
	CHECK_INT(p.report.loaded, 1);
	CHECK_INT(p.report.ignored, 1);
}

TEST(rows_between_the_rows_of_another_type_are_loaded)
{
	struct play p;

	CHECK_INT(play(&p, FUSED, 0, 0), 0);
	CHECK_INT(play(&p, FUSED | MASTERS_FIRST, 0, 0), 0);
}

/* Weights alone are stored: masters are made of them, and both are the same bits. */
TEST(masters_that_are_derived_may_share_the_memory_of_their_weights)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, RANKS, parameters);

	p.variant = WEIGHTS_ALONE;
	CHECK_RC(hands_run(&p, save, false), 0, &p.err);
	p.variant = 0;
	p.flags = SHEAF_LOAD_DERIVE;
	CHECK_RC(hands_run(&p, load, false), 0, &p.err);
	CHECK_INT(p.report.derived, 1);
	simdisk_free(disk);
}

/* In the order of memory: masters over all of it; a second slice of the first row, which is stored
 * as the masters are; weights in the last row. The masters and the weights are no neighbours. */
static void three_slices(struct hand *h)
{
	float *data = hand_block(h, ITEMS * (int64_t)sizeof(float));
	static const char *const families[] = { "master_weights", "optimizer", "model" };

	for (int i = 0; i < 3; i++) {
		struct sheaf_slice *s = hand_add(h, families[i], "w", i < 2 ? SHEAF_F32
		                                 : SHEAF_BF16,
		                                 2, i ? 1 : ROWS, COLUMNS);

		hand_want(h, HAND_ANY);
		s->data_dtype = SHEAF_F32;
		s->data = data + (i == 2 ? ITEMS - COLUMNS : 0);
	}
}

static int save_all(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);

	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static int load_all(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	rc = rc ? rc : shf_step_load(step, h->state, 0, &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

TEST(slices_that_are_no_neighbours_in_memory_are_compared_too)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, three_slices);

	CHECK_RC(hands_run(&p, save_all, true), 0, &p.err);
	CHECK_RC(hands_run(&p, load_all, true), SHEAF_ELAYOUT, &p.err);
	CHECK(told_whole(p.err.msg, "master_weights/w (F32 is stored) and model/w (BF16)"));
	simdisk_free(disk);
}
