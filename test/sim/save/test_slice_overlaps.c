/* SPDX-License-Identifier: Apache-2.0 */
/* Slices that share memory: the gate of one opens when nothing of that memory has still to be read,
 * through whichever slice. The named tests ask for one slice first while nothing copies in the
 * background; the seeds draw states, flags, threads and the order of gates, and change each slice
 * as soon as its gate has opened.
 *
 *   test_slice_overlaps [--seeds FIRST..LAST] [part of a test's name ...]
 */
#include <math.h>
#include <stdlib.h>
#include "averages.h"
#include "hands.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"
#include "state.h"

#define main t_main
#include "rng.h"
#include "t.h"
#undef main

enum { STEPS = 6, ROWS = 48, COLUMNS = 64, LINE = 20000 };
static uint64_t seeds_first = 1, seeds_last = 300 / T_FEWER;

/* ---- slices that share memory ---- */

enum kind { TIED, DOUBLED, PIECES, MASTERS, WINDOWS, WOVEN, ALONE, KINDS };

/* Adds another slice over the same memory, with the same values. */
static struct sheaf_slice *again(struct hand *h, int slice)
{
	struct sheaf_slice *s = hand_add(h, NULL, NULL, 0, 0);

	*s = h->s[slice];
	hand_as(h, NULL, h->name[slice]);
	return s;
}

static struct sheaf_slice *first(struct hand *h, const char *family, const char *name, int rows)
{
	struct sheaf_slice *s = hand_add(h, family, name, SHEAF_F32, 2, rows, COLUMNS);

	hand_as(h, NULL, name);
	return s;
}

static void *floats(struct hand *h, const struct sheaf_slice *s)
{
	return hand_block(h, s->count[0] * s->count[1] * (int64_t)sizeof(float));
}

/* Adds two slices of one buffer, each with two thirds of its rows. */
static void add_pieces(struct hand *h, const char *name)
{
	struct sheaf_slice *a = first(h, "optimizer", name, ROWS), *b;
	int64_t n = a->count[0], third;

	hand_cut(a, 0, h->rank, h->ranks);
	n = a->count[0];
	third = n / 3;
	a->data = floats(h, a);
	b = again(h, h->n - 1);
	a->count[0] -= third;
	b->start[0] += third;
	b->count[0] -= third;
	b->data = (float *)a->data + third * COLUMNS;
}

/* Adds two ranges of one flat buffer that overlap by half. */
static void add_windows(struct hand *h, const char *name)
{
	struct sheaf_slice *a = hand_add(h, "optimizer", name, SHEAF_F32, 1, LINE), *b;
	int64_t per = (LINE + h->ranks - 1) / h->ranks, from = h->rank * per, half = per / 2;

	hand_as(h, NULL, name);
	a->flags |= SHEAF_SLICE_FLAT;
	a->flat_start = from;
	a->flat_count = per;
	a->data = hand_block(h, (per + half) * (int64_t)sizeof(float));
	b = again(h, h->n - 1);
	b->flat_start += half;
	b->data = (float *)a->data + half;
}

/* Adds two tensors whose rows alternate in one buffer. */
static void add_woven(struct hand *h, const char *name)
{
	struct sheaf_slice *a = first(h, "model", name, ROWS), *b;

	hand_cut(a, 0, h->rank, h->ranks);
	a->stride[0] = 2 * COLUMNS;
	a->stride[1] = 1;
	a->data = hand_block(h, 2 * a->count[0] * COLUMNS * (int64_t)sizeof(float));
	b = again(h, h->n - 1);
	b->name = hand_text(h, name, ".v");
	hand_as(h, NULL, b->name);
	b->origin = COLUMNS;
}

static void add_kind(struct hand *h, enum kind kind, const char *name, bool cut)
{
	bool half = kind == MASTERS;
	struct sheaf_slice *s;

	if (kind == PIECES || kind == WINDOWS || kind == WOVEN) {
		(kind == PIECES ? add_pieces : kind == WINDOWS ? add_windows : add_woven)(h, name);
		return;
	}
	s = first(h, half ? "master_weights" : "model", name, ROWS);
	if (cut)
		hand_cut(s, 0, h->rank, h->ranks);
	s->data = floats(h, s);
	if (kind == ALONE)
		return;
	s = again(h, h->n - 1);
	if (kind == TIED) {
		s->name = hand_text(h, name, ".head");
		s->tied_to = name;
	}
	if (kind == MASTERS) {
		s->family = "model";
		s->dtype = SHEAF_BF16;
		s->data_dtype = SHEAF_F32;
	}
}

/* Each step has values of its own. */
static void paint_step(struct hand *h, int64_t step)
{
	static const char *const steps[STEPS] = { "s0", "s1", "s2", "s3", "s4", "s5" };

	for (int i = 0; i < h->n; i++)
		h->family[i] = steps[step % STEPS];
}

static void spoil_item(void *arg, struct hand *h, int slice, int64_t global, uint8_t *at)
{
	int type = h->s[slice].data_dtype ? h->s[slice].data_dtype : h->s[slice].dtype;

	(void)arg;
	(void)global;
	memset(at, 0x5A, (size_t)hand_bits(type) / 8);
}

/* Overwrites all of the slice and nothing beside it. */
static void change(struct hand *h, int slice)
{
	hand_each(h, slice, spoil_item, NULL);
}

static int fail_here(struct hand *h, const char *what)
{
	return shf_fail(&h->err, SHEAF_EBUG, "%s", what);
}

/* Adds the slice to the state with memory of its own, which the caller frees. */
static uint8_t *apart(struct hand *h, int slice, struct sheaf_state *state)
{
	struct sheaf_slice own = h->s[slice];
	uint8_t *at = h->s[slice].data, *block;
	size_t n = hand_block_of(h, slice, &at);

	block = malloc(n + 1);
	if (!block)
		abort();
	memset(block, 0x33, n + 1);
	h->s[slice].data = own.data = block + ((uint8_t *)h->s[slice].data - at);
	own.flags |= SHEAF_SLICE_COPY;
	(void)shf_state_add(state, &own, NULL);
	return block;
}

/* Loads the step into slices that share no memory, and compares it with what memory held. */
static int look(struct hand *h, int64_t n)
{
	struct sheaf_state *state = shf_state_new();
	struct sheaf_checkpoint *step = NULL;
	uint8_t *blocks[HAND_SLICES];
	void *data[HAND_SLICES];
	int rc;

	for (int i = 0; i < h->n; i++) {
		data[i] = h->s[i].data;
		blocks[i] = apart(h, i, state);
	}
	rc = shf_step_open(&step, h->run, n, &h->err);
	if (rc == 0)
		paint_step(h, sheaf_checkpoint_number(step));
	if (rc == 0)
		rc = shf_step_load(step, state, SHEAF_LOAD_CONVERT, NULL, &h->err);
	shf_step_put(step);
	if (rc == 0 && hand_wrong(h, h->err.msg, sizeof(h->err.msg)))
		rc = SHEAF_EBUG;
	for (int i = 0; i < h->n; i++) {
		h->s[i].data = data[i];
		free(blocks[i]);
	}
	shf_state_put(state);
	return rc;
}

/* ---- one slice is asked for, and changes ---- */

static uint64_t flags_now;
static bool in_place;

static void hold_kind(struct hand *h)
{
	/* What is copied first is something else. */
	add_kind(h, ALONE, "a.first", true);
	add_kind(h, (enum kind)h->play->variant, "t", true);
	for (int i = 0; in_place && i < h->n; i++)
		h->s[i].flags |= SHEAF_SLICE_IN_PLACE;
}

/* Asks for the slices from the last to the first, and changes each when its gate has opened. */
static int ask_for_the_last(struct hand *h)
{
	const struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags_now };
	struct sheaf_save *save = NULL;
	int rc;

	paint_step(h, 1);
	hand_paint(h);
	rc = shf_save_begin(&save, h->run, 1, h->state, &opts, &h->err);
	for (int i = 0; i < h->n && rc == 0 && flags_now & SHEAF_SAVE_LATER; i++)
		rc = shf_save_put(save, i, NULL, NULL);
	if (rc == 0 && shf_save_copied(save, h->n - 1, 0, NULL) != SHEAF_EAGAIN)
		rc = fail_here(h, "a gate is open although nothing is copied");
	for (int i = h->n; i-- > 0 && rc == 0;) {
		rc = shf_save_copied(save, i, -1, NULL);
		change(h, i);
	}
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc == 0 ? look(h, 1) : rc;
}

static void last_gate_first(enum kind kind, uint64_t flags, bool place)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold_kind);

	flags_now = flags;
	in_place = place;
	p.variant = (int)kind;
	simdisk_set_task_steps(disk, 0);
	CHECK_RC(hands_run(&p, ask_for_the_last, false), 0, &p.err);
	simdisk_free(disk);
}

static void each_way(enum kind kind)
{
	last_gate_first(kind, SHEAF_SAVE_LAZY, false);
	last_gate_first(kind, SHEAF_SAVE_LAZY, true);
	last_gate_first(kind, SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK, false);
	last_gate_first(kind, SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK, true);
	last_gate_first(kind, SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER, false);
	last_gate_first(kind, SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER | SHEAF_SAVE_CHECK, false);
}

TEST(a_tied_tensor_may_change_when_its_bytes_are_copied)
{
	each_way(TIED);
}

TEST(a_slice_that_was_added_twice_may_change_when_its_bytes_are_copied)
{
	each_way(DOUBLED);
}

TEST(pieces_that_overlap_may_change_when_both_are_copied)
{
	each_way(PIECES);
	each_way(WINDOWS);
}

TEST(masters_may_change_when_the_weights_in_their_memory_are_copied)
{
	each_way(MASTERS);
}

/* ---- memory that is moved, or brought elsewhere ---- */

/* A tied tensor stays where it is, and what it is tied to is moved away before the next save. */
static int move_apart(struct hand *h)
{
	const struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;
	int rc = 0, head = h->n - 1, embed = h->n - 2;

	for (int64_t n = 1; n < 4 && rc == 0; n++) {
		paint_step(h, n);
		hand_paint(h);
		rc = shf_save_begin(&save, h->run, n, h->state, &opts, &h->err);
		if (rc == 0 && shf_save_copied(save, head, 0, NULL) !=
		               (h->s[head].data == h->s[embed].data ? SHEAF_EAGAIN : 0))
			rc = fail_here(h, "the gate of what is tied");
		for (int i = 0; i < h->n && rc == 0; i++) {
			rc = shf_save_copied(save, i, -1, NULL);
			change(h, i);
		}
		if (rc == 0)
			rc = shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
		save = NULL;
		if (n == 1)     /* apart, and together again */
			h->s[embed].data = floats(h, &h->s[embed]);
		else
			h->s[head].data = h->s[embed].data;
		if (rc == 0)
			rc = shf_state_move(h->state, n == 1 ? embed : head, h->s[embed].data,
			                    NULL);
	}
	for (int64_t n = 1; n < 4 && rc == 0; n++)
		rc = look(h, n);
	return rc;
}

/* Two ranks with tied tensors, whose copies wait until somebody asks. */
static void play_tied(int (*act)(struct hand *h), bool fill)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold_kind);

	in_place = false;
	p.variant = TIED;
	simdisk_set_task_steps(disk, 0);
	CHECK_RC(hands_run(&p, act, fill), 0, &p.err);
	simdisk_free(disk);
}

TEST(where_a_slice_was_moved_to_counts)
{
	play_tied(move_apart, false);
}

/* A slice is not moved while its bytes are still to be read through another slice. */
static int move_early(struct hand *h)
{
	const struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;
	int head = h->n - 1, rc;

	paint_step(h, 1);
	hand_paint(h);
	rc = shf_save_begin(&save, h->run, 1, h->state, &opts, &h->err);
	if (rc == 0 && shf_state_move(h->state, head, h->s[head].data, NULL) != SHEAF_EINVAL)
		rc = fail_here(h, "memory that is to be read is moved");
	if (rc == 0)
		rc = shf_save_copied(save, head, -1, NULL);
	if (rc == 0)
		rc = shf_state_move(h->state, head, h->s[head].data, NULL);
	shf_save_free(save);
	return rc;
}

TEST(a_tied_tensor_is_not_moved_before_its_bytes_are_copied)
{
	play_tied(move_early, false);
}

/* When the gate of a failed save has returned, the slice may be moved. */
static int move_after_failure(struct hand *h)
{
	const struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;
	int head = h->n - 1, rc;

	rc = shf_save_begin(&save, h->run, 1, h->state, &opts, &h->err);
	if (rc == 0)
		rc = shf_save_fail(save, "not wanted", NULL);
	if (rc == 0 && shf_save_copied(save, head, -1, NULL) != SHEAF_EFAILED)
		rc = fail_here(h, "the gate of a save that has failed");
	if (rc == 0)
		rc = shf_state_move(h->state, head, h->s[head].data, NULL);
	shf_save_free(save);
	return rc;
}

TEST(what_a_failed_save_has_let_go_is_moved)
{
	play_tied(move_after_failure, true);
}

/* Slices go through one buffer, one after the other: none waits for those that are not there. */
static int through_one_buffer(struct hand *h)
{
	const struct sheaf_save_opts opts = { .size = sizeof(opts),
		.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER | (h->play->step == 1 ? SHEAF_SAVE_CHECK
		                                               : 0) };
	uint8_t *room = malloc(1 << 20), *at;
	struct sheaf_save *save = NULL;
	int rc;

	paint_step(h, 1);
	hand_paint(h);
	rc = shf_save_begin(&save, h->run, 1, h->state, &opts, &h->err);
	for (int i = h->n; i-- > 0 && rc == 0;) {
		size_t n = hand_block_of(h, i, &at);

		memcpy(room, at, n);
		rc = shf_save_put(save, i, room + ((uint8_t *)h->s[i].data - at), NULL);
		if (rc == 0 && i > 0 && h->s[i - 1].data == h->s[i].data)
			rc = shf_save_put(save, i - 1, room + ((uint8_t *)h->s[i].data - at), NULL);
		for (int k = 0; k < 2 && rc == 0; k++) {
			if (k == 0 || (i > 0 && h->s[i - 1].data == h->s[i].data))
				rc = shf_save_copied(save, i - k, -1, NULL);
			memset(room, 0xA6, 1 << 20);
		}
		if (i > 0 && h->s[i - 1].data == h->s[i].data)
			i--;
	}
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	free(room);
	return rc == 0 ? look(h, 1) : rc;
}

TEST(what_is_brought_through_one_buffer_waits_for_what_is_there)
{
	for (int i = 0; i < 2 * KINDS; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold_kind);

		if (i / 2 == PIECES || i / 2 == WINDOWS || i / 2 == WOVEN) {
			simdisk_free(disk);
			continue;
		}
		in_place = false;
		p.variant = i / 2;
		p.step = i % 2;
		simdisk_set_task_steps(disk, 0);
		CHECK_RC(hands_run(&p, through_one_buffer, false), 0, &p.err);
		simdisk_free(disk);
	}
}

/* ---- all of it, drawn ---- */

enum mode { PLAIN, PLACE, LATER, MEMORY, AVERAGES, MODES };
static const char *const modes[MODES] = { "plain", "in place", "later", "memory", "averages" };
static int64_t newest;                  /* in memory or on disk */
/* Counted by rank 0: steps that were loaded and were right; saves that memory alone has. */
static long compared[MODES], remembered;

static enum mode mode_of(const struct play *p)
{
	return (enum mode)(p->seed % MODES);
}

/* Equal on all ranks. */
static void hold_drawn(struct hand *h)
{
	static const char *const names[] = { "t0", "t1", "t2", "t3" };
	uint64_t x = h->play->seed * 7919 + 3;

	for (int i = 0; i < 4; i++) {
		enum kind kind = (enum kind)(rng_next(&x) % KINDS);
		int from = h->n;
		bool cut = rng_next(&x) % 4 > 0;

		if (kind == MASTERS && h->play->opts.flags & SHEAF_RUN_REPLICAS)
			kind = TIED; /* replicas of another type are not compared */
		if (i == 0 && mode_of(h->play) == AVERAGES)
			kind = TIED; /* something to average */
		add_kind(h, kind, names[i], cut);
		for (; from < h->n; from++) {
			h->s[from].flags |= SHEAF_SLICE_COPY; /* some are moved apart */
			if (mode_of(h->play) == PLACE && rng_next(&x) % 3 > 0)
				h->s[from].flags |= SHEAF_SLICE_IN_PLACE;
		}
	}
}

static void shuffle(int *order, int n, uint64_t *x)
{
	for (int i = 0; i < n; i++)
		order[i] = i;
	for (int i = n; i-- > 1;) {
		int k = (int)(rng_next(x) % (uint64_t)(i + 1)), t = order[k];

		order[k] = order[i];
		order[i] = t;
	}
}

static int put_all(struct hand *h, struct sheaf_save *save, uint64_t *x)
{
	int order[HAND_SLICES], rc = 0;

	shuffle(order, h->n, x);
	for (int i = 0; i < h->n && rc == 0; i++) {
		rc = shf_save_put(save, order[i], NULL, NULL);
		if (rc == 0 && rng_next(x) % 3 == 0)
			(void)shf_save_copied(save, order[rng_next(x) % (uint64_t)(i + 1)],
			                      (int)(rng_next(x) % 2) - 1, NULL);
	}
	return rc;
}

/* Asks for all slices in a drawn order, and changes each when its gate has opened, also if the save
 * has failed. */
static int pass_gates(struct hand *h, struct sheaf_save *save, bool failed, uint64_t *x)
{
	int order[HAND_SLICES], rc = 0;

	shuffle(order, h->n, x);
	for (int i = 0; i < h->n && rc == 0; i++) {
		if (rng_next(x) % 4 == 0 && shf_save_copied(save, order[i], 0, NULL) == 0)
			change(h, order[i]);
		if (rng_next(x) % 16 == 0)
			rc = shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL);
		else
			rc = shf_save_copied(save, order[i], -1, NULL);
		if (failed && rc != SHEAF_EAGAIN)
			rc = 0;
		if (rc == 0)
			change(h, order[i]);
		else
			rc = shf_fail(&h->err, rc, "the gate of slice %d", order[i]);
	}
	return rc;
}

/* Moves a slice to memory of its own, or back to that of another slice with the same values. */
static int move_some(struct hand *h, uint64_t *x)
{
	int k = (int)(rng_next(x) % (uint64_t)h->n), rc = 0;
	uint8_t *at, *to;
	size_t n;

	for (int i = 0; i < h->n && rc == 0; i++)
		if (i != k && strcmp(h->name[i], h->name[k]) == 0 &&
		    h->s[i].origin == h->s[k].origin && h->s[i].flat_start == h->s[k].flat_start &&
		    h->s[i].start[0] == h->s[k].start[0] && h->s[i].count[0] == h->s[k].count[0] &&
		    h->s[i].dtype != SHEAF_BF16 && h->s[k].dtype != SHEAF_BF16 && rng_next(x) % 2) {
			h->s[k].data = h->s[i].data;
			return shf_state_move(h->state, k, h->s[k].data, NULL);
		}
	n = hand_block_of(h, k, &at);
	if (n == 0 || h->blocks_n + 1 == HAND_BLOCKS)
		return 0;
	to = hand_block(h, (int64_t)n);
	h->s[k].data = to + ((uint8_t *)h->s[k].data - at);
	return shf_state_move(h->state, k, h->s[k].data, NULL);
}

struct training {
	bool made[STEPS];               /* averages */
	bool there[STEPS];              /* on disk */
	struct sheaf_save *before;
	int64_t before_step;
	bool before_failed, before_kept;
};

static int end_before(struct hand *h, struct training *t, bool ask)
{
	int rc = SHEAF_EAGAIN;

	if (!t->before)
		return 0;
	if (!t->before_failed) {
		for (int i = 0; ask && i < 3 && rc == SHEAF_EAGAIN; i++)
			rc = shf_save_commit(t->before, 0, &h->err);
		if (rc == SHEAF_EAGAIN)
			rc = shf_save_commit(t->before, -1, &h->err);
		t->there[t->before_step] = rc == 0 && !t->before_kept;
		newest = rc == 0 ? t->before_step : newest;
		remembered += rc == 0 && t->before_kept && h->rank == 0;
	}
	rc = t->before_failed ? 0 : rc;
	shf_save_free(t->before);
	t->before = NULL;
	return rc;
}

static int one_step(struct hand *h, struct training *t, int64_t n, uint64_t all, uint64_t *own)
{
	enum mode mode = mode_of(h->play);
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;
	bool failed = false;
	int rc;

	opts.flags |= rng_next(&all) % 3 == 0 ? SHEAF_SAVE_CHECK : 0;
	opts.flags |= mode == LATER && rng_next(&all) % 4 ? SHEAF_SAVE_LATER : 0;
	opts.flags |= mode == MEMORY && rng_next(&all) % 2 ? SHEAF_SAVE_NO_DISK : 0;
	opts.flags |= rng_next(&all) % 4 == 0 ? SHEAF_SAVE_MAY_DROP : 0;
	paint_step(h, n);
	hand_paint(h);
	rc = shf_save_begin(&save, h->run, n, h->state, &opts, &h->err);
	if (rc == SHEAF_EAGAIN && (opts.flags & SHEAF_SAVE_MAY_DROP || mode == MEMORY))
		return 0;
	if (rc == 0 && opts.flags & SHEAF_SAVE_LATER)
		rc = put_all(h, save, own);
	if (rc == 0 && rng_next(&all) % 5 == 0) {
		failed = true;
		if (rng_next(own) % 2)
			(void)shf_save_fail(save, "not wanted", NULL);
	}
	if (rc == 0 && rng_next(&all) % 3 == 0)
		rc = end_before(h, t, rng_next(&all) % 2);
	if (rc == 0)
		rc = pass_gates(h, save, failed, own);
	if (rc == 0)
		rc = end_before(h, t, rng_next(&all) % 2);
	t->before = save;
	t->before_step = n;
	t->before_failed = failed;
	t->before_kept = opts.flags & SHEAF_SAVE_NO_DISK;
	return rc;
}

struct average {
	int64_t last;
	int wrong;
};

/* Compares an average, of which each begin made one update, with the formula. */
static void look_at_average(void *arg, struct hand *h, int slice, int64_t global, uint8_t *at)
{
	struct average *a = arg;
	float e = 0, got;

	memcpy(&got, at, sizeof(got));
	for (int64_t n = 0; n <= a->last; n++) {
		uint32_t bits;
		float w;

		paint_step(h, n);
		bits = (uint32_t)hand_value(h->family[slice], h->name[slice], SHEAF_F32, global);
		memcpy(&w, &bits, sizeof(w));
		e = n == 0 ? w : fmaf(0.5f, e, 0.5f * w);
	}
	a->wrong += got != e;
}

static int look_at_averages(struct hand *h)
{
	for (size_t i = 0; i < h->state->emas[0].n; i++) {
		const struct shf_slice *e = &h->state->slices[h->state->emas[0].first + i];
		int k = (int)h->state->emas[0].source[i];
		struct sheaf_slice as = h->s[k];
		struct average a = { STEPS - 1, 0 };

		if (e->empty)
			continue;
		h->s[k].flags |= SHEAF_SLICE_FLAT;
		h->s[k].flat_start = e->mem.lo;
		h->s[k].flat_count = e->mem.hi - e->mem.lo;
		h->s[k].data = e->mem.base;
		h->s[k].data_dtype = SHEAF_F32;
		hand_each(h, k, look_at_average, &a);
		h->s[k] = as;
		if (a.wrong)
			return shf_fail(&h->err, SHEAF_EBUG, "%d averages of slice %d (%s)",
			                a.wrong,
			                k, h->s[k].name);
	}
	return 0;
}

static int compare(struct hand *h, int64_t n)
{
	int rc = look(h, n);

	if (rc == 0 && h->rank == 0)
		compared[mode_of(h->play)]++;
	return rc;
}

static int train(struct hand *h)
{
	const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };
	uint64_t all = h->play->seed * 77 + 1, own = all * 31 + (uint64_t)h->rank;
	struct training t = { .before_step = -1 };
	bool averages = mode_of(h->play) == AVERAGES;
	int rc = 0;

	if (averages)
		rc = shf_state_ema(h->state, NULL, &ema, NULL);
	for (int64_t n = 0; n < STEPS && rc >= 0; n++) {
		rc = one_step(h, &t, n, rng_next(&all), &own);
		while (rc == 0 && rng_next(&own) % 3 == 0)
			rc = move_some(h, &own);
	}
	if (rc == 0)
		rc = end_before(h, &t, rng_next(&all) % 2);
	shf_save_free(t.before);
	if (rc == 0 && averages)
		rc = look_at_averages(h);
	for (int64_t n = 0; n < STEPS && rc == 0; n++)
		if (t.there[n])
			rc = compare(h, n);
	return rc;
}

static int look_at_newest(struct hand *h)
{
	return newest < 0 ? 0 : compare(h, SHEAF_LATEST);
}

static bool one_seed(uint64_t seed)
{
	static const int32_t nodes[4] = { 1, 2, 1, 2 };
	struct simdisk *disk = simdisk_new(seed, SIMDISK_STRICT);
	uint64_t x = seed * 13 + 5;
	struct play p = hands_play(disk, 1 + (int)(rng_next(&x) % 4), hold_drawn);
	int rc;

	newest = -1;
	p.seed = seed;
	p.nodes = rng_next(&x) % 3 == 0 ? nodes : NULL;
	p.opts.flags |= rng_next(&x) % 3 == 0 ? SHEAF_RUN_REPLICAS : 0;
	p.opts.images_max = 2 + (int)(rng_next(&x) % 2);
	p.opts.copy_threads = 1 + (int)(rng_next(&x) % 2);
	p.opts.agent = mode_of(&p) == MEMORY ? "auto" : NULL;
	simdisk_set_agents(disk, mode_of(&p) == MEMORY ? UINT64_C(1) << 30 : 0);
	simdisk_set_task_steps(disk, (long)(rng_next(&x) % 4) - 1);
	rc = hands_run(&p, train, false);
	if (rc == 0)
		rc = hands_run(&p, look_at_newest, false);
	if (rc)
		print_error("%s: %d %s (test_slice_overlaps --seeds %llu..%llu drawn)\n",
		            modes[mode_of(&p)], rc, p.err.msg, (unsigned long long)seed,
		            (unsigned long long)seed);
	simdisk_free(disk);
	return rc == 0;
}

TEST(slices_of_drawn_states_change_behind_their_gates)
{
	int bad = 0;

	for (uint64_t seed = seeds_first; seed <= seeds_last && bad < 5; seed++)
		bad += !one_seed(seed);
	CHECK_INT(bad, 0);
	/* A save that finds no image or agent is left out: not all of them were. */
	for (int mode = 0; mode < MODES; mode++) {
		print_message("# %s: %ld steps were compared\n", modes[mode], compared[mode]);
		CHECK(compared[mode] >= (long)(seeds_last - seeds_first) / MODES);
	}
	print_message("# %ld saves to memory alone\n", remembered);
	CHECK(remembered >= (long)(seeds_last - seeds_first) / MODES);
}

int main(int argc, char **argv)
{
	char *rest[64];
	int n = 0;

	for (int i = 0; i < argc && n < 63; i++) {
		unsigned long long from, to;

		if (i + 1 < argc && strcmp(argv[i], "--seeds") == 0 &&
		    sscanf(argv[i + 1], "%llu..%llu", &from, &to) == 2) {
			seeds_first = from;
			seeds_last = to;
			i++;
		} else {
			rest[n++] = argv[i];
		}
	}
	return t_main(n, rest);
}
