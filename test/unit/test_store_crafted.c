/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the store with invalid arguments, and texts under .sheaf whose checksum is right but
 * whose lines no version of sheaf writes: the result is an error or nothing, and no step moves. */
#include <errno.h>
#include <stdlib.h>
#include "aside.h"
#include "lived.h"
#include "manifest_read.h"
#include "marks.h"
#include "marks_read.h"
#include "recover.h"
#include "salvage.h"
#include "prune_steps.h"
#include "sheaf-admin.h"

#define ID "00112233445566778899aabbccddeeff"

static void refused(int rc, const char *word, const struct sheaf_error *err)
{
	CHECK_RC(rc, SHEAF_EINVAL, err);
	if (!strstr(err->msg, word))
		print_error("%s\n", err->msg);
	CHECK(strstr(err->msg, word) != NULL);
}

TEST(who_holds_no_lock_changes_nothing)
{
	struct shf_prune rules = { .keep_last = 1, .verified.step = 2, .keep = -1 };
	const struct shf_sys *sys;
	struct shf_stage g = { .dir = -1, .alive = -1 };
	struct shf_store s;
	struct world w;
	uint64_t before;

	start(&w, 2);
	sys = simdisk_process(w.disk, 99, 0);
	CHECK_RC(shf_store_open(&s, sys, RUN, &w.err), 0, &w.err);
	before = simdisk_hash(w.disk, RUN);
	refused(shf_store_rewind(&s, 1, &w.err), "needs a run that is open for writing", &w.err);
	refused(shf_store_recover(&s, &w.err), "recovery needs a run that is open for writing",
	        &w.err);
	refused(shf_store_prune(&s, &rules, NULL, NULL, &w.err), "", &w.err);
	refused(shf_store_mark(&s, 1, 'k', &w.err), "", &w.err);
	refused(shf_stage_new(&s, &g, 3, NULL, &w.err), "open for writing", &w.err);
	refused(shf_stage_copy(&s, &g, 3, ID, NULL, &w.err), "open for writing", &w.err);
	CHECK(simdisk_hash(w.disk, RUN) == before);
	shf_store_close(&s);
	CHECK_INT(simdisk_open_n(sys), 0);
	stop(&w);
}

TEST(numbers_sessions_and_tokens_have_one_spelling)
{
	static const char *const bad[] = { "", "0", "00112233445566778899AABBCCDDEEFF",
		ID "0", "0011223344556677 899aabbccddeeff" };
	static const char *const folders[] = { "a/b", NULL };
	static const char *const nameless[] = { "", NULL };
	static const char *const spelt[][2] = { { "A" }, { "a{" }, { "a:" }, { "a/" },
		{ "a\x01" } };
	struct shf_stage g = { .dir = -1, .alive = -1 };
	struct shf_store *s, other;
	struct world w;

	start(&w, 1);
	s = &w.store[0];
	refused(shf_stage_new(s, &g, -1, NULL, &w.err), "step -1", &w.err);
	refused(shf_stage_copy(s, &g, -1, ID, NULL, &w.err), "step -1", &w.err);
	CHECK_RC(shf_stage_copy(s, &g, 0, ID, NULL, &w.err), 0, &w.err);
	shf_stage_discard(s, &g);
	refused(shf_stage_new(s, &g, 5, folders, &w.err), "a directory 'a/b'", &w.err);
	refused(shf_stage_new(s, &g, 5, nameless, &w.err), "a directory ''", &w.err);
	for (size_t i = 0; i < sizeof(spelt) / sizeof(spelt[0]); i++)
		refused(shf_stage_new(s, &g, 5, spelt[i], &w.err), "a directory '", &w.err);
	refused(shf_stage_join(s, &g, 5, "6-" ID, &w.err), "not a stage of step 5", &w.err);
	refused(shf_stage_join(s, &g, 5, "5-x", &w.err), "not a stage of step 5", &w.err);
	CHECK_RC(shf_stage_join(s, &g, 5, "5-" ID, &w.err), SHEAF_EIO, &w.err);   /* gone */
	refused(shf_store_mark(s, -1, 'k', &w.err), "", &w.err);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		refused(shf_stage_copy(s, &g, 5, bad[i], NULL, &w.err), "session", &w.err);
		refused(shf_store_join(&other, w.proc[1], RUN, bad[i], ID, &w.err), "32 hex",
		        &w.err);
		refused(shf_store_join(&other, w.proc[1], RUN, ID, bad[i], &w.err), "32 hex",
		        &w.err);
		refused(shf_store_proof_write(s, bad[i], &w.err), "32 hex", &w.err);
		refused(shf_store_proof_read(s, bad[i], &w.err), "32 hex", &w.err);
		shf_store_proof_remove(s, bad[i]);
	}
	CHECK_INT(state_of(s, 5, NULL), '-');
	stop(&w);
}

TEST(a_run_without_a_folder_of_its_own_can_be_read_and_no_more)
{
	const struct shf_sys *sys;
	struct shf_manifest m;
	struct shf_arena arena = { NULL, 0 };
	struct shf_stage g;
	struct shf_list list;
	struct shf_store s;
	struct world w;
	int64_t step = -1;

	start(&w, 2);
	world_close(&w);
	CHECK_INT(simdisk_remove(w.disk, RUN "/.sheaf"), 0);
	sys = simdisk_process(w.disk, 99, 0);
	CHECK_RC(shf_store_open(&s, sys, RUN, &w.err), 0, &w.err);
	CHECK_RC(shf_store_latest(&s, &step, NULL, NULL, &w.err), 0, &w.err);
	CHECK_INT(step, 2);
	CHECK_RC(shf_store_list(&s, &list, &w.err), 0, &w.err);
	CHECK_INT(list.n, 4);           /* 1, 2, 90 and 91 */
	shf_list_release(&list);
	refused(shf_store_proof_write(&s, ID, &w.err), "an open run", &w.err);
	refused(shf_store_proof_read(&s, ID, &w.err), "an open run", &w.err);
	shf_store_proof_remove(&s, ID);
	refused(shf_stage_join(&s, &g, 5, "5-" ID, &w.err), "not a stage", &w.err);
	CHECK_RC(shf_store_manifest(&s, -1, &m, &arena, &w.err), SHEAF_EINVAL, &w.err);
	shf_store_close(&s);
	shf_arena_release(&arena);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(w.disk);
}

/* Who wants no sentence gets the same code. */
TEST(a_code_comes_without_a_sentence_too)
{
	struct shf_list list;
	struct world w;
	int64_t step;

	start(&w, 2);
	CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-2/config.json", "x", 1), 0);
	CHECK_INT(shf_store_latest(&w.store[0], &step, NULL, NULL, NULL), SHEAF_ECORRUPT);
	CHECK_INT(shf_store_mark(&w.store[0], 77, 'k', NULL), SHEAF_ENOENT);
	CHECK_INT(shf_store_rewind(&w.store[0], 77, NULL), SHEAF_ENOENT);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
	              .kind = SIMDISK_LIST });
	CHECK_INT(shf_store_list(&w.store[0], &list, NULL), SHEAF_EIO);
	simdisk_faults_clear(w.disk);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-1"), 0);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-2"), 0);
	CHECK_INT(shf_store_latest(&w.store[0], &step, NULL, NULL, NULL), SHEAF_ENOENT);
	stop(&w);
}

/* What a network file system keeps of removed files goes with the directory. */
TEST(a_stage_with_a_network_file_systems_own_names_is_published)
{
	struct world w;
	char path[160];

	start(&w, 1);
	CHECK_RC(world_write(&w, 2), 0, &w.err);
	snprintf(path, sizeof(path), RUN "/.sheaf/stage/%s/.nfs0001", w.stage[0].name);
	CHECK_INT(simdisk_put(w.disk, path, "x", 1), 0);
	CHECK_RC(world_publish(&w, 2, 1), 0, &w.err);
	CHECK_INT(state_of(&w.store[0], 2, NULL), 'C');
	stop(&w);
}

/* ---- salvage ---- */

/* A whole stage of step 2, whose writers were killed. */
static void leave_a_stage(struct world *w)
{
	simdisk_fault(w->disk, &(struct simdisk_fault){ .nth = 1, .how = SIMDISK_KILL,
	              .kind = SIMDISK_RENAME, .name = "2-" });
	(void)world_save(w, 2, 1);
	simdisk_faults_clear(w->disk);
	world_kill(w);
	simdisk_advance(w->disk, 2 * 86400);
}

static int salvage(struct world *w, int64_t step)
{
	const struct shf_sys *sys = simdisk_process(w->disk, 99, 0);
	struct shf_stage g = { .dir = -1, .alive = -1 };
	struct shf_store s;
	int rc = shf_salvage_begin(&s, &g, sys, RUN, 0, step, &w->err);

	if (rc == 0) {
		shf_stage_close(&s, &g);
		shf_store_close(&s);
	}
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(w->disk, sys);
	return rc;
}

TEST(a_salvage_wants_one_whole_stage_and_a_free_number)
{
	struct world w;

	start(&w, 1);
	leave_a_stage(&w);
	CHECK_RC(salvage(&w, 2), 0, &w.err);
	CHECK_RC(salvage(&w, 3), SHEAF_ENOENT, &w.err);
	CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-2/mine", "x", 1), 0);
	CHECK_RC(salvage(&w, 2), SHEAF_EEXIST, &w.err);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-2/mine"), 0);
	CHECK_RC(salvage(&w, 2), 0, &w.err);    /* nothing in it: remains */
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-2"), 0);
	CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-2", "x", 1), 0);
	CHECK_RC(salvage(&w, 2), SHEAF_EEXIST, &w.err);
	simdisk_free(w.disk);
}

TEST(of_two_whole_stages_of_a_step_none_is_chosen)
{
	struct world w;

	start(&w, 1);
	leave_a_stage(&w);
	CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/stage/2-" ID "/sheaf.json", "x", 1), 0);
	simdisk_advance(w.disk, 2 * 86400);
	refused(salvage(&w, 2), "2 complete saves of step 2 are in the stage", &w.err);
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-2"));
	simdisk_free(w.disk);
}

/* ---- texts with a right sum ---- */

static void put_text(struct world *w, const char *name, const char *lines)
{
	struct shf_buf text = SHF_BUF_INIT;
	char path[120];

	shf_buf_adds(&text, lines[0] ? lines : "\n");
	shf_line_sum(&text, 0);
	snprintf(path, sizeof(path), RUN "/.sheaf/%s", name);
	CHECK_INT(simdisk_put(w->disk, path, text.data, text.len), 0);
	shf_buf_release(&text);
}

TEST(lines_of_a_journal_that_name_no_step_move_none)
{
	static const char *const odd[] = { "move 2 short\n", "move 2\n",
		"move x 0123456789abcdef\n", "move 2 0123456789abcdef\n",
		"move 77 0123456789abcdef\n", "move 90 ----------------\n" };
	struct world w;
	char text[100];

	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		start(&w, 2);
		world_close(&w);
		snprintf(text, sizeof(text), "sheaf-rewind 1\nto 1\n%s", odd[i]);
		put_text(&w, "rewind", text);
		CHECK_RC(world_open(&w, false), 0, &w.err);
		CHECK_INT(state_of(&w.store[0], 2, NULL), 'C');
		CHECK_INT(state_of(&w.store[0], 90, NULL), 'F');
		CHECK(!simdisk_exists(w.disk, RUN "/.sheaf/rewind"));
		stop(&w);
	}
}

TEST(a_journal_that_is_none_stops_the_next_job_with_a_sentence)
{
	static const char *const odd[] = { "", "sheaf-rewind 2\nto 1\n", "sheaf-rewind 1\nto x\n",
		"sheaf-rewind 1\nto 99999999999999999999\n", "sheaf-rewind 1\n" };
	struct world w;

	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		start(&w, 2);
		world_close(&w);
		put_text(&w, "rewind", odd[i]);
		CHECK_RC(world_open(&w, false), SHEAF_ECORRUPT, &w.err);
		CHECK(strstr(w.err.msg, "not the journal of a rewind") != NULL);
		CHECK(simdisk_exists(w.disk, RUN "/checkpoint-2"));
		simdisk_free(w.disk);
	}
}

static void no_item(void *arg, int64_t step, int32_t action, const char *why)
{
	char what = sheaf_prune_action_name(action)[0];
	(void)step;
	(void)why;
	*(int *)arg += what == 'r';
}

/* Step 1 is of the branch of 3 by its manifest alone: a descent adds nothing it should not. */
TEST(lines_of_a_descent_that_make_no_sense_prove_nothing)
{
	static const char *const odd[] = { "", "sheaf-descent 2\nkin 3-" ID " 1-" ID "\n",
		"sheaf-descent 1\nkin 3-" ID "\n", "sheaf-descent 1\nkin 3-x 1-" ID "\n",
		"sheaf-descent 1\nkin 3-" ID " 1-x\n", "sheaf-descent 1\nkin 3-" ID " 4-" ID "\n",
		"sheaf-descent 1\nkin 3-" ID " 1-" ID "\n",
		"sheaf-descent 1\nkin 77-" ID " 1-" ID "\n" };
	struct shf_prune rules = { .keep_last = 1, .verified.step = 3, .keep = -1 };
	struct world w;

	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		int gone = 0;

		start(&w, 3);
		CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-2"), 0);
		put_text(&w, "descent", odd[i]);
		CHECK_INT(shf_store_prune(&w.store[0], &rules, no_item, &gone, &w.err), 0);
		CHECK_INT(gone, 0);
		CHECK_INT(state_of(&w.store[0], 1, NULL), 'C');
		stop(&w);
	}
}

/* Step 3 of a session, or its number alone; a sum that is right, or is not. */
TEST(a_descent_proves_what_its_sum_and_its_sessions_vouch_for)
{
	struct shf_prune rules = { .keep_last = 1, .verified.step = 3, .keep = -1 };

	for (int way = 0; way < 4; way++) {
		struct shf_buf text = SHF_BUF_INIT;
		char one[33], three[33];
		struct world w;
		int gone = 0;

		start(&w, 3);
		world_session(&w, 1, one);
		world_session(&w, 3, three);
		CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-2"), 0);
		shf_buf_addf(&text, "sheaf-descent 1\nkin 3-%s 1-%s\n", way == 1 ? ID : three,
		             way == 2 ? ID : one);
		shf_line_sum(&text, 0);
		if (way == 3)
			text.data[text.len - 2] ^= 1;
		CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/descent", text.data, text.len), 0);
		shf_buf_release(&text);
		CHECK_INT(shf_store_prune(&w.store[0], &rules, no_item, &gone, &w.err),
		          way == 0);
		CHECK_INT(state_of(&w.store[0], 1, NULL), way == 0 ? '-' : 'C');
		stop(&w);
	}
}

TEST(a_lock_whose_text_is_odd_names_nobody_and_is_taken)
{
	static const char *const odd[] = { "", "sheaf-owner 2\n", "sheaf-owner 1\n",
		"sheaf-owner 1\nhost h\n", "sheaf-owner 1\nhost h\nboot b\n",
		"sheaf-owner 1\nhost h\nboot b\npid_ns x\n",
		"sheaf-owner 1\nhost h\nboot b\npid_ns 1\npid 99999999999999999999\n",
		"sheaf-owner 1\nhost h\nboot b\npid_ns 1\npid 2\nstart 3\nsession x\n",
		"sheaf-owner 1\nhost h\nboot b\npid_ns 1\npid 2\nstart 3\nsession " ID "\n" };
	struct world w;

	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		start(&w, 1);
		world_close(&w);
		put_text(&w, "lock", odd[i]);
		CHECK_RC(world_open(&w, false), 0, &w.err);
		CHECK_INT(strcmp(w.store[0].prev_session, ID) == 0, i == 8);
		CHECK_RC(world_save(&w, 2, 1), 0, &w.err);
		stop(&w);
	}
}

TEST(a_holder_whose_text_is_odd_is_busy_all_the_same)
{
	const struct shf_sys *sys;
	struct shf_store s;
	struct world w;

	start(&w, 1);
	CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/lock", "", 0), 0);
	sys = simdisk_process(w.disk, 99, 0);
	CHECK_RC(shf_store_own(&s, sys, RUN, false, 10, &w.err), SHEAF_EBUSY, &w.err);
	CHECK(strstr(w.err.msg, "does not say which") != NULL);
	CHECK_RC(shf_store_rewind(&w.store[0], 1, &w.err), SHEAF_ELOST, &w.err);
	CHECK(strstr(w.err.msg, "no longer names this job") != NULL);
	stop(&w);
}

/* ---- where runs are ---- */

TEST(a_run_is_made_wherever_its_path_leads)
{
	static const char *const paths[] = { "a", "a/", "b//c/", "/d", "/", "/e/f", "./g" };
	struct simdisk *disk = simdisk_new(7, SIMDISK_STRICT);
	struct sheaf_error err;
	struct shf_store s;

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		const struct shf_sys *sys = simdisk_process(disk, 10 + i, 0);

		CHECK_RC(shf_store_own(&s, sys, paths[i], true, 0, &err), 0, &err);
		shf_store_close(&s);
		CHECK_RC(shf_store_open(&s, sys, paths[i], &err), 0, &err);
		shf_store_close(&s);
		CHECK_INT(simdisk_open_n(sys), 0);
		simdisk_kill(disk, sys);
	}
	simdisk_free(disk);
}

/* A folder in a folder in a folder, deeper than any step is. */
TEST(what_is_deeper_than_a_step_stops_its_deletion_and_nobody)
{
	struct world w;
	char path[800] = RUN "/.sheaf/trash/1-" ID;

	for (int i = 0; i < 40; i++)
		strcat(path, "/deeper");
	start(&w, 1);
	world_close(&w);
	CHECK_INT(simdisk_put(w.disk, path, "x", 1), 0);
	simdisk_advance(w.disk, 2 * 86400);
	(void)world_open(&w, false);
	CHECK(simdisk_exists(w.disk, path));
	CHECK_INT(state_of(&w.store[0], 1, NULL), 'C');
	CHECK_RC(world_save(&w, 2, 1), 0, &w.err);
	stop(&w);
}

TEST(a_mark_is_one_letter_and_perhaps_the_end_of_its_line)
{
	struct world w;

	start(&w, 1);
	CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/marks/1", "k\n", 2), 0);
	CHECK_INT(shf_mark_read(&w.store[0], 1, NULL), 'k');
	CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/marks/1", "b\n", 2), 0);
	CHECK_INT(shf_mark_read(&w.store[0], 1, NULL), 'b');
	CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/marks/1", "kx", 2), 0);
	CHECK(shf_mark_read(&w.store[0], 1, NULL) != 'k');
	stop(&w);
}

TEST(nothing_is_closed_and_released_without_harm)
{
	shf_store_close(NULL);
	shf_list_release(NULL);
	CHECK_INT(shf_fail_io(NULL, ENOENT, "x"), SHEAF_EIO);
}
