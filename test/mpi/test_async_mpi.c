/* SPDX-License-Identifier: Apache-2.0 */
/* A loop that trains and saves every step, two saves in flight, over real MPI and a real disk:
 * exit 0 good, 1 wrong.
 *
 *   mpirun -n 4 test_async_mpi [lazy]
 *      each step is begun, the memory changes, and the step before it is committed then. Every
 *      step is what memory held when it was begun; descriptors and images do not grow. lazy: the
 *      memory changes at its gates.
 */
#include "procself.h"
#include "rmtree.h"
#include "sheaf-mpi.h"
#include "sheaf-opts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 24, ROWS = 512, COLUMNS = 1024, WARM = 6 };

static struct {
	int rank, ranks, wrong, lazy;
	char dir[64];
	uint32_t *own, *mixed;          /* rows of one tensor, columns of another */
	int64_t items;                  /* of each */
	int fds, images;                /* after WARM steps */
} w;

static void expect(int good, const char *what)
{
	if (!good)
		fprintf(stderr, "rank %d: %s\n", w.rank, what);
	w.wrong |= !good;
}

static int expect_rc(int rc, const char *what, int64_t step, const struct sheaf_error *err)
{
	if (rc != 0)
		fprintf(stderr, "rank %d: %s step %lld: %d: %s\n", w.rank, what, (long long)step,
		        rc, err->msg);
	w.wrong |= rc != 0;
	return rc;
}

static uint32_t value(int64_t step, int tensor, int64_t i)
{
	return (uint32_t)(step * 1000003 + tensor * 7919 + i * 31 + w.rank);
}

static void train_one(int64_t step, int tensor)
{
	uint32_t *of = tensor ? w.mixed : w.own;

	for (int64_t i = 0; i < w.items; i++)
		of[i] = value(step, tensor, i);
}

static void train(int64_t step)
{
	train_one(step, 0);
	train_one(step, 1);
}

static int differ(int64_t step)
{
	int n = 0;

	for (int64_t i = 0; i < w.items; i++)
		n += w.own[i] != value(step, 0, i) || w.mixed[i] != value(step, 1, i);
	return n;
}

/* Images of this rank and its peers. */
static int images(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[600];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "/memfd:sheaf") != NULL;
	if (f)
		fclose(f);
	return n;
}

static struct sheaf_state *state_new(void)
{
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_U32, .ndim = 2 };

	s.name = "own";
	s.shape[0] = s.count[0] = ROWS;
	s.shape[1] = s.count[1] = COLUMNS;
	sheaf_slice_shard(&s, 0, w.rank, w.ranks, NULL);
	w.items = s.count[0] * s.count[1];
	s.data = w.own = malloc((size_t)w.items * sizeof(*w.own));
	(void)sheaf_state_add(state, &s, NULL);
	s.name = "mixed";
	s.shape[0] = s.count[0] = COLUMNS;
	s.shape[1] = s.count[1] = ROWS;
	s.start[0] = s.start[1] = 0;
	sheaf_slice_shard(&s, 1, w.rank, w.ranks, NULL);
	s.data = w.mixed = malloc((size_t)w.items * sizeof(*w.mixed));
	(void)sheaf_state_add(state, &s, NULL);
	return state;
}

static void finish(struct sheaf_save **save, int64_t step)
{
	struct sheaf_error err;

	if (*save)
		expect_rc(sheaf_save_commit(*save, -1, &err), "commit", step, &err);
	sheaf_save_free(*save);
	*save = NULL;
}

static void loop(struct sheaf_run *run, struct sheaf_state *state)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *before = NULL, *now;
	struct sheaf_error err;

	for (int64_t step = 0; step < STEPS; step++) {
		train(step);
		now = NULL;
		if (expect_rc(sheaf_save_begin(&now, run, step, state, w.lazy ? &opts : NULL, &err),
		              "begin", step, &err))
			break;
		for (int i = 0; i < 2; i++) {
			int tensor = (int)(step + w.rank + i) % 2;

			expect(sheaf_save_wait_copied(now, tensor, -1, NULL) == 0, "a gate");
			train_one(1000, tensor);
		}
		finish(&before, step - 1);
		before = now;
		if (step == WARM) {
			w.fds = procself_fds();
			w.images = images();
		}
	}
	finish(&before, STEPS - 1);
	expect(procself_fds() <= w.fds, "there are more descriptors than before");
	expect(images() == w.images, "there are more images than before");
}

static void look(struct sheaf_run *run, struct sheaf_state *state)
{
	for (int64_t n = 0; n < STEPS; n++) {
		struct sheaf_checkpoint *step = NULL;
		struct sheaf_error err;

		train(1000);
		if (!expect_rc(sheaf_checkpoint_open(&step, run, n, &err), "open", n, &err))
			expect_rc(sheaf_checkpoint_load(step, state, 0, NULL, &err), "load", n,
			          &err);
		expect(differ(n) == 0, "a step is not what was saved");
		sheaf_checkpoint_close(step);
	}
}

int main(int argc, char **argv)
{
	struct sheaf_staging staging = { .size = sizeof(staging), .buffers_max = 2 };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.timeout_ms = 60000, .staging = &staging };
	struct sheaf_group *group = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_state *state;
	struct sheaf_error err;
	int wrong = 0;

	MPI_Init(&argc, &argv);
	w.lazy = argc > 1 && strcmp(argv[1], "lazy") == 0;
	MPI_Comm_rank(MPI_COMM_WORLD, &w.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &w.ranks);
	snprintf(w.dir, sizeof(w.dir), "async_mpi.XXXXXX");
	if (w.rank == 0 && !mkdtemp(w.dir))
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Bcast(w.dir, sizeof(w.dir), MPI_CHAR, 0, MPI_COMM_WORLD);
	expect(sheaf_group_mpi(&group, MPI_COMM_WORLD, 0, NULL) == 0, "no group");
	state = state_new();
	if (!expect_rc(sheaf_run_open(&run, w.dir, group, &opts, &err), "open", -1, &err)) {
		loop(run, state);
		look(run, state);
	}
	sheaf_run_close(run);
	sheaf_state_free(state);
	sheaf_group_free(group);
	MPI_Allreduce(&w.wrong, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	if (w.rank == 0) {
		printf("%d ranks%s: %d steps, two in flight, %d descriptors, %d images mapped\n",
		       w.ranks, w.lazy ? ", lazy" : "", (int)STEPS, w.fds, w.images);
		rmtree(w.dir);
	}
	free(w.own);
	free(w.mixed);
	MPI_Finalize();
	return wrong;
}
