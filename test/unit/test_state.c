/* SPDX-License-Identifier: Apache-2.0 */
/* What a slice may say, how it becomes units, and what a state remembers of what went wrong. */
#include "sheaf-load.h"
#include "state.h"
#include "averages.h"
#include "flags.h"
#include "slice_chunk.h"
#include "slice_overlaps.h"
#include <stdbool.h>
#include "memfail.h"
#include "t.h"

static uint8_t memory[4096];

static struct sheaf_slice good(void)
{
	return (struct sheaf_slice){ .size = sizeof(struct sheaf_slice), .name = "w",
		.dtype = SHEAF_F32, .ndim = 2, .shape = { 6, 8 }, .start = { 2, 4 },
		.count = { 3, 4 }, .data = memory };
}

/* Takes the slice; *out lives in *arena. */
static int take(const struct sheaf_slice *in, struct shf_slice *out, struct shf_arena *arena,
                struct sheaf_error *err)
{
	*arena = (struct shf_arena){ 0 };
	return shf_slice_take(out, in, false, arena, err);
}

/* Refused, with that sentence. */
static void refused(const struct sheaf_slice *in, const char *sentence)
{
	struct sheaf_error err = { 0 };
	struct shf_arena arena;
	struct shf_slice out;

	CHECK_RC(take(in, &out, &arena, &err), SHEAF_EINVAL, &err);
	CHECK_STR(err.msg, sentence);
	shf_arena_release(&arena);
}

static void taken(const struct sheaf_slice *in, struct shf_slice *out, struct shf_arena *arena)
{
	struct sheaf_error err = { 0 };

	CHECK_RC(take(in, out, arena, &err), 0, &err);
}

TEST(a_dense_box_gets_row_major_strides_and_a_window_of_its_own)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice s;

	taken(&in, &s, &arena);
	CHECK_STR(s.family, "model");
	CHECK_STR(s.name, "w");
	CHECK(s.stored == s.name);
	CHECK_INT(s.mem.unit, 4);
	CHECK_INT(s.mem_unit, 4);
	CHECK_INT(s.data_dtype, SHEAF_F32);
	CHECK_INT(s.mem.stride[0], 4);
	CHECK_INT(s.mem.stride[1], 1);
	CHECK_INT(s.mem.lo, 0);
	CHECK_INT(s.mem.hi, 12);
	CHECK(!s.empty);
	CHECK(s.name != in.name);       /* copied */
	shf_arena_release(&arena);
}

TEST(sizes_of_the_struct_are_honoured)
{
	struct { struct sheaf_slice s; uint64_t more; } big = { good(), 0 };
	struct shf_arena arena;
	struct shf_slice s;

	big.s.size = sizeof(big);
	taken(&big.s, &s, &arena);
	shf_arena_release(&arena);
	big.more = 1;
	refused(&big.s, "slice has a field set that this version of sheaf does not know; set it to "
	        "0, or use a newer sheaf");
	big.s.size = 8;
	refused(&big.s, "slice.size is 8; set it to sizeof(struct sheaf_slice)");
	big.s.size = 5000;              /* never set: nothing behind it is looked at */
	refused(&big.s, "slice.size is 5000; set it to sizeof(struct sheaf_slice)");
	big.s.size = UINT32_MAX;
	refused(&big.s, "slice.size is 4294967295; set it to sizeof(struct sheaf_slice)");
	refused(NULL, "slice.size is 0; set it to sizeof(struct sheaf_slice)");
}

TEST(names_are_checked)
{
	struct sheaf_slice in = good();

	in.name = NULL;
	refused(&in, "model: name '': must be 1 to 1024 bytes of UTF-8 without control characters");
	in.name = "";
	refused(&in, "model: name '': must be 1 to 1024 bytes of UTF-8 without control characters");
	in.name = "a\nb";
	refused(&in, "model: name 'a?b': must be 1 to 1024 bytes of UTF-8 without control "
	        "characters");
	in.name = "__metadata__";
	refused(&in, "model: name '__metadata__': must be 1 to 1024 bytes of UTF-8 without control "
	        "characters");
	in = good();
	in.family = "Model";
	refused(&in, "family 'Model': must match [a-z][a-z0-9_]{0,31}");
	in.family = "../x";
	refused(&in, "family '../x': must match [a-z][a-z0-9_]{0,31}");
	in = good();
	in.tied_to = "";
	refused(&in, "model/w: slice.tied_to must be a valid name: 1 to 1024 bytes of UTF-8 "
	        "without control characters");
}

TEST(kinds_are_checked)
{
	struct sheaf_slice in = good();

	in.dtype = 0;
	refused(&in, "model/w: dtype 0 is not one of enum sheaf_dtype; use sheaf_dtype_from_name");
	in = good();
	in.data_dtype = 99;
	refused(&in, "model/w: dtype 99 is not one of enum sheaf_dtype; use sheaf_dtype_from_name");
	in = good();
	in.data_dtype = SHEAF_I32;
	refused(&in, "model/w: dtype F32 cannot be converted from and to data_dtype I32");
	in = good();
	in.ndim = SHEAF_DIMS_MAX + 1;
	refused(&in, "model/w: 9 dimensions, at most 8");
	in.ndim = -1;
	refused(&in, "model/w: -1 dimensions, at most 8");
	in = good();
	in.flags = UINT64_C(1) << 63;
	refused(&in, "model/w: flags 0x8000000000000000 are unknown to this version of sheaf; "
	        "clear them, or use a newer sheaf");
}

TEST(complex_numbers_of_two_f64_are_taken_as_pairs)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice out;

	in.dtype = SHEAF_C128;
	taken(&in, &out, &arena);
	CHECK(out.dtype == SHEAF_F64 && out.data_dtype == SHEAF_F64 && out.items.ndim == 3);
	CHECK(out.items.dim[0] == 6 && out.items.dim[1] == 8 && out.items.dim[2] == 2);
	CHECK(out.mem.box.start[1] == 4 && out.mem.box.start[2] == 0);
	CHECK(out.mem.box.count[1] == 4 && out.mem.box.count[2] == 2);
	CHECK(out.mem.stride[0] == 8 && out.mem.stride[1] == 2 && out.mem.stride[2] == 1);
	CHECK(out.mem.unit == 8 && out.mem.lo == 0 && out.mem.hi == 24);
	shf_arena_release(&arena);
	in.stride[0] = 1;
	in.stride[1] = 3;
	in.origin = 5;
	in.flags = SHEAF_SLICE_FLAT;
	in.flat_start = 4;
	in.flat_count = 3;
	in.data_dtype = SHEAF_C128;
	taken(&in, &out, &arena);
	CHECK(out.mem.stride[0] == 2 && out.mem.stride[1] == 6 && out.mem.stride[2] == 1);
	CHECK(out.mem.origin == 10 && out.mem.lo == 8 && out.mem.hi == 14);
	shf_arena_release(&arena);
	in.origin = INT64_MAX / 2 + 1;
	refused(&in, "model/w: the slice reaches beyond the address space; check flat_start and "
	        "flat_count");
	in.origin = INT64_MAX / 2;
	refused(&in, "model/w: with its strides the slice is larger than any memory; check stride "
	        "and count");
	in = good();
	in.dtype = SHEAF_C128;
	in.ndim = SHEAF_DIMS_MAX;
	refused(&in, "model/w: 8 dimensions, at most 7 in C128");
	in = good();
	in.dtype = SHEAF_C128;
	in.data_dtype = SHEAF_C64;
	refused(&in, "model/w: dtype C128 cannot be converted from and to data_dtype C64");
	in.dtype = SHEAF_F64;
	in.data_dtype = SHEAF_C128;
	refused(&in, "model/w: dtype F64 cannot be converted from and to data_dtype C128");
	in.dtype = SHEAF_C128;
	in.data_dtype = SHEAF_C128;
	in.stride[1] = -1;
	refused(&in, "model/w: dimension 1: stride -1 is negative, must be at least 0");
}

TEST(boxes_are_checked)
{
	struct sheaf_slice in = good();

	in.start[1] = 5;
	refused(&in, "model/w: dimension 1: start 5, count 4 is outside of shape 8");
	in = good();
	in.start[0] = -1;
	refused(&in, "model/w: dimension 0: start -1, count 3 is outside of shape 6");
	in = good();
	in.count[0] = -1;
	refused(&in, "model/w: dimension 0: start 2, count -1 is outside of shape 6");
	in = good();
	in.count[1] = INT64_MAX;
	refused(&in, "model/w: dimension 1: start 4, count 9223372036854775807 is outside of shape "
	        "8");
	in = good();
	in.shape[0] = -6;
	refused(&in, "model/w: dimension 0 is -6, must be at least 0");
	in = good();
	in.shape[0] = in.shape[1] = INT64_MAX / 2;
	refused(&in, "model/w: shape is too large, or does not fill whole bytes of F32");
}

TEST(shapes_that_are_no_bytes_have_no_units)
{
	struct shf_shape s = { .ndim = 2, .dim = { 3, -1 } }, units;
	uint32_t unit = 0;

	CHECK(!shf_units_of(&units, &unit, SHEAF_F32, &s));
	s.dim[1] = 5;
	CHECK(!shf_units_of(&units, &unit, 0, &s));
	CHECK(!shf_units_of(&units, &unit, SHEAF_F4, &s));
	CHECK(shf_units_of(&units, &unit, SHEAF_F32, &s));
	CHECK_INT(unit, 4);
}

TEST(a_shape_is_printed_as_far_as_there_is_room)
{
	struct shf_shape s = { .ndim = 3, .dim = { 12, 345, 6 } };
	char text[20];

	CHECK_STR(shf_shape_print(&s, text, sizeof(text)), "[12, 345, 6]");
	CHECK_STR(shf_shape_print(&s, text, 13), "[12, 345, 6]");
	CHECK_STR(shf_shape_print(&s, text, 12), "[12, 345, 6");
	CHECK_STR(shf_shape_print(&s, text, 6), "[12, ");
	CHECK_STR(shf_shape_print(&s, text, 1), "");
	s.ndim = 0;
	CHECK_STR(shf_shape_print(&s, text, sizeof(text)), "[]");
}

/* As torch.zeros(()).expand(5), and what of it need not be refused. */
TEST(strides_that_are_meant_are_never_taken_for_dense_memory)
{
	struct sheaf_slice in = { .size = sizeof(in), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 5 }, .count = { 5 }, .data = memory };
	struct shf_arena arena;
	struct shf_slice s;

	taken(&in, &s, &arena);
	CHECK_INT(s.mem.hi, 5);
	shf_arena_release(&arena);
	in.flags = SHEAF_SLICE_STRIDED;
	refused(&in, "model/w: dimension 0: with stride 0 its 5 items overlap; copy the tensor to "
	        "dense memory, or add one item alone");
	in.count[0] = 1;
	taken(&in, &s, &arena);
	CHECK_INT(s.mem.hi, 1);
	shf_arena_release(&arena);
	in.shape[0] = in.count[0] = 0;
	taken(&in, &s, &arena);
	CHECK(s.empty);
	shf_arena_release(&arena);
	in = good();
	in.flags = SHEAF_SLICE_STRIDED;
	refused(&in, "model/w: dimension 0: with stride 0 its 3 items overlap; copy the tensor to "
	        "dense memory, or add one item alone");
	in.stride[0] = 4;
	in.stride[1] = 1;
	taken(&in, &s, &arena);
	CHECK_INT(s.mem.stride[0], 4);
	shf_arena_release(&arena);
	in.dtype = SHEAF_F4;
	refused(&in, "model/w: F4 memory must be dense");
	in = good();
	in.flags = SHEAF_SLICE_STRIDED;
	CHECK_INT(sheaf_slice_shard(&in, 0, 1, 3, NULL), 0);
	/* And not dense either once it is cut. */
	refused(&in, "model/w: dimension 1: with stride 0 its 4 items overlap; copy the tensor to "
	        "dense memory, or add one item alone");
}

TEST(memory_rules_are_checked)
{
	struct sheaf_slice in = good();

	in.stride[0] = -4;
	refused(&in, "model/w: dimension 0: stride -4 is negative, must be at least 0");
	in = good();
	in.stride[0] = 1;
	refused(&in, "model/w: dimension 1: with stride 0 its 4 items overlap; copy the tensor to "
	        "dense memory, or add one item alone");
	in = good();
	in.stride[0] = INT64_MAX / 2;
	in.stride[1] = 1;
	refused(&in, "model/w: with its strides the slice is larger than any memory; check stride "
	        "and count");
	in = good();
	in.shape[0] = in.count[0] = 8;
	in.start[0] = 0;
	in.stride[0] = INT64_MAX;       /* 7 of them are no number */
	in.stride[1] = 1;
	refused(&in, "model/w: with its strides the slice is larger than any memory; check stride "
	        "and count");
	in = good();
	in.stride[0] = INT64_MAX;       /* 2 of them are one, and the origin is past it */
	in.origin = 10;
	refused(&in, "model/w: with its strides the slice is larger than any memory; check stride "
	        "and count");
	in = good();
	in.origin = -1;
	refused(&in, "model/w: origin -1 is negative, must be at least 0");
	in = good();
	in.data = NULL;
	refused(&in, "model/w: slice.data is NULL, but the slice is not empty");
	in = good();
	in.flags = SHEAF_SLICE_FLAT;
	in.flat_start = -1;
	in.flat_count = 2;
	refused(&in, "model/w: flat_start -1 and flat_count 2 must not be negative or overflow");
	in.flat_start = 0;
	in.flat_count = -2;
	refused(&in, "model/w: flat_start 0 and flat_count -2 must not be negative or overflow");
	in.flat_start = INT64_MAX;
	in.flat_count = 1;
	refused(&in, "model/w: flat_start 9223372036854775807 and flat_count 1 must not be "
	        "negative or overflow");
	in = good();
	in.flat_count = 2;
	refused(&in, "model/w: flat_start or flat_count is set, but not the flag SHEAF_SLICE_FLAT");
	in = good();
	in.flat_start = 2;
	refused(&in, "model/w: flat_start or flat_count is set, but not the flag SHEAF_SLICE_FLAT");
	in = good();
	in.reserved = 1;
	refused(&in, "model/w: slice.reserved is 1; it must be 0");
	in = good();
	in.memory = 2;
	refused(&in, "model/w: slice.memory is 2; it must be 0");
	in = good();
	in.flags = SHEAF_SLICE_OPTIONAL | SHEAF_SAVE_LAZY;
	refused(&in, "model/w: SHEAF_SAVE_LAZY belongs to sheaf_save_opts.flags");
	in.flags = SHEAF_LOAD_CONVERT;
	refused(&in,
	        "model/w: SHEAF_LOAD_CONVERT belongs to sheaf_checkpoint_load, sheaf_load_begin "
	        "and sheaf_run_resume");
	in.flags = 0x40;
	refused(&in, "model/w: flags 0x40 are unknown to this version of sheaf; clear them, or use "
	        "a newer sheaf");
}

TEST(no_two_flags_share_a_bit)
{
	static const uint64_t sets[] = { SHF_SLICE_FLAGS, SHF_RUN_FLAGS, SHF_SAVE_FLAGS,
		SHF_LOAD_FLAGS | SHEAF_LOAD_FALLBACK };
	static const int flags[] = { 6, 6, 5, 7 };
	uint64_t all = 0;

	for (size_t i = 0; i < 4; i++) {
		CHECK_INT(__builtin_popcountll(sets[i]), flags[i]);
		CHECK_INT(all & sets[i], 0);
		all |= sets[i];
	}
	for (int bit = 0; bit < 64; bit++)
		CHECK_INT(shf_flag_name(all & UINT64_C(1) << bit)[0] == 'S', all >> bit & 1);
}

TEST(strides_and_origin_are_kept)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice s;

	in.stride[0] = 1;               /* transposed */
	in.stride[1] = 6;
	in.origin = 5;
	taken(&in, &s, &arena);
	CHECK_INT(s.mem.stride[0], 1);
	CHECK_INT(s.mem.stride[1], 6);
	CHECK_INT(s.mem.origin, 5);
	CHECK_INT(s.mem.lo, 0);
	CHECK_INT(s.mem.hi, 5 + 2 + 18 + 1);
	shf_arena_release(&arena);
}

TEST(a_stride_of_0_is_fine_where_there_is_one_item)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice s;

	in.count[0] = 1;
	in.stride[1] = 2;
	taken(&in, &s, &arena);
	CHECK_INT(s.mem.hi, 7);
	shf_arena_release(&arena);
}

TEST(a_flat_window_is_what_is_here)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice s;

	in.flags = SHEAF_SLICE_FLAT;
	in.origin = 100;
	in.flat_start = 103;
	in.flat_count = 4;
	taken(&in, &s, &arena);
	CHECK_INT(s.mem.lo, 103);
	CHECK_INT(s.mem.hi, 107);
	CHECK(!s.empty);
	shf_arena_release(&arena);
	in.flat_count = 0;
	in.data = NULL;
	taken(&in, &s, &arena);
	CHECK(s.empty);
	shf_arena_release(&arena);
}

TEST(empty_never_means_all)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice s;

	in.count[0] = 0;
	in.data = NULL;
	taken(&in, &s, &arena);
	CHECK(s.empty);
	shf_arena_release(&arena);
	in = good();
	memset(in.shape, 0, sizeof(in.shape));
	memset(in.start, 0, sizeof(in.start));
	memset(in.count, 0, sizeof(in.count));
	in.data = NULL;
	taken(&in, &s, &arena);
	CHECK(s.empty);
	shf_arena_release(&arena);
}

TEST(a_scalar_has_one_unit)
{
	struct sheaf_slice in = { .size = sizeof(in), .name = "s", .dtype = SHEAF_F64,
		.data = memory };
	struct shf_arena arena;
	struct shf_slice s;

	taken(&in, &s, &arena);
	CHECK(!s.empty);
	CHECK_INT(s.mem.unit, 8);
	CHECK_INT(s.shape.ndim, 0);
	CHECK_INT(s.mem.hi, 1);
	shf_arena_release(&arena);
}

TEST(memory_of_another_type_has_its_own_unit)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice s;

	in.dtype = SHEAF_BF16;
	in.data_dtype = SHEAF_F32;
	taken(&in, &s, &arena);
	CHECK_INT(s.mem.unit, 2);
	CHECK_INT(s.mem_unit, 4);
	shf_arena_release(&arena);
}

TEST(rows_of_half_bytes_are_seen_as_bytes)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice s;

	in.dtype = SHEAF_F4;
	taken(&in, &s, &arena);
	CHECK_INT(s.mem.unit, 1);
	CHECK_INT(s.shape.dim[1], 4);
	CHECK_INT(s.items.dim[1], 8);
	CHECK_INT(s.mem.box.start[1], 2);
	CHECK_INT(s.mem.box.count[1], 2);
	CHECK_INT(s.mem.hi, 6);
	shf_arena_release(&arena);
	in.dtype = SHEAF_F6_E2M3;       /* four in three bytes */
	taken(&in, &s, &arena);
	CHECK_INT(s.shape.dim[1], 6);
	CHECK_INT(s.mem.box.start[1], 3);
	CHECK_INT(s.mem.box.count[1], 3);
	shf_arena_release(&arena);
}

TEST(half_bytes_are_cut_between_bytes_only)
{
	struct sheaf_slice in = good();

	in.dtype = SHEAF_F4;
	in.start[1] = 3;
	refused(&in, "model/w: F4 can be cut between bytes only: start and count must be multiples "
	        "of 2 items");
	in = good();
	in.dtype = SHEAF_F4;
	in.count[1] = 3;
	refused(&in, "model/w: F4 can be cut between bytes only: start and count must be multiples "
	        "of 2 items");
	in = good();
	in.dtype = SHEAF_F6_E3M2;
	in.start[1] = 2;
	refused(&in, "model/w: F6_E3M2 can be cut between bytes only: start and count must be "
	        "multiples of 4 items");
	in = good();
	in.dtype = SHEAF_F4;
	in.stride[0] = 8;
	in.stride[1] = 1;
	refused(&in, "model/w: F4 memory must be dense");
	in = good();
	in.dtype = SHEAF_F4;
	in.flags = SHEAF_SLICE_FLAT;
	in.flat_start = 1;
	in.flat_count = 4;
	refused(&in, "model/w: F4: origin, flat_start and flat_count must be at a byte");
	in = good();
	in.dtype = SHEAF_F4;
	in.shape[0] = 3;
	in.shape[1] = 3;
	in.start[0] = in.start[1] = 0;
	in.count[1] = 3;
	refused(&in, "model/w: shape is too large, or does not fill whole bytes of F4");
	in = good();
	in.dtype = SHEAF_F4;
	in.origin = 1;
	refused(&in, "model/w: F4: origin, flat_start and flat_count must be at a byte");
	in = good();
	in.dtype = SHEAF_F4;
	in.flags = SHEAF_SLICE_FLAT;
	in.flat_start = 2;
	in.flat_count = 3;
	refused(&in, "model/w: F4: origin, flat_start and flat_count must be at a byte");
}

TEST(a_flat_window_of_half_bytes_is_in_bytes)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice s;

	in.dtype = SHEAF_F4;
	in.flags = SHEAF_SLICE_FLAT;
	in.origin = 6;
	in.flat_start = 8;
	in.flat_count = 4;
	taken(&in, &s, &arena);
	CHECK_INT(s.mem.origin, 3);
	CHECK_INT(s.mem.lo, 4);
	CHECK_INT(s.mem.hi, 6);
	shf_arena_release(&arena);
}

TEST(nothing_of_half_bytes_is_empty_however_it_is_cut)
{
	static const int64_t shapes[][2] = { { 4, 8 }, { 4, 3 }, { 0, 3 }, { 4, 0 } };

	for (int i = 0; i < 4; i++) {
		struct sheaf_slice in = good();
		struct shf_arena arena;
		struct shf_slice s;

		in.dtype = SHEAF_F4;
		in.data = NULL;
		memcpy(in.shape, shapes[i], sizeof(shapes[i]));
		in.start[0] = in.start[1] = 0;
		in.count[0] = in.shape[0] ? 2 : 0;
		in.count[1] = 0;
		taken(&in, &s, &arena);
		CHECK(s.empty);
		CHECK_INT(s.mem.unit, 1);
		CHECK_INT(shf_shape_units(&s.shape), i == 0 ? 16 : i == 1 ? 6 : 0);
		shf_arena_release(&arena);
	}
}

TEST(rows_that_are_no_whole_bytes_are_taken_whole_or_not_at_all)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice s;

	in.dtype = SHEAF_F4;
	in.shape[0] = 4;
	in.shape[1] = 3;
	in.start[0] = in.start[1] = 0;
	in.count[0] = 4;
	in.count[1] = 3;
	taken(&in, &s, &arena);
	CHECK_INT(s.shape.ndim, 1);
	CHECK_INT(s.shape.dim[0], 6);
	CHECK_INT(s.mem.hi, 6);
	shf_arena_release(&arena);
	in.count[0] = 2;
	refused(&in, "model/w: rows of F4 do not end at a byte, so the slice must be the whole "
	        "tensor");
}

TEST(a_failed_add_sticks_and_the_first_one_is_told)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice in = good();
	struct sheaf_error err = { 0 };

	CHECK(st != NULL);
	CHECK_INT(shf_state_add(st, &in, NULL), 0);
	CHECK_INT(shf_state_ready(st, true, &err), 0);
	in.dtype = 0;
	CHECK_INT(shf_state_add(st, &in, NULL), SHEAF_EINVAL);
	in = good();
	in.origin = -1;
	CHECK_INT(shf_state_add(st, &in, NULL), SHEAF_EINVAL);
	in = good();
	CHECK_INT(shf_state_add(st, &in, NULL), 1);
	CHECK_RC(shf_state_ready(st, true, &err), SHEAF_EINVAL, &err);
	CHECK(strstr(err.msg, "dtype") != NULL);
	shf_state_put(st);
}

/* Room for slices is made at the first and at the 65th. */
TEST(a_slice_without_memory_is_refused_and_the_state_remembers)
{
	struct sheaf_slice in = good();

	for (int before = 0; before <= 64; before += 64)
		for (long nth = 1, last = 0; !last; nth++) {
			struct sheaf_state *st = shf_state_new();
			struct sheaf_error err = { 0 };
			int rc;

			CHECK(st != NULL);
			for (int i = 0; i < before; i++)
				CHECK_INT(shf_state_add(st, &in, NULL), i);
			memfail_at(nth);
			rc = shf_state_add(st, &in, NULL);
			last = !memfail_end();
			CHECK(nth > 1 || !last);
			CHECK_INT(rc, last ? before : SHEAF_ENOMEM);
			CHECK_RC(shf_state_ready(st, true, &err), last ? 0 : SHEAF_ENOMEM, &err);
			shf_state_put(st);
		}
}

TEST(no_state_is_no_memory)
{
	struct sheaf_slice in = good();
	struct sheaf_error err = { 0 };

	CHECK_INT(shf_state_add(NULL, &in, NULL), SHEAF_ENOMEM);
	CHECK_INT(shf_state_move(NULL, 0, memory, NULL), SHEAF_ENOMEM);
	CHECK_INT(shf_state_stream(NULL, "rng", NULL, 0, 1, memory, 4, NULL), SHEAF_ENOMEM);
	CHECK_INT(shf_state_ready(NULL, false, &err), SHEAF_ENOMEM);
	shf_state_put(NULL);
}

TEST(a_state_without_memory_is_good_for_plans_only)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice in = good();
	struct sheaf_error err = { 0 };

	in.data = NULL;
	CHECK_INT(shf_state_add(st, &in, NULL), 0);
	CHECK_INT(shf_state_ready(st, false, &err), 0);
	CHECK_RC(shf_state_ready(st, true, &err), SHEAF_EINVAL, &err);
	CHECK(strstr(err.msg, "model/w: slice.data is NULL") != NULL);
	CHECK_INT(shf_state_move(st, 0, memory, NULL), 0);
	CHECK_INT(shf_state_ready(st, true, &err), 0);
	CHECK_INT(shf_state_move(st, 0, memory + 4, NULL), 0);
	CHECK_INT(shf_state_ready(st, true, &err), 0);
	shf_state_put(st);
}

TEST(a_slice_moves_to_memory_and_not_to_nowhere)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice in = good();

	CHECK_INT(shf_state_add(st, &in, NULL), 0);
	CHECK_INT(shf_state_move(st, 0, memory + 64, NULL), 0);
	CHECK(st->slices[0].mem.base == memory + 64);
	CHECK_INT(shf_state_move(st, 1, memory, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_state_move(st, -1, memory, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_state_move(st, 0, NULL, NULL), SHEAF_EINVAL);
	CHECK(st->slices[0].mem.base == memory + 64);
	in.count[0] = 0;
	in.name = "none";
	CHECK_INT(shf_state_add(st, &in, NULL), 1);
	CHECK_INT(shf_state_move(st, 1, NULL, NULL), 0); /* of which there is nothing */
	CHECK_INT(shf_state_move(st, 1, memory, NULL), 0);
	shf_state_put(st);
}

TEST(averages_are_not_moved)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice in = good();
	struct sheaf_ema e = { .size = sizeof(e), .coef = 0.5 };
	struct sheaf_error err = { 0 };

	CHECK_INT(shf_state_add(st, &in, NULL), 0);
	CHECK_INT(shf_state_ema(st, NULL, &e, NULL), 0);
	CHECK_INT(st->n, 2);
	CHECK_INT(shf_state_move(st, 1, memory, NULL), SHEAF_EINVAL);
	CHECK(st->slices[1].mem.base == NULL);
	CHECK_RC(shf_state_ready(st, false, &err), SHEAF_EINVAL, &err);
	CHECK_STR(err.msg, "ema/w: averages cannot be moved; their memory belongs to the state");
	shf_state_put(st);
}

TEST(nothing_is_added_once_it_is_fixed)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice in = good();

	CHECK_INT(shf_state_add(st, &in, NULL), 0);
	st->fixed = true;
	CHECK_INT(shf_state_add(st, &in, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_state_move(st, 0, memory + 8, NULL), 0);
	shf_state_put(st);
}

TEST(streams_are_tensors_of_bytes_by_rank)
{
	struct sheaf_state *st = shf_state_new();
	const struct shf_slice *s;

	CHECK_INT(shf_state_stream(st, "rng.cpu", NULL, 3, 8, memory, 100, NULL), 0);
	s = &st->slices[0];
	CHECK_STR(s->family, "ranks");
	CHECK_STR(s->name, "rng.cpu/3");
	CHECK_STR(s->stream.rule, "strict");
	CHECK_INT(s->stream.ranks, 8);
	CHECK_INT(s->dtype, SHEAF_U8);
	CHECK_INT(s->items.dim[0], 100);
	CHECK_INT(shf_state_stream(st, "rng.cpu", "modulo", 8, 8, memory, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_state_stream(st, "rng.cpu", "often", 0, 8, memory, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_state_stream(st, "a/b", NULL, 0, 8, memory, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_state_stream(st, NULL, NULL, 0, 8, memory, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_state_stream(st, "x", NULL, 0, 0, memory, 1, NULL), SHEAF_EINVAL);
	shf_state_put(st);
}

TEST(a_sharded_slice_is_a_slice)
{
	struct sheaf_slice in = good();
	struct shf_arena arena;
	struct shf_slice s;

	in.start[0] = in.start[1] = 0;
	in.count[0] = 6;
	in.count[1] = 8;
	CHECK_INT(shf_slice_shard(&in, 0, 3, 4, NULL), 0);    /* pieces of 2: the last is empty */
	in.data = NULL;
	taken(&in, &s, &arena);
	CHECK(s.empty);
	shf_arena_release(&arena);
}

/* The third overlaps the first, but not the second, which lies between them in the order of
 * addresses. */
TEST(all_that_lies_in_one_long_slice_is_in_its_ring)
{
	static const struct { const char *name; int64_t first, n; } parts[] = {
		{ "long", 0, 100 }, { "a", 10, 10 }, { "b", 30, 10 }, { "beside", 100, 10 },
	};
	struct sheaf_state *st = shf_state_new();
	const uint32_t *next = NULL;

	for (int i = 0; i < 4; i++) {
		struct sheaf_slice in = { .size = sizeof(in), .name = parts[i].name,
			.dtype = SHEAF_F32, .ndim = 1, .shape = { parts[i].n },
			.count = { parts[i].n }, .data = memory + 4 * parts[i].first };

		CHECK_INT(shf_state_add(st, &in, NULL), i);
	}
	CHECK_INT(shf_overlaps_find(st, &next), 0);
	CHECK(next[0] != 0 && next[next[0]] != 0);
	CHECK_INT(next[next[next[0]]], 0);
	CHECK_INT(next[3], 3);
	shf_state_put(st);
}

static bool always_reads(struct shf_reader *reader, size_t slice)
{
	(void)reader;
	return slice == 0;
}

TEST(all_slices_move_at_once_or_none)
{
	struct shf_reader reader = { .reads = always_reads };
	struct sheaf_state *st = sheaf_state_new();
	float a[6] = { 0 }, b[6] = { 0 };
	struct sheaf_slice in = { .size = sizeof(in), .name = "a", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 6 }, .count = { 6 }, .data = a };
	void *to[2] = { b, b };
	struct sheaf_error err;

	CHECK_INT(shf_state_add(st, &in, NULL), 0);
	in.name = "b";
	CHECK_INT(shf_state_add(st, &in, NULL), 1);
	st->readers = &reader;
	CHECK_INT(shf_state_move_all(st, to, 2, &err), SHEAF_EINVAL);
	CHECK(strstr(err.msg, "model/a: a lazy save still reads") != NULL);
	CHECK((void *)st->slices[0].mem.base == a && (void *)st->slices[1].mem.base == a);
	st->readers = NULL;
	/* The old memory may be gone: nothing begins until the move has been repeated. */
	CHECK_INT(shf_state_ready(st, true, &err), SHEAF_EINVAL);
	CHECK_RC(shf_state_move_all(st, to, 2, &err), 0, &err);
	CHECK((void *)st->slices[0].mem.base == b && (void *)st->slices[1].mem.base == b);
	CHECK_RC(shf_state_ready(st, true, &err), 0, &err);
	to[1] = NULL;
	CHECK_INT(shf_state_move_all(st, to, 2, &err), SHEAF_EINVAL);
	CHECK(strstr(err.msg, "model/b") && (void *)st->slices[0].mem.base == b);
	CHECK_INT(shf_state_ready(st, true, &err), SHEAF_EINVAL); /* it is remembered */
	shf_state_put(st);
}

TEST(a_state_that_failed_is_of_no_use)
{
	struct sheaf_state *st = sheaf_state_new();
	struct sheaf_error err;
	void *to[1] = { NULL };

	CHECK_INT(shf_state_move_all(st, to, 1, &err), SHEAF_EINVAL);
	CHECK_STR(err.msg, "memory for 1 slices was given, the state has 0");
	CHECK_INT(shf_state_ready(st, true, &err), SHEAF_EINVAL);
	shf_state_put(st);
	CHECK_INT(shf_state_move_all(NULL, to, 1, &err), SHEAF_ENOMEM);
	st = sheaf_state_new();
	CHECK_RC(shf_state_fail(st, "the optimizer has no state", &err), 0, &err);
	CHECK_INT(shf_state_ready(st, true, &err), SHEAF_EFAILED);
	CHECK_STR(err.msg, "the optimizer has no state");
	shf_state_put(st);
}
