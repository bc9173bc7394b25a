/* SPDX-License-Identifier: Apache-2.0 */
/* Saves that are begun while others are neither written nor committed, on a machine that is slow
 * on one rank, fails on another, or is short of something: what happens to one is no other's. */
#include "hands.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "simover.h"
#include "t.h"
#include "opts.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "state.h"

enum { MIB = 1 << 20 };

/* The machine of all ranks but for this. */
static struct {
	void *rank0, *rank1;            /* whose calls they are */
	atomic_int slow;                /* so often rank 0 hears that nothing is finished */
	atomic_bool fails;              /* what rank 1 finishes has failed */
	atomic_int shorter;             /* so many bytes fewer rank 1 has written than it should */
	atomic_int under_way;           /* of rank 0 */
	atomic_int taken;               /* memory of rank 0 that went under requests */
	atomic_int fds, fds_max;        /* 0: any number */
	atomic_int refused;
} odd;

static int odd_submit(void *arg, struct shf_queue *q, struct shf_io *io)
{
	int rc = simover_real()->queue.submit(arg, q, io);

	odd.under_way += arg == odd.rank0 && rc == 0;
	return rc;
}

static int odd_complete(void *arg, struct shf_queue *q, struct shf_io **io, int timeout_ms)
{
	int rc;

	if (arg == odd.rank0 && timeout_ms >= 0 && odd.under_way > 0 && odd.slow > 0) {
		odd.slow--;
		return -EAGAIN;
	}
	rc = simover_real()->queue.complete(arg, q, io, timeout_ms);
	if (rc == 1 && arg == odd.rank1 && odd.fails)
		(*io)->result = -EIO;
	if (rc == 1 && arg == odd.rank1 && (*io)->op == SHF_IO_WRITE && (*io)->result > 0)
		(*io)->result -= odd.shorter;
	odd.under_way -= rc == 1 && arg == odd.rank0;
	return rc;
}

static void odd_pin(void *arg, struct shf_queue *q, int i, void *base, size_t bytes)
{
	(void)q;
	(void)i;
	(void)bytes;
	odd.taken += arg == odd.rank0 && !base && odd.under_way > 0;
}

static void odd_shm_free(void *arg, struct shf_shm *shm)
{
	odd.taken += arg == odd.rank0 && odd.under_way > 0;
	simover_real()->shm.shm_free(arg, shm);
}

static int odd_open(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	int rc;

	if (odd.fds_max > 0 && odd.fds >= odd.fds_max) {
		odd.refused++;
		return -EMFILE;
	}
	rc = simover_real()->file.open(arg, dir, name, flags, mode);
	odd.fds += rc >= 0;
	return rc;
}

static int odd_close(void *arg, int fd)
{
	odd.fds--;
	return simover_real()->file.close(arg, fd);
}

/* Rank 0's is everybody's, so the others wait for it. */
static void tamper(struct hand *h)
{
	struct sys_tables *calls = simover(&h->used);
	uint64_t x = 0;

	if (h->rank == 0)
		odd.rank0 = h->used.host.arg;
	if (h->rank == 1)
		odd.rank1 = h->used.host.arg;
	(void)h->group->ops.allreduce(h->group->ops.arg, &x, 1, SHEAF_MAX, 60000,
	                                  &(struct sheaf_error){ 0 });
	calls->queue.submit = odd_submit;
	calls->queue.complete = odd_complete;
	calls->queue.queue_pin = odd_pin;
	calls->shm.shm_free = odd_shm_free;
	calls->file.open = odd_open;
	calls->file.close = odd_close;
}

static void odd_release(void)
{
	odd.slow = odd.under_way = odd.taken = odd.fds = odd.fds_max = odd.refused = 0;
	odd.fails = false;
	odd.shorter = 0;
	odd.rank0 = odd.rank1 = NULL;
}

/* Each rank has halves of its own, and columns that interleave. */
static void halves(struct hand *h)
{
	hand_cut(hand_add(h, "optimizer", "own", SHEAF_F32, 2, 2, MIB / 4), 0, h->rank, 2);
	hand_cut(hand_add(h, "model", "mixed", SHEAF_F32, 2, 64, 512), 1, h->rank, 2);
}

static void halves_of_four(struct hand *h)
{
	hand_cut(hand_add(h, "optimizer", "own", SHEAF_F32, 2, 4, MIB / 4), 0, h->rank, 4);
	hand_cut(hand_add(h, "model", "mixed", SHEAF_F32, 2, 64, 512), 1, h->rank, 4);
}

/* A state with more in it. */
static struct sheaf_state *larger(struct hand *h)
{
	struct sheaf_slice s = { .size = sizeof(s), .family = "model", .name = "large",
		.dtype = SHEAF_F32, .ndim = 2, .shape = { 2, MIB }, .start = { h->rank, 0 },
		.count = { 1, MIB }, .data = hand_block(h, 4 * MIB) };
	struct sheaf_state *state = shf_state_new();

	(void)shf_state_add(state, &s, NULL);
	return state;
}

/* Rank 1 knows that the first save has failed while rank 0 still writes; the next one needs more
 * memory than the first. */
static int begin_larger(struct hand *h)
{
	struct sheaf_save *first = NULL, *second = NULL;
	struct sheaf_state *state = larger(h);
	int rc = shf_save_begin(&first, h->run, 7, h->state, NULL, &h->err);

	if (h->rank == 0)
		odd.slow = 8;
	if (h->rank == 1)
		odd.fails = true;
	if (rc == 0 && h->rank == 1)
		(void)shf_save_wait(first, -1, NULL);
	if (h->rank == 1)
		odd.fails = false;
	if (rc == 0)
		rc = shf_save_begin(&second, h->run, 8, state, NULL, &h->err);
	if (rc == 0 && shf_save_commit(first, -1, &h->err) != SHEAF_EIO)
		rc = SHEAF_EBUG;
	if (rc == 0)
		rc = shf_save_commit(second, -1, &h->err);
	shf_save_free(first);
	shf_save_free(second);
	shf_state_put(state);
	return rc;
}

TEST(no_image_goes_to_the_next_save_while_a_failed_one_is_written)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	p.tamper = tamper;
	CHECK_RC(hands_run(&p, begin_larger, true), 0, &p.err);
	CHECK_INT(odd.slow, 0);
	CHECK_INT(odd.taken, 0);
	CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
	CHECK(simdisk_exists(disk, "run/checkpoint-8"));
	odd_release();
	simdisk_free(disk);
}

/* The first of three has failed on one rank before its bytes travel, and is committed last thing
 * before the others. */
static int begin_three(struct hand *h)
{
	struct sheaf_save *s[3] = { NULL };
	int rc = shf_save_begin(&s[0], h->run, 7, h->state, NULL, &h->err);

	if (h->rank == 1)
		odd.fails = true;
	if (rc == 0 && shf_save_wait(s[0], -1, NULL) != (h->rank == 1 ? SHEAF_EIO : 0))
		rc = SHEAF_EBUG;
	if (h->rank == 1)
		odd.fails = false;
	for (int i = 1; i < 3 && rc == 0; i++)
		rc = shf_save_begin(&s[i], h->run, 7 + i, h->state, NULL, &h->err);
	if (rc == 0 && shf_save_commit(s[0], -1, &h->err) != SHEAF_EIO)
		rc = SHEAF_EBUG;
	for (int i = 1; i < 3 && rc == 0; i++)
		rc = shf_save_commit(s[i], -1, &h->err);
	for (int i = 0; i < 3; i++)
		shf_save_free(s[i]);
	return rc;
}

TEST(a_failed_save_that_waits_for_its_commit_does_not_touch_later_ones)
{
	static const int32_t apart[2] = { 1, 2 };
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	p.nodes = apart;
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, begin_three, true), 0, &p.err);
	CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
	for (p.step = 8; p.step < 10; p.step++)
		LOADED(p);
	odd_release();
	simdisk_free(disk);
}

/* A full disk may answer so, and no error with it. */
TEST(a_write_that_stops_short_fails_the_save)
{
	static const int shorter[] = { 0, 1, 4096 };

	for (int i = 0; i < 3; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, halves);

		odd_release();
		odd.shorter = shorter[i];
		p.tamper = tamper;
		CHECK_RC(hands_save(&p), shorter[i] ? SHEAF_EIO : 0, &p.err);
		CHECK(!shorter[i] || strstr(p.err.msg, "bytes were written"));
		CHECK(simdisk_exists(disk, "run/checkpoint-7") == !shorter[i]);
		odd_release();
		simdisk_free(disk);
	}
}

/* ---- as many at once as there are images ---- */

/* What the tensors hold at a step. */
static void paint_as(struct hand *h, int64_t step)
{
	hand_paint(h);
	for (int i = 0; i < h->blocks_n; i++)
		for (size_t k = 0; k < h->blocks_bytes[i]; k += 4)
			h->blocks[i][k] = (uint8_t)(h->blocks[i][k] + (uint8_t)(13 * step));
}

static atomic_int images, waits;        /* made on rank 0; rank 0 waited for a request */
static int of_saves;                    /* of the images, those made before anything was loaded */
static int stalls;                      /* of rank 0's begins, those that did */

static uint64_t last_image;             /* bytes of the last one that rank 0 made */

static int counting_shm(void *arg, struct shf_shm *shm, size_t bytes, bool shared)
{
	last_image = arg == odd.rank0 ? bytes : last_image;
	images += arg == odd.rank0 && bytes > MIB / 2; /* the others prove what a node is */
	return simover_real()->shm.shm_new(arg, shm, bytes, shared);
}

static int counting_complete(void *arg, struct shf_queue *q, struct shf_io **io, int timeout_ms)
{
	if (arg == odd.rank0 && timeout_ms == 0)
		return -EAGAIN;         /* its requests end only when it waits for them */
	waits += arg == odd.rank0;
	return odd_complete(arg, q, io, timeout_ms);
}

static void count(struct hand *h)
{
	tamper(h);
	simover(&h->used)->shm.shm_new = counting_shm;
	simover(&h->used)->queue.complete = counting_complete;
}

/* Step 7 and so on, begun one after the other with the memory changed between; then committed in
 * order, and all of them read again. */
static int begin_many(struct hand *h)
{
	struct sheaf_save *s[SHF_IMAGES_MAX] = { NULL };
	int n = h->play->variant, rc = 0, waited;

	for (int i = 0; i < n && rc == 0; i++) {
		paint_as(h, 7 + i);
		waited = waits;
		rc = shf_save_begin(&s[i], h->run, 7 + i, h->state, NULL, &h->err);
		stalls += h->rank == 0 && waits != waited;
		hand_fill(h, 0x33);
	}
	if (rc == 0 && n > 1 && shf_save_commit(s[1], -1, &h->err) != SHEAF_EINVAL)
		rc = shf_fail(&h->err, SHEAF_EBUG, "the second was committed first");
	for (int i = 0; i < n && rc == 0; i++)
		rc = shf_save_commit(s[i], -1, &h->err);
	for (int i = 0; i < n; i++)
		shf_save_free(s[i]);
	of_saves = h->rank == 0 ? images : of_saves;
	for (int i = 0; i < n && rc == 0; i++) {
		struct sheaf_checkpoint *step = NULL;

		hand_fill(h, 0x33);
		rc = shf_step_open(&step, h->run, 7 + i, &h->err);
		if (rc == 0)
			rc = shf_step_load(step, h->state, 0, NULL, &h->err);
		if (rc == 0 && h->run->image.all[SHF_IMAGE_OF_LOAD].own.base)
			rc = shf_fail(&h->err, SHEAF_EBUG, "a load keeps its image");
		shf_step_put(step);
		for (int b = 0; b < h->blocks_n; b++)
			for (size_t k = 0; k < h->blocks_bytes[b]; k += 4)
				h->blocks[b][k] =
				    (uint8_t)(h->blocks[b][k] - (uint8_t)(13 * (7 + i)));
		if (rc == 0 && hand_wrong(h, h->err.msg, sizeof(h->err.msg)))
			rc = SHEAF_EBUG;
	}
	return rc;
}

TEST(as_many_saves_are_in_flight_as_there_are_images)
{
	static const int32_t apart[4] = { 1, 1, 2, 2 };
	int least = T_SANITIZED ? 2 : 1, last = T_SANITIZED ? 2 : SHF_IMAGES_MAX;

	for (int most = least; most <= last; most += most < 2 ? 1 : 6)
		for (int nodes = 0; nodes < 2; nodes++) {
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, 4, halves_of_four);

			images = waits = stalls = 0;
			p.opts.images_max = most;
			p.variant = most + 1 < SHF_IMAGES_MAX ? most + 1 : most;
			p.nodes = nodes ? apart : NULL;
			p.tamper = count;
			CHECK_RC(hands_run(&p, begin_many, true), 0, &p.err);
			CHECK_INT(of_saves, most);
			CHECK_INT(stalls, p.variant - most);
			CHECK_INT(odd.taken, 0);
			odd_release();
			simdisk_free(disk);
		}
}

/* One after the other, committed at once. */
static int save_in_turn(struct hand *h)
{
	int rc = 0;

	for (int i = 0; i < 12 && rc == 0; i++) {
		struct sheaf_save *save = NULL;

		rc = shf_save_begin(&save, h->run, 7 + i, h->state, NULL, &h->err);
		if (rc == 0)
			rc = shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
	}
	return rc;
}

TEST(no_second_image_is_touched_while_the_first_is_free)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 4, halves_of_four);

	images = 0;
	p.opts.images_max = 2;
	p.tamper = count;
	CHECK_RC(hands_run(&p, save_in_turn, true), 0, &p.err);
	CHECK_INT(images, 1);
	odd_release();
	simdisk_free(disk);
}

/* With room for both: two. Where the staging has none: one, or rounds. */
TEST(images_are_no_more_than_the_staging_has_room_for)
{
	static const struct { uint64_t staging; int images; } at[] = {
		{ 12 * MIB, 2 }, { 5 * MIB, 2 }, { 3 * MIB, 1 }, { MIB, 1 }
	};

	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 4, halves_of_four);

		images = stalls = 0;
		p.opts.images_max = 2;
		p.opts.staging_bytes_max = at[i].staging;
		p.variant = 2;
		p.tamper = count;
		CHECK_RC(hands_run(&p, begin_many, true), 0, &p.err);
		CHECK_INT(of_saves, at[i].images);
		CHECK((stalls > 0) == (at[i].images == 1));
		odd_release();
		simdisk_free(disk);
	}
}

/* Both ranks hold all of it, so that a load reads it into images, from which both take it. */
static void sixteen_mib(struct hand *h)
{
	hand_add(h, "model", "whole", SHEAF_F32, 2, 4, MIB);
}

/* Saves step 7 and loads it with the same handle, which still has the image of the save. */
static int save_and_load(struct hand *h)
{
	struct sheaf_save *save = NULL;
	struct sheaf_checkpoint *step = NULL;
	uint64_t image;
	int rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);

	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	image = h->run->image.all[0].own.bytes;
	last_image = 0;
	rc = rc ? rc : shf_step_open(&step, h->run, 7, &h->err);
	rc = rc ? rc : shf_step_load(step, h->state, 0, NULL, &h->err);
	shf_step_put(step);
	if (rc == 0 && h->rank == 0 &&
	    (image < 4 * MIB || last_image == 0 ||
	     image + last_image > h->play->opts.staging_bytes_max))
		rc = shf_fail(&h->err, SHEAF_EBUG, "images of %llu and %llu bytes",
		              (unsigned long long)image, (unsigned long long)last_image);
	return rc;
}

TEST(a_load_takes_what_images_leave_of_the_staging)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, sixteen_mib);

	p.opts.staging_bytes_max = 12 * MIB;
	p.tamper = count;
	CHECK_RC(hands_run(&p, save_and_load, true), 0, &p.err);
	odd_release();
	simdisk_free(disk);
}

static int begin_beyond(struct hand *h)
{
	struct sheaf_save_opts drop = { .size = sizeof(drop), .flags = SHEAF_SAVE_MAY_DROP };
	struct sheaf_save *s[4] = { NULL };
	int rc = 0;

	for (int i = 0; i < 2 && rc == 0; i++) {
		if (h->rank == 0)
			odd.slow = 100;
		rc = shf_save_begin(&s[i], h->run, 7 + i, h->state, &drop, &h->err);
	}
	if (rc == 0 && shf_save_begin(&s[2], h->run, 9, h->state, &drop, &h->err) != SHEAF_EAGAIN)
		rc = SHEAF_EBUG;
	if (h->rank == 0)
		odd.slow = 0;
	/* Written, though not committed: its image is free. */
	for (int i = 0; i < 2 && rc == 0; i++)
		rc = shf_save_wait(s[i], -1, NULL);
	for (int i = 2; i < 4 && rc == 0; i++)
		rc = shf_save_begin(&s[i], h->run, 7 + i, h->state, &drop, &h->err);
	for (int i = 0; i < 4 && rc == 0; i++)
		rc = shf_save_commit(s[i], -1, &h->err);
	for (int i = 0; i < 4; i++)
		shf_save_free(s[i]);
	return rc;
}

TEST(beyond_the_images_a_save_is_dropped_or_refused_if_it_may_be)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	p.opts.images_max = 2;
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, begin_beyond, true), 0, &p.err);
	for (p.step = 7; p.step < 11; p.step++)
		LOADED(p);
	CHECK_INT(odd.taken, 0);
	odd_release();
	simdisk_free(disk);
}

/* The run is closed while two are in flight: neither appears. */
static int close_on_two(struct hand *h)
{
	struct sheaf_save *s[2] = { NULL };
	int rc = 0;

	for (int i = 0; i < 2 && rc == 0; i++)
		rc = shf_save_begin(&s[i], h->run, 7 + i, h->state, NULL, &h->err);
	shf_run_close(h->run);
	for (int i = 0; i < 2 && rc == 0; i++)
		if (shf_save_commit(s[i], -1, &h->err) >= 0)
			rc = SHEAF_EBUG;
	for (int i = 0; i < 2; i++)
		shf_save_free(s[i]);
	h->run = NULL;
	return rc;
}

TEST(a_close_abandons_all_that_is_in_flight)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	p.opts.images_max = 2;
	CHECK_RC(hands_run(&p, close_on_two, true), 0, &p.err);
	CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
	CHECK(!simdisk_exists(disk, "run/checkpoint-8"));
	simdisk_free(disk);
}

/* ---- short of descriptors ---- */

enum { FILES = 6 };

static void files(struct hand *h)
{
	static const char *const families[FILES] = { "a", "b", "c", "d", "e", "f" };

	for (int i = 0; i < FILES; i++)
		hand_add(h, families[i], "w", SHEAF_F32, 1, MIB / 4);
}

/* As many descriptors as files, and a few for folders. */
static int save_with_few(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc;

	odd.fds_max = odd.fds + FILES + 4;
	rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	odd.fds_max = 0;
	return rc;
}

TEST(descriptors_past_the_page_cache_are_not_missed_where_there_are_few)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, files);

	p.tamper = tamper;
	CHECK_RC(hands_run(&p, save_with_few, true), 0, &p.err);
	CHECK(odd.refused > 0);
	p.tamper = NULL;
	LOADED(p);
	odd_release();
	simdisk_free(disk);
}
