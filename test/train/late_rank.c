/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 2 of dp 2, tp 2 stops taking part. Rank 3 waits for it in the group of tp, and ranks 0 and 1
 * wait in the group of all ranks for both of them. Or with pp 2, tp 2 ranks 0 and 1 wait for
 * messages of ranks 2 and 3, which are in the next stage. Do all of them name rank 2? Before that,
 * rank 1 cannot go on and says so. Do the others end at once, with its reason? And do groups within
 * groups end with a message when MPI has no more tags?
 *
 * usage: mpirun -n 4 late_rank [stages] */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "rankmesh.h"
#include "ranks_mpi.h"

enum { RANKS = 4, STOPPED = 2, TIMEOUT_MS = 4000 };

/* Returns the rank that this one says is late, or -1. */
static int wait_for_others(struct tr_mesh *m, struct tr_error *err)
{
	uint64_t x = 1;
	size_t got;
	int rc = 0;

	if (m->all->rank == STOPPED)
		return STOPPED;
	if (m->all->rank > STOPPED)
		rc = tr_allreduce(&m->tp, &x, 1, TR_SUM, err);
	else if (m->pp.n > 1)
		rc = tr_receive(&m->pp, 1, 0, &x, sizeof(x), &got, err);
	if (rc == 0)
		rc = tr_allreduce(m->all, &x, 1, TR_SUM, err);
	return rc == TR_ELOST ? err->rank : -1;
}

/* One rank goes on after it has waited for longer than half of the deadline. What it told then must
 * not count later. */
static int wait_and_go_on(struct tr_mesh *m, struct tr_error *err)
{
	const struct timespec nap = { .tv_sec = TIMEOUT_MS * 5 / 8000,
				      .tv_nsec = TIMEOUT_MS * 5 / 8 % 1000 * 1000000 };
	uint64_t x = 1;

	if (m->all->rank == 1)
		nanosleep(&nap, NULL);
	return tr_allreduce(m->all, &x, 1, TR_SUM, err);
}

/* Returns whether a rank that waits for one that cannot go on ends at once, with its reason. */
static int end_with_rank_1(void)
{
	struct timespec start, end;
	struct tr_error err = { .rank = -1 };
	struct tr_ranks all;
	struct tr_mesh m;
	uint64_t x = 1;
	int rc;

	if (tr_ranks_mpi(&all, MPI_COMM_WORLD, TIMEOUT_MS, &err) < 0 ||
	    tr_mesh_make(&m, &all, 2, 2, 1, &err) < 0)
		return 0;
	clock_gettime(CLOCK_MONOTONIC, &start);
	if (all.rank == 1) {
		tr_fail(&err, TR_ENOMEM, "no memory for a plan");
		rc = tr_ranks_abandon(&m.tp, &err);
	} else {
		rc = tr_allreduce(all.rank ? &all : &m.tp, &x, 1, TR_SUM, &err);
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	return rc == TR_ELOST && err.rank == 1 && strcmp(err.msg, "no memory for a plan") == 0 &&
		(end.tv_sec - start.tv_sec) * 1000 < TIMEOUT_MS / 2;
}

enum { DEPTH = 12 };

/* Returns whether a group within a group, and so on, is refused at some depth, and the one before
 * that works. MPI says which tags it has for MPI_COMM_WORLD only, and these ranks have another
 * communicator. */
static int runs_out_of_tags(void)
{
	struct tr_error err = { .rank = -1 };
	struct tr_ranks g[DEPTH + 1];
	uint64_t x = 1;
	int depth = 0, rc, good;
	MPI_Comm comm;

	MPI_Comm_split(MPI_COMM_WORLD, 0, 0, &comm);
	rc = tr_ranks_mpi(&g[0], comm, TIMEOUT_MS, &err);
	MPI_Comm_free(&comm);
	if (rc < 0)
		return 0;
	while (rc == 0 && depth < DEPTH) {
		rc = tr_ranks_split(&g[depth], &g[depth + 1], 0, 1, RANKS, &err);
		depth += rc == 0;
	}
	good = rc == TR_EINVAL && strstr(err.msg, "MPI_TAG_UB") && depth >= 1 &&
		tr_allreduce(&g[depth], &x, 1, TR_SUM, &err) == 0 && x == RANKS;
	for (; depth >= 0; depth--)
		tr_ranks_free(&g[depth]);
	return good;
}

int main(int argc, char **argv)
{
	int level, n, rank, late = -1, named[RANKS], ended, ends[RANKS], bad = 0, refused;
	int pp = argc > 1 && strcmp(argv[1], "stages") == 0 ? 2 : 1;
	struct tr_error err = { .rank = -1 };
	struct tr_ranks all;
	struct tr_mesh m;

	MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
	MPI_Comm_size(MPI_COMM_WORLD, &n);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	refused = n == RANKS && runs_out_of_tags();
	ended = n == RANKS && end_with_rank_1();
	MPI_Gather(&ended, 1, MPI_INT, ends, 1, MPI_INT, 0, MPI_COMM_WORLD);
	if (n == RANKS && tr_ranks_mpi(&all, MPI_COMM_WORLD, TIMEOUT_MS, &err) == 0 &&
	    tr_mesh_make(&m, &all, 2 / pp, 2, pp, &err) == 0 && wait_and_go_on(&m, &err) == 0)
		late = wait_for_others(&m, &err);
	MPI_Gather(&late, 1, MPI_INT, named, 1, MPI_INT, 0, MPI_COMM_WORLD);
	for (int r = 0; rank == 0 && r < RANKS; r++) {
		bad += named[r] != STOPPED;
		printf("%sok %d - rank %d names rank %d\n", named[r] == STOPPED ? "" : "not ",
		       r + 1, r, named[r]);
	}
	for (int r = 0; rank == 0 && r < RANKS; r++) {
		bad += !ends[r];
		printf("%sok %d - rank %d ends with the reason of rank 1\n", ends[r] ? "" : "not ",
		       RANKS + r + 1, r);
	}
	if (rank == 0) {
		bad += !refused;
		printf("%sok %d - groups are refused when MPI has no more tags\n", refused ? "" :
		       "not ", 2 * RANKS + 1);
		printf("1..%d\n", 2 * RANKS + 1);
	}
	MPI_Finalize();
	return bad != 0;
}
