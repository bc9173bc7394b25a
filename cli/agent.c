/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf agent: the memory of a node that outlives its trainers. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "workload.h"

static volatile sig_atomic_t stopped;

static void on_signal(int sig)
{
	(void)sig;
	stopped = 1;
}

struct agent {
	const struct cli_args *a;
	char *run;                      /* owned; absolute */
	const char *socket, *hook;
	const char *grace;              /* seconds until then, in which another may come */
	bool flush;                     /* what is due when a job has died */
	int told;                       /* end of a pipe to who waits for us; -1 */
};

/* ---- programs ---- */

/* In a child: dispositions as they were, nothing of ours open. Never returns. */
static void become(const char *const *argv)
{
	sigset_t none;

	sigemptyset(&none);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execvp(argv[0], (char *const *)(uintptr_t)argv);
	fprintf(stderr, "sheaf: agent: %s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

static void start(const char *const *argv)
{
	fflush(NULL);
	switch (fork()) {
	case 0:
		become(argv);
		break;
	case -1:
		fprintf(stderr, "sheaf: agent: %s: %s\n", argv[0], strerror(errno));
		break;
	default: /* reaped by the kernel: SIGCHLD is ignored */
		break;
	}
}

static const char *hook_argv(const struct agent *g, int64_t step, const char *argv[4],
                             char number[24], char path[4200])
{
	snprintf(number, 24, "%lld", (long long)step);
	snprintf(path, 4200, "%s/checkpoint-%lld", g->run, (long long)step);
	argv[0] = g->hook;
	argv[1] = number;
	argv[2] = path;
	argv[3] = NULL;
	return argv[0];
}

/* ---- what the library tells ---- */

static int ready(void *arg, const char *socket)
{
	struct agent *g = arg;

	(void)socket;
	if (g->told >= 0) {
		(void)!write(g->told, "", 1);
		close(g->told);
		g->told = -1;
	}
	return 0;
}

/* By a process of its own, which asks us for the memory. */
static void died(void *arg, const char *job)
{
	struct agent *g = arg;
	const char *argv[14] = { "/proc/self/exe", "agent", g->run, "--flush", "--due", "--grace",
				 g->grace };
	int n = 7;

	(void)job;
	if (!g->flush)
		return;
	if (g->socket) {
		argv[n++] = "--socket";
		argv[n++] = g->socket;
	}
	if (g->hook) {
		argv[n++] = "--hook";
		argv[n++] = g->hook;
	}
	start(argv);
}

static void committed(void *arg, int64_t step)
{
	struct agent *g = arg;
	const char *argv[4];
	char number[24], path[4200];

	if (g->hook && hook_argv(g, step, argv, number, path))
		start(argv);
}

static int stop(void *arg)
{
	(void)arg;
	return stopped;
}

/* ---- being one ---- */

/* Two for each rank that is connected, one for each image and card. */
static void want_descriptors(void)
{
	struct rlimit r;

	if (!getrlimit(RLIMIT_NOFILE, &r) && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &r);
	}
}

static void take_signals(void)
{
	struct sigaction act = { .sa_handler = on_signal };
	sigset_t set;

	signal(SIGCHLD, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL); /* the library lets them in while it sleeps */
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGHUP, &act, NULL);
}

/* The parent leaves when the child can be reached: 0, or with the child's exit status. Returns in
 * the child. */
static int detach(struct agent *g)
{
	int ends[2], status = 0;
	pid_t child;
	char byte;

	if (pipe2(ends, O_CLOEXEC))
		return cli_error(g->a, SHEAF_EIO, g->run, strerror(errno), NULL);
	fflush(NULL);
	child = fork();
	if (child < 0)
		return cli_error(g->a, SHEAF_EIO, g->run, strerror(errno), NULL);
	if (child > 0) {
		close(ends[1]);
		if (read(ends[0], &byte, 1) == 1)
			_exit(0);
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			;
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
	}
	close(ends[0]);
	setsid();
	g->told = ends[1];
	return 0;
}

/* Nobody reads what a process of its own says, and nobody should wait for it to close. */
static int ready_detached(void *arg, const char *socket)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		close(null);
	}
	if (chdir("/"))
		return 1;
	return ready(arg, socket);
}

static int serve(struct agent *g)
{
	struct sheaf_agent_opts o = { .size = sizeof(o), .agent = g->socket, .arg = g,
		.ready = ready, .died = died, .committed = committed, .stop = stop };
	struct sheaf_error err = { .msg = "" };
	int64_t memory = 0, idle = 0, steps = 0;
	int rc = cli_int(g->a, "memory-max", 1, INT64_MAX, &memory);

	if (!rc)
		rc = cli_int(g->a, "idle", 1, INT32_MAX / 1000, &idle);
	if (!rc)
		rc = cli_int(g->a, "steps", 0, INT32_MAX, &steps);
	if (!rc && cli_value(g->a, "steps") && steps < 2)
		rc = cli_usage(g->a, "--steps", "one step is kept while the next is copied, so 2 "
		               "at least", NULL);
	if (!rc && cli_flag(g->a, "detach")) {
		o.ready = ready_detached;
		rc = detach(g);
	}
	if (rc)
		return rc;
	o.memory_max = (uint64_t)memory;
	o.idle_s = (int32_t)idle;
	o.steps_max = (int32_t)steps;
	take_signals();
	want_descriptors();
	rc = sheaf_agent_serve(g->run, &o, &err);
	if (rc == SHEAF_EBUSY && cli_flag(g->a, "detach")) { /* one serves: what was wanted */
		(void)ready_detached(g, "");
		return 0;
	}
	return rc < 0 ? cli_error(g->a, rc, g->run, err.msg, NULL) : 0;
}

/* ---- asking one ---- */

static int item(void *arg, const struct sheaf_memory *m)
{
	const struct agent *g = arg;
	char size[32];

	if (g->a->json) {
		cli_line(json_pack("{s:I,s:o,s:I,s:i,s:i,s:b,s:b,s:i}", "step",
				   (json_int_t)m->step, "session", cli_str(m->session), "bytes",
				   (json_int_t)m->bytes, "ranks", (int)m->ranks, "here",
				   (int)m->here, "due", m->due, "lost", m->lost, "tries",
				   (int)m->tries));
		return 0;
	}
	printf("%10lld  %10s  %d of %d ranks%s%s\n", (long long)m->step, wl_size(size, m->bytes),
	       (int)m->here, (int)m->ranks, m->due ? ", to be on disk and is not" : "",
	       m->lost ? ", rewound" : "");
	return 0;
}

static int status(const struct agent *g)
{
	struct sheaf_agent_info info = { .size = sizeof(info) };
	struct sheaf_error err = { .msg = "" };
	int rc = sheaf_agent_info(g->run, g->socket, &info, &err);
	char size[32], most[40] = "";

	if (info.steps_max)
		snprintf(most, sizeof(most), ", %d steps at most", (int)info.steps_max);
	if (rc == 0 && g->a->json)
		cli_line(json_pack("{s:I,s:i,s:I,s:o}", "pid", (json_int_t)info.pid, "users",
				   (int)info.users, "bytes", (json_int_t)info.bytes, "steps",
				   info.steps_max ? json_integer(info.steps_max) : json_null()));
	else if (rc == 0)
		printf("agent %llu keeps %s%s, %d connected\n", (unsigned long long)info.pid,
		       wl_size(size, info.bytes), most, (int)info.users);
	if (rc == 0)
		rc = sheaf_agent_list(g->run, g->socket, item, (void *)(uintptr_t)g, &err);
	if (rc == SHEAF_ENOENT) {
		(void)cli_error(g->a, rc, g->run, err.msg, NULL);
		return 1;
	}
	return rc < 0 ? cli_error(g->a, rc, g->run, err.msg, NULL) : 0;
}

/* A job that follows at once keeps what is in memory, and needs the run. */
static bool somebody_came(const struct agent *g, int64_t seconds)
{
	struct sheaf_agent_info info = { .size = sizeof(info) };
	struct sheaf_error err;

	for (; seconds > 0; seconds--) {
		sleep(1);
		if (sheaf_agent_info(g->run, g->socket, &info, &err) < 0 || info.users > 0)
			return true;
	}
	return false;
}

static int flush(const struct agent *g)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { .msg = "" };
	const char *argv[4];
	char number[24], path[4200];
	int64_t step = -1, grace = 0;
	int rc = cli_int(g->a, "grace", 0, 86400, &grace);

	if (rc || somebody_came(g, grace))
		return rc;
	rc = sheaf_agent_flush(g->run, g->socket, cli_flag(g->a, "due"), &step, &report, &err);

	if (rc < 0)
		return cli_error(g->a, rc, g->run, err.msg, NULL);
	if (g->a->json)
		cli_line(json_pack("{s:o,s:I}", "step", cli_num(step), "written",
				   (json_int_t)report.held));
	/* Of several nodes that wrote it, one published it. */
	if (step >= 0 && report.held && g->hook && hook_argv(g, step, argv, number, path)) {
		fflush(NULL);
		become(argv);
	}
	return step >= 0 || cli_flag(g->a, "due") ? 0 : 1;
}

/* Of a path that is relative, where it is now; a program that is looked for in PATH stays. */
static int absolute(const char **path, char room[4200])
{
	char here[4096];

	if (!*path || (*path)[0] == '/' || strcmp(*path, "auto") == 0 ||
	    (room[0] == 'p' && !strchr(*path, '/')))
		return 0;
	if (!getcwd(here, sizeof(here)) ||
	    snprintf(room, 4200, "%s/%s", here, *path) >= 4200)
		return -1;
	*path = room;
	return 0;
}

static int run(const struct cli_args *a)
{
	char socket[4200] = "", hook[4200] = "p";
	struct agent g = { .a = a, .told = -1 };
	struct sheaf_error err = { .msg = "" };
	int asks = cli_flag(a, "status") + cli_flag(a, "flush") + cli_flag(a, "stop"), rc;

	if (asks > 1)
		return cli_usage(a, "--status, --flush, --stop", "exclude each other", NULL);
	g.socket = cli_value(a, "socket");
	g.hook = cli_value(a, "hook");
	g.grace = cli_value(a, "grace") ? cli_value(a, "grace") : "15";
	g.flush = !cli_flag(a, "no-flush");
	g.run = realpath(a->pos[0], NULL);
	if (!g.run && errno == ENOENT && a->pos[0][0] != '/') { /* it is made: where we are */
		char here[4096];

		if (getcwd(here, sizeof(here)) &&
		    asprintf(&g.run, "%s/%s", here, a->pos[0]) < 0)
			g.run = NULL;
	} else if (!g.run) {
		g.run = strdup(a->pos[0]);
	}
	if (!g.run || absolute(&g.socket, socket) || absolute(&g.hook, hook)) {
		free(g.run);
		return cli_nomem(a);
	}
	if (cli_flag(a, "status"))
		rc = status(&g);
	else if (cli_flag(a, "flush"))
		rc = flush(&g);
	else if (cli_flag(a, "stop"))
		rc = sheaf_agent_stop(g.run, g.socket, &err) < 0
		     ? cli_error(a, err.code, g.run, err.msg, NULL) : 0;
	else
		rc = serve(&g);
	free(g.run);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "detach", NULL, "return when it can be reached, and go on serving" },
	{ "socket", "PATH", "where it listens (by the run's identity, below /tmp)" },
	{ "memory-max", "BYTES", "of all that it keeps (no bound)" },
	{ "steps", "N", "that a job may keep, 2 at least (as many as it has images)" },
	{ "idle", "SECONDS", "end after so long with nobody connected (never)" },
	{ "hook", "PROG", "run PROG STEP PATH when a step is on disk" },
	{ "no-flush", NULL, "write nothing when a job has died" },
	{ "grace", "SECONDS", "for another job to come, before that (15)" },
	{ "status", NULL, "ask it what it has; exit 1: nobody answers" },
	{ "flush", NULL, "write the newest step that is in memory alone; exit 1: none" },
	{ "due", NULL, "with --flush: only one whose save was to be on disk" },
	{ "stop", NULL, "end it; what it keeps is gone" },
	{ 0 },
};
const struct cli_verb cli_agent = {
	.name = "agent",
	.brief = "keep the newest steps in the memory of a node, beyond a crash",
	.synopsis = "sheaf agent RUN [--detach] [--socket PATH] [--memory-max BYTES]\n"
		    "       [--steps N] [--idle SECONDS] [--hook PROG] [--no-flush]\n"
		    "       [--grace SECONDS]\n"
		    "sheaf agent RUN --status | --flush [--due] | --stop [--socket PATH] [--json]",
	.text = "One process a node, started by the launcher before the trainer. It keeps the\n"
		"memory that the trainer's saves lie in, so that a job that follows a crash on\n"
		"the same node goes on from its newest step at the speed of memory. It knows\n"
		"nothing of what it keeps, listens on a socket that only the same user can\n"
		"reach, and sleeps until somebody asks.\n\n"
		"When the last process of a job dies without closing the run, the newest step\n"
		"whose save was to be on disk and is not is written by a process of its own, by\n"
		"the commit of every save, unless another job has come within the grace. With\n"
		"--flush the newest step of all is. Where a job ran on several nodes, the agent\n"
		"of each does so: they meet in RUN/.sheaf, each writes what its node has, and\n"
		"one publishes the step. Where one does not come, nothing appears.\n\n"
		"--hook runs a program for each step that has come to disk: a trainer's commit\n"
		"on the node of rank 0, or a flush. RUN is made where there is none.",
	.exits = "  0  it has ended as it should, or answered\n"
		 "  1  --status: nobody answers; --flush: nothing to write\n"
		 "  2  no such run, another one serves there, agents of other nodes have not\n"
		 "     come, or a disk failed",
	.examples = "  sheaf agent runs/gpt --detach && mpirun -n 8 train runs/gpt\n"
		    "  sheaf agent runs/gpt --status\n"
		    "  sheaf agent runs/gpt --flush",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "RUN",
	.run = run,
};
