/* SPDX-License-Identifier: Apache-2.0 */
/* What the store reports of a run, complete: what a prune decides and why, what dead jobs left,
 * which steps are damaged and how, and why a stage cannot be published or salvaged. */
#include <errno.h>
#include <stdlib.h>
#include "aside.h"
#include "done_files.h"
#include "err.h"
#include "fresh_list.h"
#include "manifest.h"
#include "leftovers.h"
#include "lived.h"
#include "lock.h"
#include "salvage.h"
#include "prune_steps.h"
#include "tries.h"
#include "valid.h"
#include "sheaf-admin.h"

#define ID "0123456789abcdef0123456789abcdef"
#define OTHER "fedcba9876543210fedcba9876543210"
#define LENGTH(a) (sizeof(a) / sizeof(*(a)))

/* What was heard, a line each; @ stands for any session. */
static char heard[4000];

static void hear(const char *text)
{
	size_t at = strlen(heard);

	while (*text) {
		size_t n = strspn(text, "0123456789abcdef");

		CHECK(at + 2 < sizeof(heard));
		heard[at++] = n == 32 ? '@' : *text;
		text += n == 32 ? n : 1;
	}
	heard[at++] = '\n';
	heard[at] = '\0';
}

/* Exactly that, and in any order: a directory has none. */
static void is_heard(const char *want)
{
	char got[sizeof(heard)];
	size_t n = strlen(want);

	memcpy(got, heard, sizeof(got));
	heard[0] = '\0';
	for (const char *p = want; *p; p += strcspn(p, "\n") + 1) {
		char line[400];

		snprintf(line, sizeof(line), "%.*s", (int)strcspn(p, "\n") + 1, p);
		if (!strstr(got, line))
			print_error("%sis not in\n%s", line, got);
		CHECK(strstr(got, line) != NULL);
	}
	CHECK_INT(strlen(got), n);
}

static void is_heard_in_order(const char *want)
{
	CHECK_STR(heard, want);
	heard[0] = '\0';
}

static void put(struct world *w, const char *path, const char *text)
{
	CHECK_INT(simdisk_put(w->disk, path, text, strlen(text)), 0);
}

static void gone(struct world *w, const char *path)
{
	CHECK_INT(simdisk_remove(w->disk, path), 0);
}

/* ---- a prune ---- */

static void hear_item(void *arg, int64_t step, int32_t action, const char *why)
{
	char what = sheaf_prune_action_name(action)[0];
	char line[300];

	(void)arg;
	snprintf(line, sizeof(line), "%lld %c %s", (long long)step, what, why);
	hear(line);
}

/* Eleven steps, of which most have a reason of their own. */
static void start_reasons(struct world *w)
{
	start(w, 11);
	CHECK_RC(world_mark(w, 1, 'k'), 0, &w->err);
	put(w, RUN "/.sheaf/marks/2", "?");
	gone(w, RUN "/checkpoint-5/config.json");
	CHECK_RC(world_mark(w, 9, 'b'), 0, &w->err);
}

TEST(a_prune_says_of_each_step_why_it_stays_or_goes)
{
	struct shf_prune p = { .keep_last = 1, .keep_every = 4, .verified = { .step = 10 },
		.keep = 3,
		.grace_s = 3600, .dry = true };
	const struct shf_sys *reader;
	struct world w;
	int dir, fd;

	start_reasons(&w);
	CHECK_INT(shf_store_prune(&w.store[1], &p, hear_item, NULL, &w.err), 3);
	is_heard_in_order("1 k marked keep\n2 k its mark cannot be read\n3 k loaded\n"
	                  "4 k kept by its number\n5 k damaged: not deleted automatically\n"
	                  "6 r if the newest step is verified as valid\n"
	                  "7 r if the newest step is verified as valid\n8 k kept by its number\n"
	                  "9 r if the newest step is verified as valid\n"
	                  "10 k not older than the verified step\n11 k among the newest\n");
	reader = simdisk_process(w.disk, 500, 0);
	dir = shf_sys_open(reader, SHF_CWD, RUN "/checkpoint-6", SHF_O_DIR, 0);
	fd = shf_sys_open(reader, dir, "sheaf.json", 0, 0);
	CHECK_INT(shf_sys_lock(reader, fd, false), 0);
	/* After that of step 6 the lock of step 7 is asked for. */
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 2, .error = EIO,
		.kind = SIMDISK_LOCK, .name = "sheaf.json" });
	p.dry = false;
	CHECK_INT(shf_store_prune(&w.store[0], &p, hear_item, NULL, &w.err), 1);
	CHECK_INT(simdisk_fired(w.disk), 1);
	simdisk_faults_clear(w.disk);
	is_heard_in_order("1 k marked keep\n2 k its mark cannot be read\n3 k loaded\n"
	                  "4 k kept by its number\n5 k damaged: not deleted automatically\n"
	                  "6 k it is being read\n7 k its manifest cannot be locked\n"
	                  "8 k kept by its number\n9 r a newer step is verified\n"
	                  "10 k not older than the verified step\n11 k among the newest\n");
	shf_fd_close(reader, &fd);
	shf_fd_close(reader, &dir);
	CHECK_INT(shf_store_prune(&w.store[0], &p, NULL, NULL, &w.err), 2);
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-6"));
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-7"));
	stop(&w);
}

TEST(a_prune_of_nothing_verified_or_of_a_bad_step_takes_nothing)
{
	static const struct {
		int64_t verified;
		int keep_last;
		const char *says;
	} cases[] = {
		{ -1, 1, "1 k no newer step is verified\n2 k no newer step is verified\n"
		  "3 k among the newest\n4 k no newer step is verified\n" },
		{ 4, 1, "1 k no newer step is verified\n2 k no newer step is verified\n"
		  "3 k among the newest\n4 k no newer step is verified\n" },
		{ 3, 0, "1 k all steps are kept\n2 k all steps are kept\n3 k all steps are kept\n"
		  "4 k all steps are kept\n" },
		{ 3, 2, "1 r a newer step is verified\n2 k among the newest\n"
		  "3 k among the newest\n4 k not older than the verified step\n" },
		{ 9, 3, "1 k among the newest\n2 k among the newest\n3 k among the newest\n"
		  "4 k no newer step is verified\n" },
	};

	for (size_t i = 0; i < LENGTH(cases); i++) {
		struct shf_prune p = { .keep_last = cases[i].keep_last, .keep = -1,
			.verified = { .step = cases[i].verified } };
		struct world w;

		start(&w, 4);
		CHECK_RC(world_mark(&w, 4, 'b'), 0, &w.err);
		CHECK_INT(shf_store_prune(&w.store[0], &p, hear_item, NULL, &w.err), i == 3);
		is_heard_in_order(cases[i].says);
		stop(&w);
	}
}

TEST(a_prune_that_cannot_list_its_trash_says_no_sync)
{
	struct shf_prune p = { .keep_last = 1, .keep = -1, .verified = { .step = 3 } };
	int refused = 0;
	struct world w;

	start(&w, 3);
	for (int nth = 1; ; nth++) {
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
			.kind = SIMDISK_LIST });
		int rc = shf_store_prune(&w.store[0], &p, NULL, NULL, &w.err);
		bool met = simdisk_fired(w.disk) > 0;

		simdisk_faults_clear(w.disk);
		if (!met)
			break;
		refused += rc < 0 && strstr(w.err.msg, ".sheaf/trash: Input/output") != NULL;
		CHECK(rc >= 0 || !strstr(w.err.msg, "sync before"));
	}
	CHECK(refused > 0);
	stop(&w);
}

/* ---- what is left ---- */

static int hear_left(void *arg, const struct shf_left *l)
{
	char line[600];

	(void)arg;
	snprintf(line, sizeof(line), "%s %lld %s, %s, %llu bytes, %s%s, %s: %s",
	         sheaf_leftover_kind_name(l->kind),
	         (long long)l->step, sheaf_leftover_action_name(l->action), l->path,
	                 (unsigned long long)l->bytes,
	         l->lives < 0 ? "-" : l->lives ? "lives" : "dead", l->whole ? ", whole" : "",
	         l->session, l->why);
	hear(line);
	return 0;
}

static void hear_all(struct world *w)
{
	const struct shf_sys *sys = simdisk_process(w->disk, 70, 0);
	struct sheaf_error err;
	struct shf_store s;

	CHECK_RC(shf_store_open(&s, sys, RUN, &err), 0, &err);
	CHECK_RC(shf_store_left(&s, hear_left, NULL, &err), 0, &err);
	shf_store_close(&s);
}

TEST(of_a_living_job_the_lock_and_the_stage_are_listed)
{
	char want[600], stage[200];
	struct world w;

	start_stage(&w, stage);
	hear_all(&w);
	snprintf(want, sizeof(want),
	         "lock -1 wait, .sheaf/lock, 0 bytes, lives, @: held by pid %llu on %s\n"
	         "staged 2 wait, .sheaf/stage/2-@, 0 bytes, lives, @: its writer may be alive\n",
	         (unsigned long long)w.store[0].self.pid, w.store[0].self.host);
	is_heard(want);
	put(&w, RUN "/.sheaf/lock", "");
	hear_all(&w);
	is_heard("lock -1 wait, .sheaf/lock, 0 bytes, lives, : held, but the lock file does not "
	         "name the job\n"
	         "staged 2 wait, .sheaf/stage/2-@, 0 bytes, lives, @: its writer may be alive\n");
	for (int i = 0; i < WRITERS; i++)
		shf_stage_close(&w.store[i], &w.stage[i]);
	stop(&w);
}

/* Half a save of step 4 and a whole one of step 5, that were never published. */
static void start_leavings(struct world *w)
{
	char alive[200];

	start(w, 3);
	CHECK_RC(world_rewind(w, 2), 0, &w->err);
	CHECK_RC(world_save(w, 3, 2), 0, &w->err);
	CHECK(world_prune(w, 1, 3, 3600) == 2);
	CHECK_RC(world_write(w, 4), 0, &w->err);
	for (int i = 0; i < WRITERS; i++)
		shf_stage_close(&w->store[i], &w->stage[i]);
	CHECK_RC(world_write(w, 5), 0, &w->err);
	/* After the manifest's it is the stage's turn to be renamed. */
	simdisk_fault(w->disk, &(struct simdisk_fault){ .nth = 2, .error = EIO,
		.kind = SIMDISK_RENAME });
	CHECK_RC(world_publish(w, 5, 3), SHEAF_EIO, &w->err);
	simdisk_faults_clear(w->disk);
	world_kill(w);
	/* Of the other node nobody here can tell who is dead. */
	snprintf(alive, sizeof(alive), RUN "/.sheaf/stage/%s/alive-1",
	         w->known[w->known_n - 2].stage);
	gone(w, alive);
	put(w, RUN "/.sheaf/stage/copy-7-" ID "/part", "part");
	gone(w, RUN "/checkpoint-3/config.json");
	put(w, RUN "/checkpoint-6/sheaf.sums", "x");
	put(w, RUN "/.sheaf/rewind", "x");
	put(w, RUN "/.sheaf/due-" ID "/x", "x");
	put(w, RUN "/.sheaf/due-soon/x", "x");          /* of no flush */
}

TEST(of_a_dead_job_all_is_listed_and_what_becomes_of_it)
{
	static const char want[] =
		"lock -1 none, .sheaf/lock, 0 bytes, dead, @: held last by pid 100 on node0, which "
		"has exited\ndamaged 3 decide, checkpoint-3, 6160 bytes, -, @: "
		"run/checkpoint-3/config.json: finding the file that the manifest names: No such "
		"file or directory\nremains 6 decide, checkpoint-6, 0 bytes, -, : no manifest: "
		"left over from a deletion by hand; the next save of this step sets it "
		"aside\nstaged 5 delete, .sheaf/stage/5-@, 6160 bytes, dead, whole, @: a complete "
		"save that was not published, of a job that has exited: --salvage 5 publishes "
		"it\ncopy 7 wait, .sheaf/stage/copy-7-@, 0 bytes, -, @: an incomplete copy or "
		"import: run the same command again to resume it\nstaged 4 delete, "
		".sheaf/stage/4-@, 0 bytes, dead, @: an incomplete save of a job that has "
		"exited\naside 3 decide, "
		".sheaf/aside/3-@, 6160 bytes, -, whole, @: set aside; sheaf aside brings it back "
		"or deletes it\ntrash 1 wait, .sheaf/trash/1-@, 6160 bytes, -, whole, @: pruned; "
		"deleted when its grace period is over\ntrash 2 wait, .sheaf/trash/2-@, 6160 "
		"bytes, -, whole, @: pruned; deleted when its grace period is over\nflush -1 wait, "
		".sheaf/due-@, 0 bytes, -, : agents of several nodes write a step here, or one of "
		"them was lost\nrewind -1 finish, .sheaf/rewind, 0 bytes, -, : a rewind that was "
		"interrupted\n";
	const char *copy;
	struct world w;

	start_leavings(&w);
	/* Names like those of a stage that are no folders, or that may not be read, as recovery. */
	put(&w, RUN "/.sheaf/stage/8-" ID, "x");
	CHECK_INT(simdisk_symlink(w.disk, "../aside", RUN "/.sheaf/stage/9-" ID), 0);
	put(&w, RUN "/.sheaf/stage/10-" ID "/x", "x");
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = EACCES, .always = true,
		.kind = SIMDISK_OPEN, .name = "10-" });
	hear_all(&w);
	simdisk_faults_clear(w.disk);
	gone(&w, RUN "/.sheaf/stage/10-" ID);
	is_heard(want);
	/* Seven days and a second later half a copy is old, and the grace long over. */
	simdisk_advance(w.disk, SHF_COPY_S + 1);
	hear_all(&w);
	copy = strstr(heard, "copy 7 ");
	CHECK(copy && strncmp(copy, "copy 7 delete, .sheaf/stage/copy-7-@, 0 bytes, -, @: an "
	                      "incomplete copy or import that was not resumed for a week\n",
	                      93) == 0);
	CHECK(strstr(heard, "trash 1 delete, .sheaf/trash/1-@, 6160 bytes, -, whole, @: pruned; "
	             "its grace period is over\n"));
	CHECK(strstr(heard, "flush -1 delete, .sheaf/due-@, 0 bytes, -, : agents of several nodes "
	             "wrote a step here a week ago\n"));
	heard[0] = '\0';
	simdisk_free(w.disk);
}

/* ---- what is damaged ---- */

TEST(of_a_damaged_step_it_is_said_how)
{
	static const char zeros[SHF_MANIFEST_MAX + 1];
	static const struct {
		const char *path, *text;        /* NULL: gone; "/": a folder; "@": a link */
		const char *says;
	} cases[] = {
		{ "config.json", NULL, "run/checkpoint-2/config.json: finding the file that the "
		  "manifest names: No such file or directory" },
		{ "config.json", "four", "run/checkpoint-2/config.json: has 4 bytes, the manifest "
		  "says 60" },
		{ "sheaf.sums", NULL, "run/checkpoint-2/sheaf.sums: finding the file that the "
		  "manifest names: No such file or directory" },
		{ "sheaf.sums", "x", "run/checkpoint-2/sheaf.sums: has 1 bytes, the manifest says "
		  "200" },
		{ "model-00001-of-00001.safetensors", "x", "run/checkpoint-2/model-00001-of-00001"
		  ".safetensors: has 1 bytes, the manifest says 5000" },
		{ "config.json", "@", "run/checkpoint-2/config.json: not a regular file" },
		{ "optimizer", NULL,
		  "run/checkpoint-2/optimizer/optimizer-00001-of-00001.safetensors: "
		  "finding the file that the manifest names: No such file or directory" },
		{ "optimizer", "x",
		  "run/checkpoint-2/optimizer/optimizer-00001-of-00001.safetensors: "
		  "finding the file that the manifest names: Not a directory" },
		{ "sheaf.json", "/", "run/checkpoint-2/sheaf.json: cannot be a manifest: not a "
		  "regular file" },
		{ "sheaf.json", "@", "run/checkpoint-2/sheaf.json: cannot be a manifest: not a "
		  "regular file" },
		{ "sheaf.json", "+", "run/checkpoint-2/sheaf.json: cannot be a manifest: longer "
		  "than 1 MiB" },
	};

	for (size_t i = 0; i < LENGTH(cases); i++) {
		char path[200], want[400];
		struct world w;

		start(&w, 2);
		snprintf(path, sizeof(path), RUN "/checkpoint-2/%s", cases[i].path);
		gone(&w, path);
		if (cases[i].text && cases[i].text[0] == '@')
			CHECK_INT(simdisk_symlink(w.disk, "sheaf.sums", path), 0);
		else if (cases[i].text && cases[i].text[0] == '/')
			put(&w, strcat(path, "/x"), "");
		else if (cases[i].text && cases[i].text[0] == '+')
			CHECK_INT(simdisk_put(w.disk, path, zeros, sizeof(zeros)), 0);
		else if (cases[i].text)
			put(&w, path, cases[i].text);
		world_close(&w);
		gone(&w, RUN "/.sheaf/lock");
		hear_all(&w);
		snprintf(want, sizeof(want), "damaged 2 decide, checkpoint-2, %d bytes, -, %s: "
		         "%s\n", strcmp(cases[i].path, "sheaf.json") ? 6160 : 0,
		         strcmp(cases[i].path, "sheaf.json") ? "@" : "", cases[i].says);
		is_heard(want);
		simdisk_free(w.disk);
	}
}

TEST(a_step_under_another_number_or_in_another_run_is_told_by_both)
{
	struct world w;

	start(&w, 1);
	world_close(&w);
	gone(&w, RUN "/.sheaf/lock");
	CHECK_INT(simdisk_copy(w.disk, RUN "/checkpoint-1", RUN "/checkpoint-12"), 0);
	hear_all(&w);
	is_heard("damaged 12 decide, checkpoint-12, 6160 bytes, -, @: run/checkpoint-12: its "
	         "manifest is that of step 1\n");
	gone(&w, RUN "/checkpoint-12");
	put(&w, RUN "/.sheaf/run", "sheaf-run 1\n" ID "\n");
	hear_all(&w);
	is_heard("damaged 1 decide, checkpoint-1, 6160 bytes, -, @: run/checkpoint-1: its manifest "
	         "is that of run @, but run/.sheaf/run says @\n");
	simdisk_free(w.disk);
}

/* Where the kernel says that a name is something else it has said enough; where it does not say,
 * nobody calls the step damaged for that. */
TEST(what_the_kernel_answers_of_a_step_makes_it_damaged_or_unread)
{
	static const struct {
		enum simdisk_kind kind;
		const char *name;
		int error;
		char state;             /* 'U': damaged, as far as can be read */
	} answers[] = {
		{ SIMDISK_STAT, "config.json", EIO, 'U' },
		{ SIMDISK_STAT, "config.json", EACCES, 'U' },
		{ SIMDISK_STAT, "config.json", ENOENT, 'D' },
		{ SIMDISK_STAT, "config.json", ELOOP, 'D' },
		{ SIMDISK_STAT, "config.json", EISDIR, 'D' },
		{ SIMDISK_STAT, "config.json", EINVAL, 'D' },
		{ SIMDISK_STAT, "config.json", ENAMETOOLONG, 'D' },
		{ SIMDISK_OPEN, "optimizer", EIO, 'U' },
		{ SIMDISK_OPEN, "optimizer", ELOOP, 'D' },
		{ SIMDISK_OPEN, "sheaf.json", EIO, 'U' },
		{ SIMDISK_OPEN, "sheaf.json", EACCES, 'U' },
		{ SIMDISK_OPEN, "sheaf.json", ELOOP, 'D' },
		{ SIMDISK_OPEN, "sheaf.json", EISDIR, 'D' },
		{ SIMDISK_OPEN, "sheaf.json", ENOENT, 'F' },
		{ SIMDISK_OPEN, "checkpoint-1", EIO, 'U' },
		{ SIMDISK_OPEN, "checkpoint-1", EACCES, 'U' },
		{ SIMDISK_OPEN, "checkpoint-1", ENOTDIR, 'F' },
		{ SIMDISK_OPEN, "checkpoint-1", ELOOP, 'F' },
		{ SIMDISK_OPEN, "checkpoint-1", ENOENT, 'C' }, /* it is listed again */
	};
	struct world w;

	start(&w, 1);
	gone(&w, RUN "/checkpoint-90");
	gone(&w, RUN "/checkpoint-91");
	for (size_t i = 0; i < LENGTH(answers); i++) {
		struct shf_entry e = { .unread = false };
		char is;

		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .kind = answers[i].kind,
			.error = answers[i].error, .name = answers[i].name });
		is = state_of(&w.store[1], 1, &e);
		CHECK_INT(simdisk_fired(w.disk), 1);
		simdisk_faults_clear(w.disk);
		if (is != (answers[i].state == 'U' ? 'D' : answers[i].state))
			print_error("%s: %s\n", answers[i].name, strerror(answers[i].error));
		CHECK_INT(is, answers[i].state == 'U' ? 'D' : answers[i].state);
		CHECK_INT(e.unread, answers[i].state == 'U');
		CHECK(!e.remains);
	}
	stop(&w);
}

/* ---- a stage ---- */

TEST(of_a_stage_that_is_not_as_its_writers_say_it_is_said_how)
{
	static const struct {
		const char *path, *text, *says;         /* says NULL: it is published */
	} cases[] = {
		{ "extra", "x", "extra: unexpected file, which no rank has written; find out what "
		  "put it there, and save again" },
		{ "optimizer/extra", "x",
		  "optimizer/extra: unexpected file, which no rank has written; find out what put "
		  "it there, and save again" },
		{ "more/extra", "x", "more/extra: unexpected file, which no rank has written; find "
		  "out what put it there, and save again" },
		{ ".nfs", "x", NULL }, { "optimizer/.nfs0123", "x", NULL },
		{ ".nfx", "x", ".nfx: unexpected file, which no rank has written; find out what "
		  "put it there, and save again" },
		{ "config.json", "x", "config.json: has 1 bytes, but 60 were written; check the "
		  "file system, and save again" },
		{ "config.json", NULL, "config.json: was written, but rank 0 does not see it; "
		  "check that all nodes mount the same file system" },
		{ "sheaf.sums", "12", "sheaf.sums: has 2 bytes, but 200 were written; check the "
		  "file system, and save again" },
		{ "sheaf.sums", NULL, "sheaf.sums: was written, but rank 0 does not see it; check "
		  "that all nodes mount the same file system" },
		{ "optimizer", NULL, "optimizer/optimizer-00001-of-00001.safetensors: was written, "
		  "but rank 0 does not see it; check that all nodes mount the same file system" },
	};

	for (size_t i = 0; i < LENGTH(cases); i++) {
		char path[300], stage[200];
		struct world w;

		start_stage(&w, stage);
		snprintf(path, sizeof(path), "%s/%s", stage, cases[i].path);
		if (cases[i].text)
			put(&w, path, cases[i].text);
		else
			gone(&w, path);
		CHECK_RC(world_publish(&w, 2, 1), cases[i].says ? SHEAF_EIO : 0, &w.err);
		if (cases[i].says) {
			snprintf(path, sizeof(path), "%s/%s", stage, cases[i].says);
			CHECK_STR(w.err.msg, path);
			shf_stage_discard(&w.store[0], &w.stage[0]);
		}
		CHECK(simdisk_exists(w.disk, RUN "/checkpoint-2") == !cases[i].says);
		for (int k = 0; k < WRITERS; k++)
			shf_stage_close(&w.store[k], &w.stage[k]);
		stop(&w);
	}
}

/* He who is asked for a lock for a moment gives it back: it is asked for again, after 1, 2, 4 ms
 * and so on, nine times. */
TEST(a_sign_of_life_waits_for_who_looks_at_it)
{
	for (int held = 0; held <= 10; held++) {
		struct shf_stage g;
		struct world w;
		char want[200];
		int64_t from;

		start(&w, 1);
		CHECK_RC(shf_stage_new(&w.store[0], &g, 2, NULL, &w.err), 0, &w.err);
		from = simdisk_clock_ms(w.disk);
		for (int i = 1; i <= held; i++)
			simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = i, .error = EAGAIN,
				.kind = SIMDISK_LOCK, .name = "alive-3" });
		CHECK_RC(shf_stage_alive(&w.store[0], &g, 3, &w.err), held < 9 ? 0 : SHEAF_EIO,
		         &w.err);
		CHECK_INT(simdisk_fired(w.disk), held < 9 ? held : 9);
		simdisk_faults_clear(w.disk);
		CHECK_INT(simdisk_clock_ms(w.disk) - from, held < 9 ? (1 << held) - 1 : 511);
		CHECK((g.alive >= 0) == (held < 9));
		if (held > 8) {
			snprintf(want, sizeof(want), "run/.sheaf/stage/%s/alive-3: %s", g.name,
			         strerror(EAGAIN));
			CHECK_STR(w.err.msg, want);
		}
		shf_stage_discard(&w.store[0], &g);
		stop(&w);
	}
}

/* ---- a salvage ---- */

TEST(what_cannot_be_salvaged_is_told_and_stays)
{
	static const struct {
		int64_t step;
		int rc;
		const char *says;
	} cases[] = {
		{ 3, SHEAF_EEXIST, "run/checkpoint-3: exists; rewind the run, or move it away "
		  "first" },
		{ 4, SHEAF_ECORRUPT, "run: step 4 is in the stage, but incomplete: it has no "
			"manifest" },
		{ 8, SHEAF_ENOENT, "run: step 8 is not in the stage (sheaf recover lists what "
		  "is)" },
	};
	const struct shf_sys *sys;
	struct shf_store s;
	struct shf_stage g;
	struct world w;
	uint64_t was;

	start_leavings(&w);
	gone(&w, RUN "/.sheaf/rewind");
	was = simdisk_hash(w.disk, RUN "/.sheaf/stage");
	for (size_t i = 0; i < LENGTH(cases); i++) {
		sys = simdisk_process(w.disk, 900 + i, 0);
		CHECK_RC(shf_salvage_begin(&s, &g, sys, RUN, 0, cases[i].step, &w.err),
		         cases[i].rc, &w.err);
		CHECK_STR(w.err.msg, cases[i].says);
		CHECK_INT(g.dir, -1);
		CHECK_INT(g.step, cases[i].step);
		CHECK_INT(simdisk_open_n(sys), 0);
		CHECK_INT(shf_salvage_begin(&s, &g, sys, RUN, 0, cases[i].step, NULL), cases[i].rc);
	}
	CHECK(simdisk_hash(w.disk, RUN "/.sheaf/stage") == was);
	simdisk_free(w.disk);
}

TEST(who_salvages_takes_over_the_first_half_of_the_dead_ones_session)
{
	struct known *dead;
	const struct shf_sys *sys;
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_store s;
	struct shf_stage g;
	struct shf_owner owner;
	struct world w;
	char want[400], session[33];

	start_leavings(&w);
	gone(&w, RUN "/.sheaf/rewind");
	dead = &w.known[w.known_n - 1];
	sys = simdisk_process(w.disk, 900, 0);
	CHECK_RC(shf_salvage_begin(&s, &g, sys, RUN, 0, 5, &w.err), 0, &w.err);
	CHECK_STR(g.name, dead->stage);
	CHECK_INT(g.step, 5);
	CHECK_INT(g.alive, -1);
	CHECK(memcmp(s.session, dead->session, 16) == 0);
	CHECK(memcmp(s.session + 16, dead->session + 16, 16) != 0);
	CHECK(shf_id_is_valid(s.session, 32));
	CHECK_STR(g.session, s.session);
	/* His text stays while his files are read, and ours is behind it. */
	CHECK_INT(shf_lock_read(&s, &owner, session), 0);
	CHECK_INT(owner.pid, 100);
	CHECK(memcmp(session, dead->session, 16) == 0);
	CHECK_INT(shf_lock_holder(&s, &owner, session), 0);
	CHECK_INT(owner.pid, 900);
	CHECK_STR(session + 16, s.session + 16);
	shf_buf_adds(&text, "{}");
	CHECK_RC(shf_salvage_finish(&s, &g, &text, ID, &w.err), SHEAF_ECORRUPT, &w.err);
	snprintf(want, sizeof(want), "run/.sheaf/stage/%s: its manifest is that of run " ID ", but "
	         "this is run %s", dead->stage, s.run);
	CHECK_STR(w.err.msg, want);
	/* What half a rename left of the manifest goes first. */
	snprintf(want, sizeof(want), RUN "/.sheaf/stage/%s/sheaf.json.tmp", dead->stage);
	put(&w, want, "x");
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
		.kind = SIMDISK_UNLINK, .name = "sheaf.json.tmp" });
	CHECK_RC(shf_salvage_finish(&s, &g, &text, s.run, &w.err), SHEAF_EIO, &w.err);
	snprintf(want, sizeof(want), "run/.sheaf/stage/%s: Input/output error", dead->stage);
	CHECK_STR(w.err.msg, want);
	simdisk_faults_clear(w.disk);
	shf_buf_reset(&text);
	CHECK_INT(shf_text_read(sys, g.dir, "sheaf.json", &text, SHF_MANIFEST_MAX), 0);
	CHECK_RC(shf_salvage_finish(&s, &g, &text, s.run, &w.err), 0, &w.err);
	CHECK(simdisk_exists(w.disk, RUN "/checkpoint-5/sheaf.json"));
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-5/sheaf.json.tmp"));
	shf_buf_release(&text);
	shf_stage_close(&s, &g);
	shf_store_close(&s);
	simdisk_free(w.disk);
}

/* ---- done files ---- */

static void is_text(struct world *w, const char *path, const char *fmt, const char *session,
                    const char *run)
{
	char want[1500];
	size_t n = 0;
	char *got = simdisk_get(w->disk, path, &n);

	snprintf(want, sizeof(want), fmt, session, run);
	CHECK(got != NULL);
	if (n != strlen(want) || memcmp(got, want, n) != 0)
		print_error("%s:\n%.*s", path, (int)n, got);
	CHECK(n == strlen(want) && memcmp(got, want, n) == 0);
	free(got);
}

TEST(done_files_say_what_the_step_has_kind_by_kind)
{
	static const char model[] = "{\"sheaf_done\": 1,\n \"kind\": \"model\",\n \"step\": 2,\n "
		"\"session\": \"%s\",\n \"run\": \"%s\",\n \"path\": \"run/checkpoint-2\",\n "
		"\"bytes\": 5000,\n \"files\": [\n  {\"name\": \"model-00001-of-00001.safetensors"
		"\", \"bytes\": 5000}]}\n";
	static const char optimizer[] = "{\"sheaf_done\": 1,\n \"kind\": \"optimizer\",\n "
		"\"step\": 2,\n \"session\": \"%s\",\n \"run\": \"%s\",\n "
		"\"path\": \"run/checkpoint-2\",\n "
		"\"bytes\": 900,\n \"files\": [\n  {\"name\": \"optimizer/optimizer-00001-of-00001"
		".safetensors\", \"bytes\": 900}]}\n";
	char path[200], session[33], whole[1500];
	struct world w;
	size_t n = 0;

	start(&w, 2);
	world_session(&w, 2, session);
	free(simdisk_get(w.disk, RUN "/checkpoint-2/sheaf.json", &n));
	snprintf(whole, sizeof(whole), "{\"sheaf_done\": 1,\n \"kind\": \"whole-step\",\n \"step\":"
	         " 2,\n \"session\": \"%%s\",\n \"run\": \"%%s\",\n \"path\": "
	         "\"run/checkpoint-2\",\n \"bytes\": %d,\n \"files\": [\n  "
	         "{\"name\": \"sheaf.json\", \"bytes\": %d},\n  "
	         "{\"name\": \"sheaf.sums\", \"bytes\": 200},\n  {\"name\": \"model-00001-of-00001"
	         ".safetensors\", \"bytes\": 5000},\n  {\"name\": \"optimizer/optimizer-00001-of-"
	         "00001.safetensors\", \"bytes\": 900},\n  {\"name\": \"config.json\", \"bytes\": "
	         "60}]}\n", 6160 + (int)n, (int)n);
	CHECK_RC(shf_done_put_newest(&w.store[0], "done", &w.err), 0, &w.err);
	is_text(&w, "done/model.2.done", model, session, w.store[0].run);
	is_text(&w, "done/optimizer.2.done", optimizer, session, w.store[0].run);
	is_text(&w, "done/whole-step.2.done", whole, session, w.store[0].run);
	for (int i = 0; i < 3; i++) {
		static const char *const kinds[] = { "model", "optimizer", "whole-step" };
		char want[300];

		snprintf(path, sizeof(path), "done/%s.2.done", kinds[i]);
		gone(&w, path);
		CHECK_INT(simdisk_symlink(w.disk, "x", path), 0);
		snprintf(want, sizeof(want), "%s: is not a regular file and is not replaced; "
		         "remove it, or choose another opts.notify.signal_dir", path);
		CHECK_RC(shf_done_put(&w.store[0], "done", 2, session, &w.err), SHEAF_EINVAL,
		         &w.err);
		CHECK_STR(w.err.msg, want);
		gone(&w, path);
	}
	CHECK_RC(shf_done_put(&w.store[0], "done", 2, ID, &w.err), SHEAF_ECORRUPT, &w.err);
	CHECK_STR(w.err.msg, "run/checkpoint-2: is another save of this step");
	CHECK_RC(shf_done_put(&w.store[0], "done", 7, ID, &w.err), SHEAF_EIO, &w.err);
	CHECK_STR(w.err.msg, "run/checkpoint-7/sheaf.json: No such file or directory");
	put(&w, "file", "x");
	CHECK_RC(shf_done_put(&w.store[0], "file", 2, session, &w.err), SHEAF_EIO, &w.err);
	CHECK_STR(w.err.msg, "file: Not a directory");
	CHECK_RC(shf_done_put(&w.store[0], "no/folder", 2, session, &w.err), SHEAF_EIO, &w.err);
	CHECK_STR(w.err.msg, "no/folder: No such file or directory");
	stop(&w);
}

/* ---- a rewind ---- */

/* A network file system says once that something is gone, and asked again that it is there. */
TEST(a_stale_answer_stops_a_rewind_and_takes_no_step_for_gone)
{
	static const struct {
		const char *name;
		int nth;
		const char *says;
	} stale[] = {
		{ "checkpoint-3", 1, "run/.sheaf/rewind: Resource temporarily unavailable" },
		{ "checkpoint-3", 2, "run: setting steps aside: Resource temporarily unavailable" },
		{ "checkpoint-3", 3, "run/checkpoint-3: No such file or directory" },
		/* The second of these is asked for in a foreign folder. */
		{ "sheaf.json", 3, "run/.sheaf/rewind: Resource temporarily unavailable" },
		{ "sheaf.json", 5, "run: setting steps aside: Resource temporarily unavailable" },
		{ "sheaf.json", 6, "run/checkpoint-3/sheaf.json: No such file or directory" },
	};

	for (size_t i = 0; i < LENGTH(stale); i++) {
		struct world w;

		start(&w, 3);
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = stale[i].nth,
			.error = ENOENT, .kind = SIMDISK_OPEN, .name = stale[i].name });
		CHECK_RC(shf_store_rewind(&w.store[0], 1, &w.err), SHEAF_EIO, &w.err);
		CHECK_INT(simdisk_fired(w.disk), 1);
		simdisk_faults_clear(w.disk);
		CHECK_STR(w.err.msg, stale[i].says);
		CHECK(simdisk_exists(w.disk, RUN "/checkpoint-2"));
		CHECK_RC(shf_store_rewind(&w.store[0], 1, &w.err), 0, &w.err);
		CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-2"));
		CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-3"));
		stop(&w);
	}
}

/* ---- which steps there are ---- */

TEST(what_is_newest_is_counted_below_a_number_and_past_what_is_bad)
{
	static const struct {
		int64_t below, step;
		bool exists, is_bad;
		int64_t newest, known;
	} asked[] = {
		{ INT64_MAX, -1, false, false, 3, 2 }, { INT64_MAX, 4, true, true, 3, 2 },
		{ INT64_MAX, 3, true, false, 3, 2 }, { INT64_MAX, 90, false, false, 3, 2 },
		{ INT64_MAX, 7, false, false, 3, 2 }, { 4, 1, true, false, 3, 2 },
		{ 3, 3, true, false, 2, 2 }, { 2, 4, true, true, 1, 1 },
		{ 1, 1, true, false, -1, -1 },
		{ 0, 8, false, false, -1, -1 },
	};
	struct world w;
	char session[33];

	start(&w, 4);
	CHECK_RC(world_mark(&w, 4, 'b'), 0, &w.err);
	put(&w, RUN "/checkpoint-3/sheaf.json", "{");
	put(&w, RUN "/checkpoint-8/sheaf.sums", "x");
	for (size_t i = 0; i < LENGTH(asked); i++) {
		struct shf_newest n;

		CHECK_RC(shf_store_newest_below(&w.store[1], asked[i].below, asked[i].step, &n,
		                                &w.err), 0, &w.err);
		CHECK_INT(n.exists, asked[i].exists);
		CHECK_INT(n.is_bad, asked[i].is_bad);
		CHECK_INT(n.newest, asked[i].newest);
		CHECK_INT(n.known, asked[i].known);
		if (n.known >= 0)
			world_session(&w, n.known, session);
		CHECK_STR(n.session, n.known < 0 ? "" : session);
	}
	CHECK_INT(shf_step_older(&w.store[1], 91), 2);
	CHECK_INT(shf_step_older(&w.store[1], 3), 2);
	CHECK_INT(shf_step_older(&w.store[1], 2), 1);
	CHECK_INT(shf_step_older(&w.store[1], 1), -1);
	stop(&w);
}

/* All of an entry, by step, then state, then path. */
TEST(a_list_has_all_of_each_step_in_order)
{
	struct shf_list list;
	struct world w;

	start(&w, 3);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	w.loss = "0.25";
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	CHECK_RC(world_mark(&w, 1, 'k'), 0, &w.err);
	put(&w, RUN "/.sheaf/stage/2-" ID "/x", "");
	put(&w, RUN "/.sheaf/stage/2-" OTHER "/x", "");
	put(&w, RUN "/.sheaf/aside/2-" ID "/x", "");
	put(&w, RUN "/checkpoint-4/sheaf.sums", "");
	CHECK_INT(shf_tries_add(&w.store[0], 3, world_find(&w, 3)->session, &w.err), 1);
	CHECK_RC(shf_list_noted(&w.store[1], "loss", &list, &w.err), 0, &w.err);
	for (size_t i = 0; i < list.n; i++) {
		const struct shf_entry *e = &list.entries[i];
		char line[400];

		snprintf(line, sizeof(line), "%lld %d%s %s %s %s %lld %s %llu %c %d %d %s",
		         (long long)e->step, e->state, e->remains ? " remains" : "", e->path,
		         e->session, e->created, (long long)e->parent, e->parent_session,
		         (unsigned long long)e->bytes, e->mark ? e->mark : '-', e->tries, e->noted,
		         e->value);
		hear(line);
	}
	is_heard_in_order("1 0 checkpoint-1 @ 2026-01-31T12:00:00Z -1  6160 k 0 0 \n"
	                  "2 0 checkpoint-2 @ 2026-01-31T12:00:00Z 1 @ 6160 - 0 0 \n"
	                  "2 3 .sheaf/aside/2-@ @  -1  0 - 0 0 \n"
	                  "2 4 .sheaf/stage/2-@ @  -1  0 - 0 0 \n"
	                  "2 4 .sheaf/stage/2-@ @  -1  0 - 0 0 \n"
	                  "3 0 checkpoint-3 @ 2026-01-31T12:00:00Z 2 @ 6160 - 1 2 0.25\n"
	                  "3 3 .sheaf/aside/3-@ @ 2026-01-31T12:00:00Z 2 @ 6160 - 0 0 \n"
	                  "4 1 remains checkpoint-4   -1  0 - 0 0 \n"
	                  "90 2 checkpoint-90   -1  0 - 0 0 \n"
	                  "91 2 checkpoint-91   -1  0 - 0 0 \n");
	CHECK(strstr(list.entries[3].path, ID) && strstr(list.entries[4].path, OTHER));
	shf_list_release(&list);
	CHECK(!list.entries && list.n == 0);
	stop(&w);
}

TEST(remains_of_a_step_are_told_and_a_manifest_that_is_none_is_set_aside)
{
	struct shf_entry e = { .step = 5, .path = "checkpoint-5" };
	struct sheaf_error err;
	struct world w;

	start(&w, 3);
	put(&w, RUN "/checkpoint-5/sheaf.sums", "x");
	CHECK_INT(shf_step_look(&w.store[1], w.store[1].dir, "checkpoint-5", &e, &err), 0);
	CHECK(e.remains && e.state == SHF_DAMAGED && !e.unread);
	CHECK_STR(err.msg, "run/checkpoint-5: sheaf.json is missing");
	CHECK_INT(err.code, SHEAF_ECORRUPT);
	/* Of these nothing tells who wrote them, and a rewind takes them all the same. */
	gone(&w, RUN "/checkpoint-2/sheaf.json");
	put(&w, RUN "/checkpoint-2/sheaf.json/x", "");
	gone(&w, RUN "/checkpoint-3/sheaf.json");
	CHECK_INT(simdisk_symlink(w.disk, "x", RUN "/checkpoint-3/sheaf.json"), 0);
	CHECK_RC(shf_store_rewind(&w.store[0], 1, &w.err), 0, &w.err);
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-2"));
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-3"));
	CHECK(simdisk_exists(w.disk, RUN "/checkpoint-5/sheaf.sums"));
	stop(&w);
}

/* A forked child closes what it has inherited, and the lock stays with its parent. */
TEST(a_forked_child_that_leaves_has_nothing_and_takes_nothing)
{
	struct shf_store copy;
	struct sheaf_error err;
	struct world w;

	start(&w, 1);
	copy = w.store[0];
	copy.path = NULL;
	copy.sys = simdisk_fork(w.disk, w.proc[0], 900);
	CHECK(simdisk_open_n(copy.sys) > 0);
	shf_store_leave(&copy);
	CHECK_INT(simdisk_open_n(copy.sys), 0);
	CHECK(!copy.writer);
	shf_store_leave(&copy);
	CHECK_RC(shf_store_own(&copy, simdisk_process(w.disk, 901, 0), RUN, false, 0, &err),
	         SHEAF_EBUSY, &err);
	stop(&w);
}

/* A network file system writes when a file is closed. */
TEST(a_manifest_that_cannot_be_written_is_not_published)
{
	static const enum simdisk_kind kinds[] = { SIMDISK_OPEN, SIMDISK_PWRITE, SIMDISK_FSYNC,
		SIMDISK_CLOSE };

	for (size_t i = 0; i < LENGTH(kinds); i++) {
		char stage[200];
		struct world w;

		start_stage(&w, stage);
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = ENOSPC,
			.kind = kinds[i], .name = "sheaf.json.tmp" });
		CHECK_RC(world_publish(&w, 2, 1), SHEAF_EIO, &w.err);
		CHECK_INT(simdisk_fired(w.disk), 1);
		CHECK(strstr(w.err.msg, "/sheaf.json.tmp: No space left on device"));
		CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-2"));
		simdisk_faults_clear(w.disk);
		for (int k = 0; k < WRITERS; k++)
			shf_stage_close(&w.store[k], &w.stage[k]);
		stop(&w);
	}
}
