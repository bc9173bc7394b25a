/* SPDX-License-Identifier: Apache-2.0 */
/* The sentences of the store, complete: what it refuses and what it finds, with names and numbers
 * in their places. */
#include <errno.h>
#include <stdlib.h>
#include "aside.h"
#include "err.h"
#include "lived.h"
#include "lock.h"
#include "manifest_read.h"
#include "marks.h"
#include "metrics.h"
#include "recover.h"
#include "stage.h"
#include "prune_steps.h"

#define ID "0123456789abcdef0123456789abcdef"
#define OTHER "fedcba9876543210fedcba9876543210"
#define LENGTH(a) (sizeof(a) / sizeof(*(a)))

/* In a sentence wanted here @ stands for a session or checksum, and nothing else does. */
static void mask(char *to, const char *from)
{
	while (*from) {
		size_t n = strspn(from, "0123456789abcdef");

		if (n == 32) {
			*to++ = '@';
			from += n;
		} else {
			*to++ = *from++;
		}
	}
	*to = '\0';
}

static void is_said(const struct sheaf_error *err, const char *want)
{
	char got[600];

	mask(got, err->msg);
	CHECK_STR(got, want);
}

static void put(struct world *w, const char *path, const char *text)
{
	CHECK_INT(simdisk_put(w->disk, path, text, strlen(text)), 0);
}

/* ---- refusals ---- */

/* w has steps 1 and 2; store 0 is the writer's, store 1 is not. */
struct refusal {
	int (*call)(struct world *w, struct shf_store *s, struct sheaf_error *err);
	int store, rc;
	const char *says;
};

static int mark_x(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_mark(s, 1, 'x', err);
}

static int mark_k(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_mark(s, 1, 'k', err);
}

static int mark_under(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_mark(s, -1, 'k', err);
}

static int mark_gone(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_mark(s, 7, 'k', err);
}

static int rewind_it(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_rewind(s, 1, err);
}

static int rewind_gone(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_rewind(s, 7, err);
}

static int rewind_under(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_rewind(s, -1, err);
}

static int rewind_foreign(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	put(w, RUN "/checkpoint-5/weights", "x");
	return shf_store_rewind(s, 5, err);
}

static int recover(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_recover(s, err);
}

static int metrics(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_metrics_add(s, "{}", err);
}

static int prune(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_prune(s, &(struct shf_prune){ .verified = { .step = -1 },
	                       .keep = -1 }, NULL, NULL,
	                       err);
}

/* Makes a stage of that step, with a folder. */
static int stage(struct shf_store *s, int64_t step, const char *folder, struct sheaf_error *err)
{
	const char *const folders[] = { ".", folder, NULL };
	struct shf_stage g = { .dir = -1, .alive = -1 };
	int rc = shf_stage_new(s, &g, step, folders, err);

	CHECK_INT(g.step, step);
	shf_stage_discard(s, &g);
	return rc;
}

static int stage_under(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return stage(s, -1, "model", err);
}

static int stage_3(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return stage(s, 3, "model", err);
}

static int stage_2(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return stage(s, 2, "model", err);
}

static int stage_odd(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	static const char *const odd[] = { "", "a/b", "..", "A", "a-b", "a`", "a{", "a:", "a^" };
	static const char *const even[] = { "a", "z", "0", "9", "_", "az_09" };

	(void)w;
	for (size_t i = 0; i < LENGTH(even); i++)
		CHECK_RC(stage(s, 3, even[i], err), 0, err);
	for (size_t i = 0; i < LENGTH(odd); i++)
		CHECK_RC(stage(s, 3, odd[i], err), SHEAF_EINVAL, err);
	return stage(s, 3, "a/", err);
}

static int copy_it(struct shf_store *s, int64_t step, const char *session,
                   struct sheaf_error *err)
{
	struct shf_stage g;
	int rc = shf_stage_copy(s, &g, step, session, NULL, err);

	shf_stage_close(s, &g);
	return rc;
}

static int copy_5(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return copy_it(s, 5, ID, err);
}

static int copy_2(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return copy_it(s, 2, ID, err);
}

static int copy_under(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return copy_it(s, -1, ID, err);
}

static int copy_nobodys(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return copy_it(s, 5, ID "0", err);
}

static int join_of(struct shf_store *s, const char *name, struct sheaf_error *err)
{
	struct shf_stage g;
	int rc = shf_stage_join(s, &g, 5, name, err);

	CHECK_INT(g.dir, -1);
	CHECK_INT(g.alive, -1);
	return rc;
}

static int join_other(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return join_of(s, "6-" ID, err);
}

static int join_nothing(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return join_of(s, "5-" ID, err);
}

static int join_no_name(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return join_of(s, "5-x", err);
}

static int manifest_under(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;

	(void)w;
	return shf_store_manifest(s, -1, &m, &arena, err);
}

static int proof_write(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_proof_write(s, "0123456789abcdef0123456789abcdeg", err);
}

static int proof_read(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_proof_read(s, "0123456789abcdef0123456789abcdeg", err);
}

static int proof_gone(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_proof_read(s, ID, err);
}

static int lock_lost(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	put(w, RUN "/.sheaf/lock", "");
	return shf_lock_check(s, err);
}

static int lock_taken(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	struct shf_owner owner = { .host = "there", .boot = "b", .pid = 77 };
	struct shf_buf text = SHF_BUF_INIT;

	shf_owner_put(&text, &owner, OTHER);
	CHECK_INT(simdisk_put(w->disk, RUN "/.sheaf/lock", text.data, text.len), 0);
	shf_buf_release(&text);
	return shf_lock_check(s, err);
}

TEST(what_is_refused_is_told_whole)
{
	static const char mark[] = "run: the mark must be k, b or none, and the run open for "
		"writing";
	static const char copy[] = "run: a copy of step 5 needs a run that is open for writing, "
		"and the session of the step";
	static const char proof[] = "run: a proof needs an open run and 32 hex digits";
	static const struct refusal refusals[] = {
		{ mark_k, 1, SHEAF_EINVAL, mark }, { mark_x, 0, SHEAF_EINVAL, mark },
		{ mark_under, 0, SHEAF_EINVAL, mark },
		{ mark_gone, 0, SHEAF_ENOENT, "run/checkpoint-7: No such file or directory" },
		{ rewind_it, 1, SHEAF_EINVAL, "run: a rewind needs a run that is open for "
		  "writing" },
		{ rewind_gone, 0, SHEAF_ENOENT, "run/checkpoint-7: No such file or directory" },
		{ rewind_under, 0, SHEAF_EINVAL, "run: the step must not be negative" },
		{ rewind_foreign, 0, SHEAF_EFORMAT, "run/checkpoint-5: no sheaf.json, so it is not "
		  "a checkpoint of Sheaf" },
		{ recover, 1, SHEAF_EINVAL, "run: recovery needs a run that is open for writing" },
		{ metrics, 1, SHEAF_EINVAL, "run: not open for writing" },
		{ prune, 1, SHEAF_EINVAL, "run: pruning needs a run that is open for writing" },
		{ stage_under, 0, SHEAF_EINVAL, "run: saving step -1 needs a run that is open for "
		  "writing, and a step that is not negative" },
		{ stage_3, 1, SHEAF_EINVAL, "run: saving step 3 needs a run that is open for "
		  "writing, and a step that is not negative" },
		{ stage_2, 0, SHEAF_EEXIST, "run/checkpoint-2: exists; save another step, or "
		  "rewind the run" },
		{ stage_odd, 0, SHEAF_EINVAL, "run: a checkpoint cannot have a directory 'a/'" },
		{ copy_5, 1, SHEAF_EINVAL, copy }, { copy_nobodys, 0, SHEAF_EINVAL, copy },
		{ copy_under, 0, SHEAF_EINVAL, "run: a copy of step -1 needs a run that is open "
		  "for writing, and the session of the step" },
		{ copy_2, 0, SHEAF_EEXIST, "run/checkpoint-2: exists; save another step, or rewind "
		  "the run" },
		{ join_other, 1, SHEAF_EINVAL, "run: '6-@' is not a stage of step 5" },
		{ join_no_name, 1, SHEAF_EINVAL, "run: '5-x' is not a stage of step 5" },
		{ join_nothing, 1, SHEAF_EIO, "run/.sheaf/stage/5-@: the files of this save were "
		  "deleted from .sheaf/stage by another job or by hand; save again: No such file "
		  "or directory" },
		{ manifest_under, 1, SHEAF_EINVAL, "run: the step must not be negative" },
		{ proof_write, 0, SHEAF_EINVAL, proof }, { proof_read, 0, SHEAF_EINVAL, proof },
		{ proof_gone, 0, SHEAF_EINVAL, "run: a file that rank 0 has just written is not "
		  "visible to this rank; check that all nodes mount the same file system there" },
		{ lock_lost, 0, SHEAF_ELOST, "run: the lock file no longer names this job: it was "
			"overwritten or deleted; end this job, and see which other one writes" },
		{ lock_taken, 0, SHEAF_ELOST, "run: the lock was taken by pid 77 on there, session "
		  "@; end one of the two jobs" },
	};

	for (size_t i = 0; i < LENGTH(refusals); i++) {
		const struct refusal *r = &refusals[i];
		struct sheaf_error err = { 0 };
		struct world w;

		start(&w, 2);
		CHECK_RC(r->call(&w, &w.store[r->store], &err), r->rc, &err);
		is_said(&err, r->says);
		CHECK_INT(err.code, r->rc);
		CHECK_INT(r->call(&w, &w.store[r->store], NULL), r->rc);
		stop(&w);
	}
}

static int unmark(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_mark(s, 1, 0, err);
}

static int prune_all(struct world *w, struct shf_store *s, struct sheaf_error *err)
{
	(void)w;
	return shf_store_prune(s, &(struct shf_prune){ .keep_last = 1,
	                       .verified = { .step = 2 }, .keep = -1,
	                       .grace_s = -1 }, NULL, NULL, err);
}

/* He may not know it yet, and changes nothing that is the next one's by now. */
TEST(who_lost_the_lock_changes_nothing)
{
	static int (*const calls[])(struct world *, struct shf_store *, struct sheaf_error *) = {
		mark_k, unmark, rewind_it, prune_all };

	for (size_t i = 0; i < LENGTH(calls); i++)
		for (int how = 0; how < 3; how++) {
			struct world w;
			uint64_t was;

			start(&w, 2);
			CHECK_RC(world_mark(&w, 2, 'k'), 0, &w.err);
			if (how == 0)
				CHECK_RC(lock_taken(&w, &w.store[0], &w.err), SHEAF_ELOST, &w.err);
			else if (how == 1)
				put(&w, RUN "/.sheaf/lock", "");
			else
				CHECK_INT(simdisk_remove(w.disk, RUN "/.sheaf/lock"), 0);
			was = simdisk_hash(w.disk, "/");
			CHECK_RC(calls[i](&w, &w.store[0], &w.err), SHEAF_ELOST, &w.err);
			is_said(&w.err, how ? "run: the lock file no longer names this job: it was "
			        "overwritten or deleted; end this job, and see which other one "
			        "writes"
			        : "run: the lock was taken by pid 77 on there, session @; end one "
			                "of the two jobs");
			CHECK(simdisk_hash(w.disk, "/") == was);
			stop(&w);
		}
}

/* ---- what stands where a step is to be ---- */

TEST(what_stands_in_the_way_of_a_save_is_set_aside_or_stays)
{
	static const struct {
		const char *path, *text;        /* NULL: gone */
		int rc;
		bool aside;
	} cases[] = {
		{ "checkpoint-5/sheaf.sums", "x", 0, true }, { "checkpoint-5/x", "x", SHEAF_EEXIST,
		  false }, { "checkpoint-5", "x", SHEAF_EEXIST, false },
		{ "checkpoint-2/sheaf.json", NULL, 0, true },
		{ ".sheaf/marks/2", "b", 0, true }, { ".sheaf/marks/2", "k", SHEAF_EEXIST, false },
		{ ".sheaf/marks/2", "x", SHEAF_EEXIST, false },
		{ "checkpoint-2/config.json", NULL, SHEAF_EEXIST, false },
		{ ".sheaf/marks/5", "b", 0, false },
	};

	for (size_t i = 0; i < LENGTH(cases); i++) {
		int64_t step = strchr(cases[i].path, '5') ? 5 : 2;
		struct shf_list list;
		char path[100];
		struct world w;
		int aside = 0;

		start(&w, 2);
		put(&w, RUN "/.sheaf/tries/2-" ID, "1\n");
		snprintf(path, sizeof(path), RUN "/%s", cases[i].path);
		if (cases[i].text)
			put(&w, path, cases[i].text);
		else
			CHECK_INT(simdisk_remove(w.disk, path), 0);
		CHECK_RC(stage(&w.store[0], step, "model", &w.err), cases[i].rc, &w.err);
		CHECK_RC(shf_store_list(&w.store[0], &list, &w.err), 0, &w.err);
		for (size_t k = 0; k < list.n; k++)
			aside += list.entries[k].state == SHF_ASIDE && list.entries[k].step == step;
		shf_list_release(&list);
		CHECK_INT(aside, cases[i].aside);
		snprintf(path, sizeof(path), RUN "/checkpoint-%d", (int)step);
		CHECK(simdisk_exists(w.disk, path) == (cases[i].rc != 0));
		/* The mark of a number that is saved again is gone, and no other. */
		snprintf(path, sizeof(path), RUN "/.sheaf/marks/%d", (int)step);
		if (cases[i].rc == 0)
			CHECK(!simdisk_exists(w.disk, path));
		/* So are its tries, if it was bad. */
		CHECK(simdisk_exists(w.disk, RUN "/.sheaf/tries/2-" ID) == (i != 4));
		stop(&w);
	}
}

/* ---- opening ---- */

TEST(who_cannot_open_a_run_is_told_whose_it_is)
{
	const struct shf_sys *far;
	struct shf_store s;
	struct sheaf_error err;
	struct world w;
	char want[200], run[33];

	start(&w, 1);
	far = simdisk_process(w.disk, 321, 1);
	memcpy(run, w.store[0].run, sizeof(run));
	CHECK_RC(shf_store_open(&s, far, "nowhere", &err), SHEAF_ENOENT, &err);
	is_said(&err, "nowhere: no run directory here (SHEAF_RUN_CREATE makes one): No such file "
	        "or directory");
	CHECK_RC(shf_store_own(&s, far, "nowhere", false, 0, &err), SHEAF_ENOENT, &err);
	is_said(&err, "nowhere: no run directory here (SHEAF_RUN_CREATE makes one): No such file "
	        "or directory");
	put(&w, "/empty/notes", "");
	CHECK_RC(shf_store_own(&s, far, "/empty", false, 0, &err), SHEAF_ENOENT, &err);
	is_said(&err, "/empty: not a run: no checkpoint and no .sheaf in it (SHEAF_RUN_CREATE "
	        "makes it one)");
	CHECK_RC(shf_store_join(&s, far, RUN, ID "0", ID, &err), SHEAF_EINVAL, &err);
	is_said(&err, "run: run and session are not 32 hex digits");
	memset(&s, 'x', sizeof(s));
	CHECK_RC(shf_store_join(&s, far, RUN, ID, "x", &err), SHEAF_EINVAL, &err);
	is_said(&err, "run: run and session are not 32 hex digits");
	shf_store_close(&s);            /* may be done, and closes nothing */
	CHECK_RC(shf_store_join(&s, far, "/empty", ID, ID, &err), SHEAF_EINVAL, &err);
	is_said(&err, "/empty: this rank sees no run, but rank 0 opened run @; check that all "
	        "nodes mount the same file system there");
	CHECK_RC(shf_store_join(&s, far, RUN, ID, OTHER, &err), SHEAF_EINVAL, &err);
	snprintf(want, sizeof(want), "run: this rank sees %s, but rank 0 opened run " ID "; check "
	         "that all nodes mount the same file system there", run);
	CHECK_STR(err.msg, want);
	CHECK_RC(shf_store_own(&s, far, RUN, false, 0, &err), SHEAF_EBUSY, &err);
	snprintf(want, sizeof(want), "run: another job has the run open for writing: pid %llu on "
	         "%s, session %s; wait for it, or open with SHEAF_RUN_READONLY",
	         (unsigned long long)w.store[0].self.pid, w.store[0].self.host,
	         w.store[0].session);
	CHECK_STR(err.msg, want);
	CHECK_RC(shf_store_own(&s, w.proc[0], RUN, false, 0, &err), SHEAF_EBUSY, &err);
	snprintf(want, sizeof(want), "run: this process (pid %llu) has the run open for writing "
	         "already; close that first, or open with SHEAF_RUN_READONLY",
	         (unsigned long long)w.store[0].self.pid);
	CHECK_STR(err.msg, want);
	put(&w, RUN "/.sheaf/lock", "");
	CHECK_RC(shf_store_own(&s, far, RUN, false, 0, &err), SHEAF_EBUSY, &err);
	is_said(&err, "run: another job has the run open for writing, and its lock does not say "
	        "which; wait for it, or open with SHEAF_RUN_READONLY");
	stop(&w);
}

/* Each directory on the way to a step is synced; one that the file system cannot sync is none of
 * ours to complain of, and the one above the run may be read-only. */
TEST(a_directory_that_cannot_be_synced_is_told_by_whose_it_is)
{
	static const int errors[] = { EIO, EINVAL, ENOTSUP, EROFS, ENOSPC };
	static const char ours[] = "run: fsync of the directory: ";
	static const char above[] = "run: fsync of the directory above: ";

	for (size_t i = 0; i < LENGTH(errors); i++)
		for (int nth = 1; nth <= 4; nth++) {    /* stage, .sheaf, the run, above */
			bool none = errors[i] == EINVAL || errors[i] == ENOTSUP;
			bool fails = !none && (nth < 4 || errors[i] != EROFS);
			struct shf_store s;
			struct sheaf_error err;
			struct world w;
			char want[200];

			start(&w, 1);
			world_close(&w);
			/* The first fsync is of the lock's text. */
			simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = nth + 1,
				.error = errors[i], .kind = SIMDISK_FSYNC });
			CHECK_RC(shf_store_own(&s, simdisk_process(w.disk, 321, 0), RUN, false, 0,
			                       &err), fails ? SHEAF_EIO : 0, &err);
			CHECK_INT(simdisk_fired(w.disk), 1);
			if (fails) {
				snprintf(want, sizeof(want), "%s%s", nth < 4 ? ours : above,
				         strerror(errors[i]));
				CHECK_STR(err.msg, want);
				CHECK_INT(err.sys, errors[i]);
			} else {
				CHECK_INT(s.no_dir_fsync, none && nth < 4);
			}
			shf_store_close(&s);
			simdisk_free(w.disk);
		}
}

/* He asks, sleeps 1, 2, 4 ms and so on up to 100, and gives up when his time is over. */
TEST(who_waits_for_a_lock_waits_so_long_and_no_longer)
{
	static const int waits[] = { 0, 1, 2, 3, 5, 63, 64, 127, 128, 227, 228, 1000 };
	static const int asks[] = { 1, 2, 3, 3, 4, 7, 8, 8, 9, 9, 10, 17 };

	for (size_t i = 0; i < LENGTH(waits); i++) {
		struct shf_store s;
		struct sheaf_error err;
		struct world w;
		int64_t from;
		size_t calls, n = 0;

		start(&w, 1);
		from = simdisk_clock_ms(w.disk);
		calls = simdisk_calls(w.disk);
		CHECK_RC(shf_store_own(&s, simdisk_process(w.disk, 321, 1), RUN, false, waits[i],
		                       &err), SHEAF_EBUSY, &err);
		CHECK_INT(simdisk_clock_ms(w.disk) - from, waits[i]);
		for (; calls < simdisk_calls(w.disk); calls++)
			n += strstr(simdisk_call_text(w.disk, calls), "\"door\"") != NULL;
		CHECK_INT(n, asks[i]);
		stop(&w);
	}
}

/* ---- which step is the latest ---- */

static char said[1000];

static void hear_line(void *arg, int level, const char *line)
{
	(void)arg;
	snprintf(said + strlen(said), sizeof(said) - strlen(said), "%d %s;", level, line);
}

TEST(what_latest_passes_over_and_where_it_ends_is_said)
{
	static const struct {
		const char *path, *text;        /* of what is changed, in a run of steps 1 to 3 */
		int rc;
		int64_t step;
		const char *says, *lines;
	} cases[] = {
		{ NULL, NULL, 0, 3, "", "" },
		{ ".sheaf/marks/3", "b", 0, 2, "", "1 run/checkpoint-3: skipped: marked bad;" },
		{ ".sheaf/marks/3", "x", SHEAF_ECORRUPT, 3, "run/.sheaf/marks/3: not a valid mark; "
		  "mark step 3 again", "" },
		{ "checkpoint-7/weights", "x", 0, 3, "", "1 run/checkpoint-7: skipped: has no "
		  "manifest, so it is not a checkpoint;" },
		{ "checkpoint-3/config.json", "", SHEAF_ECORRUPT, 3, "step 3, the latest, is "
		  "damaged: run/checkpoint-3/config.json: has 0 bytes, the manifest says 60 (sheaf "
		  "rewind run@2 goes back to the step before it)", "" },
		{ "checkpoint-3/sheaf.json", "", SHEAF_ECORRUPT, 3, NULL, "" },
	};

	for (size_t i = 0; i < LENGTH(cases); i++) {
		struct sheaf_error err = { 0 };
		struct world w;
		int64_t step = -1;
		char path[100];
		int rc;

		start(&w, 3);
		(void)simdisk_remove(w.disk, RUN "/checkpoint-90");
		(void)simdisk_remove(w.disk, RUN "/checkpoint-91");
		snprintf(path, sizeof(path), RUN "/%s", cases[i].path ? cases[i].path : "notes");
		put(&w, path, cases[i].text ? cases[i].text : "");
		said[0] = '\0';
		rc = shf_store_latest(&w.store[1], &step, hear_line, NULL, &err);
		CHECK_RC(rc, cases[i].rc, &err);
		CHECK_INT(step, rc < 0 ? -1 : cases[i].step);
		if (cases[i].says)
			CHECK_STR(err.msg, cases[i].says);
		CHECK_STR(said, cases[i].lines);
		step = -1;
		CHECK_INT(shf_store_latest(&w.store[1], &step, NULL, NULL, NULL), rc);
		stop(&w);
	}
}

/* ---- a new run ---- */

/* What was made and synced of the way to a run, before the run itself was opened. */
static void way_to(struct simdisk *disk, char way[400])
{
	way[0] = '\0';
	for (size_t i = 0; i < simdisk_calls(disk); i++) {
		const char *text = simdisk_call_text(disk, i) + 2, *name = strchr(text, '(') + 1;

		if (strstr(text, "\".sheaf\""))
			return;
		if (strncmp(text, "mkdir(cwd, ", 11) == 0 && strstr(text, " = 0"))
			snprintf(way + strlen(way), 100, "%.*s made, ",
			         (int)strcspn(text + 12, "\""), text + 12);
		else if (strncmp(text, "fsync(", 6) == 0)
			snprintf(way + strlen(way), 100, "%.*s synced, ", (int)strcspn(name, ","),
			         name);
	}
}

TEST(each_directory_on_the_way_to_a_new_run_is_durable_in_the_one_above)
{
	static const struct {
		const char *path, *way;
	} ways[] = {
		{ "/new", "/new made, / synced, " }, { "new", "new made, / synced, " },
		{ "./new", "./new made, / synced, " }, { "new///", "new/// made, / synced, " },
		{ "old/new", "old/new made, old synced, " },
		{ "/old//new/", "/old//new/ made, old synced, " },
		{ "a/b", "a made, / synced, a/b made, a synced, " },
		{ "/a/b/", "/a made, / synced, /a/b made, a synced, " },
		{ "a//b", "a made, / synced, a//b made, a synced, " },
		{ "old/a/b", "old/a made, old synced, old/a/b made, a synced, " },
		{ "/", "" }, { "old", "" },
	};

	for (size_t i = 0; i < LENGTH(ways); i++) {
		struct simdisk *disk = simdisk_new(3, SIMDISK_STRICT), *cut;
		const struct shf_sys *sys = simdisk_process(disk, 1, 0);
		struct sheaf_error err;
		struct shf_store s;
		char way[400], path[100];

		CHECK_INT(simdisk_put(disk, "/old/x", "x", 1), 0);
		simdisk_settle(disk);
		CHECK_RC(shf_store_own(&s, sys, ways[i].path, true, 0, &err), 0, &err);
		CHECK_STR(s.path, ways[i].path);
		way_to(disk, way);
		CHECK_STR(way, ways[i].way);
		cut = simdisk_crash(disk, simdisk_cut_n(disk) - 1, NULL);
		snprintf(path, sizeof(path), "%s/.sheaf/run", ways[i].path);
		CHECK(simdisk_exists(cut, path));
		simdisk_free(cut);
		shf_store_close(&s);
		simdisk_free(disk);
	}
}

/* What cannot be made above may be there all the same; if not, its error is the reason. */
TEST(why_a_new_run_cannot_be_made_is_told)
{
	static const struct {
		int nth, error, rc;     /* of the mkdirs, the first of which is of all of it */
		const char *path, *says;
	} cases[] = {
		{ 1, EACCES, SHEAF_EIO, "new", "new: creating the run directory: Permission "
		  "denied" },
		{ 1, EACCES, SHEAF_EIO, "a/new",
		  "a/new: creating the run directory: Permission denied" },
		{ 3, EACCES, SHEAF_EIO, "a/new",
		  "a/new: creating the run directory: Permission denied" },
		{ 2, EROFS, SHEAF_EIO, "a/new",
		  "a/new: creating the run directory: Read-only file system" },
		{ 3, ENOSPC, SHEAF_EIO, "a/b/new",
		  "a/b/new: creating the run directory: No space left on device" },
		{ 2, EACCES, 0, "old/a/new", NULL },
	};

	for (size_t i = 0; i < LENGTH(cases); i++) {
		struct simdisk *disk = simdisk_new(3, SIMDISK_STRICT);
		const struct shf_sys *sys = simdisk_process(disk, 1, 0);
		struct sheaf_error err = { 0 };
		struct shf_store s;

		CHECK_INT(simdisk_put(disk, "/old/x", "x", 1), 0);
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = cases[i].nth,
			.error = cases[i].error, .kind = SIMDISK_MKDIR });
		CHECK_RC(shf_store_own(&s, sys, cases[i].path, true, 0, &err), cases[i].rc, &err);
		if (cases[i].says)
			CHECK_STR(err.msg, cases[i].says);
		shf_store_close(&s);
		simdisk_free(disk);
	}
}

TEST(remains_that_cannot_be_moved_for_good_are_told)
{
	for (int nth = 1; nth <= 2; nth++) {
		struct world w;

		start(&w, 1);
		put(&w, RUN "/checkpoint-5/sheaf.sums", "x");
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
			.kind = SIMDISK_FSYNC });
		CHECK_RC(stage(&w.store[0], 5, "model", &w.err), SHEAF_EIO, &w.err);
		is_said(&w.err, "run: fsync of the directory after moving the remains of "
		        "checkpoint-5: Input/output error");
		stop(&w);
	}
}

/* Whether a step had a manifest cannot be told then, so nobody is told to start afresh. */
TEST(a_disk_that_does_not_say_what_a_step_had_is_told_by_file)
{
	int64_t step;
	struct world w;

	start(&w, 1);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-1/sheaf.json"), 0);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-90"), 0);
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-91"), 0);
	CHECK_RC(shf_store_latest(&w.store[1], &step, NULL, NULL, &w.err), SHEAF_ECORRUPT, &w.err);
	is_said(&w.err, "run: no checkpoint has its sheaf.json, but 1 had one, the newest is "
	        "checkpoint-1 (sheaf recover run lists them; restore sheaf.json from a copy, or "
	        "open a new run directory)");
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 3, .error = EIO,
		.kind = SIMDISK_STAT, .name = "sheaf.sums" });
	CHECK_RC(shf_store_latest(&w.store[1], &step, NULL, NULL, &w.err), SHEAF_EIO, &w.err);
	is_said(&w.err, "run/checkpoint-1/sheaf.sums: Input/output error");
	CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-1"), 0);
	simdisk_faults_clear(w.disk);
	CHECK_RC(shf_store_latest(&w.store[1], &step, NULL, NULL, &w.err), SHEAF_ENOENT, &w.err);
	is_said(&w.err, "run: has no checkpoint");
	stop(&w);
}

/* A step that holds a run of its own is damaged: it has more than its manifest says. */
TEST(no_run_is_made_in_a_step)
{
	struct shf_store s;
	struct world w;

	start(&w, 1);
	CHECK_RC(shf_store_own(&s, w.proc[1], RUN "/checkpoint-1", true, 0, &w.err), SHEAF_EINVAL,
	         &w.err);
	is_said(&w.err, "run/checkpoint-1: is a checkpoint, and no run is made inside one; name "
	        "another directory");
	CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-1/.sheaf"));
	shf_store_close(&s);
	stop(&w);
}
