/* SPDX-License-Identifier: Apache-2.0 */
/* One rank does something else than the others (another step, another state, another deadline, no
 * save at all): every rank returns the same code, and none waits for another for ever. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "simover.h"
#include "crc64.h"
#include "err.h"
#include "manifest.h"
#include "mem.h"
#include "place.h"
#include "seen.h"
#include "sums.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "work.h"
#include "deal_home.h"
#include "step.h"
#include "step_open.h"
#include "run_ops.h"

static const int32_t apart[] = { 1, 2 };

/* 4 MiB; half of it must travel where the ranks share no memory. */
static void columns(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_U8, 2, 4096, 1024), 1, h->rank, h->ranks);
}

/* ---- calls that differ from rank to rank ---- */

static int commit_with_own_patience(struct hand *h)
{
	struct sheaf_save *save;
	int rc = begin(h, &save, 7);

	if (rc == 0)
		do {
			rc = commit(h, save, h->rank == h->play->variant ? 0 : 5000);
		} while (rc == SHEAF_EAGAIN && seen[h->rank].n < CALLS);
	shf_save_free(save);
	return rc;
}

TEST(a_commit_waits_no_longer_than_its_least_patient_rank)
{
	for (int impatient = 0; impatient < RANKS; impatient++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, RANKS, columns);

		p.nodes = apart;
		p.variant = impatient;
		CHECK_RC(run_all(&p, commit_with_own_patience), 0, &p.err);
		CHECK_INT(seen[0].n, seen[1].n);
		CHECK(seen[0].n >= 3); /* begin, not yet, done */
		check_seen(1, SHEAF_EAGAIN, "must still be sent");
		check_seen(seen[0].n - 1, 0, "");
		simdisk_free(disk);
	}
}

/* For plays with a path, whose run is not opened for them. */
static int open_with_own_opts(struct hand *h)
{
	struct shf_opts o = h->play->opts;

	if (h->rank == 0 && h->play->variant == 1)
		o.keep_last = 1;
	if (h->rank == 0 && h->play->variant == 2)
		o.keep_every = 10;
	if (h->play->variant > 3 || (h->rank == 0 && h->play->variant == 3))
		o.keep_best = 2;
	if (o.keep_best)
		o.best_note = h->rank == 0 && h->play->variant == 4 ? "accuracy" : "loss";
	o.best_largest = h->rank == 0 && h->play->variant == 5;
	return note(h, shf_run_open(&h->run, "run", h->group, &o, h->sys, &h->err));
}

TEST(retention_rules_of_one_rank_alone_are_refused)
{
	for (int variant = 0; variant < 6; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, RANKS, little);

		p.path = "run";
		p.variant = variant;
		CHECK_INT(run_all(&p, open_with_own_opts), variant ? SHEAF_EINVAL : 0);
		check_seen(0, variant ? SHEAF_EINVAL : 0, variant > 2 ? "keep_best"
		                                         : variant ? "keep_last" : "");
		simdisk_free(disk);
	}
}

static int free_on_one_rank(struct hand *h)
{
	struct sheaf_save *first, *second;
	int rc = begin(h, &first, 1);

	if (rc == 0 && h->rank == h->play->variant) {
		shf_save_free(first);
		first = NULL;
	}
	if (rc == 0 && begin(h, &second, 2) == 0)
		shf_save_free(second);
	shf_save_free(first);
	rc = begin(h, &second, 2);
	if (rc == 0)
		rc = commit(h, second, -1);
	shf_save_free(second);
	return rc;
}

TEST(a_save_freed_on_one_rank_stops_the_next_on_all)
{
	for (int rank = 0; rank < RANKS; rank++)
		for (int far = 0; far < 2; far++) {
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, RANKS, far ? columns : little);

			p.variant = rank;
			p.nodes = far ? apart : NULL;
			CHECK_RC(run_all(&p, free_on_one_rank), 0, &p.err);
			check_seen(1, SHEAF_EINVAL, "different numbers of saves in flight");
			check_seen(2, 0, "");
			simdisk_free(disk);
		}
}

static int confuse_saves(struct hand *h)
{
	struct sheaf_save *a, *b, **mine = h->rank ? &a : &b;
	int rc = begin(h, &a, 1);

	rc = rc ? rc : begin(h, &b, 2);
	if (rc < 0)
		return rc;
	note(h, shf_save_exchange(*mine, 0, &h->err));
	commit(h, *mine, -1);
	if (h->play->variant == 0) { /* as they should be */
		rc = commit(h, a, -1);
		rc = rc ? rc : commit(h, b, -1);
	} else if (h->rank == 0) { /* b is the first one here, a there */
		shf_save_free(a);
		a = NULL;
		commit(h, b, -1);
	} else {
		commit(h, a, -1);
	}
	shf_save_free(a);
	shf_save_free(b);
	return rc;
}

TEST(ranks_that_mean_different_saves_are_told)
{
	for (int variant = 0; variant < 2; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, RANKS, little);

		p.nodes = apart;
		p.variant = variant;
		CHECK_RC(run_all(&p, confuse_saves), 0, &p.err);
		check_seen(2, SHEAF_EINVAL, "sheaf_save_advance on different handles");
		check_seen(3, SHEAF_EINVAL, "sheaf_save_commit on different handles");
		check_seen(4, variant ? SHEAF_EINVAL : 0, variant ? "different handles" : "");
		if (variant == 0)
			check_seen(5, 0, "");
		simdisk_free(disk);
	}
}

static int begin_in_wrong_order(struct hand *h)
{
	struct sheaf_save *save, *other;
	int rc = begin(h, &save, 5);

	if (rc == 0 && begin(h, &other, 5) == 0)
		shf_save_free(other);
	if (rc == 0 && begin(h, &other, 4) == 0)
		shf_save_free(other);
	if (rc == 0)
		rc = commit(h, save, -1);
	shf_save_free(save);
	return rc;
}

TEST(steps_begin_in_their_order)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, RANKS, little);

	CHECK_RC(run_all(&p, begin_in_wrong_order), 0, &p.err);
	check_seen(1, SHEAF_EEXIST, "step 5 is being saved");
	check_seen(2, SHEAF_EINVAL, "step 4 is older than step 5");
	check_seen(3, 0, "");
	simdisk_free(disk);
}

static int begin_apart(struct hand *h)
{
	return save_step(h, 5 + (h->rank && h->play->variant));
}

TEST(ranks_at_different_steps_begin_none)
{
	for (int variant = 0; variant < 2; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, RANKS, little);

		p.variant = variant;
		CHECK_INT(run_all(&p, begin_apart), variant ? SHEAF_EINVAL : 0);
		check_seen(0, variant ? SHEAF_EINVAL : 0, variant ? "steps to sheaf_save_begin: 5 "
		           "and 6" : "");
		CHECK(simdisk_exists(disk, "run/checkpoint-5") == !variant);
		CHECK(!simdisk_exists(disk, "run/checkpoint-6"));
		simdisk_free(disk);
	}
}

/* What one rank holds is described anew: the same again, or nothing. The other one's plan of old
 * is nobody's plan then. */
static int describe_anew(struct hand *h)
{
	struct sheaf_state *fresh = shf_state_new(), *old = h->state;
	int rc = fresh ? save_step(h, 1) : SHEAF_ENOMEM;

	for (int i = 0; i < h->n && rc == 0; i++)
		(void)shf_state_add(fresh, &h->s[i], NULL);
	if (h->rank == h->play->variant % RANKS)
		h->state = fresh;
	rc = rc ? rc : save_step(h, 2);
	h->state = old;
	shf_state_put(fresh);
	return rc;
}

TEST(a_state_that_one_rank_made_anew_is_planned_by_all)
{
	for (int variant = 0; variant < 2 * RANKS; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, RANKS, little);

		p.variant = variant;
		p.nodes = variant < RANKS ? NULL : apart;
		CHECK_RC(run_all(&p, describe_anew), 0, &p.err);
		p.step = 2;
		LOADED(p);
		simdisk_free(disk);
	}
}

/* ---- replicas ---- */

static void replicated(struct hand *h)
{
	hand_add(h, "model", "all", SHEAF_F32, 2, 64, 33);
	hand_cut(hand_add(h, "model", "mine", SHEAF_F32, 1, 100), 0, h->rank, h->ranks);
}

/* One item of one rank's replica is another. */
static int save_diverged(struct hand *h)
{
	if (h->rank == h->play->variant)
		((uint8_t *)h->s[0].data)[4 * 777 + 2] ^= 4;
	return save_step(h, 7);
}

/* variant: who differs; 3: nobody. */
static void diverge(int variant, const int32_t *nodes, bool asked)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, RANKS, replicated);
	bool bad = asked && variant < RANKS;

	p.variant = variant;
	p.nodes = nodes;
	p.opts.flags |= asked ? SHEAF_RUN_REPLICAS : 0;
	CHECK_INT(run_all(&p, save_diverged), bad ? SHEAF_EDIVERGED : 0);
	check_seen(seen[0].n - 1, bad ? SHEAF_EDIVERGED : 0, bad ? "all: ranks " : "");
	CHECK(simdisk_exists(disk, "run/checkpoint-7") == !bad);
	simdisk_free(disk);
}

TEST(replicas_that_differ_are_told_when_asked)
{
	for (int variant = 0; variant <= RANKS; variant++)
		for (int far = 0; far < 2; far++) {
			diverge(variant, far ? apart : NULL, true);
			diverge(variant, far ? apart : NULL, false);
		}
}

static void attach_own(struct hand *h, struct sheaf_save *save)
{
	static const char *const texts[] = { "{\"a\": 1}", "{\"a\": 2}" };

	(void)shf_save_attach(save, "config.json", texts[h->rank && h->play->variant], 8, NULL);
}

TEST(ranks_that_attach_different_bytes_are_told)
{
	for (int variant = 0; variant < 2; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, RANKS, little);

		p.variant = variant;
		p.during = attach_own;
		CHECK_RC(hands_save(&p), variant ? SHEAF_EFAILED : 0, &p.err);
		CHECK(!variant || strstr(p.err.msg, "config.json: ranks 0 and 1 give different"));
		CHECK(simdisk_exists(disk, "run/checkpoint-7") == !variant);
		simdisk_free(disk);
	}
}

/* ---- a save in doubt, and a step verified that is not there any more ---- */

static int doubt_the_first(struct hand *h)
{
	struct simdisk_fault fault = { .nth = 1, .error = EIO, .kind = SIMDISK_FSYNC,
		.name = "run" };
	struct sheaf_save *a, *b;
	int rc = begin(h, &a, 1);

	rc = rc ? rc : begin(h, &b, 2);
	if (rc < 0)
		return rc;
	if (h->rank == 0)
		simdisk_fault(h->play->disk, &fault);
	commit(h, a, -1);
	commit(h, b, -1);
	shf_save_free(a);
	shf_save_free(b);
	rc = begin(h, &b, 3);
	rc = rc ? rc : commit(h, b, -1);
	shf_save_free(b);
	return rc;
}

TEST(a_save_in_doubt_fails_the_one_begun_after_it)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, RANKS, little);

	CHECK_RC(run_all(&p, doubt_the_first), 0, &p.err);
	check_seen(2, SHEAF_EINDOUBT, "");
	check_seen(3, SHEAF_EFAILED, "not known whether");
	CHECK(!simdisk_exists(disk, "run/checkpoint-2"));
	CHECK(simdisk_exists(disk, "run/checkpoint-3"));
	simdisk_free(disk);
}

/* ---- time ---- */

static struct sheaf_group *sleeper;

/* Sleeping takes time for the others too. */
static void sleep_in_group(void *arg, int ms)
{
	simover_real()->host.sleep_ms(arg, ms);
	simgroup_pause(sleeper, ms);
}

static void sleep_for_real(struct hand *h)
{
	if (h->rank)
		return; /* rank 0 alone takes the lock */
	simover(&h->used)->host.sleep_ms = sleep_in_group;
	sleeper = h->group;
}

TEST(a_held_lock_is_told_before_the_others_give_up)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, RANKS, little);
	struct sheaf_run *held = NULL;
	struct sheaf_error err = { 0 };

	CHECK_RC(shf_run_open(&held, "run", NULL, &p.opts, simdisk_process(disk, 77, 3), &err), 0,
	         &err);
	p.path = "run";
	p.tamper = sleep_for_real;
	p.opts.timeout_ms = 1000;
	CHECK_INT(run_all(&p, open_with_own_opts), SHEAF_EBUSY);
	check_seen(0, SHEAF_EBUSY, "another job has the run open for writing: pid 77 on ");
	shf_run_close(held);
	CHECK_RC(run_all(&p, open_with_own_opts), 0, &p.err);
	simdisk_free(disk);
}

static struct {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	bool hold, inside, go, gave_up;
} gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER };

/* Whoever comes first while it is held stays until he may go, or a second is over. */
static int gate_complete(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	pthread_mutex_lock(&gate.lock);
	if (gate.hold) {
		gate.hold = false;
		gate.inside = true;
		pthread_cond_broadcast(&gate.moved);
		while (!gate.go && !gate.gave_up)
			gate.gave_up = pthread_cond_timedwait(&gate.moved, &gate.lock, &until) != 0;
	}
	pthread_mutex_unlock(&gate.lock);
	return simover_real()->queue.complete(arg, queue, io, timeout_ms);
}

static void *wait_for_ever(void *save)
{
	return (void *)(intptr_t)shf_save_wait(save, -1, NULL);
}

static struct sheaf_state *state_of_one(uint8_t *bytes, int64_t n)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_U8, .ndim = 1,
		.shape = { n }, .count = { n }, .data = bytes };

	CHECK(st != NULL);
	CHECK(shf_state_add(st, &s, NULL) >= 0);
	return st;
}

TEST(asking_does_not_wait_for_a_thread_that_waits)
{
	static uint8_t bytes[100000];
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 5, 0);
	struct shf_opts o = { .flags = SHEAF_RUN_CREATE };
	struct sheaf_state *st = state_of_one(bytes, sizeof(bytes));
	struct sheaf_run *run = NULL;
	struct sheaf_save *save = NULL;
	struct sheaf_error err = { 0 };
	pthread_t waiter;
	void *waited;
	int asked;

	simover(sys)->queue.complete = gate_complete;
	CHECK_RC(shf_run_open(&run, "run", NULL, &o, sys, &err), 0, &err);
	CHECK_RC(shf_save_begin(&save, run, 1, st, NULL, &err), 0, &err);
	gate.hold = true;
	CHECK_INT(pthread_create(&waiter, NULL, wait_for_ever, save), 0);
	pthread_mutex_lock(&gate.lock);
	while (!gate.inside)
		pthread_cond_wait(&gate.moved, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
	asked = shf_save_wait(save, 0, NULL);
	pthread_mutex_lock(&gate.lock);
	gate.go = true;
	pthread_cond_broadcast(&gate.moved);
	pthread_mutex_unlock(&gate.lock);
	pthread_join(waiter, &waited);
	CHECK(!gate.gave_up);
	CHECK_INT(asked, SHEAF_EAGAIN);
	CHECK_INT((intptr_t)waited, 0);
	CHECK_RC(shf_save_commit(save, -1, &err), 0, &err);
	shf_save_free(save);
	shf_state_put(st);
	shf_run_close(run);
	simdisk_free(disk);
}

/* ---- memory ---- */

static long fail_in;                    /* the nth allocation from now fails; 0: none */
static bool failed;
static size_t arena_most;               /* the largest request of an arena */

static bool fails(void)
{
	if (fail_in == 0 || --fail_in > 0)
		return false;
	failed = true;
	return true;
}

void *__real_shf_alloc(size_t n, size_t size);
void *__wrap_shf_alloc(size_t n, size_t size);
void *__real_shf_zalloc(size_t n, size_t size);
void *__wrap_shf_zalloc(size_t n, size_t size);
void *__real_shf_arena_alloc(struct shf_arena *a, size_t n, size_t size);
void *__wrap_shf_arena_alloc(struct shf_arena *a, size_t n, size_t size);

/* What is in fresh memory nobody knows: here zeros, which look like a descriptor. */
void *__wrap_shf_alloc(size_t n, size_t size)
{
	void *p = fails() ? NULL : __real_shf_alloc(n, size);

	return p ? memset(p, 0, n * size) : NULL;
}

void *__wrap_shf_zalloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_shf_zalloc(n, size);
}

void *__wrap_shf_arena_alloc(struct shf_arena *a, size_t n, size_t size)
{
	if (n && size > arena_most / n)
		arena_most = n * size;
	return fails() ? NULL : __real_shf_arena_alloc(a, n, size);
}

static int strays;                      /* descriptors closed that nobody opened */

static int careful_close(void *arg, int fd)
{
	int rc = simover_real()->file.close(arg, fd);

	strays += fd <= 0 || rc == -EBADF;
	return rc;
}

static void careful_drop(void *arg, int handle)
{
	strays += handle == 0 || handle < -1;
	simover_real()->shm.shm_drop(arg, handle);
}

static void count_strays(struct hand *h)
{
	simover(&h->used)->file.close = careful_close;
	simover(&h->used)->shm.shm_drop = careful_drop;
}

static int begin_without_memory(struct hand *h)
{
	struct sheaf_save *save;
	int rc;

	fail_in = h->play->variant;
	failed = false;
	rc = begin(h, &save, 7);
	fail_in = 0;
	shf_save_free(save);
	if (rc != (failed ? SHEAF_ENOMEM : 0))
		return SHEAF_EBUG;
	return save_step(h, 7);
}

TEST(no_descriptor_is_closed_that_was_not_opened)
{
	int tried = 0;

	strays = 0;
	do {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 1, little);

		p.variant = ++tried;
		p.tamper = count_strays;
		CHECK_RC(run_all(&p, begin_without_memory), 0, &p.err);
		if (strays)
			print_error("allocation %d failing: %d strays\n", tried, strays);
		CHECK_INT(strays, 0);
		simdisk_free(disk);
	} while (failed && tried < 1000);
	CHECK(tried > 20 && !failed);
}

enum { ROWS = 2000, COLUMNS = 2048 };

static int save_many_rows(struct hand *h)
{
	struct sheaf_state *st = shf_state_new();
	uint8_t *bytes = hand_block(h, (int64_t)ROWS * COLUMNS);
	struct sheaf_save *save = NULL;
	int rc = 0;

	for (int i = 0; i < ROWS && rc >= 0; i++) {
		struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_U8,
			.ndim = 2, .shape = { ROWS, COLUMNS }, .start = { i, 0 },
			.count = { 1, COLUMNS }, .data = bytes + (ptrdiff_t)i * COLUMNS };

		rc = shf_state_add(st, &s, NULL);
	}
	arena_most = 0;
	if (rc >= 0)
		rc = shf_save_begin(&save, h->run, 7, st, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	shf_state_put(st);
	return rc;
}

TEST(small_windows_are_planned_in_the_memory_they_need)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, NULL);

	p.opts.staging_bytes_max = 128 << 10;
	CHECK_RC(run_all(&p, save_many_rows), 0, &p.err);
	CHECK(arena_most >= ROWS * sizeof(struct shf_seg_move)); /* the moves were among them */
	if (arena_most > 8 << 20)
		print_error("%zu bytes at once\n", arena_most);
	CHECK(arena_most <= 8 << 20);
	simdisk_free(disk);
}

/* ---- a step that no save would have written ---- */

enum { ITEMS = 1000 };

static void hold_b(struct hand *h)
{
	hand_cut(hand_add(h, "model", "b", SHEAF_F32, 1, ITEMS), 0, h->rank, h->ranks);
}

/* ck/sheaf.sums for a, of a_bytes, and b in that file; what the manifest says of it. */
static struct shf_mf_file sums_by_hand(struct simdisk *disk, const uint8_t *file, size_t n,
                                       uint64_t header, uint64_t a_bytes)
{
	struct shf_sums_head h = { .files_n = 1, .tensors_n = 2, .blocks_n = 1, .names_bytes = 16 };
	uint64_t key[2] = { shf_sums_key("model", "a"), shf_sums_key("model", "b") };
	uint64_t off[3] = { header, header + a_bytes, n };
	struct shf_mf_file told = { .name = "sheaf.sums" };
	uint8_t *table;

	CHECK(shf_sums_layout(&h));
	table = calloc(1, (size_t)h.bytes);
	CHECK(table != NULL);
	shf_sums_put_head(table, &h);
	shf_sums_put_file(table + h.files_off,
	                  &(struct shf_sums_file){ n, 0, 0, 2, (uint32_t)header });
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t bytes = off[i + 1] - off[i];
		struct shf_sums_tensor t = { .off = off[i], .bytes = bytes, .name_bytes = 7,
			.name_off = 8 * i, .key = key[i], .ndim = 1,
			.digest = shf_crc64_raw(0, file + off[i], (size_t)bytes),
			.dtype = i ? SHEAF_F32 : SHEAF_U8, .items = i ? ITEMS : a_bytes,
			.slot = key[0] < key[1] ? i : 1 - i };

		shf_sums_put_tensor(table + h.tensors_off + i * SHF_SUMS_TENSOR, &t);
	}
	shf_put64(table + h.blocks_off, shf_crc64(file, n));
	memcpy(table + h.names_off, "model\0a\0model\0b", 16);
	shf_put64(table + h.pages_off, shf_crc64(table, (size_t)h.pages_off));
	told.bytes = h.bytes;
	told.crc = shf_crc64_more(shf_crc64(table, SHF_SUMS_HEADER), table + h.pages_off,
	                          (size_t)(h.bytes - h.pages_off));
	CHECK_INT(simdisk_put(disk, "ck/sheaf.sums", table, (size_t)h.bytes), 0);
	free(table);
	return told;
}

/* A sound step: a, so many bytes, and right behind it b. */
static struct simdisk *step_by_hand(int64_t a_bytes)
{
	static const char *const name = "model-00001-of-00001.safetensors";
	struct hand_tensor t[] = { { "a", SHEAF_U8, 1, { a_bytes } },
		{ "b", SHEAF_F32, 1, { ITEMS } } };
	uint64_t bytes = (uint64_t)a_bytes + 4 * ITEMS, header;
	struct shf_mf_family family = { "model", ".", 1, 2, bytes };
	struct shf_manifest m = { .step = 1, .created = "2026-01-31T12:00:00Z", .version = "x",
		.commit = "y", .compiler = "z", .file_bytes_max = 5000000000, .ranks = 1,
		.families = &family, .families_n = 1, .files_n = 1 };
	struct shf_buf text = SHF_BUF_INIT;
	struct simdisk *disk = disk_new();
	struct sheaf_error err = { 0 };
	char path[80];
	uint8_t *file;
	size_t n;

	snprintf(path, sizeof(path), "ck/%s", name);
	hands_file(disk, path, t, 2, 0);
	file = simdisk_get(disk, path, &n);
	hands_file(disk, path, t, 2, (int)(-shf_get64(file) & 7)); /* b's place is up to a */
	free(file);
	file = simdisk_get(disk, path, &n);
	header = 8 + shf_get64(file);
	CHECK_INT(header % 8, 0);
	CHECK_INT(n, header + bytes);
	m.files = &(struct shf_mf_file){ name, n, shf_crc64(file, n) };
	m.sums = sums_by_hand(disk, file, n, header, (uint64_t)a_bytes);
	memset(m.session, 'a', 32);
	memset(m.run, 'b', 32);
	CHECK_RC(shf_manifest_encode(&text, &m, &err), 0, &err);
	CHECK_INT(simdisk_put(disk, "ck/sheaf.json", text.data, text.len), 0);
	shf_buf_release(&text);
	free(file);
	return disk;
}

TEST(a_sound_step_with_an_unaligned_tensor_is_corrupt)
{
	for (int64_t a_bytes = 1; a_bytes <= 8; a_bytes++)
		for (int ranks = 1; ranks <= RANKS; ranks++) {
			struct simdisk *disk = step_by_hand(a_bytes);
			struct play p = hands_play(disk, ranks, hold_b);

			p.path = "ck";
			if (a_bytes % 4)
				REFUSED(p, SHEAF_ECORRUPT, "ck/model-00001-of-00001.safetensors: "
				        "tensor b at byte ");
			else
				LOADED(p);
			simdisk_free(disk);
		}
}

/* ---- slices and groups ---- */

TEST(of_an_empty_slice_no_number_matters)
{
	static const int64_t huge = INT64_C(1) << 62;
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice s[] = {
		{ .name = "e", .dtype = SHEAF_U8, .ndim = 3, .shape = { 0, huge, huge },
		  .count = { 0, huge, huge } },
		{ .name = "o", .dtype = SHEAF_U8, .ndim = 1, .origin = INT64_MAX },
		{ .name = "s", .dtype = SHEAF_F64, .ndim = 2, .shape = { 4, 0 }, .count = { 4, 0 },
		  .stride = { INT64_MAX, INT64_MAX }, .origin = INT64_MAX },
	};

	CHECK(st != NULL);
	for (size_t i = 0; i < sizeof(s) / sizeof(s[0]); i++) {
		s[i].size = sizeof(s[i]);
		CHECK(shf_state_add(st, &s[i], NULL) >= 0);
	}
	shf_state_put(st);
}

static int group_freed;

static void count_free(void *arg)
{
	(void)arg;
	group_freed++;
}

static int no_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			struct sheaf_error *err)
{
	(void)arg, (void)mine, (void)all, (void)bytes, (void)timeout_ms, (void)err;
	return -1;
}

static int no_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			struct sheaf_error *err)
{
	(void)arg, (void)x, (void)n, (void)op, (void)timeout_ms, (void)err;
	return -1;
}

static int no_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                        const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	(void)arg, (void)out, (void)out_bytes, (void)in, (void)in_bytes, (void)timeout_ms;
	(void)err;
	return -1;
}

TEST(a_forked_child_does_not_free_its_parents_group)
{
	struct sheaf_group_ops ops = { .size = sizeof(ops), .ranks = 2, .allgather = no_allgather,
		.allreduce = no_allreduce, .alltoallv = no_alltoallv, .free = count_free };
	struct sheaf_group *group = NULL;
	int status = -1;
	pid_t child;

	CHECK_INT(sheaf_group_new(&group, &ops, NULL), 0);
	child = fork();
	if (child == 0) {
		sheaf_group_free(group);
		_exit(group_freed);
	}
	CHECK(child > 0);
	CHECK_INT(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status));
	CHECK_INT(WEXITSTATUS(status), 0);
	CHECK_INT(group_freed, 0);
	sheaf_group_free(group);
	CHECK_INT(group_freed, 1);
}
