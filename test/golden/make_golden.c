/* SPDX-License-Identifier: Apache-2.0 */
/* Made the golden run of format 1, once; and shows that today's library still writes those bytes.
 *
 *   mpirun -n 3 make_golden RUN
 */
#include "golden.h"
#include "sheaf-mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct memory {
	uint8_t bytes[64][GOLDEN_BYTES];        /* all of each tensor, whatever is held of it */
	uint8_t stream[GOLDEN_STREAM];
};

/* The part of a tensor that a rank holds, in memory that has all of it. */
static struct sheaf_slice hold(const struct golden_tensor *t, uint8_t *bytes, int rank, int *here)
{
	struct sheaf_slice s = { .size = sizeof(s), .family = t->family, .name = t->name,
		.dtype = t->dtype, .ndim = t->ndim, .data = bytes };
	int64_t n = golden_items(t), per = (n + GOLDEN_RANKS - 1) / GOLDEN_RANKS, row = 1;

	for (int d = 0; d < t->ndim; d++) {
		s.shape[d] = s.count[d] = t->shape[d];
		row *= d > 0 ? t->shape[d] : 1;
	}
	*here = t->how != GOLDEN_LAST || rank == GOLDEN_RANKS - 1;
	if (t->how == GOLDEN_CUT && sheaf_slice_shard(&s, 0, rank, GOLDEN_RANKS, NULL) == 0)
		s.data = bytes + s.start[0] * row * sheaf_dtype_bits(t->dtype) / 8;
	if (t->how == GOLDEN_RANGE) {
		s.flags = SHEAF_SLICE_FLAT;
		s.flat_start = rank * per < n ? rank * per : n;
		s.flat_count = n - s.flat_start < per ? n - s.flat_start : per;
		s.data = bytes + s.flat_start * sheaf_dtype_bits(t->dtype) / 8;
	}
	return s;
}

static struct sheaf_state *state_of(struct memory *m, int64_t step, int rank)
{
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_slice tied = { 0 };
	char stream[32];

	for (size_t i = 0; i < golden_tensors_n; i++) {
		const struct golden_tensor *t = &golden_tensors[i];
		int here;
		struct sheaf_slice s = hold(t, m->bytes[i], rank, &here);

		golden_fill(m->bytes[i], golden_bytes(t), step, t->family, t->name,
		            t->dtype == SHEAF_BOOL);
		if (here)
			(void)sheaf_state_add(state, &s, NULL);
		if (i == 0)
			tied = s;
	}
	tied.name = GOLDEN_TIED;
	tied.tied_to = GOLDEN_TIED_TO;
	(void)sheaf_state_add(state, &tied, NULL);
	snprintf(stream, sizeof(stream), "%s/%d", GOLDEN_STREAM_NAME, rank);
	golden_fill(m->stream, (size_t)(GOLDEN_STREAM - rank), step, "ranks", stream, 0);
	(void)sheaf_state_rank_bytes(state, GOLDEN_STREAM_NAME, "modulo", rank, GOLDEN_RANKS,
	                             m->stream, (size_t)(GOLDEN_STREAM - rank), NULL);
	return state;
}

static int save(struct sheaf_run *run, struct memory *m, int64_t step, int rank,
                struct sheaf_error *err)
{
	struct sheaf_state *state = state_of(m, step, rank);
	struct sheaf_save *save = NULL;
	int rc = sheaf_save_begin(&save, run, step, state, NULL, err);

	/* What fails here is told by commit. */
	for (size_t i = 0; rc == 0 && rank == 0 && i < golden_notes_n; i++)
		(void)sheaf_save_note(save, golden_notes[i].name, golden_notes[i].text, NULL);
	for (size_t i = 0; rc == 0 && rank == 0 && i < golden_files_n; i++)
		(void)sheaf_save_attach(save, golden_files[i].name, golden_files[i].text,
		                        strlen(golden_files[i].text), NULL);
	if (rc == 0)
		rc = sheaf_save_commit(save, -1, err);
	sheaf_save_free(save);
	sheaf_state_free(state);
	return rc;
}

int main(int argc, char **argv)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.file_bytes_max = GOLDEN_FILE_BYTES };
	struct sheaf_error err = { .msg = "" };
	struct memory *m = calloc(1, sizeof(*m));
	struct sheaf_group *group = NULL;
	struct sheaf_run *run = NULL;
	int rank, ranks, rc = SHEAF_EINVAL;

	if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
		return 77;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc == 2 && ranks == GOLDEN_RANKS && m && golden_tensors_n <= 64)
		rc = sheaf_group_mpi(&group, MPI_COMM_WORLD, 0, NULL);
	if (rc == 0)
		rc = sheaf_run_open(&run, argv[1], group, &opts, &err);
	for (int i = 0; rc == 0 && i < 2; i++)
		rc = save(run, m, golden_steps[i], rank, &err);
	if (rc != 0)
		fprintf(stderr, "rank %d: %d: %s (mpirun -n %d make_golden RUN)\n", rank, rc,
		        err.msg, GOLDEN_RANKS);
	sheaf_run_close(run);
	sheaf_group_free(group);
	free(m);
	if (rc != 0)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Finalize();
	return 0;
}
