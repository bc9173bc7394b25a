/* SPDX-License-Identifier: Apache-2.0 */
/* The small texts of .sheaf in every state: whole, torn, written by hand, of the greatest length
 * and one byte longer; and when old ones are deleted, at that second and the one after. */
#include <errno.h>
#include <stdlib.h>
#include "aside.h"
#include "lived.h"
#include "lock.h"
#include "marks.h"
#include "marks_read.h"
#include "metrics.h"
#include "recover.h"
#include "stage.h"
#include "tries.h"
#include "tries_settle.h"

#define ID "0123456789abcdef0123456789abcdef"
#define OTHER "fedcba9876543210fedcba9876543210"
#define LENGTH(a) (sizeof(a) / sizeof(*(a)))

static void put(struct world *w, const char *name, const char *text, size_t n)
{
	char path[200];

	snprintf(path, sizeof(path), RUN "/.sheaf/%s", name);
	CHECK_INT(simdisk_put(w->disk, path, text, n), 0);
}

static bool is_there(struct world *w, const char *name)
{
	char path[200];

	snprintf(path, sizeof(path), RUN "/%s", name);
	return simdisk_exists(w->disk, path);
}

static void is_text(struct world *w, const char *name, const char *want)
{
	char path[200];
	size_t n = 0;
	char *text;

	snprintf(path, sizeof(path), RUN "/.sheaf/%s", name);
	text = simdisk_get(w->disk, path, &n);
	CHECK(text != NULL);
	CHECK_INT(n, strlen(want));
	CHECK(memcmp(text, want, n) == 0);
	free(text);
}

/* ---- marks ---- */

TEST(a_mark_is_read_as_it_is_written_or_nobody_knows_it)
{
	static const struct {
		const char *text;
		char mark;
		const char *session;
		size_t n;               /* 0: as long as the text */
	} marks[] = {
		{ "k", 'k', "", 0 }, { "b", 'b', "", 0 }, { "k\n", 'k', "", 0 },
		{ "b " ID, 'b', ID, 0 }, { "k " ID "\n", 'k', ID, 0 }, { "b\nx", 'b', "", 0 },
		{ "", '?', "", 0 }, { "x", '?', "", 0 }, { "kk", '?', "", 0 }, { "k ", '?', "", 0 },
		{ "k " ID "\n\n", '?', "", 0 }, { "k " ID "x", '?', "", 0 },
		{ "k 0123456789abcdef0123456789abcde", '?', "", 0 },
		{ "k 0123456789abcdef0123456789abcdeg", '?', "", 0 },
		{ "k 0123456789abcdef0123456789abcde\n", '?', "", 0 }, { "kx" ID, '?', "", 0 },
		{ "k", '?', "", 64 },
	};
	struct world w;
	struct shf_store *s = &w.store[0];
	char session[33], text[65];
	int why;

	start(&w, 1);
	for (size_t i = 0; i < LENGTH(marks); i++) {
		memset(text, ' ', sizeof(text));
		memcpy(text, marks[i].text, strlen(marks[i].text));
		put(&w, "marks/7", text, marks[i].n ? marks[i].n : strlen(marks[i].text));
		why = 1;
		CHECK_INT(shf_mark_of(s, 7, session, &why), marks[i].mark);
		CHECK_INT(why, 0);
		CHECK_STR(session, marks[i].session);
		CHECK_INT(shf_mark_read(s, 7, NULL), marks[i].mark);
	}
	put(&w, "marks/7", text, 65);
	CHECK_INT(shf_mark_of(s, 7, session, &why), '?');
	CHECK_INT(why, -EFBIG);
	CHECK_INT(shf_mark_clear(s, 7), 0);
	CHECK_INT(shf_mark_clear(s, 7), 0);
	CHECK_INT(shf_mark_read(s, 7, &why), 0);
	CHECK_INT(why, -ENOENT);
	stop(&w);
}

/* A copy may bring back a step that was marked, and then lost. */
TEST(a_mark_stays_for_the_save_that_it_was_made_for)
{
	struct world w;
	struct shf_store *s = &w.store[0];
	char session[33];

	start(&w, 2);
	world_session(&w, 2, session);
	CHECK_RC(shf_store_mark(s, 2, 'k', &w.err), 0, &w.err);
	CHECK_INT(shf_tree_remove(s->sys, s->dir, "checkpoint-2"), 0);
	CHECK_RC(shf_stage_room(s, 2, session, &w.err), 0, &w.err);
	CHECK_INT(shf_mark_read(s, 2, NULL), 'k');
	CHECK_RC(shf_stage_room(s, 2, ID, &w.err), 0, &w.err);
	CHECK_INT(shf_mark_read(s, 2, NULL), 0);
	stop(&w);
}

/* A step that is set aside has its session in its name, or 32 drawn digits. */
static bool is_third(void *arg, int64_t step, const char *session)
{
	return step == 3 && strcmp(session, arg) == 0;
}

TEST(what_was_set_aside_is_found_by_its_session)
{
	struct world w;
	struct shf_store *s = &w.store[0], plain;
	char session[33];

	start(&w, 3);
	world_session(&w, 3, session);
	CHECK_INT(shf_asides_some(s, is_third, session), 0);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	put(&w, "aside/3-notes", "", 0);
	CHECK_INT(shf_asides_some(s, is_third, session), 1);
	CHECK_INT(shf_asides_some(s, is_third, ID), 0);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_LIST,
	                                               .error = EIO });
	CHECK_INT(shf_asides_some(s, is_third, session), -EIO);
	simdisk_faults_clear(w.disk);
	plain = *s;
	plain.dot = -1;
	CHECK_INT(shf_asides_some(&plain, is_third, session), 0);
	stop(&w);
}

TEST(a_mark_says_of_which_save_it_is_and_only_that_one_is_bad)
{
	struct world w;
	struct shf_store *s = &w.store[0];
	char text[40], session[33];

	start(&w, 2);
	world_session(&w, 2, session);
	CHECK_RC(shf_store_is_bad(s, 2, session, &w.err), 0, &w.err);
	CHECK_RC(shf_store_mark(s, 2, 'k', &w.err), 0, &w.err);
	CHECK_RC(shf_store_is_bad(s, 2, session, &w.err), 0, &w.err);
	CHECK_RC(shf_store_mark(s, 2, 'b', &w.err), 0, &w.err);
	snprintf(text, sizeof(text), "b %s", session);
	is_text(&w, "marks/2", text);
	CHECK_RC(shf_store_is_bad(s, 2, session, &w.err), 1, &w.err);
	CHECK_RC(shf_store_is_bad(s, 2, ID, &w.err), 0, &w.err);
	/* Where the mark does not say it, the step on disk does, if it can be read. */
	put(&w, "marks/2", "b", 1);
	CHECK_RC(shf_store_is_bad(s, 2, session, &w.err), 1, &w.err);
	CHECK_RC(shf_store_is_bad(s, 2, ID, &w.err), 0, &w.err);
	put(&w, "marks/3", "b", 1);
	CHECK_RC(shf_store_is_bad(s, 3, ID, &w.err), 0, &w.err);
	CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-2/sheaf.json", "{", 1), 0);
	CHECK_RC(shf_store_is_bad(s, 2, ID, &w.err), 1, &w.err);
	put(&w, "marks/2", "x", 1);
	CHECK_RC(shf_store_is_bad(s, 2, ID, &w.err), SHEAF_EIO, &w.err);
	CHECK_STR(w.err.msg, RUN "/.sheaf/marks/2: not a valid mark; mark step 2 again");
	CHECK_RC(shf_store_mark(s, 2, 'b', &w.err), 0, &w.err);
	is_text(&w, "marks/2", "b");
	stop(&w);
}

/* ---- tries ---- */

TEST(a_count_is_up_to_four_digits_and_raised_to_the_most_that_they_say)
{
	static const struct {
		const char *text;
		int was, then;
	} counts[] = {
		{ "", 0, 1 }, { "0", 0, 1 }, { "7\n", 7, 8 }, { "x", 0, 1 }, { "12x", 12, 13 },
		{ "/", 0, 1 }, { ":", 0, 1 }, { "9998\n", 9998, 9999 }, { "9999\n", 9999, 9999 },
		{ "99999", 9999, 9999 }, { "12345", 1234, 1235 }, { "0000000000000005", 0, 1 },
		{ "00000000000000005", -1, -1 },
	};

	for (size_t i = 0; i < LENGTH(counts); i++) {
		struct world w;
		struct shf_store *s = &w.store[0];
		char text[16];

		start(&w, 1);
		put(&w, "tries/7-" ID, counts[i].text, strlen(counts[i].text));
		CHECK_INT(shf_tries_read(s, 7, ID), counts[i].was);
		CHECK_INT(shf_tries_read(s, 7, ""), 0);
		CHECK_INT(shf_tries_read(s, 8, ID), 0);
		if (counts[i].then < 0) {
			CHECK_INT(shf_tries_add(s, 7, ID, &w.err), SHEAF_EIO);
			CHECK_STR(w.err.msg, "run/.sheaf/tries/7-" ID ": File too large");
		} else {
			CHECK_INT(shf_tries_add(s, 7, ID, &w.err), counts[i].then);
			snprintf(text, sizeof(text), "%d\n", counts[i].then);
			is_text(&w, "tries/7-" ID, text);
			CHECK_INT(shf_tries_add(s, 7, ID, &w.err), 0);  /* counted already */
		}
		CHECK_RC(shf_tries_forget(s, &w.err), 0, &w.err);
		CHECK(!is_there(&w, ".sheaf/tries/7-" ID));
		CHECK_RC(shf_tries_forget(s, &w.err), 0, &w.err);
		stop(&w);
	}
}

TEST(a_session_counts_eight_steps_and_forgets_them_alone)
{
	struct world w;
	struct shf_store *s = &w.store[0];
	char name[80];

	start(&w, 1);
	put(&w, "tries/3-" OTHER, "5\n", 2);
	for (int i = 0; i < SHF_TRIED_MAX + 2; i++) {
		CHECK_INT(shf_tries_add(s, i, ID, &w.err), i < SHF_TRIED_MAX);
		CHECK_INT(shf_tries_read(s, i, ID), i < SHF_TRIED_MAX);
	}
	CHECK_INT(shf_tries_add(&w.store[1], 50, ID, &w.err), 0);       /* no writer's */
	CHECK_INT(shf_tries_read(s, 50, ID), 0);
	CHECK_RC(shf_tries_forget(s, &w.err), 0, &w.err);
	for (int i = 0; i < SHF_TRIED_MAX + 2; i++) {
		snprintf(name, sizeof(name), ".sheaf/tries/%d-" ID, i);
		CHECK(!is_there(&w, name));
	}
	is_text(&w, "tries/3-" OTHER, "5\n");
	stop(&w);
}

TEST(a_step_is_spent_when_it_was_tried_so_often_by_others)
{
	struct world w;
	struct shf_store *s = &w.store[0];

	start(&w, 3);
	world_session(&w, 3, w.known[9].session);
	put(&w, "tries/7-" ID, "2\n", 2);
	for (int max = 0; max < 5; max++) {
		s->attempts_max = max;
		CHECK(shf_tries_spent(s, 7, ID) == (max == 1 || max == 2));
		CHECK(!shf_tries_spent(s, 7, OTHER));
		CHECK(!shf_tries_spent(s, 8, ID));
		/* A reader sees the newest attempt as the lock holder's. */
		w.store[1].attempts_max = max;
		CHECK(shf_tries_spent(&w.store[1], 7, ID) == (max == 1));
	}
	CHECK_INT(shf_tries_add(s, 7, ID, &w.err), 3);
	for (int max = 1; max < 5; max++) {
		s->attempts_max = max;
		CHECK(shf_tries_spent(s, 7, ID) == (max <= 2));
	}
	stop(&w);
}

/* What condemns a step is its own session's count, and only the first two of these are its. */
TEST(recovery_marks_what_is_condemned_and_removes_counts_of_what_is_gone)
{
	struct world w;
	struct shf_store *s = &w.store[0];
	char name[80], session[33], text[40];

	start(&w, 5);
	for (int64_t i = 1; i <= 4; i++) {
		world_session(&w, i, session);
		snprintf(name, sizeof(name), "tries/%d-%s", (int)i, i == 4 ? ID : session);
		put(&w, name, i == 3 ? "1\n" : "2\n", 2);
	}
	world_session(&w, 5, session);
	snprintf(name, sizeof(name), "tries/5-%s", session);
	put(&w, name, "3\n", 2);
	put(&w, "marks/5", "k", 1);
	CHECK_INT(shf_tries_settle(s), 0);      /* no number condemns */
	CHECK(!is_there(&w, ".sheaf/marks/2"));
	s->attempts_max = 2;
	CHECK_INT(shf_tries_settle(s), 0);
	world_session(&w, 2, session);
	snprintf(text, sizeof(text), "b %s", session);
	is_text(&w, "marks/2", text);
	CHECK(!is_there(&w, ".sheaf/marks/1") && !is_there(&w, ".sheaf/marks/3"));
	CHECK(!is_there(&w, ".sheaf/marks/4"));
	is_text(&w, "marks/5", "k");
	put(&w, "tries/0-" ID, "1\n", 2);
	put(&w, "tries/95-" ID, "1\n", 2);
	put(&w, "tries/notes", "1\n", 2);
	CHECK_INT(shf_tries_clean(s), 0);
	CHECK(!is_there(&w, ".sheaf/tries/0-" ID));
	is_text(&w, "tries/95-" ID, "1\n");      /* it may be in memory */
	is_text(&w, "tries/4-" ID, "2\n");
	is_text(&w, "tries/notes", "1\n");
	CHECK_RC(shf_store_mark(s, 4, 0, &w.err), 0, &w.err);
	CHECK(!is_there(&w, ".sheaf/tries/4-" ID));
	is_text(&w, "tries/95-" ID, "1\n");
	stop(&w);
}

/* ---- how many rewinds ---- */

#define ODD (UINT64_C(1) << 62)

TEST(a_count_of_rewinds_that_nobody_wrote_is_a_number_like_no_other)
{
	static const struct {
		const char *text;
		uint64_t n;
	} counts[] = {
		{ "", 0 }, { "0\n", 0 }, { "41\n", 41 }, { "41", 41 }, { "41\nx", 41 },
		{ "x\n", ODD },
		{ "4 1", ODD }, { "/", ODD }, { ":", ODD }, { "-1", ODD },
		{ "00000000000000000041", 41 }, { "0000000000000000041\n", 41 },
		{ "000000000000000000041", ODD }, { "000000000000000000000041", ODD },
		{ "0000000000000000000000041", ODD },
	};
	struct world w;
	char text[24];

	start(&w, 1);
	CHECK(shf_store_rewinds(&w.store[0]) == 0);
	for (size_t i = 0; i < LENGTH(counts); i++) {
		put(&w, "rewinds", counts[i].text, strlen(counts[i].text));
		CHECK(shf_store_rewinds(&w.store[0]) == counts[i].n);
		CHECK_RC(shf_store_rewind(&w.store[0], 1, &w.err), 0, &w.err);
		CHECK(shf_store_rewinds(&w.store[0]) == counts[i].n + 1);
		snprintf(text, sizeof(text), "%llu\n", (unsigned long long)counts[i].n + 1);
		is_text(&w, "rewinds", text);
		CHECK(!is_there(&w, ".sheaf/rewind"));
	}
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
	                                               .name = "rewinds" });
	CHECK(shf_store_rewinds(&w.store[0]) == UINT64_MAX);
	simdisk_faults_clear(w.disk);
	stop(&w);
}

/* ---- a journal ---- */

/* Puts a journal whose last line is the right sum, unless torn. */
static void put_journal(struct world *w, const char *text, bool torn)
{
	struct shf_buf b = SHF_BUF_INIT;

	shf_buf_adds(&b, text);
	shf_line_sum(&b, 0);
	put(w, "rewind", (const char *)b.data, b.len - torn);
	shf_buf_release(&b);
}

TEST(only_a_whole_journal_moves_steps_and_only_those_it_names)
{
	static const struct {
		const char *text;
		bool torn, is;
	} journals[] = {
		{ "sheaf-rewind 1\nto 1\n", false, true },
		{ "sheaf-rewind 1\nto 1\n", true, false },
		{ "sheaf-rewind 1\nto 1\nmove 2 0123456789abcdef\n", false, true },
		{ "sheaf-rewind 1\nto 1\nmove 2 0123456789abcdef\n", true, false },
		{ "sheaf-rewind 1\nto 1\nmove 9 0123456789abcdef\nmove 2 x\nmove x\n", false,
		  true },
		{ "sheaf-rewind 2\nto 1\n", false, false }, { "sheaf-rewind 1\n", false, false },
		{ "to 1\n", false, false }, { "sheaf-rewind 1\nto x\n", false, false },
		{ "sheaf-rewind 1\nto 1\nmore\n", false, false }, { "", false, false },
	};

	for (size_t i = 0; i < LENGTH(journals); i++) {
		struct world w;
		struct shf_store *s = &w.store[0];
		int rc;

		start(&w, 2);
		put_journal(&w, journals[i].text, journals[i].torn);
		rc = shf_rewind_finish(s, &w.err);
		CHECK_RC(rc, journals[i].is ? 0 : SHEAF_ECORRUPT, &w.err);
		if (rc < 0)
			CHECK_STR(w.err.msg, "run/.sheaf/rewind: not the journal of a rewind; "
			          "remove it and rewind again");
		CHECK(is_there(&w, ".sheaf/rewind") == !journals[i].is);
		CHECK(is_there(&w, "checkpoint-2"));    /* its manifest has another sum */
		CHECK_INT(shf_rewind_is_over(s, &w.err), 0);
		/* Nothing is saved or pruned on steps that a journal takes. */
		CHECK_RC(shf_store_rewind(s, 1, &w.err), rc, &w.err);
		CHECK(is_there(&w, "checkpoint-2") == (rc < 0));
		CHECK_INT(shf_rewind_is_over(s, &w.err), rc < 0 ? SHEAF_EINVAL : 0);
		if (rc < 0)
			CHECK_STR(w.err.msg, "run: a rewind failed half-way; rewind again first");
		stop(&w);
	}
}

/* ---- the run's identity ---- */

TEST(a_runs_identity_is_that_text_or_is_told_not_to_be_one)
{
	static const char not[] = "run/.sheaf/run: not the identity of a run; remove the file, and "
		"the next save makes one";
	static const char newer[] = "run/.sheaf/run: made by a newer version of sheaf; use that "
		"version";
	static const struct {
		const char *text;
		int rc;
		const char *says, *run;
	} runs[] = {
		{ "sheaf-run 1\n" ID "\n", 0, "", ID }, { "", 0, "", "" },
		{ "sheaf-run 1\n" ID "\n\n", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 1\n" ID, SHEAF_ECORRUPT, not, "" }, { "x", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 1\n" ID "x", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 1\n0123456789abcdef0123456789abcdeg\n", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 2", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 2\n" ID "\nfolder step-{n}\n", 0, "", ID },
		{ "sheaf-run 2\n" ID "\nfolder {n}\n", 0, "", ID },
		{ "sheaf-run 2\n", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 2\n" ID "\n", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 2\n" ID "\nfolder \n", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 2\n" ID "\nfolder step-{n}", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 2\n" ID "\nfolder step-{n}\n\n", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 2\n" ID "\nfolder ../{n}\n", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 2\n" ID "\nfolder .sheaf{n}\n", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 1\n" ID "\nfolder step-{n}\n", SHEAF_ECORRUPT, not, "" },
		{ "sheaf-run 3\n", SHEAF_EFORMAT, newer, "" },
		{ "sheaf-run 3\n" ID "\n", SHEAF_EFORMAT, newer, "" },
		{ "sheaf-rux 2\n" ID "\n", SHEAF_ECORRUPT, not, "" },
	};
	struct world w;

	start(&w, 0);
	for (size_t i = 0; i < LENGTH(runs); i++) {
		const char *folder = strstr(runs[i].text, "folder ");
		char pattern[SHF_PATTERN], want[SHF_PATTERN] = "checkpoint-{n}";
		struct shf_store s;

		put(&w, "run", runs[i].text, strlen(runs[i].text));
		w.err.msg[0] = '\0';
		CHECK_RC(shf_store_open(&s, w.proc[1], RUN, &w.err), runs[i].rc, &w.err);
		shf_folder_pattern(&s, pattern);
		if (runs[i].rc == 0 && folder)
			snprintf(want, sizeof(want), "%.*s", (int)strcspn(folder + 7, "\n"),
			         folder + 7);
		CHECK_STR(pattern, want);
		if (runs[i].rc == 0)
			CHECK_STR(s.run, runs[i].run);
		else
			CHECK_STR(w.err.msg, runs[i].says);
		shf_store_close(&s);
	}
	stop(&w);
}

/* ---- metrics ---- */

TEST(a_line_of_metrics_that_does_not_fit_begins_a_new_file)
{
	enum { MAX = (int)SHF_METRICS_MAX };
	static const struct {
		int had;                /* bytes of whole lines */
		bool torn, anew;
	} files[] = {
		{ 0, false, false }, { 10, false, false }, { 10, true, false },
		{ MAX - 6, false, false }, { MAX - 5, false, true }, { MAX, false, true },
		{ MAX - 6, true, false },
	};
	char *had = malloc(MAX + 1);

	CHECK(had != NULL);
	for (size_t i = 0; i < LENGTH(files); i++) {
		size_t at = files[i].anew ? 0 : (size_t)files[i].had, n = 0, old = 0;
		char *now, *was;
		struct world w;

		start(&w, 0);
		memset(had, 'h', (size_t)files[i].had + 1);
		if (files[i].had && !files[i].torn)
			had[files[i].had - 1] = '\n';
		if (files[i].had)
			put(&w, "metrics.jsonl", had, (size_t)files[i].had);
		CHECK_RC(shf_metrics_add(&w.store[0], "line", &w.err), 0, &w.err);
		now = simdisk_get(w.disk, RUN "/.sheaf/metrics.jsonl", &n);
		CHECK_INT(n, at + 5 + files[i].torn);
		CHECK(memcmp(now, had, at) == 0);
		CHECK(memcmp(now + at, files[i].torn ? "\nline\n" : "line\n", n - at) == 0);
		was = simdisk_get(w.disk, RUN "/.sheaf/metrics.1.jsonl", &old);
		CHECK((was != NULL) == files[i].anew);
		CHECK_INT(old, files[i].anew ? files[i].had : 0);
		free(now);
		free(was);
		stop(&w);
	}
	free(had);
}

TEST(metrics_may_be_descriptor_0_and_say_why_they_are_not_written)
{
	struct world w;

	start(&w, 0);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .how = SIMDISK_ZERO,
		.kind = SIMDISK_OPEN, .name = "metrics.jsonl" });
	CHECK_RC(shf_metrics_add(&w.store[0], "one", &w.err), 0, &w.err);
	CHECK_INT(simdisk_fired(w.disk), 1);
	simdisk_faults_clear(w.disk);
	is_text(&w, "metrics.jsonl", "one\n");
	for (int k = 0; k < 3; k++) {
		static const enum simdisk_kind kinds[] = { SIMDISK_OPEN, SIMDISK_FSTAT,
			SIMDISK_PWRITE };

		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = ENOSPC,
			.kind = kinds[k], .name = "metrics.jsonl" });
		CHECK_RC(shf_metrics_add(&w.store[0], "two", &w.err), SHEAF_EIO, &w.err);
		CHECK_STR(w.err.msg, "run/.sheaf/metrics.jsonl: No space left on device");
		simdisk_faults_clear(w.disk);
		is_text(&w, "metrics.jsonl", "one\n");
	}
	stop(&w);
}

/* ---- what is old ---- */

struct leaving {
	const char *name;               /* below .sheaf; the file in it, if it is a folder */
	int age_s;                      /* so old it stays, and a second later it goes; 0: stays */
};
static const struct leaving leavings[] = {
	{ "proof-" ID, SHF_DAY_S }, { "tmp-" ID, SHF_DAY_S }, { "proof-" ID "0", 0 },
	{ "proof-x", 0 }, { "tmp-x", 0 }, { "tmpx" ID, 0 }, { "proofs" ID, 0 }, { "notes", 0 },
	{ "flush-" ID "/x", SHF_COPY_S }, { "due-" ID "/x", SHF_COPY_S }, { "flush-x/x", 0 },
	{ "due-x/x", 0 }, { "flushs" ID "/x", 0 }, { "due-" ID "0/x", 0 }, { "tmp-" OTHER "/x", 0 },
	{ "stage/copy-7-" ID "/x", SHF_COPY_S }, { "stage/copy-7-x/x", 0 }, { "stage/mine/x", 0 },
	{ "stage/7-" ID "/x", SHF_DAY_S }, { "stage/07-" ID "/x", 0 }, { "aside/7-" ID "/x", 0 },
	{ "stage/8-" ID "/alive-0", SHF_DAY_S },
};

TEST(what_the_dead_left_goes_at_its_age_and_what_is_nobodys_stays)
{
	static const int64_t ages[] = { SHF_DAY_S - 1, SHF_DAY_S, SHF_DAY_S + 1, SHF_COPY_S,
		SHF_COPY_S + 1 };
	struct world w;
	int64_t age = 0;

	start(&w, 1);
	for (size_t k = 0; k < LENGTH(leavings); k++)
		put(&w, leavings[k].name, "x", 1);
	for (size_t i = 0; i < LENGTH(ages); i++) {
		simdisk_advance(w.disk, ages[i] - age);
		age = ages[i];
		/* The time is that of the lock's text, which is written again. */
		CHECK_RC(shf_lock_write(&w.store[0], &w.err), 0, &w.err);
		CHECK_RC(shf_store_recover(&w.store[0], &w.err), 0, &w.err);
		for (size_t k = 0; k < LENGTH(leavings); k++) {
			char name[100];
			bool goes = leavings[k].age_s && age > leavings[k].age_s;

			snprintf(name, sizeof(name), ".sheaf/%s", leavings[k].name);
			if (is_there(&w, name) == goes)
				print_error("%s after %d s\n", name, (int)age);
			CHECK(is_there(&w, name) == !goes);
		}
	}
	stop(&w);
}

/* A lock that nobody can ask for proves nothing, and one that the file system does not have proves
 * it after a day; where it is held, the text tells who has it, and he is dead. */
TEST(a_sign_of_life_counts_as_its_lock_and_its_age_tell)
{
	static const struct {
		int error;              /* of asking for its lock; 0: none */
		bool young, old;        /* does the stage go? */
	} asked[] = {
		{ 0, true, true }, { EAGAIN, true, true }, { EIO, false, false },
		{ EACCES, false, false }, { ENOLCK, false, true }, { ENOSYS, false, true },
		{ ENOTSUP, false, true }, { EINVAL, false, true },
	};

	for (size_t i = 0; i < LENGTH(asked); i++)
		for (int old = 0; old < 2; old++) {
			struct shf_store s;
			struct shf_stage g;
			struct world w;
			char stage[120];

			start(&w, 1);
			CHECK_RC(shf_stage_new(&w.store[0], &g, 2, NULL, &w.err), 0, &w.err);
			CHECK_RC(shf_stage_alive(&w.store[0], &g, 0, &w.err), 0, &w.err);
			snprintf(stage, sizeof(stage), ".sheaf/stage/%s", g.name);
			world_kill(&w);
			simdisk_advance(w.disk, old ? SHF_DAY_S + 1 : SHF_DAY_S);
			if (asked[i].error)
				simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1,
					.error = asked[i].error, .kind = SIMDISK_LOCK,
					.name = "alive-0" });
			CHECK_RC(shf_store_own(&s, simdisk_process(w.disk, 300, 0), RUN, false, 0,
			                       &w.err), 0, &w.err);
			CHECK_INT(simdisk_fired(w.disk), asked[i].error != 0);
			CHECK(is_there(&w, stage) != (old ? asked[i].old : asked[i].young));
			shf_store_close(&s);
			simdisk_free(w.disk);
		}
}

/* ---- who lives ---- */

static void is_owner(const struct shf_store *s, int dir, const char *name)
{
	const struct shf_sys *sys = s->sys;
	struct shf_owner got;
	struct shf_buf text = SHF_BUF_INIT, want = SHF_BUF_INIT;
	struct shf_stat st;
	char session[33];

	CHECK_INT(shf_sys_stat(sys, dir, name, false, &st), 0);
	CHECK_INT(shf_text_read(sys, dir, name, &text, 1024), 0);
	CHECK(shf_owner_get(text.data, text.len, &got, session));
	CHECK_STR(session, s->session);
	CHECK(got.dev != 0 && got.dev == st.dev);
	/* It is that and nothing else. */
	got = s->self;
	got.dev = st.dev;
	shf_owner_put(&want, &got, s->session);
	CHECK(want.len == text.len && memcmp(want.data, text.data, want.len) == 0);
	shf_buf_release(&want);
	shf_buf_release(&text);
}

TEST(the_lock_and_the_sign_of_life_name_their_owner_and_nobody_before_him)
{
	char long_text[900];
	struct shf_store s;
	struct shf_stage g;
	struct world w;

	start(&w, 1);
	world_close(&w);
	memset(long_text, 'x', sizeof(long_text));
	put(&w, "lock", long_text, sizeof(long_text));
	CHECK_RC(shf_store_own(&s, simdisk_process(w.disk, 300, 0), RUN, false, 0, &w.err), 0,
	         &w.err);
	CHECK_STR(s.prev_session, "");
	CHECK(!s.prev_gone);
	is_owner(&s, s.dot, "lock");
	CHECK_RC(shf_stage_new(&s, &g, 7, NULL, &w.err), 0, &w.err);
	CHECK_RC(shf_stage_alive(&s, &g, 12, &w.err), 0, &w.err);
	is_owner(&s, g.dir, "alive-12");
	/* A node has one. */
	CHECK_INT(shf_stage_alive(&s, &g, 12, &w.err), SHEAF_EIO);
	shf_stage_discard(&s, &g);
	shf_store_close(&s);
	simdisk_free(w.disk);
}

/* ---- what is put away ---- */

TEST(a_save_is_aside_under_its_number_and_session_only)
{
	struct shf_store plain;
	struct world w;
	char session[33];

	start(&w, 3);
	world_session(&w, 3, session);
	CHECK(!shf_store_is_aside(&w.store[1], 3, session));
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK(shf_store_is_aside(&w.store[1], 3, session));
	CHECK(!shf_store_is_aside(&w.store[1], 2, session));
	CHECK(!shf_store_is_aside(&w.store[1], 3, ID));
	CHECK_INT(simdisk_put(w.disk, "/plain/checkpoint-3/x", "", 0), 0);
	CHECK_RC(shf_store_open(&plain, w.proc[1], "/plain", &w.err), 0, &w.err);
	CHECK(!shf_store_is_aside(&plain, 3, session));
	CHECK_RC(shf_store_is_bad(&plain, 3, session, &w.err), 0, &w.err);
	CHECK_INT(shf_tries_read(&plain, 3, session), 0);
	CHECK(shf_store_rewinds(&plain) == 0);
	CHECK_RC(shf_store_proof_write(&plain, ID, &w.err), SHEAF_EINVAL, &w.err);
	CHECK_RC(shf_store_proof_read(&plain, ID, &w.err), SHEAF_EINVAL, &w.err);
	shf_store_proof_remove(&plain, ID);
	shf_store_close(&plain);
	stop(&w);
}

/* When the time for it is up, the rest of a dead job's stage goes to the trash, without what says
 * that it is whole, and at least one file is deleted each time. */
TEST(what_cannot_be_deleted_in_time_goes_to_the_trash_and_then_bit_by_bit)
{
	static const char *const stages[] = { "stage/7-" ID, "stage/copy-7-" ID };

	for (size_t i = 0; i < LENGTH(stages); i++) {
		struct world w;
		struct shf_store *s = &w.store[0];
		char name[100];
		int times = 0;

		start(&w, 1);
		for (int k = 0; k < 4; k++) {
			snprintf(name, sizeof(name), "%s/%c", stages[i], 'a' + k);
			put(&w, name, "x", 1);
		}
		snprintf(name, sizeof(name), "%s/sheaf.json", stages[i]);
		put(&w, name, "x", 1);
		simdisk_advance(w.disk, SHF_COPY_S + 1);
		CHECK_RC(shf_lock_write(s, &w.err), 0, &w.err);
		simdisk_set_takes(w.disk, SIMDISK_UNLINK, 10);
		s->clear_ms = 10;
		/* It cannot be the one that is deleted first. */
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = EBUSY,
			.kind = SIMDISK_UNLINK });
		CHECK_RC(shf_store_recover(s, &w.err), 0, &w.err);
		simdisk_faults_clear(w.disk);
		CHECK(s->late);
		snprintf(name, sizeof(name), ".sheaf/%s", stages[i]);
		CHECK(!is_there(&w, name));
		CHECK(is_there(&w, ".sheaf/trash/7-" ID));
		CHECK(!is_there(&w, ".sheaf/trash/7-" ID "/sheaf.json"));
		for (; s->late; times++)
			CHECK_RC(shf_store_recover(s, &w.err), 0, &w.err);
		CHECK(times >= 3 && times <= 6);
		CHECK(!is_there(&w, ".sheaf/trash/7-" ID));
		/* With time for it all goes at once. */
		snprintf(name, sizeof(name), "%s/a", stages[i]);
		put(&w, name, "x", 1);
		simdisk_advance(w.disk, SHF_COPY_S + 1);
		CHECK_RC(shf_lock_write(s, &w.err), 0, &w.err);
		s->clear_ms = 0;
		CHECK_RC(shf_store_recover(s, &w.err), 0, &w.err);
		CHECK(!s->late);
		snprintf(name, sizeof(name), ".sheaf/%s", stages[i]);
		CHECK(!is_there(&w, ".sheaf/trash/7-" ID) && !is_there(&w, name));
		stop(&w);
	}
}

/* ---- who descends from whom ---- */

/* The lines and their sum. */
static void put_descent(struct world *w, const char *head, const char *lines, bool torn)
{
	struct shf_buf b = SHF_BUF_INIT;

	shf_buf_adds(&b, head);
	shf_buf_adds(&b, lines);
	shf_line_sum(&b, 0);
	put(w, "descent", (const char *)b.data, b.len - torn);
	shf_buf_release(&b);
}

/* The file is these lines and their sum. */
static void is_summed(struct world *w, const char *name, const char *head, const char *lines)
{
	struct shf_buf b = SHF_BUF_INIT;
	char text[1000];

	shf_buf_adds(&b, head);
	shf_buf_adds(&b, lines);
	shf_line_sum(&b, 0);
	snprintf(text, sizeof(text), "%.*s", (int)b.len, (const char *)b.data);
	shf_buf_release(&b);
	is_text(w, name, text);
}

TEST(a_descent_names_the_next_that_stays_and_proves_it_if_it_is_whole)
{
	static const struct {
		const char *head, *kin;         /* kin: of step 6; %s: sessions of 6 and 3 */
		bool torn;
		int gone;
	} texts[] = {
		{ "sheaf-descent 1\n", "kin 6-%s 3-%s\n", false, 2 },
		{ "sheaf-descent 1\n", "kin 6-%s 3-%s\n", true, 0 },
		{ "sheaf-descent 2\n", "kin 6-%s 3-%s\n", false, 0 },
		{ "", "kin 6-%s 3-%s\n", false, 0 },
		{ "sheaf-descent 1\n", "kin 6-%s3-%s\n", false, 0 },
		{ "sheaf-descent 1\n", "kin 6-%s 06-%s\n", false, 0 },
		{ "sheaf-descent 1\n", "kin 6-%s 6-%s\n", false, 0 },
		{ "sheaf-descent 1\n", "kin 6-%s 7-%s\n", false, 0 },
		{ "sheaf-descent 1\n", "kin 5-%s 3-%s\n", false, 0 },
		{ "sheaf-descent 1\n", "kim 6-%s 3-%s\n", false, 0 },
	};

	for (size_t i = 0; i < LENGTH(texts); i++) {
		char s[7][33], kin[400], lines[800];
		struct world w;

		start(&w, 6);
		for (int k = 1; k <= 6; k++)
			world_session(&w, k, s[k]);
		CHECK_RC(world_mark(&w, 1, 'k'), 0, &w.err);
		CHECK_RC(world_mark(&w, 3, 'k'), 0, &w.err);
		CHECK_INT(world_prune(&w, 1, 6, -1), 3);
		snprintf(kin, sizeof(kin), "kin 3-%s 1-%s\n", s[3], s[1]);
		/* Also of 5, which might have stayed. */
		snprintf(lines, sizeof(lines), "%skin 5-%s 3-%s\nkin 6-%s 3-%s\n", kin, s[5], s[3],
		         s[6], s[3]);
		is_summed(&w, "descent", "sheaf-descent 1\n", lines);
		snprintf(lines, sizeof(lines), texts[i].kin, s[6], s[3]);
		put_descent(&w, texts[i].head, strcat(kin, lines), texts[i].torn);
		CHECK_RC(world_mark(&w, 1, 0), 0, &w.err);
		CHECK_RC(world_mark(&w, 3, 0), 0, &w.err);
		CHECK_INT(world_prune(&w, 1, 6, -1), texts[i].gone);
		stop(&w);
	}
}

TEST(where_nothing_is_to_be_remembered_nothing_is_written)
{
	struct world w;

	start(&w, 3);
	CHECK_INT(world_prune(&w, 3, 3, -1), 0);
	CHECK(!is_there(&w, ".sheaf/descent"));
	CHECK_INT(world_prune(&w, 1, 3, -1), 2);        /* of 3 no ancestor is left */
	CHECK(!is_there(&w, ".sheaf/descent"));
	put_descent(&w, "sheaf-descent 1\n", "kin 9-" ID " 8-" ID "\n", false);
	CHECK_INT(world_prune(&w, 1, 3, -1), 0);        /* and this one is of nobody, but stays */
	CHECK(is_there(&w, ".sheaf/descent"));
	CHECK_RC(world_save(&w, 4, 3), 0, &w.err);
	CHECK_INT(world_prune(&w, 1, 4, -1), 1);        /* until it is written anew */
	is_summed(&w, "descent", "sheaf-descent 1\n", "");
	stop(&w);
}
