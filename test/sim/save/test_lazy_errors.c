/* SPDX-License-Identifier: Apache-2.0 */
/* An error in the background of a lazy save is returned by its commit. */
#include <errno.h>
#include "err.h"
#include "hands.h"
#include "simover.h"
#include "t.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_averages.h"
#include "save_end.h"
#include "state.h"

static const struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };

static void halves(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "rows", SHEAF_F32, 2, 96, 70);

	hand_cut(s, 0, h->rank, h->ranks);
	s = hand_add(h, "optimizer", "rows/moment1_0", SHEAF_F32, 2, 96, 70);
	hand_cut(s, 0, h->rank, h->ranks);
}

/* A write fails while other slices are copied: gates open, and the commit fails on all ranks. */
static int write_badly(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc;

	hand_paint(h);
	rc = shf_save_begin(&save, h->run, 3, h->state, &lazy, &h->err);
	for (int i = 0; i < h->n && rc == 0; i++)
		if (shf_save_copied(save, i, -1, NULL) == SHEAF_EAGAIN)
			rc = shf_fail(&h->err, SHEAF_EBUG, "a gate without end is shut");
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static void told_by_the_commit(enum simdisk_kind kind, int nth, int error, const char *words)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 3, halves);

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .kind = kind,
		.name = "optimizer", .error = error });
	CHECK_RC(hands_run(&p, write_badly, false), SHEAF_EIO, &p.err);
	CHECK(strstr(p.err.msg, "optimizer/") && strstr(p.err.msg, words));
	CHECK_INT(p.err.sys, error);
	CHECK(simdisk_fired(disk) > 0);
	simdisk_faults_clear(disk);
	CHECK(!simdisk_exists(disk, "run/checkpoint-3"));
	simdisk_free(disk);
}

TEST(a_write_that_fails_behind_is_told_by_the_commit)
{
	told_by_the_commit(SIMDISK_PWRITE, 2, EIO, ": write");
}

TEST(room_that_is_refused_behind_is_told_by_the_commit)
{
	told_by_the_commit(SIMDISK_RESIZE, 1, ENOSPC, ": preallocating ");
}

/* The third lazy save of a state begins without the disk, so what is wrong with its number is found
 * later: EINVAL of a gate would say that there is no such slice. */
static int number_too_low(struct hand *h)
{
	struct sheaf_save *save;
	int rc = 0;

	for (int64_t step = 6; step <= 8 && rc == 0; step++) {
		int64_t n = step == 8 ? 3 : step;

		save = NULL;
		rc = shf_save_begin(&save, h->run, n, h->state, &lazy, &h->err);
		if (rc == 0 && n == 3) {
			CHECK_INT(shf_save_exchange(save, 0, &h->err), SHEAF_EFAILED);
			CHECK_INT(h->err.code, SHEAF_EFAILED);
			CHECK_INT(shf_save_copied(save, 0, -1, NULL), SHEAF_EFAILED);
		}
		for (int i = 0; i < h->n && rc == 0; i++)
			(void)shf_save_copied(save, i, -1, NULL);
		rc = rc ? rc : shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
	}
	return rc;
}

TEST(a_number_that_is_found_too_low_behind_fails_the_save)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, halves);

	CHECK_RC(hands_run(&p, number_too_low, false), SHEAF_EFAILED, &p.err);
	CHECK(strstr(p.err.msg, "step 3 is older than step 7") != NULL);
	simdisk_free(disk);
}

/* The machine makes no thread, and the caller only asks. */
static int ask_without_a_thread(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 3, h->state, &lazy, &h->err), asks = 0;

	for (int i = 0; i < h->n && rc == 0; i++)
		while ((rc = shf_save_copied(save, i, 0, NULL)) == SHEAF_EAGAIN && ++asks < 1000)
			;
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(who_only_asks_comes_to_the_end_without_a_thread)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, halves);

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_TASK_NEW,
		.error = EAGAIN, .always = true });
	CHECK_RC(hands_run(&p, ask_without_a_thread, true), 0, &p.err);
	simdisk_faults_clear(disk);
	CHECK(simdisk_exists(disk, "run/checkpoint-3"));
	simdisk_free(disk);
}

/* Each look at the clock takes 5 ms while this is set, so that copying a slice takes some time. */
static bool slow;
static int64_t late_ns;

static int64_t slow_now(void *arg)
{
	late_ns += slow ? INT64_C(5000000) : 0;
	return simover_real()->host.mono_ns(arg) + late_ns;
}

static void slow_clock(struct hand *h)
{
	simover(&h->used)->host.mono_ns = slow_now;
}

static void many(struct hand *h)
{
	static char names[50][8];

	for (int i = 0; i < 50; i++) {
		snprintf(names[i], sizeof(names[i]), "m.%d", i);
		hand_add(h, "model", names[i], SHEAF_F32, 1, 64);
	}
}

/* Asks for all slices, or waits for the averages alone, until they are copied, without a thread
 * that copies. most[0]: the longest call in ms; most[1]: how many calls. */
static int64_t most[2];

static int ask_for_all_without_a_thread(struct hand *h)
{
	static const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };
	struct sheaf_save *save = NULL;
	int rc = h->play->variant ? shf_state_ema(h->state, NULL, &ema, &h->err) : 0;

	rc = rc ? rc : shf_save_begin(&save, h->run, 3, h->state, &lazy, &h->err);
	for (int i = 0; i < h->n && h->play->variant; i++)
		CHECK_INT(shf_save_copied(save, i, -1, NULL), 0);
	do {
		int64_t from = late_ns;

		slow = true;
		rc = h->play->variant ? shf_save_averages_wait(save, from, &h->err)
		                      : shf_save_copied(save, SHEAF_ALL_SLICES, 0, &h->err);
		slow = false;
		most[1]++;
		most[0] = late_ns - from > most[0] ? late_ns - from : most[0];
	} while (rc == SHEAF_EAGAIN && most[1] < 10000);
	most[0] /= 1000000;
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_call_that_does_not_wait_copies_for_one_time_slice_and_not_for_one_a_slice)
{
	for (int averages = 0; averages < 2; averages++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 1, many);

		p.variant = averages;
		p.tamper = slow_clock;
		most[0] = most[1] = 0;
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_TASK_NEW,
			.error = EAGAIN, .always = true });
		CHECK_RC(hands_run(&p, ask_for_all_without_a_thread, true), 0, &p.err);
		simdisk_faults_clear(disk);
		printf("# %lld calls of at most %lld ms\n", (long long)most[1], (long long)most[0]);
		CHECK(most[1] > 3 && most[0] >= 250 && most[0] < 1000);
		simdisk_free(disk);
	}
}

/* A trainer that commits between its steps, and forgets a gate on rank 0: everything is copied, an
 * advance has been made, and then the tensor changes. */
static int forget_a_gate(struct hand *h)
{
	static const struct sheaf_save_opts checked = { .size = sizeof(checked),
		.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK };
	struct sheaf_save *save = NULL;
	int rc;

	hand_paint(h);
	rc = shf_save_begin(&save, h->run, 3, h->state, &checked, &h->err);
	if (rc == 0)
		(void)shf_save_wait(save, -1, NULL);
	if (rc == 0 && shf_save_copied(save, 1, -1, NULL) != 0)
		rc = SHEAF_EBUG;
	for (int i = 0; i < 3 && rc == 0; i++)
		rc = shf_save_advance(save, 0, &h->err) == SHEAF_EAGAIN ? 0 : SHEAF_EBUG;
	if (rc == 0 && h->rank == 0)
		*(float *)h->state->slices[0].mem.base += 1;
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_forgotten_gate_is_found_although_advances_were_made_before_the_change)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	CHECK_RC(hands_run(&p, forget_a_gate, false), SHEAF_EDIVERGED, &p.err);
	CHECK(strstr(p.err.msg, "model/rows") != NULL);
	CHECK(!simdisk_exists(disk, "run/checkpoint-3"));
	simdisk_free(disk);
}
