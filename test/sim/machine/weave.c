/* SPDX-License-Identifier: Apache-2.0 */
#include "weave.h"
#include "rng.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST 64
enum state { NONE, READY, ON_LOCK, ON_TURN, ON_TURN_TIMED, ON_END };

int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __real_pthread_cond_wait(pthread_cond_t *turn, pthread_mutex_t *lock);
int __real_pthread_cond_timedwait(pthread_cond_t *turn, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __real_pthread_cond_broadcast(pthread_cond_t *turn);
int __real_pthread_cond_signal(pthread_cond_t *turn);

static struct {
	pthread_mutex_t lock;
	pthread_cond_t turn;
	int running;                    /* the thread that runs; guarded, as all below, by lock */
	uint64_t seed, x;
	struct weave_stat stat;
	struct member {
		enum state state;
		const void *on;
		bool late;              /* its wait timed out */
		uint64_t weight;        /* how often it is drawn, relative to others */
		pthread_t thread;
		void (*fn)(void *arg);
		void *arg;
	} m[MOST];
} w = { .lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER };
static _Thread_local int self = -1;

static uint64_t draw(uint64_t n)
{
	return rng_next(&w.x) % n;
}

/* Some threads are slower than others, and some hardly run. */
static uint64_t weight(void)
{
	return UINT64_C(1) << 3 * draw(4);
}

/* Chooses a runnable thread. If there is none, and sometimes otherwise, it may be one whose wait
 * times out. */
static int choose(void)
{
	uint64_t at[MOST], all = 0, drawn;
	bool hasty = draw(16) == 0;
	int i = 0;

	for (int pass = 0; pass < 2 && all == 0; pass++)
		for (i = 0; i < MOST; i++) {
			if (w.m[i].state == READY ||
			    (w.m[i].state == ON_TURN_TIMED && (pass || hasty)))
				all += w.m[i].weight;
			at[i] = all;
		}
	if (all == 0) {
		fprintf(stderr, "weave: seed %llu: all wait for each other\n",
		        (unsigned long long)w.seed);
		abort();
	}
	drawn = draw(all);
	for (i = 0; at[i] <= drawn; i++)
		;
	return i;
}

/* This thread waits, or ends, and another one runs. The caller holds the lock, also afterwards. */
static void pass_on(enum state state, const void *on)
{
	struct member *me = &w.m[self];
	int next;

	me->state = state;
	me->on = on;
	me->late = false;
	next = choose();
	w.stat.switches += next != self;
	w.stat.blocked += state != READY && state != NONE;
	if (w.m[next].state == ON_TURN_TIMED) {
		w.m[next].late = true;
		w.stat.late++;
	}
	w.m[next].state = READY;
	w.running = next;
	if (next == self)
		return;
	__real_pthread_cond_broadcast(&w.turn);
	while (state != NONE && w.running != self)
		__real_pthread_cond_wait(&w.turn, &w.lock);
}

static void wait_so(enum state state, const void *on)
{
	__real_pthread_mutex_lock(&w.lock);
	pass_on(state, on);
	__real_pthread_mutex_unlock(&w.lock);
}

static void wake(const void *on)
{
	__real_pthread_mutex_lock(&w.lock);
	for (int i = 0; i < MOST; i++)
		if (w.m[i].on == on && w.m[i].state > READY)
			w.m[i].state = READY;
	__real_pthread_mutex_unlock(&w.lock);
}

void weave_point(void)
{
	if (self < 0)
		return;
	__real_pthread_mutex_lock(&w.lock);
	w.stat.points++;
	if (draw(2))
		pass_on(READY, NULL);
	__real_pthread_mutex_unlock(&w.lock);
}

uint64_t weave_draw(uint64_t n)
{
	uint64_t i;

	__real_pthread_mutex_lock(&w.lock);
	i = draw(n);
	__real_pthread_mutex_unlock(&w.lock);
	return i;
}

/* ---- replacements of locks and waits ---- */

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *turn, pthread_mutex_t *lock);
int __wrap_pthread_cond_timedwait(pthread_cond_t *turn, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __wrap_pthread_cond_broadcast(pthread_cond_t *turn);
int __wrap_pthread_cond_signal(pthread_cond_t *turn);

static void lock_it(pthread_mutex_t *lock)
{
	while (pthread_mutex_trylock(lock) == EBUSY)
		wait_so(ON_LOCK, lock);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
	if (self < 0)
		return __real_pthread_mutex_lock(lock);
	weave_point();
	lock_it(lock);
	return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
	int rc;

	if (self >= 0 && pthread_mutex_trylock(lock) == 0) {
		fprintf(stderr, "weave: seed %llu: a lock is let go that nobody has\n",
		        (unsigned long long)w.seed);
		abort();
	}
	rc = __real_pthread_mutex_unlock(lock);
	if (self < 0)
		return rc;
	wake(lock);
	weave_point();
	return rc;
}

static int wait_turn(enum state state, pthread_cond_t *turn, pthread_mutex_t *lock)
{
	bool late;

	__real_pthread_mutex_unlock(lock);
	wake(lock);
	wait_so(state, turn);
	late = w.m[self].late;
	lock_it(lock);
	return late ? ETIMEDOUT : 0;
}

int __wrap_pthread_cond_wait(pthread_cond_t *turn, pthread_mutex_t *lock)
{
	return self < 0 ? __real_pthread_cond_wait(turn, lock) : wait_turn(ON_TURN, turn, lock);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *turn, pthread_mutex_t *lock,
                                  const struct timespec *until)
{
	return self < 0 ? __real_pthread_cond_timedwait(turn, lock, until)
	                : wait_turn(ON_TURN_TIMED, turn, lock);
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *turn)
{
	if (self < 0)
		return __real_pthread_cond_broadcast(turn);
	wake(turn);
	return 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *turn)
{
	return self < 0 ? __real_pthread_cond_signal(turn) : __wrap_pthread_cond_broadcast(turn);
}

/* ---- threads ---- */

static void *run(void *arg)
{
	struct member *me = arg;

	self = (int)(me - w.m);
	__real_pthread_mutex_lock(&w.lock);
	while (w.running != self)
		__real_pthread_cond_wait(&w.turn, &w.lock);
	__real_pthread_mutex_unlock(&w.lock);
	me->fn(me->arg);
	wake(me);
	wait_so(NONE, NULL);
	return NULL;
}

int weave_start(void (*fn)(void *arg), void *arg)
{
	int i = 1;

	__real_pthread_mutex_lock(&w.lock);
	while (i < MOST && w.m[i].fn)
		i++;
	if (i == MOST)
		abort();
	w.m[i] = (struct member){ .state = READY, .weight = weight(), .fn = fn, .arg = arg };
	if (pthread_create(&w.m[i].thread, NULL, run, &w.m[i]) != 0)
		abort();
	__real_pthread_mutex_unlock(&w.lock);
	weave_point();
	return i;
}

void weave_join(int thread)
{
	struct member *m = &w.m[thread];

	__real_pthread_mutex_lock(&w.lock);
	while (m->state != NONE)
		pass_on(ON_END, m);
	__real_pthread_mutex_unlock(&w.lock);
	pthread_join(m->thread, NULL);
	__real_pthread_mutex_lock(&w.lock);
	m->fn = NULL;
	__real_pthread_mutex_unlock(&w.lock);
}

void weave_begin(uint64_t seed)
{
	w.seed = seed;
	w.x = seed;
	w.stat = (struct weave_stat){ 0 };
	w.m[0] = (struct member){ .state = READY, .weight = weight() };
	w.running = self = 0;
}

void weave_end(struct weave_stat *add)
{
	for (int i = 1; i < MOST; i++)
		if (w.m[i].fn)
			abort();
	self = w.running = -1;
	w.m[0].state = NONE;
	add->points += w.stat.points;
	add->switches += w.stat.switches;
	add->blocked += w.stat.blocked;
	add->late += w.stat.late;
}

/* ---- tasks ---- */

struct shf_task {
	bool (*step)(void *work);
	void *work;
	bool stop, over, more;          /* only one thread runs at a time */
	int thread;
};

static void steps(void *arg)
{
	struct shf_task *task = arg;

	while (!task->stop) {
		task->more = false;
		while (!task->stop && task->step(task->work))
			weave_point();
		task->over = !task->more;
		while (!task->stop && !task->more)
			wait_so(ON_TURN, task);
	}
}

static int task_new(void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
                    const char *cpus)
{
	(void)arg;
	(void)cpus;
	*task = calloc(1, sizeof(**task));
	if (!*task)
		return -ENOMEM;
	(*task)->step = step;
	(*task)->work = work;
	(*task)->thread = weave_start(steps, *task);
	return 0;
}

static bool task_over(void *arg, struct shf_task *task)
{
	(void)arg;
	return task->over;
}

static void task_again(void *arg, struct shf_task *task)
{
	(void)arg;
	task->more = true;
	task->over = false;
	wake(task);
}

static void task_free(void *arg, struct shf_task *task)
{
	(void)arg;
	if (!task)
		return;
	task->stop = true;
	wake(task);
	weave_join(task->thread);
	free(task);
}

void weave_tasks(struct sys_tables *ops)
{
	ops->task.task_new = task_new;
	ops->task.task_over = task_over;
	ops->task.task_again = task_again;
	ops->task.task_free = task_free;
}
