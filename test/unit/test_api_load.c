/* SPDX-License-Identifier: Apache-2.0 */
/* A load slice by slice, as a caller of sheaf.h writes it: a few buffers that several threads use
 * again and again, refusals, and a forked child. One process, a real directory. */
#include "sheaf.h"
#include "sheaf-load.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "t.h"

enum { LAYERS = 40, ITEMS = 3000, THREADS = 8 };

struct place {
	char dir[64];
	struct sheaf_run *run;
	struct sheaf_state *st;         /* its slices have no memory */
	struct sheaf_checkpoint *step;  /* 3, which has layer i filled with i + 0.5 */
};

/* A state of all layers, in `data`, one behind the other, or without memory. */
static struct sheaf_state *layers(float *data)
{
	struct sheaf_state *st = sheaf_state_new();

	for (int i = 0; i < LAYERS; i++) {
		char name[20];
		struct sheaf_slice s = { .size = sizeof(s), .name = name, .dtype = SHEAF_F32,
			.ndim = 1, .shape = { ITEMS }, .count = { ITEMS },
			.data = data ? data + i * ITEMS : NULL };

		snprintf(name, sizeof(name), "layers.%d.w", i);
		CHECK_INT(sheaf_state_add(st, &s, NULL), i);
	}
	return st;
}

static void place_init(struct place *p)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.file_bytes_max = 40000 };
	float *data = malloc(LAYERS * ITEMS * sizeof(*data));
	struct sheaf_save *save = NULL;
	struct sheaf_state *st;
	struct sheaf_error err;

	*p = (struct place){ .dir = "/tmp/sheaf-test-XXXXXX" };
	CHECK(data && mkdtemp(p->dir) != NULL);
	for (int i = 0; i < LAYERS * ITEMS; i++)
		data[i] = (float)(i / ITEMS) + 0.5f;
	st = layers(data);
	CHECK_RC(sheaf_run_open(&p->run, p->dir, NULL, &opts, &err), 0, &err);
	CHECK_RC(sheaf_save_begin(&save, p->run, 3, st, NULL, &err), 0, &err);
	CHECK_RC(sheaf_save_commit(save, -1, &err), 0, &err);
	sheaf_save_free(save);
	sheaf_state_free(st);
	free(data);
	p->st = layers(NULL);
	CHECK_RC(sheaf_checkpoint_open(&p->step, p->run, SHEAF_LATEST, &err), 0, &err);
}

static void place_release(struct place *p)
{
	char command[100];

	sheaf_checkpoint_close(p->step);
	sheaf_run_close(p->run);
	sheaf_state_free(p->st);
	snprintf(command, sizeof(command), "rm -rf %s", p->dir);
	CHECK_INT(system(command), 0);
}

struct trainer {                        /* and its device, which has the sums of the layers */
	struct sheaf_load *load;
	atomic_int next;
	double sums[LAYERS];
	int rc[THREADS];
};
struct taker {
	struct trainer *of;
	int number;
};

static void *take_layers(void *arg)
{
	struct taker *t = arg;
	float *buffer = malloc(ITEMS * sizeof(*buffer));
	int rc = buffer ? 0 : SHEAF_ENOMEM;

	for (int i; rc == 0 && (i = atomic_fetch_add(&t->of->next, 1)) < LAYERS;) {
		rc = sheaf_load_take(t->of->load, i, buffer, NULL);
		for (int k = 0; rc == 0 && k < ITEMS; k++)
			t->of->sums[i] += (double)buffer[k];
	}
	free(buffer);
	t->of->rc[t->number] = rc;
	return NULL;
}

TEST(threads_stream_a_state_through_a_few_buffers)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct trainer tr = { .load = NULL };
	struct taker takers[THREADS];
	pthread_t threads[THREADS];
	struct sheaf_error err;
	struct place p;

	place_init(&p);
	CHECK_RC(sheaf_load_begin(&tr.load, p.step, p.st, SHEAF_LOAD_STRICT, &report, &err), 0,
	         &err);
	CHECK_INT(report.loaded, LAYERS);
	CHECK_INT(report.disk_bytes, 0);
	for (int i = 0; i < THREADS; i++) {
		takers[i] = (struct taker){ &tr, i };
		CHECK_INT(pthread_create(&threads[i], NULL, take_layers, &takers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_INT(pthread_join(threads[i], NULL), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_INT(tr.rc[i], 0);
	CHECK_RC(sheaf_load_end(tr.load, &report, &err), 0, &err);
	CHECK_INT(report.loaded, LAYERS);
	CHECK_INT(report.unverified, 0);
	CHECK(report.disk_bytes >= LAYERS * ITEMS * sizeof(float));
	sheaf_load_free(tr.load);
	for (int i = 0; i < LAYERS; i++)
		CHECK(tr.sums[i] == ITEMS * (i + 0.5));
	place_release(&p);
}

/* The code, also in *err, and this sentence. */
#define REFUSES(call, want, says)                                                        \
	do {                                                                             \
		CHECK_RC((call), (want), &err);                                          \
		CHECK_INT(err.code, (want));                                             \
		CHECK_STR(err.msg, (says));                                              \
	} while (0)

TEST(each_refusal_fills_the_callers_error)
{
	static const char report_size[] = "report.size is 8, or a field is set that this version "
	                                  "of sheaf does not know; set size to sizeof(struct "
	                                  "sheaf_report)";
	struct sheaf_report bad = { .size = 8 };
	struct sheaf_load *load = NULL;
	struct sheaf_error err;
	struct place p;
	float buffer[ITEMS];

	place_init(&p);
	REFUSES(sheaf_load_begin(&load, NULL, p.st, 0, NULL, &err), SHEAF_EINVAL,
	        "argument 'checkpoint' is NULL");
	REFUSES(sheaf_load_begin(NULL, p.step, p.st, 0, NULL, &err), SHEAF_EINVAL,
	        "argument 'load' is NULL");
	REFUSES(sheaf_load_begin(&load, p.step, p.st, 0, &bad, &err), SHEAF_EINVAL, report_size);
	REFUSES(sheaf_load_begin(&load, p.step, NULL, 0, NULL, &err), SHEAF_ENOMEM,
	        "the state is NULL; sheaf_state_new returns NULL when out of memory");
	REFUSES(sheaf_load_take(NULL, 0, NULL, &err), SHEAF_EINVAL, "argument 'load' is NULL");
	REFUSES(sheaf_load_end(NULL, NULL, &err), SHEAF_EINVAL, "argument 'load' is NULL");
	REFUSES(sheaf_load_fills(NULL, 0, &err), SHEAF_EINVAL, "argument 'load' is NULL");
	sheaf_load_free(NULL);
	CHECK(load == NULL);
	CHECK_RC(sheaf_load_begin(&load, p.step, p.st, 0, NULL, NULL), 0, &err);
	REFUSES(sheaf_load_take(load, LAYERS, buffer, &err), SHEAF_EINVAL,
	        "there is no slice 40; the state has 40");
	REFUSES(sheaf_load_take(load, 7, NULL, &err), SHEAF_EINVAL,
	        "model/layers.7.w: no buffer was given, and the slice has no memory");
	REFUSES(sheaf_load_fills(load, -1, &err), SHEAF_EINVAL,
	        "there is no slice -1; the state has 40");
	CHECK_INT(sheaf_load_fills(load, 0, NULL), 1);
	for (int i = 0; i < LAYERS - 1; i++)
		CHECK_RC(sheaf_load_take(load, i, buffer, &err), 0, &err);
	CHECK_INT(err.code, 0);
	REFUSES(sheaf_load_end(load, NULL, &err), SHEAF_EINVAL, "1 slice of this rank, the first "
	        "of them model/layers.39.w, was not taken (sheaf_load_take)");
	CHECK_RC(sheaf_load_take(load, LAYERS - 1, buffer, NULL), 0, &err);
	REFUSES(sheaf_load_end(load, &bad, &err), SHEAF_EINVAL, report_size);
	CHECK_INT(bad.size, 8);
	CHECK_RC(sheaf_load_end(load, NULL, NULL), 0, &err);
	sheaf_load_free(load);
	place_release(&p);
}

TEST(a_child_may_only_free_the_load_of_its_parent)
{
	struct sheaf_load *load = NULL, *also = NULL;
	struct sheaf_error err;
	struct place p;
	float buffer[ITEMS];
	int status = -1;
	pid_t child;

	place_init(&p);
	CHECK_RC(sheaf_load_begin(&load, p.step, p.st, 0, NULL, &err), 0, &err);
	child = fork();
	if (child == 0) {
		int rc[] = { sheaf_load_begin(&also, p.step, p.st, 0, NULL, NULL),
			sheaf_load_take(load, 0, buffer, NULL), sheaf_load_end(load, NULL, NULL) };

		sheaf_load_free(load);
		_exit(also || rc[0] != SHEAF_EINVAL || rc[1] != SHEAF_EINVAL ||
		      rc[2] != SHEAF_EINVAL);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (int i = 0; i < LAYERS; i++)
		CHECK_RC(sheaf_load_take(load, i, buffer, &err), 0, &err);
	CHECK_RC(sheaf_load_end(load, NULL, &err), 0, &err);
	sheaf_load_free(load);
	place_release(&p);
}
