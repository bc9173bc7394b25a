/* SPDX-License-Identifier: Apache-2.0 */
/* How listing, choosing the latest step and publishing treat whatever stands in the place of a
 * step: something else, something that disappears meanwhile, something unreadable. */
#include <errno.h>
#include <stdlib.h>
#include "fresh_list.h"
#include "lived.h"
#include "manifest.h"
#include "manifest_read.h"
#include "publish.h"

static void fault(struct world *w, enum simdisk_kind kind, int nth, int error, const char *name)
{
	simdisk_fault(w->disk, &(struct simdisk_fault){ .nth = nth, .error = error, .kind = kind,
	                                                .name = name });
}

static void fired(struct world *w)
{
	CHECK(simdisk_fired(w->disk) > 0);
	simdisk_faults_clear(w->disk);
}

static size_t listed(struct world *w, int64_t step, struct shf_entry out[8])
{
	struct shf_list list;
	size_t n = 0;

	CHECK_RC(shf_store_list(&w->store[0], &list, &w->err), 0, &w->err);
	for (size_t i = 0; i < list.n; i++)
		if (list.entries[i].step == step && n < 8)
			out[n++] = list.entries[i];
	shf_list_release(&list);
	return n;
}

/* Another manifest of the step, with its own sum right. */
static void rewrite(struct world *w, int64_t step, void (*edit)(struct shf_manifest *m))
{
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	char path[80];

	CHECK_RC(shf_store_manifest(&w->store[0], step, &m, &arena, &w->err), 0, &w->err);
	edit(&m);
	CHECK_RC(shf_manifest_encode(&text, &m, &w->err), 0, &w->err);
	snprintf(path, sizeof(path), RUN "/checkpoint-%lld/sheaf.json", (long long)step);
	CHECK_INT(simdisk_put(w->disk, path, text.data, text.len), 0);
	shf_buf_release(&text);
	shf_arena_release(&arena);
}

/* ---- lists ---- */

static void of_another_run(struct shf_manifest *m)
{
	m->has_parent = true;
	m->parent_step = 1;
	snprintf(m->parent_session, 33, "0123456789abcdef0123456789abcdef");
	snprintf(m->parent_run, 33, "fedcba9876543210fedcba9876543210");
}

TEST(a_parent_in_another_run_is_no_step_of_this_one)
{
	struct shf_entry e[8];
	struct world w;

	start(&w, 2);
	CHECK_INT(listed(&w, 2, e), 1);
	CHECK_INT(e[0].parent, 1);
	rewrite(&w, 2, of_another_run);
	CHECK_INT(listed(&w, 2, e), 1);
	CHECK_INT(e[0].state, SHF_COMMITTED);
	CHECK_INT(e[0].parent, -1);
	CHECK_STR(e[0].parent_session, "");
	stop(&w);
}

static void two_folders(struct shf_manifest *m)
{
	static struct shf_mf_family families[3];
	static struct shf_mf_file files[3];

	memcpy(families, m->families, 2 * sizeof(*families));
	memcpy(files, m->files, 2 * sizeof(*files));
	families[2] = (struct shf_mf_family){ "modifiers", "modifiers", 1, 1, 3 };
	files[2] = (struct shf_mf_file){ "modifiers/a.safetensors", 3, 0 };
	m->families = families;
	m->files = files;
	m->families_n = m->files_n = 3;
}

/* Folders whose names are as long as each other. */
TEST(each_file_is_looked_for_in_its_own_folder)
{
	struct shf_entry e[8];
	struct world w;

	start(&w, 1);
	rewrite(&w, 1, two_folders);
	CHECK_INT(listed(&w, 1, e), 1);
	CHECK_INT(e[0].state, SHF_DAMAGED);
	CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-1/optimizer/a.safetensors", "abc", 3), 0);
	CHECK_INT(listed(&w, 1, e), 1);
	CHECK_INT(e[0].state, SHF_DAMAGED);
	CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-1/modifiers/a.safetensors", "abc", 3), 0);
	CHECK_INT(listed(&w, 1, e), 1);
	CHECK_INT(e[0].state, SHF_COMMITTED);
	CHECK(!e[0].unread);
	stop(&w);
}

/* A name that can be none has said so; what the disk does not answer says nothing. */
TEST(a_step_is_damaged_where_a_name_cannot_be_a_file)
{
	static const struct { int error; bool unread; } all[] = {
		{ ENAMETOOLONG, false }, { EINVAL, false }, { EISDIR, false }, { ELOOP, false },
		{ EIO, true }, { EACCES, true } };

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		struct shf_entry e[8];
		struct world w;
		int64_t step = -1;
		int rc;

		start(&w, 2);
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = all[i].error,
			.kind = SIMDISK_STAT, .name = "sheaf.sums", .always = true });
		CHECK_INT(listed(&w, 2, e), 1);
		CHECK_INT(e[0].state, SHF_DAMAGED);
		CHECK_INT(e[0].unread, all[i].unread);
		rc = shf_store_latest(&w.store[0], &step, NULL, NULL, NULL);
		CHECK_INT(rc, all[i].unread ? SHEAF_EIO : SHEAF_ECORRUPT);
		CHECK_INT(step, -1);
		fired(&w);
		stop(&w);
	}
}

/* Nothing restarts from step 0 while something is left of a checkpoint that was published. */
TEST(steps_that_all_lost_their_manifests_are_damage_and_not_an_empty_run)
{
	int64_t step = -1;
	struct world w;

	start(&w, 3);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-1/sheaf.json"), 0);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-3/sheaf.json"), 0);
	CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), 0, &w.err);
	CHECK_INT(step, 2);             /* R2: another one is left */
	step = -1;
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-2/sheaf.json"), 0);
	for (int i = 0; i < 3; i++) {   /* 3, 2 and 1 are the newest that was one */
		CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), SHEAF_ECORRUPT,
			 &w.err);
		CHECK(strstr(w.err.msg, i == 0 ? "3 had one, the newest is checkpoint-3"
		                      : i == 1 ? "2 had one, the newest is checkpoint-2"
		                               : "1 had one, the newest is checkpoint-1"));
		CHECK(strstr(w.err.msg, "sheaf recover " RUN " lists them"));
		CHECK(strstr(w.err.msg, "open a new run directory"));
		CHECK_INT(simdisk_remove(w.disk, i == 0 ? RUN "/checkpoint-3/sheaf.sums"
		                               : i == 1 ? RUN "/checkpoint-2"
		                                        : RUN "/checkpoint-1"), 0);
	}
	/* What has neither manifest nor sums may be anybody's: 3, 90 and 91 are foreign. */
	CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), SHEAF_ENOENT, &w.err);
	CHECK_INT(step, -1);
	stop(&w);
}

TEST(a_disk_that_does_not_answer_is_not_a_run_without_checkpoints)
{
	static const int errors[] = { EIO, EACCES, ESTALE };

	for (size_t k = 0; k < sizeof(errors) / sizeof(errors[0]); k++)
		for (int nth = 1, fired = 1; fired; nth++) {
			struct world w;
			int64_t step;
			int rc;

			start(&w, 1);
			CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-1/sheaf.json"), 0);
			simdisk_faults_clear(w.disk);
			simdisk_fail_at(w.disk, nth, errors[k]);
			rc = shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err);
			fired = simdisk_fired(w.disk);
			CHECK(rc == SHEAF_ECORRUPT || (fired && rc == SHEAF_EIO));
			simdisk_faults_clear(w.disk);
			stop(&w);
		}
}

/* The manifest is written before the step has its name: a first save that died has none. */
TEST(a_first_save_that_died_leaves_a_run_without_checkpoints)
{
	int64_t step;
	struct world w;

	start(&w, 0);
	CHECK_RC(world_write(&w, 1), 0, &w.err);
	CHECK_INT(state_of(&w.store[0], 1, NULL), 'S');
	CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), SHEAF_ENOENT, &w.err);
	stop(&w);
}

TEST(a_directory_that_cannot_be_listed_is_nobodys_remains)
{
	struct shf_entry e[8];
	struct world w;

	start(&w, 1);
	CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-7/x", "", 0), 0);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-7/x"), 0);
	CHECK_INT(listed(&w, 7, e), 1);
	CHECK(e[0].remains && e[0].state == SHF_DAMAGED);
	fault(&w, SIMDISK_LIST, 1, EIO, "checkpoint-7");
	CHECK_INT(listed(&w, 7, e), 1);
	CHECK(!e[0].remains && e[0].state == SHF_FOREIGN);
	fired(&w);
	stop(&w);
}

/* A rewind sets it aside, it is saved again, and once more: in order of their states. */
TEST(what_has_one_number_is_listed_by_what_it_is)
{
	struct shf_entry e[8];
	struct world w;

	start(&w, 3);
	for (int i = 0; i < 2; i++) {
		CHECK_RC(world_rewind(&w, 1), 0, &w.err);
		CHECK_RC(world_save(&w, 2, 1), 0, &w.err);
		CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	}
	CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/stage/3-0123456789abcdef0123456789abcdef/x",
	                      "", 0), 0);
	CHECK_INT(listed(&w, 3, e), 4);
	CHECK_INT(e[0].state, SHF_COMMITTED);
	CHECK_INT(e[1].state, SHF_ASIDE);
	CHECK_INT(e[2].state, SHF_ASIDE);
	CHECK(strcmp(e[1].path, e[2].path) < 0);
	CHECK_INT(e[3].state, SHF_STAGED);
	/* One of those aside goes while it is looked at. */
	fault(&w, SIMDISK_OPEN, 1, ENOENT, strrchr(e[1].path, '/') + 1);
	CHECK_INT(listed(&w, 3, e), 3);
	fired(&w);
	stop(&w);
}

/* ---- a list that has aged ---- */

/* Before the nth call of a reader the job commits a step and prunes the one before it. */
static struct ages {
	struct world *w;
	const struct shf_sys *other;    /* makes and removes a step, in the test of that */
	long left;
	int64_t from, to;
	int heard;
} ages;

static void job_goes_on(void *arg)
{
	(void)arg;
	if (--ages.left != 0)
		return;
	CHECK_RC(world_save(ages.w, ages.to, ages.from), 0, &ages.w->err);
	CHECK_INT(world_prune(ages.w, 1, ages.to, -1), 1);
}

static void hear(void *arg, int level, const char *line)
{
	(void)arg;
	(void)level;
	(void)line;
	ages.heard++;
}

/* One after another all that is concluded from the list of steps: the newest good step. */
static int64_t conclude(struct shf_store *s, int question, struct sheaf_error *err)
{
	struct shf_newest newest;
	struct shf_list list;
	int64_t step = -1;

	if (question == 0) {
		CHECK_RC(shf_store_latest(s, &step, hear, NULL, err), 0, err);
	} else if (question == 1) {
		CHECK_RC(shf_store_newest(s, 0, &newest, err), 0, err);
		CHECK_INT(newest.known, newest.newest);
		step = newest.newest;
	} else if (question == 2) {
		step = shf_step_older(s, 50);
	} else {
		CHECK_RC(shf_store_list(s, &list, err), 0, err);
		for (size_t i = 0; i < list.n; i++) {
			const struct shf_entry *e = &list.entries[i];

			CHECK(e->state != SHF_DAMAGED);
			step = shf_entry_is_good(e) && e->step > step ? e->step : step;
		}
		shf_list_release(&list);
	}
	return step;
}

/* The run always has a newest step. With `kept` it also has an older one that stays. */
static void concluded_whenever_the_job_goes_on(int question, bool kept)
{
	int seen[2] = { 0 };
	bool came;

	for (long at = 1;; at++) {
		const struct shf_sys *sys;
		struct shf_store s;
		struct world w;
		int64_t step;

		start(&w, kept ? 2 : 1);
		if (kept) {
			CHECK_RC(world_mark(&w, 1, 'k'), 0, &w.err);
			CHECK_RC(world_save(&w, 9, 2), 0, &w.err);
			CHECK_RC(world_mark(&w, 9, 'b'), 0, &w.err);
		}
		sys = simdisk_process(w.disk, 7000, 1);
		CHECK_RC(shf_store_open(&s, sys, RUN, &w.err), 0, &w.err);
		ages = (struct ages){ .w = &w, .left = at, .from = kept ? 2 : 1,
			.to = kept ? 3 : 2 };
		simdisk_set_turn(w.disk, job_goes_on, NULL);
		step = conclude(&s, question, &w.err);
		simdisk_set_turn(w.disk, NULL, NULL);
		came = ages.left <= 0;
		CHECK(step == ages.from || step == ages.to);
		CHECK_INT(ages.heard, question ? 0 : kept ? 3 : 2);     /* each of them once */
		seen[step == ages.to]++;
		shf_store_close(&s);
		stop(&w);
		if (!came)
			break;
	}
	CHECK(seen[0] > 1 && seen[1] > 1);
}

TEST(a_run_that_is_pruned_while_it_is_listed_has_its_newest_step_all_the_same)
{
	for (int question = 0; question < 4; question++)
		concluded_whenever_the_job_goes_on(question, false);
}

TEST(no_older_step_is_the_newest_because_the_newest_was_pruned_behind_a_newer_one)
{
	for (int question = 0; question < 4; question++)
		concluded_whenever_the_job_goes_on(question, true);
}

static void comes_and_goes(void *arg)
{
	const struct shf_sys *o = ages.other;
	size_t n = simdisk_calls(ages.w->disk);
	static bool busy;

	(void)arg;
	if (busy)
		return;
	busy = true;
	if (strstr(simdisk_call_text(ages.w->disk, n - 1), "list("))
		(void)shf_sys_unlink(o, SHF_CWD, RUN "/checkpoint-50", true);
	else
		(void)shf_sys_mkdir(o, SHF_CWD, RUN "/checkpoint-50", 0777);
	busy = false;
}

TEST(a_list_of_which_something_goes_each_time_is_an_error_and_no_answer)
{
	struct shf_newest newest;
	struct shf_list list;
	struct world w;
	int64_t step = -1;

	start(&w, 2);
	ages = (struct ages){ .w = &w, .other = simdisk_process(w.disk, 7000, 1) };
	simdisk_set_turn(w.disk, comes_and_goes, NULL);
	CHECK_RC(shf_store_latest(&w.store[0], &step, hear, NULL, &w.err), SHEAF_EIO, &w.err);
	CHECK_INT(w.err.sys, ENOENT);
	CHECK(strstr(w.err.msg, "a step was deleted each time the steps were listed"));
	CHECK_RC(shf_store_newest(&w.store[0], 0, &newest, &w.err), SHEAF_EIO, &w.err);
	CHECK_RC(shf_store_list(&w.store[0], &list, &w.err), SHEAF_EIO, &w.err);
	CHECK_INT(shf_step_older(&w.store[0], 90), -1);
	simdisk_set_turn(w.disk, NULL, NULL);
	stop(&w);
}

/* ---- a reader that came before the job ---- */

static void job_begins(void *arg)
{
	struct world *w = ages.w;

	(void)arg;
	if (--ages.left != 0)
		return;
	CHECK_RC(world_open(w, true), 0, &w->err);
	CHECK_RC(world_save(w, 1, -1), 0, &w->err);
	CHECK_RC(world_save(w, 2, 1), 0, &w->err);
	CHECK_RC(world_mark(w, 2, 'b'), 0, &w->err);
}

/* It has the directory open, in which there is no .sheaf yet. */
static void before_the_job(struct world *w, struct shf_store *reader)
{
	const struct shf_sys *sys;

	world_init(w, simdisk_new(7, SIMDISK_STRICT));
	sys = simdisk_process(w->disk, 7000, 1);
	CHECK_INT(shf_sys_mkdir(sys, SHF_CWD, RUN, 0777), 0);
	CHECK_RC(shf_store_open(reader, sys, RUN, &w->err), 0, &w->err);
}

TEST(a_reader_that_came_before_the_job_sees_its_marks)
{
	int seen[2] = { 0 };
	bool came;

	for (long at = 1;; at++) {
		struct shf_store s;
		struct world w;
		int64_t step = -1;
		int rc;

		before_the_job(&w, &s);
		ages = (struct ages){ .w = &w, .left = at };
		simdisk_set_turn(w.disk, job_begins, NULL);
		rc = shf_store_latest(&s, &step, NULL, NULL, &w.err);
		simdisk_set_turn(w.disk, NULL, NULL);
		came = ages.left <= 0;
		CHECK_RC(rc, step == 1 ? 0 : SHEAF_ENOENT, &w.err);
		seen[rc == 0]++;
		if (came) {
			CHECK_RC(shf_store_latest(&s, &step, NULL, NULL, &w.err), 0, &w.err);
			CHECK_INT(step, 1);
			CHECK_STR(s.run, w.store[0].run);
		}
		shf_store_close(&s);
		if (came)
			stop(&w);
		else
			simdisk_free(w.disk);
		if (!came)
			break;
	}
	CHECK(seen[0] > 1 && seen[1] > 0);
}

TEST(a_reader_that_came_before_the_job_takes_no_step_of_another_run)
{
	const struct shf_sys *hand;
	struct shf_entry e;
	struct shf_store s;
	struct world w;

	before_the_job(&w, &s);
	ages = (struct ages){ .w = &w, .left = 1 };
	job_begins(NULL);
	CHECK_INT(state_of(&s, 1, &e), 'C');
	shf_store_close(&s);
	/* The identity may come after .sheaf, too. */
	hand = simdisk_process(w.disk, 7001, 1);
	CHECK_INT(shf_sys_rename(hand, SHF_CWD, RUN "/.sheaf/run", SHF_CWD, "id", true), 0);
	CHECK_RC(shf_store_open(&s, hand, RUN, &w.err), 0, &w.err);
	CHECK_INT(state_of(&s, 1, &e), 'C');
	CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/run",
	                      "sheaf-run 1\n0123456789abcdef0123456789abcdef\n", 45), 0);
	CHECK_INT(state_of(&s, 1, &e), 'D');
	CHECK_STR(s.run, "0123456789abcdef0123456789abcdef");
	shf_store_close(&s);
	stop(&w);
}

/* ---- the latest ---- */

static void hand_removes(void *arg)
{
	(void)arg;
	if (--ages.left == 0)
		CHECK_INT(simdisk_remove(ages.w->disk, RUN "/checkpoint-3"), 0);
}

TEST(a_step_that_goes_while_it_is_looked_at_is_not_the_latest)
{
	int seen[4] = { 0 };

	for (long at = 1, came = 1; came; at++)
		for (int bad = 0; bad < 2; bad++) {
			struct world w;
			int64_t step = -1;

			start(&w, 3);
			if (bad)
				CHECK_RC(world_mark(&w, 3, 'b'), 0, &w.err);
			ages = (struct ages){ .w = &w, .left = at };
			simdisk_set_turn(w.disk, hand_removes, NULL);
			CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), 0,
			         &w.err);
			simdisk_set_turn(w.disk, NULL, NULL);
			CHECK(step == 2 || (step == 3 && !bad));
			seen[step]++;
			came = ages.left <= 0;
			stop(&w);
		}
	CHECK(seen[2] > 1 && seen[3] > 1);
}

TEST(a_step_that_is_not_seen_at_one_look_is_looked_for_again)
{
	for (int nth = 1; nth <= 2; nth++) {
		struct world w;
		int64_t step = -1;

		start(&w, 3);
		fault(&w, SIMDISK_OPEN, nth, ENOENT, "checkpoint-3");
		CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), 0, &w.err);
		CHECK_INT(step, 3);
		fired(&w);
		stop(&w);
	}
}

TEST(what_lacks_descriptors_is_told_with_and_without_a_sentence)
{
	for (int nth = 1; nth <= 2; nth++)
		for (int said = 0; said < 2; said++) {
			struct world w;
			int64_t step = -1;
			int rc;

			start(&w, 2);
			fault(&w, SIMDISK_OPEN, nth, EMFILE, "checkpoint-2");
			rc = shf_store_latest(&w.store[0], &step, NULL, NULL,
			                      said ? &w.err : NULL);
			CHECK_INT(rc, SHEAF_EIO);
			CHECK(!said || strstr(w.err.msg, "checkpoint-2"));
			CHECK_INT(step, -1);
			fired(&w);
			stop(&w);
		}
}

/* What a step is condemned for: there must be one to fall back to. */
TEST(what_is_sought_between_two_numbers_is_neither_of_them)
{
	struct world w;
	int64_t step;

	start(&w, 3);
	for (int64_t floor = 0; floor <= 2; floor++) {
		struct shf_seek k = { .below = 3, .floor = floor };

		CHECK_RC(shf_store_seek(&w.store[0], &k, &step, &w.err),
		         floor < 2 ? 0 : SHEAF_ENOENT, &w.err);
		CHECK_INT(step, floor < 2 ? 2 : -1);
	}
	stop(&w);
}

TEST(only_a_good_older_step_is_one_to_fall_back_to)
{
	struct world w;

	start(&w, 2);
	CHECK_INT(shf_step_older(&w.store[0], 2), 1);
	CHECK_INT(shf_step_older(&w.store[0], 1), -1);
	CHECK_RC(world_mark(&w, 1, 'k'), 0, &w.err);
	CHECK_INT(shf_step_older(&w.store[0], 2), 1);
	CHECK_RC(world_mark(&w, 1, 'b'), 0, &w.err);
	CHECK_INT(shf_step_older(&w.store[0], 2), -1);
	CHECK_RC(world_mark(&w, 1, 0), 0, &w.err);
	fault(&w, SIMDISK_OPEN, 1, EACCES, "checkpoint-1");
	CHECK_INT(shf_step_older(&w.store[0], 2), -1);
	fired(&w);
	fault(&w, SIMDISK_LIST, 1, EIO, NULL);
	CHECK_INT(shf_step_older(&w.store[0], 2), -1);
	fired(&w);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-1/config.json"), 0);
	CHECK_INT(shf_step_older(&w.store[0], 2), -1);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-1/sheaf.json"), 0);
	CHECK_INT(shf_step_older(&w.store[0], 2), -1);
	stop(&w);
}

TEST(a_list_says_that_a_folder_of_it_could_not_be_read)
{
	static const char *const folders[] = { "aside", "stage" };
	struct shf_list list;
	struct world w;

	start(&w, 2);
	CHECK_RC(world_rewind(&w, 1), 0, &w.err);
	for (int i = 0; i < 2; i++) {
		char want[80];

		fault(&w, SIMDISK_OPEN, 1, EIO, folders[i]);
		CHECK_RC(shf_store_list(&w.store[0], &list, &w.err), SHEAF_EIO, &w.err);
		snprintf(want, sizeof(want), RUN "/.sheaf/%s: Input/output error", folders[i]);
		CHECK_STR(w.err.msg, want);
		fired(&w);
		/* A reader that may not look into it lists the rest. */
		fault(&w, SIMDISK_OPEN, 1, EACCES, folders[i]);
		CHECK_RC(shf_store_list(&w.store[0], &list, &w.err), 0, &w.err);
		shf_list_release(&list);
		fired(&w);
	}
	stop(&w);
}

/* ---- publishing ---- */

static void leave(struct world *w)
{
	shf_stage_discard(&w->store[0], &w->stage[0]);
	for (int k = 1; k < WRITERS; k++)
		shf_stage_close(&w->store[k], &w->stage[k]);
	stop(w);
}

static void stage_path(const struct world *w, const char *name, char path[200])
{
	snprintf(path, 200, RUN "/.sheaf/stage/%s/%s", w->known[w->known_n - 1].stage, name);
}

TEST(a_link_in_the_place_of_a_file_is_not_published)
{
	struct world w;
	char path[200];

	start(&w, 0);
	CHECK_RC(world_write(&w, 1), 0, &w.err);
	stage_path(&w, "config.json", path);
	CHECK_INT(simdisk_remove(w.disk, path), 0);
	CHECK_INT(simdisk_symlink(w.disk, "sheaf.sums", path), 0);
	CHECK_RC(world_publish(&w, 1, -1), SHEAF_EIO, &w.err);
	CHECK(strstr(w.err.msg, "config.json"));
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-1"));
	leave(&w);
}

/* Whatever has the name already stays as it is. */
TEST(what_stands_where_a_step_would_be_published_stays)
{
	static char much[(1 << 20) + 5];
	enum { STEP, FILE_THERE, LINK, EMPTY, NO_TEXT, OTHER_TEXT, LONG, LINKED, FOLDER, KINDS };

	for (int i = 0; i < KINDS; i++) {
		const char *at = RUN "/checkpoint-1", *text = RUN "/checkpoint-1/sheaf.json";
		struct world w;
		uint64_t was;

		start(&w, 0);
		CHECK_RC(world_write(&w, 1), 0, &w.err);
		if (i == FILE_THERE)
			CHECK_INT(simdisk_put(w.disk, at, "x", 1), 0);
		else if (i == LINK)
			CHECK_INT(simdisk_symlink(w.disk, "nowhere", at), 0);
		else if (i == LINKED)
			CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-1/x", "x", 1) |
			          simdisk_symlink(w.disk, "x", text), 0);
		else if (i == FOLDER)
			CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-1/sheaf.json/x", "", 0), 0);
		else if (i == EMPTY)
			CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-1/x", "x", 1), 0);
		else
			CHECK_INT(simdisk_put(w.disk, text, much, i == LONG ? sizeof(much)
			                      : i == NO_TEXT ? 0 : 900), 0);
		was = simdisk_hash(w.disk, at);
		CHECK_RC(world_publish(&w, 1, -1), SHEAF_EEXIST, &w.err);
		CHECK(strstr(w.err.msg, "checkpoint-1: exists; save another step, or rewind the "
		             "run"));
		CHECK(simdisk_hash(w.disk, at) == was);
		leave(&w);
	}
}

/* The text that a publish wrote, and could not make durable. */
static struct shf_buf text_of_stage(struct world *w)
{
	struct shf_buf text = SHF_BUF_INIT;
	char path[200];
	size_t n;
	char *bytes;

	fault(w, SIMDISK_FSYNC, 1, EIO, "sheaf.json.tmp");
	CHECK_RC(world_publish(w, 1, -1), SHEAF_EIO, &w->err);
	fired(w);
	stage_path(w, "sheaf.json.tmp", path);
	bytes = simdisk_get(w->disk, path, &n);
	CHECK(bytes != NULL);
	shf_buf_add(&text, bytes, n);
	free(bytes);
	CHECK_INT(simdisk_remove(w->disk, path), 0);
	return text;
}

/* The name is taken by a step whose manifest is as long as this one: every byte is compared. */
TEST(another_step_of_the_same_length_is_not_taken_for_this_one)
{
	for (int same = 0; same < 2; same++) {
		struct shf_buf text;
		struct world w;

		start(&w, 0);
		CHECK_RC(world_write(&w, 1), 0, &w.err);
		text = text_of_stage(&w);
		text.data[100] ^= !same;
		CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-1/sheaf.json", text.data, text.len),
		          0);
		text.data[100] ^= !same;
		CHECK_RC(shf_stage_publish_as(&w.store[0], &w.stage[0], &text, false, &w.err),
		         same ? 0 : SHEAF_EEXIST, &w.err);
		shf_buf_release(&text);
		leave(&w);
	}
}

/* Where the rename was refused and nothing is where it was, or syncing the names fails. */
TEST(a_publish_in_doubt_is_told_with_and_without_a_sentence)
{
	for (int i = 0; i < 8; i++) {
		struct shf_buf text;
		struct world w;
		int rc;

		start(&w, 0);
		CHECK_RC(world_write(&w, 1), 0, &w.err);
		text = text_of_stage(&w);
		if (i / 2 == 3) {       /* another's, that cannot be read */
			CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-1/sheaf.json", "x", 1), 0);
			fault(&w, SIMDISK_PREAD, 1, EIO, "sheaf.json");
		} else if (i / 2 == 2) {
			fault(&w, SIMDISK_FSYNC, 1, EIO, "stage");
		} else {
			fault(&w, SIMDISK_RENAME, 1, EIO, w.known[0].stage);
			if (i / 2)
				fault(&w, SIMDISK_OPEN, 1, EIO, "checkpoint-1");
			else
				fault(&w, SIMDISK_STAT, 1, EIO, w.known[0].stage);
		}
		rc = shf_stage_publish_as(&w.store[0], &w.stage[0], &text, false,
		                          i % 2 ? &w.err : NULL);
		CHECK_RC(rc, SHEAF_EINDOUBT, &w.err);
		CHECK(i % 2 == 0 || w.err.code == SHEAF_EINDOUBT);
		CHECK(i % 2 == 0 || strstr(w.err.msg, "checkpoint-1: p"));
		fired(&w);
		CHECK_INT(simdisk_exists(w.disk, RUN "/checkpoint-1"), i / 2 >= 2);
		shf_buf_release(&text);
		leave(&w);
	}
}

TEST(only_the_writer_publishes_and_only_the_stage_it_has_open)
{
	struct shf_stage none = { .dir = -1, .alive = -1, .step = 1 };
	struct shf_buf text;
	struct world w;

	start(&w, 0);
	CHECK_RC(world_write(&w, 1), 0, &w.err);
	text = text_of_stage(&w);
	CHECK_RC(shf_stage_publish_as(&w.store[1], &w.stage[1], &text, false, &w.err),
	         SHEAF_EINVAL,
	         &w.err);
	CHECK_RC(shf_stage_publish_as(&w.store[0], &none, &text, false, &w.err), SHEAF_EINVAL,
	         &w.err);
	w.stage[0].step = 2;
	CHECK_RC(shf_stage_publish_as(&w.store[0], &w.stage[0], &text, false, &w.err), SHEAF_EINVAL,
	         &w.err);
	CHECK(strstr(w.err.msg, "step 1 cannot be published from this stage"));
	CHECK_RC(world_publish(&w, 1, -1), SHEAF_EINVAL, &w.err);
	w.stage[0].step = 1;
	CHECK_RC(shf_stage_publish_as(&w.store[0], &w.stage[0], &text, false, &w.err), 0, &w.err);
	/* It is open, and has no name any more. */
	CHECK_RC(shf_stage_publish_as(&w.store[0], &w.stage[0], &text, false, &w.err), SHEAF_EINVAL,
	         &w.err);
	shf_buf_release(&text);
	leave(&w);
}
