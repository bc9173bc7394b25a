/* SPDX-License-Identifier: Apache-2.0 */
/* The sentences and the log of saves that are begun, copied and committed, complete. */
#include "simover.h"
#include "sentences.h"
#include <errno.h>
#include "averages.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"
#include "save_status.h"
#include "step.h"
#include "step_open.h"
#include "run_ops.h"
#include "load.h"

static const int32_t apart[] = { 1, 2 };

/* ---- begins that are refused ---- */

static int odd_options(struct hand *h)
{
	static const uint64_t flags[] = { 1 << 20, SHEAF_SAVE_CHECK, SHEAF_SAVE_LATER,
		SHEAF_SAVE_CHECK | SHEAF_SAVE_LATER };
	static const int64_t steps[] = { -1, INT64_MIN, INT64_MAX };
	struct { struct sheaf_save_opts o; uint64_t newer; } more = { .newer = 1 };
	struct sheaf_save *save = NULL;

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		(void)begun(h, 1, flags[i]);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		(void)begun(h, steps[i], 0);
	for (uint32_t size = 7; size <= sizeof(more) + 4096; size += size == 7 ? 1 : 2048) {
		more.o.size = size;
		said(h, shf_save_begin(&save, h->run, 1, h->state, &more.o, &h->err));
		shf_save_free(save);
		save = NULL;
	}
	more.o.size = sizeof(more);
	said(h, shf_save_begin(&save, h->run, 1, h->state, &more.o, &h->err));
	return said(h, shf_save_begin(&save, h->run, 1, NULL, NULL, &h->err));
}

TEST(options_of_a_save_that_make_no_sense_are_told)
{
	struct play p = hands_play(disk_new(), 1, two);

	story(&p, odd_options,
	      "-1: save_opts.flags: SHEAF_RUN_UNVERIFIED belongs to sheaf_opts.flags\n-1: "
	      "SHEAF_SAVE_CHECK needs SHEAF_SAVE_LAZY\n-1: SHEAF_SAVE_LATER needs "
	      "SHEAF_SAVE_LAZY\n-1: SHEAF_SAVE_CHECK needs SHEAF_SAVE_LAZY\n-1: step -1 is "
	      "negative\n-1: step -9223372036854775808 is negative\n-1: step 9223372036854775807 "
	      "is larger than the largest step, 2^63 - 2\n-1: save_opts.size is 7; set it to "
	      "sizeof(struct sheaf_save_opts)\n-1: save_opts.size is 8; set it to sizeof(struct "
	      "sheaf_save_opts)\n-1: save_opts has a field set that this version of sheaf does not "
	      "know; set it to 0, or use a newer sheaf\n-1: save_opts.size is 4104; set it to "
	      "sizeof(struct sheaf_save_opts)\n-1: save_opts has a field set that this version of "
	      "sheaf does not know; set it to 0, or use a newer sheaf\n-2: the state is NULL; "
	      "sheaf_state_new returns NULL when out of memory\n");
}

/* One after the other, and at the wrong time. */
static int in_order(struct hand *h)
{
	struct sheaf_save *five = begun(h, 5, 0), *six;

	(void)begun(h, 5, 0);
	(void)begun(h, 4, 0);
	six = begun(h, 6, 0);
	committed(h, six, -1);
	committed(h, five, -1);
	committed(h, five, -1);
	said(h, shf_save_exchange(five, 0, &h->err));
	coded(h, "attach", shf_save_attach(five, "x", "y", 1, NULL));
	coded(h, "note", shf_save_note(five, "x", "y", NULL));
	coded(h, "put", shf_save_put(six, 0, NULL, NULL));
	coded(h, "copied", shf_save_copied(six, 2, 0, NULL));
	coded(h, "copied", shf_save_copied(six, 1, 0, NULL));
	committed(h, six, -1);
	coded(h, "wait", shf_save_wait(six, -1, NULL));
	(void)begun(h, 6, 0);
	(void)begun(h, 5, 0);
	(void)begun(h, 3, 0);
	shf_save_free(five);
	shf_save_free(six);
	return 0;
}

TEST(saves_in_the_wrong_order_are_told_which_is_in_the_way)
{
	struct play p = hands_play(disk_new(), 1, two);

	story(&p, in_order,
	      "0\n-5: step 5 is being saved already; commit or free that save first\n-1: step 4 is "
	      "older than step 5, which is being saved; steps must be saved in ascending "
	      "order\n0\n-1: step 6: step 5 was begun before it; commit or free that save first\n2 "
	      "run: step 5 committed, rank 0\n0\n-1: step 5: the save has ended; free it\n-1: the "
	      "save has ended; free it\nattach -1\nnote -1\nput -1\ncopied -1\ncopied 0\n2 run: "
	      "step 6 committed, rank 0\n0\nwait 0\n-5: step 6 exists in run (sheaf rewind run@5 "
	      "sets it aside; or save another step)\n-5: step 5 exists in run, and none before it; "
	      "save another step, or open a new run directory\n-1: step 3 is older than step 6 in "
	      "run; call sheaf_run_rewind, or sheaf rewind, to save after an older step\n");
}

static int first_again(struct hand *h)
{
	struct sheaf_save *save = begun(h, 5, 0);

	committed(h, save, -1);
	shf_save_free(save);
	(void)begun(h, 5, 0);
	(void)begun(h, 4, 0);
	save = begun(h, 9, 0);
	coded(h, "fail", shf_save_fail(save, NULL, NULL));
	coded(h, "fail", shf_save_fail(save, "a second reason", NULL));
	committed(h, save, -1);
	committed(h, save, -1);
	coded(h, "fail", shf_save_fail(save, "too late", NULL));
	coded(h, "wait", shf_save_wait(save, -1, NULL));
	shf_save_free(save);
	return 0;
}

TEST(a_step_that_is_there_and_none_before_it_wants_another_number)
{
	struct play p = hands_play(disk_new(), 1, two);

	story(&p, first_again,
	      "0\n2 run: step 5 committed, rank 0\n0\n"
	      "-5: step 5 exists in run, and none before it; save another step, or open a new run "
	      "directory\n"
	      "-1: step 4 is older than step 5 in run; call sheaf_run_rewind, or sheaf rewind, to "
	      "save after an older step\n0\nfail 0\nfail 0\n"
	      "-15: step 9: sheaf_save_abort was called without a reason\n"
	      "-1: step 9: the save has ended; free it\nfail 0\nwait -15\n");
}

/* ---- slices that are brought later ---- */

static int bring(struct hand *h)
{
	struct sheaf_save *save = begun(h, 7, SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER);

	coded(h, "copied", shf_save_copied(save, 0, -1, NULL));
	coded(h, "copied", shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL));
	(void)begun(h, 8, SHEAF_SAVE_LAZY);
	committed(h, save, -1);
	coded(h, "put", shf_save_put(save, -1, NULL, NULL));
	coded(h, "put", shf_save_put(save, 2, NULL, NULL));
	coded(h, "put", shf_save_put(save, 0, NULL, NULL));
	coded(h, "put", shf_save_put(save, 0, NULL, NULL));
	committed(h, save, -1);
	committed(h, save, 0);
	coded(h, "put", shf_save_put(save, 1, NULL, NULL));
	coded(h, "copied", shf_save_copied(save, 0, -1, NULL));
	coded(h, "copied", shf_save_copied(save, 2, -1, NULL));
	committed(h, save, -1);
	coded(h, "put", shf_save_put(save, 1, NULL, NULL));
	shf_save_free(save);
	return 0;
}

TEST(slices_that_were_not_brought_are_named)
{
	struct play p = hands_play(disk_new(), 1, two);

	story(&p, bring,
	      "0\ncopied -1\ncopied -1\n-1: step 8: the save of step 7 still waits for slices; "
	      "call sheaf_save_slice_ready for each of them first\n-1: step 7: slice 0 (model/w) "
	      "is not ready; call sheaf_save_slice_ready for it before the commit\nput -1\nput "
	      "-1\nput 0\nput -1\n-1: step 7: slice 1 (optimizer/b) is not ready; call "
	      "sheaf_save_slice_ready for it before the commit\n-7: step 7: not all slices are "
	      "ready yet (sheaf_save_slice_ready)\nput 0\ncopied 0\ncopied -1\n2 run: "
	      "step 7 committed, rank 0\n0\nput -1\n");
}

static int not_later(struct hand *h)
{
	static const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };

	(void)begun(h, 1, SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER);
	if (h->play->variant == 2)
		coded(h, "averages", shf_state_ema(h->state, NULL, &ema, NULL));
	(void)begun(h, 2, SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER);
	shf_save_free(begun(h, 3, SHEAF_SAVE_LAZY));
	return 0;
}

static void in_place(struct hand *h)
{
	hand_add(h, "model", "w", SHEAF_F32, 2, 300, 256)->flags |= SHEAF_SLICE_IN_PLACE;
}

TEST(saves_that_can_bring_nothing_later_say_why)
{
	struct play p = hands_play(disk_new(), 1, in_place);

	story(&p, not_later,
	      "-1: step 1: SHEAF_SAVE_LATER needs staging for the whole state: "
	      "SHEAF_SLICE_IN_PLACE keeps some slices out of it\n"
	      "-1: step 2: SHEAF_SAVE_LATER needs staging for the whole state: "
	      "SHEAF_SLICE_IN_PLACE keeps some slices out of it\n0\n");
	p = hands_play(disk_new(), 1, two);
	p.opts.staging_bytes_max = 128 * KIB;
	story(&p, not_later,
	      "-1: step 1: SHEAF_SAVE_LATER needs staging for the whole state: "
	      "opts.staging.bytes_max is too small for it\n"
	      "-1: step 2: SHEAF_SAVE_LATER needs staging for the whole state: "
	      "opts.staging.bytes_max is too small for it\n"
	      "1 step 3: copied synchronously in sheaf_save_begin, because opts.staging.bytes_max "
	      "cannot hold the whole state\n0\n");
}

/* ---- images ---- */

static int too_many(struct hand *h)
{
	uint64_t flags = h->play->variant ? SHEAF_SAVE_NO_DISK : 0;
	struct sheaf_save *s[3] = { NULL };
	int n = 0;

	for (; n < 2; n++)
		if (!(s[n] = begun(h, n + 1, flags)))
			break;
	(void)begun(h, 8, SHEAF_SAVE_MAY_DROP);
	s[2] = begun(h, 8, flags);
	for (int i = 0; i < 3; i++) {
		for (int k = 0; s[i] && k < 4; k++)
			committed(h, s[i], k ? -1 : 0);
		shf_save_free(s[i]);
	}
	return 0;
}

TEST(where_no_image_is_free_it_is_told_whose_it_is)
{
	struct play p = hands_play(disk_new(), 2, two);

	p.nodes = apart;
	story(&p, too_many,
	      "0\n0\n-7: no staging buffer is free: step 2 is still being written; save less "
	      "often, or raise opts.staging.buffers_max\n0\n-7: step 1: at least one rank is still "
	      "writing; commit again\n2 run: step 1 committed, rank 0\n0\n2 run: step 1 committed, "
	      "rank 1\n-1: step 1: the save has ended; free it\n-1: step 1: the save has ended; "
	      "free it\n-7: step 2: at least one rank is still writing; commit again\n2 run: step "
	      "2 committed, rank 1\n2 run: step 2 committed, rank 0\n0\n-1: step 2: the save has "
	      "ended; free it\n-1: step 2: the save has ended; free it\n-7: step 8: at least one "
	      "rank is still writing; commit again\n2 run: step 8 committed, rank 1\n2 run: step 8 "
	      "committed, rank 0\n0\n-1: step 8: the save has ended; free it\n-1: step 8: the save "
	      "has ended; free it\n");
	p = hands_play(disk_new(), 2, two);
	p.opts.agent = "auto";
	p.opts.images_max = 2;
	p.variant = 1;
	simdisk_set_agents(p.disk, UINT64_C(1) << 30);
	story(&p, too_many,
	      "0\n0\n-7: no staging buffer is free: step 1 is in memory and not committed; commit "
	      "it, or raise opts.staging.buffers_max\n-7: no staging buffer is free: step 1 is in "
	      "memory and not committed; commit it, or raise opts.staging.buffers_max\n2 run: step "
	      "1 is in memory, rank 0\n0\n2 run: step 1 is in memory, rank 1\n-1: step 1: the save "
	      "has ended; free it\n-1: step 1: the save has ended; free it\n-1: step 1: the save "
	      "has ended; free it\n2 run: step 2 is in memory, rank 0\n0\n2 run: step 2 is in "
	      "memory, rank 1\n-1: step 2: the save has ended; free it\n-1: step 2: the save has "
	      "ended; free it\n-1: step 2: the save has ended; free it\n");
}

static int in_memory(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1, SHEAF_SAVE_NO_DISK);

	if (save)
		committed(h, save, -1);
	shf_save_free(save);
	save = begun(h, 2, 0);
	if (save)
		committed(h, save, -1);
	shf_save_free(save);
	return 0;
}

enum { NO_AGENT, POOR_AGENT, ONE_IMAGE, NOT_STAGED, IN_ROUNDS, GOOD_AGENT, AGENTS };

TEST(a_save_to_memory_alone_that_cannot_be_is_told_why)
{
	static const char *const want[AGENTS] = {
		"-1: step 1: SHEAF_SAVE_NO_DISK needs opts.memory_tier.agent\n0\n"
		"2 run: step 2 committed, rank 0\n0\n",
		"1 run: no checkpoint is kept in memory: no agent answers (start one on this node: "
		"sheaf agent RUN --detach), rank 0\n-7: step 1: not saved, because on some node no "
		"agent answers, or its --memory-max is too small (check with sheaf agent RUN "
		"--status on each node)\n0\n2 run: step 2 committed, rank 0\n0\n",
		"-1: step 1: SHEAF_SAVE_NO_DISK needs two staging buffers: raise "
		"opts.staging.buffers_max or opts.staging.bytes_max\n0\n2 run: step 2 committed, "
		"rank 0\n0\n",
		"-1: step 1: SHEAF_SAVE_NO_DISK cannot be combined with slices that are "
		"SHEAF_SLICE_IN_PLACE\n0\n2 run: step 2 committed, rank 0\n0\n",
		"-1: step 1: SHEAF_SAVE_NO_DISK needs two staging buffers: raise "
		"opts.staging.buffers_max or opts.staging.bytes_max\n0\n2 run: step 2 committed, "
		"rank 0\n0\n",
		"0\n2 run: step 1 is in memory, rank 0\n0\n0\n2 run: step 2 committed, rank 0\n"
		"0\n"
	};

	for (int i = 0; i < AGENTS; i++) {
		struct play p = hands_play(disk_new(), 1, i == NOT_STAGED ? in_place : two);

		p.opts.agent = i == NO_AGENT ? NULL : "auto";
		p.opts.images_max = i == ONE_IMAGE ? 1 : 2;
		p.opts.staging_bytes_max = i == IN_ROUNDS ? 128 * KIB : 0;
		simdisk_set_agents(p.disk, i == POOR_AGENT ? 0 : UINT64_C(1) << 30);
		story(&p, in_memory, want[i]);
	}
}

/* ---- images that cannot be made or shared ---- */

static int share(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1, 0);

	if (save)
		committed(h, save, -1);
	shf_save_free(save);
	return 0;
}

/* The nth such call of two ranks fails; the last one in each try. */
TEST(an_image_that_cannot_be_shared_is_told_by_its_rank)
{
	static const struct {
		enum simdisk_kind kind;
		int nth;
	} faults[] = {
		{ SIMDISK_SHM_NEW, 2 }, { SIMDISK_SHM_OFFER, 2 }, { SIMDISK_SHM_CONNECT, 2 },
		{ SIMDISK_SHM_SERVE, 2 }, { SIMDISK_SHM_TAKE, 2 }, { SIMDISK_SHM_CONNECT, 2 },
	};
	static const char *const want[] = {
		"-4: allocating a staging buffer of 0 MiB: Not a directory\n",
		"-4: opening a socket to share the staging buffer on this node: Not a directory\n",
		"-4: connecting to rank 0 for its staging buffer: Not a directory\n",
		"-4: sharing the staging buffer with the ranks of this node: Not a directory\n",
		"-4: receiving the staging buffer of rank 0: Not a directory\n",
		("-3: staging buffer of rank 0: its socket accepts no connection: other users' "
		 "processes keep it busy, or that rank has moved to another network namespace\n"),
	};

	for (int i = 0; i < 6; i++) {
		struct play p = hands_play(disk_new(), 2, two);

		simdisk_fault(p.disk, &(struct simdisk_fault){ .nth = faults[i].nth,
			.error = i < 5 ? ENOTDIR : ECONNREFUSED, .kind = faults[i].kind,
			.always = i == 5 });
		story(&p, share, want[i]);
	}
}

/* ---- ranks that do not do the same ---- */

static int begin_differently(struct hand *h)
{
	struct sheaf_save_opts o = { .size = sizeof(o), .loss = h->rank == 1 ? 2.5 : 2 };
	struct sheaf_save *save = NULL, *next = NULL;

	(void)begun(h, 3 + h->rank, 0);
	(void)begun(h, 3, h->rank == 1 ? SHEAF_SAVE_LAZY : 0);
	said(h, shf_save_begin(&save, h->run, 3, h->state, &o, &h->err));
	save = begun(h, 3, 0);
	said(h, shf_save_exchange(save, h->rank == 1 ? 5000 : 6000, &h->err));
	if (h->rank == 1) {
		shf_save_free(save);
		save = NULL;
	}
	next = begun(h, 4, 0);
	shf_save_free(save);
	shf_save_free(next);
	return 0;
}

TEST(ranks_that_do_not_do_the_same_are_told_in_what)
{
	struct play p = hands_play(disk_new(), 2, two);

	p.nodes = apart;
	story(&p, begin_differently,
	      "-1: ranks pass different steps to sheaf_save_begin: 3 and 4\n"
	      "-1: step 3: ranks pass different flags to sheaf_save_begin\n"
	      "-1: step 3: ranks pass different save_opts.loss\n0\n"
	      "-1: ranks pass different bytes_max to sheaf_save_advance: 5000 and 6000\n"
	      "-1: ranks have different numbers of saves in flight (0 to 1); free each save on "
	      "all ranks\n");
}

static void alike(struct hand *h)
{
	hand_add(h, "model", "w", SHEAF_F32, 2, 16, 32);
	hand_add(h, "model", "v", SHEAF_F32, 2, 300, 256);
}

static int diverge(struct hand *h)
{
	struct sheaf_save *save;

	if (h->rank == 1)
		hand_spoil(h, h->play->variant);
	save = begun(h, 3, 0);
	if (save)
		committed(h, save, -1);
	shf_save_free(save);
	return 0;
}

TEST(replicas_that_differ_are_told_where)
{
	static const char *const want[] = {
		"0\n-14: step 3: model/w: ranks 1 and 0 have different replicas of [0:16, 0:32]\n",
		"0\n"
		"-14: step 3: model/v: ranks 1 and 0 have different replicas of [0:300, 0:256]\n"
	};

	for (int i = 0; i < 2; i++) {
		struct play p = hands_play(disk_new(), 2, alike);

		p.nodes = apart;
		p.variant = i;
		p.opts.flags |= SHEAF_RUN_REPLICAS;
		story(&p, diverge, want[i]);
	}
}

/* ---- the copy behind ---- */

static int tasks_left, tasks_say;

static int task_new(void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
                    const char *cpus)
{
	int rc = tasks_left-- > 0
	         ? simover_real()->task.task_new(arg, task, step, work, cpus) : -EAGAIN;

	return rc < 0 ? rc : tasks_say;
}

static void tamper(struct hand *h)
{
	simover(&h->used)->task.task_new = task_new;
}

static int behind(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1, SHEAF_SAVE_LAZY);

	for (int i = 0; i < h->n; i++)
		coded(h, "copied", shf_save_copied(save, i, -1, NULL));
	committed(h, save, -1);
	shf_save_free(save);
	return 0;
}

TEST(threads_that_cannot_be_made_or_run_where_they_should_are_told)
{
	static const char *const want[] = {
		"1 step 1: no copy thread could be started (see ulimit -u); "
		"sheaf_save_wait_copied and commit copy in the caller's thread\n0\ncopied 0\n"
		"copied 0\n2 run: step 1 committed, rank 0\n0\n",
		"1 step 1: the copy threads are not bound: the kernel refuses "
		"opts.staging.copy_cpus 0-3\n0\ncopied 0\ncopied 0\n2 run: step 1 committed, rank "
		"0\n0\n"
	};

	for (int i = 0; i < 2; i++) {
		struct play p = hands_play(disk_new(), 1, two);

		p.tamper = tamper;
		p.opts.copy_cpus = "0-3";
		tasks_left = i;
		tasks_say = i;
		story(&p, behind, want[i]);
	}
}

TEST(a_copy_inside_begin_is_told)
{
	struct play p = hands_play(disk_new(), 1, two);

	p.opts.staging_bytes_max = 128 * KIB;
	story(&p, behind,
	      "1 step 1: copied synchronously in sheaf_save_begin, because opts.staging.bytes_max "
	      "cannot hold the whole state\n0\ncopied 0\ncopied 0\n"
	      "2 run: step 1 committed, rank 0\n0\n");
}

static int change(struct hand *h)
{
	struct sheaf_save *save = begun(h, 3, SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK);

	hand_spoil(h, 1);
	coded(h, "copied", shf_save_copied(save, 0, -1, NULL));
	coded(h, "copied", shf_save_copied(save, 1, -1, NULL));
	coded(h, "wait", shf_save_wait(save, -1, NULL));
	committed(h, save, -1);
	coded(h, "wait", shf_save_wait(save, -1, NULL));
	shf_save_free(save);
	return 0;
}

TEST(a_slice_that_changed_is_named_with_its_number)
{
	struct play p = hands_play(disk_new(), 1, two);

	simdisk_set_task_steps(p.disk, 0);
	story(&p, change,
	      "0\ncopied 0\ncopied -14\nwait -14\n"
	      "-14: step 3: slice 1 (optimizer/b) was modified before sheaf_save_wait_copied "
	      "returned for it\nwait -14\n");
}

/* Rank 1 has not asked for its second slice; a commit that waits for nothing is called again. */
static int ask_again(struct hand *h)
{
	struct sheaf_save *save = begun(h, 3, SHEAF_SAVE_LAZY);

	coded(h, "copied", shf_save_copied(save, SHEAF_ALL_SLICES, 0, NULL));
	said(h, shf_save_exchange(save, 0, &h->err));
	coded(h, "copied", shf_save_copied(save, 0, -1, NULL));
	if (h->rank == 0)
		coded(h, "copied", shf_save_copied(save, 1, -1, NULL));
	coded(h, "copied", shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL));
	said(h, shf_save_exchange(save, 4096, &h->err));
	for (int i = 0; i < 6; i++)
		committed(h, save, i < 5 ? 0 : -1);
	shf_save_free(save);
	return 0;
}

TEST(a_commit_that_is_not_over_says_what_it_waits_for)
{
	struct play p = hands_play(disk_new(), 2, two);

	p.nodes = apart;
	simdisk_set_task_steps(p.disk, 0);
	story(&p, ask_again,
	      "0\ncopied -7\n-7: step 3: at least one rank is still copying; call again\ncopied "
	      "0\ncopied 0\ncopied 0\n-7: step 3: at least one rank is still copying; call "
	      "again\n-7: step 3: at least one rank is still writing; commit again\n-7: step 3: at "
	      "least one rank is still writing; commit again\n-7: step 3: it is being published; "
	      "commit again for the result\n-7: step 3: it is being published; commit again for "
	      "the result\n-7: step 3: it is being published; commit again for the result\n2 run: "
	      "step 3 committed, rank 1\n2 run: step 3 committed, rank 0\n0\n");
}

/* Two saves are in flight; the second cannot end before the first. */
static int advance(struct hand *h)
{
	struct sheaf_save *s[2] = { begun(h, 1, SHEAF_SAVE_LAZY), begun(h, 2, SHEAF_SAVE_LAZY) };
	int rc = SHEAF_EAGAIN;

	for (int i = 0; i < 2; i++)
		coded(h, "copied", shf_save_copied(s[i], SHEAF_ALL_SLICES, -1, NULL));
	for (int i = 0; i < 20; i++) /* until its own bytes have been sent */
		rc = shf_save_advance(s[1], 0, &h->err);
	said(h, rc);
	for (int i = 0; i < 2; i++) {
		do
			rc = shf_save_advance(s[i], 4096, &h->err);
		while (rc == SHEAF_EAGAIN);
		said(h, rc);
	}
	said(h, shf_save_advance(s[1], 0, &h->err));
	for (int i = 0; i < 2; i++)
		shf_save_free(s[i]);
	return 0;
}

TEST(an_advance_of_a_later_save_names_the_one_before_it)
{
	struct play p = hands_play(disk_new(), 2, two);

	p.nodes = apart;
	story(&p, advance,
	      "0\n0\ncopied 0\ncopied 0\n-7: step 2: step 1 was begun before it and is not "
	      "committed; advance or commit that one first\n2 run: step 1 committed, rank 0\n0\n2 "
	      "run: step 2 committed, rank 0\n0\n-1: step 2: the save has ended; free it\n2 run: "
	      "step 1 committed, rank 1\n2 run: step 2 committed, rank 1\n");
}

/* ---- steps that are in the way, and disks that are full ---- */

static int go_on_beside(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_save *save;

	for (int64_t n = 1; n < 4; n++) {
		save = begun(h, n, 0);
		committed(h, save, -1);
		shf_save_free(save);
	}
	said(h, shf_step_open(&step, h->run, 2, &h->err));
	said(h, shf_step_load(step, h->state, 0, NULL, &h->err));
	shf_step_put(step);
	(void)begun(h, 4, 0);
	said(h, shf_run_rewind(h->run, 2, &h->err));
	save = begun(h, 4, 0);
	committed(h, save, -1);
	shf_save_free(save);
	return 0;
}

TEST(a_save_beside_a_newer_step_is_told_to_rewind)
{
	struct play p = hands_play(disk_new(), 1, two);

	story(&p, go_on_beside,
	      "0\n2 run: step 1 committed, rank 0\n0\n0\n2 run: step 2 committed, rank 0\n0\n0\n"
	      "2 run: step 3 committed, rank 0\n0\n0\n0\n"
	      "-1: step 2 was loaded, but run has later steps up to 3; call sheaf_run_rewind, or "
	      "sheaf rewind, to save after an older step\n2 run: rewound to step 2, rank 0\n0\n0\n"
	      "2 run: step 4 committed, rank 0\n0\n");
}

static int save_one(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1, 0);

	if (save)
		committed(h, save, -1);
	shf_save_free(save);
	coded(h, "sys", h->err.sys);
	return 0;
}

TEST(a_disk_without_room_is_told_with_what_is_needed)
{
	struct play p = hands_play(disk_new(), 1, two);

	simdisk_set_space(p.disk, 64 * KIB);
	story(&p, save_one,
	      "-3: step 1: needs 74128 bytes, but run has 57344 free; free space there (pruned "
	      "steps stay in .sheaf/trash for opts.retention.grace_s seconds; with -1 they are "
	      "deleted at once)\nsys 28\n");
}

TEST(done_files_that_cannot_be_made_are_told_and_the_step_is_there)
{
	struct play p = hands_play(disk_new(), 1, two);

	p.opts.signal_dir = "done";
	CHECK_INT(simdisk_put(p.disk, "done", "a file", 6), 0);
	story(&p, save_one,
	      "0\n2 run: step 1 committed, rank 0\n"
	      "1 run: step 1 is committed, but its done files could not all be written to "
	      "opts.notify.signal_dir: done: Not a directory\n0\nsys 0\n");
}

static int closed(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1, 0);

	shf_run_close(h->run);
	h->run = NULL;
	committed(h, save, -1);
	coded(h, "wait", shf_save_wait(save, -1, NULL));
	said(h, shf_save_rc(save, &h->err));
	coded(h, "attach", shf_save_attach(save, "x", "y", 1, NULL));
	shf_save_free(save);
	return 0;
}

TEST(a_save_whose_run_was_closed_is_over)
{
	struct play p = hands_play(disk_new(), 1, two);

	story(&p, closed,
	      "0\n-1: step 1: the save has ended; free it\nwait -15\n"
	      "-15: the run was closed before the save was committed\nattach -1\n");
}
