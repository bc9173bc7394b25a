/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer to copy from: saves in the background, keeps averages of the weights, obeys SIGTERM,
 * and resumes on any number of ranks. toy_model.c stands for your model.
 *
 *     mpirun -n 2 train RUN 60; mpirun -n 4 train RUN 120
 *     train RUN STEPS [SECONDS from SIGTERM to the end (30)] [MS of a step (0)] [check]
 *
 * "check" finds gates that are called too late: set SHEAF_SAVE_CHECK in a trainer's first runs.
 */
#include <sheaf-mpi.h>
#include <sheaf-opts.h>
#include <sheaf-state.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "toy_model.h"

#define SAVE_EVERY 5

struct trainer {
	struct model model;
	int64_t step, samples, saved;           /* saved: the last step that was saved, or -1 */
	double loss;
	struct sheaf_run *run;
	struct sheaf_state *state;
	int layer_slices[LAYERS][4], rng_slice; /* their numbers in the state */
	struct sheaf_save *save;                /* the save in flight, or NULL */
	uint64_t save_flags;
};

/* --- what is saved ---------------------------------------------------------------------------- */

/* A whole tensor, which every rank holds; or this rank's range of the flattened tensor. */
static int add(struct trainer *t, const char *family, const char *name, int32_t dtype, void *data)
{
	struct sheaf_slice slice = { .size = sizeof(slice), .family = family, .name = name,
		.dtype = dtype, .ndim = 2, .shape = { ROWS, COLS }, .count = { ROWS, COLS },
		.data = data };

	if (family) {
		slice.flags = SHEAF_SLICE_FLAT;
		slice.flat_start = t->model.first;
		slice.flat_count = t->model.count;
	}
	return sheaf_state_add(t->state, &slice, NULL);
}

/* An error in these calls need not be handled here: the next collective call returns it. */
static void describe_state(struct trainer *t)
{
	/* Averages change only in steps that are saved, and with an interval only in every so many
	 * steps: the save before leaving does not change them. Between saves they can be updated
	 * with sheaf_state_average. */
	struct sheaf_ema ema = { .size = sizeof(ema), .coef = 0.9, .interval = SAVE_EVERY };
	char name[64], key[96];

	t->state = sheaf_state_new();
	for (int i = 0; i < LAYERS; i++) {
		struct layer *l = &t->model.layers[i];
		int *slices = t->layer_slices[i];

		snprintf(name, sizeof(name), "layers.%d.weight", i);
		slices[0] = add(t, NULL, name, SHEAF_BF16, l->weight);
		slices[1] = add(t, "master_weights", name, SHEAF_F32, l->master);
		snprintf(key, sizeof(key), "%s/moment1_0", name);
		slices[2] = add(t, "optimizer", key, SHEAF_F32, l->moment1);
		snprintf(key, sizeof(key), "%s/moment2_0", name);
		slices[3] = add(t, "optimizer", key, SHEAF_F32, l->moment2);
	}
	/* "drop": on another number of ranks the generators stay as they were seeded. */
	t->rng_slice = sheaf_state_rank_bytes(t->state, "rng", "drop", t->model.rank,
	                                      t->model.ranks, &t->model.rng,
	                                      sizeof(t->model.rng), NULL);
	sheaf_state_ema(t->state, NULL, &ema, NULL);    /* of the master weights, as family "ema" */
}

/* --- saves ------------------------------------------------------------------------------------ */

/* The gate: waits until the save in flight has copied a slice. Only after EAGAIN the memory may not
 * change. It may change if the save has failed; commit returns the error. */
static void wait_copied(struct trainer *t, int slice)
{
	while (t->save && sheaf_save_wait_copied(t->save, slice, -1, NULL) == SHEAF_EAGAIN)
		continue;
}

static void before_change(void *arg, int layer)
{
	struct trainer *t = arg;

	if (layer < 0)
		wait_copied(t, t->rng_slice);
	for (int i = 0; layer >= 0 && i < 4; i++)
		wait_copied(t, t->layer_slices[layer][i]);
}

/* A full or broken disk costs a checkpoint, not the job. Any other error ends the job. */
static int survive(struct trainer *t, int rc, struct sheaf_error *err)
{
	if (rc != SHEAF_EIO && rc != SHEAF_ENOMEM && rc != SHEAF_EINDOUBT)
		return rc;
	if (t->model.rank == 0)
		fprintf(stderr, "train: step %" PRId64 " was not saved: %s\n", t->saved, err->msg);
	t->saved = -1;
	return 0;
}

/* Frees the save in flight, unless rc is EAGAIN: then it goes on. */
static int save_ended(struct trainer *t, int rc, struct sheaf_error *err)
{
	if (rc == SHEAF_EAGAIN)
		return rc;
	sheaf_save_free(t->save);
	t->save = NULL;
	return survive(t, rc, err);
}

/* Waits until the save in flight is committed. EAGAIN: it was not within timeout_ms. */
static int save_finish(struct trainer *t, int timeout_ms, struct sheaf_error *err)
{
	return t->save ? save_ended(t, sheaf_save_commit(t->save, timeout_ms, err), err) : 0;
}

/* Carries the save in flight on, and never waits for the disk. */
static int save_advance(struct trainer *t, struct sheaf_error *err)
{
	int rc = t->save ? save_ended(t, sheaf_save_advance(t->save, 0, err), err) : 0;

	return rc == SHEAF_EAGAIN ? 0 : rc;
}

/* Begins to save this step in the background. One save is in flight at a time: if the disk is too
 * slow for the interval, training waits here until the last save is written. */
static int save_start(struct trainer *t, struct sheaf_error *err)
{
	static const char config[] = "{\"model_type\": \"toy\"}\n";
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = t->save_flags,
	                                .loss = t->loss };
	char text[32];
	int rc = save_finish(t, -1, err);

	if (rc != 0)
		return rc;
	t->saved = t->step;
	rc = sheaf_save_begin(&t->save, t->run, t->step, t->state, &opts, err);
	if (rc != 0)
		return survive(t, rc, err);
	snprintf(text, sizeof(text), "%" PRId64, t->samples);
	sheaf_save_note(t->save, "data/samples", text, NULL);
	snprintf(text, sizeof(text), "%.6g", t->loss);
	sheaf_save_note(t->save, "train/loss", text, NULL);
	sheaf_save_attach(t->save, "config.json", config, sizeof(config) - 1, NULL);
	return 0;
}

/* --- leaving ---------------------------------------------------------------------------------- */

static atomic_llong signal_ms;          /* when SIGTERM or SIGUSR1 came; 0: not yet */

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

static void on_signal(int sig)
{
	long long never = 0;

	(void)sig;
	atomic_compare_exchange_strong(&signal_ms, &never, (long long)now_ms());
}

/* A signal may reach the ranks in different steps, or only some of them. All leave together. */
static int must_leave(void)
{
	int mine = atomic_load(&signal_ms) != 0, any;

	MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	return any;
}

static int ms_until(int64_t deadline)
{
	int64_t left = deadline - now_ms();

	return left > 1 ? (int)left : 1;
}

/* Saves the step at which the trainer stops. EAGAIN: the time was too short, and the run is as the
 * last save left it. The shortest deadline of any rank counts for all. */
static int save_last(struct trainer *t, int seconds, struct sheaf_error *err)
{
	long long at = atomic_load(&signal_ms);
	/* One second is left to end the process; without a signal there is an hour. */
	int64_t deadline = at ? at + (seconds - 1) * INT64_C(1000) : now_ms() + 3600000;
	int rc = save_finish(t, ms_until(deadline), err);       /* saves end in their order */

	if (rc == 0 && t->saved != t->step)
		rc = save_start(t, err);
	if (rc == 0)
		rc = save_finish(t, ms_until(deadline), err);
	return rc;
}

/* --- resuming and training -------------------------------------------------------------------- */

/* Prints the damaged checkpoints that were passed over and set aside. */
static void on_item(void *arg, int32_t kind, const char *family, const char *name, const char *msg)
{
	(void)arg;
	(void)family;
	if (kind == SHEAF_REPORT_PASSED_OVER || kind == SHEAF_REPORT_SET_ASIDE)
		fprintf(stderr, "train: %s: %s\n", name, msg);
}

/* Loads the newest whole checkpoint. ENOENT means that there is none: begin at step 0. It does not
 * mean that all are damaged, which is another error. */
static int resume(struct trainer *t, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report), .item = on_item };
	struct sheaf_checkpoint *checkpoint = NULL;
	const char *samples;
	int rc = sheaf_run_resume(t->run, t->state, SHEAF_LOAD_STRICT | SHEAF_LOAD_FALLBACK,
	                          &report, err);

	t->saved = -1;
	if (rc == SHEAF_ENOENT)
		return 0;
	if (rc == 0)
		rc = sheaf_checkpoint_open(&checkpoint, t->run, report.step, err);
	if (rc != 0)
		return rc;
	samples = sheaf_checkpoint_note(checkpoint, "data/samples");
	t->samples = samples ? strtoll(samples, NULL, 10) : 0;
	t->step = t->saved = report.step;
	sheaf_checkpoint_close(checkpoint);
	return 0;
}

static int train(struct trainer *t, int64_t steps, int step_ms, struct sheaf_error *err)
{
	struct timespec pause = { .tv_nsec = step_ms * 1000000L };
	int rc = 0;

	while (rc == 0 && t->step < steps && !must_leave()) {
		t->loss = model_forward_backward(&t->model);    /* the save copies meanwhile */
		nanosleep(&pause, NULL);
		model_optimizer_step(&t->model);                /* calls before_change */
		t->step++;
		t->samples += BATCH;
		if (t->model.rank == 0)
			printf("step %" PRId64 " loss %.6f\n", t->step, t->loss);
		fflush(stdout);
		rc = t->step % SAVE_EVERY == 0 ? save_start(t, err) : save_advance(t, err);
	}
	return rc;
}

int main(int argc, char **argv)
{
	static struct trainer t;
	struct sheaf_retention retention = { .size = sizeof(retention), .keep_last = 3 };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
	                           .retention = &retention };
	struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct sheaf_group *group = NULL;
	struct sheaf_error err = { 0 };
	int rank, ranks, rc;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGUSR1, &act, NULL); /* mpirun passes this one on and does not end the job */
	model_init(&t.model, rank, ranks);
	t.model.before_change = before_change;
	t.model.arg = &t;
	t.save_flags = SHEAF_SAVE_LAZY | (argc > 5 ? SHEAF_SAVE_CHECK : 0);
	describe_state(&t);

	rc = sheaf_group_mpi(&group, MPI_COMM_WORLD, 0, &err);
	if (rc == 0)
		rc = sheaf_run_open(&t.run, argc > 1 ? argv[1] : "run", group, &opts, &err);
	if (rc == 0)
		rc = resume(&t, &err);
	if (rc == 0 && rank == 0)
		printf("%d ranks begin at step %" PRId64 "\n", ranks, t.step);
	if (rc == 0)
		rc = train(&t, argc > 2 ? atoll(argv[2]) : 60, argc > 4 ? atoi(argv[4]) : 0, &err);
	if (rc == 0)
		rc = save_last(&t, argc > 3 ? atoi(argv[3]) : 30, &err);
	if (rank == 0)
		printf("ends at step %" PRId64 ": %s\n", t.step,
		       rc != 0 ? err.msg : t.saved == t.step ? "saved" : "not saved");
	fflush(NULL);
	if (rc == SHEAF_ELOST)          /* MPI_Finalize would wait for the lost rank */
		_Exit(2);
	sheaf_save_free(t.save);
	sheaf_run_close(t.run);
	sheaf_state_free(t.state);
	sheaf_group_free(group);
	MPI_Finalize();
	return rc != 0 && rc != SHEAF_EAGAIN;
}
