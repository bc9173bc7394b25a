/* SPDX-License-Identifier: Apache-2.0 */
/* A training loop that is told to leave, and saves what it has in the seconds that are left.
 *
 *     mpirun -n 4 leave RUN 30
 */
#include <sheaf-mpi.h>
#include <sheaf-opts.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include "save_by.h"

#define ITEMS 1000

static int rank;
static atomic_llong told_ms;            /* when SIGTERM came, or SIGUSR1; 0: not yet */

static void on_signal(int sig)
{
	long long never = 0;

	(void)sig;
	atomic_compare_exchange_strong(&told_ms, &never, (long long)now_ms());
}

/* They hear it at different times, some perhaps not at all, and leave after the same step. */
static int all_leave(void)
{
	int one = atomic_load(&told_ms) != 0, all;

	MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	return all;
}

static void train(float *weight, int64_t step)
{
	for (int i = 0; i < ITEMS; i++)
		weight[i] += 1.0f / (float)(step + i);
}

/* Until it is told to leave; the step after which it was is saved by then, or not at all. */
static int run_until_told(struct sheaf_run *run, struct sheaf_state *state, float *weight,
                          int seconds, int64_t *step, struct sheaf_error *err)
{
	int64_t heard;
	int rc = 0;

	for (*step = 1; rc == 0; ++*step) {
		train(weight, *step);
		if (all_leave())
			break;
		if (*step % 10 == 0) {
			rc = save_by(run, state, *step, now_ms() + 600000, err);
			if (rank == 0)
				printf("step %lld\n", (long long)*step);
			fflush(stdout);
		}
	}
	if (rc != 0)
		return rc;
	heard = atomic_load(&told_ms);
	/* A second to end in. */
	return save_by(run, state, *step, (heard ? heard : now_ms()) + (seconds - 1) * 1000, err);
}

int main(int argc, char **argv)
{
	static float weight[ITEMS];
	struct sheaf_retention retention = { .size = sizeof(retention), .keep_last = 2 };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
	                           .retention = &retention };
	struct sheaf_slice slice = { .size = sizeof(slice), .name = "layer.0.weight",
		.dtype = SHEAF_F32, .ndim = 1, .shape = { ITEMS }, .count = { ITEMS },
		.data = weight };
	struct sheaf_state *state = sheaf_state_new();
	struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct sheaf_group *group = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err = { 0 };
	int64_t step = 0;
	int rc;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGUSR1, &act, NULL);
	sheaf_state_add(state, &slice, NULL);
	rc = sheaf_group_mpi(&group, MPI_COMM_WORLD, 0, NULL);
	if (rc == 0)
		rc = sheaf_run_open(&run, argc > 1 ? argv[1] : "run", group, &opts, &err);
	if (rc == 0)
		rc = run_until_told(run, state, weight, argc > 2 ? atoi(argv[2]) : 30, &step, &err);
	if (rank == 0)
		printf("left at step %lld: %s\n", (long long)step, rc == 0 ? "saved" : err.msg);
	fflush(NULL);
	if (rc == SHEAF_ELOST) /* the dead would be waited for */
		_Exit(2);
	sheaf_run_close(run);
	sheaf_state_free(state);
	sheaf_group_free(group);
	MPI_Finalize();
	return rc != 0 && rc != SHEAF_EAGAIN;
}
