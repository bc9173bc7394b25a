/* SPDX-License-Identifier: Apache-2.0 */
/* The copy behind: who asks whether memory may change, who brings it, who wants all copied. */
#include "pieces.h"
#include <inttypes.h>
#include "cast.h"
#include "err.h"
#include "moves.h"

#define SLICE_MS 1000           /* who asks looks whether the save still goes on */

/* All of them that have some of the slice, no longer than that. True: something was copied. */
static bool ask_slotted(struct shf_lazy *lz, size_t slice, int64_t until_ns)
{
	const struct sheaf_run *run = lz->save->run;
	bool copied = false;
	int rc = SHEAF_EAGAIN;

	if (!lz->save->slots)
		return false;
	pthread_mutex_lock(&lz->lock);
	lz->askers++;
	pthread_mutex_unlock(&lz->lock);
	while (rc != 0 && (until_ns < 0 || shf_now(run) < until_ns)) {
		rc = shf_piece_slotted(lz, slice, true, until_ns < 0 ? SLICE_MS
		                                 : shf_ms_left(run, until_ns));
		copied |= rc == 1;
	}
	pthread_mutex_lock(&lz->lock);
	lz->askers--;
	pthread_mutex_unlock(&lz->lock);
	return copied;
}

/* A save that has failed takes nothing more: what is calm then stays so. */
static int stop_failed(struct shf_lazy *lz)
{
	int rc = shf_save_failure(lz->save, NULL);

	pthread_mutex_lock(&lz->lock);
	lz->stop |= rc < 0;
	pthread_mutex_unlock(&lz->lock);
	return rc;
}

static bool is_copied(const struct shf_lazy *lz, size_t slice)
{
	return slice == SHF_ANY ? atomic_load_explicit(&lz->open, memory_order_acquire) == 0
	       : atomic_load_explicit(&lz->left[slice], memory_order_acquire) == 0;
}

/* Copies and waits, no longer than that. */
static int wait_for(struct shf_lazy *lz, size_t slice, int timeout_ms)
{
	struct sheaf_save *save = lz->save;
	int64_t until = timeout_ms < 0 ? -1 : shf_now(save->run) + (int64_t)timeout_ms * 1000000;
	bool copied = false, calm;
	struct shf_taken p;
	int rc, failed;

	do {
		while (timeout_ms != 0 && (until < 0 || shf_now(save->run) < until) &&
		       shf_piece_take(lz, slice, until, &p)) {
			shf_piece_copy(lz, &p);
			copied = true;
		}
		if (timeout_ms != 0)
			copied |= ask_slotted(lz, slice, until);
		failed = stop_failed(lz);
		calm = shf_pieces_settled(lz, slice, until);
		rc = is_copied(lz, slice) ? 0 : calm && failed < 0 ? failed : SHEAF_EAGAIN;
	} while (rc == SHEAF_EAGAIN && until < 0 && failed == 0 && /* it has failed since */
	         shf_lazy_unput(save) < 0);
	if (copied)
		shf_pieces_look(save);
	return rc;
}

/* Of a save without threads nothing is copied that nobody waits for. */
static bool has_threads(struct shf_lazy *lz)
{
	bool has;

	pthread_mutex_lock(&lz->tasks_lock);
	has = lz->tasks_n > 0;
	pthread_mutex_unlock(&lz->tasks_lock);
	return has;
}

#define TOGETHER_MS 250         /* much shorter than the deadline */

int shf_lazy_rest(struct sheaf_save *save, int64_t until_ns, bool asks, struct sheaf_error *err)
{
	const struct sheaf_run *run = save->run;
	uint64_t x[2] = { 0 };
	int rc;

	do {
		int ms = until_ns < 0 ? TOGETHER_MS : shf_ms_left(run, until_ns);

		x[1] = ms == 0 || asks;
		if (asks)
			ms = has_threads(save->lazy) ? 0 : TOGETHER_MS;
		ms = ms < TOGETHER_MS ? ms : TOGETHER_MS;
		x[0] = shf_lazy_finish(save, ms) == SHEAF_EAGAIN;
		shf_save_progress(save);
		rc = shf_allreduce(&save->run->team, x, 2, SHEAF_MAX, err);
	} while (rc == 0 && x[0] && !x[1]);
	if (rc == 0 && x[0])
		rc = shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": some rank still copies",
		              save->step);
	return rc;
}

bool shf_lazy_is_partial(struct sheaf_save *save)
{
	shf_pieces_look(save);
	return shf_is_partial(save);
}

int shf_lazy_finish(struct sheaf_save *save, int timeout_ms)
{
	shf_lazy_tick(save);
	return wait_for(save->lazy, SHF_ANY, timeout_ms);
}

/* A box of a slice, once more. */
static int sum_again(const struct shf_slice *s, const struct shf_lt_tensor *t,
                     const struct shf_box *box, struct shf_sums_to *sums, struct sheaf_error *err)
{
	uint8_t *scratch = shf_alloc((size_t)shf_box_bytes(t, box), 1);

	if (!scratch)
		return shf_fail(err, SHEAF_ENOMEM, "%s/%s: no memory to look again", s->family,
		                s->name);
	shf_copy_in(t, s, box, (struct shf_place_at){ .data = scratch, .packed = true }, sums);
	shf_free(scratch);
	return 0;
}

/* All of the slice that was copied. */
static int slice_again(const struct sheaf_save *save, size_t slice, struct shf_sums_to *sums,
                       struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_turns *o = &save->plan->turns;
	const struct shf_slice held = shf_piece_slice(save, slice), *s = &held;
	const struct shf_lt_tensor *tensors = save->plan->layout.tensors;
	struct shf_box box;
	int rc = 0;

	for (size_t i = o->first[slice]; i < o->first[slice + 1] && rc == 0; i++) {
		const struct shf_serve *v = &w->serves[o->a[i].serve];

		(void)shf_cut_at(&tensors[v->tensor], &v->box, SHF_PIECE, o->a[i].piece, &box);
		if (!v->witness)
			rc = sum_again(s, &tensors[v->tensor], &box, sums, err);
	}
	for (size_t i = o->slotted_first[slice]; i < o->slotted_first[slice + 1] && rc == 0; i++) {
		const struct shf_seg *g = &w->segs[o->slotted[i]];
		bool seen = i > o->slotted_first[slice] && o->slotted[i] == o->slotted[i - 1];

		for (uint32_t k = 0; k < g->moves_n && !seen && rc == 0; k++) {
			const struct shf_mv *v = &w->moves[g->first_move + k];

			if (shf_slice_number(save, v) == slice)
				rc = sum_again(s, &tensors[v->tensor], &v->box, sums, err);
		}
	}
	return rc;
}

/* Is what was copied what is there now? */
static int same_as_copied(struct shf_lazy *lz, size_t slice, struct sheaf_error *err)
{
	struct sheaf_save *save = lz->save;
	const struct shf_slice *s = &save->state->slices[slice];
	struct shf_sums_to sums = { 0 };
	uint64_t copied;
	int rc = slice_again(save, slice, &sums, err);

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&lz->lock);
	copied = lz->sums[slice];
	pthread_mutex_unlock(&lz->lock);
	if (sums.digest != copied)
		return shf_fail(err, SHEAF_EDIVERGED, "step %" PRId64 ": slice %zu (%s/%s) changed "
		                "before it was asked for", save->step, slice, s->family, s->name);
	return 0;
}

/* Is what is there now what is cast of it, or will be? Whoever comes second says so. */
static int same_as_cast(struct shf_lazy *lz, size_t slice, struct sheaf_error *err)
{
	const struct sheaf_save *save = lz->save;
	const struct shf_work *w = &save->plan->work;
	const struct shf_turns *o = &save->plan->turns;
	uint64_t digest = 0;
	bool same = true;

	if (!lz->cast_sums)
		return 0;
	for (size_t i = o->cast_first[slice]; i < o->cast_first[slice + 1]; i++) {
		const struct shf_seg *g = &w->segs[o->cast[i]];
		bool seen = i > o->cast_first[slice] && o->cast[i] == o->cast[i - 1];

		for (uint32_t k = 0; k < g->moves_n && !seen; k++) {
			const struct shf_mv *v = &w->moves[g->first_move + k];

			if (shf_slice_number(save, v) == slice)
				digest ^= shf_cast_digest(save, v);
		}
	}
	pthread_mutex_lock(&lz->lock);
	if (lz->cast_left[slice] & SHF_GATE) { /* nobody else has come through it */
		lz->cast_sums[slice] ^= digest;
		same = shf_piece_cast_came(lz, slice, SHF_GATE);
	}
	pthread_mutex_unlock(&lz->lock);
	return same ? 0 : shf_cast_fail(save, slice, err);
}

/* By who comes first; nobody's gate is open while its memory is looked at. */
static int check(struct shf_lazy *lz, size_t slice, int timeout_ms, struct sheaf_error *err)
{
	bool first;
	int rc;

	pthread_mutex_lock(&lz->lock);
	while (timeout_ms != 0 && lz->checks[slice] == SHF_CHECKING)
		(void)shf_pieces_moved(lz, -1);
	first = lz->checks[slice] == SHF_UNCHECKED;
	rc = lz->checks[slice] == SHF_CHECKING ? SHEAF_EAGAIN : 0;
	if (first)
		lz->checks[slice] = SHF_CHECKING;
	pthread_mutex_unlock(&lz->lock);
	if (!first)
		return rc;
	rc = same_as_copied(lz, slice, err);
	if (rc == 0)
		rc = same_as_cast(lz, slice, err);
	if (rc < 0)
		shf_save_stick(lz->save, rc, err);
	pthread_mutex_lock(&lz->lock);
	lz->checks[slice] = SHF_CHECKED;
	pthread_cond_broadcast(&lz->moved);
	pthread_mutex_unlock(&lz->lock);
	return rc;
}

static int slice_copied(struct sheaf_save *save, size_t s, int timeout_ms, struct sheaf_error *err)
{
	struct shf_lazy *lz = save->lazy;
	int rc = 0;

	if (atomic_load_explicit(&lz->left[s], memory_order_acquire) > 0) {
		shf_lazy_tick(save);
		rc = wait_for(lz, s, timeout_ms);
	}
	if (rc == 0 && lz->checks)
		rc = check(lz, s, timeout_ms, err);
	if (rc != SHEAF_EAGAIN && !atomic_exchange(&lz->asked[s], true) &&
	    save->plan->turns.saved[s])
		atomic_fetch_sub(&lz->unasked, 1);
	return rc;
}

static bool is_put(struct shf_lazy *lz, size_t slice)
{
	bool put;

	if (!lz->put)
		return true;
	pthread_mutex_lock(&lz->lock);
	put = lz->put[slice];
	pthread_mutex_unlock(&lz->lock);
	return put;
}

int shf_lazy_copied(struct sheaf_save *save, int slice, int timeout_ms, struct sheaf_error *err)
{
	int64_t until = shf_now(save->run) + (int64_t)timeout_ms * 1000000;
	int rc = 0, one = 0;

	if (slice != SHEAF_ALL_SLICES)
		return is_put(save->lazy, (size_t)slice)
		       ? slice_copied(save, (size_t)slice, timeout_ms, err) : SHEAF_EINVAL;
	if (shf_lazy_unput(save) >= 0)
		return SHEAF_EINVAL;
	for (size_t s = 0; one != SHEAF_EAGAIN && s < save->state->n; s++) {
		one = slice_copied(save, s, timeout_ms <= 0 ? timeout_ms
		                            : shf_ms_left(save->run, until), err);
		rc = rc < 0 ? rc : one;
	}
	return one == SHEAF_EAGAIN ? one : rc;
}

int shf_lazy_put(struct sheaf_save *save, int slice, void *data)
{
	const struct shf_sys *sys = save->run->sys;
	struct shf_lazy *lz = save->lazy;
	int rc;

	pthread_mutex_lock(&lz->lock);
	rc = lz->put && !lz->put[slice] ? 0 : SHEAF_EINVAL;
	if (rc == 0) {
		lz->data[slice] = data;
		lz->put[slice] = true;
		lz->unput--;
	}
	pthread_mutex_unlock(&lz->lock);
	pthread_mutex_lock(&lz->tasks_lock);
	for (int i = 0; rc == 0 && i < lz->tasks_n; i++)
		sys->ops->task_again(sys->arg, lz->tasks[i]);
	pthread_mutex_unlock(&lz->tasks_lock);
	return rc;
}

int64_t shf_lazy_unput(const struct sheaf_save *save)
{
	struct shf_lazy *lz = save->lazy;
	size_t s = 0, n;

	if (!lz || !lz->put)
		return -1;
	pthread_mutex_lock(&lz->lock);
	n = lz->unput;
	while (n > 0 && lz->put[s])
		s++;
	pthread_mutex_unlock(&lz->lock);
	return n > 0 ? (int64_t)s : -1;
}

int shf_lazy_unasked(struct sheaf_save *save, struct sheaf_error *err)
{
	const struct shf_turns *o = &save->plan->turns;
	int64_t unput = shf_lazy_unput(save);
	size_t s = 0;

	if (unput >= 0)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": slice %" PRId64 " (%s/%s) "
		                "was not brought (sheaf_save_put)", save->step, unput,
		                save->state->slices[unput].family, save->state->slices[unput].name);
	if (!save->lazy || atomic_load(&save->lazy->unasked) == 0)
		return 0;
	while (s + 1 < o->slices_n && (!o->saved[s] || atomic_load(&save->lazy->asked[s])))
		s++;
	return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": slice %zu (%s/%s) was not asked for "
	                "(sheaf_save_copied)", save->step, s, save->state->slices[s].family,
	                save->state->slices[s].name);
}

bool shf_lazy_reads(const struct sheaf_save *save, int slice)
{
	const struct shf_lazy *lz = save->lazy;

	size_t from = slice < 0 ? 0 : (size_t)slice;
	size_t end = slice < 0 ? save->state->n : (size_t)slice + 1;

	for (size_t s = from; lz && s < end; s++)
		if (atomic_load_explicit(&lz->left[s], memory_order_acquire) > 0)
			return true;
	return false;
}

int shf_lazy_together(struct sheaf_save *save, struct sheaf_error *err)
{
	uint64_t open;
	int rc;

	if (!save->lazy || save->together)
		return 0;
	shf_lazy_tick(save);
	open = atomic_load_explicit(&save->lazy->open, memory_order_acquire) > 0;
	rc = shf_allreduce(&save->run->team, &open, 1, SHEAF_MAX, err);
	if (rc == 0 && open)
		return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": some rank still copies",
		                save->step);
	save->together = rc == 0;
	return rc;
}
