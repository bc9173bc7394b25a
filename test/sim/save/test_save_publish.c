/* SPDX-License-Identifier: Apache-2.0 */
/* A step is published in the background of a caller who only polls: its state at each call, and
 * what else may be done with the run meanwhile. The test decides how many turns the background task
 * gets. */
#include "hands.h"
#include <errno.h>
#include <stdlib.h>
#include "sheaf-stat.h"
#include "simover.h"
#include "t.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"
#include "save_status.h"
#include "sheaf-admin.h"

static void halves(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 64, 32), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "m", SHEAF_F32, 2, 64, 32), 1, h->rank, h->ranks);
}

/* Renames, and threads begun, of rank 0's machine. */
static struct {
	int renames, tasks;
	bool no_tasks;
} seen;

static int seen_rename(void *arg, int from_dir, const char *from, int to_dir, const char *to,
                       bool noreplace)
{
	seen.renames += strncmp(from, "checkpoint-", 11) != 0; /* no step that goes */
	return simover_real()->disk.rename(arg, from_dir, from, to_dir, to, noreplace);
}

static int seen_task_new(void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
                         const char *cpus)
{
	if (seen.no_tasks)
		return -EAGAIN;
	seen.tasks++;
	return simover_real()->task.task_new(arg, task, step, work, cpus);
}

static void tamper(struct hand *h)
{
	if (h->rank)
		return;
	simover(&h->used)->disk.rename = seen_rename;
	simover(&h->used)->task.task_new = seen_task_new;
}

/* Asked until it is being published: nothing of it is done yet. */
static int ask(struct hand *h, int64_t step, struct sheaf_save **save)
{
	struct sheaf_stat stat = { .phase = 0 };
	int rc = shf_save_begin(save, h->run, step, h->state, NULL, &h->err);

	if (rc == 0 && h->rank == h->ranks - 1)
		rc = shf_save_attach(*save, "trainer.json", "{}", 2, NULL);
	if (rc == 0 && h->rank == 0)
		rc = shf_save_note(*save, "loss", "1.5", NULL);
	if (h->rank == 0)
		seen.renames = 0;
	rc = rc ? rc : SHEAF_EAGAIN;
	for (int i = 0; i < 9 && rc == SHEAF_EAGAIN && stat.phase != 6; i++) {
		rc = shf_save_commit(*save, 0, &h->err);
		shf_save_stat(*save, &stat);
	}
	if (rc != SHEAF_EAGAIN)
		return rc ? rc : shf_fail(&h->err, SHEAF_EBUG, "it was through");
	if (!strstr(h->err.msg, "it is being published"))
		return shf_fail(&h->err, SHEAF_EBUG, "other words than: %.200s", h->err.msg);
	return stat.phase == 6 && (h->rank || seen.renames == 0)
	       ? 0 : shf_fail(&h->err, SHEAF_EBUG, "phase %u, %d renames", stat.phase,
	                      seen.renames);
}

static int end(struct hand *h, struct sheaf_save **save, int wait_ms)
{
	int rc;

	do
		rc = shf_save_commit(*save, wait_ms, &h->err);
	while (rc == SHEAF_EAGAIN);
	shf_save_free(*save);
	*save = NULL;
	return rc;
}

static int wanted(struct hand *h, const char *what, int is, int should)
{
	return is == should ? 0 : shf_fail(&h->err, SHEAF_EBUG, "%s: %d, not %d", what, is, should);
}

/* Of rank 0's machine. */
static int seen_wanted(struct hand *h, const char *what, int is, int should)
{
	return h->rank ? 0 : wanted(h, what, is, should);
}

static int64_t parent_of(const struct hand *h, int64_t step)
{
	char path[80], *text, *at;
	int64_t parent = -1;
	size_t n = 0;

	snprintf(path, sizeof(path), "run/checkpoint-%lld/sheaf.json", (long long)step);
	text = simdisk_get(h->play->disk, path, &n);
	at = text ? memmem(text, n, "\"parent\": {\"step\": ", 19) : NULL;
	if (at)
		parent = atoll(at + 19);
	free(text);
	return parent;
}

static struct simdisk *played(int ranks, int (*act)(struct hand *h), long turns)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, ranks, halves);

	memset(&seen, 0, sizeof(seen));
	simdisk_set_task_steps(disk, turns);
	p.opts.images_max = 3;
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, act, true), 0, &p.err);
	return disk;
}

static void loads(struct simdisk *disk, int64_t step)
{
	struct play p = hands_play(disk, 3, halves);

	p.step = step;
	LOADED(p);
}

/* ---- how far it has come ---- */

static int turn_by_turn(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = ask(h, 7, &save);

	/* Its small files first, then the rest: one turn at a call. */
	rc = rc ? rc : wanted(h, "the second ask", shf_save_commit(save, 0, &h->err),
	                      SHEAF_EAGAIN);
	rc = rc ? rc : seen_wanted(h, "renames", seen.renames, 0);
	rc = rc ? rc : wanted(h, "the third ask", shf_save_commit(save, 0, &h->err), 0);
	rc = rc ? rc : seen_wanted(h, "threads", seen.tasks, 1);
	shf_save_free(save);
	return rc;
}

TEST(each_ask_finds_it_further)
{
	for (int ranks = 1; ranks <= 3; ranks++) {
		struct simdisk *disk = played(ranks, turn_by_turn, 1);

		CHECK(simdisk_exists(disk, "run/checkpoint-7/trainer.json"));
		loads(disk, 7);
		simdisk_free(disk);
	}
}

static int who_waits(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = ask(h, 7, &save);

	rc = rc ? rc : end(h, &save, -1);
	rc = rc ? rc : seen_wanted(h, "renames", seen.renames, 2); /* manifest and stage */
	rc = rc ? rc : ask(h, 8, &save);
	return rc ? rc : end(h, &save, 100000);
}

TEST(who_waits_does_the_rest_of_it)
{
	struct simdisk *disk = played(2, who_waits, 0);

	loads(disk, 7);
	loads(disk, 8);
	simdisk_free(disk);
}

static int without_threads(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);

	seen.no_tasks = true;
	rc = rc ? rc : end(h, &save, 0);
	return rc ? rc : seen_wanted(h, "threads", seen.tasks, 0);
}

TEST(where_there_are_no_threads_it_is_done_at_once)
{
	struct simdisk *disk = played(2, without_threads, 0);

	loads(disk, 7);
	simdisk_free(disk);
}

/* ---- what comes too late ---- */

static int too_late(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = ask(h, 7, &save);

	rc = rc ? rc : wanted(h, "a file", shf_save_attach(save, "more", "x", 1, NULL),
	                      SHEAF_EINVAL);
	rc = rc ? rc : wanted(h, "a note", shf_save_note(save, "more", "x", NULL), SHEAF_EINVAL);
	rc = rc ? rc : wanted(h, "failing it", shf_save_fail(save, "the loss is no number", NULL),
	                      SHEAF_EINVAL);
	return rc ? rc : end(h, &save, -1);
}

TEST(nothing_can_be_added_to_it_and_nobody_can_fail_it)
{
	struct simdisk *disk = played(2, too_late, 0);

	CHECK(!simdisk_exists(disk, "run/checkpoint-7/more"));
	loads(disk, 7);
	simdisk_free(disk);
}

/* One of the ranks is failed by its caller's callback while what all wrote is synced. */
static struct sheaf_save *synced[2];
static int synced_told;

static int fail_while_synced(void *arg, const struct sheaf_stat *stat)
{
	(void)arg;
	(void)stat;
	if (synced[1] && atomic_load(&synced[1]->disk.syncs.from_ns) && !synced_told++ &&
	    shf_save_fail(synced[1], "the loss is no number", NULL) != 0)
		abort();
	return 0;
}

static int fail_behind(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);

	synced[h->rank] = save;
	rc = rc ? rc : wanted(h, "the commit", shf_save_commit(save, -1, &h->err), SHEAF_EFAILED);
	if (rc == 0 && !strstr(h->err.msg, "the loss is no number"))
		rc = shf_fail(&h->err, SHEAF_EBUG, "other words");
	rc = rc ? rc : wanted(h, "failing it", shf_save_fail(save, "again", NULL), 0);
	synced[h->rank] = NULL;
	shf_save_free(save);
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 8, h->state, NULL, &h->err);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	rc = rc ? rc : wanted(h, "failing it", shf_save_fail(save, "at last", NULL), SHEAF_EINVAL);
	shf_save_free(save);
	return rc;
}

TEST(who_fails_a_save_while_it_is_synced_fails_it_on_all_ranks)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	synced_told = 0;
	p.opts.progress = fail_while_synced;
	CHECK_RC(hands_run(&p, fail_behind, true), 0, &p.err);
	CHECK(synced_told > 0);
	CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
	CHECK(simdisk_exists(disk, "run/checkpoint-8"));
	simdisk_free(disk);
}

/* ---- files of others ---- */

enum { FEW = 30, MANY = 150 };  /* rank 0 writes 256 files at most for all of them */

static int attached(struct hand *h)
{
	struct sheaf_save *save = NULL;
	char name[40];
	int rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);

	rc = rc ? rc : shf_save_attach(save, "same", "of all", 6, NULL);
	for (int i = 0; rc == 0 && i < h->play->variant; i++) {
		snprintf(name, sizeof(name), "rank%d-%d", h->rank, i);
		rc = shf_save_attach(save, name, name, strlen(name), NULL);
	}
	return rc ? rc : end(h, &save, 0);
}

TEST(what_others_have_attached_is_there)
{
	for (int n = FEW; n <= MANY; n += MANY - FEW) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, halves);
		char path[80], *text;
		size_t bytes = 0;

		simdisk_set_task_steps(disk, 1);
		p.variant = n;
		CHECK_RC(hands_run(&p, attached, true), 0, &p.err);
		for (int i = 0; i < 2 * n; i++) {
			snprintf(path, sizeof(path), "run/checkpoint-7/rank%d-%d", i % 2, i / 2);
			text = simdisk_get(disk, path, &bytes);
			CHECK(text && bytes == strlen(path) - 17);
			CHECK(memcmp(text, path + 17, bytes) == 0);
			free(text);
		}
		CHECK(simdisk_exists(disk, "run/checkpoint-7/same"));
		loads(disk, 7);
		simdisk_free(disk);
	}
}

/* ---- what else is done with the run ---- */

static int save_one(struct hand *h, int64_t step)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, step, h->state, NULL, &h->err);

	return rc ? rc : end(h, &save, -1);
}

static int the_next_begins(struct hand *h)
{
	struct sheaf_save *save = NULL, *next = NULL;
	int rc = h->ranks % 2 ? save_one(h, 6) : 0;

	rc = rc ? rc : ask(h, 7, &save);
	rc = rc ? rc : shf_save_begin(&next, h->run, 8, h->state, NULL, &h->err);
	rc = rc ? rc : seen_wanted(h, "renames", seen.renames, 2);
	rc = rc ? rc : wanted(h, "another's turn", shf_save_commit(next, 0, &h->err),
	                      SHEAF_EINVAL);
	rc = rc ? rc : end(h, &save, 0);
	rc = rc ? rc : end(h, &next, -1);
	if (rc == 0 && h->rank == 0)
		rc = wanted(h, "the parent of 8", (int)parent_of(h, 8), 7);
	return rc;
}

TEST(a_save_that_begins_waits_for_it_and_follows_it)
{
	for (int ranks = 1; ranks <= 3; ranks++) {
		struct simdisk *disk = played(ranks, the_next_begins, 0);

		loads(disk, 7);
		loads(disk, 8);
		simdisk_free(disk);
	}
}

static int given_up(struct hand *h)
{
	struct sheaf_save *save = NULL, *next = NULL;
	int rc = ask(h, 7, &save);

	rc = rc ? rc : shf_save_begin(&next, h->run, 8, h->state, NULL, &h->err);
	shf_save_free(save);
	save = NULL;
	rc = rc ? rc : wanted(h, "one begun before", end(h, &next, -1), SHEAF_EFAILED);
	rc = rc ? rc : shf_save_begin(&save, h->run, 9, h->state, NULL, &h->err);
	rc = rc ? rc : end(h, &save, -1);
	if (rc == 0 && h->rank == 0)
		rc = wanted(h, "the parent of 9", (int)parent_of(h, 9), 7);
	return rc;
}

static int freed_at_once(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = save_one(h, 6);

	rc = rc ? rc : ask(h, 7, &save);
	shf_save_free(save);
	rc = rc ? rc : save_one(h, 9);
	if (rc == 0 && h->rank == 0)
		rc = wanted(h, "the parent of 9", (int)parent_of(h, 9), 7);
	return rc;
}

TEST(one_that_is_freed_is_there_and_the_next_follows_it)
{
	for (int ranks = 1; ranks <= 3; ranks++) {
		struct simdisk *disk = played(ranks, given_up, 0);

		loads(disk, 7);
		CHECK(!simdisk_exists(disk, "run/checkpoint-8"));
		loads(disk, 9);
		simdisk_free(disk);
		disk = played(ranks, freed_at_once, 0);
		loads(disk, 7);
		loads(disk, 9);
		simdisk_free(disk);
	}
}

static int closed(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = ask(h, 7, &save);

	shf_run_close(h->run);
	h->run = NULL;
	rc = rc ? rc : wanted(h, "a commit after it", shf_save_wait(save, 0, NULL), SHEAF_EFAILED);
	shf_save_free(save);
	return rc;
}

TEST(a_close_leaves_it_whole)
{
	for (int ranks = 1; ranks <= 2; ranks++) {
		struct simdisk *disk = played(ranks, closed, 0);

		loads(disk, 7);
		simdisk_free(disk);
	}
}

static int marked_and_pruned(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = 0;

	for (int64_t step = 1; rc == 0 && step < 5; step++)
		rc = save_one(h, step);
	rc = rc ? rc : ask(h, 7, &save);
	rc = rc ? rc : shf_run_mark(h->run, 3, SHEAF_MARK_KEEP, &h->err);
	rc = rc ? rc : seen_wanted(h, "renames", seen.renames > 2, 1);
	rc = rc ? rc : wanted(h, "a rewind", shf_run_rewind(h->run, 2, &h->err), SHEAF_EINVAL);
	rc = rc ? rc : end(h, &save, 0);
	rc = rc ? rc : ask(h, 8, &save);
	rc = rc ? rc : wanted(h, "pruned", shf_run_prune(h->run, false, NULL, NULL, &h->err), 4);
	return rc ? rc : end(h, &save, 0);
}

TEST(a_mark_and_a_prune_wait_for_it)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	memset(&seen, 0, sizeof(seen));
	simdisk_set_task_steps(disk, 0);
	p.opts.keep_last = 1;
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, marked_and_pruned, true), 0, &p.err);
	CHECK(simdisk_exists(disk, "run/checkpoint-3"));
	loads(disk, 8);
	simdisk_free(disk);
}

static int told_of;             /* steps that went, as the log says */

static void hear(void *arg, int level, const char *line)
{
	(void)arg;
	told_of += level == 2 && strstr(line, " pruned: a newer step is verified") != NULL;
}

static int pruned_behind(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = 0;

	for (int64_t step = 1; rc == 0 && step <= 8; step++) {
		rc = ask(h, step, &save);
		rc = rc ? rc : end(h, &save, 0);
	}
	return rc;
}

TEST(old_steps_go_behind_it_and_the_log_hears_of_each)
{
	for (long turns = 20; turns < 60; turns += 20) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, halves);

		memset(&seen, 0, sizeof(seen));
		told_of = 0;
		simdisk_set_task_steps(disk, turns);
		p.opts.keep_last = 2;
		p.opts.log = hear;
		p.tamper = tamper;
		CHECK_RC(hands_run(&p, pruned_behind, true), 0, &p.err);
		CHECK_INT(told_of, 6);
		CHECK(!simdisk_exists(disk, "run/checkpoint-6"));
		loads(disk, 7);
		loads(disk, 8);
		simdisk_free(disk);
	}
}

/* A step that is to go is open while the thread has not begun. */
static int loads_beside(struct hand *h)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_save *save = NULL;
	struct sheaf_checkpoint *step = NULL, *gone = NULL;
	int rc = 0;

	for (int64_t k = 1; rc == 0 && k <= 5; k++) {
		if (k == 5)
			rc = shf_step_open(&step, h->run, 2, &h->err);
		rc = rc ? rc : ask(h, k, &save);
		if (k == 5 && h->rank == 0)
			simdisk_set_task_steps(h->play->disk, 0);
		rc = rc ? rc : end(h, &save, k == 5 ? -1 : 0);
	}
	if (h->play->variant)
		rc = rc ? rc : wanted(h, "what went", shf_step_open(&gone, h->run, 1, &h->err),
		                      SHEAF_ENOENT);
	rc = rc ? rc : shf_step_load(step, h->state, 0, &report, &h->err);
	shf_step_put(step);
	return rc ? rc : shf_run_rewind(h->run, 2, &h->err);
}

TEST(a_step_that_is_loaded_is_not_taken_away)
{
	for (int way = 0; way < 2; way++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, halves);

		memset(&seen, 0, sizeof(seen));
		simdisk_set_task_steps(disk, 40);
		p.variant = way;
		p.opts.keep_last = 3;
		p.tamper = tamper;
		CHECK_RC(hands_run(&p, loads_beside, true), 0, &p.err);
		loads(disk, 2);
		simdisk_free(disk);
	}
}

/* ---- a disk that fails ---- */

static int disk_fails(struct hand *h)
{
	struct sheaf_save *save = NULL, *next = NULL;
	int rc = ask(h, 7, &save);

	if (h->rank == 0)
		simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
			.kind = h->play->variant ? SIMDISK_RENAME : SIMDISK_FSYNC,
			.how = SIMDISK_INSTEAD });
	rc = rc ? rc : shf_save_begin(&next, h->run, 8, h->state, NULL, &h->err);
	rc = rc ? rc : wanted(h, "the first", end(h, &save, 0), SHEAF_EIO);
	rc = rc ? rc : end(h, &next, -1);
	if (rc == 0 && h->rank == 0)
		rc = wanted(h, "the parent of 8", (int)parent_of(h, 8), -1);
	return rc;
}

TEST(what_the_disk_refuses_then_is_told_by_its_commit)
{
	for (int way = 0; way < 2; way++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, halves);

		memset(&seen, 0, sizeof(seen));
		simdisk_set_task_steps(disk, 0);
		p.opts.images_max = 3;
		p.variant = way;
		p.tamper = tamper;
		CHECK_RC(hands_run(&p, disk_fails, true), 0, &p.err);
		CHECK_INT(simdisk_fired(disk), 1);
		CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
		loads(disk, 8);
		simdisk_free(disk);
	}
}
