/* SPDX-License-Identifier: Apache-2.0 */
/* A save whose writer died before it was published, on the simulated disk: what a list of what is
 * left says of it, and publishing it because a person says so. Killed at every call, each call
 * failing, power cut after every call, without one fsync after another: what was committed stays,
 * the step appears whole or not at all, and the next salvage succeeds.
 *
 *   test_salvage [--long] [--seed N] [part of a test's name ...]
 *
 * With --long every subset of up to 12 unsynced items is tried at each cut, beyond that those of up
 * to 3, their complements and 2,000 drawn ones; otherwise 3 items, 1 and 2. */
#include <errno.h>
#include <stdlib.h>
#include "err.h"
#include "leftovers.h"
#include "list.h"
#include "lock.h"
#include "marks.h"
#include "salvage.h"
#include "step.h"
#include "everycut.h"
#include "jobs.h"
#include "run_open.h"
#include "run_ops.h"

#define main t_main
#include "run_salvage.h"
#include "t.h"
#include "sheaf-admin.h"
#undef main

#define TO "run/checkpoint-2"

static const struct shf_sys *process(struct simdisk *disk)
{
	static uint64_t pid = 80000;

	return simdisk_process(disk, pid++, 0);
}

struct salvaged {
	int rc;
	struct sheaf_error err;
	struct sheaf_report report;
};

static struct salvaged salvage_by(struct simdisk *disk, const struct shf_sys *sys, int64_t step)
{
	struct shf_opts opts = { .io_threads = 1, .timeout_ms = 1000 };
	struct salvaged s = { .report = { .size = sizeof(s.report) } };

	s.rc = shf_run_salvage("run", step, &opts, sys, &s.report, &s.err);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return s;
}

static struct salvaged salvage(struct simdisk *disk)
{
	return salvage_by(disk, process(disk), 2);
}

/* ---- a dead writer ---- */

static struct job saving(struct simdisk *disk, int64_t step)
{
	struct job j = { .disk = disk, .ranks = 1, .deeds_n = 1, .group = { .seed = 7 },
		.deeds = { { .kind = DEED_SAVE, .step = step } } };

	job_prepare(&j);
	return j;
}

enum death { BEFORE_RENAME, BEFORE_LAST_SYNC, BEFORE_MANIFEST };

/* Step 1, and step 2 of somebody who died: before C8, before C6's second sync, before C6. */
static void base_make(struct simdisk *disk, enum death death)
{
	struct simdisk_fault fault = { .how = SIMDISK_KILL,
		.nth = death == BEFORE_LAST_SYNC ? 2 : 1,
		.name = death == BEFORE_MANIFEST ? "sheaf.json" : "2-",
		.kind = death == BEFORE_LAST_SYNC ? SIMDISK_FSYNC : SIMDISK_RENAME };
	struct job j;

	/* The numbers that a process draws depend on its pid and on how many there were before:
	 * the same ones whichever tests are run, and no two processes draw alike. */
	job_pids(20000);
	j = saving(disk, 1);
	CHECK(job_run(&j));
	CHECK_INT(job_rc(&j), 0);
	simdisk_settle(disk);
	j = saving(disk, 2);
	fault.process = j.sys[0];
	simdisk_fault(disk, &fault);
	(void)job_run(&j);
	CHECK(simdisk_fired(disk) > 0);
	simdisk_faults_clear(disk);
	CHECK(!simdisk_exists(disk, TO));
}

static struct simdisk *base_new(enum simdisk_model model, enum death death)
{
	struct simdisk *disk = simdisk_new(everycut.seed, model);

	base_make(disk, death);
	return disk;
}

/* ---- what is left ---- */

struct heard {
	char text[2000];                /* "what step action whole lives;" */
};

static int hear(void *arg, const struct shf_left *l)
{
	struct heard *h = arg;
	size_t n = strlen(h->text);

	CHECK(l->why[0] && l->path[0]);
	snprintf(h->text + n, sizeof(h->text) - n, "%s %lld %s %d %d;",
	         sheaf_leftover_kind_name(l->kind),
	         (long long)l->step, sheaf_leftover_action_name(l->action), l->whole, l->lives);
	return 0;
}

static const char *left_to(struct simdisk *disk, const struct shf_sys *sys)
{
	static struct heard h;
	struct sheaf_error err;
	struct shf_store s;
	uint64_t before = simdisk_hash(disk, "/");

	h.text[0] = '\0';
	CHECK_RC(shf_store_open(&s, sys, "run", &err), 0, &err);
	CHECK_RC(shf_store_left(&s, hear, &h, &err), 0, &err);
	shf_store_close(&s);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	CHECK(simdisk_hash(disk, "/") == before);
	return h.text;
}

static const char *left(struct simdisk *disk)
{
	return left_to(disk, process(disk));
}

static int open_to_write(struct simdisk *disk)
{
	struct seen seen;
	char why[300];

	if (*job_look(disk, true, 0, &seen, why))
		print_error("%s\n", why);
	return why[0] ? -1 : seen.staged;
}

TEST(a_whole_save_of_the_dead_is_listed_and_published)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	struct salvaged s;
	struct seen seen;
	char why[300];

	CHECK_STR(left(disk), "lock -1 none 0 0;staged 2 delete 1 0;");
	s = salvage(disk);
	CHECK_RC(s.rc, 0, &s.err);
	CHECK(s.report.loaded > 0);
	CHECK_STR(left(disk), "lock -1 none 0 0;");
	CHECK_STR(job_look(disk, true, 0, &seen, why), "");
	CHECK_INT(seen.newest, 2);
	CHECK_INT(seen.staged, 0);
	s = salvage(disk);
	CHECK_RC(s.rc, SHEAF_EEXIST, &s.err);
	simdisk_free(disk);
}

TEST(recovery_deletes_what_was_not_salvaged)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	struct salvaged s;

	CHECK_INT(open_to_write(disk), 0);
	CHECK_STR(left(disk), "lock -1 none 0 0;");
	s = salvage(disk);
	CHECK_RC(s.rc, SHEAF_ENOENT, &s.err);
	simdisk_free(disk);
}

TEST(half_a_save_is_refused_and_left)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_MANIFEST);
	struct salvaged s;

	CHECK_STR(left(disk), "lock -1 none 0 0;staged 2 delete 0 0;");
	s = salvage(disk);
	CHECK_RC(s.rc, SHEAF_ECORRUPT, &s.err);
	CHECK_STR(left(disk), "lock -1 none 0 0;staged 2 delete 0 0;");
	simdisk_free(disk);
}

static void name_of_stage(struct simdisk *disk, char name[120])
{
	const struct shf_sys *sys = process(disk);
	struct shf_list list;
	struct shf_store s;

	CHECK_INT(shf_store_open(&s, sys, "run", NULL), 0);
	CHECK_INT(shf_store_list(&s, &list, NULL), 0);
	name[0] = '\0';
	for (size_t i = 0; i < list.n; i++)
		if (list.entries[i].state == SHF_STAGED)
			snprintf(name, 120, "run/%.100s", list.entries[i].path);
	CHECK(name[0]);
	shf_list_release(&list);
	shf_store_close(&s);
	simdisk_kill(disk, sys);
}

/* The stages of others who died at that number give the whole one neither its name nor its
 * session, wherever the directory lists them. */
TEST(half_saves_beside_a_whole_one_lend_it_nothing)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	static const char *const others[] = { "00000000000000000000000000000000",
		"ffffffffffffffffffffffffffffffff" };
	const struct shf_sys *sys = process(disk);
	struct sheaf_error err;
	struct shf_stage g;
	struct shf_store s;
	char stage[120], path[200];

	name_of_stage(disk, stage);
	for (size_t i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "run/.sheaf/stage/2-%s/config.json", others[i]);
		CHECK_INT(simdisk_put(disk, path, "x", 1), 0);
	}
	simdisk_advance(disk, 2 * 86400);
	for (int i = 0; i < 10; i++) {          /* the order is drawn each time */
		CHECK_RC(shf_salvage_begin(&s, &g, sys, "run", 0, 2, &err), 0, &err);
		CHECK_STR(g.name, strstr(stage, "2-"));
		CHECK(strncmp(s.session, g.name + 2, 16) == 0);
		CHECK(strncmp(g.session, g.name + 2, 16) == 0);
		shf_stage_close(&s, &g);
		shf_store_close(&s);
	}
	simdisk_free(disk);
}

/* Only a manifest that is not there makes half a save: a disk that does not answer says nothing. */
TEST(a_manifest_that_cannot_be_asked_after_makes_no_half_save)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	struct salvaged s;

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = EIO, .name = "sheaf.json",
	                                             .kind = SIMDISK_STAT });
	s = salvage(disk);
	CHECK_INT(simdisk_fired(disk), 1);
	CHECK_RC(s.rc, SHEAF_EIO, &s.err);
	simdisk_faults_clear(disk);
	s = salvage(disk);
	CHECK_RC(s.rc, 0, &s.err);
	simdisk_free(disk);
}

TEST(every_byte_is_proved_first_and_a_damaged_save_can_be_mended)
{
	static const char *const files[] = { "model-00001-of-00001.safetensors", "config.json",
		"optimizer/optimizer-00001-of-00001.safetensors", "sheaf.sums", "sheaf.json",
		"model.safetensors.index.json" };
	struct simdisk *base = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	char stage[120], path[200];

	name_of_stage(base, stage);
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		struct simdisk *disk = simdisk_twin(base);
		struct salvaged s;

		simdisk_advance(disk, 2 * 86400);       /* it was rebooted */
		snprintf(path, sizeof(path), "%s/%s", stage, files[i]);
		CHECK_INT(simdisk_flip(disk, path, 60), 0);
		s = salvage(disk);
		CHECK_RC(s.rc, SHEAF_ECORRUPT, &s.err);
		CHECK(strstr(s.err.msg, files[i]) != NULL);
		CHECK(!simdisk_exists(disk, TO));
		CHECK_INT(simdisk_flip(disk, path, 60), 0);
		s = salvage(disk);
		CHECK_RC(s.rc, 0, &s.err);
		simdisk_free(disk);
	}
	simdisk_free(base);
}

/* A stage is named after its step: a manifest of another one is none of this save. */
TEST(a_stage_with_the_manifest_of_another_step_is_refused)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct salvaged s;
	char stage[120], path[200];
	uint8_t *bytes;
	size_t n = 0;

	name_of_stage(disk, stage);
	snprintf(path, sizeof(path), "%s/sheaf.json", stage);
	bytes = simdisk_get(disk, path, &n);
	CHECK_RC(shf_manifest_decode(&m, &arena, bytes, n, "", &s.err), 0, &s.err);
	m.step = 3;
	CHECK_RC(shf_manifest_encode(&text, &m, &s.err), 0, &s.err);
	CHECK_INT(simdisk_put(disk, path, text.data, text.len), 0);
	simdisk_advance(disk, 2 * 86400);
	s = salvage(disk);
	CHECK_RC(s.rc, SHEAF_ECORRUPT, &s.err);
	CHECK(strstr(s.err.msg, "its manifest says step 3") != NULL);
	CHECK(!simdisk_exists(disk, TO));
	CHECK_INT(simdisk_put(disk, path, bytes, n), 0);
	s = salvage(disk);
	CHECK_RC(s.rc, 0, &s.err);
	free(bytes);
	shf_buf_release(&text);
	shf_arena_release(&arena);
	simdisk_free(disk);
}

/* Half a rename leaves the manifest's old name; anything else is nobody's, and told. */
TEST(what_is_left_of_a_rename_is_not_published_and_what_is_nobodys_stops_it)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	struct salvaged s;
	char stage[120], path[200];

	name_of_stage(disk, stage);
	snprintf(path, sizeof(path), "%s/nobodys.bin", stage);
	CHECK_INT(simdisk_put(disk, path, "x", 1), 0);
	simdisk_advance(disk, 2 * 86400);
	s = salvage(disk);
	CHECK_RC(s.rc, SHEAF_ECORRUPT, &s.err);
	CHECK_INT(s.report.findings, 1);
	CHECK(!simdisk_exists(disk, TO));
	CHECK_INT(simdisk_remove(disk, path), 0);
	snprintf(path, sizeof(path), "%s/sheaf.json.tmp", stage);
	CHECK_INT(simdisk_put(disk, path, "{", 1), 0);
	s = salvage(disk);
	CHECK_RC(s.rc, 0, &s.err);
	CHECK(simdisk_exists(disk, TO "/sheaf.json"));
	CHECK(!simdisk_exists(disk, TO "/sheaf.json.tmp"));
	simdisk_free(disk);
}

TEST(a_salvage_without_a_run_or_a_step_is_refused)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	const struct shf_sys *sys = process(disk);
	struct shf_opts wrong = { .io_threads = -1 };
	struct sheaf_error err;

	CHECK_INT(shf_run_salvage("run", 2, &wrong, sys, NULL, &err), SHEAF_EINVAL);
	CHECK(strstr(err.msg, "opts.io_threads is -1") != NULL);
	CHECK_INT(shf_run_salvage(NULL, 2, NULL, sys, NULL, &err), SHEAF_EINVAL);
	CHECK(strstr(err.msg, "argument 'dir' is NULL") != NULL);
	CHECK_INT(shf_run_salvage("", 2, NULL, sys, NULL, &err), SHEAF_EINVAL);
	CHECK(strstr(err.msg, "argument 'dir' is NULL") != NULL);
	CHECK_INT(shf_run_salvage("run", -1, NULL, sys, NULL, &err), SHEAF_EINVAL);
	CHECK(strstr(err.msg, "the step is negative") != NULL);
	CHECK(!simdisk_exists(disk, TO));
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
}

/* A run open for writing, in a process that lives. */
static struct sheaf_run *opened(struct simdisk *disk)
{
	struct shf_opts opts = { .io_threads = 1 };
	struct sheaf_run *run = NULL;
	struct sheaf_error err;

	CHECK_RC(shf_run_open(&run, "run", NULL, &opts, process(disk), &err), 0, &err);
	return run;
}

TEST(the_living_are_not_robbed)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	struct shf_stage g;
	struct sheaf_error err;
	struct sheaf_run *run;
	struct salvaged s;
	char path[200];

	CHECK_INT(open_to_write(disk), 0);
	run = opened(disk);
	CHECK_RC(shf_stage_new(&run->store, &g, 2, NULL, &err), 0, &err);
	CHECK_RC(shf_stage_alive(&run->store, &g, 0, &err), 0, &err);
	snprintf(path, sizeof(path), "run/.sheaf/stage/%.60s/sheaf.json", g.name);
	CHECK_INT(simdisk_put(disk, path, "{}", 2), 0);
	CHECK_STR(left(disk), "lock -1 wait 0 1;staged 2 wait 0 1;");
	s = salvage(disk);
	CHECK_RC(s.rc, SHEAF_EBUSY, &s.err);    /* the lock */
	simdisk_set_locks(disk, false);
	s = salvage(disk);
	CHECK_RC(s.rc, SHEAF_EBUSY, &s.err);    /* what he left */
	CHECK(strstr(s.err.msg, "may be alive") != NULL);
	/* And he does not lose his lock by it. */
	CHECK_RC(shf_store_mark(&run->store, 1, 'k', &err), 0, &err);
	shf_stage_discard(&run->store, &g);
	shf_run_close(run);
	simdisk_free(disk);
}

/* The text in the lock is the dead writer's until all is proved, and the lock is a living one's. */
TEST(nobody_takes_the_lock_of_who_salvages)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	struct shf_store s, more;
	struct shf_stage g;
	struct sheaf_error err;

	CHECK_RC(shf_salvage_begin(&s, &g, simdisk_process(disk, 70, 0), "run", 0, 2, &err), 0,
	         &err);
	CHECK_RC(shf_store_own(&more, process(disk), "run", false, 0, &err), SHEAF_EBUSY, &err);
	CHECK(strstr(err.msg, "pid 70 ") != NULL);
	CHECK(strstr(left(disk), "lock -1 wait 0 1;") != NULL);
	shf_stage_close(&s, &g);
	shf_store_close(&s);
	/* He gave it up: the next one finds the dead writer's text, and his stage. */
	CHECK_STR(left(disk), "lock -1 none 0 0;staged 2 delete 1 0;");
	simdisk_free(disk);
}

/* All its bytes were read meanwhile, which takes hours. */
static void the_lock_says(const char *text, size_t n, const char *want)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	struct shf_buf manifest = { .len = 0 };
	struct sheaf_error err;
	struct shf_stage g;
	struct shf_store s;
	char path[200];

	CHECK_RC(shf_salvage_begin(&s, &g, process(disk), "run", 1000, 2, &err), 0, &err);
	snprintf(path, sizeof(path), "run/.sheaf/stage/%.60s/sheaf.json", g.name);
	manifest.data = simdisk_get(disk, path, &manifest.len);
	CHECK(manifest.data != NULL);
	CHECK_INT(simdisk_put(disk, "run/.sheaf/lock", text, n), 0);
	CHECK_RC(shf_salvage_finish(&s, &g, &manifest, s.run, &err), SHEAF_ELOST, &err);
	CHECK_STR(err.msg, want);
	CHECK(simdisk_exists(disk, path) && !simdisk_exists(disk, TO));
	free(manifest.data);
	shf_stage_close(&s, &g);
	shf_store_close(&s);
	simdisk_free(disk);
}

TEST(a_lock_that_was_taken_meanwhile_ends_a_salvage)
{
	struct shf_owner other = { .host = "away", .boot = "b", .pid = 99 };
	struct shf_buf text = SHF_BUF_INIT;

	shf_owner_put(&text, &other, "0123456789abcdef0123456789abcdef");
	the_lock_says((const char *)text.data, text.len,
	              "run: the lock was taken meanwhile by pid 99 on away, session "
	              "0123456789abcdef0123456789abcdef; wait for that job");
	shf_buf_release(&text);
}

TEST(a_lock_that_names_nobody_any_more_ends_a_salvage)
{
	the_lock_says("another job", 11, "run: the lock file no longer names this job: it was "
	              "overwritten or deleted; try again");
}

TEST(all_kinds_of_leavings_are_listed)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_MANIFEST);
	static const char id[] = "0123456789abcdef0123456789abcdef";
	char path[200];

	snprintf(path, sizeof(path), "run/.sheaf/stage/copy-7-%s/part-1", id);
	CHECK_INT(simdisk_put(disk, path, "x", 1), 0);
	snprintf(path, sizeof(path), "run/.sheaf/trash/3-%s/sheaf.json", id);
	CHECK_INT(simdisk_put(disk, path, "x", 1), 0);
	snprintf(path, sizeof(path), "run/.sheaf/aside/4-%s/sheaf.json", id);
	CHECK_INT(simdisk_put(disk, path, "x", 1), 0);
	CHECK_INT(simdisk_put(disk, "run/checkpoint-5/sheaf.sums", "x", 1), 0);
	CHECK_INT(simdisk_put(disk, "run/checkpoint-6/sheaf.json", "x", 1), 0);
	CHECK_INT(simdisk_put(disk, "run/checkpoint-8/model.safetensors", "x", 1), 0);
	CHECK_INT(simdisk_put(disk, "run/.sheaf/rewind", "x", 1), 0);
	CHECK_INT(simdisk_put(disk, "run/.sheaf/stage/mine/x", "x", 1), 0);
	const char *text = left(disk);
	static const char *const want[] = { "lock -1 none 0 0;remains 5 decide 0 -1;damaged 6 ",
		"damaged 6 decide 0 -1;", "staged 2 delete 0 0;", "copy 7 wait 0 -1;",
		"aside 4 decide 0 -1;", "trash 3 wait 0 -1;", "rewind -1 finish 0 -1;" };

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		if (!strstr(text, want[i]))
			print_error("%s is not in %s\n", want[i], text);
		CHECK(strstr(text, want[i]) != NULL);
	}
	simdisk_advance(disk, 9 * 86400);
	CHECK(strstr(left(disk), "copy 7 delete 0 -1;") != NULL);
	simdisk_free(disk);
}

/* What the list says that opening to write would do is what it does. */
TEST(what_is_pruned_waits_until_its_grace_is_over)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_MANIFEST);
	static const char trash[] = "run/.sheaf/trash/3-0123456789abcdef0123456789abcdef";
	static const struct { int after_s; bool goes; } opens[] = { { 0, false }, { 599, false },
		{ 1, true } };
	char path[200];

	snprintf(path, sizeof(path), "%s/sheaf.json", trash);
	CHECK_INT(simdisk_put(disk, path, "x", 1), 0);
	for (size_t i = 0; i < 3; i++) {
		simdisk_advance(disk, opens[i].after_s);
		CHECK(strstr(left(disk), opens[i].goes ? "trash 3 delete 0 -1;"
		                                       : "trash 3 wait 0 -1;") != NULL);
		CHECK_INT(open_to_write(disk), 0);
		CHECK(simdisk_exists(disk, trash) == !opens[i].goes);
	}
	CHECK(strstr(left(disk), "trash") == NULL);
	simdisk_free(disk);
}

/* Containers: nobody can be asked after, but the kernel that let go of the lock is the looker's. */
TEST(the_dead_of_another_namespace_are_listed_as_recovery_finds_them)
{
	static const struct { bool one_kernel, locks; const char *text; } cases[] = {
		{ true, true, "lock -1 none 0 0;staged 2 delete 1 0;" },
		{ true, false, "lock -1 none 0 1;staged 2 wait 1 1;" },
		{ false, true, "lock -1 none 0 1;staged 2 wait 1 1;" } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct simdisk *disk = simdisk_new(everycut.seed, SIMDISK_EXT4);
		const struct shf_sys *sys;
		struct sheaf_error err;
		struct shf_store s;
		char stage[120];

		simdisk_set_one_kernel(disk, cases[i].one_kernel);
		base_make(disk, BEFORE_RENAME);
		name_of_stage(disk, stage);
		simdisk_set_locks(disk, cases[i].locks);
		CHECK_STR(left_to(disk, simdisk_process(disk, 79000, 1)), cases[i].text);
		sys = simdisk_process(disk, 79001, 1);
		CHECK_RC(shf_store_own(&s, sys, "run", false, 0, &err), 0, &err);
		CHECK(simdisk_exists(disk, stage) == !strstr(cases[i].text, "delete"));
		shf_store_close(&s);
		simdisk_free(disk);
	}
}

static struct sheaf_error left_fails(struct simdisk *disk, enum simdisk_kind kind, int nth,
                                     const char *name, int error)
{
	const struct shf_sys *sys = process(disk);
	struct sheaf_error err;
	struct shf_store s;
	struct heard h = { "" };
	int rc;

	CHECK_RC(shf_store_open(&s, sys, "run", &err), 0, &err);
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = error, .name = name,
	                                             .kind = kind });
	rc = shf_store_left(&s, hear, &h, &err);
	CHECK_INT(simdisk_fired(disk), 1);
	simdisk_faults_clear(disk);
	shf_store_close(&s);
	simdisk_kill(disk, sys);
	if (rc < 0)
		return err;
	shf_error_clear(&err);
	snprintf(err.msg, sizeof(err.msg), "%.400s", h.text);
	return err;
}

TEST(a_list_of_what_is_left_says_why_it_ended_and_passes_over_what_went)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
	struct sheaf_error err;
	char path[100];

	snprintf(path, sizeof(path), "run/.sheaf/aside/4-%032d/sheaf.json", 4);
	CHECK_INT(simdisk_put(disk, path, "x", 1), 0);
	/* Manifests are opened in the order of the list: of step 1, the stage, what is aside. */
	for (int nth = 2; nth <= 3; nth++) {
		err = left_fails(disk, SIMDISK_OPEN, nth, "sheaf.json", EMFILE);
		CHECK_RC(err.code, SHEAF_EIO, &err);
		CHECK_INT(err.sys, EMFILE);
		CHECK(strstr(err.msg, nth == 2 ? ".sheaf/stage/2-" : ".sheaf/aside/4-") != NULL);
	}
	err = left_fails(disk, SIMDISK_LIST, 1, "2-", EMFILE);
	CHECK_RC(err.code, SHEAF_EIO, &err);
	CHECK_INT(err.sys, EMFILE);
	/* Between being listed and being looked at. */
	err = left_fails(disk, SIMDISK_OPEN, 2, "2-", ENOENT);
	CHECK_STR(err.msg, "lock -1 none 0 0;aside 4 decide 0 -1;");
	simdisk_free(disk);
}

/* ---- every call ---- */

static uint64_t hash_without_lock(struct simdisk *disk)
{
	(void)simdisk_remove(disk, "run/.sheaf/lock");
	return simdisk_hash(disk, "run");
}

/* What is seen: step 1, step 2 whole or not there; then a salvage says what fits that, and what is
 * left after it stays. must: step 2 was acknowledged. whole: it can still be had. */
static const char *judge(struct simdisk *disk, bool must, bool whole, char why[300])
{
	struct salvaged s;
	struct seen seen;
	bool there;
	uint64_t h;

	if (*job_look(disk, false, 0, &seen, why))
		return why;
	there = seen_has(&seen, 2);
	if (!seen_has(&seen, 1) || seen.damaged || (must && (!there || seen.staged))) {
		snprintf(why, 300, "step 1 is %s, %d damaged, step 2 is %s, %d staged",
		         seen_has(&seen, 1) ? "there" : "gone", seen.damaged,
		         there ? "there" : "gone", seen.staged);
		return why;
	}
	s = salvage(disk);
	if (there ? s.rc != SHEAF_EEXIST : whole || seen.unpublished ? s.rc != 0
	          : s.rc != SHEAF_ECORRUPT && s.rc != SHEAF_ENOENT) {
		snprintf(why, 300, "step 2 was %s, the next salvage says %d %.200s",
		         there ? "there" : "staged", s.rc, s.rc < 0 ? s.err.msg : "");
		return why;
	}
	if (*job_look(disk, true, 0, &seen, why))
		return why;
	if (seen_has(&seen, 2) != (there || s.rc == 0) || seen.damaged)
		snprintf(why, 300, "after the next salvage step 2 is not as it said");
	h = hash_without_lock(disk);
	if (!why[0] && !*job_look(disk, true, 0, &seen, why) && h != hash_without_lock(disk))
		snprintf(why, 300, "another recovery changes something");
	return why;
}

/* As the disk is for those who did not reboot, and as the worst and the best cut leave it. */
static const char *judge_now(struct simdisk *disk, bool must, char why[300])
{
	struct simdisk *worst = simdisk_crash(disk, simdisk_cut_n(disk) - 1, NULL);
	struct simdisk *best = simdisk_twin(disk);

	simdisk_advance(worst, 2 * 86400);
	simdisk_advance(best, 2 * 86400);
	if (!*judge(worst, must, false, why) && !*judge(best, must, true, why))
		(void)judge(disk, must, true, why);
	simdisk_free(worst);
	simdisk_free(best);
	return why;
}

static void each_call(enum simdisk_how how, const char *what)
{
	bool fired = true;
	char why[300];
	int nth = 1, failed = 0;

	for (; fired; nth++) {
		struct simdisk *disk = base_new(SIMDISK_EXT4, BEFORE_RENAME);
		const struct shf_sys *sys = process(disk);
		struct salvaged s;

		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EIO, .how = how,
		                                             .process = sys });
		s = salvage_by(disk, sys, 2);
		fired = simdisk_fired(disk) > 0;
		simdisk_faults_clear(disk);
		failed += s.rc < 0;
		CHECK(fired || s.rc == 0);
		CHECK(s.rc != SHEAF_EBUG);
		CHECK(s.rc == 0 || s.err.msg[0]);
		/* No other job is there that could have taken the lock. */
		CHECK(s.rc != SHEAF_ELOST);
		CHECK(s.rc == 0 || s.rc == SHEAF_EINDOUBT || how == SIMDISK_KILL ||
		      !simdisk_exists(disk, TO));
		if (*judge_now(disk, s.rc == 0, why))
			print_error("call %d: %d %s: then %s\n", nth, s.rc, s.rc ? s.err.msg : "",
			            why);
		CHECK_STR(why, "");
		simdisk_free(disk);
	}
	printf("# %s: %d calls, %d salvages failed\n", what, nth - 2, failed);
	CHECK(failed > 20);
}

TEST(each_call_of_a_salvage_may_be_the_last) { each_call(SIMDISK_KILL, "killed"); }
TEST(each_call_of_a_salvage_may_fail) { each_call(SIMDISK_INSTEAD, "failing"); }
TEST(each_call_of_a_salvage_may_work_and_say_it_failed) { each_call(SIMDISK_AFTER, "after"); }

/* ---- power cuts ---- */

/* The last cut is now: the salvage was acknowledged. */
static uint64_t promised(const void *disk, int64_t cut)
{
	return cut + 1 == (int64_t)simdisk_cut_n(disk);
}

static const char *judge_cut(const void *disk, struct simdisk *crashed, int64_t cut, char why[300])
{
	simdisk_advance(crashed, 2 * 86400);
	return judge(crashed, promised(disk, cut), false, why);
}

/* Cuts of the salvage: the dead writer's calls are test_cuts' business. */
static bool hunt(struct simdisk *disk, size_t first, char why[400])
{
	return everycut_hunt(&(struct everycut_hunt){
		.disk = disk, .first = first, .all_max = 3, .small_max = 1, .seeded = 2,
		.promised = promised, .judge = judge_cut, .story = disk }, why);
}

static char left_out[80];       /* what the fsync that hunt_salvage skipped was of */

static bool hunt_salvage(enum simdisk_model model, enum death death, long skipped, char why[400])
{
	struct simdisk *disk = base_new(model, death);
	size_t first = simdisk_cut_n(disk) - 1;
	struct salvaged s;
	bool fine;

	simdisk_skip_fsync(disk, skipped);
	s = salvage(disk);
	snprintf(left_out, sizeof(left_out), "%s", simdisk_skipped(disk));
	simdisk_skip_fsync(disk, 0);
	CHECK_RC(s.rc, 0, &s.err);
	fine = hunt(disk, first, why);
	if (fine && !skipped)
		printf("# model %d, death %d: %zu cuts\n", model, death,
		       simdisk_cut_n(disk) - first);
	simdisk_free(disk);
	return fine;
}

static void survives(enum simdisk_model model, enum death death)
{
	char why[400];
	bool fine = hunt_salvage(model, death, 0, why);

	if (!fine)
		print_error("%s (test_salvage --seed %llu)\n", why,
		            (unsigned long long)everycut.seed);
	CHECK(fine);
}

TEST(a_salvage_survives_every_cut_strict) { survives(SIMDISK_STRICT, BEFORE_RENAME); }
TEST(a_salvage_survives_every_cut_ext4) { survives(SIMDISK_EXT4, BEFORE_RENAME); }
TEST(a_salvage_survives_every_cut_nfs) { survives(SIMDISK_NFS, BEFORE_RENAME); }
TEST(a_salvage_of_an_unsynced_manifest_survives_every_cut)
{
	survives(SIMDISK_STRICT, BEFORE_LAST_SYNC);
}

TEST(leaving_out_any_fsync_of_a_salvage_is_found)
{
	static const struct mutant {
		const char *what;
		bool harmless;
	} table[] = {
		/* Opening: the lock's text is for other clients; the names are old. */
		{ "lock", true }, { "stage", true }, { ".sheaf", true }, { "run", true },
		{ "/", true },
		{ "optimizer", true },          /* C5: the dead writer did that (I2) */
		{ "2-", false },                /* and had perhaps not yet done this (I3) */
		{ "run", false }, { "stage", false },   /* C9 */
	};
	long n = (long)(sizeof(table) / sizeof(table[0]));
	int bad = 0;

	for (long i = 0; i < n; i++) {
		const struct mutant *m = &table[i];
		char why[400];
		bool fine = hunt_salvage(SIMDISK_STRICT, BEFORE_LAST_SYNC, i + 1, why), named;

		named = strncmp(left_out, m->what, strlen(m->what)) == 0;
		bad += fine != m->harmless || !named;
		printf("# without fsync %ld of %ld, %-16.16s %s%s\n", i + 1, n, left_out,
		       fine ? m->harmless ? "harmless" : "NOT FOUND"
		            : m->harmless ? "NOT HARMLESS: " : "found: ", fine ? "" : why);
	}
	CHECK_INT(bad, 0);
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
