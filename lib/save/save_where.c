/* SPDX-License-Identifier: Apache-2.0 */
/* Computes where the bytes of a save are, for the files that copy, send and write them. */
#include "save_where.h"
#include "box_copy.h"
#include "state.h"
#include "work.h"

uint8_t *shf_save_own_image(const struct sheaf_save *save)
{
	return save->run->image.all[save->copy.image].own.base;
}

struct shf_ctl *shf_save_own_ctl(const struct sheaf_save *save, size_t seg)
{
	return (struct shf_ctl *)(void *)(shf_save_own_image(save) +
	                                  shf_work_ctl(&save->plan->work, seg));
}

struct shf_box_copy_sums shf_save_sums_at(const struct sheaf_save *save, uint32_t file, uint64_t lo,
                                             struct shf_ctl *ctl)
{
	return (struct shf_box_copy_sums){ .parts = ctl->parts, .first_block = lo / SHF_BLOCK,
		.file_bytes = save->plan->layout.files[file].bytes };
}

struct shf_box_copy_sums shf_save_seg_sums(const struct sheaf_save *save, size_t seg,
                                           struct shf_ctl *ctl)
{
	const struct shf_seg *g = &save->plan->work.segs[seg];

	return shf_save_sums_at(save, g->file, g->lo, ctl);
}

bool shf_save_has_header(const struct sheaf_save *save, const struct shf_seg *g)
{
	return g->lo < save->plan->layout.files[g->file].header_bytes;
}

const struct shf_slice *shf_save_slice_of(const struct sheaf_save *save, uint32_t tensor,
                                          const struct shf_box *box)
{
	const struct shf_holds *h = &save->plan->holds;

	for (size_t i = shf_holds_first(h, tensor); i < h->n && h->a[i].tensor == tensor; i++)
		if (shf_box_contains(h->a[i].box, box))
			return &save->state->slices[h->a[i].slice];
	return NULL;
}

bool shf_save_reaches(const struct sheaf_save *save, uint32_t peer)
{
	return save->run->place.nodes[peer] == save->run->place.node;
}

size_t shf_save_stream_bytes(const struct sheaf_save *save, uint32_t tensor, uint32_t peer,
                                bool witness, const struct shf_box *box)
{
	if (witness)
		return 8;
	if (shf_save_reaches(save, peer))
		return 0;
	return (size_t)shf_box_bytes(&save->plan->layout.tensors[tensor], box);
}

bool shf_save_waits_for_net(const struct sheaf_save *save, const struct shf_seg *g)
{
	for (uint32_t k = 0; k < g->moves_n; k++) {
		const struct shf_seg_move *v = &save->plan->work.moves[g->first_move + k];

		if (v->witness || !shf_save_reaches(save, v->rank))
			return true;
	}
	return false;
}

/* Sets *dim to the dimension along which a box is cut, the first with more than one row, and
 * returns how many rows a part has. 0: the box is not cut. */
static int64_t cut_of(const struct shf_lt_tensor *t, const struct shf_box *box, uint64_t most,
                      int *dim)
{
	uint64_t bytes = shf_box_bytes(t, box);
	int d = 0;

	while (d < box->ndim - 1 && box->count[d] == 1)
		d++;
	*dim = d;
	if (box->ndim == 0 || bytes <= most)
		return 0;
	int64_t per = (int64_t)(most / (bytes / (uint64_t)box->count[d]));

	return per > 0 ? per : 1;
}

uint32_t shf_save_cuts_of(const struct shf_lt_tensor *t, const struct shf_box *box, uint64_t bytes)
{
	int dim;
	int64_t per = cut_of(t, box, bytes, &dim);

	return per ? (uint32_t)((box->count[dim] + per - 1) / per) : 1;
}

uint64_t shf_save_cut_at(const struct shf_lt_tensor *t, const struct shf_box *box, uint64_t bytes,
                         uint32_t i, struct shf_box *part)
{
	int dim;
	int64_t per = cut_of(t, box, bytes, &dim), from = i * per, left;

	*part = *box;
	if (!per)
		return 0;
	left = box->count[dim] - from;
	part->start[dim] += from;
	part->count[dim] = left < per ? left : per;
	return shf_box_bytes(t, box) / (uint64_t)box->count[dim] * (uint64_t)from;
}

size_t shf_save_slice_number(const struct sheaf_save *save, const struct shf_seg_move *v)
{
	return (size_t)(shf_save_slice_of(save, v->tensor, &v->box) - save->state->slices);
}

struct shf_span shf_unstaged_segs(const struct shf_work *w)
{
	return shf_work_segs(w, SHF_ROUND_OWN);
}
