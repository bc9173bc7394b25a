/* SPDX-License-Identifier: Apache-2.0 */
/* Deleting old steps in a thread, beside what the caller does meanwhile (lib/retain/prune_task.c).
 */
#include "prune_task.h"
#include "err.h"
#include "save.h"
#include "simdisk.h"
#include "one_rank.h"
#include "restarts.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "scrub_run.h"
#include "simover.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "run_ops.h"
#include "step_open.h"
#include "load.h"
#include "sheaf-admin.h"

static struct sheaf_run *seen;  /* the run whose calls are looked at */
static char try[64];            /* the file in .sheaf/tries */
static int removed, beside;     /* how often it was removed; how often while a prune went on */

static int unlink_seen(void *arg, int dir, const char *name, bool is_dir)
{
	removed += strcmp(name, try) == 0;
	beside += strcmp(name, try) == 0 && seen->retain.pruning->task.task;
	return simover_real()->disk.unlink(arg, dir, name, is_dir);
}

struct alone {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct re_mine mine;
	struct sheaf_error err;
};

static struct sheaf_save *begin(struct alone *a, int64_t step)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts) };
	struct sheaf_save *save = NULL;

	re_paint(&a->mine, step);
	CHECK_RC(shf_save_begin(&save, a->run, step, a->state, &opts, &a->err), 0, &a->err);
	return save;
}

static void commit(struct alone *a, struct sheaf_save *save, int timeout_ms)
{
	int rc;

	while ((rc = shf_save_commit(save, timeout_ms, &a->err)) == SHEAF_EAGAIN)
		;
	CHECK_RC(rc, 0, &a->err);
	shf_save_free(save);
}

static void wait_until_verified(struct alone *a, int64_t step)
{
	for (int i = 0; i < 10000 && a->run->lineage.verified.step < step; i++) {
		CHECK_RC(shf_scrub_run_poll(a->run, &a->err), 0, &a->err);
		shf_scrub_run_start(a->run);
	}
	CHECK_INT(a->run->lineage.verified.step, step);
}

/* A prune decides by the counts of tries which older steps are of use. They are taken back when a
 * save that was begun after the load has its stage. */
TEST(tries_are_not_taken_back_while_a_thread_prunes_by_them)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .keep_last = 1,
		.resume_attempts_max = 3 };
	struct alone a = { .disk = re_world(3) };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_save *save;

	a.sys = simdisk_process(a.disk, 90, 0);
	a.state = re_state(&a.mine, 0, 1);
	simover(a.sys)->disk.unlink = unlink_seen;
	CHECK_RC(shf_run_open(&a.run, "run", NULL, &opts, a.sys, &a.err), 0, &a.err);
	seen = a.run;
	for (int64_t k = 1; k <= 3; k++)
		commit(&a, begin(&a, k), -1);
	save = begin(&a, 4);
	CHECK_RC(shf_step_open(&step, a.run, SHEAF_LATEST, &a.err), 0, &a.err);
	snprintf(try, sizeof(try), "3-%.32s", step->manifest.session);
	CHECK_RC(shf_step_load(step, a.state, SHEAF_LOAD_STRICT, NULL, &a.err), 0, &a.err);
	shf_step_put(step);
	CHECK_INT(a.run->store.tried_n, 1);
	wait_until_verified(&a, 3);
	commit(&a, save, 0);
	CHECK(a.run->retain.pruning->task.task != NULL);
	CHECK_INT(removed, 0);
	commit(&a, begin(&a, 5), -1);
	CHECK_INT(removed, 1);
	CHECK_INT(beside, 0);
	CHECK(!simdisk_exists(a.disk, "run/checkpoint-1"));
	CHECK(!simdisk_exists(a.disk, "run/checkpoint-2"));
	shf_run_close(a.run);
	shf_state_put(a.state);
	re_free(&a.mine);
	simdisk_kill(a.disk, a.sys);
	simdisk_free(a.disk);
}

static void note_reason(void *arg, int64_t step, int32_t action, const char *why)
{
	char what = sheaf_prune_action_name(action)[0];
	if (step == 1) {
		CHECK_INT(what, 'k');
		snprintf(arg, 200, "%s", why);
	}
}

/* 2 was removed by hand, so nothing shows that 3 descends from 1. Asked twice and in earnest, the
 * answer stays the same. */
TEST(a_prune_says_which_step_is_missing_between_two)
{
	struct one o = one_new(0);
	char why[200] = "";

	for (int64_t step = 1; step <= 4; step++)
		one_saves(&o, step, 0);
	CHECK_INT(simdisk_remove(o.disk, "run/checkpoint-2"), 0);
	o.run->opts.keep_last = 2;
	for (int dry = 2; dry >= 0; dry--) {
		CHECK_INT(shf_run_prune(o.run, dry == 2, note_reason, why, &o.err), 0);
		CHECK(strstr(why, "not on the branch of the newest step: 3 follows 2 of session "));
		CHECK(strstr(why, ", which is not here"));
	}
	one_end(&o);
}

/* 1 and 5 are kept by marks, and the steps between are pruned, which is written down. Then 5 cannot
 * be read during one prune. When the marks are taken back, both go. */
TEST(a_manifest_that_cannot_be_read_once_cuts_no_descent)
{
	struct one o = one_new(1);

	one_saves(&o, 1, 0);
	CHECK_RC(shf_run_mark(o.run, 1, SHEAF_MARK_KEEP, &o.err), 0, &o.err);
	for (int64_t step = 2; step <= 5; step++)
		one_saves(&o, step, 0);
	CHECK_RC(shf_run_mark(o.run, 5, SHEAF_MARK_KEEP, &o.err), 0, &o.err);
	for (int64_t step = 6; step <= 9; step++)
		one_saves(&o, step, 0);
	CHECK(shf_run_prune(o.run, 0, NULL, NULL, &o.err) >= 0);
	one_saves(&o, 10, 0);
	simdisk_fault(o.disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
		.kind = SIMDISK_OPEN, .name = "checkpoint-5", .always = true });
	(void)shf_run_prune(o.run, 0, NULL, NULL, &o.err);
	simdisk_faults_clear(o.disk);
	CHECK_RC(shf_run_mark(o.run, 1, SHEAF_MARK_NONE, &o.err), 0, &o.err);
	CHECK_RC(shf_run_mark(o.run, 5, SHEAF_MARK_NONE, &o.err), 0, &o.err);
	one_saves(&o, 11, 0);
	CHECK(shf_run_prune(o.run, 0, NULL, NULL, &o.err) >= 0);
	CHECK(!one_on_disk(&o, 1) && !one_on_disk(&o, 5));
	one_end(&o);
}
