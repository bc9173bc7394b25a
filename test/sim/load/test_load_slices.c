/* SPDX-License-Identifier: Apache-2.0 */
/* Loads slice by slice: they give the bits of a load at once, whatever the layout and the flags;
 * what was not taken, was damaged or is misused is told on all ranks; the slices of averages and of
 * steps in memory; threads that take at once. */
#include "hands.h"
#include <errno.h>
#include <stdlib.h>
#include "acts.h"
#include "items.h"
#include "averages.h"
#include "layouts.h"
#include "load_slices.h"
#include "one_rank.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "sheaf-load.h"
#include "state.h"
#include "takes.h"
#include "t.h"

/* ---- drawn states ---- */

enum { TENSORS = 24 };
/* Which tensors are stored, and which are asked for. */
enum kind { BOTH, STORED, OPTIONAL, ABSENT, MASTER, WEIGHT, MOMENT, OTHER_SHAPE, OTHER_TYPE,
	NOT_LOADED, TIED, KINDS };

static uint64_t draw(uint64_t *x)
{
	uint64_t z = *x += 0x9E3779B97F4A7C15u;

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

static int pick(uint64_t *x, int n)
{
	return (int)(draw(x) % (uint64_t)n);
}

/* A slice of a tensor whose shape follows from `like`, held in a way that follows from `held`. */
static struct sheaf_slice *one(struct hand *h, const char *family, const char *name, int dtype,
                               uint64_t like, uint64_t held)
{
	int ndim = pick(&like, 4), big = pick(&like, 8) == 0;
	int rows = big ? 700 + pick(&like, 99) : 1 + pick(&like, 9);
	int cols = big ? 601 : 1 + pick(&like, 40), way, by;
	struct sheaf_slice *s;

	if (dtype == SHEAF_F4)
		return hand_add(h, family, name, dtype, 2, rows, 16 * (1 + pick(&like, 3)));
	s = ndim == 0 ? hand_add(h, family, name, dtype, 0)
	  : ndim == 1 ? hand_add(h, family, name, dtype, 1, rows * cols)
	  : ndim == 2 ? hand_add(h, family, name, dtype, 2, rows, cols)
	  : hand_add(h, family, name, dtype, 3, rows, 3, cols);
	way = pick(&held, 6);
	by = ndim > 0 ? pick(&held, ndim) : 0;
	if (way == 0 && ndim > 0) {                     /* a flat range, of the whole tensor */
		int64_t n = items_n(s);

		s->flags |= SHEAF_SLICE_FLAT;
		s->flat_start = n * h->rank / h->ranks;
		s->flat_count = n * (h->rank + 1) / h->ranks - s->flat_start;
	} else if (way > 1 && ndim > 0) {
		hand_cut(s, by, h->rank, h->ranks);
	}
	if (way == 2 && ndim == 2) {                    /* transposed */
		s->stride[0] = 1;
		s->stride[1] = s->count[0] > 0 ? s->count[0] : 1;
	} else if (way == 3 && ndim == 2) {             /* padded rows, behind something else */
		s->stride[0] = s->count[1] + 3;
		s->stride[1] = 1;
		s->origin = 5;
	} else if (way == 4 && (dtype == SHEAF_F32 || dtype == SHEAF_BF16)) {
		s->data_dtype = dtype == SHEAF_F32 ? SHEAF_BF16 : SHEAF_F32;
	}
	return s;
}

static void both(struct hand *h, bool loads, enum kind kind, const char *name, int dtype,
                 uint64_t like, uint64_t held)
{
	bool weight = kind == MASTER || kind == WEIGHT;
	struct sheaf_slice *s;

	if (kind == OTHER_TYPE || weight || kind == MOMENT)
		dtype = loads ? SHEAF_F32 : SHEAF_BF16;
	if (kind == WEIGHT)
		dtype = loads ? SHEAF_BF16 : SHEAF_F32;
	if (kind == OTHER_SHAPE)
		like += loads;
	s = one(h, kind == MOMENT ? "optimizer" : weight && loads == (kind == MASTER)
	           ? "master_weights" : "model", name, dtype, like, held);
	if (weight)
		s->data_dtype = 0;
	if (kind == OPTIONAL)
		s->flags |= SHEAF_SLICE_OPTIONAL;
	if (kind == NOT_LOADED && loads)
		s->flags |= SHEAF_SLICE_SAVE_ONLY;
	if (kind == TIED && !loads)
		s->tied_to = "t0";
}

/* play.variant: twice the number of the draw, and 1: what is loaded. */
static void hold_drawn(struct hand *h)
{
	static const int types[] = { SHEAF_F32, SHEAF_BF16, SHEAF_F32, SHEAF_U8, SHEAF_I64,
		SHEAF_F8_E4M3, SHEAF_F4 };
	bool loads = h->play->variant & 1;
	uint64_t x = (uint64_t)(h->play->variant / 2) * 977;

	for (int k = 0; k < TENSORS; k++) {
		/* The kinds that a load without flags refuses are the rarer ones. */
		enum kind kind = k == 0 || pick(&x, 2) ? BOTH : (enum kind)pick(&x, KINDS);
		int dtype = types[pick(&x, (int)(sizeof(types) / sizeof(types[0])))];
		uint64_t like = draw(&x), held = draw(&x) + loads;
		char name[8];

		snprintf(name, sizeof(name), "t%d", k);
		if (kind == TIED)       /* as t0 is, whose type and shape it has */
			kind = BOTH;
		if ((kind == STORED && loads) || (!loads && (kind == ABSENT || kind == MOMENT ||
		                                             kind == OPTIONAL)))
			continue;
		both(h, loads, kind, hand_text(h, name, ""), dtype, like, held);
	}
	if (!loads)
		hand_add(h, "model", "first", SHEAF_F32, 2, 9, 11);
	for (int k = 0; k < 2; k++) {                   /* tied in the step, or in the state */
		struct sheaf_slice *s = hand_add(h, "model", k ? "second" : "third", SHEAF_F32, 2,
		                                 9, 11);

		s->tied_to = "first";
	}
}

static uint64_t flags_of(int number)
{
	static const uint64_t may[] = { SHEAF_LOAD_CONVERT, SHEAF_LOAD_DERIVE, SHEAF_LOAD_ZERO,
		SHEAF_LOAD_LENIENT };
	uint64_t x = (uint64_t)number, flags = 0;

	for (int i = 0; i < 4; i++)
		flags |= pick(&x, 5) ? may[i] : 0;
	return flags | (pick(&x, 16) ? 0 : SHEAF_LOAD_STRICT);
}

/* ---- both ways ---- */

struct told {                   /* items of a report, but for what was not verified */
	char text[16384];
};

static void item_told(void *arg, int32_t kind, const char *family, const char *name,
                      const char *msg)
{
	struct told *t = arg;
	size_t at = strlen(t->text);

	if (kind != SHEAF_REPORT_UNVERIFIED)
		snprintf(t->text + at, sizeof(t->text) - at, "%c %s/%s: %s\n",
		         hands_letter(kind), family, name, msg);
}

/* All blocks of the hand, one behind the other. */
static uint8_t *blocks_of(const struct hand *h, size_t *n)
{
	uint8_t *all;

	*n = 0;
	for (int i = 0; i < h->blocks_n; i++)
		*n += h->blocks_bytes[i];
	all = malloc(*n + 1);
	if (!all)
		abort();
	*n = 0;
	for (int i = 0; i < h->blocks_n; i++) {
		memcpy(all + *n, h->blocks[i], h->blocks_bytes[i]);
		*n += h->blocks_bytes[i];
	}
	return all;
}

/* The same slices, some of them without memory. */
static struct sheaf_state *state_without(const struct hand *h, uint64_t seed, void *data[])
{
	struct sheaf_state *state = shf_state_new();

	for (int i = 0; i < h->n; i++) {
		struct sheaf_slice s = h->s[i];
		int how = pick(&seed, 3);

		data[i] = how == 0 ? NULL : s.data;
		s.data = how == 1 ? NULL : s.data;
		(void)shf_state_add(state, &s, NULL);
	}
	return state;
}

static bool differs(struct hand *h, const struct sheaf_report *a, const struct sheaf_report *b)
{
	uint64_t x[] = { a->loaded, a->missing, a->unexpected, a->converted, a->derived, a->ignored,
		a->mismatched, a->zeroed, a->held, a->bytes, a->files, (uint64_t)a->step };
	uint64_t y[] = { b->loaded, b->missing, b->unexpected, b->converted, b->derived, b->ignored,
		b->mismatched, b->zeroed, b->held, b->bytes, b->files, (uint64_t)b->step };

	for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++)
		if (x[i] != y[i]) {
			snprintf(h->err.msg, sizeof(h->err.msg), "report: number %zu is %llu, by "
			         "slices %llu", i, (unsigned long long)x[i],
			         (unsigned long long)y[i]);
			return true;
		}
	return false;
}

/* Loads at once and by slices. 0: both gave the same, also where both failed. */
static int both_act(struct hand *h)
{
	struct play *p = h->play;
	struct told *told = calloc(2, sizeof(*told));
	struct sheaf_report one = { .size = sizeof(one), .item = item_told, .arg = &told[0] };
	struct sheaf_report two = { .size = sizeof(two), .item = item_told, .arg = &told[1] };
	struct sheaf_report end = { .size = sizeof(end) };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err = { 0 };
	void *data[HAND_SLICES];
	struct takes how = { data, (size_t)h->n, p->seed + (uint64_t)h->rank, p->variant % 6 };
	struct sheaf_state *state = state_without(h, p->seed, data);
	uint8_t *was = NULL, *is = NULL;
	size_t n = 0;
	int rc = shf_step_open(&step, h->run, p->step, &h->err), want = rc, got = rc;

	if (rc == 0) {
		want = shf_step_load(step, h->state, p->flags, &one, &h->err);
		was = blocks_of(h, &n);
		hand_fill(h, 0xA5);
		got = takes_load(step, state, p->flags, &how, &two, &end, &err);
		is = blocks_of(h, &n);
		rc = 0;
	}
	if (got != want || strcmp(err.msg, h->err.msg)) {
		snprintf(h->err.msg, sizeof(h->err.msg), "at once %d, by slices %d: %.300s", want,
		         got, err.msg);
		rc = SHEAF_EBUG;
	} else if (rc == 0 && memcmp(was, is, n)) {
		size_t i = 0;

		while (was[i] == is[i])
			i++;
		snprintf(h->err.msg, sizeof(h->err.msg), "byte %zu of %zu differs", i, n);
		rc = SHEAF_EBUG;
	} else if (strcmp(told[0].text, told[1].text)) {
		snprintf(h->err.msg, sizeof(h->err.msg), "told: %.200s; by slices: %.200s",
		         told[0].text, told[1].text);
		rc = SHEAF_EBUG;
	} else if (rc == 0 && want == 0 && differs(h, &one, &end)) {
		rc = SHEAF_EBUG;
	}
	if (h->rank == 0)
		p->wrong = want;
	free(was);
	free(is);
	free(told);
	shf_state_put(state);
	shf_step_put(step);
	return rc;
}

TEST(takes_give_the_bits_of_a_load_at_once)
{
	int loaded = 0, refused = 0, stride = T_STRIDE * T_FEWER;

	for (int i = t_from(stride); i < 240; i += stride) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 1 + i % 4, hold_drawn);

		p.variant = 2 * i;
		p.opts.file_bytes_max = i % 3 ? 0 : 65536;
		SAVED(p);
		p.variant = 2 * i + 1;
		p.ranks = 1 + i / 4 % 4;
		p.seed = (uint64_t)i;
		p.flags = flags_of(i);
		if (hands_run(&p, both_act, false) != 0)
			print_error("draw %d: %d: %s\n", i, p.rc, p.err.msg);
		CHECK_INT(p.rc, 0);
		CHECK(p.wrong == 0 || p.wrong == SHEAF_ELAYOUT);
		loaded += p.wrong == 0;
		refused += p.wrong != 0;
		simdisk_free(disk);
	}
	CHECK(loaded > refused / 4);
	CHECK(refused > 0 || stride > 20);
}

/* ---- acts of ranks ---- */

/* The number of a line that is not as it should be comes back as -1000 less. */

#define WANT(x)                                                                          \
	do {                                                                             \
		if (!(x))                                                                \
			return -1000 - __LINE__;                                         \
	} while (0)
/* This code, and this in the sentence. */
#define SAYS(rc, code, word)                                                             \
	do {                                                                             \
		int rc_ = (rc);                                                          \
		if (rc_ != (code) || !strstr(h->err.msg, (word)))                        \
			fprintf(stderr, "%d %s\n", rc_, h->err.msg);                     \
		WANT(rc_ == (code) && strstr(h->err.msg, (word)));                       \
	} while (0)
#define TAKE(i, data) shf_load_slices_take(load, (i), (data), &h->err)
#define BEGIN(flags) shf_load_slices_begin(&load, step, h->state, (flags), NULL, &h->err)
#define END() shf_load_slices_end(load, 0, NULL, &h->err)

enum { PART, ABSENT_ONE, WHOLE };

static void hold_three(struct hand *h)
{
	hand_cut(hand_add(h, "model", "part", SHEAF_F32, 2, 9, 31), 0, h->rank, h->ranks);
	hand_add(h, "model", "absent", SHEAF_F32, 1, 5)->flags = SHEAF_SLICE_OPTIONAL;
	hand_add(h, "model", "whole", SHEAF_F32, 2, 7, 13);
	if (!h->play->variant) /* saves */
		h->s[ABSENT_ONE].name = "present";
}

static struct simdisk *saved_three(void)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold_three);

	SAVED(p);
	return disk;
}

/* On two ranks, with slices that have no memory of their own. */
static int acts(struct simdisk *disk, int (*act)(struct hand *h), struct play *p)
{
	*p = hands_play(disk, 2, hold_three);
	p->variant = 1;
	return hands_run(p, act, false);
}

/* A state of the hand's slices, without their memory, in place of the hand's. */
static void without_memory(struct hand *h)
{
	shf_state_put(h->state);
	h->state = shf_state_new();
	for (int i = 0; i < h->n; i++) {
		struct sheaf_slice s = h->s[i];

		s.data = NULL;
		(void)shf_state_add(h->state, &s, NULL);
	}
}

static int misuse_act(struct hand *h)
{
	struct sheaf_slice more = { .size = sizeof(more), .name = "more", .dtype = SHEAF_F32 };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_load *load = NULL, *other = NULL;
	struct sheaf_save *save = NULL;
	void *part = h->s[PART].data, *whole = h->s[WHOLE].data;
	char why[300] = "";

	without_memory(h);
	WANT(shf_step_open(&step, h->run, 7, &h->err) == 0);
	SAYS(BEGIN(SHEAF_LOAD_DRY), SHEAF_EINVAL, "SHEAF_LOAD_DRY");
	SAYS(BEGIN(SHEAF_LOAD_FALLBACK), SHEAF_EINVAL, "SHEAF_LOAD_FALLBACK");
	WANT(!load && !h->run->lineage.unsure);
	WANT(BEGIN(0) == 0 && load && h->run->lineage.unsure);  /* a try was counted */
	WANT(shf_load_slices_fills(load, PART, &h->err) == 1);
	WANT(shf_load_slices_fills(load, ABSENT_ONE, &h->err) == 0);
	WANT(shf_load_slices_fills(load, -1, &h->err) == SHEAF_EINVAL);
	WANT(shf_load_slices_fills(load, 3, &h->err) == SHEAF_EINVAL);
	SAYS(TAKE(3, whole), SHEAF_EINVAL, "there is no slice 3");
	SAYS(TAKE(-1, whole), SHEAF_EINVAL, "there is no slice -1");
	SAYS(TAKE(ABSENT_ONE, whole), SHEAF_EINVAL, "model/absent: the load has nothing for it");
	SAYS(TAKE(PART, NULL), SHEAF_EINVAL, "no buffer was given");
	/* Meanwhile the state is of no use to others. */
	SAYS(shf_state_take(h->state, &more, &h->err), SHEAF_EINVAL, "until it ends no slice");
	SAYS(shf_save_begin(&save, h->run, 8, h->state, NULL, &h->err), SHEAF_EINVAL,
	     "end it first with");
	SAYS(shf_step_load(step, h->state, 0, NULL, &h->err), SHEAF_EINVAL, "end it first with");
	SAYS(shf_load_slices_begin(&other, step, h->state, 0, NULL, &h->err), SHEAF_EINVAL,
	     "end it first with");
	/* What one rank has forgotten, all are told of; then it goes on. */
	SAYS(END(), SHEAF_EINVAL, "2 slices of this rank, the first of them model/part, were not");
	WANT(h->err.rank == 0);
	WANT(TAKE(PART, part) == 0);
	if (h->rank == 0)
		WANT(TAKE(WHOLE, whole) == 0);
	SAYS(END(), SHEAF_EINVAL, "1 slice of this rank, the first of them model/whole, was not");
	WANT(h->err.rank == 1);
	WANT(TAKE(WHOLE, whole) == 0 && TAKE(WHOLE, whole) == 0); /* twice is fine */
	h->want[ABSENT_ONE] = HAND_KEPT;
	WANT(hand_wrong(h, why, sizeof(why)) == 0);
	WANT(h->run->lineage.loaded == -1);
	WANT(END() == 0);
	WANT(h->run->lineage.loaded == 7 && h->run->lineage.parent == 7);
	SAYS(TAKE(PART, part), SHEAF_EINVAL, "the load has ended: call sheaf_load_begin");
	SAYS(END(), SHEAF_EINVAL, "the load has ended; free it");
	shf_load_slices_free(load);
	WANT(BEGIN(0) == 0);
	shf_load_slices_free(load);
	shf_load_slices_free(NULL);
	shf_step_put(step);
	return 0;
}

TEST(what_is_misused_or_forgotten_is_named_and_the_load_goes_on)
{
	struct simdisk *disk = saved_three();
	struct play p;

	CHECK_RC(acts(disk, misuse_act, &p), 0, &p.err);
	simdisk_free(disk);
}

/* Handles may be closed first; a load that is freed without its end loads nothing. */
static int early_act(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_load *load = NULL;

	without_memory(h);
	WANT(shf_step_open(&step, h->run, 7, &h->err) == 0);
	WANT(BEGIN(0) == 0 && TAKE(PART, h->s[PART].data) == 0);
	shf_load_slices_free(load);
	WANT(h->run->lineage.loaded == -1);
	WANT(shf_state_ready(h->state, false, &h->err) == 0);
	WANT(BEGIN(0) == 0);
	shf_state_put(h->state);
	h->state = NULL;
	shf_step_put(step);
	WANT(TAKE(PART, h->s[PART].data) == 0 && TAKE(WHOLE, h->s[WHOLE].data) == 0 && END() == 0);
	shf_load_slices_free(load);
	return 0;
}

TEST(step_and_state_may_go_before_the_load)
{
	struct simdisk *disk = saved_three();
	struct play p;

	CHECK_RC(acts(disk, early_act, &p), 0, &p.err);
	simdisk_free(disk);
}

/* ---- damage ---- */

/* A read fails on rank 1, once and for good. */
static int failing_act(struct hand *h)
{
	struct simdisk_fault fault = { .nth = 1, .error = EIO, .kind = SIMDISK_PREAD,
		.always = true, .name = "model-00001", .process = acts_process(h) };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_load *load = NULL;
	int rc;

	WANT(shf_step_open(&step, h->run, 7, &h->err) == 0);
	for (int again = 1; again >= 0; again--) {
		WANT(BEGIN(0) == 0);
		if (h->rank == 1)
			simdisk_fault(h->play->disk, &fault);
		rc = TAKE(PART, NULL);
		WANT(rc == (h->rank == 1 ? SHEAF_EIO : 0));
		if (h->rank == 1)
			simdisk_faults_clear(h->play->disk);
		if (again)
			WANT(TAKE(PART, NULL) == 0);
		WANT(TAKE(WHOLE, NULL) == 0);
		rc = END();
		WANT(rc == (again ? 0 : SHEAF_EIO));
		WANT(again || (h->err.rank == 1 && strstr(h->err.msg, "model-00001")));
		WANT(again || END() == SHEAF_EINVAL);
		shf_load_slices_free(load);
	}
	shf_step_put(step);
	return 0;
}

TEST(a_take_that_failed_fails_the_load_unless_it_is_repeated)
{
	struct simdisk *disk = saved_three();
	struct play p;

	CHECK_RC(acts(disk, failing_act, &p), 0, &p.err);
	simdisk_free(disk);
}

/* Two slices of different blocks fail, and one of them is taken again. */
static void hold_blocks(struct hand *h)
{
	for (int k = 0; k < 3; k++)
		hand_add(h, "model", k == 0 ? "a" : k == 1 ? "b" : "c", SHEAF_F32, 1, 400000);
}

static int blocks_act(struct hand *h)
{
	static const char file[] = "run/checkpoint-7/model-00001-of-00001.safetensors";
	const uint64_t bits[2] = { 8 * 500000, 8 * 4500000 };   /* in a, and in c */
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_load *load = NULL;

	WANT(shf_step_open(&step, h->run, 7, &h->err) == 0 && BEGIN(0) == 0);
	for (int i = 0; i < 2; i++)
		WANT(simdisk_flip(h->play->disk, file, bits[i]) == 0);
	SAYS(TAKE(2, NULL), SHEAF_ECORRUPT, "(model/c)");
	SAYS(TAKE(0, NULL), SHEAF_ECORRUPT, "block 0 at byte 0");
	WANT(TAKE(1, NULL) == 0);       /* whose blocks are sound */
	WANT(simdisk_flip(h->play->disk, file, bits[0]) == 0);
	WANT(TAKE(0, NULL) == 0);
	SAYS(END(), SHEAF_ECORRUPT, "model/c could not be taken");
	shf_load_slices_free(load);
	shf_step_put(step);
	return 0;
}

TEST(damage_is_found_by_the_slices_whose_blocks_it_touches)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, hold_blocks);

	SAVED(p);
	CHECK_RC(hands_run(&p, blocks_act, false), 0, &p.err);
	simdisk_free(disk);
}

/* What end reports: a tensor that some rank takes whole is compared with its digest. */
static int report_act(struct hand *h)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step = NULL;
	struct takes how = { 0 };

	WANT(shf_step_open(&step, h->run, 7, &h->err) == 0);
	WANT(takes_load(step, h->state, 0, &how, NULL, &report, &h->err) == 0);
	WANT(report.unverified == 1 && report.loaded == 2 && report.step == 7);
	WANT(report.disk_bytes >= report.held && report.node_bytes == 0 && report.net_bytes == 0);
	shf_step_put(step);
	return 0;
}

TEST(a_tensor_that_no_rank_takes_whole_is_reported_as_unverified)
{
	struct simdisk *disk = saved_three();
	struct play p;

	CHECK_RC(acts(disk, report_act, &p), 0, &p.err);
	simdisk_free(disk);
}

/* ---- a rank that dies ---- */

static int reached[3];                  /* 1: the end, 2: what is behind it */

static int dying(void *arg, int rank, struct sheaf_group *group)
{
	struct simdisk *disk = arg;
	const struct shf_sys *sys = simdisk_process(disk, 700 + (uint64_t)rank, 0);
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY,
		.timeout_ms = 5000 };
	struct sheaf_slice s = { .size = sizeof(s), .name = "whole", .dtype = SHEAF_F32, .ndim = 2,
		.shape = { 7, 13 }, .count = { 7, 13 } };
	struct sheaf_state *state = shf_state_new();
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_load *load = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err;
	float data[7 * 13];
	int rc = shf_run_open(&run, "run", group, &opts, sys, &err);

	(void)shf_state_add(state, &s, NULL);
	if (rc == 0)
		rc = shf_step_open(&step, run, 7, &err);
	if (rc == 0)
		rc = shf_load_slices_begin(&load, step, state, 0, NULL, &err);
	if (rc == 0)
		rc = shf_load_slices_take(load, 0, data, &err);
	reached[rank] = rc == 0;
	if (rc == 0)
		rc = shf_load_slices_end(load, 0, NULL, &err);
	reached[rank] += rc == 0;
	shf_load_slices_free(load);
	shf_step_put(step);
	shf_run_close(run);
	shf_state_put(state);
	simdisk_kill(disk, sys);
	return rc;
}

TEST(a_rank_that_dies_between_begin_and_end_is_lost)
{
	struct simdisk *disk = saved_three();
	struct simgroup_opts o = { .seed = 5, .ranks = 3, .die_rank = 1 };
	int results[3], died = 0;

	for (reached[1] = 0; reached[1] < 2;) {
		o.die_at++;
		CHECK_INT(simgroup_run(&o, dying, disk, results), 0);
		if (reached[1] != 1)
			continue;
		CHECK_INT(results[0], SHEAF_ELOST);
		CHECK_INT(results[2], SHEAF_ELOST);
		died++;
	}
	CHECK(died > 0);
	simdisk_free(disk);
}

/* ---- threads, averages, memory ---- */

static void hold_many(struct hand *h)
{
	for (int k = 0; k < 60; k++) {
		char name[12];

		snprintf(name, sizeof(name), "n%d", k);
		hand_cut(hand_add(h, "model", hand_text(h, name, ""), SHEAF_F32, 2, 40 + k, 100), 0,
		         h->rank, h->ranks);
	}
}

TEST(eight_threads_take_from_many_files)
{
	for (int ranks = 1; ranks <= 2; ranks++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold_many);

		p.opts.file_bytes_max = 40000;
		SAVED(p);
		p.ranks = ranks;
		p.takes = 8;
		LOADED_AT_ONCE(p);
		simdisk_free(disk);
	}
}

static void hold_weights(struct hand *h)
{
	hand_add(h, "model", "w", SHEAF_F32, 1, 50);
}

static int average_act(struct hand *h)
{
	struct sheaf_ema e = { .size = sizeof(e), .coef = 0.5 };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_load *load = NULL;
	struct sheaf_save *save = NULL;
	float *w = h->s[0].data, was[50];
	int saves = h->play->variant == 0;

	WANT(shf_state_ema(h->state, NULL, &e, &h->err) == 0);
	for (int64_t n = 1; saves && n <= 2; n++) {
		for (int i = 0; i < 50; i++)
			w[i] = (float)(n * i);
		WANT(shf_save_begin(&save, h->run, n, h->state, NULL, &h->err) == 0);
		WANT(shf_save_commit(save, -1, &h->err) == 0);
		shf_save_free(save);
	}
	if (saves)
		return 0;
	WANT(shf_step_open(&step, h->run, 2, &h->err) == 0 && BEGIN(0) == 0);
	SAYS(TAKE(1, was), SHEAF_EINVAL, "ema/w: averages are in memory of the state");
	WANT(TAKE(1, NULL) == 0 && TAKE(0, was) == 0);
	WANT(h->state->emas[0].updates == 0);
	WANT(END() == 0);
	WANT(h->state->emas[0].updates == 2);
	for (int i = 0; i < 50; i++)    /* 1 * i and 2 * i, half of each */
		WANT(was[i] == (float)(2 * i) &&
		     ((float *)(void *)h->state->slices[1].mem.base)[i] == (float)i * 1.5f);
	shf_load_slices_free(load);
	/* Where the weights have no memory, their averages have none. */
	without_memory(h);
	WANT(shf_state_ema(h->state, NULL, &e, &h->err) == 0);
	SAYS(BEGIN(0), SHEAF_EINVAL, "averages of weights that have no memory");
	shf_step_put(step);
	return 0;
}

TEST(averages_are_taken_into_the_memory_of_the_state)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, hold_weights);

	CHECK_RC(hands_run(&p, average_act, true), 0, &p.err);
	p.variant = 1;
	CHECK_RC(hands_run(&p, average_act, false), 0, &p.err);
	simdisk_free(disk);
}

TEST(a_step_in_memory_is_taken_from_there)
{
	for (int cols = 0; cols < 2; cols++) {
		struct simdisk *d = re_world(3);

		re_cols = cols ? 60000 : 700;
		struct re_job j = re_on(d, 3, (struct re_plan){ .last = 5 });
		struct re_job k = re_on(d, 2, (struct re_plan){ .stop = true, .takes = 2 });

		PLAYED(j, 0);
		PLAYED(k, 0);
		CHECK_INT(k.loaded, 5);
		CHECK_INT(k.disk_bytes, 0);
		CHECK(k.memory_bytes > 0);
		simdisk_free(d);
	}
	re_cols = 700;
}

/* Of several nodes: from the memory of the own node, and the rest from disk; if it is not there,
 * the load is refused before anything is taken. */
TEST(a_step_in_the_memory_of_several_nodes_is_taken_from_disk_as_well)
{
	struct re_plan saves = { .last = 6, .disk_every = 3, .images = 3, .nodes = 2 };
	struct re_plan takes = { .stop = true, .takes = 3, .nodes = 2 };
	struct simdisk *d = re_world(4);
	struct re_job j, k;

	re_cols = 60000;
	j = re_on(d, 4, saves);
	k = re_on(d, 4, takes);
	PLAYED(j, 0);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 6);
	CHECK(k.memory_bytes > 0);
	takes.backwards = true;         /* the last rank is where it was not */
	k = re_on(d, 3, takes);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 6);
	CHECK(k.disk_bytes > 0);
	simdisk_free(d);
	d = re_world(5);
	saves.disk_every = 0;
	j = re_on(d, 4, saves);
	k = re_on(d, 3, takes);
	PLAYED(j, 0);
	PLAYED(k, SHEAF_EINVAL);
	CHECK(strstr(k.why, "lies in the memory of another node, and the step is not on disk"));
	simdisk_free(d);
	re_cols = 700;
}

/* A job that goes on saves into the memory that a load is taken from. */
TEST(memory_that_is_reused_meanwhile_is_told_from_damage)
{
	struct one o = one_new(0);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_load *load = NULL;
	struct re_mine mine;
	struct sheaf_state *st = re_state(&mine, 0, 1);

	one_saves(&o, 1, SHEAF_SAVE_NO_DISK);
	CHECK_RC(shf_step_open(&step, o.run, SHEAF_LATEST, &o.err), 0, &o.err);
	CHECK_RC(shf_load_slices_begin(&load, step, st, 0, NULL, &o.err), 0, &o.err);
	CHECK_RC(shf_load_slices_take(load, 0, NULL, &o.err), 0, &o.err);
	for (int n = 2; n < 8; n++)
		one_saves(&o, n, SHEAF_SAVE_NO_DISK);
	for (int i = 0; i < RE_TENSORS; i++) {
		CHECK_RC(shf_load_slices_take(load, i, NULL, &o.err), SHEAF_EAGAIN, &o.err);
		CHECK(strstr(o.err.msg, "this checkpoint in memory was overwritten by a"));
	}
	CHECK_RC(shf_load_slices_end(load, 0, NULL, &o.err), SHEAF_EAGAIN, &o.err);
	shf_load_slices_free(load);
	shf_step_put(step);
	shf_state_put(st);
	re_free(&mine);
	one_end(&o);
}

/* ---- layouts ---- */

enum { LAY_SLICES = 200 };

static int layout_act(struct hand *h)
{
	const struct layout *l = &layouts[h->play->variant % layouts_n];
	bool saves = h->play->variant >= layouts_n;
	struct sheaf_slice slices[LAY_SLICES];
	struct sheaf_state *state = shf_state_new();
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_save *save = NULL;
	struct takes how = { .seed = (uint64_t)h->rank, .threads = 2 };
	char why[300] = "";
	int n = 0, rc;
	struct lay_memory *m = lay_hold(l, h->rank, slices, LAY_SLICES, &n, saves, 1);

	for (int i = 0; i < n; i++)
		(void)shf_state_add(state, &slices[i], NULL);
	if (saves) {
		rc = shf_save_begin(&save, h->run, 7, state, NULL, &h->err);
		rc = rc ? rc : shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
	} else {
		rc = shf_step_open(&step, h->run, 7, &h->err);
		rc = rc ? rc : takes_load(step, state, 0, &how, NULL, NULL, &h->err);
		if (rc == 0 && lay_wrong(m, why, sizeof(why)))
			rc = snprintf(h->err.msg, sizeof(h->err.msg), "%.290s", why);
		shf_step_put(step);
	}
	lay_free(m);
	shf_state_put(state);
	return rc;
}

TEST(every_layout_takes_what_another_one_saved)
{
	for (int i = 0; i < layouts_n; i++) {
		int other = (i * 7 + 3) % layouts_n;
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, layouts[i].ranks, NULL);

		if (layouts[i].small != layouts[other].small)
			other = i;
		p.variant = layouts_n + i;
		CHECK_RC(hands_run(&p, layout_act, false), 0, &p.err);
		p.variant = other;
		p.ranks = layouts[other].ranks;
		CHECK_RC(hands_run(&p, layout_act, false), 0, &p.err);
		simdisk_free(disk);
	}
}
