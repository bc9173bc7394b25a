/* SPDX-License-Identifier: Apache-2.0 */
/* The no copy thread: what is saved is what memory held when the save began, although every tensor
 * changes as soon as it was asked for. A seed says how much the threads have copied when a slice is
 * asked for, in which order that happens, and what is copied, sent and written between.
 *
 *   test_lazy [--seeds FIRST..LAST] [part of a test's name ...]
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "hands.h"
#include "save_commit.h"
#include "save_gates.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"
#include "sheaf-stat.h"
#include "state.h"

#define main t_main
#include "rng.h"
#include "t.h"
#undef main

enum { KIB = 1 << 10, MIB = 1 << 20, STEPS = 5 };
static uint64_t seeds_first = 1, seeds_last = T_SANITIZED ? 15 : 30;
static const struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
static const struct sheaf_save_opts checked = { .size = sizeof(checked),
	.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK };
static const int32_t two_nodes[4] = { 1, 2, 1, 2 };

/* ---- what ranks hold: rows, columns that interleave, replicas, pieces, turned and converted
 * memory, nothing ---- */

static void mixture(struct hand *h)
{
	struct sheaf_slice *s;

	hand_cut(hand_add(h, "model", "rows", SHEAF_F32, 2, 64, 256), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "model", "columns", SHEAF_F32, 2, 96, 256), 1, h->rank, h->ranks);
	hand_add(h, "model", "replica", SHEAF_BF16, 2, 33, 129);
	s = hand_add(h, "optimizer", "turned", SHEAF_F32, 2, 48, 80);
	s->stride[0] = 1;
	s->stride[1] = 48;
	s = hand_add(h, "optimizer", "converted", SHEAF_BF16, 1, 4000);
	s->data_dtype = SHEAF_F32;
	hand_cut(s, 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "few", SHEAF_F32, 1, 3), 0, h->rank, h->ranks);
	hand_add(h, "master_weights", "scalar", SHEAF_F64, 0);
}

/* Tensors of several pieces. */
static void large(struct hand *h)
{
	hand_cut(hand_add(h, "model", "long", SHEAF_F32, 1, 3 * MIB / 2), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "model", "wide", SHEAF_BF16, 2, 2, MIB), 1, h->rank, h->ranks);
}

/* Of one rank alone, or of nobody. */
static void lonely(struct hand *h)
{
	if (h->rank == 1)
		hand_add(h, "model", "alone", SHEAF_F32, 2, 64, 257);
}

static void nothing(struct hand *h)
{
	(void)h;
}

static uint8_t *block_of(struct hand *h, int slice, size_t *bytes)
{
	const uint8_t *data = h->s[slice].data;

	for (int i = 0; i < h->blocks_n; i++)
		if (data >= h->blocks[i] && data < h->blocks[i] + h->blocks_bytes[i]) {
			*bytes = h->blocks_bytes[i];
			return h->blocks[i];
		}
	*bytes = 0;
	return NULL;
}

/* A step's values are those of all steps, turned by it; converted memory keeps small integers. */
static void turn(struct hand *h, int slice, int64_t step, bool back)
{
	size_t n;
	uint8_t *p = block_of(h, slice, &n), by = (uint8_t)(17 * (step % 8 + 1));

	if (h->s[slice].data_dtype && h->s[slice].data_dtype != h->s[slice].dtype)
		return;
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(back ? p[i] - by : p[i] + by);
}

static void paint_step(struct hand *h, int64_t step)
{
	hand_paint(h);
	for (int i = 0; i < h->n; i++)
		turn(h, i, step, false);
}

static void spoil(struct hand *h, int slice)
{
	size_t n;
	uint8_t *p = block_of(h, slice, &n);

	if (p)
		memset(p, 0x5A, n);
}

static int gate(struct hand *h, struct sheaf_save *save, int slice)
{
	int rc = shf_save_copied(save, slice, -1, NULL);

	spoil(h, slice);
	return rc;
}

/* All slices, in any order; each changes when it was asked for. */
static int gates(struct hand *h, struct sheaf_save *save, uint64_t *x)
{
	int order[HAND_SLICES], rc = 0;

	for (int i = 0; i < h->n; i++)
		order[i] = i;
	for (int i = h->n; i-- > 1;) {
		int k = (int)(rng_next(x) % (uint64_t)(i + 1)), t = order[k];

		order[k] = order[i];
		order[i] = t;
	}
	for (int i = 0; i < h->n && rc == 0; i++) {
		if (rng_next(x) % 4 == 0 && shf_save_copied(save, order[i], 0, NULL) == 0)
			spoil(h, order[i]);
		rc = gate(h, save, order[i]);
	}
	return rc;
}

static int fail_here(struct hand *h, const char *what)
{
	return shf_fail(&h->err, SHEAF_EBUG, "%s", what);
}

/* Is step n what memory held? Loaded into all of it. */
static int look(struct hand *h, int64_t n)
{
	struct sheaf_checkpoint *step = NULL;
	int rc;

	hand_fill(h, 0x33);
	rc = shf_step_open(&step, h->run, n, &h->err);
	if (rc == 0)
		rc = shf_step_load(step, h->state, SHEAF_LOAD_CONVERT, NULL, &h->err);
	shf_step_put(step);
	for (int i = 0; i < h->n && rc == 0; i++)
		turn(h, i, n, true);
	if (rc == 0 && hand_wrong(h, h->err.msg, sizeof(h->err.msg)))
		rc = SHEAF_EBUG;
	return rc;
}

/* A loop that saves every step: the save before is committed when this one's gates are passed, or
 * this one begins while that one flies. What all ranks must do alike is drawn from the seed alone,
 * the rest from the rank too. */
static int train(struct hand *h)
{
	uint64_t all = h->play->seed * 77 + 1, own = all * 31 + (uint64_t)h->rank;
	struct sheaf_save *before = NULL, *now = NULL;
	int rc = 0;

	for (int64_t n = 0; n < STEPS && rc == 0; n++) {
		uint64_t x = rng_next(&all);

		paint_step(h, n);
		now = NULL;
		rc = shf_save_begin(&now, h->run, n, h->state, &lazy, &h->err);
		if (rc == 0 && before && x & 1)
			rc = shf_save_commit(before, -1, &h->err);
		if (rc == 0 && x & 2) {
			int moved = shf_save_exchange(now, x & 4 ? 0 : 4096, &h->err);

			rc = moved == SHEAF_EAGAIN ? 0 : moved;
		}
		if (rc == 0)
			rc = gates(h, now, &own);
		if (rc == 0 && rng_next(&own) % 3 == 0 && shf_save_wait(now, 0, NULL) < 0)
			rc = 0;
		if (rc == 0 && before && !(x & 1))
			rc = shf_save_commit(before, -1, &h->err);
		shf_save_free(before);
		before = now;
	}
	while (rc == 0 && (rc = shf_save_commit(before, 0, &h->err)) == SHEAF_EAGAIN)
		rc = 0;
	shf_save_free(before);
	for (int64_t n = 0; n < STEPS && rc == 0; n++)
		rc = look(h, n);
	return rc;
}

/* Each seed once; false, with the words, where one goes wrong. */
static void each_seed(const char *what, void (*hold)(struct hand *), const int32_t *nodes,
                      struct shf_opts more, uint64_t last)
{
	uint64_t bad = 0, n = 0;

	for (uint64_t seed = seeds_first; seed <= last && bad < 3; seed++, n++) {
		struct simdisk *disk = simdisk_new(seed, SIMDISK_STRICT);
		struct play p = hands_play(disk, nodes ? 4 : 1 + (int)(seed % 4), hold);

		p.seed = seed;
		p.nodes = nodes;
		p.opts.flags |= more.flags;
		p.opts.images_max = more.images_max;
		p.opts.copy_threads = more.copy_threads;
		p.opts.staging_bytes_max = more.staging_bytes_max;
		if (hands_run(&p, train, false) != 0) {
			print_error("%s, seed %llu: %d %s (test_lazy --seeds %llu..%llu)\n", what,
			            (unsigned long long)seed, p.rc, p.err.msg,
			            (unsigned long long)seed, (unsigned long long)seed);
			bad++;
		}
		simdisk_free(disk);
	}
	printf("# %s: %llu seeds from %llu, %d steps each\n", what, (unsigned long long)n,
	       (unsigned long long)seeds_first, (int)STEPS);
	CHECK_INT(bad, 0);
}

TEST(a_tensor_may_change_when_it_was_asked_for)
{
	each_seed("one node", mixture, NULL, (struct shf_opts){ 0 }, seeds_last);
}

TEST(a_tensor_may_change_when_it_was_asked_for_on_two_nodes)
{
	each_seed("two nodes", mixture, two_nodes,
	          (struct shf_opts){ .flags = SHEAF_RUN_REPLICAS },
	          seeds_last);
	each_seed("two nodes, three images", mixture, two_nodes,
	          (struct shf_opts){ .images_max = 3, .copy_threads = 2 }, seeds_last / 4);
}

TEST(a_tensor_of_many_pieces_may_change_when_it_was_asked_for)
{
	each_seed("pieces", large, NULL, (struct shf_opts){ .images_max = 1 },
	          seeds_first + seeds_last / 15 - 1);
}

TEST(ranks_that_hold_little_or_nothing_save_behind_too)
{
	each_seed("one rank's", lonely, two_nodes, (struct shf_opts){ 0 }, seeds_first + 3);
	each_seed("nobody's", nothing, NULL, (struct shf_opts){ 0 }, seeds_first + 3);
}

/* ---- what a begin costs ---- */

static atomic_int operations;           /* of rank 0 */
static struct sheaf_group_ops group_ops;

static int count_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			   struct sheaf_error *err)
{
	operations++;
	return group_ops.allgather(arg, mine, all, bytes, timeout_ms, err);
}

static int count_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                           const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	operations++;
	return group_ops.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);
}

static int count_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			   struct sheaf_error *err)
{
	operations++;
	return group_ops.allreduce(arg, x, n, op, timeout_ms, err);
}

static void count(struct hand *h)
{
	if (h->rank != 0)
		return;
	group_ops = h->group->ops;
	h->group->ops.allgather = count_allgather;
	h->group->ops.alltoallv = count_alltoallv;
	h->group->ops.allreduce = count_allreduce;
}

/* From the third step on: images, plan and order are known then. */
static int begin_often(struct hand *h)
{
	struct sheaf_save *save = NULL, *before = NULL;
	int rc = 0;

	for (int64_t n = 0; n < 8 && rc == 0; n++) {
		size_t calls = simdisk_calls(h->play->disk);
		int ops = operations;

		paint_step(h, n);
		rc = shf_save_begin(&save, h->run, n, h->state, &lazy, &h->err);
		if (rc == 0 && n > 1 && h->rank == 0 && operations != ops + 1)
			rc = fail_here(h, "a begin of more than one operation");
		for (; rc == 0 && n > 1 && calls < simdisk_calls(h->play->disk); calls++) {
			const char *call = simdisk_call_text(h->play->disk, calls);

			if (strstr(call, "open(") || strstr(call, "mkdir(") ||
			    strstr(call, "shm_new("))
				rc = shf_fail(&h->err, SHEAF_EBUG, "a begin does %s", call);
		}
		for (int i = 0; i < h->n && rc == 0; i++)
			rc = gate(h, save, i);
		if (rc == 0 && before)
			rc = shf_save_commit(before, -1, &h->err);
		shf_save_free(before);
		before = save;
	}
	if (rc == 0)
		rc = shf_save_commit(before, -1, &h->err);
	shf_save_free(before);
	for (int64_t n = 0; n < 8 && rc == 0; n++)
		rc = look(h, n);
	return rc;
}

TEST(a_begin_is_one_agreement_and_opens_nothing)
{
	for (int nodes = 0; nodes < 2; nodes++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 4, mixture);

		operations = 0;
		p.nodes = nodes ? two_nodes : NULL;
		p.tamper = count;
		CHECK_RC(hands_run(&p, begin_often, false), 0, &p.err);
		CHECK(operations > 8);
		simdisk_free(disk);
	}
}

/* ---- what is refused, and what is found ---- */

/* Rank 1 asks for all but one slice. A commit that waits copies it; one that does not may say that
 * it is not copied. */
static int forget_one(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc;

	paint_step(h, 3);
	rc = shf_save_begin(&save, h->run, 3, h->state, &lazy, &h->err);
	for (int i = 0; i < h->n && rc == 0; i++)
		if (h->rank != 1 || i != 1)
			rc = gate(h, save, i);
	if (rc == 0 && h->play->variant) { /* all is copied, and still not asked for */
		(void)shf_save_wait(save, -1, NULL);
		rc = shf_save_exchange(save, 0, &h->err);
	}
	if (rc == 0)
		rc = shf_save_commit(save, 0, &h->err);
	if (rc == SHEAF_EAGAIN)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc == 0 ? look(h, 3) : rc;
}

TEST(a_slice_that_nobody_asked_for_is_copied_by_the_commit)
{
	static const uint64_t staging[] = { 0, 2 * 64 * KIB };

	for (int i = 0; i < 4; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 3, mixture);

		p.variant = i / 2;
		p.opts.staging_bytes_max = staging[i % 2];
		CHECK_RC(hands_run(&p, forget_one, false), 0, &p.err);
		simdisk_free(disk);
	}
}

/* One tensor changes on one rank before it is asked for, after it was copied or before. */
static int change_early(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int which = h->play->variant, rc, commit;
	size_t n;

	paint_step(h, 3);
	rc = shf_save_begin(&save, h->run, 3, h->state, &checked, &h->err);
	if (rc == 0 && h->rank == 1 && which >= 0) {
		(void)shf_save_wait(save, -1, NULL);
		block_of(h, which, &n)[3] ^= 1;
	}
	for (int i = 0; i < h->n && rc == 0; i++) {
		rc = gate(h, save, i);
		if (rc < 0 && rc != SHEAF_EDIVERGED)
			return rc;
		rc = 0;
	}
	if (rc == 0) {
		commit = shf_save_commit(save, -1, &h->err);
		rc = which < 0 || commit != SHEAF_EDIVERGED ? commit : 0;
		if (rc == 0 && which >= 0 && !strstr(h->err.msg, h->s[which].name))
			rc = fail_here(h, h->err.msg);
		if (rc == 0 && which >= 0 && commit == 0)
			rc = fail_here(h, "it was committed");
	}
	shf_save_free(save);
	return rc;
}

TEST(a_tensor_that_changes_before_its_gate_is_named)
{
	static const int some[] = { -1, 0, 1, 4 };      /* replicas: rank 0 may copy them */

	for (int i = 0; i < 4; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, mixture);
		int which = some[i];

		p.variant = which;
		simdisk_set_task_steps(disk, which % 2 ? 100 : 0);
		CHECK_RC(hands_run(&p, change_early, false), 0, &p.err);
		CHECK(simdisk_exists(disk, "run/checkpoint-3") == (which < 0));
		simdisk_free(disk);
	}
}

/* One tensor changes as soon as begin has returned, or it was put: nothing is copied yet, and the
 * step would have the other values. BACK: at its gate it is as it was, not as it was copied. */
enum { AT_ONCE, LATER, BACK, CHANGES };

static int change_at_once(struct hand *h)
{
	int how = h->play->variant, which = how == BACK;
	struct sheaf_save_opts opts = checked;
	struct sheaf_save *save = NULL;
	int rc, named = 0;
	size_t n;

	if (how == LATER)
		opts.flags |= SHEAF_SAVE_LATER;
	paint_step(h, 3);
	rc = shf_save_begin(&save, h->run, 3, h->state, &opts, &h->err);
	for (int i = 0; i < h->n && rc == 0 && how == LATER; i++)
		rc = shf_save_put(save, i, NULL, NULL);
	if (h->rank == 1)
		block_of(h, which, &n)[3] ^= 1;
	if (rc == 0 && how == BACK)
		(void)shf_save_wait(save, -1, NULL);  /* it copies all */
	if (h->rank == 1 && how == BACK)
		block_of(h, which, &n)[3] ^= 1;
	for (int i = 0; i < h->n && rc == 0; i++) {
		rc = gate(h, save, i);
		named += rc == SHEAF_EDIVERGED;
		rc = rc == SHEAF_EDIVERGED ? 0 : rc;
	}
	if (rc == 0 && (named > 0) != (h->rank == 1))
		rc = fail_here(h, "a gate that tells of no change, or of one elsewhere");
	if (rc == 0 && (shf_save_commit(save, -1, &h->err) != SHEAF_EDIVERGED ||
	                !strstr(h->err.msg, h->s[which].name)))
		rc = fail_here(h, "it was committed");
	shf_save_free(save);
	return rc;
}

TEST(a_tensor_that_changes_before_it_is_copied_is_named)
{
	for (int how = 0; how < CHANGES; how++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, mixture);

		p.variant = how;
		simdisk_set_task_steps(disk, how == BACK ? 100 : 0);
		CHECK_RC(hands_run(&p, change_at_once, false), 0, &p.err);
		CHECK(!simdisk_exists(disk, "run/checkpoint-3"));
		simdisk_free(disk);
	}
}

/* Memory that is still to be copied is neither given away nor loaded into. */
static int use_early(struct hand *h)
{
	struct sheaf_save *save = NULL;
	struct sheaf_checkpoint *step = NULL;
	int rc;

	paint_step(h, 3);
	rc = shf_save_begin(&save, h->run, 3, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	save = NULL;
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 4, h->state, &lazy, &h->err);
	if (rc == 0)
		rc = shf_step_open(&step, h->run, 3, &h->err);
	if (rc == 0 && shf_step_load(step, h->state, 0, NULL, &h->err) != SHEAF_EINVAL)
		rc = fail_here(h, "loaded over what is not copied");
	for (int i = 0; i < h->n && rc == 0; i++) {
		rc = gate(h, save, i);
		if (rc == 0 && shf_state_move(h->state, i, h->s[i].data, NULL) != 0)
			rc = fail_here(h, "a copied slice does not move");
	}
	if (rc == 0)
		rc = shf_step_load(step, h->state, SHEAF_LOAD_CONVERT, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_step_put(step);
	shf_save_free(save);
	save = NULL;
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 5, h->state, &lazy, &h->err);
	if (rc == 0 && shf_state_move(h->state, 0, h->s[0].data, NULL) != SHEAF_EINVAL)
		rc = fail_here(h, "a slice that is not copied moves");
	shf_save_free(save);
	return rc;
}

TEST(memory_that_is_not_copied_is_not_moved_and_not_loaded_into)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, mixture);

	p.opts.images_max = 2;
	simdisk_set_task_steps(disk, 0);
	CHECK_RC(hands_run(&p, use_early, false), 0, &p.err);
	simdisk_free(disk);
}

/* Too early once; then at the right time. */
static int move_twice(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc;

	paint_step(h, 3);
	rc = shf_save_begin(&save, h->run, 3, h->state, &lazy, &h->err);
	for (int i = 0; i < 2 && rc == 0; i++)
		if (shf_state_move(h->state, 0, h->s[0].data, NULL) != SHEAF_EINVAL ||
		    shf_state_move(h->state, 1, h->s[1].data, NULL) != SHEAF_EINVAL)
			rc = fail_here(h, "a slice that is not copied moves");
	for (int i = 0; i < h->n && rc == 0; i++)
		rc = shf_save_copied(save, i, -1, NULL);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	save = NULL;
	for (int i = 0; i < 2 && rc == 0; i++) {
		if (shf_save_begin(&save, h->run, 4, h->state, &lazy, &h->err) != SHEAF_EINVAL ||
		    !strstr(h->err.msg, i ? "model/columns" : "model/rows"))
			rc = fail_here(h, "it is saved from where it should not be any more");
		if (rc == 0)
			rc = shf_state_move(h->state, i, h->s[i].data, NULL);
	}
	paint_step(h, 4);
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 4, h->state, &lazy, &h->err);
	for (int i = 0; i < h->n && rc == 0; i++)
		rc = gate(h, save, i);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc == 0 ? look(h, 4) : rc;
}

TEST(a_slice_that_was_moved_too_early_may_be_moved_again)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, mixture);

	p.opts.images_max = 2;
	simdisk_set_task_steps(disk, 0);
	CHECK_RC(hands_run(&p, move_twice, false), 0, &p.err);
	simdisk_free(disk);
}

static int plain_flags(struct hand *h)
{
	struct sheaf_save_opts alone = { .size = sizeof(alone), .flags = SHEAF_SAVE_CHECK };
	struct sheaf_save *save = NULL;
	int rc = 0;

	if (shf_save_begin(&save, h->run, 3, h->state, &alone, &h->err) != SHEAF_EINVAL)
		return fail_here(h, "CHECK without LAZY");
	if (shf_save_begin(&save, h->run, 3, h->state, h->rank ? &lazy : NULL, &h->err) !=
	    SHEAF_EINVAL)
		return fail_here(h, "lazy on one rank alone");
	rc = shf_save_begin(&save, h->run, 3, h->state, NULL, &h->err);
	for (int i = 0; i < h->n && rc == 0; i++)
		rc = shf_save_copied(save, i, 0, NULL);
	if (rc == 0 && (shf_save_copied(save, -1, 0, NULL) != SHEAF_EINVAL ||
	                shf_save_copied(save, h->n, 0, NULL) != SHEAF_EINVAL))
		rc = fail_here(h, "a slice that is none");
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_plain_save_is_copied_and_checks_need_a_lazy_one)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, mixture);

	CHECK_RC(hands_run(&p, plain_flags, true), 0, &p.err);
	simdisk_free(disk);
}

/* ---- no thread, no room, no image ---- */

static atomic_int told;

static void without_tasks(struct hand *h)
{
	if (h->rank == 0)
		simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = 1, .error = EAGAIN,
			.always = true, .kind = SIMDISK_TASK_NEW, .process = &h->used });
}

static void hear(void *arg, int level, const char *line)
{
	(void)arg;
	told += level == 1 && (strstr(line, "no copy thread") || strstr(line,
	                              "copied synchronously"));
}

TEST(without_a_thread_who_asks_copies)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 3, mixture);

	told = 0;
	p.tamper = without_tasks;
	p.opts.log = hear;
	CHECK_RC(hands_run(&p, train, false), 0, &p.err);
	CHECK_INT(simdisk_fired(disk), STEPS + 1); /* one save is asked after, and published so */
	CHECK_INT(told, STEPS);
	simdisk_free(disk);
}

/* 0: asks with commits, 1: with exchanges. */
static int ask_alone(struct hand *h)
{
	static const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };
	struct sheaf_save *save = NULL;
	int rc = shf_state_ema(h->state, NULL, &ema, NULL);

	rc = rc ? rc : shf_save_begin(&save, h->run, 3, h->state, &lazy, &h->err);
	for (int k = 0; k < h->n && rc == 0; k++)
		rc = shf_save_copied(save, k, -1, NULL);
	for (int i = 0; i < 100 && (i == 0 || rc == SHEAF_EAGAIN); i++)
		rc = h->play->variant ? shf_save_exchange(save, 0, &h->err)
		                      : shf_save_commit(save, 0, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(without_a_thread_who_only_asks_comes_to_the_end)
{
	for (int i = 0; i < 2; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 3, mixture);

		p.variant = i;
		p.tamper = without_tasks;
		CHECK_RC(hands_run(&p, ask_alone, true), 0, &p.err);
		CHECK(simdisk_exists(disk, "run/checkpoint-3") == (i == 0));
		simdisk_free(disk);
	}
}

static int all_at_once(struct hand *h)
{
	struct sheaf_stat stat;
	struct sheaf_save *save = NULL;
	int rc;

	paint_step(h, 3);
	rc = shf_save_begin(&save, h->run, 3, h->state, &lazy, &h->err);
	hand_fill(h, 0x77);
	if (rc == 0) {
		shf_save_stat(save, &stat);
		if (!stat.at_once || stat.phase == 0)
			rc = fail_here(h, "it is not said");
	}
	for (int i = 0; i < h->n && rc == 0; i++)
		rc = shf_save_copied(save, i, 0, NULL);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc == 0 ? look(h, 3) : rc;
}

TEST(where_the_staging_is_small_begin_copies_and_says_so)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, mixture);

	told = 0;
	p.opts.log = hear;
	p.opts.staging_bytes_max = 2 * 64 * KIB;
	CHECK_RC(hands_run(&p, all_at_once, false), 0, &p.err);
	CHECK_INT(told, 2);
	simdisk_free(disk);
}

/* Two fly, nobody asked for anything: the third is dropped, or copies the first and waits. */
static int one_too_many(struct hand *h)
{
	struct sheaf_save_opts drop = { .size = sizeof(drop),
		.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_MAY_DROP };
	struct sheaf_save *s[3] = { NULL };
	struct sheaf_stat stat;
	uint64_t x = 5;
	int rc = 0;

	paint_step(h, 0);
	for (int i = 0; i < 2 && rc == 0; i++)
		rc = shf_save_begin(&s[i], h->run, 8 * i, h->state, &lazy, &h->err);
	if (rc == 0 &&
	    shf_save_begin(&s[2], h->run, 16, h->state, &drop, &h->err) != SHEAF_EAGAIN)
		rc = fail_here(h, "not dropped");
	if (rc == 0)
		rc = shf_save_begin(&s[2], h->run, 16, h->state, &lazy, &h->err);
	if (rc == 0 && (shf_save_gates_reads_some(s[0]) || !shf_save_gates_reads_some(s[1])))
		rc = fail_here(h, "the oldest was not copied, or more than that");
	if (rc == 0) {
		shf_save_stat(s[2], &stat);
		if (stat.buffers_busy != 2)
			rc = fail_here(h, "images are counted wrong");
	}
	/* The memory is that of all three: each is asked before it changes. */
	for (int i = 0; i < h->n && rc == 0; i++)
		for (int k = 2; k >= 0 && rc == 0; k--)
			rc = shf_save_copied(s[k], i, -1, NULL);
	if (rc == 0)
		rc = gates(h, s[2], &x);
	for (int i = 0; i < 3 && rc == 0; i++)
		rc = shf_save_commit(s[i], -1, &h->err);
	for (int i = 0; i < 3; i++)
		shf_save_free(s[i]);
	for (int i = 0; i < 3 && rc == 0; i++)
		rc = look(h, 8 * i);
	return rc;
}

TEST(who_begins_one_too_many_copies_the_oldest_or_is_dropped)
{
	for (int nodes = 0; nodes < 2; nodes++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 4, mixture);

		p.nodes = nodes ? two_nodes : NULL;
		simdisk_set_task_steps(disk, 0);
		CHECK_RC(hands_run(&p, one_too_many, false), 0, &p.err);
		simdisk_free(disk);
	}
}

/* ---- what goes wrong ---- */

/* The first save ends badly while it is copied, in one of these ways; the one after it is good. */
enum { FREED, FAILED, CLOSED, WAYS };

static int end_badly(struct hand *h)
{
	struct sheaf_save *save = NULL;
	uint64_t x = 9 + (uint64_t)h->rank;
	int how = h->play->variant % WAYS, rc;

	paint_step(h, 3);
	rc = shf_save_begin(&save, h->run, 3, h->state, &lazy, &h->err);
	for (int i = 0; rc == 0 && h->play->variant >= WAYS && i < 4; i++)
		rc = gate(h, save, (int)(rng_next(&x) % (uint64_t)h->n));
	if (rc == 0 && how == FAILED) {
		if (h->rank == 1)
			(void)shf_save_fail(save, "the trainer has an exception", NULL);
		if (h->rank == 1 && shf_save_copied(save, 0, -1, NULL) != SHEAF_EFAILED &&
		    h->play->variant < WAYS)
			rc = fail_here(h, "the gate of a save that was given up");
		if (rc == 0 && shf_save_commit(save, -1, &h->err) != SHEAF_EFAILED)
			rc = fail_here(h, "committed");
	}
	if (how == CLOSED) {
		shf_run_close(h->run);
		h->run = NULL;
		if (rc == 0 && shf_save_commit(save, -1, &h->err) >= 0)
			rc = fail_here(h, "committed");
		shf_save_free(save);
		return rc;
	}
	shf_save_free(save);
	save = NULL;
	paint_step(h, 4);
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 4, h->state, &lazy, &h->err);
	if (rc == 0)
		rc = gates(h, save, &x);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc == 0 ? look(h, 4) : rc;
}

TEST(a_save_that_ends_while_it_is_copied_is_no_other_ones)
{
	for (int i = 0; i < 20 * 2 * WAYS; i += T_FEWER) {
		struct simdisk *disk = simdisk_new((uint64_t)i, SIMDISK_STRICT);
		struct play p = hands_play(disk, 4, mixture);

		p.seed = (uint64_t)i + 1;
		p.nodes = i % 3 == 0 ? two_nodes : NULL;
		p.variant = i % (2 * WAYS);
		p.opts.images_max = 1;
		CHECK_RC(hands_run(&p, end_badly, false), 0, &p.err);
		CHECK(!simdisk_exists(disk, "run/checkpoint-3"));
		simdisk_free(disk);
	}
}

/* Given up on one rank; the next one takes its image, and whoever still asks for the first is told
 * so. */
static int take_from_the_failed(struct hand *h)
{
	struct sheaf_save *first = NULL, *next = NULL;
	uint64_t x = 9 + (uint64_t)h->rank;
	int rc;

	paint_step(h, 3);
	rc = shf_save_begin(&first, h->run, 3, h->state, &lazy, &h->err);
	if (rc == 0 && h->rank == 1)
		(void)shf_save_fail(first, "the trainer has an exception", NULL);
	paint_step(h, 4);
	if (rc == 0)
		rc = shf_save_begin(&next, h->run, 4, h->state, &lazy, &h->err);
	if (rc == 0 && shf_save_wait(first, -1, NULL) != SHEAF_EFAILED)
		rc = fail_here(h, "it is waited for");
	for (int i = 0; i < h->n && rc == 0; i++)
		if (shf_save_copied(first, i, -1, NULL) == SHEAF_EAGAIN)
			rc = fail_here(h, "a gate is shut");
	if (rc == 0)
		rc = gates(h, next, &x);
	if (rc == 0 && shf_save_commit(first, -1, &h->err) != SHEAF_EFAILED)
		rc = fail_here(h, "committed");
	if (rc == 0 && !strstr(h->err.msg, "the trainer has an exception"))
		rc = fail_here(h, h->err.msg);
	if (rc == 0)
		rc = shf_save_commit(next, -1, &h->err);
	shf_save_free(first);
	shf_save_free(next);
	return rc == 0 ? look(h, 4) : rc;
}

TEST(the_image_of_a_save_that_was_given_up_goes_to_the_next)
{
	for (int i = 0; i < 24; i += T_FEWER) {
		struct simdisk *disk = simdisk_new((uint64_t)i, SIMDISK_STRICT);
		struct play p = hands_play(disk, 4, mixture);

		p.seed = (uint64_t)i + 1;
		p.nodes = i % 2 ? two_nodes : NULL;
		p.opts.images_max = 1;
		simdisk_set_task_steps(disk, i % 3 - 1);
		CHECK_RC(hands_run(&p, take_from_the_failed, false), 0, &p.err);
		CHECK(!simdisk_exists(disk, "run/checkpoint-3"));
		simdisk_free(disk);
	}
}

int main(int argc, char **argv)
{
	char *rest[64];
	int n = 0;

	for (int i = 0; i < argc && n < 63; i++) {
		unsigned long long first, last;

		if (i + 1 < argc && strcmp(argv[i], "--seeds") == 0 &&
		    sscanf(argv[i + 1], "%llu..%llu", &first, &last) == 2) {
			seeds_first = first;
			seeds_last = last;
			i++;
		} else {
			rest[n++] = argv[i];
		}
	}
	return t_main(n, rest);
}
