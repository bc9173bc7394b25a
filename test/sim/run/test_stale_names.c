/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's file system still shows old names, or the newest step disappears while it is opened.
 * Opening the latest step of a run that has steps must never return ENOENT, because programs start
 * from scratch on it. */
#include "acts.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "step.h"
#include "step_open.h"
#include "run_ops.h"
#include "load.h"

enum { ITEMS = 64 };
static int64_t opened;                  /* by rank 0 */
static int stale_ms, stale_rank;

static void hold(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 1, ITEMS), 0, h->rank, h->ranks);
}

static int save(struct hand *h, int64_t step)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, step, h->state, NULL, &h->err);

	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static int open_latest(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, SHEAF_LATEST, &h->err);

	if (rc == 0 && h->rank == 0)
		opened = step->number;
	shf_step_put(step);
	return rc;
}

static int open_what_is_not_seen(struct hand *h)
{
	int rc = save(h, 1);

	if (h->rank == stale_rank)
		simdisk_stale(h->play->disk, acts_process(h), "run", stale_ms);
	rc = rc == 0 ? save(h, 2) : rc;
	return rc == 0 ? open_latest(h) : rc;
}

TEST(a_step_that_a_rank_does_not_see_yet_is_opened_when_it_does)
{
	struct play p = hands_play(disk_new(), 2, hold);

	stale_rank = 1;
	stale_ms = 300;
	opened = -1;
	CHECK_RC(hands_run(&p, open_what_is_not_seen, true), 0, &p.err);
	CHECK_INT(opened, 2);
	simdisk_free(p.disk);
}

TEST(a_step_that_a_rank_never_sees_is_no_reason_to_start_afresh)
{
	struct play p = hands_play(disk_new(), 2, hold);

	stale_rank = 1;
	stale_ms = -1;
	SAID(hands_run(&p, open_what_is_not_seen, true), SHEAF_EIO, "this rank does not see it",
	     &p.err);
	CHECK_INT(p.err.rank, 1);
	simdisk_free(p.disk);
}

/* While rank 0 opens the latest step, the newest one is moved away at the left-th system call. */
static struct {
	struct simdisk *disk;
	const struct shf_sys *sys;
	long left;
} mover;

static void moves(void *arg)
{
	(void)arg;
	if (--mover.left == 0)
		CHECK_INT(shf_sys_rename(mover.sys, SHF_CWD, "run/checkpoint-2",
					 SHF_CWD, "elsewhere", true), 0);
}

static int open_while_it_goes(struct hand *h)
{
	int rc = save(h, 1);

	rc = rc == 0 ? save(h, 2) : rc;
	if (rc == 0)
		simdisk_set_turn(mover.disk, moves, NULL);
	rc = rc == 0 ? open_latest(h) : rc;
	simdisk_set_turn(mover.disk, NULL, NULL);
	return rc;
}

TEST(a_latest_step_that_goes_while_it_is_looked_for_gives_way_to_the_one_before)
{
	int seen[3] = { 0 };

	for (long at = 1;; at++) {
		struct play p = hands_play(disk_new(), 1, hold);

		mover.disk = p.disk;
		mover.sys = simdisk_process(p.disk, 900, 7);
		mover.left = at;
		CHECK_RC(hands_run(&p, open_while_it_goes, true), 0, &p.err);
		CHECK(opened == 1 || opened == 2);
		seen[opened]++;
		simdisk_free(p.disk);
		if (mover.left > 0)
			break;
	}
	CHECK(seen[1] > 1 && seen[2] > 1);
}

static int load_what_lost_a_file(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = save(h, 1);

	rc = rc == 0 ? shf_step_open(&step, h->run, 1, &h->err) : rc;
	if (rc == 0 && h->rank == 0)
		CHECK_INT(simdisk_remove(h->play->disk,
		                         "run/checkpoint-1/model-00001-of-00001.safetensors"), 0);
	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, NULL, &h->err);
	shf_step_put(step);
	return rc;
}

TEST(a_file_of_an_open_step_that_is_gone_is_no_missing_step)
{
	struct play p = hands_play(disk_new(), 1, hold);

	SAID(hands_run(&p, load_what_lost_a_file, true), SHEAF_ECORRUPT, "model-00001", &p.err);
	simdisk_free(p.disk);
}

/* ---- opening a run ---- */

struct opening {
	struct simdisk *disk;
	const struct shf_sys *sys[2];
	uint64_t flags;
	struct sheaf_error err[2];
};

static int opens(void *arg, int rank, struct sheaf_group *group)
{
	struct opening *o = arg;
	struct shf_opts opts = { .flags = o->flags, .timeout_ms = 60000 };
	struct sheaf_run *run = NULL;
	int rc = shf_run_open(&run, "run", group, &opts, o->sys[rank], &o->err[rank]);

	if (rc == 0)
		shf_run_close(run);
	return rc;
}

/* Rank 1 has looked before the run was made, and its client remembers for so long. */
static int opened_where_one_rank_is_late(uint64_t flags, int64_t ms)
{
	struct simgroup_opts g = { .seed = 3, .ranks = 2 };
	struct opening o = { .disk = disk_new(), .flags = flags };
	int rc[2];

	for (int r = 0; r < 2; r++)
		o.sys[r] = simdisk_process(o.disk, 800 + (uint64_t)r, r);
	simdisk_stale(o.disk, o.sys[1], ".", ms);
	if (flags & SHEAF_RUN_READONLY)
		CHECK_INT(shf_sys_mkdir(o.sys[0], SHF_CWD, "run", 0777), 0);
	simgroup_run(&g, opens, &o, rc);
	CHECK_INT(rc[0], rc[1]);
	if (rc[0] < 0)
		CHECK(strstr(o.err[0].msg, "check that all nodes mount the same file "
		             "system") != NULL);
	simdisk_free(o.disk);
	return rc[0];
}

TEST(a_run_that_a_rank_does_not_see_yet_is_opened_when_it_does)
{
	CHECK_INT(opened_where_one_rank_is_late(SHEAF_RUN_CREATE, 300), 0);
	CHECK_INT(opened_where_one_rank_is_late(SHEAF_RUN_READONLY, 300), 0);
}

TEST(a_run_that_a_rank_never_sees_is_no_reason_to_start_afresh)
{
	CHECK_INT(opened_where_one_rank_is_late(SHEAF_RUN_CREATE, -1), SHEAF_EIO);
	CHECK_INT(opened_where_one_rank_is_late(SHEAF_RUN_READONLY, -1), SHEAF_EIO);
}
