/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor with the largest number of dimensions, in memory that is not dense, saved in every way
 * and with its averages: an off-by-one in the number of dimensions changes items or averages. */
#include "hands.h"
#include "averages.h"
#include "t.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"

static uint64_t flags;

static struct sheaf_slice *deep(struct hand *h, const char *family)
{
	struct sheaf_slice *s = hand_add(h, family, "deep", SHEAF_F32, SHEAF_DIMS_MAX, 2, 3, 2, 2,
	                                 4, 2, 3, 5);
	int64_t by = 2;                 /* every other item, turned: the first dimension is last */

	hand_cut(s, 4, h->rank, h->ranks);
	for (int d = 0; d < SHEAF_DIMS_MAX; d++) {
		s->stride[d] = by;
		by *= s->count[d];
	}
	return s;
}

static void hold(struct hand *h)
{
	deep(h, "model")->flags |= h->play->variant ? SHEAF_SLICE_IN_PLACE : 0;
	hand_add(h, "model", "dense", SHEAF_F32, 3, 2, 3, 4);
}

static void hold_averages(struct hand *h)
{
	hold(h);
	deep(h, "ema");
	hand_as(h, "model", "deep");
	hand_add(h, "ema", "dense", SHEAF_F32, 3, 2, 3, 4);
	hand_as(h, "model", "dense");
}

/* Twice the same values, which are their own averages then. */
static int save_twice(struct hand *h)
{
	const struct sheaf_save_opts o = { .size = sizeof(o), .flags = flags };
	const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };
	bool averages = !(flags & SHEAF_SAVE_LATER);
	int rc = averages ? shf_state_ema(h->state, "model", &ema, NULL) : 0;

	for (int64_t step = 6; rc == 0 && step < 8; step++) {
		struct sheaf_save *save = NULL;

		hand_paint(h);
		rc = shf_save_begin(&save, h->run, step, h->state, &o, &h->err);
		for (int i = 0; rc == 0 && flags & SHEAF_SAVE_LATER && i < h->n; i++)
			rc = shf_save_put(save, i, NULL, NULL);
		rc = rc ? rc : shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL);
		for (int i = 0; rc == 0 && i < h->n; i++)
			hand_spoil(h, i);
		rc = rc ? rc : shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
	}
	return rc;
}

TEST(a_tensor_of_eight_dimensions_is_saved_and_averaged_in_every_way)
{
	static const int32_t apart[] = { 1, 2, 1 };
	static const uint64_t ways[] = { 0, SHEAF_SAVE_LAZY, SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK,
		SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER | SHEAF_SAVE_CHECK };

	for (int i = 0; i < 4 * 4; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 1 + i / 4 % 3, hold);

		flags = ways[i % 4];
		p.variant = i / 4 == 2 && !(flags & SHEAF_SAVE_LATER);
		p.nodes = i / 4 == 1 || i / 4 == 2 ? apart : NULL;
		p.opts.flags |= i / 4 == 1 ? SHEAF_RUN_REPLICAS : 0;
		CHECK_RC(hands_run(&p, save_twice, true), 0, &p.err);
		p.hold = flags & SHEAF_SAVE_LATER ? hold : hold_averages;
		LOADED(p);
		simdisk_free(disk);
	}
}
