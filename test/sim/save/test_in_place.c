/* SPDX-License-Identifier: Apache-2.0 */
/* Slices that are not staged: the files are the same, the image is small whatever the state is, and
 * a gate opens when their bytes have left. */
#include <errno.h>
#include <stdlib.h>
#include "hands.h"
#include "t.h"
#include "save_commit.h"
#include "save_gates.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"
#include "save_where.h"
#include "state.h"
#include "work.h"

static const struct sheaf_save_opts lazily = { .size = sizeof(lazily), .flags = SHEAF_SAVE_LAZY };
static const struct sheaf_save_opts checked = { .size = sizeof(checked),
	.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK };

enum { STAGED, IN_PLACE, LAZY, WAYS };
enum { FILES = 8, MIB = 1 << 20, ROWS = T_SANITIZED ? 256 : 512 };

/* Weights that are staged, and optimizer state of many files, whose tensors ranks share, hold
 * alone, turned and converted. */
static void hold(struct hand *h)
{
	char name[16];
	struct sheaf_slice *s;

	hand_cut(hand_add(h, "model", "rows", SHEAF_BF16, 2, ROWS, 256), 0, h->rank, h->ranks);
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		s = hand_add(h, "optimizer", hand_text(h, name, ".exp_avg"), SHEAF_F32, 2, ROWS,
		             256);
		if (i % 3 == 0)
			hand_cut(s, 1, h->rank, h->ranks);
		else
			hand_cut(s, 0, (h->rank + i) % h->ranks, h->ranks);
		if (i % 5 == 1) {
			s->stride[0] = 1;
			s->stride[1] = s->count[0];
		}
		if (i % 5 == 2)
			s->data_dtype = SHEAF_F64;
	}
	hand_cut(hand_add(h, "master_weights", "rows", SHEAF_F32, 1, 600 * ROWS), 0, h->rank,
	         h->ranks);
	for (int i = 1; i < h->n; i++)
		h->s[i].flags |= h->play->variant == STAGED ? 0 : SHEAF_SLICE_IN_PLACE;
}

/* From the last slice on, which is copied last. */
static int pass_gates(struct hand *h, struct sheaf_save *save)
{
	int rc = 0;

	for (int i = h->n; rc == 0 && i-- > 0; ) {
		if (i % 2 && shf_save_copied(save, i, 0, NULL) == 0)
			hand_spoil(h, i);
		rc = shf_save_copied(save, i, i % 4 ? -1 : 1000000, NULL);
		if (rc == 0)
			hand_spoil(h, i);
	}
	return rc;
}

static int save_one(struct hand *h)
{
	const struct sheaf_save_opts *o = h->play->variant == LAZY ? &lazily : NULL;
	struct sheaf_save *save = NULL;
	int rc = 0;

	for (int64_t n = 1; rc == 0 && n < 3; n++) {
		hand_paint(h);
		rc = shf_save_begin(&save, h->run, n, h->state, o, &h->err);
		if (rc == 0 && !o)
			hand_fill(h, 0x5A);
		if (rc == 0 && o)
			(void)pass_gates(h, save); /* what fails is told by the commit */
		if (rc == 0)
			rc = shf_save_commit(save, -1, &h->err);
		shf_save_free(save);
		save = NULL;
	}
	return rc;
}

static struct play play_of(struct simdisk *disk, int ranks, int way, int64_t step)
{
	struct play p = hands_play(disk, ranks, hold);

	p.variant = way;
	p.step = step;
	p.opts.file_bytes_max = ROWS << 10;
	return p;
}

TEST(the_files_are_those_of_a_state_that_is_staged)
{
	static const int32_t nodes[4] = { 1, 2, 1, 2 };

	for (int i = 0; i < 5; i += T_FEWER > 1 ? 3 : 1) {
		uint64_t hash[WAYS];
		int ranks = i < 3 ? 1 << i : 4;

		for (int way = STAGED; way < WAYS; way++) {
			struct simdisk *disk = disk_new();
			struct play p = play_of(disk, ranks, way, 2);

			p.nodes = i == 3 ? nodes : NULL;
			/* What is staged goes in rounds. */
			p.opts.staging_bytes_max = i == 4 ? 128 << 10 : 0;
			CHECK_RC(hands_run(&p, save_one, true), 0, &p.err);
			hash[way] = hands_hash(disk, "run/checkpoint-2");
			CHECK(hands_hash(disk, "run/checkpoint-1") == hash[way]);
			LOADED(p);
			simdisk_free(disk);
		}
		CHECK(hash[IN_PLACE] == hash[STAGED]);
		CHECK(hash[LAZY] == hash[STAGED]);
	}
}

/* ---- what is staged ---- */

static int image_is_small(struct hand *h)
{
	struct sheaf_save *save = NULL;
	const struct shf_work *w;
	struct shf_span slotted;
	int rc = shf_save_begin(&save, h->run, 1, h->state, &lazily, &h->err);

	if (rc == 0) {
		w = &save->plan->work;
		slotted = shf_unstaged_segs(w);
		/* All but the model's. */
		if (slotted.end - slotted.first <= SHF_UNSTAGED_SLOTS ||
		    w->segs_n - slotted.end != 0)
			rc = shf_fail(&h->err, SHEAF_EBUG, "%zu segments in slots of %zu",
			              slotted.end - slotted.first, w->segs_n);
		for (size_t i = 0; i < slotted.first; i++) /* headers alone are */
			if (w->segs[i].moves_n > 0 &&
			    strstr(save->plan->layout.files[w->segs[i].file].name, "optim"))
				rc = shf_fail(&h->err, SHEAF_EBUG, "a segment is staged");
		if (w->slots != SHF_UNSTAGED_SLOTS || w->slots_at > MIB ||
		    w->slot_bytes > 2 * MIB)
			rc = shf_fail(&h->err, SHEAF_EBUG, "%u slots, an image of %llu", w->slots,
			              (unsigned long long)w->image_bytes);
	}
	rc = rc ? rc : pass_gates(h, save);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(an_image_is_as_large_as_its_slots)
{
	struct simdisk *disk = disk_new();
	struct play p = play_of(disk, 1, IN_PLACE, 1);

	CHECK_RC(hands_run(&p, image_is_small, true), 0, &p.err);
	LOADED(p);
	simdisk_free(disk);
}

/* The first segments of all files come before the second ones, and so on. */
static int files_take_turns(struct hand *h)
{
	uint32_t turn[64] = { 0 }, last = 0;
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, NULL, &h->err);
	const struct shf_work *w = rc == 0 ? &save->plan->work : NULL;

	if (rc == 0 && save->plan->layout.files_n > 64)
		rc = shf_fail(&h->err, SHEAF_EBUG, "%zu files", save->plan->layout.files_n);
	for (size_t i = 0; rc == 0 && i < w->segs_n; i++) {
		uint32_t now = turn[w->segs[i].file]++;

		if (now < last || (now == last && i > 0 && w->segs[i].file <= w->segs[i - 1].file))
			rc = shf_fail(&h->err, SHEAF_EBUG, "segment %zu has turn %u of file %u",
			              i, now, w->segs[i].file);
		last = now;
	}
	if (rc == 0 && last < 2)
		rc = shf_fail(&h->err, SHEAF_EBUG, "no file has three segments");
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(the_segments_of_several_files_are_written_in_turns)
{
	for (int ranks = 1; ranks < 3; ranks++) {
		struct simdisk *disk = disk_new();
		struct play p = play_of(disk, ranks, STAGED, 1);

		p.opts.staging_bytes_max = 128 << 10;
		CHECK_RC(hands_run(&p, files_take_turns, true), 0, &p.err);
		LOADED(p);
		simdisk_free(disk);
	}
}

/* ---- gates ---- */

static int changed_early(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, &checked, &h->err);

	for (int i = 0; i < h->n && rc == 0; i++)
		rc = shf_save_copied(save, i, -1, NULL);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 2, h->state, &checked, &h->err);
	for (int i = h->n - 1; i > 4 && rc == 0; i--)
		rc = shf_save_copied(save, i, -1, NULL);
	if (rc == 0 && shf_save_gates_finish(save, -1) == 0)
		hand_spoil(h, 4);
	rc = rc ? rc : shf_save_copied(save, 4, -1, NULL);
	shf_save_free(save);
	return rc;
}

TEST(a_tensor_that_changes_before_its_gate_is_named)
{
	struct simdisk *disk = disk_new();
	struct play p = play_of(disk, 2, LAZY, 1);

	CHECK_RC(hands_run(&p, changed_early, true), SHEAF_EDIVERGED, &p.err);
	LOADED(p);
	simdisk_free(disk);
}

static int unasked(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, &lazily, &h->err);

	for (int i = 0; i + 1 < h->n && rc == 0; i++)
		rc = shf_save_copied(save, i, -1, NULL);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(one_that_nobody_asked_for_is_copied_by_the_commit)
{
	struct simdisk *disk = disk_new();
	struct play p = play_of(disk, 2, LAZY, 1);

	CHECK_RC(hands_run(&p, unasked, true), 0, &p.err);
	LOADED(p);
	simdisk_free(disk);
}

/* ---- where it does not go well ---- */

static int two_steps(struct hand *h)
{
	int rc = save_one(h);

	if (rc != SHEAF_EIO)
		return rc ? rc : SHEAF_EBUG;
	simdisk_faults_clear(h->play->disk);
	return save_one(h);
}

TEST(a_write_that_fails_is_told_and_the_next_save_goes_well)
{
	for (int way = IN_PLACE; way <= LAZY; way++)
		for (int nth = 1; nth <= FILES; nth += 3 * T_FEWER) {
			struct simdisk *disk = disk_new();
			struct play p = play_of(disk, 2, way, 2);

			simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth,
				.kind = SIMDISK_PWRITE, .name = "optimizer", .error = EIO });
			CHECK_RC(hands_run(&p, two_steps, true), 0, &p.err);
			LOADED(p);
			simdisk_free(disk);
		}
}

static int given_up(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, &lazily, &h->err);

	rc = rc ? rc : shf_save_copied(save, 3, -1, NULL);
	if (rc == 0 && h->rank == 0)
		(void)shf_save_fail(save, "enough", NULL);
	if (rc == 0 && shf_save_copied(save, 5, -1, NULL) == SHEAF_EAGAIN)
		rc = SHEAF_EBUG;
	shf_save_free(save);
	return rc ? rc : save_one(h);
}

TEST(one_that_is_given_up_reads_no_more)
{
	struct simdisk *disk = disk_new();
	struct play p = play_of(disk, 2, LAZY, 1);

	CHECK_RC(hands_run(&p, given_up, true), 0, &p.err);
	CHECK(simdisk_exists(disk, "run/checkpoint-2"));
	LOADED(p);
	simdisk_free(disk);
}

static int for_memory(struct hand *h)
{
	struct sheaf_save_opts memory = { .size = sizeof(memory),
		.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_NO_DISK };
	struct sheaf_save *save = NULL;
	int rc;

	for (int i = 0; i < 2; i++)
		if ((rc = shf_save_begin(&save, h->run, 1, h->state, &memory, &h->err)) !=
		    SHEAF_EINVAL)
			return shf_fail(&h->err, SHEAF_EBUG, "%d", rc);
	return strstr(h->err.msg, "SHEAF_SLICE_IN_PLACE") ? save_one(h) : SHEAF_EBUG;
}

TEST(a_save_to_memory_alone_is_refused)
{
	struct simdisk *disk = disk_new();
	struct play p = play_of(disk, 2, LAZY, 1);

	p.opts.agent = "auto";
	simdisk_set_agents(disk, UINT64_C(1) << 30);
	CHECK_RC(hands_run(&p, for_memory, true), 0, &p.err);
	LOADED(p);
	simdisk_free(disk);
}

/* ---- bounds ---- */

static int half_of_staging(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, NULL, &h->err);

	if (rc == 0) {
		const struct shf_work *w = &save->plan->work;
		uint64_t half = h->play->opts.staging_bytes_max / 2;

		if (w->slots == 0 || w->ctl_at + w->slots * w->slot_bytes > half)
			rc = shf_fail(&h->err, SHEAF_EBUG, "an image of %llu and %u slots of %llu",
			              (unsigned long long)w->ctl_at, w->slots,
			              (unsigned long long)w->slot_bytes);
	}
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(image_and_slots_take_half_of_the_staging)
{
	for (uint64_t staging = 128 << 10; staging <= 4 * MIB; staging *= 4) {
		struct simdisk *disk = disk_new();
		struct play p = play_of(disk, 2, IN_PLACE, 1);

		p.opts.staging_bytes_max = staging;
		CHECK_RC(hands_run(&p, half_of_staging, true), 0, &p.err);
		LOADED(p);
		simdisk_free(disk);
	}
}

/* ---- two states of the same tensors ---- */

static int save_state(struct hand *h, struct sheaf_state *state, int64_t step, bool behind)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, step, state, behind ? &lazily : NULL, &h->err);

	for (int i = 0; rc == 0 && behind && i < h->n; i++)
		(void)shf_save_copied(save, i, -1, NULL);
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

/* One is in place; each rank brings another one in the end. */
static int mixed(struct hand *h)
{
	struct sheaf_state *other = shf_state_new();
	bool behind = h->play->variant == STAGED;
	int rc = 0;

	for (int i = 0; i < h->n; i++) {
		struct sheaf_slice s = h->s[i];

		s.flags ^= i ? SHEAF_SLICE_IN_PLACE : 0;
		if (shf_state_add(other, &s, NULL) < 0)
			rc = SHEAF_EBUG;
	}
	rc = rc ? rc : save_state(h, h->state, 1, behind);
	rc = rc ? rc : save_state(h, other, 2, behind);
	rc = rc ? rc : save_state(h, h->rank ? other : h->state, 3, behind);
	shf_state_put(other);
	return rc;
}

TEST(plans_of_two_states_are_told_apart)
{
	for (int way = STAGED; way <= IN_PLACE; way++) {
		struct simdisk *disk = disk_new();
		struct play p = play_of(disk, 2, way, 3);

		CHECK_RC(hands_run(&p, mixed, true), 0, &p.err);
		LOADED(p);
		simdisk_free(disk);
	}
}
