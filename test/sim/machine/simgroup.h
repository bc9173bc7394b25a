/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated ranks: threads of one process, of which exactly one runs at a time.
 *
 * The rank that runs next is drawn from the seed at every operation, so a run repeats exactly if
 * the rank functions are deterministic. Time is simulated: it stands still while any rank can run,
 * and otherwise jumps to the next event, the end of a delay or a deadline. So a rank that waits for
 * a dead one fails at once, yet in the order of real ranks.
 *
 * A run fails if ranks use operations in different order or with different sizes; this is printed
 * to stderr with both calls and the seed. It also fails if an operation is called from a thread
 * other than the rank's, if ranks wait for one that has returned although there was no fault, and
 * if a group is still in use when the rank function returns.
 *
 * Checks that jump (cmocka's) work only in the main thread: a rank function returns a value.
 */
#ifndef SIMGROUP_H
#define SIMGROUP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "sheaf.h"

struct simgroup_stat {
	uint64_t ops;           /* operations of the rank that entered most */
	uint64_t reduced_bytes; /* sent to allreduce, per rank */
	int64_t clock_ms;       /* simulated time at the end */
	bool fired;             /* the requested fault occurred */
	char why[400];          /* the first reason for which the run failed, or "" */
};

struct simgroup_opts {
	uint64_t seed;
	int ranks;
	const int32_t *nodes;   /* sheaf_group_ops.node of each rank; NULL: all 0 */
	/* The team of each rank. Teams have their own groups, but share clock, turns and machine.
	 * The ranks of a team are consecutive. fn's rank counts all ranks, the group's begins at 0.
	 * NULL: one team. */
	const int *teams;
	/* Operations are counted from 1 on each rank; 0: never. From operation die_at on, every
	 * operation of die_rank fails at once. die_sent: its data for operation die_at still
	 * arrives, so that the other ranks complete that one. died is called in the rank's thread
	 * before the failure is returned: what the rank does afterwards should have no effect. */
	int die_rank, die_at;
	bool die_sent;
	void (*died)(void *arg, int rank);      /* arg as given to fn; may be NULL */
	/* Returns whether the rank's process was killed. Called at each of its operations; if true,
	 * they fail from then on, as after die_at. May be NULL. */
	bool (*is_killed)(void *arg, int rank);
	/* late_rank enters its operation late_at late_ms of simulated time late. If the others have
	 * given up by then, their data has arrived or not, at random: the late rank may complete an
	 * operation that failed on all others. */
	int late_rank, late_at;
	int64_t late_ms;
	bool quiet;             /* print nothing: for tests in which a run must fail */
	struct simgroup_stat *stat;     /* filled at the end; may be NULL */
	/* ranks * ranks numbers: the bytes sent from rank [i / ranks] to rank [i % ranks] by
	 * alltoallv and allgather are added, also those that a rank sends to itself. May be
	 * NULL. */
	uint64_t *pair_bytes;
};

/* Runs fn on every rank; results[r] is what it returned. Returns 0, or -1 if the run failed. */
int simgroup_run(const struct simgroup_opts *opts,
                 int (*fn)(void *arg, int rank, struct sheaf_group *group), void *arg,
                 int results[]);

/* For rank functions: lets the other ranks run for ms (0: one turn); returns the time. */
void simgroup_pause(struct sheaf_group *group, int64_t ms);
int64_t simgroup_now_ms(struct sheaf_group *group);
bool simgroup_is_dead(struct sheaf_group *group);
#endif
