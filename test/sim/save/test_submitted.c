/* SPDX-License-Identifier: Apache-2.0 */
/* Saves that the commit threads commit, on simulated ranks and disks, with schedules drawn from a
 * seed. Each rank is two simulated ranks: its caller, and its commit thread with a group of its
 * own. Both switch at every operation of a group, at every lock and at every call of the disk.
 *
 * Time is simulated, so a thread that is two seconds late costs nothing. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include "everycut.h"
#include "group.h"
#include "rng.h"
#include "run_open.h"
#include "save_submit.h"
#include "sheaf.h"
#include "sheaf-inspect.h"
#include "sheaf-admin.h"
#include "sheaf-state.h"
#include "simdisk.h"
#include "simgroup.h"
#include "simover.h"
#include "t.h"

enum { RANKS = 2, SLICES = 3, ITEMS = 40, STEPS_MAX = 1001 };
/* What a program does with a save after it has submitted it. */
enum habit { WAITS_NEXT, WAITS_AT_ONCE, FREES, HABITS };
enum { CODES = 8 };             /* codes of other calls, for each step */

struct host;
struct who {                    /* a simulated rank: a caller, or a commit thread */
	struct host *h;
	struct sheaf_group *group;      /* as it was before `reduce` and others were put in */
	uint64_t random;
	int number, ops_n;              /* ops_n: operations of the group so far */
};
static _Thread_local struct who *me;

struct host {
	struct simdisk *disk;
	int ranks, first, steps;        /* saves steps `first` to `steps` */
	uint64_t seed, flags;
	enum habit habit;
	bool memory;                    /* every second save goes to memory alone */
	bool agents, abandons;          /* abandons: the last save is not submitted */
	bool calm, restless;            /* threads switch in operations of groups alone; often */
	int late_ms;                    /* a commit thread is late by up to this, before a round */
	int late_rank;
	bool averages;
	uint64_t run_flags;
	void (*also)(struct host *h, int rank, struct sheaf_run *run, int64_t step,
	             struct sheaf_save *save);  /* after the gates of each save */
	int threadless;                 /* rank, plus 1, that can make no thread; 0: none */
	int dies, dies_at;              /* simulated rank, and its operation; 0: none */
	bool left;                      /* it has */
	int32_t timeout_ms;
	/* the commit threads */
	struct sheaf_group *back[RANKS];
	void *(*work[RANKS])(void *arg);
	void *arg[RANKS];
	bool begun[RANKS], over[RANKS], done[RANKS];
	struct sheaf_group_ops ops;     /* of the simulation; the same on all ranks */
	/* afterwards */
	const struct shf_sys *sys[RANKS];
	int rc[RANKS], outcome[RANKS][STEPS_MAX], codes[RANKS][STEPS_MAX][CODES];
	int64_t acked_cut[STEPS_MAX], begun_cut[STEPS_MAX];     /* 0: never */
	int committed, bad;
	int64_t last;
	struct sheaf_error err[RANKS];
};

/* ---- switching ---- */

int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __real_pthread_join(pthread_t thread, void **out);
int __wrap_pthread_join(pthread_t thread, void **out);
int __wrap_shf_thread_start(pthread_t *thread, void *(*work)(void *arg), void *arg);

static void let_others(int64_t ms)
{
	struct who *self = me;

	me = NULL;      /* the locks of the simulation are no points to switch at */
	simgroup_pause(self->group, ms);
	me = self;
}

static void perhaps_switch(unsigned one_of)
{
	if (me && !me->h->calm && rng_next(&me->random) % one_of == 0)
		let_others(0);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
	if (!me)
		return __real_pthread_mutex_lock(lock);
	perhaps_switch(me->h->restless ? 2 : 16);
	while (pthread_mutex_trylock(lock) != 0)
		let_others(1);
	return 0;
}

/* Nothing wakes a simulated thread that waits: it wakes by itself. */
static int wakes_later(pthread_mutex_t *lock)
{
	pthread_mutex_unlock(lock);
	let_others(me->h->calm ? 50 : 5);
	return __wrap_pthread_mutex_lock(lock);
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
	if (!me)
		return __real_pthread_cond_wait(cond, lock);
	return wakes_later(lock);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until)
{
	if (!me)
		return __real_pthread_cond_timedwait(cond, lock, until);
	return wakes_later(lock);
}

static int rank_of(const struct who *w)
{
	return w->group->ops.rank;
}

int __wrap_shf_thread_start(pthread_t *thread, void *(*work)(void *arg), void *arg)
{
	int r = rank_of(me);

	if (me->h->threadless == r + 1)
		return EAGAIN;
	*thread = pthread_self();
	me->h->arg[r] = arg;
	me->h->work[r] = work;
	me->h->begun[r] = true;
	return 0;
}

int __wrap_pthread_join(pthread_t thread, void **out)
{
	if (!me)
		return __real_pthread_join(thread, out);
	while (!me->h->over[rank_of(me)])
		let_others(5);
	return 0;
}

static void switch_at_disk(void *arg)
{
	(void)arg;
	perhaps_switch(4);
}

static int64_t sim_ns(void *arg)
{
	static _Thread_local int64_t more;
	struct who *self = me;
	int64_t ns;

	(void)arg;
	if (!self)
		return ++more;
	me = NULL;
	ns = simgroup_now_ms(self->group) * 1000000;
	me = self;
	return ns;
}

/* Whether the group has failed on this rank, for ever. */
static bool has_left(struct who *self)
{
	struct host *h = self->h;
	bool left = h->dies_at && self->number == h->dies && ++self->ops_n >= h->dies_at;

	h->left |= left;
	return left;
}

/* Before a round, the commit thread of one rank is late. Rounds are the shortest all-reduces. */
static int reduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms, struct sheaf_error *err)
{
	struct who *self = me;
	int rc = -1;

	if (self->h->late_ms && n < 8 && self->number == self->h->ranks + self->h->late_rank)
		let_others((int64_t)(rng_next(&self->random) % (uint64_t)self->h->late_ms));
	me = NULL;
	if (!has_left(self))
		rc = self->h->ops.allreduce(arg, x, n, op, timeout_ms, err);
	me = self;
	/* So the caller may take the run between a round and the turn that it decided. */
	if (self->h->restless && n < 8 && self->number >= self->h->ranks)
		let_others((int64_t)(rng_next(&self->random) % 4) * 5);
	return rc;
}

static int gather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
		  struct sheaf_error *err)
{
	struct who *self = me;
	int rc = -1;

	me = NULL;
	if (!has_left(self))
		rc = self->h->ops.allgather(arg, mine, all, bytes, timeout_ms, err);
	me = self;
	return rc;
}

static int exchange(void *arg, const void *out, const size_t *out_bytes, void *in,
                    const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct who *self = me;
	int rc = -1;

	me = NULL;
	if (!has_left(self))
		rc = self->h->ops.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);
	me = self;
	return rc;
}

/* ---- a rank ---- */

static float item(int rank, int slice, int64_t step, int i)
{
	return (float)((i * 7 + slice * 131 + rank * 17 + step * 1009) % 65521);
}

struct memory {
	float data[SLICES][ITEMS];
	struct sheaf_state *state;
};

static void paint(struct memory *m, int rank, int slice, int64_t step)
{
	for (int i = 0; i < ITEMS; i++)
		m->data[slice][i] = item(rank, slice, step, i);
}

static void state_init(struct memory *m, int rank, int ranks, bool averages)
{
	const struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.5 };
	static const char *const names[SLICES] = { "a", "b", "c" };

	m->state = sheaf_state_new();
	for (int k = 0; k < SLICES; k++) {
		struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2,
			.name = names[k], .shape = { ranks, ITEMS }, .count = { 1, ITEMS },
			.data = m->data[k] };

		s.start[0] = rank;
		(void)sheaf_state_add(m->state, &s, NULL);
		paint(m, rank, k, 1);
	}
	if (averages)
		(void)sheaf_state_ema(m->state, NULL, &ema, NULL);
}

/* Each save has some opaque bytes of each rank, whose number varies. */
static size_t opaque(int rank, int64_t step, uint8_t bytes[300])
{
	size_t n = (size_t)(step * 97 + rank * 31) % 300;

	memset(bytes, (int)(step + 5 * rank), n);
	return n;
}

static int give_opaque(struct sheaf_save *save, int rank, int64_t step)
{
	uint8_t bytes[300];
	size_t n = opaque(rank, step, bytes);

	return sheaf_save_rank_bytes(save, "loader", bytes, n, NULL);
}

static bool opaque_is_right(struct sheaf_checkpoint *latest, int rank, int64_t step)
{
	uint8_t want[300];
	const void *bytes = NULL;
	size_t n = 0, want_n = opaque(rank, step, want);

	return sheaf_checkpoint_rank_bytes(latest, "loader", rank, &bytes, &n, NULL) == 0 &&
	       n == want_n && memcmp(bytes, want, n) == 0;
}

static void note_outcome(struct host *h, int rank, int64_t step, int rc)
{
	if (rc == 0 && !h->acked_cut[step])
		h->acked_cut[step] = (int64_t)simdisk_cut_n(h->disk) - 1;
	h->committed += rc == 0;
	h->outcome[rank][step] = rc;
}

/* A save that was given up ends no training. */
static int outcome_of(struct host *h, int rank, struct sheaf_save *save, int64_t step)
{
	int rc = save ? sheaf_save_result(save, INT_MAX, &h->err[rank]) : 0;

	if (save)
		note_outcome(h, rank, step, rc);
	sheaf_save_free(save);
	return rc == SHEAF_EFAILED ? 0 : rc;
}

/* A training job; returns the first failure. */
static int train(struct host *h, int rank, struct sheaf_run *run, struct memory *m)
{
	struct sheaf_error *err = &h->err[rank];
	struct sheaf_save *before = NULL;
	int rc = 0;

	for (int64_t step = h->first; step <= h->steps && rc == 0; step++) {
		struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = h->flags |
			(h->memory && step % 2 ? SHEAF_SAVE_NO_DISK : 0) };
		struct sheaf_save *save = NULL;

		if (!h->begun_cut[step])
			h->begun_cut[step] = (int64_t)simdisk_cut_n(h->disk) - 1;
		rc = sheaf_save_begin(&save, run, step, m->state, &opts, err);
		h->bad += rc == 0 && give_opaque(save, rank, step) != 0;
		for (int k = 0; rc == 0 && k < SLICES; k++) {
			if (k == 1 && !(h->abandons && step == h->steps))
				rc = sheaf_save_submit(save, err);
			if (h->flags & SHEAF_SAVE_LATER)
				h->bad += sheaf_save_slice_ready(save, k, NULL, NULL) != 0;
			h->bad += sheaf_save_wait_copied(save, k, -1, NULL) != 0;
			paint(m, rank, k, step + 1);
			if (h->restless)        /* it trains */
				let_others((int64_t)(rng_next(&me->random) % 4) * 5);
		}
		if (rc == 0 && h->also)
			h->also(h, rank, run, step, save);
		if (rc == 0 && h->habit == WAITS_NEXT)
			rc = outcome_of(h, rank, before, step - 1);
		else
			sheaf_save_free(before);
		before = save;
		if (rc == 0 && h->habit == WAITS_AT_ONCE)
			rc = outcome_of(h, rank, before, step);
		else if (h->habit == FREES)
			sheaf_save_free(before);
		if (h->habit != WAITS_NEXT)
			before = NULL;
	}
	if (rc == 0 && h->habit == WAITS_NEXT && !h->abandons)
		rc = outcome_of(h, rank, before, h->steps);
	else
		sheaf_save_free(before);
	return rc;
}

static int caller(struct host *h, int rank, struct sheaf_group *group)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE | h->run_flags,
		.timeout_ms = h->timeout_ms ? h->timeout_ms : 600000, .io_threads = 1,
		.keep_last = 3, .grace_s = -1, .agent = h->agents ? "auto" : NULL,
		.commit_group = h->back[rank] };
	struct sheaf_error *err = &h->err[rank];
	struct sheaf_run *run = NULL;
	struct memory m;
	int rc;

	state_init(&m, rank, h->ranks, h->averages);
	for (int k = 0; k < SLICES; k++)
		paint(&m, rank, k, h->first);
	rc = shf_run_open(&run, "run", group, &opts, h->sys[rank], err);
	if (rc == 0)
		rc = train(h, rank, run, &m);
	sheaf_run_close(run);
	sheaf_state_free(m.state);
	return rc;
}

static int sim_main(void *arg, int sim_rank, struct sheaf_group *group)
{
	struct host *h = arg;
	int r = sim_rank % h->ranks, rc = 0;
	struct sheaf_group as_it_was = *group;
	struct who self = { .h = h, .group = &as_it_was, .number = sim_rank,
		.random = h->seed * 64 + (uint64_t)sim_rank + 1 };

	h->ops = group->ops;
	me = &self;
	if (sim_rank >= h->ranks) {             /* a commit thread */
		group->ops.allreduce = reduce;
		group->ops.allgather = gather;
		group->ops.alltoallv = exchange;
		h->back[r] = group;
		while (!h->begun[r] && !h->done[r])
			let_others(5);
		if (h->begun[r])
			(void)h->work[r](h->arg[r]);
		h->over[r] = true;
		while (!h->done[r])             /* the run has a reference until it is closed */
			let_others(5);
	} else {
		while (!h->back[r])
			let_others(1);
		group->ops.allreduce = reduce;
		group->ops.allgather = gather;
		group->ops.alltoallv = exchange;
		rc = caller(h, r, group);
		h->done[r] = true;
	}
	me = NULL;
	return rc;
}

/* Plays the job with new processes. Returns the code of rank 0; -1000 if the simulation failed. */
static int play(struct host *h)
{
	static uint64_t pid = 5000;
	int teams[2 * RANKS], rc[2 * RANKS];
	struct simgroup_opts o = { .seed = h->seed, .ranks = 2 * h->ranks, .teams = teams };
	int sim;

	for (int i = 0; i < 2 * h->ranks; i++)
		teams[i] = i >= h->ranks;
	memset(h->begun, 0, sizeof(h->begun));
	memset(h->over, 0, sizeof(h->over));
	memset(h->done, 0, sizeof(h->done));
	memset(h->back, 0, sizeof(h->back));
	for (int r = 0; r < h->ranks; r++) {
		h->sys[r] = simdisk_process(h->disk, pid++, 0);
		simover(h->sys[r])->host.mono_ns = sim_ns;
	}
	simdisk_set_turn(h->disk, switch_at_disk, NULL);
	sim = simgroup_run(&o, sim_main, h, rc);
	simdisk_set_turn(h->disk, NULL, NULL);
	for (int r = 0; r < h->ranks; r++) {
		h->rc[r] = rc[r];
		if (simdisk_open_n(h->sys[r]) != 0) {
			print_error("rank %d left descriptors open\n", r);
			h->bad++;
		}
		simdisk_kill(h->disk, h->sys[r]);
	}
	return sim < 0 ? -1000 : rc[0];
}

/* One process opens the run and loads the latest step, every item of all ranks. Returns its number,
 * or a code. */
static int64_t loaded(struct simdisk *disk, int ranks)
{
	static uint64_t pid = 900000;
	const struct shf_sys *sys = simdisk_process(disk, pid++, 0);
	struct shf_opts opts = { 0 };
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *latest = NULL;
	struct memory *m = calloc((size_t)ranks, sizeof(*m));
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_run *run = NULL;
	struct sheaf_error err;
	int64_t step = -1;
	int rc;

	for (int r = 0; r < ranks; r++)
		for (int k = 0; k < SLICES; k++) {
			struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2,
				.name = (const char *const[]){ "a", "b", "c" }[k],
				.shape = { ranks, ITEMS }, .count = { 1, ITEMS },
				.data = m[r].data[k] };

			s.start[0] = r;
			(void)sheaf_state_add(state, &s, NULL);
		}
	rc = shf_run_open(&run, "run", NULL, &opts, sys, &err);
	if (rc == 0)
		rc = sheaf_checkpoint_open(&latest, run, SHEAF_LATEST, &err);
	if (rc == 0)
		rc = sheaf_checkpoint_load(latest, state, 0, &report, &err);
	step = rc == 0 ? report.step : rc;
	for (int r = 0; rc == 0 && r < ranks; r++)
		for (int k = 0; k < SLICES; k++)
			for (int i = 0; i < ITEMS; i++)
				if (m[r].data[k][i] != item(r, k, step, i))
					step = -2000;
	for (int r = 0; rc == 0 && r < ranks && step >= 0; r++)
		if (!opaque_is_right(latest, r, step))
			step = -3000;
	sheaf_checkpoint_close(latest);
	sheaf_run_close(run);
	sheaf_state_free(state);
	free(m);
	simdisk_kill(disk, sys);
	return step;
}

static struct host host_of(uint64_t seed, int steps)
{
	return (struct host){ .disk = simdisk_new(seed, SIMDISK_STRICT), .ranks = RANKS,
		.first = 1, .steps = steps, .seed = seed, .flags = SHEAF_SAVE_LAZY };
}

/* ---- claims ---- */

/* Plays, and checks that both ranks went through and that the last step is there. */
static void plays(struct host *h)
{
	if (play(h) != 0)
		print_error("seed %llu: %s\n", (unsigned long long)h->seed, h->err[0].msg);
	CHECK_INT(h->rc[0], 0);
	CHECK_INT(h->rc[1], 0);
	CHECK_INT(h->bad, 0);
	CHECK_INT(loaded(h->disk, RANKS), h->steps - h->abandons);
	for (int step = 1; step <= h->steps; step++)
		for (int i = 0; i < CODES; i++)
			CHECK_INT(h->codes[0][step][i], h->codes[1][step][i]);
	simdisk_free(h->disk);
}

TEST(random_schedules_commit_every_save)
{
	static const uint64_t flags[] = { 0, SHEAF_SAVE_LAZY, SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK,
		SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER };

	for (uint64_t seed = 1; seed <= 120 / T_FEWER; seed++) {
		struct host h = host_of(seed, 6);

		h.habit = (enum habit)(seed % HABITS);
		h.flags = flags[seed / HABITS % 4];
		h.averages = !(h.flags & SHEAF_SAVE_LATER) && seed % 2;
		h.restless = seed % 2;
		h.run_flags = seed % 5 ? 0 : SHEAF_RUN_METRICS;
		plays(&h);
		if (h.habit != FREES)
			CHECK_INT(h.committed, RANKS * h.steps);
	}
}

TEST(a_save_that_is_not_submitted_is_abandoned_at_the_close)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct host h = host_of(seed, 4);

		h.habit = seed % 2 ? WAITS_NEXT : FREES;
		h.abandons = true;
		plays(&h);
	}
}

TEST(without_a_thread_on_one_rank_no_rank_opens_the_run)
{
	for (int r = 0; r < RANKS; r++) {
		struct host h = host_of(1, 1);

		h.threadless = r + 1;
		CHECK_INT(play(&h), SHEAF_EIO);
		CHECK_INT(h.rc[1], SHEAF_EIO);
		CHECK_INT(h.bad, 0);
		CHECK(strstr(h.err[1 - r].msg, "starting the thread that commits") != NULL);
		simdisk_free(h.disk);
	}
}

/* ---- other calls meanwhile ---- */

/* What a program may call while saves are committed. Only rank 0 looks into the directory, so its
 * answers must come to all. */
static void call_others(struct host *h, int rank, struct sheaf_run *run, int64_t step,
                        struct sheaf_save *save)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *latest = NULL;
	int *codes = h->codes[rank][step];

	h->bad += sheaf_run_steps(run, NULL, 0, NULL) < 0;
	h->bad += sheaf_save_note(save, "late", "1", NULL) != SHEAF_EINVAL;
	h->bad += sheaf_save_submit(save, NULL) != SHEAF_EINVAL;
	h->bad += sheaf_save_commit(save, -1, NULL) != SHEAF_EINVAL;
	codes[0] = sheaf_run_mark(run, step - 1, SHEAF_MARK_KEEP, NULL);
	codes[1] = sheaf_run_prune(run, (int)step % 2, NULL, NULL, NULL);
	if (step % 2)
		h->bad += sheaf_save_result(save, INT_MAX, NULL) != 0;
	codes[2] = sheaf_run_rewind(run, h->steps + 100, NULL);
	codes[3] = sheaf_checkpoint_open(&latest, run, SHEAF_LATEST, NULL);
	if (latest)
		codes[4] = sheaf_checkpoint_verify(latest, &report, NULL);
	sheaf_checkpoint_close(latest);
}

TEST(other_calls_go_on_meanwhile)
{
	int in_flight = 0, over = 0;

	for (uint64_t seed = 1; seed <= 60 / T_FEWER; seed++) {
		struct host h = host_of(seed, 6);

		h.habit = (enum habit)(seed % HABITS);
		h.restless = seed % 2;
		h.also = call_others;
		plays(&h);
		for (int step = 1; step <= h.steps; step++) {
			in_flight += h.codes[0][step][2] == SHEAF_EINVAL;
			over += step % 2 && h.codes[0][step][2] != SHEAF_EINVAL;
			CHECK(h.codes[0][step][4] == 0);
		}
	}
	CHECK(in_flight > 0);
	CHECK(over > 0);
}

/* Ranks in different calls: all get EINVAL, and nothing else is harmed. */
static void call_different(struct host *h, int rank, struct sheaf_run *run, int64_t step,
                           struct sheaf_save *save)
{
	struct sheaf_error err;

	(void)save;
	h->codes[rank][step][0] = rank ? sheaf_run_mark(run, 1, SHEAF_MARK_KEEP, &err)
	                               : sheaf_run_prune(run, 1, NULL, NULL, &err);
	h->bad += !strstr(err.msg, "sheaf_run_mark") || !strstr(err.msg, "sheaf_run_prune");
}

TEST(ranks_in_different_calls_hear_of_both)
{
	for (uint64_t seed = 1; seed <= 10; seed++) {
		struct host h = host_of(seed, 4);

		h.also = call_different;
		plays(&h);
		CHECK_INT(h.codes[0][2][0], SHEAF_EINVAL);
	}
}

/* Rank 1 gives up every third save, perhaps too late. */
static void give_up(struct host *h, int rank, struct sheaf_run *run, int64_t step,
                    struct sheaf_save *save)
{
	(void)run;
	if (rank == 1 && step % 3 == 0 && step < h->steps)
		(void)sheaf_save_abort(save, "the loss is not a number", NULL);
}

TEST(a_save_that_one_rank_gives_up_fails_on_all)
{
	int failed = 0;

	for (uint64_t seed = 1; seed <= 40 / T_FEWER; seed++) {
		struct host h = host_of(seed, 7);

		h.habit = (enum habit)(seed % 2);
		h.also = give_up;
		plays(&h);
		for (int step = 1; step <= h.steps; step++) {
			CHECK_INT(h.outcome[0][step], h.outcome[1][step]);
			CHECK(h.outcome[0][step] == 0 ||
			      (step % 3 == 0 && h.outcome[0][step] == SHEAF_EFAILED));
			failed += h.outcome[0][step] != 0;
		}
	}
	CHECK(failed > 0);
}

/* A save each step, and the commit thread of rank 1 is up to two seconds late before each round. */
TEST(a_thousand_saves_with_a_late_thread)
{
	struct host h = host_of(77, 1000 / T_FEWER);

	h.late_ms = 2000;
	h.late_rank = 1;
	h.calm = true;
	simdisk_set_trace(h.disk, false);
	plays(&h);
	CHECK_INT(h.committed, RANKS * h.steps);
}

TEST(steps_in_memory_do_not_wait_for_the_disk)
{
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct host h = host_of(seed, 12);

		simdisk_set_agents(h.disk, UINT64_C(1) << 30);
		h.agents = h.memory = true;
		h.habit = (enum habit)(seed % HABITS);
		plays(&h);
		if (h.habit != FREES)
			CHECK_INT(h.committed, RANKS * h.steps);
	}
}

/* ---- deaths ---- */

/* The newest step whose save was committed as far as any rank knows; 0: none. */
static int64_t acked(const struct host *h)
{
	int64_t newest = 0;

	for (int64_t step = 1; step <= h->steps; step++)
		newest = h->acked_cut[step] ? step : newest;
	return newest;
}

/* A caller or a commit thread of one rank leaves its group at every operation in turn. Nothing
 * hangs, every call returns 0 or ELOST, and what was committed is there. */
TEST(a_death_at_any_operation_loses_nothing)
{
	bool fired = true;
	int plays = 0, lost = 0;

	for (int who = 0; who < 2 * RANKS; who++)
		for (int at = 1 + who % 2; at == 1 + who % 2 || fired; at += 2) {
			struct host h = host_of((uint64_t)at, 4);
			int64_t found;

			h.dies = who;
			h.dies_at = at;
			h.habit = (enum habit)(at / 2 % HABITS);
			h.timeout_ms = 20000;
			CHECK(play(&h) != -1000);
			for (int r = 0; r < RANKS; r++) {
				if (h.rc[r] != 0 && h.rc[r] != SHEAF_ELOST)
					print_error("%d dies at %d: rank %d: %d %s\n", who, at, r,
					            h.rc[r], h.err[r].msg);
				CHECK(h.rc[r] == 0 || h.rc[r] == SHEAF_ELOST);
				lost += h.rc[r] != 0;
			}
			simdisk_advance(h.disk, 3600);
			found = loaded(h.disk, RANKS);
			if (found < acked(&h) && !(found == SHEAF_ENOENT && acked(&h) == 0))
				print_error("%d dies at %d: found %lld, acked %lld\n", who, at,
				            (long long)found, (long long)acked(&h));
			CHECK(found >= acked(&h) || (found == SHEAF_ENOENT && acked(&h) == 0));
			CHECK(found <= h.steps);
			fired = h.left;
			plays++;
			simdisk_free(h.disk);
		}
	CHECK(plays > 100);
	CHECK(lost > 100);
}

/* ---- power cuts ---- */

static const char *judge(const void *story, struct simdisk *disk, int64_t cut, char why[300])
{
	const struct host *h = story;
	int64_t least = 1, most = 1, found;

	for (int64_t step = h->first; step <= h->steps; step++) {
		least = h->acked_cut[step] && h->acked_cut[step] <= cut ? step : least;
		most = h->begun_cut[step] && h->begun_cut[step] <= cut ? step : most;
	}
	why[0] = '\0';
	found = loaded(disk, RANKS);
	if (found < least || found > most)
		snprintf(why, 300, "found %lld, want %lld to %lld", (long long)found,
		         (long long)least, (long long)most);
	return why;
}

static uint64_t promised(const void *story, int64_t cut)
{
	const struct host *h = story;
	uint64_t n = 0;

	for (int64_t step = h->first; step <= h->steps; step++)
		n += (uint64_t)(h->acked_cut[step] && h->acked_cut[step] <= cut) +
		     (uint64_t)(h->begun_cut[step] && h->begun_cut[step] <= cut);
	return n;
}

TEST(a_power_cut_at_any_call_keeps_what_was_committed)
{
	for (uint64_t seed = 1; seed <= 6; seed++) {
		struct host first = host_of(seed, 1), h = host_of(seed, 4);
		struct everycut_hunt hunt = { .disk = first.disk, .stride = 7, .first = seed,
			.all_max = 2, .small_max = 1, .seeded = 2, .promised = promised,
			.judge = judge, .story = &h };
		char why[400];
		bool ok;

		simdisk_free(h.disk);
		h.disk = first.disk;
		h.first = 2;
		h.habit = (enum habit)(seed % 2);
		CHECK_INT(play(&first), 0);
		simdisk_settle(h.disk);
		CHECK_INT(play(&h), 0);
		ok = everycut_hunt(&hunt, why);
		if (!ok)
			print_error("seed %llu: %s\n", (unsigned long long)seed, why);
		CHECK(ok);
		simdisk_free(h.disk);
	}
}
