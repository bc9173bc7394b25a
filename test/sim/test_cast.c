/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit weights that are cast from their staged masters: the files are the same, the image is
 * smaller, no gate waits for a cast, and a weight that is none is named. */
#include <errno.h>
#include <stdlib.h>
#include "dtype.h"
#include "hands.h"
#include "lazy.h"
#include "slots.h"
#include "../t.h"

static const struct sheaf_save_opts lazily = { .size = sizeof(lazily), .flags = SHEAF_LAZY };
static const struct sheaf_save_opts checked = { .size = sizeof(checked),
	.flags = SHEAF_LAZY | SHEAF_CHECK };

enum { STAGED, CAST, LAZY, WAYS };
enum { WEIGHTS = 7, MIB = 1 << 20, ROWS = 512, COLUMNS = 256 };

static void flat_part(struct sheaf_slice *s, const struct hand *h)
{
	int64_t items = ROWS * COLUMNS, per = items / h->ranks + 100;

	s->flags |= SHEAF_FLAT;
	s->flat_start = per * h->rank < items ? per * h->rank : items;
	s->flat_count = items - s->flat_start < per ? items - s->flat_start : per;
}

static void turn(struct sheaf_slice *s)
{
	s->stride[0] = 1;
	s->stride[1] = s->count[0];
}

/* How ranks hold weight i, or its master. */
static void lie(struct hand *h, struct sheaf_slice *s, int i, bool master)
{
	if (i == 1)
		hand_cut(s, 0, (h->rank + 1) % h->ranks, h->ranks);
	else if (i == 2)
		hand_cut(s, 1, h->rank, h->ranks);
	else if (i == 3 && master)
		flat_part(s, h);
	else if (i == 4)
		s->count[0] = h->rank == h->ranks - 1 ? ROWS : 0;
	else if (i != 3)
		hand_cut(s, 0, h->rank, h->ranks);
	if (i == (master ? 6 : 5))
		turn(s);
}

/* Weights, their masters, small ones of odd sizes, and some that have no part in it. */
static void hold(struct hand *h)
{
	struct sheaf_slice *s;
	char name[16];

	for (int i = 0; i < WEIGHTS; i++) {
		snprintf(name, sizeof(name), "w%d", i);
		s = hand_add(h, "model", hand_text(h, name, ""), i % 2 ? SHEAF_F16 : SHEAF_BF16, 2,
		             ROWS, COLUMNS);
		hand_as(h, "master_weights", s->name);
		s->flags = h->play->variant == STAGED ? 0 : SHEAF_CAST;
		lie(h, s, i, false);
		s = hand_add(h, "master_weights", s->name, SHEAF_F32, 2, ROWS, COLUMNS);
		lie(h, s, i, true);
	}
	for (int i = 0; i < 9; i++) {
		snprintf(name, sizeof(name), "b%d", i);
		s = hand_add(h, "model", hand_text(h, name, ""), SHEAF_BF16, 1, 101 * i + 1);
		hand_as(h, "master_weights", s->name);
		s->flags = h->play->variant == STAGED ? 0 : SHEAF_CAST;
		(void)hand_add(h, "master_weights", s->name, SHEAF_F32, 1, 101 * i + 1);
	}
	(void)hand_add(h, "model", "lone", SHEAF_BF16, 2, ROWS, COLUMNS);
	h->s[h->n - 1].flags = h->play->variant == STAGED ? 0 : SHEAF_CAST;
	hand_cut(hand_add(h, "optimizer", "w0.exp_avg", SHEAF_F32, 2, ROWS, COLUMNS), 0, h->rank,
	         h->ranks);
	h->s[h->n - 1].flags = h->play->variant == STAGED ? 0 : SHEAF_IN_PLACE;
}

/* On one rank all of it is cast, and in few files. */
static void hold_pairs(struct hand *h)
{
	for (int i = 0; i < 2; i++) {
		const char *name = i ? "b" : "a";

		(void)hand_add(h, "model", name, i ? SHEAF_F16 : SHEAF_BF16, 2, ROWS, COLUMNS);
		hand_cut(&h->s[h->n - 1], 0, h->rank, h->ranks);
		hand_as(h, "master_weights", name);
		h->s[h->n - 1].flags = h->play->variant == STAGED ? 0 : SHEAF_CAST;
		(void)hand_add(h, "master_weights", name, SHEAF_F32, 2, ROWS, COLUMNS);
		hand_cut(&h->s[h->n - 1], 0, h->rank, h->ranks);
	}
}

/* Slices change the moment their gate lets go; every other one is asked without waiting first. */
static int pass_gates(struct hand *h, struct sheaf_save *save)
{
	int rc = 0;

	for (int i = h->n; rc == 0 && i-- > 0; ) {
		if (i % 2 && shf_save_copied(save, i, 0) == 0)
			hand_spoil(h, i);
		rc = shf_save_copied(save, i, i % 4 ? -1 : 1000000);
		if (rc == 0)
			hand_spoil(h, i);
	}
	return rc;
}

static int say(struct hand *h, const char *what)
{
	return shf_fail(&h->err, SHEAF_EBUG, "rank %d: %s", h->rank, what);
}

static int save_as(struct hand *h, int64_t step, const struct sheaf_save_opts *o)
{
	struct sheaf_save *save = NULL;
	int rc;

	hand_paint(h);
	rc = shf_save_begin(&save, h->run, step, h->state, o, &h->err);
	if (rc == 0 && !o)
		hand_fill(h, 0x5A);
	if (rc == 0 && o)
		(void)pass_gates(h, save); /* what fails is told by the commit */
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static int save_two(struct hand *h)
{
	const struct sheaf_save_opts *o = h->play->variant == LAZY ? &lazily : NULL;
	int rc = save_as(h, 1, o);

	return rc ? rc : save_as(h, 2, o);
}

static struct play play_of(struct simdisk *disk, int ranks, int way, int64_t step)
{
	struct play p = hands_play(disk, ranks, hold);

	p.variant = way;
	p.step = step;
	p.opts.file_bytes_max = 512 << 10;
	return p;
}

static struct play pairs_of(struct simdisk *disk, int ranks, int way, int64_t step)
{
	struct play p = hands_play(disk, ranks, hold_pairs);

	p.variant = way;
	p.step = step;
	return p;
}

TEST(the_files_are_those_of_weights_that_are_staged)
{
	static const int32_t nodes[4] = { 1, 2, 1, 2 };

	for (int i = 0; i < 7; i += T_STRIDE > 1 ? 3 : 1) {
		uint64_t hash[WAYS];
		int ranks = i < 3 ? 1 << i : i == 6 ? 3 : 4;

		for (int way = STAGED; way < WAYS; way++) {
			struct simdisk *disk = disk_new();
			struct play p = play_of(disk, ranks, way, 2);

			p.nodes = i == 3 ? nodes : NULL;
			/* In rounds; and with room for what is cast, just. */
			p.opts.staging_bytes_max = i == 4 ? 128 << 10 : i == 5 ? 16 * MIB : 0;
			p.opts.file_bytes_max = i == 6 ? 0 : p.opts.file_bytes_max;
			CHECK_RC(hands_run(&p, save_two, true), 0, &p.err);
			hash[way] = hands_hash(disk, "run/checkpoint-2");
			CHECK(hands_hash(disk, "run/checkpoint-1") == hash[way]);
			LOADED(p);
			simdisk_free(disk);
		}
		CHECK(hash[CAST] == hash[STAGED]);
		CHECK(hash[LAZY] == hash[STAGED]);
	}
}

/* ---- what is staged ---- */

static size_t casts_of(const struct sheaf_save *save)
{
	size_t n = 0;

	for (size_t i = 0; i < save->plan->work.segs_n; i++)
		n += save->plan->work.segs[i].cast;
	return n;
}

static int image_is_small(struct hand *h)
{
	struct sheaf_save *save = NULL;
	const struct shf_layout *l;
	const struct shf_work *w;
	uint64_t weights = 0;
	int rc = shf_save_begin(&save, h->run, 1, h->state, &lazily, &h->err);

	if (rc == 0) {
		w = &save->plan->work;
		l = &save->plan->layout;
		for (size_t i = 0; i < w->segs_n; i++)
			if (w->segs[i].moves_n && l->files[w->segs[i].file].family == 0 &&
			    !strstr(l->tensors[w->moves[w->segs[i].first_move].tensor].name,
			            "lone"))
				weights += w->segs[i].cast ? w->segs[i].hi - w->segs[i].lo
				                           : UINT64_C(1) << 40;
		if (weights < UINT64_C(2) * WEIGHTS * ROWS * COLUMNS)
			rc = say(h, "a weight is staged, or none is there");
		if (w->ctl_at + weights > w->bytes)
			rc = say(h, "the image has room for weights");
		if (weights > w->bytes)
			rc = say(h, "a weight is staged");
	}
	rc = rc ? rc : pass_gates(h, save);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(an_image_has_no_room_for_weights)
{
	struct simdisk *disk = disk_new();
	struct play p = play_of(disk, 1, CAST, 1);

	CHECK_RC(hands_run(&p, image_is_small, true), 0, &p.err);
	LOADED(p);
	simdisk_free(disk);
}

/* What ranks hold alone is cast on each of them. */
static int casts_on_all(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, NULL, &h->err);

	if (rc == 0 && casts_of(save) == 0)
		rc = say(h, "nothing is cast");
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(every_rank_casts_what_it_holds_alone)
{
	for (int ranks = 1; ranks <= 4; ranks *= 2) {
		struct simdisk *disk = disk_new();
		struct play p = play_of(disk, ranks, CAST, 1);

		CHECK_RC(hands_run(&p, casts_on_all, true), 0, &p.err);
		LOADED(p);
		simdisk_free(disk);
	}
}

static int half_of_staging(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, NULL, &h->err);

	if (rc == 0) {
		const struct shf_work *w = &save->plan->work;

		if (w->ctl_at + w->slots * w->slot_bytes > h->play->opts.staging_bytes_max / 2)
			rc = say(h, "more than half of the staging is image");
		if ((casts_of(save) > 0) != (h->play->opts.staging_bytes_max > 8 * MIB))
			rc = say(h, "it is cast where it does not fit, or is not where it does");
	}
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(what_does_not_fit_in_one_round_is_staged)
{
	for (uint64_t staging = 128 << 10; staging <= 32 * MIB; staging *= 16) {
		struct simdisk *disk = disk_new();
		struct play p = play_of(disk, 2, CAST, 1);

		p.opts.staging_bytes_max = staging;
		CHECK_RC(hands_run(&p, half_of_staging, true), 0, &p.err);
		LOADED(p);
		simdisk_free(disk);
	}
}

/* ---- values ---- */

/* Every pattern of the upper bits with rests around the ties: denormals, zeros, infinities, what
 * overflows, and what is no number. */
static void paint_odd(struct hand *h)
{
	static const uint32_t rests[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1000, 0x0fff };

	for (int k = 0; k < h->n; k += 2) {
		uint32_t *from = h->s[k + 1].data;
		uint16_t *to = h->s[k].data;

		for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
			float v;

			from[i] = i << 16 | rests[(i >> 16) * 4 + i % 4];
			memcpy(&v, &from[i], sizeof(v));
			to[i] = h->s[k].dtype == SHEAF_BF16 ? shf_f32_to_bf16(v)
			                                    : shf_f32_to_f16(v);
		}
	}
}

static int save_odd(struct hand *h)
{
	const struct sheaf_save_opts *o = h->play->variant == LAZY ? &checked : NULL;
	struct sheaf_save *save = NULL;
	int rc;

	paint_odd(h);
	rc = shf_save_begin(&save, h->run, 1, h->state, o, &h->err);
	if (rc == 0 && (casts_of(save) > 0) != (h->play->variant != STAGED))
		rc = say(h, "it is not cast");
	for (int i = 0; rc == 0 && o && i < h->n; i++)
		rc = shf_save_copied(save, i, -1);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(every_kind_of_value_is_rounded_as_it_was)
{
	uint64_t hash[WAYS];

	for (int way = STAGED; way < WAYS; way++) {
		struct simdisk *disk = disk_new();
		struct play p = pairs_of(disk, 1, way, 1);

		CHECK_RC(hands_run(&p, save_odd, true), 0, &p.err);
		hash[way] = hands_hash(disk, "run/checkpoint-1");
		simdisk_free(disk);
	}
	CHECK(hash[CAST] == hash[STAGED]);
	CHECK(hash[LAZY] == hash[STAGED]);
}

/* ---- gates ---- */

static int weights_go_first(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, &lazily, &h->err);

	for (int i = 0; rc == 0 && i < h->n; i += 2) {
		rc = shf_save_copied(save, i, 0);
		if (rc == 0 && shf_lazy_reads(save, (size_t)i))
			rc = say(h, "its memory is still to be read");
		if (rc == 0)
			hand_spoil(h, i);
	}
	if (rc == 0 && atomic_load(&save->copied) > 0)
		rc = say(h, "a gate of a weight has copied something");
	for (int i = 1; rc == 0 && i < h->n; i += 2) {
		rc = shf_save_copied(save, i, -1);
		hand_spoil(h, i);
	}
	if (rc == 0 && shf_save_wait(save, 0) != SHEAF_EAGAIN)
		rc = say(h, "what is not cast is written");
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(no_gate_of_a_weight_waits)
{
	for (int ranks = 1; ranks <= 4; ranks *= 2) {
		struct simdisk *disk = disk_new();
		struct play p = pairs_of(disk, ranks, LAZY, 1);

		simdisk_set_task_steps(disk, 0); /* nothing is copied behind */
		CHECK_RC(hands_run(&p, weights_go_first, true), 0, &p.err);
		LOADED(p);
		simdisk_free(disk);
	}
}

static int unasked(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, &lazily, &h->err);

	for (int i = 1; i < h->n && rc == 0; i++)
		rc = shf_save_copied(save, i, -1);
	if (rc == 0 && shf_save_commit(save, -1, &h->err) != SHEAF_EINVAL)
		rc = say(h, "nobody misses it");
	if (rc == 0 && !strstr(h->err.msg, "model/a"))
		rc = SHEAF_EBUG;
	rc = rc ? rc : shf_save_copied(save, 0, -1);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_weight_that_nobody_asked_for_is_named)
{
	struct simdisk *disk = disk_new();
	struct play p = pairs_of(disk, 2, LAZY, 1);

	CHECK_RC(hands_run(&p, unasked, true), 0, &p.err);
	LOADED(p);
	simdisk_free(disk);
}

/* ---- a weight that is no cast ---- */

enum { GATE_FIRST, CAST_FIRST, MIXED, WRONG_WAYS };
static int wrong_way, wrong_slice, wrong_rank;

static int save_wrong(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc;

	if (h->rank == wrong_rank)
		((uint8_t *)h->s[wrong_slice].data)[77] ^= 1;
	rc = shf_save_begin(&save, h->run, 1, h->state, &checked, &h->err);
	for (int i = h->n; rc == 0 && i-- > 0; )
		if (i != wrong_slice)
			rc = shf_save_copied(save, i, -1);
	if (rc == 0 && wrong_way == CAST_FIRST)
		rc = shf_lazy_finish(save, -1);
	if (rc == 0) {
		rc = shf_save_copied(save, wrong_slice, -1);
		if (wrong_way == CAST_FIRST && (rc == SHEAF_EDIVERGED) != (h->rank == wrong_rank))
			rc = say(h, "its gate says nothing, or another one does");
		else if (wrong_way == GATE_FIRST && rc != 0)
			rc = say(h, "its gate has waited for the cast");
		else
			rc = 0;
	}
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_weight_that_is_no_cast_is_named)
{
	static const char *const names[] = { "model/a", "model/b" };

	for (int i = 0; i < 2 * WRONG_WAYS * 2; i++) {
		struct simdisk *disk = disk_new();
		struct play p = pairs_of(disk, 2, LAZY, 1);

		wrong_way = i / 4;
		wrong_slice = i % 2 * 2;
		wrong_rank = i / 2 % 2;
		if (wrong_way != MIXED)
			simdisk_set_task_steps(disk, 0);
		CHECK_RC(hands_run(&p, save_wrong, true), SHEAF_EDIVERGED, &p.err);
		CHECK(strstr(p.err.msg, names[i % 2]) && strstr(p.err.msg, "cast"));
		CHECK(!simdisk_exists(disk, "run/checkpoint-1"));
		simdisk_free(disk);
	}
}

/* Rank 1 has more than a round, so that all is copied in begin. */
static void hold_more(struct hand *h)
{
	hold_pairs(h);
	(void)hand_add(h, "optimizer", "much", SHEAF_F32, 2, 8 * ROWS, COLUMNS);
	h->s[h->n - 1].count[0] = h->rank ? 8 * ROWS : 0;
}

static int begins_wrong(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc;

	if (wrong_slice >= 0 && h->rank == 0)
		((uint8_t *)h->s[wrong_slice].data)[77] ^= 1;
	rc = shf_save_begin(&save, h->run, 1, h->state, &checked, &h->err);
	if (rc == 0 && (casts_of(save) > 0) != (h->rank == 0))
		rc = say(h, "the wrong rank casts");
	for (int i = 0; rc == 0 && i < h->n; i++)
		rc = shf_save_copied(save, i, -1);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(one_that_is_copied_inside_begin_is_named_there)
{
	for (wrong_slice = -1; wrong_slice <= 2; wrong_slice += 3) {
		struct simdisk *disk = disk_new();
		struct play p = pairs_of(disk, 2, LAZY, 1);

		p.hold = hold_more;
		p.opts.staging_bytes_max = 8 * MIB;
		CHECK_RC(hands_run(&p, begins_wrong, true), wrong_slice < 0 ? 0 : SHEAF_EDIVERGED,
		         &p.err);
		if (wrong_slice < 0)
			LOADED(p);
		else
			CHECK(strstr(p.err.msg, "model/b") != NULL);
		simdisk_free(disk);
	}
}

/* Without SHEAF_CHECK the caller's word counts: what is written is the cast. */
static int save_word(struct hand *h)
{
	const struct sheaf_save_opts *o = h->play->variant == LAZY ? &lazily : NULL;
	struct sheaf_save *save = NULL;
	int rc;

	for (int i = 0; i < h->n; i += 2)
		hand_spoil(h, i);
	rc = shf_save_begin(&save, h->run, 1, h->state, o, &h->err);
	for (int i = 0; rc == 0 && o && i < h->n; i++)
		rc = shf_save_copied(save, i, -1);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(what_is_written_is_the_cast)
{
	for (int way = CAST; way <= LAZY; way++)
		for (int ranks = 1; ranks <= 2; ranks++) {
			struct simdisk *disk = disk_new();
			struct play p = pairs_of(disk, ranks, way, 1);

			CHECK_RC(hands_run(&p, save_word, true), 0, &p.err);
			LOADED(p);
			simdisk_free(disk);
		}
}

/* ---- commits and images ---- */

static int commit_asks(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, &lazily, &h->err), tries = 0;

	rc = rc ? rc : pass_gates(h, save);
	if (rc == 0 && (rc = shf_save_exchange(save, 0, &h->err)) == SHEAF_EAGAIN)
		rc = 0;
	while (rc == 0 && (rc = shf_save_commit(save, 0, &h->err)) == SHEAF_EAGAIN &&
	       tries++ < 10000)
		rc = 0;
	shf_save_free(save);
	return rc;
}

static int no_task(void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
                   const char *cpus)
{
	(void)arg;
	(void)task;
	(void)step;
	(void)work;
	(void)cpus;
	return -EAGAIN;
}

static struct shf_sys_ops taskless;

static void without_tasks(struct hand *h)
{
	taskless = *h->used.ops;
	taskless.task_new = no_task;
	h->used.ops = &taskless;
}

TEST(a_commit_that_only_asks_gets_there)
{
	for (int i = 0; i < 3; i++) {
		struct simdisk *disk = disk_new();
		struct play p = play_of(disk, 2, LAZY, 1);

		p.tamper = i == 0 ? without_tasks : NULL;
		simdisk_set_task_steps(disk, i == 1 ? 1 : -1);
		CHECK_RC(hands_run(&p, commit_asks, true), 0, &p.err);
		LOADED(p);
		simdisk_free(disk);
	}
}

/* The image of a save whose weights are not cast yet goes to the next save only when they are. */
static int one_image(struct hand *h)
{
	struct sheaf_save *save[2] = { NULL, NULL };
	int rc = 0;

	for (int k = 0; rc == 0 && k < 2; k++) {
		hand_paint(h);
		rc = shf_save_begin(&save[k], h->run, k + 1, h->state, &lazily, &h->err);
		for (int i = 0; rc == 0 && i < h->n; i++) {
			rc = shf_save_copied(save[k], i, -1);
			hand_spoil(h, i);
		}
	}
	for (int k = 0; k < 2; k++) {
		rc = rc ? rc : shf_save_commit(save[k], -1, &h->err);
		shf_save_free(save[k]);
	}
	return rc;
}

TEST(the_next_save_waits_for_casts_from_its_image)
{
	for (int images = 1; images <= 2; images++)
		for (int64_t step = 1; step <= 2; step++) {
			struct simdisk *disk = disk_new();
			struct play p = pairs_of(disk, 2, LAZY, step);

			p.opts.images_max = images;
			simdisk_set_task_steps(disk, 0);
			CHECK_RC(hands_run(&p, one_image, true), 0, &p.err);
			LOADED(p);
			simdisk_free(disk);
		}
}

/* ---- where it does not go well ---- */

static int two_steps(struct hand *h)
{
	int rc = save_two(h);

	if (rc != SHEAF_EIO)
		return rc ? rc : say(h, "nothing went wrong");
	simdisk_faults_clear(h->play->disk);
	return save_two(h);
}

TEST(a_write_that_fails_is_told_and_the_next_save_goes_well)
{
	for (int way = CAST; way <= LAZY; way++)
		for (int nth = 1; nth <= 7; nth += T_STRIDE) {
			struct simdisk *disk = disk_new();
			struct play p = play_of(disk, 2, way, 2);

			simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth,
				.kind = SIMDISK_PWRITE, .name = nth % 2 ? "model" : "master",
				.error = EIO });
			CHECK_RC(hands_run(&p, two_steps, true), 0, &p.err);
			LOADED(p);
			simdisk_free(disk);
		}
}

static int given_up(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, &lazily, &h->err);

	for (int i = 0; rc == 0 && i < h->play->step; i++)
		rc = shf_save_copied(save, i, -1);
	if (rc == 0 && h->rank == 0)
		(void)shf_save_fail(save, "enough");
	for (int i = 0; rc == 0 && i < h->n; i++)
		if (shf_save_copied(save, i, -1) == SHEAF_EAGAIN)
			rc = say(h, "a gate says that it is not copied");
	if (rc == 0 && (rc = shf_save_commit(save, -1, &h->err)) == SHEAF_EFAILED)
		rc = 0;
	shf_save_free(save);
	return rc ? rc : save_two(h);
}

TEST(one_that_is_given_up_casts_no_more)
{
	for (int64_t after = 0; after < 26; after += 3 * T_STRIDE) {
		struct simdisk *disk = disk_new();
		struct play p = play_of(disk, 2, LAZY, after);

		CHECK_RC(hands_run(&p, given_up, true), 0, &p.err);
		p.step = 2;
		LOADED(p);
		simdisk_free(disk);
	}
}

static int freed(struct hand *h)
{
	for (int64_t k = 0; k < 6; k++) {
		struct sheaf_save *save = NULL;
		int rc = shf_save_begin(&save, h->run, k + 10, h->state, &lazily, &h->err);

		for (int i = 0; rc == 0 && i < k * 5 && i < h->n; i++)
			rc = shf_save_copied(save, i, -1);
		if (rc == 0 && k % 2)
			(void)shf_save_wait(save, 0);
		shf_save_free(save);
		if (rc < 0)
			return rc;
	}
	return save_two(h);
}

TEST(one_that_is_freed_leaves_nothing)
{
	struct simdisk *disk = disk_new();
	struct play p = play_of(disk, 2, LAZY, 2);

	CHECK_RC(hands_run(&p, freed, true), 0, &p.err);
	LOADED(p);
	simdisk_free(disk);
}

/* ---- runs with an agent ---- */

static int for_memory(struct hand *h)
{
	struct sheaf_save_opts memory = { .size = sizeof(memory),
		.flags = SHEAF_LAZY | SHEAF_NO_DISK };
	struct sheaf_save *save = NULL;
	int rc;

	hand_paint(h);
	rc = shf_save_begin(&save, h->run, 1, h->state, &memory, &h->err);
	if (rc == 0 && (casts_of(save) > 0 || save->plan->slotted))
		rc = say(h, "what is in no image is to be kept in memory");
	rc = rc ? rc : pass_gates(h, save);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_step_in_memory_is_whole)
{
	struct simdisk *disk = disk_new();
	struct play p = pairs_of(disk, 2, LAZY, 1);

	p.opts.agent = "auto";
	simdisk_set_agents(disk, UINT64_C(1) << 30);
	CHECK_RC(hands_run(&p, for_memory, true), 0, &p.err);
	LOADED(p);
	simdisk_free(disk);
}

/* ---- plans ---- */

static int save_state(struct hand *h, struct sheaf_state *state, int64_t step)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, step, state, &lazily, &h->err);

	for (int i = 0; rc == 0 && i < h->n; i++)
		(void)shf_save_copied(save, i, -1);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

/* Weights are cast in one state, in place in the other; each rank brings another one in the end. */
static int mixed(struct hand *h)
{
	struct sheaf_state *other = shf_state_new();
	int rc = 0;

	for (int i = 0; i < h->n; i++) {
		struct sheaf_slice s = h->s[i];

		if (s.flags & SHEAF_CAST)
			s.flags ^= SHEAF_CAST | SHEAF_IN_PLACE;
		if (shf_state_add(other, &s) < 0)
			rc = SHEAF_EBUG;
	}
	rc = rc ? rc : save_state(h, h->state, 1);
	rc = rc ? rc : save_state(h, other, 2);
	rc = rc ? rc : save_state(h, h->rank ? other : h->state, 3);
	rc = rc ? rc : save_state(h, h->rank ? h->state : other, 4);
	shf_state_put(other);
	return rc;
}

TEST(plans_of_two_states_are_told_apart)
{
	for (int64_t step = 3; step <= 4; step++) {
		struct simdisk *disk = disk_new();
		struct play p = pairs_of(disk, 2, LAZY, step);

		CHECK_RC(hands_run(&p, mixed, true), 0, &p.err);
		LOADED(p);
		simdisk_free(disk);
	}
}

TEST(only_16_bit_weights_that_are_stored_as_they_are_can_be_cast)
{
	static const struct {
		int dtype, data_dtype, rc;
		const char *family;
	} rows[] = { { SHEAF_BF16, 0, 0, NULL }, { SHEAF_F16, SHEAF_F16, 0, NULL },
		{ SHEAF_BF16, SHEAF_F32, SHEAF_EINVAL, NULL },
		{ SHEAF_F32, 0, SHEAF_EINVAL, NULL }, { SHEAF_U16, 0, SHEAF_EINVAL, NULL },
		{ SHEAF_F16, SHEAF_BF16, SHEAF_EINVAL, NULL }, { SHEAF_BF16, 0, 0, "model" },
		{ SHEAF_BF16, 0, SHEAF_EINVAL, "optimizer" } };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct sheaf_state *of = shf_state_new();
		uint32_t memory[4] = { 0 };
		struct sheaf_slice s = { .size = sizeof(s), .name = "w", .flags = SHEAF_CAST,
			.family = rows[i].family, .dtype = rows[i].dtype,
			.data_dtype = rows[i].data_dtype, .ndim = 1,
			.shape = { 4 }, .count = { 4 }, .data = memory };

		CHECK_INT(shf_state_add(of, &s), rows[i].rc);
		shf_state_put(of);
	}
}
