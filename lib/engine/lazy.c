/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: `tasks_lock`, then the save's `looking`; `lock`, then that of the segments in no image
 * (slots.c), which is a leaf. */
#include "lazy.h"
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include "err.h"
#include "moves.h"
#include "slots.h"

#define PIECE_ITEMS ((int64_t)(SHF_PIECE / sizeof(float)))      /* averages of a piece */
#define LOOK_BYTES (UINT64_C(4) << 20)  /* copied between looks at what is whole */
#define ANY SIZE_MAX                    /* slice: the next in the order */
#define HEADERS (SIZE_MAX - 1)          /* no slice: header pages of own segments; the first */

struct shf_lazy {
	struct sheaf_save *save;        /* borrowed */
	const struct shf_turns *turns;  /* of its plan; NULL: nothing is left to copy */
	pthread_mutex_t lock;
	pthread_cond_t moved;           /* a piece is done, or nothing more is taken */
	size_t at;                      /* guarded by lock: all before this slice is taken */
	uint32_t *taken;                /* guarded by lock; of each slice's pieces */
	uint32_t *done;                 /* guarded by lock; of those, also what was not copied */
	uint32_t *due;                  /* by slice: its first pieces have averages with them */
	uint32_t *slotted;              /* guarded by lock; by slice: moves of such segments that
	                                 * are taken and not done */
	size_t busy;                    /* guarded by lock: taken and not done */
	int askers;                     /* guarded by lock: who wait for a slot, before threads */
	uint64_t since;                 /* guarded by lock: bytes copied since somebody looked */
	uint64_t *sums;                 /* guarded by lock; by slice, of what was copied; or NULL */
	bool *put;                      /* guarded by lock; by slice: may be read; NULL: all may */
	void **data;                    /* by slice: where it lies, if not where the state says;
	                                 * written before it is put */
	size_t unput;                   /* guarded by lock: slices that may not be read yet */
	bool headers;                   /* guarded by lock: header pages are taken */
	bool stop;                      /* guarded by lock: nothing more is copied */
	atomic_uint *left;              /* by slice: pieces not copied; released when one is,
	                                 * acquired by who then changes the slice */
	atomic_size_t open;             /* pieces of all slices not copied; in the same way */
	atomic_bool *asked;             /* by slice */
	atomic_size_t unasked;          /* of those saved; changed by who asks, read by commit */
	pthread_mutex_t tasks_lock;
	struct shf_task **tasks;        /* guarded by tasks_lock; owned */
	int tasks_n;                    /* guarded by tasks_lock */
};

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

struct piece {
	size_t slice;
	uint32_t i;
	bool copied;                    /* false: nothing is copied any more */
};

/* Of that slice, or what comes before it. *later: of that the last are under way. Locked. */
static bool pick(struct shf_lazy *lz, size_t slice, struct piece *p, bool *later)
{
	size_t before = shf_emas_before(lz->save->state, lz->save->fresh, slice);

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
	*p = (struct piece){ slice, lz->taken[slice]++, !lz->stop };
	return true;
}

/* The next in the order; the same. */
static bool pick_next(struct shf_lazy *lz, struct piece *p, bool *later)
{
	size_t n = lz->turns ? lz->turns->slices_n : 0;

	if (lz->turns && !lz->headers && !lz->stop) {
		*p = (struct piece){ .slice = HEADERS };
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

/* For something to be done; the lock is held. False: the time is up. */
static bool wait_moved(struct shf_lazy *lz, int64_t until_ns)
{
	struct timespec until = { .tv_sec = until_ns / 1000000000,
		.tv_nsec = until_ns % 1000000000 };

	return (until_ns < 0 ? pthread_cond_wait(&lz->moved, &lz->lock)
	                     : pthread_cond_timedwait(&lz->moved, &lz->lock, &until)) == 0;
}

/* A piece of that slice (ANY: of the next in the order), if there is one. Waits, no longer than
 * that, where only averages are left whose weights are under way. */
static bool take(struct shf_lazy *lz, size_t slice, int64_t until_ns, struct piece *p)
{
	bool later, taken;

	do {
		bool failed = shf_save_failure(lz->save, NULL) < 0;

		later = false;
		pthread_mutex_lock(&lz->lock);
		lz->stop |= failed;
		taken = slice == ANY ? pick_next(lz, p, &later) : pick(lz, slice, p, &later);
		lz->busy += taken;
		if (!taken && later)
			later = wait_moved(lz, until_ns);
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
static bool done(struct shf_lazy *lz, const struct piece *p, const struct added *a)
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

static void look(struct sheaf_save *save)
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

/* With the memory that it has in this save. */
static struct shf_slice slice_in(const struct sheaf_save *save, size_t slice)
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
	const struct shf_slice s = slice_in(save, slice);
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

static void copy(struct shf_lazy *lz, const struct piece *p)
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
		look(save);
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
		(void)wait_moved(lz, shf_now(lz->save->run) + ms * INT64_C(1000000));
	pthread_mutex_unlock(&lz->lock);
}

/* The next that has some of the slice (ANY: the next), if there is a slot in so many ms; asks: for
 * somebody who wants it, before the threads. 1: it is copied; 0: there is none that nobody has
 * taken; EAGAIN. */
static int copy_slotted(struct shf_lazy *lz, size_t slice, bool asks, int ms)
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

#define SLICE_MS 1000           /* who asks looks whether the save still goes on */
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
	struct piece p;

	if (ms) {
		sys->ops->sleep_ms(sys->arg, ms);
		return true;
	}
	if (take(lz, ANY, -1, &p)) {
		copy(lz, &p);
		return true;
	}
	look(lz->save);
	return copy_slotted(lz, ANY, false, NAP_MS) != 0;
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
	if (save->flags & SHEAF_LATER) {
		lz->put = shf_zalloc(n, sizeof(*lz->put));
		lz->data = shf_zalloc(n, sizeof(*lz->data));
	}
	if (!lz->taken || !lz->done || !lz->due || !lz->slotted || !lz->left || !lz->asked ||
	    !lz->tasks || (save->flags & SHEAF_CHECK && !lz->sums) ||
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
	return 0;
}

int shf_lazy_new(struct sheaf_save *save, bool now, struct sheaf_error *err)
{
	int rc = save->plan->turns.first ? 0 : shf_turns_make(&save->plan->turns, save, err);

	if (rc < 0)
		return rc;
	save->lazy = shf_zalloc(1, sizeof(*save->lazy));
	if (save->lazy && lazy_init(save->lazy, save, now) == 0)
		return 0;
	shf_lazy_free(save->lazy, true);
	save->lazy = NULL;
	return shf_fail(err, SHEAF_ENOMEM, "step %" PRId64 ": no memory to copy %zu slices behind",
	                save->step, save->state->n);
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

/* Until nothing of the slice (ANY: of any) is under way, nor due to be; false: the time is up. */
static bool settled(struct shf_lazy *lz, size_t slice, int64_t until_ns)
{
	bool waits = true, calm = false;

	pthread_mutex_lock(&lz->lock);
	while (waits) {
		calm = slice == ANY ? lz->busy == 0
		                    : lz->taken[slice] == lz->done[slice] && !lz->slotted[slice];
		if (calm)
			break;
		waits = wait_moved(lz, until_ns);
	}
	calm = calm && (slice == ANY || lz->done[slice] >= lz->due[slice]);
	pthread_mutex_unlock(&lz->lock);
	return calm;
}

void shf_lazy_update(struct sheaf_save *save)
{
	struct shf_lazy *lz = save->lazy;
	struct piece p;

	for (size_t s = 0; lz->turns && s < lz->turns->slices_n; s++)
		if (lz->due[s] && atomic_load_explicit(&lz->left[s], memory_order_acquire) > 0) {
			while (take(lz, s, -1, &p))
				copy(lz, &p);
			(void)settled(lz, s, -1);
		}
}

void shf_lazy_stop(struct sheaf_save *save)
{
	const struct shf_sys *sys = save->run->sys;
	struct shf_lazy *lz = save->lazy;
	struct sheaf_save **at = save->state ? &save->state->lazy : NULL;

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
	(void)settled(lz, ANY, -1);     /* and whoever copies what he asked for */
	while (at && *at && *at != save)
		at = &(*at)->lazy_next;
	if (at && *at)
		*at = save->lazy_next;
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
	shf_free(lz->put);
	shf_free(lz->data);
	shf_free(lz);
}

bool shf_lazy_is_behind(const struct sheaf_save *save)
{
	return save->lazy && save->lazy->turns;
}

/* ---- who asks ---- */

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
		rc = copy_slotted(lz, slice, true, until_ns < 0 ? SLICE_MS
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
	return slice == ANY ? atomic_load_explicit(&lz->open, memory_order_acquire) == 0
	                    : atomic_load_explicit(&lz->left[slice], memory_order_acquire) == 0;
}

/* Copies and waits, no longer than that. */
static int wait_for(struct shf_lazy *lz, size_t slice, int timeout_ms)
{
	struct sheaf_save *save = lz->save;
	int64_t until = timeout_ms < 0 ? -1 : shf_now(save->run) + (int64_t)timeout_ms * 1000000;
	bool copied = false, calm;
	struct piece p;
	int rc, failed;

	do {
		while (timeout_ms != 0 && (until < 0 || shf_now(save->run) < until) &&
		       take(lz, slice, until, &p)) {
			copy(lz, &p);
			copied = true;
		}
		if (timeout_ms != 0)
			copied |= ask_slotted(lz, slice, until);
		failed = stop_failed(lz);
		calm = settled(lz, slice, until);
		rc = is_copied(lz, slice) ? 0 : calm && failed < 0 ? failed : SHEAF_EAGAIN;
	} while (rc == SHEAF_EAGAIN && until < 0 && failed == 0 && /* it has failed since */
	         shf_lazy_unput(save) < 0);
	if (copied)
		look(save);
	return rc;
}

bool shf_lazy_is_partial(struct sheaf_save *save)
{
	look(save);
	return shf_is_partial(save);
}

int shf_lazy_finish(struct sheaf_save *save, int timeout_ms)
{
	shf_lazy_tick(save);
	return wait_for(save->lazy, ANY, timeout_ms);
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
	const struct shf_slice held = slice_in(save, slice), *s = &held;
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

static int slice_copied(struct sheaf_save *save, size_t s, int timeout_ms, struct sheaf_error *err)
{
	struct shf_lazy *lz = save->lazy;
	int rc = 0;

	if (atomic_load_explicit(&lz->left[s], memory_order_acquire) > 0) {
		shf_lazy_tick(save);
		rc = wait_for(lz, s, timeout_ms);
	}
	if (rc == 0 && lz->sums && lz->turns && !atomic_load(&lz->asked[s])) {
		rc = same_as_copied(lz, s, err);
		if (rc < 0)
			shf_save_stick(save, rc, err);
	}
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
	int rc = 0;

	if (slice != SHEAF_ALL_SLICES)
		return is_put(save->lazy, (size_t)slice)
		       ? slice_copied(save, (size_t)slice, timeout_ms, err) : SHEAF_EINVAL;
	if (shf_lazy_unput(save) >= 0)
		return SHEAF_EINVAL;
	if (shf_lazy_reads(save, -1)) {
		shf_lazy_tick(save);
		rc = wait_for(save->lazy, ANY, timeout_ms);
	}
	for (size_t s = 0; rc != SHEAF_EAGAIN && s < save->state->n; s++) {
		int one = slice_copied(save, s, 0, err);

		rc = rc < 0 ? rc : one;
	}
	return rc;
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
