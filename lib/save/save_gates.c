/* SPDX-License-Identifier: Apache-2.0 */
/* The gates of a lazy save: callers that wait until memory may change, that put slices, or that
 * need the whole copy. */
#include "save_gates.h"
#include <inttypes.h>
#include "err.h"
#include "run_env.h"
#include "save_learn.h"
#include "save_memory_check.h"
#include "save_copier.h"
#include "save_status.h"
#include "save_pieces.h"
#include "save_write.h"
#include "slice_overlaps.h"
#include "state.h"

#define ASK_MS 1000             /* how long a caller waits before it checks whether the save has
                                 * failed */

/* Copies all segments that have bytes of the slice and lie in no image (unstaged.h), until until_ns
 * at most (< 0: no limit). Returns whether something was copied. */
static bool ask_slotted(struct shf_save_copier *lz, size_t slice, int64_t until_ns)
{
	const struct sheaf_run *run = lz->save->run;
	bool copied = false;
	int rc = SHEAF_EAGAIN;

	if (!lz->save->copy.slots)
		return false;
	pthread_mutex_lock(&lz->lock);
	lz->askers++;
	pthread_mutex_unlock(&lz->lock);
	while (rc != 0 && (until_ns < 0 || shf_now(run) < until_ns)) {
		rc = shf_save_piece_unstaged(lz, slice, true,
		                             until_ns < 0 ? ASK_MS : shf_ms_left(run, until_ns));
		copied |= rc == 1;
	}
	pthread_mutex_lock(&lz->lock);
	lz->askers--;
	pthread_mutex_unlock(&lz->lock);
	return copied;
}

/* If the save has failed, stops the copy, so that no piece is taken to be copied any more. Once no
 * piece is being copied then, none will be. Returns the failure or 0. */
static int stop_failed(struct shf_save_copier *lz)
{
	int rc = shf_save_failure(lz->save, NULL);

	pthread_mutex_lock(&lz->lock);
	lz->stop |= rc < 0;
	pthread_mutex_unlock(&lz->lock);
	return rc;
}

static bool is_copied(const struct shf_save_copier *lz, size_t slice)
{
	return slice == SHF_ANY_SLICE ? atomic_load_explicit(&lz->open, memory_order_acquire) == 0
	       : atomic_load_explicit(&lz->left[slice], memory_order_acquire) == 0;
}

/* Copies what is left of the slice (SHF_ANY_SLICE: of all), and waits for what other threads are
 * copying, for timeout_ms at most. 0, EAGAIN, or the failure of the save when nothing is being
 * copied any more. */
static int wait_for(struct shf_save_copier *lz, size_t slice, int timeout_ms)
{
	struct sheaf_save *save = lz->save;
	int64_t until = timeout_ms < 0 ? -1 : shf_now(save->run) + shf_ms_ns(timeout_ms);
	bool copied = false, calm;
	struct shf_save_piece p;
	int rc, failed;

	do {
		while (timeout_ms != 0 && (until < 0 || shf_now(save->run) < until) &&
		       shf_save_piece_take(lz, slice, until, &p)) {
			shf_save_piece_copy(lz, &p);
			copied = true;
		}
		if (timeout_ms != 0)
			copied |= ask_slotted(lz, slice, until);
		failed = stop_failed(lz);
		calm = shf_save_pieces_wait_slice(lz, slice, until);
		rc = is_copied(lz, slice) ? 0 : calm && failed < 0 ? failed : SHEAF_EAGAIN;
		/* If pieces were left out although stop_failed saw no failure, the save has failed
		 * since then: the next turn returns that failure. */
	} while (rc == SHEAF_EAGAIN && failed == 0 && shf_save_gates_unput(save) < 0 &&
	         (until < 0 || shf_save_failure(save, NULL) < 0));
	if (copied)
		shf_save_pieces_write(save);
	return rc;
}

static bool is_copying(struct sheaf_save *save)
{
	return shf_save_gates_finish(save, SHF_SAVE_POLL_MS) == SHEAF_EAGAIN;
}

int shf_save_gates_finish_all(struct sheaf_save *save, struct sheaf_error *err)
{
	return shf_save_together(save, is_copying, err);
}

int shf_save_gates_check_forked(const struct sheaf_state *state, struct sheaf_error *err)
{
	for (struct shf_reader *r = state ? state->readers : NULL; r; r = r->next)
		if (!shf_run_is_ours(shf_save_of(r)->run))
			return shf_fail(err, SHEAF_EINVAL, "another process is saving this state "
			                "as step %" PRId64 "; after a fork, call sheaf_state_new "
			                "in the child",
			                r->step);
	return 0;
}

bool shf_save_gates_is_partial(struct sheaf_save *save)
{
	shf_save_pieces_write(save);
	return shf_save_write_is_partial(save);
}

/* Returns for how long a call may copy. Without a copy thread nothing is copied between two calls,
 * so a call that does not wait copies for a time slice: otherwise a caller that only polls would
 * never see the end. It is one time slice for all that the call asks for. */
static int time_to_copy_ms(struct sheaf_save *save, int timeout_ms)
{
	return timeout_ms == 0 && !shf_save_copier_has_thread(save) ? SHF_SAVE_POLL_MS : timeout_ms;
}

int shf_save_gates_finish(struct sheaf_save *save, int timeout_ms)
{
	shf_save_copier_tick(save);
	return wait_for(save->copy.lazy, SHF_ANY_SLICE, time_to_copy_ms(save, timeout_ms));
}

/* Returns how much of timeout_ms is left if it ends at until_ns; 0 and negative values stay. */
static int rest_ms(const struct shf_save_copier *lz, int timeout_ms, int64_t until_ns)
{
	return timeout_ms <= 0 ? timeout_ms : shf_ms_left(lz->save->run, until_ns);
}

/* Waits until one slice is copied and, with SHEAF_SAVE_CHECK, compared. */
static int one_ready(struct shf_save_copier *lz, size_t slice, int timeout_ms,
                     struct sheaf_error *err)
{
	bool left = atomic_load_explicit(&lz->left[slice], memory_order_acquire) > 0;
	int rc = 0;

	if (!left || timeout_ms != 0)
		shf_save_learn_asked(lz, slice);
	if (left) {
		int64_t from = shf_now(lz->save->run);

		shf_save_copier_tick(lz->save);
		rc = wait_for(lz, slice, timeout_ms);
		if (timeout_ms != 0)
			shf_save_learn_waited(lz, shf_now(lz->save->run) - from);
	}
	return rc == 0 && lz->checks ? shf_save_memory_check_slice(lz, slice, timeout_ms, err) : rc;
}

/* Whether the save reads the slice from the memory that the state has for it. False if the slice is
 * still to be put, or was put elsewhere. */
static bool is_in_state_memory(struct shf_save_copier *lz, size_t slice)
{
	bool home;

	if (!lz->put)
		return true;
	pthread_mutex_lock(&lz->lock);
	home = lz->put[slice] && !lz->data[slice];
	pthread_mutex_unlock(&lz->lock);
	return home;
}

/* Whether the slice is not read any more, neither to copy nor to compare it. The caller holds the
 * lock. */
static bool is_done_with(const struct shf_save_copier *lz, size_t slice)
{
	return atomic_load_explicit(&lz->left[slice], memory_order_acquire) == 0 &&
	       (!lz->checks || lz->checks[slice] == SHF_CHECKED);
}

/* Returns another slice that was put, is still to be read, and whose memory overlaps that of this
 * slice; SHF_ANY_SLICE: there is no such slice. Searches only if some slice was put elsewhere than
 * the state says; else `overlaps` has all such slices. */
static size_t one_beside(struct shf_save_copier *lz, size_t slice)
{
	size_t beside = SHF_ANY_SLICE, n = 0;
	struct shf_slice s;

	pthread_mutex_lock(&lz->lock);
	s = shf_save_piece_slice(lz->save, slice);
	for (size_t i = 0; lz->elsewhere && i < lz->fresh_n; i++) {
		uint32_t k = lz->fresh[i];
		struct shf_slice other = shf_save_piece_slice(lz->save, k);

		if (is_done_with(lz, k))
			continue;
		lz->fresh[n++] = k;
		if (k != slice && beside == SHF_ANY_SLICE && shf_slices_overlap(&s, &other))
			beside = k;
	}
	lz->fresh_n = lz->elsewhere ? n : lz->fresh_n;
	pthread_mutex_unlock(&lz->lock);
	return beside;
}

/* Waits until no slice in the memory of this one is read any more (L6). Several slices may share
 * memory: a tied tensor is copied once, through the first slice that has it, and a model may share
 * a buffer with its master weights. A slice that is put into this memory after the gate has opened
 * does not count, because the caller has put new data there. Returns EAGAIN if some slice may still
 * be read after timeout_ms, else the first failure of any of them, or 0. */
static int memory_ready(struct shf_save_copier *lz, size_t slice, int timeout_ms,
                        struct sheaf_error *err)
{
	int64_t until = timeout_ms < 0 ? -1 : shf_now(lz->save->run) + shf_ms_ns(timeout_ms);
	int rc = one_ready(lz, slice, timeout_ms, err), one = rc;
	size_t s = slice;

	while (lz->overlaps && one != SHEAF_EAGAIN && (s = lz->overlaps[s]) != slice) {
		if (is_in_state_memory(lz, s))
			one = one_ready(lz, s, rest_ms(lz, timeout_ms, until), err);
		rc = rc < 0 ? rc : one;
	}
	while (lz->put && rc == 0 && one == 0 && (s = one_beside(lz, slice)) != SHF_ANY_SLICE)
		rc = one = one_ready(lz, s, rest_ms(lz, timeout_ms, until), err);
	/* The save has failed, but another thread may still be copying a slice in this memory. */
	if (rc < 0 && lz->put && !shf_save_pieces_wait_slice(lz, SHF_ANY_SLICE, until))
		one = SHEAF_EAGAIN;
	return one == SHEAF_EAGAIN ? one : rc;
}

static int slice_copied(struct sheaf_save *save, size_t s, int timeout_ms, struct sheaf_error *err)
{
	struct shf_save_copier *lz = save->copy.lazy;
	int rc = memory_ready(lz, s, timeout_ms, err);

	if (rc != SHEAF_EAGAIN && !atomic_exchange(&lz->asked[s], true) &&
	    save->plan->turns.saved[s])
		atomic_fetch_sub(&lz->unasked, 1);
	return rc;
}

static bool is_put(struct shf_save_copier *lz, size_t slice)
{
	bool put;

	if (!lz->put)
		return true;
	pthread_mutex_lock(&lz->lock);
	put = lz->put[slice];
	pthread_mutex_unlock(&lz->lock);
	return put;
}

/* Whether the save still reads the slice: to copy it, or with SHEAF_SAVE_CHECK to sum it again at
 * its gate. */
static bool is_left(const struct shf_save_copier *lz, size_t slice)
{
	return atomic_load_explicit(&lz->left[slice], memory_order_acquire) > 0 ||
	       (lz->checks && lz->turns->saved[slice] && !atomic_load(&lz->asked[slice]));
}

int64_t shf_save_gates_first_unput(const struct sheaf_save *save, const int *slices, size_t n)
{
	struct shf_save_copier *lz = save->copy.lazy;

	if (!slices)
		return shf_save_gates_unput(save);
	for (size_t i = 0; lz && i < n; i++)
		if (!is_put(lz, (size_t)slices[i]))
			return slices[i];
	return -1;
}

int shf_save_gates_list_copied(struct sheaf_save *save, const int *slices, size_t n, int timeout_ms,
                               struct sheaf_error *err)
{
	int64_t until = -1;
	int rc = 0, one = 0;

	timeout_ms = time_to_copy_ms(save, timeout_ms);
	if (shf_save_gates_first_unput(save, slices, n) >= 0)
		return SHEAF_EINVAL;
	/* The timeout starts at the first slice not yet copied, so that every call makes progress
	 * however many slices there are. */
	for (size_t i = 0; one != SHEAF_EAGAIN && i < n; i++) {
		size_t s = slices ? (size_t)slices[i] : i;

		if (until < 0 && is_left(save->copy.lazy, s))
			until = shf_now(save->run) + shf_ms_ns(timeout_ms);
		one = slice_copied(save, s, until < 0 ? timeout_ms
		                   : rest_ms(save->copy.lazy, timeout_ms, until), err);
		rc = rc < 0 ? rc : one;
	}
	return one == SHEAF_EAGAIN ? one : rc;
}

int shf_save_gates_copied(struct sheaf_save *save, int slice, int timeout_ms,
                          struct sheaf_error *err)
{
	bool all = slice == SHEAF_ALL_SLICES;

	return shf_save_gates_list_copied(save, all ? NULL : &slice, all ? save->state->n : 1,
	                                  timeout_ms, err);
}

/* Marks one slice as readable, without waking the copy threads. */
static int put_one(struct sheaf_save *save, int slice, void *data, struct sheaf_error *err)
{
	struct shf_save_copier *lz = save->copy.lazy;
	int rc;

	if (lz->put && lz->checks && !is_put(lz, (size_t)slice)) {
		rc = shf_save_memory_check_put(lz, (size_t)slice,
		                               data ? data : save->state->slices[slice].mem.base,
		                               err);
		if (rc < 0) {
			shf_save_stick(save, rc, err);
			return rc;
		}
	}
	pthread_mutex_lock(&lz->lock);
	rc = lz->put && !lz->put[slice] ? 0
	   : shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": slice %d (%s/%s) was ready before; "
	              "call this once for each slice",
	              save->id.step, slice, save->state->slices[slice].family,
	              save->state->slices[slice].name);
	if (rc == 0) {
		lz->data[slice] = data;
		lz->elsewhere |= data != NULL;
		lz->fresh[lz->fresh_n++] = (uint32_t)slice;
		lz->put[slice] = true;
		lz->unput--;
	}
	pthread_mutex_unlock(&lz->lock);
	return rc;
}

static void wake_threads(struct sheaf_save *save)
{
	const struct shf_sys *sys = save->run->sys;
	struct shf_save_copier *lz = save->copy.lazy;

	pthread_mutex_lock(&lz->tasks_lock);
	if (lz->first)
		shf_sys_task_again(sys, lz->first);
	for (int i = 0; i < atomic_load(&lz->helpers_n); i++)
		shf_sys_task_again(sys, lz->helpers[i]);
	pthread_mutex_unlock(&lz->tasks_lock);
}

int shf_save_gates_put(struct sheaf_save *save, const int *slices, size_t n, void *data,
                       struct sheaf_error *err)
{
	struct sheaf_error own;
	size_t i = 0;
	int rc = 0;

	err = shf_err_or(err, &own);
	for (; i < n && rc == 0; i++)
		if (!save->state->slices[slices[i]].empty)
			rc = put_one(save, slices[i], data, err);
	if (i > 1 || rc == 0)
		wake_threads(save);
	return rc;
}

int64_t shf_save_gates_unput(const struct sheaf_save *save)
{
	struct shf_save_copier *lz = save->copy.lazy;
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

int shf_save_gates_check_asked(struct sheaf_save *save, struct sheaf_error *err)
{
	const struct shf_save_order *o = &save->plan->turns;
	int64_t unput = shf_save_gates_unput(save);
	size_t s = 0;

	if (unput >= 0)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": slice %" PRId64 " (%s/%s) is "
		                "not ready; call sheaf_save_slice_ready for it before the commit",
		                save->id.step, unput,
		                save->state->slices[unput].family, save->state->slices[unput].name);
	if (!save->copy.lazy || atomic_load(&save->copy.lazy->unasked) == 0)
		return 0;
	while (s + 1 < o->slices_n && (!o->saved[s] || atomic_load(&save->copy.lazy->asked[s])))
		s++;
	return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": slice %zu (%s/%s) is not copied yet; "
	                "call again",
	                save->id.step, s, save->state->slices[s].family,
	                save->state->slices[s].name);
}

/* Whether the save has failed and the gate of the slice has answered. Then the save no longer reads
 * the memory of the slice. */
static bool was_let_go(struct sheaf_save *save, size_t slice)
{
	return atomic_load(&save->copy.lazy->asked[slice]) && shf_save_failure(save, NULL) < 0;
}

bool shf_save_gates_reads_some(struct sheaf_save *save)
{
	bool reads = false;

	for (size_t s = 0; save->copy.lazy && s < save->state->n && !reads; s++)
		reads = is_left(save->copy.lazy, s) && !was_let_go(save, s);
	return reads;
}

bool shf_save_gates_reads(struct sheaf_save *save, size_t slice)
{
	struct shf_save_copier *lz = save->copy.lazy;
	bool reads = lz && is_left(lz, slice);
	size_t s = slice;

	while (lz && lz->overlaps && !reads && (s = lz->overlaps[s]) != slice)
		reads = is_left(lz, s) && is_in_state_memory(lz, s);
	return reads && !was_let_go(save, slice);
}

bool shf_save_gates_reader_reads(struct shf_reader *reader, size_t slice)
{
	struct sheaf_save *save = shf_save_of(reader);

	return slice == SHF_EVERY_SLICE ? shf_save_gates_reads_some(save)
	                                : shf_save_gates_reads(save, slice);
}

int shf_save_gates_poll_all(struct sheaf_save *save, struct sheaf_error *err)
{
	uint64_t open;
	int rc;

	if (save->at.copy >= SHF_COPIED)
		return 0;
	shf_save_copier_tick(save);
	if (shf_save_is_async(save) && !shf_save_copier_has_thread(save))
		(void)shf_save_gates_finish(save, SHF_SAVE_POLL_MS);
	open = atomic_load_explicit(&save->copy.lazy->open, memory_order_acquire) > 0;
	rc = shf_allreduce(&save->run->team, &open, 1, SHEAF_MAX, err);
	if (rc == 0 && open)
		return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": at least one rank is still "
		                "copying; call again",
		                save->id.step);
	if (rc == 0)
		save->at.copy = SHF_COPIED;
	return rc;
}
