/* SPDX-License-Identifier: Apache-2.0 */
/* Averages over whole trainings: the bits of the formula in every layout, over restarts in another
 * one, whatever becomes of the saves. */
#include "hands.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "averages.h"
#include "starve.h"
#include "t.h"
#include "save_status.h"
#include "read_slice.h"

enum { STEPS = 12, TENSORS = 4 };
enum layout { WHOLE, BY_ROWS, BY_COLUMNS, FLAT, TURNED, LAYOUTS };

/* Of "a" and "b" masters are held besides weights; "c" is its own master; "d" has none. */
static const struct tensor {
	const char *name;
	int64_t rows, columns;
	int dtype;
	bool master;
} tensors[TENSORS] = {
	{ "a", 24, 16, SHEAF_BF16, true }, { "b", 5, 3, SHEAF_F16, true },
	{ "c", 7, 9, SHEAF_F32, false }, { "d", 6, 4, SHEAF_BF16, false },
};
static struct training {
	enum layout layout;
	int64_t from, to;               /* steps; from > 0: the step before is loaded first */
	struct sheaf_ema ema;
	const char *of;
	uint64_t flags;
	bool drop;                      /* all saves but the last are given up */
	bool pairs;                     /* weights change every other step only */
	bool late;                      /* each is committed when the next has begun */
	double loss[STEPS];
	long nth;                       /* allocation of rank 1's begin of step `at` fails */
	int64_t at;
} now;

static float weight(const char *name, int64_t step, int64_t i)
{
	int64_t of = now.pairs ? step / 2 * 2 : step;
	uint32_t x = (uint32_t)(i * 2654435761u + of * 40503u + (unsigned)name[0] * 7919u);

	x ^= x >> 15;
	x *= 0x2c1b3c6du;
	x ^= x >> 12;
	return ldexpf((float)(int32_t)x, -31) * (float)(1 + i % 5);
}

/* What the averages of an item are after a step; *updates: so many were made. */
static float expected(const struct training *t, const char *name, int64_t item, int64_t last,
                      int64_t *updates)
{
	float e = 0;

	*updates = 0;
	for (int64_t step = 0; step <= last; step++) {
		bool due = step % (t->ema.interval ? t->ema.interval : 1) == 0 &&
			   (t->ema.loss_max == 0 || t->loss[step] < t->ema.loss_max);
		float w = weight(name, step, item);
		double c = t->ema.coef, n = (double)*updates;

		if (t->ema.warmup && (1 + n) / ((double)t->ema.warmup + n) < c)
			c = (1 + n) / ((double)t->ema.warmup + n);
		if (due && *updates > 0) {
			volatile float term = (float)(1 - c) * w;

			e = fmaf((float)c, e, term);
		} else if (due || step == 0) {
			e = w;
		}
		*updates += due;
	}
	return e;
}

static void cut(struct sheaf_slice *s, const struct hand *h, enum layout how)
{
	int64_t items = s->shape[0] * s->shape[1];

	if (how == BY_ROWS)
		hand_cut(s, 0, h->rank, h->ranks);
	if (how == BY_COLUMNS)
		hand_cut(s, 1, h->rank, h->ranks);
	if (how == TURNED) {
		s->stride[0] = 1;
		s->stride[1] = s->shape[0];
	}
	if (how == FLAT) { /* of one buffer in which this one begins at item 100 */
		int64_t per = (items + h->ranks - 1) / h->ranks + 30;

		s->flags |= SHEAF_SLICE_FLAT;
		s->origin = 100;
		s->flat_start = 70 + h->rank * per;
		s->flat_count = per;
	}
}

static void hold(struct hand *h)
{
	for (int t = 0; t < TENSORS; t++)
		for (int master = 0; master <= tensors[t].master; master++) {
			struct sheaf_slice *s = hand_add(
			    h, master ? "master_weights" : "model", tensors[t].name,
			    master ? SHEAF_F32 : tensors[t].dtype, 2, tensors[t].rows,
			    tensors[t].columns);

			cut(s, h, master || tensors[t].dtype == SHEAF_F32 ? now.layout : WHOLE);
		}
}

/* Every item this rank has of slice k, in memory: where it is, and which of the tensor. */
static void each_item(struct hand *h, int k, int64_t step)
{
	const struct sheaf_slice *s = &h->s[k];
	int64_t stride[2] = { s->stride[0], s->stride[1] };

	if (!stride[0] && !stride[1]) {
		stride[1] = 1;
		stride[0] = s->count[1];
	}
	for (int64_t r = 0; r < s->count[0]; r++)
		for (int64_t c = 0; c < s->count[1]; c++) {
			int64_t at = s->origin + r * stride[0] + c * stride[1];
			int64_t item = (s->start[0] + r) * s->shape[1] + s->start[1] + c;
			float w = weight(s->name, step, item);

			if (s->flags & SHEAF_SLICE_FLAT &&
			    (at < s->flat_start || at >= s->flat_start + s->flat_count))
				continue;
			at -= s->flags & SHEAF_SLICE_FLAT ? s->flat_start : 0;
			if (s->dtype == SHEAF_F32)
				memcpy((float *)s->data + at, &w, sizeof(w));
			else
				(void)shf_convert((uint16_t *)s->data + at, s->dtype, &w,
				                  SHEAF_F32, 1);
		}
}

static int load(struct hand *h, int64_t n)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, n, &h->err);

	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

static int gates(struct hand *h, struct sheaf_save *save)
{
	int rc = 0;

	for (int k = 0; k < h->n && rc == 0 && now.flags & SHEAF_SAVE_LAZY; k++)
		rc = shf_save_gates_copied(save, k, -1, &h->err);
	return rc;
}

static int end(struct hand *h, struct sheaf_save *save, bool last)
{
	int rc;

	if (now.drop && !last)
		(void)shf_save_fail(save, "dropped", NULL);
	rc = save ? shf_save_commit(save, -1, &h->err) : 0;
	shf_save_free(save);
	return rc == SHEAF_EFAILED && now.drop && !last ? 0 : rc;
}

static int train(struct hand *h)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = now.flags };
	struct sheaf_save *before = NULL;
	int rc = shf_state_ema(h->state, now.of, &now.ema, NULL);

	if (rc == 0 && now.from > 0)
		rc = load(h, now.from - 1);
	for (int64_t n = now.from; n < now.to && rc == 0; n++) {
		struct sheaf_save *save = NULL;

		for (int k = 0; k < h->n; k++)
			each_item(h, k, n);
		opts.loss = now.loss[n];
		rc = shf_save_begin(&save, h->run, n, h->state, &opts, &h->err);
		if (rc == 0)
			rc = gates(h, save);
		if (rc == 0)
			rc = end(h, now.late ? before : save, n + 1 == now.to && !now.late);
		before = save;
	}
	if (rc == 0 && now.late)
		rc = end(h, before, true);
	return rc;
}

static int64_t wrong_items(struct hand *h, struct sheaf_checkpoint *step, const struct tensor *t,
                           int64_t last, int64_t *updates)
{
	size_t n = (size_t)(t->rows * t->columns);
	float *e = calloc(n, sizeof(*e));
	struct sheaf_slice s = { .size = sizeof(s), .family = "ema", .name = t->name,
		.dtype = SHEAF_F32, .ndim = 2, .shape = { t->rows, t->columns },
		.count = { t->rows, t->columns }, .data = e };
	int64_t wrong = shf_step_read(step, &s, &h->err) < 0;

	for (size_t i = 0; i < n; i++) {
		float want = expected(&now, t->name, (int64_t)i, last, updates);

		wrong += memcmp(&e[i], &want, sizeof(want)) != 0;
	}
	free(e);
	return wrong;
}

/* The step now.to - 1, by the formula. */
static int look(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int64_t last = now.to - 1, updates = -1;
	int rc = shf_step_open(&step, h->run, last, &h->err);

	for (int t = 0; t < TENSORS && rc == 0; t++) {
		bool averaged = tensors[t].master || tensors[t].dtype == SHEAF_F32;
		int64_t wrong = averaged ? wrong_items(h, step, &tensors[t], last, &updates) : 0;

		if (wrong)
			rc = shf_fail(&h->err, SHEAF_EBUG, "ema/%s: %lld items are wrong",
			              tensors[t].name, (long long)wrong);
	}
	if (rc == 0 && (step->manifest.emas_n != 1 || step->manifest.emas[0].updates != updates ||
	                strtod(step->manifest.emas[0].coef, NULL) != now.ema.coef))
		rc = shf_fail(&h->err, SHEAF_EBUG, "the manifest says %zu averages, %lld updates",
		              step->manifest.emas_n, step->manifest.emas_n
		              ? (long long)step->manifest.emas[0].updates : -1);
	shf_step_put(step);
	return rc;
}

static struct training usual(enum layout layout)
{
	struct training t = { .layout = layout, .to = STEPS,
		.ema = { .size = sizeof(t.ema), .coef = 0.9 } };

	for (int i = 0; i < STEPS; i++)
		t.loss[i] = i % 4 == 3 ? 5 : 1;
	return t;
}

static void trains(struct simdisk *disk, int ranks)
{
	struct play p = hands_play(disk, ranks, hold);

	CHECK_RC(hands_run(&p, train, false), 0, &p.err);
}

static void is_right(struct simdisk *disk)
{
	struct play p = hands_play(disk, 1, NULL);

	CHECK_RC(hands_run(&p, look, false), 0, &p.err);
}

TEST(every_layout_has_the_bits_of_the_formula)
{
	uint64_t hash = 0, h;

	for (int layout = 0; layout < LAYOUTS; layout++)
		for (int ranks = 1; ranks <= 4; ranks += 3) {
			struct simdisk *disk = disk_new();

			now = usual((enum layout)layout);
			trains(disk, ranks);
			is_right(disk);
			h = hands_hash(disk, "run/checkpoint-11");
			CHECK(hash == 0 || h == hash);
			hash = h;
			simdisk_free(disk);
		}
}

TEST(interval_loss_and_warm_up_say_which_steps_count)
{
	static const struct {
		int64_t interval, warmup;
		double loss_max;
	} rules[] = { { 3, 0, 0 }, { 0, 10, 0 }, { 0, 0, 2 }, { 2, 5, 2 }, { 50, 0, 0 },
		      { 1, 0, 0.5 }, { 0, 1, 0 } };

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		struct simdisk *disk = disk_new();

		now = usual(BY_ROWS);
		now.ema.interval = rules[i].interval;
		now.ema.warmup = rules[i].warmup;
		now.ema.loss_max = rules[i].loss_max;
		trains(disk, 3);
		is_right(disk);
		simdisk_free(disk);
	}
}

TEST(a_restart_in_another_layout_goes_on_with_the_same_bits)
{
	for (int i = 0; i < LAYOUTS * 2; i++) {
		struct simdisk *disk = disk_new();
		struct training whole = usual((enum layout)(i % LAYOUTS));

		now = whole;
		now.ema.warmup = i % 2 ? 8 : 0;
		now.to = 1 + i;
		trains(disk, 1 + i % 4);
		now.layout = (enum layout)((i + 2) % LAYOUTS);
		now.from = now.to;
		now.to = STEPS;
		trains(disk, 4 - i % 4);
		is_right(disk);
		simdisk_free(disk);
	}
}

TEST(a_save_that_fails_takes_no_update_with_it)
{
	for (int lazy = 0; lazy < 2; lazy++) {
		struct simdisk *disk = disk_new();

		now = usual(FLAT);
		now.drop = true;
		now.flags = lazy ? SHEAF_SAVE_LAZY : 0;
		trains(disk, 2);
		is_right(disk);
		simdisk_free(disk);
	}
}

/* The averages of a save are copied while the next step's are due. */
TEST(a_lazy_save_holds_the_averages_of_its_own_step)
{
	for (long steps = -1; steps < 6; steps++) {
		struct simdisk *disk = disk_new();

		now = usual(steps % 2 ? TURNED : FLAT);
		now.flags = SHEAF_SAVE_LAZY;
		now.late = true;
		simdisk_set_task_steps(disk, steps);
		trains(disk, 2);
		for (now.to = 1; now.to <= STEPS; now.to++)
			is_right(disk);
		simdisk_free(disk);
	}
}

/* ---- behind begin ---- */

/* Items of an average that are not what the formula says after a step. */
static int64_t wrong_here(struct hand *h, size_t k, int64_t step)
{
	const struct shf_slice *a = &h->state->slices[h->state->emas[0].first + k];
	const float *at = (const float *)(const void *)a->mem.base;
	int64_t wrong = 0, columns = a->mem.box.count[1], updates;

	for (int64_t i = 0; !a->empty && i < columns * a->mem.box.count[0]; i++) {
		int64_t row = i / columns, column = i % columns;
		int64_t mem = a->mem.origin + row * a->mem.stride[0] + column * a->mem.stride[1];
		int64_t item = (a->mem.box.start[0] + row) * a->items.dim[1] +
			       a->mem.box.start[1] + column;
		float want;

		if (mem < a->mem.lo || mem >= a->mem.hi)
			continue;
		want = expected(&now, a->name, item, step, &updates);
		wrong += memcmp(&at[mem - a->mem.lo], &want, sizeof(want)) != 0;
	}
	return wrong;
}

static int all_here(struct hand *h, int64_t step)
{
	for (size_t k = 0; k < h->state->emas[0].n; k++)
		if (wrong_here(h, k, step))
			return shf_fail(&h->err, SHEAF_EBUG, "average %zu is not that of step %lld",
			                k, (long long)step);
	return 0;
}

/* How the averages of a save that is copied by nobody come to be. */
enum { ASKED, GIVEN_UP, FREED, FOLLOWED, GIVEN_UP_AND_FOLLOWED, WAYS };

/* Each slice's averages are made when it has been asked for, and not before. */
static int ask_all(struct hand *h, struct sheaf_save *save, int64_t n, int want)
{
	const struct shf_ema *e = &h->state->emas[0];

	for (int k = 0; k < h->n; k++) {
		int rc = shf_save_copied(save, k, -1, NULL);

		if (rc != want && rc != 0) /* 0 too: what this rank does not write */
			return shf_fail(&h->err, SHEAF_EBUG, "slice %d is not told", k);
		for (size_t i = 0; i < e->n; i++)
			if (wrong_here(h, i, e->source[i] <= (uint32_t)k ? n : n - 1))
				return shf_fail(&h->err, SHEAF_EBUG, "average %zu at slice %d", i,
				                k);
	}
	return 0;
}

static int one_by_one(struct hand *h)
{
	const struct sheaf_save_opts behind = { .size = sizeof(behind), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *held = NULL, *save = NULL;
	int way = h->play->variant, rc = shf_state_ema(h->state, NULL, &now.ema, NULL);

	for (int64_t n = 0; n < STEPS && rc == 0; n++) {
		for (int k = 0; k < h->n; k++)
			each_item(h, k, n);
		rc = shf_save_begin(&save, h->run, n, h->state, &behind, &h->err);
		if (rc == 0 && n > 0)
			rc = all_here(h, n - 1);
		if (rc == 0 && (way == GIVEN_UP || (way == GIVEN_UP_AND_FOLLOWED && n % 2 == 0)))
			(void)shf_save_fail(save, "not wanted", NULL);
		if (rc == 0 && way >= FOLLOWED && n % 2 == 0) {
			held = save;
			continue;
		}
		if (rc == 0 && n > 0 && way != FREED)
			rc = ask_all(h, save, n, way == GIVEN_UP ? SHEAF_EFAILED : 0);
		shf_save_free(held);
		shf_save_free(save);
		held = save = NULL;
		rc = rc ? rc : all_here(h, n);
	}
	return rc;
}

TEST(averages_are_made_behind_begin_and_before_the_gate)
{
	for (int i = 0; i < WAYS * LAYOUTS; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 1 + i % 3, hold);

		now = usual((enum layout)(i / WAYS));
		p.variant = i % WAYS;
		now.pairs = p.variant >= FOLLOWED;
		simdisk_set_task_steps(disk, 0);
		CHECK_RC(hands_run(&p, one_by_one, false), 0, &p.err);
		simdisk_free(disk);
	}
}

/* Weights that are not saved are averaged all the same, so their gates count too. */
static int ask_for_the_ignored(struct hand *h)
{
	const struct sheaf_save_opts behind = { .size = sizeof(behind), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;
	int rc = shf_state_ema(h->state, NULL, &now.ema, NULL);

	for (int k = 0; k < h->n; k++)
		each_item(h, k, 0);
	rc = rc ? rc : shf_save_begin(&save, h->run, 0, h->state, &behind, &h->err);
	for (int k = 0; k < h->n && rc == 0; k++)
		if (strcmp(h->s[k].family, "master_weights") != 0)
			rc = shf_save_copied(save, k, -1, NULL);
	for (int k = 0; k < h->n && rc == 0; k++) {
		rc = shf_save_copied(save, k, -1, NULL);
		each_item(h, k, 7);
	}
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc ? rc : all_here(h, 0);
}

TEST(weights_that_are_ignored_have_averages_and_gates)
{
	static const char *const none[] = { "master_weights/*", NULL };
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold);

	now = usual(BY_ROWS);
	p.opts.ignore = none;
	simdisk_set_task_steps(disk, 0);
	CHECK_RC(hands_run(&p, ask_for_the_ignored, false), 0, &p.err);
	now.to = 1;
	is_right(disk);
	simdisk_free(disk);
}

static atomic_int dropped;

/* Two begins of every step, the second of which has no image. */
static int train_without_images(struct hand *h)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_MAY_DROP };
	struct sheaf_save *held = NULL, *save = NULL;
	int rc = shf_state_ema(h->state, NULL, &now.ema, NULL);

	for (int64_t n = 0; n < STEPS && rc == 0; n++) {
		bool last = n + 1 == STEPS;

		for (int k = 0; k < h->n; k++)
			each_item(h, k, n);
		opts.loss = now.loss[n];
		if (last) {
			shf_save_free(held);
			held = NULL;
		}
		rc = shf_save_begin(n ? &save : &held, h->run, n, h->state, &opts, &h->err);
		if (n > 0 && !last && rc == SHEAF_EAGAIN)
			rc = shf_save_begin(&save, h->run, n, h->state, &opts, &h->err) ==
				     SHEAF_EAGAIN ? 0 : SHEAF_EBUG, dropped++;
		if (rc == 0 && last)
			rc = shf_save_commit(save, -1, &h->err);
	}
	shf_save_free(save);
	shf_save_free(held);
	return rc;
}

TEST(a_save_without_an_image_is_averaged_once)
{
	static const int32_t apart[] = { 1, 2 };
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold);

	now = usual(BY_COLUMNS);
	p.nodes = apart; /* what travels is not sent before the commit */
	CHECK_RC(hands_run(&p, train_without_images, false), 0, &p.err);
	CHECK_INT(dropped, 2 * (STEPS - 2));
	is_right(disk);
	simdisk_free(disk);
}

/* All saves but the last are for memory alone, which nobody keeps. */
static int train_without_agent(struct hand *h)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts) };
	struct sheaf_save *save = NULL;
	int rc = shf_state_ema(h->state, NULL, &now.ema, NULL);

	for (int64_t n = 0; n < STEPS && rc == 0; n++) {
		bool last = n + 1 == STEPS;

		for (int k = 0; k < h->n; k++)
			each_item(h, k, n);
		opts.loss = now.loss[n];
		opts.flags = last ? 0 : SHEAF_SAVE_NO_DISK | (n % 2 ? 0 : SHEAF_SAVE_LAZY);
		rc = shf_save_begin(&save, h->run, n, h->state, &opts, &h->err);
		if (!last)
			rc = rc == SHEAF_EAGAIN ? all_here(h, n) : SHEAF_EBUG;
	}
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_save_that_no_agent_keeps_is_averaged_once)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold);

	now = usual(BY_ROWS);
	p.opts.agent = "auto";
	simdisk_set_agents(disk, 0);
	CHECK_RC(hands_run(&p, train_without_agent, false), 0, &p.err);
	is_right(disk);
	simdisk_free(disk);
}

/* A begin that fails for want of memory is called again. */
static int train_starving(struct hand *h)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = now.flags };
	struct sheaf_save *save = NULL;
	int rc = shf_state_ema(h->state, NULL, &now.ema, NULL);

	for (int64_t n = 0; n < now.to && rc == 0; n++) {
		for (int k = 0; k < h->n; k++)
			each_item(h, k, n);
		starve_left = n == now.at && h->rank == 1 ? now.nth : 0;
		rc = shf_save_begin(&save, h->run, n, h->state, &opts, &h->err);
		starve_left = 0;
		if (rc == SHEAF_ENOMEM)
			rc = shf_save_begin(&save, h->run, n, h->state, &opts, &h->err);
		rc = rc ? rc : gates(h, save);
		rc = rc ? rc : all_here(h, n);
		rc = rc ? rc : shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
		save = NULL;
	}
	return rc;
}

TEST(a_step_is_averaged_once_whichever_allocation_of_its_begin_fails)
{
	for (int i = 0; i < 4; i++) {
		long nth = 1;

		for (starved = true; starved; nth += T_FEWER) {
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, 2, hold);

			now = usual(BY_ROWS);
			now.to = 3;
			now.flags = i % 2 ? SHEAF_SAVE_LAZY : 0;
			now.at = i / 2;
			now.nth = nth;
			starved = false;
			CHECK_RC(hands_run(&p, train_starving, false), 0, &p.err);
			is_right(disk);
			simdisk_free(disk);
		}
		printf("# %s begin of step %d: %ld allocations\n", i % 2 ? "lazy" : "plain", i / 2,
		       nth - 1 - T_FEWER);
		CHECK(nth > 4);
	}
}

/* ---- steps without them, or with too few ---- */

static int plain(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc;

	for (int k = 0; k < h->n; k++)
		each_item(h, k, 0);
	rc = shf_save_begin(&save, h->run, 0, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

/* From step 1 on as if it were the first. */
static int go_on_anew(struct hand *h)
{
	int rc = shf_state_ema(h->state, NULL, &now.ema, NULL);

	rc = rc == 0 ? load(h, 0) : rc;
	if (rc == 0 && (h->state->emas[0].begun || h->state->emas[0].updates != 0))
		rc = shf_fail(&h->err, SHEAF_EBUG, "averages of nothing");
	return rc;
}

TEST(averages_begin_anew_where_a_step_has_none)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold);

	now = usual(BY_ROWS);
	CHECK_RC(hands_run(&p, plain, false), 0, &p.err);
	CHECK_RC(hands_run(&p, go_on_anew, false), 0, &p.err);
	simdisk_free(disk);
}

TEST(arguments_that_make_no_averages_are_told)
{
	static const struct {
		const char *of, *name, *said;
		double coef, loss_max;
		int64_t interval, warmup;
	} bad[] = {
		{ NULL, NULL, "not negative", 0.9, 0, 0, -1 },
		{ "Model", NULL, "no slice of family 'Model'", 0.9, 0, 0, 0 },
		{ NULL, NULL, "coef is -0.1", -0.1, 0, 0, 0 },
		{ "halves", NULL, "halves/h is F4", 0.9, 0, 0, 0 },
		{ NULL, "Ema", "must match [a-z]", 0.9, 0, 0, 0 },
		{ NULL, "model", "a family has this name already", 0.9, 0, 0, 0 },
		{ NULL, NULL, "coef is 1", 1, 0, 0, 0 },
		{ NULL, NULL, "coef is nan", NAN, 0, 0, 0 },
		{ NULL, NULL, "not negative", 0.9, 0, -1, 0 },
		{ NULL, NULL, "numbers", 0.9, NAN, 0, 0 },
		{ "ints", NULL, "ints/i is I32", 0.9, 0, 0, 0 },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct sheaf_state *st = shf_state_new();
		struct sheaf_ema e = { .size = sizeof(e), .name = bad[i].name,
			.coef = bad[i].coef, .loss_max = bad[i].loss_max,
			.interval = bad[i].interval, .warmup = bad[i].warmup };
		float w[4];
		struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32,
			.ndim = 1, .shape = { 4 }, .count = { 4 }, .data = w };
		struct sheaf_error err = { 0 };

		CHECK_INT(shf_state_add(st, &s, NULL), 0);
		s.family = "ints";
		s.name = "i";
		s.dtype = SHEAF_I32;
		CHECK_INT(shf_state_add(st, &s, NULL), 1);
		s.family = "halves";
		s.name = "h";
		s.dtype = SHEAF_F4;
		CHECK_INT(shf_state_add(st, &s, NULL), 2);
		CHECK_INT(shf_state_ema(st, bad[i].of, &e, NULL), SHEAF_EINVAL);
		CHECK_INT(shf_state_ready(st, true, &err), SHEAF_EINVAL);
		if (!strstr(err.msg, bad[i].said))
			print_error("%s\n", err.msg);
		CHECK(strstr(err.msg, bad[i].said) != NULL);
		shf_state_put(st);
	}
}

static int told(struct sheaf_state *st, const struct sheaf_ema *e, const char *word)
{
	struct sheaf_error err = { 0 };
	int rc = shf_state_ema(st, NULL, e, NULL);

	(void)shf_state_ready(st, true, &err);
	if (rc < 0 && !strstr(err.msg, word))
		print_error("%s\n", err.msg);
	CHECK(rc == 0 || strstr(err.msg, word));
	return rc;
}

TEST(averages_of_a_newer_caller_and_too_many_are_refused)
{
	struct { struct sheaf_ema e; uint64_t tail; } newer = { { .coef = 0.5 }, 0 };
	float w[4];
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 }, .count = { 4 }, .data = w };

	for (int i = 0; i < 5; i++) {
		struct sheaf_state *st = shf_state_new();

		CHECK_INT(shf_state_add(st, &s, NULL), 0);
		newer.e.size = i < 2 ? sizeof(newer) : i == 4 ? 5000 : 4;
		newer.tail = i == 1;
		CHECK_INT(told(st, i == 3 ? NULL : &newer.e,
		               i == 1 ? "does not know" : "ema.size"),
		          i == 0 ? 0 : SHEAF_EINVAL);
		shf_state_put(st);
	}
	CHECK_INT(shf_state_ema(NULL, NULL, &newer.e, NULL), SHEAF_ENOMEM);
}

TEST(eight_averages_are_as_many_as_there_can_be)
{
	struct sheaf_state *st = shf_state_new();
	float w[4];
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 }, .count = { 4 }, .data = w };

	CHECK_INT(shf_state_add(st, &s, NULL), 0);
	for (int i = 0; i <= 8; i++) {
		char name[8];
		struct sheaf_ema e = { .size = sizeof(e), .name = name, .coef = 0.5 };

		snprintf(name, sizeof(name), "ema_%d", i);
		CHECK_INT(told(st, &e, "at most 8"), i < 8 ? 0 : SHEAF_EINVAL);
	}
	shf_state_put(st);
}

/* ---- ranks with nothing to average ---- */

/* Rank 1 has the floats, if anyone has. */
static void hold_elsewhere(struct hand *h)
{
	bool here = h->rank == 1 && h->play->variant < 2;

	(void)hand_add(h, "model", "n", SHEAF_I32, 1, 4);
	if (here)
		(void)hand_add(h, "optimizer", "a", SHEAF_F32, 1, 5);
}

/* Saves and loads averages of "optimizer" (0, 2) or of what NULL means (1, 3). */
static int average_elsewhere(struct hand *h)
{
	static const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };
	const char *of = h->play->variant % 2 ? NULL : "optimizer";
	struct sheaf_save *save = NULL;
	int rc = shf_state_ema(h->state, of, &ema, NULL);

	rc = rc == 0 ? shf_save_begin(&save, h->run, 3, h->state, NULL, &h->err) : rc;
	rc = rc == 0 ? shf_save_commit(save, -1, &h->err) : rc;
	shf_save_free(save);
	return rc == 0 ? load(h, 3) : rc;
}

TEST(a_rank_may_have_nothing_to_average)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 3, hold_elsewhere);

	CHECK_RC(hands_run(&p, average_elsewhere, true), 0, &p.err);
	simdisk_free(disk);
}

static int load_averages(struct hand *h)
{
	static const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };
	int rc = shf_state_ema(h->state, h->play->variant % 2 ? NULL : "optimizer", &ema, NULL);

	return rc == 0 ? load(h, 7) : rc;
}

/* No rank has anything to average: a save and a load say so, and of what. */
TEST(averages_of_nothing_are_refused)
{
	static const char *const said[] = { "to average; add", "to average in optimizer; add" };

	for (int variant = 1; variant < 4; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold_elsewhere);

		p.variant = variant;
		CHECK_RC(hands_run(&p, average_elsewhere, true), SHEAF_EINVAL, &p.err);
		CHECK(strstr(p.err.msg, said[variant % 2 == 0]));
		CHECK_RC(hands_save(&p), 0, &p.err);
		CHECK_RC(hands_run(&p, load_averages, false), SHEAF_EINVAL, &p.err);
		CHECK(strstr(p.err.msg, said[variant % 2 == 0]));
		simdisk_free(disk);
	}
}

TEST(averages_wait_for_the_memory_of_what_they_average)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_ema e = { .size = sizeof(e), .coef = 0.5 };
	struct sheaf_error err = { 0 };
	float w[4];
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 }, .count = { 4 } };

	CHECK_INT(shf_state_add(st, &s, NULL), 0);
	CHECK_INT(shf_state_ema(st, NULL, &e, NULL), 0);
	CHECK_INT(shf_emas_ready(st, &err), 0);
	CHECK(st->slices[1].mem.base == NULL);
	CHECK_INT(shf_state_ready(st, true, &err), SHEAF_EINVAL);
	CHECK_STR(err.msg, "model/w: slice.data is NULL, but the slice is not empty");
	CHECK_INT(shf_state_move(st, 0, w, NULL), 0);
	CHECK_INT(shf_emas_ready(st, &err), 0);
	CHECK(st->slices[1].mem.base != NULL);
	CHECK_INT(shf_state_ready(st, true, &err), 0);
	st->fixed = true;
	e.name = "late";
	CHECK_INT(shf_state_ema(st, NULL, &e, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_state_ready(st, true, &err), SHEAF_EINVAL);
	CHECK_STR(err.msg, "sheaf_state_ema must be called before the first save");
	shf_state_put(st);
}

/* ---- two of them, of different families ---- */

static void hold_two(struct hand *h)
{
	(void)hand_add(h, "model", "a", SHEAF_F32, 1, 6);
	(void)hand_add(h, "optimizer", "a", SHEAF_F32, 1, 5);
}

/* Steps 0 to 3 with 1, 2, ... as values, every second of which the slow averages take; or what
 * step 3 has of them. */
static int train_two(struct hand *h)
{
	static const struct sheaf_ema fast = { .size = sizeof(fast), .name = "fast", .coef = 0 },
		slow = { .size = sizeof(slow), .name = "slow", .coef = 0.5, .interval = 2 };
	const struct shf_ema *e;
	int rc = shf_state_ema(h->state, "model", &fast, NULL);

	rc = rc == 0 ? shf_state_ema(h->state, "optimizer", &slow, NULL) : rc;
	for (int64_t n = 0; n < 4 && rc == 0 && h->play->variant == 0; n++) {
		struct sheaf_save *save = NULL;

		for (int i = 0; i < 11; i++)
			((float *)h->s[i >= 6].data)[i % 6] = (float)(n + 1);
		rc = shf_save_begin(&save, h->run, n, h->state, NULL, &h->err);
		rc = rc == 0 ? shf_save_commit(save, -1, &h->err) : rc;
		shf_save_free(save);
	}
	rc = rc == 0 && h->play->variant ? load(h, 3) : rc;
	e = h->state->emas;
	if (rc == 0 && (e[0].updates != 4 || e[1].updates != 2))
		rc = shf_fail(&h->err, SHEAF_EBUG, "%lld and %lld updates",
		              (long long)e[0].updates, (long long)e[1].updates);
	for (int i = 0; i < 11 && rc == 0; i++) {
		const float *base = (const float *)(void *)h->state->slices[2 + (i >= 6)].mem.base;

		if (base[i % 6] != (i < 6 ? 4 : 2)) /* the last; half of 1 and half of 3 */
			rc = shf_fail(&h->err, SHEAF_EBUG, "item %d is %g", i,
			              (double)base[i % 6]);
	}
	return rc;
}

TEST(two_averages_keep_their_own_count_and_come_back_with_it)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, hold_two);

	for (p.variant = 0; p.variant < 2; p.variant++)
		CHECK_RC(hands_run(&p, train_two, false), 0, &p.err);
	simdisk_free(disk);
}
