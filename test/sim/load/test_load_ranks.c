/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong in a load on one rank alone is the result on all ranks (load_fill.c,
 * load_stream.c, load_rounds.c): none returns as if it had everything. */
#include <errno.h>
#include <pthread.h>
#include "err.h"
#include "hands.h"
#include "image_card.h"
#include "memory_dir_in.h"
#include "simover.h"
#include "t.h"

/* ---- a tensor at an odd offset, which each rank reads for itself ---- */

static const struct hand_tensor odd[] = { { "c", SHEAF_F32, 2, { 64, 300 } },
	{ "a", SHEAF_U8, 1, { 3 } }, { "b", SHEAF_F32, 2, { 64, 90 } } };
#define BEFORE_B ((uint64_t)64 * 300 * 4)       /* bytes of c; b lies behind them */

static void hold_odd(struct hand *h)
{
	hand_cut(hand_add(h, "model", "c", SHEAF_F32, 2, 64, 300), 1, h->rank, h->ranks);
	hand_add(h, "model", "a", SHEAF_U8, 1, 3);
	hand_cut(hand_add(h, "model", "b", SHEAF_F32, 2, 64, 90), 0, h->rank, h->ranks);
}

static int reads_of_b;

static int64_t pread_not_b(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	if (off < BEFORE_B)
		return simover_real()->file.pread(arg, fd, buf, n, off);
	reads_of_b++;
	return -EIO;
}

static void cannot_read_b(struct hand *h)
{
	if (h->rank == h->play->variant)
		simover(&h->used)->file.pread = pread_not_b;
}

TEST(a_tensor_at_an_odd_offset_that_one_rank_cannot_read_fails_the_load_on_all)
{
	struct simdisk *disk = disk_new();

	hands_file(disk, "hf/model.safetensors", odd, 3, 0);
	simdisk_set_resident(disk, 0);
	for (int ranks = 2; ranks < 4; ranks++) {
		for (int bad = 0; bad < ranks; bad++) {
			struct play p = hands_play(disk, ranks, hold_odd);

			p.path = "hf";
			p.tamper = cannot_read_b;
			p.variant = bad;
			reads_of_b = 0;
			CHECK_RC(hands_load(&p), SHEAF_EIO, &p.err);
			CHECK(reads_of_b > 0);
		}
		struct play p = hands_play(disk, ranks, hold_odd);

		p.path = "hf";
		LOADED(p);
	}
	simdisk_free(disk);
}

/* ---- a worker thread that fails when the caller's thread has nothing left to take ---- */

/* A thread that has taken a segment, and whose read of it ends when the thread is stopped. */
static struct {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool (*turn)(void *work);
	void *work;
	bool reads, stopped, had;       /* had: there was such a thread */
} slow = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static _Thread_local bool is_slow;

static void slow_set(bool *what)
{
	pthread_mutex_lock(&slow.lock);
	*what = true;
	pthread_cond_broadcast(&slow.changed);
	pthread_mutex_unlock(&slow.lock);
}

static void slow_wait(const bool *what)
{
	pthread_mutex_lock(&slow.lock);
	while (!*what)
		pthread_cond_wait(&slow.changed, &slow.lock);
	pthread_mutex_unlock(&slow.lock);
}

static void *slow_main(void *arg)
{
	is_slow = true;
	while (slow.turn(slow.work))
		;
	return arg;
}

static int64_t pread_slow(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	if (!is_slow)
		return simover_real()->file.pread(arg, fd, buf, n, off);
	slow_set(&slow.reads);
	slow_wait(&slow.stopped);
	return -EACCES;
}

static int task_new_slow(void *arg, struct shf_task **task, bool (*turn)(void *work), void *work,
                         const char *cpus)
{
	(void)arg;
	(void)cpus;
	CHECK(!slow.had);
	slow.turn = turn;
	slow.work = work;
	slow.had = true;
	*task = (struct shf_task *)(void *)&slow;
	CHECK_INT(pthread_create(&slow.thread, NULL, slow_main, NULL), 0);
	slow_wait(&slow.reads);
	return 0;
}

static void task_free_slow(void *arg, struct shf_task *task)
{
	(void)arg;
	(void)task;
	slow_set(&slow.stopped);
	CHECK_INT(pthread_join(slow.thread, NULL), 0);
}

static void one_is_slow(struct hand *h)
{
	if (h->rank != h->play->variant)
		return;
	simover(&h->used)->task.task_new = task_new_slow;
	simover(&h->used)->task.task_free = task_free_slow;
	simover(&h->used)->file.pread = pread_slow;
}

/* Four tensors of its own for each rank. */
static void hold_own(struct hand *h)
{
	for (int i = 0; i < 4; i++) {
		char name[16];

		snprintf(name, sizeof(name), "w%d.%d", h->rank, i);
		hand_add(h, "model", hand_text(h, name, ""), SHEAF_F32, 2, 64, 1200);
	}
}

TEST(a_thread_that_fails_when_the_others_are_done_fails_the_load_on_all_ranks)
{
	for (int bad = 0; bad < 2; bad++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold_own);

		p.opts.file_bytes_max = 1 << 14;
		SAVED(p);
		p.opts.flags = SHEAF_RUN_READONLY;
		p.opts.io_threads = 2;
		p.tamper = one_is_slow;
		p.variant = bad;
		simdisk_set_resident(disk, 1);
		slow.had = slow.reads = slow.stopped = false;
		CHECK_RC(hands_load(&p), SHEAF_EIO, &p.err);
		CHECK(slow.had);
		simdisk_free(disk);
	}
}

/* ---- a step in memory that is taken for another one while it is loaded ---- */

static struct sheaf_checkpoint *moving; /* of the rank whose cards change; NULL: not yet, or done */

static void touch_and_move(void *arg, const void *at, uint64_t n, bool write)
{
	simover_real()->shm.touch(arg, at, n, write);
	if (write || !moving)
		return;
	for (size_t i = 0; i < moving->view->parts_n; i++)
		atomic_fetch_xor(&shf_card_head(&moving->view->parts[i].card)->whole, 2);
	moving = NULL;
}

static void moves_on_last(struct hand *h)
{
	if (h->play->variant && h->rank == h->ranks - 1)
		simover(&h->used)->shm.touch = touch_and_move;
}

static int load_from_memory(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	char why[300];
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	if (rc == 0 && !step->view)
		rc = shf_fail(&h->err, SHEAF_EBUG, "the step is not in memory");
	if (rc == 0 && h->play->variant && h->rank == h->ranks - 1)
		moving = step;
	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, &h->report, &h->err);
	shf_step_put(step);
	return rc == 0 && hand_wrong(h, why, sizeof(why)) ? SHEAF_EBUG : rc;
}

/* Once with both ranks on one node, and once with a node for each, of which only one sees it. */
TEST(memory_that_is_taken_for_another_step_during_a_load_is_told_to_all_ranks)
{
	static const int32_t apart[] = { 0, 1 };

	for (int i = 0; i < 4; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, hold_own);

		simdisk_set_agents(disk, UINT64_C(1) << 30);
		p.opts.agent = "auto";
		p.nodes = i % 2 ? apart : NULL;
		SAVED(p);
		p.variant = i / 2;
		p.tamper = moves_on_last;
		CHECK_RC(hands_run(&p, load_from_memory, false), p.variant ? SHEAF_EAGAIN : 0,
		         &p.err);
		CHECK(!moving);
		simdisk_abandon(disk);
	}
}

/* ---- images that ranks of a node read for each other ---- */

/* All ranks want all of it, so it is read in rounds: by rank 0. */
static void hold_all(struct hand *h)
{
	hand_add(h, "model", "w", SHEAF_F32, 2, 64, 16384);
}

static int load_twice(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	char why[300];
	int bad = h->play->variant, first, rc = shf_step_open(&step, h->run, 7, &h->err);

	if (rc < 0)
		return rc;
	if (h->rank == bad)
		simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
			.kind = SIMDISK_SHM_TAKE, .process = h->sys });
	first = shf_step_load(step, h->state, 0, NULL, &err);
	rc = shf_step_load(step, h->state, 0, NULL, &h->err);
	shf_step_put(step);
	if (rc == 0 && first != SHEAF_EIO)
		rc = shf_fail(&h->err, SHEAF_EBUG, "the first load gave %d", first);
	return rc == 0 && hand_wrong(h, why, sizeof(why)) ? SHEAF_EBUG : rc;
}

TEST(an_image_that_one_rank_cannot_take_fails_a_load_on_all_and_the_next_one_succeeds)
{
	struct simdisk *disk = disk_new();
	struct play saves = hands_play(disk, 3, hold_all);

	SAVED(saves);
	for (int bad = 1; bad < 3; bad++) {
		struct play p = hands_play(disk, 3, hold_all);

		p.opts.flags = SHEAF_RUN_READONLY;
		p.variant = bad;
		CHECK_RC(hands_run(&p, load_twice, false), 0, &p.err);
		CHECK_INT(simdisk_fired(disk), 1);
		simdisk_faults_clear(disk);
	}
	simdisk_free(disk);
}

/* ---- ranks that may stage differently much ---- */

#define LEAST ((size_t)2 << 20)
static size_t largest;          /* bytes of the largest memory that a rank has made */

static int shm_new_seen(void *arg, struct shf_shm *shm, size_t bytes, bool shared)
{
	largest = bytes > largest ? bytes : largest;
	return simover_real()->shm.shm_new(arg, shm, bytes, shared);
}

static void sees_images(struct hand *h)
{
	simover(&h->used)->shm.shm_new = shm_new_seen;
}

static int load_with_own_room(struct hand *h)
{
	struct shf_opts opts = h->play->opts;
	struct sheaf_checkpoint *step = NULL;
	char why[300];
	int rc;

	opts.staging_bytes_max = h->rank == h->play->variant ? LEAST : 0;
	rc = shf_step_open_path(&step, h->play->path, h->group, &opts, h->sys, &h->err);
	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, &h->report, &h->err);
	shf_step_put(step);
	return rc == 0 && hand_wrong(h, why, sizeof(why)) ? SHEAF_EBUG : rc;
}

TEST(no_rank_stages_more_in_a_load_than_the_rank_that_may_stage_least)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, hold_all);

	SAVED(p);
	p.path = "run/checkpoint-7";
	p.tamper = sees_images;
	for (p.variant = 0; p.variant < 3; p.variant++) {       /* 2: none is bounded */
		largest = 0;
		CHECK_RC(hands_run(&p, load_with_own_room, false), 0, &p.err);
		CHECK(largest > 0 && (largest <= LEAST) == (p.variant < 2));
	}
	simdisk_free(disk);
}
