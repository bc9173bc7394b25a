/* SPDX-License-Identifier: Apache-2.0 */
/* Copies segments that have no place in the image (unstaged.h) into slots, and writes them from
 * there. */
#include "unstaged_copy.h"
#include "run_env.h"
#include "save_status.h"
#include "save_where.h"
#include "save_write.h"
#include "unstaged.h"
#include "work.h"

void shf_slots_copy(struct sheaf_save *save, size_t seg)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_seg *g = &w->segs[seg];
	struct shf_sums_to sums = shf_seg_sums(save, seg, shf_own_ctl(save, seg));
	uint8_t *at = shf_slots_at(save, seg);
	bool behind = shf_lazy_is_behind(save);
	int64_t from = shf_now(save->run);
	struct sheaf_error err;
	uint64_t bytes = 0;
	int rc;

	sums.past = behind || shf_stores_past(&save->copy.stores);
	for (uint32_t k = 0; k < g->moves_n; k++) {
		const struct shf_mv *v = &w->moves[g->first_move + k];
		const struct shf_lt_tensor *t = &save->plan->layout.tensors[v->tensor];

		sums.digest = 0;
		shf_copy_in(t, shf_slice_of(save, v->tensor, &v->box), &v->box,
		            shf_place_in(at, 0, g->lo, t), &sums);
		shf_slots_digests(save)[g->first_move + k] = sums.digest;
		bytes += shf_box_bytes(t, &v->box);
	}
	if (!behind)
		shf_stores_took(&save->copy.stores, bytes, shf_now(save->run) - from);
	rc = shf_write_slotted(save, seg, &err);
	/* The slot is freed here, because no write was submitted whose end would free it. */
	if (rc < 0) {
		shf_save_stick(save, rc, &err);
		shf_slots_written(save, seg);
	}
	atomic_fetch_add_explicit(&save->took.copied, bytes, memory_order_relaxed);
}

/* Copies and writes segments for a time slice. True: segments are left to take. False: no segment
 * is left, or the save has failed. */
static bool run_some(struct sheaf_save *save)
{
	int64_t until = shf_now(save->run) + SHF_SLICE_MS * INT64_C(1000000), seg = SHF_SLOTS_NONE;

	while (shf_save_rc(save, NULL) == 0 && shf_now(save->run) < until) {
		seg = shf_slots_take(save, SIZE_MAX);
		if (seg == SHF_SLOTS_NONE)
			return false;
		if (seg == SHF_SLOTS_FULL) {
			(void)shf_slots_wait(save, shf_ms_left(save->run, until));
			continue;
		}
		shf_slots_copy(save, (size_t)seg);
		shf_slots_add(save, (size_t)seg, NULL);
	}
	return shf_save_rc(save, NULL) == 0;
}

int shf_slots_run(struct sheaf_save *save, struct sheaf_error *err)
{
	int rc = shf_save_together(save, run_some, err);

	return rc < 0 ? rc : shf_agree(&save->run->team, shf_save_rc(save, err), err);
}
