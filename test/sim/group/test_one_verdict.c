/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank finds alone becomes the same code on all ranks, and the group goes on: ranks whose
 * options or averages differ, although nothing compares them, and a rank without memory. */
#include "hands.h"
#include <string.h>
#include "run_open.h"
#include "save_attach.h"
#include "starve.h"
#include "state.h"
#include "t.h"

enum { RANKS = 2 };
static int codes[RANKS];

static void w_and_x(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 1, 1000), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "x", SHEAF_F32, 1, 1000), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "y", SHEAF_F32, 1, 1000), 0, h->rank, h->ranks);
}

static void w_and_y(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 1, 1000), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "y", SHEAF_F32, 1, 1000), 0, h->rank, h->ranks);
}

/* The codes of both ranks, and that they can still meet. */
static int after(struct hand *h, int rc)
{
	struct shf_team *team = &h->run->team;

	codes[h->rank] = rc;
	return shf_agree(team, 0, &h->err);
}

/* A strict load, of which one rank ignores what is in the step alone. */
static int load_strictly(struct hand *h)
{
	const char *const ignore[] = { "optimizer/x", NULL };
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY,
		.timeout_ms = 60000, .ignore = h->rank ? NULL : ignore };
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_run_open(&run, "run", h->group, &opts, h->sys, &h->err);

	if (rc == 0)
		rc = shf_step_open(&step, run, 1, &h->err);
	if (rc == 0)
		rc = shf_step_load(step, h->state, SHEAF_LOAD_STRICT, NULL, &h->err);
	rc = after(h, rc);
	shf_step_put(step);
	if (run)
		shf_run_close(run);
	return rc;
}

static struct play saved(void)
{
	struct play p = hands_play(disk_new(), RANKS, w_and_x);

	p.step = 1;
	SAVED(p);
	p.opts.flags = SHEAF_RUN_READONLY;
	return p;
}

TEST(what_one_rank_does_not_ignore_is_refused_on_all)
{
	struct play p = saved();

	p.hold = w_and_y;
	CHECK_RC(hands_run(&p, load_strictly, false), 0, &p.err);
	CHECK_INT(codes[0], SHEAF_ELAYOUT);
	CHECK_INT(codes[1], SHEAF_ELAYOUT);
	simdisk_free(p.disk);
}

/* One rank looks at no sums. */
static int load_unverified(struct hand *h)
{
	struct shf_opts opts = { .timeout_ms = 60000,
		.flags = h->rank ? 0 : SHEAF_RUN_UNVERIFIED };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, "run/checkpoint-1", h->group, &opts, h->sys, &h->err);

	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, NULL, &h->err);
	if (h->rank == 0 && !strstr(h->err.msg, "SHEAF_RUN_UNVERIFIED"))
		rc = SHEAF_EBUG;
	rc = after(h, rc);
	shf_step_put(step);
	return rc;
}

TEST(ranks_that_look_at_sums_load_with_none_that_do_not)
{
	struct play p = saved();

	CHECK_RC(hands_run(&p, load_unverified, false), 0, &p.err);
	CHECK_INT(codes[0], SHEAF_EINVAL);
	CHECK_INT(codes[1], SHEAF_EINVAL);
	simdisk_free(p.disk);
}

static void w_of_rank_0(struct hand *h)
{
	if (h->rank == 0)
		hand_add(h, "model", "w", SHEAF_F32, 1, 1000);
	else
		hand_add(h, "model", "v", SHEAF_U8, 1, 10);
}

/* The rank that holds the weights alone says that they are averaged. */
static int save_averages_of_one(struct hand *h)
{
	static const struct sheaf_ema rules = { .size = sizeof(rules), .coef = 0.5 };
	struct sheaf_save_opts o = { .size = sizeof(o), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;
	int rc = h->rank == 0 ? shf_state_ema(h->state, NULL, &rules, NULL) : 0;

	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 1, h->state, &o, &h->err);
	if (rc == 0)
		rc = shf_save_gates_copied(save, SHEAF_ALL_SLICES, -1, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	rc = after(h, rc);
	shf_save_free(save);
	return rc;
}

TEST(a_rank_without_averages_commits_with_one_that_has_some)
{
	struct play p = hands_play(disk_new(), RANKS, w_of_rank_0);

	CHECK_RC(hands_run(&p, save_averages_of_one, true), 0, &p.err);
	CHECK_INT(codes[0], codes[1]);
	CHECK(codes[0] != SHEAF_ELOST);
	simdisk_free(p.disk);
}

static void none_of_x(struct hand *h)
{
	struct sheaf_slice *s;

	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 1, 1000), 0, h->rank, h->ranks);
	s = hand_add(h, "optimizer", "x", SHEAF_F32, 1, 1000);
	s->count[0] = 0;
}

TEST(what_no_rank_wants_a_byte_of_is_not_unverified)
{
	struct play p = saved();

	p.hold = none_of_x;
	LOADED(p);
	CHECK_INT(p.report.unverified, 0);
	CHECK_INT(hands_told(&p, 'V'), 0);
	simdisk_free(p.disk);
}

static long nth;
static bool hit;
static int kept_not;            /* "not kept in memory: ... sums" was logged */

static void heard(void *arg, int level, const char *line)
{
	(void)arg;
	(void)level;
	kept_not += strstr(line, "is not kept in memory") && strstr(line, "no memory for sums");
}

/* Rank 0 lacks memory once, in a commit that keeps the step in memory and writes it to disk. */
static int commit_hungrily(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, NULL, &h->err);

	if (h->rank == 0) {
		starved = false;
		starve_left = nth;
	}
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	if (h->rank == 0)
		hit = starved;
	starve_left = 0;
	rc = after(h, rc);
	shf_save_free(save);
	return rc;
}

TEST(what_memory_lacked_sums_for_is_written_to_disk)
{
	int seen = 0;

	hit = true;
	for (nth = 1; hit; nth++) {
		struct play p = hands_play(disk_new(), RANKS, w_and_x);

		simdisk_set_agents(p.disk, UINT64_C(1) << 30);
		p.opts.agent = "auto";
		p.opts.log = heard;
		kept_not = 0;
		CHECK_RC(hands_run(&p, commit_hungrily, true), 0, &p.err);
		CHECK_INT(codes[0], codes[1]);
		if (kept_not)
			CHECK_INT(codes[0], 0);
		seen += kept_not > 0;
		simdisk_free(p.disk);
	}
	CHECK(seen > 0);
}
