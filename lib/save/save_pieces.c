/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces of a lazy save: takes, copies and counts them, and waits for them. */
#include "save_pieces.h"
#include <time.h>
#include "averages.h"
#include "run_env.h"
#include "run_io.h"
#include "save_copier.h"
#include "save_status.h"
#include "save_rounds.h"
#include "save_where.h"
#include "save_write.h"
#include "sheaf-stat.h"
#include "state.h"
#include "unstaged.h"
#include "unstaged_copy.h"
#include "work.h"

static size_t turns_of(const struct shf_save_copier *lz, size_t slice)
{
	return lz->turns ? lz->turns->first[slice + 1] - lz->turns->first[slice] : 0;
}

uint32_t shf_save_pieces_count(const struct shf_save_copier *lz, size_t slice)
{
	uint32_t n = (uint32_t)turns_of(lz, slice);

	return n > lz->due[slice] ? n : lz->due[slice];
}

uint32_t shf_save_pieces_unstaged(const struct shf_save_copier *lz, size_t slice)
{
	const struct shf_save_order *o = lz->turns;

	return o ? (uint32_t)(o->slotted_first[slice + 1] - o->slotted_first[slice]) : 0;
}

/* Takes the next piece of the slice into *p. A slice of averages comes after its weights: while
 * pieces of the weights are left, takes one of those instead. *later: all pieces of the weights are
 * taken, but other threads are still copying some, so try again. False: nothing was taken. The
 * caller holds the lock. */
static bool pick(struct shf_save_copier *lz, size_t slice, struct shf_save_piece *p, bool *later)
{
	size_t before = shf_emas_before(lz->save->state, lz->save->copy.due, slice);

	if (lz->taken[slice] >= (lz->stop ? lz->due[slice] : shf_save_pieces_count(lz, slice)) ||
	    (lz->put && !lz->put[slice]))
		return false;
	if (before != slice && lz->done[before] < shf_save_pieces_count(lz, before)) {
		if (lz->taken[before] == shf_save_pieces_count(lz, before)) {
			*later = true;
			return false;
		}
		slice = before;
	}
	*p = (struct shf_save_piece){ slice, lz->taken[slice]++, !lz->stop };
	return true;
}

#define HEADERS (SIZE_MAX - 1)          /* in place of a slice: the header pages of own segments */

/* Returns slice i of the order in which this save copies. */
static size_t nth(const struct shf_save_copier *lz, size_t i)
{
	return lz->learn.order != NULL ? lz->learn.order[i] : i;
}

/* Takes the header pages if no thread has, else the next piece of the first slice in the order that
 * has one to take, and describes it in *p. *later and the result are as in pick(). */
static bool pick_next(struct shf_save_copier *lz, struct shf_save_piece *p, bool *later)
{
	size_t n = lz->turns ? lz->turns->slices_n : 0;

	if (lz->turns && !lz->headers && !lz->stop) {
		*p = (struct shf_save_piece){ .slice = HEADERS };
		lz->headers = true;
		return true;
	}
	while (lz->at < n &&
	       lz->taken[nth(lz, lz->at)] == shf_save_pieces_count(lz, nth(lz, lz->at)))
		lz->at++;
	for (size_t i = lz->at; i < n; i++)
		if (pick(lz, nth(lz, i), p, later))
			return true;
	return false;
}

bool shf_pieces_wait(struct shf_save_copier *lz, int64_t until_ns)
{
	struct timespec until = { .tv_sec = until_ns / 1000000000,
		.tv_nsec = until_ns % 1000000000 };

	return (until_ns < 0 ? pthread_cond_wait(&lz->piece_done, &lz->lock)
	                     : pthread_cond_timedwait(&lz->piece_done, &lz->lock, &until)) == 0;
}

bool shf_save_piece_take(struct shf_save_copier *lz, size_t slice, int64_t until_ns,
                         struct shf_save_piece *p)
{
	bool later, taken;

	do {
		bool failed = shf_save_failure(lz->save, NULL) < 0;

		later = false;
		pthread_mutex_lock(&lz->lock);
		lz->stop |= failed;
		taken = slice == SHF_ANY_SLICE ? pick_next(lz, p, &later) : pick(lz, slice, p,
		                                                                 &later);
		lz->busy += taken;
		if (!taken && later)
			later = shf_pieces_wait(lz, until_ns);
		pthread_mutex_unlock(&lz->lock);
	} while (!taken && later);
	return taken;
}

/* Counts a piece or segment as finished, and wakes all who wait. With the last one, notes that the
 * copy is complete. The caller holds the lock. */
static void finished(struct shf_save_copier *lz, bool copied, int64_t now)
{
	lz->busy--;
	if (copied && atomic_fetch_sub_explicit(&lz->open, 1, memory_order_acq_rel) == 1) {
		atomic_store(&lz->save->took.copy_ns, (uint64_t)(now - lz->save->took.began));
		atomic_store(&lz->save->took.phase, SHEAF_PHASE_WRITING);
	}
	pthread_cond_broadcast(&lz->piece_done);
}

#define LOOK_BYTES (UINT64_C(4) << 20)  /* bytes to copy between two searches for complete
	                                 * segments */

/* Counts a piece as finished; it was copied, unless the save has failed. True: so much was copied
 * since the last search that complete segments should be looked for. */
static bool done(struct shf_save_copier *lz, const struct shf_save_piece *p,
                 const struct shf_save_added *c)
{
	int64_t now = shf_now(lz->save->run);
	bool look;

	pthread_mutex_lock(&lz->lock);
	if (c->serve) { /* a witness adds nothing: its digest is 0 here */
		lz->save->copy.held[c->serve->tensor] ^= c->digest;
		if (lz->sums)
			lz->sums[p->slice] ^= c->digest;
	}
	lz->since += c->bytes;
	look = lz->since >= LOOK_BYTES;
	lz->since = look ? 0 : lz->since;
	lz->done[p->slice]++;
	if (p->copied)
		atomic_fetch_sub_explicit(&lz->left[p->slice], 1, memory_order_release);
	finished(lz, p->copied, now);
	pthread_mutex_unlock(&lz->lock);
	return look;
}

void shf_save_pieces_write(struct sheaf_save *save)
{
	struct sheaf_error err;
	int rc = shf_save_write_complete(save, &err);

	if (rc < 0)
		shf_save_stick(save, rc, &err);
	(void)shf_io_drain(save->run, &save->disk.io, 0);
}

static void copy_headers(struct shf_save_copier *lz)
{
	struct sheaf_error err;
	int rc = shf_save_rounds_headers(lz->save, 0, &err);
	int64_t now = shf_now(lz->save->run);

	if (rc < 0)
		shf_save_stick(lz->save, rc, &err);
	pthread_mutex_lock(&lz->lock);
	finished(lz, true, now);
	pthread_mutex_unlock(&lz->lock);
}

struct shf_slice shf_save_piece_slice(const struct sheaf_save *save, size_t slice)
{
	struct shf_slice s = save->state->slices[slice];

	if (save->copy.lazy->data && save->copy.lazy->data[slice])
		s.mem.base = save->copy.lazy->data[slice];
	return s;
}

static void copy_turn(const struct shf_save_copier *lz, const struct shf_save_piece *p,
                      struct shf_ema_window *due, struct shf_save_added *c)
{
	const struct shf_slice s = shf_save_piece_slice(lz->save, p->slice);
	struct sheaf_error err;
	int rc = shf_save_rounds_copy(lz->save, &lz->turns->a[lz->turns->first[p->slice] + p->i],
	                              &s, due, c, &err);

	if (rc < 0)
		shf_save_stick(lz->save, rc, &err);
}

/* Returns the units whose averages are updated with piece i of the slice. */
static struct shf_ema_window due_of(const struct shf_save_copier *lz, size_t slice, uint32_t i)
{
	struct shf_ema_window due = { 0 };

	if (i >= lz->due[slice])
		return due;
	due = lz->save->copy.due[slice];
	due.at += i * SHF_PIECE_ITEMS;
	due.hi = due.hi - due.at > SHF_PIECE_ITEMS ? due.at + SHF_PIECE_ITEMS : due.hi;
	return due;
}

void shf_save_piece_copy(struct shf_save_copier *lz, const struct shf_save_piece *p)
{
	struct sheaf_save *save = lz->save;
	struct shf_save_added c = { 0 };
	struct shf_ema_window due;

	if (p->slice == HEADERS) {
		copy_headers(lz);
		return;
	}
	due = due_of(lz, p->slice, p->i);
	if (p->copied && p->i < turns_of(lz, p->slice))
		copy_turn(lz, p, &due, &c);
	shf_emas_update(save->state, save->copy.fresh, &due, INT64_MAX);
	if (done(lz, p, &c))
		shf_save_pieces_write(save);
}

/* Counts the moves of a segment in a slot as taken (+1) or done (-1), for their slices. The caller
 * holds the lock. */
static void count_slotted(struct shf_save_copier *lz, size_t seg, int more)
{
	const struct sheaf_save *save = lz->save;
	const struct shf_seg *g = &save->plan->work.segs[seg];

	for (uint32_t k = 0; k < g->moves_n; k++) {
		size_t s = shf_save_slice_number(save, &save->plan->work.moves[g->first_move + k]);

		lz->slotted[s] += (uint32_t)more;
		if (more < 0)
			atomic_fetch_sub_explicit(&lz->left[s], 1, memory_order_release);
	}
}

/* Waits until a write has finished or, if none is in flight, until a thread that has a slot has
 * copied its segment; ms at most. */
static void await_slot(struct shf_save_copier *lz, int ms)
{
	if (shf_unstaged_wait(lz->save, ms))
		return;
	pthread_mutex_lock(&lz->lock);
	if (lz->busy > 0)
		(void)shf_pieces_wait(lz, shf_now(lz->save->run) + shf_ms_ns(ms));
	pthread_mutex_unlock(&lz->lock);
}

int shf_save_piece_unstaged(struct shf_save_copier *lz, size_t slice, bool asks, int ms)
{
	struct sheaf_save *save = lz->save;
	bool failed = shf_save_failure(save, NULL) < 0;
	int64_t seg = SHF_UNSTAGED_NONE, now;

	pthread_mutex_lock(&lz->lock);
	lz->stop |= failed;
	if (!lz->stop && lz->turns)
		seg = lz->askers > 0 && !asks ? SHF_UNSTAGED_FULL : shf_unstaged_take(save, slice);
	if (seg >= 0) {
		lz->busy++;
		count_slotted(lz, (size_t)seg, 1);
	}
	pthread_mutex_unlock(&lz->lock);
	if (seg == SHF_UNSTAGED_FULL)
		await_slot(lz, ms);
	if (seg < 0)
		return seg == SHF_UNSTAGED_NONE ? 0 : SHEAF_EAGAIN;
	shf_unstaged_copy(save, (size_t)seg);
	now = shf_now(save->run);
	pthread_mutex_lock(&lz->lock);
	shf_unstaged_add(save, (size_t)seg, lz->sums);
	count_slotted(lz, (size_t)seg, -1);
	finished(lz, true, now);
	pthread_mutex_unlock(&lz->lock);
	return 1;
}

bool shf_save_pieces_wait_slice(struct shf_save_copier *lz, size_t slice, int64_t until_ns)
{
	bool waits = true, calm = false;

	pthread_mutex_lock(&lz->lock);
	while (waits) {
		calm = slice == SHF_ANY_SLICE
		       ? lz->busy == 0
		       : lz->taken[slice] == lz->done[slice] && !lz->slotted[slice];
		if (calm)
			break;
		waits = shf_pieces_wait(lz, until_ns);
	}
	calm = calm && (slice == SHF_ANY_SLICE || lz->done[slice] >= lz->due[slice]);
	pthread_mutex_unlock(&lz->lock);
	return calm;
}
