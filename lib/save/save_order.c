/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what a save copies: the pieces of a round or, for a lazy save, the pieces and the segments
 * in slots of each slice. */
#include "save_order.h"
#include <stdlib.h>
#include "err.h"
#include "save_copier.h"
#include "save_where.h"
#include "state.h"

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

/* Returns in how many pieces of at most `most` bytes a serve is copied. */
static uint32_t pieces_of(const struct shf_plan *plan, const struct shf_serve *v, uint64_t most)
{
	return v->witness ? 1
	                  : shf_save_cuts_of(&plan->layout.tensors[v->tensor], &v->box, most);
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

int shf_save_order_list(const struct sheaf_save *save, struct shf_span serves, uint64_t most,
                        struct shf_save_order_piece **out, size_t *n, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	struct shf_save_order_piece *a;
	size_t stream = 0, used = 0;

	for (size_t i = serves.first; i < serves.end; i++)
		used += pieces_of(save->plan, &w->serves[i], most);
	*n = used;
	*out = a = shf_alloc(used, sizeof(*a));
	if (!a)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to copy %zu pieces", used);
	used = 0;
	for (size_t i = serves.first; i < serves.end; i++) {
		const struct shf_serve *v = &w->serves[i];
		const struct shf_slice *s = shf_save_slice_of(save, v->tensor, &v->box);
		uint32_t pieces = pieces_of(save->plan, v, most);

		if (!always(s != NULL))
			return shf_fail(err, SHEAF_EBUG, "%s: asked for a box that this rank does "
			                "not have",
			                save->plan->layout.tensors[v->tensor].name);
		for (uint32_t k = 0; k < pieces; k++)
			a[used++] = (struct shf_save_order_piece){
				(uint32_t)(s - save->state->slices), (uint32_t)i, k, v->image,
				stream };
		stream += shf_save_stream_bytes(save, v->tensor, v->rank, v->witness, &v->box);
	}
	qsort(a, used, sizeof(*a), by_image);
	return 0;
}

/* Notes for which slices the caller must ask. */
static void note_saved(struct shf_save_order *o, const struct sheaf_save *save)
{
	const struct sheaf_state *state = save->state;

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

/* Lists all n pieces, which are in the order of copying, grouped by slice. While filling,
 * first[s + 1] is the next free index of slice s; at the end it is the start of slice s + 1. */
static void group_pieces(struct shf_save_order *o, const struct sheaf_save *save,
                         const struct shf_save_order_piece *all, size_t n)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_lt_tensor *tensors = save->plan->layout.tensors;

	for (size_t i = 0; i < n; i++)
		o->first[all[i].slice + 2]++;
	for (size_t s = 0; s < o->slices_n; s++)
		o->first[s + 2] += o->first[s + 1];
	for (size_t i = 0; i < n; i++)
		o->a[o->first[all[i].slice + 1]++] = all[i];
	for (size_t i = 0; i < w->serves_n; i++)
		if (!w->serves[i].witness)
			o->bytes += shf_box_bytes(&tensors[w->serves[i].tensor], &w->serves[i].box);
}

/* Lists the segments that lie in no image, grouped by slice in the same way; a segment is listed
 * once for each of its moves. ENOMEM. */
static int group_slotted(struct shf_save_order *o, const struct sheaf_save *save)
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
	size_t n = save->state->n, all_n;
	struct shf_save_order_piece *all;
	int rc = shf_save_order_list(save, (struct shf_span){ 0, w->serves_n }, SHF_PIECE_BYTES,
	                             &all, &all_n, err);

	if (rc == 0) {
		o->slices_n = n;
		o->first = shf_zalloc(n + 2, sizeof(*o->first));
		o->saved = shf_zalloc(n, sizeof(*o->saved));
		o->a = shf_alloc(all_n, sizeof(*o->a));
		if (!o->first || !o->saved || !o->a || group_slotted(o, save) < 0) {
			shf_save_order_release(o);
			rc = shf_fail(err, SHEAF_ENOMEM, "no order for %zu slices", n);
		}
	}
	if (rc == 0) {
		group_pieces(o, save, all, all_n);
		note_saved(o, save);
	}
	shf_free(all);
	return rc;
}
