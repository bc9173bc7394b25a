/* SPDX-License-Identifier: Apache-2.0 */
/* What lies where: files, stripes and blocks of layouts that are written down here, and which rank
 * is the home of which stripe. */
#include "t.h"
#include <stdbool.h>
#include "crc64.h"
#include "deal_home.h"
#include "layout.h"

enum { N = 7 };

/* Three files: of a byte, of two stripes and a byte, of a stripe. The second has two empty tensors,
 * one that begins in one stripe and ends in the next, and one that is read by itself. */
struct laid {
	struct shf_lt_family families[2];
	struct shf_lt_file files[3];
	struct shf_lt_tensor tensors[N];
	struct shf_lt_tied tied[3];
	struct shf_layout l;
};

static struct shf_lt_tensor bytes_at(const char *name, uint32_t family, uint32_t file, uint64_t off,
                                     uint64_t bytes)
{
	return (struct shf_lt_tensor){ .name = name, .family = family, .file = file,
		.dtype = SHEAF_U8, .unit = 1, .off = off, .bytes = bytes,
		.shape = { 1, { (int64_t)bytes } }, .items = { 1, { (int64_t)bytes } } };
}

static void lay(struct laid *d)
{
	struct sheaf_error err;

	*d = (struct laid){
		.families = { { "model", ".", 0, 2, 0, 5, 0 },
		              { "optimizer", "optimizer", 2, 1, 5, 2, 0 } },
		.files = { { .name = "a", .bytes = 1, .header_bytes = 1 },
		           { .name = "b", .bytes = 2 * SHF_STRIPE + 1, .header_bytes = SHF_PAGE },
		           { .name = "c", .bytes = SHF_STRIPE, .header_bytes = SHF_PAGE,
		             .family = 1 } },
		.tensors = {
			bytes_at("t1", 0, 1, SHF_STRIPE - 8, 16),
			bytes_at("t2", 0, 1, SHF_PAGE, SHF_STRIPE - SHF_PAGE - 8),
			bytes_at("t10", 0, 1, SHF_STRIPE + 8, 0),
			bytes_at("t11", 0, 1, SHF_STRIPE + 8, SHF_STRIPE - 7),
			bytes_at("t12", 0, 1, SHF_STRIPE + 8, 0),
			bytes_at("m", 1, 2, SHF_PAGE, SHF_PAGE),
			bytes_at("v", 1, 2, 2 * SHF_PAGE, SHF_STRIPE - 2 * SHF_PAGE) },
		.tied = { { 0, "head", "t2" }, { 1, "head", "v" }, { 1, "w", "m" } },
	};
	d->l = (struct shf_layout){ .families = d->families, .families_n = 2, .files = d->files,
		.files_n = 3, .tensors = d->tensors, .tensors_n = N, .tied = d->tied,
		.tied_n = 3 };
	CHECK_RC(shf_layout_number(&d->l, &err), 0, &err);
}

TEST(stripes_and_blocks_are_numbered_through_all_files)
{
	static const struct { uint32_t tensor, tensors; uint64_t stripe, block; } want[] = {
		{ 0, 0, 0, 0 }, { 0, 5, 1, 1 }, { 5, 2, 4, 34 } };
	static const uint32_t place[N] = { 1, 0, 2, 4, 3, 5, 6 }; /* empty ones before the full */
	static const uint32_t file_of[] = { 0, 1, 1, 1, 2, 2, 2 };
	struct laid d;

	lay(&d);
	CHECK_INT(d.l.stripes_n, 5);
	CHECK_INT(d.l.blocks_n, 1 + 33 + 16);
	for (int f = 0; f < 3; f++) {
		CHECK_INT(d.files[f].first_tensor, want[f].tensor);
		CHECK_INT(d.files[f].tensors_n, want[f].tensors);
		CHECK_INT(d.files[f].first_stripe, want[f].stripe);
		CHECK_INT(d.files[f].first_block, want[f].block);
	}
	for (int i = 0; i < N; i++)
		CHECK_INT(d.l.by_place[i], place[i]);
	for (uint64_t s = 0; s < sizeof(file_of) / sizeof(file_of[0]); s++)
		CHECK_INT(shf_layout_stripe_file(&d.l, s), file_of[s]);
	shf_layout_release(&d.l);
	CHECK(!d.l.files && !d.l.tensors_n);
}

/* Against a look at each of them. */
TEST(what_ends_behind_a_byte_is_found)
{
	static const int64_t beside[] = { -1, 0, 1 };
	struct laid d;

	lay(&d);
	for (uint32_t f = 0; f < 3; f++)
		for (int i = 0; i < 2 * N; i++)
			for (int k = 0; k < 3; k++) {
				const struct shf_lt_tensor *t = &d.tensors[i / 2];
				uint64_t at = t->off + (i % 2 ? t->bytes : 0) + (uint64_t)beside[k];
				uint32_t pos = d.files[f].first_tensor;
				uint32_t end = pos + d.files[f].tensors_n;

				for (; pos < end; pos++) {
					t = &d.tensors[d.l.by_place[pos]];
					if (t->off + t->bytes > at)
						break;
				}
				CHECK_INT(shf_layout_at(&d.l, f, at), pos);
			}
	shf_layout_release(&d.l);
}

TEST(a_stripe_has_the_tensors_that_have_bytes_in_it)
{
	static const struct {
		uint32_t file;
		uint64_t index, lo, hi;
		uint32_t n, numbers[3];
	} want[] = {
		{ 0, 0, 0, 1, 0, { 0 } }, { 1, 0, 0, SHF_STRIPE, 2, { 1, 0 } },
		{ 1, 1, SHF_STRIPE, 2 * SHF_STRIPE, 2, { 0, 3 } },
		{ 1, 2, 2 * SHF_STRIPE, 2 * SHF_STRIPE + 1, 1, { 3 } },
		{ 2, 0, 0, SHF_STRIPE, 2, { 5, 6 } },
	};

	for (int loose = 0; loose < 2; loose++) { /* then "t11" is read by itself */
		struct laid d;

		lay(&d);
		d.tensors[3].loose = loose;
		for (uint64_t s = 0; s < 5; s++) {
			struct shf_arena arena = { 0 };
			const uint32_t *numbers;
			struct shf_stripe st;
			size_t n = want[s].n;

			CHECK_INT(shf_layout_stripe(&d.l, s, &arena, &st, &numbers), 0);
			n -= loose && n && want[s].numbers[n - 1] == 3;
			CHECK(st.file == want[s].file && st.index == want[s].index);
			CHECK(st.lo == want[s].lo && st.hi == want[s].hi);
			CHECK_INT(st.payload, d.files[st.file].header_bytes);
			CHECK_INT(st.tensors_n, n);
			for (uint32_t i = 0; i < n; i++) {
				CHECK_INT(numbers[i], want[s].numbers[i]);
				CHECK(st.tensors[i].tensor == i && st.tensors[i].unit == 1);
				CHECK_INT(st.tensors[i].off, d.tensors[numbers[i]].off);
				CHECK_INT(st.tensors[i].shape.dim[0], d.tensors[numbers[i]].bytes);
			}
			shf_arena_release(&arena);
		}
		shf_layout_release(&d.l);
	}
}

TEST(a_tensor_that_begins_where_a_stripe_ends_is_of_the_next_one)
{
	static const size_t n[] = { 0, 2, 1, 1, 2 };
	struct sheaf_error err;
	struct laid d;

	lay(&d);
	d.tensors[0].bytes = 8;
	for (int i = 2; i < 5; i++)
		d.tensors[i].off = SHF_STRIPE;
	d.tensors[3].bytes = SHF_STRIPE + 1;
	CHECK_RC(shf_layout_number(&d.l, &err), 0, &err);
	for (uint64_t s = 0; s < 5; s++) {
		struct shf_arena arena = { 0 };
		const uint32_t *numbers;
		struct shf_stripe st;

		CHECK_INT(shf_layout_stripe(&d.l, s, &arena, &st, &numbers), 0);
		CHECK_INT(st.tensors_n, n[s]);
		shf_arena_release(&arena);
	}
	shf_layout_release(&d.l);
}

TEST(names_are_found_in_their_own_family)
{
	static const char *const names[N] = { "t1", "t2", "t10", "t11", "t12", "m", "v" };
	struct laid d;

	lay(&d);
	CHECK_INT(shf_layout_family(&d.l, "model"), 0);
	CHECK_INT(shf_layout_family(&d.l, "optimizer"), 1);
	CHECK_INT(shf_layout_family(&d.l, "ema"), -1);
	for (int i = 0; i < N; i++) {
		CHECK_INT(shf_layout_find(&d.l, i < 5 ? "model" : "optimizer", names[i]), i);
		CHECK_INT(shf_layout_find(&d.l, i < 5 ? "optimizer" : "model", names[i]), -1);
		CHECK_INT(shf_layout_find(&d.l, "ema", names[i]), -1);
	}
	CHECK_STR(shf_layout_tied_to(&d.l, "model", "head"), "t2");
	CHECK_STR(shf_layout_tied_to(&d.l, "optimizer", "head"), "v");
	CHECK_STR(shf_layout_tied_to(&d.l, "optimizer", "w"), "m");
	CHECK(!shf_layout_tied_to(&d.l, "model", "w") && !shf_layout_tied_to(&d.l, "model", "t2"));
	CHECK(shf_family_order("model", "a") < 0 && shf_family_order("a", "model") > 0);
	CHECK(shf_family_order("model", "model") == 0 && shf_family_order("a", "b") < 0);
	CHECK(shf_family_order("b", "a") > 0 && shf_family_order("a", "a") == 0);
	shf_layout_release(&d.l);
}

TEST(whatever_is_another_layout_has_another_hash)
{
	struct laid d;
	uint64_t hash;

	lay(&d);
	hash = shf_layout_hash(&d.l);
	CHECK_INT(shf_layout_hash(&d.l), hash);
#define DIFFERS(place, other)                                            \
	do {                                                             \
		__typeof__(place) was = place;                           \
		place = other;                                           \
		CHECK(shf_layout_hash(&d.l) != hash);                    \
		place = was;                                             \
		CHECK_INT(shf_layout_hash(&d.l), hash);                  \
	} while (0)
	DIFFERS(d.tensors[0].name, "t3");
	DIFFERS(d.tensors[N - 1].name, "w");
	DIFFERS(d.tensors[0].items.dim[0], 17);
	DIFFERS(d.tensors[0].items.ndim, 2);
	DIFFERS(d.tensors[0].family, 1);
	DIFFERS(d.tensors[0].file, 2);
	DIFFERS(d.tensors[0].dtype, SHEAF_I8);
	DIFFERS(d.tensors[0].off, SHF_STRIPE);
	DIFFERS(d.families[0].name, "mode");
	DIFFERS(d.families[1].name, "optimizers");
	DIFFERS(d.l.tensors_n, N - 1);
	DIFFERS(d.l.families_n, 1);
	shf_layout_release(&d.l);
}

/* All ranks compare it, those of another sheaf too: it is the sum of these bytes. */
TEST(the_hash_of_a_layout_is_the_sum_of_these_bytes)
{
	struct shf_buf b = SHF_BUF_INIT;
	struct laid d;

	lay(&d);
	d.tensors[2].items = (struct shf_shape){ 3, { 4, 0, 5 } };
	for (int i = 0; i < N; i++) {
		const struct shf_lt_tensor *t = &d.tensors[i];

		shf_buf_add(&b, t->name, strlen(t->name) + 1);
		for (int k = 0; k < t->items.ndim; k++)
			shf_buf_u64(&b, (uint64_t)t->items.dim[k]);
		shf_buf_u32(&b, t->family);
		shf_buf_u32(&b, t->file);
		shf_buf_u32(&b, (uint32_t)t->dtype);
		shf_buf_u32(&b, (uint32_t)t->items.ndim);
		shf_buf_u64(&b, t->off);
	}
	shf_buf_add(&b, "model\0optimizer", 16);
	CHECK_INT(shf_layout_hash(&d.l), shf_crc64(b.data, b.len));
	shf_buf_release(&b);
	shf_layout_release(&d.l);
}

TEST(a_gap_is_told_with_those_on_both_sides_of_it)
{
	static const struct { int64_t before, after; const char *says; } all[] = {
		{ -1, -1, "" }, { 0, -1, " (rank 0 holds the part before)" },
		{ -1, 0, " (rank 0 holds the part after)" },
		{ 0, 0, " (rank 0 holds the part before, rank 0 the part after)" },
		{ 7, 2, " (rank 7 holds the part before, rank 2 the part after)" },
	};
	struct laid d;

	lay(&d);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		const struct shf_gap gap = { .box = { 1, { 3 }, { 2 } }, .before = all[i].before,
			.after = all[i].after };
		struct sheaf_error err;
		char want[120];

		snprintf(want, sizeof(want), "optimizer/m: no rank has added a slice for [3:5] of "
		         "[4096]%s",
		         all[i].says);
		CHECK_INT(shf_gap_fail(&err, &d.l, 5, &gap), SHEAF_ELAYOUT);
		CHECK_STR(err.msg, want);
	}
	shf_layout_release(&d.l);
}

/* Placed: names of files, and headers that are those of the files. */
TEST(files_are_named_by_their_number_and_headers_end_where_the_data_begins)
{
	static const char *const want[] = { "model-00001-of-00002.safetensors",
		"model-00002-of-00002.safetensors",
		"optimizer/optimizer-00001-of-00001.safetensors" };
	struct shf_lt_family families[] = { { .name = "model", .dir = "." },
	                                    { .name = "optimizer", .dir = "optimizer" } };
	struct shf_lt_tensor tensors[] = { bytes_at("a", 0, 0, 0, 600), bytes_at("b", 0, 0, 0, 400),
		bytes_at("c", 0, 0, 0, 1), bytes_at("m", 1, 0, 0, 7) };
	struct shf_layout l = { .families = families, .families_n = 2, .tensors = tensors,
		.tensors_n = 4 };
	struct sheaf_error err;

	CHECK_RC(shf_layout_place(&l, 1000, &err), 0, &err);
	CHECK_INT(l.files_n, 3);
	CHECK(families[0].first_file == 0 && families[0].files_n == 2);
	CHECK(families[1].first_file == 2 && families[1].files_n == 1);
	CHECK(families[0].first_tensor == 0 && families[0].tensors_n == 3);
	CHECK(families[1].first_tensor == 3 && families[1].tensors_n == 1);
	CHECK(families[0].bytes == 1001 && families[1].bytes == 7);
	for (uint32_t f = 0; f < 3; f++) {
		struct shf_buf header = SHF_BUF_INIT;

		CHECK_STR(l.files[f].name, want[f]);
		CHECK_INT(l.files[f].family, f == 2);
		CHECK_INT(l.files[f].header_bytes, 4096);
		CHECK_INT(l.files[f].bytes, 4096 + (f == 0 ? 1000 : f == 1 ? 1 : 7));
		CHECK_RC(shf_layout_header(&l, f, &header, &err), 0, &err);
		CHECK_INT(header.len, 4096);
		CHECK(strstr((char *)header.data + 8, f == 0 ? "\"b\":{\"dtype\":\"U8\",\"shape\":"
		             "[400],\"data_offsets\":[600,1000]}}" : f == 1
		             ? "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"
		             : "\"m\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[0,7]}}"));
		shf_buf_release(&header);
	}
	CHECK(tensors[0].off == 4096 && tensors[1].off == 4696 && tensors[1].file == 0);
	CHECK(tensors[2].off == 4096 && tensors[2].file == 1 && tensors[3].file == 2);
	CHECK_INT(l.stripes_n, 3);
	shf_arena_release(&l.arena);
}

/* ---- homes ---- */

/* A rest of a file that is shorter than a run of a node goes with the stripe before it. */
TEST(each_stripe_has_one_home_and_a_short_rest_that_of_the_stripe_before_it)
{
	static const uint64_t more[] = { 0, 1, SHF_NODE_RUN - 1, SHF_NODE_RUN, SHF_STRIPE - 1 };
	int rests = 0, others = 0;

	for (int i = 0; i < 5 * 5; i++) {
		struct shf_lt_file files[3] = { { .bytes = 2 * SHF_STRIPE + more[i % 5] },
			{ .bytes = more[i / 5] }, { .bytes = SHF_STRIPE + more[i / 5] } };
		struct shf_layout l = { .files = files, .files_n = 3 };
		struct sheaf_error err;

		CHECK_RC(shf_layout_number(&l, &err), 0, &err);
		for (uint32_t ranks = 1; ranks < 12; ranks++) {
			CHECK_INT(shf_home_first(&l, ranks, 0), 0);
			CHECK_INT(shf_home_first(&l, ranks, ranks), l.stripes_n);
			for (uint64_t s = 0; s < l.stripes_n; s++) {
				uint32_t f = shf_layout_stripe_file(&l, s);
				uint64_t home = shf_home_of(&l, ranks, &files[f], s);
				uint64_t left = files[f].bytes -
				                (s - files[f].first_stripe) * SHF_STRIPE;
				bool rest = s > files[f].first_stripe && left < SHF_NODE_RUN;

				CHECK(home < ranks);
				CHECK(shf_home_first(&l, ranks, home) <= s);
				CHECK(shf_home_first(&l, ranks, home + 1) > s);
				CHECK_INT(home, (s - rest) * ranks / l.stripes_n);
				rests += rest;
				others += !rest;
			}
		}
		shf_arena_release(&l.arena);
	}
	CHECK(rests > 100 && others > 1000);
}
