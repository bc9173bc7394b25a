/* SPDX-License-Identifier: Apache-2.0 */
/* Dealing against painting. The oracle shares no code with the plan: it paints, byte by byte,
 * who holds what (one bit a rank), who writes it and from whom it comes, and compares. */
#include "rng.h"
#include "t.h"
#include <stdlib.h>
#include "deal.h"

#define SEED UINT64_C(0x5eaf0401)
#define RANKS_MAX 12
#define TENSORS_MAX 6
#define PIECES_MAX 4000
#define FILE_MAX (4 << 20)
#define PAGE 4096
#define MIB (UINT64_C(1) << 20)
/* For each byte: a call of cmocka for each would be most of the time. */
#define SAME(got, want)                                                       \
	do {                                                                  \
		if ((got) != (want))                                          \
			CHECK_INT(got, want);                                 \
	} while (0)

/* One file, who holds what of it, and the painting. */
struct world {
	struct shf_deal_tensor tensor[TENSORS_MAX];
	size_t tensors_n;
	struct shf_piece piece[PIECES_MAX];
	size_t pieces_n;
	int32_t node[RANKS_MAX];
	uint32_t ranks, file, add_tensor, add_rank;
	uint64_t payload, bytes;
	bool plain;                     /* no rank has boxes that overlap or stand side by side */
	uint16_t mask[FILE_MAX];        /* ranks that hold the byte */
	uint8_t is_data[FILE_MAX];      /* a byte of a tensor */
};
static struct world w;                  /* too large for a stack */

static uint64_t units_of(const struct shf_shape *s)
{
	uint64_t n = 1;

	for (int d = 0; d < s->ndim; d++)
		n *= (uint64_t)s->dim[d];
	return n;
}

/* Call item with the bytes in the file of each row of the box. */
static void each_row(const struct shf_deal_tensor *t, const struct shf_box *b,
                     void (*item)(void *arg, uint64_t off, uint64_t bytes), void *arg)
{
	int64_t at[SHEAF_DIMS_MAX];
	int last = b->ndim - 1, d;

	CHECK_INT(b->ndim, t->shape.ndim);
	for (d = 0; d < b->ndim; d++) {
		CHECK(b->start[d] >= 0 && b->count[d] > 0);
		CHECK(b->start[d] + b->count[d] <= t->shape.dim[d]);
		at[d] = b->start[d];
	}
	do {
		uint64_t u = 0;

		for (d = 0; d < b->ndim; d++)
			u = u * (uint64_t)t->shape.dim[d] + (uint64_t)at[d];
		item(arg, t->off + u * t->unit,
		     t->unit * (uint64_t)(b->ndim ? b->count[last] : 1));
		for (d = last - 1; d >= 0; d--) {
			if (++at[d] < b->start[d] + b->count[d])
				break;
			at[d] = b->start[d];
		}
	} while (d >= 0);
}

static int add_piece(void *arg, const struct shf_box *b)
{
	(void)arg;
	assert_in_range(w.pieces_n, 0, PIECES_MAX - 1);
	w.piece[w.pieces_n++] = (struct shf_piece){ w.add_rank, w.add_tensor, *b };
	return 0;
}

static void cut(struct shf_box *b, int d, int64_t i, int64_t n)
{
	int64_t piece = (b->count[d] + n - 1) / n, off = i * piece;

	off = off < b->count[d] ? off : b->count[d];
	b->start[d] += off;
	b->count[d] = piece < b->count[d] - off ? piece : b->count[d] - off;
}

/* Rank i of n's part of the box, cut flat in its memory: dense or transposed. */
static void add_flat(const struct shf_box *b, int64_t i, int64_t n, bool turned)
{
	struct shf_mem m = { .box = *b };
	int64_t all = 1, piece;

	for (int k = 0; k < b->ndim; k++) {
		int d = turned ? k : b->ndim - 1 - k;

		m.stride[d] = all;
		all *= b->count[d];
	}
	piece = (all + n - 1) / n;
	m.lo = i * piece;
	m.hi = m.lo + piece < all ? m.lo + piece : all;
	if (m.lo < m.hi)
		CHECK_INT(shf_mem_boxes(&m, add_piece, NULL), 0);
}

/* How ranks [from, from + n) hold the tensor between them. */
static void lay_group(uint64_t *s, int64_t from, int64_t n)
{
	const struct shf_shape *t = &w.tensor[w.add_tensor].shape;
	int kind = t->ndim == 0 ? 0 : (int)rng_below(s, 6);
	int a = t->ndim ? (int)rng_below(s, t->ndim) : 0;
	int c = t->ndim ? (int)rng_below(s, t->ndim) : 0;
	int64_t m = 1 + rng_below(s, 3);
	bool turned = rng_below(s, 4) == 0;

	for (int64_t i = 0; i < n; i++) {
		struct shf_box b = { .ndim = t->ndim };
		bool empty = false;

		w.add_rank = (uint32_t)(from + i);
		memcpy(b.count, t->dim, sizeof(b.count));
		if (kind == 1 || kind == 5)
			cut(&b, a, i, n);
		if (kind == 2) {        /* two axes; ranks past the grid hold what rank 0 holds */
			int64_t k = n % m == 0 ? i : 0, rows = n % m == 0 ? n / m : 1;

			cut(&b, a, k / (n / rows), rows);
			cut(&b, c, n % m == 0 ? k % m : 0, n % m == 0 ? m : 1);
		}
		if (kind == 4 && n % 2 == 0)    /* ZeRO inside each half */
			cut(&b, a, i % 2, 2);
		for (int d = 0; d < b.ndim; d++)
			empty |= b.count[d] == 0;
		if (empty)
			continue;
		if (kind == 3)
			add_flat(&b, i, n, turned && units_of(t) < 64);
		else if (kind == 4 && n % 2 == 0)
			add_flat(&b, i / 2, n / 2, false);
		else
			add_piece(NULL, &b);
		if (kind == 5 && rng_below(s, 3) == 0) {    /* and something of others besides */
			for (int d = 0; d < b.ndim; d++) {
				b.start[d] = rng_below(s, t->dim[d]);
				b.count[d] = 1 + rng_below(s, t->dim[d] - b.start[d]);
			}
			add_piece(NULL, &b);
			w.plain = false;
		}
	}
}

static void paint_holder(void *arg, uint64_t off, uint64_t bytes)
{
	(void)arg;
	for (uint64_t i = 0; i < bytes; i++)
		w.mask[off + i] |= (uint16_t)(1u << w.add_rank);
}

static void paint_data(void *arg, uint64_t off, uint64_t bytes)
{
	(void)arg;
	memset(w.is_data + off, 1, bytes);
}

static void paint(void)
{
	memset(w.mask, 0, sizeof(w.mask));
	memset(w.is_data, 0, sizeof(w.is_data));
	for (size_t i = 0; i < w.tensors_n; i++) {
		struct shf_box all = { .ndim = w.tensor[i].shape.ndim };

		memcpy(all.count, w.tensor[i].shape.dim, sizeof(all.count));
		if (units_of(&w.tensor[i].shape) > 0)
			each_row(&w.tensor[i], &all, paint_data, NULL);
	}
	for (size_t i = 0; i < w.pieces_n; i++) {
		w.add_rank = w.piece[i].rank;
		each_row(&w.tensor[w.piece[i].tensor], &w.piece[i].box, paint_holder, NULL);
	}
}

static void add_tensor(uint64_t *s, uint32_t unit, int64_t room)
{
	struct shf_deal_tensor *t = &w.tensor[w.tensors_n];

	*t = (struct shf_deal_tensor){ .tensor = (uint32_t)w.tensors_n, .unit = unit };
	t->off = w.bytes;
	t->shape.ndim = (int32_t)rng_below(s, 5);
	room /= unit;
	for (int d = 0; d < t->shape.ndim; d++) {
		int64_t top = d == t->shape.ndim - 1 ? room : rng_below(s, 2) ? room : 12;

		top = top < room ? top : room;
		t->shape.dim[d] = 1 + rng_below(s, top < 1 ? 1 : top);
		room /= t->shape.dim[d];
	}
	if (t->shape.ndim > 1 && rng_below(s, 20) == 0)
		t->shape.dim[rng_below(s, t->shape.ndim)] = 0;
	w.bytes += units_of(&t->shape) * unit;
	w.tensors_n++;
}

static void lay_tensor(uint64_t *s, bool replicas)
{
	int64_t groups = replicas ? 1 + rng_below(s, 4) : 1, n;

	if (units_of(&w.tensor[w.add_tensor].shape) == 0)
		return;
	groups = groups < w.ranks ? groups : w.ranks;
	n = w.ranks / groups;
	for (int64_t g = 0; g < groups; g++)
		lay_group(s, g * n, n);
}

static void make_world(uint64_t *s, int64_t tensor_bytes, bool replicas)
{
	size_t n = 1 + (size_t)rng_below(s, TENSORS_MAX);
	int64_t nodes = 1 + rng_below(s, 4);
	uint32_t unit = 8;

	w.tensors_n = w.pieces_n = 0;
	w.plain = true;
	w.ranks = 1 + (uint32_t)rng_below(s, RANKS_MAX);
	w.file = (uint32_t)rng_below(s, 5);
	w.payload = w.bytes = (uint64_t)(1 + rng_below(s, 3)) * PAGE;
	for (uint32_t r = 0; r < w.ranks; r++)
		w.node[r] = (int32_t)(rng_below(s, 3) ? r * (uint32_t)nodes / w.ranks
		                                   : (uint64_t)rng_below(s, nodes)) - 1;
	for (size_t i = 0; i < n; i++) {
		while (unit > 1 && rng_below(s, 3) == 0)
			unit /= 2;
		add_tensor(s, unit, tensor_bytes);
		w.add_tensor = (uint32_t)i;
		lay_tensor(s, replicas);
	}
	paint();
}

static void drop_piece(uint64_t *s)
{
	size_t i = (size_t)rng_below(s, (int64_t)w.pieces_n);

	w.piece[i] = w.piece[--w.pieces_n];
}

/* What a dealt stripe does to each byte. */
struct canvas {
	uint16_t moved[FILE_MAX], witness[FILE_MAX];    /* ranks */
	uint8_t writer[FILE_MAX];                       /* rank + 1 */
	const struct shf_segment *s;    /* whose moves are being painted */
	const struct shf_move *m;
	bool once;                      /* a byte has one move */
};
static struct canvas c;

static void paint_move(void *arg, uint64_t off, uint64_t bytes)
{
	struct canvas *v = arg;
	uint16_t bit = (uint16_t)(1u << v->m->rank);

	for (uint64_t b = off; b < off + bytes; b++) {
		uint16_t *to = v->m->witness ? &v->witness[b] : &v->moved[b];

		if (b < v->s->lo || b >= v->s->hi || !(w.mask[b] & bit) || (*to & bit) ||
		    (v->once && !v->m->witness && *to))
			fail_msg("byte %llu of rank %u", (unsigned long long)b, v->m->rank);
		*to |= bit;
	}
}

static void join_move(void *arg, uint64_t off, uint64_t bytes)
{
	struct canvas *v = arg;

	for (uint64_t b = off; b < off + bytes; b++) {
		if (b < v->s->lo || b >= v->s->hi || !(w.mask[b] >> v->m->rank & 1))
			fail_msg("byte %llu of rank %u", (unsigned long long)b, v->m->rank);
		v->moved[b] |= (uint16_t)(1u << v->m->rank);
	}
}

/* Only the bytes of the stripe are wiped and looked at: segments outside it fail. */
static void paint_dealt(const struct shf_stripe *s, const struct shf_dealt *d, bool once)
{
	uint64_t end = s->lo, n = s->hi - s->lo;

	memset(c.moved + s->lo, 0, n * sizeof(*c.moved));
	memset(c.witness + s->lo, 0, n * sizeof(*c.witness));
	memset(c.writer + s->lo, 0, n);
	c.once = once;
	for (size_t i = 0; i < d->segments_n; i++) {
		const struct shf_segment *g = &d->segments[i];

		CHECK(g->lo < g->hi && g->lo >= end && g->hi <= s->hi && g->rank < w.ranks);
		end = g->hi;
		memset(c.writer + g->lo, (int)g->rank + 1, end - g->lo);
	}
	for (size_t i = 0; i < d->moves_n; i++) {
		c.m = &d->moves[i];
		CHECK(i == 0 || c.m->segment >= c.m[-1].segment);
		CHECK(c.m->segment < d->segments_n && c.m->tensor < w.tensors_n);
		c.s = &d->segments[c.m->segment];
		each_row(&w.tensor[c.m->tensor], &c.m->box, paint_move, &c);
	}
}

static struct shf_stripe stripe_of(uint64_t lo, uint64_t hi, uint64_t index)
{
	return (struct shf_stripe){
		.file = w.file, .index = index, .lo = lo, .hi = hi, .payload = w.payload,
		.tensors = w.tensor, .tensors_n = w.tensors_n,
	};
}

static uint16_t node_mask(int32_t node)
{
	uint16_t mask = 0;

	for (uint32_t r = 0; r < w.ranks; r++)
		mask |= (uint16_t)((w.node[r] == node) << r);
	return mask;
}

/* One writer and one source for each byte; the source as near to the writer as can be. */
static void check_saved(const struct shf_stripe *s, const struct shf_dealt *d, bool witness)
{
	uint64_t lo = s->lo, end = s->lo;

	paint_dealt(s, d, true);
	for (size_t i = 0; i < d->segments_n; i++) {
		CHECK_INT(d->segments[i].lo, end);
		CHECK_INT(end % PAGE, 0);
		end = d->segments[i].hi;
	}
	CHECK_INT(end, s->hi);
	for (uint64_t b = lo; b < s->hi; b++) {
		uint32_t writer = c.writer[b] - 1u;
		uint16_t near = node_mask(w.node[writer]) & w.mask[b];

		if (!w.is_data[b]) {
			SAME(c.moved[b] | c.witness[b], 0);
			continue;
		}
		/* paint_move saw that it is not more than one. */
		SAME(c.moved[b] != 0, true);
		if (w.mask[b] >> writer & 1)
			SAME(c.moved[b], 1u << writer);
		else if (near)
			SAME((c.moved[b] & near) != 0, true);
		SAME(c.witness[b], witness ? w.mask[b] ^ c.moved[b] : 0);
	}
}

/* Whole pages in one hand, 64 KiB of them or more, go to their holders by turns. */
static int check_long_runs(const struct shf_stripe *s)
{
	int found = 0;

	for (uint64_t lo = s->lo, hi; lo < s->hi; lo = hi) {
		uint32_t holders[RANKS_MAX], n = 0;
		uint64_t from, to;

		for (hi = lo + 1; hi < s->hi && w.mask[hi] == w.mask[lo]; hi++)
			;
		from = (lo + PAGE - 1) / PAGE * PAGE;
		to = hi == s->hi ? hi : hi / PAGE * PAGE;
		if (!w.mask[lo] || to < from || to - from < 65536)
			continue;
		found++;
		for (uint32_t r = 0; r < w.ranks; r++) {
			if (w.mask[lo] >> r & 1)
				holders[n++] = r;
		}
		for (uint64_t b = from; b < to; b++)
			SAME(c.writer[b], holders[(s->index + s->file) % n] + 1);
	}
	return found;
}

static bool same_box(const struct shf_box *a, const struct shf_box *b)
{
	for (int d = 0; d < a->ndim; d++) {
		if (a->start[d] != b->start[d] || a->count[d] != b->count[d])
			return false;
	}
	return a->ndim == b->ndim;
}

static void check_same(const struct shf_dealt *a, const struct shf_dealt *b)
{
	CHECK_INT(a->segments_n, b->segments_n);
	CHECK_INT(a->moves_n, b->moves_n);
	for (size_t i = 0; i < a->segments_n; i++)
		CHECK(a->segments[i].lo == b->segments[i].lo &&
		      a->segments[i].hi == b->segments[i].hi &&
		      a->segments[i].rank == b->segments[i].rank);
	for (size_t i = 0; i < a->moves_n; i++) {
		const struct shf_move *x = &a->moves[i], *y = &b->moves[i];

		CHECK(x->segment == y->segment && x->rank == y->rank &&
		      x->tensor == y->tensor && x->witness == y->witness &&
		      same_box(&x->box, &y->box));
	}
}

/* Any order, and some twice. Returns how many. */
static size_t shuffle(uint64_t *s, struct shf_piece *p)
{
	size_t n = w.pieces_n;

	memcpy(p, w.piece, n * sizeof(*p));
	for (size_t k = n ? (size_t)rng_below(s, 5) : 0; k > 0 && n < PIECES_MAX; k--)
		p[n++] = w.piece[rng_below(s, (int64_t)w.pieces_n)];
	for (size_t i = n; i > 1; i--) {
		size_t k = (size_t)rng_below(s, (int64_t)i);
		struct shf_piece t = p[i - 1];

		p[i - 1] = p[k];
		p[k] = t;
	}
	return n;
}

static struct shf_piece shuffled[PIECES_MAX];

static int check_save_stripe(uint64_t *s, const struct shf_stripe *stripe)
{
	int flags = rng_below(s, 2) ? SHF_DEAL_WITNESS : 0;
	struct shf_arena arena = { 0 };
	struct shf_dealt a, b;
	struct shf_gap gap;
	size_t n = shuffle(s, shuffled);
	int runs = 0;

	CHECK_INT(shf_deal_save(&arena, stripe, w.piece, w.pieces_n, w.node, w.ranks, flags, &a,
	                        &gap), 0);
	check_saved(stripe, &a, flags != 0);
	if (w.plain)
		runs = check_long_runs(stripe);
	CHECK_INT(shf_deal_save(&arena, stripe, shuffled, n, w.node, w.ranks, flags, &b, &gap), 0);
	check_same(&a, &b);
	shf_arena_release(&arena);
	return runs;
}

/* In two phases: one writer, or what would be without a collector. */
static bool check_collected(uint64_t *s, const struct shf_stripe *stripe)
{
	struct shf_stripe two = *stripe;
	struct shf_arena arena = { 0 };
	struct shf_dealt a, b;
	struct shf_gap gap;
	size_t n = shuffle(s, shuffled);
	bool collected;

	two.collect = true;
	two.collector = (uint32_t)rng_below(s, w.ranks);
	CHECK_INT(shf_deal_save(&arena, &two, w.piece, w.pieces_n, w.node, w.ranks, 0, &a, &gap),
	          0);
	check_saved(&two, &a, false);
	for (size_t i = 0; a.collected && i < a.segments_n; i++)
		CHECK_INT(a.segments[i].rank, two.collector);
	CHECK(!a.collected || a.segments_n <= 2);
	CHECK_INT(shf_deal_save(&arena, a.collected ? &two : stripe, shuffled, n, w.node, w.ranks,
	                        0, &b, &gap), 0);
	check_same(&a, &b);
	collected = a.collected;
	shf_arena_release(&arena);
	return collected;
}

TEST(every_byte_has_one_writer_and_one_source)
{
	uint64_t s = SEED;
	int runs = 0, collected = 0;

	print_message("# seed %llx\n", (unsigned long long)s);
	for (int round = 0; round < 60 / T_FEWER; round++) {
		uint64_t step = (uint64_t)(1 + rng_below(&s, 80)) * PAGE, i = 0;

		make_world(&s, round % 3 == 0 ? 300000 : 20000, true);
		for (uint64_t lo = 0; lo < w.bytes; lo += step) {
			uint64_t hi = w.bytes - lo < step ? w.bytes : lo + step;
			struct shf_stripe stripe = stripe_of(lo, hi, i++);

			runs += check_save_stripe(&s, &stripe);
			collected += check_collected(&s, &stripe);
		}
	}
	CHECK(runs > 10 / T_FEWER && collected > 10 / T_FEWER);
}

/* The first byte of the stripe that is data and that nobody holds. */
static uint64_t first_gap(const struct shf_stripe *s)
{
	for (uint64_t b = s->lo; b < s->hi; b++) {
		if (w.is_data[b] && !w.mask[b])
			return b;
	}
	return UINT64_MAX;
}

static uint64_t gap_at;

static void look_at_gap(void *arg, uint64_t off, uint64_t bytes)
{
	const struct shf_stripe *s = arg;

	CHECK(off >= s->lo && off + bytes <= s->hi);
	for (uint64_t b = off; b < off + bytes; b++)
		SAME(w.mask[b], 0);
	gap_at = off < gap_at ? off : gap_at;
}

static int64_t lowest(uint16_t mask)
{
	for (int r = 0; r < 16; r++) {
		if (mask >> r & 1)
			return r;
	}
	return -1;
}

static uint64_t last_of(const struct shf_deal_tensor *t, const struct shf_box *b)
{
	uint64_t u = 0;

	for (int d = 0; d < b->ndim; d++)
		u = u * (uint64_t)t->shape.dim[d] + (uint64_t)(b->start[d] + b->count[d] - 1);
	return t->off + u * t->unit;
}

static bool check_gap_stripe(const struct shf_stripe *stripe)
{
	const struct shf_deal_tensor *t;
	struct shf_arena arena = { 0 };
	struct shf_dealt d;
	struct shf_gap gap;
	uint64_t want = first_gap(stripe), end;
	int rc;

	rc = shf_deal_save(&arena, stripe, w.piece, w.pieces_n, w.node, w.ranks, 0, &d, &gap);
	if (rc == 0)
		check_saved(stripe, &d, false);
	shf_arena_release(&arena);
	CHECK_INT(rc, want == UINT64_MAX ? 0 : SHEAF_ELAYOUT);
	if (rc == 0)
		return false;
	t = &w.tensor[gap.tensor];
	gap_at = UINT64_MAX;
	each_row(t, &gap.box, look_at_gap, (void *)(uintptr_t)stripe);
	CHECK_INT(gap_at, want);
	CHECK_INT(gap.before, want == t->off ? -1 : lowest(w.mask[want - t->unit]));
	end = last_of(t, &gap.box) + t->unit;
	CHECK_INT(gap.after, end == t->off + units_of(&t->shape) * t->unit ? -1
	                                                                   : lowest(w.mask[end]));
	return true;
}

TEST(a_planted_gap_is_found_and_it_is_the_first)
{
	uint64_t s = SEED + 1;
	int found = 0;

	print_message("# seed %llx\n", (unsigned long long)s);
	for (int round = 0; round < 60; round++) {
		uint64_t step = (uint64_t)(1 + rng_below(&s, 40)) * PAGE, i = 0;

		make_world(&s, 20000, rng_below(&s, 2));
		for (int64_t k = rng_below(&s, 4); k > 0 && w.pieces_n > 0; k--)
			drop_piece(&s);
		paint();
		for (uint64_t lo = 0; lo < w.bytes; lo += step) {
			uint64_t hi = w.bytes - lo < step ? w.bytes : lo + step;
			struct shf_stripe stripe = stripe_of(lo, hi, i++);

			found += check_gap_stripe(&stripe);
		}
	}
	CHECK(found > 15);
}

/* The bytes of [lo, hi) that somebody of the ranks in `of` asks for. */
static uint64_t asked(uint64_t lo, uint64_t hi, uint16_t of)
{
	uint64_t n = 0;

	for (uint64_t b = lo; b < hi; b++)
		n += (w.mask[b] & of) != 0;
	return n;
}

static const struct shf_block_access *had_of(const struct shf_stripe *s, uint64_t block)
{
	for (size_t i = 0; i < s->had_n; i++)
		if (s->had[i].node >= 0 && s->had[i].lo <= block && block < s->had[i].hi)
			return &s->had[i];
	return NULL;
}

/* Where only a node has the block, one of its ranks reads it: that rank, if it is named, or one
 * that asks for some of it, if there is one. */
static void check_had(const struct shf_block_access *had, uint64_t lo, uint64_t hi, uint32_t reader)
{
	CHECK_INT(w.node[reader], had->node);
	if (had->rank >= 0)
		CHECK_INT(reader, had->rank);
	else if (asked(lo, hi, node_mask(had->node)))
		CHECK(asked(lo, hi, (uint16_t)(1u << reader)) > 0);
}

/* The reader of each block asks for some of it, and no node asks for more. */
static void check_blocks(const struct shf_stripe *s)
{
	for (uint64_t lo = s->lo, hi; lo < s->hi; lo = hi) {
		uint64_t most;
		uint32_t reader = c.writer[lo];

		hi = (lo / MIB + 1) * MIB < s->hi ? (lo / MIB + 1) * MIB : s->hi;
		for (uint64_t b = lo; b < hi; b++)
			SAME(c.writer[b], reader);
		CHECK_INT(reader != 0, asked(lo, hi, UINT16_MAX) != 0);
		if (!reader--)
			continue;
		if (had_of(s, lo)) {
			check_had(had_of(s, lo), lo, hi, reader);
			continue;
		}
		CHECK(asked(lo, hi, (uint16_t)(1u << reader)) > 0);
		most = asked(lo, hi, node_mask(w.node[reader]));
		for (uint32_t r = 0; r < w.ranks; r++)
			CHECK(asked(lo, hi, node_mask(w.node[r])) <= most);
	}
}

/* Each reads for himself, what he asks for and no block twice; each block that somebody asks for
 * counts for one of them. */
static void check_apart(const struct shf_stripe *s, const struct shf_dealt *d)
{
	for (size_t i = 0; i < d->moves_n; i++)
		CHECK_INT(d->moves[i].rank, d->segments[d->moves[i].segment].rank);
	for (size_t i = 1; i < d->segments_n; i++)
		CHECK(d->segments[i].rank > d->segments[i - 1].rank ||
		      (d->segments[i].rank == d->segments[i - 1].rank &&
		       d->segments[i].lo >= d->segments[i - 1].hi));
	for (uint64_t lo = s->lo, hi; lo < s->hi; lo = hi) {
		int loud = 0;

		hi = (lo / MIB + 1) * MIB < s->hi ? (lo / MIB + 1) * MIB : s->hi;
		for (size_t i = 0; i < d->segments_n; i++)
			loud += d->segments[i].lo <= lo && hi <= d->segments[i].hi &&
			        !d->segments[i].quiet;
		CHECK(loud == 1 || (loud == 0 && !asked(lo, hi, UINT16_MAX)));
	}
	memset(c.moved + s->lo, 0, (s->hi - s->lo) * sizeof(*c.moved));
}

/* Everybody gets what he asks for. Overlapping pieces of one rank have a move each, so bytes
 * may come twice. */
static void check_loaded(const struct shf_stripe *s, const struct shf_dealt *d)
{
	struct shf_dealt own = { .segments = d->segments, .segments_n = d->segments_n };

	if (s->apart)
		check_apart(s, d);
	else
		paint_dealt(s, &own, false);
	for (size_t i = 0; i < d->moves_n; i++) {
		CHECK(!d->moves[i].witness);
		c.m = &d->moves[i];
		CHECK(c.m->segment < d->segments_n && c.m->tensor < w.tensors_n);
		CHECK(i == 0 || c.m->segment >= c.m[-1].segment);
		c.s = &d->segments[c.m->segment];
		each_row(&w.tensor[c.m->tensor], &c.m->box, join_move, &c);
	}
	for (uint64_t b = s->lo; b < s->hi; b++)
		SAME(c.moved[b], w.mask[b]);
	if (!s->apart)
		check_blocks(s);
}

static struct shf_block_access hads[FILE_MAX / MIB + 2];

/* A few blocks are there for everybody, some for a node, some for a rank. */
static void draw_hads(uint64_t *s, struct shf_stripe *stripe)
{
	size_t n = 0;

	for (uint64_t lo = 0, hi; lo < stripe->hi; lo = hi) {
		uint32_t rank = (uint32_t)rng_below(s, w.ranks);
		int64_t kind = rng_below(s, 3);

		hi = lo + (uint64_t)(1 + rng_below(s, 2)) * MIB;
		if (hi <= stripe->lo)
			continue;
		hads[n++] = (struct shf_block_access){ lo, hi, kind ? w.node[rank] : -1,
			kind == 2 ? (int64_t)rank : -1 };
	}
	stripe->had = hads;
	stripe->had_n = n;
}

TEST(every_asker_gets_his_bytes_and_blocks_are_read_once)
{
	uint64_t s = SEED + 2;

	print_message("# seed %llx\n", (unsigned long long)s);
	for (int round = 0; round < 16 / T_FEWER; round++) {
		uint64_t step = (uint64_t)(1 + rng_below(&s, 3)) * MIB, i = 0;

		make_world(&s, round % 4 ? FILE_MAX / 7 : 20000, true);
		for (int64_t k = rng_below(&s, 30); k > 0 && w.pieces_n > 0; k--)
			drop_piece(&s);
		paint();
		for (uint64_t lo = 0; lo < w.bytes; lo += step) {
			uint64_t hi = w.bytes - lo < step ? w.bytes : lo + step;
			struct shf_stripe stripe = stripe_of(lo, hi, i++);
			struct shf_arena arena = { 0 };
			struct shf_dealt a, b;
			size_t n = shuffle(&s, shuffled);

			stripe.apart = round % 4 == 2;
			if (round % 2)
				draw_hads(&s, &stripe);
			CHECK_INT(shf_deal_load(&arena, &stripe, w.piece, w.pieces_n, w.node,
			                        w.ranks, &a), 0);
			CHECK_INT(shf_deal_load(&arena, &stripe, shuffled, n, w.node, w.ranks,
			                        &b), 0);
			check_loaded(&stripe, &a);
			check_same(&a, &b);
			shf_arena_release(&arena);
		}
	}
}
