/* SPDX-License-Identifier: Apache-2.0 */
/* The run's lock, and what a forked child keeps of it: a data loader has the descriptors of the
 * trainer that forked it, and outlives it. */
#include <errno.h>
#include <stdlib.h>
#include "leftovers.h"
#include "lock.h"
#include "simover.h"
#include "lived.h"
#include "sheaf-admin.h"

static struct shf_store other;
static struct sheaf_error err;

/* Closes all stores, also those of killed processes, whose memory must be freed. */
static void end(struct world *w)
{
	for (int i = 0; i < WRITERS; i++)
		shf_store_close(&w->store[i]);
	simdisk_free(w->disk);
}

static int own(const struct shf_sys *sys)
{
	return shf_store_own(&other, sys, RUN, false, 0, &err);
}

TEST(a_run_that_is_closed_is_free_whatever_children_its_owner_forked)
{
	struct world w;

	start(&w, 1);
	simdisk_fork(w.disk, w.proc[0], 900);
	CHECK_RC(own(simdisk_process(w.disk, 321, 1)), SHEAF_EBUSY, &err);
	world_close(&w);
	CHECK_RC(own(simdisk_process(w.disk, 322, 1)), 0, &err);
	shf_store_close(&other);
	stop(&w);
}

/* Where standard input is closed the lock is descriptor 0. */
TEST(a_lock_that_is_descriptor_0_is_given_back_too)
{
	const struct shf_sys *sys;
	struct world w;

	start(&w, 1);
	world_close(&w);
	sys = simdisk_process(w.disk, 321, 0);
	simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .how = SIMDISK_ZERO,
		.kind = SIMDISK_OPEN, .name = "lock" });
	CHECK_RC(own(sys), 0, &err);
	CHECK_INT(other.lock, 0);
	simdisk_faults_clear(w.disk);
	simdisk_fork(w.disk, sys, 900);
	shf_store_close(&other);
	CHECK_RC(own(simdisk_process(w.disk, 322, 1)), 0, &err);
	shf_store_close(&other);
	stop(&w);
}

TEST(a_save_that_is_over_leaves_no_lock_with_a_forked_child)
{
	const struct shf_sys *child;
	struct world w;
	int dir, fd;

	start(&w, 0);
	CHECK_RC(world_write(&w, 1), 0, &w.err);
	dir = w.stage[2].dir;
	child = simdisk_fork(w.disk, w.proc[2], 900);
	fd = shf_sys_open(child, dir, "alive-1", SHF_O_WRITE, 0);
	CHECK_INT(shf_sys_lock(child, fd, true), -EAGAIN);
	shf_stage_close(&w.store[2], &w.stage[2]);
	CHECK_INT(shf_sys_lock(child, fd, true), 0);
	world_close(&w);
	stop(&w);
}

/* The owner is killed; what it forked lives on and has the lock, the stage's too. */
TEST(a_dead_owners_lock_is_free_though_a_child_of_its_still_has_it)
{
	const struct shf_sys *child, *near;
	struct shf_store reader;
	struct world w;
	char path[200];

	start_stage(&w, path);
	child = simdisk_fork(w.disk, w.proc[0], 900);
	for (int i = 0; i < WRITERS; i++)
		if (i != 2)
			simdisk_kill(w.disk, w.proc[i]);
	/* Another node can prove nothing. */
	CHECK_RC(own(simdisk_process(w.disk, 321, 1)), SHEAF_EBUSY, &err);
	CHECK(strstr(err.msg, "pid 100"));
	near = simdisk_process(w.disk, 322, 0);
	CHECK_RC(shf_store_open(&reader, near, RUN, &err), 0, &err);
	CHECK(!shf_lock_is_held(&reader));
	CHECK_RC(own(near), 0, &err);
	CHECK_INT(other.prev.pid, 100);
	CHECK(other.prev_gone);
	CHECK_RC(shf_lock_check(&other, &err), 0, &err);
	CHECK(shf_lock_is_held(&reader));
	CHECK(simdisk_exists(w.disk, path));    /* a writer of the other node lives */
	shf_store_close(&other);
	simdisk_kill(w.disk, w.proc[2]);
	simdisk_advance(w.disk, 2 * 86400);
	CHECK_RC(own(near), 0, &err);
	CHECK(!simdisk_exists(w.disk, path));
	/* The child lets go of a lock that nobody asks for any more. */
	simdisk_kill(w.disk, child);
	CHECK_RC(shf_lock_check(&other, &err), 0, &err);
	shf_store_close(&other);
	shf_store_close(&reader);
	end(&w);
}

/* Also of one who has only looked so far, as a salvage does first. */
TEST(a_dead_visitors_lock_is_free_though_a_child_of_its_still_has_it)
{
	const struct shf_sys *sys;
	struct shf_store dead;
	struct world w;

	start(&w, 1);
	world_close(&w);
	sys = simdisk_process(w.disk, 321, 0);
	CHECK_RC(shf_store_own_begin(&dead, sys, RUN, &(struct shf_owning){ .wait_ms = 0 }, &err),
	         0, &err);
	CHECK_RC(shf_lock_visit(&dead, &err), 0, &err);
	simdisk_fork(w.disk, sys, 900);
	CHECK_RC(own(simdisk_process(w.disk, 322, 0)), SHEAF_EBUSY, &err);
	simdisk_kill(w.disk, sys);
	CHECK_RC(own(simdisk_process(w.disk, 323, 0)), 0, &err);
	shf_store_close(&other);
	shf_store_close(&dead);
	stop(&w);
}

TEST(a_pid_that_was_given_to_another_process_is_no_sign_of_life)
{
	struct world w;

	start(&w, 1);
	simdisk_fork(w.disk, w.proc[0], 900);
	for (int i = 0; i < WRITERS; i++)
		simdisk_kill(w.disk, w.proc[i]);
	CHECK(simdisk_process(w.disk, 100, 0) != w.proc[0]);
	CHECK_RC(own(simdisk_process(w.disk, 322, 0)), 0, &err);
	CHECK_INT(other.prev.pid, 100);
	shf_store_close(&other);
	end(&w);
}

TEST(a_stage_goes_though_a_child_of_its_dead_writer_has_its_proof_locked)
{
	struct world w;
	char path[200];

	start_stage(&w, path);
	simdisk_fork(w.disk, w.proc[0], 900);
	for (int i = 0; i < WRITERS; i++)
		simdisk_kill(w.disk, w.proc[i]);
	/* Without the other node's proof, which nobody here could judge. */
	snprintf(path + strlen(path), 20, "/alive-1");
	CHECK_INT(simdisk_remove(w.disk, path), 0);
	path[strlen(path) - 8] = '\0';
	CHECK_RC(own(simdisk_process(w.disk, 321, 0)), 0, &err);
	CHECK(!simdisk_exists(w.disk, path));
	shf_store_close(&other);
	end(&w);
}

/* Two jobs come when the owner is dead and its child has the lock. The second comes in at each call
 * of the first, and so does the child's death. */
static struct {
	struct simdisk *disk;
	const struct shf_sys *child, *sys;
	long left;
	struct shf_store store;
	int rc;
	bool inside;
} second;

static void comes_in(void *arg)
{
	struct sheaf_error why;

	(void)arg;
	if (second.inside || --second.left != 0)
		return;
	second.inside = true;
	if (second.child)
		simdisk_kill(second.disk, second.child);
	second.rc = shf_store_own(&second.store, second.sys, RUN, false, 0, &why);
	second.inside = false;
}

static bool one_of_two(long at, bool child_dies, int *won)
{
	const struct shf_sys *child;
	struct world w;
	bool came;
	int rc;

	start(&w, 1);
	child = simdisk_fork(w.disk, w.proc[0], 900);
	for (int i = 0; i < WRITERS; i++)
		simdisk_kill(w.disk, w.proc[i]);
	second.disk = w.disk;
	second.child = child_dies ? child : NULL;
	second.sys = simdisk_process(w.disk, 400, 0);
	second.left = at;
	second.rc = SHEAF_EBUSY;
	simdisk_set_turn(w.disk, comes_in, NULL);
	rc = own(simdisk_process(w.disk, 401, 0));
	simdisk_set_turn(w.disk, NULL, NULL);
	came = second.left <= 0;
	/* One has it, and it is his as long as he wants. */
	CHECK(rc == 0 || rc == SHEAF_EBUSY);
	CHECK(second.rc == 0 || second.rc == SHEAF_EBUSY);
	CHECK_INT((rc == 0) + (second.rc == 0), 1);
	CHECK_RC(shf_lock_check(rc == 0 ? &other : &second.store, &err), 0, &err);
	won[rc != 0]++;
	shf_store_close(rc == 0 ? &other : &second.store);
	end(&w);
	return came;
}

TEST(of_two_jobs_that_find_a_dead_owners_lock_one_has_it)
{
	int won[2] = { 0, 0 };

	for (int dies = 0; dies < 2; dies++)
		for (long at = 1; one_of_two(at, dies, won); at++)
			;
	print_message("# the first %d times, the second %d\n", won[0], won[1]);
	CHECK(won[0] > 0 && won[1] > 0);
}

TEST(whatever_call_of_taking_a_dead_owners_lock_fails_the_next_job_takes_it)
{
	for (int how = 0; how < 2; how++)
		for (int nth = 1;; nth++) {
			const struct shf_sys *sys;
			struct world w;
			int fired, rc;

			start(&w, 1);
			simdisk_fork(w.disk, w.proc[0], 900);
			for (int i = 0; i < WRITERS; i++)
				simdisk_kill(w.disk, w.proc[i]);
			sys = simdisk_process(w.disk, 400, 0);
			simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
				.process = sys, .how = how ? SIMDISK_KILL : SIMDISK_INSTEAD });
			rc = own(sys);
			fired = simdisk_fired(w.disk);
			simdisk_faults_clear(w.disk);
			CHECK_INT(simdisk_open_n(sys), rc == 0 ? 4 : 0);
			if (rc == 0)
				shf_store_close(&other);
			simdisk_kill(w.disk, sys);
			CHECK_RC(own(simdisk_process(w.disk, 401, 0)), 0, &err);
			CHECK_STR(other.prev_session[0] ? "known" : "", "known");
			shf_store_close(&other);
			end(&w);
			if (!fired)
				break;
		}
}

static int64_t days_ahead(void *arg)
{
	return simover_real()->host.wall_s(arg) + 3 * 86400;
}

/* No locks and no process to ask after: only time says that somebody is dead. */
TEST(a_host_whose_clock_is_days_ahead_takes_no_living_jobs_stage)
{
	const struct shf_sys *ahead;
	struct world w;
	char path[200];

	start_stage(&w, path);
	simdisk_set_locks(w.disk, false);
	ahead = simdisk_process(w.disk, 321, 5);
	simover(ahead)->host.wall_s = days_ahead;
	CHECK_RC(own(ahead), 0, &err);
	CHECK(simdisk_exists(w.disk, path));
	shf_store_close(&other);
	simdisk_advance(w.disk, 2 * 86400);     /* as all see it */
	CHECK_RC(own(ahead), 0, &err);
	CHECK(!simdisk_exists(w.disk, path));
	shf_store_close(&other);
	for (int i = 0; i < WRITERS; i++)
		shf_stage_close(&w.store[i], &w.stage[i]);
	stop(&w);
}

static int hear_lock(void *arg, const struct shf_left *left)
{
	if (strcmp(sheaf_leftover_kind_name(left->kind), "lock") == 0)
		snprintf(arg, 100, "%.20s %d %.60s", sheaf_leftover_action_name(left->action),
		         left->lives, left->why);
	return 0;
}

TEST(a_lock_that_only_a_child_still_has_is_told_as_a_dead_jobs)
{
	struct shf_store reader;
	struct world w;
	char text[100] = "";

	start(&w, 1);
	CHECK_RC(shf_store_open(&reader, simdisk_process(w.disk, 321, 0), RUN, &err), 0, &err);
	simdisk_fork(w.disk, w.proc[0], 900);
	CHECK_INT(shf_store_left(&reader, hear_lock, text, &err), 0);
	CHECK_STR(text, "wait 1 held by pid 100 on node0");
	for (int i = 0; i < WRITERS; i++)
		simdisk_kill(w.disk, w.proc[i]);
	CHECK_INT(shf_store_left(&reader, hear_lock, text, &err), 0);
	CHECK_STR(text, "none 0 held last by pid 100 on node0, which has exited");
	shf_store_close(&reader);
	end(&w);
}

/* The lock's text says on which file system it lies. The last look at it is for that: a process
 * that cannot find it out does not own the run. */
TEST(a_lock_that_cannot_be_looked_at_is_not_owned)
{
	int last = 0, tries = 0;

	for (int nth = 1, fired = 1; fired; nth++) {
		struct world w;
		int rc;

		start(&w, 0);
		world_close(&w);
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
			.kind = SIMDISK_FSTAT, .name = "lock" });
		err.msg[0] = '\0';
		rc = own(simdisk_process(w.disk, 321, 0));
		fired = simdisk_fired(w.disk);
		CHECK(rc == 0 || rc == SHEAF_EIO);
		CHECK(rc == 0 || strcmp(err.msg, RUN "/.sheaf/lock: Input/output error") == 0);
		last = fired ? rc : last;
		tries += fired;
		shf_store_close(&other);
		stop(&w);
	}
	CHECK(tries >= 2);
	CHECK_INT(last, SHEAF_EIO);
}
