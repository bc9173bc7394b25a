/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of steps in memory while the agent of the next node stops, starts, has no room, memory
 * is short, or states grow: training goes on, all ranks get the same code, and what was
 * acknowledged while there were replicas survives the loss of the other node. */
#include <errno.h>
#include "step.h"
#include "restarts.h"
#include "save.h"
#include "memory_tier.h"
#include "starve.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "step_open.h"
#include "run_ops.h"

enum { RANKS = 2, STAGING = 1300000 };
struct host;
struct mine {                   /* a rank, in its act */
	struct host *h;
	int rank, once, left;           /* logged: copies are made no more; no more in memory */
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct re_mine m;
	struct sheaf_error err;
};
struct host {
	struct simdisk *disk;
	int (*act)(struct mine *m);
	int images;
	uint64_t staging;
	bool behind, deaf;              /* deaf: the agent of rank 1 does not answer */
	long nth;
	int error, who;
	const struct shf_sys *sys[RANKS];
	/* afterwards */
	int rc[RANKS], once, left;
	char why[400];
	bool hit;
};

static void hear(void *arg, int level, const char *line)
{
	struct mine *m = arg;

	(void)level;
	m->once += strstr(line, "run: checkpoints in memory have no second copy from now on: ") ==
	           line;
	m->left += strstr(line, "is no longer in memory") != NULL;
}

static int rank_main(void *arg, int rank, struct sheaf_group *group)
{
	struct host *h = arg;
	struct mine m = { .h = h, .rank = rank };
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .agent = "auto",
		.timeout_ms = 60000, .images_max = h->images, .copies = 2, .io_threads = 1,
		.staging_bytes_max = h->staging, .log = hear, .arg = &m };
	int rc;

	if (h->behind)
		(void)sheaf_group_new(&opts.copies_group, &group->ops, NULL);
	m.state = re_state(&m.m, rank, RANKS);
	rc = shf_run_open(&m.run, "run", group, &opts, h->sys[rank], &m.err);
	if (rc == 0)
		rc = h->act(&m);
	starve_left = 0;
	if (rc < 0)
		snprintf(h->why, sizeof(h->why), "rank %d: %d %.300s", rank, rc, m.err.msg);
	shf_run_close(m.run);
	sheaf_group_free(opts.copies_group);
	shf_state_put(m.state);
	re_free(&m.m);
	h->once += m.once;
	h->left += m.left;
	return rc;
}

/* On two nodes; the code, which is the same on both. */
static int play(struct host *h)
{
	static const int32_t nodes[RANKS] = { 0, 1 };
	struct simgroup_opts o = { .seed = 3, .ranks = RANKS, .nodes = nodes };
	static uint64_t pid = 20000;

	for (int r = 0; r < RANKS; r++)
		h->sys[r] = simdisk_process(h->disk, pid++, r);
	if (h->deaf)
		simdisk_fault(h->disk, &(struct simdisk_fault){ .nth = 1, .error = ENOENT,
			.kind = SIMDISK_KEEP, .always = true, .process = h->sys[1] });
	h->why[0] = '\0';
	CHECK_INT(simgroup_run(&o, rank_main, h, h->rc), 0);
	for (int r = 0; r < RANKS; r++) {
		CHECK_INT(simdisk_open_n(h->sys[r]), 0);
		simdisk_kill(h->disk, h->sys[r]);
	}
	if (h->rc[0] != h->rc[1])
		print_error("%ld: %d and %d: %s\n", h->nth, h->rc[0], h->rc[1], h->why);
	CHECK_INT(h->rc[0], h->rc[1]);
	return h->rc[0];
}

#define PLAYS(h)                                                                         \
	do {                                                                             \
		if (play(&(h)) != 0)                                                     \
			print_error("%ld: %s\n", (h).nth, (h).why);                      \
		CHECK_INT((h).rc[0], 0);                                                 \
	} while (0)

static int begin(struct mine *m, int64_t step, uint64_t flags, struct sheaf_save **save)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };

	re_paint(&m->m, step);
	return shf_save_begin(save, m->run, step, m->state, &opts, &m->err);
}

static int commit(struct mine *m, struct sheaf_save *save)
{
	int rc = shf_save_commit(save, -1, &m->err);

	shf_save_free(save);
	return rc;
}

/* With so many bytes attached: its cards have them. */
static int save_with(struct mine *m, int64_t step, size_t n)
{
	static const uint8_t much[300000];
	struct sheaf_save *save = NULL;
	int rc = begin(m, step, SHEAF_SAVE_NO_DISK, &save);

	if (rc == 0 && n && m->rank == 0)
		rc = shf_save_attach(save, "more.bin", much, n, NULL);
	return rc == 0 ? commit(m, save) : rc;
}

static int save(struct mine *m, int64_t step)
{
	return save_with(m, step, 0);
}

static int saves(struct mine *m, int64_t from, int64_t to)
{
	int rc = 0;

	for (int64_t step = from; step <= to && rc == 0; step++)
		rc = save(m, step);
	return rc;
}

/* Of what is there without a node, the newest; -1: nothing. */
static int64_t found_without(struct simdisk *disk, int node)
{
	struct re_job k = re_on(disk, 2, (struct re_plan){ .stop = true, .nodes = 2,
	                                                   .copies = 2 });

	simdisk_kill_agent(disk, node);
	PLAYED(k, 0);
	return k.loaded > 0 ? k.loaded : -1;
}

/* ---- the agent of a node goes, and another comes ---- */

static int comes_back(struct mine *m)
{
	int rc = saves(m, 1, 3);

	if (rc == 0 && m->rank == m->h->who) {
		simdisk_kill_agent(m->h->disk, m->rank);
		if (m->h->nth)
			simdisk_fault(m->h->disk, &(struct simdisk_fault){
				.nth = (int)m->h->nth, .error = m->h->error,
				.kind = SIMDISK_KEEP, .process = m->h->sys[m->rank] });
	}
	for (int64_t step = 4; step <= 9 && rc == 0; step++) {
		if (m->rank == m->h->who && step == 7) /* and once more */
			simdisk_kill_agent(m->h->disk, m->rank);
		if (m->rank == m->h->who)
			simdisk_advance(m->h->disk, 70);
		rc = save(m, step);
		rc = rc == SHEAF_EAGAIN || rc == SHEAF_EFAILED ? 0 : rc;
	}
	return rc;
}

TEST(an_agent_that_comes_gets_the_copies_again_or_none_are_made)
{
	static const int errors[] = { EPIPE, ENOSPC };
	int once = 0, twice = 0;

	for (int i = 0; i < 4; i++)
		for (long nth = 0; nth < 12; nth++) {
			struct host h = { .disk = re_world(4), .act = comes_back, .nth = nth,
				.error = errors[i / 2], .who = i % 2 };

			PLAYS(h);
			once += h.once > 0;
			twice += h.once == 0;
			simdisk_faults_clear(h.disk);
			if (h.once == 0)
				CHECK_INT(found_without(h.disk, (int)(nth % 2)), 9);
			simdisk_free(h.disk);
		}
	print_message("# %d times copies end, %d times they go on\n", once, twice);
	CHECK(once > 0 && twice > 10);
}

/* ---- cards that grow ---- */

static int grows(struct mine *m)
{
	int rc = saves(m, 1, 3);

	if (rc == 0 && m->rank == 1 && m->h->nth)
		simdisk_fault(m->h->disk, &(struct simdisk_fault){
			.nth = (int)m->h->nth, .error = ENOMEM, .kind = SIMDISK_SHM_NEW,
			.process = m->h->sys[1] });
	for (int64_t step = 4; step <= 6 && rc == 0; step++)
		rc = save_with(m, step, 300000);
	return rc;
}

TEST(a_card_that_grows_has_its_copy_or_none_are_made)
{
	for (long nth = 0; nth < 4; nth++) {
		struct host h = { .disk = re_world(5), .act = grows, .nth = nth };
		int rc = play(&h);

		CHECK(rc == 0 || (nth && rc == SHEAF_ENOMEM));
		simdisk_faults_clear(h.disk);
		CHECK(nth || h.once == 0);
		if (rc == 0 && h.once == 0)
			CHECK_INT(found_without(h.disk, 0), 6);
		simdisk_free(h.disk);
	}
}

/* ---- states of other sizes ---- */

static void other_state(struct mine *m, int64_t cols)
{
	shf_state_put(m->state);
	re_free(&m->m);
	re_cols = cols;
	m->state = re_state(&m->m, m->rank, RANKS);
}

static int saves_three(struct mine *m)
{
	return saves(m, 1, 3);
}

static int saves_nothing(struct mine *m)
{
	shf_state_put(m->state);
	m->state = shf_state_new();
	return saves(m, 1, 3);
}

static int finds_nothing(struct mine *m)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, m->run, SHEAF_LATEST, &m->err);

	if (rc == 0)
		rc = step->number == 3 && step->layout.tensors_n == 0 ? 0 : SHEAF_EBUG;
	shf_step_put(step);
	return rc;
}

TEST(steps_without_a_tensor_have_copies_too)
{
	struct host h = { .disk = re_world(6), .act = saves_nothing };

	PLAYS(h);
	CHECK_INT(h.once, 0);
	simdisk_kill_agent(h.disk, 0);
	h.act = finds_nothing;
	PLAYS(h);
	simdisk_free(h.disk);
}

/* The small state has three images and more, the large one has one: it takes that of which a copy
 * is on its way, or has come. */
static int gets_large(struct mine *m)
{
	struct sheaf_save *save = NULL;
	int rc = saves(m, 1, m->h->nth);

	other_state(m, 8000);
	if (rc == 0)
		rc = begin(m, 9, 0, &save);
	return rc == 0 ? commit(m, save) : rc;
}

TEST(a_large_state_takes_the_image_of_a_copy_and_loses_no_step_on_disk)
{
	int left = 0;

	for (long steps = 0; steps <= 4; steps += 4)
		for (long nth = 1; nth <= 5; nth++) {
			struct host h = { .disk = re_world(7), .act = gets_large, .nth = nth,
				.behind = true, .images = 4, .staging = STAGING };

			simdisk_set_task_steps(h.disk, steps);
			PLAYS(h);
			left += h.left > 0;
			CHECK_INT(found_without(h.disk, 0), 9);
			re_cols = 700;
			simdisk_free(h.disk);
		}
	CHECK(left > 0);
}

/* Behind the training copies need a third image. */
TEST(with_two_images_copies_are_made_inside_commits)
{
	struct host h = { .disk = re_world(8), .act = saves_three, .behind = true, .images = 3,
		.staging = 600000 };

	simdisk_set_task_steps(h.disk, 0);
	simdisk_fault(h.disk, &(struct simdisk_fault){ .nth = 1, .error = EAGAIN,
		.kind = SIMDISK_TASK_NEW, .always = true });
	PLAYS(h);
	CHECK_INT(simdisk_fired(h.disk), 0);    /* nobody asks for a thread */
	simdisk_faults_clear(h.disk);
	CHECK_INT(h.once, 0);
	CHECK_INT(found_without(h.disk, 1), 3);
	simdisk_free(h.disk);
}

/* The copy of a step is under way when its save is over. */
static int saves_one(struct mine *m)
{
	int rc = save(m, 1);

	return rc == 0 && !shf_background_runs(&m->run->tier->guests.task) ? SHEAF_EBUG : rc;
}

TEST(with_three_images_copies_are_made_behind)
{
	struct host h = { .disk = re_world(8), .act = saves_one, .behind = true, .images = 4 };

	simdisk_set_task_steps(h.disk, 0);
	PLAYS(h);
	CHECK_INT(h.once, 0);
	CHECK_INT(found_without(h.disk, 1), 1);
	simdisk_free(h.disk);
}

static int without_a_thread(struct mine *m)
{
	simdisk_fault(m->h->disk, &(struct simdisk_fault){ .nth = 1, .error = EAGAIN,
		.kind = SIMDISK_TASK_NEW, .always = true, .process = m->h->sys[m->rank] });
	return saves(m, 1, 4);
}

TEST(ranks_that_get_no_thread_send_their_copies_themselves)
{
	struct host h = { .disk = re_world(9), .act = without_a_thread, .behind = true,
		.images = 4 };

	simdisk_set_task_steps(h.disk, 4);
	PLAYS(h);
	CHECK(simdisk_fired(h.disk) > 0);
	simdisk_faults_clear(h.disk);
	CHECK_INT(h.once, 0);
	CHECK(found_without(h.disk, 0) >= 3);
	simdisk_free(h.disk);
}

/* ---- where memory is short ---- */

static int lacks(struct mine *m)
{
	struct sheaf_save *save = NULL;
	int rc = saves(m, 1, 2), then;

	if (rc == 0)
		rc = begin(m, 3, SHEAF_SAVE_NO_DISK, &save);
	if (rc < 0)
		return rc;
	if (m->rank == 1) {
		starved = false;
		starve_left = m->h->nth;
	}
	rc = commit(m, save);
	if (m->rank == 1)
		m->h->hit = starved;
	starve_left = 0;
	then = rc == 0 || rc == SHEAF_ENOMEM ? saves(m, 4, 5) : rc;
	return then;
}

TEST(a_rank_that_lacks_memory_to_keep_a_copy_ends_no_training)
{
	int once = 0, hits = 0;
	bool hit = true;

	for (long nth = 1 + t_from(T_STRIDE); hit; nth += T_STRIDE) {
		struct host h = { .disk = re_world(10), .act = lacks, .nth = nth };

		PLAYS(h);
		hit = h.hit;
		hits += hit;
		once += h.once > 0;
		if (h.once == 0)
			CHECK_INT(found_without(h.disk, 0), 5);
		simdisk_free(h.disk);
	}
	print_message("# %d allocations, %d times copies end\n", hits, once);
	CHECK(hits > 20 / T_STRIDE && (once > 0 || T_STRIDE > 1));
}

/* One rank lacks it while all look which step is taken, and from where. */
static int looks_hungry(struct mine *m)
{
	struct sheaf_checkpoint *step = NULL;
	int rc;

	if (m->rank == m->h->who) {
		starved = false;
		starve_left = m->h->nth;
	}
	rc = shf_step_open(&step, m->run, SHEAF_LATEST, &m->err);
	starve_left = 0;
	if (m->rank == m->h->who)
		m->h->hit = starved;
	if (rc == 0 && step->number != 3 && !m->h->hit)
		rc = SHEAF_EBUG;
	shf_step_put(step);
	return rc;
}

TEST(a_rank_that_lacks_memory_to_look_for_copies_opens_no_other_step_without_a_word)
{
	int failed = 0;

	for (int way = 0; way < 2; way++) {
		struct host h = { .disk = re_world(12), .act = saves_three };

		PLAYS(h);
		simdisk_kill_agent(h.disk, 1);
		h.act = looks_hungry;
		h.who = way > 0;
		h.deaf = way > 0;
		h.hit = true;
		for (h.nth = 1 + t_from(T_STRIDE); h.hit; h.nth += T_STRIDE) {
			int rc = play(&h);

			CHECK(rc == 0 || rc == SHEAF_ENOMEM || rc == SHEAF_ENOENT);
			CHECK(h.hit || rc == 0);
			failed += rc < 0;
			simdisk_faults_clear(h.disk);
		}
		simdisk_free(h.disk);
	}
	CHECK(failed > 20 / T_STRIDE);
}

static long open_nth;

/* Only the last allocations of an open are of copies: one rank has none from there on. */
static int opens_alone(void *arg, int rank, struct sheaf_group *group)
{
	struct host *h = arg;
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .agent = "auto",
		.timeout_ms = 60000, .copies = 2, .io_threads = 1 };
	struct sheaf_run *run = NULL;
	struct sheaf_error err;
	int rc;

	if (rank == 1) {
		starved = false;
		starve_left = open_nth;
	}
	rc = shf_run_open(&run, "run", group, &opts, h->sys[rank], &err);
	if (rank == 1)
		h->hit = starved;
	starve_left = 0;
	shf_run_close(run);
	return rc;
}

TEST(a_rank_that_lacks_memory_to_open_opens_nothing_anywhere)
{
	static const int32_t nodes[RANKS] = { 0, 1 };
	struct simgroup_opts o = { .seed = 3, .ranks = RANKS, .nodes = nodes };
	struct simdisk *disk = re_world(11);
	static uint64_t pid = 25000;
	int failed = 0;
	bool hit = true;

	for (open_nth = 1; hit; open_nth++) {
		struct host h = { .disk = disk };

		for (int r = 0; r < RANKS; r++)
			h.sys[r] = simdisk_process(disk, pid++, r);
		CHECK_INT(simgroup_run(&o, opens_alone, &h, h.rc), 0);
		CHECK_INT(h.rc[0], h.rc[1]);
		CHECK(h.rc[0] == 0 || h.rc[0] == SHEAF_ENOMEM);
		hit = h.hit;
		failed += h.rc[0] < 0;
		for (int r = 0; r < RANKS; r++) {
			CHECK_INT(simdisk_open_n(h.sys[r]), 0);
			simdisk_kill(disk, h.sys[r]);
		}
	}
	CHECK(failed > 5);
	simdisk_free(disk);
}
