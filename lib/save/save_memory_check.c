/* SPDX-License-Identifier: Apache-2.0 */
/* SHEAF_SAVE_CHECK. The memory of a slice is summed three times: inside begin (or when it is put),
 * while it is copied, and at its gate. The three sums must be equal, so a change is detected
 * whenever it happened. Only the bytes that this rank copies for the step are summed. */
#include "save_memory_check.h"
#include <inttypes.h>
#include "box_copy.h"
#include "err.h"
#include "run_env.h"
#include "save_copier.h"
#include "save_status.h"
#include "save_pieces.h"
#include "save_where.h"
#include "state.h"
#include "work.h"

/* Adds a box of a slice to the sums, by copying it into scratch memory, because the copy converts
 * to the stored type. ENOMEM. */
static int sum_again(const struct shf_slice *s, const struct shf_lt_tensor *t,
                     const struct shf_box *box, struct shf_box_copy_sums *sums,
                             struct sheaf_error *err)
{
	uint8_t *scratch = shf_alloc((size_t)shf_box_bytes(t, box), 1);

	if (!scratch)
		return shf_fail(err, SHEAF_ENOMEM, "%s/%s: no memory to look again", s->family,
		                s->name);
	shf_box_copy_in(t, s, box, (struct shf_place_at){ .data = scratch, .packed = true }, sums);
	shf_free(scratch);
	return 0;
}

/* Sums everything of the slice that this rank copies: pieces, then boxes in slots. s: the slice,
 * with the memory to read. ENOMEM. */
static int slice_again(const struct sheaf_save *save, size_t slice, const struct shf_slice *s,
                       struct shf_box_copy_sums *sums, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_save_order *o = &save->plan->turns;
	const struct shf_lt_tensor *tensors = save->plan->layout.tensors;
	struct shf_box box;
	int rc = 0;

	for (size_t i = o->first[slice]; i < o->first[slice + 1] && rc == 0; i++) {
		const struct shf_serve *v = &w->serves[o->a[i].serve];

		(void)shf_save_cut_at(&tensors[v->tensor], &v->box, SHF_PIECE_BYTES, o->a[i].piece,
		                      &box);
		if (!v->witness)
			rc = sum_again(s, &tensors[v->tensor], &box, sums, err);
	}
	for (size_t i = o->slotted_first[slice]; i < o->slotted_first[slice + 1] && rc == 0; i++) {
		const struct shf_seg *g = &w->segs[o->slotted[i]];
		/* A segment is listed once for each of its moves; handle it once. */
		bool seen = i > o->slotted_first[slice] && o->slotted[i] == o->slotted[i - 1];

		for (uint32_t k = 0; k < g->moves_n && !seen && rc == 0; k++) {
			const struct shf_seg_move *v = &w->moves[g->first_move + k];

			if (shf_save_slice_number(save, v) == slice)
				rc = sum_again(s, &tensors[v->tensor], &v->box, sums, err);
		}
	}
	return rc;
}

int shf_save_memory_check_put(struct shf_save_copier *lz, size_t slice, uint8_t *base,
                              struct sheaf_error *err)
{
	struct shf_slice s = lz->save->state->slices[slice];
	struct shf_box_copy_sums sums = { 0 };
	int rc;

	s.mem.base = base;
	rc = slice_again(lz->save, slice, &s, &sums, err);
	lz->begun[slice] = sums.digest;
	return rc;
}

int shf_save_memory_check_begin(struct shf_save_copier *lz, struct sheaf_error *err)
{
	const struct sheaf_state *state = lz->save->state;
	int rc = 0;

	for (size_t s = 0; rc == 0 && s < state->n; s++)
		if (!state->slices[s].owned) /* averages are updated only after this, so they have
		                              * no sum yet */
			rc = shf_save_memory_check_put(lz, s, state->slices[s].mem.base, err);
	return rc;
}

/* Sums the memory of a slice again, and compares the sum with the sum of the copy and, unless the
 * slice is an average, with the sum from begin or put. EDIVERGED if they are not equal. ENOMEM. */
static int same_as_copied(struct shf_save_copier *lz, size_t slice, struct sheaf_error *err)
{
	struct sheaf_save *save = lz->save;
	const struct shf_slice s = shf_save_piece_slice(save, slice);
	struct shf_box_copy_sums sums = { 0 };
	uint64_t copied;
	int rc = slice_again(save, slice, &s, &sums, err);

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&lz->lock);
	copied = lz->sums[slice];
	pthread_mutex_unlock(&lz->lock);
	if (sums.digest != copied || (!s.owned && sums.digest != lz->begun[slice]))
		return shf_fail(err, SHEAF_EDIVERGED, "step %" PRId64 ": slice %zu (%s/%s) was "
		                "modified before sheaf_save_wait_copied returned for it",
		                save->id.step, slice, s.family, s.name);
	return 0;
}

/* Makes one caller compare a slice, and the others wait for it within their timeouts. Returns 0 if
 * the slice was compared, 1 if this caller must compare it, or EAGAIN if another caller has not
 * finished in time. */
static int check_take(struct shf_save_copier *lz, size_t slice, int timeout_ms)
{
	int64_t until = timeout_ms < 0 ? -1 : shf_now(lz->save->run) + shf_ms_ns(timeout_ms);
	bool time = timeout_ms != 0;
	int rc;

	pthread_mutex_lock(&lz->lock);
	while (time && lz->checks[slice] == SHF_CHECKING)
		time = shf_pieces_wait(lz, until);
	rc = lz->checks[slice] == SHF_CHECKING ? SHEAF_EAGAIN : lz->checks[slice] == SHF_UNCHECKED;
	if (rc == 1)
		lz->checks[slice] = SHF_CHECKING;
	pthread_mutex_unlock(&lz->lock);
	return rc;
}

int shf_save_memory_check_slice(struct shf_save_copier *lz, size_t slice, int timeout_ms,
                                struct sheaf_error *err)
{
	int rc = check_take(lz, slice, timeout_ms);

	if (rc != 1)
		return rc;
	rc = same_as_copied(lz, slice, err);
	if (rc < 0)
		shf_save_stick(lz->save, rc, err);
	pthread_mutex_lock(&lz->lock);
	lz->checks[slice] = SHF_CHECKED;
	pthread_cond_broadcast(&lz->piece_done);
	pthread_mutex_unlock(&lz->lock);
	return rc;
}
