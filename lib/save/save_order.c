/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what a lazy save copies: for each slice its pieces, and its segments in slots. */
#include "save_order.h"
#include <stdlib.h>
#include "err.h"
#include "save_copier.h"
#include "save_where.h"
#include "state.h"
#include "work.h"

void shf_save_order_release(struct shf_save_order *turns)
{
	shf_free(turns->a);
	shf_free(turns->first);
	shf_free(turns->saved);
	shf_free(turns->slotted);
	shf_free(turns->slotted_first);
	shf_free(turns->order);
	*turns = (struct shf_save_order){ 0 };
}

static uint32_t pieces_of(const struct shf_plan *plan, const struct shf_serve *v)
{
	return v->witness ? 1
	                  : shf_save_cuts_of(&plan->layout.tensors[v->tensor], &v->box,
	                                     SHF_PIECE_BYTES);
}

static int by_image(const void *a, const void *b)
{
	const struct shf_save_order_piece *x = a, *y = b;

	if (x->image != y->image)
		return x->image < y->image ? -1 : 1;
	if (x->serve != y->serve)
		return x->serve < y->serve ? -1 : 1;
	return x->piece < y->piece ? -1 : x->piece > y->piece;
}

/* Puts the pieces of each serve into the list, at the place of their slice: at[slice] is the next
 * free index, and advances. */
static void turns_fill(struct shf_save_order *o, const struct sheaf_save *save,
                       const uint32_t *slices, size_t *at)
{
	const struct shf_work *w = &save->plan->work;
	size_t stream = 0, rank = SIZE_MAX;

	for (size_t i = 0; i < w->serves_n; i++) {
		const struct shf_serve *v = &w->serves[i];
		uint32_t n = pieces_of(save->plan, v);

		o->bytes += v->witness ? 0 : shf_box_bytes(&save->plan->layout.tensors[v->tensor],
		                                           &v->box);
		stream = v->rank == rank ? stream : 0;
		rank = v->rank;
		for (uint32_t k = 0; k < n; k++)
			o->a[at[slices[i]]++] =
			    (struct shf_save_order_piece){ (uint32_t)i, k, v->image, stream };
		stream += shf_save_stream_bytes(save, v->tensor, v->rank, v->witness, &v->box);
	}
}

static void turns_sort(struct shf_save_order *o, const struct sheaf_save *save)
{
	const struct sheaf_state *state = save->state;

	for (size_t s = 0; s < o->slices_n; s++)
		if (o->first[s + 1] - o->first[s] > 1)
			qsort(o->a + o->first[s], o->first[s + 1] - o->first[s], sizeof(*o->a),
			      by_image);
	for (size_t i = 0; i < save->plan->holds.n; i++) {
		size_t slice = save->plan->holds.a[i].slice;

		/* The caller need not ask at the gate of averages, because only the library changes
		 * them. */
		o->saved[slice] = !state->slices[slice].owned;
	}
	for (size_t k = 0; k < state->emas_n; k++)
		for (size_t i = 0; i < state->emas[k].n; i++)
			o->saved[state->emas[k].source[i]] |=
			    !state->slices[state->emas[k].first + i].empty;
	for (size_t s = 0; s < o->slices_n; s++)
		o->saved_n += o->saved[s];
}

/* Lists the segments that lie in no image, grouped by slice; a segment is listed once for each of
 * its moves. While filling, first[s + 1] is the next free index of slice s; at the end it is the
 * start of slice s + 1. ENOMEM. */
static int turns_slotted(struct shf_save_order *o, const struct sheaf_save *save)
{
	const struct shf_work *w = &save->plan->work;
	struct shf_span segs = shf_unstaged_segs(w);
	size_t n = save->state->n, total = 0, *first;

	o->slotted_first = first = shf_zalloc(n + 2, sizeof(*first));
	for (size_t i = segs.first; i < segs.end; i++)
		total += w->segs[i].moves_n;
	o->slotted = shf_alloc(total, sizeof(*o->slotted));
	if (!first || !o->slotted)
		return SHEAF_ENOMEM;
	for (size_t i = segs.first; i < segs.end; i++)
		for (uint32_t k = 0; k < w->segs[i].moves_n; k++) {
			const struct shf_seg_move *v = &w->moves[w->segs[i].first_move + k];

			first[shf_save_slice_number(save, v) + 2]++;
			o->bytes += shf_box_bytes(&save->plan->layout.tensors[v->tensor], &v->box);
		}
	for (size_t s = 0; s < n; s++)
		first[s + 2] += first[s + 1];
	for (size_t i = segs.first; i < segs.end; i++)
		for (uint32_t k = 0; k < w->segs[i].moves_n; k++) {
			const struct shf_seg_move *v = &w->moves[w->segs[i].first_move + k];

			o->slotted[first[shf_save_slice_number(save, v) + 1]++] = i;
		}
	return 0;
}

int shf_save_order_make(struct shf_save_order *o, const struct sheaf_save *save,
                        struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	size_t n = save->state->n, total = 0;
	uint32_t *slices = shf_alloc(w->serves_n, sizeof(*slices));
	size_t *at = shf_alloc(n, sizeof(*at));
	int rc = 0;

	o->slices_n = n;
	o->first = shf_zalloc(n + 1, sizeof(*o->first));
	o->saved = shf_zalloc(n, sizeof(*o->saved));
	if (!slices || !at || !o->first || !o->saved)
		rc = SHEAF_ENOMEM;
	for (size_t i = 0; rc == 0 && i < w->serves_n; i++) {
		const struct shf_slice *s =
		    shf_save_slice_of(save, w->serves[i].tensor, &w->serves[i].box);

		if (!always(s != NULL)) {
			rc = SHEAF_EBUG;
			break;
		}
		slices[i] = (uint32_t)(s - save->state->slices);
		o->first[slices[i] + 1] += pieces_of(save->plan, &w->serves[i]);
	}
	for (size_t s = 0; rc == 0 && s < n; s++) {
		o->first[s + 1] += o->first[s];
		at[s] = o->first[s];
		total = o->first[s + 1];
	}
	if (rc == 0 && !(o->a = shf_alloc(total, sizeof(*o->a))))
		rc = SHEAF_ENOMEM;
	if (rc == 0)
		rc = turns_slotted(o, save);
	if (rc == 0) {
		turns_fill(o, save, slices, at);
		turns_sort(o, save);
	} else {
		shf_save_order_release(o);
		shf_fail(err, rc, "no order for %zu slices", n);
	}
	shf_free(slices);
	shf_free(at);
	return rc;
}
