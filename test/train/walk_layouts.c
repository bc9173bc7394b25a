/* SPDX-License-Identifier: Apache-2.0 */
/* Trains one layout after the other in one MPI job, each on a communicator of the ranks that it
 * needs, so that MPI starts once. layouts.py compares what they write.
 *
 * usage: mpirun -n RANKS walk_layouts CONFIG DIR LAYOUT...
 *
 * LAYOUT is NAME:RANKS:OPTIONS, the options as YAML. Its events are in DIR/NAME.events, and its run
 * is DIR/NAME unless the options set another. Rank 0 prints NAME and the result of each. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "configread.h"
#include "ranks_mpi.h"
#include "trainloop.h"

struct walk {
	const char *config, *dir;
	int rank, ranks;
};

static int read_options(struct tr_opts *o, const struct walk *w, const char *name,
			const char *more, struct tr_error *err)
{
	char run[4000], *text = NULL;
	size_t n;
	int rc = tr_opts_init(o, err);

	snprintf(run, sizeof(run), "%s/%s", w->dir, name);
	if (rc == 0)
		rc = tr_config_read(w->config, &text, &n, err);
	if (rc == 0)
		rc = tr_opts_set(o, "run", run, TR_FROM_FLAG, "--", err);
	if (rc == 0)
		rc = tr_opts_read_yaml(o, more, strlen(more), name, TR_FROM_FLAG, err);
	if (rc == 0)
		rc = tr_opts_read_yaml(o, text, n, w->config, TR_FROM_FILE, err);
	free(text);
	return rc;
}

static int train(const struct walk *w, MPI_Comm comm, const char *name, const char *more,
		 struct tr_error *err)
{
	char path[4000];
	struct tr_events events = { .fd = -1 };
	struct tr_ranks ranks = { .n = 0 };
	struct tr_opts o;
	int rc = read_options(&o, w, name, more, err);

	snprintf(path, sizeof(path), "%s/%s.events", w->dir, name);
	if (rc == 0)
		rc = tr_ranks_mpi(&ranks, comm, (int)o.timeout_ms, err);
	if (rc == 0)
		rc = tr_events_open(&events, ranks.rank == 0, 0, path, err);
	if (rc == 0)
		rc = tr_train(&ranks, &o, &events, NULL, err);
	tr_events_close(&events);
	tr_ranks_free(&ranks);
	tr_opts_release(&o);
	return rc;
}

/* Waits for all ranks, and leaves the cores to those that train. */
static void wait_for_all(void)
{
	const struct timespec nap = { .tv_nsec = 2000000 };
	MPI_Request all;
	int done = 0;

	MPI_Ibarrier(MPI_COMM_WORLD, &all);
	while (!done) {
		MPI_Test(&all, &done, MPI_STATUS_IGNORE);
		if (!done)
			nanosleep(&nap, NULL);
	}
}

/* Returns 0 if the argument is no layout. */
static int walk_to(const struct walk *w, char *layout)
{
	char *n = strchr(layout, ':'), *more = n ? strchr(n + 1, ':') : NULL;
	struct tr_error err = { .rank = -1 };
	int ranks = n ? atoi(n + 1) : 0, rc = 0;
	MPI_Comm comm;

	if (!more || ranks < 1 || ranks > w->ranks)
		return 0;
	*n = *more = 0;
	MPI_Comm_split(MPI_COMM_WORLD, w->rank < ranks ? 0 : MPI_UNDEFINED, w->rank, &comm);
	if (w->rank < ranks) {
		rc = train(w, comm, layout, more + 1, &err);
		MPI_Comm_free(&comm);
	}
	if (w->rank == 0)
		printf("%s %d %s\n", layout, rc, rc < 0 ? err.msg : "");
	fflush(stdout);
	if (rc == TR_ELOST)
		_exit(2);       /* the others would wait */
	wait_for_all();
	return 1;
}

int main(int argc, char **argv)
{
	struct walk w = { .config = argc > 3 ? argv[1] : NULL, .dir = argc > 3 ? argv[2] : NULL };
	int level, good = argc > 3;

	MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
	MPI_Comm_rank(MPI_COMM_WORLD, &w.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &w.ranks);
	for (int i = 3; good && i < argc; i++)
		good = walk_to(&w, argv[i]);
	if (!good && w.rank == 0)
		fputs("usage: walk_layouts CONFIG DIR NAME:RANKS:OPTIONS...\n", stderr);
	MPI_Finalize();
	return good ? 0 : 2;
}
