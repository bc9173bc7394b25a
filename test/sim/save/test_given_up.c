/* SPDX-License-Identifier: Apache-2.0 */
/* A save that one rank gives up (sheaf_save_abort) while its commit runs: it fails on all ranks, or
 * it was too late for that; and what else is in memory stays there. */
#include <stdlib.h>
#include "hands.h"
#include "agent_link.h"
#include "err.h"
#include "memory_tier.h"
#include "save_status.h"
#include "simover.h"
#include "state.h"
#include "t.h"

static const int32_t apart[2] = { 1, 2 };

/* All of w is so small that it gets into the image of one rank. */
static void halves(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 24, 16), 0, h->rank, h->ranks);
	hand_add(h, "optimizer", "m", SHEAF_F32, 1, 100);
}

/* Which operation of one rank's group gives its save up: the n-th, before or after it. */
static struct {
	struct sheaf_group_ops real;
	void *one;                      /* the group of that rank */
	struct sheaf_save *save;        /* of that rank; NULL: not in that commit */
	int nth, seen, failed;          /* failed: what sheaf_save_abort returned; 1: not called */
	bool after;
	int rank;
	int rc[2];                      /* of the commits */
	int64_t newest;                 /* in memory, as rank 0 knows it then */
	char words[300];
} at;

static void look(const void *group)
{
	if (group == at.one && at.save && ++at.seen == at.nth)
		at.failed = shf_save_fail(at.save, "the loss is no number", NULL);
}

static int reduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms, struct sheaf_error *err)
{
	int rc;

	if (!at.after)
		look(arg);
	rc = at.real.allreduce(arg, x, n, op, timeout_ms, err);
	if (at.after)
		look(arg);
	return rc;
}

static int alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                     const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	int rc;

	if (!at.after)
		look(arg);
	rc = at.real.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);
	if (at.after)
		look(arg);
	return rc;
}

static void tamper(struct hand *h)
{
	at.real = h->group->ops;
	if (h->rank == at.rank)
		at.one = h->group->ops.arg;
	h->group->ops.allreduce = reduce;
	h->group->ops.alltoallv = alltoallv;
}

static int begin(struct hand *h, int64_t step, uint64_t flags, struct sheaf_save **save)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	int rc = shf_save_begin(save, h->run, step, h->state, &opts, &h->err);

	for (int k = 0; k < h->n && rc == 0 && flags & SHEAF_SAVE_LAZY; k++)
		rc = shf_save_copied(*save, k, -1, NULL);
	return rc;
}

/* Commits it, and one rank gives it up in the operation of `at`. */
static void commit_given_up(struct hand *h, struct sheaf_save *save)
{
	if (h->rank == at.rank)
		at.save = save;
	at.rc[h->rank] = shf_save_commit(save, -1, &h->err);
	if (h->rank == at.rank)
		at.save = NULL;
	if (h->rank == 0)
		snprintf(at.words, sizeof(at.words), "%.290s", h->err.msg);
}

/* Whether it was given up in time is the same for its caller and for the commits of all ranks. */
static void is_one_verdict(void)
{
	CHECK_INT(at.rc[0], at.rc[1]);
	CHECK_INT(at.rc[0], at.failed == 0 ? SHEAF_EFAILED : 0);
	CHECK(at.failed == 0 || at.failed == 1 || at.failed == SHEAF_EINVAL);
	CHECK(at.failed != 0 || strstr(at.words, "the loss is no number"));
}

/* ---- while its averages are copied ---- */

static int with_averages(struct hand *h)
{
	static const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };
	struct sheaf_save *save = NULL;
	int rc = shf_state_ema(h->state, NULL, &ema, NULL);

	rc = rc ? rc : begin(h, 1, SHEAF_SAVE_LAZY, &save);
	if (rc == 0)
		commit_given_up(h, save);
	shf_save_free(save);
	return rc;
}

TEST(a_save_that_is_given_up_while_averages_are_copied_fails_for_that_reason)
{
	bool more = true;
	int n = 0;

	for (int nth = 1; more; nth++) {
		more = false;
		for (int k = 0; k < 4; k++) {
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, 2, halves);

			memset(&at, 0, sizeof(at));
			at.nth = nth;
			at.after = k & 1;
			at.rank = k >> 1;
			at.failed = 1;
			p.tamper = tamper;
			simdisk_set_task_steps(disk, 0);
			CHECK_RC(hands_run(&p, with_averages, true), 0, &p.err);
			is_one_verdict();
			CHECK(simdisk_exists(disk, "run/checkpoint-1") == (at.failed != 0));
			more |= at.failed != 1;
			n += at.failed == 0;
			simdisk_free(disk);
		}
	}
	CHECK(n > 4);
}

/* ---- while another rank writes ---- */

static void *held;              /* the disk of rank 0: no write is seen to end, except by callers
                                 * that wait for it without a limit */

static int complete(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms)
{
	if (arg == held && timeout_ms >= 0)
		return 0;
	return simover_real()->queue.complete(arg, queue, io, timeout_ms);
}

static void hold_writes(struct hand *h)
{
	simover(&h->used)->queue.complete = complete;
	if (h->rank == 0)
		held = h->used.file.arg;
}

static int ask_of_failed(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = begin(h, 1, 0, &save);

	if (rc < 0)
		return rc;
	rc = shf_save_commit(save, 0, &h->err);
	if (rc != SHEAF_EAGAIN || !strstr(h->err.msg, "still writing"))
		return rc ? rc : shf_fail(&h->err, SHEAF_EBUG, "nobody wrote");
	rc = h->rank ? shf_save_fail(save, "the loss is no number", NULL) : 0;
	rc = rc ? rc : shf_save_commit(save, 0, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(who_asks_after_a_save_that_is_given_up_hears_of_it_while_others_write)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	p.tamper = hold_writes;
	CHECK_RC(hands_run(&p, ask_of_failed, true), SHEAF_EFAILED, &p.err);
	CHECK(strstr(p.err.msg, "the loss is no number") != NULL);
	CHECK(!simdisk_exists(disk, "run/checkpoint-1"));
	held = NULL;
	simdisk_free(disk);
}

/* ---- to memory alone ---- */

static uint64_t how;

static int to_memory(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = begin(h, 1, how, &save);

	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	save = NULL;
	rc = rc ? rc : begin(h, 2, how, &save);
	if (rc == 0)
		commit_given_up(h, save);
	shf_save_free(save);
	if (h->rank == 0)
		at.newest = shf_memory_tier_newest(h->run);
	return rc;
}

static int64_t latest;

static int find_latest(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, SHEAF_LATEST, &h->err);

	latest = rc == 0 ? step->number : rc;
	shf_step_put(step);
	return rc;
}

/* In the n-th operation of its commit; false: there are fewer. */
static bool is_given_up_to_memory(int nth, int rank, bool after, int copies)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);
	int64_t want;

	memset(&at, 0, sizeof(at));
	at.nth = nth;
	at.after = after;
	at.rank = rank;
	at.failed = 1;
	p.nodes = apart;
	simdisk_set_agents(disk, UINT64_C(1) << 30);
	p.opts.agent = "auto";
	p.opts.images_max = 2;
	p.opts.copies = copies;
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, to_memory, true), 0, &p.err);
	is_one_verdict();
	want = at.failed == 0 ? 1 : 2;
	CHECK_INT(at.newest, want);
	p.tamper = NULL;
	CHECK_RC(hands_run(&p, find_latest, false), 0, &p.err);
	CHECK_INT(latest, want);
	simdisk_free(disk);
	return at.failed != 1;
}

TEST(a_save_to_memory_that_is_given_up_leaves_the_step_before_it_there)
{
	int n = 0;

	for (int k = 0; k < 16; k++) {
		how = SHEAF_SAVE_NO_DISK | (k & 8 ? SHEAF_SAVE_LAZY : 0);
		for (int nth = 1; is_given_up_to_memory(nth, k >> 1 & 1, k & 1, 1 + (k >> 2 & 1));
		     nth++)
			n++;
	}
	CHECK(n > 8);
}
