/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns slots to segments that lie in no image. */
#include "unstaged.h"
#include <inttypes.h>
#include "err.h"
#include "run_io.h"
#include "save_where.h"
#include "work.h"

struct shf_unstaged {
	pthread_mutex_t lock;           /* no other lock is taken with this one held */
	size_t first, n;                /* segments [first, first + n) of the plan lie in no
	                                 * image */
	size_t next;                    /* guarded by lock: all segments before first + next are
	                                 * taken */
	uint8_t *taken;                 /* owned; guarded by lock; by segment: 1 + its slot; 0: not
	                                 * taken */
	uint64_t *digests;              /* owned; by move of the plan; written by the thread that
	                                 * copies it */
	uint32_t busy;                  /* guarded by lock: slots in use, one bit each */
};

int shf_unstaged_new(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_span segs = shf_unstaged_segs(&save->plan->work);
	struct shf_unstaged *a;

	if (segs.end == segs.first)
		return 0;
	save->copy.slots = a = shf_zalloc(1, sizeof(*a));
	if (a) {
		pthread_mutex_init(&a->lock, NULL);
		a->first = segs.first;
		a->n = segs.end - segs.first;
		a->taken = shf_zalloc(a->n, 1);
		a->digests = shf_zalloc(save->plan->work.moves_n, sizeof(*a->digests));
	}
	return a && a->taken && a->digests
	           ? 0
	           : shf_fail(err, SHEAF_ENOMEM, "step %" PRId64 ": no memory for %zu segments "
	                      "in no image", save->id.step, segs.end - segs.first);
}

void shf_unstaged_free(struct shf_unstaged *a, bool ours)
{
	if (!a)
		return;
	if (ours)
		pthread_mutex_destroy(&a->lock);
	shf_free(a->taken);
	shf_free(a->digests);
	shf_free(a);
}

/* Returns the next segment that is not taken, or SHF_UNSTAGED_NONE. The caller holds the lock. */
static int64_t next_untaken(struct shf_unstaged *a)
{
	while (a->next < a->n && a->taken[a->next])
		a->next++;
	return a->next < a->n ? (int64_t)(a->first + a->next) : SHF_UNSTAGED_NONE;
}

/* Returns a segment that is not taken and has bytes of that slice (SIZE_MAX: of any), or
 * SHF_UNSTAGED_NONE. The caller holds the lock. */
static int64_t untaken(struct sheaf_save *save, size_t slice)
{
	struct shf_unstaged *a = save->copy.slots;
	const struct shf_save_order *o = &save->plan->turns;

	if (slice == SIZE_MAX)
		return next_untaken(a);
	for (size_t k = o->slotted_first[slice]; k < o->slotted_first[slice + 1]; k++)
		if (!a->taken[o->slotted[k] - a->first])
			return (int64_t)o->slotted[k];
	return SHF_UNSTAGED_NONE;
}

int64_t shf_unstaged_take(struct sheaf_save *save, size_t slice)
{
	struct shf_unstaged *a = save->copy.slots;
	int64_t seg;
	uint32_t slot = 0;

	if (!a)
		return SHF_UNSTAGED_NONE;
	pthread_mutex_lock(&a->lock);
	seg = untaken(save, slice);
	while (slot < save->plan->work.slots && a->busy >> slot & 1)
		slot++;
	if (seg >= 0 && slot == save->plan->work.slots)
		seg = SHF_UNSTAGED_FULL;
	if (seg >= 0) {
		a->busy |= UINT32_C(1) << slot;
		a->taken[(size_t)seg - a->first] = (uint8_t)(slot + 1);
	}
	pthread_mutex_unlock(&a->lock);
	return seg;
}

bool shf_unstaged_wait(struct sheaf_save *save, int timeout_ms)
{
	return shf_io_wait_one(save->run, &save->disk.io, timeout_ms);
}

uint8_t *shf_unstaged_slot(const struct sheaf_save *save, size_t seg)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_unstaged *a = save->copy.slots;

	return shf_save_own_image(save) + w->slots_at + (a->taken[seg - a->first] -
	                                                 1U) * w->slot_bytes;
}

void shf_unstaged_written(struct sheaf_save *save, size_t seg)
{
	struct shf_unstaged *a = save->copy.slots;

	pthread_mutex_lock(&a->lock);
	a->busy &= ~(UINT32_C(1) << (a->taken[seg - a->first] - 1));
	pthread_mutex_unlock(&a->lock);
}

void shf_unstaged_add(struct sheaf_save *save, size_t seg, uint64_t *sums)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_seg *g = &w->segs[seg];

	for (uint32_t k = g->first_move; k < g->first_move + g->moves_n; k++) {
		const struct shf_seg_move *v = &w->moves[k];
		uint64_t digest = save->copy.slots->digests[k];

		save->copy.held[v->tensor] ^= digest;
		if (sums)
			sums[shf_save_slice_of(save, v->tensor, &v->box) - save->state->slices] ^=
			    digest;
	}
}

uint64_t *shf_unstaged_digests(const struct sheaf_save *save)
{
	return save->copy.slots->digests;
}
