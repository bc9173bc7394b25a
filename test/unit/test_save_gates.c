/* SPDX-License-Identifier: Apache-2.0 */
/* Lazy saves with real threads on a real disk: tensors change as soon as their gate opens, by
 * another thread than the one that begins and commits, while others are copied. For ThreadSanitizer
 * as much as for the values. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "rmtree.h"
#include "save_pieces.h"
#include "procself.h"
#include "save.h"
#include "sheaf-opts.h"
#include "sheaf-stat.h"
#include "sheaf.h"
#include "sheaf-inspect.h"
#include "sheaf-state.h"
#include "rng.h"
#include "t.h"
#include "step.h"
#include "save_calls.h"

/* What is large goes in two pieces. */
enum { SLICES = 24, STEPS = T_SANITIZED ? 4 : 16, LARGE = T_SANITIZED ? 5 << 17 : 1 << 20 };
#define SEED 0x5eafu

struct world {
	char dir[32];
	struct sheaf_run *run;
	struct sheaf_state *state;
	uint32_t *data[SLICES];
	size_t n[SLICES];
	struct sheaf_save *save;        /* whose gates are passed */
	int64_t step;                   /* that tensors become */
	atomic_int passed, bad;
	uint64_t seed;
	bool averages;                  /* tensors are fp32, and have them */
};

static uint32_t value(int64_t step, int slice, size_t i)
{
	return (uint32_t)(step * 2654435761 + slice * 40503 + (int64_t)i);
}

/* As fp32 a small number, so that all of them are. */
static uint32_t item(const struct world *w, int64_t step, int slice, size_t i)
{
	uint32_t v = value(step, slice, i);
	float f = (float)(v >> 8);

	if (w->averages)
		memcpy(&v, &f, sizeof(v));
	return v;
}

static void become(struct world *w, int slice, int64_t step)
{
	for (size_t i = 0; i < w->n[slice]; i++)
		w->data[slice][i] = item(w, step, slice, i);
}

static size_t differ(const struct world *w, int slice, int64_t step)
{
	size_t n = 0;

	for (size_t i = 0; i < w->n[slice]; i++)
		n += w->data[slice][i] != item(w, step, slice, i);
	return n;
}

static uint64_t rate;
static const char *cpus;
static bool in_place;                   /* nothing is staged, in more files than slots */

static void world_init(struct world *w, int threads, int images, bool averages)
{
	const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.75 };
	struct sheaf_staging staging = { .size = sizeof(staging), .copy_threads = threads,
		.buffers_max = images, .copy_rate_max = rate, .copy_cpus = cpus };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.staging = &staging, .file_bytes_max = in_place ? 1 << 20 : 0 };
	struct sheaf_error err;

	*w = (struct world){ .dir = "gates.XXXXXX", .seed = SEED, .averages = averages };
	CHECK(mkdtemp(w->dir) != NULL);
	w->state = sheaf_state_new();
	for (int i = 0; i < SLICES; i++) {
		struct sheaf_slice s = { .size = sizeof(s), .ndim = 2 };
		char name[16];

		w->n[i] = i % 6 == 0 ? LARGE : (size_t)(i * 777 + 1);
		w->data[i] = malloc(w->n[i] * sizeof(uint32_t));
		snprintf(name, sizeof(name), "t.%d", i);
		s.name = name;
		s.dtype = averages ? SHEAF_F32 : SHEAF_U32;
		s.shape[0] = s.count[0] = i % 6 == 0 ? 1024 : 1;
		s.shape[1] = s.count[1] = (int64_t)w->n[i] / s.shape[0];
		if (i % 12 == 0) { /* turned */
			s.stride[0] = 1;
			s.stride[1] = s.shape[0];
		}
		s.data = w->data[i];
		s.flags = in_place ? SHEAF_SLICE_IN_PLACE : 0;
		CHECK_INT(sheaf_state_add(w->state, &s, NULL), i);
	}
	if (averages)
		CHECK_INT(sheaf_state_ema(w->state, NULL, &ema, NULL), 0);
	CHECK_RC(sheaf_run_open(&w->run, w->dir, NULL, &opts, &err), 0, &err);
}

static void world_release(struct world *w)
{
	sheaf_run_close(w->run);
	sheaf_state_free(w->state);
	for (int i = 0; i < SLICES; i++)
		free(w->data[i]);
	rmtree(w->dir);
}

/* As an optimizer that goes through the layers in an order of its own. */
static void *optimizer(void *arg)
{
	struct world *w = arg;
	int from = (int)rng_below(&w->seed, SLICES), by = w->step % 2 ? 5 : 7;

	for (int k = 0; k < SLICES; k++) {
		int i = (from + k * by) % SLICES, rc;

		if (k % 3 == 0)
			rc = sheaf_save_wait_copied(w->save, i, k % 2, NULL);
		rc = sheaf_save_wait_copied(w->save, i, -1, NULL);
		if (rc != 0)
			w->bad++;
		become(w, i, w->step);
		w->passed++;
	}
	return NULL;
}

static void look(struct world *w, int64_t n)
{
	struct sheaf_checkpoint *step;
	struct sheaf_error err;

	CHECK_RC(sheaf_checkpoint_open(&step, w->run, n, &err), 0, &err);
	CHECK_RC(sheaf_checkpoint_load(step, w->state, 0, NULL, &err), 0, &err);
	sheaf_checkpoint_close(step);
	for (int i = 0; i < SLICES; i++)
		CHECK_INT(differ(w, i, n), 0);
}

/* Averages of all steps, by the formula. */
static void look_at_averages(struct world *w)
{
	for (int i = 0; i < SLICES; i++) {
		float *e = calloc(w->n[i], sizeof(*e)), *got = calloc(w->n[i], sizeof(*got));
		struct sheaf_slice s = { .size = sizeof(s), .family = "ema", .dtype = SHEAF_F32,
			.ndim = 2, .data = got };
		struct sheaf_error err;
		struct sheaf_checkpoint *step;
		char name[16];

		CHECK(e && got);
		snprintf(name, sizeof(name), "t.%d", i);
		s.name = name;
		s.shape[0] = s.count[0] = i % 6 == 0 ? 1024 : 1;
		s.shape[1] = s.count[1] = (int64_t)w->n[i] / s.shape[0];
		s.stride[0] = i % 12 == 0;
		s.stride[1] = i % 12 == 0 ? s.shape[0] : 0;
		for (int64_t n = 0; n < STEPS; n++) {
			for (size_t k = 0; k < w->n[i]; k++) {
				float v = (float)(value(n, i, k) >> 8);
				volatile float term = 0.25f * v;

				e[k] = n == 0 ? v : fmaf(0.75f, e[k], term);
			}
			CHECK_RC(sheaf_checkpoint_open(&step, w->run, n, &err), 0, &err);
			CHECK_RC(sheaf_checkpoint_read(step, &s, &err), 0, &err);
			sheaf_checkpoint_close(step);
			CHECK(memcmp(e, got, w->n[i] * sizeof(*e)) == 0);
		}
		free(e);
		free(got);
	}
}

static void train(int threads, int images, uint64_t flags, bool averages)
{
	struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY | flags };
	struct sheaf_save *before = NULL;
	struct sheaf_error err;
	struct world w;

	world_init(&w, threads, images, averages);
	for (int i = 0; i < SLICES; i++)
		become(&w, i, 0);
	for (int64_t n = 0; n < STEPS; n++) {
		struct sheaf_stat stat = { .size = sizeof(stat) };
		pthread_t other;

		CHECK_RC(sheaf_save_begin(&w.save, w.run, n, w.state, &lazy, &err), 0, &err);
		w.step = n + 1;
		CHECK_INT(pthread_create(&other, NULL, optimizer, &w), 0);
		if (before) /* while the other copies and asks */
			CHECK_RC(sheaf_save_commit(before, -1, &err), 0, &err);
		CHECK_INT(sheaf_save_get_stat(w.save, &stat, NULL), 0);
		(void)sheaf_save_ready(w.save, NULL);
		pthread_join(other, NULL);
		sheaf_save_free(before);
		before = w.save;
	}
	CHECK_RC(sheaf_save_commit(before, -1, &err), 0, &err);
	sheaf_save_free(before);
	CHECK_INT(w.bad, 0);
	for (int64_t n = 0; n < STEPS; n++)
		look(&w, n);
	if (averages)
		look_at_averages(&w);
	printf("# %d threads, %d images%s: %d steps, %d gates\n", threads, images,
	       averages ? ", averages" : "", (int)STEPS, (int)w.passed);
	world_release(&w);
}

TEST(tensors_change_behind_their_gates_and_no_step_knows) { train(1, 0, 0, false); }
TEST(several_threads_copy_and_no_step_knows) { train(3, 2, SHEAF_SAVE_CHECK, false); }
TEST(one_image_is_enough) { train(2, 1, 0, false); }
TEST(averages_are_made_before_their_gates) { train(3, 2, 0, true); }
TEST(what_is_not_staged_changes_behind_its_gate)
{
	in_place = true;
	train(1, 0, 0, false);
	train(3, 2, SHEAF_SAVE_CHECK, false);
	train(2, 2, 0, true);
	in_place = false;
}

/* ---- slices that are brought ---- */

/* Layer by layer: a tensor becomes the step's, is brought, and what was brought before changes as
 * soon as it may. Every third one lies elsewhere then, in one room after the other. */
static void *author(void *arg)
{
	struct world *w = arg;
	uint32_t *room = malloc((size_t)LARGE * sizeof(*room));
	int from = (int)rng_below(&w->seed, SLICES), last = -1;

	for (int k = 0; room && k < SLICES; k++) {
		int i = (from + 5 * k) % SLICES;
		bool elsewhere = k % 3 == 1;

		become(w, i, w->step);
		if (elsewhere) {
			memcpy(room, w->data[i], w->n[i] * sizeof(*room));
			become(w, i, -1);
		}
		w->bad += sheaf_save_slice_ready(w->save, i, elsewhere ? room : NULL, NULL) != 0;
		if (elsewhere) {
			w->bad += sheaf_save_wait_copied(w->save, i, -1, NULL) != 0;
			memset(room, 0x5A, w->n[i] * sizeof(*room));
		} else if (last >= 0) {
			w->bad += sheaf_save_wait_copied(w->save, last, -1, NULL) != 0;
			become(w, last, -1);
		}
		last = elsewhere ? last : i;
		if (k % 8 == 5)
			usleep(1000); /* all that was brought is copied */
		w->passed++;
	}
	w->bad += sheaf_save_wait_copied(w->save, SHEAF_ALL_SLICES, -1, NULL) != 0;
	become(w, last, -1);
	free(room);
	return NULL;
}

static void train_later(int threads, int images)
{
	struct sheaf_save_opts later = { .size = sizeof(later),
		.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER };
	struct sheaf_save *before = NULL;
	struct sheaf_error err;
	struct world w;

	world_init(&w, threads, images, false);
	for (int64_t n = 0; n < STEPS; n++) {
		pthread_t other;

		CHECK_RC(sheaf_save_begin(&w.save, w.run, n, w.state, &later, &err), 0, &err);
		w.step = n;
		CHECK_INT(pthread_create(&other, NULL, author, &w), 0);
		if (before)
			CHECK_RC(sheaf_save_commit(before, -1, &err), 0, &err);
		(void)sheaf_save_ready(w.save, NULL);
		pthread_join(other, NULL);
		sheaf_save_free(before);
		before = w.save;
	}
	CHECK_RC(sheaf_save_commit(before, -1, &err), 0, &err);
	sheaf_save_free(before);
	CHECK_INT(w.bad, 0);
	CHECK_INT(w.passed, STEPS * SLICES);
	for (int64_t n = 0; n < STEPS; n++)
		look(&w, n);
	world_release(&w);
}

TEST(a_slice_is_copied_when_it_is_brought)
{
	train_later(1, 2);
	train_later(3, 1);
}

/* Also when the threads had nothing left to do. */
TEST(what_is_brought_is_copied_though_nobody_asks)
{
	struct sheaf_save_opts later = { .size = sizeof(later),
		.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER };
	struct sheaf_stat s = { .size = sizeof(s) };
	struct sheaf_error err;
	struct world w;
	int rc = 0;

	world_init(&w, 2, 2, false);
	for (int i = 0; i < SLICES; i++)
		become(&w, i, 0);
	CHECK_RC(sheaf_save_begin(&w.save, w.run, 0, w.state, &later, &err), 0, &err);
	usleep(20000);
	CHECK_INT(sheaf_save_get_stat(w.save, &s, NULL), 0);
	CHECK_INT(s.copied, 0);
	for (int i = 0; i < SLICES; i++) {
		CHECK_INT(sheaf_save_slice_ready(w.save, i, NULL, NULL), 0);
		usleep(i % 4 ? 0 : 5000);
	}
	for (int ms = 0; ms < 10000; ms++) {
		rc = sheaf_save_wait_copied(w.save, SHEAF_ALL_SLICES, 0, NULL);
		if (rc != SHEAF_EAGAIN)
			break;
		usleep(1000);
	}
	CHECK_INT(rc, 0);
	CHECK_RC(sheaf_save_commit(w.save, -1, &err), 0, &err);
	sheaf_save_free(w.save);
	look(&w, 0);
	world_release(&w);
}

/* ---- a child of the process that saves ---- */

/* With a run of its own, and the state that its parent saves lazily as step 0. */
static int in_a_child(struct world *w)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE };
	struct sheaf_save *begun = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err[2];
	char dir[60];

	snprintf(dir, sizeof(dir), "%s/child", w->dir);
	if (sheaf_run_open(&run, dir, NULL, &opts, &err[0]) < 0)
		return 1;
	if (sheaf_save_begin(&begun, run, 9, w->state, NULL, &err[0]) != SHEAF_EINVAL ||
	    sheaf_state_average(w->state, run, 9, 0, &err[1]) != SHEAF_EINVAL)
		return 2;
	for (int i = 0; i < 2; i++)
		if (strcmp(err[i].msg, "another process is saving this state as step 0; after a "
		           "fork, call sheaf_state_new in the child") != 0)
			return 3;
	sheaf_run_close(run);
	return begun ? 4 : 0;
}

TEST(a_child_uses_no_state_that_its_parent_saves_lazily)
{
	struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_error err;
	struct world w;
	int status = -1;
	pid_t child;

	world_init(&w, 1, 2, true);
	for (int i = 0; i < SLICES; i++)
		become(&w, i, 0);
	CHECK_RC(sheaf_save_begin(&w.save, w.run, 0, w.state, &lazy, &err), 0, &err);
	child = fork();
	if (child == 0)
		_exit(in_a_child(&w));
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status));
	CHECK_INT(WEXITSTATUS(status), 0);
	CHECK_INT(sheaf_save_wait_copied(w.save, SHEAF_ALL_SLICES, -1, NULL), 0);
	CHECK_RC(sheaf_save_commit(w.save, -1, &err), 0, &err);
	sheaf_save_free(w.save);
	world_release(&w);
}

static void *ask_all(void *arg)
{
	struct world *w = arg;

	w->bad += sheaf_save_wait_copied(w->save, SHEAF_ALL_SLICES, -1, NULL) != 0;
	return NULL;
}

/* One asks for all, the other for each and changes it then: nobody looks at it again. */
TEST(a_check_is_over_when_a_gate_opens)
{
	struct sheaf_save_opts checked = { .size = sizeof(checked),
		.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK };
	struct sheaf_error err;
	struct world w;

	world_init(&w, 2, 2, false);
	for (int64_t n = 0; n < STEPS; n++) {
		pthread_t other;

		CHECK_RC(sheaf_save_begin(&w.save, w.run, n, w.state, &checked, &err), 0, &err);
		CHECK_INT(pthread_create(&other, NULL, ask_all, &w), 0);
		for (int i = 0; i < SLICES; i++) {
			CHECK_INT(sheaf_save_wait_copied(w.save, i, -1, NULL), 0);
			become(&w, i, n);
		}
		pthread_join(other, NULL);
		CHECK_RC(sheaf_save_commit(w.save, -1, &err), 0, &err);
		sheaf_save_free(w.save);
	}
	CHECK_INT(w.bad, 0);
	world_release(&w);
}

/* One byte a second: a piece is copied behind, and the rest by who asks. */
TEST(a_rate_bounds_the_threads_and_nobody_who_waits)
{
	struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_stat s = { .size = sizeof(s) };
	struct sheaf_error err;
	struct world w;

	rate = 1;
	cpus = "0-63";
	world_init(&w, 2, 2, false);
	for (int64_t n = 0; n < 2; n++) {
		CHECK_RC(sheaf_save_begin(&w.save, w.run, n, w.state, &lazy, &err), 0, &err);
		usleep(30000);
		CHECK_INT(sheaf_save_get_stat(w.save, &s, NULL), 0);
		CHECK(s.copied < s.held / 2);
		for (int i = 0; i < SLICES; i++)
			CHECK_INT(sheaf_save_wait_copied(w.save, i, -1, NULL), 0);
		CHECK_INT(sheaf_save_get_stat(w.save, &s, NULL), 0);
		CHECK_INT(s.copied, s.held);
		CHECK_RC(sheaf_save_commit(w.save, -1, &err), 0, &err);
		sheaf_save_free(w.save);
	}
	world_release(&w);
	rate = 0;
	cpus = NULL;
}

/* ---- what the gates cost is counted ---- */

enum { ASKERS = 4, ROUNDS = 50 };

static void *ask_often(void *arg)
{
	struct world *w = arg;

	for (int k = 0; k < ROUNDS; k++)
		for (int i = 0; i < SLICES; i++, w->passed++)
			w->bad += sheaf_save_wait_copied(w->save, i, k % 2 ? -1
			                                 : 0, NULL) == SHEAF_EINVAL;
	return NULL;
}

TEST(gates_of_many_threads_are_all_counted)
{
	struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_run_stat sum = { .size = sizeof(sum) }, all = sum;
	struct sheaf_stat s = { .size = sizeof(s) };
	struct sheaf_error err;
	struct world w;

	world_init(&w, 2, 2, false);
	for (int64_t n = 0; n < 4; n++) {
		pthread_t other[ASKERS];

		CHECK_RC(sheaf_save_begin(&w.save, w.run, n, w.state, &lazy, &err), 0, &err);
		for (int i = 0; i < ASKERS; i++)
			CHECK_INT(pthread_create(&other[i], NULL, ask_often, &w), 0);
		for (int i = 0; i < ASKERS; i++)
			pthread_join(other[i], NULL);
		CHECK_RC(sheaf_save_commit(w.save, -1, &err), 0, &err);
		CHECK_INT(sheaf_save_get_stat(w.save, &s, NULL), 0);
		sheaf_save_free(w.save);
		CHECK_INT(s.gates, ASKERS * ROUNDS * SLICES);
		CHECK(s.gates_waited < s.gates && s.gate_ns_max > 0);
		CHECK(s.gates_ns >= s.gate_ns_max && s.copied_ns == s.gates_ns);
		CHECK(s.copy_ns > 0 && s.copy_ns <= s.over_ns);
		sum.gates += s.gates;
		sum.gates_waited += s.gates_waited;
		sum.gates_ns += s.gates_ns;
		sum.commit_ns += s.commit_ns;
		if (s.gate_ns_max > sum.gate_ns_max)
			sum.gate_ns_max = s.gate_ns_max;
	}
	CHECK_INT(sheaf_run_get_stat(w.run, &all, NULL), 0);
	CHECK_INT(all.gates, w.passed);
	CHECK_INT(all.gates, sum.gates);
	CHECK_INT(all.gates_waited, sum.gates_waited);
	CHECK_INT(all.gates_ns, sum.gates_ns);
	CHECK_INT(all.gate_ns_max, sum.gate_ns_max);
	CHECK_INT(all.commit_ns, sum.commit_ns);
	CHECK_INT(w.bad, 0);
	printf("# %d threads: %d gates, %d found their slice not copied\n", (int)ASKERS,
	       (int)w.passed, (int)all.gates_waited);
	world_release(&w);
}

/* ---- the end of a save while it is copied ---- */

static void *ask(void *arg)
{
	struct world *w = arg;

	for (int i = SLICES - 1; i >= 0; i--) {
		w->bad += sheaf_save_wait_copied(w->save, i, -1, NULL) == SHEAF_EAGAIN;
		become(w, i, w->step);
		w->passed++;
	}
	return NULL;
}

static void fails_while_another_asks(void)
{
	struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_error err;
	struct world w;

	world_init(&w, 2, 1, false);
	for (int i = 0; i < SLICES; i++)
		become(&w, i, 0);
	for (int64_t n = 0; n < STEPS; n++) {
		pthread_t other;

		CHECK_RC(sheaf_save_begin(&w.save, w.run, n, w.state, &lazy, &err), 0, &err);
		w.step = n + 1;
		CHECK_INT(pthread_create(&other, NULL, ask, &w), 0);
		while (n % 4 && w.passed < n * 5)
			sched_yield();
		if (n % 2) {
			CHECK_INT(sheaf_save_abort(w.save, "not wanted", NULL), 0);
			CHECK_INT(sheaf_save_commit(w.save, -1, &err), SHEAF_EFAILED);
		}
		pthread_join(other, NULL);
		if (n % 2 == 0)
			CHECK_RC(sheaf_save_commit(w.save, -1, &err), 0, &err);
		sheaf_save_free(w.save);
	}
	CHECK_INT(w.bad, 0);
	for (int64_t n = 0; n < STEPS; n += 2)
		look(&w, n);
	world_release(&w);
}

TEST(a_save_may_fail_while_another_thread_asks)
{
	fails_while_another_asks();
	in_place = true;
	fails_while_another_asks();
	in_place = false;
}

/* Makes the calls that any thread may make, again and again while the save is committed. */
static void *ask_always(void *arg)
{
	struct world *w = arg;
	struct sheaf_stat stat = { .size = sizeof(stat) };

	while (!atomic_load(&w->passed)) {
		int rc = sheaf_save_ready(w->save, NULL);

		w->bad += rc != 0 && rc != SHEAF_EAGAIN;
		w->bad += sheaf_save_slice_ready(w->save, 0, NULL, NULL) != SHEAF_EINVAL;
		w->bad += sheaf_save_get_stat(w->save, &stat, NULL) != 0;
		(void)sheaf_save_eta_ms(w->save);
	}
	return NULL;
}

TEST(any_thread_may_wait_for_a_save_that_is_committed)
{
	struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_error err;
	struct world w;
	pthread_t asks;

	world_init(&w, 1, 1, false);
	for (int i = 0; i < SLICES; i++)
		become(&w, i, 0);
	for (int64_t n = 0; n < 4; n++) {
		w.passed = 0;
		CHECK_RC(sheaf_save_begin(&w.save, w.run, n, w.state, n % 2 ? &lazy : NULL, &err),
		         0, &err);
		CHECK_INT(pthread_create(&asks, NULL, ask_always, &w), 0);
		CHECK_INT(sheaf_save_wait_copied(w.save, SHEAF_ALL_SLICES, -1, NULL), 0);
		CHECK_RC(sheaf_save_commit(w.save, -1, &err), 0, &err);
		atomic_store(&w.passed, 1);
		pthread_join(asks, NULL);
		sheaf_save_free(w.save);
	}
	CHECK_INT(w.bad, 0);
	world_release(&w);
}

static void *ask_a_little(void *arg)
{
	struct world *w = arg;

	w->bad += sheaf_save_wait_copied(w->save, 0, 20, NULL) != SHEAF_EAGAIN;
	w->bad += sheaf_save_wait_copied(w->save, 0, 0, NULL) != SHEAF_EAGAIN;
	return NULL;
}

static void set_check(struct shf_save_copier *lz, uint8_t to)
{
	pthread_mutex_lock(&lz->lock);
	lz->checks[0] = to;
	pthread_cond_broadcast(&lz->piece_done);
	pthread_mutex_unlock(&lz->lock);
}

/* It seems as if another thread compared the slice, and took long over it. */
TEST(a_gate_keeps_its_timeout_while_another_thread_compares_the_slice)
{
	struct sheaf_save_opts checked = { .size = sizeof(checked),
		.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK };
	struct timespec late;
	struct sheaf_error err;
	struct world w;
	pthread_t asks;
	int joined;

	world_init(&w, 1, 1, false);
	for (int i = 0; i < SLICES; i++)
		become(&w, i, 0);
	CHECK_RC(sheaf_save_begin(&w.save, w.run, 0, w.state, &checked, &err), 0, &err);
	CHECK_INT(shf_save_wait(w.save, -1, NULL), 0);
	set_check(w.save->copy.lazy, SHF_CHECKING);
	CHECK_INT(pthread_create(&asks, NULL, ask_a_little, &w), 0);
	clock_gettime(CLOCK_REALTIME, &late);
	late.tv_sec += 10;
	joined = pthread_timedjoin_np(asks, NULL, &late);
	set_check(w.save->copy.lazy, SHF_UNCHECKED);
	if (joined != 0)
		(void)pthread_join(asks, NULL);
	CHECK_INT(joined, 0);
	CHECK_INT(w.bad, 0);
	CHECK_INT(sheaf_save_wait_copied(w.save, SHEAF_ALL_SLICES, -1, NULL), 0);
	CHECK_RC(sheaf_save_commit(w.save, -1, &err), 0, &err);
	sheaf_save_free(w.save);
	world_release(&w);
}

static void freed_leave_nothing(void)
{
	struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
	const int most = 1 + 4 + 1 + T_SANITIZED;
	struct sheaf_error err;
	struct world w;
	int fds;

	world_init(&w, 2, 2, false);
	for (int i = 0; i < SLICES; i++)
		become(&w, i, 0);
	CHECK_RC(sheaf_save_begin(&w.save, w.run, 0, w.state, NULL, &err), 0, &err);
	CHECK_RC(sheaf_save_commit(w.save, -1, &err), 0, &err);
	sheaf_save_free(w.save);
	fds = procself_fds();    /* with those of the queue */
	for (int64_t n = 1; n < 30; n++) {
		for (int i = 0; i < SLICES; i++)
			become(&w, i, n);
		CHECK_RC(sheaf_save_begin(&w.save, w.run, n, w.state, &lazy, &err), 0, &err);
		for (int i = 0; i < n % 5; i++)
			CHECK_INT(sheaf_save_wait_copied(w.save, SLICES - 1 - i, -1, NULL), 0);
		if (n % 3 == 0)
			(void)sheaf_save_abort(w.save, "not wanted", NULL);
		sheaf_save_free(w.save);
	}
	CHECK(procself_fds() <= fds);
	/* This one, those that write, the ring's, and ThreadSanitizer's. One that was joined may be
	 * listed until the kernel has taken it off: one that was not is listed for ever. */
	for (long i = 0; procself_threads() > most && i < 1000000; i++)
		sched_yield();
	CHECK(procself_threads() <= most);
	world_release(&w);
}

TEST(saves_freed_while_they_are_copied_leave_nothing)
{
	freed_leave_nothing();
	in_place = true;
	freed_leave_nothing();
	in_place = false;
}

/* A child frees what it was born with; the parent's save knows nothing of it. */
TEST(a_forked_child_lets_a_lazy_save_alone)
{
	struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_error err;
	struct world w;
	int status;
	pid_t pid;

	world_init(&w, 1, 2, false);
	for (int i = 0; i < SLICES; i++)
		become(&w, i, 5);
	for (int64_t n = 0; n < 4; n++) {
		CHECK_RC(sheaf_save_begin(&w.save, w.run, n, w.state, &lazy, &err), 0, &err);
		pid = fork();
		if (pid == 0) {
			int bad = sheaf_save_wait_copied(w.save, 0, -1, NULL) != SHEAF_EINVAL;

			sheaf_save_free(w.save);
			/* And the state knows nothing of it any more. */
			bad |= sheaf_state_move(w.state, 0, w.data[0], NULL) != 0;
			sheaf_state_free(w.state);
			sheaf_run_close(w.run);
			_exit(bad);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK_INT(status, 0);
		for (int i = 0; i < SLICES; i++)
			CHECK_INT(sheaf_save_wait_copied(w.save, i, -1, NULL), 0);
		CHECK_RC(sheaf_save_commit(w.save, -1, &err), 0, &err);
		sheaf_save_free(w.save);
	}
	world_release(&w);
}
