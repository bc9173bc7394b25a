/* SPDX-License-Identifier: Apache-2.0 */
/* Weights, their averages and the copy in the background under schedules drawn from a seed
 * (weave.h): an optimizer changes each tensor as soon as its gate opens, in an order of its own,
 * while threads average and copy others, while the save before is committed, and while this one is
 * failed, freed or followed by the next. What memory and every committed step must hold is known
 * beforehand.
 *
 *   test_weave [--seeds FIRST..LAST] [part of a test's name ...]
 */
#include <math.h>
#include <stdlib.h>
#include "average.h"
#include "box_copy.h"
#include "dtype.h"
#include "averages.h"
#include "sheaf-stat.h"
#include "step.h"
#include "save.h"
#include "simdisk.h"
#include "weave.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"
#include "state.h"
#include "step_open.h"
#include "read_slice.h"
#include "run_ops.h"

#define main t_main
#include "average_step.h"
#include "simover.h"
#include "t.h"
#undef main

enum { SLICES = 6, STEPS = 9, EMAS = 2, LARGE = 5, LARGE_COLUMNS = 400000 };
static uint64_t seeds_first = 1, seeds_last = 60 / T_FEWER;

static const struct tensor {
	const char *family, *name;
	int64_t rows, columns;
	int dtype;
	bool turned, averaged;
} tensors[SLICES] = {
	{ "model", "own", 16, 24, SHEAF_F32, false, true },
	{ "model", "half", 20, 8, SHEAF_BF16, false, false },
	{ "master_weights", "half", 20, 8, SHEAF_F32, true, true },
	{ "master_weights", "more", 9, 5, SHEAF_F32, false, true },
	{ "optimizer", "own", 10, 10, SHEAF_F32, false, false },
	{ "model", "large", 3, 50, SHEAF_F32, false, true },
};
static const struct sheaf_ema rules[EMAS] = {
	{ .size = sizeof(rules[0]), .coef = 0.9 },
	{ .size = sizeof(rules[0]), .name = "slow", .coef = 0.99, .interval = 2, .loss_max = 2,
	  .warmup = 4 },
};

struct values {                 /* of all slices, and of their averages; owned */
	uint8_t *w[SLICES];
	float *e[EMAS][SLICES];
};
struct world {
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct sheaf_slice s[SLICES];
	size_t n[SLICES], bytes[SLICES];
	struct values now;              /* w: the caller's memory; e: what must be */
	struct values then[STEPS];      /* as each save found them */
	bool committed[STEPS];
	int64_t updates[EMAS];
	bool begun[EMAS];
	struct sheaf_save *save, *before;
	bool given_up, before_given_up, before_unasked;
	bool later;                     /* no averages, slices are brought */
	bool checks;                    /* SHEAF_SAVE_CHECK */
	int64_t before_step;
	uint64_t version;               /* of the weights */
	const char *wrong;              /* the first thing that was */
	int images, threads;
};

/* What the machine does, and what happened while it did. */
static int averaging, copying;
static uint64_t in_averages, in_copies, between, gates, given_up, freed, followed, dropped,
                averaged_alone,
                behind, brought;

void __real_shf_average(float *e, const void *w, int w_dtype, size_t n, double coef);
void __wrap_shf_average(float *e, const void *w, int w_dtype, size_t n, double coef);
void __real_shf_box_copy_in(const struct shf_lt_tensor *t, const struct shf_slice *s,
                            const struct shf_box *box, struct shf_place_at to,
                            struct shf_box_copy_sums *sums);
void __wrap_shf_box_copy_in(const struct shf_lt_tensor *t, const struct shf_slice *s,
                            const struct shf_box *box, struct shf_place_at to,
                            struct shf_box_copy_sums *sums);

/* In two halves, between which anything may happen. */
void __wrap_shf_average(float *e, const void *w, int w_dtype, size_t n, double coef)
{
	const size_t half = n / 2;

	averaging++;
	weave_point();
	__real_shf_average(e, w, w_dtype, half, coef);
	weave_point();
	__real_shf_average(e + half, (const uint8_t *)w + half * shf_dtype(w_dtype)->bits / 8,
	                   w_dtype, n - half, coef);
	weave_point();
	averaging--;
}

void __wrap_shf_box_copy_in(const struct shf_lt_tensor *t, const struct shf_slice *s,
                            const struct shf_box *box, struct shf_place_at to,
                            struct shf_box_copy_sums *sums)
{
	copying++;
	weave_point();
	__real_shf_box_copy_in(t, s, box, to, sums);
	weave_point();
	copying--;
}

/* ---- values ---- */

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

static void values_new(const struct world *w, struct values *v)
{
	for (int s = 0; s < SLICES; s++) {
		v->w[s] = must(calloc(w->n[s], 4));
		for (int k = 0; k < EMAS; k++)
			v->e[k][s] = must(calloc(w->n[s], sizeof(float)));
	}
}

static void values_copy(const struct world *w, struct values *to, const struct values *from)
{
	for (int s = 0; s < SLICES; s++) {
		memcpy(to->w[s], from->w[s], w->bytes[s]);
		for (int k = 0; k < EMAS; k++)
			memcpy(to->e[k][s], from->e[k][s], w->n[s] * sizeof(float));
	}
}

static void values_free(struct values *v)
{
	for (int s = 0; s < SLICES; s++) {
		free(v->w[s]);
		for (int k = 0; k < EMAS; k++)
			free(v->e[k][s]);
	}
}

/* As an optimizer that is in the midst of it for a while. */
static void become(struct world *w, int s)
{
	size_t half = w->n[s] / 2;

	in_averages += averaging > 0;
	in_copies += copying > 0 && averaging == 0;
	between += copying == 0 && averaging == 0;
	for (size_t i = 0; i < w->n[s]; i++) {
		uint32_t x = (uint32_t)(i * 2654435761u) ^
		             (uint32_t)(w->version * 40503 + (unsigned)s * 7919u);
		float v = ldexpf((float)(int32_t)(x * 0x2c1b3c6du), -31);

		if (i == half)
			weave_point();
		(void)shf_convert(w->now.w[s] + i * w->bytes[s] / w->n[s], tensors[s].dtype, &v,
		                  SHEAF_F32, 1);
	}
}

/* The formula, over memory as it lies. */
static void average_all(struct world *w, int64_t step, double loss)
{
	for (int k = 0; k < EMAS; k++) {
		const struct sheaf_ema *r = &rules[k];
		double n = (double)w->updates[k], c = r->coef;
		bool due = (!r->interval || step % r->interval == 0) &&
			   (r->loss_max == 0 || loss < r->loss_max);
		bool first = w->updates[k] == 0 && (due || !w->begun[k]);

		if (r->warmup && (1 + n) / ((double)r->warmup + n) < c)
			c = (1 + n) / ((double)r->warmup + n);
		for (int s = 0; s < SLICES && (due || first); s++)
			for (size_t i = 0; tensors[s].averaged && i < w->n[s]; i++) {
				float *e = &w->now.e[k][s][i];
				float v = ((float *)(void *)w->now.w[s])[i];
				volatile float term = (float)(1 - c) * v;

				*e = first ? v : fmaf((float)c, *e, term);
			}
		w->begun[k] |= due || first;
		w->updates[k] += due;
	}
}

static void fault(struct world *w, const char *what)
{
	w->wrong = w->wrong ? w->wrong : what;
}

/* Averages in memory are those of the formula. */
static void look_here(struct world *w, const char *when)
{
	for (int k = 0; k < EMAS; k++)
		for (size_t i = 0; i < w->state->emas[k].n; i++) {
			const struct shf_ema *e = &w->state->emas[k];
			uint32_t s = e->source[i];

			if (memcmp(w->state->slices[e->first + i].mem.base, w->now.e[k][s],
			           w->n[s] * sizeof(float)) != 0)
				fault(w, when);
		}
}

/* ---- a world ---- */

/* large: of one tensor rows and pieces are more than what is averaged at a time. */
static void hold(struct world *w, bool large, bool turned)
{
	w->state = shf_state_new();
	for (int s = 0; s < SLICES; s++) {
		const struct tensor *t = &tensors[s];
		int64_t columns = s == LARGE && large ? LARGE_COLUMNS : t->columns;
		bool as_columns = t->turned || (s == LARGE && turned);

		w->n[s] = (size_t)(t->rows * columns);
		w->bytes[s] = w->n[s] * (unsigned)shf_dtype(t->dtype)->bits / 8;
		w->s[s] = (struct sheaf_slice){ .size = sizeof(w->s[s]), .family = t->family,
			.name = t->name, .dtype = t->dtype, .ndim = 2,
			.shape = { t->rows, columns }, .count = { t->rows, columns },
			.stride = { as_columns ? 1 : 0, as_columns ? t->rows : 0 } };
	}
	values_new(w, &w->now);
	for (int n = 0; n < STEPS; n++)
		values_new(w, &w->then[n]);
	for (int s = 0; s < SLICES; s++) {
		w->s[s].data = w->now.w[s];
		(void)shf_state_add(w->state, &w->s[s], NULL);
		become(w, s);
	}
	for (int k = 0; k < EMAS && !w->later; k++)
		if (shf_state_ema(w->state, NULL, &rules[k], NULL) < 0)
			fault(w, "no averages");
}

static void release(struct world *w)
{
	shf_run_close(w->run);
	shf_state_put(w->state);
	values_free(&w->now);
	for (int n = 0; n < STEPS; n++)
		values_free(&w->then[n]);
}

/* ---- the trainer ---- */

static void optimizer(void *arg)
{
	struct world *w = arg;
	int from = (int)weave_draw(SLICES), by = weave_draw(2) ? 1 : 5;

	for (int k = 0; k < SLICES; k++) {
		int s = (from + k * by) % SLICES;
		int rc = weave_draw(3) ? SHEAF_EAGAIN : shf_save_copied(w->save, s, 0, NULL);

		if (rc == SHEAF_EAGAIN)
			rc = shf_save_copied(w->save, s, -1, NULL);
		if (rc != 0 && !(w->given_up && rc == SHEAF_EFAILED))
			fault(w, "a gate");
		become(w, s);
		gates++;
	}
}

static void become_all(struct world *w)
{
	for (int s = 0; s < SLICES; s++)
		become(w, s);
}

/* Is the save before over? */
static bool try_before(struct world *w, int wait_ms)
{
	struct sheaf_stat stat;
	struct sheaf_error err;
	int rc = shf_save_commit(w->before, wait_ms, &err);

	if (rc == SHEAF_EAGAIN) {
		shf_save_stat(w->before, &stat);
		behind += stat.phase == 6;
		return false;
	}
	if (rc != (w->before_given_up ? SHEAF_EFAILED : 0))
		fault(w, "a commit");
	w->committed[w->before_step] = rc == 0;
	shf_save_free(w->before);
	w->before = NULL;
	return true;
}

static void commit_before(struct world *w)
{
	int wait_ms = weave_draw(2) ? -1 : 0;

	while (w->before && !try_before(w, wait_ms))
		weave_point();
}

/* Nobody has asked for its slices, and nothing has changed since. */
static void ask_before(struct world *w)
{
	for (int s = 0; s < SLICES && w->before && w->before_unasked; s++)
		if (shf_save_copied(w->before, s, -1, NULL) < 0 && !w->before_given_up)
			fault(w, "a gate of the save before");
	w->before_unasked = false;
}

static void keep(struct world *w, int64_t step, bool unasked)
{
	commit_before(w);
	w->before = w->save;
	w->before_step = step;
	w->before_given_up = w->given_up;
	w->before_unasked = unasked;
}

/* A save has begun; what becomes of it is drawn. */
static void go_on(struct world *w, int64_t step)
{
	uint64_t way = weave_draw(8);
	int thread;

	for (uint64_t pause = weave_draw(2) * 60; pause > 0; pause--)
		weave_point();
	ask_before(w);
	if (way == 0) {
		shf_save_free(w->save);
		look_here(w, "averages after a save was freed");
		become_all(w);
		freed++;
		return;
	}
	if (way < 3) {
		if (weave_draw(2))
			(void)shf_save_fail(w->save, "not wanted", NULL);
		w->given_up = shf_save_failure(w->save, NULL) < 0;
		keep(w, step, true);
		followed++;
		return;
	}
	w->given_up = way == 3;
	thread = weave_start(optimizer, w);
	if (weave_draw(2))
		commit_before(w);
	if (w->given_up)
		(void)shf_save_fail(w->save, "not wanted", NULL);
	given_up += w->given_up;
	weave_join(thread);
	look_here(w, "averages behind the gates");
	keep(w, step, false);
}

/* A step that is not saved, while the save before it may still be copied. */
static void alone(struct world *w, int64_t n, double loss)
{
	struct sheaf_error err;

	if (shf_state_average(w->state, w->run, n, loss, &err) < 0)
		fault(w, "a step that is averaged alone");
	average_all(w, n, loss);
	look_here(w, "averages of a step that is not saved");
	ask_before(w);
	become_all(w);
	averaged_alone++;
}

static void one_step(struct world *w, int64_t n)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .loss = (double)weave_draw(4) };
	struct sheaf_error err;
	int rc;

	if (!w->later && weave_draw(8) == 0) {
		alone(w, n, opts.loss);
		return;
	}
	opts.flags = weave_draw(6) ? SHEAF_SAVE_LAZY : 0;
	opts.flags |= weave_draw(3) ? 0 : SHEAF_SAVE_MAY_DROP;
	opts.flags |= opts.flags & SHEAF_SAVE_LAZY && w->checks ? SHEAF_SAVE_CHECK : 0;
	w->given_up = false;
	if (w->before && !w->before_unasked && weave_draw(2)) /* published behind this one */
		(void)try_before(w, 0);
	rc = shf_save_begin(&w->save, w->run, n, w->state, &opts, &err);
	average_all(w, n, opts.loss);
	values_copy(w, &w->then[n], &w->now);
	if (rc == SHEAF_EAGAIN && opts.flags & SHEAF_SAVE_MAY_DROP) {
		look_here(w, "averages after a save was dropped");
		ask_before(w);
		become_all(w);
		dropped++;
	} else if (rc < 0) {
		fault(w, "a begin");
	} else {
		if (!(opts.flags & SHEAF_SAVE_LAZY))
			look_here(w, "averages after a plain begin");
		go_on(w, n);
	}
}

/* ---- slices that are brought ---- */

/* Each becomes the step's, is brought, and is spoilt behind its gate. */
static void author(void *arg)
{
	struct world *w = arg;
	int from = (int)weave_draw(SLICES), by = weave_draw(2) ? 1 : 5, last = -1, rc;
	int64_t n = (int64_t)w->version / 2;

	for (int k = 0; k < SLICES; k++) {
		int s = (from + k * by) % SLICES;

		w->version = (uint64_t)n * 2 + 1;
		become(w, s);
		memcpy(w->then[n].w[s], w->now.w[s], w->bytes[s]);
		if (shf_save_put(w->save, s, NULL, NULL) < 0)
			fault(w, "a slice is not taken");
		for (uint64_t pause = weave_draw(3) ? 0 : weave_draw(200); pause > 0; pause--)
			weave_point();
		if (last < 0 || weave_draw(2)) {
			last = last < 0 ? s : last;
			continue;
		}
		rc = shf_save_copied(w->save, last, -1, NULL);
		if (rc != 0 && !(w->given_up && rc == SHEAF_EFAILED))
			fault(w, "a gate");
		w->version = (uint64_t)n * 2;
		become(w, last);
		last = s;
		brought++;
	}
	rc = shf_save_copied(w->save, SHEAF_ALL_SLICES, -1, NULL);
	if (rc != 0 && !(w->given_up && rc == SHEAF_EFAILED))
		fault(w, "the gate of all");
	become_all(w);
}

static void one_step_later(struct world *w, int64_t n)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_LAZY |
	                                SHEAF_SAVE_LATER };
	struct sheaf_error err;
	int thread;

	w->version = (uint64_t)n * 2 + 1;
	w->given_up = weave_draw(8) == 0;
	if (shf_save_begin(&w->save, w->run, n, w->state, &opts, &err) < 0) {
		fault(w, "a begin");
		return;
	}
	if (weave_draw(16) == 0) {
		shf_save_free(w->save);
		freed++;
		return;
	}
	thread = weave_start(author, w);
	if (weave_draw(2))
		commit_before(w);
	if (w->given_up)
		(void)shf_save_fail(w->save, "not wanted", NULL);
	weave_join(thread);
	keep(w, n, false);
}

/* ---- what is on the disk ---- */

static bool same(struct sheaf_checkpoint *step, const struct sheaf_slice *of, const char *family,
                 const void *want, size_t bytes)
{
	struct sheaf_slice s = *of;
	struct sheaf_error err;
	bool right;

	s.family = family;
	s.data = must(calloc(bytes, 1));
	right = shf_step_read(step, &s, &err) == 0 && memcmp(s.data, want, bytes) == 0;
	free(s.data);
	return right;
}

static void look_there(struct world *w, int64_t n)
{
	struct sheaf_checkpoint *step;
	struct sheaf_error err;

	if (shf_step_open(&step, w->run, n, &err) < 0) {
		fault(w, "a committed step does not open");
		return;
	}
	for (int s = 0; s < SLICES; s++) {
		if (!same(step, &w->s[s], tensors[s].family, w->then[n].w[s], w->bytes[s]))
			fault(w, "weights of a committed step");
		for (int k = 0; k < EMAS && tensors[s].averaged && !w->later; k++)
			if (!same(step, &w->s[s], k ? "slow" : "ema", w->then[n].e[k][s],
			          w->n[s] * sizeof(float)))
				fault(w, "averages of a committed step");
	}
	shf_step_put(step);
}

static const char *one_seed(uint64_t seed, bool later, struct weave_stat *stat)
{
	struct simdisk *disk = simdisk_new(seed, SIMDISK_STRICT);
	const struct shf_sys *sys = simdisk_process(disk, 1000 + seed, 0);
	struct world w = { .later = later, .checks = !later && seed % 3 == 1 };
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE,
		.images_max = 1 + (int)(seed % 2), .copy_threads = 1 + (int)(seed / 2 % 3) };
	struct sheaf_error err;

	weave_tasks(simover(sys));
	weave_begin(seed);
	hold(&w, seed % 10 == 0, seed % 20 == 0);
	if (shf_run_open(&w.run, "run", NULL, &opts, sys, &err) < 0)
		fault(&w, "the run does not open");
	for (int64_t n = 0; n < STEPS && !w.wrong; n++) {
		w.version = (uint64_t)n + 1;
		if (later)
			one_step_later(&w, n);
		else
			one_step(&w, n);
	}
	ask_before(&w);
	commit_before(&w);
	for (int64_t n = 0; n < STEPS && !w.wrong; n++)
		if (w.committed[n])
			look_there(&w, n);
	release(&w);
	weave_end(stat);
	simdisk_free(disk);
	return w.wrong;
}

TEST(weights_change_behind_their_gates_and_every_average_is_made_once)
{
	struct weave_stat stat = { 0 };
	uint64_t seed, bad = 0;

	for (seed = seeds_first; seed <= seeds_last && bad < 3; seed++) {
		const char *wrong = one_seed(seed, false, &stat);

		if (wrong)
			print_error("%s (test_weave --seeds %llu..%llu)\n", wrong,
			            (unsigned long long)seed, (unsigned long long)seed);
		bad += wrong != NULL;
	}
	printf("# seeds %llu..%llu, %d steps each: %llu gates, %llu saves given up, %llu freed, "
	       "%llu followed, %llu dropped, %llu averaged alone; %llu asks found one being "
	       "published\n",
	       (unsigned long long)seeds_first,
	       (unsigned long long)seed - 1, (int)STEPS, (unsigned long long)gates,
	       (unsigned long long)given_up, (unsigned long long)freed,
	       (unsigned long long)followed, (unsigned long long)dropped,
	       (unsigned long long)averaged_alone,
	       (unsigned long long)behind);
	printf("# tensors changed while averages were made %llu, while others were copied %llu, "
	       "between %llu; %llu points, %llu switches, %llu waits\n",
	       (unsigned long long)in_averages, (unsigned long long)in_copies,
	       (unsigned long long)between, (unsigned long long)stat.points,
	       (unsigned long long)stat.switches, (unsigned long long)stat.blocked);
	CHECK_INT(bad, 0);
	if (seeds_last - seeds_first >= 30)
		CHECK(in_averages && in_copies && between && given_up && freed && followed &&
		      dropped && averaged_alone && behind && stat.blocked);
}

TEST(slices_are_copied_when_they_are_brought)
{
	struct weave_stat stat = { 0 };
	uint64_t seed, bad = 0;

	for (seed = seeds_first; seed <= seeds_last && bad < 3; seed++) {
		const char *wrong = one_seed(seed, true, &stat);

		if (wrong)
			print_error("%s (test_weave --seeds %llu..%llu slices)\n", wrong,
			            (unsigned long long)seed, (unsigned long long)seed);
		bad += wrong != NULL;
	}
	printf("# %llu changed while later ones were brought; %llu switches, %llu waits\n",
	       (unsigned long long)brought, (unsigned long long)stat.switches,
	       (unsigned long long)stat.blocked);
	CHECK_INT(bad, 0);
	CHECK(brought > 0);
}

TEST(a_seed_is_a_schedule)
{
	struct weave_stat once = { 0 }, again = { 0 };

	CHECK(one_seed(7, false, &once) == NULL && one_seed(7, false, &again) == NULL);
	CHECK(once.points > 1000);
	CHECK(memcmp(&once, &again, sizeof(once)) == 0);
}

int main(int argc, char **argv)
{
	char *rest[64];
	int n = 0;

	for (int i = 0; i < argc && n < 63; i++) {
		unsigned long long first, last;

		if (i + 1 < argc && strcmp(argv[i], "--seeds") == 0 &&
		    sscanf(argv[i + 1], "%llu..%llu", &first, &last) == 2) {
			seeds_first = first;
			seeds_last = last;
			i++;
		} else {
			rest[n++] = argv[i];
		}
	}
	return t_main(n, rest);
}
