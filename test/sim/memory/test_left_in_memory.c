/* SPDX-License-Identifier: Apache-2.0 */
/* A step that a job has acknowledged in memory alone is what the next job finds, whatever came
 * between: a rewind that failed, a mark, a flush by the agent. */
#include <errno.h>
#include "one_rank.h"
#include "run_ops.h"
#include "save.h"
#include "save_commit.h"
#include "save_end.h"
#include "t.h"

/* Begins and commits. Returns what the first call that failed returned, or 0. */
static int tries(struct one *o, int64_t step, uint32_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;
	int rc;

	re_paint(&o->mine, step);
	rc = shf_save_begin(&save, o->run, step, o->state, &opts, &o->err);
	return rc < 0 ? rc : one_commit(o, save);
}

/* Each call of a rewind fails once. What is saved then may be refused, but not lost. */
TEST(a_rewind_that_fails_loses_nothing_that_is_saved_to_memory_after_it)
{
	int failed = 0, found = 0;

	for (int nth = 1, fired = 1; fired; nth++) {
		struct one o = one_new(0);
		int64_t last = -1;
		bool memory;
		int rc;

		one_saves(&o, 1, 0);
		one_saves(&o, 2, 0);
		one_saves(&o, 3, SHEAF_NO_DISK);
		simdisk_fail_at(o.disk, nth, EIO);
		rc = shf_run_rewind(o.run, 1, &o.err);
		fired = simdisk_fired(o.disk);
		simdisk_faults_clear(o.disk);
		if (fired && rc < 0) {
			failed++;
			for (int step = 4; step <= 6; step++)
				if (tries(&o, step, step == 5 && nth % 2 ? 0 : SHEAF_NO_DISK) == 0)
					last = step;
			one_dies(&o);
			one_next(&o);
			if (last >= 0) {
				found++;
				CHECK_INT(one_loads(&o, SHEAF_LATEST, &memory), last);
				CHECK(memory);
			}
		}
		one_end(&o);
	}
	print_message("# %d rewinds failed, %d steps were found after them\n", failed, found);
	CHECK(failed > 20 && found > 10);
}
