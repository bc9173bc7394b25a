/* SPDX-License-Identifier: Apache-2.0 */
/* A save that ends in doubt (EINDOUBT): its step may be on disk or not, and a power cut may still
 * take it. What a prune, a mark, another save and a restart make of it. */
#include <errno.h>
#include "one_rank.h"
#include "run_ops.h"
#include "save.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_publish.h"
#include "t.h"
#include "sheaf-admin.h"

static int pruned(struct one *o)
{
	return shf_run_prune(o->run, false, NULL, NULL, &o->err);
}

/* It is read again and found whole, but a power cut would take it. 3 tells how a prune goes on
 * when the doubt is over. */
TEST(a_step_in_doubt_is_no_reason_to_delete_the_one_before)
{
	for (int way = 0; way < 3; way++) {
		struct one o = one_new(1), after;
		struct sheaf_save *save;

		simdisk_set_task_steps(o.disk, 0);
		one_saves(&o, 1, 0);
		save = one_begin(&o, 2, 0);
		one_doubts(&o, save, false);
		if (way)
			CHECK_INT(one_loads(&o, 2, NULL), 2);
		CHECK_INT(pruned(&o), 0);
		CHECK(one_on_disk(&o, 1) && one_on_disk(&o, 2));
		after.disk = simdisk_crash(o.disk, simdisk_cut_n(o.disk) - 1, NULL);
		CHECK(one_on_disk(&after, 1));
		simdisk_free(after.disk);
		if (way == 2) {
			one_saves(&o, 3, 0);
			CHECK_INT(pruned(&o), 2);
			CHECK(!one_on_disk(&o, 1) && !one_on_disk(&o, 2) && one_on_disk(&o, 3));
		}
		one_end(&o);
	}
}

/* The sync that fails is of a thread, and the prune waits for it. */
TEST(a_step_that_is_being_published_is_no_reason_to_delete_the_one_before)
{
	struct one o = one_new(1);
	struct sheaf_save *save;

	simdisk_set_task_steps(o.disk, 0);
	one_saves(&o, 1, 0);
	save = one_begin(&o, 2, 0);
	one_sync_fails(&o, true);
	while (!shf_save_publish_current(o.run))
		CHECK_RC(shf_save_commit(save, 0, &o.err), SHEAF_EAGAIN, &o.err);
	CHECK_INT(pruned(&o), 0);
	CHECK_RC(one_commit(&o, save), SHEAF_EINDOUBT, &o.err);
	one_sync_fails(&o, false);
	CHECK(one_on_disk(&o, 1));
	one_end(&o);
}

/* 6 was saved to memory after the commit of 5 had ended in doubt. */
TEST(what_follows_a_step_in_doubt_goes_with_it_when_it_is_marked_bad)
{
	for (int way = 0; way < 2; way++) {
		struct one o = one_new(0);
		bool memory = true;

		one_saves(&o, 4, 0);
		one_doubts(&o, one_begin(&o, 5, 0), false);
		if (way == 0)
			one_saves(&o, 6, SHEAF_SAVE_NO_DISK);
		CHECK_RC(shf_run_mark(o.run, 5, SHEAF_MARK_BAD, &o.err), 0, &o.err);
		one_dies(&o);
		one_next(&o);
		CHECK_INT(one_loads(&o, SHEAF_LATEST, &memory), 4);
		one_end(&o);
	}
}

TEST(what_follows_a_step_in_doubt_is_found_when_the_disk_has_lost_that)
{
	for (int gone = 0; gone < 2; gone++) {
		struct one o = one_new(0);
		bool memory = false;

		one_saves(&o, 4, 0);
		one_doubts(&o, one_begin(&o, 5, 0), gone);
		one_saves(&o, 6, SHEAF_SAVE_NO_DISK);
		one_dies(&o);
		one_next(&o);
		CHECK_INT(one_loads(&o, SHEAF_LATEST, &memory), 6);
		CHECK(memory);
		one_end(&o);
	}
}

/* The disk does not have 5. Memory has it, and must keep it until another 5 is saved. */
TEST(a_step_in_doubt_stays_in_memory_while_its_number_is_saved_again)
{
	for (int fails = 0; fails < 2; fails++) {
		struct one o = one_new(0);
		struct sheaf_save *again;
		bool memory = false;

		one_saves(&o, 4, 0);
		one_doubts(&o, one_begin(&o, 5, 0), true);
		again = one_begin(&o, 5, 0);
		if (fails)
			simdisk_fault(o.disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
			              .kind = SIMDISK_FSYNC, .name = "sheaf.json" });
		CHECK_RC(one_commit(&o, again), fails ? SHEAF_EIO : 0, &o.err);
		simdisk_faults_clear(o.disk);
		one_dies(&o);
		one_next(&o);
		CHECK_INT(one_loads(&o, SHEAF_LATEST, &memory), 5);
		CHECK_INT(memory, true);
		one_end(&o);
	}
}
