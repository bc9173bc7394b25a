/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls of a save of a small state, counted by kind, so that one more is noticed without
 * a clock. Its fsyncs are those that the invariants of publish.c need. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "list.h"
#include "step.h"
#include "save.h"
#include "simdisk.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "run_ops.h"
#include "sheaf-admin.h"

enum { ITEMS = 4096 };
static const char *const families[] = { "model", "master_weights", "optimizer" };
#define FAMILIES 3

struct world {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	float data[FAMILIES][ITEMS];
};

static void world_init(struct world *w)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE };
	struct sheaf_error err = { 0 };

	w->disk = simdisk_new(0xfe7, SIMDISK_STRICT);
	w->sys = simdisk_process(w->disk, 40, 0);
	w->state = shf_state_new();
	for (int i = 0; i < FAMILIES; i++) {
		struct sheaf_slice s = { .size = sizeof(s), .family = families[i], .name = "w",
			.dtype = SHEAF_F32, .ndim = 1, .shape = { ITEMS }, .count = { ITEMS },
			.data = w->data[i] };

		CHECK(shf_state_add(w->state, &s, NULL) >= 0);
	}
	CHECK_RC(shf_run_open(&w->run, "run", NULL, &opts, w->sys, &err), 0, &err);
}

static void world_release(struct world *w)
{
	shf_run_close(w->run);
	shf_state_put(w->state);
	simdisk_free(w->disk);
}

static void save(struct world *w, int64_t step)
{
	struct sheaf_error err = { 0 };
	struct sheaf_save *s = NULL;

	w->data[0][0] = (float)step;
	CHECK_RC(shf_save_begin(&s, w->run, step, w->state, NULL, &err), 0, &err);
	CHECK_RC(shf_save_commit(s, -1, &err), 0, &err);
	shf_save_free(s);
}

/* Calls of a kind, as the trace spells it, from call `from` on; kind NULL: all of them. */
static int calls(const struct world *w, size_t from, const char *kind)
{
	char head[32];
	int n = 0;

	snprintf(head, sizeof(head), "40 %s(", kind ? kind : "");
	for (size_t i = from; i < simdisk_calls(w->disk); i++)
		n += !kind || strncmp(simdisk_call_text(w->disk, i), head, strlen(head)) == 0;
	return n;
}

TEST(a_small_save_makes_few_calls)
{
	static const struct { const char *kind; int most; } bounds[] = {
		/* 3 data files, 3 indexes, sums, manifest; 2 folders; S twice; both parents */
		{ "fsync", 14 },
		{ "rename", 2 },
		{ "mkdir", 3 },
		{ "resize", 3 },
		{ "unlink", 2 },
		{ "pwrite", 12 },
		{ "pread", 2 },
		{ "list", 4 },
		{ "lock", 1 },
		{ "random", 1 },
		{ "shm_new", 0 },
		{ "queue_new", 0 },
		{ "submit", 13 },
		{ "open", 23 },
		{ "stat", 14 } };
	struct world w = { 0 };
	size_t from;

	world_init(&w);
	save(&w, 1);
	from = simdisk_calls(w.disk);
	save(&w, 2);
	for (size_t i = 0; i < sizeof(bounds) / sizeof(*bounds); i++) {
		int n = calls(&w, from, bounds[i].kind);

		if (n > bounds[i].most)
			print_error("%d calls of %s, at most %d\n", n, bounds[i].kind,
			            bounds[i].most);
		CHECK(n <= bounds[i].most);
	}
	/* A word that the trace does not use would be kept to any bound. */
	CHECK_INT(calls(&w, from, "fsync"), 14);
	CHECK(calls(&w, from, "open") > 0 && calls(&w, from, "stat") > 0);
	CHECK(calls(&w, from, "submit") > 0 && calls(&w, from, "list") > 0);
	world_release(&w);
}

TEST(a_save_after_many_steps_makes_no_more_calls_than_after_few)
{
	struct world w = { 0 };
	int few = 0, many = 0;

	world_init(&w);
	for (int64_t step = 1; step <= 60; step++) {
		size_t from = simdisk_calls(w.disk);

		save(&w, step);
		if (step == 4)
			few = calls(&w, from, NULL);
		if (step == 60)
			many = calls(&w, from, NULL);
	}
	CHECK(few > 0);
	CHECK_INT(many, few);
	world_release(&w);
}

TEST(a_newest_step_marked_bad_or_foreign_costs_a_look_and_no_more)
{
	struct world w = { 0 };
	struct shf_newest n;
	struct sheaf_error err = { 0 };
	size_t from;
	int plain;

	world_init(&w);
	for (int64_t step = 1; step <= 8; step++)
		save(&w, step);
	from = simdisk_calls(w.disk);
	CHECK_RC(shf_store_newest(&w.run->store, 9, &n, &err), 0, &err);
	plain = calls(&w, from, "pread");
	CHECK(!n.exists);
	CHECK_INT(n.newest, 8);
	CHECK_INT(n.known, 8);
	CHECK_INT(plain, 1);
	CHECK_INT(simdisk_put(w.disk, "run/checkpoint-9/config.json", "{}", 2), 0);
	CHECK_RC(shf_run_mark(w.run, 8, SHEAF_MARK_BAD, &err), 0, &err);
	from = simdisk_calls(w.disk);
	CHECK_RC(shf_store_newest(&w.run->store, 8, &n, &err), 0, &err);
	CHECK(n.exists);
	CHECK_INT(n.newest, 7);
	CHECK_INT(n.known, 7);
	CHECK(calls(&w, from, "pread") <= plain + 3);
	/* Damaged counts; but whose manifest cannot be read is nobody's parent. */
	CHECK_INT(simdisk_flip(w.disk, "run/checkpoint-7/sheaf.json", 99), 0);
	CHECK_RC(shf_store_newest(&w.run->store, 10, &n, &err), 0, &err);
	CHECK(!n.exists);
	CHECK_INT(n.newest, 7);
	CHECK_INT(n.known, 6);
	CHECK_INT(simdisk_remove(w.disk, "run/checkpoint-6/sheaf.json"), 0);
	CHECK_INT(simdisk_remove(w.disk, "run/checkpoint-5/sheaf.sums"), 0);
	CHECK_RC(shf_store_newest(&w.run->store, 6, &n, &err), 0, &err);
	CHECK(!n.exists); /* mere remains */
	CHECK_INT(n.newest, 7);
	CHECK_INT(n.known, 5);
	world_release(&w);
}
