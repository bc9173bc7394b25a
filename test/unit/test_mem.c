/* SPDX-License-Identifier: Apache-2.0 */
#include "t.h"
#include "mem.h"
#include "memfail.h"
#include "sheaf.h"
#include "deal_home.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#endif

/* From where the compiler does not look, so that it has no opinion on sizes too large. */
static volatile size_t huge = SIZE_MAX;

TEST(sums_and_products_that_overflow_leave_the_output_alone)
{
	size_t s = 7;
	uint64_t u = 7;

	CHECK(!shf_mul(&s, SIZE_MAX / 2 + 1, 2) && s == 7);
	CHECK(!shf_add(&s, SIZE_MAX, 1) && s == 7);
	CHECK(!shf_mul64(&u, UINT64_C(1) << 32, UINT64_C(1) << 32) && u == 7);
	CHECK(!shf_add64(&u, UINT64_MAX, 1) && u == 7);
	CHECK(shf_mul(&s, SIZE_MAX / 2, 2) && s == SIZE_MAX - 1);
	CHECK(shf_add(&s, SIZE_MAX - 1, 1) && s == SIZE_MAX);
	CHECK(shf_mul64(&u, UINT64_C(1) << 31, UINT64_C(1) << 32) && u == UINT64_C(1) << 63);
	CHECK(shf_add64(&u, UINT64_MAX - 1, 1) && u == UINT64_MAX);
	CHECK(shf_mul(&s, SIZE_MAX, 0) && s == 0);
}

TEST(nothing_can_be_allocated_and_too_much_can_not)
{
	void *p[] = { shf_alloc(0, 8), shf_alloc(8, 0), shf_zalloc(0, 8), shf_zalloc(8, 0),
		      shf_realloc(NULL, 0, 8) };

	for (size_t i = 0; i < sizeof(p) / sizeof(p[0]); i++) {
		CHECK(p[i] != NULL);
		shf_free(p[i]);
	}
	CHECK(!shf_alloc(huge / 2, 3));
	CHECK(!shf_zalloc(huge / 2, 3));
	CHECK(!shf_realloc(NULL, huge / 2, 3));
	/* What is left when the product has wrapped would be there. */
	CHECK(!shf_alloc(huge / 2 + 9, 2));
	CHECK(!shf_zalloc(huge / 2 + 9, 2));
	CHECK(!shf_realloc(NULL, huge / 2 + 9, 2));
	shf_free(NULL);
}

TEST(realloc_that_fails_keeps_the_block)
{
	char *p = shf_strdup("sheaf");

	CHECK(p && !strcmp(p, "sheaf"));
	CHECK(!shf_realloc(p, huge / 2, 3));
	memfail_at(1);
	CHECK(!shf_realloc(p, 100, 1));
	CHECK(memfail_end());
	CHECK_STR(p, "sheaf");
	shf_free(p);
}

TEST(zalloc_zeroes)
{
	uint8_t *p = shf_zalloc(1000, 3);

	CHECK(p != NULL);
	for (size_t i = 0; i < 3000; i++)
		CHECK(p[i] == 0);
	shf_free(p);
}

TEST(a_buffer_holds_what_was_appended)
{
	struct shf_buf b = SHF_BUF_INIT;
	static const uint8_t want[] = { 1, 0x34, 0x12, 4, 3, 2, 1, 8, 7, 6, 5, 4, 3, 2, 1,
					'a', 'b', '-', '7', 0, 0, 0 };
	uint8_t *fresh;

	shf_buf_u8(&b, 1);
	shf_buf_u16(&b, 0x1234);
	shf_buf_u32(&b, 0x01020304);
	shf_buf_u64(&b, UINT64_C(0x0102030405060708));
	shf_buf_adds(&b, "ab");
	shf_buf_addf(&b, "%d", -7);
	shf_buf_addf(&b, "%s", "");
	shf_buf_add(&b, NULL, 0);
	fresh = shf_buf_extend(&b, 3);
	CHECK(fresh && fresh == b.data + b.len - 3);
	CHECK(!b.oom);
	CHECK_INT(b.len, sizeof(want));
	assert_memory_equal(b.data, want, sizeof(want));
	shf_buf_release(&b);
	CHECK(!b.data && !b.len && !b.cap && !b.oom);
	shf_buf_release(&b);
	shf_buf_release(NULL);
}

TEST(a_buffer_grows_and_what_it_extends_by_is_zero_though_memory_is_used_again)
{
	struct shf_buf b = SHF_BUF_INIT;
	uint8_t *data;
	size_t cap;

	for (unsigned i = 0; i < 100000; i++)
		shf_buf_u32(&b, i);
	CHECK_INT(b.len, 400000);
	for (unsigned i = 0; i < 100000; i++)
		CHECK(shf_get32(b.data + 4 * i) == i);
	data = b.data;
	cap = b.cap;
	shf_buf_reset(&b);
	CHECK(b.data == data && b.cap == cap && b.len == 0);
	CHECK(shf_buf_extend(&b, 0) != NULL);
	data = shf_buf_extend(&b, 1000);
	for (size_t i = 0; i < 1000; i++)
		CHECK(data[i] == 0);
	shf_buf_release(&b);
}

/* Twice as much each time it is full, 64 at least, and at once what is asked for. */
TEST(a_buffer_has_room_for_twice_as_much_when_it_is_full)
{
	static const struct { size_t more, cap; } all[] = {
		{ 1, 64 }, { 63, 64 }, { 1, 128 }, { 63, 128 }, { 128, 256 }, { 257, 513 },
		{ 0, 513 }, { 1, 1026 },
	};
	struct shf_buf b = SHF_BUF_INIT;

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		CHECK(shf_buf_extend(&b, all[i].more));
		CHECK_INT(b.cap, all[i].cap);
	}
	shf_buf_release(&b);
}

TEST(reserved_bytes_need_no_allocation_later)
{
	struct shf_buf b = SHF_BUF_INIT;

	CHECK_INT(shf_buf_reserve(&b, 1000), 0);
	memfail_at(1);
	for (int i = 0; i < 1000; i++)
		shf_buf_u8(&b, 9);
	CHECK(!memfail_end());
	CHECK(!b.oom && b.len == 1000);
	shf_buf_release(&b);
}

TEST(a_failed_append_sticks_and_what_was_there_stays)
{
	struct shf_buf b = SHF_BUF_INIT;

	shf_buf_adds(&b, "sheaf");
	CHECK_INT(shf_buf_reserve(&b, huge), SHEAF_ENOMEM);
	CHECK(b.oom);
	shf_buf_adds(&b, "more");
	shf_buf_addf(&b, "%s", "more");
	CHECK(!shf_buf_extend(&b, 1));
	CHECK_INT(shf_buf_reserve(&b, 0), SHEAF_ENOMEM);
	CHECK(b.len == 5 && !memcmp(b.data, "sheaf", 5));
	shf_buf_reset(&b);
	shf_buf_adds(&b, "again");
	CHECK(!b.oom && b.len == 5 && !memcmp(b.data, "again", 5));
	shf_buf_release(&b);
}

TEST(each_allocation_of_a_buffer_may_fail)
{
	for (long nth = 1;; nth++) {
		struct shf_buf b = SHF_BUF_INIT;
		bool failed;

		memfail_at(nth);
		for (int i = 0; i < 200; i++)
			shf_buf_addf(&b, "%d,", i);
		failed = memfail_end();
		CHECK(b.oom == failed);
		CHECK(failed || b.len == 690);
		shf_buf_release(&b);
		if (!failed) {
			CHECK(nth > 3);
			break;
		}
	}
}

TEST(a_cursor_reads_what_a_buffer_wrote)
{
	struct shf_buf b = SHF_BUF_INIT;
	struct shf_cur c;

	shf_buf_u8(&b, 0xfe);
	shf_buf_u16(&b, 0xfedc);
	shf_buf_u32(&b, 0xfedcba98);
	shf_buf_u64(&b, UINT64_C(0xfedcba9876543210));
	shf_buf_adds(&b, "xy");
	c = (struct shf_cur){ b.data, b.data + b.len, false };
	CHECK(shf_cur_u8(&c) == 0xfe && shf_cur_u16(&c) == 0xfedc);
	CHECK(shf_cur_u32(&c) == 0xfedcba98);
	CHECK(shf_cur_u64(&c) == UINT64_C(0xfedcba9876543210));
	CHECK(!memcmp(shf_cur_bytes(&c, 2), "xy", 2));
	CHECK(c.p == c.end && !c.bad);
	CHECK(shf_cur_bytes(&c, 0) && !c.bad);
	shf_buf_release(&b);
}

TEST(a_cursor_past_the_end_is_bad_and_stays_so)
{
	uint8_t bytes[7] = { 1, 2, 3, 4, 5, 6, 7 };
	struct shf_cur c = { bytes, bytes + 7, false };

	CHECK(shf_cur_u64(&c) == 0 && c.bad);
	CHECK(shf_cur_u8(&c) == 0 && shf_cur_u16(&c) == 0 && shf_cur_u32(&c) == 0);
	CHECK(!shf_cur_bytes(&c, 0));
	c = (struct shf_cur){ bytes, bytes + 7, false };
	CHECK(!shf_cur_bytes(&c, SIZE_MAX) && c.bad);
	c = (struct shf_cur){ NULL, NULL, false };
	CHECK(shf_cur_bytes(&c, 0) && !c.bad);
	CHECK(shf_cur_u8(&c) == 0 && c.bad);
}

TEST(get_is_the_inverse_of_put_at_any_alignment)
{
	uint8_t p[16];

	for (size_t off = 0; off < 8; off++) {
		shf_put16(p + off, 0x8001);
		CHECK(shf_get16(p + off) == 0x8001 && p[off] == 1 && p[off + 1] == 0x80);
		shf_put32(p + off, 0x80000001);
		CHECK(shf_get32(p + off) == 0x80000001 && p[off] == 1 && p[off + 3] == 0x80);
		shf_put64(p + off, UINT64_C(0x8000000000000001));
		CHECK(shf_get64(p + off) == UINT64_C(0x8000000000000001));
		CHECK(p[off] == 1 && p[off + 7] == 0x80);
	}
}

/* Sizes of 0 to 5000, mostly small, now and then larger than any chunk. */
static size_t piece(unsigned i)
{
	return i % 97 == 96 ? 3000000 : i % 13 == 12 ? 5000 : i * 7919 % 100;
}

TEST(pieces_of_an_arena_are_aligned_zeroed_and_apart)
{
	enum { N = 400 };
	struct shf_arena a = { NULL, 0 };
	uint8_t *p[N];

	for (unsigned i = 0; i < N; i++) {
		p[i] = shf_arena_alloc(&a, piece(i), 1);
		CHECK(p[i] && (uintptr_t)p[i] % 16 == 0);
		for (size_t k = 0; k < piece(i); k++)
			if (p[i][k])
				fail();
		memset(p[i], (int)(i % 255) + 1, piece(i));
	}
	for (unsigned i = 0; i < N; i++)
		for (size_t k = 0; k < piece(i); k++)
			if (p[i][k] != i % 255 + 1)
				fail();
	shf_arena_release(&a);
	CHECK(!a.chunks && !a.used);
	shf_arena_release(&a);
	shf_arena_release(NULL);
}

TEST(an_arena_copies_strings_with_their_nul)
{
	struct shf_arena a = { NULL, 0 };

	CHECK_STR(shf_arena_strdup(&a, "sheaf of pages", 5), "sheaf");
	CHECK_STR(shf_arena_strdup(&a, NULL, 0), "");
	CHECK(!shf_arena_strdup(&a, "", huge));
	CHECK(!shf_arena_alloc(&a, huge, 1));
	CHECK(!shf_arena_alloc(&a, huge / 2, 3));
	CHECK_STR(shf_arena_strdup(&a, "still", 5), "still");
	shf_arena_release(&a);
}

TEST(small_pieces_share_chunks_and_large_ones_do_not_end_them)
{
	struct shf_arena a = { NULL, 0 };
	long allocations = 0;

	memfail_at(1000000);
	for (int i = 0; i < 10000; i++) {
		CHECK(shf_arena_alloc(&a, i % 100 ? 16 : 500000, 1));
		allocations++;
	}
	allocations = 1000000 - atomic_load(&memfail_left);
	memfail_end();
	CHECK(allocations < 115);       /* 100 large ones, and chunks that double */
	shf_arena_release(&a);
}

#ifndef WITH_ASAN
/* Chunks have 4096 bytes and then twice as many as the one before; more than a quarter of one is
 * a chunk by itself, and the newest goes on. */
TEST(pieces_need_these_chunks_and_no_more)
{
	static const struct { size_t pieces[4]; long chunks; } all[] = {
		{ { 1024, 3072 }, 1 }, { { 1024, 3073 }, 2 }, { { 1024, 3072, 1 }, 2 },
		{ { 1025, 1 }, 2 }, { { 4096, 2048, 1 }, 2 }, { { 4096, 2049, 1 }, 3 },
		{ { 16, 4096, 16 }, 2 }, { { 16, 4096, 4064, 16 }, 2 },
		{ { 16, 4096, 4064, 17 }, 3 },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct shf_arena a = { NULL, 0 };

		memfail_at(1000);
		for (int k = 0; k < 4 && all[i].pieces[k]; k++)
			CHECK(shf_arena_alloc(&a, all[i].pieces[k], 1));
		CHECK_INT(1000 - atomic_load(&memfail_left), all[i].chunks);
		memfail_end();
		shf_arena_release(&a);
	}
}
#endif

TEST(each_allocation_of_an_arena_may_fail)
{
	for (long nth = 1;; nth++) {
		struct shf_arena a = { NULL, 0 };
		bool failed, got = true;

		memfail_at(nth);
		for (unsigned i = 0; i < 200; i++)
			got &= shf_arena_alloc(&a, piece(i), 1) != NULL;
		failed = memfail_end();
		CHECK(got != failed);
		shf_arena_release(&a);
		if (!failed) {
			CHECK(nth > 5);
			break;
		}
	}
}

#ifdef WITH_ASAN
TEST(behind_each_piece_of_an_arena_lies_a_red_zone)
{
	struct shf_arena a = { NULL, 0 };
	uint8_t *p[40];

	for (size_t n = 1; n < 40; n++)
		p[n] = shf_arena_alloc(&a, n, 1);
	for (size_t n = 1; n < 40; n++) {
		CHECK(p[n] && !__asan_region_is_poisoned(p[n], n));
		for (size_t k = 0; k < 16; k++)
			CHECK(__asan_address_is_poisoned(p[n] + n + k));
	}
	shf_arena_release(&a);
}
#endif
