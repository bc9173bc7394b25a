/* SPDX-License-Identifier: Apache-2.0 */
/* Saves that run short of something: descriptors, disk space, time for bytes that must still
 * travel; and what a save no longer accepts. */
#include "acts.h"
#include <errno.h>
#include "simover.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_eta.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"
#include "save_status.h"
#include "averages.h"
#include "state.h"
#include "run_ops.h"

static const int32_t apart[] = { 1, 2 };

/* ---- one process ---- */

struct alone {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct sheaf_error err;
	uint8_t w[3 << 20];
};
static struct alone a;

static void begin_with(struct shf_opts opts)
{
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_U8, .ndim = 1,
		.shape = { sizeof(a.w) }, .count = { sizeof(a.w) }, .data = a.w };

	opts.flags |= SHEAF_RUN_CREATE;
	opts.io_threads = 1;
	a.disk = disk_new();
	simdisk_set_agents(a.disk, 64 << 20);
	a.sys = simdisk_process(a.disk, 9, 0);
	a.state = shf_state_new();
	simdisk_set_task_steps(a.disk, 0);
	CHECK_INT(shf_state_add(a.state, &s, NULL), 0);
	s.family = "optimizer";
	CHECK_INT(shf_state_add(a.state, &s, NULL), 1);
	CHECK_RC(shf_run_open(&a.run, "run", NULL, &opts, a.sys, &a.err), 0, &a.err);
}

static void begin(uint64_t flags)
{
	begin_with((struct shf_opts){ .flags = flags });
}

static void end(void)
{
	shf_run_close(a.run);
	shf_state_put(a.state);
	CHECK_INT(simdisk_open_n(a.sys), 0);
	simdisk_free(a.disk);
}

static int saves(int64_t step, struct sheaf_error *err)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, a.run, step, a.state, NULL, err);

	rc = rc == 0 ? shf_save_commit(save, -1, err) : rc;
	shf_save_free(save);
	return rc;
}

/* The system, or the process, has none left for once: files past the page cache are let go, and
 * what is opened then is opened in their place. */
TEST(where_descriptors_are_few_a_save_goes_through_the_page_cache)
{
	static const int errors[] = { ENFILE, EMFILE };
	char path[40];
	int step = 1;

	begin(0);
	CHECK_RC(saves(1, &a.err), 0, &a.err);
	for (int i = 0; i < 2; i++)
		for (int nth = 1;; nth++) {
			struct simdisk_fault fault = { .nth = nth, .error = errors[i],
				.kind = SIMDISK_OPEN, .name = "-of-00001" };

			simdisk_fault(a.disk, &fault);
			CHECK_RC(saves(++step, &a.err), 0, &a.err);
			snprintf(path, sizeof(path), "run/checkpoint-%d", step);
			CHECK(simdisk_exists(a.disk, path));
			if (!simdisk_fired(a.disk))
				break;
			simdisk_faults_clear(a.disk);
		}
	CHECK(step > 4);
	end();
}

TEST(where_there_are_none_it_fails_and_says_so)
{
	struct simdisk_fault fault = { .nth = 1, .error = EMFILE, .kind = SIMDISK_OPEN,
		.name = "optimizer-", .always = true };

	begin(0);
	simdisk_fault(a.disk, &fault);
	SAID(saves(1, &a.err), SHEAF_EIO, "step 1: optimizer/optimizer-", &a.err);
	CHECK_INT(a.err.sys, EMFILE);
	simdisk_faults_clear(a.disk);
	CHECK(!simdisk_exists(a.disk, "run/checkpoint-1"));
	CHECK_RC(saves(1, &a.err), 0, &a.err);
	end();
}

TEST(who_wants_the_page_cache_gets_no_file_past_it)
{
	for (int i = 0; i < 2; i++) {
		int past = 0;

		begin(i ? SHEAF_RUN_BUFFERED : 0);
		CHECK_RC(saves(1, &a.err), 0, &a.err);
		for (size_t k = 0; k < simdisk_calls(a.disk); k++) {
			const char *text = simdisk_call_text(a.disk, k);

			past += strstr(text, "-of-00001") && strstr(text, " open(");
		}
		CHECK_INT(past, i ? 2 : 4); /* of two files: once, or twice */
		end();
	}
}

TEST(a_disk_without_room_is_told_also_to_who_wants_no_sentence)
{
	begin(0);
	simdisk_set_space(a.disk, simdisk_used(a.disk) + (4 << 20));
	CHECK_INT(saves(1, NULL), SHEAF_EIO);
	SAID(saves(1, &a.err), SHEAF_EIO, "free space there", &a.err);
	CHECK_INT(a.err.sys, ENOSPC);
	simdisk_set_space(a.disk, UINT64_C(1) << 40);
	CHECK_RC(saves(1, &a.err), 0, &a.err);
	end();
}

/* Saves steps 1 to n, all kept on a disk that then has room for half a step. */
static void fill(int n)
{
	simdisk_set_task_steps(a.disk, 1000); /* what is read again is read when somebody asks */
	for (int step = 1; step <= n; step++)
		CHECK_RC(saves(step, &a.err), 0, &a.err);
	simdisk_set_space(a.disk, simdisk_used(a.disk) + sizeof(a.w));
}

/* Otherwise steps go after a commit, and here no commit works before they go. */
TEST(a_save_that_finds_the_disk_full_lets_old_steps_go_first)
{
	begin_with((struct shf_opts){ .keep_last = 1, .grace_s = -1 });
	fill(3);
	CHECK(simdisk_exists(a.disk, "run/checkpoint-2"));
	CHECK_RC(saves(4, &a.err), 0, &a.err);
	CHECK(!simdisk_exists(a.disk, "run/checkpoint-2"));
	end();
}

TEST(a_save_that_finds_the_disk_full_empties_the_trash_whose_grace_is_over)
{
	for (int late = 0; late < 2; late++) {
		begin_with((struct shf_opts){ .keep_last = 1, .grace_s = 100 });
		fill(4);
		simdisk_advance(a.disk, late ? 101 : 0);
		if (late)
			CHECK_RC(saves(5, &a.err), 0, &a.err);
		else
			SAID(saves(5, &a.err), SHEAF_EIO, "stay in .sheaf/trash for "
							  "opts.retention.grace_s",
			     &a.err);
		end();
	}
}

/* ---- memory of an agent ---- */

static int begins(struct sheaf_save **save, int64_t step, uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };

	*save = NULL;
	return shf_save_begin(save, a.run, step, a.state, &opts, &a.err);
}

/* One image, or images that are filled several times: while one is written nothing is whole in
 * memory. To disk such a step comes all the same. */
TEST(a_step_that_lies_in_no_second_image_is_not_kept_in_memory)
{
	static const struct shf_opts scant[] = {
		{ .agent = "auto", .images_max = 1 },
		{ .agent = "auto", .images_max = 2, .staging_bytes_max = 4 << 20 },
	};

	for (int i = 0; i < 2; i++)
		for (int lazy = 0; lazy < 2; lazy++) {
			uint64_t flags = lazy ? SHEAF_SAVE_LAZY : 0;
			struct sheaf_save *save;

			begin_with(scant[i]);
			for (int64_t step = 1; step <= 2; step++) {
				CHECK_RC(begins(&save, step, flags), 0, &a.err);
				for (int k = 0; k < 2; k++)
					CHECK_INT(shf_save_copied(save, k, -1, NULL), 0);
				CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
				CHECK(save->at.memory != SHF_MEMORY_KEPT);
				shf_save_free(save);
				SAID(begins(&save, step + 1, flags | SHEAF_SAVE_NO_DISK),
				     SHEAF_EINVAL,
				     "SHEAF_SAVE_NO_DISK needs two staging buffers", &a.err);
				CHECK(save == NULL);
			}
			CHECK(simdisk_exists(a.disk, "run/checkpoint-2"));
			end();
		}
}

TEST(a_commit_that_is_not_over_says_that_the_step_is_in_memory)
{
	struct sheaf_save *save;

	begin_with((struct shf_opts){ .agent = "auto", .images_max = 2 });
	CHECK_RC(begins(&save, 1, 0), 0, &a.err);
	SAID(shf_save_commit(save, 0, &a.err), SHEAF_EAGAIN, "; it is safe in the agents' memory",
	     &a.err);
	CHECK(save->at.memory == SHF_MEMORY_KEPT);
	CHECK_INT(shf_save_commit(save, 0, NULL), SHEAF_EAGAIN);
	CHECK_INT(shf_save_commit(save, -1, NULL), 0);
	CHECK(simdisk_exists(a.disk, "run/checkpoint-1"));
	CHECK_INT(shf_save_eta_ms(save), 0);
	shf_save_free(save);
	end();
}

/* ---- what is not taken any more ---- */

TEST(while_a_step_is_published_nothing_is_given_to_it)
{
	struct sheaf_save *save = NULL;

	begin(0);
	CHECK_RC(shf_save_begin(&save, a.run, 1, a.state, NULL, &a.err), 0, &a.err);
	CHECK_INT(shf_save_wait(save, 1000, NULL), 0);
	CHECK_INT(shf_save_wait(save, 0, NULL), 0);
	for (int i = 0; save->at.disk < SHF_DISK_PUBLISHING; i++) {
		CHECK(i < 100);
		CHECK_INT(shf_save_commit(save, 0, &a.err), SHEAF_EAGAIN);
	}
	CHECK_INT(shf_save_attach(save, "late.json", "{}", 2, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_save_note(save, "late", "1", NULL), SHEAF_EINVAL);
	CHECK_INT(shf_save_fail(save, "too late", NULL), SHEAF_EINVAL);
	CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
	CHECK_INT(shf_save_attach(save, "late.json", "{}", 2, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_save_note(save, "late", "1", NULL), SHEAF_EINVAL);
	shf_save_free(save);
	CHECK(simdisk_exists(a.disk, "run/checkpoint-1"));
	CHECK(!simdisk_exists(a.disk, "run/checkpoint-1/late.json"));
	end();
}

/* Whose struct ends before the loss: it has none. */
TEST(save_options_of_an_older_caller_have_no_loss)
{
	struct sheaf_save_opts older = { .size = offsetof(struct sheaf_save_opts, loss),
		.loss = 5 };
	struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0, .loss_max = 1 };
	struct sheaf_slice s = { .size = sizeof(s), .name = "f", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 }, .count = { 4 }, .data = a.w, .family = "master_weights" };

	for (int i = 0; i < 2; i++) {
		struct sheaf_save *save = NULL;

		begin(0);
		CHECK_INT(shf_state_add(a.state, &s, NULL), 2);
		CHECK(shf_state_ema(a.state, "master_weights", &ema, NULL) >= 0);
		older.size = i ? sizeof(older) : offsetof(struct sheaf_save_opts, loss);
		CHECK_RC(shf_save_begin(&save, a.run, 1, a.state, &older, &a.err), 0, &a.err);
		CHECK(save->copy.fresh[0].counts == (i == 0)); /* 0 is below 1, and 5 is not */
		CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
		shf_save_free(save);
		end();
	}
}

/* ---- two ranks ---- */

enum { FAST, SLOW, LATE, LOSSES, FLAGS };
static struct sheaf_group_ops real;

/* 16 MiB by columns, of which half must travel. */
static void columns(struct hand *h)
{
	if (h->play->variant < LOSSES)
		hand_cut(hand_add(h, "model", "w", SHEAF_F64, 2, 1024, 2048), 1, h->rank,
		         h->ranks);
	else
		(void)hand_add(h, "model", "w", SHEAF_F64, 1, 5);
}

static struct hand *hands[2];

static int slowly(void *arg, const void *out, const size_t *out_bytes, void *in,
                  const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	int rc = real.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);

	for (int r = 0; r < 2; r++)
		if (hands[r]->group->ops.arg == arg)
			simgroup_pause(hands[r]->group, 150);
	return rc;
}

static void tamper(struct hand *h)
{
	hands[h->rank] = h;
	real = h->group->ops;
	if (h->play->variant != FAST)
		h->group->ops.alltoallv = slowly;
}

/* The machine's clock is the group's. */
static int64_t group_ns(void *arg)
{
	(void)arg;
	return simgroup_now_ms(hands[0]->group) * 1000000;
}

static int save_columns(struct hand *h)
{
	const int variant = h->play->variant;
	struct sheaf_save_opts opts = { .size = sizeof(opts),
		.loss = variant == LOSSES ? h->rank : 1,
		.flags = variant == FLAGS && h->rank ? SHEAF_SAVE_MAY_DROP : 0 };
	struct sheaf_save *save = NULL;
	uint64_t none = 0;
	int rc, again = 0;

	/* Both hands are there before anybody looks at the clock. */
	if (h->group->ops.allreduce(h->group->ops.arg, &none, 1, SHEAF_MAX, 1000,
	                            &(struct sheaf_error){ 0 }))
		return SHEAF_ELOST;
	simover(&h->used)->host.mono_ns = group_ns;
	rc = shf_run_open(&h->run, "run", h->group, &h->play->opts, h->sys, &h->err);
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 7, h->state, &opts, &h->err);
	while (rc == 0 && variant == LATE &&
	       (rc = shf_save_commit(save, 200, &h->err)) == SHEAF_EAGAIN && again++ < 50) {
		if (again == 1 && !strstr(h->err.msg, "bytes must still be sent"))
			return SHEAF_EBUG;
		rc = 0;
	}
	if (rc == 0 && variant != LATE)
		rc = shf_save_commit(save, -1, &h->err);
	if (rc == 0 && variant == LATE && again < 1)
		rc = SHEAF_EBUG;
	shf_save_free(save);
	shf_run_close(h->run);
	h->run = NULL;
	return rc;
}

TEST(what_must_travel_goes_in_portions_that_leave_time_to_look_at_the_clock)
{
	for (int variant = FAST; variant <= LATE; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, columns), q;

		simdisk_set_trace(disk, false);
		p.nodes = apart;
		p.path = "";
		p.variant = variant;
		p.tamper = tamper;
		CHECK_RC(hands_run(&p, save_columns, true), 0, &p.err);
		if (variant == LATE) {
			q = hands_play(disk, 1, columns);
			LOADED(q);
		}
		simdisk_free(disk);
	}
}

TEST(ranks_that_begin_a_save_differently_are_told_in_what)
{
	for (int variant = LOSSES; variant <= FLAGS; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, columns);

		p.nodes = apart;
		p.path = "";
		p.variant = variant;
		p.tamper = tamper;
		SAID(hands_run(&p, save_columns, true), SHEAF_EINVAL, variant == LOSSES
		     ? "step 7: ranks pass different save_opts.loss"
		     : "step 7: ranks pass different flags to sheaf_save_begin", &p.err);
		CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
		simdisk_free(disk);
	}
}

/* ---- a machine that makes no threads ---- */

/* As a queue answers whose first thread cannot be made. */
static const struct simdisk_fault threadless = { .nth = 1, .error = EAGAIN, .always = true,
	.kind = SIMDISK_SUBMIT };

static int save_lazily(struct hand *h)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, h->play->step, h->state, &opts, &h->err);

	(void)(rc == 0 && shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL));
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_thread_that_cannot_be_made_is_no_disk_that_is_full)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, columns), q = p;

	q.variant = p.variant = LOSSES;
	SAVED(q);
	simdisk_fault(disk, &threadless);
	p.step = 8;
	SAID(hands_save(&p), SHEAF_EIO, "no thread can be started for it (see ulimit -u", &p.err);
	CHECK_INT(p.err.sys, EAGAIN);
	SAID(hands_run(&p, save_lazily, true), SHEAF_EIO, "no thread can be started", &p.err);
	p.step = 7;
	SAID(hands_load(&p), SHEAF_EIO, "submitting a read: no thread can be started", &p.err);
	simdisk_free(disk);
}
