/* SPDX-License-Identifier: Apache-2.0 */
/* The commit thread. Each rank has one. These threads communicate over the commit group, in rounds.
 *
 * A round is one all-reduce. In it each rank says for each queue how many saves it has finished or
 * could go on with, and whether it has anything left to wait for. If all ranks can go on with the
 * first save of a queue, they take a turn (turns.h): one call of shf_save_commit that does not
 * wait. It is made again when all ranks have written and synced, and when rank 0 has published.
 *
 * When a rank enters a round:
 *
 * R1. At once if it can go on with a save, or could not at the last round and now can.
 * R2. At once if nothing here must be waited for. Then it waits in the all-reduce for the others,
 *     and sleeps there.
 * R3. Else after a nap, if a save to disk is under way: another rank may wait in the all-reduce, to
 *     commit a step in memory. A nap is 1 ms after a turn and grows to NAP_MS. Without a save to
 *     disk under way this rank sleeps until it can go on: the others can wait for nothing else.
 * R4. With both queues empty it sleeps until a save is submitted.
 *
 * So the threads poll only while a save is being written. A rank whose caller is late does not
 * delay the training of the others: only their commit threads wait. */
#include "save_submit.h"
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include "err.h"
#include "run_env.h"
#include "run_io.h"
#include "save_blocked.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_gates.h"
#include "save_pieces.h"
#include "save_status.h"
#include "thread.h"
#include "turns.h"

#define NAP_MS 64               /* longest time between two rounds while a save is written */
#define LOOK_MS 8               /* longest time between two looks at what is waited for */

enum { TO_MEMORY, TO_DISK, QUEUES };
/* The state of a rank, as it is sent to the others in a round. */
struct stand {
	uint64_t ready[QUEUES];         /* saves that are over, plus one if this rank can go on with
	                                 * the first of the queue */
	uint64_t given[QUEUES];         /* saves that were ever submitted */
	uint64_t written;               /* the first save to disk has been begun, and this rank has
	                                 * nothing of it to wait for */
	uint64_t stopping;              /* the caller is closing the run */
};
#define STAND_WORDS (sizeof(struct stand) / sizeof(uint64_t))

struct shf_committer {
	struct sheaf_run *run;          /* borrowed */
	pthread_t thread;
	bool made;                      /* there is a thread to join */
	/* guarded by turns.lock */
	struct queue {
		struct sheaf_save *first, *last;        /* submitted and not over */
		uint64_t given;                         /* saves that were ever submitted */
	} queues[QUEUES];
	bool stopping;
	struct sheaf_save *left;        /* saves that their callers have freed. Only the caller's
	                                 * thread uses this list */
	/* used only by the thread */
	uint64_t over[QUEUES];          /* saves that are over; equal on all ranks */
	struct stand sent;              /* what this rank sent in the last round */
	int nap_ms;
	int64_t nap_from;
};

static int queue_of(const struct sheaf_save *save)
{
	return save->id.flags & SHEAF_SAVE_NO_DISK ? TO_MEMORY : TO_DISK;
}

/* ---- where this rank is ---- */

/* Whether this rank can go on with a save for which no turn was taken yet: all is copied here. With
 * SHEAF_SAVE_CHECK, all gates must have compared, too. A save that has failed can always go on. */
static bool is_copied_here(struct sheaf_save *save)
{
	struct shf_save_copier *lz = save->copy.lazy;

	if (!shf_save_is_async(save) || shf_save_failure(save, NULL) < 0)
		return true;
	shf_save_copier_tick(save);
	if (save->id.flags & SHEAF_SAVE_CHECK)
		return atomic_load(&lz->unasked) == 0 && atomic_load(&lz->open) == 0;
	if (!shf_save_copier_has_thread(save))
		(void)shf_save_gates_finish(save, LOOK_MS);
	return atomic_load_explicit(&lz->open, memory_order_acquire) == 0;
}

/* Whether nothing of the save is left to wait for on this rank: no write, no fsync, and on rank 0
 * no publication. */
static bool is_written_here(struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;

	if (shf_io_drain(run, &save->disk.io, 0) == SHEAF_EAGAIN ||
	    shf_io_drain(run, &save->disk.syncs.io, 0) == SHEAF_EAGAIN)
		return false;
	return run->team.rank || save->at.disk < SHF_DISK_PUBLISHING ||
	       !shf_save_publish_runs(save);
}

/* Fills *s with where this rank is. Returns whether this rank itself has something to wait for. If
 * the caller's thread has the run, this rank stays where it was: the others are in the same call of
 * their callers. */
static bool look(struct shf_committer *c, struct stand *s)
{
	struct sheaf_save *first[QUEUES];
	bool waits = false;

	pthread_mutex_lock(&c->run->turns.lock);
	for (int q = 0; q < QUEUES; q++) {
		first[q] = c->queues[q].first;
		s->given[q] = c->queues[q].given;
		s->ready[q] = c->over[q];
	}
	s->stopping = c->stopping;
	s->written = 0;
	pthread_mutex_unlock(&c->run->turns.lock);
	if (!shf_turns_look(c->run))
		return true;
	for (int q = 0; q < QUEUES; q++) {
		bool ready = first[q] && (first[q]->behind.begun || is_copied_here(first[q]));

		s->ready[q] += ready;
		waits |= first[q] && !ready;
	}
	if (first[TO_DISK] && first[TO_DISK]->behind.begun) {
		s->written = is_written_here(first[TO_DISK]);
		waits |= !s->written;
	}
	shf_turns_looked(c->run);
	return waits;
}

/* Whether this rank enters a round now (R1 to R4). */
static bool enters(struct shf_committer *c, const struct stand *s, bool waits)
{
	const struct sheaf_save *disk = c->queues[TO_DISK].first;
	bool ready = s->stopping || s->ready[TO_MEMORY] > c->over[TO_MEMORY] ||
	             (s->ready[TO_DISK] > c->over[TO_DISK] && (!disk->behind.begun || s->written));
	bool rested = shf_now(c->run) - c->nap_from >= shf_ms_ns(c->nap_ms);

	if (ready && (!waits || memcmp(s, &c->sent, sizeof(*s))))
		return true;
	return rested && (s->stopping || (disk && disk->behind.begun));
}

/* Waits until this rank enters a round. False: the thread must end. */
static bool wait_to_enter(struct shf_committer *c, struct stand *s)
{
	struct sheaf_run *run = c->run;
	bool quit = false, enter = false;
	int ms = 1;

	c->nap_from = shf_now(run);
	while (!quit && !enter) {
		bool waits = look(c, s);

		pthread_mutex_lock(&run->turns.lock);
		enter = enters(c, s, waits);
		/* Nothing wakes this thread when a request to the disk or a copy ends, so it
		 * looks again. */
		if (!enter && !run->turns.quit && s->stopping == c->stopping &&
		    s->given[TO_MEMORY] == c->queues[TO_MEMORY].given &&
		    s->given[TO_DISK] == c->queues[TO_DISK].given)
			shf_turns_wait(run, c->queues[TO_MEMORY].first || c->queues[TO_DISK].first
			                    || c->stopping ? ms : -1);
		quit = run->turns.quit;
		pthread_mutex_unlock(&run->turns.lock);
		ms = ms < LOOK_MS ? 2 * ms : LOOK_MS;
	}
	return !quit;
}

/* ---- turns ---- */

/* Notes the outcome of the first save of a queue, which is over, and takes it from the queue. */
static void is_over(struct shf_committer *c, int q, int rc, const struct sheaf_error *err)
{
	struct sheaf_save *save = c->queues[q].first;

	c->over[q]++;
	pthread_mutex_lock(&c->run->turns.lock);
	c->queues[q].first = save->behind.next;
	if (!save->behind.next)
		c->queues[q].last = NULL;
	save->behind.rc = rc;
	if (rc < 0)
		save->behind.err = *err;
	save->behind.over = true;
	pthread_cond_broadcast(&c->run->turns.moved);
	pthread_mutex_unlock(&c->run->turns.lock);
}

/* The commit group is lost, or the ranks disagree about the save, so nothing more can be committed.
 * All saves that are left get this error. */
static void lose_submitted(struct shf_committer *c, const struct sheaf_error *err)
{
	struct sheaf_error own = *err;

	own.code = SHEAF_ELOST;
	pthread_mutex_lock(&c->run->turns.lock);
	c->run->turns.lost = true;
	c->run->turns.why = own;
	pthread_mutex_unlock(&c->run->turns.lock);
	for (int q = 0; q < QUEUES; q++)
		while (c->queues[q].first)
			is_over(c, q, SHEAF_ELOST, &own);
}

/* Takes a turn for the first save of a queue: does the part of its commit that needs no waiting.
 * False: the thread must end. */
static bool take_turn_for(struct shf_committer *c, int q)
{
	struct sheaf_save *save = c->queues[q].first;
	struct sheaf_error err = { .code = 0 };
	bool over;
	int rc;

	if (!shf_turns_begin(c->run))
		return false;
	rc = shf_save_commit(save, 0, &err);
	over = save->at.end == SHF_OVER;
	shf_turns_end(c->run);
	save->behind.begun = true;
	c->nap_ms = 1;
	if (rc == SHEAF_ELOST || (!over && rc != SHEAF_EAGAIN)) {
		lose_submitted(c, &err);
		return false;
	}
	if (over && rc == 0 && q == TO_DISK)
		shf_save_announce(save);
	if (over)
		is_over(c, q, rc, &err);
	return true;
}

/* Meets the other ranks, and takes the turns for which all are ready. False: the thread ends. */
static bool commit_round(struct shf_committer *c)
{
	struct shf_turns *t = &c->run->turns;
	union {
		struct stand s;
		uint64_t words[STAND_WORDS];
	} u;
	struct sheaf_error err = { .code = 0 };

	if (!wait_to_enter(c, &u.s))
		return false;
	c->sent = u.s;
	/* The complements, so that the maximum gives the smallest of all ranks. */
	for (size_t i = 0; i < STAND_WORDS; i++)
		u.words[i] = ~u.words[i];
	if (shf_allreduce(&t->back, u.words, STAND_WORDS, SHEAF_MAX, &err) < 0) {
		lose_submitted(c, &err);
		return false;
	}
	for (size_t i = 0; i < STAND_WORDS; i++)
		u.words[i] = ~u.words[i];
	c->nap_ms = c->nap_ms < NAP_MS ? 2 * c->nap_ms : NAP_MS;
	if (u.s.stopping && u.s.given[TO_MEMORY] == c->over[TO_MEMORY] &&
	    u.s.given[TO_DISK] == c->over[TO_DISK])
		return false;
	if (u.s.ready[TO_MEMORY] > c->over[TO_MEMORY] && !take_turn_for(c, TO_MEMORY))
		return false;
	if (u.s.ready[TO_DISK] <= c->over[TO_DISK] ||
	    (c->queues[TO_DISK].first->behind.begun && !u.s.written))
		return true;
	return take_turn_for(c, TO_DISK);
}

static void *commit_behind(void *arg)
{
	struct shf_committer *c = arg;

	while (commit_round(c))
		;
	return NULL;
}

/* ---- the caller's thread ---- */

/* Whether the outcome of a submitted save is known. In a forked child there is no thread that could
 * still use the save, and its lock may be held for ever. */
static bool is_settled(struct sheaf_save *save)
{
	bool over;

	if (!shf_run_is_ours(save->run))
		return true;
	pthread_mutex_lock(&save->run->turns.lock);
	over = save->behind.over;
	pthread_mutex_unlock(&save->run->turns.lock);
	return over;
}

/* Ends the thread. quit: without asking the other ranks. Saves that are not over are lost. */
static void end_thread_of(struct shf_committer *c, bool quit)
{
	struct sheaf_error err;

	pthread_mutex_lock(&c->run->turns.lock);
	c->stopping = true;
	c->run->turns.quit = c->run->turns.quit || quit;
	pthread_cond_broadcast(&c->run->turns.moved);
	pthread_mutex_unlock(&c->run->turns.lock);
	if (c->made)
		pthread_join(c->thread, NULL);
	c->made = false;
	shf_fail(&err, SHEAF_ELOST, "the run was closed before this save was committed, and not "
	         "by all ranks in time; all ranks must call sheaf_run_close");
	for (int q = 0; q < QUEUES; q++)
		while (c->queues[q].first)
			is_over(c, q, SHEAF_ELOST, &err);
	c->run->turns.on = false;
}

int shf_committer_open(struct sheaf_run *run, struct sheaf_error *err)
{
	struct shf_committer *c;
	int rc = 0;

	if (!run->opts.commit_group || run->opts.flags & SHEAF_RUN_READONLY)
		return 0;
	c = run->saves.committer = shf_zalloc(1, sizeof(*c));
	if (!c)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for a run");
	/* The thread is made only once all ranks have what it needs. */
	rc = shf_agree(&run->team, rc, err);
	if (rc < 0)
		return rc;
	c->run = run;
	c->nap_ms = 1;
	shf_turns_open(run, run->opts.commit_group);
	rc = shf_thread_start(&c->thread, commit_behind, c);
	c->made = rc == 0;
	rc = rc ? shf_fail_sys(err, rc, "starting the thread that commits") : 0;
	rc = shf_agree(&run->team, rc, err);
	if (rc < 0)
		end_thread_of(c, true);
	return rc;
}

void shf_committer_reap(struct sheaf_run *run)
{
	struct sheaf_save **at = run->saves.committer ? &run->saves.committer->left : NULL;

	while (at && *at) {
		struct sheaf_save *save = *at;

		if (!is_settled(save)) {
			at = &save->behind.next_left;
			continue;
		}
		*at = save->behind.next_left;
		shf_save_free(save);
	}
}

void shf_committer_close(struct sheaf_run *run)
{
	struct shf_call m = { .kind = SHF_CALL_RUN_CLOSE, .handle = run->life.made };
	struct shf_committer *c = run->saves.committer;

	if (!run->turns.on)
		return;
	/* All ranks meet here first, so that none of them submits another save. */
	end_thread_of(c, shf_call_enter(&run->turns.front, &m, 0, NULL) < 0);
	shf_committer_reap(run);
}

/* Checks that the save may be submitted now. */
static int may_submit(const struct sheaf_save *save, struct sheaf_error *err)
{
	const struct sheaf_run *run = save->run;

	if (!run->turns.on)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": %s", save->id.step,
		                run->life.closed ? "the run is closed"
		                : "the run has no thread that commits; open it with "
		                  "opts.commit_group, or call sheaf_save_commit");
	if (save->behind.submitted || save->at.end == SHF_OVER)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": the save %s", save->id.step,
		                !save->behind.submitted ? "has ended; free it"
		                : "was submitted before; call sheaf_save_result");
	for (const struct sheaf_save *s = run->saves.first; s != save; s = s->next)
		if (!s->behind.submitted && queue_of(s) == queue_of(save))
			return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": step %" PRId64 " was "
			                "begun before it and is not submitted; submit that one "
			                "first",
			                save->id.step, s->id.step);
	return 0;
}

int shf_save_submit(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_committer *c = save->run->saves.committer;
	struct shf_turns *t = &save->run->turns;
	int rc = may_submit(save, err);
	struct queue *q;

	if (rc < 0)
		return rc;
	q = &c->queues[queue_of(save)];
	pthread_mutex_lock(&t->lock);
	if (t->lost) {
		rc = shf_fail(err, SHEAF_ELOST, "opts.commit_group is lost: %s", t->why.msg);
	} else {
		save->behind.submitted = true;
		if (q->last)
			q->last->behind.next = save;
		else
			q->first = save;
		q->last = save;
		q->given++;
		pthread_cond_broadcast(&t->moved);
	}
	pthread_mutex_unlock(&t->lock);
	return rc;
}

/* Waits until the save is over, or the time is up. The caller holds the lock, which is released
 * while opts.progress is called. */
static void wait_until_over(struct sheaf_save *save, int timeout_ms)
{
	int64_t until = shf_now(save->run) + shf_ms_ns(timeout_ms);
	struct shf_turns *t = &save->run->turns;
	int most = save->run->opts.progress ? SHF_PROGRESS_MS : INT_MAX;

	while (!save->behind.over) {
		int ms = timeout_ms < 0 ? most : shf_ms_left(save->run, until);

		if (ms == 0)
			return;
		shf_turns_wait(save->run, ms < most ? ms : most);
		if (most == INT_MAX)
			continue;
		pthread_mutex_unlock(&t->lock);
		shf_save_progress_now(save);
		pthread_mutex_lock(&t->lock);
	}
}

int shf_save_result(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err)
{
	struct shf_turns *t = &save->run->turns;
	int rc;

	pthread_mutex_lock(&t->lock);
	if (save->behind.submitted) {
		wait_until_over(save, timeout_ms);
		rc = save->behind.over ? save->behind.rc
		     : shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": it is not committed yet; "
		                "call again",
		                save->id.step);
		if (save->behind.over && rc < 0)
			*err = save->behind.err;
	} else {
		rc = shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": the save was not submitted; "
		              "call sheaf_save_submit first", save->id.step);
	}
	pthread_mutex_unlock(&t->lock);
	return rc;
}

void shf_save_leave(struct sheaf_save *save)
{
	struct shf_committer *c;

	if (!save->behind.submitted || is_settled(save)) {
		shf_save_free(save);
		return;
	}
	c = save->run->saves.committer;
	save->behind.next_left = c->left;
	c->left = save;
}

/* A memory-only save has the only copy of its step in its image, so another begin cannot take that
 * image before it is over. */
int shf_save_begin_behind(struct sheaf_save **out, struct sheaf_run *run, int64_t step,
                          struct sheaf_state *state, const struct sheaf_save_opts *opts,
                          struct sheaf_error *err)
{
	int64_t from = shf_now(run);
	struct sheaf_save *of;
	int rc;

	for (;;) {
		rc = shf_turns_take(run, SHF_CALL_BEGIN, err);
		if (rc < 0)
			return rc;
		shf_committer_reap(run);
		if (run->turns.on)
			shf_save_blocked_add(run, NULL, SHF_IN_BEGIN, from);
		rc = shf_save_begin_unless(out, run, step, state, opts, &of, err);
		shf_turns_give(run);
		if (rc != SHEAF_EAGAIN || !of)
			return rc;
		from = shf_now(run);
		(void)shf_save_result(of, -1, err);
	}
}
