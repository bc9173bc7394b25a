/* SPDX-License-Identifier: Apache-2.0 */
/* Slices that are brought while a save is under way: none is read before, each in the memory that
 * it is brought in; and slices that are asked for all at once. */
#include <stdlib.h>
#include "hands.h"
#include "t.h"
#include "save_commit.h"
#include "save_gates.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"
#include "averages.h"
#include "state.h"

static const struct sheaf_save_opts lazily = { .size = sizeof(lazily), .flags = SHEAF_SAVE_LAZY };
static const struct sheaf_save_opts later = { .size = sizeof(later),
	.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER };
static const struct sheaf_save_opts checked = { .size = sizeof(checked),
	.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER | SHEAF_SAVE_CHECK };

enum { WHOLE, IN_PIECES, ELSEWHERE, WAYS };

/* What ranks hold alone, share, hold turned, converted, nothing of. */
static void hold(struct hand *h)
{
	struct sheaf_slice *s;

	hand_cut(hand_add(h, "model", "rows", SHEAF_BF16, 2, 64, 256), 0, h->rank, h->ranks);
	hand_add(h, "model", "norm", SHEAF_BF16, 1, 300);
	s = hand_add(h, "optimizer", "turned", SHEAF_F32, 2, 96, 128);
	hand_cut(s, 1, h->rank, h->ranks);
	s->stride[0] = 1;
	s->stride[1] = s->count[0];
	s = hand_add(h, "optimizer", "wide", SHEAF_F32, 2, 40, 77);
	hand_cut(s, 0, h->rank, h->ranks);
	s->data_dtype = SHEAF_F64;
	hand_cut(hand_add(h, "optimizer", "few", SHEAF_F32, 1, 3), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "master_weights", "rows", SHEAF_F32, 1, 300000), 0, h->rank, h->ranks);
}

static size_t block_of(const struct hand *h, int slice, uint8_t **at)
{
	return h->s[slice].count[0] ? hand_block_of(h, slice, at) : 0;
}

static int wrong_here(struct hand *h, int slice, const char *what)
{
	return shf_fail(&h->err, SHEAF_EBUG, "slice %d: %s", slice, what);
}

/* One that has its values in `from`: they appear where they are brought, and are gone behind the
 * gate. room: another place for them; its last bytes are the slice's. */
static int bring(struct hand *h, struct sheaf_save *save, int slice, const uint8_t *from,
                 uint8_t *room)
{
	uint8_t *at = NULL;
	size_t n = block_of(h, slice, &at);
	int rc;

	if (n == 0)
		return shf_save_put(save, slice, NULL, NULL);
	if (shf_save_copied(save, slice, 0, NULL) != SHEAF_EINVAL)
		return wrong_here(h, slice, "copied before it was brought");
	memcpy(room ? room : at, from, n);
	rc = shf_save_put(save, slice,
	                  room ? room + ((const uint8_t *)h->s[slice].data - at) : NULL, NULL);
	if (rc == 0 && shf_save_put(save, slice, NULL, NULL) != SHEAF_EINVAL)
		return wrong_here(h, slice, "brought twice");
	return rc;
}

struct kept {           /* what slices are to be saved as; owned */
	uint8_t *bytes[HAND_SLICES];
};

static void keep(struct hand *h, struct kept *k)
{
	uint8_t *at;

	hand_paint(h);
	for (int i = 0; i < h->n; i++) {
		size_t n = block_of(h, i, &at);

		k->bytes[i] = n ? malloc(n) : NULL;
		if (n)
			memcpy(k->bytes[i], at, n);
		hand_spoil(h, i);
	}
}

static void kept_free(struct kept *k)
{
	for (int i = 0; i < HAND_SLICES; i++)
		free(k->bytes[i]);
}

/* From the last on, a few at a time; in one room one by one. */
static int bring_all(struct hand *h, struct sheaf_save *save, const struct kept *k)
{
	bool elsewhere = h->play->variant == ELSEWHERE;
	uint8_t *room = elsewhere ? malloc(1 << 22) : NULL;
	int rc = 0, asked = h->n;

	for (int i = h->n; rc == 0 && i-- > 0; ) {
		rc = bring(h, save, i, k->bytes[i], room);
		if (rc == 0 && h->play->variant == WHOLE && i > 0)
			continue;
		for (; rc == 0 && asked > i && (elsewhere || asked % 2 || i == 0); ) {
			rc = shf_save_copied(save, --asked, -1, NULL);
			hand_spoil(h, asked);
			if (room)
				memset(room, 0xA6, 1 << 22);
		}
	}
	free(room);
	return rc;
}

static int save_some(struct hand *h)
{
	struct sheaf_save *save = NULL;
	struct kept k = { 0 };
	int rc = 0;

	for (int64_t n = 1; rc == 0 && n < 4; n++) {
		keep(h, &k);
		rc = shf_save_begin(&save, h->run, n, h->state, n % 2 ? &later : &checked, &h->err);
		if (rc == 0 && shf_save_wait(save, -1, NULL) != SHEAF_EAGAIN)
			rc = wrong_here(h, 0, "there is nothing to wait for");
		rc = rc ? rc : bring_all(h, save, &k);
		rc = rc ? rc : shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
		save = NULL;
		kept_free(&k);
		k = (struct kept){ 0 };
	}
	return rc;
}

static uint64_t hash_of_plain(int ranks)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, ranks, hold);
	uint64_t hash;

	p.step = 1;
	SAVED(p);
	hash = hands_hash(disk, "run/checkpoint-1");
	simdisk_free(disk);
	return hash;
}

TEST(the_files_are_those_of_slices_that_were_there)
{
	static const int32_t nodes[4] = { 1, 2, 1, 2 };

	for (int i = 0; i < 4 * WAYS; i += T_FEWER) { /* each way too */
		struct simdisk *disk = simdisk_new(0x5eaf + (uint64_t)i, SIMDISK_STRICT);
		int ranks = i / WAYS < 3 ? 1 << i / WAYS : 4;
		uint64_t plain = hash_of_plain(ranks);
		struct play p = hands_play(disk, ranks, hold);

		p.variant = i % WAYS;
		p.step = 3;
		p.nodes = i / WAYS == 3 ? nodes : NULL;
		CHECK_RC(hands_run(&p, save_some, true), 0, &p.err);
		for (int n = 1; n < 4; n++) {
			char path[40];

			snprintf(path, sizeof(path), "run/checkpoint-%d", n);
			CHECK(hands_hash(disk, path) == plain);
		}
		LOADED(p);
		simdisk_free(disk);
	}
}

/* ---- memory that comes with the save alone ---- */

static void hold_nothing(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "w", SHEAF_F32, 2, 64, 100);

	hand_cut(s, 0, h->rank, h->ranks);
}

static int stream(struct hand *h)
{
	struct sheaf_state *state = shf_state_new();
	struct sheaf_save *save = NULL;
	struct sheaf_slice s = h->s[0];
	int rc;

	hand_paint(h);
	s.data = NULL;
	rc = shf_state_add(state, &s, NULL);
	rc = rc < 0 ? rc : shf_save_begin(&save, h->run, 1, state, &later, &h->err);
	if (rc == 0 && shf_save_put(save, 0, NULL, NULL) != SHEAF_EINVAL)
		rc = wrong_here(h, 0, "is nowhere");
	rc = rc ? rc : shf_save_put(save, 0, h->s[0].data, NULL);
	rc = rc ? rc : shf_save_copied(save, 0, -1, NULL);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	if (rc == 0 && shf_save_begin(&save, h->run, 2, state, &lazily, &h->err) != SHEAF_EINVAL)
		rc = wrong_here(h, 0, "has no memory");
	shf_state_put(state);
	return rc;
}

TEST(a_state_need_have_no_memory)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold_nothing);

	p.step = 1;
	CHECK_RC(hands_run(&p, stream, true), 0, &p.err);
	LOADED(p);
	simdisk_free(disk);
}

/* ---- what is not brought ---- */

static bool says(const struct hand *h, const char *what)
{
	return strstr(h->err.msg, what) != NULL;
}

static int forget_one(struct hand *h)
{
	struct sheaf_save *save = NULL, *next = NULL;
	struct kept k = { 0 };
	int rc;

	keep(h, &k);
	rc = shf_save_begin(&save, h->run, 1, h->state, &later, &h->err);
	for (int i = 1; rc == 0 && i < h->n; i++) {
		rc = bring(h, save, i, k.bytes[i], NULL);
		rc = rc ? rc : shf_save_copied(save, i, -1, NULL);
	}
	if (rc == 0 && (shf_save_commit(save, -1, &h->err) != SHEAF_EINVAL ||
	                !says(h, "slice 0 (model/rows) is not ready")))
		rc = wrong_here(h, 0, "is committed");
	if (rc == 0 && (shf_save_begin(&next, h->run, 2, h->state, &lazily, &h->err) !=
	                SHEAF_EINVAL || !says(h, "the save of step 1 still waits")))
		rc = wrong_here(h, 0, "the next has begun");
	if (rc == 0 && shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL) != SHEAF_EINVAL)
		rc = wrong_here(h, 0, "all are copied");
	if (rc == 0 && shf_save_exchange(save, 0, &h->err) != SHEAF_EAGAIN)
		rc = wrong_here(h, 0, "nothing is left to send");
	rc = rc ? rc : bring(h, save, 0, k.bytes[0], NULL);
	rc = rc ? rc : shf_save_copied(save, 0, -1, NULL);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	kept_free(&k);
	return rc;
}

TEST(one_that_is_not_brought_is_named)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold);

	p.step = 1;
	CHECK_RC(hands_run(&p, forget_one, true), 0, &p.err);
	LOADED(p);
	simdisk_free(disk);
}

/* Of another state, while the save waits for slices. A load has an image of its own. */
static int load_meanwhile(struct hand *h)
{
	struct sheaf_state *other = shf_state_new();
	struct sheaf_save *save = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct kept k = { 0 };
	int rc = 0;

	for (int i = 0; i < h->n && rc >= 0; i++)
		rc = shf_state_add(other, &h->s[i], NULL);
	keep(h, &k);
	rc = rc < 0 ? rc : shf_save_begin(&save, h->run, 2, h->state, &later, &h->err);
	rc = rc ? rc : bring(h, save, 3, k.bytes[3], NULL);
	rc = rc ? rc : shf_step_open(&step, h->run, 1, &h->err);
	rc = rc ? rc : shf_step_load(step, other, 0, NULL, &h->err);
	for (int i = 0; rc == 0 && i < h->n; i++)
		rc = i == 3 ? 0 : bring(h, save, i, k.bytes[i], NULL);
	rc = rc ? rc : shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_step_put(step);
	shf_save_free(save);
	shf_state_put(other);
	kept_free(&k);
	return rc;
}

TEST(a_load_does_not_wait_for_a_save_whose_slices_are_not_brought)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold);

	p.step = 1;
	SAVED(p);
	CHECK_RC(hands_run(&p, load_meanwhile, true), 0, &p.err);
	p.step = 2;
	LOADED(p);
	simdisk_free(disk);
}

/* Given up while some are not brought; the next save is not held up. */
static int give_up(struct hand *h)
{
	struct sheaf_save *save = NULL, *next = NULL;
	struct kept k = { 0 };
	int rc;

	keep(h, &k);
	rc = shf_save_begin(&save, h->run, 1, h->state, &later, &h->err);
	rc = rc ? rc : bring(h, save, 2, k.bytes[2], NULL);
	if (rc == 0)
		(void)shf_save_fail(save, "enough", NULL);
	if (h->play->variant) {
		shf_save_free(save);
		save = NULL;
	}
	rc = rc ? rc : shf_save_begin(&next, h->run, 2, h->state, &later, &h->err);
	for (int i = 0; rc == 0 && i < h->n; i++)
		rc = bring(h, next, i, k.bytes[i], NULL);
	if (rc == 0 && save && shf_save_commit(save, -1, &h->err) != SHEAF_EFAILED)
		rc = wrong_here(h, 0, "committed");
	rc = rc ? rc : shf_save_copied(next, SHEAF_ALL_SLICES, -1, NULL);
	for (int i = 0; i < h->n; i++)
		hand_spoil(h, i);
	rc = rc ? rc : shf_save_commit(next, -1, &h->err);
	shf_save_free(save);
	shf_save_free(next);
	kept_free(&k);
	return rc;
}

TEST(one_that_is_given_up_holds_up_no_other)
{
	for (int freed = 0; freed < 2; freed++)
		for (int images = 1; images < 3; images++) {
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, 2, hold);

			p.variant = freed;
			p.step = 2;
			p.opts.images_max = images;
			CHECK_RC(hands_run(&p, give_up, true), 0, &p.err);
			CHECK(!simdisk_exists(disk, "run/checkpoint-1"));
			LOADED(p);
			simdisk_free(disk);
		}
}

/* ---- where it cannot be ---- */

static int refused(struct hand *h)
{
	static const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };
	const struct sheaf_save_opts alone = { .size = sizeof(alone), .flags = SHEAF_SAVE_LATER };
	struct sheaf_save *save = NULL;
	const char *why = "needs SHEAF_SAVE_LAZY";
	int rc = shf_save_begin(&save, h->run, 1, h->state, &alone, &h->err);

	if (rc != SHEAF_EINVAL || !says(h, why))
		return wrong_here(h, 0, "it was plain");
	why = h->play->opts.staging_bytes_max ? "is too small for it"
	      : h->play->variant ? "SHEAF_SLICE_IN_PLACE" : "cannot be combined with averages";
	if (strcmp(why, "cannot be combined with averages") == 0 && shf_state_ema(h->state, "model",
	           &ema, NULL) < 0)
		return wrong_here(h, 0, "cannot be combined with averages can be");
	rc = shf_save_begin(&save, h->run, 1, h->state, &later, &h->err);
	if (rc != SHEAF_EINVAL || !says(h, why))
		return wrong_here(h, 0, why);
	rc = shf_save_begin(&save, h->run, 1, h->state, NULL, &h->err);
	if (rc == 0 && shf_save_put(save, 0, NULL, NULL) != SHEAF_EINVAL)
		rc = wrong_here(h, 0, "brought to a plain save");
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static void hold_floats(struct hand *h)
{
	for (int i = 0; i < 2; i++) {
		hand_add(h, "model", i ? "b" : "a", SHEAF_F32, 2, 300, 256);
		h->s[i].flags |= h->play->variant ? SHEAF_SLICE_IN_PLACE : 0;
	}
}

TEST(saves_that_cannot_bring_slices_later_say_why)
{
	for (int i = 0; i < 3; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold_floats);

		p.variant = i == 1;
		p.opts.staging_bytes_max = i == 2 ? 256 << 10 : 0;
		CHECK_RC(hands_run(&p, refused, true), 0, &p.err);
		simdisk_free(disk);
	}
}

static int spoil_early(struct hand *h)
{
	struct sheaf_save *save = NULL;
	struct kept k = { 0 };
	int rc;

	keep(h, &k);
	rc = shf_save_begin(&save, h->run, 1, h->state, &checked, &h->err);
	for (int i = 0; rc == 0 && i < h->n; i++)
		rc = bring(h, save, i, k.bytes[i], NULL);
	if (rc == 0 && shf_save_gates_finish(save, -1) == 0)
		hand_spoil(h, 3);
	if (rc == 0 && h->play->variant)
		rc = shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL);
	for (int i = 0; rc == 0 && i < h->n; i++)
		rc = shf_save_copied(save, i, -1, NULL);
	shf_save_free(save);
	kept_free(&k);
	return rc;
}

TEST(one_that_changes_early_is_named)
{
	for (int all = 0; all < 2; all++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold);

		p.variant = all;
		CHECK_RC(hands_run(&p, spoil_early, true), SHEAF_EDIVERGED, &p.err);
		simdisk_free(disk);
	}
}

/* ---- all at once ---- */

static int ask_for_all(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = 0, soon = 0;

	for (int64_t n = 1; rc == 0 && n < 5; n++) {
		hand_paint(h);
		rc = shf_save_begin(&save, h->run, n, h->state, n == 4 ? NULL : &lazily, &h->err);
		if (rc == 0 && shf_save_copied(save, SHEAF_EINVAL, 0, NULL) != SHEAF_EINVAL)
			rc = wrong_here(h, -1, "there is none");
		soon = rc ? rc : shf_save_copied(save, SHEAF_ALL_SLICES, 0, NULL);
		if (rc == 0 && soon != 0 && soon != SHEAF_EAGAIN)
			rc = soon;
		rc = rc ? rc : shf_save_copied(save, SHEAF_ALL_SLICES, n == 2 ? 1000000 : -1, NULL);
		for (int i = 0; i < h->n; i++)
			hand_spoil(h, i);
		rc = rc ? rc : shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
		save = NULL;
	}
	return rc;
}

TEST(all_slices_are_asked_for_at_once)
{
	for (int i = 0; i < 4; i++) {
		struct simdisk *disk = simdisk_new((uint64_t)i, SIMDISK_STRICT);
		struct play p = hands_play(disk, 2, i % 2 ? hold_floats : hold);

		p.variant = i == 3;
		simdisk_set_task_steps(disk, i < 2 ? 0 : -1); /* none but who asks copies */
		CHECK_RC(hands_run(&p, ask_for_all, true), 0, &p.err);
		for (p.step = 1; p.step < 5; p.step++)
			LOADED(p);
		simdisk_free(disk);
	}
}

/* ---- lists of slices ---- */

/* Brings slices in one call, after it has found that they could not be asked for before. An empty
 * one alone may always be asked for, so there is another one in each list. */
static int bring_list(struct hand *h, struct sheaf_save *save, const int *list, size_t n)
{
	const int wrong[] = { list[0], h->n };
	int rc;

	if (shf_save_list_copied(save, list, n, 0, NULL) != SHEAF_EINVAL)
		return wrong_here(h, list[0], "copied before it was brought");
	if (shf_save_list_put(save, wrong, 2, NULL, NULL) != SHEAF_EINVAL)
		return wrong_here(h, h->n, "there is none");
	rc = shf_save_list_put(save, list, n, NULL, &h->err);
	if (rc == 0 && shf_save_list_put(save, list, n, NULL, NULL) != SHEAF_EINVAL)
		return wrong_here(h, list[0], "brought twice");
	return rc;
}

/* Brings slices in two lists, and asks for them in two others. With variant 1, all slices of rank 1
 * are there from the beginning. */
static int in_lists(struct hand *h)
{
	const struct sheaf_save_opts *opts = h->play->variant && h->rank ? &lazily : &later;
	struct sheaf_save *save = NULL;
	int list[HAND_SLICES], rc = 0;
	size_t n = (size_t)h->n, half = n / 2;

	for (size_t i = 0; i < n; i++)
		list[i] = (int)(n - 1 - i);
	for (int64_t step = 1; rc == 0 && step < 4; step++) {
		hand_paint(h);
		rc = shf_save_begin(&save, h->run, step, h->state, opts, &h->err);
		if (rc == 0 && opts == &later)
			rc = bring_list(h, save, list, half);
		if (rc == 0 && opts == &later)
			rc = bring_list(h, save, list + half, n - half);
		for (size_t from = 0, some; rc == 0 && from < n; from += some) {
			some = from + 2 * half > n ? n - from : half;
			rc = shf_save_list_copied(save, list + from, some, -1, &h->err);
			for (size_t i = from; rc == 0 && i < from + some; i++)
				hand_spoil(h, list[i]);
		}
		rc = rc ? rc : shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
		save = NULL;
	}
	return rc;
}

TEST(slices_are_named_in_a_list)
{
	for (int i = 0; i < 4; i++) {
		struct simdisk *disk = simdisk_new((uint64_t)i, SIMDISK_STRICT);
		struct play p = hands_play(disk, 2, hold);

		p.variant = i % 2;
		simdisk_set_task_steps(disk, i < 2 ? 0 : -1); /* none but who asks copies */
		CHECK_RC(hands_run(&p, in_lists, true), 0, &p.err);
		for (p.step = 1; p.step < 4; p.step++)
			LOADED(p);
		simdisk_free(disk);
	}
}
