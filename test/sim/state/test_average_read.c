/* SPDX-License-Identifier: Apache-2.0 */
/* Averages in the running job (sheaf_state_get_average): they have the bits that a checkpoint of
 * the step then has, whatever kind of save updates them, and a caller may exchange them with the
 * weights and back. */
#include <string.h>
#include "average_step.h"
#include "averages.h"
#include "hands.h"
#include "read_slice.h"
#include "save_averages.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_gates.h"
#include "state.h"
#include "t.h"

enum { STEPS = 9, SLICES = 4, MAX = 400 };
enum how { PLAIN, LAZY, APART, HOWS };
static const struct sheaf_ema rules[2] = {
	{ .size = sizeof(rules[0]), .coef = 0.75, .interval = 2 },
	{ .size = sizeof(rules[0]), .name = "fast", .coef = 0.25, .loss_max = 3 }
};
static enum how how;
static bool exchanges;

/* Dense, transposed with a gap between rows, a flat range, and one whose memory is BF16. */
static void hold(struct hand *h)
{
	struct sheaf_slice *s;

	hand_cut(hand_add(h, "model", "dense", SHEAF_F32, 2, 12, 9), 0, h->rank, h->ranks);
	s = hand_add(h, "model", "turned", SHEAF_F32, 2, 10, 8);
	s->stride[0] = 1;
	s->stride[1] = 13;
	s->origin = 4;
	s = hand_add(h, "model", "range", SHEAF_F32, 1, 100);
	s->flags = SHEAF_SLICE_FLAT;
	s->flat_start = h->rank * 100 / h->ranks;
	s->flat_count = (h->rank + 1) * 100 / h->ranks - s->flat_start;
	s = hand_add(h, "model", "half", SHEAF_F32, 1, 70);
	s->data_dtype = SHEAF_BF16;
}

/* Calls fn for each item of the box that this rank has, with its number in the buffer. */
static void each_item(const struct sheaf_slice *s, int64_t lo, int64_t hi,
                      void (*fn)(void *arg, int64_t k), void *arg)
{
	int64_t row = s->ndim > 1 ? s->count[1] : 1;
	bool strided = s->stride[0] != 0;

	for (int64_t i = 0; i < s->count[0]; i++)
		for (int64_t j = 0; j < row; j++) {
			int64_t k = strided ? s->origin + i * s->stride[0] + j * s->stride[1]
			                    : i * row + j;

			if (k >= lo && k < hi)
				fn(arg, k);
		}
}

static void set_weights(struct hand *h, int64_t step)
{
	for (int i = 0; i < SLICES; i++) {
		const struct shf_slice *s = &h->state->slices[i];

		for (int64_t k = s->mem.lo; k < s->mem.hi; k++) {
			int64_t v = (k * 7 + i + step * step) % 61;
			float f = (float)v;
			uint32_t bits;

			memcpy(&bits, &f, 4);
			if (s->data_dtype == SHEAF_BF16)
				((uint16_t *)(void *)s->mem.base)[k - s->mem.lo] =
				    (uint16_t)(bits >> 16);
			else
				((float *)(void *)s->mem.base)[k - s->mem.lo] = f;
		}
	}
}

struct kept {                   /* averages as they were read in the job, item by item */
	float item[2][SLICES][MAX];
	struct sheaf_average at[2][SLICES];
};

static int read_averages(struct hand *h, struct kept *kept)
{
	int rc = 0;

	for (int k = 0; k < 2; k++)
		for (int i = 0; i < SLICES && rc == 0; i++) {
			struct sheaf_average *a = &kept->at[k][i];

			a->size = sizeof(*a);
			rc = shf_state_get_average(h->state, rules[k].name, i, a, &h->err);
			if (rc == 0 && (a->count > MAX || a->slice != SLICES * (k + 1) + i))
				rc = shf_fail(&h->err, SHEAF_EBUG, "slice %d, %lld items", a->slice,
				              (long long)a->count);
			if (rc == 0 && a->count)
				memcpy(kept->item[k][i], a->data, (size_t)a->count * sizeof(float));
		}
	return rc;
}

/* ---- against what the checkpoint has ---- */

struct compare {
	const float *mine, *stored;
	int64_t start, wrong;
};

static void compare_item(void *arg, int64_t k)
{
	struct compare *c = arg;

	c->wrong += memcmp(&c->mine[k - c->start], &c->stored[k - c->start], 4) != 0;
}

static int check_stored(struct hand *h, int64_t n, const struct kept *kept)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, n, &h->err);

	for (int k = 0; k < 2; k++)
		for (int i = 0; i < SLICES && rc == 0; i++) {
			const struct sheaf_average *a = &kept->at[k][i];
			struct sheaf_slice s = h->s[i];
			float stored[MAX] = { 0 };
			struct compare c = { kept->item[k][i], stored, a->start, 0 };

			s.family = k ? "fast" : "ema";
			s.data_dtype = SHEAF_F32;
			s.flags = SHEAF_SLICE_FLAT;
			s.flat_start = a->start;
			s.flat_count = a->count;
			s.data = stored;
			rc = shf_step_read(step, &s, &h->err);
			each_item(&s, a->start, a->start + a->count, compare_item, &c);
			if (rc == 0 && c.wrong)
				rc = shf_fail(&h->err, SHEAF_EBUG, "step %lld, %s/%s: %lld differ",
				              (long long)n, s.family, s.name, (long long)c.wrong);
		}
	shf_step_put(step);
	return rc;
}

/* ---- training ---- */

/* Puts the averages where the weights are, and the weights where the averages are, of slices of
 * F32. Twice is never. */
static void exchange(struct hand *h, const struct kept *kept)
{
	for (int i = 0; i < SLICES; i++) {
		const struct shf_slice *s = &h->state->slices[i];
		const struct sheaf_average *a = &kept->at[0][i];
		float *w = (float *)(void *)s->mem.base + (a->start - s->mem.lo), t[MAX];

		if (s->data_dtype != SHEAF_F32 || !a->count)
			continue;
		memcpy(t, w, (size_t)a->count * sizeof(float));
		memcpy(w, a->data, (size_t)a->count * sizeof(float));
		memcpy(a->data, t, (size_t)a->count * sizeof(float));
	}
}

static int evaluate(struct hand *h, struct sheaf_save *save, const struct kept *kept)
{
	int rc = 0;

	for (int i = 0; i < SLICES && rc == 0; i++) {
		rc = shf_save_copied(save, i, -1, &h->err);
		if (rc == 0)
			rc = shf_save_copied(save, kept->at[0][i].slice, -1, &h->err);
	}
	if (rc == 0) {
		exchange(h, kept);
		for (int i = 0; i < SLICES && rc == 0; i++) /* the weights have their values */
			if (h->state->slices[i].data_dtype == SHEAF_F32 && kept->at[0][i].count &&
			    memcmp(h->state->slices[i].mem.base +
			           (kept->at[0][i].start - h->state->slices[i].mem.lo) * 4,
			           kept->item[0][i], (size_t)kept->at[0][i].count * 4) != 0)
				rc = SHEAF_EBUG;
		exchange(h, kept);
	}
	return rc;
}

static int one_step(struct hand *h, int64_t n)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .loss = n % 4 == 3 ? 5 : 1,
		.flags = how == PLAIN ? 0 : SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;
	static struct kept kept[4];
	int rc = 0;

	set_weights(h, n);
	if (how == APART)
		rc = shf_state_average(h->state, h->run, n, opts.loss, &h->err);
	if (rc == 0 && how == APART)
		rc = read_averages(h, &kept[h->rank]);
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, n, h->state, &opts, &h->err);
	if (rc == 0 && how != APART)    /* no gate was called, and nothing is copied yet */
		rc = read_averages(h, &kept[h->rank]);
	if (rc == 0 && exchanges)
		rc = evaluate(h, save, &kept[h->rank]);
	if (rc == 0)
		rc = shf_save_copied(save, SHEAF_ALL_SLICES, -1, &h->err);
	if (rc == 0)
		set_weights(h, 100 + n);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc == 0 ? check_stored(h, n, &kept[h->rank]) : rc;
}

static int train(struct hand *h)
{
	int rc = 0;

	for (int k = 0; k < 2 && rc == 0; k++)
		rc = shf_state_ema(h->state, NULL, &rules[k], NULL);
	for (int64_t n = 0; n < STEPS && rc == 0; n++)
		rc = one_step(h, n);
	return rc;
}

static uint64_t played(enum how of, bool with_exchange, int ranks)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, ranks, hold);
	uint64_t hash;

	how = of;
	exchanges = with_exchange;
	simdisk_set_task_steps(disk, 0);
	p.opts.flags |= SHEAF_RUN_CREATE;
	CHECK_RC(hands_run(&p, train, true), 0, &p.err);
	hash = hands_hash(disk, "run/checkpoint-8");
	simdisk_free(disk);
	return hash;
}

TEST(they_have_the_bits_that_the_checkpoint_has)
{
	for (enum how of = PLAIN; of < HOWS; of++)
		for (int ranks = 1; ranks <= 2; ranks++)
			(void)played(of, false, ranks);
}

TEST(who_exchanges_them_with_the_weights_and_back_changes_nothing)
{
	uint64_t hash = played(PLAIN, false, 2);

	for (enum how of = PLAIN; of < HOWS; of++)
		CHECK(played(of, true, 2) == hash);
}

/* ---- what is refused ---- */

static int refused(struct hand *h)
{
	struct sheaf_average a = { .size = sizeof(a) };
	struct sheaf_state *state = h->state;
	struct sheaf_error *err = &h->err;
	int rc = shf_state_ema(state, NULL, &rules[0], NULL);

#define SAYS(call, code, text)                                                                  \
	do {                                                                                    \
		if ((call) != (code) || !strstr(err->msg, (text)))                              \
			return shf_fail(err, SHEAF_EBUG, "line %d: %.300s", __LINE__, err->msg); \
	} while (0)
	if (rc < 0)
		return rc;
	SAYS(shf_state_get_average(state, NULL, 0, &a, err), SHEAF_EAGAIN,
	     "averages ema: no step has counted yet for slice 0");
	set_weights(h, 1);
	rc = shf_state_average(state, h->run, 1, 0, err);
	if (rc < 0)
		return rc;
	SAYS(shf_state_get_average(state, "none", 0, &a, err), SHEAF_EINVAL,
	     "averages none: the state has none of this name");
	SAYS(shf_state_get_average(state, NULL, SLICES, &a, err), SHEAF_EINVAL,
	     "averages ema: slice 4 is not one of those averaged");
	SAYS(shf_state_get_average(state, NULL, -1, &a, err), SHEAF_EINVAL, "slice -1 is not");
	SAYS(shf_state_get_average(state, NULL, 99, &a, err), SHEAF_EINVAL, "slice 99 is not");
	SAYS(shf_state_get_average(state, NULL, 0, NULL, err), SHEAF_EINVAL,
	     "the struct sheaf_average to fill is NULL");
	SAYS(shf_state_get_average(NULL, NULL, 0, &a, err), SHEAF_ENOMEM, "the state is NULL");
	a.size = 5;
	SAYS(shf_state_get_average(state, NULL, 0, &a, err), SHEAF_EINVAL, "average.size is 5");
	a.size = sizeof(a);
	rc = shf_state_get_average(state, NULL, 0, &a, err);
	return rc == 0 && a.data == (void *)state->slices[SLICES].mem.base ? 0 : SHEAF_EBUG;
}

TEST(what_is_refused_says_why_and_is_not_remembered)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, hold);

	CHECK_RC(hands_run(&p, refused, true), 0, &p.err);
	simdisk_free(disk);
}

/* A load that fills none, or a part of them: those that it did not fill are not there. */
static int load_parts(struct hand *h)
{
	struct sheaf_average a = { .size = sizeof(a) };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_state_ema(h->state, NULL, &rules[0], NULL);

	if (rc == 0)
		rc = shf_step_open(&step, h->run, 7, &h->err);
	if (rc == 0)
		rc = shf_step_load(step, h->state, SHEAF_LOAD_LENIENT, NULL, &h->err);
	shf_step_put(step);
	for (int i = 0; i < SLICES && rc == 0; i++) {
		int want = h->play->variant == 0 || i == 1 ? SHEAF_EAGAIN : 0;

		if (shf_state_get_average(h->state, NULL, i, &a, &h->err) != want)
			rc = SHEAF_EBUG;
	}
	if (rc == 0)
		rc = shf_state_average(h->state, h->run, 8, 0, &h->err);
	for (int i = 0; i < SLICES && rc == 0; i++)
		rc = shf_state_get_average(h->state, NULL, i, &a, &h->err);
	return rc;
}

static int save_parts(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = h->play->variant ? shf_state_ema(h->state, NULL, &rules[0], NULL) : 0;

	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static void hold_parts(struct hand *h)
{
	hold(h);
	if (h->play->flags)     /* without the averages of one */
		h->s[1].name = "another";
}

TEST(those_that_a_load_did_not_fill_are_there_once_a_step_counts)
{
	for (int variant = 0; variant < 2; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold_parts);

		p.variant = variant;
		p.flags = 1;
		CHECK_RC(hands_run(&p, save_parts, true), 0, &p.err);
		p.flags = 0;
		CHECK_RC(hands_run(&p, load_parts, true), 0, &p.err);
		simdisk_free(disk);
	}
}
