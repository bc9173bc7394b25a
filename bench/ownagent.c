/* SPDX-License-Identifier: Apache-2.0 */
/* Agents for a measurement: the first rank of each node starts one, which is this program, too, and
 * which exits when that rank does. */
#include "bench.h"
#include "sheaf-agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- the agent -------------------------------------------------------------------------------- */

static volatile sig_atomic_t stopped;

static void on_signal(int sig)
{
	(void)sig;
	stopped = 1;
}

static int stop(void *arg)
{
	(void)arg;
	return stopped;
}

/* Standard output is a pipe to the parent, which waits for this byte. */
static int ready(void *arg, const char *socket)
{
	(void)arg;
	(void)socket;
	return write(STDOUT_FILENO, "r", 1) == 1 ? 0 : -1;
}

int bench_agent_serve(const char *run)
{
	struct sheaf_agent_opts opts = { .size = sizeof(opts), .ready = ready, .stop = stop };
	struct sigaction act = { .sa_handler = on_signal };
	struct sheaf_error err = { .rank = -1 };
	sigset_t set;
	int rc;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);     /* the library unblocks it while it sleeps */
	sigaction(SIGTERM, &act, NULL);
	rc = getppid() == 1 ? 0 : sheaf_agent_serve(run, &opts, &err);
	if (rc < 0) {
		fputs("sheaf-bench: agent: ", stderr);
		wl_put(stderr, err.msg);
		fputc('\n', stderr);
	}
	return rc < 0 ? 2 : 0;
}

/* --- the rank that starts it ------------------------------------------------------------------ */

static void become(const char *run, int out)
{
	const char *argv[] = { "sheaf-bench", "agent", run, NULL };
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	dup2(out, STDOUT_FILENO);
	execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
	_exit(127);
}

static int start(const char *run, int *pid, struct sheaf_error *err)
{
	int ends[2];
	ssize_t n;
	char byte;

	if (pipe2(ends, O_CLOEXEC) != 0)
		return wl_fail(err, SHEAF_EIO, "no pipe to an agent: %s", strerror(errno));
	fflush(NULL);
	*pid = fork();
	if (*pid == 0)
		become(run, ends[1]);
	close(ends[1]);
	do
		n = read(ends[0], &byte, 1);
	while (n < 0 && errno == EINTR);
	close(ends[0]);
	if (*pid > 0 && n == 1)
		return 0;
	bench_agent_end(pid);
	return wl_fail(err, SHEAF_EIO, "%.300s: no agent can be started", run);
}

int bench_agent_start(const struct bench_comm *c, const char *run, int *pid,
		      struct sheaf_error *err)
{
	MPI_Comm node;
	int rank = 0, rc = 0;

	*pid = 0;
	if (MPI_Comm_split_type(c->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) !=
	    MPI_SUCCESS)
		return wl_fail(err, SHEAF_ELOST, "MPI lost a rank");
	MPI_Comm_rank(node, &rank);
	MPI_Comm_free(&node);
	/* Rank 0 makes the run, the others open it. */
	if (c->rank == 0)
		rc = start(run, pid, err);
	rc = bench_agree(c, rc, err);
	if (rc == 0 && rank == 0 && c->rank != 0)
		rc = start(run, pid, err);
	rc = bench_agree(c, rc, err);
	if (rc < 0)
		bench_agent_end(pid);
	return rc;
}

void bench_agent_end(int *pid)
{
	if (*pid <= 0)
		return;
	kill(*pid, SIGTERM);
	while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR)
		;
	*pid = 0;
}
