/* SPDX-License-Identifier: Apache-2.0 */
/* The run directory as a person meets it: what is listed, what is the newest, what a hand in the
 * directory may do, who gets the lock. What goes and what stays is test_prune's, power cuts are
 * test_commit's. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include "aside.h"
#include "lock.h"
#include "manifest_read.h"
#include "marks.h"
#include "publish.h"
#include "recover.h"
#include "simover.h"
#include "lived.h"
#include "prune_steps.h"

TEST(list_shows_steps_foreign_aside_and_staged)
{
	struct shf_entry e;
	struct world w;
	char path[96];

	start(&w, 3);
	CHECK_RC(shf_store_rewind(&w.store[0], 2, &w.err), 0, &w.err);
	CHECK_RC(world_write(&w, 9), 0, &w.err);
	CHECK_INT(state_of(&w.store[0], 1, &e), 'C');
	CHECK_INT(e.parent, -1);
	CHECK_INT(e.bytes, 5000 + 900 + 60 + 200);
	CHECK_STR(e.path, "checkpoint-1");
	CHECK_STR(e.created, "2026-01-31T12:00:00Z");
	CHECK_INT(e.tries, 0);
	CHECK_INT(state_of(&w.store[0], 2, &e), 'C');
	CHECK_INT(e.parent, 1);
	CHECK_STR(e.parent_session, w.known[0].session);
	CHECK_INT(state_of(&w.store[0], 3, &e), 'A');
	snprintf(path, sizeof(path), ".sheaf/aside/3-%s", w.known[2].session);
	CHECK_STR(e.path, path);
	CHECK_INT(state_of(&w.store[0], 9, &e), 'S');
	CHECK_STR(e.session, w.known[3].session);
	CHECK_INT(state_of(&w.store[0], 90, NULL), 'F');
	CHECK_INT(state_of(&w.store[0], 91, NULL), 'F');
	CHECK_INT(state_of(&w.store[0], 7, NULL), '-');
	for (int i = WRITERS - 1; i >= 0; i--)
		i ? shf_stage_close(&w.store[i], &w.stage[i])
		  : shf_stage_discard(&w.store[0], &w.stage[0]);
	CHECK_INT(state_of(&w.store[0], 9, NULL), '-');
	stop(&w);
}

TEST(a_step_touched_by_hand_is_gone_or_damaged_and_stops_nobody)
{
	static const char *const hurt[] = { "/sheaf.sums", "/config.json", "/optimizer",
		"/model-00001-of-00001.safetensors", "/sheaf.json", "" };
	static const char expect[] = "DDDDD-";

	for (size_t i = 0; i < 6; i++) {
		struct world w;
		int64_t step = -1;
		char path[100];

		start(&w, 3);
		snprintf(path, sizeof(path), RUN "/checkpoint-2%s", hurt[i]);
		CHECK_INT(simdisk_remove(w.disk, path), 0);
		world_close(&w);
		CHECK_RC(world_open(&w, false), 0, &w.err);
		CHECK_INT(state_of(&w.store[0], 2, NULL), expect[i]);
		CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), 0, &w.err);
		CHECK_INT(step, 3);
		CHECK_RC(world_save(&w, 4, 3), 0, &w.err);
		/* The chain of parents is cut or unsure: nothing beyond it goes. */
		CHECK(world_prune(&w, 1, 4, -1) <= 2);
		CHECK(simdisk_exists(w.disk, RUN "/checkpoint-4"));
		stop(&w);
	}
}

TEST(latest_is_the_newest_good_step_and_never_falls_back_over_damage)
{
	struct world w;
	int64_t step = -1;

	start(&w, 3);
	CHECK_RC(world_mark(&w, 3, 'b'), 0, &w.err);
	CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), 0, &w.err);
	CHECK_INT(step, 2);
	CHECK_INT(simdisk_put(w.disk, RUN "/checkpoint-2/config.json", "x", 1), 0);
	CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), SHEAF_ECORRUPT, &w.err);
	CHECK(strstr(w.err.msg, "step 2, the latest, is damaged"));     /* 3 is newer */
	CHECK(strstr(w.err.msg, "config.json"));
	CHECK_RC(world_mark(&w, 2, 'b'), 0, &w.err);
	CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), 0, &w.err);
	CHECK_INT(step, 1);
	CHECK_RC(world_mark(&w, 1, 'b'), 0, &w.err);
	CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), SHEAF_ECORRUPT, &w.err);
	CHECK(strstr(w.err.msg, "step 3 is marked bad"));
	CHECK_RC(world_mark(&w, 3, 0), 0, &w.err);
	CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), 0, &w.err);
	CHECK_INT(step, 3);
	CHECK_RC(shf_store_mark(&w.store[0], 77, 'k', &w.err), SHEAF_ENOENT, &w.err);
	CHECK_RC(shf_store_mark(&w.store[0], 1, 'x', &w.err), SHEAF_EINVAL, &w.err);
	stop(&w);
}

/* A person moves checkpoints to an archive and links to them. What a run does not follow may be its
 * newest checkpoint, so no older one is loaded instead, and the run does not count as empty. */
TEST(a_link_with_the_name_of_a_step_stops_the_search)
{
	for (int there = 0; there < 2; there++) {
		struct world w;
		int64_t step = -1;

		start(&w, 3);
		CHECK_INT(simdisk_symlink(w.disk, there ? "checkpoint-3" : "archive/9",
		                          RUN "/checkpoint-9"), 0);
		CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), SHEAF_ECORRUPT,
		         &w.err);
		CHECK(strstr(w.err.msg, RUN "/checkpoint-9: is a symbolic link, which a run does"));
		CHECK_INT(simdisk_remove(w.disk, RUN "/checkpoint-9"), 0);
		CHECK_RC(shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err), 0, &w.err);
		CHECK_INT(step, 3);
		stop(&w);
	}
}

/* A disk that does not answer says nothing about the step: not that it is damaged, and not that
 * another, or the one that is marked bad, is the newest good one. */
TEST(latest_is_told_or_cannot_be_read_and_is_never_called_damaged_for_that)
{
	static const int errors[] = { EIO, EACCES, ESTALE, EMFILE };
	size_t told = 0, refused = 0;

	for (size_t k = 0; k < sizeof(errors) / sizeof(errors[0]); k++)
		for (int nth = 1, fired = 1; fired; nth++) {
			struct world w;
			int64_t step = -1;
			int rc;

			start(&w, 3);
			CHECK_RC(world_mark(&w, 3, 'b'), 0, &w.err);
			simdisk_faults_clear(w.disk);
			simdisk_fail_at(w.disk, nth, errors[k]);
			rc = shf_store_latest(&w.store[0], &step, NULL, NULL, &w.err);
			fired = simdisk_fired(w.disk);
			CHECK_RC(rc, rc ? SHEAF_EIO : 0, &w.err);
			CHECK_INT(step, rc ? -1 : 2);
			told += rc == 0;
			refused += rc != 0;
			simdisk_faults_clear(w.disk);
			stop(&w);
		}
	print_message("# a call refused: %zu told, %zu could not tell\n", told, refused);
	CHECK(refused > 20);
}

TEST(a_list_calls_no_step_damaged_that_it_could_not_read)
{
	static const int errors[] = { EIO, EACCES, ESTALE };
	size_t unread = 0;

	for (size_t k = 0; k < sizeof(errors) / sizeof(errors[0]); k++)
		for (int nth = 1, fired = 1; fired; nth++) {
			struct shf_list list;
			struct world w;
			int rc;

			start(&w, 2);
			simdisk_faults_clear(w.disk);
			simdisk_fail_at(w.disk, nth, errors[k]);
			rc = shf_store_list(&w.store[0], &list, &w.err);
			fired = simdisk_fired(w.disk);
			for (size_t i = 0; i < list.n && rc == 0; i++) {
				const struct shf_entry *e = &list.entries[i];

				CHECK(e->state != SHF_DAMAGED || e->unread);
				unread += e->unread;
			}
			shf_list_release(&list);
			simdisk_faults_clear(w.disk);
			stop(&w);
		}
	CHECK(unread > 10);
}

TEST(a_flipped_bit_in_a_manifest_is_damage)
{
	struct shf_entry e = { 0 };
	struct world w;
	size_t n = 0;
	char *text;

	start(&w, 1);
	text = simdisk_get(w.disk, RUN "/checkpoint-1/sheaf.json", &n);
	free(text);
	for (uint64_t bit = 0; bit < 8 * n; bit += 37) {
		CHECK_INT(simdisk_flip(w.disk, RUN "/checkpoint-1/sheaf.json", bit), 0);
		CHECK_INT(state_of(&w.store[0], 1, &e), 'D');
		CHECK(!e.unread);
		CHECK_INT(simdisk_flip(w.disk, RUN "/checkpoint-1/sheaf.json", bit), 0);
	}
	CHECK_INT(state_of(&w.store[0], 1, NULL), 'C');
	stop(&w);
}

TEST(a_step_of_another_number_or_run_is_damaged_by_number)
{
	struct shf_arena arena = { NULL, 0 };
	const struct shf_sys *sys;
	struct shf_manifest m;
	struct world w;
	int fd;

	start(&w, 2);
	sys = w.proc[0];
	fd = w.store[0].dir;
	CHECK_INT(shf_sys_rename(sys, fd, "checkpoint-2", fd, "checkpoint-5", true), 0);
	CHECK_INT(state_of(&w.store[0], 5, NULL), 'D');
	CHECK_RC(shf_store_manifest(&w.store[0], 5, &m, &arena, &w.err), SHEAF_ECORRUPT, &w.err);
	CHECK_RC(shf_store_manifest(&w.store[0], 2, &m, &arena, &w.err), SHEAF_ENOENT, &w.err);
	CHECK_RC(shf_store_manifest(&w.store[0], 90, &m, &arena, &w.err), SHEAF_EFORMAT, &w.err);
	CHECK_RC(shf_store_manifest(&w.store[0], 1, &m, &arena, &w.err), 0, &w.err);
	shf_arena_release(&arena);
	world_close(&w);
	/* .sheaf lost by hand: the run keeps the name that its steps know. */
	CHECK_INT(simdisk_remove(w.disk, RUN "/.sheaf"), 0);
	CHECK_RC(world_open(&w, false), 0, &w.err);
	CHECK_INT(state_of(&w.store[0], 1, NULL), 'C');
	stop(&w);
}

TEST(a_mistyped_path_is_enoent_and_makes_nothing)
{
	struct simdisk *disk = simdisk_new(1, SIMDISK_STRICT);
	const struct shf_sys *sys = simdisk_process(disk, 1, 0);
	struct shf_store s;
	struct sheaf_error err;
	uint64_t before = simdisk_hash(disk, "/");

	CHECK_RC(shf_store_own(&s, sys, "no/run", false, 0, &err), SHEAF_ENOENT, &err);
	CHECK_RC(shf_store_open(&s, sys, "no/run", &err), SHEAF_ENOENT, &err);
	CHECK(before == simdisk_hash(disk, "/"));
	CHECK_RC(shf_store_own(&s, sys, "no/run", true, 0, &err), 0, &err);
	shf_store_close(&s);
	shf_store_close(&s);
	/* A directory that is no run is left as it is, too. */
	CHECK_RC(shf_store_own(&s, sys, "no", false, 0, &err), SHEAF_ENOENT, &err);
	CHECK(!simdisk_exists(disk, "no/.sheaf"));
	CHECK_RC(shf_store_open(&s, sys, "no", &err), 0, &err);
	CHECK_INT(s.dot, -1);
	shf_store_close(&s);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
}

TEST(the_lock_is_exclusive_and_names_its_holder)
{
	const struct shf_sys *other;
	struct shf_store s;
	struct world w;

	start(&w, 0);
	other = simdisk_process(w.disk, 321, 1);
	CHECK_RC(shf_store_own(&s, other, RUN, true, 1000, &w.err), SHEAF_EBUSY, &w.err);
	CHECK(strstr(w.err.msg, w.store[0].session) && strstr(w.err.msg, "pid 100"));
	CHECK_INT(simdisk_open_n(other), 0);
	world_kill(&w);
	CHECK_RC(shf_store_own(&s, other, RUN, true, 1000, &w.err), 0, &w.err);
	CHECK_STR(s.prev_session[0] ? "known" : "", "known");
	CHECK_INT(s.prev.pid, 100);
	shf_store_close(&s);
	simdisk_free(w.disk);
}

TEST(recovery_takes_only_stages_of_the_proven_dead)
{
	struct world w, old;
	char path[200];

	start_stage(&w, path);
	old = w;
	/* The first node's processes die; a writer of the second node lives and holds its lock. */
	simdisk_kill(w.disk, w.proc[0]);
	simdisk_kill(w.disk, w.proc[1]);
	CHECK_RC(world_open(&w, false), 0, &w.err);
	CHECK(simdisk_exists(w.disk, path));
	world_close(&w);
	simdisk_kill(w.disk, old.proc[2]);
	simdisk_kill(w.disk, old.proc[3]);
	/* It is dead, but not provably from another node: after a day. */
	CHECK_RC(world_open(&w, false), 0, &w.err);
	CHECK(simdisk_exists(w.disk, path));
	world_close(&w);
	simdisk_advance(w.disk, 2 * 86400);
	CHECK_RC(world_open(&w, false), 0, &w.err);
	CHECK(!simdisk_exists(w.disk, path));
	for (int i = 0; i < WRITERS; i++)
		shf_store_close(&old.store[i]);
	stop(&w);
}

/* Containers: no process of the other one can be asked after, but its kernel is ours. */
TEST(a_kernel_that_let_go_of_the_lock_proves_the_dead_of_another_namespace)
{
	static const struct { bool one_kernel, locks, dies, gone; } cases[] = {
		{ true, true, true, true }, { true, true, false, false },
		{ false, true, true, false }, { true, false, true, false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct world w, old;
		char path[200];

		start(&w, 1);
		world_close(&w);
		simdisk_set_one_kernel(w.disk, cases[i].one_kernel);
		CHECK_RC(world_open(&w, false), 0, &w.err);
		CHECK_RC(world_write(&w, 2), 0, &w.err);
		snprintf(path, sizeof(path), RUN "/.sheaf/stage/%s", w.known[1].stage);
		old = w;
		simdisk_kill(w.disk, w.proc[0]);
		simdisk_kill(w.disk, w.proc[1]);
		if (cases[i].dies) {
			simdisk_kill(w.disk, w.proc[2]);
			simdisk_kill(w.disk, w.proc[3]);
		}
		simdisk_set_locks(w.disk, cases[i].locks);
		CHECK_RC(world_open(&w, false), 0, &w.err);
		CHECK(simdisk_exists(w.disk, path) == !cases[i].gone);
		for (int k = 0; k < WRITERS; k++) {
			shf_store_close(&old.store[k]);
			simdisk_kill(w.disk, old.proc[k]);
		}
		stop(&w);
	}
}

static struct {                 /* before it is locked first a hand makes the lock file anew */
	struct simdisk *disk;
	int locks;                      /* of what has that name */
} swapped;

static bool is_lock_file(void *arg, int fd)
{
	struct shf_stat a, b;

	return simover_real()->file.fstat(arg, fd, &a) >= 0 &&
	       simover_real()->file.stat(arg, SHF_CWD, RUN "/.sheaf/lock", false, &b) >= 0 &&
	       a.ino == b.ino;
}

static int lock_of_a_file_made_anew(void *arg, int fd, bool exclusive)
{
	if (is_lock_file(arg, fd) && swapped.locks++ == 0) {
		CHECK_INT(simdisk_remove(swapped.disk, RUN "/.sheaf/lock"), 0);
		CHECK_INT(simdisk_put(swapped.disk, RUN "/.sheaf/lock", "", 0), 0);
	}
	return simover_real()->file.lock(arg, fd, exclusive);
}

/* A lock on a file that has no name any more keeps nobody out. */
TEST(a_lock_file_that_is_made_anew_meanwhile_is_locked_anew)
{
	const struct shf_sys *one, *other;
	struct shf_store s, t;
	struct world w;

	start(&w, 1);
	world_close(&w);
	one = simdisk_process(w.disk, 321, 0);
	other = simdisk_process(w.disk, 322, 0);
	swapped.disk = w.disk;
	swapped.locks = 0;
	simover(one)->file.lock = lock_of_a_file_made_anew;
	CHECK_RC(shf_store_own(&s, one, RUN, false, 1000, &w.err), 0, &w.err);
	CHECK_INT(swapped.locks, 2);
	CHECK(is_lock_file(one->file.arg, s.lock));
	CHECK_RC(shf_store_own(&t, other, RUN, false, 0, &w.err), SHEAF_EBUSY, &w.err);
	shf_store_close(&s);
	simdisk_free(w.disk);
}

/* A stage has no proof that its writers live until they made one, however long they take. */
TEST(a_stage_of_ones_own_is_not_taken_for_a_dead_jobs)
{
	struct shf_stage g = { .dir = -1, .alive = -1 };
	struct world w;
	char path[200];

	start(&w, 1);
	CHECK_RC(shf_stage_new(&w.store[0], &g, 2, NULL, &w.err), 0, &w.err);
	snprintf(path, sizeof(path), RUN "/.sheaf/stage/%s", g.name);
	simdisk_advance(w.disk, 2 * 86400);
	/* The lock's time is what a stage is old by. */
	CHECK_RC(shf_lock_write(&w.store[0], &w.err), 0, &w.err);
	CHECK_RC(shf_store_recover(&w.store[0], &w.err), 0, &w.err);
	CHECK(simdisk_exists(w.disk, path));
	shf_stage_discard(&w.store[0], &g);
	CHECK(!simdisk_exists(w.disk, path));
	stop(&w);
}

/* The disk of a power cut in the middle of a rename: the step has both its names. */
static struct simdisk *cut_in_a_rename(struct world *w, const char *stage)
{
	char path[240];

	snprintf(path, sizeof(path), "%.200s/sheaf.json", stage);
	for (size_t cut = simdisk_cut_n(w->disk); cut-- > 0;) {
		struct simdisk_sets s;
		struct simdisk *crashed = NULL;

		for (simdisk_sets_begin(&s, simdisk_unsynced(w->disk, cut), 7);
		     !crashed && simdisk_sets_next(&s);) {
			crashed = simdisk_crash(w->disk, cut,
			                        &(struct simdisk_choice){ .kept = s.kept });
			if (!simdisk_exists(crashed, path) ||
			    !simdisk_exists(crashed, RUN "/checkpoint-2/sheaf.json")) {
				simdisk_free(crashed);
				crashed = NULL;
			}
		}
		simdisk_sets_end(&s);
		if (crashed)
			return crashed;
	}
	return NULL;
}

TEST(a_stage_that_is_a_published_step_too_is_not_discarded)
{
	struct shf_stage g = { .dir = -1, .alive = -1, .step = 2 };
	struct simdisk *crashed;
	struct shf_store s;
	struct world w;
	char path[200];

	start_stage(&w, path);
	CHECK_RC(world_publish(&w, 2, 1), 0, &w.err);
	crashed = cut_in_a_rename(&w, path);
	CHECK(crashed != NULL);
	CHECK_RC(shf_store_own(&s, simdisk_process(crashed, 400, 0), RUN, false, 0, &w.err), 0,
	         &w.err);
	snprintf(g.name, sizeof(g.name), "%s", w.known[1].stage);
	shf_stage_discard(&s, &g);
	CHECK(simdisk_exists(crashed, RUN "/checkpoint-2/sheaf.json"));
	CHECK_INT(state_of(&s, 2, NULL), 'C');
	shf_store_close(&s);
	simdisk_free(crashed);
	stop(&w);
}

TEST(each_save_has_a_session_of_its_own)
{
	struct world w;

	start(&w, 3);
	CHECK_RC(world_rewind(&w, 1), 0, &w.err);
	CHECK_RC(world_save(&w, 2, 1), 0, &w.err);      /* the same job, the same number */
	CHECK_INT(w.known_n, 4);
	for (size_t i = 0; i < w.known_n; i++) {
		CHECK(strncmp(w.known[i].session, w.store[0].session, 16) == 0);
		for (size_t k = 0; k < i; k++)
			CHECK(strcmp(w.known[i].session, w.known[k].session) != 0);
	}
	stop(&w);
}

TEST(a_mark_does_not_pass_to_a_new_step_of_that_number)
{
	struct shf_entry e;
	struct world w;

	start(&w, 3);
	CHECK_RC(shf_store_mark(&w.store[0], 3, 'b', &w.err), 0, &w.err);
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);      /* the bad one is set aside */
	CHECK_INT(state_of(&w.store[0], 3, &e), 'C');
	CHECK_INT(e.mark, 0);
	CHECK_RC(shf_store_mark(&w.store[0], 3, 'k', &w.err), 0, &w.err);
	CHECK_RC(world_save(&w, 3, 2), SHEAF_EEXIST, &w.err);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	CHECK_INT(state_of(&w.store[0], 3, &e), 'C');
	CHECK_INT(e.mark, 0);
	CHECK_RC(shf_store_rewind(&w.store[0], 8, &w.err), SHEAF_ENOENT, &w.err);
	CHECK_RC(shf_store_rewind(&w.store[0], 90, &w.err), SHEAF_EFORMAT, &w.err);
	stop(&w);
}

TEST(a_stale_journal_leaves_steps_saved_later_alone)
{
	struct world w;
	char *journal;
	size_t n = 0;

	start(&w, 3);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 3, .kind = SIMDISK_RENAME,
	                                               .error = EIO });
	CHECK_RC(shf_store_rewind(&w.store[0], 2, &w.err), SHEAF_EIO, &w.err);
	simdisk_faults_clear(w.disk);
	journal = simdisk_get(w.disk, RUN "/.sheaf/rewind", &n);
	CHECK(journal != NULL);
	CHECK_RC(world_rewind(&w, 2), 0, &w.err);
	CHECK(!simdisk_exists(w.disk, RUN "/.sheaf/rewind"));
	CHECK_RC(world_save(&w, 3, 2), 0, &w.err);
	CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/rewind", journal, n), 0);
	world_close(&w);
	CHECK_RC(world_open(&w, false), 0, &w.err);
	CHECK_INT(state_of(&w.store[0], 3, NULL), 'C');
	CHECK(!simdisk_exists(w.disk, RUN "/.sheaf/rewind"));
	/* A journal that is none is for a person to judge. */
	CHECK_INT(simdisk_put(w.disk, RUN "/.sheaf/rewind", journal, n - 3), 0);
	world_close(&w);
	CHECK_RC(world_open(&w, false), SHEAF_ECORRUPT, &w.err);
	free(journal);
	stop(&w);
}

TEST(a_proof_is_seen_through_the_same_directory_only)
{
	static const char token[33] = "0123456789abcdef0123456789abcdef";
	static const char wrong[33] = "0123456789abcdef0123456789abcdee";
	const struct shf_sys *sys;
	struct shf_store s;
	struct world w;

	start(&w, 0);
	CHECK_RC(shf_store_proof_write(&w.store[0], token, &w.err), 0, &w.err);
	CHECK_RC(shf_store_proof_read(&w.store[3], token, &w.err), 0, &w.err);
	CHECK_RC(shf_store_proof_read(&w.store[3], wrong, &w.err), SHEAF_EINVAL, &w.err);
	shf_store_proof_remove(&w.store[0], token);
	CHECK_RC(shf_store_proof_read(&w.store[3], token, &w.err), SHEAF_EINVAL, &w.err);
	sys = simdisk_process(w.disk, 55, 0);
	CHECK_RC(shf_store_own(&s, sys, "other", true, 0, &w.err), 0, &w.err);
	shf_store_close(&s);
	CHECK_RC(shf_store_join(&s, sys, "other", w.store[0].run, w.store[0].session, &w.err),
	         SHEAF_EINVAL, &w.err);
	stop(&w);
}

TEST(a_stage_that_is_not_as_its_writers_say_is_not_published)
{
	static const char *const wrong[] = { "config.json", "extra", "optimizer/extra" };

	for (size_t i = 0; i < 4; i++) {
		struct world w;
		char path[200];

		start(&w, 0);
		CHECK_RC(world_write(&w, 1), 0, &w.err);
		snprintf(path, sizeof(path), RUN "/.sheaf/stage/%s/%s", w.known[0].stage,
		         i < 3 ? wrong[i] : "sheaf.sums");
		if (i < 3)
			CHECK_INT(simdisk_put(w.disk, path, "no", 2), 0);
		else
			CHECK_INT(simdisk_remove(w.disk, path), 0);
		CHECK_RC(world_publish(&w, 1, -1), SHEAF_EIO, &w.err);
		snprintf(path, sizeof(path), RUN "/.sheaf/stage/%s/%s", w.known[0].stage,
		         i < 3 ? wrong[i] : "sheaf.sums");
		CHECK(strstr(w.err.msg, path));
		shf_stage_discard(&w.store[0], &w.stage[0]);
		for (int k = 1; k < WRITERS; k++)
			shf_stage_close(&w.store[k], &w.stage[k]);
		CHECK(!simdisk_exists(w.disk, RUN "/checkpoint-1"));
		stop(&w);
	}
}

TEST(a_file_system_without_directory_fsync_is_noted_in_the_manifest)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	struct world w;

	for (int works = 0; works < 2; works++) {
		struct simdisk *disk = simdisk_new(7, SIMDISK_STRICT);

		simdisk_set_dir_fsync(disk, works);
		world_init(&w, disk);
		CHECK_RC(world_open(&w, true), 0, &w.err);
		CHECK_RC(world_save(&w, 1, -1), 0, &w.err);
		CHECK_RC(shf_store_manifest(&w.store[0], 1, &m, &arena, &w.err), 0, &w.err);
		CHECK(m.no_dir_fsync == !works);
		shf_arena_release(&arena);
		arena = (struct shf_arena){ NULL, 0 };
		stop(&w);
	}
}

TEST(a_committed_run_opens_for_reading_without_writing_a_byte)
{
	struct world w;
	struct shf_store s;
	int64_t step = -1;
	uint64_t before;

	start(&w, 2);
	world_close(&w);
	before = simdisk_hash(w.disk, "/");
	simdisk_set_read_only(w.disk, true);
	CHECK_RC(shf_store_open(&s, w.proc[0], RUN, &w.err), 0, &w.err);
	CHECK_RC(shf_store_latest(&s, &step, NULL, NULL, &w.err), 0, &w.err);
	CHECK_INT(step, 2);
	CHECK_INT(state_of(&s, 1, NULL), 'C');
	shf_store_close(&s);
	CHECK_RC(shf_store_own(&s, w.proc[0], RUN, false, 0, &w.err), SHEAF_EIO, &w.err);
	CHECK(before == simdisk_hash(w.disk, "/"));
	simdisk_free(w.disk);
}

TEST(names_that_are_not_canonical_are_nobodys)
{
	static const char *const names[] = { "checkpoint-01", "checkpoint-", "checkpoint--1",
		"checkpoint-1x", "checkpoint-9223372036854775808", "Checkpoint-1",
		"checkpoint-+1" };
	struct shf_list list;
	struct world w;
	char path[100];

	start(&w, 1);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), RUN "/%s/sheaf.json", names[i]);
		CHECK_INT(simdisk_put(w.disk, path, "x", 1), 0);
	}
	CHECK_INT(simdisk_symlink(w.disk, "checkpoint-1", RUN "/checkpoint-8"), 0);
	CHECK_RC(shf_store_list(&w.store[0], &list, &w.err), 0, &w.err);
	CHECK_INT(list.n, 4);                           /* 1, the link, 90 and 91 */
	CHECK_INT(list.entries[1].state, SHF_FOREIGN);
	shf_list_release(&list);
	stop(&w);
}

/* Allocations of the store, the nth of which fails (linked with --wrap). */
static long alloc_n, alloc_fails;

static bool lacks(void)
{
	return ++alloc_n == alloc_fails;
}

void *__real_shf_alloc(size_t n, size_t size);
void *__wrap_shf_alloc(size_t n, size_t size);
void *__wrap_shf_alloc(size_t n, size_t size)
{
	return lacks() ? NULL : __real_shf_alloc(n, size);
}
void *__real_shf_zalloc(size_t n, size_t size);
void *__wrap_shf_zalloc(size_t n, size_t size);
void *__wrap_shf_zalloc(size_t n, size_t size)
{
	return lacks() ? NULL : __real_shf_zalloc(n, size);
}
void *__real_shf_realloc(void *p, size_t n, size_t size);
void *__wrap_shf_realloc(void *p, size_t n, size_t size);
void *__wrap_shf_realloc(void *p, size_t n, size_t size)
{
	return lacks() ? NULL : __real_shf_realloc(p, n, size);
}
char *__real_shf_strdup(const char *s);
char *__wrap_shf_strdup(const char *s);
char *__wrap_shf_strdup(const char *s)
{
	return lacks() ? NULL : __real_shf_strdup(s);
}
uint8_t *__real_shf_buf_extend(struct shf_buf *b, size_t n);
uint8_t *__wrap_shf_buf_extend(struct shf_buf *b, size_t n);
uint8_t *__wrap_shf_buf_extend(struct shf_buf *b, size_t n)
{
	return lacks() ? NULL : __real_shf_buf_extend(b, n);
}
void __real_shf_buf_add(struct shf_buf *b, const void *bytes, size_t n);
void __wrap_shf_buf_add(struct shf_buf *b, const void *bytes, size_t n);
void __wrap_shf_buf_add(struct shf_buf *b, const void *bytes, size_t n)
{
	if (lacks())
		b->oom = true;
	__real_shf_buf_add(b, bytes, n);
}
void *__real_shf_arena_alloc(struct shf_arena *a, size_t n, size_t size);
void *__wrap_shf_arena_alloc(struct shf_arena *a, size_t n, size_t size);
void *__wrap_shf_arena_alloc(struct shf_arena *a, size_t n, size_t size)
{
	return lacks() ? NULL : __real_shf_arena_alloc(a, n, size);
}

static int act(struct world *w, int deed)
{
	struct shf_prune best = { .keep_last = 1, .keep_best = 1, .best_note = "loss",
		.verified.step = 3, .keep = -1, .grace_s = -1, .dry = true };
	struct shf_list list;
	int64_t step;
	int rc;

	switch (deed) {
	case 0:
		return world_save(w, 4, 3);
	case 1:
		return world_prune(w, 1, 3, -1);
	case 2:
		return world_rewind(w, 1);
	case 3:
		return world_mark(w, 2, 'k');
	case 4:
		rc = shf_store_list(&w->store[0], &list, &w->err);
		if (rc == 0)
			shf_list_release(&list);
		return rc;
	case 6:
		return shf_store_prune(&w->store[0], &best, NULL, NULL, &w->err);
	case 5:
		return shf_store_latest(&w->store[0], &step, NULL, NULL, &w->err);
	default:
		world_close(w);
		return world_open(w, false);
	}
}

TEST(each_allocation_may_fail)
{
	for (int deed = 0; deed < 8; deed++) {
		bool more = true;

		for (long nth = 1; more; nth++) {
			struct world w;
			char why[300];
			const char *bad;
			int rc;

			start(&w, 3);
			alloc_n = 0;
			alloc_fails = nth;
			rc = act(&w, deed);
			more = alloc_n >= nth;
			alloc_fails = 0;
			CHECK(rc >= 0 || rc == SHEAF_ENOMEM);
			world_close(&w);
			for (int i = 0; i < WRITERS; i++)
				CHECK_INT(simdisk_open_n(w.proc[i]), 0);
			CHECK_RC(world_open(&w, false), 0, &w.err);
			bad = oracle_judge(&w, w.disk, world_now(&w), true, NULL, why);
			if (bad)
				print_error("%d, allocation %ld (%d): %s\n", deed, nth, rc, bad);
			CHECK(!bad);
			stop(&w);
		}
	}
}

static void put(const struct shf_sys *sys, int dir, const char *name, const char *text)
{
	int fd = shf_sys_open(sys, dir, name, SHF_O_WRITE | SHF_O_CREATE, 0666);

	CHECK(fd >= 0);
	CHECK(shf_sys_pwrite(sys, fd, text, strlen(text), 0) >= 0);
	CHECK_INT(shf_sys_fsync(sys, fd), 0);
	shf_sys_close(sys, fd);
}

static int save_real(struct shf_store *s, int64_t step, struct sheaf_error *err)
{
	struct shf_mf_family family = { "model", ".", 1, 1, 3 };
	struct shf_mf_file file = { "model-00001-of-00001.safetensors", 3, 0 };
	struct shf_manifest m = { .step = step, .created = "2026-01-31T12:00:00Z",
		.version = "0", .commit = "0", .compiler = "0", .ranks = 1, .files = &file,
		.files_n = 1, .families = &family, .families_n = 1,
		.file_bytes_max = 5000000000, .sums = { "sheaf.sums", 2, 0 } };
	struct shf_stage g;
	int rc = shf_stage_new(s, &g, step, NULL, err);

	if (rc < 0)
		return rc;
	rc = shf_stage_alive(s, &g, 0, err);
	put(s->sys, g.dir, file.name, "abc");
	put(s->sys, g.dir, "sheaf.sums", "xy");
	memcpy(m.session, strchr(g.name, '-') + 1, 33);
	memcpy(m.run, s->run, 33);
	if (rc == 0)
		rc = shf_stage_publish(s, &g, &m, err);
	if (rc < 0)
		shf_stage_discard(s, &g);
	else
		shf_stage_close(s, &g);
	return rc;
}

TEST(the_real_machine_saves_lists_rewinds_and_prunes)
{
	char dir[] = "/tmp/sheaf-store-XXXXXX", path[64], line[96];
	struct shf_prune p = { .keep_last = 1, .verified.step = 2, .keep = -1, .grace_s = -1 };
	const struct shf_sys *sys = shf_sys_real();
	struct shf_store s, other;
	struct sheaf_error err;
	int64_t step = -1;

	CHECK(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/runs/gpt", dir);
	CHECK_RC(shf_store_own(&s, sys, path, true, 0, &err), 0, &err);
	CHECK_RC(shf_store_own(&other, sys, path, true, 20, &err), SHEAF_EBUSY, &err);
	for (int64_t i = 1; i <= 3; i++)
		CHECK_RC(save_real(&s, i, &err), 0, &err);
	CHECK_RC(save_real(&s, 3, &err), SHEAF_EEXIST, &err);
	CHECK_RC(shf_store_rewind(&s, 2, &err), 0, &err);
	CHECK_RC(shf_store_mark(&s, 1, 'k', &err), 0, &err);
	CHECK_RC(shf_store_latest(&s, &step, NULL, NULL, &err), 0, &err);
	CHECK_INT(step, 2);
	CHECK_INT(state_of(&s, 3, NULL), 'A');
	CHECK_INT(shf_store_prune(&s, &p, NULL, NULL, &err), 0);
	shf_store_close(&s);
	CHECK_RC(shf_store_own(&s, sys, path, false, 1000, &err), 0, &err);
	CHECK_INT(state_of(&s, 2, NULL), 'C');
	shf_store_close(&s);
	snprintf(line, sizeof(line), "rm -rf %s", dir);
	CHECK_INT(system(line), 0);
}

/* As file systems do that have lost track of a handle. */
/* Its steps say which run it is, and while they cannot be listed it gets no other identity. */
TEST(a_run_whose_steps_cannot_be_listed_gets_no_identity)
{
	struct world w;
	char run[33];

	start(&w, 2);
	memcpy(run, w.store[0].run, sizeof(run));
	world_close(&w);
	CHECK_INT(simdisk_remove(w.disk, RUN "/.sheaf/run"), 0);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_LIST,
		.error = EIO, .always = true, .name = RUN });
	CHECK_RC(world_open(&w, false), SHEAF_EIO, &w.err);
	CHECK(simdisk_fired(w.disk) > 0);
	simdisk_faults_clear(w.disk);
	CHECK(!simdisk_exists(w.disk, RUN "/.sheaf/run"));
	CHECK_RC(world_open(&w, false), 0, &w.err);
	CHECK_STR(w.store[0].run, run);
	stop(&w);
}

TEST(an_identity_that_is_there_and_is_not_is_not_replaced)
{
	struct world w;
	char *before, *after;
	size_t n, n2;

	world_init(&w, simdisk_new(3, SIMDISK_STRICT));
	CHECK_RC(world_open(&w, true), 0, &w.err);
	CHECK_RC(world_save(&w, 1, -1), 0, &w.err);
	world_kill(&w);
	before = simdisk_get(w.disk, RUN "/.sheaf/run", &n);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 2, .kind = SIMDISK_OPEN,
		.error = ENOENT, .always = true, .name = "run" });
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_OPEN,
		.error = ENOENT, .always = true, .name = "checkpoint-1" });
	CHECK_RC(world_open(&w, false), SHEAF_EIO, &w.err);
	simdisk_faults_clear(w.disk);
	after = simdisk_get(w.disk, RUN "/.sheaf/run", &n2);
	CHECK(before && after && n == n2 && memcmp(before, after, n) == 0);
	free(before);
	free(after);
	CHECK_RC(world_open(&w, false), 0, &w.err);
	world_close(&w);
	simdisk_free(w.disk);
}
