/* SPDX-License-Identifier: Apache-2.0 */
/* Slices in place (SHEAF_SLICE_IN_PLACE) while calls fail, memory runs out or the power goes: the
 * step is there with the values that it should have, or it is not there; and the next save goes
 * well. */
#include <errno.h>
#include "hands.h"
#include "starve.h"
#include "t.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"

enum { RANKS = 2, ROWS = 40, COLUMNS = 61 };
static int hungry;
static long nth;

/* Each rank has a weight of its own in place, in a file of its own; its master is staged. */
static void hold(struct hand *h)
{
	for (int i = 0; i < RANKS; i++) {
		const char *name = i ? "b" : "a";
		int64_t rows = h->rank == i ? ROWS : 0;

		hand_add(h, "model", name, i ? SHEAF_F16 : SHEAF_BF16, 2, ROWS, COLUMNS)->count[0] =
		    rows;
		h->s[h->n - 1].flags = SHEAF_SLICE_IN_PLACE;
		hand_add(h, "master_weights", name, SHEAF_F32, 2, ROWS, COLUMNS)->count[0] = rows;
	}
}

/* A weight changes as soon as its gate has opened. */
static int save_one(struct hand *h, int64_t step)
{
	struct sheaf_save_opts lazily = { .size = sizeof(lazily), .flags = SHEAF_SAVE_LAZY |
		(h->play->variant ? SHEAF_SAVE_CHECK : 0) };
	struct sheaf_save *save = NULL;
	int rc;

	hand_paint(h);
	rc = shf_save_begin(&save, h->run, step, h->state, &lazily, &h->err);
	if (rc == 0 && !save->plan->slotted)
		rc = shf_fail(&h->err, SHEAF_EBUG, "nothing is in place");
	for (int i = 0; rc == 0 && i < h->n; i++) {
		int copied = shf_save_copied(save, i, -1, NULL);

		if (copied == SHEAF_EAGAIN)
			rc = shf_fail(&h->err, SHEAF_EBUG, "a gate is shut for ever");
		if (copied == 0)
			memset(h->s[i].data, 0x5A, (size_t)(h->s[i].count[0] * COLUMNS * 2));
	}
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static struct play play_of(struct simdisk *disk, int64_t step)
{
	struct play p = hands_play(disk, RANKS, hold);

	p.step = step;
	p.opts.file_bytes_max = 1;
	return p;
}

/* Whatever came of step 1, step 2 is whole; and so is step 1, where it is. */
static void look(struct simdisk *disk, bool must)
{
	struct play p = play_of(disk, 2);

	LOADED(p);
	p.step = 1;
	CHECK(!must || simdisk_exists(disk, "run/checkpoint-1"));
	if (simdisk_exists(disk, "run/checkpoint-1"))
		LOADED(p);
}

/* ---- memory ---- */

static int save_hungry(struct hand *h)
{
	int rc;

	starve_left = h->rank == hungry ? nth : 0;
	rc = save_one(h, 1);
	starve_left = 0;
	if (rc != 0 && rc != SHEAF_ENOMEM)
		return rc;
	return save_one(h, 2);
}

TEST(each_allocation_may_fail)
{
	long n = 0;

	for (int check = 0; check < 2; check++)
		for (hungry = 0; hungry < RANKS; hungry++) {
			starved = true;
			for (nth = 1 + t_from(T_STRIDE); starved; nth += T_STRIDE, n++) {
				struct simdisk *disk = disk_new();
				struct play p = play_of(disk, 2);

				p.variant = check;
				starved = false;
				simdisk_set_task_steps(disk, 4);
				CHECK_RC(hands_run(&p, save_hungry, true), 0, &p.err);
				look(disk, !starved);
				simdisk_free(disk);
			}
		}
	printf("# %ld allocations\n", n);
	CHECK(n > 100 / T_STRIDE);
}

/* ---- calls ---- */

static bool fired;

static int save_failing(struct hand *h)
{
	int rc;

	if (h->rank == 0)
		simdisk_fail_at(h->play->disk, (int)nth, EIO);
	rc = save_one(h, 1);
	if (rc == SHEAF_ELOST || rc == SHEAF_EBUG || rc == SHEAF_EDIVERGED ||
	    rc == SHEAF_ECORRUPT)
		return rc;
	fired |= simdisk_fired(h->play->disk) > 0;
	simdisk_faults_clear(h->play->disk);
	return save_one(h, 2);
}

TEST(each_call_may_fail)
{
	long n = 0;

	fired = true;
	for (nth = 1 + t_from(T_STRIDE); fired; nth += T_STRIDE, n++) {
		struct simdisk *disk = disk_new();
		struct play p = play_of(disk, 2);

		fired = false;
		simdisk_set_task_steps(disk, 4);
		CHECK_RC(hands_run(&p, save_failing, true), 0, &p.err);
		look(disk, false);
		simdisk_free(disk);
	}
	printf("# %ld calls\n", n);
	CHECK(n > 50 / T_STRIDE);
}

/* ---- power ---- */

static int save_both(struct hand *h)
{
	int rc = save_one(h, 1);

	return rc ? rc : save_one(h, 2);
}

TEST(the_power_may_go_at_any_time)
{
	struct simdisk *disk = disk_new();
	struct play p = play_of(disk, 2);
	long steps = 0;

	CHECK_RC(hands_run(&p, save_both, true), 0, &p.err);
	for (size_t cut = (size_t)t_from(T_STRIDE); cut < simdisk_cut_n(disk);
	     cut += (size_t)T_STRIDE) {
		struct simdisk *left = simdisk_crash(disk, cut, NULL);

		for (int64_t step = 1; step <= 2; step++) {
			struct play q = play_of(left, step);

			if (!simdisk_exists(left, step == 1 ? "run/checkpoint-1/sheaf.json"
			                                    : "run/checkpoint-2/sheaf.json"))
				continue;
			LOADED(q);
			steps++;
		}
		simdisk_free(left);
	}
	CHECK(steps > 0);
	simdisk_free(disk);
}
