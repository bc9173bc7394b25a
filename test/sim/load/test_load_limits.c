/* SPDX-License-Identifier: Apache-2.0 */
/* Loads at their limits: several threads that read from the page cache and of which some fail,
 * memory that is short, and tensors or streams that the step does not have or has otherwise. */
#include <errno.h>
#include <stdlib.h>
#include "acts.h"
#include "save.h"
#include "starve.h"
#include "simover.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "step.h"
#include "step_open.h"
#include "run_ops.h"
#include "load.h"

static long nth;                /* which allocation fails; 0: none */

static void some(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 64, 5000), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "m", SHEAF_F32, 2, 64, 3000), 0, h->rank, h->ranks);
}

/* ---- threads that take what the page cache has ---- */

/* Files of one tensor each. */
static void many(struct hand *h)
{
	for (int i = 0; i < 12; i++) {
		char name[8];

		snprintf(name, sizeof(name), "w%d", i);
		hand_add(h, "model", hand_text(h, name, ""), SHEAF_F32, 2, 64,
		         h->play->variant ? 100 : 1200);
	}
}

static struct play cached_load(struct simdisk *disk)
{
	struct play p = hands_play(disk, 1, many);

	p.opts.io_threads = 4;
	simdisk_set_resident(disk, 1);
	return p;
}

static struct simdisk *saved_in_files(int variant)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, many);

	p.variant = variant;
	p.opts.file_bytes_max = 1 << 14;
	SAVED(p);
	return disk;
}

TEST(what_is_cached_is_taken_by_several_threads_or_by_one)
{
	for (int i = 0; i < 3; i++) {
		struct simdisk *disk = saved_in_files(0);
		struct play p = cached_load(disk);

		simdisk_set_task_steps(disk, i);
		if (i == 2)
			simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = EAGAIN,
				.kind = SIMDISK_TASK_NEW, .always = true });
		LOADED(p);
		CHECK_INT(simdisk_fired(disk) > 0, i == 2);
		simdisk_free(disk);
	}
}

/* Threads that have no turn until the first one's read is about to fail: then theirs fail before
 * that. */
static struct {
	bool (*turn[4])(void *work);
	void *work[4];
	int n, right;                   /* so many reads are right */
	bool failing;
} late;

static int task_kept(void *arg, struct shf_task **task, bool (*turn)(void *work), void *work,
                     const char *cpus)
{
	(void)arg;
	(void)cpus;
	*task = NULL;
	late.turn[late.n] = turn;
	late.work[late.n++] = work;
	return 0;
}

static int64_t pread_late(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	if (late.n == 0 || (!late.failing && late.right-- > 0))
		return simover_real()->file.pread(arg, fd, buf, n, off);
	if (!late.failing) {
		late.failing = true;
		for (int i = 0; i < late.n; i++)
			while (late.turn[i](late.work[i]))
				;
	}
	return -EACCES;
}

static void be_late(struct hand *h)
{
	late.n = 0;
	late.failing = false;
	simover(&h->used)->task.task_new = task_kept;
	simover(&h->used)->file.pread = pread_late;
}

static int load_silently(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, NULL,
		                   h->play->variant ? NULL : &h->err);
	shf_step_put(step);
	return rc;
}

TEST(of_threads_that_fail_the_first_to_be_missed_is_told)
{
	for (int right = 0; right < 6; right++) {
		struct simdisk *disk = saved_in_files(0);
		struct play p = cached_load(disk);
		char name[16];

		p.tamper = be_late;
		p.opts.flags = SHEAF_RUN_READONLY;
		late.right = right;
		snprintf(name, sizeof(name), "model-0000%d", right / 2 + 1);
		SAID(hands_run(&p, load_silently, false), SHEAF_EIO, name, &p.err);
		CHECK(late.failing && late.n == 3);
		simdisk_free(disk);
	}
}

TEST(a_file_that_cannot_be_opened_or_asked_for_is_told)
{
	for (int i = 0; i < 2; i++) {
		struct simdisk *disk = saved_in_files(0);
		struct play p = cached_load(disk);

		simdisk_set_resident(disk, !i);
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = EACCES,
			.kind = i ? SIMDISK_SUBMIT : SIMDISK_OPEN, .name = "model-00003",
			.always = true });
		(void)hands_load(&p);
		SAID(p.rc, SHEAF_EIO, i ? "submitting a read" : "model-00003", &p.err);
		CHECK(simdisk_fired(disk) > 0);
		simdisk_free(disk);
	}
}

static int load_without_words(struct hand *h)
{
	h->play->variant = 1;
	return load_silently(h);
}

TEST(who_wants_no_words_has_the_code)
{
	struct simdisk *disk = saved_in_files(0);
	struct play p = cached_load(disk);

	p.tamper = be_late;
	p.opts.flags = SHEAF_RUN_READONLY;
	late.right = 1;
	CHECK_INT(hands_run(&p, load_without_words, false), SHEAF_EIO);
	CHECK_STR(p.err.msg, "");
	simdisk_free(disk);
}

static int load_hungry(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	starve_left = nth;
	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, &h->report, &h->err);
	starve_left = 0;
	shf_step_put(step);
	return rc;
}

TEST(without_memory_for_threads_nothing_is_loaded_or_all)
{
	struct simdisk *disk = saved_in_files(1);
	long n = 0;

	for (nth = 1 + t_from(T_STRIDE);; nth += T_STRIDE) {
		struct play p = cached_load(disk);

		p.opts.flags = SHEAF_RUN_READONLY;
		p.variant = 1;
		starved = false;
		(void)hands_run(&p, load_hungry, false);
		if (!starved) {
			CHECK_RC(p.rc, 0, &p.err);
			break;
		}
		n++;
		if (p.rc != 0)
			SAID(p.rc, SHEAF_ENOMEM, "", &p.err);
	}
	nth = 0;
	printf("# %ld allocations\n", n);
	CHECK(n > 20 / T_STRIDE);
	simdisk_free(disk);
}

/* Each of three ranks, two of them on one node, wants parts of the same block. */
static void rows(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 64, 300), 0, h->rank, h->ranks);
}

static int load_hungry_on_one(struct hand *h)
{
	char why[300];
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	if (h->rank == h->play->variant)
		starve_left = nth;
	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, &h->report, &h->err);
	if (h->rank == h->play->variant)
		starve_left = 0;
	shf_step_put(step);
	return rc == 0 && hand_wrong(h, why, sizeof(why)) ? SHEAF_EBUG : rc;
}

/* Ranks agree on memory for the parts of a load at different places; whatever is missing where, all
 * have all of it or all are told. */
TEST(without_one_allocation_of_one_rank_all_load_all_or_none_does)
{
	static const int32_t nodes[] = { 0, 0, 1 };
	struct simdisk *disk = disk_new();
	struct play saves = hands_play(disk, 3, rows);
	long n = 0;

	saves.step = 7;
	SAVED(saves);
	for (int rank = 0; rank < 3; rank++)
		for (nth = 1;; nth++) {
			struct play p = hands_play(disk, 3, rows);

			p.step = 7;
			p.opts.flags = SHEAF_RUN_READONLY;
			p.nodes = nodes;
			p.variant = rank;
			starved = false;
			(void)hands_run(&p, load_hungry_on_one, false);
			if (!starved) {
				CHECK_RC(p.rc, 0, &p.err);
				break;
			}
			n++;
			if (p.rc != 0)
				CHECK_RC(p.rc, SHEAF_ENOMEM, &p.err);
		}
	nth = 0;
	printf("# %ld allocations\n", n);
	CHECK(n > 100);
	simdisk_free(disk);
}

/* ---- what a state asks for ---- */

static void ask(struct hand *h)
{
	int v = h->play->variant;
	struct sheaf_slice *s = hand_add(h, "model", "w", v == 1 ? SHEAF_I64 : v == 2 ? SHEAF_BF16
	                                 : SHEAF_F32, 2, 64, 30);

	if (v == 2)     /* it is to be stored otherwise, and lies in memory as it is stored now */
		s->data_dtype = SHEAF_F32;
	for (int i = 0; v == 3 && i < 14; i++) {
		char name[80];

		snprintf(name, sizeof(name), "%070d", i);
		hand_add(h, "model", hand_text(h, "a.tensor.", name), SHEAF_F32, 1, 4);
	}
}

TEST(no_number_is_made_of_another_kind_of_number)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, ask);

	SAVED(p);
	p.variant = 1;
	p.flags = SHEAF_LOAD_CONVERT;
	REFUSED(p, SHEAF_ELAYOUT, "model/w: F32 is stored and cannot be converted to I64");
	simdisk_free(disk);
}

TEST(what_lies_in_memory_as_it_is_stored_is_not_converted)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, ask);

	SAVED(p);
	p.variant = 2;
	p.flags = SHEAF_LOAD_CONVERT;
	LOADED(p);
	simdisk_free(disk);
}

/* As many as the sentence has room for, and that there are more. */
TEST(many_names_that_are_absent_are_told_together)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, ask);

	SAVED(p);
	p.variant = 3;
	REFUSED(p, SHEAF_ELAYOUT, "no tensor model/a.tensor.");
	CHECK(strstr(p.err.msg, "; also model/a.tensor.") != NULL);
	CHECK_INT(hands_told(&p, 'M'), 14);
	p.tamper = NULL;
	simdisk_free(disk);
}

static int load_otherwise(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int v = h->play->variant;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	if (rc == 0)
		rc = shf_step_load(step, h->state, h->rank && v == 0 ? SHEAF_LOAD_LENIENT : 0,
		                   &h->report, v == 3 ? NULL : &h->err);
	shf_step_put(step);
	return rc;
}

TEST(ranks_that_load_with_different_flags_are_told)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, some);

	SAVED(p);
	SAID(hands_run(&p, load_otherwise, false), SHEAF_EINVAL, "different flags", &p.err);
	p.hold = ask;
	p.variant = 3;
	CHECK_INT(hands_run(&p, load_otherwise, false), SHEAF_ELAYOUT);
	simdisk_free(disk);
}

/* Of a step that has "rng2" and "own" as well. */
static int with_streams(struct hand *h)
{
	static const char *const stream[] = { "rng", "rng2", "own" };
	uint8_t bytes[3][8] = { { 0 } };
	struct sheaf_save *save = NULL;
	int v = h->play->variant, rc = 0;

	for (int i = 0; i < (v == 0 ? 3 : 1) && rc >= 0; i++) {
		memset(bytes[i], v == 0 ? 10 * i + h->rank : 99, 8);
		rc = shf_state_stream(h->state, stream[i], "strict", h->rank, h->ranks, bytes[i],
		                      8, NULL);
	}
	if (v == 0) {
		rc = rc < 0 ? rc : shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);
		rc = rc < 0 ? rc : shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
		return rc;
	}
	rc = rc < 0 ? rc : load_otherwise(h);
	return rc < 0 ? rc : bytes[0][0] != h->rank;
}

TEST(a_stream_is_not_taken_for_one_whose_name_begins_alike)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, some);

	CHECK_RC(hands_run(&p, with_streams, true), 0, &p.err);
	p.variant = 1;
	CHECK_RC(hands_run(&p, with_streams, false), 0, &p.err);
	CHECK_INT(hands_told(&p, 'U'), 0);
	p.ranks = 1;
	SAID(hands_run(&p, with_streams, false), SHEAF_ELAYOUT,
	     "stream rng: saved by 2 ranks, loaded by 1", &p.err);
	simdisk_free(disk);
}

/* The step was saved without any. */
TEST(a_stream_that_was_never_saved_is_absent)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, some);

	SAVED(p);
	p.variant = 1;
	SAID(hands_run(&p, with_streams, false), SHEAF_ELAYOUT, "no tensor ranks/rng/0", &p.err);
	simdisk_free(disk);
}

/* ---- what is somebody else's ---- */

static const char *const others[] = { "hf", "shards", "alone.safetensors", "hf/alone.safetensors" };

static int open_other(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	struct shf_opts o = h->play->opts;
	int rc;

	o.flags = SHEAF_RUN_UNVERIFIED;
	starve_left = h->rank == 0 ? nth : 0;
	rc = shf_step_open_path(&step, others[h->play->variant], h->group, &o, h->sys, &h->err);
	starve_left = 0;
	shf_step_put(step);
	return rc;
}

TEST(without_memory_no_directory_of_others_is_opened)
{
	static const struct hand_tensor t[] = { { "w", SHEAF_F32, 2, { 4, 4 } } };
	struct simdisk *disk = acts_disk(1);
	long n = 0;

	hands_file(disk, others[2], t, 1, 0);
	hands_file(disk, others[3], t, 1, 0);
	CHECK_INT(simdisk_put(disk, "hf/config.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(disk, "shards/config.json", "{}", 2), 0);
	simdisk_set_trace(disk, false);
	for (int i = 0; i < 4; i++)
		for (nth = 1 + t_from(T_STRIDE);; nth += T_STRIDE) {
			struct play p = hands_play(disk, 1, NULL);

			p.path = "";
			p.variant = i;
			starved = false;
			(void)hands_run(&p, open_other, false);
			n += starved;
			if (!starved) {
				CHECK_RC(p.rc, 0, &p.err);
				break;
			}
			if (p.rc != 0)
				SAID(p.rc, SHEAF_ENOMEM, "", &p.err);
		}
	nth = 0;
	printf("# %ld allocations\n", n);
	CHECK(n > 40 / T_STRIDE);
	simdisk_free(disk);
}
