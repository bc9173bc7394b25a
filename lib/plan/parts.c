/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a stripe, the sets of ranks that hold them, and the votes on which rank writes or reads.
 *
 * Pieces are sorted before anything else is done with them, and no result depends on where a set
 * lies in the hash table. So the order in which pieces came cannot change the plan, and all ranks
 * that compute the plan get the same one. */
#include "parts.h"
#include <stdlib.h>
#include <string.h>
#include "cover_cells.h"
#include "deal.h"
#include "node_rank.h"

/* Doubles the list when it is full, so adding n items takes linear time. */
void *shf_parts_grow(void *list, size_t *max, size_t n, size_t size)
{
	size_t more = *max ? 2 * *max : 32;

	if (n < *max)
		return list;
	list = shf_realloc(list, more, size);
	if (list)
		*max = more;
	return list;
}

static uint64_t tensor_bytes(const struct shf_deal_tensor *t)
{
	return shf_shape_units(&t->shape) * t->unit;
}

/* A range that ends inside a unit would lose a part of it. stripe_is_sane() rules that out: a
 * stripe ends on a multiple of every unit, and so do pages and blocks. */
bool shf_parts_units(const struct shf_deal_tensor *t, uint64_t from, uint64_t to, uint64_t *lo,
                     uint64_t *hi)
{
	uint64_t end = t->off + tensor_bytes(t);

	from = from > t->off ? from : t->off;
	to = to < end ? to : end;
	if (from >= to)
		return false;
	*lo = (from - t->off) / t->unit;
	*hi = (to - t->off) / t->unit;
	return *lo < *hi;
}

/* Checks what the planner relies on: tensors ascend without overlap, each begins on a multiple
 * of its unit, and sizes fit 63 bits. A unit divides the page, so a cut at a page never cuts a
 * unit. The end of the stripe may be the end of the file, which is no page, so it is checked by
 * itself. */
static bool stripe_is_sane(const struct shf_stripe *s)
{
	uint64_t end = 0, units, bytes;

	if (s->lo > s->hi || s->lo % SHF_PAGE != 0)
		return false;
	for (size_t i = 0; i < s->tensors_n; i++) {
		const struct shf_deal_tensor *t = &s->tensors[i];

		if (t->shape.ndim < 0 || t->shape.ndim > SHEAF_DIMS_MAX || t->unit == 0 ||
		    SHF_PAGE % t->unit != 0 || t->off % t->unit != 0 || t->off < end)
			return false;
		units = 1;
		for (int d = 0; d < t->shape.ndim; d++) {
			if (t->shape.dim[d] < 0 ||
			    !shf_mul64(&units, units, (uint64_t)t->shape.dim[d]))
				return false;
		}
		if (!shf_mul64(&bytes, units, t->unit) || bytes > INT64_MAX ||
		    !shf_add64(&end, t->off, bytes))
			return false;
		if (t->off < s->hi && end > s->hi && (s->hi - t->off) % t->unit != 0)
			return false;
	}
	return true;
}

/* The box must lie in its tensor. The comparison subtracts where an addition might overflow. */
static bool piece_is_sane(const struct shf_stripe *s, const struct shf_piece *p, uint32_t ranks)
{
	const struct shf_shape *shape;

	if (p->rank >= ranks || p->tensor >= s->tensors_n)
		return false;
	shape = &s->tensors[p->tensor].shape;
	if (p->box.ndim != shape->ndim)
		return false;
	for (int d = 0; d < shape->ndim; d++) {
		if (p->box.start[d] < 0 || p->box.count[d] <= 0 ||
		    p->box.start[d] > shape->dim[d] - p->box.count[d])
			return false;
	}
	return true;
}

/* Returns whether the piece meets the stripe, judged by its span: a strided piece may pass this
 * test and have no byte in the stripe. That costs a little time only, since the cells are computed
 * from the boxes themselves. */
static bool meets_stripe(const struct shf_parts *p, const struct shf_piece *piece)
{
	const struct shf_deal_tensor *t = &p->stripe->tensors[piece->tensor];
	uint64_t lo, hi, first, last;

	if (!shf_parts_units(t, p->from, p->stripe->hi, &lo, &hi))
		return false;
	shf_box_span(&t->shape, &piece->box, &first, &last);
	return first < hi && last > lo;
}

/* Compares pieces by tensor, then rank, then box. Pieces that compare equal are duplicates, and one
 * of them is dropped. */
static int compare_pieces(const void *a, const void *b)
{
	const struct shf_piece *x = *(const struct shf_piece *const *)a;
	const struct shf_piece *y = *(const struct shf_piece *const *)b;

	if (x->tensor != y->tensor)
		return x->tensor < y->tensor ? -1 : 1;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	for (int d = 0; d < x->box.ndim; d++) {
		if (x->box.start[d] != y->box.start[d])
			return x->box.start[d] < y->box.start[d] ? -1 : 1;
		if (x->box.count[d] != y->box.count[d])
			return x->box.count[d] < y->box.count[d] ? -1 : 1;
	}
	return 0;
}

/* Sorts pieces by tensor, rank and box. Pieces mostly come by rank, and then a counting sort by
 * tensor, which keeps that order inside a tensor, is enough; the check of the result costs one
 * pass. Otherwise qsort() finishes the work. */
static int pieces_sort(const struct shf_parts *p, const struct shf_piece **list, size_t n)
{
	size_t tensors = p->stripe->tensors_n;
	const struct shf_piece **from = shf_alloc(n, sizeof(*from));
	size_t *at = shf_zalloc(tensors + 1, sizeof(*at));
	bool sorted = true;

	if (!from || !at) {
		shf_free(from);
		shf_free(at);
		return SHEAF_ENOMEM;
	}
	for (size_t i = 0; i < n; i++) {
		from[i] = list[i];
		at[from[i]->tensor + 1]++;
	}
	for (size_t t = 0; t < tensors; t++)
		at[t + 1] += at[t];
	for (size_t i = 0; i < n; i++)
		list[at[from[i]->tensor]++] = from[i];
	for (size_t i = 1; i < n && sorted; i++)
		sorted = compare_pieces(&list[i - 1], &list[i]) <= 0;
	if (!sorted)
		qsort(list, n, sizeof(*list), compare_pieces);
	shf_free(from);
	shf_free(at);
	return 0;
}

/* Copies the pieces that meet the stripe, without duplicates. sorted has n pointers to them.
 * first[t] is where the pieces of tensor t begin; tensors without pieces get the position of
 * the next one that has some. */
static int pieces_copy(struct shf_parts *p, const struct shf_piece **sorted, size_t n)
{
	size_t kept = 0, t = 0;

	if (pieces_sort(p, sorted, n) < 0)
		return SHEAF_ENOMEM;
	p->boxes = shf_alloc(n, sizeof(*p->boxes));
	p->ranks = shf_alloc(n, sizeof(*p->ranks));
	p->first = shf_alloc(p->stripe->tensors_n + 1, sizeof(*p->first));
	if (!p->boxes || !p->ranks || !p->first)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (i > 0 && compare_pieces(&sorted[i - 1], &sorted[i]) == 0)
			continue;
		while (t <= sorted[i]->tensor)
			p->first[t++] = kept;
		p->boxes[kept] = sorted[i]->box;
		p->ranks[kept++] = sorted[i]->rank;
	}
	while (t <= p->stripe->tensors_n)
		p->first[t++] = kept;
	return 0;
}

/* `from` is the first byte that is planned as data: the start of the page in which the header ends.
 * A page has one writer, and the rest of that page is data. */
int shf_parts_init(struct shf_parts *p, const struct shf_stripe *stripe,
                   const struct shf_piece *pieces, size_t pieces_n, const int32_t *nodes,
                   uint32_t ranks)
{
	const struct shf_piece **sorted;
	uint64_t payload = stripe->payload / SHF_PAGE * SHF_PAGE;
	size_t n = 0;
	int rc = 0;

	*p = (struct shf_parts){ .stripe = stripe, .nodes = nodes,
		.all = ranks };
	p->turn = stripe->file + stripe->index;
	p->from = stripe->lo > payload ? stripe->lo : payload < stripe->hi ? payload : stripe->hi;
	if (ranks == 0 || pieces_n > UINT32_MAX / 4 || !stripe_is_sane(stripe))
		return SHEAF_EINVAL;
	sorted = shf_alloc(pieces_n, sizeof(*sorted));
	if (!sorted)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < pieces_n && rc == 0; i++) {
		if (!piece_is_sane(stripe, &pieces[i], ranks))
			rc = SHEAF_EINVAL;
		else if (meets_stripe(p, &pieces[i]))
			sorted[n++] = &pieces[i];
	}
	if (rc == 0)
		rc = pieces_copy(p, sorted, n);
	shf_free(sorted);
	return rc;
}

void shf_parts_release(struct shf_parts *p)
{
	shf_arena_release(&p->arena);
	shf_free(p->boxes);
	shf_free(p->ranks);
	shf_free(p->first);
	shf_free(p->parts);
	shf_free(p->table);
}

/* A multiplicative hash; the shift brings the well-mixed high bits down, because the table uses
 * the low ones. */
static uint64_t hash_ranks(const uint32_t *ranks, uint32_t n)
{
	uint64_t h = n;

	for (uint32_t i = 0; i < n; i++) {
		h = (h ^ ranks[i]) * UINT64_C(0x9E3779B97F4A7C15);
		h ^= h >> 29;
	}
	return h;
}

/* Returns the slot of a set, or the free slot where it belongs. The table is at most half full,
 * so the search ends. */
static size_t slot_of(const struct shf_parts *p, const uint32_t *ranks, uint32_t n)
{
	size_t mask = p->table_max - 1, i = (size_t)hash_ranks(ranks, n) & mask;

	while (p->table[i] && (p->table[i]->n != n ||
	                       memcmp(p->table[i]->ranks, ranks, n * sizeof(*ranks)) != 0))
		i = (i + 1) & mask;
	return i;
}

/* Doubles the hash table when it is half full, and puts the sets in their new slots. */
static int set_table_grow(struct shf_parts *p)
{
	struct shf_set **old = p->table;
	size_t old_max = p->table_max;

	if (2 * p->table_n < old_max)
		return 0;
	p->table_max = old_max ? 2 * old_max : 64;
	p->table = shf_zalloc(p->table_max, sizeof(struct shf_set *));
	if (!p->table) {
		p->table = old;
		p->table_max = old_max;
		return SHEAF_ENOMEM;
	}
	for (size_t i = 0; i < old_max; i++) {
		if (old[i])
			p->table[slot_of(p, old[i]->ranks, old[i]->n)] = old[i];
	}
	shf_free(old);
	return 0;
}

/* Returns the one object for this set of ranks, or NULL if there is no memory. Many parts have the
 * same holders, so a set is stored once, and equality is equality of pointers. */
static struct shf_set *set_of(struct shf_parts *p, const uint32_t *ranks, uint32_t n)
{
	struct shf_set *set;
	size_t i;

	if (set_table_grow(p) < 0)
		return NULL;
	i = slot_of(p, ranks, n);
	if (p->table[i])
		return p->table[i];
	set = shf_arena_alloc(&p->arena, 1, sizeof(*set));
	if (!set)
		return NULL;
	set->ranks = shf_arena_alloc(&p->arena, n, sizeof(*ranks));
	if (!set->ranks)
		return NULL;
	memcpy(set->ranks, ranks, n * sizeof(*ranks));
	set->n = n;
	p->table[i] = set;
	p->table_n++;
	return set;
}

/* The different boxes of one tensor, and which ranks have each. With data parallelism the
 * replicas are many and the boxes few; the cells are computed from the boxes alone. */
struct distinct {
	struct shf_box *boxes;          /* owned */
	size_t n;
	uint32_t *start, *ranks;        /* owned; the ranks that have box i are ranks[start[i]] up
	                                 * to but not including ranks[start[i + 1]], ascending */
};

static void distinct_release(struct distinct *d)
{
	shf_free(d->boxes);
	shf_free(d->start);
	shf_free(d->ranks);
}

/* Hashes a box. Each number is mixed in by a product and a shift, so boxes that differ in one bound
 * spread. */
static uint64_t hash_box(const struct shf_box *b)
{
	uint64_t h = 0;

	for (int k = 0; k < b->ndim; k++) {
		h = (h ^ (uint64_t)b->start[k]) * UINT64_C(0x9E3779B97F4A7C15);
		h = (h ^ (uint64_t)b->count[k] ^ h >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
	}
	return h ^ h >> 32;
}

/* Finds the box of each piece, and stores its index in which[]; boxes are numbered in the order in
 * which they first appear. The hash table has at least twice as many slots as pieces. The count of
 * box i goes to start[i + 2], two places on: after the prefix sums start[i + 1] is where box i
 * begins, and filling the lists moves it to where box i ends, as distinct_init() does. Returns
 * false if there is no memory. */
static bool distinct_find(struct distinct *d, const struct shf_box *boxes, size_t n,
                          uint32_t *which)
{
	size_t max = 64;

	while (max < 2 * n)
		max *= 2;
	uint32_t *slots = shf_zalloc(max, sizeof(*slots));

	for (size_t i = 0; slots && i < n; i++) {
		size_t at = (size_t)hash_box(&boxes[i]) & (max - 1);

		while (slots[at] && !shf_box_equal(&d->boxes[slots[at] - 1], &boxes[i]))
			at = (at + 1) & (max - 1);
		if (!slots[at]) {
			d->boxes[d->n++] = boxes[i];
			slots[at] = (uint32_t)d->n;
		}
		which[i] = slots[at] - 1;
		d->start[which[i] + 2]++;
	}
	shf_free(slots);
	return slots != NULL;
}

/* Groups the ranks of a tensor's pieces by box. Pieces of the tensor ascend by rank, and the
 * pass keeps their order, so the ranks of each box ascend. After the prefix sums start[i + 1]
 * is where box i begins; filling moves it to where box i ends. */
static int distinct_init(struct distinct *d, const struct shf_parts *p, uint32_t tensor)
{
	size_t first = p->first[tensor], n = p->first[tensor + 1] - first;
	uint32_t *which = shf_alloc(n, sizeof(*which));
	bool done = false;

	*d = (struct distinct){ .boxes = shf_alloc(n, sizeof(*d->boxes)),
		.start = shf_zalloc(n + 2, sizeof(*d->start)),
		.ranks = shf_alloc(n, sizeof(*d->ranks)) };
	if (which && d->boxes && d->start && d->ranks)
		done = distinct_find(d, p->boxes + first, n, which);
	for (size_t i = 2; done && i < n + 2; i++)
		d->start[i] += d->start[i - 1];
	for (size_t i = 0; done && i < n; i++)
		d->ranks[d->start[which[i] + 1]++] = p->ranks[first + i];
	shf_free(which);
	return done ? 0 : SHEAF_ENOMEM;
}

static int compare_ranks(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Returns the set of ranks of a cell, each once and ascending. A cell of a single box, the
 * usual case, has that box's ranks as they stand. Otherwise the lists are joined and sorted; a
 * rank may have two boxes that overlap, so duplicates are dropped. */
static struct shf_set *set_of_cell(struct shf_parts *p, const struct shf_cell *c,
                                   const struct distinct *d)
{
	uint32_t all = 0, n = 0, kept = 0, *ranks;
	struct shf_set *set;

	if (c->set_n == 1)
		return set_of(p, d->ranks + d->start[c->set[0]],
		              d->start[c->set[0] + 1] - d->start[c->set[0]]);
	for (uint32_t i = 0; i < c->set_n; i++)
		all += d->start[c->set[i] + 1] - d->start[c->set[i]];
	ranks = shf_alloc(all, sizeof(*ranks));
	if (!ranks)
		return NULL;
	for (uint32_t i = 0; i < c->set_n; i++)
		for (uint32_t k = d->start[c->set[i]]; k < d->start[c->set[i] + 1]; k++)
			ranks[n++] = d->ranks[k];
	qsort(ranks, n, sizeof(*ranks), compare_ranks);
	for (uint32_t i = 0; i < n; i++)
		if (kept == 0 || ranks[kept - 1] != ranks[i])
			ranks[kept++] = ranks[i];
	set = set_of(p, ranks, kept);
	shf_free(ranks);
	return set;
}

/* Adds a part for a cell. reach is the greatest end so far: parts ascend by `lo` but not by
 * `hi`, and reach, which never falls, makes a binary search possible. */
static int part_append(struct shf_parts *p, uint32_t tensor, const struct shf_cell *c,
                       const struct distinct *d)
{
	const struct shf_deal_tensor *t = &p->stripe->tensors[tensor];
	struct shf_part *part = shf_parts_grow(p->parts, &p->parts_max, p->parts_n, sizeof(*part));
	uint64_t lo, hi, reach;

	if (!part)
		return SHEAF_ENOMEM;
	p->parts = part;
	reach = p->parts_n ? part[p->parts_n - 1].reach : 0;
	part += p->parts_n;
	shf_box_span(&t->shape, &c->box, &lo, &hi);
	*part = (struct shf_part){ .box = c->box, .tensor = tensor };
	part->lo = t->off + lo * t->unit;
	part->hi = t->off + hi * t->unit;
	part->reach = part->hi > reach ? part->hi : reach;
	part->set = set_of_cell(p, c, d);
	if (!part->set)
		return SHEAF_ENOMEM;
	p->parts_n++;
	return 0;
}

/* Adds the parts of one box of a tensor. Cells come in the order of the sweep, which is that of
 * their first units, so parts ascend by lo. */
static int collect_box(struct shf_parts *p, uint32_t tensor, const struct shf_box *inside,
                       const struct distinct *d, struct shf_gap *gap)
{
	struct shf_cell *cells;
	size_t n;
	int rc;

	rc = shf_cells(&p->arena, inside, d->boxes, d->n, &cells, &n);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		if (cells[i].set_n > 0) {
			rc = part_append(p, tensor, &cells[i], d);
		} else if (gap) {
			*gap = (struct shf_gap){ tensor, cells[i].box, -1, -1 };
			rc = SHEAF_ELAYOUT;
		}
	}
	return rc;
}

/* Cuts the planned range of each tensor into boxes and these into cells. Each tensor's
 * different boxes are found once for all of its range. */
int shf_parts_collect(struct shf_parts *p, struct shf_gap *gap)
{
	struct shf_box boxes[SHF_RANGE_BOXES_MAX];
	uint64_t lo, hi;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < p->stripe->tensors_n; i++) {
		const struct shf_deal_tensor *t = &p->stripe->tensors[i];
		int n = 0;

		if (shf_parts_units(t, p->from, p->stripe->hi, &lo, &hi))
			n = shf_range_boxes(&t->shape, lo, hi, boxes);
		if (n == 0)
			continue;
		struct distinct d;

		rc = distinct_init(&d, p, i);
		for (int k = 0; rc == 0 && k < n; k++)
			rc = collect_box(p, i, &boxes[k], &d, gap);
		distinct_release(&d);
	}
	return rc;
}

/* Returns the index of the first part that may have bytes after lo: reach never falls. */
static size_t part_from(const struct shf_parts *p, uint64_t lo)
{
	size_t a = 0, b = p->parts_n;

	while (a < b) {
		size_t mid = a + (b - a) / 2;

		if (p->parts[mid].reach <= lo)
			a = mid + 1;
		else
			b = mid;
	}
	return a;
}

/* A part that lies wholly in the range is passed as it is. Others are cut by the boxes of the
 * range, which are computed once for each tensor, as its parts follow each other. */
int shf_parts_each(const struct shf_parts *p, uint64_t lo, uint64_t hi,
                   int (*item)(void *arg, const struct shf_part *part, const struct shf_box *box),
                   void *arg)
{
	struct shf_box boxes[SHF_RANGE_BOXES_MAX], both;
	uint32_t of = UINT32_MAX;       /* the tensor that `boxes` was computed for */
	int boxes_n = 0, rc = 0;

	for (size_t i = part_from(p, lo); i < p->parts_n && p->parts[i].lo < hi; i++) {
		const struct shf_part *part = &p->parts[i];
		const struct shf_deal_tensor *t = &p->stripe->tensors[part->tensor];
		uint64_t u_lo, u_hi;

		if (part->hi <= lo)
			continue;
		if (part->lo >= lo && part->hi <= hi) {
			rc = item(arg, part, &part->box);
			if (rc != 0)
				return rc;
			continue;
		}
		if (of != part->tensor) {
			of = part->tensor;
			boxes_n = shf_parts_units(t, lo, hi, &u_lo, &u_hi) ?
			          shf_range_boxes(&t->shape, u_lo, u_hi, boxes) : 0;
		}
		for (int k = 0; k < boxes_n; k++) {
			if (!shf_box_intersect(&both, &part->box, &boxes[k]))
				continue;
			rc = item(arg, part, &both);
			if (rc != 0)
				return rc;
		}
	}
	return 0;
}

/* Compares shares by node, then by the lowest rank. */
static int compare_shares(const void *a, const void *b)
{
	const struct shf_share *x = a, *y = b;

	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	return x->first < y->first ? -1 : x->first > y->first;
}

/* Sorts shares by node and adds up those of one node; returns how many are left. The sort puts the
 * lowest rank of a node first, so the joined share keeps it. */
static uint32_t shares_join(struct shf_share *s, uint32_t n)
{
	uint32_t kept = 0;

	if (n > 0)
		qsort(s, n, sizeof(*s), compare_shares);
	for (uint32_t i = 0; i < n; i++) {
		if (kept > 0 && s[kept - 1].node == s[i].node)
			s[kept - 1].bytes += s[i].bytes;
		else
			s[kept++] = s[i];
	}
	return kept;
}

/* Lists the nodes of a set, each with its lowest rank. The list is made when a vote first needs
 * it, and kept. */
static int set_shares(struct shf_parts *p, struct shf_set *set)
{
	if (set->shares)
		return 0;
	set->shares = shf_arena_alloc(&p->arena, set->n, sizeof(*set->shares));
	if (!set->shares)
		return SHEAF_ENOMEM;
	for (uint32_t i = 0; i < set->n; i++)
		set->shares[i] = (struct shf_share){ p->nodes[set->ranks[i]], set->ranks[i], 0 };
	set->shares_n = shares_join(set->shares, set->n);
	return 0;
}

/* A vote: the sets that have bytes in its range, each once. */
struct vote {
	struct shf_parts *p;
	struct shf_set **sets;          /* owned by shf_parts_vote */
	size_t n;
};

/* Adds the bytes of a part to its set. Votes are numbered, and a set is reset when its number is
 * not that of the current vote, so no vote has to clear all sets. */
static int vote_count(void *arg, const struct shf_part *part, const struct shf_box *box)
{
	struct vote *v = arg;
	struct shf_set *set = part->set;

	if (set->round != v->p->rounds) {
		set->round = v->p->rounds;
		set->bytes = 0;
		v->sets[v->n++] = set;
	}
	set->bytes += shf_box_units(box) * v->p->stripe->tensors[part->tensor].unit;
	return 0;
}

/* Compares shares by the lowest rank of the node, which does not depend on how nodes are
 * numbered. */
static int compare_firsts(const void *a, const void *b)
{
	const struct shf_share *x = a, *y = b;

	return x->first < y->first ? -1 : x->first > y->first;
}

/* Returns the node with most bytes. Nodes with equally many take turns, in the order of their
 * lowest ranks. *turn is divided by their number, so that the choice of a rank on the node does not
 * repeat the choice among nodes. The contents of s are lost. */
static int32_t node_of(struct shf_share *s, uint32_t n, uint64_t *turn)
{
	uint64_t most = 0, pick;
	uint32_t best_n = 0;

	for (uint32_t i = 0; i < n; i++)
		most = s[i].bytes > most ? s[i].bytes : most;
	for (uint32_t i = 0; i < n; i++) {
		if (s[i].bytes == most)
			s[best_n++] = s[i];
	}
	qsort(s, best_n, sizeof(*s), compare_firsts);
	pick = *turn % best_n;
	*turn /= best_n;
	return s[pick].node;
}

/* Sets *rank to the turn-th of the ranks of this node in the sets, each counted once. If the node
 * has no rank in them, which happens only where the caller named the node, it is the turn-th of all
 * ranks of the node. */
static int vote_rank(const struct vote *v, int32_t node, uint64_t turn, int64_t *rank)
{
	size_t all = 0, n = 0, kept = 0;
	uint32_t *ranks;

	for (size_t i = 0; i < v->n; i++)
		all += v->sets[i]->n;
	ranks = shf_alloc(all, sizeof(*ranks));
	if (!ranks)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < v->n; i++) {
		for (uint32_t k = 0; k < v->sets[i]->n; k++) {
			if (v->p->nodes[v->sets[i]->ranks[k]] == node)
				ranks[n++] = v->sets[i]->ranks[k];
		}
	}
	if (n)
		qsort(ranks, n, sizeof(*ranks), compare_ranks);
	for (size_t i = 0; i < n; i++) {
		if (kept == 0 || ranks[kept - 1] != ranks[i])
			ranks[kept++] = ranks[i];
	}
	*rank = kept ? ranks[turn % kept]
	             : shf_node_rank(v->p->nodes, v->p->all, node, turn);
	shf_free(ranks);
	return *rank < 0 ? SHEAF_EINVAL : 0; /* a block that is asked for must have a reader */
}

/* Ends a vote: adds up the bytes that each node holds, and chooses the rank. A set's bytes count in
 * full for each of its nodes, since each of them holds all of them. A node named by `only` needs no
 * majority. */
static int vote_take(struct vote *v, int32_t only, int64_t *rank)
{
	struct shf_share *shares;
	uint64_t turn = v->p->turn;
	size_t all = 0, n = 0;
	int32_t node;
	int rc = 0;

	for (size_t i = 0; i < v->n && rc == 0; i++) {
		rc = set_shares(v->p, v->sets[i]);
		all += v->sets[i]->shares_n;
	}
	shares = rc == 0 && all <= UINT32_MAX ? shf_alloc(all, sizeof(*shares)) : NULL;
	if (!shares)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < v->n; i++) {
		for (uint32_t k = 0; k < v->sets[i]->shares_n; k++) {
			shares[n] = v->sets[i]->shares[k];
			shares[n++].bytes = v->sets[i]->bytes;
		}
	}
	node = only >= 0 ? only : node_of(shares, shares_join(shares, (uint32_t)n), &turn);
	shf_free(shares);
	return vote_rank(v, node, turn, rank);
}

int shf_parts_vote(struct shf_parts *p, uint64_t lo, uint64_t hi, int32_t only, int64_t *rank)
{
	struct vote v = { .p = p };
	int rc;

	p->rounds++;
	v.sets = shf_alloc(p->table_n, sizeof(struct shf_set *));
	if (!v.sets)
		return SHEAF_ENOMEM;
	rc = shf_parts_each(p, lo, hi, vote_count, &v);
	if (rc == 0 && v.n == 0)
		*rank = -1;
	else if (rc == 0)
		rc = vote_take(&v, only, rank);
	shf_free(v.sets);
	return rc;
}

/* The argument of first_look(): the set with the lowest byte so far, at byte `at`. */
struct first {
	const struct shf_parts *p;
	const struct shf_set *set;
	uint64_t at;
};

/* Keeps the set of this box if it begins before the best one so far. */
static int first_look(void *arg, const struct shf_part *part, const struct shf_box *box)
{
	struct first *f = arg;
	const struct shf_deal_tensor *t = &f->p->stripe->tensors[part->tensor];
	uint64_t lo, hi, at;

	shf_box_span(&t->shape, box, &lo, &hi);
	at = t->off + lo * t->unit;
	if (!f->set || at < f->at) {
		f->set = part->set;
		f->at = at;
	}
	return 0;
}

/* first_look() cannot fail, so the result of the walk needs no check. */
int64_t shf_parts_first(const struct shf_parts *p, uint64_t lo, uint64_t hi)
{
	struct first f = { .p = p };

	shf_parts_each(p, lo, hi, first_look, &f);
	return f.set ? (int64_t)f.set->ranks[p->turn % f.set->n] : -1;
}

/* Bytes are taken from the nearest holder: the writer itself, then a rank of its node, then any.
 * Equally near ranks take turns. The last loop needs no bound: `near` ranks were counted before,
 * and pick is less than that. */
uint32_t shf_parts_source(const struct shf_parts *p, const struct shf_set *set, uint32_t writer)
{
	uint32_t near = 0, pick;

	if (bsearch(&writer, set->ranks, set->n, sizeof(writer), compare_ranks))
		return writer;
	for (uint32_t i = 0; i < set->n; i++)
		near += p->nodes[set->ranks[i]] == p->nodes[writer];
	if (near == 0)
		return set->ranks[p->turn % set->n];
	pick = (uint32_t)(p->turn % near);
	for (uint32_t i = 0;; i++) {
		if (p->nodes[set->ranks[i]] == p->nodes[writer] && pick-- == 0)
			return set->ranks[i];
	}
}

