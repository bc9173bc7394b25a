/* SPDX-License-Identifier: Apache-2.0 */
/* The hash of a state changes with each field of a slice, and with nothing that says where the
 * memory is. */
#include <stdlib.h>
#include "average_step.h"
#include "averages.h"
#include "state.h"
#include "state_hash.h"
#include "t.h"

static float memory[2][4096];

/* A slice of which each field can be changed by itself. */
static struct sheaf_slice slice(void)
{
	return (struct sheaf_slice){ .size = sizeof(struct sheaf_slice), .family = "model",
		.name = "w", .dtype = SHEAF_F32, .data_dtype = SHEAF_F32, .ndim = 2,
		.shape = { 20, 20 }, .start = { 2, 2 }, .count = { 4, 4 }, .stride = { 8, 2 },
		.flags = SHEAF_SLICE_FLAT, .origin = 3, .flat_start = 1, .flat_count = 50,
		.data = memory[0] };
}

static uint64_t hash_of(const struct sheaf_slice *s, size_t n)
{
	struct sheaf_state *st = shf_state_new();
	uint64_t hash;

	for (size_t i = 0; i < n; i++) {
		struct sheaf_error err;

		CHECK_RC(shf_state_add(st, &s[i], &err), (int)i, &err);
	}
	hash = shf_state_hash(st);
	shf_state_put(st);
	return hash;
}

/* All that were seen: each must be new. */
static uint64_t seen[80];
static size_t seen_n;

static void is_new(uint64_t hash, const char *what)
{
	CHECK(hash != 0);
	for (size_t i = 0; i < seen_n; i++)
		if (seen[i] == hash)
			print_error("%s changes nothing\n", what);
	for (size_t i = 0; i < seen_n; i++)
		CHECK(seen[i] != hash);
	CHECK(seen_n < 80);
	seen[seen_n++] = hash;
}

#define CHANGED(field, value)                                                            \
	do {                                                                             \
		struct sheaf_slice s_ = slice();                                         \
		s_.field = (value);                                                      \
		is_new(hash_of(&s_, 1), #field);                                         \
	} while (0)

TEST(each_field_of_a_slice_changes_it)
{
	struct sheaf_slice s = slice(), two[2] = { slice(), slice() };

	seen_n = 0;
	is_new(hash_of(&s, 1), "a slice");
	CHANGED(family, "optimizer");
	CHANGED(name, "v");
	CHANGED(tied_to, "v");
	CHANGED(dtype, SHEAF_BF16);
	CHANGED(data_dtype, SHEAF_BF16);
	CHANGED(shape[0], 21);
	CHANGED(shape[1], 21);
	CHANGED(start[0], 3);
	CHANGED(start[1], 3);
	CHANGED(count[0], 5);
	CHANGED(count[1], 3);
	CHANGED(stride[0], 9);
	CHANGED(stride[1], 1);
	CHANGED(origin, 4);
	CHANGED(flat_start, 2);
	CHANGED(flat_count, 49);
	CHANGED(flags, SHEAF_SLICE_FLAT | SHEAF_SLICE_OPTIONAL);
	CHANGED(flags, SHEAF_SLICE_FLAT | SHEAF_SLICE_IN_PLACE);
	CHANGED(flags, SHEAF_SLICE_FLAT | SHEAF_SLICE_STRIDED);
	CHANGED(flags, SHEAF_SLICE_FLAT | SHEAF_SLICE_SAVE_ONLY);
	s.flags = 0;
	s.flat_start = s.flat_count = 0;
	is_new(hash_of(&s, 1), "flags");
	s = slice();
	s.ndim = 1;
	is_new(hash_of(&s, 1), "ndim");
	two[1].name = "v";
	is_new(hash_of(two, 2), "a second slice");
	two[0].name = "v";
	two[1].name = "w";
	is_new(hash_of(two, 2), "their order");
	is_new(hash_of(two, 0), "no slice");
	two[0] = two[1];
	is_new(hash_of(two, 2), "a slice twice");
}

TEST(where_the_memory_is_does_not)
{
	struct sheaf_slice s = slice();
	uint64_t hash = hash_of(&s, 1);
	struct sheaf_state *st = shf_state_new();
	void *there = memory[1] + 100;
	struct sheaf_error err;

	s.data = memory[1] + 7;
	CHECK(hash_of(&s, 1) == hash);
	s.data = NULL;
	CHECK(hash_of(&s, 1) == hash);
	CHECK_INT(shf_state_add(st, &s, &err), 0);
	CHECK_RC(shf_state_move_all(st, &there, 1, &err), 0, &err);
	CHECK(shf_state_hash(st) == hash);
	shf_state_put(st);
}

TEST(two_ways_to_write_a_slice_are_one)
{
	struct sheaf_slice a = slice(), b = slice();

	a.family = NULL;
	a.data_dtype = 0;
	CHECK(hash_of(&a, 1) == hash_of(&b, 1));
	a = b = (struct sheaf_slice){ .size = sizeof(a), .name = "w", .dtype = SHEAF_F32,
		.ndim = 2, .shape = { 3, 4 }, .count = { 3, 4 }, .data = memory[0] };
	b.stride[0] = 4;
	b.stride[1] = 1;
	b.start[5] = 99;        /* beyond ndim */
	CHECK(hash_of(&a, 1) == hash_of(&b, 1));
}

static uint64_t hash_of_stream(const char *stream, const char *rule, int rank, int ranks,
                               size_t bytes)
{
	struct sheaf_state *st = shf_state_new();
	uint64_t hash;

	CHECK_INT(shf_state_stream(st, stream, rule, rank, ranks, memory, bytes, NULL), 0);
	hash = shf_state_hash(st);
	shf_state_put(st);
	return hash;
}

TEST(streams_of_ranks_change_it)
{
	struct sheaf_slice same = { .size = sizeof(same), .family = "ranks", .name = "rng/1",
		.dtype = SHEAF_U8, .ndim = 1, .shape = { 9 }, .count = { 9 }, .data = memory };

	seen_n = 0;
	is_new(hash_of_stream("rng", "strict", 1, 4, 9), "a stream");
	is_new(hash_of_stream("rnh", "strict", 1, 4, 9), "its name");
	is_new(hash_of_stream("rng", "modulo", 1, 4, 9), "its rule");
	is_new(hash_of_stream("rng", "strict", 2, 4, 9), "its rank");
	is_new(hash_of_stream("rng", "strict", 1, 5, 9), "its number of ranks");
	is_new(hash_of_stream("rng", "strict", 1, 4, 8), "its size");
	is_new(hash_of(&same, 1), "a tensor");
	CHECK(hash_of_stream("rng", NULL, 1, 4, 9) == seen[0]);
}

static uint64_t hash_of_ema(const char *family, const struct sheaf_ema *ema, int times)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice s = slice();
	struct sheaf_ema e = *ema;
	uint64_t hash;

	CHECK_INT(shf_state_add(st, &s, NULL), 0);
	for (int i = 0; i < times; i++) {
		CHECK_INT(shf_state_ema(st, family, &e, NULL), 0);
		e.name = "more";
	}
	hash = shf_state_hash(st);
	shf_state_put(st);
	return hash;
}

TEST(averages_change_it)
{
	const struct sheaf_ema base = { .size = sizeof(base), .coef = 0.5, .loss_max = 2,
		.interval = 3, .warmup = 4 };
	struct sheaf_ema e[5] = { base, base, base, base, base };
	struct sheaf_slice s = slice();

	seen_n = 0;
	is_new(hash_of(&s, 1), "no averages");
	is_new(hash_of_ema(NULL, &base, 1), "averages");
	is_new(hash_of_ema("model", &base, 1), "their family");
	is_new(hash_of_ema(NULL, &base, 2), "two of them");
	e[0].name = "other";
	e[1].coef = 0.25;
	e[2].loss_max = 3;
	e[3].interval = 2;
	e[4].warmup = 5;
	for (int i = 0; i < 5; i++)
		is_new(hash_of_ema(NULL, &e[i], 1), "a rule");
}

TEST(a_state_of_no_use_has_none)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice s = slice();
	struct sheaf_error err;

	CHECK(shf_state_hash(NULL) == 0);
	CHECK(shf_state_hash(st) != 0);
	s.ndim = 9;
	CHECK_INT(shf_state_add(st, &s, &err), SHEAF_EINVAL);
	CHECK(shf_state_hash(st) == 0);
	shf_state_put(st);
}
