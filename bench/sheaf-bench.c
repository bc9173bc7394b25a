/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-bench: the workload for tests and for users, on MPI
 *
 * All errors in the command line, the description and the mesh are found on every rank before the
 * run is changed: every rank exits with 2, and one rank prints the message.
 */
#include "bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "sheaf-mpi.h"
#include "sheaf-inspect.h"
#include "sheaf-state.h"

#define LIKE_MAX 4096

static int open_like(struct sheaf_checkpoint **like, const char *text, struct sheaf_error *err)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	struct sheaf_error why = { .msg = "" };
	struct sheaf_run *run = NULL;
	char dir[LIKE_MAX];
	int64_t step;
	size_t n;
	int rc;

	if (wl_step_at(text, &n, &step) == 0 && n < sizeof(dir)) {
		memcpy(dir, text, n);
		dir[n] = '\0';
		rc = sheaf_run_open(&run, dir, NULL, &opts, &why);
		if (rc == 0)
			rc = sheaf_checkpoint_open(like, run, step, &why);
		sheaf_run_close(run);
	} else {
		rc = sheaf_checkpoint_open_path(like, text, NULL, NULL, &why);
	}
	if (rc < 0)
		wl_fail(err, rc, "--like %.150s: %.200s%s", text, why.msg, rc != SHEAF_ENOENT ? ""
		        : " (it takes RUN@STEP, RUN@latest, a checkpoint, a Hugging Face directory "
		          "or a safetensors file)");
	return rc;
}

static int load_model(struct bench *b, struct sheaf_error *err)
{
	const struct bench_opts *o = b->o;
	int rc;

	if (o->state) {
		rc = wl_model_read(&b->model, o->state, err);
	} else if (o->preset) {
		rc = wl_model_preset(&b->model, o->preset, o->gb, o->adam, err);
	} else {
		rc = open_like(&b->like, o->like, err);
		if (rc == 0)
			rc = wl_model_like(&b->model, b->like, false, err);
	}
	if (rc == 0 && (o->adam || b->model.adam))
		rc = wl_model_adam(&b->model, err);
	/* Experts are counted and ties resolved over all families, before families are dropped. */
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

static int add_averages(struct bench *b, struct sheaf_error *err)
{
	struct sheaf_ema ema = { .size = sizeof(ema), .coef = b->o->ema };
	int rc = b->o->ema < 0 ? 0 : sheaf_state_ema(b->state, NULL, &ema, NULL);

	return rc < 0 ? wl_fail(err, rc, "--ema: %s", sheaf_strerror(rc)) : 0;
}

static int load_states(struct bench *b, struct sheaf_error *err)
{
	int rc = wl_held_init(&b->held, &b->model, &b->from, b->comm.rank, true, err);

	/* All families but the model are optimizer state in host memory. */
	for (size_t i = 0; rc == 0 && b->o->in_place && i < b->held.n; i++)
		if (strcmp(b->model.t[b->held.p[i].tensor].family, "model") != 0)
			b->held.p[i].slice.flags |= SHEAF_SLICE_IN_PLACE;
	if (rc == 0)
		rc = wl_held_state(&b->held, &b->state, err);
	if (rc == 0)
		rc = add_averages(b, err);
	if (rc == 0 && b->o->to)
		rc = wl_held_init(&b->held_to, &b->model, &b->to, b->comm.rank, true, err);
	if (rc == 0 && b->o->to)
		rc = wl_held_state(&b->held_to, &b->state_to, err);
	return rc;
}

/* Puts the file's name before an error in a description, unless the message has it. */
static void name_file(const struct bench_opts *o, struct sheaf_error *err)
{
	const char *path = o->state ? o->state : o->like;
	char msg[sizeof(err->msg)];

	if (!path || strncmp(err->msg, path, strnlen(path, 300)) == 0)
		return;
	memcpy(msg, err->msg, sizeof(msg));
	msg[sizeof(msg) - 1] = '\0';
	snprintf(err->msg, sizeof(err->msg), "%.190s: %.300s", path, msg);
}

/* Reads the files that --like attaches now, and keeps them in memory, so that an unreadable file is
 * not found only during a save. */
static int read_files(const struct bench *b, struct sheaf_error *err)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	const char *file;
	const void *bytes;
	uint64_t n;
	size_t got;
	int rc;

	if (!b->like || b->comm.rank != 0 || b->o->verb == BENCH_LOAD ||
	    sheaf_checkpoint_get_info(b->like, &info, NULL) < 0 || strcmp(info.format,
	                                                            "safetensors") == 0)
		return 0;
	for (size_t i = 0; sheaf_checkpoint_file_at(b->like, i, &file, &n, NULL) == 0; i++) {
		if (!wl_attachable(file, n))
			continue;
		rc = sheaf_checkpoint_file(b->like, file, &bytes, &got, NULL);
		if (rc < 0)
			return wl_fail(err, rc, "%.300s/%.128s: cannot be attached: %s", b->o->like,
				       file, sheaf_strerror(rc));
	}
	return 0;
}

static int prepare(struct bench *b, struct sheaf_error *err)
{
	int rc = load_layouts(b, err);

	if (rc == 0)
		rc = load_model(b, err);
	if (rc == 0)
		rc = read_files(b, err);
	if (rc == 0)
		rc = load_states(b, err);
	if (rc < 0 && b->model.n)
		name_file(b->o, err);
	if (rc == 0)
		rc = bench_events_open(&b->events, b->o, b->comm.rank, err);
	return bench_agree(&b->comm, rc, err);
}

static void release(struct bench *b)
{
	sheaf_state_free(b->state);
	sheaf_state_free(b->state_to);
	sheaf_checkpoint_close(b->like);
	sheaf_group_free(b->group);
	sheaf_group_free(b->behind);
	sheaf_group_free(b->commits);
	wl_held_release(&b->held);
	wl_held_release(&b->held_to);
	wl_model_release(&b->model);
	bench_events_close(&b->events);
}

/* Prints the error on the rank where it happened; all ranks have the message. */
static int refuse(const struct bench_comm *c, const struct sheaf_error *err, const char *hint)
{
	int who = err->rank >= 0 && err->rank < c->ranks ? err->rank : 0;

	if (c->rank == who) {
		fputs("sheaf-bench: ", stderr);
		wl_put(stderr, err->msg);
		fprintf(stderr, "%s\n", hint);
	}
	return 2;
}

/* Makes all ranks agree on the result, so that a rank that was started with other arguments does
 * not leave the rest waiting. */
static int parse(const struct bench_comm *c, struct bench_opts *o, int argc, char **argv,
		 struct sheaf_error *err)
{
	int rc = bench_agree(c, bench_opts_parse(o, argc, argv, err), err);
	uint64_t help = o->help;

	if (rc == 0)
		rc = bench_reduce(c, &help, 1, MPI_MAX, err);
	o->help = help;
	return rc;
}

/* Returns the exit status. *lost: other ranks may be gone, so MPI_Finalize must not be called. */
static int work(struct bench_opts *o, struct bench_comm comm, bool *lost)
{
	int failed = 0;
	struct bench b = { .o = o, .comm = comm, .events = { .fd = -1, .failed = &failed } };
	uint64_t untold;
	struct sheaf_error err = { .rank = -1 };
	int32_t node = 0;
	bool behind = o->copies_behind || o->commit_behind;
	int rc;

	b.comm.timeout_ms = (int)o->timeout_ms;
	rc = prepare(&b, &err);
	if (rc != 0) {
		*lost = rc == SHEAF_ELOST;
		rc = refuse(&comm, &err, "");
		goto out;
	}
	if (o->nodes)
		node = 1 + (int32_t)((int64_t)comm.rank * o->nodes / comm.ranks);
	rc = sheaf_group_mpi(&b.group, comm.comm, node, NULL);
	if (rc == 0 && behind)
		rc = comm.threads ? sheaf_group_mpi(o->copies_behind ? &b.behind : &b.commits,
		                                    comm.comm, node, NULL) : SHEAF_EINVAL;
	if (rc < 0 && behind && !comm.threads) {
		wl_fail(&err, rc, "--%s-behind: needs an MPI with MPI_THREAD_MULTIPLE",
		        o->copies_behind ? "copies" : "commit");
		bench_error(&b, -1, rc, &err);
	} else if (rc < 0) {
		wl_fail(&err, rc, "making a group over MPI: %s", sheaf_strerror(rc));
		bench_error(&b, -1, rc, &err);
	} else {
		rc = o->verb == BENCH_STALL ? bench_stall(&b) : bench_run(&b);
		untold = (uint64_t)failed;
		if (rc != SHEAF_ELOST && bench_reduce(&b.comm, &untold, 1, MPI_MAX, &err) < 0)
			rc = SHEAF_ELOST;
		else if (rc == 0 && untold)
			rc = SHEAF_EIO;
	}
	*lost = rc == SHEAF_ELOST;
	rc = bench_exit_code(rc);
out:
	if (!*lost)
		release(&b);
	return rc;
}

/* Returns the MPI thread level, which is needed before options are parsed. */
static int level_for(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--copies-behind") == 0 ||
		    strcmp(argv[i], "--commit-behind") == 0)
			return MPI_THREAD_MULTIPLE;
	return MPI_THREAD_FUNNELED;
}

int main(int argc, char **argv)
{
	struct bench_comm comm = { .comm = MPI_COMM_WORLD, .timeout_ms = 60000 };
	struct sheaf_error err = { .rank = -1 };
	struct bench_opts o = { 0 };
	bool lost = false;
	int level, status;

	if (argc == 3 && strcmp(argv[1], "agent") == 0)
		return bench_agent_serve(argv[2]);
	if (MPI_Init_thread(&argc, &argv, level_for(argc, argv), &level) != MPI_SUCCESS) {
		fprintf(stderr, "sheaf-bench: MPI does not start\n");
		return 2;
	}
	comm.threads = level >= MPI_THREAD_MULTIPLE;
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_rank(MPI_COMM_WORLD, &comm.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &comm.ranks);
	status = parse(&comm, &o, argc, argv, &err);
	if (status < 0) {
		lost = status == SHEAF_ELOST;
		status = refuse(&comm, &err, " (sheaf-bench --help)");
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
