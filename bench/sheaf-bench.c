/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-bench: the workload that tests and curious users run, on MPI.
 *
 * Everything that can be wrong about the command line, the description or the mesh is found on
 * every rank before the run is touched: exit 2 everywhere, one line from rank 0.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "sheaf-mpi.h"

static int load_model(struct bench *b, struct sheaf_error *err)
{
	const struct bench_opts *o = b->o;
	int rc;

	if (o->state) {
		rc = wl_model_read(&b->model, o->state, err);
	} else if (o->preset) {
		rc = wl_model_preset(&b->model, o->preset, o->gb, o->adam, err);
	} else {
		rc = sheaf_step_open_path(&b->like, o->like, NULL, NULL, err);
		if (rc == 0)
			rc = wl_model_like(&b->model, b->like, false, err);
	}
	if (rc == 0 && (o->adam || b->model.adam))
		rc = wl_model_adam(&b->model, err);
	/* Experts are counted and ties looked up over all families, then some are dropped. */
	if (rc == 0)
		rc = wl_model_seal(&b->model, err);
	if (rc == 0 && o->families)
		rc = wl_model_keep(&b->model, o->families, err);
	return rc;
}

static int check_mesh(const struct bench *b, const struct wl_layout *l, const char *text,
		      struct sheaf_error *err)
{
	int64_t ranks = wl_mesh_ranks(&l->mesh);

	if (ranks == b->comm.ranks)
		return 0;
	return wl_fail(err, SHEAF_EINVAL, "mesh '%s' has %lld ranks, there are %d",
		       text ? text : "", (long long)ranks, b->comm.ranks);
}

static int load_layouts(struct bench *b, struct sheaf_error *err)
{
	const struct bench_opts *o = b->o;
	int rc = wl_layout_parse(&b->from, o->mesh, o->expert_mesh, (int)o->zero, err);

	if (rc == 0)
		rc = check_mesh(b, &b->from, o->mesh, err);
	if (rc == 0 && o->to)
		rc = wl_layout_parse(&b->to, o->to, o->expert_mesh, (int)o->to_zero, err);
	if (rc == 0 && o->to)
		rc = check_mesh(b, &b->to, o->to, err);
	if (rc == 0 && o->nodes && b->comm.ranks % o->nodes)
		rc = wl_fail(err, SHEAF_EINVAL, "--nodes: %d ranks are not split evenly over %lld",
			     b->comm.ranks, (long long)o->nodes);
	return rc;
}

static int load_states(struct bench *b, struct sheaf_error *err)
{
	int rc = wl_held_init(&b->held, &b->model, &b->from, b->comm.rank, true, err);

	if (rc == 0)
		rc = wl_held_state(&b->held, &b->state, err);
	if (rc == 0 && b->o->to)
		rc = wl_held_init(&b->held_to, &b->model, &b->to, b->comm.rank, true, err);
	if (rc == 0 && b->o->to)
		rc = wl_held_state(&b->held_to, &b->state_to, err);
	return rc;
}

static int prepare(struct bench *b, struct sheaf_error *err)
{
	int rc = load_layouts(b, err);

	if (rc == 0)
		rc = load_model(b, err);
	if (rc == 0)
		rc = load_states(b, err);
	if (rc == 0)
		rc = bench_events_open(&b->events, b->o, b->comm.rank, err);
	return bench_agree(&b->comm, rc, err);
}

static void release(struct bench *b)
{
	sheaf_state_free(b->state);
	sheaf_state_free(b->state_to);
	sheaf_step_close(b->like);
	sheaf_group_free(b->group);
	wl_held_release(&b->held);
	wl_held_release(&b->held_to);
	wl_model_release(&b->model);
	bench_events_close(&b->events);
}

static int usage(const struct bench_comm *c, const struct sheaf_error *err)
{
	if (c->rank == 0)
		fprintf(stderr, "sheaf-bench: %s (sheaf-bench --help)\n", err->msg);
	return 2;
}

/* The exit status. *lost: the others may be gone, so MPI must not be asked to finish. */
static int work(struct bench_opts *o, struct bench_comm comm, bool *lost)
{
	struct bench b = { .o = o, .comm = comm, .events = { .fd = -1 } };
	struct sheaf_error err = { .rank = -1 };
	int32_t node = 0;
	int rc;

	b.comm.timeout_ms = (int)o->timeout_ms;
	rc = prepare(&b, &err);
	if (rc != 0) {
		*lost = rc == SHEAF_ELOST;
		rc = usage(&comm, &err);
		goto out;
	}
	if (o->nodes)
		node = 1 + (int32_t)((int64_t)comm.rank * o->nodes / comm.ranks);
	rc = sheaf_group_mpi(&b.group, comm.comm, node);
	if (rc < 0) {
		wl_fail(&err, rc, "no group over MPI: %s", sheaf_strerror(rc));
		bench_error(&b, -1, rc, &err);
	} else {
		rc = bench_run(&b);
	}
	*lost = rc == SHEAF_ELOST;
	rc = bench_exit_code(rc);
out:
	if (!*lost)
		release(&b);
	return rc;
}

int main(int argc, char **argv)
{
	struct bench_comm comm = { .comm = MPI_COMM_WORLD, .timeout_ms = 60000 };
	struct sheaf_error err = { .rank = -1 };
	struct bench_opts o;
	bool lost = false;
	int level, status;

	if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) {
		fprintf(stderr, "sheaf-bench: MPI does not start\n");
		return 2;
	}
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_rank(MPI_COMM_WORLD, &comm.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &comm.ranks);
	if (bench_opts_parse(&o, argc, argv, &err) < 0) {
		status = usage(&comm, &err);
	} else if (o.help) {
		if (comm.rank == 0)
			fputs(bench_usage, stdout);
		status = 0;
	} else {
		status = work(&o, comm, &lost);
	}
	fflush(NULL);
	if (lost)
		_exit(status);
	MPI_Finalize();
	return status;
}
