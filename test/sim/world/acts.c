/* SPDX-License-Identifier: Apache-2.0 */
#include "acts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "run_salvage.h"
#include "sheaf-admin.h"
#include "sheaf-plan.h"
#include "sheaf-stat.h"
#include "simcore.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "step.h"
#include "step_attached.h"
#include "step_open.h"
#include "read_slice.h"
#include "verify_step.h"
#include "step_copy.h"
#include "plan_job.h"
#include "run_ops.h"
#include "load.h"
#include "takes.h"

/* ---- the state of ranks, and acts of all ranks ---- */

enum { MANY = 12, NOTES = 18, FILES = 34 };     /* more files than are synced together */

void acts_hold(struct hand *h)
{
	static const struct sheaf_slice tie = { .family = "model", .name = "head" };
	struct sheaf_slice *s = hand_add(h, "model", "embed", SHEAF_BF16, 2, 61, 37);

	hand_cut(s, 1, h->rank, h->ranks);
	s = hand_add(h, "model", tie.name, SHEAF_BF16, 2, 61, 37);
	hand_cut(s, 1, h->rank, h->ranks);
	s->tied_to = "embed";
	s->data = hand_block(h, 61 * 37 * 2);
	s = hand_add(h, "optimizer", "embed/moment1_0", SHEAF_F32, 2, 61, 37);
	s->flags = SHEAF_SLICE_FLAT;
	s->flat_start = 61 * 37 * h->rank / h->ranks;
	s->flat_count = 61 * 37 * (h->rank + 1) / h->ranks - s->flat_start;
	s = hand_add(h, "ema", "wide", SHEAF_F32, 2, 8, 700);
	hand_cut(s, 0, h->rank, h->ranks);
	hand_add(h, "model", "scalar", SHEAF_I64, 0);
	hand_add(h, "model", "packed", SHEAF_F4, 2, 8, 64);
	for (int i = 0; i < MANY; i++) {
		char number[12];

		snprintf(number, sizeof(number), "%d", i);
		hand_cut(hand_add(h, "model", hand_text(h, "l.", number), SHEAF_F32, 1, 29 + i),
		         0, h->rank, h->ranks);
		if (i == 7)     /* it is ignored */
			hand_want(h, HAND_ANY);
	}
}

/* The process of a rank, as the disk knows it. */
const struct shf_sys *acts_process(const struct hand *h)
{
	return &((struct simproc *)h->sys->host.arg)->sys;
}

static int progress(void *arg, const struct sheaf_stat *stat)
{
	(void)arg;
	(void)stat;
	return 0;
}

/* Makes a stream with this rank's random numbers, for example. */
static int with_stream(struct hand *h)
{
	return shf_state_stream(h->state, "rng", "strict", h->rank, h->ranks, hand_block(h, 16),
	                        16, NULL);
}

static int open_run(struct hand *h, uint64_t flags, int grace_s)
{
	static const char *const ignore[] = { "model/l.7*", NULL };
	struct shf_opts o = h->play->opts;

	o.flags = flags;
	o.ignore = ignore;
	o.keep_best = o.keep_last > 0;
	o.best_note = o.keep_best ? "loss" : NULL;
	o.grace_s = grace_s;
	o.io_threads = 1;
	o.progress = progress;
	return shf_run_open(&h->run, "run", h->group, &o, h->sys, &h->err);
}

static void give(struct hand *h, struct sheaf_save *save)
{
	char name[24];

	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "extra-%d.json", (7 * i) % FILES);
		(void)shf_save_attach(save, name, "{}", 2, NULL);
	}
	for (int i = 0; h->rank == 0 && i < NOTES; i++) {
		snprintf(name, sizeof(name), "note-%d", (7 * i) % NOTES);
		(void)shf_save_note(save, name, "said", NULL);
	}
	(void)shf_save_note(save, "loss", "0.5", NULL);
}

static int save_one(struct hand *h, int64_t step)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, step, h->state, NULL, &h->err);

	if (rc == 0) {
		give(h, save);
		do {
			rc = shf_save_exchange(save, 10000, &h->err);
		} while (rc == SHEAF_EAGAIN);
	}
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

int act_save(struct hand *h)
{
	int rc = open_run(h, SHEAF_RUN_CREATE | SHEAF_RUN_METRICS, -1);

	(void)with_stream(h);   /* the call on the state reports the failure */
	if (rc == 0)
		rc = save_one(h, 20);
	return rc == SHEAF_EEXIST ? 0 : rc;
}

int act_save_again(struct hand *h)
{
	int rc = act_save(h);

	if (rc == 0)
		rc = save_one(h, 21);
	return rc == SHEAF_EEXIST ? 0 : rc;
}

static int load_12(struct hand *h, bool by_slices)
{
	struct takes how = { .seed = 12 };
	struct sheaf_checkpoint *step = NULL;
	char why[200];
	int rc = open_run(h, 0, -1);

	(void)with_stream(h);
	if (rc == 0)
		rc = shf_step_open(&step, h->run, 12, &h->err);
	if (rc == 0 && by_slices)
		rc = takes_load(step, h->state, 0, &how, NULL, &h->report, &h->err);
	else if (rc == 0)
		rc = shf_step_load(step, h->state, 0, &h->report, &h->err);
	if (rc == 0 && hand_wrong(h, why, sizeof(why)))
		rc = shf_fail(&h->err, SHEAF_EBUG, "%s", why);
	shf_step_put(step);
	return rc;
}

int act_load(struct hand *h)
{
	return load_12(h, false);
}

int act_take(struct hand *h)
{
	return load_12(h, true);
}

int act_verify(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = open_run(h, SHEAF_RUN_READONLY, -1);

	if (rc == 0)
		rc = shf_step_open(&step, h->run, SHEAF_LATEST, &h->err);
	if (rc == 0)
		rc = shf_step_verify(step, &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

static int by_path(struct hand *h, struct sheaf_checkpoint **step, const char *path)
{
	struct shf_opts o = h->play->opts;

	o.flags = 0;
	return shf_step_open_path(step, path, h->group, &o, h->sys, &h->err);
}

static int foreign_of(struct hand *h, const char *path)
{
	struct sheaf_checkpoint *step = NULL;
	const void *bytes;
	size_t n;
	int rc = by_path(h, &step, path);

	if (rc == 0)
		rc = shf_step_load(step, h->state, SHEAF_LOAD_LENIENT, &h->report, &h->err);
	if (rc == 0) {
		rc = shf_step_verify(step, &h->report, &h->err);
		rc = rc == SHEAF_EFORMAT ? 0 : rc;      /* intact, as far as can be checked */
	}
	if (rc == 0 && h->ranks == 1 && step->plain_n)
		rc = shf_step_attached(step, step->plain[0].name, &bytes, &n, &h->err);
	shf_step_put(step);
	return rc;
}

int act_foreign(struct hand *h) { return foreign_of(h, "hf"); }
int act_shards(struct hand *h) { return foreign_of(h, "shards"); }
int act_file(struct hand *h) { return foreign_of(h, "hf/model-00001-of-00002.safetensors"); }

/* ---- acts of one process ---- */

int act_peek(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	const void *bytes;
	size_t n;
	int rc = by_path(h, &step, "run/checkpoint-12");

	for (int i = 0; rc == 0 && i < h->n; i++)
		if (strcmp(h->s[i].name, "l.7"))        /* saves ignore it */
			rc = shf_step_read(step, &h->s[i], &h->err);
	if (rc == 0)
		rc = shf_step_attached(step, "extra-3.json", &bytes, &n, &h->err);
	shf_step_put(step);
	return rc;
}

static void planned(void *arg, const struct sheaf_plan_rank *rank)
{
	(void)rank;
	++*(int *)arg;
}

/* Each rank has a third of some tensors, all of others, and some that no other rank has. */
static void plan_hold(struct sheaf_state *state, int rank)
{
	for (int i = 0; i < 300; i++) {
		struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 1,
			.shape = { 3000 }, .count = { 3000 } };
		char name[24];

		snprintf(name, sizeof(name), i % 3 == 2 ? "%d.%d" : "%d", i, rank);
		s.name = name;
		s.tied_to = i == 3 ? "0" : NULL;
		if (i % 3 == 0)
			hand_cut(&s, 0, rank, 3);
		(void)shf_state_add(state, &s, NULL);
	}
}

int act_plan(struct hand *h)
{
	static const char *const ignore[] = { "model/1??", NULL };
	static const int32_t nodes[] = { 0, 1, 1 };
	struct shf_opts o = { .flags = SHEAF_RUN_REPLICAS, .ignore = ignore };
	struct sheaf_state *states[3];
	int rc = 0, n = 0;

	for (int r = 0; r < 3; r++) {
		states[r] = shf_state_new();
		if (states[r])
			plan_hold(states[r], r);
	}
	rc = shf_plan_job(states, nodes, 3, &o, planned, &n, &h->err);
	if (rc == 0 && n != 3)
		rc = shf_fail(&h->err, SHEAF_EBUG, "%d ranks were planned", n);
	for (int r = 0; r < 3; r++)
		shf_state_put(states[r]);
	return rc;
}

static int heard(void *arg, const struct sheaf_item *item)
{
	(void)item;
	++*(int *)arg;
	return 0;
}

static int left(void *arg, const struct sheaf_leftover *l)
{
	(void)l;
	++*(int *)arg;
	return 0;
}

int act_look(struct hand *h)
{
	int64_t steps[8];
	int n = 0, rc = open_run(h, SHEAF_RUN_READONLY, -1);

	if (rc == 0)
		rc = sheaf_run_list(h->run, heard, &n, &h->err);
	if (rc == 0)
		rc = sheaf_run_leftovers(h->run, left, &n, &h->err);
	if (rc == 0) {
		rc = sheaf_run_steps(h->run, steps, 8, &h->err);
		rc = rc > 0 ? 0 : rc;
	}
	return rc;
}

int act_prune(struct hand *h)
{
	int rc = open_run(h, 0, -1);

	if (rc == 0)
		rc = shf_run_mark(h->run, 10, SHEAF_MARK_KEEP, &h->err);
	if (rc == 0)
		rc = shf_run_mark(h->run, 10, SHEAF_MARK_NONE, &h->err);
	if (rc == 0)
		rc = shf_run_prune(h->run, false, NULL, NULL, &h->err);
	return rc > 0 ? 0 : rc;
}

int act_rewind(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = open_run(h, 0, -1);

	if (rc == 0)
		rc = shf_step_open(&step, h->run, SHEAF_LATEST, &h->err);
	if (rc == 0)
		rc = shf_step_load(step, h->state, SHEAF_LOAD_LENIENT, &h->report, &h->err);
	shf_step_put(step);
	return rc ? rc : shf_run_rewind(h->run, 10, &h->err);
}

int act_salvage(struct hand *h)
{
	struct shf_opts o = h->play->opts;

	o.flags = 0;
	o.timeout_ms = 1000;
	return shf_run_salvage("run", 13, &o, h->sys, &h->report, &h->err);
}

int act_copy(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = by_path(h, &step, "run/checkpoint-12");

	if (rc == 0)
		rc = shf_step_copy(step, "other/run", &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

static int damaged(void *arg, const struct sheaf_item *item)
{
	struct hand *h = arg;

	/* The incomplete step 20 was there before. */
	return item->state != SHEAF_ITEM_DAMAGED || (item->step == 20 && !item->session[0])
	     ? 0 : shf_fail(&h->err, SHEAF_ECORRUPT, "%s", item->path);
}

/* Checks that each step has all its files, and that the newest is complete. */
int act_look_after(struct hand *h)
{
	struct shf_opts o = h->play->opts;
	struct sheaf_checkpoint *step = NULL;
	int rc;

	o.flags = SHEAF_RUN_READONLY;
	rc = shf_run_open(&h->run, "run", NULL, &o, h->sys, &h->err);
	if (rc == 0)
		rc = sheaf_run_list(h->run, damaged, h, NULL);
	if (rc == 0)
		rc = shf_step_open(&step, h->run, SHEAF_LATEST, &h->err);
	if (rc == 0)
		rc = shf_step_verify(step, NULL, &h->err);
	shf_step_put(step);
	return rc;
}

/* ---- the disk ---- */

static void put(struct simdisk *disk, const char *path, const char *text)
{
	if (simdisk_put(disk, path, text, strlen(text)) < 0)
		abort();
}

static void must(int rc, const struct hand *h)
{
	if (rc == 0)
		return;
	fprintf(stderr, "%d: %s\n", rc, h->err.msg);
	abort();
}

/* Step 9 is set aside, 8 is in the trash, 10 to 12 are committed, and the writer of 13 died before
 * its rename. */
static int lives_act(struct hand *h)
{
	struct simdisk_fault fault = { .nth = 1, .kind = SIMDISK_RENAME, .how = SIMDISK_KILL,
		.name = "13-", .process = acts_process(h) };

	must(open_run(h, SHEAF_RUN_CREATE, 600), h);
	(void)with_stream(h);
	must(save_one(h, 8), h);
	must(save_one(h, 9), h);
	must(shf_run_rewind(h->run, 8, &h->err), h);
	must(save_one(h, 10), h);
	must(shf_run_mark(h->run, 10, SHEAF_MARK_KEEP, &h->err), h);
	must(shf_run_prune(h->run, false, NULL, NULL, &h->err) != 1, h);
	shf_run_close(h->run);
	h->play->opts.keep_last = 0;
	must(open_run(h, 0, 600), h);
	must(save_one(h, 11), h);
	must(save_one(h, 12), h);
	if (h->ranks > 1)
		return 0;
	simdisk_fault(h->play->disk, &fault);
	(void)save_one(h, 13);
	return 0;
}

static void put_foreign(struct simdisk *disk, const char *dir)
{
	static const struct hand_tensor one[] = { { "embed", SHEAF_BF16, 2, { 61, 37 } },
	                                          { "l.0", SHEAF_F32, 1, { 29 } } };
	static const struct hand_tensor two[] = { { "l.1", SHEAF_F32, 1, { 30 } } };
	char path[80];

	snprintf(path, sizeof(path), "%s/model-00001-of-00002.safetensors", dir);
	hands_file(disk, path, one, 2, 3);
	snprintf(path, sizeof(path), "%s/model-00002-of-00002.safetensors", dir);
	hands_file(disk, path, two, 1, 0);
	snprintf(path, sizeof(path), "%s/config.json", dir);
	put(disk, path, "{}\n");
}

struct simdisk *acts_disk(int ranks)
{
	struct simdisk *disk = simdisk_new(0x5eaf, SIMDISK_STRICT);
	struct play p = hands_play(disk, ranks, acts_hold);

	p.path = "";
	p.opts.keep_last = 1;
	(void)hands_run(&p, lives_act, true);
	simdisk_faults_clear(disk);
	put_foreign(disk, "hf");
	put_foreign(disk, "shards");
	put(disk, "hf/model.safetensors.index.json",
	    "{\"metadata\":{\"total_size\":1},\"weight_map\":{"
	    "\"embed\":\"model-00001-of-00002.safetensors\","
	    "\"l.0\":\"model-00001-of-00002.safetensors\","
	    "\"l.1\":\"model-00002-of-00002.safetensors\"}}\n");
	put(disk, "run/.sheaf/stage/copy-12-00112233445566778899aabbccddeeff/config.json", "{}");
	/* An incomplete step, and stray files. */
	put(disk, "run/checkpoint-20/inside", "");
	(void)simdisk_remove(disk, "run/checkpoint-20/inside");
	put(disk, "run/.sheaf/tmp-00112233445566778899aabbccddeeff", "");
	put(disk, "run/.sheaf/proof-00112233445566778899aabbccddeeff", "");
	put(disk, "run/.sheaf/proof-notes", "");
	simdisk_settle(disk);
	return disk;
}

struct simdisk *acts_disk_copy(struct simdisk *disk)
{
	struct simdisk *copy = simdisk_crash(disk, simdisk_cut_n(disk) - 1, NULL);

	simdisk_advance(copy, 2 * 86400);       /* the dead process is known to be dead then */
	return copy;
}
