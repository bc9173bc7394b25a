/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks are in different calls, or in the same call on different handles: each gets an error that
 * names both calls, nothing has happened, and the ranks can go on together. */
#include "average_step.h"
#include "seen.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"
#include "averages.h"
#include "step.h"
#include "step_open.h"
#include "run_resume.h"
#include "verify_step.h"
#include "run_ops.h"
#include "load.h"
#include "load_slices.h"
#include "sheaf-admin.h"
#include "sheaf-load.h"
#include "sheaf-inspect.h"

/* What a rank has open while it makes the wrong call. */
struct open_things {
	struct sheaf_save *save;
	struct sheaf_checkpoint *step;
	struct sheaf_load *load;
};
static int call_begin(struct hand *h, const struct open_things *o)
{
	struct sheaf_save *more = NULL;
	int rc = shf_save_begin(&more, h->run, o->save->id.step + 1, h->state, NULL, &h->err);

	shf_save_free(more);
	return rc;
}

static int call_exchange(struct hand *h, const struct open_things *o)
{
	return shf_save_exchange(o->save, 0, &h->err);
}

static int call_commit(struct hand *h, const struct open_things *o)
{
	return shf_save_commit(o->save, 1000, &h->err);
}

static int call_mark(struct hand *h, const struct open_things *o)
{
	(void)o;
	return shf_run_mark(h->run, 1, SHEAF_MARK_KEEP, &h->err);
}

static int call_rewind(struct hand *h, const struct open_things *o)
{
	(void)o;
	return shf_run_rewind(h->run, 1, &h->err);
}

static int call_prune(struct hand *h, const struct open_things *o)
{
	(void)o;
	return shf_run_prune(h->run, true, NULL, NULL, &h->err);
}

static int call_step_open(struct hand *h, const struct open_things *o)
{
	struct sheaf_checkpoint *more = NULL;
	int rc = shf_step_open(&more, h->run, o->step->number, &h->err);

	shf_step_put(more);
	return rc;
}

static int call_step_open_path(struct hand *h, const struct open_things *o)
{
	struct sheaf_checkpoint *more = NULL;
	int rc = shf_step_open_path(&more, "run/checkpoint-1", h->group, NULL, h->sys, &h->err);

	(void)o;
	shf_step_put(more);
	return rc;
}

static int call_load(struct hand *h, const struct open_things *o)
{
	return shf_step_load(o->step, h->state, 0, NULL, &h->err);
}

static int call_load_begin(struct hand *h, const struct open_things *o)
{
	struct sheaf_load *more = NULL;
	int rc = shf_load_slices_begin(&more, o->step, h->state, 0, NULL, &h->err);

	shf_load_slices_free(more);
	return rc;
}

static int call_load_end(struct hand *h, const struct open_things *o)
{
	return shf_load_slices_end(o->load, 0, NULL, &h->err);
}

static int call_resume(struct hand *h, const struct open_things *o)
{
	(void)o;
	return shf_run_resume(h->run, h->state, 0, NULL, &h->err);
}

static int call_average(struct hand *h, const struct open_things *o)
{
	(void)o;
	return shf_state_average(h->state, h->run, 1, 0, &h->err);
}

static int call_verify(struct hand *h, const struct open_things *o)
{
	return shf_step_verify(o->step, NULL, &h->err);
}

static int call_run_open(struct hand *h, const struct open_things *o)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE };
	struct sheaf_run *more = NULL;
	int rc = shf_run_open(&more, "other", h->group, &opts, h->sys, &h->err);

	(void)o;
	shf_run_close(more);
	return rc;
}

static const struct {
	const char *name;
	int (*make)(struct hand *h, const struct open_things *o);
} calls[] = {
	{ "sheaf_run_open", call_run_open }, { "sheaf_run_rewind", call_rewind },
	{ "sheaf_run_mark", call_mark }, { "sheaf_run_prune", call_prune },
	{ "sheaf_save_begin", call_begin }, { "sheaf_save_advance", call_exchange },
	{ "sheaf_save_commit", call_commit }, { "sheaf_checkpoint_open", call_step_open },
	{ "sheaf_checkpoint_open_path", call_step_open_path }, { "sheaf_checkpoint_load",
	                                                         call_load },
	{ "sheaf_checkpoint_verify", call_verify }, { "sheaf_run_resume", call_resume },
	{ "sheaf_state_average", call_average }, { "sheaf_load_begin", call_load_begin },
	{ "sheaf_load_end", call_load_end },
};
enum { CALL_KINDS = sizeof(calls) / sizeof(calls[0]) };

/* Does the error name both calls? */
static bool is_told_both(const struct sheaf_error *err, int a, int b)
{
	char first[60], second[60];

	snprintf(first, sizeof(first), " %s,", calls[a].name);
	snprintf(second, sizeof(second), " %s (", calls[b].name);
	return strstr(err->msg, first) && strstr(err->msg, second);
}

/* For each pair of calls rank 0 makes the one and rank 1 the other. The save that was begun before
 * is then committed. */
static int make_different_calls(struct hand *h)
{
	struct open_things o = { NULL, NULL, NULL };
	int rc = save_step(h, 1);

	rc = rc ? rc : shf_step_open(&o.step, h->run, 1, &h->err);
	rc = rc ? rc : shf_save_begin(&o.save, h->run, 2, h->state, NULL, &h->err);
	rc = rc ? rc : shf_load_slices_begin(&o.load, o.step, h->state, 0, NULL, &h->err);
	for (int a = 0; rc == 0 && a < CALL_KINDS; a++)
		for (int b = a + 1; rc == 0 && b < CALL_KINDS; b++) {
			rc = calls[h->rank ? b : a].make(h, &o);
			if (rc == SHEAF_EINVAL && h->err.rank < 0 && is_told_both(&h->err, a, b))
				rc = 0;
			else if (rc == 0 || rc == SHEAF_EINVAL)
				rc = 1000 + a * CALL_KINDS + b;
		}
	rc = rc ? rc : shf_save_commit(o.save, -1, &h->err);
	shf_load_slices_free(o.load);
	shf_save_free(o.save);
	shf_step_put(o.step);
	return rc;
}

TEST(ranks_that_make_different_calls_are_both_told_and_nothing_happened)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, RANKS, little);

	CHECK_RC(run_all(&p, make_different_calls), 0, &p.err);
	CHECK(simdisk_exists(disk, "run/checkpoint-2") && !simdisk_exists(disk, "other"));
	simdisk_free(disk);
}

static int commit_different_saves(struct hand *h)
{
	struct sheaf_save *save[2] = { NULL };
	int rc = begin(h, &save[0], 7);

	rc = rc ? rc : begin(h, &save[1], 8);
	if (rc == 0) {
		(void)commit(h, save[h->rank], -1);
		rc = commit(h, save[0], -1);
	}
	rc = rc ? rc : commit(h, save[1], -1);
	shf_save_free(save[0]);
	shf_save_free(save[1]);
	return rc;
}

TEST(ranks_that_commit_different_saves_are_told_and_may_go_on)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, RANKS, little);

	CHECK_RC(run_all(&p, commit_different_saves), 0, &p.err);
	check_seen(2, SHEAF_EINVAL, "ranks call sheaf_save_commit on different handles");
	check_seen(4, 0, "");
	simdisk_free(disk);
}

/* The program of rank 1 fails between begin and commit, and begins the next save instead. */
static int give_up_alone(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = begin(h, &save, 7);

	if (rc == 0 && h->rank) {
		(void)shf_save_fail(save, "no loss", NULL);
		shf_save_free(save);
		rc = begin(h, &save, 8);
	} else if (rc == 0) {
		rc = commit(h, save, -1);
	}
	shf_save_free(save);
	return rc == SHEAF_EINVAL ? save_step(h, 9) : 1;
}

TEST(a_rank_that_leaves_a_save_without_commit_is_told_so)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, RANKS, little);

	CHECK_RC(run_all(&p, give_up_alone), 0, &p.err);
	check_seen(1, SHEAF_EINVAL, "rank 1 sheaf_save_begin, rank 0 sheaf_save_commit");
	CHECK(simdisk_exists(disk, "run/checkpoint-9"));
	CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
	simdisk_free(disk);
}
