/* SPDX-License-Identifier: Apache-2.0 */
/* Done files and the callback of a commit: they announce steps that are there and nothing else,
 * whatever fails and whenever the power is cut, and they never harm a step.
 *
 *   test_done_files [--long] [--seed N] [part of a test's name ...] */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include "done_files.h"
#include "everycut.h"
#include "hands.h"
#include "manifest_read.h"
#include "starve.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"

#define main t_main
#include "t.h"
#undef main

#define OUT "out"
enum { KINDS = 4 };
static const char *const kinds[KINDS] = { "model", "optimizer", "master_weights", "whole-step" };

static void families(struct hand *h)
{
	hand_cut(hand_add(h, "model", "a.b", SHEAF_F32, 2, 64, 32), 0, h->rank, h->ranks);
	hand_add(h, "model", "c", SHEAF_BF16, 1, 40);
	hand_cut(hand_add(h, "optimizer", "a.b", SHEAF_F32, 2, 64, 32), 1, h->rank, h->ranks);
	hand_add(h, "master_weights", "a.b", SHEAF_F32, 1, 5);
}

static void attach(struct hand *h, struct sheaf_save *save)
{
	if (h->rank == 0)
		(void)shf_save_attach(save, "config.json", "{}", 2, NULL);
}

/* ---- what a done file says, against what the disk holds ---- */

static char *text_of(struct simdisk *disk, const char *path)
{
	size_t n = 0;
	char *bytes = simdisk_get(disk, path, &n), *text = bytes ? calloc(1, n + 1) : NULL;

	if (text)
		memcpy(text, bytes, n);
	free(bytes);
	return text;
}

static int64_t size_of(struct simdisk *disk, const char *path)
{
	size_t n = 0;
	void *bytes = simdisk_get(disk, path, &n);

	free(bytes);
	return bytes ? (int64_t)n : -1;
}

static bool word_is(const char *text, const char *head, const char *word)
{
	const char *at = strstr(text, head);

	return at && strncmp(at + strlen(head), word, strlen(word)) == 0 &&
	       at[strlen(head) + strlen(word)] == '"';
}

/* Every file it names is in the step and of that size; their number, or -1 and why. */
static int files_right(struct simdisk *disk, const char *text, int64_t step, char why[300])
{
	const char *at = strstr(text, "\"bytes\": ");
	long long bytes = 0, total = at ? atoll(at + 9) : -1;
	char path[200], name[151];
	int n = 0;

	for (at = text; (at = strstr(at, "{\"name\": \"")) != NULL; at++, n++) {
		long long want;

		if (sscanf(at, "{\"name\": \"%150[^\"]\", \"bytes\": %lld}", name, &want) != 2)
			return snprintf(why, 300, "no name and bytes at %.40s", at), -1;
		snprintf(path, sizeof(path), "run/checkpoint-%" PRId64 "/%s", step, name);
		if (size_of(disk, path) != want)
			return snprintf(why, 300, "%.180s has %" PRId64 " bytes, not %lld", path,
			                size_of(disk, path), want), -1;
		bytes += want;
	}
	if (bytes != total)
		return snprintf(why, 300, "files of %lld bytes make %lld", bytes, total), -1;
	return n;
}

/* 0: there is none. 1: it is right. -1: why. */
static int judge_kind(struct simdisk *disk, const char *kind, int64_t step,
                      const struct shf_manifest *m, char why[300])
{
	char path[200], step_text[60];
	char *text;
	int n, want = 0;

	snprintf(path, sizeof(path), OUT "/%s.%" PRId64 ".done", kind, step);
	text = text_of(disk, path);
	if (!text)
		return 0;
	for (size_t i = 0; m && i < m->families_n; i++)
		if (strcmp(m->families[i].name, kind) == 0)
			want = (int)m->families[i].files + 1;
	if (m && strcmp(kind, "whole-step") == 0)
		want = (int)(m->files_n + m->attached_n + 2);
	snprintf(step_text, sizeof(step_text), "\"step\": %" PRId64 ",", step);
	n = m ? files_right(disk, text, step, why) : -1;
	if (!m)
		snprintf(why, 300, "%s, and no such step", path);
	else if (n >= 0 && n != want)
		snprintf(why, 300, "%s names %d files, not %d", path, n, want);
	else if (n >= 0 && (!word_is(text, "\"kind\": \"", kind) || !strstr(text, step_text) ||
	                    !word_is(text, "\"session\": \"", m->session) ||
	                    !word_is(text, "\"run\": \"", m->run) ||
	                    !strstr(text, "\"path\": \"run/checkpoint-") ||
	                    strcmp(text + strlen(text) - 3, "]}\n") != 0))
		snprintf(why, 300, "%.80s says something else: %.120s", path, text);
	free(text);
	return why[0] ? -1 : 1;
}

/* How many of the kinds have one: right, of a step that is there, the whole one after all others.
 * -1: why. */
static int judge_all(struct simdisk *disk, int64_t step, char why[300])
{
	const struct shf_sys *sys = simdisk_process(disk, 9000, 0);
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct shf_store s;
	struct sheaf_error err;
	int found = 0, got = 0;
	bool there = shf_store_open(&s, sys, "run", &err) == 0;
	bool step_there = there && shf_store_manifest(&s, step, &m, &arena, &err) == 0;

	why[0] = '\0';
	for (int i = 0; i < KINDS && got >= 0; i++) {
		got = judge_kind(disk, kinds[i], step, step_there ? &m : NULL, why);
		if (i == KINDS - 1 && got == 1 && found < i)
			got = (snprintf(why, 300, "the whole with %d families", found), -1);
		found += got;
	}
	shf_arena_release(&arena);
	if (there)
		shf_store_close(&s);
	simdisk_kill(disk, sys);
	return got < 0 ? -1 : found;
}

/* ---- what the commit says ---- */

static struct heard {
	struct simdisk *disk;
	size_t committed_at;            /* calls made when the log told of the commit */
	size_t told_at, cut;            /* when the callback came; 0: never */
	int told, warned;
	int64_t step;
	int rank;
	pthread_t thread;
	char path[100], warning[400], why[300];
	int done;                       /* files there when the callback came */
	long starve;                    /* this allocation after the commit fails */
} heard;

static void log_line(void *arg, int level, const char *line)
{
	(void)arg;
	if (level == 1) {
		heard.warned++;
		snprintf(heard.warning, sizeof(heard.warning), "%.399s", line);
	}
	if (level == 2 && strstr(line, "committed, rank 0")) {
		heard.committed_at = simdisk_calls(heard.disk);
		starve_left = heard.starve;
	}
}

static void committed(void *arg, int64_t step, const char *path)
{
	(void)arg;
	heard.told++;
	heard.told_at = simdisk_calls(heard.disk);
	heard.cut = simdisk_cut_n(heard.disk) - 1;
	heard.step = step;
	heard.thread = pthread_self();
	snprintf(heard.path, sizeof(heard.path), "%s", path);
	starve_left = 0;
	heard.done = judge_all(heard.disk, step, heard.why);
}

static struct play story(struct simdisk *disk, int ranks)
{
	struct play p = hands_play(disk, ranks, families);

	heard = (struct heard){ .disk = disk, .rank = -1 };
	p.during = attach;
	p.opts.signal_dir = OUT;
	p.opts.committed = committed;
	p.opts.log = log_line;
	return p;
}

TEST(a_commit_leaves_a_done_file_for_each_family_and_for_the_whole)
{
	char why[300];

	for (int ranks = 1; ranks <= 4; ranks++) {
		struct simdisk *disk = disk_new();
		struct play p = story(disk, ranks);

		SAVED(p);
		CHECK_INT(judge_all(disk, 7, why), KINDS);
		CHECK_INT(heard.warned, 0);
		LOADED(p);
		simdisk_free(disk);
	}
	printf("# %d kinds of a step of 1 to 4 ranks\n", KINDS);
}

TEST(nothing_is_made_where_no_folder_was_named)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 2);

	p.opts.signal_dir = NULL;
	SAVED(p);
	for (size_t i = 0; i < simdisk_calls(disk); i++)
		CHECK(!strstr(simdisk_call_text(disk, i), ".done"));
	CHECK(!simdisk_exists(disk, OUT));
	CHECK_INT(heard.told, 1);
	CHECK_INT(heard.done, 0);
	simdisk_free(disk);
}

static pthread_t thread0;

static int save_here(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int told, rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);

	if (h->rank == 0)
		thread0 = pthread_self();
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	told = heard.told;
	shf_save_free(save);
	return rc == 0 && h->rank == 0 && told != 1
	       ? shf_fail(&h->err, SHEAF_EBUG, "told %d times before it returned", told) : rc;
}

TEST(rank_0_is_told_once_in_its_own_commit_of_what_is_durable)
{
	struct simdisk *disk = disk_new(), *after;
	struct play p = story(disk, 3);
	char why[300];

	CHECK_RC(hands_run(&p, save_here, true), 0, &p.err);
	CHECK_INT(heard.told, 1);
	CHECK(pthread_equal(heard.thread, thread0));
	CHECK(heard.step == 7);
	CHECK_STR(heard.path, "run/checkpoint-7");
	CHECK_INT(heard.done, KINDS);
	after = simdisk_crash(disk, heard.cut, NULL);   /* the worst that may be left then */
	CHECK_INT(judge_all(after, 7, why), KINDS);
	p = hands_play(after, 2, families);
	LOADED(p);
	simdisk_free(after);
	simdisk_free(disk);
}

/* The sync of the run after the rename fails: nobody may build on that. */
TEST(of_a_step_that_failed_or_is_in_doubt_nothing_is_said)
{
	int codes[2] = { 0 };

	for (int nth = 1; nth < 40; nth++) {
		struct simdisk *disk = disk_new();
		struct play p = story(disk, 1);
		char why[300];
		int rc;

		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
			.kind = SIMDISK_FSYNC, .how = SIMDISK_INSTEAD });
		rc = hands_save(&p);
		if (rc < 0) {
			codes[rc == SHEAF_EINDOUBT]++;
			CHECK_INT(heard.told, 0);
			CHECK(!simdisk_exists(disk, OUT));
		} else {
			CHECK_INT(heard.told, 1);
			CHECK(judge_all(disk, 7, why) >= 0);
		}
		simdisk_free(disk);
	}
	printf("# %d saves failed, %d in doubt\n", codes[0], codes[1]);
	CHECK(codes[0] >= 6 && codes[1] == 2);
}

/* ---- what fails ---- */

/* One call, or one allocation, between the commit and the callback. */
static void one_fails(const struct simdisk_fault *fault, long starve, int *warned)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 1);
	char why[300];
	int found;

	if (fault)
		simdisk_fault(disk, fault);
	heard.starve = starve;
	CHECK_RC(hands_save(&p), 0, &p.err);
	CHECK_INT(heard.told, 1);
	CHECK_STR(heard.why, "");
	found = judge_all(disk, 7, why);
	if (found < 0)
		print_error("%s\n", why);
	CHECK(found >= 0);
	CHECK_INT(heard.done, found);
	CHECK(heard.warned > 0 || found == KINDS);
	*warned += heard.warned > 0;
	simdisk_faults_clear(disk);
	LOADED(p);
	simdisk_free(disk);
}

TEST(whatever_fails_after_the_commit_is_a_warning)
{
	static const struct { int error; enum simdisk_how how; } ways[] = {
		{ EIO, SIMDISK_INSTEAD }, { ENOSPC, SIMDISK_INSTEAD }, { ENOENT, SIMDISK_INSTEAD },
		{ EACCES, SIMDISK_INSTEAD }, { ENOMEM, SIMDISK_INSTEAD }, { EIO, SIMDISK_AFTER },
		{ EEXIST, SIMDISK_AFTER }
	};
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 1);
	int warned = 0, tried = 0, starving = 0;
	size_t from, to;

	SAVED(p);
	from = heard.committed_at;
	to = heard.told_at;
	simdisk_free(disk);
	CHECK(to > from + 20);
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++)
		for (size_t nth = from + 1; nth <= to; nth++, tried++)
			one_fails(&(struct simdisk_fault){ .nth = (int)nth, .error = ways[w].error,
				.how = ways[w].how }, 0, &warned);
	starved = true;
	for (long n = 1; starved; n++, starving++) {
		starved = false;
		one_fails(NULL, n, &warned);
	}
	printf("# %d calls and %d allocations failed, %d times with a warning\n", tried,
	       starving - 1, warned);
	CHECK(warned > tried / 3 && starving > 20);
}

TEST(what_is_no_file_is_left_as_it_is)
{
	char why[300];

	for (int way = 0; way < 3; way++) {
		struct simdisk *disk = disk_new();
		struct play p = story(disk, 1);

		CHECK_INT(simdisk_put(disk, "kept", "mine", 4), 0);
		CHECK_INT(simdisk_put(disk, OUT "/x", "", 0), 0);
		if (way == 0)
			CHECK_INT(simdisk_symlink(disk, "../kept", OUT "/model.7.done"), 0);
		else if (way == 1)
			CHECK_INT(simdisk_symlink(disk, "../kept", OUT "/whole-step.7.done"), 0);
		else
			CHECK_INT(simdisk_put(disk, OUT "/optimizer.7.done/y", "", 0), 0);
		SAVED(p);
		CHECK_INT(heard.warned, 1);
		CHECK(strstr(heard.warning, "is not a regular file"));
		CHECK_INT(size_of(disk, "kept"), 4);
		if (way == 1)
			(void)simdisk_remove(disk, OUT "/whole-step.7.done");
		if (way == 0)
			(void)simdisk_remove(disk, OUT "/model.7.done");
		CHECK(judge_all(disk, 7, why) >= 0);
		CHECK(way != 2 || simdisk_exists(disk, OUT "/optimizer.7.done/y"));
		CHECK(way == 1 || !simdisk_exists(disk, OUT "/whole-step.7.done"));
		simdisk_free(disk);
	}
}

TEST(a_folder_that_cannot_be_is_a_warning)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 1);

	p.opts.signal_dir = "no/such/folder";
	SAVED(p);
	CHECK_INT(heard.warned, 1);
	CHECK(strstr(heard.warning, "no/such/folder"));
	CHECK_INT(heard.told, 1);
	p.opts.signal_dir = "";
	p.step = 8;
	CHECK_RC(hands_save(&p), SHEAF_EINVAL, &p.err);
	simdisk_free(disk);
}

/* ---- who comes after the dead ---- */

static int just_open(struct hand *h)
{
	(void)h;
	return 0;
}

/* The job dies at one call after its commit, or its last syncs fail: the next one tells. */
static bool next_tells(const struct simdisk_fault *fault, bool asked, int *found)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 1);
	char why[300];
	bool there;

	simdisk_fault(disk, fault);
	(void)hands_save(&p);
	simdisk_faults_clear(disk);
	*found = judge_all(disk, 7, why);
	CHECK(*found >= 0);
	p = story(disk, 2);
	p.opts.signal_dir = asked ? OUT : NULL;
	CHECK_RC(hands_run(&p, just_open, false), 0, &p.err);
	CHECK_INT(heard.told, 0);
	there = simdisk_exists(disk, "run/checkpoint-7/sheaf.json");
	CHECK_INT(judge_all(disk, 7, why), !there ? 0 : asked ? KINDS : *found);
	p.opts.signal_dir = OUT;
	p.opts.flags = SHEAF_RUN_READONLY;
	CHECK_RC(hands_run(&p, just_open, false), 0, &p.err);
	CHECK_INT(judge_all(disk, 7, why), !there ? 0 : asked ? KINDS : *found);
	simdisk_free(disk);
	return there;
}

TEST(the_next_job_tells_what_a_dead_one_could_not)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 1);
	int found, left[KINDS + 1] = { 0 }, doubtful = 0;
	size_t from, to;

	SAVED(p);
	from = heard.committed_at;
	to = heard.told_at;
	simdisk_free(disk);
	for (size_t nth = from + 1; nth <= to; nth++) {
		struct simdisk_fault kill = { .nth = (int)nth, .how = SIMDISK_KILL };

		CHECK(next_tells(&kill, true, &found));
		left[found]++;
		CHECK(next_tells(&kill, false, &found));
	}
	for (int nth = 1; nth < 40; nth++)
		doubtful += next_tells(&(struct simdisk_fault){ .nth = nth, .error = EIO,
			.kind = SIMDISK_FSYNC, .how = SIMDISK_INSTEAD }, true, &found) &&
			!found;
	printf("# died with 0, 1, 2, 3 and all files: %d, %d, %d, %d, %d times; none after %d "
	       "syncs\n", left[0], left[1], left[2], left[3], left[4], doubtful);
	CHECK(left[0] > 5 && left[1] > 3 && left[3] > 3 && doubtful >= 2);
}

TEST(of_a_step_without_all_its_files_the_next_job_says_nothing)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 1);

	p.opts.signal_dir = NULL;
	SAVED(p);
	CHECK_INT(simdisk_remove(disk, "run/checkpoint-7/config.json"), 0);
	p = story(disk, 1);
	CHECK_RC(hands_run(&p, just_open, false), 0, &p.err);
	CHECK(!simdisk_exists(disk, OUT));
	simdisk_free(disk);
}

/* ---- again ---- */

static int tell_again(struct hand *h)
{
	char session[33];
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	int rc = shf_store_manifest(&h->run->store, 7, &m, &arena, &h->err);

	memcpy(session, m.session, sizeof(session));
	shf_arena_release(&arena);
	if (rc == 0)
		rc = shf_done_put(&h->run->store, OUT, 7, session, &h->err);
	if (rc == 0 && shf_done_put(&h->run->store, OUT, 7, "00112233445566778899aabbccddeeff",
	                            &h->err) != SHEAF_ECORRUPT)
		rc = SHEAF_EBUG;
	return rc;
}

TEST(told_again_nothing_is_written)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 1);
	uint64_t before;

	SAVED(p);
	before = simdisk_hash(disk, OUT);
	CHECK_RC(hands_run(&p, tell_again, false), 0, &p.err);
	CHECK(simdisk_hash(disk, OUT) == before);
	for (size_t i = heard.told_at; i < simdisk_calls(disk); i++)
		CHECK(!strstr(simdisk_call_text(disk, i), ".done\", w"));
	simdisk_free(disk);
}

static int go_back_and_save(struct hand *h)
{
	int rc = shf_run_rewind(h->run, 7, &h->err);

	h->play->step = 8;
	for (int i = 0; i < 2 && rc == 0; i++) {
		struct sheaf_save *save = NULL;

		rc = shf_save_begin(&save, h->run, 8, h->state, NULL, &h->err);
		if (rc == 0)
			rc = shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
		if (rc == 0 && i == 0)
			rc = shf_run_rewind(h->run, 7, &h->err);
	}
	return rc;
}

TEST(a_step_saved_again_is_told_by_its_new_session)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 1);
	char why[300];

	SAVED(p);
	CHECK_RC(hands_run(&p, go_back_and_save, true), 0, &p.err);
	CHECK_INT(heard.told, 3);
	CHECK_INT(judge_all(disk, 8, why), KINDS);
	CHECK_INT(judge_all(disk, 7, why), KINDS);
	simdisk_free(disk);
}

/* ---- power cuts ---- */

static uint64_t promised(const void *arg, int64_t cut)
{
	(void)arg;
	return heard.told && (size_t)cut >= heard.cut;
}

static const char *judge(const void *arg, struct simdisk *disk, int64_t cut, char why[300])
{
	int found = judge_all(disk, 7, why);

	(void)arg;
	if (found >= 0 && promised(NULL, cut) && found < KINDS)
		snprintf(why, 300, "%d kinds, and rank 0 was told before", found);
	return why;
}

static void hunt(enum simdisk_model model, int ranks, const char *name)
{
	struct simdisk *disk = simdisk_new(everycut.seed, model);
	struct play p = story(disk, ranks);
	uint64_t before = everycut.states;
	char why[400];
	bool fine;

	SAVED(p);
	fine = everycut_hunt(&(struct everycut_hunt){ .disk = disk, .all_max = 5, .small_max = 1,
		.seeded = 3, .promised = promised, .judge = judge }, why);
	if (!fine)
		print_error("%s: %s (seed %llu)\n", name, why, (unsigned long long)everycut.seed);
	printf("# %s, %d ranks: %zu cuts, %llu states\n", name, ranks, simdisk_cut_n(disk),
	       (unsigned long long)(everycut.states - before));
	CHECK(fine);
	simdisk_free(disk);
}

TEST(a_power_cut_leaves_no_done_file_or_a_right_one_strict) { hunt(SIMDISK_STRICT, 1, "strict"); }
TEST(a_power_cut_leaves_no_done_file_or_a_right_one_ext4) { hunt(SIMDISK_EXT4, 2, "ext4"); }
TEST(a_power_cut_leaves_no_done_file_or_a_right_one_nfs) { hunt(SIMDISK_NFS, 1, "nfs"); }

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
