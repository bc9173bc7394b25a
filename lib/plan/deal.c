/* SPDX-License-Identifier: Apache-2.0 */
/* Dealing. A save finds the long runs first; what lies between them is mixed. Every stretch then
 * gets a writer, and every part of each segment a source. If the sources are on too many nodes, the
 * collector gets the whole stripe. In a load every block that some rank asks for gets a reader, and
 * then every piece gets its moves. */
#include "deal.h"
#include <stdlib.h>
#include <string.h>
#include "box_runs.h"
#include "parts.h"

/* In bytes. A shorter run gets no writer of its own, because that would be one more small write. */
#define WRITER_RUN (UINT64_C(64) << 10)

struct run {                    /* bytes [lo, hi) of the file, all held by the same ranks */
	uint64_t lo, hi;
	const struct shf_set *set;
};

/* The work on one stripe. The arrays grow on the heap and are copied to the caller's arena at
 * the end, when their lengths are known. */
struct deal {
	struct shf_parts parts;
	struct run *runs;               /* owned */
	size_t runs_n, runs_max;
	struct shf_segment *segments;   /* owned */
	size_t segments_n, segments_max;
	size_t fixed_n;                 /* segment_add() never makes the first fixed_n segments
	                                 * longer */
	struct shf_move *moves;         /* owned */
	size_t moves_n, moves_max;
	int flags;
	bool collected;
};

static void deal_release(struct deal *d)
{
	shf_parts_release(&d->parts);
	shf_free(d->runs);
	shf_free(d->segments);
	shf_free(d->moves);
}

/* Adds a segment, or makes the last one longer if it ends where this one begins and has the
 * same rank: fewer, longer writes. The first fixed_n segments are never joined, as the header
 * must stay a segment of its own. */
static int segment_add(struct deal *d, uint64_t lo, uint64_t hi, uint32_t rank)
{
	struct shf_segment *s;

	if (d->segments_n > d->fixed_n) {
		s = &d->segments[d->segments_n - 1];
		if (s->hi == lo && s->rank == rank) {
			s->hi = hi;
			return 0;
		}
	}
	s = shf_parts_grow(d->segments, &d->segments_max, d->segments_n, sizeof(*s));
	if (!s)
		return SHEAF_ENOMEM;
	d->segments = s;
	s[d->segments_n++] = (struct shf_segment){ .lo = lo, .hi = hi, .rank = rank };
	return 0;
}

static int move_add(struct deal *d, const struct shf_move *move)
{
	struct shf_move *m = shf_parts_grow(d->moves, &d->moves_max, d->moves_n, sizeof(*m));

	if (!m)
		return SHEAF_ENOMEM;
	d->moves = m;
	m[d->moves_n++] = *move;
	return 0;
}

/* Copies the result to the arena of the caller. */
static int deal_finish(struct deal *d, struct shf_arena *arena, struct shf_dealt *out)
{
	struct shf_segment *s = shf_arena_alloc(arena, d->segments_n, sizeof(*s));
	struct shf_move *m = shf_arena_alloc(arena, d->moves_n, sizeof(*m));

	if (!s || !m)
		return SHEAF_ENOMEM;
	if (d->segments_n > 0)
		memcpy(s, d->segments, d->segments_n * sizeof(*s));
	if (d->moves_n > 0)
		memcpy(m, d->moves, d->moves_n * sizeof(*m));
	*out = (struct shf_dealt){ s, d->segments_n, m, d->moves_n, d->collected };
	return 0;
}

static int run_add(struct deal *d, const struct run *run)
{
	struct run *r = shf_parts_grow(d->runs, &d->runs_max, d->runs_n, sizeof(*r));

	if (!r)
		return SHEAF_ENOMEM;
	d->runs = r;
	r[d->runs_n++] = *run;
	return 0;
}

/* Adds the runs of a part if they are long, or if there is only one. A stripe has few long runs.
 * The short ones could be as many as the rows of a matrix, and each would have to be sorted,
 * although it would end up in a mixed stretch in any case.
 *
 * The part is walked as if the tensor lay dense in memory, in its own order, so runs are
 * consecutive bytes of the file. */
static int part_runs(struct deal *d, const struct shf_part *part)
{
	const struct shf_deal_tensor *t = &d->parts.stripe->tensors[part->tensor];
	struct shf_mem dense = { .box = shf_box_of(&t->shape) };
	struct run run = { .set = part->set };
	struct shf_runs r;
	uint64_t at, runs_n = 1;
	int64_t mem, vol = 1;
	int rc = 0;

	for (int k = t->shape.ndim - 1; k >= 0; k--) {
		dense.stride[k] = vol;
		vol *= t->shape.dim[k];
	}
	shf_runs_init(&r, &t->shape, &dense, &part->box);
	for (int l = 0; l < r.levels; l++)
		runs_n *= r.n[l];
	if (runs_n > 1 && r.units * t->unit < WRITER_RUN)
		return 0;
	while (rc == 0 && shf_runs_next(&r, &at, &mem)) {
		run.lo = t->off + at * t->unit;
		run.hi = run.lo + r.units * t->unit;
		rc = run_add(d, &run);
	}
	return rc;
}

/* Compares runs by their first bytes. Runs of a stripe do not overlap, so no two compare equal. */
static int compare_runs(const void *a, const void *b)
{
	const struct run *x = a, *y = b;

	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Returns the run cut to whole pages, because a page has one writer. A run that reaches the end of
 * the stripe keeps its end: if that lies inside a page, the file ends there. A run without a whole
 * page gets lo >= hi. */
static struct run run_trim(const struct run *r, const struct shf_stripe *s)
{
	struct run t = { .set = r->set };

	t.lo = (r->lo + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE;
	t.hi = r->hi == s->hi ? r->hi : r->hi / SHF_PAGE * SHF_PAGE;
	return t;
}

/* Leaves the long runs in `runs`, ascending and cut to whole pages. Neighbouring runs that the same
 * ranks hold are joined first, also across tensors, so small tensors of one rank make a long run
 * together. Each set of ranks is one object, so comparing pointers compares sets. */
static int find_long_runs(struct deal *d)
{
	size_t joined = 0, kept = 0;
	int rc = 0;

	for (size_t i = 0; i < d->parts.parts_n && rc == 0; i++)
		rc = part_runs(d, &d->parts.parts[i]);
	if (rc < 0 || d->runs_n == 0)
		return rc;
	qsort(d->runs, d->runs_n, sizeof(*d->runs), compare_runs);
	for (size_t i = 1; i < d->runs_n; i++) {
		struct run *last = &d->runs[joined], *r = &d->runs[i];

		if (last->hi == r->lo && last->set == r->set)
			last->hi = r->hi;
		else
			d->runs[++joined] = *r;
	}
	for (size_t i = 0; i <= joined; i++) {
		struct run r = run_trim(&d->runs[i], d->parts.stripe);

		if (r.lo < r.hi && r.hi - r.lo >= WRITER_RUN)
			d->runs[kept++] = r;
	}
	d->runs_n = kept;
	return 0;
}

/* Assigns bytes [lo, hi) between long runs to a writer. A single page goes to a holder of its first
 * byte. A longer stretch goes, by vote, to the node that holds most of it. If no tensor has a byte
 * there, all ranks take turns. */
static int deal_mixed(struct deal *d, uint64_t lo, uint64_t hi, uint32_t ranks)
{
	int64_t rank;
	int rc;

	if (lo >= hi)
		return 0;
	if (hi - lo <= SHF_PAGE) {
		rank = shf_parts_first(&d->parts, lo, hi);
	} else {
		rc = shf_parts_vote(&d->parts, lo, hi, -1, &rank);
		if (rc < 0)
			return rc;
	}
	if (rank < 0)           /* no tensor has a byte in the stretch */
		rank = (int64_t)(d->parts.turn % ranks);
	return segment_add(d, lo, hi, (uint32_t)rank);
}

/* Assigns every byte of the stripe to a writer, in ascending order: first the header, then mixed
 * stretches and long runs as they alternate. A long run goes to the t-th rank that holds it
 * (deal.h), so replicas share the work. The header is not in the memory of a rank; it goes to the
 * writer of what follows, which opens the file anyway. A stripe without parts is only header, or
 * empty, and goes to the t-th of all ranks. */
static int deal_segments(struct deal *d, uint32_t ranks)
{
	const struct shf_stripe *s = d->parts.stripe;
	uint64_t at = d->parts.from;
	int rc;

	if (d->parts.parts_n == 0)
		return s->lo < s->hi ?
		       segment_add(d, s->lo, s->hi, (uint32_t)(d->parts.turn % ranks)) : 0;
	if (s->lo < at) {
		rc = segment_add(d, s->lo, at, 0);
		if (rc < 0)
			return rc;
		d->fixed_n = 1;
	}
	for (size_t i = 0; i < d->runs_n; i++) {
		const struct run *r = &d->runs[i];

		rc = deal_mixed(d, at, r->lo, ranks);
		if (rc == 0)
			rc = segment_add(d, r->lo, r->hi,
			                 r->set->ranks[d->parts.turn % r->set->n]);
		if (rc < 0)
			return rc;
		at = r->hi;
	}
	rc = deal_mixed(d, at, s->hi, ranks);
	if (rc == 0 && d->fixed_n == 1)
		d->segments[0].rank = d->segments[1].rank;
	return rc;
}

/* The argument of source_part(). */
struct source {
	struct deal *d;
	uint32_t segment;
};

/* Adds the move of one part of a segment, with the rank from whose memory it is taken. With
 * SHF_DEAL_WITNESS every other holder gets a move too: it sends nothing but digests its replica, so
 * that replicas which differ are found. */
static int source_part(void *arg, const struct shf_part *part, const struct shf_box *box)
{
	struct source *s = arg;
	struct deal *d = s->d;
	struct shf_move m = { .segment = s->segment, .tensor = part->tensor, .box = *box };
	uint32_t source = shf_parts_source(&d->parts, part->set, d->segments[s->segment].rank);
	int rc;

	m.rank = source;
	rc = move_add(d, &m);
	if (!(d->flags & SHF_DEAL_WITNESS))
		return rc;
	m.witness = true;
	for (uint32_t i = 0; i < part->set->n && rc == 0; i++) {
		m.rank = part->set->ranks[i];
		if (m.rank != source)
			rc = move_add(d, &m);
	}
	return rc;
}

/* Gives every part of every segment its moves. */
static int deal_sources(struct deal *d)
{
	struct source s = { .d = d };
	int rc = 0;

	for (; s.segment < d->segments_n && rc == 0; s.segment++)
		rc = shf_parts_each(&d->parts, d->segments[s.segment].lo,
		                    d->segments[s.segment].hi, source_part, &s);
	return rc;
}

static int compare_nodes(const void *a, const void *b)
{
	int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

	return x < y ? -1 : x > y;
}

/* Counts the nodes from which the stripe takes its bytes, without those that have witnesses only,
 * which send no bytes. Neighbouring moves mostly are of one node, so most duplicates are dropped
 * before the sort. */
static int count_nodes(const struct deal *d, uint64_t *nodes_n)
{
	int32_t *nodes = shf_alloc(d->moves_n, sizeof(*nodes));
	size_t n = 0;

	if (!nodes)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < d->moves_n; i++) {
		int32_t node = d->parts.nodes[d->moves[i].rank];

		if (!d->moves[i].witness && (n == 0 || nodes[n - 1] != node))
			nodes[n++] = node;
	}
	if (n > 0)
		qsort(nodes, n, sizeof(*nodes), compare_nodes);
	*nodes_n = n > 0;
	for (size_t i = 1; i < n; i++)
		*nodes_n += nodes[i] != nodes[i - 1];
	shf_free(nodes);
	return 0;
}

/* Assigns the whole stripe to the collector, if the caller named one (`collect`) and the stripe
 * takes its bytes from several nodes, on average less than SHF_NODE_RUN bytes from each, which
 * would all open the file for a few bytes. With `follow` the number of nodes and bytes does not
 * matter. The segments made so far and their moves are dropped, except the header's segment, which
 * the collector writes too. */
static int deal_collector(struct deal *d)
{
	const struct shf_stripe *s = d->parts.stripe;
	uint64_t nodes_n;
	int rc;

	if (!s->collect)
		return 0;
	rc = count_nodes(d, &nodes_n);
	if (rc < 0)
		return rc;
	if (!s->follow && (nodes_n < 2 || (s->hi - d->parts.from) / nodes_n >= SHF_NODE_RUN))
		return 0;
	d->collected = true;
	d->segments_n = d->fixed_n;
	d->moves_n = 0;
	if (d->fixed_n == 1)
		d->segments[0].rank = s->collector;
	rc = segment_add(d, d->parts.from, s->hi, s->collector);
	return rc < 0 ? rc : deal_sources(d);
}

/* Returns the lowest rank that holds unit u of the tensor, or -1 if no rank holds it. All pieces
 * are searched, not only those that meet the stripe, because the neighbour of a gap may lie before
 * the stripe. This is done once, for the sentence about a gap, so it may be slow. */
static int64_t holder_of(const struct shf_stripe *s, const struct shf_piece *pieces, size_t n,
                         uint32_t tensor, uint64_t u)
{
	struct shf_box unit[SHF_RANGE_BOXES_MAX];
	int64_t rank = -1;

	if (shf_range_boxes(&s->tensors[tensor].shape, u, u + 1, unit) != 1)
		return -1;
	for (size_t i = 0; i < n; i++) {
		if (pieces[i].tensor == tensor && (rank < 0 || pieces[i].rank < rank) &&
		    shf_box_contains(&pieces[i].box, unit))
			rank = pieces[i].rank;
	}
	return rank;
}

/* Finds the ranks that hold the units before and after the gap. Their numbers show a person where
 * two shards should have met. */
static void gap_finish(const struct shf_stripe *s, const struct shf_piece *pieces, size_t n,
                       struct shf_gap *gap)
{
	const struct shf_shape *shape = &s->tensors[gap->tensor].shape;
	uint64_t lo, hi;

	shf_box_span(shape, &gap->box, &lo, &hi);
	if (lo > 0)
		gap->before = holder_of(s, pieces, n, gap->tensor, lo - 1);
	if (hi < shf_shape_units(shape))
		gap->after = holder_of(s, pieces, n, gap->tensor, hi);
}

/* The order of the calls is fixed by what each needs: long runs come from parts, segments from long
 * runs, sources from segments, and only the sources show from how many nodes the stripe takes its
 * bytes. *gap is written only with SHEAF_ELAYOUT. */
int shf_deal_save(struct shf_arena *arena, const struct shf_stripe *stripe,
                  const struct shf_piece *pieces, size_t pieces_n, const int32_t *nodes,
                  uint32_t ranks, int flags, struct shf_dealt *out, struct shf_gap *gap)
{
	struct deal d = { .flags = flags };
	struct shf_gap found;
	int rc;

	rc = shf_parts_init(&d.parts, stripe, pieces, pieces_n, nodes, ranks);
	if (rc < 0)
		goto out;
	rc = shf_parts_collect(&d.parts, &found);
	if (rc == SHEAF_ELAYOUT) {
		gap_finish(stripe, pieces, pieces_n, &found);
		*gap = found;
	}
	if (rc < 0)
		goto out;
	rc = find_long_runs(&d);
	if (rc < 0)
		goto out;
	rc = deal_segments(&d, ranks);
	if (rc < 0)
		goto out;
	rc = deal_sources(&d);
	if (rc == 0)
		rc = deal_collector(&d);
	if (rc < 0)
		goto out;
	rc = deal_finish(&d, arena, out);
out:
	deal_release(&d);
	return rc;
}

/* Returns which ranks can read the block at byte lo; NULL: all ranks. The search finds the last
 * item that begins at or before lo. */
static const struct shf_block_access *block_access_at(const struct shf_stripe *s, uint64_t lo)
{
	size_t first = 0, end = s->had_n;

	while (end - first > 1) {
		size_t mid = first + (end - first) / 2;

		if (s->had[mid].lo <= lo)
			first = mid;
		else
			end = mid;
	}
	return first < end && s->had[first].node >= 0 ? &s->had[first] : NULL;
}

/* Assigns a reader to each block that some rank asks for. Blocks are assigned whole, because a
 * checksum is of a whole block: a rank that reads half of it could not verify it. A block that only
 * one rank can read goes to that rank, whatever the vote says. Blocks are counted from the start of
 * the file; a stripe begins on a block. */
static int deal_blocks(struct deal *d)
{
	const struct shf_stripe *s = d->parts.stripe;
	const struct shf_block_access *had;
	uint64_t hi;
	int64_t rank;
	int rc;

	for (uint64_t lo = s->lo; lo < s->hi; lo = hi) {
		hi = s->hi - lo < SHF_BLOCK - lo % SHF_BLOCK ? s->hi :
		     lo + SHF_BLOCK - lo % SHF_BLOCK;
		had = block_access_at(s, lo);
		rc = shf_parts_vote(&d->parts, lo, hi, had ? had->node : -1, &rank);
		if (rc == 0 && rank >= 0)
			rc = segment_add(d, lo, hi, (uint32_t)(had && had->rank >= 0
			                                       ? had->rank : rank));
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Adds the moves between one segment and the pieces of one tensor. A piece that lies wholly in the
 * segment is one move; others are cut by the segment's range of units. The test of spans skips most
 * pieces of a large tensor early. */
static int deal_targets(struct deal *d, uint32_t segment, uint32_t tensor)
{
	const struct shf_parts *p = &d->parts;
	const struct shf_segment *s = &d->segments[segment];
	const struct shf_deal_tensor *t = &p->stripe->tensors[tensor];
	struct shf_move m = { .segment = segment, .tensor = tensor };
	struct shf_box boxes[SHF_RANGE_BOXES_MAX];
	uint64_t lo, hi, first, last;
	int n, rc = 0;

	if (!shf_parts_units(t, s->lo, s->hi, &lo, &hi))
		return 0;
	n = shf_range_boxes(&t->shape, lo, hi, boxes);
	for (size_t i = p->first[tensor]; i < p->first[tensor + 1] && rc == 0; i++) {
		shf_box_span(&t->shape, &p->boxes[i], &first, &last);
		if (first >= hi || last <= lo || (p->stripe->apart && p->ranks[i] != s->rank))
			continue;
		m.rank = p->ranks[i];
		if (first >= lo && last <= hi) {
			m.box = p->boxes[i];
			rc = move_add(d, &m);
			continue;
		}
		for (int k = 0; k < n && rc == 0; k++) {
			if (shf_box_intersect(&m.box, &p->boxes[i], &boxes[k]))
				rc = move_add(d, &m);
		}
	}
	return rc;
}

/* Returns the blocks of the stripe from the first to the last byte of a piece, one bit each. A
 * strided piece may have no byte in a block between its ends, which gets its bit all the same.
 * deal_apart() makes sure that a stripe has at most 64 blocks. */
static uint64_t piece_blocks(const struct shf_stripe *s, const struct shf_deal_tensor *t,
                             const struct shf_box *box)
{
	uint64_t lo, hi, blocks = 0;

	shf_box_span(&t->shape, box, &lo, &hi);
	lo = t->off + lo * t->unit;
	hi = t->off + hi * t->unit;
	lo = lo < s->lo ? s->lo : lo;
	hi = hi > s->hi ? s->hi : hi;
	for (uint64_t at = lo / SHF_BLOCK; lo < hi && at <= (hi - 1) / SHF_BLOCK; at++)
		blocks |= UINT64_C(1) << (at - s->lo / SHF_BLOCK);
	return blocks;
}

/* Adds the segments of one rank that reads for itself. Each is a run of blocks that it asked for,
 * all of which it verifies itself (its bits in `counted` are set) or all of which another rank
 * verifies (quiet). The condition on `own` keeps a run from being joined to the last segment of the
 * rank before; fixed_n keeps segment_add() from joining a quiet run to one that is not. */
static int deal_own(struct deal *d, uint32_t rank, uint64_t asked, uint64_t counted)
{
	const struct shf_stripe *s = d->parts.stripe;
	size_t own = d->segments_n;
	int rc = 0;

	for (uint64_t lo = s->lo, hi, b = 0; lo < s->hi && rc == 0; lo = hi, b++) {
		bool quiet = !(counted >> b & 1);

		hi = s->hi - lo < SHF_BLOCK - lo % SHF_BLOCK ? s->hi
		     : lo + SHF_BLOCK - lo % SHF_BLOCK;
		if (!(asked >> b & 1))
			continue;
		if (d->segments_n > own && d->segments[d->segments_n - 1].hi == lo &&
		    d->segments[d->segments_n - 1].quiet == quiet) {
			d->segments[d->segments_n - 1].hi = hi;
			continue;
		}
		d->fixed_n = d->segments_n;     /* so segment_add() starts a new segment */
		rc = segment_add(d, lo, hi, rank);
		if (rc == 0)
			d->segments[d->segments_n - 1].quiet = quiet;
	}
	return rc;
}

/* Chooses, for each block, one of the ranks that asked for it to verify it. Four consecutive blocks
 * have the same turn, so that the blocks which a rank verifies form longer segments. */
static void blocks_take_turns(const struct shf_stripe *s, uint32_t ranks, const uint64_t *asked,
                              uint64_t *counted)
{
	uint64_t first = s->lo / SHF_BLOCK, end = (s->hi + SHF_BLOCK - 1) / SHF_BLOCK;

	for (uint64_t b = 0; b < end - first; b++) {
		uint64_t n = 0, pick;

		for (uint32_t r = 0; r < ranks; r++)
			n += asked[r] >> b & 1;
		pick = n ? (first + b) / 4 % n : 0;
		for (uint32_t r = 0; r < ranks && n; r++)
			if (asked[r] >> b & 1 && pick-- == 0) {
				counted[r] |= UINT64_C(1) << b;
				break;
			}
	}
}

/* Deals a load in which every rank reads for itself (`apart` in deal.h). A stripe is at most 64
 * blocks long, because sets of its blocks are words of 64 bits. */
static int deal_apart(struct deal *d)
{
	const struct shf_parts *p = &d->parts;
	const struct shf_stripe *s = p->stripe;
	uint64_t *asked, *counted;
	int rc = 0;

	if ((s->hi - s->lo) / SHF_BLOCK >= 64)
		return SHEAF_EINVAL;
	asked = shf_zalloc(p->all, 2 * sizeof(*asked));
	if (!asked)
		return SHEAF_ENOMEM;
	counted = asked + p->all;
	for (size_t t = 0; t < s->tensors_n; t++)
		for (size_t i = p->first[t]; i < p->first[t + 1]; i++)
			asked[p->ranks[i]] |= piece_blocks(s, &s->tensors[t], &p->boxes[i]);
	blocks_take_turns(s, p->all, asked, counted);
	for (uint32_t r = 0; r < p->all && rc == 0; r++)
		rc = deal_own(d, r, asked[r], counted[r]);
	shf_free(asked);
	return rc;
}

int shf_deal_load(struct shf_arena *arena, const struct shf_stripe *stripe,
                  const struct shf_piece *pieces, size_t pieces_n, const int32_t *nodes,
                  uint32_t ranks, struct shf_dealt *out)
{
	struct deal d = { .flags = 0 };
	int rc;

	rc = shf_parts_init(&d.parts, stripe, pieces, pieces_n, nodes, ranks);
	if (rc < 0)
		goto out;
	rc = shf_parts_collect(&d.parts, NULL);
	if (rc < 0)
		goto out;
	rc = stripe->apart ? deal_apart(&d) : deal_blocks(&d);
	for (uint32_t i = 0; i < d.segments_n && rc == 0; i++) {
		for (uint32_t t = 0; t < stripe->tensors_n && rc == 0; t++)
			rc = deal_targets(&d, i, t);
	}
	if (rc < 0)
		goto out;
	rc = deal_finish(&d, arena, out);
out:
	deal_release(&d);
	return rc;
}
