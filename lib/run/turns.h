/* SPDX-License-Identifier: Apache-2.0 */
/* Turns: which thread of this process may change an open run, if the run has a commit group
 * (opts.commit_group). The caller's thread has the run during its calls, and the commit thread
 * (save_submit.h) has it during its turns, the parts of commits in which ranks act together.
 *
 * On all ranks the calls of the caller and the turns of the commit thread come in one order. So a
 * run changes in the same order everywhere, as if one thread made all of them:
 *
 * N1. The ranks agree over the commit group which save the next turn is about, before any of
 *     them begins it. So if a turn has begun on one rank, the others begin it without any further
 *     call of their callers.
 * N2. A [collective] call first waits, over the caller's group, until it was entered on all ranks
 *     (shf_turns_take). Only then it stops new turns, so a rank that comes late stops no commit.
 * N3. Then the ranks agree on the largest number of turns begun so far. Each waits until its own
 *     thread has ended that many, which it can by N1, and has the run until shf_turns_give.
 * N4. A turn never waits for a disk: it only does what can be done at once.
 *
 * During a turn run->team is over the commit group, so the functions that a commit calls need not
 * know on which thread they run. The two threads never have the run at the same time, so neither
 * group is used by two threads. */
#ifndef SHF_TURNS_H
#define SHF_TURNS_H
#include <pthread.h>
#include <stdbool.h>
#include "group.h"

struct sheaf_run;
struct shf_turns {
	bool on;                        /* there is a commit thread; equal on all ranks. Set before
	                                 * that thread starts, and cleared after it has ended */
	struct shf_team front, back;    /* over the run's group, and over the commit group, of
	                                 * which `back` holds a reference */
	pthread_mutex_t announce_lock;  /* held while a commit is announced, if `on`: the commit
	                                 * thread and the caller may each have committed a save.
	                                 * Taken before log_lock */
	pthread_mutex_t log_lock;       /* held in calls of opts.log, if `on`; no other lock is
	                                 * taken meanwhile */
	pthread_mutex_t lock;           /* guards all that follows */
	pthread_cond_t moved;           /* signalled whenever something that follows changes */
	uint64_t begun, ended;          /* turns so far. begun > ended: one is under way here */
	uint64_t may;                   /* how many turns may begin while the caller has the run */
	int taken;                      /* the caller's thread has the run; counts nested calls */
	bool looking;                   /* the commit thread looks at the run, between two turns */
	bool quit;                      /* the commit thread must end at once */
	bool lost;                      /* the commit group is lost, and `why` says how */
	struct sheaf_error why;
};
/* Prepares the lock. release is its counterpart; ours: false in a forked child. [local] */
void shf_turns_init(struct sheaf_run *run);
void shf_turns_release(struct sheaf_run *run, bool ours);
/* Sets the run up for a commit thread. [local], on all ranks alike */
void shf_turns_open(struct sheaf_run *run, struct sheaf_group *group);

/* ---- the caller's thread ---- */

/* Gives the run to the caller's thread, for a collective call of that kind; 0 at once if there is
 * no commit thread. EINVAL: ranks are in different calls. ELOST: one of the groups is lost. After
 * 0 the caller must call shf_turns_give. [collective] */
int  shf_turns_take(struct sheaf_run *run, enum shf_call_kind kind, struct sheaf_error *err);
/* Gives the run to the caller's thread for a call that does not communicate. Waits for the end of
 * the turn that is under way here. [local] */
void shf_turns_hold(struct sheaf_run *run);
void shf_turns_give(struct sheaf_run *run);

/* ---- the commit thread ---- */

/* Begins a turn, after the ranks have agreed on it. False: the thread must end. */
bool shf_turns_begin(struct sheaf_run *run);
void shf_turns_end(struct sheaf_run *run);
/* Whether a turn is under way. Exact in the commit thread, and in the caller's thread while it has
 * the run. */
bool shf_turns_is_turn(const struct sheaf_run *run);
/* Between two turns: keeps the caller's thread from taking the run. False: it has the run. */
bool shf_turns_look(struct sheaf_run *run);
void shf_turns_looked(struct sheaf_run *run);

/* ---- any thread ---- */

void shf_turns_wake(struct sheaf_run *run);     /* something changed that the threads wait for */
/* Waits until something has changed, for ms at most (< 0: no limit). The caller holds the lock. */
void shf_turns_wait(struct sheaf_run *run, int ms);
#endif
