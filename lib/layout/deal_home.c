/* SPDX-License-Identifier: Apache-2.0 */
/* Home ranks of stripes: the messages they receive, and how they deal their stripes.
 *
 * Messages, little-endian. To a home, one record for each box: u32 tensor, box. From a home to the
 * file side, one record for each segment: u64 stripe, u64 lo, u64 hi, u32 number of moves |
 * collected << 31, then for each move: u32 rank, u32 tensor | witness << 31, box. A box has i64
 * start and i64 count for each dimension of its tensor. */
#include "deal_home.h"
#include <inttypes.h>
#include "err.h"
#include "match.h"

void shf_wire_box_get(struct shf_cur *c, const struct shf_layout *l, uint32_t tensor,
                      struct shf_box *box)
{
	const uint8_t *p;

	*box = (struct shf_box){ 0 };
	if (tensor >= l->tensors_n) {
		c->bad = true;
		return;
	}
	box->ndim = l->tensors[tensor].shape.ndim;
	p = shf_cur_bytes(c, shf_wire_box_bytes(box));
	for (int d = 0; p && d < box->ndim; d++, p += 2 * sizeof(uint64_t)) {
		box->start[d] = (int64_t)shf_get64(p);
		box->count[d] = (int64_t)shf_get64(p + sizeof(uint64_t));
	}
}

/* Returns whether the stripe is a rest: the last one of its file, shorter than SHF_NODE_RUN, and
 * not the only one. A rest has the same home as the stripe before it; a home of its own would have
 * to open one more file for a few bytes. */
static bool is_rest(const struct shf_lt_file *f, uint64_t stripe)
{
	uint64_t index = stripe - f->first_stripe;

	return index > 0 && f->bytes - index * SHF_STRIPE < SHF_NODE_RUN;
}

static const struct shf_lt_file *stripe_file(const struct shf_layout *l, uint64_t stripe)
{
	return &l->files[shf_layout_stripe_file(l, stripe)];
}

/* Returns the first stripe of a home rank: rank * stripes / ranks, rounded up. It is the
 * inverse of shf_home_of(), which rounds down, so that stripe s belongs to rank r exactly if
 * first(r) <= s < first(r + 1). A rest moves the boundary by one. */
uint64_t shf_home_first(const struct shf_layout *l, uint32_t ranks, uint64_t rank)
{
	uint64_t stripe = (rank * l->stripes_n + ranks - 1) / ranks;

	return stripe < l->stripes_n && is_rest(stripe_file(l, stripe),
	                                        stripe) ? stripe + 1 : stripe;
}

uint64_t shf_home_of(const struct shf_layout *l, uint32_t ranks, const struct shf_lt_file *file,
                     uint64_t stripe)
{
	return (stripe - is_rest(file, stripe)) * ranks / l->stripes_n;
}

/* Computes the stripes [*lo, *hi] in which a box may have bytes: from its first byte to its last.
 * In some stripes between the two the box may have no bytes; then a message is sent in vain, and
 * the dealer ignores a box that does not meet the stripe. */
static void box_stripes(const struct shf_layout *l, const struct shf_lt_tensor *t,
                        const struct shf_box *box, uint64_t *lo, uint64_t *hi)
{
	uint64_t first = l->files[t->file].first_stripe;

	shf_box_span(&t->shape, box, lo, hi);
	*lo = first + (t->off + *lo * t->unit) / SHF_STRIPE;
	*hi = first + (t->off + *hi * t->unit - 1) / SHF_STRIPE;
}

struct homes {                  /* home ranks that a hold is sent to: first to last */
	uint32_t first, last;
};

/* Returns the next rank after r that is the home of a stripe, or `ranks`. If there are many more
 * ranks than stripes, most ranks have no stripe, and a loop over all ranks would take too long for
 * every hold. shf_home_first(r + 1) is then the first stripe after those of r, and its home is the
 * rank sought. */
static uint32_t home_next(const struct shf_layout *l, uint32_t ranks, uint32_t r)
{
	uint64_t first;

	if (ranks <= l->stripes_n)
		return r + 1;
	first = shf_home_first(l, ranks, r + UINT64_C(1));
	return first < l->stripes_n ? (uint32_t)shf_home_of(l, ranks, stripe_file(l, first), first)
	                            : ranks;
}

/* Stripes are assigned to homes in ascending order, so the homes of a box are a range of ranks.
 * home_next() passes over ranks in it that have no stripe. */
static struct homes homes_of(const struct shf_layout *l, uint32_t ranks, const struct shf_hold *h)
{
	const struct shf_lt_tensor *t = &l->tensors[h->tensor];
	const struct shf_lt_file *f = &l->files[t->file];
	uint64_t lo, hi;

	box_stripes(l, t, h->box, &lo, &hi);
	return (struct homes){ (uint32_t)shf_home_of(l, ranks, f, lo),
	                       (uint32_t)shf_home_of(l, ranks, f, hi) };
}

/* Returns how many bytes the message about a hold has. */
static size_t message_bytes_of(const struct shf_hold *h)
{
	return sizeof(uint32_t) + shf_wire_box_bytes(h->box);
}

/* Appends one record for a home. The caller has reserved room for all records, so the append cannot
 * fail. */
static void hold_put(struct shf_home_messages *out, uint32_t home, const struct shf_hold *h)
{
	uint8_t *p = out->bytes.data + out->bytes.len;

	shf_put32(p, h->tensor);
	shf_wire_box_put(p + sizeof(uint32_t), h->box);
	out->bytes.len += message_bytes_of(h);
	out->to[home] += message_bytes_of(h);
}

/* Writes the records in the order of their homes, for holds that do not come in that order: (home,
 * hold) pairs are sorted as 64-bit words. The sort is stable, so the holds of one home keep their
 * order. all is the number of records. */
static int pack_sorted(const struct shf_match *m, uint32_t ranks, const struct homes *homes,
                       size_t all, struct shf_home_messages *out)
{
	const struct shf_holds *holds = m->holds;
	uint64_t *words = shf_alloc(all, 2 * sizeof(*words));
	size_t n = 0;

	if (!words || holds->n > UINT32_MAX) {
		shf_free(words);
		return SHEAF_ENOMEM;
	}
	for (size_t i = 0; i < holds->n; i++)
		for (uint32_t r = homes[i].first; r <= homes[i].last;
		     r = home_next(m->layout, ranks, r))
			words[n++] = shf_key(r, (uint32_t)i);
	shf_keys_sort(words, words + n, n);
	for (size_t i = 0; i < n; i++)
		hold_put(out, shf_key_of(words[i]), &holds->a[shf_key_item(words[i])]);
	shf_free(words);
	return 0;
}

/* How many holds ahead the prefetch runs. */
#define AHEAD 8

/* Prefetches the tensor and the box of a hold that is read a few iterations later. They lie far
 * apart in memory, so each would be a cache miss, and a rank has very many holds. */
static void prefetch_hold(const struct shf_layout *l, const struct shf_hold *h)
{
	__builtin_prefetch(&l->tensors[h->tensor]);
	__builtin_prefetch(l->tensors[h->tensor].shape.dim + 1);
	__builtin_prefetch(h->box);
	__builtin_prefetch(h->box->count);
}

/* The first loop counts, so one allocation serves all records. shf_exchange_packed() needs them
 * in the order of the receivers. Holds come by tensor, and tensors mostly in the order of the
 * file, so the records are mostly in order as they come; if not, pack_sorted() sorts them. */
int shf_holds_pack(const struct shf_match *m, uint32_t ranks, struct shf_home_messages *out)
{
	const struct shf_layout *l = m->layout;
	const struct shf_holds *holds = m->holds;
	struct homes *homes = shf_alloc(holds->n, sizeof(*homes));
	size_t bytes = 0, all = 0;
	bool ascend = true;
	int rc = homes ? 0 : SHEAF_ENOMEM;

	for (size_t i = 0; i < holds->n && rc == 0; i++) {
		size_t n = 0;

		if (holds->n - i > AHEAD)
			prefetch_hold(l, &holds->a[i + AHEAD]);
		homes[i] = homes_of(l, ranks, &holds->a[i]);
		ascend = ascend && (i == 0 || homes[i - 1].last <= homes[i].first);
		for (uint32_t r = homes[i].first; r <= homes[i].last; r = home_next(l, ranks, r))
			n++;
		all += n;
		bytes += n * message_bytes_of(&holds->a[i]);
	}
	if (rc == 0)
		rc = shf_buf_reserve(&out->bytes, bytes);
	if (rc == 0 && !ascend) /* not ascending, for example because small tensors lie after large
	                         * ones in a file, whatever their names */
		rc = pack_sorted(m, ranks, homes, all, out);
	for (size_t i = 0; i < holds->n && rc == 0 && ascend; i++)
		for (uint32_t r = homes[i].first; r <= homes[i].last; r = home_next(l, ranks, r))
			hold_put(out, r, &holds->a[i]);
	shf_free(homes);
	return rc;
}

/* Counts the boxes of each stripe of this home, and leaves in each box the range of stripes
 * that it meets. The count of stripe s goes to start[s + 2]; see shf_home_sort(). */
static size_t count_boxes(const struct shf_layout *l, struct shf_home *h)
{
	size_t total = 0;
	uint64_t lo, hi;

	for (size_t i = 0; i < h->n; i++) {
		struct shf_home_box *x = &h->heard[i];

		box_stripes(l, &l->tensors[x->tensor], &x->box, &lo, &hi);
		lo = lo < h->first ? h->first : lo;
		hi = hi < h->end ? hi + 1 : h->end;
		x->lo = (uint32_t)(lo - h->first);
		x->hi = hi > lo ? (uint32_t)(hi - h->first) : x->lo;
		for (uint32_t s = x->lo; s < x->hi; s++)
			h->start[s + 2]++;
		total += x->hi - x->lo;
	}
	return total;
}

/* A counting sort of boxes by stripe. The number of boxes of stripe s is counted in start[s + 2].
 * So after the prefix sums start[s + 1] is where stripe s begins. Filling advances it to where s
 * ends, which is where s + 1 begins. In the end start[s] is the first position of stripe s, and no
 * second array was needed. */
int shf_home_sort(const struct shf_layout *l, struct shf_home *h, struct shf_arena *arena)
{
	size_t stripes = (size_t)(h->end - h->first), total;

	if (stripes > UINT32_MAX)
		return SHEAF_ENOMEM;
	h->start = shf_arena_alloc(arena, stripes + 2, sizeof(*h->start));
	if (!h->start)
		return SHEAF_ENOMEM;
	total = count_boxes(l, h);
	for (size_t s = 2; s < stripes + 2; s++)
		h->start[s] += h->start[s - 1];
	h->which = shf_arena_alloc(arena, total + 1, sizeof(*h->which));
	if (!h->which)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < h->n; i++)
		for (uint32_t s = h->heard[i].lo; s < h->heard[i].hi; s++)
			h->which[h->start[s + 1]++] = i;
	return 0;
}

/* Decodes the boxes that all ranks sent to this home, in_bytes[r] bytes from rank r, in the order
 * of ranks, and sorts them by stripe. The caller frees h->heard. The messages come from our own
 * code, so a record that does not decode is a bug (EBUG) and not damage. */
static int home_decode(const struct shf_team *team, const struct shf_layout *l, struct shf_home *h,
                       const struct shf_buf *in, const size_t *in_bytes, struct shf_arena *arena)
{
	struct shf_cur c = { in->data, in->data, false };
	size_t cap = 0;

	h->first = shf_home_first(l, (uint32_t)team->ranks, (uint64_t)team->rank);
	h->end = shf_home_first(l, (uint32_t)team->ranks, (uint64_t)team->rank + 1);
	for (int r = 0; r < team->ranks; r++) {
		c.end = c.p + in_bytes[r];
		while (c.p < c.end) {
			struct shf_home_box x = { .rank = (uint32_t)r };

			if (h->n == cap) {
				struct shf_home_box *more;

				cap = cap ? 2 * cap : 64;
				more = shf_realloc(h->heard, cap, sizeof(*more));
				if (!more)
					return SHEAF_ENOMEM;
				h->heard = more;
			}
			x.tensor = shf_cur_u32(&c);
			shf_wire_box_get(&c, l, x.tensor, &x.box);
			if (!always(!c.bad))
				return SHEAF_EBUG;
			h->heard[h->n++] = x;
		}
	}
	return shf_home_sort(l, h, arena);
}

/* Writes one move. The dealer numbers tensors inside the stripe; the message has their numbers in
 * the layout. */
static void pack_move(struct shf_buf *b, const struct shf_move *v, const uint32_t *numbers)
{
	uint8_t *p = shf_buf_room(b, 2 * sizeof(uint32_t) + shf_wire_box_bytes(&v->box));

	if (!p) /* the buffer notes it, and shf_exchange() returns ENOMEM */
		return;
	shf_put32(p, v->rank);
	shf_put32(p + 4, numbers[v->tensor] | (v->witness ? SHF_WIRE_WITNESS : 0));
	shf_wire_box_put(p + 8, &v->box);
}

/* Writes the segments of one dealt stripe, each into the buffer of the rank that writes or
 * reads it. Moves are sorted by segment, so one pass is enough. The collected flag shares a
 * word with the number of moves; on a load it means that another rank verifies the segment's
 * blocks (quiet, deal.h). */
static void pack_segments(uint64_t stripe, const uint32_t *numbers, const struct shf_dealt *dealt,
                          struct shf_buf *out)
{
	size_t m = 0;

	for (size_t i = 0; i < dealt->segments_n; i++) {
		const struct shf_segment *g = &dealt->segments[i];
		struct shf_buf *b = &out[g->rank];
		size_t first = m;

		while (m < dealt->moves_n && dealt->moves[m].segment == i)
			m++;
		shf_buf_u64(b, stripe);
		shf_buf_u64(b, g->lo);
		shf_buf_u64(b, g->hi);
		shf_buf_u32(b, (uint32_t)(m - first) |
		               (dealt->collected || g->quiet ? SHF_WIRE_COLLECTED : 0));
		for (size_t k = first; k < m; k++)
			pack_move(b, &dealt->moves[k], numbers);
	}
}

/* Returns the index of a tensor in the stripe's list. The list ascends by offset, and no two
 * tensors in it share an offset, because empty tensors are left out. The caller checks that the
 * tensor found is the one sought. */
static size_t in_stripe(const struct shf_layout *l, const struct shf_stripe *st, uint32_t tensor)
{
	size_t lo = 0, hi = st->tensors_n;

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (st->tensors[mid].off <= l->tensors[tensor].off)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/* Deals one stripe of this home and writes the result to the buffers of the file-side ranks. On
 * entry *collected says whether the stripe before this one is collected; if so, and this one is a
 * rest (is_rest), it is collected too, so that one rank writes both. On return *collected says
 * whether this stripe is collected.
 *
 * All temporary memory lies in an arena that is freed after the stripe, so that planning needs the
 * memory of one stripe, however many a home has. */
static int deal_stripe(const struct shf_match *m, uint32_t ranks, const struct shf_home *h,
                       uint64_t stripe, bool *collected, struct shf_buf *out,
                       struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_stripe st;
	struct shf_dealt dealt = { 0 };
	struct shf_gap gap;
	const uint32_t *numbers;
	const struct shf_lt_file *file = stripe_file(m->layout, stripe);
	size_t first = h->start[stripe - h->first], n = h->start[stripe - h->first + 1] - first;
	int rc = shf_layout_stripe(m->layout, stripe, &arena, &st, &numbers);
	struct shf_piece *pieces = rc < 0 ? NULL : shf_arena_alloc(&arena, n + 1, sizeof(*pieces));

	if (rc == 0 && !pieces)
		rc = SHEAF_ENOMEM;
	for (size_t i = 0; i < n && rc == 0; i++) {
		const struct shf_home_box *x = &h->heard[h->which[first + i]];
		size_t t = in_stripe(m->layout, &st, x->tensor);

		if (!always(t < st.tensors_n && numbers[t] == x->tensor))
			rc = SHEAF_EBUG;
		pieces[i] = (struct shf_piece){ x->rank, (uint32_t)t, x->box };
	}
	/* The parts of the description that do not follow from the layout. */
	st.collect = m->layout->files_n > SHF_FILES_MANY;
	st.collector = (uint32_t)shf_home_of(m->layout, ranks, file, stripe);
	st.follow = *collected && is_rest(file, stripe);
	st.apart = m->apart;
	if (rc == 0 && m->hads) {
		size_t f = shf_layout_stripe_file(m->layout, stripe), at = m->hads->first[f];

		st.had = &m->hads->a[at];
		st.had_n = m->hads->first[f + 1] - at;
	}
	if (rc == 0 && m->way == SHF_SAVE)
		rc = shf_deal_save(&arena, &st, pieces, n, m->nodes, ranks,
		                   m->witness ? SHF_DEAL_WITNESS : 0, &dealt, &gap);
	else if (rc == 0)
		rc = shf_deal_load(&arena, &st, pieces, n, m->nodes, ranks, &dealt);
	if (rc == SHEAF_ELAYOUT)
		shf_gap_fail(err, m->layout, numbers[gap.tensor], &gap);
	else if (rc < 0)
		shf_fail(err, rc, "assigning stripe %" PRIu64 " to ranks: %s", stripe,
		         shf_strerror(rc));
	if (rc == 0)
		pack_segments(stripe, numbers, &dealt, out);
	*collected = dealt.collected;
	shf_arena_release(&arena);
	return rc;
}

/* A save deals every stripe, since each byte of it must be written. A load leaves out stripes of
 * which no rank wants anything. */
int shf_home_deal(const struct shf_match *m, uint32_t ranks, const struct shf_home *h,
                  struct shf_buf *out, struct sheaf_error *err)
{
	bool collected = false;
	int rc = 0;

	for (uint64_t s = h->first; s < h->end && rc == 0; s++) {
		if (m->way == SHF_LOAD && h->start[s - h->first] == h->start[s - h->first + 1])
			continue;
		rc = deal_stripe(m, ranks, h, s, &collected, out, err);
	}
	return rc;
}

int shf_home_deal_messages(const struct shf_team *team, const struct shf_match *m,
                           const struct shf_buf *in, const size_t *in_bytes, struct shf_buf *out,
                           struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_home h = { 0 };
	int rc = home_decode(team, m->layout, &h, in, in_bytes, &arena);

	if (rc < 0)
		shf_fail(err, rc, "planning: %s", shf_strerror(rc));
	else
		rc = shf_home_deal(m, (uint32_t)team->ranks, &h, out, err);
	shf_free(h.heard);
	shf_arena_release(&arena);
	return rc;
}
