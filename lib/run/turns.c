/* SPDX-License-Identifier: Apache-2.0 */
/* The order of the caller's calls and the commit thread's turns (turns.h). */
#include "turns.h"
#include <time.h>
#include "err.h"
#include "run.h"
#include "run_env.h"
#include "thread.h"

void shf_turns_init(struct sheaf_run *run)
{
	pthread_mutex_init(&run->turns.lock, NULL);
	pthread_mutex_init(&run->turns.log_lock, NULL);
	pthread_mutex_init(&run->turns.announce_lock, NULL);
	(void)shf_cond_init(&run->turns.moved);
}

void shf_turns_release(struct sheaf_run *run, bool ours)
{
	struct sheaf_group *group = run->turns.back.group;

	if (ours) {
		pthread_cond_destroy(&run->turns.moved);
		pthread_mutex_destroy(&run->turns.log_lock);
		pthread_mutex_destroy(&run->turns.announce_lock);
		pthread_mutex_destroy(&run->turns.lock);
	} else if (group) {
		group->ops.free = NULL; /* the group is the parent's */
	}
	if (group)
		shf_group_put(group);
	run->turns.back.group = NULL;
}

void shf_turns_open(struct sheaf_run *run, struct sheaf_group *group)
{
	struct shf_turns *t = &run->turns;

	shf_group_get(group);
	t->front = t->back = run->team;
	t->back.group = group;
	t->on = true;
}

void shf_turns_wake(struct sheaf_run *run)
{
	pthread_mutex_lock(&run->turns.lock);
	pthread_cond_broadcast(&run->turns.moved);
	pthread_mutex_unlock(&run->turns.lock);
}

void shf_turns_wait(struct sheaf_run *run, int ms)
{
	struct timespec until;

	if (ms < 0) {
		pthread_cond_wait(&run->turns.moved, &run->turns.lock);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += ms % 1000 * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000L;
	}
	pthread_cond_timedwait(&run->turns.moved, &run->turns.lock, &until);
}

/* ---- the caller's thread ---- */

/* Stops new turns, and returns how many have begun here. */
static uint64_t stop_turns(struct shf_turns *t, uint64_t *lost)
{
	uint64_t begun;

	pthread_mutex_lock(&t->lock);
	while (t->looking)
		pthread_cond_wait(&t->moved, &t->lock);
	t->taken++;
	begun = t->may = t->begun;
	*lost = t->lost;
	pthread_mutex_unlock(&t->lock);
	return begun;
}

/* Lets the commit thread begin turns until `n` have begun, and waits until these have ended. ELOST:
 * they never will. */
static int let_turns_end(struct sheaf_run *run, uint64_t n, struct sheaf_error *err)
{
	struct shf_turns *t = &run->turns;
	int rc = 0;

	pthread_mutex_lock(&t->lock);
	t->may = n;
	pthread_cond_broadcast(&t->moved);
	while (t->ended < n && !t->lost)
		shf_turns_wait(run, -1);
	if (t->lost)
		rc = shf_fail(err, SHEAF_ELOST, "opts.commit_group is lost: %s", t->why.msg);
	pthread_mutex_unlock(&t->lock);
	return rc;
}

int shf_turns_take(struct sheaf_run *run, enum shf_call_kind kind, struct sheaf_error *err)
{
	struct shf_turns *t = &run->turns;
	struct shf_call m = { .kind = kind, .handle = run->life.made };
	enum { BEGUN, LOST, WORDS };
	uint64_t x[WORDS];
	int rc;

	if (!t->on)
		return 0;
	rc = shf_call_enter(&t->front, &m, 0, err);     /* N2 */
	if (rc < 0)
		return rc;
	x[BEGUN] = stop_turns(t, &x[LOST]);
	rc = shf_allreduce(&t->front, x, WORDS, SHEAF_MAX, err);
	if (rc == 0)
		rc = let_turns_end(run, x[BEGUN], err); /* N3 */
	if (rc == 0 && x[LOST])
		rc = shf_fail(err, SHEAF_ELOST, "opts.commit_group is lost on another rank");
	if (rc < 0)
		shf_turns_give(run);
	return rc;
}

void shf_turns_hold(struct sheaf_run *run)
{
	struct shf_turns *t = &run->turns;

	if (!t->on || !shf_run_is_ours(run))
		return;
	pthread_mutex_lock(&t->lock);
	while (t->begun != t->ended || t->looking)
		shf_turns_wait(run, -1);
	if (t->taken++ == 0)
		t->may = t->begun;
	pthread_mutex_unlock(&t->lock);
}

void shf_turns_give(struct sheaf_run *run)
{
	struct shf_turns *t = &run->turns;

	if (!t->on || !shf_run_is_ours(run))
		return;
	pthread_mutex_lock(&t->lock);
	t->taken--;
	pthread_cond_broadcast(&t->moved);
	pthread_mutex_unlock(&t->lock);
}

/* ---- the commit thread ---- */

bool shf_turns_begin(struct sheaf_run *run)
{
	struct shf_turns *t = &run->turns;
	bool begins;

	pthread_mutex_lock(&t->lock);
	while (t->taken && t->begun >= t->may && !t->quit)
		shf_turns_wait(run, -1);
	begins = !t->quit;
	t->begun += begins;
	pthread_mutex_unlock(&t->lock);
	if (begins)
		run->team.group = t->back.group;
	return begins;
}

void shf_turns_end(struct sheaf_run *run)
{
	struct shf_turns *t = &run->turns;

	run->team.group = t->front.group;
	pthread_mutex_lock(&t->lock);
	t->ended++;
	pthread_cond_broadcast(&t->moved);
	pthread_mutex_unlock(&t->lock);
}

bool shf_turns_is_turn(const struct sheaf_run *run)
{
	return run->turns.on && run->team.group == run->turns.back.group;
}

bool shf_turns_look(struct sheaf_run *run)
{
	struct shf_turns *t = &run->turns;
	bool may;

	pthread_mutex_lock(&t->lock);
	may = t->looking = !t->taken;
	pthread_mutex_unlock(&t->lock);
	return may;
}

void shf_turns_looked(struct sheaf_run *run)
{
	struct shf_turns *t = &run->turns;

	pthread_mutex_lock(&t->lock);
	t->looking = false;
	pthread_cond_broadcast(&t->moved);
	pthread_mutex_unlock(&t->lock);
}
