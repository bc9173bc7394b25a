/* SPDX-License-Identifier: Apache-2.0 */
/* Agents of two nodes together write a step of which each has a part (lib/engine/flush_nodes.h),
 * and each time something interferes: the other agent, a job, a death, a lock, memory that runs out
 * or that belongs to another step. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "flush.h"
#include "image_card.h"
#include "step.h"
#include "flush_nodes.h"
#include "memory_steps.h"
#include "restarts.h"
#include "starve.h"
#include "simover.h"
#include "t.h"

enum { RANKS = 3 };             /* 0 and 1 on the first node, 2 on the other */

/* ---- a job that died, its agents, and what comes between ---- */

static struct re_job job_on(struct simdisk *d, struct re_plan plan)
{
	plan.nodes = 2;
	return re_on(d, RANKS, plan);
}

/* Steps up to `last`, of which 3 is on disk too. */
static struct simdisk *left_in(uint64_t seed, int last)
{
	struct simdisk *d = re_world(seed);
	struct re_job j = job_on(d, (struct re_plan){ .last = last, .disk_every = 3, .images = 3 });

	PLAYED(j, 0);
	CHECK_INT(j.acked, last);
	return d;
}

static struct simdisk *left_at(int last)
{
	return left_in(4, last);
}

/* Another job goes on from disk and saves that step there. */
static void job_saves(struct simdisk *d, int64_t step)
{
	struct re_job j = job_on(d, (struct re_plan){ .first = (int)step, .last = (int)step,
		.disk_every = 1, .no_agent = true });

	PLAYED(j, 0);
	CHECK_INT(j.acked, step);
}

static void is_on_disk(struct simdisk *d, int64_t step)
{
	struct re_job k = job_on(d, (struct re_plan){ .stop = true });

	simdisk_kill_agent(d, 0);
	simdisk_kill_agent(d, 1);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, step);
	CHECK_INT(k.memory_bytes, 0);
}

struct came {                   /* what came of a flush */
	int rc;
	int64_t step;
	struct sheaf_error err;
	int64_t ms;                     /* it took */
};

/* The n-th lock, or the n-th sleep, of one process: before it, something is done. */
static struct {
	struct simdisk *disk;
	int locks, sleeps;              /* left; 0: never */
	void (*then)(struct simdisk *d);
} between;

static int lock_between(void *arg, int fd, bool exclusive)
{
	if (between.locks && --between.locks == 0)
		between.then(between.disk);
	return simover_real()->file.lock(arg, fd, exclusive);
}

static void sleep_between(void *arg, int ms)
{
	simover_real()->host.sleep_ms(arg, ms);
	if (between.sleeps && --between.sleeps == 0)
		between.then(between.disk);
}

static uint64_t next_pid(void)
{
	static uint64_t pid = 30000;

	return pid++;
}

/* sys: of a new process. */
static struct came flush_on(const struct shf_sys *sys, int wait_ms)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct came c = { .step = -1 };
	int64_t from = shf_sys_mono_ns(sys);

	c.rc = shf_flush_newest("run", NULL, false, wait_ms, sys, &c.step, &report, &c.err);
	c.ms = (shf_sys_mono_ns(sys) - from) / 1000000;
	CHECK(c.rc == 0 || (c.err.code == c.rc && strlen(c.err.msg) > 8));
	return c;
}

static struct came flush_for(struct simdisk *d, int node, int wait_ms)
{
	const struct shf_sys *sys = simdisk_process(d, next_pid(), node);
	struct came c = flush_on(sys, wait_ms);

	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(d, sys);
	return c;
}

static struct came flush(struct simdisk *d, int node)
{
	return flush_for(d, node, 0);
}

/* One of a node, that waits so long; before its n-th lock, or after its n-th sleep. */
static struct came flush_with(struct simdisk *d, int node, int wait_ms, int locks, int sleeps,
                              void (*then)(struct simdisk *d))
{
	const struct shf_sys *sys = simdisk_process(d, next_pid(), node);
	struct came c;

	between.disk = d;
	simover(sys)->file.lock = lock_between;
	simover(sys)->host.sleep_ms = sleep_between;
	between.locks = locks;
	between.sleeps = sleeps;
	between.then = then;
	c = flush_on(sys, wait_ms);
	CHECK_INT(between.locks, 0);
	CHECK_INT(between.sleeps, 0);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(d, sys);
	return c;
}

#define CAME(what, want, words)                                                          \
	do {                                                                             \
		struct came came_ = (what);                                              \
		CHECK_RC(came_.rc, (want), &came_.err);                                  \
		if (!strstr(came_.err.msg, (words)))                                     \
			print_error("%s:%d: %s\n", __FILE__, __LINE__, came_.err.msg);   \
		CHECK(strstr(came_.err.msg, (words)) != NULL);                           \
		CHECK_INT(came_.step, -1);                                               \
	} while (0)
#define WROTE(what, n)                                                                   \
	do {                                                                             \
		struct came came_ = (what);                                              \
		CHECK_RC(came_.rc, 0, &came_.err);                                       \
		CHECK_INT(came_.step, (n));                                              \
	} while (0)

/* Both have come, and the second has written what it has. */
static void come_both(struct simdisk *d, int first)
{
	CAME(flush(d, first), SHEAF_EAGAIN, "of its 3 ranks answered");
	CAME(flush(d, 1 - first), SHEAF_EAGAIN, "ranks were written");
}

/* What is left to do is done. */
static void goes_on(struct simdisk *d, int64_t step)
{
	int64_t found = -1;

	for (int i = 0; i < 8 && found < 0; i++) {
		struct came c = flush(d, i % 2);

		if (c.rc < 0)
			CHECK_RC(c.rc, SHEAF_EAGAIN, &c.err);
		found = c.step;
	}
	CHECK_INT(found, step);
	is_on_disk(d, step);
}

struct cards {
	int n;
	char names[64][SHF_KEEP_NAME];
};

static int note_card(void *arg, const char *name)
{
	struct cards *c = arg;
	char job[33];
	int rank, image;
	bool card;

	if (shf_card_parse(name, job, &rank, &image, &card) && card && c->n < 64)
		memcpy(c->names[c->n++], name, strlen(name) + 1);
	return 0;
}

/* That part of it is nothing any more: its memory is another step's. Step -1: it is, after all. */
static void forget(struct simdisk *d, int node, int64_t step, int rank)
{
	const struct shf_sys *sys = simdisk_process(d, next_pid(), node);
	static uint64_t was;
	struct cards cards = { 0 };
	int keep, n = 0;

	CHECK_INT(shf_sys_keep_open(sys, "auto/x", "", "", &keep, NULL), 0);
	CHECK_INT(shf_sys_keep_list(sys, keep, note_card, &cards), 0);
	for (int i = 0; i < cards.n; i++) {
		struct shf_shm shm = { NULL, 0, -1 };
		struct shf_arena arena = { 0 };
		struct shf_card card;

		CHECK_INT(shf_sys_keep_get(sys, keep, cards.names[i], &shm), 0);
		int rc = shf_card_decode(&card, &arena, &shm);

		if (step < 0 ? rc < 0 : rc == 0 && card.step == step && card.rank == rank) {
			was = atomic_exchange(&shf_card_head(&shm)->whole, step < 0 ? was : 0);
			n++;
		}
		shf_arena_release(&arena);
		shf_sys_shm_free(sys, &shm);
	}
	CHECK_INT(n, 1);
	simdisk_kill(d, sys);
}

/* ---- they wait for each other ---- */

TEST(who_comes_alone_waits_as_long_as_it_is_told)
{
	static const int waits[] = { 3000, 25000 };

	for (int i = 0; i < 2; i++) {
		struct simdisk *d = left_at(4);
		struct came c = flush_for(d, 0, waits[i]);

		CAME(c, SHEAF_EAGAIN, "the agents of only 2 of its 3 ranks answered");
		CHECK(c.ms >= waits[i] && c.ms < waits[i] + 2000);
		goes_on(d, 4);
		simdisk_free(d);
	}
}

static void other_one_comes(struct simdisk *d)
{
	(void)flush(d, 1);
}

static void first_one_comes_and_publishes(struct simdisk *d)
{
	struct came c = flush(d, 0);

	if (c.rc == SHEAF_EAGAIN)       /* it comes once more */
		between.sleeps = 1;
	else
		WROTE(c, 4);
}

TEST(who_waits_goes_on_when_the_other_has_come)
{
	struct simdisk *d = left_at(4);
	struct came c;

	CAME(flush(d, 1), SHEAF_EAGAIN, "1 of its 3 ranks answered");
	c = flush_with(d, 0, 30000, 0, 1, other_one_comes);
	WROTE(c, 4);
	CHECK(c.ms < 1000);
	is_on_disk(d, 4);
	simdisk_free(d);
}

/* As of a job that numbers its steps by the nanosecond. */
TEST(the_number_of_a_step_may_have_nineteen_digits)
{
	const int64_t first = INT64_C(1700000000000000000);
	struct simdisk *d = re_world(4);
	struct re_job j = job_on(d, (struct re_plan){ .first = first, .last = first + 3,
		.disk_every = 5, .images = 3 });

	PLAYED(j, 0);
	CAME(flush(d, 1), SHEAF_EAGAIN, "1 of its 3 ranks answered");
	goes_on(d, first + 3);
	simdisk_free(d);
}

/* The one that has rank 0 publishes; the other one hears of it. */
TEST(who_has_not_rank_0_waits_until_it_is_published)
{
	struct simdisk *d = left_at(4);
	struct came c = flush_with(d, 1, 30000, 0, 1, first_one_comes_and_publishes);

	WROTE(c, 4);
	CHECK(c.ms < 1000);
	is_on_disk(d, 4);
	simdisk_free(d);
}

static void first_one_comes(struct simdisk *d)
{
	CAME(flush(d, 0), SHEAF_EAGAIN, "the parts of only 2 of its 3 ranks were written");
}

TEST(who_has_waited_long_enough_publishes_without_rank_0)
{
	struct simdisk *d = left_at(4);
	struct came c = flush_with(d, 1, 30000, 0, 1, first_one_comes);

	WROTE(c, 4);
	CHECK(c.ms >= 300000 && c.ms < 310000);
	is_on_disk(d, 4);
	simdisk_free(d);
}

/* Rank 0's has come, and never writes what it has. */
TEST(who_waits_for_bytes_gives_up_some_time)
{
	struct simdisk *d = left_at(4);
	struct came c;

	CAME(flush(d, 0), SHEAF_EAGAIN, "2 of its 3 ranks answered");
	c = flush_for(d, 1, 1000);
	CAME(c, SHEAF_EAGAIN, "the parts of only 1 of its 3 ranks were written");
	CHECK(c.ms >= 600000 && c.ms < 610000);
	goes_on(d, 4);
	simdisk_free(d);
}

/* ---- a job comes between ---- */

static void job_saves_4(struct simdisk *d) { job_saves(d, 4); }
static void job_saves_6(struct simdisk *d) { job_saves(d, 6); }

static void damaged_4(struct simdisk *d)
{
	job_saves(d, 4);
	CHECK_INT(simdisk_flip(d, "run/checkpoint-4/sheaf.json", 800), 0);
}

/* Before all have come; when they have, while one waits for the other's bytes. */
TEST(when_the_run_has_gone_on_nothing_is_written)
{
	static void (*const then[])(struct simdisk *d) = { job_saves_4, job_saves_6, damaged_4 };

	for (int i = 0; i < 6; i++) {
		struct simdisk *d = left_at(4);
		struct came c;

		if (i / 3)
			CAME(flush(d, 1), SHEAF_EAGAIN, "1 of its 3 ranks answered");
		c = flush_with(d, 0, 30000, 0, 1, then[i % 3]);
		CHECK_RC(c.rc, 0, &c.err);
		CHECK_INT(c.step, -1);
		CHECK(c.ms < 1000);
		if (then[i % 3] != damaged_4)
			is_on_disk(d, i % 3 ? 6 : 4);
		simdisk_free(d);
	}
}

static void first_one_publishes(struct simdisk *d)
{
	WROTE(flush(d, 0), 4);
}

/* It holds the run's lock next, and looks again. */
TEST(what_another_has_published_meanwhile_is_there)
{
	struct simdisk *d = left_at(4);
	struct came c;

	come_both(d, 1);
	c = flush_with(d, 1, 0, 3, 0, first_one_publishes);
	WROTE(c, 4);
	is_on_disk(d, 4);
	simdisk_free(d);
}

TEST(who_has_the_lock_at_last_finds_that_the_run_has_gone_on)
{
	static void (*const then[])(struct simdisk *d) = { job_saves_4, job_saves_6 };

	for (int i = 0; i < 2; i++) {
		struct simdisk *d = left_at(4);
		struct came c;

		come_both(d, 0);
		c = flush_with(d, 0, 0, 3, 0, then[i]);
		CAME(c, SHEAF_EAGAIN, "a later job has saved meanwhile");
		c = flush(d, 1);
		CHECK_RC(c.rc, 0, &c.err);
		CHECK_INT(c.step, -1);
		is_on_disk(d, i ? 6 : 4);
		simdisk_free(d);
	}
}

/* ---- memory runs out ---- */

static long hungry;             /* the n-th allocation of a meeting fails; 0: none */

int __real_shf_flush_nodes(const struct shf_flush_request *m, int64_t *step,
                           struct sheaf_report *report, struct sheaf_error *err);
int __wrap_shf_flush_nodes(const struct shf_flush_request *m, int64_t *step,
                           struct sheaf_report *report, struct sheaf_error *err);
int __wrap_shf_flush_nodes(const struct shf_flush_request *m, int64_t *step,
                           struct sheaf_report *report, struct sheaf_error *err)
{
	int rc;

	starve_left = hungry;
	rc = __real_shf_flush_nodes(m, step, report, err);
	starve_left = 0;
	return rc;
}

/* No two fail for the same want: each goes on from what the one before it did. */
TEST(without_memory_nothing_is_lost_of_what_agents_meet_for)
{
	struct simdisk *d = left_at(4);
	long n = 0;

	for (int node = 0; node < 2; node++)
		for (hungry = 1 + t_from(T_STRIDE);; hungry += T_STRIDE) {
			struct came c;

			starved = false;
			c = flush(d, node);
			if (!starved)
				break;
			n++;
			if (c.rc != SHEAF_EAGAIN)
				CHECK_RC(c.rc, SHEAF_ENOMEM, &c.err);
			CHECK_INT(c.step, -1);
		}
	hungry = 0;
	printf("# %ld allocations\n", n);
	CHECK(n > 200 / T_STRIDE);
	goes_on(d, 4);
	simdisk_free(d);
}

/* ---- deaths and locks ---- */

/* The last one to come dies at one call after the other, and leaves what it has done. */
TEST(each_call_may_be_the_last_one_of_an_agent_that_publishes)
{
	struct simdisk *d = left_at(4);
	struct came c;
	int nth = 1;

	come_both(d, 0);
	for (bool dies = true; dies; nth++) {
		const struct shf_sys *sys = simdisk_process(d, next_pid(), 0);
		struct simdisk_fault fault = { .nth = nth, .how = SIMDISK_KILL, .process = sys };

		simdisk_fault(d, &fault);
		c = flush_on(sys, 0);
		dies = simdisk_is_dead(sys);
		if (!dies)
			CHECK_INT(simdisk_open_n(sys), 0);
		simdisk_kill(d, sys);
		simdisk_faults_clear(d);
		CHECK(dies ? c.rc < 0 : c.rc == 0);
	}
	printf("# %d deaths\n", nth - 2);
	CHECK(nth > 50);
	is_on_disk(d, 4);
	simdisk_free(d);
}

/* The folder of the meeting, of a job that has died. */
static int note_meeting(void *arg, const char *name)
{
	if (strncmp(name, "flush-", 6) == 0)
		snprintf(arg, 60, "run/.sheaf/%s", name);
	return 0;
}

static void meeting_of(struct simdisk *d, char path[60])
{
	const struct shf_sys *sys = simdisk_process(d, next_pid(), 0);
	int dot = shf_sys_open(sys, SHF_CWD, "run/.sheaf", SHF_O_DIR, 0);

	path[0] = '\0';
	CHECK_INT(shf_sys_list(sys, dot, note_meeting, path), 0);
	CHECK(path[0]);
	simdisk_kill(d, sys);
}

/* Somebody who holds it, until he is killed. */
static const struct shf_sys *locked(struct simdisk *d, int node, const char *path)
{
	const struct shf_sys *sys = simdisk_process(d, next_pid(), node);
	int fd = shf_sys_open(sys, SHF_CWD, path, SHF_O_WRITE | SHF_O_CREATE, 0666);

	CHECK(fd >= 0);
	CHECK_INT(shf_sys_lock(sys, fd, true), 0);
	return sys;
}

TEST(while_a_job_has_the_run_open_no_agent_writes)
{
	struct simdisk *d = left_at(4);
	const struct shf_sys *job = simdisk_process(d, next_pid(), 2);
	struct sheaf_error err;
	struct shf_store store;

	CHECK_RC(shf_store_own(&store, job, "run", false, 0, &err), 0, &err);
	CAME(flush(d, 0), SHEAF_EAGAIN, "2 of its 3 ranks answered");
	CAME(flush(d, 1), SHEAF_EAGAIN, "step 4 in memory: a job has the run open");
	CAME(flush(d, 0), SHEAF_EAGAIN, "step 4 in memory: a job has the run open");
	simdisk_kill(d, job);
	shf_store_close(&store);
	goes_on(d, 4);
	simdisk_free(d);
}

TEST(of_a_node_one_process_writes)
{
	struct simdisk *d = left_at(4);
	const struct shf_sys *twin;
	char path[80];

	CAME(flush(d, 0), SHEAF_EAGAIN, "2 of its 3 ranks answered");
	meeting_of(d, path);
	twin = locked(d, 0, strcat(path, "/lock-0"));
	CAME(flush(d, 0), SHEAF_EBUSY, "another process is writing the step that this node has");
	simdisk_kill(d, twin);
	simdisk_fault(d, &(struct simdisk_fault){ .nth = 1, .error = ENOLCK, .always = true,
		.kind = SIMDISK_LOCK });        /* where there are no locks, all go on without */
	goes_on(d, 4);
	simdisk_free(d);
}

/* ---- memory that is another step's meanwhile ---- */

static void rank_1_is_gone(struct simdisk *d) { forget(d, 0, 4, 1); }

/* Before it is looked at, and while it is written; nor at a later try of one that waits. */
TEST(a_part_that_is_gone_meanwhile_is_not_written_as_whole)
{
	static const char *const words[] = { "no longer holds all staging", "a newer save reused" };

	for (int i = 0; i < 4; i++) {
		struct simdisk *d = left_at(4);

		CAME(flush(d, 1), SHEAF_EAGAIN, "1 of its 3 ranks answered");
		CAME(flush_with(d, 0, i < 2 ? 0 : 1000, 1 + i % 2, 0, rank_1_is_gone), SHEAF_EAGAIN,
		     words[i % 2]);
		for (int k = 0; k < 4; k++)
			CHECK_INT(flush(d, k % 2).step, -1);
		is_on_disk(d, 3);
		simdisk_free(d);
	}
}

/* All have come, and of the newest one has nothing any more. */
TEST(agents_write_the_newest_that_all_of_them_have)
{
	struct simdisk *d = left_at(5);

	forget(d, 1, 5, 2);
	goes_on(d, 4);
	simdisk_free(d);
}

static void remember(struct simdisk *d) { forget(d, 1, -1, 2); }

TEST(what_lies_behind_the_step_that_agents_write_follows_it)
{
	struct simdisk *d = left_at(5);
	struct re_job k = job_on(d, (struct re_plan){ .stop = true });

	forget(d, 1, 5, 2);
	come_both(d, 1);
	WROTE(flush_with(d, 1, 0, 1, 0, remember), 4);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 5);
	simdisk_free(d);
}

static void job_saves_4_too(struct simdisk *d) { job_saves(d, 4); }

TEST(what_is_whole_in_memory_and_on_disk_by_now_is_not_written_again)
{
	struct simdisk *d = left_at(5);
	struct came c;

	forget(d, 1, 5, 2);
	CAME(flush(d, 1), SHEAF_EAGAIN, "1 of its 3 ranks answered");
	c = flush_with(d, 0, 0, 1, 0, job_saves_4_too);
	CHECK_RC(c.rc, 0, &c.err);
	CHECK_INT(c.step, -1);
	is_on_disk(d, 4);
	simdisk_free(d);
}

/* ---- what lies where they meet ---- */

static void put_there(struct simdisk *d, const char *name, const char *line)
{
	struct shf_buf text = SHF_BUF_INIT;
	char path[160];

	meeting_of(d, path);
	strcat(strcat(path, "/"), name);
	shf_buf_adds(&text, line);
	shf_line_sum(&text, 0);
	CHECK_INT(simdisk_put(d, path, text.data, text.len), 0);
	shf_buf_release(&text);
}

TEST(names_that_are_no_tables_are_passed_over)
{
	struct simdisk *d = left_at(4);

	CAME(flush(d, 0), SHEAF_EAGAIN, "2 of its 3 ranks answered");
	put_there(d, "have-", "x\n");
	put_there(d, "have-x", "x\n");
	put_there(d, "have-2x", "0123456789abcdef0123456789abcdef 4 2 3 0 0 0 0 9\n");
	CHECK_INT(flush(d, 0).step, -1);
	simdisk_free(d);
}

/* Of an older job of that name, say, with more ranks; in whatever order they are listed. */
TEST(a_rank_that_the_job_does_not_have_is_not_counted)
{
	for (uint64_t seed = 0; seed < 12; seed++) {
		struct simdisk *d = left_in(seed, 4);

		CAME(flush(d, 0), SHEAF_EAGAIN, "2 of its 3 ranks answered");
		put_there(d, "have-9", "0123456789abcdef0123456789abcdef 4 5 9 0 0 0 0 9\n");
		CAME(flush(d, 1), SHEAF_EAGAIN, "the parts of only 1 of its 3 ranks were written");
		goes_on(d, 4);
		simdisk_free(d);
	}
}

/* What cannot be read has not come: it may be gone, as all is over. */
TEST(a_table_that_goes_meanwhile_has_not_come)
{
	static const int errors[] = { ENOENT, EIO };

	for (int i = 0; i < 2; i++) {
		struct simdisk *d = left_at(4);
		struct simdisk_fault fault = { .nth = 1, .error = errors[i],
			.kind = SIMDISK_OPEN, .name = "have-2" };

		CAME(flush(d, 1), SHEAF_EAGAIN, "1 of its 3 ranks answered");
		simdisk_fault(d, &fault);
		if (i)
			CAME(flush(d, 0), SHEAF_EIO, "have-2: ");
		else
			CAME(flush(d, 0), SHEAF_EAGAIN, "2 of its 3 ranks answered");
		CHECK_INT(simdisk_fired(d), 1);
		simdisk_faults_clear(d);
		goes_on(d, 4);
		simdisk_free(d);
	}
}

/* The stage of a failed flush cannot be deleted; once it can, the flush publishes the step. */
TEST(a_stage_that_stays_is_told_and_the_next_try_makes_it_anew)
{
	struct simdisk *d = left_at(4);
	struct simdisk_fault after = { .nth = 1, .error = EIO, .kind = SIMDISK_RENAME,
		.how = SIMDISK_AFTER, .name = "4-" }, stays = { .nth = 1, .error = EACCES,
		.kind = SIMDISK_UNLINK, .name = "model-", .always = true };

	come_both(d, 0);
	simdisk_fault(d, &after);
	CAME(flush(d, 0), SHEAF_EIO, "4-");
	CHECK_INT(simdisk_fired(d), 1);
	simdisk_faults_clear(d);
	CAME(flush(d, 1), SHEAF_EAGAIN, "the parts of only 1 of its 3 ranks were written");
	simdisk_fault(d, &stays);
	CAME(flush(d, 0), SHEAF_EIO, "4-");
	CHECK(simdisk_fired(d) > 0);
	simdisk_faults_clear(d);
	CAME(flush(d, 1), SHEAF_EAGAIN, "the parts of only 1 of its 3 ranks were written");
	/* It is taken away, and what has been written takes its place by the second rename. */
	after.nth = 2;
	simdisk_fault(d, &after);
	CAME(flush(d, 0), SHEAF_EIO, "4-");
	CHECK_INT(simdisk_fired(d), 1);
	simdisk_faults_clear(d);
	goes_on(d, 4);
	simdisk_free(d);
}

struct names {
	char text[400];
};

static int note_name(void *arg, const char *name)
{
	struct names *n = arg;

	CHECK(strlen(n->text) + strlen(name) + 2 < sizeof(n->text));
	strcat(strcat(n->text, name), " ");
	return 0;
}

/* What lies where they meet. */
static struct names names_at(struct simdisk *d, const char *path)
{
	const struct shf_sys *sys = simdisk_process(d, next_pid(), 0);
	int dir = shf_sys_open(sys, SHF_CWD, path, SHF_O_DIR, 0);
	struct names n = { "" };

	CHECK_INT(shf_sys_list(sys, dir, note_name, &n), 0);
	simdisk_kill(d, sys);
	return n;
}

/* A bit of it is another one, or it is not there at all. */
TEST(what_was_written_and_is_refused_counts_no_more_and_goes)
{
	static const struct {
		int code;
		const char *words;
	} want[] = { { SHEAF_ECORRUPT, "block 0 at byte 0 has checksum" },
		{ SHEAF_EIO, "memory of run/checkpoint-4/model-00001-of-00001.safetensors: "
		"reading" } };

	for (int i = 0; i < 2; i++) {
		struct simdisk *d = left_at(4);
		char path[200], meeting[60];
		struct names n;

		come_both(d, 1);
		meeting_of(d, meeting);
		n = names_at(d, meeting);
		CHECK(strstr(n.text, "done-0-4 "));
		snprintf(path, sizeof(path), "%s/%.34s/model-00001-of-00001.safetensors", meeting,
		         n.text[0] == '4' ? n.text : strstr(n.text, " 4-") + 1);
		CHECK_INT(i ? simdisk_remove(d, path) : simdisk_flip(d, path, 160), 0);
		CAME(flush(d, 1), want[i].code, want[i].words);
		n = names_at(d, meeting);
		CHECK(!strstr(n.text, "done-") && !strstr(n.text, "4-0"));
		goes_on(d, 4);
		simdisk_free(d);
	}
}

/* ---- calls that fail ---- */

struct said {                   /* lines; as often as one came in a row stands before it */
	struct shf_buf text;
	char line[200];
	int n;
};

static void say(struct said *s, const char *line)
{
	if (s->n && strcmp(line, s->line)) {
		shf_buf_addf(&s->text, "%d %s\n", s->n, s->line);
		s->n = 0;
	}
	snprintf(s->line, sizeof(s->line), "%s", line);
	s->n++;
}

/* What a flush said, with the meeting as @ and the step's folder as 4-S; what was done without is
 * left out. */
static void say_what_came(struct said *s, const char *call, const struct came *c,
                          const char *meeting)
{
	const char *at = c->err.msg, *session, *why = ": Input/output error";
	bool there = strncmp(at, meeting, strlen(meeting)) == 0;
	char line[200];
	size_t n;

	if (c->rc == 0 || c->rc == SHEAF_EAGAIN)
		return;
	CHECK_INT(c->rc, SHEAF_EIO);
	at += there ? strlen(meeting) : 0;
	session = strncmp(at, "/4-", 3) ? NULL : at + 3 + strspn(at + 3, "0123456789abcdef");
	if (strncmp(at, "/have-", 6) == 0)      /* tables are read in any order */
		at = "/have-N: Input/output error";
	n = (size_t)snprintf(line, sizeof(line), "%s: %s%s%s", call, there ? "@" : "",
	                     session ? "/4-S" : at, session ? session : "");
	if (n > strlen(why) && strcmp(line + n - strlen(why), why) == 0)
		line[n - strlen(why)] = '\0';
	say(s, line);
}

/* It has to be written anew. */
static void unwrite(struct simdisk *d, const char *meeting)
{
	static const char *const names[] = { "have-0", "done-0-4" };
	char path[100];

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", meeting, names[i]);
		if (simdisk_exists(d, path))
			CHECK_INT(simdisk_remove(d, path), 0);
	}
}

/* The one of rank 0 comes and writes what it has; before that each of its calls of that kind has
 * failed once. */
static void each_fails(enum simdisk_kind kind, const char *call, struct said *s)
{
	struct simdisk *d = left_at(4);
	char meeting[60];

	CAME(flush(d, 1), SHEAF_EAGAIN, "1 of its 3 ranks answered");
	meeting_of(d, meeting);
	for (int nth = 1, fired = 1; fired; nth++) {
		const struct shf_sys *sys = simdisk_process(d, next_pid(), 0);
		struct came c;

		simdisk_fault(d, &(struct simdisk_fault){ .nth = nth, .error = EIO, .kind = kind,
			.process = sys });
		c = flush_on(sys, 0);
		fired = simdisk_fired(d);
		simdisk_faults_clear(d);
		CHECK_INT(simdisk_open_n(sys), 0);
		simdisk_kill(d, sys);
		if (!fired)
			CAME(c, SHEAF_EAGAIN, "the parts of only 2 of its 3 ranks were written");
		say_what_came(s, call, &c, meeting);
		if (fired)
			unwrite(d, meeting);
	}
	goes_on(d, 4);
	simdisk_free(d);
}

#define RUN_FILES "1 open: run: no run directory here (SHEAF_RUN_CREATE makes one)\n"    \
	"1 open: run/.sheaf\n1 open: run/.sheaf/run\n1 open: run/.sheaf/stage\n"
#define MARKS "run/.sheaf/marks: finding out whether step 4 in memory follows a bad step\n"
#define ASIDE "run/.sheaf/aside: finding out whether step 4 in memory follows one of these\n"
#define RULES "1 open: run/.sheaf/rewinds cannot be read, so it is not known whether the " \
	"checkpoints in memory were rewound\n1 open: " MARKS "1 open: " ASIDE
#define LISTS "1 list: run: listing its steps\n1 list: " MARKS "1 list: " ASIDE
#define FILE_1 "@/model-00001-of-00001.safetensors\n"
#define ASKS "sending a request to the agent\n"
#define FILE_2 "@/optimizer/optimizer-00001-of-00001.safetensors\n"
static const char wanted[] =
	"1 mkdir: @/\n1 mkdir: @/4-S\n1 mkdir: @/optimizer\n" RUN_FILES RULES RUN_FILES
	"1 open: @/\n1 open: @/have-N\n1 open: @/lock-0\n"
	"2 open: @/have-N\n" RULES "1 open: @/4-S\n1 open: " FILE_1 "1 open: @/optimizer\n1 open: "
	FILE_2 "1 open: @/done-0-4\n1 lock: @/lock-0\n1 resize: " FILE_1 "1 resize: " FILE_2
	"1 pwrite: @/have-N\n2 pwrite: " FILE_1 "2 pwrite: " FILE_2 "1 pwrite: @/done-0-4\n"
	"1 fsync: @/\n2 fsync: @/have-N\n2 fsync: " FILE_1 "2 fsync: " FILE_2 "2 fsync: @/4-S\n"
	"2 fsync: @/done-0-4\n1 close: @/have-N\n1 close: " FILE_1 "1 close: " FILE_2
	"1 close: @/done-0-4\n1 rename: @/have-N\n1 rename: @/done-0-4\n" LISTS "1 list: @/\n" LISTS
	"1 agent: connecting to the agent\n10 agent: run: " ASKS "7 agent: step 4 in memory: " ASKS
	"5 agent: run: " ASKS;

TEST(each_call_that_fails_is_told_with_the_name_of_its_file)
{
	static const struct {
		enum simdisk_kind kind;
		const char *name;
	} calls[] = { { SIMDISK_MKDIR, "mkdir" }, { SIMDISK_OPEN, "open" },
		{ SIMDISK_LOCK, "lock" }, { SIMDISK_RESIZE, "resize" },
		{ SIMDISK_PWRITE, "pwrite" }, { SIMDISK_FSYNC, "fsync" },
		{ SIMDISK_CLOSE, "close" }, { SIMDISK_RENAME, "rename" }, { SIMDISK_LIST, "list" },
		{ SIMDISK_KEEP, "agent" } };
	struct said s = { .text = SHF_BUF_INIT };

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		each_fails(calls[i].kind, calls[i].name, &s);
	say(&s, "");
	shf_buf_add(&s.text, "", 1);
	CHECK_STR((char *)s.text.data, wanted);
	shf_buf_release(&s.text);
}

/* An agent without standard input may get descriptor 0 for anything. */
TEST(each_descriptor_of_an_agent_may_be_0)
{
	struct simdisk *d = left_at(4);
	char meeting[60];
	int nth = 1;

	CAME(flush(d, 1), SHEAF_EAGAIN, "1 of its 3 ranks answered");
	meeting_of(d, meeting);
	for (int fired = 1; fired; nth++) {
		simdisk_fault(d, &(struct simdisk_fault){ .nth = nth, .kind = SIMDISK_OPEN,
			.how = SIMDISK_ZERO });
		CAME(flush(d, 0), SHEAF_EAGAIN, "the parts of only 2 of its 3 ranks were written");
		fired = simdisk_fired(d);
		simdisk_faults_clear(d);
		unwrite(d, meeting);
	}
	CHECK(nth > 20);
	goes_on(d, 4);
	simdisk_free(d);
}
