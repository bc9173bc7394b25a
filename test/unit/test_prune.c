/* SPDX-License-Identifier: Apache-2.0 */
/* What pruning lets go and what it never does: H2 and I9, through the store alone. */
#include <errno.h>
#include <stdlib.h>
#include "lived.h"
#include "rng.h"
#include "prune_steps.h"
#include "sheaf-admin.h"

TEST(prune_keeps_what_no_newer_verified_step_dominates)
{
	struct world w;

	start(&w, 6);
	CHECK_INT(world_prune(&w, 2, -1, -1), 0);       /* nothing verified */
	CHECK_INT(world_prune(&w, 0, 6, -1), 0);        /* keep all */
	CHECK_RC(world_mark(&w, 2, 'k'), 0, &w.err);
	/* Only what is older than the verified step, and not marked. */
	CHECK_INT(world_prune(&w, 1, 4, -1), 2);
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-1"));
	CHECK(simdisk_exists(w.disk, RUN "/checkpoint-2"));
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-3"));
	CHECK(simdisk_exists(w.disk, RUN "/checkpoint-4"));
	CHECK(simdisk_exists(w.disk, RUN "/checkpoint-5"));
	CHECK_RC(world_mark(&w, 6, 'b'), 0, &w.err);
	CHECK_INT(world_prune(&w, 1, 6, -1), 0);        /* a bad one vouches for nobody */
	CHECK_INT(world_prune(&w, 1, 5, -1), 1);
	stop(&w);
}

TEST(prune_never_crosses_branches_nor_takes_what_is_read_or_loaded)
{
	struct shf_prune p = { .keep_last = 1, .verified.step = 5, .keep = 4, .grace_s = -1 };
	const struct shf_sys *reader;
	struct world w;
	int dir, fd;

	start(&w, 3);
	CHECK_RC(world_save(&w, 4, 3), 0, &w.err);
	CHECK_RC(world_save(&w, 5, 4), 0, &w.err);
	CHECK_RC(world_save(&w, 6, 2), 0, &w.err);      /* from 2, past 3, 4, 5 */
	reader = simdisk_process(w.disk, 777, 1);
	dir = shf_sys_open(reader, SHF_CWD, RUN "/checkpoint-3", SHF_O_DIR, 0);
	fd = shf_sys_open(reader, dir, "sheaf.json", 0, 0);
	CHECK_INT(shf_sys_lock(reader, fd, false), 0);
	p.verified.step = 6;
	p.dry = true;
	CHECK_INT(shf_store_prune(&w.store[0], &p, NULL, NULL, &w.err), 2);    /* 2 and 1 */
	p.verified.step = 5;
	CHECK_INT(shf_store_prune(&w.store[0], &p, NULL, NULL, &w.err), 3);    /* not 4: loaded */
	p.dry = false;
	CHECK_INT(shf_store_prune(&w.store[0], &p, NULL, NULL, &w.err), 2);    /* not 3: read */
	CHECK(simdisk_exists(w.disk, RUN "/checkpoint-3/sheaf.json"));
	simdisk_kill(w.disk, reader);
	CHECK_INT(shf_store_prune(&w.store[0], &p, NULL, NULL, &w.err), 1);
	stop(&w);
}

/* A hand puts back a step that a rewind had set aside: its parent has the number of one that was
 * saved since, and is not it. */
TEST(a_parent_of_another_session_is_another_branch)
{
	const struct shf_sys *hand;
	struct world w;
	char aside[100];

	start(&w, 3);
	snprintf(aside, sizeof(aside), RUN "/.sheaf/aside/3-%s", w.known[2].session);
	CHECK_RC(world_rewind(&w, 1), 0, &w.err);
	CHECK_RC(world_save(&w, 2, 1), 0, &w.err);
	hand = simdisk_process(w.disk, 778, 1);
	CHECK_INT(shf_sys_rename(hand, SHF_CWD, aside, SHF_CWD, RUN "/checkpoint-3", true), 0);
	CHECK_INT(state_of(&w.store[0], 3, NULL), 'C');
	CHECK_INT(world_prune(&w, 1, 3, -1), 0);
	CHECK(simdisk_exists(w.disk, RUN "/checkpoint-2") &&
	      simdisk_exists(w.disk, RUN "/checkpoint-1"));
	stop(&w);
}

/* What one prune said of each step: 'k' or 'r', and why. */
struct said {
	char what[32];
	char why[32][200];
};

static void listen(void *arg, int64_t step, int32_t action, const char *why)
{
	char what = sheaf_prune_action_name(action)[0];
	struct said *said = arg;

	said->what[step] = what;
	snprintf(said->why[step], sizeof(said->why[step]), "%s", why);
}

static struct {                 /* before the nth call a hand takes a mark away */
	struct simdisk *disk;
	int calls, at;
} hand;

static void meddle(void *arg)
{
	(void)arg;
	if (++hand.calls == hand.at)
		(void)simdisk_remove(hand.disk, RUN "/.sheaf/marks/2");
}

TEST(each_step_is_judged_once_whatever_becomes_of_its_mark)
{
	struct shf_prune p = { .keep_last = 1, .verified.step = 4, .keep = -1, .grace_s = -1 };
	int kept = 0, went = 0;

	for (hand.at = 1, hand.calls = 1; hand.calls >= hand.at; hand.at++) {
		struct said said;
		struct world w;
		int n;

		start(&w, 4);
		CHECK_RC(world_mark(&w, 2, 'k'), 0, &w.err);
		hand.disk = w.disk;
		hand.calls = 0;
		simdisk_set_turn(w.disk, meddle, NULL);
		n = shf_store_prune(&w.store[0], &p, listen, &said, &w.err);
		simdisk_set_turn(w.disk, NULL, NULL);
		CHECK_INT(n, said.what[2] == 'k' ? 2 : 3);
		CHECK_STR(said.why[2], said.what[2] == 'k' ? "marked keep"
		                                           : "a newer step is verified");
		kept += said.what[2] == 'k';
		went += said.what[2] == 'r';
		stop(&w);
	}
	print_message("# a mark gone at each call: it stays %d times, goes %d\n", kept, went);
	CHECK(kept > 20 && went > 20);
}

static struct shf_prune best_of(int k, bool largest, int64_t verified, bool dry)
{
	return (struct shf_prune){ .keep_last = 1, .keep_best = k, .best_largest = largest,
		.best_note = "loss",
		.verified.step = verified, .keep = -1, .grace_s = -1, .dry = dry };
}

static void start_with(struct world *w, const char *const *losses, int n)
{
	start(w, 0);
	for (int i = 1; i <= n; i++) {
		w->loss = losses[i - 1];
		CHECK_RC(world_save(w, i, i > 1 ? i - 1 : -1), 0, &w->err);
	}
}

TEST(the_best_by_a_note_stay_and_the_list_says_why)
{
	static const char *const losses[] = { "0.5", "2e-1", "nan", "0.50", NULL, "1e9", "0x1p-9",
		"0.2", "3" };
	struct shf_prune p = best_of(2, false, 9, true);
	struct said said;
	struct world w;

	start_with(&w, losses, 9);
	/* 8 and 2 are the smallest, and equal; one fewer: the newer of them. */
	CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 6);
	CHECK_STR(said.why[8], "among the 2 best by loss (0.2)");
	CHECK_STR(said.why[2], "among the 2 best by loss (2e-1)");
	CHECK_STR(said.why[9], "among the newest");
	CHECK_STR(said.why[1], "if the newest step is verified as valid");
	CHECK_STR(said.why[3], "if the newest step is verified as valid; its note loss is not a "
	          "decimal number");
	CHECK_STR(said.why[5], "if the newest step is verified as valid; it has no note loss");
	CHECK_STR(said.why[7], said.why[3]);
	p = best_of(1, false, 9, true);
	CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 7);
	CHECK_STR(said.why[8], "the best by loss (0.2)");
	CHECK_INT(said.what[2], 'r');
	/* The other way round, and for good. A bad step is nobody's best. */
	CHECK_RC(world_mark(&w, 6, 'b'), 0, &w.err);
	p = best_of(3, true, 9, false);
	CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 6);
	CHECK_INT(said.what[6], 'r');
	CHECK_STR(said.why[6], "a newer step is verified");
	CHECK_STR(said.why[5], "a newer step is verified; it has no note loss");
	CHECK_STR(said.why[4], "among the 3 best by loss (0.50)");
	CHECK_STR(said.why[1], "among the 3 best by loss (0.5)");
	for (int step = 1; step <= 9; step++)
		CHECK_INT(state_of(&w.store[0], step, NULL),
		          step == 1 || step == 4 || step == 9 ? 'C' : '-');
	stop(&w);
}

/* However long the note is that says the number, and however many digits differ behind its 47th
 * character; 40 of them may be significant. */
TEST(a_long_note_is_the_number_that_it_says)
{
	static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000";
	char small[200], smaller[200], tiny[4000], precise[200], too_long[5000];
	const char *losses[] = { small, smaller, tiny, precise, too_long, "9" };
	struct shf_prune p = best_of(2, false, 6, true);
	struct said said;
	struct world w;

	snprintf(small, sizeof(small), "0.%s7", zeros);
	snprintf(smaller, sizeof(smaller), "0.%s6", zeros);
	snprintf(tiny, sizeof(tiny), "0.%03800d5", 0);
	snprintf(precise, sizeof(precise), "0.%041d", 1);
	snprintf(too_long, sizeof(too_long), "0.%04100d1", 0);
	start_with(&w, losses, 6);
	CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 3);
	CHECK_STR(said.why[2],
	          "among the 2 best by loss (0.000000000000000000000000000000000000000000...)");
	CHECK_STR(said.why[3], said.why[2]);
	CHECK_STR(said.why[1], "if the newest step is verified as valid");
	CHECK_STR(said.why[4], "if the newest step is verified as valid");
	CHECK_STR(said.why[5], "if the newest step is verified as valid; its note loss is not a "
	          "decimal number");
	stop(&w);
}

TEST(a_note_never_lets_go_what_no_newer_verified_step_dominates)
{
	static const char *const losses[] = { "1", "2", "3", "4" };
	struct shf_prune p = best_of(1, false, -1, false);
	struct said said;
	struct world w;

	start_with(&w, losses, 4);
	CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 0);  /* I9 */
	CHECK_STR(said.why[2], "no newer step is verified");
	p.verified.step = 3;
	CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 1);
	CHECK_STR(said.why[1], "the best by loss (1)");
	CHECK_INT(said.what[2], 'r');
	CHECK_STR(said.why[3], "not older than the verified step");
	/* Without keep_last everything stays, whatever is best. */
	p = best_of(1, false, 4, false);
	p.keep_last = 0;
	CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 0);
	CHECK_STR(said.why[3], "all steps are kept");
	stop(&w);
}

TEST(what_was_best_for_a_while_goes_when_it_is_not_though_steps_between_are_gone)
{
	static const char *const losses[] = { "5", "9", "9", "4", "9", "3", "9" };
	static const int goes[] = { 0, 0, 1, 2, 0, 2, 0 };
	struct shf_prune p = best_of(1, false, -1, false);
	struct said said;
	struct world w;

	start(&w, 0);
	for (int i = 1; i <= 7; i++) {
		w.loss = losses[i - 1];
		CHECK_RC(world_save(&w, i, i > 1 ? i - 1 : -1), 0, &w.err);
		p.verified.step = i;
		CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err),
		          goes[i - 1]);
		/* Another job knows as much. */
		world_close(&w);
		CHECK_RC(world_open(&w, false), 0, &w.err);
	}
	for (int step = 1; step <= 7; step++)
		CHECK_INT(state_of(&w.store[0], step, NULL), step >= 6 ? 'C' : '-');
	stop(&w);
}

TEST(a_descent_that_is_torn_or_of_other_sessions_proves_nothing)
{
	static const char *const losses[] = { "1", "9", "9", "0", "9" };
	struct shf_prune p = best_of(1, false, 3, false);
	size_t n = 0;
	char *text;

	for (int way = 0; way < 4; way++) {
		struct said said;
		struct world w;

		start_with(&w, losses, 3);
		CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 1);
		w.loss = losses[3];
		CHECK_RC(world_save(&w, 4, 3), 0, &w.err);
		text = simdisk_get(w.disk, RUN "/.sheaf/descent", &n);
		CHECK(text != NULL && n > 80);
		if (way == 1)
			CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/descent", text, n / 2), 0);
		if (way == 2)
			CHECK_INT(simdisk_flip(w.disk, RUN "/.sheaf/descent", 8 * 40 + 1), 0);
		if (way == 3)
			CHECK_INT(simdisk_remove(w.disk, RUN "/.sheaf/descent"), 0);
		p.verified.step = 4;
		/* 4 is best now, 3 its parent; 1 is an ancestor only by what was written down. */
		CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), way ? 1 : 2);
		CHECK_INT(state_of(&w.store[0], 1, NULL), way ? 'C' : '-');
		if (way)
			CHECK(strstr(said.why[1], "not on the branch of the verified step: 3 "
			             "follows 2 of session ") != NULL &&
			      strstr(said.why[1], ", which is not here") != NULL);
		p.verified.step = 3;
		free(text);
		stop(&w);
	}
}

/* What says that step 3 descends from step 1 is on the disk before step 2 is not. */
TEST(a_descent_is_durable_before_the_steps_between_go)
{
	static const char *const losses[] = { "1", "9", "9" };
	struct shf_prune p = best_of(1, false, 3, false);
	struct said said;
	struct world w;
	long gone = 0;

	start_with(&w, losses, 3);
	world_settle(&w);
	CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 1);
	for (size_t cut = 0; cut < simdisk_cut_n(w.disk); cut++) {
		struct simdisk_sets s;

		simdisk_sets_begin(&s, simdisk_unsynced(w.disk, cut), 7);
		while (simdisk_sets_next(&s)) {
			struct simdisk *crashed = simdisk_crash(w.disk, cut,
				&(struct simdisk_choice){ .kept = s.kept });

			if (!simdisk_exists(crashed, RUN "/checkpoint-2")) {
				CHECK(simdisk_exists(crashed, RUN "/.sheaf/descent"));
				gone++;
			}
			simdisk_free(crashed);
		}
		simdisk_sets_end(&s);
	}
	print_message("# step 2 was gone after %ld cuts\n", gone);
	CHECK(gone > 0);
	stop(&w);
}

/* What a disk does not answer is not lost: nothing goes, and nothing is written over it. */
TEST(a_descent_that_cannot_be_read_stops_a_prune_and_stays)
{
	static const char *const losses[] = { "1", "9", "9", "0", "9" };
	static const int errors[] = { EIO, EACCES, ENOMEM };
	struct shf_prune p = best_of(1, false, 3, false);
	struct said said;
	struct world w;
	uint64_t before;

	start_with(&w, losses, 3);
	CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 1);
	w.loss = losses[3];
	CHECK_RC(world_save(&w, 4, 3), 0, &w.err);
	p.verified.step = 4;
	before = simdisk_hash(w.disk, RUN);
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = errors[i],
		                                               .kind = SIMDISK_OPEN,
		                                               .name = "descent" });
		CHECK_RC(shf_store_prune(&w.store[0], &p, listen, &said, &w.err),
		         errors[i] == ENOMEM ? SHEAF_ENOMEM : SHEAF_EIO, &w.err);
		CHECK(strstr(w.err.msg, ".sheaf/descent"));
		CHECK_INT(simdisk_fired(w.disk), 1);
		simdisk_faults_clear(w.disk);
		CHECK(simdisk_hash(w.disk, RUN) == before);
	}
	CHECK_INT(shf_store_prune(&w.store[0], &p, listen, &said, &w.err), 2);
	CHECK_INT(state_of(&w.store[0], 1, NULL), '-');
	stop(&w);
}

/* People prune because a disk is full. Then nothing new can be noted about the steps between, but
 * the oldest can go, and the others when there is room. */
TEST(on_a_full_disk_the_oldest_steps_go)
{
	static const int errors[] = { ENOSPC, EDQUOT };

	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		struct world w;

		start(&w, 6);
		CHECK_RC(world_mark(&w, 3, 'k'), 0, &w.err);
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = errors[i],
		              .kind = SIMDISK_PWRITE, .name = "tmp-", .always = true });
		CHECK_INT(world_prune(&w, 1, 6, -1), 2);
		CHECK_INT(simdisk_fired(w.disk), 1);
		CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-2"));
		CHECK(simdisk_exists(w.disk, RUN "/checkpoint-4"));
		simdisk_faults_clear(w.disk);
		CHECK_INT(world_prune(&w, 1, 6, -1), 2);
		CHECK(simdisk_exists(w.disk, RUN "/checkpoint-3"));
		CHECK_RC(world_mark(&w, 3, 0), 0, &w.err);
		CHECK_INT(world_prune(&w, 1, 6, -1), 1);
		stop(&w);
	}
}

/* A reader of the node: a shared lock on the manifest. */
static const struct shf_sys *reader_of(struct world *w, int64_t step)
{
	const struct shf_sys *reader = simdisk_process(w->disk, 7000 + (uint64_t)step, 1);
	char path[60];
	int fd;

	snprintf(path, sizeof(path), RUN "/checkpoint-%lld/sheaf.json", (long long)step);
	fd = shf_sys_open(reader, SHF_CWD, path, 0, 0);
	CHECK_INT(shf_sys_lock(reader, fd, false), 0);
	return reader;
}

/* An evaluation that lasts over a prune: what it read can go afterwards, though the steps between
 * it and the newest are gone. */
TEST(a_step_that_was_read_during_a_prune_goes_at_the_next)
{
	for (int again = 0; again < 2; again++) {
		const struct shf_sys *reader;
		struct world w;

		start(&w, 3);
		reader = reader_of(&w, 1);
		CHECK_INT(world_prune(&w, 1, 3, -1), 1);
		CHECK_INT(state_of(&w.store[0], 1, NULL), 'C');
		CHECK_INT(state_of(&w.store[0], 2, NULL), '-');
		if (again) {
			CHECK_RC(world_save(&w, 4, 3), 0, &w.err);
			CHECK_INT(world_prune(&w, 1, 4, -1), 1);
		}
		simdisk_kill(w.disk, reader);
		CHECK_INT(world_prune(&w, 1, again ? 4 : 3, -1), 1);
		CHECK_INT(state_of(&w.store[0], 1, NULL), '-');
		stop(&w);
	}
}

/* The reader comes after all was decided, at each call of the prune. */
static struct late {
	struct world *w;
	const struct shf_sys *reader;
	long left;
} late;

static void reader_comes(void *arg)
{
	struct shf_stat st;
	const struct shf_sys *s = late.reader;
	int fd;

	(void)arg;
	if (--late.left != 0)
		return;
	late.left = 0;
	fd = shf_sys_open(s, SHF_CWD, RUN "/checkpoint-1/sheaf.json", 0, 0);
	if (fd >= 0 && shf_sys_stat(s, SHF_CWD, RUN "/checkpoint-1", false, &st) == 0)
		(void)shf_sys_lock(s, fd, false);
}

TEST(whenever_a_reader_comes_the_step_goes_when_it_has_gone)
{
	int stayed = 0;
	bool came;

	for (long at = 1;; at++) {
		struct world w;

		start(&w, 4);
		late = (struct late){ &w, simdisk_process(w.disk, 7000, 1), at };
		simdisk_set_turn(w.disk, reader_comes, NULL);
		CHECK(world_prune(&w, 1, 4, -1) >= 2);
		came = late.left <= 0;
		simdisk_set_turn(w.disk, NULL, NULL);
		stayed += state_of(&w.store[0], 1, NULL) == 'C';
		simdisk_kill(w.disk, late.reader);
		CHECK(world_prune(&w, 1, 4, -1) >= 0);
		for (int i = 1; i < 4; i++)
			CHECK_INT(state_of(&w.store[0], i, NULL), '-');
		stop(&w);
		if (!came)
			break;
	}
	CHECK(stayed > 0);
}

/* Steps of an array that are better: counted, not sorted. */
static int better_n(const int *value, int n, int i, bool largest)
{
	int better = 0;

	for (int k = 1; k <= n; k++)
		if (value[k] >= 0 && (value[k] == value[i] ? k > i
		                      : largest            ? value[k] > value[i]
		                                           : value[k] < value[i]))
			better++;
	return better;
}

TEST(drawn_notes_keep_what_counting_says)
{
	const char *text = getenv("SHEAF_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : 0x5eaf, x = seed | 1;
	int steps = 0, kept = 0;

	for (int round = 0; round < 40; round++) {
		int n = 3 + (int)(rng_next(&x) % 8), k = 1 + (int)(rng_next(&x) % 4), value[16];
		struct shf_prune p = best_of(k, rng_next(&x) % 2, n, false);
		struct said said;
		struct world w;
		char loss[32];

		start(&w, 0);
		for (int i = 1; i <= n; i++) {
			value[i] = rng_next(&x) % 5 ? (int)(rng_next(&x) % 6) : -1;
			snprintf(loss, sizeof(loss), rng_next(&x) % 2 ? "%d" : "%d.0e+00",
			         value[i]);
			w.loss = value[i] < 0 ? NULL : loss;
			CHECK_RC(world_save(&w, i, i > 1 ? i - 1 : -1), 0, &w.err);
		}
		CHECK(shf_store_prune(&w.store[0], &p, listen, &said, &w.err) >= 0);
		for (int i = 1; i <= n; i++) {
			bool stays = i == n || (value[i] >= 0 &&
			                        better_n(value, n, i, p.best_largest) < k);

			CHECK_INT(said.what[i], stays ? 'k' : 'r');
			CHECK_INT(state_of(&w.store[0], i, NULL), stays ? 'C' : '-');
			kept += stays;
			steps++;
		}
		stop(&w);
	}
	CHECK(kept > 40 && kept < steps);
	printf("# %d steps of 40 runs, %d stay; SHEAF_SEED=%#llx test_prune drawn_notes\n", steps,
	       kept, (unsigned long long)seed);
}

static int count_names(void *arg, const char *name)
{
	(void)name;
	++*(int *)arg;
	return 0;
}

/* Names in a directory of the run. */
static int names_in(const struct world *w, const char *path)
{
	const struct shf_sys *s = w->proc[0];
	int dir = shf_sys_open(s, SHF_CWD, path, SHF_O_DIR, 0), n = 0;

	CHECK(dir >= 0);
	CHECK_INT(shf_sys_list(s, dir, count_names, &n), 0);
	CHECK_INT(shf_sys_close(s, dir), 0);
	return n;
}

/* What may still grow for ever is found only by asking what must be gone: a job that saves and
 * prunes, with readers that come and go and marks that are set and taken away. */
TEST(after_readers_are_gone_two_prunes_leave_what_the_rules_say_and_nothing_else)
{
	const char *text = getenv("SHEAF_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : 0x5eaf, x = seed | 1;
	int kept = 0, read = 0;

	printf("# SHEAF_SEED=%#llx\n", (unsigned long long)seed);
	for (int round = 0; round < 60; round++) {
		const struct shf_sys *readers[16] = { NULL };
		int n = 6 + (int)(rng_next(&x) % 9), value[16];
		struct shf_prune p = best_of((int)(rng_next(&x) % 3), rng_next(&x) % 2, n, false);
		struct said said;
		struct world w;
		char loss[32];
		bool marked[16] = { false };
		int trash, stage;

		p.keep_last = 1 + (int)(rng_next(&x) % 3);
		p.keep_every = rng_next(&x) % 2 ? 4 : 0;
		start(&w, 0);
		trash = names_in(&w, RUN "/.sheaf/trash");      /* somebody's, which stays */
		stage = names_in(&w, RUN "/.sheaf/stage");
		for (int i = 1; i <= n; i++) {
			int of = 1 + (int)(rng_next(&x) % (uint64_t)i);

			value[i] = rng_next(&x) % 4 ? (int)(rng_next(&x) % 6) : -1;
			snprintf(loss, sizeof(loss), "%d", value[i]);
			w.loss = value[i] < 0 ? NULL : loss;
			CHECK_RC(world_save(&w, i, i > 1 ? i - 1 : -1), 0, &w.err);
			if (state_of(&w.store[0], of, NULL) == 'C') {
				if (rng_next(&x) % 3 == 0) {
					marked[of] = !marked[of];
					CHECK_RC(world_mark(&w, of, marked[of] ? 'k' : 0), 0,
					         &w.err);
				}
				if (!readers[of] && rng_next(&x) % 2) {
					readers[of] = reader_of(&w, of);
					read++;
				}
			}
			of = 1 + (int)(rng_next(&x) % (uint64_t)i);
			if (readers[of] && rng_next(&x) % 2) {
				simdisk_kill(w.disk, readers[of]);
				readers[of] = NULL;
			}
			p.verified.step = i;
			if (rng_next(&x) % 3)
				CHECK(shf_store_prune(&w.store[0], &p, listen, &said,
				                      &w.err) >= 0);
		}
		for (int i = 1; i <= n; i++) {
			if (readers[i])
				simdisk_kill(w.disk, readers[i]);
			if (state_of(&w.store[0], i, NULL) != 'C')
				value[i] = -1; /* it went before, and is among the best of nobody */
		}
		for (int twice = 0; twice < 2; twice++)
			CHECK(shf_store_prune(&w.store[0], &p, listen, &said, &w.err) >= 0);
		for (int i = 1; i <= n; i++) {
			bool stays = i > n - p.keep_last || marked[i] ||
			             (p.keep_every && i % p.keep_every == 0) ||
			             (p.keep_best && value[i] >= 0 &&
			              better_n(value, n, i, p.best_largest) < p.keep_best);

			CHECK_INT(state_of(&w.store[0], i, NULL), stays ? 'C' : '-');
			kept += stays;
		}
		CHECK_INT(names_in(&w, RUN "/.sheaf/trash"), trash);
		CHECK_INT(names_in(&w, RUN "/.sheaf/stage"), stage);
		stop(&w);
	}
	CHECK(kept > 60 && read > 60);
}

TEST(the_grace_keeps_pruned_bytes_until_it_is_over)
{
	struct world w;
	char path[200];

	start(&w, 2);
	snprintf(path, sizeof(path), RUN "/.sheaf/trash/1-%s", w.known[0].session);
	CHECK_INT(world_prune(&w, 1, 2, 60), 1);
	CHECK(simdisk_exists(w.disk, path));
	simdisk_advance(w.disk, 30);
	CHECK_INT(world_prune(&w, 1, 2, 60), 0);
	CHECK(simdisk_exists(w.disk, path));
	simdisk_advance(w.disk, 31);
	CHECK_INT(world_prune(&w, 1, 2, 60), 0);
	CHECK(!simdisk_exists(w.disk, path));
	CHECK(simdisk_exists(w.disk, RUN "/.sheaf/trash/treasure/x"));
	stop(&w);
}

TEST(a_step_that_was_taken_back_from_the_trash_has_another_grace)
{
	const struct shf_sys *sys;
	struct world w;
	char path[200];

	start(&w, 2);
	snprintf(path, sizeof(path), RUN "/.sheaf/trash/1-%s", w.known[0].session);
	CHECK_INT(world_prune(&w, 1, 2, 60), 1);
	sys = simdisk_process(w.disk, 778, 1);
	CHECK_INT(shf_sys_rename(sys, SHF_CWD, path, SHF_CWD, RUN "/checkpoint-1", false), 0);
	simdisk_advance(w.disk, 61);
	CHECK_INT(world_prune(&w, 1, 2, 60), 1);
	CHECK(simdisk_exists(w.disk, path));
	simdisk_advance(w.disk, 61);
	CHECK_INT(world_prune(&w, 1, 2, 60), 0);
	CHECK(!simdisk_exists(w.disk, path));
	stop(&w);
}

/* Readers had their time before it began. */
TEST(a_deletion_that_was_cut_goes_on_without_another_grace)
{
	int cut = 0;

	for (int nth = 1, fired = 1; fired; nth++) {
		struct world w;
		char path[200];

		start(&w, 2);
		snprintf(path, sizeof(path), RUN "/.sheaf/trash/1-%s", w.known[0].session);
		CHECK_INT(world_prune(&w, 1, 2, 60), 1);
		simdisk_advance(w.disk, 61);
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
		              .kind = SIMDISK_UNLINK, .always = true });
		CHECK_INT(world_prune(&w, 1, 2, 60), 0);
		fired = simdisk_fired(w.disk);
		simdisk_faults_clear(w.disk);
		if (nth > 1 && fired)
			cut++;
		CHECK_INT(world_prune(&w, 1, 2, 60), 0);
		CHECK(!simdisk_exists(w.disk, path));
		stop(&w);
	}
	CHECK(cut > 2);
}
