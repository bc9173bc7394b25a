/* SPDX-License-Identifier: Apache-2.0 */
/* Loads that came to nothing are counted: through power cuts at every call, without one fsync after
 * another, with every call failing. Every subset of what was not synced is tried. */
#include <errno.h>
#include <stdlib.h>
#include "commitoracle.h"
#include "list.h"
#include "marks.h"
#include "marks_read.h"
#include "t.h"
#include "tries.h"
#include "tries_settle.h"

#define DOT RUN "/.sheaf"
enum { ADD, ADD_AGAIN, FORGET, FORGIVE, RECOVER, DEEDS };
static const char *const deed_names[DEEDS] = { "a first try", "a second try", "a commit",
	"a mark none", "a recovery" };

static struct sheaf_error err;
static uint64_t states;

/* Another job, with opts.resume_attempts_max as `most` is. */
static int most = 2;

static int reopen(struct world *w)
{
	int rc = world_open(w, false);

	if (rc < 0)
		return rc;
	w->store[0].attempts_max = most;
	return shf_tries_settle(&w->store[0]);
}

/* Two steps, and of the second n sessions that died of it. A new session has the run open. */
static void start(struct world *w, enum simdisk_model model, int n)
{
	struct simdisk *disk = simdisk_new(11, model);

	world_init(w, disk);
	CHECK_RC(world_open(w, true), 0, &w->err);
	w->store[0].attempts_max = most;
	CHECK_RC(world_save(w, 1, -1), 0, &w->err);
	CHECK_RC(world_save(w, 2, 1), 0, &w->err);
	for (int i = 1; i <= n; i++) {
		CHECK_INT(shf_tries_add(&w->store[0], 2, w->known[1].session, &err), i);
		world_kill(w);
		CHECK_RC(reopen(w), 0, &w->err);
	}
}

static void stop(struct world *w)
{
	world_close(w);
	simdisk_free(w->disk);
}

static int64_t latest(struct shf_store *s)
{
	int64_t step = -1;
	int rc = shf_store_latest(s, &step, NULL, NULL, &err);

	return rc < 0 ? rc : step;
}

/* ---- what the count does ---- */

static char heard[800];

static void hear(void *arg, int level, const char *line)
{
	size_t n = strlen(heard);

	(void)arg;
	CHECK_INT(level, 1);
	snprintf(heard + n, sizeof(heard) - n, "%s\n", line);
}

TEST(a_step_that_two_sessions_died_of_is_passed_over_and_marked_bad)
{
	const char *session;
	struct shf_list list;
	struct world w;
	int64_t step = -1;

	start(&w, SIMDISK_STRICT, 1);
	session = w.known[1].session;
	CHECK_INT(latest(&w.store[0]), 2);
	CHECK_INT(shf_mark_read(&w.store[0], 2, NULL), 0);
	/* Once a session, however often it loads; and what it tries itself is still its latest. */
	CHECK_INT(shf_tries_add(&w.store[0], 2, session, &err), 2);
	CHECK_INT(shf_tries_add(&w.store[0], 2, session, &err), 0);
	CHECK_INT(shf_tries_read(&w.store[0], 2, session), 2);
	CHECK_INT(latest(&w.store[0]), 2);
	world_kill(&w);
	CHECK_RC(reopen(&w), 0, &w.err);
	CHECK_INT(shf_mark_read(&w.store[0], 2, NULL), 'b');
	heard[0] = '\0';
	CHECK_RC(shf_store_latest(&w.store[0], &step, hear, NULL, &err), 0, &err);
	CHECK_INT(step, 1);
	CHECK(strstr(heard, "checkpoint-2: skipped: 2 jobs resumed from it and ended without "
	             "saving"));
	CHECK_RC(shf_store_list(&w.store[0], &list, &err), 0, &err);
	CHECK_INT(list.entries[1].tries, 2);
	CHECK_INT(list.entries[1].mark, 'b');
	shf_list_release(&list);
	/* A person forgives it. */
	CHECK_RC(world_mark(&w, 2, 0), 0, &w.err);
	CHECK_INT(shf_tries_read(&w.store[0], 2, session), 0);
	CHECK_INT(latest(&w.store[0]), 2);
	stop(&w);
}

TEST(what_comes_to_a_commit_or_a_close_is_not_counted)
{
	const char *session;
	struct world w;

	start(&w, SIMDISK_STRICT, 1);
	session = w.known[1].session;
	CHECK_INT(shf_tries_add(&w.store[0], 2, session, &err), 2);
	CHECK_INT(shf_tries_add(&w.store[0], 1, w.known[0].session, &err), 1);
	CHECK_RC(shf_tries_forget(&w.store[0], &err), 0, &err);
	CHECK_INT(shf_tries_read(&w.store[0], 2, session), 0);
	CHECK_INT(shf_tries_read(&w.store[0], 1, w.known[0].session), 0);
	/* After it, a try is a try again. */
	CHECK_INT(shf_tries_add(&w.store[0], 2, session, &err), 1);
	/* A step of that number that is saved anew has nothing to do with it. */
	CHECK_RC(world_rewind(&w, 1), 0, &w.err);
	CHECK_RC(world_save(&w, 2, 1), 0, &w.err);
	CHECK_INT(shf_tries_read(&w.store[0], 2, w.known[2].session), 0);
	CHECK_INT(shf_tries_read(&w.store[0], 2, session), 1);
	/* More than a session can remember are not counted, so that none is forgotten. */
	for (int i = 0; i < SHF_TRIED_MAX + 3; i++)
		CHECK_INT(shf_tries_add(&w.store[0], 100 + i, session, &err),
		          i < SHF_TRIED_MAX - 1);
	CHECK_RC(shf_tries_forget(&w.store[0], &err), 0, &err);
	for (int i = 0; i < SHF_TRIED_MAX + 3; i++)
		CHECK_INT(shf_tries_read(&w.store[0], 100 + i, session), 0);
	stop(&w);
}

TEST(the_oldest_is_never_condemned_and_nobody_starts_afresh)
{
	struct world w;

	start(&w, SIMDISK_STRICT, 2);
	CHECK_INT(shf_tries_add(&w.store[0], 1, w.known[0].session, &err), 1);
	world_kill(&w);
	CHECK_RC(reopen(&w), 0, &w.err);
	CHECK_INT(latest(&w.store[0]), 1);
	CHECK_INT(shf_tries_add(&w.store[0], 1, w.known[0].session, &err), 2);
	world_kill(&w);
	CHECK_RC(reopen(&w), 0, &w.err);
	/* 1 was tried twice as well, but it is the last to go on from. */
	CHECK_INT(shf_tries_read(&w.store[0], 1, w.known[0].session), 2);
	CHECK_INT(shf_mark_read(&w.store[0], 1, NULL), 0);
	CHECK_INT(latest(&w.store[0]), 1);
	/* If a person condemns it, nobody starts afresh while 2 may be asked for. */
	CHECK_RC(world_mark(&w, 1, 'b'), 0, &w.err);
	CHECK_INT(latest(&w.store[0]), SHEAF_ECORRUPT);
	CHECK(strstr(err.msg, "sheaf mark run@2 none"));
	CHECK_RC(world_mark(&w, 1, 0), 0, &w.err);
	CHECK_INT(latest(&w.store[0]), 1);
	stop(&w);
}

/* Whoever marked them: where a checkpoint is left, nobody is told to start afresh. */
TEST(where_all_is_marked_bad_it_is_said_and_not_that_there_is_none)
{
	struct world w;

	start(&w, SIMDISK_STRICT, 0);
	CHECK_RC(world_mark(&w, 2, 'b'), 0, &w.err);
	CHECK_INT(latest(&w.store[0]), 1);
	CHECK_RC(world_mark(&w, 1, 'b'), 0, &w.err);
	CHECK_INT(latest(&w.store[0]), SHEAF_ECORRUPT);
	CHECK(strstr(err.msg, "step 2 is marked bad") && strstr(err.msg, "sheaf mark run@2 none"));
	/* What has no manifest is no checkpoint, marked or not. */
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-2/sheaf.json"), 0);
	CHECK_INT(latest(&w.store[0]), SHEAF_ECORRUPT);
	CHECK(strstr(err.msg, "step 1 is marked bad"));
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-1/sheaf.json"), 0);
	CHECK_INT(latest(&w.store[0]), SHEAF_ECORRUPT);
	CHECK(strstr(err.msg, "2 had one"));
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-1/sheaf.sums"), 0);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-2/sheaf.sums"), 0);
	CHECK_INT(latest(&w.store[0]), SHEAF_ENOENT);
	stop(&w);
}

TEST(by_default_no_number_of_failed_resumes_condemns_a_step)
{
	struct shf_newest n;
	struct world w;

	most = 0;
	start(&w, SIMDISK_STRICT, 5);
	CHECK_INT(shf_tries_read(&w.store[0], 2, w.known[1].session), 5);
	CHECK_INT(shf_mark_read(&w.store[0], 2, NULL), 0);
	CHECK_INT(latest(&w.store[0]), 2);
	CHECK_RC(shf_store_newest(&w.store[0], 3, &n, &err), 0, &err);
	CHECK_INT(n.newest, 2);
	stop(&w);
	most = 3;
	start(&w, SIMDISK_STRICT, 2);
	CHECK_INT(latest(&w.store[0]), 2);
	stop(&w);
	start(&w, SIMDISK_STRICT, 3);
	CHECK_INT(latest(&w.store[0]), 1);
	stop(&w);
	most = 2;
}

/* A job that goes on from the step before comes to that number again. */
TEST(the_number_of_a_condemned_step_may_be_saved_again)
{
	for (int marked = 0; marked < 2; marked++) {
		struct shf_list list;
		struct world w;

		start(&w, SIMDISK_STRICT, marked ? 0 : 2);
		if (marked)
			CHECK_RC(world_mark(&w, 2, 'b'), 0, &w.err);
		CHECK_RC(world_save(&w, 2, 1), 0, &w.err);
		CHECK_INT(shf_mark_read(&w.store[0], 2, NULL), 0);
		CHECK_INT(shf_tries_read(&w.store[0], 2, w.known[1].session), 0);
		CHECK_INT(latest(&w.store[0]), 2);
		CHECK_RC(shf_store_list(&w.store[0], &list, &err), 0, &err);
		CHECK_INT(list.n, 3);
		CHECK_INT(list.entries[1].state, SHF_COMMITTED);
		CHECK_STR(list.entries[1].session, w.known[2].session);
		CHECK_INT(list.entries[2].state, SHF_ASIDE);
		CHECK_STR(list.entries[2].session, w.known[1].session);
		shf_list_release(&list);
		/* One that is good is nobody's to replace. */
		CHECK_RC(world_save(&w, 2, 1), SHEAF_EEXIST, &w.err);
		stop(&w);
	}
}

TEST(who_tries_it_now_has_not_failed)
{
	struct world w;

	start(&w, SIMDISK_STRICT, 1);
	CHECK_INT(shf_tries_add(&w.store[0], 2, w.known[1].session, &err), 2);
	CHECK_INT(latest(&w.store[0]), 2);
	world_kill(&w);
	CHECK_RC(reopen(&w), 0, &w.err);
	CHECK_INT(latest(&w.store[0]), 1);
	stop(&w);
}

/* An older one that cannot be loaded, though its manifest says it is there, is nothing to go on
 * from: condemning 2 for it would leave nobody anything. */
TEST(an_older_step_that_lacks_a_file_condemns_nobody)
{
	static const char *const hurt[] = { "model-00001-of-00001.safetensors", "config.json" };

	for (int i = 0; i < 3; i++) {
		struct world w;
		char path[100];

		start(&w, SIMDISK_STRICT, 1);
		CHECK_INT(shf_tries_add(&w.store[0], 2, w.known[1].session, &err), 2);
		snprintf(path, sizeof(path), RUN "/checkpoint-1/%s", hurt[i % 2]);
		if (i < 2)
			CHECK_INT(simdisk_remove(w.disk, path), 0);
		world_kill(&w);
		CHECK_RC(reopen(&w), 0, &w.err);
		CHECK_INT(shf_mark_read(&w.store[0], 2, NULL), i < 2 ? 0 : 'b');
		CHECK_INT(latest(&w.store[0]), i < 2 ? 2 : 1);
		stop(&w);
	}
}

TEST(a_mark_of_a_person_is_not_taken_away_by_recovery)
{
	struct shf_newest n;
	struct world w;

	start(&w, SIMDISK_STRICT, 1);
	CHECK_RC(world_mark(&w, 2, 'k'), 0, &w.err);
	CHECK_INT(shf_tries_add(&w.store[0], 2, w.known[1].session, &err), 2);
	world_kill(&w);
	CHECK_RC(reopen(&w), 0, &w.err);
	CHECK_INT(shf_mark_read(&w.store[0], 2, NULL), 'k');
	CHECK_INT(latest(&w.store[0]), 1);
	/* So a save goes on from the one before. */
	CHECK_RC(shf_store_newest(&w.store[0], 3, &n, &err), 0, &err);
	CHECK_INT(n.newest, 1);
	stop(&w);
}

/* The count goes before the mark: with the mark gone and the count not, the next job would take
 * back what a person was told. */
TEST(a_step_that_is_forgiven_by_half_is_not_condemned_anew)
{
	int forgiven = 0;

	for (int nth = 1, fired = 1; fired; nth++) {
		struct world w;
		char mark;

		start(&w, SIMDISK_STRICT, 2);
		world_kill(&w);
		CHECK_RC(reopen(&w), 0, &w.err);
		CHECK_INT(shf_mark_read(&w.store[0], 2, NULL), 'b');
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
		                                               .always = true });
		(void)shf_store_mark(&w.store[0], 2, 0, &err);
		fired = simdisk_fired(w.disk);
		simdisk_faults_clear(w.disk);
		mark = shf_mark_read(&w.store[0], 2, NULL);
		world_kill(&w);
		CHECK_RC(reopen(&w), 0, &w.err);
		CHECK_INT(shf_mark_read(&w.store[0], 2, NULL), mark);
		forgiven += !mark;
		stop(&w);
	}
	CHECK(forgiven > 1);    /* by half and in whole */
}

TEST(a_reader_does_not_condemn_what_a_writer_is_trying)
{
	const struct shf_sys *reader;
	struct shf_store s;
	struct world w;

	start(&w, SIMDISK_STRICT, 1);
	reader = simdisk_process(w.disk, 900, 0);
	CHECK_INT(shf_tries_add(&w.store[0], 2, w.known[1].session, &err), 2);
	CHECK_RC(shf_store_open(&s, reader, RUN, &err), 0, &err);
	s.attempts_max = most;
	CHECK_INT(latest(&s), 2);
	world_kill(&w);
	CHECK_INT(latest(&s), 1);
	CHECK_INT(shf_tries_add(&s, 2, w.known[1].session, &err), 0);   /* nor counts itself */
	CHECK_INT(shf_tries_read(&s, 2, w.known[1].session), 2);
	shf_store_close(&s);
	CHECK_INT(simdisk_open_n(reader), 0);
	CHECK_RC(reopen(&w), 0, &w.err);
	stop(&w);
}

TEST(a_count_that_is_no_number_counts_nothing)
{
	static const struct { const char *text; int n; } counts[] = { { "", 0 }, { "x\n", 0 },
		{ "1x", 1 }, { "-1", 0 }, { "99999999", 9999 }, { "0\n", 0 } };
	struct world w;
	char path[120];

	start(&w, SIMDISK_STRICT, 0);
	snprintf(path, sizeof(path), DOT "/tries/2-%s", w.known[1].session);
	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		CHECK_INT(simdisk_put(w.disk, path, counts[i].text, strlen(counts[i].text)), 0);
		CHECK_INT(shf_tries_read(&w.store[0], 2, w.known[1].session), counts[i].n);
	}
	CHECK_INT(simdisk_put(w.disk, DOT "/tries/treasure", "9", 1), 0);
	CHECK_INT(simdisk_put(w.disk, DOT "/tries/0-0123456789abcdef0123456789abcdef", "9", 1), 0);
	CHECK_INT(simdisk_put(w.disk, DOT "/tries/77-0123456789abcdef0123456789abcdef", "9", 1), 0);
	world_close(&w);
	CHECK_RC(reopen(&w), 0, &w.err);
	CHECK(simdisk_exists(w.disk, DOT "/tries/treasure"));
	CHECK(!simdisk_exists(w.disk, DOT "/tries/0-0123456789abcdef0123456789abcdef"));
	/* That one may lie in memory. */
	CHECK(simdisk_exists(w.disk, DOT "/tries/77-0123456789abcdef0123456789abcdef"));
	CHECK_INT(latest(&w.store[0]), 2);
	stop(&w);
}

/* ---- deeds, for cuts and faults ---- */

static int deed_tries(int deed)         /* of step 2, before it */
{
	return deed == ADD ? 0 : deed == RECOVER ? 2 : 1;
}

/* A recovery is another job's: what start left is opened by it. */
static int act(struct world *w, int deed)
{
	const char *session = w->known[1].session;
	int rc;

	switch (deed) {
	case ADD:
	case ADD_AGAIN:
		rc = shf_tries_add(&w->store[0], 2, session, &err);
		return rc > 0 ? 0 : rc;
	case FORGET:
		return shf_tries_forget(&w->store[0], &err);
	case FORGIVE:
		return shf_store_mark(&w->store[0], 2, 0, &err);
	default:
		world_close(w);
		return reopen(w);
	}
}

/* What is there: how often tried, as the next writer's recovery leaves it. */
static int count_after(struct simdisk *disk, const char *session, char *mark, int64_t *newest)
{
	const struct shf_sys *sys = simdisk_process(disk, 901, 0);
	struct shf_store s;
	int n;

	CHECK_RC(shf_store_own(&s, sys, RUN, false, 0, &err), 0, &err);
	s.attempts_max = most;
	CHECK_INT(shf_tries_settle(&s), 0);
	n = shf_tries_read(&s, 2, session);
	*mark = shf_mark_read(&s, 2, NULL);
	*newest = latest(&s);
	shf_store_close(&s);
	simdisk_kill(disk, sys);
	return n;
}

/* One state after a cut: "" or what is wrong. before, after: counts that may be found; done: only
 * the latter. */
static const char *judge(struct simdisk *disk, const char *session, int before, int after,
                         bool done)
{
	static char why[200];
	int64_t newest, again;
	char mark, still;
	uint64_t hash;
	int n = count_after(disk, session, &mark, &newest), m;

	(void)simdisk_remove(disk, DOT "/lock");
	hash = simdisk_hash(disk, RUN);
	m = count_after(disk, session, &still, &again);
	(void)simdisk_remove(disk, DOT "/lock");
	why[0] = '\0';
	if (n != after && (done || n != before))
		snprintf(why, sizeof(why), "counted %d times, not %d", n, after);
	else if ((n >= most) != (mark == 'b') || newest != (mark == 'b' ? 1 : 2))
		snprintf(why, sizeof(why), "mark '%c' and latest %lld with %d tries", mark,
		         (long long)newest, n);
	else if (m != n || still != mark || again != newest || simdisk_hash(disk, RUN) != hash)
		snprintf(why, sizeof(why), "another recovery changes something (I11)");
	return why;
}

/* Every cut of a deed that was done without fault. */
static bool hunt(struct world *w, int deed, int64_t acked, char *found, size_t size)
{
	int before = deed_tries(deed);
	int after = deed == RECOVER ? 2 : deed == FORGET || deed == FORGIVE ? 0 : before + 1;

	for (size_t cut = 0; cut < simdisk_cut_n(w->disk); cut++) {
		struct simdisk_sets s;
		const char *why = "";

		simdisk_sets_begin(&s, simdisk_unsynced(w->disk, cut), 5 + cut);
		s.seeded = 20;
		while (!*why && simdisk_sets_next(&s)) {
			for (unsigned tear = 0; !*why && tear <= 4096; tear += tear ? 3584 : 512) {
				struct simdisk_choice choice = { s.kept, tear, s.count };
				struct simdisk *disk = simdisk_crash(w->disk, cut, &choice);

				why = judge(disk, w->known[1].session, before, after,
				            acked >= 0 && (int64_t)cut >= acked);
				simdisk_free(disk);
				states++;
			}
		}
		simdisk_sets_end(&s);
		if (*why) {
			snprintf(found, size, "cut %zu of %zu: %s", cut, simdisk_cut_n(w->disk),
			         why);
			return false;
		}
	}
	return true;
}

/* A deed over a settled disk, without the nth fsync (0: with all). How many there were. */
static long do_deed(struct world *w, enum simdisk_model model, int deed, long nth, int64_t *acked)
{
	start(w, model, deed == FORGET ? 0 : deed_tries(deed));
	if (deed == FORGET)
		CHECK_INT(shf_tries_add(&w->store[0], 2, w->known[1].session, &err), 1);
	world_settle(w);
	simdisk_skip_fsync(w->disk, nth);
	CHECK_RC(act(w, deed), 0, &err);
	*acked = world_now(w);
	return simdisk_fsyncs(w->disk);
}

TEST(a_cut_at_any_call_leaves_the_count_before_or_after)
{
	static const enum simdisk_model models[] = { SIMDISK_STRICT, SIMDISK_EXT4, SIMDISK_NFS };

	for (int deed = 0; deed < DEEDS; deed++)
		for (int m = 0; m < 3; m++) {
			uint64_t from = states;
			struct world w;
			int64_t acked;
			char why[300];
			bool fine;

			(void)do_deed(&w, models[m], deed, 0, &acked);
			fine = hunt(&w, deed, acked, why, sizeof(why));
			if (!fine)
				print_error("%s, model %d: %s\n", deed_names[deed], m, why);
			CHECK(fine);
			printf("# %s, model %d: %zu cuts, %llu states\n", deed_names[deed], m,
			       simdisk_cut_n(w.disk), (unsigned long long)(states - from));
			stop(&w);
		}
}

TEST(leaving_out_any_fsync_of_a_try_is_found)
{
	/* Of the text, of tries, of .sheaf, which holds the name of tries the first time only; of
	 * tries after a removal. */
	static const struct { int deed; long fsyncs; bool harmless[4]; } deeds[] = {
		{ ADD, 3, { false, false, false } },
		{ ADD_AGAIN, 3, { false, false, true } },
		{ FORGET, 1, { false } } };

	for (size_t i = 0; i < sizeof(deeds) / sizeof(*deeds); i++)
		for (long nth = 1; nth <= deeds[i].fsyncs; nth++) {
			struct world w;
			int64_t acked;
			char why[300] = "";
			bool fine;

			CHECK_INT(do_deed(&w, SIMDISK_STRICT, deeds[i].deed, nth, &acked),
			          deeds[i].fsyncs);
			fine = hunt(&w, deeds[i].deed, acked, why, sizeof(why));
			printf("# %s without fsync %ld: %s\n", deed_names[deeds[i].deed], nth,
			       fine ? "harmless" : why);
			CHECK_INT(fine, deeds[i].harmless[nth - 1]);
			stop(&w);
		}
}

TEST(any_call_may_fail_and_the_count_is_the_one_before_or_after)
{
	static const int errors[] = { EIO, ENOSPC, EROFS };
	int n = 0;

	for (int deed = 0; deed < RECOVER; deed++)
		for (int e = 0; e < 3; e++)
			for (int nth = 1, more = 1; more; nth++) {
				int before = deed_tries(deed), got;
				int after = deed >= FORGET ? 0 : before + 1;
				struct world w;
				int64_t newest;
				char mark;
				int rc;

				start(&w, SIMDISK_STRICT, deed == FORGET ? 0 : before);
				if (deed == FORGET)
					(void)shf_tries_add(&w.store[0], 2, w.known[1].session,
					                    &err);
				simdisk_fail_at(w.disk, nth, errors[e]);
				rc = act(&w, deed);
				more = simdisk_fired(w.disk);
				simdisk_faults_clear(w.disk);
				world_close(&w);
				got = count_after(w.disk, w.known[1].session, &mark, &newest);
				if (got != after && (rc >= 0 || got != before))
					print_error("%s, call %d: %d and %d tries\n",
					            deed_names[deed], nth, rc, got);
				CHECK(got == after || (rc < 0 && got == before));
				CHECK_INT(mark, got >= most ? 'b' : 0);
				for (int r = 0; r < WRITERS; r++)
					CHECK_INT(simdisk_open_n(w.proc[r]), 0);
				simdisk_free(w.disk);
				n++;
			}
	printf("# %d calls failed\n", n);
}

TEST(a_mark_that_recovery_cannot_make_stops_nobody)
{
	int n = 0;

	for (int nth = 1, more = 1; more; nth++) {
		struct world w;
		int rc;

		start(&w, SIMDISK_STRICT, 1);
		CHECK_INT(shf_tries_add(&w.store[0], 2, w.known[1].session, &err), 2);
		world_kill(&w);
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = nth, .error = ENOSPC,
		                                               .kind = SIMDISK_PWRITE,
		                                               .name = "tmp-" });
		rc = reopen(&w);
		more = simdisk_fired(w.disk);
		simdisk_faults_clear(w.disk);
		CHECK(rc == 0 || more);         /* other texts of an opening are needed */
		if (rc == 0) {
			CHECK(more || shf_mark_read(&w.store[0], 2, NULL) == 'b');
			CHECK_INT(latest(&w.store[0]), 1);      /* with the mark or without */
			n += shf_mark_read(&w.store[0], 2, NULL) == 0;
		}
		stop(&w);
	}
	CHECK_INT(n, 1);
}
