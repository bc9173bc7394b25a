/* SPDX-License-Identifier: Apache-2.0 */
/* The file side of matching (match.h): cuts what a rank writes or reads into segments, puts them
 * into rounds, and gives each its place in the image. */
#include "work_file_side.h"
#include <stdlib.h>
#include "deal_home.h"
#include "err.h"
#include "match.h"
#include "work.h"

#define BLOCKS_MAX (SHF_STRIPE / SHF_BLOCK)

/* Decodes a segment; its moves follow. */
static bool read_segment(struct shf_cur *c, const struct shf_layout *l, struct shf_seg *g)
{
	g->file = shf_layout_stripe_file(l, shf_cur_u64(c));
	g->lo = shf_cur_u64(c);
	g->hi = shf_cur_u64(c);
	g->moves_n = shf_cur_u32(c);
	g->collected = g->moves_n & SHF_WIRE_COLLECTED;
	g->moves_n &= ~SHF_WIRE_COLLECTED;
	return always(!c->bad);
}

static bool read_move(struct shf_cur *c, const struct shf_layout *l, struct shf_seg_move *v)
{
	v->rank = shf_cur_u32(c);
	v->tensor = shf_cur_u32(c);
	v->witness = v->tensor & SHF_WIRE_WITNESS;
	v->tensor &= ~SHF_WIRE_WITNESS;
	shf_wire_box_get(c, l, v->tensor, &v->box);
	return always(!c->bad);
}

/* Decodes the segments and moves that the homes sent. They are read twice, because an array in an
 * arena cannot grow: first to count them. */
static int decode_segments(const struct shf_layout *l, const struct shf_buf *in,
                           struct shf_work *w)
{
	struct shf_cur count = { in->data, in->data + in->len, false }, c = count;
	struct shf_seg g = { 0 };
	struct shf_seg_move v = { 0 };
	size_t segs = 0, moves = 0;

	for (; count.p < count.end; segs++) {
		if (!read_segment(&count, l, &g))
			return SHEAF_EBUG;
		for (uint32_t k = 0; k < g.moves_n; k++, moves++)
			if (!read_move(&count, l, &v))
				return SHEAF_EBUG;
	}
	w->segs = shf_arena_alloc(&w->arena, segs + 1, sizeof(*w->segs));
	w->moves = shf_arena_alloc(&w->arena, moves + 1, sizeof(*w->moves));
	if (!w->segs || !w->moves)
		return SHEAF_ENOMEM;
	for (; w->segs_n < segs; w->segs_n++) {
		g = (struct shf_seg){ .first_move = (uint32_t)w->moves_n };
		(void)read_segment(&c, l, &g);
		w->segs[w->segs_n] = g;
		for (uint32_t k = 0; k < g.moves_n; k++) {
			v = (struct shf_seg_move){ .seg = (uint32_t)w->segs_n };
			(void)read_move(&c, l, &v);
			w->moves[w->moves_n++] = v;
		}
	}
	return 0;
}

/* Computes the part of a move that lies in bytes [lo, hi) of its file, as boxes, and returns the
 * number of boxes. A move wholly inside or outside is decided by its span alone. Otherwise the
 * range of bytes is turned into boxes, and the move is intersected with each. */
static size_t cut_move(const struct shf_layout *l, const struct shf_seg_move *mv, uint64_t lo,
		       uint64_t hi, struct shf_box out[SHF_RANGE_BOXES_MAX])
{
	const struct shf_lt_tensor *t = &l->tensors[mv->tensor];
	struct shf_box range[SHF_RANGE_BOXES_MAX];
	uint64_t units = t->bytes / t->unit, first, last;
	uint64_t a = lo > t->off ? (lo - t->off) / t->unit : 0;
	uint64_t b = hi > t->off ? (hi - t->off) / t->unit : 0;
	int ranges;
	size_t n = 0;

	b = b < units ? b : units;
	shf_box_span(&t->shape, &mv->box, &first, &last);
	if (first >= b || last <= a)
		return 0;
	if (first >= a && last <= b) {
		out[0] = mv->box;
		return 1;
	}
	ranges = shf_range_boxes(&t->shape, a, b, range);
	for (int x = 0; x < ranges; x++)
		n += shf_box_intersect(&out[n], &mv->box, &range[x]);
	return n;
}

struct cutting {
	const struct shf_match *m;
	uint32_t self;                  /* this rank */
	uint32_t kind[BLOCKS_MAX];      /* load: kind of each block of the segment: SHF_ROUND_OWN,
	                                 * 0 (wanted on this node) or SHF_ROUND_NET */
};

/* Sets the kind of each block of a segment of a load: whether only this rank wants bytes of it,
 * also other ranks of its node, or also other nodes. Segments are cut where the kind changes, so
 * that all blocks of a round have one kind. */
static void find_kinds(struct cutting *c, const struct shf_work *w, const struct shf_seg *g)
{
	for (size_t b = 0; b < BLOCKS_MAX; b++)
		c->kind[b] = SHF_ROUND_OWN;
	for (uint32_t k = 0; k < g->moves_n; k++) {
		const struct shf_seg_move *v = &w->moves[g->first_move + k];
		const struct shf_lt_tensor *t = &c->m->layout->tensors[v->tensor];
		bool near = c->m->nodes[v->rank] == c->m->nodes[c->self];
		uint64_t lo, hi;

		if (v->rank == c->self)
			continue;
		shf_box_span(&t->shape, &v->box, &lo, &hi);
		lo = (t->off + lo * t->unit - g->lo) / SHF_BLOCK;
		hi = (t->off + hi * t->unit - g->lo - 1) / SHF_BLOCK;
		for (uint64_t b = lo; b <= hi && b < BLOCKS_MAX; b++)
			/* Other nodes outweigh the own node, which outweighs this rank alone. */
			if (!near || c->kind[b] == SHF_ROUND_OWN)
				c->kind[b] = near ? 0 : SHF_ROUND_NET;
	}
}

/* Returns how many bytes of the image a round of this kind may take. Segments that the rank reads
 * for itself are in no image, so nothing bounds them. */
static uint64_t window_for(const struct shf_match *m, uint32_t kind)
{
	if (kind == SHF_ROUND_OWN)
		return UINT64_MAX;
	return kind == SHF_ROUND_NET ? m->net_window : m->window;
}

/* Returns the length of the part of the segment that begins at lo, and sets *kind to its kind. On
 * a load the part ends where the window is full or the kind changes; blocks are never cut, because
 * a reader verifies a block as a whole. */
static uint64_t cut_part(const struct cutting *c, const struct shf_seg *g, uint64_t lo,
                         uint32_t *kind)
{
	uint64_t left = g->hi - lo, n = 0, window;
	size_t b = (size_t)((lo - g->lo) / SHF_BLOCK);

	*kind = c->m->way == SHF_LOAD ? c->kind[b] : 0;
	window = window_for(c->m, *kind);
	if (c->m->way == SHF_LOAD)
		for (; n < left && n < window && c->kind[b] == *kind; b++)
			n += SHF_BLOCK;
	else
		n = window;
	return n < left ? n : left;
}

/* Cuts segments, and their moves with them, into parts that fit into a window and have one kind.
 * Sets the numbers of segments and moves. With g and v NULL it only counts; the caller then
 * allocates arrays and runs the same code again, so the count cannot differ from what is stored. */
static void cut_into(struct cutting *c, const struct shf_work *w, struct shf_seg *g,
                     struct shf_seg_move *v, size_t *segs_n, size_t *moves_n)
{
	size_t gn = 0, vn = 0;

	for (size_t i = 0; i < w->segs_n; i++) {
		if (c->m->way == SHF_LOAD)
			find_kinds(c, w, &w->segs[i]);
		for (uint64_t lo = w->segs[i].lo, n; lo < w->segs[i].hi; lo += n, gn++) {
			struct shf_seg part = w->segs[i];
			size_t first = vn;

			n = cut_part(c, &w->segs[i], lo, &part.round);
			part.lo = lo;
			part.hi = lo + n;
			for (uint32_t k = 0; k < part.moves_n; k++) {
				const struct shf_seg_move *mv = &w->moves[part.first_move + k];
				struct shf_box boxes[SHF_RANGE_BOXES_MAX];
				size_t cut =
				    cut_move(c->m->layout, mv, part.lo, part.hi, boxes);

				for (size_t x = 0; v && x < cut; x++) {
					v[vn + x] = *mv;
					v[vn + x].seg = (uint32_t)gn;
					v[vn + x].box = boxes[x];
				}
				vn += cut;
			}
			part.first_move = (uint32_t)first;
			part.moves_n = (uint32_t)(vn - first);
			if (g)
				g[gn] = part;
		}
	}
	*segs_n = gn;
	*moves_n = vn;
}

/* Cuts segments that are larger than the window or have blocks of several kinds. On a save nothing
 * is left to do if cutting does not change the number of segments. On a load the kinds must be
 * stored in any case. */
static int cut_segments(const struct shf_match *m, uint32_t self, struct shf_work *w)
{
	struct cutting c = { .m = m, .self = self };
	size_t segs, moves;

	cut_into(&c, w, NULL, NULL, &segs, &moves);
	if (m->way == SHF_SAVE && segs == w->segs_n)
		return 0;
	struct shf_seg *g = shf_arena_alloc(&w->arena, segs + 1, sizeof(*g));
	struct shf_seg_move *v = shf_arena_alloc(&w->arena, moves + 1, sizeof(*v));

	if (!g || !v)
		return SHEAF_ENOMEM;
	cut_into(&c, w, g, v, &w->segs_n, &w->moves_n);
	w->segs = g;
	w->moves = v;
	return 0;
}

/* Orders segments by round, which is still the kind here, then by place in the file. So segments
 * in no round come last, and on a load neighbours in a round are neighbours on disk. */
static int seg_order(const void *a, const void *b)
{
	const struct shf_seg *x = a, *y = b;

	if (x->round != y->round)
		return x->round < y->round ? -1 : 1;
	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Orders segments by round, then by turn, which `image` has until they get their places there. */
static int turn_order(const void *a, const void *b)
{
	const struct shf_seg *x = a, *y = b;

	if (x->round != y->round)
		return x->round < y->round ? -1 : 1;
	if (x->image != y->image)
		return x->image < y->image ? -1 : 1;
	return x->file < y->file ? -1 : x->file > y->file;
}

/* Orders the segments of a save so that files take turns: the first segments of all files, then the
 * second ones, and so on. Images are filled and written in this order. Most file systems let only
 * one thread at a time write through the page cache into a file, so a save is faster if several
 * files are being written at any time. The segments must be sorted by seg_order(). */
static void take_turns(struct shf_work *w)
{
	for (size_t i = 0; i < w->segs_n; i++) {
		const struct shf_seg *before = i > 0 ? &w->segs[i - 1] : NULL;
		struct shf_seg *g = &w->segs[i];
		bool same = before && before->round == g->round && before->file == g->file;

		g->image = same ? before->image + 1 : 0;
	}
	if (w->segs_n)
		qsort(w->segs, w->segs_n, sizeof(*w->segs), turn_order);
}

/* Returns whether the segment can bypass the image and be copied to a slot right before it is
 * written. That needs this rank to hold each byte of it in SHEAF_SLICE_IN_PLACE slices, so that no
 * other rank copies into it. Bytes of the header come from no slice, so a segment with header bytes
 * does not qualify. */
static bool is_slotted(const struct shf_match *m, uint32_t self, const struct shf_work *w,
                     const struct shf_seg *g)
{
	if (!m->in_place || g->moves_n == 0 || g->lo < m->layout->files[g->file].header_bytes)
		return false;
	for (uint32_t k = 0; k < g->moves_n; k++) {
		const struct shf_seg_move *v = &w->moves[g->first_move + k];

		if (v->witness || v->rank != self ||
		    !m->in_place(m->in_place_arg, v->tensor, &v->box))
			return false;
	}
	return true;
}

/* Adds slots after the controls for `segs` segments that are in no image. There are at most
 * SHF_UNSTAGED_SLOTS slots, fewer if there are fewer segments or the window is too small, but at
 * least one, even if it is larger than the window: without a slot those segments could not be
 * written. */
static void add_slots(struct shf_work *w, size_t segs, uint64_t window)
{
	w->image_bytes = shf_work_ctl(w, w->segs_n);
	if (segs == 0)
		return;
	w->slots = segs < SHF_UNSTAGED_SLOTS ? (uint32_t)segs : SHF_UNSTAGED_SLOTS;
	while (window && w->slots > 1 && w->slots * w->slot_bytes > window)
		w->slots--;
	w->slots_at = (w->image_bytes + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE;
	w->image_bytes = w->slots_at + w->slots * w->slot_bytes;
}

/* Assigns rounds and places in the image on a save. Consecutive segments share a round as long as
 * they fit into the window, and each begins on a page. Segments for slots are in no round and come
 * last. If there are no such segments, the rounds may also use the window of the slots. */
static void lay_out_save(const struct shf_match *m, struct shf_work *w)
{
	struct shf_span own = shf_work_segs(w, SHF_ROUND_OWN);
	uint64_t fill = 0, window = m->window + (own.end > own.first ? 0 : m->slots_window);
	size_t slotted = 0;

	w->rounds = w->segs_n ? 1 : 0;
	for (size_t i = 0; i < w->segs_n; i++) {
		struct shf_seg *g = &w->segs[i];
		uint64_t bytes = g->hi - g->lo, paged = (bytes + SHF_PAGE - 1) / SHF_PAGE *
		                                        SHF_PAGE;

		w->bytes += bytes;
		for (uint32_t k = 0; k < g->moves_n; k++)
			w->moves[g->first_move + k].seg = (uint32_t)i;
		if (g->round == SHF_ROUND_OWN) {
			w->slot_bytes = paged > w->slot_bytes ? paged : w->slot_bytes;
			slotted++;
			continue;
		}
		if (fill > 0 && window && fill + bytes > window) {
			w->rounds++;
			fill = 0;
		}
		g->round = w->rounds - 1;
		g->image = fill;
		fill += paged;
		w->ctl_at = fill > w->ctl_at ? fill : w->ctl_at;
	}
	add_slots(w, slotted, m->slots_window);
}

/* Assigns rounds and places in the image on a load. Rounds are numbered for each kind anew. Rounds
 * use the two windows of the image in turn, so that one is filled from the disk while the other
 * is copied out. */
static void lay_out_load(const struct shf_match *m, struct shf_work *w)
{
	uint64_t fill = 0;
	uint32_t kind = 0, *rounds = &w->rounds;

	for (size_t i = 0; i < w->segs_n; i++) {
		struct shf_seg *g = &w->segs[i];
		uint64_t bytes = g->hi - g->lo, window = window_for(m, g->round);

		for (uint32_t k = 0; k < g->moves_n; k++)
			w->moves[g->first_move + k].seg = (uint32_t)i;
		w->bytes += bytes;
		if (g->round == SHF_ROUND_OWN) {
			w->own_bytes += bytes;
			continue;
		}
		if (g->round != kind) {
			kind = g->round;
			rounds = &w->net_rounds;
			fill = 0;
		}
		if (*rounds == 0 || fill + bytes > window) {
			*rounds += 1;
			fill = 0;
		}
		g->round = kind + *rounds - 1;
		/* Even and odd rounds have a window each. Both kinds use the same windows. */
		g->image = (*rounds - 1) % 2 * m->window + fill;
		fill += (bytes + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE;
		if (g->image + bytes > w->image_bytes)
			w->image_bytes = g->image + bytes;
	}
}

/* Segments are cut before they are sorted, because on a load cutting decides the kind. On a save
 * the kind is decided after cutting, since a part of a segment may qualify for a slot (is_slotted)
 * where the whole segment does not. */
int shf_work_decode(const struct shf_match *m, uint32_t self, const struct shf_buf *in,
                    struct shf_work *w)
{
	int rc = decode_segments(m->layout, in, w);

	if (m->way == SHF_LOAD && !always(m->window / SHF_BLOCK && m->net_window / SHF_BLOCK))
		return SHEAF_EBUG;
	if (rc == 0 && m->window)
		rc = cut_segments(m, self, w);
	if (rc < 0)
		return rc;
	for (size_t i = 0; m->way == SHF_SAVE && i < w->segs_n; i++)
		w->segs[i].round = is_slotted(m, self, w, &w->segs[i]) ? SHF_ROUND_OWN : 0;
	if (w->segs_n)
		qsort(w->segs, w->segs_n, sizeof(*w->segs), seg_order);
	if (m->way == SHF_SAVE) {
		take_turns(w);
		lay_out_save(m, w);
	} else {
		lay_out_load(m, w);
	}
	return 0;
}
