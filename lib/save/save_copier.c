/* SPDX-License-Identifier: Apache-2.0 */
/* The asynchronous copy of a lazy save: its threads, its start and its end. */
#include "save_copier.h"
#include <inttypes.h>
#include <string.h>
#include "err.h"
#include "run_env.h"
#include "save_learn.h"
#include "save_memory_check.h"
#include "save_order.h"
#include "save_pieces.h"
#include "save_rounds.h"
#include "save_where.h"
#include "slice_overlaps.h"
#include "state.h"
#include "thread.h"
#include "work.h"

#define NAP_MS 10               /* longest pause of a copy thread, so that shf_save_copier_stop()
                                 * need not wait long */

/* Returns for how many ms (NAP_MS at most) to pause so that the average rate since the copy began
 * falls to opts.staging.copy_rate_max; 0: no pause is needed. */
static int ahead_ms(const struct shf_save_copier *lz)
{
	uint64_t rate = lz->save->run->opts.copy_rate_max;
	double s;

	if (!rate)
		return 0;
	s = (double)atomic_load_explicit(&lz->save->took.copied, memory_order_relaxed) /
	    (double)rate - (double)(shf_now(lz->save->run) - lz->save->took.copy_from_ns) * 1e-9;
	return s <= 0 ? 0 : s * 1e3 >= NAP_MS ? NAP_MS : (int)(s * 1e3) + 1;
}

static bool step(void *work)
{
	struct shf_save_copier *lz = work;
	const struct shf_sys *sys = lz->save->run->sys;
	int ms = atomic_load(&lz->open) ? ahead_ms(lz) : 0;
	struct shf_save_piece p;

	if (ms) {
		shf_sys_sleep_ms(sys, ms);
		return true;
	}
	if (shf_save_piece_take(lz, SHF_ANY_SLICE, -1, &p)) {
		shf_save_piece_copy(lz, &p);
		return true;
	}
	shf_save_pieces_write(lz->save);
	return shf_save_piece_unstaged(lz, SHF_ANY_SLICE, false, NAP_MS) != 0;
}

/* Starts one more helper thread, if one is still wanted. If it cannot be started, no more are
 * tried: callers at gates copy what the threads have not. */
static void help(struct shf_save_copier *lz)
{
	const struct sheaf_run *run = lz->save->run;
	int n = atomic_load_explicit(&lz->helpers_n, memory_order_relaxed);

	if (n >= lz->wanted)
		return;
	if (shf_sys_task_new(run->sys, &lz->helpers[n], step, lz, run->opts.copy_cpus) < 0)
		lz->wanted = n;
	else
		atomic_store_explicit(&lz->helpers_n, n + 1, memory_order_release);
}

static bool lead(void *work)
{
	help(work);
	return step(work);
}

void shf_save_copier_tick(struct sheaf_save *save)
{
	const struct shf_sys *sys = save->run->sys;
	struct shf_save_copier *lz = save->copy.lazy;

	pthread_mutex_lock(&lz->tasks_lock);
	if (lz->first)
		(void)shf_sys_task_over(sys, lz->first);
	for (int i = 0; i < atomic_load_explicit(&lz->helpers_n, memory_order_acquire); i++)
		(void)shf_sys_task_over(sys, lz->helpers[i]);
	pthread_mutex_unlock(&lz->tasks_lock);
}

void shf_save_copier_start(struct sheaf_save *save)
{
	struct shf_save_copier *lz = save->copy.lazy;
	struct sheaf_run *run = save->run;
	int rc;

	save->took.copy_from_ns = shf_now(run);
	save->copy.streams_most = (size_t)save->plan->most;
	save->copy.reader.next = save->state->readers;
	save->state->readers = &save->copy.reader;
	rc = shf_sys_task_new(run->sys, &lz->first, lead, lz, run->opts.copy_cpus);
	if (rc > 0)
		shf_log(run, 1, "step %" PRId64 ": the copy threads are not bound: the kernel "
		        "refuses opts.staging.copy_cpus %.60s",
		        lz->save->id.step, run->opts.copy_cpus);
	if (rc < 0)
		shf_log(run, 1, "step %" PRId64 ": no copy thread could be started (see ulimit "
		        "-u); sheaf_save_wait_copied and commit copy in the caller's thread",
		        lz->save->id.step);
}

bool shf_save_copier_has_thread(struct sheaf_save *save)
{
	struct shf_save_copier *lz = save->copy.lazy;
	bool has;

	pthread_mutex_lock(&lz->tasks_lock);
	has = lz->first != NULL;
	pthread_mutex_unlock(&lz->tasks_lock);
	return has;
}

/* ---- begin and end ---- */

/* Notes which slices lie in the same memory, by the addresses that the state has. A slice that is
 * put at another address is compared later, at the gates (one_beside). */
static int overlaps_init(struct shf_save_copier *lz, size_t n)
{
	const uint32_t *next;
	int rc = shf_overlaps_find(lz->save->state, &next);

	if (rc < 0)
		return rc;
	if (lz->put && !(lz->fresh = shf_alloc(n, sizeof(*lz->fresh))))
		return SHEAF_ENOMEM;
	if (!next)
		return 0;
	lz->overlaps = shf_alloc(n, sizeof(*lz->overlaps));
	if (!lz->overlaps)
		return SHEAF_ENOMEM;
	memcpy(lz->overlaps, next, n * sizeof(*next));
	return 0;
}

static int save_copier_init(struct shf_save_copier *lz, struct sheaf_save *save, bool now)
{
	struct shf_span slotted = shf_unstaged_segs(&save->plan->work);
	size_t n = save->state->n;

	lz->save = save;
	lz->turns = now ? NULL : &save->plan->turns;
	pthread_mutex_init(&lz->lock, NULL);
	pthread_mutex_init(&lz->tasks_lock, NULL);
	(void)shf_cond_init(&lz->piece_done);
	lz->taken = shf_zalloc(n, sizeof(*lz->taken));
	lz->done = shf_zalloc(n, sizeof(*lz->done));
	lz->due = shf_zalloc(n, sizeof(*lz->due));
	lz->slotted = shf_zalloc(n, sizeof(*lz->slotted));
	lz->left = shf_zalloc(n, sizeof(*lz->left));
	lz->asked = shf_zalloc(n, sizeof(*lz->asked));
	lz->wanted = shf_save_learn_threads(lz) - 1;
	lz->helpers = shf_zalloc((size_t)lz->wanted, sizeof(struct shf_task *));
	if (save->id.flags & SHEAF_SAVE_CHECK)
		lz->sums = shf_zalloc(n, sizeof(*lz->sums));
	if (save->id.flags & SHEAF_SAVE_CHECK && !now) {
		lz->checks = shf_zalloc(n, sizeof(*lz->checks));
		lz->begun = shf_zalloc(n, sizeof(*lz->begun));
	}
	if (save->id.flags & SHEAF_SAVE_LATER) {
		lz->put = shf_zalloc(n, sizeof(*lz->put));
		lz->data = shf_zalloc(n, sizeof(*lz->data));
	}
	if (!lz->taken || !lz->done || !lz->due || !lz->slotted || !lz->left || !lz->asked ||
	    !lz->helpers ||
	    (save->id.flags & SHEAF_SAVE_CHECK &&
	     !(lz->sums && (now || (lz->checks && lz->begun)))) ||
	    (save->id.flags & SHEAF_SAVE_LATER && (!lz->put || !lz->data)))
		return SHEAF_ENOMEM;
	for (size_t s = 0; s < n; s++) {
		if (lz->put) {
			lz->put[s] = save->state->slices[s].empty;
			lz->unput += !lz->put[s];
		}
		if (!now && save->copy.due)
			lz->due[s] = (uint32_t)((save->copy.due[s].hi - save->copy.due[s].at - 1 +
			                         SHF_PIECE_ITEMS) / SHF_PIECE_ITEMS);
		atomic_init(&lz->left[s], shf_save_pieces_count(lz, s) +
		            shf_save_pieces_unstaged(lz, s));
		atomic_fetch_add(&lz->open, shf_save_pieces_count(lz, s));
	}
	if (!now)       /* header pages count as one, and each segment in a slot as one */
		atomic_fetch_add(&lz->open, 1 + slotted.end - slotted.first);
	atomic_init(&lz->unasked, save->plan->turns.saved_n);
	return shf_save_learn_init(lz) < 0 ? SHEAF_ENOMEM : overlaps_init(lz, n);
}

int shf_save_copier_new(struct sheaf_save *save, bool now, struct sheaf_error *err)
{
	int rc = save->plan->turns.first ? 0 : shf_save_order_make(&save->plan->turns, save, err);
	struct shf_save_copier *lz;

	if (rc < 0)
		return rc;
	save->copy.lazy = shf_zalloc(1, sizeof(*save->copy.lazy));
	lz = save->copy.lazy;
	if (lz && save_copier_init(lz, save, now) == 0)
		rc = lz->checks && !lz->put ? shf_save_memory_check_begin(lz, err) : 0;
	else
		rc = shf_fail(err, SHEAF_ENOMEM, "step %" PRId64 ": no memory to copy %zu slices "
		              "in the background", save->id.step, save->state->n);
	if (rc == 0)
		return 0;
	shf_save_copier_free(save->copy.lazy, true);
	save->copy.lazy = NULL;
	return rc;
}

int shf_save_copier_begin(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	int rc = shf_agree(team, shf_save_rounds_open(save, 0, err), err);

	if (rc == 0 && !save->plan->most_known) {
		rc = shf_allreduce(team, &save->copy.streams.longest, 1, SHEAF_MAX, err);
		save->plan->most = save->copy.streams.longest;
		save->plan->most_known = rc == 0;
	}
	if (rc == 0)
		shf_save_copier_start(save);
	return rc;
}

void shf_save_copier_update_slice(struct sheaf_save *save, size_t slice)
{
	struct shf_save_copier *lz = save->copy.lazy;
	struct shf_save_piece p;

	if (!lz->turns || slice >= lz->turns->slices_n || !lz->due[slice] ||
	    atomic_load_explicit(&lz->left[slice], memory_order_acquire) == 0)
		return;
	while (shf_save_piece_take(lz, slice, -1, &p))
		shf_save_piece_copy(lz, &p);
	(void)shf_save_pieces_wait_slice(lz, slice, -1);
}

void shf_save_copier_update(struct sheaf_save *save)
{
	for (size_t s = 0; save->copy.lazy->turns && s < save->copy.lazy->turns->slices_n; s++)
		shf_save_copier_update_slice(save, s);
}

void shf_save_copier_leave_averages(struct sheaf_save *save)
{
	for (size_t s = 0; save->copy.lazy && s < save->state->n; s++)
		save->copy.lazy->due[s] = 0;
}

void shf_save_copier_forget(struct sheaf_save *save)
{
	struct shf_reader **at = save->state ? &save->state->readers : NULL;

	while (at && *at && *at != &save->copy.reader)
		at = &(*at)->next;
	if (at && *at)
		*at = save->copy.reader.next;
}

/* Ends the copy threads, and adds their number to copied_by. The caller holds tasks_lock. */
static void end_tasks(struct shf_save_copier *lz)
{
	const struct shf_sys *sys = lz->save->run->sys;
	int n;

	lz->copied_by += lz->first != NULL;
	shf_sys_task_free(sys, lz->first); /* after this no helper is made, because only this thread
	                                    * makes them */
	lz->first = NULL;
	n = atomic_exchange(&lz->helpers_n, 0);
	lz->copied_by += n;
	for (int i = 0; i < n; i++)
		shf_sys_task_free(sys, lz->helpers[i]);
}

void shf_save_copier_stop(struct sheaf_save *save)
{
	struct shf_save_copier *lz = save->copy.lazy;

	if (!lz)
		return;
	pthread_mutex_lock(&lz->lock);
	lz->stop = true;
	pthread_cond_broadcast(&lz->piece_done);
	pthread_mutex_unlock(&lz->lock);
	pthread_mutex_lock(&lz->tasks_lock);
	end_tasks(lz);
	pthread_mutex_unlock(&lz->tasks_lock);
	shf_save_copier_update(save);
	(void)shf_save_pieces_wait_slice(lz, SHF_ANY_SLICE, -1); /* waits for callers at gates that
	                                                          * are copying */
	/* Callers may still come to gates of a save that the commit thread commits, and the list of
	 * readers belongs to the caller's thread, so this is left to shf_save_free then. */
	if (shf_turns_is_turn(save->run))
		return;
	shf_save_learn_end(lz);
	shf_save_copier_forget(save);
}

void shf_save_copier_free(struct shf_save_copier *lz, bool ours)
{
	if (!lz)
		return;
	if (ours) { /* in a forked child the locks may be held for ever, by threads that only the
	             * parent has */
		pthread_cond_destroy(&lz->piece_done);
		pthread_mutex_destroy(&lz->lock);
		pthread_mutex_destroy(&lz->tasks_lock);
	}
	shf_free(lz->taken);
	shf_free(lz->done);
	shf_free(lz->due);
	shf_free(lz->slotted);
	shf_free(lz->left);
	shf_free(lz->asked);
	shf_free(lz->helpers);
	shf_free(lz->sums);
	shf_free(lz->checks);
	shf_free(lz->begun);
	shf_free(lz->put);
	shf_free(lz->data);
	shf_free(lz->overlaps);
	shf_free(lz->fresh);
	shf_save_learn_free(lz);
	shf_free(lz);
}
