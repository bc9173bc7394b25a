/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated ranks: threads of one process, of which exactly one runs at a time.
 *
 * Who runs next is drawn from the seed at every operation, so a run repeats exactly as long as
 * the rank functions are deterministic. Time is simulated: it stands still while any rank can
 * run, and otherwise jumps to the next thing that is due, the end of a delay or of a deadline. A
 * rank that waits for the dead therefore fails at once, yet in the order real ranks would.
 *
 * Ranks that use operations in different order or with different sizes are a failure of the run,
 * told on stderr with both calls and the seed. So are an operation from another thread than the
 * rank's, ranks that wait for one that has returned although nothing was made to go wrong, and a
 * group that is still in use when the rank function returns.
 *
 * Checks that jump (cmocka's) work in the main thread only: a rank function returns a value.
 */
#ifndef SIMGROUP_H
#define SIMGROUP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "sheaf.h"

struct simgroup_stat {
	uint64_t ops;           /* operations entered by the rank that entered most */
	uint64_t reduced_bytes; /* given to allreduce, per rank */
	int64_t clock_ms;       /* simulated time at the end */
	bool fired;             /* the fault that was asked for took place */
	char why[400];          /* the first thing that made the run fail, "" when nothing */
};

struct simgroup_opts {
	uint64_t seed;
	int ranks;
	const int32_t *nodes;   /* sheaf_group_ops.node of each rank; NULL: all 0 */
	/* Of each rank: groups of their own that share clock, turns and machine. The ranks of one
	 * follow each other; fn's rank counts them all, the group's own begins at 0. NULL: one. */
	const int *teams;
	/* Operations are counted from 1 on each rank; 0: never. From its operation die_at on,
	 * every operation of die_rank fails at once. die_sent: what it gives to operation die_at
	 * still arrives, so that the others finish that one. died is called in the thread of the
	 * rank, before the failure is returned: what it does afterwards should touch nothing. */
	int die_rank, die_at;
	bool die_sent;
	void (*died)(void *arg, int rank);      /* arg as given to fn; may be NULL */
	/* Has somebody else ended the rank's process? Asked at each of its operations, which then
	 * fail for ever as after die_at. May be NULL. */
	bool (*is_killed)(void *arg, int rank);
	/* late_rank enters its operation late_at late_ms of simulated time late. When the others
	 * have given up by then, what they had given has arrived or not, by a draw: the late rank
	 * may finish an operation that failed on all others. */
	int late_rank, late_at;
	int64_t late_ms;
	bool quiet;             /* print nothing: for tests that want a run to fail */
	struct simgroup_stat *stat;     /* filled at the end; may be NULL */
	/* ranks * ranks numbers, bytes that went from rank [i / ranks] to rank [i % ranks] by
	 * alltoallv and allgather; added to; may be NULL. What a rank gives itself counts too. */
	uint64_t *pair_bytes;
};

/* fn on every rank; results[r] is what it returned. 0, or -1 where the run itself failed. */
int simgroup_run(const struct simgroup_opts *opts,
                 int (*fn)(void *arg, int rank, struct sheaf_group *group), void *arg,
                 int results[]);

/* For rank functions: let the others run for so long (0: a turn), and what time it is. */
void simgroup_pause(struct sheaf_group *group, int64_t ms);
int64_t simgroup_now_ms(struct sheaf_group *group);
bool simgroup_is_dead(struct sheaf_group *group);
#endif
