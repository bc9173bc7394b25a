/* SPDX-License-Identifier: Apache-2.0 */
/* The group is lost at its n-th operation, for all ranks at once, in whatever call they are: all
 * return that with the reason that the operation gave, none waits, nothing stays open, and what was
 * committed before is there and whole. */
#include "acts.h"
#include "t.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"

enum { ROWS = 16, COLUMNS = 64, LAST = 4, OPS_MAX = 4000 };
static const int32_t apart[] = { 1, 2 };
static struct sheaf_group_ops real;
static _Thread_local long ops_n;
static long lost_at;                    /* 0: never */
static long most;                       /* operations of a rank */
static int committed;                   /* the newest that rank 0 knows of */

static bool is_lost(struct sheaf_error *err)
{
	bool lost = ++ops_n == lost_at;

	most = ops_n > most ? ops_n : most;
	if (lost)
		snprintf(err->msg, sizeof(err->msg), "the cable of operation %ld is cut", ops_n);
	return lost;
}

static int gather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
		  struct sheaf_error *err)
{
	return is_lost(err) ? -1 : real.allgather(arg, mine, all, bytes, timeout_ms, err);
}

static int reduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms, struct sheaf_error *err)
{
	return is_lost(err) ? -1 : real.allreduce(arg, x, n, op, timeout_ms, err);
}

static int alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                     const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	return is_lost(err) ? -1
	                    : real.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);
}

static void tamper(struct hand *h)
{
	real = h->group->ops;
	h->group->ops.allgather = gather;
	h->group->ops.allreduce = reduce;
	h->group->ops.alltoallv = alltoallv;
	real.arg = NULL;                /* each rank has its own, which the calls are given */
	ops_n = 0;
}

/* Columns, which travel between the nodes. */
static void hold(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, ROWS, COLUMNS), 1, h->rank, h->ranks);
	hand_add(h, "model", "head", SHEAF_F32, 2, ROWS, COLUMNS)->tied_to = "all";
}

/* Saves 1 to 4, each committed with or without patience; then a look at what is there. */
static int train(struct hand *h)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts),
		.flags = h->play->variant & 1 ? SHEAF_SAVE_LAZY : 0 };
	int rc = 0;

	for (int64_t n = 1; n <= LAST && rc == 0; n++) {
		struct sheaf_save *save = NULL;

		rc = shf_save_begin(&save, h->run, n, h->state, &opts, &h->err);
		for (int k = 0; k < h->n && rc == 0 && opts.flags; k++)
			rc = shf_save_copied(save, k, -1, NULL);
		if (rc == 0 && h->rank == 0)
			(void)shf_save_attach(save, "config.json", "{}", 2, NULL);
		do
			rc = rc ? rc : shf_save_commit(save, h->play->variant & 2 ? 0 : -1,
			                               &h->err);
		while (rc == SHEAF_EAGAIN && (rc = 0, simgroup_pause(h->group, 10), true));
		if (rc == 0 && h->rank == 0)
			committed = (int)n;
		shf_save_free(save);
	}
	return rc;
}

static void look(struct simdisk *disk)
{
	struct play p = hands_play(disk, 2, hold);

	p.step = SHEAF_LATEST;
	p.nodes = apart;
	p.opts.flags = 0;
	if (committed)
		LOADED(p);
}

static void lose_each(int variant)
{
	long n = 0;

	most = 0;
	/* Never, which counts them; then at every third, from another one on in each. */
	for (lost_at = 0; lost_at <= most; lost_at += lost_at ? 3 : 1 + variant) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold);

		simdisk_set_trace(disk, false);
		p.nodes = apart;
		p.variant = variant;
		p.opts.keep_last = 1;
		p.opts.grace_s = 1;
		p.tamper = tamper;
		committed = 0;
		(void)hands_run(&p, train, true);
		CHECK(p.rc == 0 || (lost_at && p.rc == SHEAF_ELOST));
		CHECK(p.rc == 0 || strstr(p.err.msg, " is cut"));
		CHECK(p.rc != 0 || committed == LAST);
		look(disk);
		simdisk_free(disk);
		n++;
	}
	printf("# lost at each of %ld operations\n", n);
	CHECK(n > 25 && n < OPS_MAX);
}

TEST(a_group_may_be_lost_at_any_operation) { lose_each(0); }
TEST(and_while_copies_go_on_behind) { lose_each(1); }
TEST(and_while_a_commit_is_only_asked_after) { lose_each(2); }
