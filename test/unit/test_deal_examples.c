/* SPDX-License-Identifier: Apache-2.0 */
/* Dealing by example (lib/plan/deal.h): who writes and who reads what, and in whose turn.
 * Allocations fail. */
#include "t.h"
#include "deal.h"
#include "parts.h"

#define PAGE 4096
#define MIB (UINT64_C(1) << 20)

/* Two-byte items, one tensor of rows x columns behind a header of one page. */
struct sheet {
	struct shf_deal_tensor tensor;
	struct shf_piece piece[96];
	size_t pieces_n;
	int32_t node[64];
	uint32_t ranks;
	struct shf_arena arena;
	struct shf_dealt dealt;
	struct shf_gap gap;
};

static struct sheet sheet_of(int64_t rows, int64_t columns, uint32_t ranks)
{
	return (struct sheet){
		.tensor = { .unit = 2, .off = PAGE, .shape = { 2, { rows, columns } } },
		.ranks = ranks,
	};
}

static void hold(struct sheet *t, uint32_t rank, int64_t row, int64_t rows, int64_t column,
                 int64_t columns)
{
	t->piece[t->pieces_n++] = (struct shf_piece){
		rank, 0, { 2, { row, column }, { rows, columns } }
	};
}

static struct shf_stripe sheet_stripe(const struct sheet *t, uint64_t i, uint64_t bytes)
{
	const int64_t *dim = t->tensor.shape.dim;
	uint64_t items, end, hi = (i + 1) * bytes;

	if (__builtin_mul_overflow(dim[0], dim[1], &items))
		items = 64 * 64;
	end = PAGE + 2 * items;
	return (struct shf_stripe){ .index = i, .lo = i * bytes, .hi = hi < end ? hi : end,
		.payload = PAGE, .tensors = &t->tensor, .tensors_n = 1 };
}

static int save_sheet(struct sheet *t, uint64_t i, uint64_t bytes)
{
	struct shf_stripe s = sheet_stripe(t, i, bytes);

	return shf_deal_save(&t->arena, &s, t->piece, t->pieces_n, t->node, t->ranks, 0,
	                     &t->dealt, &t->gap);
}

static int load_sheet(struct sheet *t, uint64_t i, uint64_t bytes)
{
	struct shf_stripe s = sheet_stripe(t, i, bytes);

	return shf_deal_load(&t->arena, &s, t->piece, t->pieces_n, t->node, t->ranks, &t->dealt);
}

static void add_bytes(const struct sheet *t, uint64_t *bytes)
{
	for (size_t i = 0; i < t->dealt.segments_n; i++)
		bytes[t->dealt.segments[i].rank] += t->dealt.segments[i].hi -
		                                    t->dealt.segments[i].lo;
}

TEST(replicas_write_equal_shares)
{
	struct sheet t = sheet_of(64 * 4096, 2048, 4);
	uint64_t bytes[4] = { 0 };

	for (uint32_t r = 0; r < 4; r++)
		hold(&t, r, 0, 64 * 4096, 0, 2048);
	for (uint64_t i = 0; i < 64; i++) {
		CHECK_INT(save_sheet(&t, i, SHF_STRIPE), 0);
		CHECK_INT(t.dealt.segments_n, i ? 1 : 2);       /* the header is one of its own */
		add_bytes(&t, bytes);
	}
	for (int r = 0; r < 4; r++)
		CHECK_INT(bytes[r], 16 * SHF_STRIPE);
	shf_arena_release(&t.arena);
}

/* tp 4 inside each of 4 nodes, the last axis cut: each rank of each node writes and reads. */
TEST(interleaved_replicas_on_other_nodes_work_too)
{
	struct sheet t = sheet_of(32 * 4096, 2048, 16);
	uint64_t written[16] = { 0 }, read[16] = { 0 };

	for (uint32_t r = 0; r < 16; r++) {
		t.node[r] = (int32_t)r / 4;
		hold(&t, r, 0, 32 * 4096, r % 4 * 512, 512);
	}
	for (uint64_t i = 0; i < 32; i++) {
		CHECK_INT(save_sheet(&t, i, SHF_STRIPE), 0);
		for (size_t k = 0; k < t.dealt.moves_n; k++) {
			const struct shf_move *m = &t.dealt.moves[k];

			CHECK_INT(t.node[m->rank], t.node[t.dealt.segments[m->segment].rank]);
		}
		add_bytes(&t, written);
		CHECK_INT(load_sheet(&t, i, SHF_STRIPE), 0);
		CHECK_INT(t.dealt.segments_n, 1);
		add_bytes(&t, read);
	}
	for (int r = 0; r < 16; r++) {
		CHECK_INT(written[r], 2 * SHF_STRIPE);
		CHECK_INT(read[r], 2 * SHF_STRIPE);
	}
	shf_arena_release(&t.arena);
}

TEST(an_edge_page_goes_to_the_holder_of_its_first_byte)
{
	struct sheet t = sheet_of(1024, 1000, 2);
	const struct shf_segment *s;
	uint64_t edge = PAGE + 500 * 2000;

	t.node[1] = 1;          /* who would have it by the bytes: rank 1 has most of the page */
	hold(&t, 0, 0, 500, 0, 1000);
	hold(&t, 1, 500, 524, 0, 1000);
	CHECK_INT(save_sheet(&t, 0, SHF_STRIPE), 0);
	CHECK_INT(t.dealt.segments_n, 3);
	s = t.dealt.segments;
	CHECK(s[0].lo == 0 && s[0].hi == PAGE && s[0].rank == 0);
	CHECK(s[1].hi == (edge / PAGE + 1) * PAGE && s[1].rank == 0);
	CHECK(s[2].hi == PAGE + 1024 * 2000 && s[2].rank == 1);
	for (size_t i = 0; i < t.dealt.moves_n; i++) {
		CHECK(t.dealt.moves[i].segment != 0);
		CHECK(t.dealt.moves[i].segment == 1 || t.dealt.moves[i].rank == 1);
	}
	shf_arena_release(&t.arena);
}

TEST(a_mixed_stretch_goes_where_most_of_it_is)
{
	struct sheet t = sheet_of(1024, 1000, 3);

	/* Rank 0 has 300 columns, 1 and 2 on the other node have 350 each. */
	t.node[1] = t.node[2] = 7;
	hold(&t, 0, 0, 1024, 0, 300);
	hold(&t, 1, 0, 1024, 300, 350);
	hold(&t, 2, 0, 1024, 650, 350);
	for (uint64_t i = 0; i < 4; i++) {
		CHECK_INT(save_sheet(&t, i, 100 * PAGE), 0);
		CHECK_INT(t.dealt.segments[t.dealt.segments_n - 1].rank, 1 + i % 2);
		CHECK_INT(t.dealt.segments[0].rank, 1 + i % 2); /* the header follows it */
	}
	shf_arena_release(&t.arena);
}

/* A cell over all rows stands before cells that end earlier, and is still found in the last. */
TEST(long_runs_and_pages_between_them_take_turns_in_each_row)
{
	struct sheet t = sheet_of(10, 2048 + 65536, 3);

	hold(&t, 0, 0, 10, 0, 2048);
	hold(&t, 1, 0, 5, 2048, 65536);
	hold(&t, 2, 5, 5, 2048, 65536);
	CHECK_INT(save_sheet(&t, 0, SHF_STRIPE), 0);
	CHECK_INT(t.dealt.segments_n, 21);
	CHECK_INT(t.dealt.moves_n, 20);
	for (uint32_t i = 0; i < 20; i++) {
		const struct shf_segment *s = &t.dealt.segments[i + 1];
		uint32_t want = i % 2 == 0 ? 0 : i < 10 ? 1 : 2;

		CHECK_INT(s->rank, want);
		CHECK_INT(s->hi - s->lo, want ? 131072 : PAGE);
		CHECK(t.dealt.moves[i].segment == i + 1 && t.dealt.moves[i].rank == want);
	}
	shf_arena_release(&t.arena);
}

/* Rows that two ranks have halves of: of 64 KiB each has its own, of a page less all are one's. */
TEST(a_run_is_long_from_64_kib_on)
{
	for (int shorter = 0; shorter < 2; shorter++) {
		int64_t half = 32768 - shorter * PAGE / 2;
		struct sheet t = sheet_of(8, 2 * half, 2);

		hold(&t, 0, 0, 8, 0, half);
		hold(&t, 1, 0, 8, half, half);
		CHECK_INT(save_sheet(&t, 0, SHF_STRIPE), 0);
		CHECK_INT(t.dealt.segments_n, shorter ? 2 : 17);
		for (uint32_t i = 1; i < t.dealt.segments_n && !shorter; i++) {
			CHECK_INT(t.dealt.segments[i].rank, (i + 1) % 2);
			CHECK_INT(t.dealt.segments[i].hi - t.dealt.segments[i].lo, 65536);
		}
		shf_arena_release(&t.arena);
	}
}

/* Two nodes, each with half of the rows. */
TEST(a_stripe_is_collected_where_a_node_has_less_than_its_run)
{
	for (int64_t less = 0; less < 2; less++) {
		struct sheet t = sheet_of((int64_t)SHF_NODE_RUN / 2 - less, 2, 2);
		struct shf_stripe s = sheet_stripe(&t, 0, SHF_STRIPE);

		s.collect = true;
		s.collector = 1;
		t.node[1] = 1;
		hold(&t, 0, 0, 1024 * 1024, 0, 2);
		hold(&t, 1, 1024 * 1024, t.tensor.shape.dim[0] - 1024 * 1024, 0, 2);
		CHECK_INT(s.hi - PAGE, 2 * SHF_NODE_RUN - 4 * (uint64_t)less);
		CHECK_INT(shf_deal_save(&t.arena, &s, t.piece, t.pieces_n, t.node, 2, 0, &t.dealt,
		                        &t.gap), 0);
		CHECK_INT(t.dealt.collected, less);
		shf_arena_release(&t.arena);
	}
}

/* Apart, one reads the first half and one all of it: four blocks at a time one of them counts. */
TEST(who_reads_for_himself_counts_blocks_in_his_turn)
{
	static const struct shf_segment want[] = {
		{ 0, 4 * MIB, 0, false }, { 4 * MIB, 5 * MIB, 0, true }, { 0, 4 * MIB, 1, true },
		{ 4 * MIB, 8 * MIB + PAGE, 1, false } };
	struct sheet t = sheet_of(8 * 512, 1024, 3);
	struct shf_stripe s = sheet_stripe(&t, 0, SHF_STRIPE);

	s.apart = true;
	hold(&t, 0, 0, 4 * 512, 0, 1024);
	hold(&t, 1, 0, 8 * 512, 0, 1024);
	CHECK_INT(shf_deal_load(&t.arena, &s, t.piece, t.pieces_n, t.node, 3, &t.dealt), 0);
	CHECK_INT(t.dealt.segments_n, 4);
	for (int i = 0; i < 4; i++) {
		const struct shf_segment *g = &t.dealt.segments[i];

		CHECK(g->lo == want[i].lo && g->hi == want[i].hi && g->rank == want[i].rank);
		CHECK_INT(g->quiet, want[i].quiet);
	}
	for (size_t i = 0; i < t.dealt.moves_n; i++)
		CHECK_INT(t.dealt.moves[i].rank, want[t.dealt.moves[i].segment].rank);
	shf_arena_release(&t.arena);
}

TEST(apart_a_stripe_has_less_than_64_blocks)
{
	for (uint64_t pages = 0; pages < 2; pages++) {
		struct sheet t = sheet_of(65 * 512, 1024, 1);
		struct shf_stripe s = sheet_stripe(&t, 0, 64 * MIB - pages * PAGE);

		s.apart = true;
		hold(&t, 0, 0, 65 * 512, 0, 1024);
		CHECK_INT(shf_deal_load(&t.arena, &s, t.piece, t.pieces_n, t.node, 1, &t.dealt),
		          pages ? 0 : SHEAF_EINVAL);
		CHECK(!pages || t.dealt.segments_n == 1);
		shf_arena_release(&t.arena);
	}
}

TEST(eight_dimensions_are_dealt_and_nine_are_not)
{
	for (int32_t ndim = 8; ndim <= 9; ndim++) {
		struct sheet t = sheet_of(1, 1, 1);
		struct shf_stripe s = sheet_stripe(&t, 0, SHF_STRIPE);

		t.tensor.shape.ndim = ndim;
		for (int d = 0; d < 8; d++)
			t.tensor.shape.dim[d] = 1;
		t.piece[t.pieces_n++] = (struct shf_piece){ 0, 0, { .ndim = 8 } };
		for (int d = 0; d < 8; d++)
			t.piece[0].box.count[d] = 1;
		CHECK_INT(shf_deal_save(&t.arena, &s, t.piece, 1, t.node, 1, 0, &t.dealt, &t.gap),
		          ndim == 8 ? 0 : SHEAF_EINVAL);
		CHECK(ndim == 9 || t.dealt.moves_n == 1);
		shf_arena_release(&t.arena);
	}
}

TEST(nothing_between_two_bytes_is_nobodys)
{
	struct sheet t = sheet_of(4, 4, 2);
	struct shf_stripe s = { .lo = PAGE, .hi = PAGE, .payload = 0, .tensors = &t.tensor };

	CHECK_INT(shf_deal_save(&t.arena, &s, NULL, 0, t.node, 2, 0, &t.dealt, &t.gap), 0);
	CHECK(t.dealt.segments_n == 0 && t.dealt.moves_n == 0);
	shf_arena_release(&t.arena);
}

/* A piece that ends where what is asked for ends is given whole, though the range of bytes before
 * it is several boxes. */
struct given {
	struct shf_box box[8];
	int n;
};

static int give(void *arg, const struct shf_part *part, const struct shf_box *box)
{
	struct given *g = arg;

	(void)part;
	g->box[g->n++] = *box;
	return g->n == 8;
}

TEST(a_part_that_lies_between_two_bytes_is_given_whole)
{
	static const struct { int64_t lo, hi; int n; } all[] = {
		{ 250, 500, 1 }, { 260, 500, 1 }, { 261, 500, 2 }, { 260, 499, 3 },
		{ 500, 900, 0 }, { 0, 260, 0 }, { 0, 261, 1 }, { 499, 900, 1 } };
	struct sheet t = sheet_of(8, 100, 1);
	struct shf_stripe s = sheet_stripe(&t, 0, SHF_STRIPE);
	struct shf_parts p;

	hold(&t, 0, 2, 3, 60, 40);
	CHECK_INT(shf_parts_init(&p, &s, t.piece, 1, t.node, 1), 0);
	CHECK_INT(shf_parts_collect(&p, NULL), 0);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct given g = { .n = 0 };
		uint64_t units = 0;

		CHECK_INT(shf_parts_each(&p, PAGE + 2 * (uint64_t)all[i].lo,
		                         PAGE + 2 * (uint64_t)all[i].hi, give, &g), 0);
		CHECK_INT(g.n, all[i].n);
		for (int k = 0; k < g.n; k++)
			units += shf_box_units(&g.box[k]);
		CHECK_INT(units, i < 2 ? 120 : i < 4 ? 119 : g.n);
	}
	shf_parts_release(&p);
}

/* A stripe of 64 MiB in rows of 1 KiB, cut between ranks by rows or by columns. */
static bool is_collected(uint32_t ranks, bool columns, uint32_t nodes, uint64_t i)
{
	struct sheet t = sheet_of(16 * 4096, 512, ranks);
	struct shf_stripe s = sheet_stripe(&t, i, SHF_STRIPE);
	bool collected;

	s.collect = true;
	s.collector = ranks - 1;
	for (uint32_t r = 0; r < ranks; r++) {
		t.node[r] = (int32_t)(r % nodes);
		if (columns)
			hold(&t, r, 0, 16 * 4096, 512 / ranks * r, 512 / ranks);
		else
			hold(&t, r, 16 * 4096 / ranks * r, 16 * 4096 / ranks, 0, 512);
	}
	CHECK_INT(shf_deal_save(&t.arena, &s, t.piece, t.pieces_n, t.node, ranks, 0, &t.dealt,
	                        &t.gap), 0);
	collected = t.dealt.collected;
	for (size_t k = 0; collected && k < t.dealt.segments_n; k++)
		CHECK_INT(t.dealt.segments[k].rank, ranks - 1);
	shf_arena_release(&t.arena);
	return collected;
}

/* Of 16 nodes a stripe has bytes of four and, a page behind them, of a fifth. */
TEST(stripes_of_many_nodes_are_collected)
{
	for (uint64_t i = 1; i < 4; i++) {
		CHECK(!is_collected(4, false, 4, i));
		CHECK(!is_collected(8, false, 8, i));
		CHECK(is_collected(16, false, 16, i));
		CHECK(!is_collected(16, false, 3, i));
		CHECK(!is_collected(4, true, 4, i));
		CHECK(is_collected(8, true, 8, i));
		CHECK(!is_collected(8, true, 2, i));
	}
}

TEST(a_stripe_without_tensors_has_one_writer_and_no_reader)
{
	struct sheet t = sheet_of(0, 5, 3);
	struct shf_stripe s = { .file = 2, .index = 2, .lo = 2 * PAGE, .hi = 4 * PAGE,
		.payload = 4 * PAGE, .tensors = &t.tensor, .tensors_n = 1 };

	t.tensor.off = 4 * PAGE;
	for (int again = 0; again < 2; again++) {
		CHECK_INT(shf_deal_save(&t.arena, &s, NULL, 0, t.node, 3, 0, &t.dealt, &t.gap), 0);
		CHECK_INT(t.dealt.segments_n, 1);
		CHECK_INT(t.dealt.moves_n, 0);
		CHECK(t.dealt.segments[0].lo == s.lo && t.dealt.segments[0].hi == s.hi);
		CHECK_INT(t.dealt.segments[0].rank, 1);
		CHECK_INT(shf_deal_load(&t.arena, &s, NULL, 0, t.node, 3, &t.dealt), 0);
		CHECK_INT(t.dealt.segments_n, 0);
		s.tensors_n = 0;
	}
	shf_arena_release(&t.arena);
}

TEST(blocks_nobody_asks_for_are_not_read)
{
	struct sheet t = sheet_of(8 * 512, 1024, 2);

	/* Row 1024 begins a page after byte 2 MiB, row 3071 ends one after 6 MiB. */
	hold(&t, 1, 1024, 2, 0, 1);
	hold(&t, 0, 3071, 1, 5, 9);
	CHECK_INT(load_sheet(&t, 0, SHF_STRIPE), 0);
	CHECK_INT(t.dealt.segments_n, 2);
	CHECK(t.dealt.segments[0].lo == 2 * MIB && t.dealt.segments[0].hi == 3 * MIB);
	CHECK(t.dealt.segments[1].lo == 6 * MIB && t.dealt.segments[1].hi == 7 * MIB);
	CHECK(t.dealt.segments[0].rank == 1 && t.dealt.segments[1].rank == 0);
	CHECK_INT(t.dealt.moves_n, 2);
	shf_arena_release(&t.arena);
}

TEST(what_the_headers_forbid_is_refused)
{
	struct sheet good = sheet_of(64, 64, 2), t;

	hold(&good, 0, 0, 64, 0, 64);
	for (int k = 0; k < 9; k++) {
		t = good;
		if (k == 1)
			t.piece[0].rank = 2;
		if (k == 2)
			t.piece[0].tensor = 1;
		if (k == 3)
			t.piece[0].box.count[1] = 65;
		if (k == 4)
			t.piece[0].box.start[0] = -1;
		if (k == 5)
			t.piece[0].box.ndim = 1;
		if (k == 6)
			t.tensor.off++;
		if (k == 7)
			t.tensor.unit = 3;
		if (k == 8)
			t.tensor.shape.dim[0] = INT64_MAX;
		CHECK_INT(save_sheet(&t, 0, 2 * PAGE), k ? SHEAF_EINVAL : 0);
		CHECK_INT(load_sheet(&t, 0, 2 * PAGE), k ? SHEAF_EINVAL : 0);
		shf_arena_release(&t.arena);
	}
}

/* The n-th allocation fails: linked with --wrap, so the plan's calls come here. */
static int allocations_left = -1;

static bool is_spent(void)
{
	return allocations_left >= 0 && allocations_left-- == 0;
}

void *__real_shf_alloc(size_t n, size_t size);
void *__real_shf_zalloc(size_t n, size_t size);
void *__real_shf_realloc(void *p, size_t n, size_t size);
void *__real_shf_arena_alloc(struct shf_arena *a, size_t n, size_t size);
void *__wrap_shf_alloc(size_t n, size_t size);
void *__wrap_shf_zalloc(size_t n, size_t size);
void *__wrap_shf_realloc(void *p, size_t n, size_t size);
void *__wrap_shf_arena_alloc(struct shf_arena *a, size_t n, size_t size);

void *__wrap_shf_alloc(size_t n, size_t size)
{
	return is_spent() ? NULL : __real_shf_alloc(n, size);
}

void *__wrap_shf_zalloc(size_t n, size_t size)
{
	return is_spent() ? NULL : __real_shf_zalloc(n, size);
}

void *__wrap_shf_realloc(void *p, size_t n, size_t size)
{
	return is_spent() ? NULL : __real_shf_realloc(p, n, size);
}

void *__wrap_shf_arena_alloc(struct shf_arena *a, size_t n, size_t size)
{
	return is_spent() ? NULL : __real_shf_arena_alloc(a, n, size);
}

TEST(every_allocation_may_fail)
{
	for (int load = 0; load < 2; load++) {
		int nth = 0, rc;

		do {
			struct sheet t = sheet_of(600, 1000, 40);

			for (uint32_t r = 0; r < 40; r++) {
				t.node[r] = (int32_t)r / 3;
				hold(&t, r, r * 15, 15, 0, 1000 - r);
				hold(&t, (r + 1) % 40, r * 15, 15, 1000 - r - 1, r + 1);
			}
			allocations_left = nth++;
			rc = load ? load_sheet(&t, 0, SHF_STRIPE) : save_sheet(&t, 0, SHF_STRIPE);
			CHECK_INT(rc, allocations_left < 0 ? SHEAF_ENOMEM : 0);
			allocations_left = -1;
			shf_arena_release(&t.arena);
		} while (rc < 0);
		CHECK(nth > 20);
	}
}
