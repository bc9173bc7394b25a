/* SPDX-License-Identifier: Apache-2.0 */
/* Unusual but valid states are saved and loaded: flat ranges that cut at any item, ranks and
 * families without tensors, dimensions of 0, every item type, strided memory, several slices of one
 * name, tied tensors. */
#include "hands.h"
#include <stdlib.h>
#include "err.h"
#include "t.h"
#include "save_commit.h"
#include "save_end.h"
#include "read_slice.h"
#include "sheaf-admin.h"

/* ---- flat ranges ---- */

/* Two tensors in one buffer of 7 x 11 + 301 items and padding to the next 64, of which each rank
 * has what `cuts` says. */
static void flat_by(struct hand *h, const int64_t *cuts)
{
	int64_t lo = cuts[h->rank], hi = cuts[h->rank + 1];
	uint8_t *data = hand_block(h, (hi - lo) * 4);
	static const char *const names[2] = { "a", "b" };

	for (int i = 0; i < 2; i++) {
		struct sheaf_slice *s = i ? hand_add(h, "optimizer", names[i], SHEAF_F32, 1, 301)
		                          : hand_add(h, "optimizer", names[i], SHEAF_F32, 2, 7, 11);

		s->flags = SHEAF_SLICE_FLAT;
		s->origin = i ? 77 : 0;
		s->flat_start = lo;
		s->flat_count = hi - lo;
		s->data = data;
	}
}

static void flat3(struct hand *h)
{
	static const int64_t odd[4] = { 0, 13, 13, 384 };       /* rank 1 owns nothing */

	flat_by(h, odd);
}

static void flat8(struct hand *h)
{
	static const int64_t odd[9] = { 0, 1, 76, 77, 79, 79, 211, 378, 384 }; /* 7: padding only */

	flat_by(h, odd);
}

static void whole(struct hand *h)
{
	hand_add(h, "optimizer", "a", SHEAF_F32, 2, 7, 11);
	hand_add(h, "optimizer", "b", SHEAF_F32, 1, 301);
}

TEST(a_flat_range_may_cut_a_tensor_at_any_item_and_be_empty)
{
	static void (*const holds[3])(struct hand *) = { whole, flat3, flat8 };
	static const int ranks[3] = { 1, 3, 8 };
	uint64_t hash = 0;

	for (int a = 0; a < 3; a++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, ranks[a], holds[a]);

		SAVED(p);
		/* Padding is nobody's tensor: the bytes are those of the dense save. */
		hash = hash ? hash : hands_hash(disk, "run/checkpoint-7");
		CHECK(hash == hands_hash(disk, "run/checkpoint-7"));
		for (int b = 0; b < 3; b++) {
			p = hands_play(disk, ranks[b], holds[b]);
			p.flags = SHEAF_LOAD_STRICT;
			LOADED(p);
			CHECK_INT(p.report.loaded, 2);
		}
		simdisk_free(disk);
	}
}

static int padding_act(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, NULL, &h->err);
	for (size_t i = 0; rc == 0 && h->rank == 7 && i < h->blocks_bytes[0]; i++)
		rc = h->blocks[0][i] == 0xA5 ? 0 : SHEAF_EBUG;
	shf_step_put(step);
	return rc;
}

TEST(padding_of_a_flat_buffer_is_left_alone)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 3, flat3);

	SAVED(p);
	p = hands_play(disk, 8, flat8);
	CHECK_RC(hands_run(&p, padding_act, false), 0, &p.err);
	simdisk_free(disk);
}

/* ---- families and names ---- */

enum { BOTH, MODEL_ONLY, MODEL_REVERSED };
static void families(struct hand *h)
{
	static const char *const names[] = { "x.10", "x.9", "b", "a" };
	bool back = h->play->variant == MODEL_REVERSED;

	for (int k = 0; k < 4; k++)
		hand_cut(hand_add(h, "model", names[back ? 3 - k : k], SHEAF_BF16, 2, 13, 5), 0,
		         h->rank, h->ranks);
	for (int k = 0; k < 4 && h->play->variant == BOTH; k++) {
		hand_cut(hand_add(h, "optimizer", hand_text(h, names[k], "/moment1_0"), SHEAF_F32,
				  2, 13, 5),
			 0, h->rank, h->ranks);
	}
}

/* Calls since then that read this file beyond its header's first page. */
static int reads_of(const struct simdisk *disk, size_t from, const char *name)
{
	int n = 0;

	for (size_t i = from; i < simdisk_calls(disk); i++) {
		const char *text = simdisk_call_text(disk, i);

		n += strstr(text, "pread") && strstr(text, name);
	}
	return n;
}

TEST(a_save_or_load_of_one_family_leaves_the_others_alone)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, families);
	size_t n, from;

	SAVED(p);
	free(simdisk_get(disk, "run/checkpoint-7/model-00001-of-00001.safetensors", &n));
	p = hands_play(disk, 2, families);
	p.variant = MODEL_ONLY;
	from = simdisk_calls(disk);
	LOADED(p);
	CHECK_INT(p.report.unexpected, 0);      /* not of a family that is held */
	CHECK_INT(p.report.disk_bytes, n);
	/* The header twice: its length, and itself with its block. */
	CHECK(reads_of(disk, from, "optimizer-00001") <= 2);
	p.step = 8;
	SAVED(p);
	CHECK(!simdisk_exists(disk, "run/checkpoint-8/optimizer"));
	simdisk_free(disk);
}

TEST(identity_is_the_name_and_not_the_order)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 3, families);
	uint64_t hash;

	p.variant = MODEL_ONLY;
	SAVED(p);
	hash = hands_hash(disk, "run/checkpoint-7");
	p = hands_play(disk, 2, families);
	p.variant = MODEL_REVERSED;
	p.flags = SHEAF_LOAD_STRICT;
	LOADED(p);
	p.step = 8;
	SAVED(p);
	CHECK(hash == hands_hash(disk, "run/checkpoint-8"));
	simdisk_free(disk);
}

/* ---- nothing ---- */

static void sparse(struct hand *h)
{
	if (h->rank == 2)
		return;
	hand_add(h, "model", "w", SHEAF_F32, 1, 9);
	hand_add(h, "empty", "none", SHEAF_F32, 2, 0, 3);
}

static void zeros(struct hand *h)
{
	static const int64_t shapes[][3] = { { 0, 4, 1 }, { 3, 0, 2 }, { 5, 7, 0 }, { 0, 0, 0 } };

	for (int k = 0; k < 4; k++) {
		static const char *const names[] = { "a", "b", "c", "d" };
		struct sheaf_slice *s = hand_add(h, "model", names[k], SHEAF_F32, 3,
		                                 (int)shapes[k][0], (int)shapes[k][1],
		                                 (int)shapes[k][2]);

		hand_cut(s, k % 3, h->rank, h->ranks);
		s->data = NULL;
	}
}

/* The other verbs on a step of nothing. */
static int verify_act(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, SHEAF_LATEST, &h->err);

	if (rc == 0)
		rc = shf_step_verify(step, &h->report, &h->err);
	for (int i = 0; i < h->n && rc == 0; i++)
		rc = shf_step_read(step, &h->s[i], &h->err);
	if (rc == 0)
		rc = shf_run_mark(h->run, step->number, SHEAF_MARK_KEEP, &h->err);
	shf_step_put(step);
	return rc;
}

TEST(ranks_families_and_states_may_be_empty)
{
	static void (*const holds[3])(struct hand *) = { sparse, zeros, NULL };
	static const uint64_t tensors[3] = { 2, 4, 0 };

	for (int k = 0; k < 3; k++)
		for (int nodes = 0; nodes < 2; nodes++) {
			static const int32_t apart[4] = { 1, 2, 1, 2 };
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, 4, holds[k]);

			p.nodes = nodes ? apart : NULL;
			SAVED(p);
			for (int ranks = 4; ranks > 0; ranks -= 3) {
				p.ranks = ranks;
				p.flags = SHEAF_LOAD_STRICT;
				LOADED(p);
				CHECK_INT(p.report.loaded, tensors[k]);
				CHECK_INT(p.report.missing, 0);
				CHECK_RC(hands_run(&p, verify_act, false), 0, &p.err);
				CHECK_INT(p.report.findings, 0);
			}
			simdisk_free(disk);
		}
}

/* ---- types ---- */

static const int types[] = { SHEAF_BOOL, SHEAF_U8, SHEAF_I8, SHEAF_U16, SHEAF_I16, SHEAF_U32,
	SHEAF_I32, SHEAF_U64, SHEAF_I64, SHEAF_F16, SHEAF_BF16, SHEAF_F32, SHEAF_F64, SHEAF_C64,
	SHEAF_F8_E4M3, SHEAF_F8_E5M2, SHEAF_F8_E8M0, SHEAF_F8_E4M3FNUZ, SHEAF_F8_E5M2FNUZ, SHEAF_F4,
	SHEAF_F6_E2M3, SHEAF_F6_E3M2 };
enum { TYPES = sizeof(types) / sizeof(types[0]) };

/* Variant: cut rows, columns between bytes, or flat between bytes. */
static void all_types(struct hand *h)
{
	for (int k = 0; k < TYPES; k++) {
		static const char *const names[TYPES] = { "a", "b", "c", "d", "e", "f", "g", "h",
							  "i", "j", "k", "l", "m", "n", "o", "p",
							  "q", "r", "s", "t", "u", "v" };
		struct sheaf_slice *s = hand_add(h, "model", names[k], types[k], 2, 7, 24);
		int64_t lo = h->rank * 168 / h->ranks / 4 * 4,
			hi = (h->rank + 1) * 168 / h->ranks / 4 * 4;

		if (h->play->variant == 0) {
			hand_cut(s, 0, h->rank, h->ranks);
		} else if (h->play->variant == 1) {
			s->start[1] = h->rank * 24 / h->ranks / 4 * 4;
			s->count[1] = (h->rank + 1) * 24 / h->ranks / 4 * 4 - s->start[1];
		} else {
			s->flags = SHEAF_SLICE_FLAT;
			s->flat_start = lo;
			s->flat_count = h->rank == h->ranks - 1 ? 168 - lo : hi - lo;
		}
	}
}

TEST(every_type_is_saved_and_loaded_however_it_is_cut)
{
	uint64_t hash = 0;

	for (int a = 0; a < 3; a++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 3, all_types);

		p.variant = a;
		SAVED(p);
		hash = hash ? hash : hands_hash(disk, "run/checkpoint-7");
		CHECK(hash == hands_hash(disk, "run/checkpoint-7"));
		for (int b = 0; b < 3; b++) {
			p = hands_play(disk, b == 1 ? 5 : 2, all_types);
			p.variant = b;
			p.flags = SHEAF_LOAD_STRICT;
			LOADED(p);
			CHECK_INT(p.report.loaded, TYPES);
		}
		simdisk_free(disk);
	}
}

static void half_item(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "q", SHEAF_F4, 1, 8);

	s->start[0] = h->rank ? 3 : 0;
	s->count[0] = h->rank ? 5 : 3;
}

TEST(a_cut_inside_a_byte_is_refused_everywhere)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, half_item);

	CHECK_RC(hands_save(&p), SHEAF_EINVAL, &p.err);
	CHECK(strstr(p.err.msg, "can be cut between bytes only"));
	simdisk_free(disk);
}

/* ---- conversions ---- */

static const int floats[] = { SHEAF_F16, SHEAF_BF16, SHEAF_F32, SHEAF_F64, SHEAF_F8_E4M3,
	SHEAF_F8_E5M2 };
enum { FLOATS = 6 };

/* Tensor i of stored type i; variant: memory type, transposed in memory with padding. */
static void converted(struct hand *h)
{
	static const char *const names[] = { "a", "b", "c", "d", "e", "f" };

	for (int k = 0; k < FLOATS; k++) {
		struct sheaf_slice *s = hand_add(h, "model", names[k], floats[k], 2, 29, 17);

		hand_cut(s, k % 2, h->rank, h->ranks);
		s->data_dtype = floats[(k + h->play->variant) % FLOATS];
		s->stride[0] = 1;
		s->stride[1] = s->count[0] + 2;
	}
}

/* The same tensors asked for as another type than is stored. */
static void asked(struct hand *h)
{
	converted(h);
	for (int k = 0; k < h->n; k++) {
		h->s[k].dtype = h->s[k].data_dtype;
		h->s[k].data_dtype = 0;
	}
}

TEST(memory_may_have_another_type_than_the_file_both_ways)
{
	uint64_t hash = 0;

	for (int a = 0; a < FLOATS; a++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, converted);

		p.variant = a;
		SAVED(p);
		hash = hash ? hash : hands_hash(disk, "run/checkpoint-7");
		CHECK(hash == hands_hash(disk, "run/checkpoint-7"));
		for (int b = 0; b < FLOATS && a == 0; b++) {
			p = hands_play(disk, 3, converted);
			p.variant = b;
			LOADED(p);
			CHECK_INT(p.report.converted, 0);       /* what was asked for is stored */
			p = hands_play(disk, 3, asked);
			p.variant = b;
			p.flags = SHEAF_LOAD_CONVERT;
			LOADED(p);
			CHECK_INT(p.report.converted, b ? FLOATS : 0);
			p.flags = 0;
			CHECK_RC(hands_load(&p), b ? SHEAF_ELAYOUT : 0, &p.err);
			CHECK(b == 0 || p.wrong == 0);  /* nothing was touched */
		}
		simdisk_free(disk);
	}
}

/* Round to nearest even, by hand. */
static uint16_t rounded(uint32_t bits)
{
	uint32_t low = bits & 0xffff, high = bits >> 16;

	return (uint16_t)(high + (low > 0x8000 || (low == 0x8000 && (high & 1))));
}

static uint32_t odd_float(int i)
{
	return 0x3f800000u + (uint32_t)i * 0x2667u;
}

static void master(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "master_weights", "w", SHEAF_F32, 1, 3000);

	s->data = hand_block(h, 12000);
	hand_want(h, HAND_ANY);
}

static int master_save(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc;

	for (int i = 0; i < 3000; i++) {
		uint32_t v = odd_float(i);

		memcpy(h->blocks[0] + 4 * i, &v, 4);
	}
	rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static void as_bf16(struct hand *h)
{
	hand_add(h, "master_weights", "w", SHEAF_BF16, 1, 3000);
	hand_want(h, HAND_ANY);
}

static int bf16_load(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	if (rc == 0)
		rc = shf_step_load(step, h->state, SHEAF_LOAD_CONVERT, NULL, &h->err);
	for (int i = 0; i < 3000 && rc == 0; i++) {
		uint16_t got;

		memcpy(&got, h->blocks[0] + 2 * i, 2);
		if (got != rounded(odd_float(i)))
			rc = shf_fail(&h->err, SHEAF_EBUG, "item %d is %04x", i, got);
	}
	shf_step_put(step);
	return rc;
}

TEST(bf16_is_derived_from_fp32_by_rounding_to_even)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, master);

	CHECK_RC(hands_run(&p, master_save, false), 0, &p.err);
	p = hands_play(disk, 2, as_bf16);
	CHECK_RC(hands_run(&p, bf16_load, false), 0, &p.err);
	simdisk_free(disk);
}

/* ---- one name many times ---- */

/* One tensor on one rank: dense, transposed, the middle rows again, and the ends flat. */
static void many(struct hand *h)
{
	struct sheaf_slice *s;

	hand_add(h, "model", "w", SHEAF_F32, 2, 12, 10);
	s = hand_add(h, "model", "w", SHEAF_F32, 2, 12, 10);
	s->flags = SHEAF_SLICE_COPY;
	s->stride[0] = 1;
	s->stride[1] = 15;
	s = hand_add(h, "model", "w", SHEAF_F32, 2, 12, 10);
	s->start[0] = 3 + h->rank;
	s->count[0] = 4;
	s = hand_add(h, "model", "w", SHEAF_F32, 2, 12, 10);
	s->flags = SHEAF_SLICE_FLAT | SHEAF_SLICE_COPY;
	s->origin = 7;
	s->flat_start = 33 * h->rank;
	s->flat_count = 39;
}

TEST(every_slice_of_one_name_is_filled)
{
	for (int ranks = 1; ranks < 4; ranks++) {
		static const int32_t apart[3] = { 1, 2, 2 };
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, ranks, many);

		p.nodes = ranks == 3 ? apart : NULL;
		SAVED(p);
		p.flags = SHEAF_LOAD_STRICT;
		LOADED(p);
		CHECK_INT(p.report.loaded, 1);
		CHECK_INT(p.report.bytes, 480);
		simdisk_free(disk);
	}
}

/* ---- ties ---- */

enum { TIED, UNTIED, HEAD_TIED_OTHERWISE, EMBED_ONLY, HEAD_ONLY, HEAD_TIED_ONLY };
/* Over two stripes, of which no rank is home to both. variant: cut by rows, or everybody's. */
static void stripes(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "long", SHEAF_F64, 2, 2600, 1 << 10);

	if (h->play->variant)
		hand_cut(s, 0, h->rank, h->ranks);
}

/* As many dimensions as there may be, on two nodes. variant: which one is cut. */
static void of_all_dimensions(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "full", SHEAF_F32, SHEAF_DIMS_MAX, 3, 2, 4, 2,
	                                 3, 2, 2, 5);

	_Static_assert(SHEAF_DIMS_MAX == 8, "a number for each");
	hand_cut(s, h->play->variant, h->rank, h->ranks);
}

TEST(a_tensor_may_have_as_many_dimensions_as_there_are)
{
	static const int32_t apart[] = { 1, 2, 1, 2 };

	for (int variant = 0; variant < SHEAF_DIMS_MAX; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, of_all_dimensions);

		p.nodes = apart;
		p.variant = variant;
		SAVED(p);
		p.variant = SHEAF_DIMS_MAX - 1 - variant;
		p.ranks = 3;
		LOADED(p);
		simdisk_free(disk);
	}
}

TEST(a_tensor_of_several_stripes_has_several_homes)
{
	for (int variant = 0; variant < 2; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, stripes);

		p.variant = variant;
		SAVED(p);
		p.variant = !variant;
		p.ranks = 3;
		LOADED(p);
		simdisk_free(disk);
	}
}

static void ties(struct hand *h)
{
	int v = h->play->variant;
	struct sheaf_slice *s;

	if (v != HEAD_ONLY && v != HEAD_TIED_ONLY) {
		s = hand_add(h, "model", "embed", SHEAF_BF16, 2, 31, 6);
		hand_cut(s, 0, h->rank, h->ranks);
		s->tied_to = v == HEAD_TIED_OTHERWISE ? "head" : NULL;
		hand_as(h, "model", "embed");
	}
	if (v != EMBED_ONLY) {
		s = hand_add(h, "model", "head", SHEAF_BF16, 2, 31, 6);
		hand_cut(s, 1, h->rank, h->ranks);
		s->tied_to = v == TIED || v == HEAD_TIED_ONLY ? "embed" : NULL;
		hand_as(h, "model", "embed");   /* tied or not, their bytes are the same */
	}
}

TEST(either_name_of_a_tie_loads_from_any_step)
{
	for (int a = TIED; a <= HEAD_TIED_OTHERWISE; a++)
		for (int b = TIED; b <= HEAD_ONLY; b++) {
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, 2, ties);

			p.variant = a;
			SAVED(p);
			p.variant = b;
			p.ranks = 3;
			p.opts.flags = SHEAF_RUN_READONLY;
			LOADED(p);
			CHECK_INT(p.report.missing, 0);
			p.flags = SHEAF_LOAD_STRICT;
			/* A tie asks for the other's bytes: a head of its own in the step is left.
			 */
			if (a == UNTIED && b != UNTIED) {
				CHECK_RC(hands_load(&p), SHEAF_ELAYOUT, &p.err);
				CHECK(strstr(p.err.msg, b == HEAD_ONLY || b == HEAD_TIED_OTHERWISE
				                        ? "embed" : "head"));
			} else {
				LOADED(p);
			}
			simdisk_free(disk);
		}
}

static int read_tied(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	for (int k = 0; k < h->n && rc == 0; k++)
		rc = shf_step_read(step, &h->s[k], &h->err);
	shf_step_put(step);
	return rc ? rc : (int)hand_wrong(h, h->play->why, sizeof(h->play->why));
}

/* A step that never had what it is tied to has it under its own name. */
TEST(a_tied_head_is_filled_from_a_head_that_stands_alone_in_the_step)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, ties);

	p.variant = HEAD_ONLY;
	SAVED(p);
	p.variant = HEAD_TIED_ONLY;
	p.ranks = 3;
	p.flags = SHEAF_LOAD_STRICT;
	LOADED(p);
	CHECK_RC(hands_run(&p, read_tied, false), 0, &p.err);
	simdisk_free(disk);
}
