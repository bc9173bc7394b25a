/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that were set aside are brought back or deleted: which may come back, with what mark, and
 * what a power cut at any place leaves.
 *
 *   test_aside_restore [--long] [--seed N] [part of a test's name ...] */
#include <errno.h>
#include <stdlib.h>
#include "aside.h"
#include "aside_restore.h"
#include "everycut.h"
#include "marks.h"
#include "marks_read.h"
#include "run_files.h"

#define main t_main
#include "lived.h"
#undef main

/* The name in .sheaf/aside of the nth save of the step that is there, counted from 0. */
static const char *aside_of(struct world *w, int64_t step, int nth)
{
	static char name[64];
	struct shf_list list;

	name[0] = '\0';
	CHECK_RC(shf_store_list(&w->store[0], &list, &w->err), 0, &w->err);
	for (size_t i = 0; i < list.n; i++)
		if (list.entries[i].state == SHF_ASIDE && list.entries[i].step == step &&
		    nth-- == 0)
			snprintf(name, sizeof(name), "%.60s",
			         list.entries[i].path + strlen(".sheaf/aside/"));
	shf_list_release(&list);
	return name;
}

/* The world is told that the step is there again. */
static int restore_save(struct world *w, const char *name)
{
	int rc = shf_aside_restore(&w->store[0], name, &w->err);

	for (size_t i = 0; rc == 0 && i < w->known_n; i++)
		if (strcmp(w->known[i].stage, name) == 0) {
			w->known[i].leaving = w->known[i].gone = NEVER;
			w->known[i].rewound = false;
		}
	return rc;
}

static int restore(struct world *w, int64_t step)
{
	return restore_save(w, aside_of(w, step, 0));
}

static int64_t latest(struct world *w)
{
	int64_t step = -1;

	CHECK_RC(shf_store_latest(&w->store[0], &step, NULL, NULL, &w->err), 0, &w->err);
	return step;
}

TEST(a_rewind_is_undone_from_the_oldest_on)
{
	struct shf_entry e;
	struct world w;

	start(&w, 4);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_RC(restore(&w, 4), SHEAF_EINVAL, &w.err);
	CHECK(strstr(w.err.msg, "step 4 follows step 3 of session") != NULL);
	CHECK(strstr(w.err.msg, "the newest here is step 2 of session") != NULL);
	CHECK_INT(latest(&w), 2);
	CHECK_RC(restore(&w, 3), 0, &w.err);
	CHECK_INT(latest(&w), 3);
	CHECK_RC(restore(&w, 4), 0, &w.err);
	CHECK_INT(latest(&w), 4);
	CHECK_INT(state_of(&w.store[0], 3, &e), 'C');
	CHECK_INT(e.mark, 0);
	CHECK_STR(aside_of(&w, 3, 0), "");
	/* The run is as it was, so the next job opens it and nothing goes. */
	world_close(&w);
	CHECK_RC(world_open(&w, false), 0, &w.err);
	CHECK_INT(latest(&w), 4);
	CHECK_RC(world_save(&w, 5, 4), 0, &w.err);
	stop(&w);
}

TEST(what_is_not_there_is_not_brought_back)
{
	static const char none[] = "3-0123456789abcdef0123456789abcdef";
	struct shf_store *s;
	struct world w;

	start(&w, 2);
	s = &w.store[0];
	CHECK_RC(shf_aside_restore(s, none, &w.err), SHEAF_ENOENT, &w.err);
	CHECK_RC(shf_aside_delete(s, none, &w.err), SHEAF_ENOENT, &w.err);
	CHECK_RC(world_rewind(&w, 1), 0, &w.err);
	CHECK_RC(shf_aside_restore(s, none, &w.err), SHEAF_ENOENT, &w.err);
	CHECK_RC(shf_aside_delete(s, none, &w.err), SHEAF_ENOENT, &w.err);
	CHECK_RC(shf_aside_restore(s, "../stage", &w.err), SHEAF_EINVAL, &w.err);
	CHECK_RC(shf_aside_delete(s, "..", &w.err), SHEAF_EINVAL, &w.err);
	CHECK_RC(shf_aside_delete(s, "2", &w.err), SHEAF_EINVAL, &w.err);
	CHECK(aside_of(&w, 2, 0)[0]);
	stop(&w);
}

TEST(a_number_that_was_saved_again_is_taken_until_that_save_is_set_aside)
{
	struct known *first, *second;
	char session[33], name[64];
	struct shf_entry e;
	struct world w;

	start(&w, 3);
	first = world_find(&w, 3);
	memcpy(session, first->session, sizeof(session));
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	second = world_find(&w, 3);
	CHECK_RC(restore(&w, 3), SHEAF_EEXIST, &w.err);
	CHECK(strstr(w.err.msg, "checkpoint-3 exists (sheaf rewind run@2 makes room)") != NULL);
	CHECK_INT(state_of(&w.store[0], 3, &e), 'C');
	CHECK_STR(e.session, second->session);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	snprintf(name, sizeof(name), "3-%s", session);
	CHECK_RC(restore_save(&w, name), 0, &w.err);
	CHECK_INT(state_of(&w.store[0], 3, &e), 'C');
	CHECK_STR(e.session, session);
	CHECK_INT(latest(&w), 3);
	stop(&w);
}

/* Step 3 of the branch that was left must not become the latest when those above it are marked
 * bad. */
TEST(a_step_of_another_branch_is_left_aside)
{
	struct world w;

	start(&w, 3);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_RC(world_save(&w, 5, 2), 0, &w.err);
	CHECK_RC(restore(&w, 3), SHEAF_EINVAL, &w.err);
	CHECK(strstr(w.err.msg, "another branch than step 5") != NULL);
	CHECK(strstr(w.err.msg, "sheaf copy run/.sheaf/aside/3-") != NULL);
	CHECK_RC(world_mark(&w, 5, 'b'), 0, &w.err);
	CHECK_INT(latest(&w), 2);
	/* Now it follows the newest that is not marked bad, but the bad one is no reason. */
	CHECK_RC(restore(&w, 3), 0, &w.err);
	CHECK_INT(latest(&w), 3);
	stop(&w);
}

/* Step 3 follows the step 2 that was left, and another one is there by now. */
TEST(the_parent_is_a_save_and_not_a_number)
{
	struct world w;

	start(&w, 3);
	CHECK_RC(world_rewind(&w, 1), 0, &w.err);
	CHECK_RC(world_save(&w, 2, 1), 0, &w.err);
	CHECK_RC(restore(&w, 3), SHEAF_EINVAL, &w.err);
	CHECK_INT(latest(&w), 2);
	stop(&w);
}

/* It may be a job's that has just begun, or a person's: the rename must not replace it even if it
 * was not there a moment before. */
TEST(an_empty_directory_of_the_number_is_not_replaced)
{
	struct world w;
	int dir;

	start(&w, 3);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	dir = shf_dir_make(w.store[0].sys, w.store[0].dir, "checkpoint-3");
	CHECK(dir >= 0);
	shf_fd_close(w.store[0].sys, &dir);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_STAT,
	                                               .name = "checkpoint-3", .error = ENOENT });
	CHECK_RC(restore(&w, 3), SHEAF_EEXIST, &w.err);
	CHECK_INT(simdisk_fired(w.disk), 1);
	simdisk_faults_clear(w.disk);
	CHECK(aside_of(&w, 3, 0)[0]);
	CHECK_RC(restore(&w, 3), SHEAF_EEXIST, &w.err);
	CHECK(strstr(w.err.msg, "move it away first") != NULL);
	stop(&w);
}

TEST(a_step_that_closes_a_hole_comes_back)
{
	struct world w;

	start(&w, 4);
	CHECK_RC(shf_step_set_aside(&w.store[0], 3, &w.err), 0, &w.err);
	CHECK_RC(restore(&w, 3), 0, &w.err);
	CHECK_INT(latest(&w), 4);
	CHECK_INT(state_of(&w.store[0], 3, NULL), 'C');
	stop(&w);
}

/* The line of .sheaf/descent, written when the parent went, is about a step that is aside now. */
TEST(the_parent_may_have_been_pruned)
{
	struct world w;

	start(&w, 4);
	CHECK_RC(world_mark(&w, 2, 'k'), 0, &w.err);
	CHECK_INT(world_prune(&w, 1, 4, -1), 2);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_RC(restore(&w, 4), 0, &w.err);
	CHECK_INT(latest(&w), 4);
	/* And it stays so through a prune that happens while the step is aside. */
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_INT(world_prune(&w, 1, 2, -1), 0);
	CHECK_RC(restore(&w, 4), 0, &w.err);
	stop(&w);
}

TEST(what_was_bad_is_bad_when_it_comes_back)
{
	char name[64], session[33];
	struct shf_entry e;
	struct world w;

	start(&w, 3);
	memcpy(session, world_find(&w, 3)->session, sizeof(session));
	CHECK_RC(shf_store_mark(&w.store[0], 3, 'b', &w.err), 0, &w.err);
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);      /* the bad one is set aside */
	CHECK_INT(shf_store_is_bad(&w.store[0], 3, session, &w.err), 1);
	snprintf(name, sizeof(name), "3-%s", session);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_RC(restore_save(&w, name), 0, &w.err);
	CHECK_INT(state_of(&w.store[0], 3, &e), 'C');
	CHECK_STR(e.session, session);
	CHECK_INT(e.mark, 'b');
	CHECK_INT(latest(&w), 2);
	/* A person's last word counts. */
	CHECK_RC(shf_store_mark(&w.store[0], 3, 0, &w.err), 0, &w.err);
	CHECK_INT(latest(&w), 3);
	CHECK_INT(shf_store_is_bad(&w.store[0], 3, session, &w.err), 0);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_RC(restore_save(&w, name), 0, &w.err);
	CHECK_INT(latest(&w), 3);
	stop(&w);
}

TEST(the_mark_of_another_save_of_the_number_is_not_taken_over)
{
	char name[64], session[33];
	struct shf_entry e;
	struct world w;

	start(&w, 3);
	memcpy(session, world_find(&w, 3)->session, sizeof(session));
	CHECK_RC(shf_store_mark(&w.store[0], 3, 'k', &w.err), 0, &w.err);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	CHECK_RC(shf_store_mark(&w.store[0], 3, 'b', &w.err), 0, &w.err);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	snprintf(name, sizeof(name), "3-%s", session);
	CHECK_RC(restore_save(&w, name), 0, &w.err);
	CHECK_INT(state_of(&w.store[0], 3, &e), 'C');
	CHECK_INT(e.mark, 'k');
	stop(&w);
}

TEST(a_step_does_not_come_back_after_a_bad_one_alone)
{
	struct world w;

	start(&w, 2);
	CHECK_RC(world_rewind(&w, 1), 0, &w.err);
	CHECK_RC(world_mark(&w, 1, 'b'), 0, &w.err);
	CHECK_RC(restore(&w, 2), SHEAF_EINVAL, &w.err);
	CHECK(strstr(w.err.msg, "follows step 1, which is marked bad") != NULL);
	stop(&w);
}

TEST(a_damaged_step_is_left_aside_and_can_be_deleted)
{
	static const char *const files[] = { "sheaf.json", "config.json" };
	char path[200];
	struct world w;

	for (size_t i = 0; i < 2; i++) {
		start(&w, 3);
		CHECK_RC(world_rewind(&w, 2), 0, &w.err);
		snprintf(path, sizeof(path), RUN "/.sheaf/aside/%s/%s", aside_of(&w, 3, 0),
		         files[i]);
		CHECK_INT(simdisk_remove(w.disk, path), 0);
		CHECK_RC(restore(&w, 3), SHEAF_ECORRUPT, &w.err);
		CHECK(strstr(w.err.msg, "it is damaged") != NULL);
		CHECK_INT(latest(&w), 2);
		CHECK_RC(shf_aside_delete(&w.store[0], aside_of(&w, 3, 0), &w.err), 0, &w.err);
		CHECK_STR(aside_of(&w, 3, 0), "");
		stop(&w);
	}
}

TEST(a_step_that_is_open_is_not_deleted)
{
	const struct shf_sys *reader;
	char path[200];
	struct world w;
	int fd;

	start(&w, 3);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	snprintf(path, sizeof(path), RUN "/.sheaf/aside/%s/sheaf.json", aside_of(&w, 3, 0));
	reader = simdisk_process(w.disk, 700, 1);
	fd = shf_sys_open(reader, SHF_CWD, path, 0, 0);
	CHECK(fd >= 0);
	CHECK_INT(shf_sys_lock(reader, fd, false), 0);
	CHECK_RC(shf_aside_delete(&w.store[0], aside_of(&w, 3, 0), &w.err), SHEAF_EBUSY, &w.err);
	CHECK(simdisk_exists(w.disk, path));
	shf_sys_close(reader, fd);
	CHECK_RC(shf_aside_delete(&w.store[0], aside_of(&w, 3, 0), &w.err), 0, &w.err);
	CHECK(!simdisk_exists(w.disk, path));
	stop(&w);
}

/* What memory has of a bad save stays bad when its files are deleted. */
TEST(a_bad_save_is_bad_after_it_was_deleted)
{
	char session[33];
	struct world w;

	start(&w, 3);
	memcpy(session, world_find(&w, 3)->session, sizeof(session));
	CHECK_RC(shf_store_mark(&w.store[0], 3, 'b', &w.err), 0, &w.err);
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	CHECK_RC(shf_aside_delete(&w.store[0], aside_of(&w, 3, 0), &w.err), 0, &w.err);
	CHECK(!shf_store_is_aside(&w.store[0], 3, session));
	CHECK_INT(shf_store_is_bad(&w.store[0], 3, session, &w.err), 1);
	stop(&w);
}

/* ---- power cuts ---- */

struct story {
	struct world w;
	bool delete, strict, bad;       /* bad: step 3 was marked bad before it was set aside */
	bool undone;                    /* a power cut may undo that it was set aside */
	int64_t acked;                  /* the cut at which the call had returned */
};

static int disk_has(struct simdisk *disk, const char *fmt, const char *name)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/%s%s", RUN, fmt, name);
	return simdisk_exists(disk, path);
}

/* The next job opens the run. Step 3 is at its place, or aside, whole; what was acknowledged is so;
 * steps 1 and 2 are untouched, and the latest is one of those that it may be. */
static const char *judge(const void *arg, struct simdisk *disk, int64_t cut, char why[300])
{
	const struct story *s = arg;
	const struct shf_sys *sys = simdisk_process(disk, 9000, 0);
	int64_t step = -1;
	int back = 0, aside = 0, good = 0, rest = 0, whole = 0;
	struct sheaf_error err = { .msg = "" };
	struct shf_list list = { 0 };
	struct shf_store store;
	char mark = 0;
	bool done = cut >= s->acked;
	int rc = shf_store_own(&store, sys, RUN, false, 0, &err);

	why[0] = '\0';
	if (rc == 0)
		rc = shf_store_list(&store, &list, &err);
	for (size_t i = 0; i < list.n; i++) {
		const struct shf_entry *e = &list.entries[i];

		good += e->state == SHF_COMMITTED && e->step < 3;
		back += e->state == SHF_COMMITTED && e->step == 3;
		aside += e->state == SHF_ASIDE;
		whole += e->state == SHF_ASIDE && e->bytes > 0;
		rest += e->state == SHF_DAMAGED;
		if (e->state == SHF_COMMITTED && e->step == 3)
			mark = e->mark;
	}
	if (rc == 0)
		rc = shf_store_latest(&store, &step, NULL, NULL, &err);
	if (rc < 0)
		snprintf(why, 300, "%.250s", err.msg);
	else if (good != 2 || rest)
		snprintf(why, 300, "%d of steps 1 and 2, %d damaged", good, rest);
	else if (!s->delete && back + aside == 0 && !(s->strict && !done))
		snprintf(why, 300, "step 3 is lost");
	else if (!s->delete && done && !back)
		snprintf(why, 300, "step 3 was brought back and is not there");
	else if (!s->delete && !back && aside && !whole)
		snprintf(why, 300, "step 3 is no longer whole");
	else if (!s->delete && done && aside)
		snprintf(why, 300, "step 3 was brought back and is still aside");
	else if (s->delete && ((back && !s->undone) || (done && (back || aside))))
		snprintf(why, 300, "step 3 was deleted: %d, %d", back, aside);
	else if (back && mark != (s->bad ? 'b' : 0))
		snprintf(why, 300, "step 3 is back with the mark %d", mark);
	else if (step != (back && !s->bad ? 3 : 2))
		snprintf(why, 300, "the latest is %lld", (long long)step);
	shf_list_release(&list);
	if (rc == 0)
		shf_store_close(&store);
	simdisk_kill(disk, sys);
	return why;
}

static uint64_t promised(const void *arg, int64_t cut)
{
	return cut >= ((const struct story *)arg)->acked;
}

/* Step 3 is aside; if bad, so is another save of its number, which took its mark away. */
static void tell(struct story *s, enum simdisk_model model, bool delete, bool bad)
{
	struct simdisk *disk = simdisk_new(everycut.seed, model);
	struct world *w = &s->w;

	*s = (struct story){ .delete = delete, .bad = bad, .strict = model == SIMDISK_STRICT };
	world_init(w, disk);
	CHECK_RC(world_open(w, true), 0, &w->err);
	for (int64_t i = 1; i <= 3; i++)
		CHECK_RC(world_save(w, i, i > 1 ? i - 1 : -1), 0, &w->err);
	if (bad) {
		CHECK_RC(world_mark(w, 3, 'b'), 0, &w->err);
		w->marks[w->marks_n++] = (struct marking){ 3, world_now(w), NEVER, 0 };
		CHECK_RC(world_save(w, 3, 2), 0, &w->err);
		CHECK_RC(world_rewind(w, 2), 0, &w->err);
		/* Of the two the one that was not marked goes. */
		CHECK_RC(shf_aside_delete(&w->store[0], aside_of(w, 3, 0), &w->err), 0, &w->err);
		CHECK(aside_of(w, 3, 0)[0] && !aside_of(w, 3, 1)[0]);
		s->bad = shf_mark_of_aside(&w->store[0], 3, aside_of(w, 3, 0) + 2, NULL) == 'b';
	} else {
		CHECK_RC(world_rewind(w, 2), 0, &w->err);
	}
	world_settle(w);
}

static void act(struct story *s)
{
	char name[64];

	snprintf(name, sizeof(name), "%s", aside_of(&s->w, 3, 0));
	CHECK_RC(s->delete ? shf_aside_delete(&s->w.store[0], name, &s->w.err)
	                   : shf_aside_restore(&s->w.store[0], name, &s->w.err), 0, &s->w.err);
	s->acked = world_now(&s->w);
	CHECK_INT(disk_has(s->w.disk, ".sheaf/aside/", name), 0);
	CHECK_INT(disk_has(s->w.disk, "checkpoint-3", ""), !s->delete);
}

static bool hunt(const struct story *s, char why[400])
{
	return everycut_hunt(&(struct everycut_hunt){
		.disk = s->w.disk, .stride = 1, .all_max = 8, .small_max = 2, .seeded = 50,
		.torn_all = 4, .promised = promised, .judge = judge, .story = s }, why);
}

static void survives(enum simdisk_model model, bool delete, bool bad)
{
	struct story s;
	char why[400];
	bool fine;

	tell(&s, model, delete, bad);
	act(&s);
	fine = hunt(&s, why);
	if (!fine)
		print_error("%s (seed %llu)\n", why, (unsigned long long)everycut.seed);
	CHECK(fine);
	stop(&s.w);
}

#define EACH_MODEL(name, delete, bad)                                                          \
	TEST(name##_survives_every_cut)                                                        \
	{                                                                                      \
		survives(SIMDISK_STRICT, delete, bad);                                         \
		survives(SIMDISK_EXT4, delete, bad);                                           \
		survives(SIMDISK_NFS, delete, bad);                                            \
	}

EACH_MODEL(a_return, false, false)
EACH_MODEL(the_return_of_a_bad_step, false, true)
EACH_MODEL(a_deletion, true, false)

/* Step 3 was moved, and nothing was synced, as by somebody who was killed or whose fsync failed. */
static void move_unsynced(struct story *s)
{
	struct shf_store *store = &s->w.store[0];
	int aside = shf_dir_make(store->sys, store->dot, "aside");
	struct known *k = world_find(&s->w, 3);

	CHECK(aside >= 0);
	CHECK_RC(shf_step_move(store, 3, aside, k->session, &s->w.err), 0, &s->w.err);
	shf_fd_close(store->sys, &aside);
	s->undone = true;
}

/* Step 3 is there, and moved without a sync; or its rewind left its journal for a power cut. */
static void tell_unsynced(struct story *s, bool delete)
{
	struct world *w = &s->w;
	int aside;

	*s = (struct story){ .delete = delete, .strict = true };
	world_init(w, simdisk_new(everycut.seed, SIMDISK_STRICT));
	CHECK_RC(world_open(w, true), 0, &w->err);
	for (int64_t i = 1; i <= 3; i++)
		CHECK_RC(world_save(w, i, i > 1 ? i - 1 : -1), 0, &w->err);
	world_settle(w);
	if (delete) {
		aside = shf_dir_make(w->store[0].sys, w->store[0].dot, "aside");
		CHECK(aside >= 0);
		shf_fd_close(w->store[0].sys, &aside);
		world_settle(w);
		move_unsynced(s);
	} else {
		simdisk_skip_fsync(w->disk, 7); /* of .sheaf, after the journal was removed */
		CHECK_RC(world_rewind(w, 2), 0, &w->err);
		CHECK_STR(simdisk_skipped(w->disk), ".sheaf");
		simdisk_skip_fsync(w->disk, 0);
	}
}

TEST(a_journal_that_a_power_cut_brings_back_sets_nothing_aside_again)
{
	struct story s;
	char why[400] = "";

	tell_unsynced(&s, false);
	act(&s);
	if (!hunt(&s, why))
		print_error("%s\n", why);
	CHECK_STR(why, "");
	stop(&s.w);
}

TEST(what_a_power_cut_puts_back_is_not_half_deleted)
{
	struct story s;
	char why[400] = "";

	tell_unsynced(&s, true);
	act(&s);
	if (!hunt(&s, why))
		print_error("%s\n", why);
	CHECK_STR(why, "");
	stop(&s.w);
}

/* Each fsync is needed: without it some cut goes wrong. */
static void found_without(bool delete, bool unsynced, long nth, long of)
{
	struct story s;
	char why[400];
	bool fine;

	if (unsynced)
		tell_unsynced(&s, delete);
	else
		tell(&s, SIMDISK_STRICT, delete, false);
	simdisk_skip_fsync(s.w.disk, nth);
	act(&s);
	CHECK_INT(simdisk_fsyncs(s.w.disk), of);        /* a new fsync needs a test of its own */
	simdisk_skip_fsync(s.w.disk, 0);
	fine = hunt(&s, why);
	if (fine)
		print_error("leaving out fsync %ld is not found\n", nth);
	CHECK(!fine);
	stop(&s.w);
}

TEST(leaving_out_a_sync_of_a_return_is_found)
{
	found_without(false, true, 1, 3);       /* of .sheaf */
	found_without(false, false, 2, 3);      /* of the run */
	found_without(false, false, 3, 3);      /* of aside */
}

TEST(leaving_out_a_sync_of_a_deletion_is_found)
{
	found_without(true, true, 1, 2);        /* of the run */
	found_without(true, false, 2, 2);       /* of aside */
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
