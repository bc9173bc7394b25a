/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of .sheaf that are missing, damaged, or cannot be written or closed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "aside.h"
#include "done_files.h"
#include "lived.h"
#include "marks.h"
#include "marks_read.h"
#include "metrics.h"
#include "stage.h"

#define ID "0123456789abcdef0123456789abcdef"

static void put_text(struct world *w, const char *path, const char *text)
{
	CHECK_INT(simdisk_put(w->disk, path, text, strlen(text)), 0);
}

static void again(struct world *w)
{
	world_close(w);
	CHECK_RC(world_open(w, false), 0, &w->err);
}

/* Agents that write together meet in a folder of .sheaf; where one never came, it stays. */
TEST(a_meeting_that_never_ended_goes_after_a_week)
{
	static const char *const theirs[] = { "flush-" ID, "due-" ID };
	static const char *const others[] = { "flush-0123", "due-" ID "0", "due-x" };
	struct world w;
	char path[100];

	start(&w, 1);
	for (size_t i = 0; i < 5; i++) {
		snprintf(path, sizeof(path), RUN "/.sheaf/%s/part",
		         i < 2 ? theirs[i] : others[i - 2]);
		put_text(&w, path, "half");
	}
	again(&w);
	CHECK(simdisk_exists(w.disk, RUN "/.sheaf/flush-" ID "/part"));
	simdisk_advance(w.disk, INT64_C(6) * 86400);
	again(&w);
	CHECK(simdisk_exists(w.disk, RUN "/.sheaf/due-" ID "/part"));
	simdisk_advance(w.disk, INT64_C(2) * 86400);
	again(&w);
	for (size_t i = 0; i < 5; i++) {
		snprintf(path, sizeof(path), RUN "/.sheaf/%s", i < 2 ? theirs[i] : others[i - 2]);
		CHECK(simdisk_exists(w.disk, path) == (i >= 2));
	}
	stop(&w);
}

/* No flush publishes a step that is older than the newest on disk. */
TEST(what_agents_wrote_of_a_step_that_was_overtaken_goes_at_once)
{
	static const char *const parts[] = { "2-" ID "/a", "3-" ID "/a", "4-" ID "/a", "have-0" };
	struct world w;
	char path[120];

	start(&w, 3);
	for (size_t i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), RUN "/.sheaf/due-" ID "/%s", parts[i]);
		put_text(&w, path, "half");
	}
	again(&w);
	for (size_t i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), RUN "/.sheaf/due-" ID "/%s", parts[i]);
		CHECK(simdisk_exists(w.disk, path) == (i > 0));
	}
	stop(&w);
}

/* What is in memory later than a rewind is out of reach by this count alone. */
TEST(rewinds_in_place_are_counted_or_nobody_can_tell)
{
	struct world w;
	uint64_t odd;

	start(&w, 2);
	CHECK(shf_store_rewinds(&w.store[0]) == 0);
	CHECK_RC(shf_store_rewind(&w.store[0], 2, &w.err), 0, &w.err);
	CHECK(shf_store_rewinds(&w.store[0]) == 1);
	put_text(&w, RUN "/.sheaf/rewinds", "41\n");
	CHECK_RC(shf_store_rewind(&w.store[0], 2, &w.err), 0, &w.err);
	CHECK(shf_store_rewinds(&w.store[0]) == 42);
	put_text(&w, RUN "/.sheaf/rewinds", "4/");
	CHECK(shf_store_rewinds(&w.store[0]) > UINT64_C(1) << 40);
	put_text(&w, RUN "/.sheaf/rewinds", ":1\n");
	CHECK(shf_store_rewinds(&w.store[0]) > UINT64_C(1) << 40);
	put_text(&w, RUN "/.sheaf/rewinds", "1000000000000000000000000000000\n");
	CHECK(shf_store_rewinds(&w.store[0]) > UINT64_C(1) << 40);
	odd = shf_store_rewinds(&w.store[0]);
	CHECK_RC(shf_store_rewind(&w.store[0], 2, &w.err), 0, &w.err);
	CHECK(shf_store_rewinds(&w.store[0]) == odd + 1);
	stop(&w);
}

TEST(a_rewind_in_place_that_is_not_counted_has_failed)
{
	long failed = 0;

	for (int nth = 1, fired = 1; fired; nth++) {
		struct world w;
		int rc;

		start(&w, 2);
		simdisk_faults_clear(w.disk);
		CHECK_RC(shf_store_rewind(&w.store[0], 2, &w.err), 0, &w.err);
		simdisk_fail_at(w.disk, nth, nth % 2 ? EIO : ENOSPC);
		rc = shf_store_rewind(&w.store[0], 2, &w.err);
		fired = simdisk_fired(w.disk);
		simdisk_faults_clear(w.disk);
		CHECK(rc < 0 || shf_store_rewinds(&w.store[0]) == 2);
		failed += rc < 0;
		stop(&w);
	}
	CHECK(failed > 4);
}

/* The next job carries the journal out: what is saved meanwhile would rest on what is to go. */
TEST(nothing_is_saved_or_pruned_after_half_a_rewind)
{
	struct shf_stage g = { .dir = -1, .alive = -1 };
	struct world w;

	start(&w, 3);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
	              .kind = SIMDISK_RENAME, .name = "checkpoint-3", .always = true });
	CHECK_RC(shf_store_rewind(&w.store[0], 1, &w.err), SHEAF_EIO, &w.err);
	CHECK(simdisk_fired(w.disk) > 0);
	simdisk_faults_clear(w.disk);
	CHECK(simdisk_exists(w.disk, RUN "/.sheaf/rewind"));
	CHECK_RC(shf_stage_new(&w.store[0], &g, 4, NULL, &w.err), SHEAF_EINVAL, &w.err);
	CHECK(strstr(w.err.msg, "rewind again first"));
	CHECK_RC(world_prune(&w, 1, 3, -1), SHEAF_EINVAL, &w.err);
	CHECK_RC(shf_store_rewind(&w.store[0], 1, &w.err), 0, &w.err);
	CHECK_RC(world_save(&w, 4, 1), 0, &w.err);
	stop(&w);
}

/* NFS writes when a file is closed, and a full disk is heard of there. */
TEST(a_mark_whose_file_cannot_be_closed_is_not_made)
{
	struct world w;

	start(&w, 2);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = ENOSPC,
	              .kind = SIMDISK_CLOSE, .name = "tmp-" });
	CHECK_RC(shf_store_mark(&w.store[0], 1, 'k', &w.err), SHEAF_EIO, &w.err);
	CHECK_INT(simdisk_fired(w.disk), 1);
	simdisk_faults_clear(w.disk);
	CHECK_INT(shf_mark_read(&w.store[0], 1, NULL), 0);
	stop(&w);
}

TEST(metrics_are_written_by_the_writer_into_a_file)
{
	struct shf_store s;
	struct world w;

	start(&w, 1);
	CHECK_RC(shf_metrics_add(&w.store[0], "{}", &w.err), 0, &w.err);
	CHECK_RC(shf_store_open(&s, w.proc[0], RUN, &w.err), 0, &w.err);
	CHECK_RC(shf_metrics_add(&s, "{}", &w.err), SHEAF_EINVAL, &w.err);
	shf_store_close(&s);
	CHECK_INT(simdisk_remove(w.disk, RUN "/.sheaf/metrics.jsonl"), 0);
	put_text(&w, RUN "/.sheaf/metrics.jsonl/x", "");
	CHECK(shf_metrics_add(&w.store[0], "{}", &w.err) < 0);
	CHECK(strstr(w.err.msg, "metrics.jsonl"));
	stop(&w);
}

TEST(done_files_speak_of_one_save)
{
	struct world w;
	char session[33], other[33] = ID, *text;
	size_t n = 0, m = 0;

	start(&w, 2);
	world_session(&w, 2, session);
	CHECK_RC(shf_done_put(&w.store[0], "done", 2, other, &w.err), SHEAF_ECORRUPT, &w.err);
	CHECK(!simdisk_exists(w.disk, "done"));
	CHECK_RC(shf_done_put(&w.store[0], "done", 2, session, &w.err), 0, &w.err);
	text = simdisk_get(w.disk, "done/whole-step.2.done", &n);
	CHECK(text && strstr(text, session));
	/* As long, and it says something else. */
	memset(strstr(text, session), '0', 32);
	CHECK_INT(simdisk_put(w.disk, "done/whole-step.2.done", text, n), 0);
	free(text);
	CHECK_RC(shf_done_put(&w.store[0], "done", 2, session, &w.err), 0, &w.err);
	text = simdisk_get(w.disk, "done/whole-step.2.done", &m);
	CHECK(text && m == n && strstr(text, session));
	free(text);
	stop(&w);
}

TEST(of_a_step_that_lacks_a_file_nothing_is_said_to_be_done)
{
	struct world w;

	start(&w, 0);
	CHECK_RC(shf_done_put_newest(&w.store[0], "done", &w.err), 0, &w.err);
	CHECK(!simdisk_exists(w.disk, "done"));
	CHECK_RC(world_save(&w, 1, -1), 0, &w.err);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-1/sheaf.sums"), 0);
	CHECK_RC(shf_done_put_newest(&w.store[0], "done", &w.err), 0, &w.err);
	CHECK(!simdisk_exists(w.disk, "done"));
	for (int nth = 1, fired = 1; fired; nth++) {
		int rc;

		simdisk_fail_at(w.disk, nth, EIO);
		rc = shf_done_put_newest(&w.store[0], "done", &w.err);
		fired = simdisk_fired(w.disk);
		simdisk_faults_clear(w.disk);
		CHECK(rc == 0 || rc == SHEAF_EIO);
		CHECK(!simdisk_exists(w.disk, "done"));
	}
	stop(&w);
}

/* A step is durable where the file system syncs no directories, whichever way it says so. */
TEST(a_file_system_may_not_know_how_to_sync_a_directory)
{
	static const int errors[] = { EINVAL, ENOTSUP };

	for (size_t k = 0; k < 2; k++) {
		struct simdisk *disk = simdisk_new(7, SIMDISK_STRICT);
		struct world w;
		char session[33];
		int let = 0, told = 0;          /* of directories; of files */

		world_init(&w, disk);
		simdisk_fault(disk, &(struct simdisk_fault){ .kind = SIMDISK_FSYNC, .nth = 1,
			.error = errors[k] });
		CHECK_RC(world_open(&w, true), 0, &w.err);
		simdisk_faults_clear(disk);
		CHECK_RC(world_save(&w, 1, -1), 0, &w.err);
		world_session(&w, 1, session);
		for (int nth = 1, fired = 1; fired; nth++) {
			int rc;

			simdisk_fault(disk, &(struct simdisk_fault){ .kind = SIMDISK_FSYNC,
				.nth = nth, .error = errors[k] });
			rc = shf_done_put(&w.store[0], "done", 1, session, &w.err);
			fired = simdisk_fired(disk);
			simdisk_faults_clear(disk);
			let += fired && rc == 0;
			told += rc < 0;
			if (rc == 0)
				CHECK(simdisk_exists(disk, "done/whole-step.1.done"));
			(void)simdisk_remove(disk, "done");
		}
		CHECK(let > 0 && told > 0);
		stop(&w);
	}
}
