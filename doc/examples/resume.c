/* SPDX-License-Identifier: Apache-2.0 */
/* A training loop that resumes: every rank holds a piece of each tensor, saves every tenth step
 * and, killed at any moment and started again on any number of ranks, resumes from the last one.
 *
 *     mpirun -n 4 resume RUN 30; mpirun -n 3 resume RUN 60
 *
 * With a third argument, auto, it uses the agent of its node (sheaf agent RUN --detach): then every
 * step is saved, and only each tenth of them to disk.
 */
#include <sheaf-mpi.h>
#include <sheaf-opts.h>
#include <stdio.h>
#include <stdlib.h>

#define ROWS 37
#define COLS 8

/* This rank's rows of one matrix, and where they are in its memory. */
static struct sheaf_slice rows_of(const char *family, const char *name, float *data, int rank,
                                  int ranks)
{
	struct sheaf_slice slice = { .size = sizeof(slice), .family = family, .name = name,
		.dtype = SHEAF_F32, .ndim = 2, .shape = { ROWS, COLS }, .count = { ROWS, COLS },
		.data = data };

	sheaf_slice_shard(&slice, 0, rank, ranks, NULL);
	return slice;
}

static void train(float *weight, float *moment)
{
	for (int i = 0; i < ROWS * COLS; i++) {
		moment[i] = 0.9f * moment[i] + 1.0f;
		weight[i] += 0.1f * moment[i];
	}
}

static int save(struct sheaf_run *run, struct sheaf_state *state, int64_t n, uint64_t flags,
                struct sheaf_error *err)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *one = NULL;
	int rc = sheaf_save_begin(&one, run, n, state, &opts, err);

	if (rc == SHEAF_EAGAIN) /* no agent answers: this step is in no memory */
		return 0;
	if (rc == 0)
		rc = sheaf_save_commit(one, -1, err);
	sheaf_save_free(one);
	if (rc == SHEAF_EFAILED && flags & SHEAF_SAVE_NO_DISK) /* nor is this: the agent has died */
		return 0;
	return rc;
}

/* What sheaf did to get here: damaged checkpoints that were passed over and set aside. */
static void tell(void *arg, int32_t kind, const char *family, const char *name, const char *msg)
{
	(void)arg;
	(void)family;
	if (kind == SHEAF_REPORT_PASSED_OVER || kind == SHEAF_REPORT_SET_ASIDE)
		fprintf(stderr, "resume: %s: %s\n", name, msg);
}

/* The step to resume from: 0 when the run has none. */
static int resume(struct sheaf_run *run, struct sheaf_state *state, int64_t *n,
                  struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report), .item = tell };
	int rc = sheaf_run_resume(run, state, SHEAF_LOAD_STRICT | SHEAF_LOAD_FALLBACK, &report,
	                          err);

	*n = rc == 0 ? report.step : 0;
	return rc == SHEAF_ENOENT ? 0 : rc;
}

int main(int argc, char **argv)
{
	static float weight[ROWS * COLS], moment[ROWS * COLS];
	struct sheaf_retention retention = { .size = sizeof(retention), .keep_last = 3 };
	struct sheaf_memory_tier tier = { .size = sizeof(tier),
		.agent = argc > 3 ? argv[3] : NULL };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.retention = &retention, .memory_tier = &tier };
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_group *group = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err = { 0 };
	int64_t n = 0, last = argc > 2 ? atoll(argv[2]) : 30;
	int rank, ranks, rc;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	struct sheaf_slice w = rows_of(NULL, "layer.0.weight", weight, rank, ranks);
	struct sheaf_slice m = rows_of("optimizer", "layer.0.weight/moment1_0", moment, rank,
	                               ranks);
	sheaf_state_add(state, &w, NULL);
	sheaf_state_add(state, &m, NULL);

	rc = sheaf_group_mpi(&group, MPI_COMM_WORLD, 0, NULL);
	if (rc == 0)
		rc = sheaf_run_open(&run, argc > 1 ? argv[1] : "run", group, &opts, &err);
	if (rc == 0)
		rc = resume(run, state, &n, &err);
	if (rank == 0 && rc == 0)
		printf("%d ranks resume from step %lld\n", ranks, (long long)n);
	fflush(stdout);
	while (rc == 0 && n < last) {
		train(weight, moment);
		if (++n % 10 == 0)
			rc = save(run, state, n, 0, &err);
		else if (tier.agent)
			rc = save(run, state, n, SHEAF_SAVE_NO_DISK, &err);
	}
	if (rank == 0 && rc != 0)
		fprintf(stderr, "resume: %s\n", err.msg);
	fflush(NULL);
	if (rc == SHEAF_ELOST) /* the dead would be waited for */
		_Exit(2);
	sheaf_run_close(run);
	sheaf_state_free(state);
	sheaf_group_free(group);
	MPI_Finalize();
	return rc != 0;
}
