/* SPDX-License-Identifier: Apache-2.0 */
/* The copy behind: its threads, and what they copy. */
#include "pieces.h"
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include "err.h"
#include "moves.h"
#include "run_env.h"
#include "run_io.h"
#include "slice_overlaps.h"
#include "slots.h"

#define PIECE_ITEMS ((int64_t)(SHF_PIECE / sizeof(float)))      /* averages of a piece */
#define LOOK_BYTES (UINT64_C(4) << 20)  /* copied between looks at what is whole */
#define HEADERS (SIZE_MAX - 1)          /* no slice: header pages of own segments; the first */

/* ---- one piece ---- */

static size_t turns_of(const struct shf_lazy *lz, size_t slice)
{
	return lz->turns ? lz->turns->first[slice + 1] - lz->turns->first[slice] : 0;
}

/* With or without something to copy. */
static uint32_t pieces_in(const struct shf_lazy *lz, size_t slice)
{
	uint32_t n = (uint32_t)turns_of(lz, slice);

	return n > lz->due[slice] ? n : lz->due[slice];
}

/* Moves of segments of no image. */
static uint32_t slotted_in(const struct shf_lazy *lz, size_t slice)
{
	const struct shf_turns *o = lz->turns;

	return o ? (uint32_t)(o->slotted_first[slice + 1] - o->slotted_first[slice]) : 0;
}

/* Of that slice, or what comes before it. *later: of that the last are under way. Locked. */
static bool pick(struct shf_lazy *lz, size_t slice, struct shf_taken *p, bool *later)
{
	size_t before = shf_emas_before(lz->save->state, lz->save->due, slice);

	if (lz->taken[slice] >= (lz->stop ? lz->due[slice] : pieces_in(lz, slice)) ||
	    (lz->put && !lz->put[slice]))
		return false;
	if (before != slice && lz->done[before] < pieces_in(lz, before)) {
		if (lz->taken[before] == pieces_in(lz, before)) {
			*later = true;
			return false;
		}
		slice = before;
	}
	*p = (struct shf_taken){ slice, lz->taken[slice]++, !lz->stop };
	return true;
}

/* The next in the order; the same. */
static bool pick_next(struct shf_lazy *lz, struct shf_taken *p, bool *later)
{
	size_t n = lz->turns ? lz->turns->slices_n : 0;

	if (lz->turns && !lz->headers && !lz->stop) {
		*p = (struct shf_taken){ .slice = HEADERS };
		lz->headers = true;
		return true;
	}
	while (lz->at < n && lz->taken[lz->at] == pieces_in(lz, lz->at))
		lz->at++;
	for (size_t s = lz->at; s < n; s++)
		if (pick(lz, s, p, later))
			return true;
	return false;
}

bool shf_pieces_moved(struct shf_lazy *lz, int64_t until_ns)
{
	struct timespec until = { .tv_sec = until_ns / 1000000000,
		.tv_nsec = until_ns % 1000000000 };

	return (until_ns < 0 ? pthread_cond_wait(&lz->moved, &lz->lock)
	                     : pthread_cond_timedwait(&lz->moved, &lz->lock, &until)) == 0;
}

bool shf_piece_take(struct shf_lazy *lz, size_t slice, int64_t until_ns, struct shf_taken *p)
{
	bool later, taken;

	do {
		bool failed = shf_save_failure(lz->save, NULL) < 0;

		later = false;
		pthread_mutex_lock(&lz->lock);
		lz->stop |= failed;
		taken = slice == SHF_ANY ? pick_next(lz, p, &later) : pick(lz, slice, p, &later);
		lz->busy += taken;
		if (!taken && later)
			later = shf_pieces_moved(lz, until_ns);
		pthread_mutex_unlock(&lz->lock);
	} while (!taken && later);
	return taken;
}

/* One less, now; the lock is held. */
static void finished(struct shf_lazy *lz, bool copied, int64_t now)
{
	lz->busy--;
	if (copied && atomic_fetch_sub_explicit(&lz->open, 1, memory_order_acq_rel) == 1) {
		atomic_store(&lz->save->copy_ns, (uint64_t)(now - lz->save->began));
		atomic_store(&lz->save->phase, 1);
	}
	pthread_cond_broadcast(&lz->moved);
}

/* What a piece adds. */
struct added {
	const struct shf_serve *serve;  /* NULL: nothing */
	uint64_t digest, bytes;
};

/* It is copied, or the save has failed. True: somebody should look at what is whole. */
static bool done(struct shf_lazy *lz, const struct shf_taken *p, const struct added *a)
{
	int64_t now = shf_now(lz->save->run);
	bool look;

	pthread_mutex_lock(&lz->lock);
	if (a->serve && !a->serve->witness) {
		lz->save->held[a->serve->tensor] ^= a->digest;
		if (lz->sums)
			lz->sums[p->slice] ^= a->digest;
	}
	lz->since += a->bytes;
	look = lz->since >= LOOK_BYTES;
	lz->since = look ? 0 : lz->since;
	lz->done[p->slice]++;
	if (p->copied)
		atomic_fetch_sub_explicit(&lz->left[p->slice], 1, memory_order_release);
	finished(lz, p->copied, now);
	pthread_mutex_unlock(&lz->lock);
	return look;
}

void shf_pieces_look(struct sheaf_save *save)
{
	struct sheaf_error err;
	int rc = shf_write_whole(save, &err);

	if (rc < 0)
		shf_save_stick(save, rc, &err);
	(void)shf_io_drain(save->run, &save->io, 0);
}

static void copy_headers(struct shf_lazy *lz)
{
	struct sheaf_error err;
	int rc = shf_copy_headers(lz->save, 0, &err);
	int64_t now = shf_now(lz->save->run);

	if (rc < 0)
		shf_save_stick(lz->save, rc, &err);
	pthread_mutex_lock(&lz->lock);
	finished(lz, true, now);
	pthread_mutex_unlock(&lz->lock);
}

struct shf_slice shf_piece_slice(const struct sheaf_save *save, size_t slice)
{
	struct shf_slice s = save->state->slices[slice];

	if (save->lazy->data && save->lazy->data[slice])
		s.mem.base = save->lazy->data[slice];
	return s;
}

static void copy_turn(struct sheaf_save *save, const struct shf_turn *o, size_t slice,
                      struct shf_due *due, struct added *a)
{
	const struct shf_serve *v = &save->plan->work.serves[o->serve];
	const struct shf_lt_tensor *t = &save->plan->layout.tensors[v->tensor];
	const struct shf_slice s = shf_piece_slice(save, slice);
	struct shf_box_move m = { .serve = v, .slice = &s, .stream = o->stream, .box = v->box,
		.behind = true, .due = due };
	struct sheaf_error err;
	int rc;

	if (!v->witness)
		m.stream += (size_t)shf_cut_at(t, &v->box, SHF_PIECE, o->piece, &m.box);
	a->serve = v;
	a->bytes = v->witness ? 0 : shf_box_bytes(t, &m.box);
	rc = shf_move_copy(save, &m, &a->digest, &err);
	if (rc < 0)
		shf_save_stick(save, rc, &err);
	atomic_fetch_add_explicit(&save->copied, a->bytes, memory_order_relaxed);
}

/* Averages that piece i of a slice has with it. */
static struct shf_due due_of(const struct shf_lazy *lz, size_t slice, uint32_t i)
{
	struct shf_due due = { 0 };

	if (i >= lz->due[slice])
		return due;
	due = lz->save->due[slice];
	due.at += i * PIECE_ITEMS;
	due.hi = due.hi - due.at > PIECE_ITEMS ? due.at + PIECE_ITEMS : due.hi;
	return due;
}

void shf_piece_copy(struct shf_lazy *lz, const struct shf_taken *p)
{
	struct sheaf_save *save = lz->save;
	struct added a = { 0 };
	struct shf_due due;

	if (p->slice == HEADERS) {
		copy_headers(lz);
		return;
	}
	due = due_of(lz, p->slice, p->i);
	if (p->copied && p->i < turns_of(lz, p->slice))
		copy_turn(save, &lz->turns->a[lz->turns->first[p->slice] + p->i], p->slice, &due,
		          &a);
	shf_emas_update(save->state, save->fresh, &due, INT64_MAX);
	if (done(lz, p, &a))
		shf_pieces_look(save);
}

/* ---- segments of no image ---- */

/* One of the plan is taken (+1), or done (-1). Locked. */
static void count_slotted(struct shf_lazy *lz, size_t seg, int more)
{
	const struct sheaf_save *save = lz->save;
	const struct shf_seg *g = &save->plan->work.segs[seg];

	for (uint32_t k = 0; k < g->moves_n; k++) {
		size_t s = shf_slice_number(save, &save->plan->work.moves[g->first_move + k]);

		lz->slotted[s] += (uint32_t)more;
		if (more < 0)
			atomic_fetch_sub_explicit(&lz->left[s], 1, memory_order_release);
	}
}

/* For one that is written, or copied by somebody else who has a slot. */
static void await_slot(struct shf_lazy *lz, int ms)
{
	if (shf_slots_wait(lz->save, ms))
		return;
	pthread_mutex_lock(&lz->lock);
	if (lz->busy > 0)
		(void)shf_pieces_moved(lz, shf_now(lz->save->run) + ms * INT64_C(1000000));
	pthread_mutex_unlock(&lz->lock);
}

int shf_piece_slotted(struct shf_lazy *lz, size_t slice, bool asks, int ms)
{
	struct sheaf_save *save = lz->save;
	bool failed = shf_save_failure(save, NULL) < 0;
	int64_t seg = SHF_SLOTS_NONE, now;

	pthread_mutex_lock(&lz->lock);
	lz->stop |= failed;
	if (!lz->stop && lz->turns)
		seg = lz->askers > 0 && !asks ? SHF_SLOTS_FULL : shf_slots_take(save, slice);
	if (seg >= 0) {
		lz->busy++;
		count_slotted(lz, (size_t)seg, 1);
	}
	pthread_mutex_unlock(&lz->lock);
	if (seg == SHF_SLOTS_FULL)
		await_slot(lz, ms);
	if (seg < 0)
		return seg == SHF_SLOTS_NONE ? 0 : SHEAF_EAGAIN;
	shf_slots_copy(save, (size_t)seg);
	now = shf_now(save->run);
	pthread_mutex_lock(&lz->lock);
	shf_slots_add(save, (size_t)seg, lz->sums);
	count_slotted(lz, (size_t)seg, -1);
	finished(lz, true, now);
	pthread_mutex_unlock(&lz->lock);
	return 1;
}

/* ---- the threads ---- */

#define NAP_MS 10               /* at most, so that whoever ends the thread need not wait */

/* More was copied than opts.copy_rate_max allows since the copy began: how long until it is not;
 * ms. */
static int ahead_ms(const struct shf_lazy *lz)
{
	uint64_t rate = lz->save->run->opts.copy_rate_max;
	double s;

	if (!rate)
		return 0;
	s = (double)atomic_load_explicit(&lz->save->copied, memory_order_relaxed) / (double)rate -
	    (double)(shf_now(lz->save->run) - lz->save->copy_from_ns) * 1e-9;
	return s <= 0 ? 0 : s * 1e3 >= NAP_MS ? NAP_MS : (int)(s * 1e3) + 1;
}

static bool step(void *work)
{
	struct shf_lazy *lz = work;
	const struct shf_sys *sys = lz->save->run->sys;
	int ms = atomic_load(&lz->open) ? ahead_ms(lz) : 0;
	struct shf_taken p;

	if (ms) {
		sys->ops->sleep_ms(sys->arg, ms);
		return true;
	}
	if (shf_piece_take(lz, SHF_ANY, -1, &p)) {
		shf_piece_copy(lz, &p);
		return true;
	}
	shf_pieces_look(lz->save);
	return shf_piece_slotted(lz, SHF_ANY, false, NAP_MS) != 0;
}

void shf_lazy_tick(struct sheaf_save *save)
{
	const struct shf_sys *sys = save->run->sys;
	struct shf_lazy *lz = save->lazy;

	pthread_mutex_lock(&lz->tasks_lock);
	for (int i = 0; i < lz->tasks_n; i++)
		(void)sys->ops->task_over(sys->arg, lz->tasks[i]);
	pthread_mutex_unlock(&lz->tasks_lock);
}

void shf_lazy_start(struct sheaf_save *save)
{
	struct shf_lazy *lz = save->lazy;
	const struct sheaf_run *run = save->run;
	const struct shf_sys *sys = run->sys;
	int want = run->opts.copy_threads ? run->opts.copy_threads : 1, rc = 0;

	save->copy_from_ns = shf_now(run);
	save->net.most = (size_t)save->plan->most;
	save->lazy_next = save->state->lazy;
	save->state->lazy = save;
	while (lz->tasks_n < want && rc >= 0) {
		rc = sys->ops->task_new(sys->arg, &lz->tasks[lz->tasks_n], step, lz,
		                        run->opts.copy_cpus);
		lz->tasks_n += rc >= 0;
	}
	if (rc > 0)
		shf_log(run, 1, "step %" PRId64 ": the threads that copy run anywhere: the kernel "
		        "does not let them on %.60s", lz->save->step, run->opts.copy_cpus);
	if (rc < 0)
		shf_log(run, 1, "step %" PRId64 ": %d of %d threads to copy behind: who asks for a "
		        "slice copies it", lz->save->step, lz->tasks_n, want);
}

/* ---- begin and end ---- */

/* Finds the slices that lie in the same memory, as the state knows it. A slice that is put
 * elsewhere is compared later, at the gates (one_beside). */
static int overlaps_init(struct shf_lazy *lz, size_t n)
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

static int lazy_init(struct shf_lazy *lz, struct sheaf_save *save, bool now)
{
	struct shf_span slotted = shf_slots_segs(&save->plan->work);
	size_t n = save->state->n;
	int threads = save->run->opts.copy_threads ? save->run->opts.copy_threads : 1;

	lz->save = save;
	lz->turns = now ? NULL : &save->plan->turns;
	pthread_mutex_init(&lz->lock, NULL);
	pthread_mutex_init(&lz->tasks_lock, NULL);
	shf_io_turn_init(&lz->moved);
	lz->taken = shf_zalloc(n, sizeof(*lz->taken));
	lz->done = shf_zalloc(n, sizeof(*lz->done));
	lz->due = shf_zalloc(n, sizeof(*lz->due));
	lz->slotted = shf_zalloc(n, sizeof(*lz->slotted));
	lz->left = shf_zalloc(n, sizeof(*lz->left));
	lz->asked = shf_zalloc(n, sizeof(*lz->asked));
	lz->tasks = shf_zalloc((size_t)threads, sizeof(struct shf_task *));
	if (save->flags & SHEAF_CHECK)
		lz->sums = shf_zalloc(n, sizeof(*lz->sums));
	if (save->flags & SHEAF_CHECK && !now) {
		lz->checks = shf_zalloc(n, sizeof(*lz->checks));
		lz->begun = shf_zalloc(n, sizeof(*lz->begun));
	}
	if (save->flags & SHEAF_LATER) {
		lz->put = shf_zalloc(n, sizeof(*lz->put));
		lz->data = shf_zalloc(n, sizeof(*lz->data));
	}
	if (!lz->taken || !lz->done || !lz->due || !lz->slotted || !lz->left || !lz->asked ||
	    !lz->tasks ||
	    (save->flags & SHEAF_CHECK && !(lz->sums && (now || (lz->checks && lz->begun)))) ||
	    (save->flags & SHEAF_LATER && (!lz->put || !lz->data)))
		return SHEAF_ENOMEM;
	for (size_t s = 0; s < n; s++) {
		if (lz->put) {
			lz->put[s] = save->state->slices[s].empty;
			lz->unput += !lz->put[s];
		}
		if (!now && save->due)
			lz->due[s] = (uint32_t)((save->due[s].hi - save->due[s].at + PIECE_ITEMS -
			                         1) / PIECE_ITEMS);
		atomic_init(&lz->left[s], pieces_in(lz, s) + slotted_in(lz, s));
		atomic_fetch_add(&lz->open, pieces_in(lz, s));
	}
	if (!now)       /* header pages, and segments of no image */
		atomic_fetch_add(&lz->open, 1 + slotted.end - slotted.first);
	atomic_init(&lz->unasked, save->plan->turns.saved_n);
	return overlaps_init(lz, n);
}

int shf_lazy_new(struct sheaf_save *save, bool now, struct sheaf_error *err)
{
	int rc = save->plan->turns.first ? 0 : shf_turns_make(&save->plan->turns, save, err);

	if (rc < 0)
		return rc;
	save->lazy = shf_zalloc(1, sizeof(*save->lazy));
	if (save->lazy && lazy_init(save->lazy, save, now) == 0)
		rc = save->lazy->checks && !save->lazy->put ? shf_check_begin(save->lazy, err) : 0;
	else
		rc = shf_fail(err, SHEAF_ENOMEM, "step %" PRId64 ": no memory to copy %zu slices "
		              "behind", save->step, save->state->n);
	if (rc == 0)
		return 0;
	shf_lazy_free(save->lazy, true);
	save->lazy = NULL;
	return rc;
}

int shf_lazy_begin(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	int rc = shf_agree(team, shf_round_open(save, 0, err), err);

	if (rc == 0 && !save->plan->most_known) {
		rc = shf_allreduce(team, &save->net.longest, 1, SHEAF_MAX, err);
		save->plan->most = save->net.longest;
		save->plan->most_known = rc == 0;
	}
	if (rc == 0)
		shf_lazy_start(save);
	return rc;
}

bool shf_pieces_settled(struct shf_lazy *lz, size_t slice, int64_t until_ns)
{
	bool waits = true, calm = false;

	pthread_mutex_lock(&lz->lock);
	while (waits) {
		calm = slice == SHF_ANY
		       ? lz->busy == 0
		       : lz->taken[slice] == lz->done[slice] && !lz->slotted[slice];
		if (calm)
			break;
		waits = shf_pieces_moved(lz, until_ns);
	}
	calm = calm && (slice == SHF_ANY || lz->done[slice] >= lz->due[slice]);
	pthread_mutex_unlock(&lz->lock);
	return calm;
}

void shf_lazy_update(struct sheaf_save *save)
{
	struct shf_lazy *lz = save->lazy;
	struct shf_taken p;

	for (size_t s = 0; lz->turns && s < lz->turns->slices_n; s++)
		if (lz->due[s] && atomic_load_explicit(&lz->left[s], memory_order_acquire) > 0) {
			while (shf_piece_take(lz, s, -1, &p))
				shf_piece_copy(lz, &p);
			(void)shf_pieces_settled(lz, s, -1);
		}
}

void shf_lazy_forget(struct sheaf_save *save)
{
	struct sheaf_save **at = save->state ? &save->state->lazy : NULL;

	while (at && *at && *at != save)
		at = &(*at)->lazy_next;
	if (at && *at)
		*at = save->lazy_next;
}

void shf_lazy_stop(struct sheaf_save *save)
{
	const struct shf_sys *sys = save->run->sys;
	struct shf_lazy *lz = save->lazy;

	if (!lz)
		return;
	pthread_mutex_lock(&lz->lock);
	lz->stop = true;
	pthread_cond_broadcast(&lz->moved);
	pthread_mutex_unlock(&lz->lock);
	pthread_mutex_lock(&lz->tasks_lock);
	while (lz->tasks_n > 0)
		sys->ops->task_free(sys->arg, lz->tasks[--lz->tasks_n]);
	pthread_mutex_unlock(&lz->tasks_lock);
	shf_lazy_update(save);
	(void)shf_pieces_settled(lz, SHF_ANY, -1);     /* and whoever copies what he asked for */
	shf_lazy_forget(save);
}

void shf_lazy_free(struct shf_lazy *lz, bool ours)
{
	if (!lz)
		return;
	if (ours) { /* in a forked child somebody may wait there, or hold it, for ever */
		pthread_cond_destroy(&lz->moved);
		pthread_mutex_destroy(&lz->lock);
		pthread_mutex_destroy(&lz->tasks_lock);
	}
	shf_free(lz->taken);
	shf_free(lz->done);
	shf_free(lz->due);
	shf_free(lz->slotted);
	shf_free(lz->left);
	shf_free(lz->asked);
	shf_free(lz->tasks);
	shf_free(lz->sums);
	shf_free(lz->checks);
	shf_free(lz->begun);
	shf_free(lz->put);
	shf_free(lz->data);
	shf_free(lz->overlaps);
	shf_free(lz->fresh);
	shf_free(lz);
}

bool shf_lazy_is_behind(const struct sheaf_save *save)
{
	return save->lazy && save->lazy->turns;
}
