/* SPDX-License-Identifier: Apache-2.0 */
/* The crown: a power cut after every call of saves, prunes, marks, rewinds and recoveries, with
 * every choice of what reached the disk, and then a new job opens the run.
 *
 *   test_commit [--long] [--seed N] [part of a test's name ...]
 *
 * Every subset of up to 12 unsynced items is tried; beyond that those of up to 3 items, their
 * complements and 2,000 drawn ones; without --long 200, and fewer of all in three long stories. */
#include <errno.h>
#include <stdlib.h>
#include "aside.h"
#include "commitoracle.h"
#include "everycut.h"
#include "list.h"
#include "marks.h"
#include "plaincrc.h"

#define main t_main
#include "t.h"
#undef main

static bool each_cut;           /* this story is cut everywhere, not at each T_STRIDE-th */
static bool brief;              /* this story is one of the three longest */

#define QUICK_ALL 6      /* for the three longest: subsets of so many items, */
#define QUICK_SEEDED 8  /* and so many drawn ones */

/* A number that differs where the promises at two cuts may differ. */
static uint64_t promised(const void *arg, int64_t cut)
{
	const struct world *w = arg;
	uint64_t h = 1;

	for (size_t i = 0; i < w->known_n; i++) {
		const struct known *k = &w->known[i];
		const int64_t stamps[] = { k->publishing, k->acked, k->leaving, k->gone };

		for (int q = 0; q < 4; q++)
			h = h * 31 + (stamps[q] < cut ? 2u : stamps[q] == cut);
	}
	for (size_t i = 0; i < w->marks_n; i++)
		h = h * 31 + (w->marks[i].calling < cut ? 2u : 0u) + (w->marks[i].done <= cut);
	return h;
}

/* A new process opens the run for writing, and sees what the judge sees. NULL: all is well. */
static const char *reopen(struct simdisk *disk, uint64_t pid, const int64_t *newest,
                          char buf[300])
{
	const struct shf_sys *sys = simdisk_process(disk, pid, 0);
	struct shf_list list = { NULL, 0 };
	struct shf_store s;
	struct sheaf_error err;
	int64_t step = -1;
	int rc = shf_store_own(&s, sys, RUN, true, 0, &err);

	if (rc < 0) {
		snprintf(buf, 300, "the run does not open: %d: %.200s", rc, err.msg);
		return buf;
	}
	rc = shf_store_latest(&s, &step, NULL, NULL, &err);
	if (newest && (rc != (*newest < 0 ? SHEAF_ENOENT : 0) || step != *newest)) {
		snprintf(buf, 300, "the newest step is %lld, the store says %lld, %d",
		         (long long)*newest, (long long)step, rc);
		rc = 1;
	} else {
		rc = shf_store_list(&s, &list, &err);
		for (size_t i = 0; i < list.n; i++)
			if (list.entries[i].state == SHF_DAMAGED)
				rc = 1;
		if (rc)
			snprintf(buf, 300, "the list is %d or shows damage", rc);
	}
	shf_list_release(&list);
	shf_store_close(&s);
	simdisk_kill(disk, sys);
	return rc ? buf : NULL;
}

static uint64_t hash_without_lock(struct simdisk *disk)
{
	simdisk_remove(disk, RUN "/.sheaf/lock");
	return simdisk_hash(disk, RUN);
}

/* One crash state, whole: before recovery, after it, and after others. NULL: all is well. */
static const char *judge_state(const struct world *w, struct simdisk *disk, int64_t cut,
                               char buf[300])
{
	int64_t newest = -1;
	const char *why;
	uint64_t h;

	why = oracle_judge(w, disk, cut, false, NULL, buf);
	if (why)
		return why;
	why = reopen(disk, 9001, NULL, buf);
	if (!why)
		why = oracle_judge(w, disk, cut, true, &newest, buf);
	if (!why)
		why = reopen(disk, 9002, &newest, buf);
	if (why)
		return why;
	/* Two days later the stages of the dead may go. */
	simdisk_advance(disk, 2 * 86400);
	why = reopen(disk, 9003, &newest, buf);
	if (!why)
		why = oracle_judge(w, disk, cut, true, &newest, buf);
	if (why)
		return why;
	h = hash_without_lock(disk);
	why = reopen(disk, 9004, &newest, buf);
	if (!why && h != hash_without_lock(disk)) {
		snprintf(buf, 300, "I11: another recovery changed something");
		why = buf;
	}
	return why;
}

static const char *judge(const void *w, struct simdisk *disk, int64_t cut, char why[300])
{
	const char *found = judge_state(w, disk, cut, why);

	return found ? found : "";
}

/* Cuts what the world did since it settled, at each stride-th place. False at the first wrong
 * state, which it tells. */
static bool hunt(const struct world *w, int stride, char why[400])
{
	return everycut_hunt(&(struct everycut_hunt){
		.disk = w->disk, .first = (size_t)t_from(stride), .stride = (size_t)stride,
		.all_max = brief ? QUICK_ALL : 12, .small_max = brief ? 1 : 3,
		.seeded = brief ? QUICK_SEEDED : 200, .torn_all = 8, .promised = promised,
		.judge = judge, .story = w }, why);
}

static void check_hunt(struct world *w, const char *what)
{
	uint64_t before = everycut.states;
	char why[400];
	bool fine = hunt(w, everycut.all || each_cut ? 1 : T_STRIDE, why);

	if (!fine)
		print_error("%s: %s (seed %llu)\n", what, why, (unsigned long long)everycut.seed);
	else
		printf("# %s: %zu cuts, %llu states\n", what, simdisk_cut_n(w->disk),
		       (unsigned long long)(everycut.states - before));
	CHECK(fine);
}

static void start(struct world *w, enum simdisk_model model)
{
	struct simdisk *disk = simdisk_new(everycut.seed, model);

	oracle_put_foreign(disk);
	simdisk_settle(disk);
	world_init(w, disk);
}

static void start_with(struct world *w, enum simdisk_model model, int64_t steps)
{
	start(w, model);
	CHECK_RC(world_open(w, true), 0, &w->err);
	for (int64_t i = 1; i <= steps; i++)
		CHECK_RC(world_save(w, i, i - 1 > 0 ? i - 1 : -1), 0, &w->err);
	world_settle(w);
}

static void stop(struct world *w)
{
	world_close(w);
	simdisk_free(w->disk);
}

static void first_save(enum simdisk_model model, const char *what)
{
	struct world w;

	start(&w, model);
	CHECK_RC(world_open(&w, true), 0, &w.err);
	CHECK_RC(world_save(&w, 1, -1), 0, &w.err);
	check_hunt(&w, what);
	stop(&w);
}

static void next_save(enum simdisk_model model, const char *what)
{
	struct world w;

	start_with(&w, model, 1);
	CHECK_RC(world_save(&w, 2, 1), 0, &w.err);
	each_cut = true;
	check_hunt(&w, what);
	each_cut = false;
	stop(&w);
}

static void prune(enum simdisk_model model, const char *what)
{
	struct world w;

	start_with(&w, model, 4);
	CHECK_INT(world_prune(&w, 2, 4, -1), 2);
	CHECK(simdisk_exists(w.disk, RUN "/checkpoint-3"));
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-2"));
	check_hunt(&w, what);
	stop(&w);
}

static void prune_with_grace(enum simdisk_model model, const char *what)
{
	struct world w;

	start_with(&w, model, 2);
	CHECK_INT(world_prune(&w, 1, 2, 600), 1);
	simdisk_advance(w.disk, 700);
	world_close(&w);
	CHECK_RC(world_open(&w, false), 0, &w.err);     /* empties the trash */
	check_hunt(&w, what);
	stop(&w);
}

static void mark(enum simdisk_model model, const char *what)
{
	struct world w;

	start_with(&w, model, 2);
	CHECK_RC(world_mark(&w, 1, 'k'), 0, &w.err);
	CHECK_RC(world_mark(&w, 2, 'b'), 0, &w.err);
	CHECK_RC(world_mark(&w, 2, 'k'), 0, &w.err);
	CHECK_RC(world_mark(&w, 1, 0), 0, &w.err);
	check_hunt(&w, what);
	stop(&w);
}

static void rewind_alone(enum simdisk_model model, const char *what)
{
	struct world w;

	start_with(&w, model, 4);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	check_hunt(&w, what);
	stop(&w);
}

static void rewind_and_save(enum simdisk_model model, const char *what)
{
	struct world w;

	start_with(&w, model, 4);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	brief = true;
	check_hunt(&w, what);
	brief = false;
	stop(&w);
}

/* A job dies between C7 and C8; the next one deletes what it left, and saves. */
static void recovery(enum simdisk_model model, const char *what)
{
	struct world w;

	start_with(&w, model, 1);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 2, .kind = SIMDISK_RENAME,
	                                               .how = SIMDISK_KILL });
	CHECK(world_save(&w, 2, 1) < 0);
	CHECK_INT(simdisk_fired(w.disk), 1);
	simdisk_faults_clear(w.disk);
	world_kill(&w);
	CHECK(simdisk_exists(w.disk, RUN "/.sheaf/stage"));
	CHECK_RC(world_open(&w, false), 0, &w.err);
	CHECK_RC(world_save(&w, 2, 1), 0, &w.err);
	brief = true;
	check_hunt(&w, what);
	brief = false;
	stop(&w);
}

/* All of it one after another, with everything that is never synced still in the air. */
static void life(enum simdisk_model model, const char *what)
{
	struct world w;

	start(&w, model);
	CHECK_RC(world_open(&w, true), 0, &w.err);
	CHECK_RC(world_save(&w, 1, -1), 0, &w.err);
	CHECK_RC(world_save(&w, 2, 1), 0, &w.err);
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	CHECK_RC(world_mark(&w, 3, 'b'), 0, &w.err);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	world_close(&w);
	CHECK_RC(world_open(&w, false), 0, &w.err);
	/* The number is used again, and the mark of the old step does not stick to it. */
	w.marks[w.marks_n++] = (struct marking){ 3, world_now(&w), NEVER, 0 };
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	w.marks[w.marks_n - 1].done = world_now(&w);
	CHECK_INT(world_prune(&w, 1, 3, -1), 2);
	CHECK_RC(world_save(&w, 4, 3), 0, &w.err);
	brief = true;
	check_hunt(&w, what);
	brief = false;
	stop(&w);
}

#define EACH_MODEL(name)                                                      \
	TEST(name##_survives_every_cut_strict) { name(SIMDISK_STRICT, #name " strict"); } \
	TEST(name##_survives_every_cut_ext4) { name(SIMDISK_EXT4, #name " ext4"); } \
	TEST(name##_survives_every_cut_nfs) { name(SIMDISK_NFS, #name " nfs"); }

EACH_MODEL(first_save)
EACH_MODEL(next_save)
EACH_MODEL(prune)
EACH_MODEL(prune_with_grace)
EACH_MODEL(mark)
EACH_MODEL(rewind_alone)
EACH_MODEL(rewind_and_save)
EACH_MODEL(recovery)
EACH_MODEL(life)

/* A job dies in C9 before the run directory is synced. Whoever opens the run then sees the step,
 * may build on it, and so it must stay. */
static void seen_at_open(long skipped, bool want)
{
	struct known *k;
	struct world w;
	char why[400];
	bool fine;

	start_with(&w, SIMDISK_STRICT, 1);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 10, .kind = SIMDISK_FSYNC,
	                                               .how = SIMDISK_KILL });
	CHECK_RC(world_save(&w, 2, 1), SHEAF_EINDOUBT, &w.err);
	simdisk_faults_clear(w.disk);
	world_kill(&w);
	CHECK(simdisk_exists(w.disk, RUN "/checkpoint-2"));
	k = &w.known[w.known_n - 1];
	simdisk_skip_fsync(w.disk, skipped);
	CHECK_RC(world_open(&w, false), 0, &w.err);
	simdisk_skip_fsync(w.disk, 0);
	k->acked = world_now(&w);
	brief = true;
	fine = hunt(&w, 1, why);
	brief = false;
	if (fine != want)
		print_error("%s\n", fine ? "nothing was found" : why);
	CHECK(fine == want);
	stop(&w);
}

TEST(a_step_seen_at_open_is_durable) { seen_at_open(0, true); }
TEST(leaving_out_fsync_of_the_run_at_open_is_found) { seen_at_open(4, false); }

/* Mutants: one fsync of the protocol does nothing, and the hunt must find it. */
enum deed { SAVE, PRUNE, MARK, REWIND, OPEN };

static int act(struct world *w, enum deed deed)
{
	switch (deed) {
	case SAVE:
		return world_save(w, 5, 4);
	case PRUNE:
		return world_prune(w, 2, 4, -1);
	case MARK:
		return world_mark(w, 3, 'b');
	case REWIND:
		return world_rewind(w, 2);
	default:
		world_close(w);
		return world_open(w, false);
	}
}

static void mutant(enum deed deed, long nth, long of)
{
	struct world w;
	char why[400];
	bool fine;

	start_with(&w, SIMDISK_STRICT, 4);
	simdisk_skip_fsync(w.disk, nth);
	CHECK(act(&w, deed) >= 0);
	CHECK_INT(simdisk_fsyncs(w.disk), of);        /* a new fsync needs a mutant of its own */
	simdisk_skip_fsync(w.disk, 0);
	brief = true;
	fine = hunt(&w, 1, why);
	brief = false;
	if (fine)
		print_error("leaving out fsync %ld is not found\n", nth);
	else
		printf("# found: %s\n", why);
	CHECK(!fine);
	stop(&w);
}

#define MUTANT(what, deed, nth, of)                                           \
	TEST(leaving_out_fsync_##what##_is_found) { mutant(deed, nth, of); }

MUTANT(c3_of_the_first_writer, SAVE, 1, 11)
MUTANT(c3_of_another_node_on_the_same_file, SAVE, 3, 11)
MUTANT(c3_in_a_folder, SAVE, 2, 11)
MUTANT(c3_of_an_attached_file, SAVE, 4, 11)
MUTANT(c3_of_the_sums, SAVE, 5, 11)
MUTANT(c5_of_a_folder, SAVE, 6, 11)
MUTANT(c5_of_the_stage, SAVE, 7, 11)
MUTANT(c6_of_the_manifest, SAVE, 8, 11)
MUTANT(c6_of_the_stage_again, SAVE, 9, 11)
MUTANT(c9_of_the_run, SAVE, 10, 11)
MUTANT(c9_of_the_stages, SAVE, 11, 11)
MUTANT(p3_of_the_run, PRUNE, 2, 2)
MUTANT(of_a_mark, MARK, 1, 3)
MUTANT(of_the_marks, MARK, 2, 3)
/* The first two are of the count of rewinds, which is for what lies in memory. */
MUTANT(of_the_rewind_journal, REWIND, 3, 9)
MUTANT(of_the_journals_name, REWIND, 4, 9)
MUTANT(of_aside, REWIND, 7, 9)
MUTANT(of_the_run_after_setting_aside, REWIND, 8, 9)

/* What the disk is after a failed call, at the worst and at the best power cut. */
static void check_now(struct world *w, const char *text)
{
	uint64_t all[64];
	const uint64_t *const kept[] = { NULL, all };
	char why[300];

	memset(all, 255, sizeof(all));
	CHECK(simdisk_unsynced(w->disk, simdisk_cut_n(w->disk) - 1) <= 64 * 64);
	for (int i = 0; i < 2; i++) {
		struct simdisk_choice choice = { .kept = kept[i] };
		struct simdisk *disk;
		const char *bad;

		disk = simdisk_crash(w->disk, simdisk_cut_n(w->disk) - 1, &choice);
		bad = judge_state(w, disk, world_now(w), why);
		if (bad)
			print_error("after %s: %s\n", text, bad);
		CHECK(!bad);
		simdisk_free(disk);
	}
}

/* Each call of the deed fails in turn. */
static void each_call_fails(enum deed deed, enum simdisk_how how, int error)
{
	bool fired = true;
	char text[100];

	for (int nth = 1; fired; nth++) {
		struct world w;
		int rc;

		start_with(&w, SIMDISK_EXT4, 4);
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = nth, .error = error,
		                                               .how = how });
		rc = act(&w, deed);
		fired = simdisk_fired(w.disk) > 0;
		simdisk_faults_clear(w.disk);
		snprintf(text, sizeof(text), "call %d of deed %d (%d)", nth, deed, rc);
		CHECK(fired || rc >= 0);
		CHECK(rc >= 0 || w.err.msg[0]);
		CHECK(rc != SHEAF_EBUG);
		/* ENOENT: the step or the run itself; EINVAL: a rank that does not see it. */
		CHECK(rc != SHEAF_ENOENT || (error == ENOENT && deed >= MARK));
		CHECK(rc != SHEAF_EINVAL || (error == ENOENT && deed == OPEN));
		world_close(&w);
		for (int i = 0; i < WRITERS; i++)
			CHECK_INT(simdisk_open_n(w.proc[i]), 0);
		check_now(&w, text);
		simdisk_free(w.disk);
	}
}

#define FAIL(deed, claim, how, error)                                         \
	TEST(each_call_of_a_##claim) { each_call_fails(deed, how, error); }
#define FAILS(deed, name)                                                     \
	FAIL(deed, name##_may_fail, SIMDISK_INSTEAD, EIO)                     \
	FAIL(deed, name##_may_not_find, SIMDISK_INSTEAD, ENOENT)              \
	FAIL(deed, name##_may_lack_memory, SIMDISK_INSTEAD, ENOMEM)           \
	FAIL(deed, name##_may_work_and_say_it_failed, SIMDISK_AFTER, EIO)     \
	FAIL(deed, name##_may_be_the_last, SIMDISK_KILL, EIO)

FAILS(SAVE, save)
FAILS(PRUNE, prune)
FAILS(MARK, mark)
FAILS(REWIND, rewind)
FAILS(OPEN, recovery)

static void rename_says(int error, enum simdisk_how how, int nth, int want)
{
	struct world w;

	start_with(&w, SIMDISK_NFS, 1);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = nth, .error = error, .how = how,
	                                               .kind = SIMDISK_RENAME });
	CHECK_RC(world_save(&w, 2, 1), want, &w.err);
	CHECK_INT(simdisk_fired(w.disk), 1);
	simdisk_faults_clear(w.disk);
	CHECK(simdisk_exists(w.disk, RUN "/checkpoint-2") == (want == 0));
	check_now(&w, "rename");
	stop(&w);
}

TEST(a_publish_that_is_done_and_said_to_fail_is_done)
{
	rename_says(ENOENT, SIMDISK_AFTER, 2, 0);
	rename_says(EIO, SIMDISK_AFTER, 2, 0);
	rename_says(EEXIST, SIMDISK_AFTER, 2, 0);
}

TEST(a_publish_that_fails_is_a_failure_for_ever)
{
	rename_says(ENOENT, SIMDISK_INSTEAD, 2, SHEAF_EIO);
	rename_says(EIO, SIMDISK_INSTEAD, 2, SHEAF_EIO);
	rename_says(EIO, SIMDISK_AFTER, 1, SHEAF_EIO);
}

/* Its journal stands, and whoever opens the run next carries it out: a step that was saved on top,
 * or one that a prune left as the newest, would go with it. */
TEST(after_half_a_rewind_nothing_is_saved_or_pruned_until_it_is_done)
{
	struct world w;

	start_with(&w, SIMDISK_STRICT, 4);
	/* The first name that it gives is that of the count of rewinds. */
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 2, .kind = SIMDISK_RENAME,
	                                               .how = SIMDISK_AFTER, .error = EIO });
	CHECK_RC(world_rewind(&w, 2), SHEAF_EIO, &w.err);
	simdisk_faults_clear(w.disk);
	CHECK(simdisk_exists(w.disk, RUN "/.sheaf/rewind"));
	CHECK_RC(world_prune(&w, 1, 4, -1), SHEAF_EINVAL, &w.err);
	CHECK_RC(world_write(&w, 5), SHEAF_EINVAL, &w.err);
	CHECK(strstr(w.err.msg, "rewind again") != NULL);
	check_now(&w, "half a rewind");
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	CHECK_INT(world_prune(&w, 1, 3, -1), 2);
	check_now(&w, "the rest of it");
	stop(&w);
}

TEST(a_stolen_lock_ends_the_save_before_the_rename)
{
	const struct shf_sys *thief;
	struct shf_store other;
	struct world w;

	start_with(&w, SIMDISK_STRICT, 3);
	CHECK_RC(world_write(&w, 4), 0, &w.err);
	simdisk_set_locks(w.disk, false);
	thief = simdisk_process(w.disk, 999, 0);
	CHECK_RC(shf_store_own(&other, thief, RUN, false, 0, &w.err), 0, &w.err);
	/* I5: the other job cleaned, but not in a stage whose owner lives. */
	CHECK(simdisk_exists(w.disk, RUN "/.sheaf/stage"));
	CHECK_RC(world_publish(&w, 4, 3), SHEAF_ELOST, &w.err);
	CHECK(strstr(w.err.msg, "999"));
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-4"));
	CHECK_RC(world_prune(&w, 1, 3, -1), SHEAF_ELOST, &w.err);
	CHECK_RC(shf_store_rewind(&w.store[0], 1, &w.err), SHEAF_ELOST, &w.err);
	CHECK_RC(shf_store_mark(&w.store[0], 1, 'k', &w.err), SHEAF_ELOST, &w.err);
	shf_stage_discard(&w.store[0], &w.stage[0]);
	for (int i = 1; i < WRITERS; i++)
		shf_stage_close(&w.store[i], &w.stage[i]);
	shf_store_close(&other);
	check_now(&w, "the theft");
	stop(&w);
}

TEST(two_jobs_with_locks_ignored_touch_only_their_own)
{
	struct world a, b;
	char path[200];

	start_with(&a, SIMDISK_STRICT, 1);
	CHECK_RC(world_write(&a, 2), 0, &a.err);
	simdisk_set_locks(a.disk, false);
	world_init(&b, a.disk);
	b.pid = 500;
	CHECK_RC(world_open(&b, false), 0, &b.err);
	snprintf(path, sizeof(path), RUN "/.sheaf/stage/%s/config.json",
	         a.known[a.known_n - 1].stage);
	CHECK(simdisk_exists(a.disk, path));
	CHECK_RC(world_save(&b, 2, -1), 0, &b.err);
	CHECK(simdisk_exists(a.disk, path));
	CHECK_RC(world_publish(&a, 2, 1), SHEAF_ELOST, &a.err);
	for (int i = 1; i < WRITERS; i++)
		shf_stage_close(&a.store[i], &a.stage[i]);
	shf_stage_discard(&a.store[0], &a.stage[0]);
	CHECK(!simdisk_exists(a.disk, path));
	snprintf(path, sizeof(path), RUN "/checkpoint-2/config.json");
	CHECK(simdisk_exists(a.disk, path));
	world_close(&b);
	stop(&a);
}

/* Another job opens the run in the middle of a call of ours. */
struct intruder {
	struct simdisk *disk;
	struct shf_store store;
	struct sheaf_error err;
	int calls, at, rc;
};

static void intrude(void *arg)
{
	struct intruder *i = arg;

	if (++i->calls != i->at)
		return;
	simdisk_set_turn(i->disk, NULL, NULL);
	i->rc = shf_store_own(&i->store, simdisk_process(i->disk, 999, 1), RUN, true, 0, &i->err);
}

TEST(two_jobs_that_make_a_run_with_locks_ignored_agree_on_what_it_is)
{
	int tried = 0;

	for (bool more = true; more; tried++) {
		struct intruder i = { .disk = simdisk_new(everycut.seed, SIMDISK_STRICT),
		                      .at = tried + 1, .rc = 1 };
		struct shf_store s;
		struct sheaf_error err;
		size_t n = 0;
		char *text;
		int rc;

		simdisk_set_locks(i.disk, false);
		simdisk_set_turn(i.disk, intrude, &i);
		rc = shf_store_own(&s, simdisk_process(i.disk, 100, 0), RUN, true, 0, &err);
		simdisk_set_turn(i.disk, NULL, NULL);
		more = i.rc <= 0;
		CHECK_RC(rc, 0, &err);
		CHECK(!more || i.rc == 0);
		text = simdisk_get(i.disk, RUN "/.sheaf/run", &n);
		CHECK(text && n == 45 && memcmp(text + 12, s.run, 32) == 0);
		CHECK(!more || strcmp(s.run, i.store.run) == 0);
		free(text);
		shf_store_close(&s);
		if (more)
			shf_store_close(&i.store);
		simdisk_free(i.disk);
	}
	printf("# another job at each of %d calls\n", tried);
	CHECK(tried > 20);
}

TEST(a_target_that_appears_is_never_replaced)
{
	const char *text = "somebody's";
	struct world w;
	size_t n = 0;
	char *got;

	for (int empty = 0; empty < 2; empty++) {
		start_with(&w, empty ? SIMDISK_NFS : SIMDISK_STRICT, 1);
		CHECK_RC(world_write(&w, 2), 0, &w.err);
		CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-2/x", text, strlen(text)), 0);
		if (empty)
			CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-2/x"), 0);
		CHECK_RC(world_publish(&w, 2, 1), SHEAF_EEXIST, &w.err);
		shf_stage_discard(&w.store[0], &w.stage[0]);
		for (int i = 1; i < WRITERS; i++)
			shf_stage_close(&w.store[i], &w.stage[i]);
		got = simdisk_get(w.disk, RUN "/checkpoint-2/x", &n);
		CHECK(empty ? !got : got && n == strlen(text));
		CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-2/sheaf.json"));
		free(got);
		stop(&w);
	}
}

TEST(the_judges_own_sum_is_the_standard_one)
{
	uint8_t bytes[70];

	CHECK(plain_crc("123456789", 9) == UINT64_C(0xae8b14860a799888));
	CHECK(plain_crc("", 0) == 0);
	/* Of any length, by words and by bytes: with its sum behind it the rest is one number. */
	memset(bytes, 0x5a, sizeof(bytes));
	for (size_t n = 0; n + 8 <= sizeof(bytes); n++) {
		uint64_t c = plain_crc(bytes, n);

		for (int i = 0; i < 8; i++)
			bytes[n + (size_t)i] = (uint8_t)(c >> (8 * i));
		CHECK(plain_crc(bytes, n + 8) == UINT64_C(0x0cefcfc4d49091bd));
	}
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
