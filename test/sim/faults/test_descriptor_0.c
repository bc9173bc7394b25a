/* SPDX-License-Identifier: Apache-2.0 */
/* Whoever closed its stdin gets 0 from the next open, and 0 is a descriptor like others: with any
 * one of what an act opens being 0, it does just what it does without. */
#include "acts.h"
#include "run_open.h"
#include "t.h"
#include "sheaf-admin.h"

static struct {
	int rank, nth;
} zero;

static void be_zero(struct hand *h)
{
	if (h->rank == zero.rank)
		simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = zero.nth,
			.kind = SIMDISK_OPEN, .how = SIMDISK_ZERO, .process = acts_process(h) });
}

/* Is there an nth open of that rank? hash: of all that is on the disk afterwards. */
static bool acted(struct simdisk *base, int ranks, int (*act)(struct hand *h), uint64_t *hash)
{
	struct simdisk *disk = acts_disk_copy(base);
	struct play p = hands_play(disk, ranks, acts_hold);
	bool was;

	simdisk_set_trace(disk, false);
	p.path = "";
	p.opts.keep_last = 1;
	p.tamper = be_zero;
	CHECK_RC(hands_run(&p, act, false), 0, &p.err);
	CHECK_INT(p.wrong, 0);
	was = simdisk_fired(disk) > 0;
	simdisk_faults_clear(disk);
	*hash = simdisk_hash(disk, "");
	simdisk_free(disk);
	return was;
}

static void each_open_gives_0(int ranks, int (*act)(struct hand *h))
{
	struct simdisk *base = acts_disk(ranks);
	int opens = 0;

	for (zero.rank = 0; zero.rank < ranks; zero.rank++) {
		uint64_t plain, hash;

		zero.nth = INT32_MAX;
		CHECK(!acted(base, ranks, act, &plain));
		for (zero.nth = 1; acted(base, ranks, act, &hash); zero.nth++) {
			CHECK(hash == plain);
			opens++;
		}
	}
	printf("# %d opens\n", opens);
	CHECK(opens > 1);
	simdisk_free(base);
}

/* Which sets the bad one aside. */
static int act_save_12_anew(struct hand *h)
{
	struct shf_opts o = h->play->opts;
	struct sheaf_save *save = NULL;
	int rc;

	o.flags = SHEAF_RUN_CREATE;
	o.grace_s = -1;
	rc = shf_run_open(&h->run, "run", h->group, &o, h->sys, &h->err);
	if (rc == 0)
		rc = shf_run_mark(h->run, 12, SHEAF_MARK_BAD, &h->err);
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 12, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

#define ACT(name, ranks)                                                                 \
	TEST(each_descriptor_of_##name##_by_##ranks##_may_be_0)                          \
	{                                                                                \
		each_open_gives_0(ranks, act_##name);                                    \
	}
ACT(save_again, 1)
ACT(save_12_anew, 1)
ACT(load, 1)
ACT(verify, 1)
ACT(verify, 2)
ACT(foreign, 1)
ACT(shards, 1)
ACT(file, 1)
ACT(peek, 1)
ACT(look, 1)
ACT(prune, 1)
ACT(rewind, 1)
ACT(salvage, 1)
