/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks describe one name differently (a tensor, a tie, a stream, a note, an attached file): all
 * get the same error, which says which rank said what. Descriptions that only look different are
 * saved. */
#include "acts.h"
#include "sheaf-plan.h"
#include "t.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "step.h"
#include "step_open.h"
#include "read_slice.h"
#include "verify_step.h"
#include "plan_job.h"

enum what {
	SAME, DTYPE, DIMENSIONS, TIED, TIED_OR_NOT, STREAM, CASES
};
static const struct {
	int code;
	const char *said;
} outcome[CASES] = {
	[SAME] = { 0, "" },
	[DTYPE] = { SHEAF_ELAYOUT, "model/v: rank 0 has F32 [4, 6], rank 1 has F16 [4, 6]" },
	[DIMENSIONS] = { SHEAF_ELAYOUT, "model/v: rank 0 has F32 [4, 6], rank 1 has F32 [24]" },
	[TIED] = { SHEAF_ELAYOUT, "model/head: tied to v on rank 0, but to w on rank 1; set the "
		"same slice.tied_to on all ranks" },
	[TIED_OR_NOT] = { SHEAF_ELAYOUT, "model/head: stored by itself on rank 1, but tied to v on "
	                  "rank 0; set the same slice.tied_to on all ranks" },
	[STREAM] = { SHEAF_EINVAL, "stream rng: added for 3 ranks, the group has 2; pass that "
		"number to sheaf_state_rank_bytes" },
};
static const int64_t shape[2] = { 4, 6 };

static void hold(struct hand *h)
{
	enum what what = h->rank == 1 ? (enum what)h->play->variant : SAME;
	struct sheaf_slice *s;

	(void)hand_add(h, "model", "w", SHEAF_F32, 2, 4, 6);
	if (what == DIMENSIONS)
		(void)hand_add(h, "model", "v", SHEAF_F32, 1, 24);
	else
		(void)hand_add(h, "model", "v", what == DTYPE ? SHEAF_F16 : SHEAF_F32, 2, 4, 6);
	s = hand_add(h, "model", "head", SHEAF_F32, 2, 4, 6);
	if (what != TIED_OR_NOT)
		s->tied_to = what == TIED ? "w" : "v";
}

static int save(struct hand *h)
{
	static uint8_t bytes[2][8];
	bool odd = h->play->variant == STREAM && h->rank == 1;
	struct sheaf_save *save = NULL;
	int rc = shf_state_stream(h->state, "rng", NULL, h->rank, odd ? 3 : 2, bytes[h->rank], 8,
	                          NULL);

	rc = rc < 0 ? rc : shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);
	if (rc == 0 && h->play->during)
		h->play->during(h, save);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(ranks_that_mean_different_tensors_by_one_name_are_told_which)
{
	static const char *const nothing[] = { NULL };

	for (int k = 0; k < CASES; k++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold);

		p.variant = k;
		p.opts.ignore = nothing;
		SAID(hands_run(&p, save, true), outcome[k].code, outcome[k].said, &p.err);
		CHECK(simdisk_exists(disk, "run/checkpoint-7") == (k == SAME));
		CHECK_INT(p.rc, outcome[k].code);
		simdisk_free(disk);
	}
}

/* The same without ranks: a plan of their states. */
static struct sheaf_state *state_of(enum what what, int rank)
{
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2,
		.shape = { shape[0], shape[1] }, .count = { shape[0], shape[1] } };
	struct sheaf_state *state = shf_state_new();

	s.name = "w";
	(void)shf_state_add(state, &s, NULL);
	s.name = "v";
	s.dtype = what == DTYPE ? SHEAF_F16 : SHEAF_F32;
	if (what == DIMENSIONS) {
		s.ndim = 1;
		s.shape[0] = s.count[0] = shape[0] * shape[1];
	}
	(void)shf_state_add(state, &s, NULL);
	s = (struct sheaf_slice){ .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2,
		.shape = { shape[0], shape[1] }, .count = { shape[0], shape[1] },
		.name = "head", .tied_to = what == TIED_OR_NOT ? NULL : what == TIED ? "w" : "v" };
	(void)shf_state_add(state, &s, NULL);
	(void)shf_state_stream(state, "rng", NULL, rank, what == STREAM ? 3 : 2, NULL, 8, NULL);
	return state;
}

static void count(void *arg, const struct sheaf_plan_rank *rank)
{
	(void)rank;
	++*(int *)arg;
}

TEST(their_plan_says_the_same)
{
	for (int k = 0; k < CASES; k++) {
		struct sheaf_state *states[2] = { state_of(SAME, 0), state_of((enum what)k, 1) };
		struct sheaf_error err = { 0 };
		int n = 0;

		SAID(shf_plan_job(states, NULL, 2, NULL, count, &n, &err), outcome[k].code,
		     outcome[k].said, &err);
		CHECK_INT(n, k == SAME ? 2 : 0);
		n = 0;
		CHECK_INT(shf_plan_job(states, NULL, 2, NULL, count, &n, NULL),
		          outcome[k].code);
		for (int r = 0; r < 2; r++)
			shf_state_put(states[r]);
	}
}

TEST(a_plan_of_a_state_that_failed_needs_no_sentence)
{
	struct sheaf_state *held = state_of(SAME, 0);
	int n = 0;

	CHECK_INT(shf_state_move(held, 99, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_plan_job(&held, NULL, 1, NULL, count, &n, NULL), SHEAF_EINVAL);
	CHECK_INT(n, 0);
	shf_state_put(held);
}

/* ---- names that only look the same: their keys are one ---- */

enum { NAME = 20, BITS = 4 * NAME }; /* of each letter the low four bits are free */
static char twins[2][NAME + 1];

/* Keys are checksums, and so linear: some of more than 64 bits cancel out. */
static void make_twins(void)
{
	struct { uint64_t key; bool of[BITS]; } row[BITS] = { 0 }, swap;
	uint64_t plain;
	int done = 0;

	memset(twins, 0, sizeof(twins));
	memset(twins[0], 'P', NAME);
	plain = shf_sums_key("model", twins[0]);
	for (int i = 0; i < BITS; i++) {
		memcpy(twins[1], twins[0], NAME);
		twins[1][i / 4] = (char)(twins[1][i / 4] ^ 1 << i % 4);
		row[i].key = shf_sums_key("model", twins[1]) ^ plain;
		row[i].of[i] = true;
	}
	for (int bit = 0; bit < 64; bit++)
		for (int i = done; i < BITS; i++) {
			if (!(row[i].key >> bit & 1))
				continue;
			for (int k = 0; k < BITS; k++)
				if (k != i && row[k].key >> bit & 1) {
					row[k].key ^= row[i].key;
					for (int b = 0; b < BITS; b++)
						row[k].of[b] ^= row[i].of[b];
				}
			swap = row[i];
			row[i] = row[done];
			row[done] = swap;
			done++;
			break;
		}
	CHECK_INT(row[BITS - 1].key, 0);
	memcpy(twins[1], twins[0], NAME);
	for (int b = 0; b < BITS; b++)
		if (row[BITS - 1].of[b])
			twins[1][b / 4] = (char)(twins[1][b / 4] ^ 1 << b % 4);
}

static void hold_twins(struct hand *h)
{
	for (int k = 0; k < 2; k++)
		hand_cut(hand_add(h, "model", twins[k], SHEAF_F32, 1, 9 + k), 0, h->rank, h->ranks);
	(void)hand_add(h, "model", "another", SHEAF_F32, 1, 3);
}

static int read_twins(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	char why[300];
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	for (int k = 0; k < h->n && rc == 0; k++)
		rc = shf_step_read(step, &h->s[k], &h->err);
	if (rc == 0 && hand_wrong(h, why, sizeof(why)))
		rc = SHEAF_EBUG;
	if (rc == 0)
		rc = shf_step_verify(step, &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

TEST(two_names_with_one_key_are_two_tensors)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold_twins);

	make_twins();
	CHECK(strcmp(twins[0], twins[1]) != 0);
	CHECK(shf_sums_key("model", twins[0]) == shf_sums_key("model", twins[1]));
	SAVED(p);
	for (p.ranks = 1; p.ranks <= 3; p.ranks++) {
		LOADED(p);
		CHECK_RC(hands_run(&p, read_twins, false), 0, &p.err);
	}
	simdisk_free(disk);
}

/* ---- what is given to a save ---- */

enum { NOTE_EQUAL, NOTE_DIFFERS, NOTE_LONGER, FILE_EQUAL, FILE_DIFFERS, FILE_LONGER, GIVEN };
static const struct {
	int code;
	const char *said;
} given[GIVEN] = {
	[NOTE_DIFFERS] = { SHEAF_EFAILED, "note epoch: ranks 0 and 1 give different values; give "
		"it on one rank, or the same on all" },
	[NOTE_LONGER] = { SHEAF_EFAILED, "note epoch: ranks 0 and 1 give different values; give it "
		"on one rank, or the same on all" },
	[FILE_DIFFERS] = { SHEAF_EFAILED, "attached file a.json: ranks 0 and 1 give different "
	                   "bytes; give it on one rank, or the same on all" },
	[FILE_LONGER] = { SHEAF_EFAILED, "attached file a.json: ranks 0 and 1 give different "
	                  "bytes; give it on one rank, or the same on all" },
};
static int now;

static void give(struct hand *h, struct sheaf_save *save)
{
	static const char *const text[] = { "3", "3", "4", "3 " };
	const char *mine = text[h->rank == 0 ? 0 : now % 3 + 1];

	if (now < FILE_EQUAL)
		(void)shf_save_note(save, "epoch", mine, NULL);
	else
		(void)shf_save_attach(save, "a.json", mine, strlen(mine), NULL);
	/* The same name for a note and a file is no quarrel. */
	(void)shf_save_note(save, "a.json", "note", NULL);
	if (h->rank == 1)
		(void)shf_save_attach(save, "only-1.json", "{}", 2, NULL);
}

TEST(ranks_that_give_different_bytes_or_values_are_told)
{
	for (now = 0; now < GIVEN; now++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold);

		p.during = give;
		SAID(hands_run(&p, save, true), given[now].code, given[now].said ? given[now].said
		     : "", &p.err);
		CHECK(simdisk_exists(disk, "run/checkpoint-7/only-1.json") == !given[now].code);
		CHECK(simdisk_exists(disk, "run/checkpoint-7/a.json") == (now == FILE_EQUAL));
		simdisk_free(disk);
	}
}
