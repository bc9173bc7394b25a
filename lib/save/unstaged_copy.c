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

void shf_unstaged_copy(struct sheaf_save *save, size_t seg)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_seg *g = &w->segs[seg];
	struct shf_box_copy_sums sums = shf_save_seg_sums(save, seg, shf_save_own_ctl(save, seg));
	uint8_t *at = shf_unstaged_slot(save, seg);
	bool behind = shf_save_is_async(save);
	int64_t from = shf_now(save->run);
	struct sheaf_error err;
	uint64_t bytes = 0;
	int rc;

	sums.past = behind || shf_nt_stores_next(&save->copy.stores);
	for (uint32_t k = 0; k < g->moves_n; k++) {
		const struct shf_seg_move *v = &w->moves[g->first_move + k];
		const struct shf_lt_tensor *t = &save->plan->layout.tensors[v->tensor];

		sums.digest = 0;
		shf_box_copy_in(t, shf_save_slice_of(save, v->tensor, &v->box), &v->box,
		                shf_place_in(at, 0, g->lo, t), &sums);
		shf_unstaged_digests(save)[g->first_move + k] = sums.digest;
		bytes += shf_box_bytes(t, &v->box);
	}
	if (!behind)
		shf_nt_stores_took(&save->copy.stores, bytes, shf_now(save->run) - from);
	rc = shf_save_write_unstaged(save, seg, &err);
	/* The slot is freed here, because no write was submitted whose end would free it. */
	if (rc < 0) {
		shf_save_stick(save, rc, &err);
		shf_unstaged_written(save, seg);
	}
	atomic_fetch_add_explicit(&save->took.copied, bytes, memory_order_relaxed);
}

/* Copies and writes segments for a time slice. True: segments are left to take. False: no segment
 * is left, or the save has failed. */
static bool run_some(struct sheaf_save *save)
{
	int64_t until = shf_now(save->run) + SHF_SAVE_POLL_MS * INT64_C(1000000),
	        seg = SHF_UNSTAGED_NONE;

	while (shf_save_rc(save, NULL) == 0 && shf_now(save->run) < until) {
		seg = shf_unstaged_take(save, SIZE_MAX);
		if (seg == SHF_UNSTAGED_NONE)
			return false;
		if (seg == SHF_UNSTAGED_FULL) {
			(void)shf_unstaged_wait(save, shf_ms_left(save->run, until));
			continue;
		}
		shf_unstaged_copy(save, (size_t)seg);
		shf_unstaged_add(save, (size_t)seg, NULL);
	}
	return shf_save_rc(save, NULL) == 0;
}

int shf_unstaged_run(struct sheaf_save *save, struct sheaf_error *err)
{
	int rc = shf_save_together(save, run_some, err);

	return rc < 0 ? rc : shf_agree(&save->run->team, shf_save_rc(save, err), err);
}
