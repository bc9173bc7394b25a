/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that can go wrong around a save and a load, one thing at a time: each system call of
 * each rank fails, each rank dies, hangs or is late at each operation of the group, each allocation
 * fails, clocks jump, a second job writes. Every rank then returns, with one code and words; the
 * step is whole or absent; what was committed before stays; and the next save succeeds.
 *
 *   test_faults [--long] [part of a test's name ...]
 *
 * Without --long one place of three fails, and fewer in the larger variants and of the rarer
 * failures, each with one error by turns; with it each place with every error. */
#include <errno.h>
#include <stdlib.h>
#include "jobs.h"
#include "save.h"
#include "starve.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "run_ops.h"

#define main t_main
#include "t.h"
#undef main

static bool all_of_it;                  /* --long; otherwise one of THIN, by turns */
#define THIN (T_STRIDE > 1 ? 7 : 4)
static const int32_t two_nodes[JOB_RANKS] = { 1, 1, 2, 2 };
static const int32_t crossed[JOB_RANKS] = { 1, 2, 1, 2 };       /* rows lie on both */
static const int32_t four_nodes[JOB_RANKS] = { 1, 2, 3, 4 };

struct variant {
	const char *name;
	int ranks;
	const int32_t *nodes;
	int64_t rows;
	uint64_t staging;
	int stride;                     /* without --long */
	bool fresh;                     /* no run, and no step 1 in it */
	bool lazy;                      /* saves copy behind */
	bool asks;                      /* and are published so */
	bool stays;                     /* what is large is not staged */
};
static const struct variant small = { .name = "one node", .ranks = 4, .stride = 1 };
static const struct variant apart = { .name = "two nodes", .ranks = 4, .nodes = two_nodes,
	.stride = 1 };
static const struct variant rounds = { .name = "rounds on two nodes", .ranks = 4, .nodes = crossed,
	.rows = 600, .staging = 2 << 16, .stride = 5 };
static const struct variant three = { .name = "three ranks", .ranks = 3, .stride = 1 };
static const struct variant alone = { .name = "one rank", .ranks = 1, .stride = 1 };
static const struct variant nothing = { .name = "a new run", .ranks = 4, .nodes = two_nodes,
	.stride = 2, .fresh = true };
static const struct variant behind = { .name = "lazy, two nodes", .ranks = 4,
	.nodes = crossed, .rows = 40, .stride = 2, .lazy = true };
static const struct variant starving_lazy = { .name = "lazy, two nodes", .ranks = 4,
	.nodes = crossed, .stride = 23, .lazy = true };
static const struct variant asking = { .name = "asking", .ranks = 4, .nodes = crossed,
	.rows = 40, .stride = 2, .lazy = true, .asks = true };
static const struct variant asking_alone = { .name = "one asking rank", .ranks = 1, .stride = 1,
	.asks = true };
static const struct variant staying = { .name = "in place", .ranks = 2, .rows = 1200, .stride = 1,
	.lazy = true, .stays = true };
static const struct variant starving_staying = { .name = "in place", .ranks = 2, .rows = 1200,
	.stride = 19, .lazy = true, .stays = true };
static const struct variant starving_behind = { .name = "asking", .ranks = 2, .stride = 17,
	.asks = true };
static const struct variant starving_one = { .name = "one rank", .ranks = 1, .stride = 7 };
static const struct variant starving_two = { .name = "two ranks", .ranks = 2, .stride = 11 };
static const struct variant starving_far = { .name = "two nodes", .ranks = 4, .nodes = crossed,
	.rows = 600, .staging = 2 << 16, .stride = 31 };

static struct job job_of(const struct variant *v, struct simdisk *disk)
{
	struct job j = { .disk = disk, .ranks = v->ranks, .nodes = v->nodes, .rows = v->rows,
	                 .staging = v->staging, .lazy = v->lazy, .asks = v->asks,
	                 .stays = v->stays,
	                 .group = { .seed = 7 } };

	return j;
}

/* A disk with step 1. */
static struct simdisk *base_of(const struct variant *v)
{
	struct simdisk *disk = simdisk_new(JOB_SEED, SIMDISK_STRICT);
	struct job j = job_of(v, disk);

	if (v->fresh)
		return disk;
	j.deeds[j.deeds_n++] = (struct deed){ .kind = DEED_SAVE, .step = 1 };
	job_prepare(&j);
	if (!job_run(&j) || job_rc(&j) != 0)
		print_error("%s: %s %s\n", v->name, j.why, job_word(&j));
	CHECK_STR(j.why, "");
	CHECK_INT(job_rc(&j), 0);
	simdisk_settle(disk);
	return disk;
}

static struct simdisk *copy_of(struct simdisk *base)
{
	return simdisk_crash(base, simdisk_cut_n(base) - 1, NULL);
}

static bool may_be_there(int rc)
{
	return rc == 0 || rc == SHEAF_EINDOUBT || rc == SHEAF_ELOST;
}

static const struct deed *rewind_of(const struct job *j)
{
	for (int i = 0; i < j->deeds_n; i++)
		if (j->deeds[i].kind == DEED_REWIND)
			return &j->deeds[i];
	return NULL;
}

/* Is what this save was said to have done what is there? */
static bool save_is_as_told(const struct job *j, const struct deed *d, const struct seen *seen)
{
	bool must = false, may = true;
	bool there = seen_has(seen, d->step) || (rewind_of(j) && seen->aside > 0);

	for (int r = 0; r < j->ranks; r++) {
		must |= d->rc[r] == 0;
		may &= j->dead[r] || may_be_there(d->rc[r]);
	}
	return there ? may : !must;
}

/* What is on the disk is what the ranks were told. "" or what is not. */
static const char *judge(const struct job *j, bool fresh, struct simdisk *disk, char why[300])
{
	const struct deed *back = rewind_of(j);
	struct seen seen;

	if (*job_look(disk, false, j->rows, &seen, why))
		return why;
	if (seen.damaged ||
	    !(fresh || seen_has(&seen, 1) || (j->keep_last && seen_has(&seen, 2)))) {
		snprintf(why, 300, "step 1 is gone, or %d are damaged", seen.damaged);
		return why;
	}
	for (int i = 0; i < j->deeds_n; i++)
		if ((j->deeds[i].kind == DEED_SAVE || j->deeds[i].kind == DEED_COMMIT) &&
		    !save_is_as_told(j, &j->deeds[i], &seen)) {
			snprintf(why, 300, "step %lld is %s, and the ranks were told %d",
			         (long long)j->deeds[i].step,
			         seen_has(&seen, j->deeds[i].step) ? "there" : "gone",
			         j->deeds[i].rc[0]);
			return why;
		}
	if (back && back->rc[0] == 0 && seen.newest != back->step) {
		snprintf(why, 300, "rewound, and %lld is the newest", (long long)seen.newest);
		return why;
	}
	return job_go_on(disk, 9, j->rows, why);
}

static const struct deed two_saves[] = { { .kind = DEED_SAVE, .step = 2 },
                                         { .kind = DEED_SAVE, .step = 3 } };
static const struct deed in_flight[] = { { .kind = DEED_BEGIN, .step = 2 },
                                         { .kind = DEED_BEGIN, .step = 3 },
                                         { .kind = DEED_COMMIT, .step = 2 },
                                         { .kind = DEED_COMMIT, .step = 3 } };
/* The first is published while the second begins. */
static const struct deed published_behind[] = { { .kind = DEED_BEGIN, .step = 2 },
                                                { .kind = DEED_ASK, .step = 2 },
                                                { .kind = DEED_BEGIN, .step = 3 },
                                                { .kind = DEED_COMMIT, .step = 2 },
                                                { .kind = DEED_COMMIT, .step = 3 } };
static const struct deed save_and_prune[] = { { .kind = DEED_SAVE, .step = 2 },
                                              { .kind = DEED_PRUNE } };
static const struct deed mark_and_rewind[] = { { .kind = DEED_SAVE, .step = 2 },
                                               { .kind = DEED_MARK_KEEP, .step = 1 },
                                               { .kind = DEED_REWIND, .step = 1 } };
static const struct deed one_load[] = { { .kind = DEED_LOAD, .step = SHEAF_LATEST } };

static void give(struct job *j, const struct deed *deeds, int n)
{
	memcpy(j->deeds, deeds, (size_t)n * sizeof(*deeds));
	j->keep_last = n > 1 && deeds[1].kind == DEED_PRUNE;
	j->images = 2;
	j->deeds_n = n;
}

/* ---- system calls ---- */

static const int errors[] = { EIO, ENOSPC, ENOMEM, EMFILE, EDQUOT, ENFILE, EINTR, EROFS, ESTALE,
                              EACCES, EPERM, ENOENT, EBUSY };
#define ERRORS (int)(sizeof(errors) / sizeof(*errors))
struct sweep {
	const struct variant *v;
	const struct deed *deeds;
	int deeds_n;
	struct simdisk_fault fault;
	int bad, tried;
};

/* ENOENT means that there is no such run or step: no save says it, whatever name is gone. */
static bool a_save_is_not_there(const struct job *j)
{
	for (int i = 0; i < j->deeds_n && j->open_rc[0] == 0; i++)
		for (int r = 0; r < j->ranks && j->deeds[i].kind != DEED_LOAD; r++)
			if (j->deeds[i].rc[r] == SHEAF_ENOENT)
				return true;
	return false;
}

static bool is_harmless(enum simdisk_how how)
{
	return how == SIMDISK_JUMP || how == SIMDISK_ZERO;
}

/* The nth call of a rank fails: false when there is no such call. */
static bool one_fault(struct sweep *s, struct simdisk *base, int rank, int nth)
{
	struct simdisk *disk = copy_of(base);
	struct job j = job_of(s->v, disk);
	struct simdisk_fault fault = s->fault;
	char why[300] = "";
	bool fired;
	int failed = 0;

	give(&j, s->deeds, s->deeds_n);
	job_prepare(&j);
	fault.nth = nth;
	fault.process = j.sys[rank];
	simdisk_fault(disk, &fault);
	(void)job_run(&j);
	fired = simdisk_fired(disk) > 0;
	simdisk_faults_clear(disk);
	for (int i = 0; i < j.deeds_n; i++)
		failed += j.deeds[i].kind != DEED_BEGIN && j.deeds[i].kind != DEED_ASK &&
		          j.deeds[i].rc[0] != 0 &&
		          j.deeds[i].rc[0] != SHEAF_EFAILED; /* one before it is in doubt */
	/* One call fails one deed, unless the run did not open or all calls fail. */
	if (!j.why[0] && failed > 1 && j.open_rc[0] == 0 && !fault.always)
		snprintf(j.why, sizeof(j.why), "the deed after it fails too: %d", j.deeds[1].rc[0]);
	if (!j.why[0] && fault.error == ENOENT && fault.kind && a_save_is_not_there(&j))
		snprintf(j.why, sizeof(j.why), "a save says ENOENT");
	if (!j.why[0] && (!fired || is_harmless(fault.how)) &&
	    (job_rc(&j) != 0 || j.local_rc != 0))
		snprintf(j.why, sizeof(j.why), "failed without a fault");
	if (!j.why[0])
		(void)judge(&j, s->v->fresh, disk, why);
	if (j.why[0] || why[0]) {
		print_error("%s, rank %d, call %d (how %d, %s): %s%s (%d: %s)\n", s->v->name, rank,
		            nth, (int)fault.how, strerror(fault.error), j.why, why, job_rc(&j),
		            job_word(&j));
		s->bad++;
	}
	simdisk_free(disk);
	s->tried += fired;
	return fired;
}

static void each_call_fails(const struct variant *v, const struct deed *deeds, int n,
                            struct simdisk_fault fault)
{
	struct sweep s = { v, deeds, n, fault, 0, 0 };
	struct simdisk *base = base_of(v);
	bool each = all_of_it || fault.how == SIMDISK_ZERO;
	int stride = each ? 1 : v->stride * THIN *
	                        (fault.always || fault.how == SIMDISK_AFTER ? 2 : 1);

	for (int rank = 0; rank < v->ranks && s.bad < 20; rank++)
		for (int nth = 1 + rank % stride;; nth += stride) {
			int tries = all_of_it && !is_harmless(fault.how) ? ERRORS : 1;
			bool fired = true;

			for (int i = 0; i < tries && fired && s.bad < 20; i++) {
				s.fault.error = errors[(nth + rank + i) % ERRORS];
				/* A disk on which there is nothing any more is no failing disk. */
				if (fault.always && s.fault.error == ENOENT)
					s.fault.error = EIO;
				fired = one_fault(&s, base, rank, nth);
			}
			if (!fired || s.bad >= 20)
				break;
		}
	printf("# %s: %d failing calls\n", v->name, s.tried);
	simdisk_free(base);
	CHECK_INT(s.bad, 0);
	CHECK(s.tried > 1);
}

#define FAILS(deeds, variant, what, ...)                                                    \
	TEST(each_call_of_##deeds##_on_##variant##_may_##what)                               \
	{                                                                                    \
		each_call_fails(&variant, deeds, (int)(sizeof(deeds) / sizeof(*deeds)),      \
		                (struct simdisk_fault){ __VA_ARGS__ });                      \
	}

FAILS(two_saves, small, fail, .how = SIMDISK_INSTEAD)
FAILS(two_saves, small, work_and_say_it_failed, .how = SIMDISK_AFTER)
FAILS(two_saves, small, be_the_last_that_works, .how = SIMDISK_INSTEAD, .always = true)
FAILS(two_saves, apart, fail, .how = SIMDISK_INSTEAD)
FAILS(two_saves, nothing, fail, .how = SIMDISK_INSTEAD)
FAILS(two_saves, nothing, work_and_say_it_failed, .how = SIMDISK_AFTER)
FAILS(two_saves, nothing, be_the_last_that_works, .how = SIMDISK_INSTEAD, .always = true)
FAILS(two_saves, rounds, fail, .how = SIMDISK_INSTEAD)
FAILS(two_saves, rounds, work_and_say_it_failed, .how = SIMDISK_AFTER)
FAILS(two_saves, rounds, write_half, .how = SIMDISK_PART, .kind = SIMDISK_PWRITE)
FAILS(two_saves, alone, fail, .how = SIMDISK_INSTEAD)
FAILS(in_flight, apart, fail, .how = SIMDISK_INSTEAD)
FAILS(in_flight, small, work_and_say_it_failed, .how = SIMDISK_AFTER)
FAILS(in_flight, rounds, fail, .how = SIMDISK_INSTEAD)
FAILS(two_saves, staying, fail, .how = SIMDISK_INSTEAD)
FAILS(in_flight, staying, write_half, .how = SIMDISK_PART, .kind = SIMDISK_PWRITE)
FAILS(in_flight, behind, fail, .how = SIMDISK_INSTEAD)
FAILS(two_saves, behind, fail, .how = SIMDISK_INSTEAD)
FAILS(two_saves, behind, work_and_say_it_failed, .how = SIMDISK_AFTER)
FAILS(two_saves, asking, fail, .how = SIMDISK_INSTEAD)
FAILS(published_behind, apart, fail, .how = SIMDISK_INSTEAD)
FAILS(published_behind, asking_alone, fail, .how = SIMDISK_INSTEAD)
FAILS(published_behind, asking_alone, work_and_say_it_failed, .how = SIMDISK_AFTER)
FAILS(save_and_prune, small, fail, .how = SIMDISK_INSTEAD)
FAILS(save_and_prune, small, work_and_say_it_failed, .how = SIMDISK_AFTER)
FAILS(save_and_prune, small, be_the_last_that_works, .how = SIMDISK_INSTEAD, .always = true)
FAILS(mark_and_rewind, small, fail, .how = SIMDISK_INSTEAD)
FAILS(mark_and_rewind, small, work_and_say_it_failed, .how = SIMDISK_AFTER)
FAILS(mark_and_rewind, small, be_the_last_that_works, .how = SIMDISK_INSTEAD, .always = true)
FAILS(one_load, three, fail, .how = SIMDISK_INSTEAD)
FAILS(one_load, three, work_and_say_it_failed, .how = SIMDISK_AFTER)
FAILS(one_load, three, be_the_last_that_works, .how = SIMDISK_INSTEAD, .always = true)
FAILS(one_load, rounds, fail, .how = SIMDISK_INSTEAD)
FAILS(one_load, alone, fail, .how = SIMDISK_INSTEAD)
FAILS(two_saves, apart, see_the_clock_jump_on, .how = SIMDISK_JUMP, .jump_s = 3 * 86400)
FAILS(two_saves, apart, see_the_clock_jump_back, .how = SIMDISK_JUMP, .jump_s = -40 * 86400)
FAILS(save_and_prune, small, see_the_clock_jump_back, .how = SIMDISK_JUMP, .jump_s = -86400)
FAILS(two_saves, small, have_descriptor_0, .how = SIMDISK_ZERO, .kind = SIMDISK_OPEN)
FAILS(two_saves, staying, have_descriptor_0, .how = SIMDISK_ZERO, .kind = SIMDISK_OPEN)
FAILS(in_flight, apart, have_descriptor_0, .how = SIMDISK_ZERO, .kind = SIMDISK_OPEN)
FAILS(one_load, three, have_descriptor_0, .how = SIMDISK_ZERO, .kind = SIMDISK_OPEN)
FAILS(one_load, alone, have_descriptor_0, .how = SIMDISK_ZERO, .kind = SIMDISK_OPEN)
FAILS(mark_and_rewind, small, see_the_clock_jump_on, .how = SIMDISK_JUMP, .jump_s = 86400 * 9999)

/* Somebody removes what is being saved: each name that is opened may be gone, and some file systems
 * say so of an open file, too. */
TEST(what_is_being_saved_may_be_removed_and_no_save_says_enoent)
{
	static const struct variant *const all[] = { &alone, &behind, &asking_alone };
	static const enum simdisk_kind kinds[] = { SIMDISK_OPEN, SIMDISK_PWRITE, SIMDISK_CLOSE,
		SIMDISK_FSYNC };

	for (size_t k = 0; k < 12; k++) {
		const struct variant *v = all[k % 3];
		struct sweep s = { v, two_saves, 1, { .error = ENOENT, .kind = kinds[k / 3] }, 0,
			0 };
		struct simdisk *base = base_of(v);

		for (int rank = 0; rank < v->ranks && s.bad < 20; rank++)
			for (int nth = 1; s.bad < 20 && one_fault(&s, base, rank, nth); nth++)
				;
		printf("# %s: %d names that were gone\n", v->name, s.tried);
		simdisk_free(base);
		CHECK_INT(s.bad, 0);
	}
}

/* ---- renames that are done and say that they failed ---- */

static void each_rename_lies(const struct variant *v, const struct deed *deeds, int n)
{
	static const int said[] = { EIO, ENOENT, ESTALE, EEXIST };
	struct sweep s = { v, deeds, n, { .how = SIMDISK_AFTER, .kind = SIMDISK_RENAME }, 0, 0 };
	struct simdisk *base = base_of(v);

	for (int i = 0; i < 4 && s.bad < 20; i++) {
		s.fault.error = said[i];
		for (int nth = 1; s.bad < 20 && one_fault(&s, base, 0, nth); nth++)
			;
	}
	printf("# %s: %d renames done and said to have failed\n", v->name, s.tried);
	simdisk_free(base);
	CHECK_INT(s.bad, 0);
	CHECK(s.tried >= 4 * n);
}

TEST(each_rename_may_be_done_and_say_it_failed)
{
	each_rename_lies(&small, two_saves, 2);
	each_rename_lies(&nothing, two_saves, 2);
	each_rename_lies(&alone, save_and_prune, 2);
	each_rename_lies(&apart, mark_and_rewind, 3);
}

/* ---- two jobs ---- */

/* Both save step 2, each its own values. Who was told that his is there has it there. */
static bool two_jobs(struct simdisk *base, uint64_t seed, bool locks, int tally[3], char why[300])
{
	struct simdisk *disk = copy_of(base);
	struct job a = job_of(&alone, disk), b = job_of(&alone, disk), *jobs[] = { &a, &b };
	struct job_state state = { .rows = 0 };
	struct seen seen;
	bool done[2];

	a.turns = true;
	a.group.seed = seed;
	a.ranks = 1 + (int)(seed / 2 % 2);
	b.ranks = 1 + (int)(seed % 2);
	for (int i = 0; i < 2; i++) {
		give(jobs[i], two_saves, 1);
		jobs[i]->deeds[0].salt = 7 + (uint64_t)i;
		job_prepare(jobs[i]);
	}
	simdisk_set_locks(disk, locks);
	(void)jobs_run(jobs, 2);
	simdisk_set_locks(disk, true);
	for (int i = 0; i < 2; i++)
		done[i] = jobs[i]->deeds[0].rc[0] == 0;
	snprintf(why, 300, "%.140s%.140s", a.why, b.why);
	if (!why[0] && !*job_look_at(disk, false, &state, &seen, why)) {
		uint64_t salt = seen.newest == 2 ? seen.salt : 0;

		if ((done[0] && salt != 7) || (done[1] && salt != 8) || (done[0] && done[1]))
			snprintf(why, 300, "step 2 is of salt %llu, and the jobs were told %d, %d",
			         (unsigned long long)salt, a.deeds[0].rc[0], b.deeds[0].rc[0]);
		else if (!seen_has(&seen, 1) || (locks && !done[0] && !done[1]))
			snprintf(why, 300, "step 1 is gone, or nobody saved: %d, %d",
			         a.deeds[0].rc[0], b.deeds[0].rc[0]);
	}
	tally[done[0] ? 0 : done[1] ? 1 : 2]++;
	simdisk_free(disk);
	return !why[0];
}

static void many_two_jobs(bool locks)
{
	struct simdisk *base = base_of(&alone);
	int tally[3] = { 0 }, n = all_of_it ? 4000 : 60, bad = 0;
	char why[300];

	for (uint64_t seed = 1; seed <= (uint64_t)n && bad < 20; seed++)
		if (!two_jobs(base, seed, locks, tally, why)) {
			print_error("seed %llu, locks %d: %s\n", (unsigned long long)seed, locks,
			            why);
			bad++;
		}
	printf("# two jobs, seeds 1..%d, locks %s: %d to the first, %d to the second, %d to none\n",
	       n, locks ? "work" : "are ignored", tally[0], tally[1], tally[2]);
	simdisk_free(base);
	CHECK_INT(bad, 0);
	CHECK(tally[0] > 0 && tally[1] > 0);
}

TEST(of_two_jobs_one_saves_and_the_other_knows) { many_two_jobs(true); }
TEST(two_jobs_whose_lock_does_not_exclude_never_both_save) { many_two_jobs(false); }

/* An fsync is asked once, and what it says is final: whichever rank's file it is, and although
 * nothing else of the save fails. */
TEST(a_failed_fsync_of_any_rank_fails_the_save_on_all)
{
	/* Long runs of each rank's own, so that each writes. */
	static const struct variant long_runs = { .name = "long runs", .ranks = 3,
		.nodes = four_nodes, .rows = 2048, .stride = 1 };
	struct simdisk *base = base_of(&long_runs);
	int fired = 0, ranks = 0;

	for (int rank = 0; rank < long_runs.ranks; rank++)
		for (int nth = 1;; nth++) {
			struct simdisk *disk = copy_of(base);
			struct job j = job_of(&long_runs, disk);
			bool last;

			give(&j, two_saves, 1);
			job_prepare(&j);
			simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
			              .kind = SIMDISK_FSYNC, .process = j.sys[rank],
			              .name = "-00001-of-" });
			CHECK(job_run(&j));
			last = !simdisk_fired(disk);
			fired += !last;
			ranks += !last && nth == 1;
			CHECK_INT(job_rc(&j), last ? 0 : SHEAF_EIO);
			CHECK(last || strstr(job_word(&j), "fsync"));
			CHECK(simdisk_exists(disk, "run/checkpoint-2") == last);
			simdisk_free(disk);
			if (last)
				break;
		}
	printf("# %d fsyncs of files failed, one at a time\n", fired);
	CHECK_INT(ranks, long_runs.ranks);
	simdisk_free(base);
}

/* Where a file system writes at the close, an error of it is all that tells of lost bytes. */
TEST(a_failed_close_of_any_rank_fails_the_save_on_all)
{
	struct simdisk *base = base_of(&small);
	int fired = 0;

	for (int nth = 1, last = 0; !last; nth++) {
		struct simdisk *disk = copy_of(base);
		struct job j = job_of(&small, disk);

		give(&j, two_saves, 1);
		job_prepare(&j);
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
		              .kind = SIMDISK_CLOSE, .name = "-00001-of-" });
		CHECK(job_run(&j));
		last = !simdisk_fired(disk);
		fired += !last;
		CHECK_INT(job_rc(&j), last ? 0 : SHEAF_EIO);
		CHECK(last || strstr(job_word(&j), "closing"));
		CHECK(simdisk_exists(disk, "run/checkpoint-2") == (bool)last);
		simdisk_free(disk);
	}
	printf("# %d closes of files failed, one at a time\n", fired);
	CHECK(fired > 0);
	simdisk_free(base);
}

/* ---- what is already wrong ---- */

static void next_to(const char *file, const char *text)
{
	struct simdisk *base = base_of(&small), *disk = copy_of(base);
	struct job j = job_of(&small, disk);
	struct seen seen;
	char why[300];

	CHECK_INT(text ? simdisk_put(disk, file, text, strlen(text)) : simdisk_remove(disk, file),
		  0);
	give(&j, two_saves, 2);
	job_prepare(&j);
	if (!job_run(&j) || job_rc(&j) != 0)
		print_error("%s: %s%d %s\n", file, j.why, job_rc(&j), job_word(&j));
	CHECK_STR(j.why, "");
	CHECK_INT(job_rc(&j), 0);
	CHECK_STR(job_look(disk, true, 0, &seen, why), "");
	CHECK(seen_has(&seen, 2) && seen_has(&seen, 3) && seen.newest == 3 && !seen_has(&seen, 1));
	simdisk_free(disk);
	simdisk_free(base);
}

TEST(a_damaged_step_does_not_stop_the_next_save)
{
	next_to("run/checkpoint-1/sheaf.json", "{\"format\": 1");
	next_to("run/checkpoint-1/sheaf.json", NULL);
	next_to("run/checkpoint-1/sheaf.sums", NULL);
	next_to("run/checkpoint-1/config.json", "another size");
	next_to("run/checkpoint-1", NULL);
}

/* ---- ranks that die ---- */

static bool one_death(const struct variant *v, struct simdisk *base, const struct deed *deeds,
                      int deeds_n, const struct simgroup_opts *group, int *bad)
{
	struct simdisk *disk = copy_of(base);
	struct job j = job_of(v, disk);
	struct seen seen;
	char why[300] = "";
	bool fired;

	j.group = *group;
	give(&j, deeds, deeds_n);
	job_prepare(&j);
	(void)job_run(&j);
	fired = j.stat.fired;
	for (int r = 0; r < j.ranks && !j.why[0]; r++)
		for (int i = 0; i < j.deeds_n; i++)
			if (!j.dead[r] && j.deeds[i].rc[r] != 0 &&
			    (j.deeds[i].rc[r] != SHEAF_ELOST || !fired))
				snprintf(j.why, sizeof(j.why), "deed %d: rank %d has %d: %.300s", i,
					 r, j.deeds[i].rc[r], j.deeds[i].err[r].msg);
	if (!j.why[0] && j.stat.clock_ms > 2 * JOB_TIMEOUT_MS + 1000)
		snprintf(j.why, sizeof(j.why), "it took %lld ms", (long long)j.stat.clock_ms);
	/* A job that comes later sees all that was acknowledged, and cleans. */
	if (!j.why[0] && !*judge(&j, v->fresh, disk, why) &&
	    !*job_look(disk, true, v->rows, &seen, why) && seen.staged && !v->nodes)
		snprintf(why, sizeof(why), "%d stages of the dead are left", seen.staged);
	if (!j.why[0] && !why[0] && v->nodes) {
		simdisk_advance(disk, 2 * 86400);
		if (!*job_look(disk, true, v->rows, &seen, why) && seen.staged)
			snprintf(why, sizeof(why), "%d stages of the dead are left after two days",
			         seen.staged);
	}
	if (j.why[0] || why[0]) {
		print_error("%s: rank %d dies at operation %d%s: %s%s\n", v->name, group->die_rank,
		            group->die_at, group->die_sent ? ", heard" : "", j.why, why);
		++*bad;
	}
	simdisk_free(disk);
	return fired;
}

static void each_rank_dies(const struct variant *v, const struct deed *deeds, int n, bool sent)
{
	struct simdisk *base = base_of(v);
	int bad = 0, tried = 0, stride = all_of_it ? 1 : THIN * v->stride + !sent;

	for (int rank = 0; rank < v->ranks && bad < 20; rank++)
		for (int at = 1 + rank % stride; bad < 20; at += stride) {
			struct simgroup_opts group = { .seed = (uint64_t)(rank * 1000 + at),
				.die_rank = rank, .die_at = at, .die_sent = sent };

			if (!one_death(v, base, deeds, n, &group, &bad))
				break;
			tried++;
		}
	printf("# %s: %d deaths\n", v->name, tried);
	simdisk_free(base);
	CHECK_INT(bad, 0);
	CHECK(tried > 80 / THIN);
}

TEST(each_rank_may_die_at_each_operation_of_a_save) { each_rank_dies(&small, two_saves, 1, false); }
TEST(each_rank_may_die_heard_at_each_operation_of_a_save)
{
	each_rank_dies(&small, two_saves, 1, true);
}
TEST(each_rank_may_die_in_saves_of_two_nodes) { each_rank_dies(&apart, two_saves, 1, false); }
TEST(each_rank_may_die_heard_in_saves_of_two_nodes) { each_rank_dies(&apart, two_saves, 1, true); }
TEST(each_rank_may_die_with_two_saves_in_flight) { each_rank_dies(&apart, in_flight, 4, true); }
TEST(each_rank_may_die_with_two_lazy_saves_in_flight)
{
	each_rank_dies(&behind, in_flight, 4, false);
}
TEST(each_rank_may_die_in_lazy_saves_of_one_agreement)
{
	each_rank_dies(&behind, two_saves, 2, true);
}
TEST(each_rank_may_die_while_a_step_is_published_behind)
{
	each_rank_dies(&apart, published_behind, 5, false);
	each_rank_dies(&asking, two_saves, 2, true);
}
TEST(each_rank_may_die_while_what_is_not_staged_is_written)
{
	each_rank_dies(&staying, in_flight, 3, true);
}
TEST(each_rank_may_die_in_a_new_run) { each_rank_dies(&nothing, two_saves, 1, true); }
TEST(each_rank_may_die_in_saves_of_many_rounds) { each_rank_dies(&rounds, two_saves, 2, true); }
TEST(each_rank_may_die_while_it_prunes) { each_rank_dies(&small, save_and_prune, 2, true); }
TEST(each_rank_may_die_while_it_marks_and_rewinds)
{
	each_rank_dies(&small, mark_and_rewind, 3, true);
}
TEST(each_rank_may_die_at_each_operation_of_a_load) { each_rank_dies(&three, one_load, 1, false); }
TEST(each_rank_may_die_heard_at_each_operation_of_a_load)
{
	each_rank_dies(&three, one_load, 1, true);
}

/* ---- ranks that are late ---- */

static void each_rank_is_late(const struct variant *v, const struct deed *deeds, int n, int64_t ms)
{
	struct simdisk *base = base_of(v);
	int bad = 0, tried = 0, stride = all_of_it ? 1 : THIN * v->stride + 1;

	for (int rank = 0; rank < v->ranks && bad < 20; rank++)
		for (int at = 1 + rank % stride; bad < 20; at += stride) {
			struct simdisk *disk = copy_of(base);
			struct job j = job_of(v, disk);
			char why[300] = "";
			bool fired;

			j.group = (struct simgroup_opts){ .seed = (uint64_t)(rank * 1000 + at),
				.late_rank = rank, .late_at = at, .late_ms = ms };
			give(&j, deeds, n);
			job_prepare(&j);
			(void)job_run(&j);
			fired = j.stat.fired;
			if (!j.why[0] && ms < JOB_TIMEOUT_MS && job_rc(&j) != 0)
				snprintf(j.why, sizeof(j.why), "%d: %s", job_rc(&j), job_word(&j));
			if (!j.why[0])
				(void)judge(&j, v->fresh, disk, why);
			if (j.why[0] || why[0]) {
				print_error("%s: rank %d is %lld ms late at operation %d: %s%s\n",
					    v->name, rank, (long long)ms, at, j.why, why);
				bad++;
			}
			simdisk_free(disk);
			if (!fired)
				break;
			tried++;
		}
	printf("# %s: %d times late\n", v->name, tried);
	simdisk_free(base);
	CHECK_INT(bad, 0);
	CHECK(tried > 100 / THIN);
}

TEST(a_rank_late_within_the_deadline_stops_nothing)
{
	each_rank_is_late(&small, two_saves, 1, JOB_TIMEOUT_MS / 2);
	each_rank_is_late(&three, one_load, 1, JOB_TIMEOUT_MS / 2);
}
TEST(a_rank_late_beyond_the_deadline_leaves_a_step_whole_or_absent)
{
	each_rank_is_late(&small, two_saves, 1, 2 * JOB_TIMEOUT_MS);
	each_rank_is_late(&apart, two_saves, 1, 2 * JOB_TIMEOUT_MS);
	each_rank_is_late(&three, one_load, 1, 2 * JOB_TIMEOUT_MS);
}

TEST(a_rank_that_hangs_at_any_operation_leaves_a_step_whole_or_absent)
{
	each_rank_is_late(&small, save_and_prune, 2, 100 * JOB_TIMEOUT_MS);
	each_rank_is_late(&small, mark_and_rewind, 3, 100 * JOB_TIMEOUT_MS);
	each_rank_is_late(&apart, two_saves, 1, 100 * JOB_TIMEOUT_MS);
}

/* ---- allocations that fail ---- */

static long starve_nth;
static int starve_rank;

static void starve(void *arg, int rank)
{
	(void)arg;
	starve_left = rank == starve_rank ? starve_nth : 0;
}

static void feed(void *arg, int rank)
{
	(void)arg;
	(void)rank;
	starve_left = 0;
}

static bool one_starving(const struct variant *v, struct simdisk *base, int rank, long nth,
                         int *bad)
{
	static const struct deed deeds[] = { { .kind = DEED_SAVE, .step = 2 },
		{ .kind = DEED_LOAD, .step = 1 }, { .kind = DEED_LOAD, .step = SHEAF_LATEST } };
	struct simdisk *disk = copy_of(base);
	struct job j = job_of(v, disk);
	char why[300] = "";
	int rc, failed = 0;

	j.armed = starve;
	j.disarmed = feed;
	give(&j, deeds, 3);
	job_prepare(&j);
	starve_nth = nth;
	starve_rank = rank;
	starved = false;
	(void)job_run(&j);
	rc = job_rc(&j);
	for (int i = 0; i < j.deeds_n; i++)
		failed += j.deeds[i].rc[0] != 0;
	/* What only helps (a faster sum) may do without. */
	if (!j.why[0] && starved && rc != SHEAF_ENOMEM && rc != 0)
		snprintf(j.why, sizeof(j.why), "%d is no ENOMEM: %.300s", rc, job_word(&j));
	if (!j.why[0] && failed > 1 && j.open_rc[0] == 0)
		snprintf(j.why, sizeof(j.why), "the deed after it fails too");
	if (!j.why[0] && !starved && rc != 0)
		snprintf(j.why, sizeof(j.why), "%d: %.300s", rc, job_word(&j));
	if (!j.why[0])
		(void)judge(&j, v->fresh, disk, why);
	if (j.why[0] || why[0]) {
		print_error("%s: allocation %ld of rank %d fails: %s%s (%d: %s)\n", v->name, nth,
			    rank, j.why, why, rc, job_word(&j));
		++*bad;
	}
	simdisk_free(disk);
	return starved;
}

static void each_allocation_fails(const struct variant *v)
{
	struct simdisk *base = base_of(v);
	int bad = 0;
	long tried = 0, stride = all_of_it ? 1 : THIN * v->stride;

	for (int rank = 0; rank < v->ranks && bad < 20; rank++)
		for (long nth = 1 + rank % stride; bad < 20; nth += stride, tried++)
			if (!one_starving(v, base, rank, nth, &bad))
				break;
	printf("# %s: %ld failing allocations\n", v->name, tried);
	simdisk_free(base);
	CHECK_INT(bad, 0);
	CHECK(tried > 320 / THIN);
}

TEST(each_allocation_of_one_rank_may_fail) { each_allocation_fails(&starving_one); }
TEST(each_allocation_of_two_ranks_may_fail) { each_allocation_fails(&starving_two); }
TEST(each_allocation_of_lazy_saves_may_fail) { each_allocation_fails(&starving_lazy); }
TEST(each_allocation_of_saves_in_place_may_fail) { each_allocation_fails(&starving_staying); }
TEST(each_allocation_of_who_asks_may_fail) { each_allocation_fails(&starving_behind); }
TEST(each_allocation_of_two_nodes_may_fail) { each_allocation_fails(&starving_far); }

/* A save without ranks or disk troubles, and what one allocation less makes of its notes and
 * files. */
static int notes_without(struct simdisk *disk, long nth, struct sheaf_error *err)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .io_threads = 1 };
	const struct shf_sys *sys = simdisk_process(disk, (uint64_t)(77 + nth), 0);
	struct sheaf_state *state = shf_state_new();
	struct sheaf_run *run = NULL;
	struct sheaf_save *save = NULL;
	int rc = shf_run_open(&run, "run", NULL, &opts, sys, err);

	if (rc == 0)
		rc = shf_save_begin(&save, run, nth, state, NULL, err);
	starved = false;
	starve_left = rc == 0 ? nth : 0;
	for (int i = 0; rc == 0 && i < 2; i++) {
		(void)shf_save_note(save, i ? "b" : "a", "1", NULL);
		(void)shf_save_attach(save, i ? "b.json" : "a.json", "{}", 2, NULL);
	}
	starve_left = 0;
	if (rc == 0)
		rc = shf_save_commit(save, -1, err);
	shf_save_free(save);
	shf_run_close(run);
	shf_state_put(state);
	simdisk_kill(disk, sys);
	return rc;
}

TEST(a_note_or_file_that_finds_no_memory_is_never_there_in_half)
{
	struct simdisk *disk = simdisk_new(JOB_SEED, SIMDISK_STRICT);
	struct sheaf_error err;
	long nth;
	int rc = 0;

	for (nth = 1;; nth++) {
		rc = notes_without(disk, nth, &err);
		if (!starved)
			break;
		CHECK_RC(rc, SHEAF_ENOMEM, &err);
	}
	CHECK_RC(rc, 0, &err);
	CHECK(nth > 12);        /* two notes and two files of three allocations each */
	printf("# %ld failing allocations of notes and files\n", nth - 1);
	simdisk_free(disk);
}

/* ---- what travels ---- */

static uint64_t travelled(const int32_t *nodes, uint64_t *to_zero, bool between)
{
	struct variant v = { "payload", 4, nodes, 1000, 0, 1, false, false, false, false };
	struct simdisk *disk = simdisk_new(JOB_SEED, SIMDISK_STRICT);
	struct job j = job_of(&v, disk);
	uint64_t n = 0;

	j.bigs = 4;
	j.file_bytes = 300000;
	give(&j, two_saves, 1);
	job_prepare(&j);
	CHECK(job_run(&j));
	CHECK_INT(job_rc(&j), 0);
	*to_zero = 0;
	for (int a = 0; a < 4; a++)
		for (int b = 0; b < 4; b++) {
			if (a != b && (!between || nodes[a] != nodes[b]))
				n += j.pairs[4 * a + b];
			if (a != b && b == 0)
				*to_zero += j.pairs[4 * a + b];
		}
	simdisk_free(disk);
	return n;
}

/* The state is 1 MB in four files, cut along its inner axis: each page has bytes of two ranks. */
TEST(on_one_node_an_inner_cut_moves_no_bytes_by_messages)
{
	uint64_t to_zero, n = travelled(NULL, &to_zero, false);

	printf("# one node: %llu bytes of messages, %llu to rank 0\n", (unsigned long long)n,
	       (unsigned long long)to_zero);
	CHECK(n < 50000);
}

TEST(between_two_nodes_only_what_the_other_node_lacks_travels)
{
	uint64_t to_zero, n = travelled(two_nodes, &to_zero, true);

	/* Each node holds all: dp. */
	printf("# two nodes: %llu bytes between, %llu to rank 0\n", (unsigned long long)n,
	       (unsigned long long)to_zero);
	CHECK(n < 50000);
	CHECK(to_zero < 50000);
}

TEST(where_no_node_holds_whole_rows_half_of_them_travel_and_none_is_gathered)
{
	uint64_t to_zero, n = travelled(four_nodes, &to_zero, true), all = 4000 * 256;

	printf("# four nodes: %llu bytes between, %llu to rank 0\n", (unsigned long long)n,
	       (unsigned long long)to_zero);
	CHECK(n > all / 4);
	CHECK(n < all / 2 + 60000);
	CHECK(to_zero < all / 4); /* a quarter of what travels is its own share */
}

int main(int argc, char **argv)
{
	all_of_it = t_takes(&argc, argv, "--long");
	return t_main(argc, argv);
}
