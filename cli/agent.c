/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf agent: keeps checkpoints in the memory of a node after the trainers exit. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "sheaf-admin.h"
#include "sheaf-agent.h"
#include "workload.h"

#define LOG_MAX (1 << 20)
#define GRACE_S 15
#define BUSY_NS INT64_C(10000000000)    /* time for a killed agent to exit */
#define ABOUT sizeof(((struct sheaf_agent_info *)0)->about)
#define JOB_IS_THERE 1                  /* exit status of a flush with --grace and --due */

/* stopped: SIGTERM, SIGINT or SIGHUP has come; waited: the grace after that is over. */
static volatile sig_atomic_t stopped, waited;

static void on_signal(int sig)
{
	if (sig == SIGALRM)
		waited = 1;
	else if (sig != SIGCHLD)
		stopped = 1;
}

struct agent {
	const struct cli_args *a;
	char *run;                      /* owned; absolute */
	const char *socket, *hook;
	char listens[128];              /* the socket that the agent listens on */
	char about[ABOUT];              /* its options, as a command */
	int64_t memory, idle, steps;    /* values of the options with these names; 0: not given */
	int64_t grace;                  /* seconds for which a flush waits for another job */
	char log[4300];                 /* path of a detached agent's log; "": none yet */
	bool flush;                     /* write steps that are due after a job died, and before
	                                 * the agent ends because of a signal */
	pid_t last;                     /* the flush before the end; 0: none yet; -1: it found a
	                                 * job connected, whose end is awaited */
	bool died;                      /* a job died while `last` ran */
	int told;                       /* pipe to the process that waits for us, or -1 */
};

/* ---- programs ---- */

/* In a child: restores the signal dispositions and executes argv. Never returns. */
static void become(const char *const *argv)
{
	sigset_t none;

	sigemptyset(&none);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGALRM, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execvp(argv[0], (char *const *)(uintptr_t)argv);
	fprintf(stderr, "sheaf: agent: %s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

/* Makes the log beside the socket our standard error, which the programs that we start inherit.
 * Only a detached agent has a log. A log longer than LOG_MAX is emptied first. If the log cannot be
 * opened, standard error stays what it was. */
static void open_log(struct agent *g)
{
	struct stat st;
	int fd;

	if (!g->log[0])
		return;
	fd = open(g->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode)) {
		if (st.st_size > LOG_MAX)
			(void)!ftruncate(fd, 0);
		dup2(fd, STDERR_FILENO);
	}
	close(fd);
}

/* Starts a program, which the kernel reaps as long as SIGCHLD is ignored. Returns its process id,
 * or -1 after printing the error. */
static pid_t start(struct agent *g, const char *const *argv)
{
	pid_t child;

	open_log(g);
	fflush(NULL);
	child = fork();
	if (child == 0) {
		/* A second Ctrl-C goes to our whole process group. It must not end the command
		 * that runs because of the first. */
		if (stopped)
			setpgid(0, 0);
		become(argv);
	}
	if (child < 0)
		fprintf(stderr, "sheaf: agent: %s: %s\n", argv[0], strerror(errno));
	return child;
}

/* Asks the run for the path, because a run may name its steps by its own pattern. */
static void hook_path(const struct agent *g, int64_t step, char path[4200])
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	struct sheaf_run *run = NULL;

	if (sheaf_run_open(&run, g->run, NULL, &opts, NULL) < 0 ||
	    sheaf_run_path(run, step, path, 4200, NULL) < 0)
		snprintf(path, 4200, "%s/checkpoint-%lld", g->run, (long long)step);
	sheaf_run_close(run);
}

static const char *hook_argv(const struct agent *g, int64_t step, const char *argv[4],
                             char number[24], char path[4200])
{
	snprintf(number, 24, "%lld", (long long)step);
	hook_path(g, step, path);
	argv[0] = g->hook;
	argv[1] = number;
	argv[2] = path;
	argv[3] = NULL;
	return argv[0];
}

/* ---- callbacks ---- */

static int ready(void *arg, const char *socket)
{
	struct agent *g = arg;

	snprintf(g->listens, sizeof(g->listens), "%s", socket);
	if (g->told >= 0) {
		(void)!write(g->told, "", 1);
		close(g->told);
		g->told = -1;
	}
	return 0;
}

/* The run may have been renamed since we started. */
static void at(void *arg, const char *dir)
{
	struct agent *g = arg;
	char *run = strcmp(g->run, dir) ? strdup(dir) : NULL;

	if (!run)
		return;
	free(g->run);
	g->run = run;
}

/* Starts a process that flushes: it gets the steps from our memory. It gets the path of our socket,
 * too: with the path of the run it could find another run that is now there, and that run's agent.
 * grace: for how many seconds it waits for another job. Returns its process id, or -1. */
static pid_t start_flush(struct agent *g, int64_t grace)
{
	char seconds[24];
	const char *argv[14] = { "/proc/self/exe", "agent", g->run, "--flush", "--due", "--grace",
				 seconds, "--socket", g->listens };
	int n = 9;

	snprintf(seconds, sizeof(seconds), "%lld", (long long)grace);
	if (g->hook) {
		argv[n++] = "--hook";
		argv[n++] = g->hook;
	}
	return start(g, argv);
}

/* If the agent is about to end, no other job is waited for. */
static void died(void *arg, const char *job)
{
	struct agent *g = arg;

	(void)job;
	if (!g->flush)
		return;
	if (!stopped)
		(void)start_flush(g, g->grace);
	else if (g->last < 0)
		g->last = start_flush(g, 0);
	else
		g->died = true;
}

static void committed(void *arg, int64_t step)
{
	struct agent *g = arg;
	const char *argv[4];
	char number[24], path[4200];

	if (g->hook && hook_argv(g, step, argv, number, path))
		start(g, argv);
}

/* The library calls this after a signal, also when a child has exited. What the agent keeps is lost
 * at its end, so a step that is due is written before. The agent serves meanwhile, because the
 * flush reads the step from its memory.
 *
 * A signal that reaches the agent often reaches its job as well, which may end without writing its
 * steps. So while a job is connected the agent waits for its end, but not longer than the grace. */
static int stop(void *arg)
{
	struct agent *g = arg;
	int status = 0;

	if (!stopped || !g->flush || !g->listens[0])
		return stopped;
	if (g->last > 0 && waitpid(g->last, &status, WNOHANG) == 0)
		return 0;
	if (g->last > 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != JOB_IS_THERE))
		return 1;
	if (g->last == 0 || g->died) {
		g->died = false;
		signal(SIGCHLD, on_signal);     /* the end of this flush must be noticed */
		g->last = start_flush(g, 0);
		return g->last < 0;
	}
	if (g->last > 0)
		alarm((unsigned)g->grace);
	g->last = -1;
	return waited || !g->grace;
}

/* ---- serving ---- */

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
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
	sigaddset(&set, SIGALRM);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL); /* the library unblocks them while it sleeps */
	sigaction(SIGALRM, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGHUP, &act, NULL);
}

/* Returns in the child. The parent exits when the child accepts connections, with 0, or when the
 * child exits, with its exit status. */
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

/* The agent is ready. Closes the standard descriptors that it was started with, so that a program
 * that reads until they are closed does not wait for the agent. */
static int ready_detached(void *arg, const char *socket)
{
	struct agent *g = arg;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	snprintf(g->log, sizeof(g->log), "%s.log", socket);

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

static void about_add(char about[ABOUT], const char *option, int64_t value)
{
	size_t n = strlen(about);

	if (value)
		snprintf(about + n, ABOUT - n, " %s %lld", option, (long long)value);
}

/* Writes the options of this agent as a command, in a fixed order. The hook is last, because a long
 * text is cut. */
static void describe(const struct agent *g, char about[ABOUT])
{
	size_t n;

	snprintf(about, ABOUT, "sheaf agent RUN");
	about_add(about, "--memory-max", g->memory);
	about_add(about, "--steps", g->steps);
	about_add(about, "--idle", g->idle);
	n = strlen(about);
	if (!g->flush)
		snprintf(about + n, ABOUT - n, " --no-flush");
	else if (g->grace != GRACE_S)
		snprintf(about + n, ABOUT - n, " --grace %lld", (long long)g->grace);
	n = strlen(about);
	if (cli_value(g->a, "folder"))
		snprintf(about + n, ABOUT - n, " --folder %s", cli_value(g->a, "folder"));
	n = strlen(about);
	if (g->hook)
		snprintf(about + n, ABOUT - n, " --hook %s", g->hook);
}

/* Returns true if another agent serves there; *rc is then the exit status: 0 if that agent has the
 * same options. Returns false if no agent answers: one that is being killed still has its lock. */
static bool another(const struct agent *g, int *rc)
{
	struct sheaf_agent_info info = { .size = sizeof(info) };
	struct sheaf_error err = { .msg = "" };
	char why[ABOUT + 128];
	int asked = sheaf_agent_get_info(g->run, g->socket, &info, &err);

	if (asked < 0 && asked != SHEAF_EINVAL)
		return false;
	*rc = asked < 0 ? cli_error(g->a, asked, g->run, err.msg, NULL) : 0; /* of another run */
	if (asked < 0)
		return true;
	if (info.about[0] && strcmp(info.about, g->about)) {
		snprintf(why, sizeof(why), "agent %llu is already running there, with other "
		         "options: %s",
		         (unsigned long long)info.pid, info.about);
		*rc = cli_error(g->a, SHEAF_EBUSY, g->run, why, "sheaf agent RUN --stop ends it");
	}
	return true;
}

static int serve(struct agent *g)
{
	struct sheaf_agent_opts o = { .size = sizeof(o), .agent = g->socket, .arg = g,
		.ready = ready, .died = died, .committed = committed, .stop = stop, .at = at };
	struct sheaf_error err = { .msg = "" };
	int rc = 0;

	if (cli_flag(g->a, "detach")) {
		o.ready = ready_detached;
		rc = detach(g);
	}
	if (rc)
		return rc;
	o.memory_max = (uint64_t)g->memory;
	o.idle_s = (int32_t)g->idle;
	o.steps_max = (int32_t)g->steps;
	describe(g, g->about);
	o.about = g->about;
	o.folder = cli_value(g->a, "folder");
	take_signals();
	cli_want_descriptors(); /* two for each rank, one for each staging buffer and its header */
	rc = sheaf_agent_serve(g->run, &o, &err);
	for (int64_t from = now_ns(); rc == SHEAF_EBUSY && cli_flag(g->a, "detach");) {
		if (another(g, &rc))
			return rc;
		if (now_ns() - from > BUSY_NS)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
		rc = sheaf_agent_serve(g->run, &o, &err);
	}
	return rc < 0 ? cli_error(g->a, rc, g->run, err.msg, NULL) : 0;
}

/* ---- questions to an agent ---- */

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
	int rc = sheaf_agent_get_info(g->run, g->socket, &info, &err);
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

/* Returns 1 if the directory exists, 0 if it does not, and -1 if that is unknown: the path was cut
 * (sheaf_agent_info.dir), or access failed in another way. */
static int dir_is_there(const char *dir)
{
	if (dir[0] != '/')
		return -1;
	return access(dir, F_OK) == 0 ? 1 : errno == ENOENT || errno == ENOTDIR ? 0 : -1;
}

/* Prints one agent of this node (sheaf_agent_find). */
static int found(void *arg, const char *socket, const struct sheaf_agent_info *info)
{
	const struct agent *g = arg;
	int there = dir_is_there(info->dir);
	char size[32];

	if (g->a->json) {
		cli_line(json_pack("{s:I,s:i,s:I,s:o,s:o,s:o}", "pid", (json_int_t)info->pid,
		                   "users", (int)info->users, "bytes", (json_int_t)info->bytes,
		                   "socket", cli_str(socket), "run", cli_str(info->dir), "there",
		                   there < 0 ? json_null() : json_boolean(there)));
		return 0;
	}
	printf("agent %llu keeps %s, %d connected, run ", (unsigned long long)info->pid,
	       wl_size(size, info->bytes), (int)info->users);
	cli_put(stdout, info->dir[0] ? info->dir : "unknown");
	printf("%s, socket ", there ? "" : " (not there any more)");
	cli_put(stdout, socket);
	putchar('\n');
	return 0;
}

static int list(const struct agent *g)
{
	struct sheaf_error err = { .msg = "" };
	int rc = sheaf_agent_find(found, (void *)(uintptr_t)g, &err);

	return rc < 0 ? cli_error(g->a, rc, "", err.msg, NULL) : 0;
}

/* Stops the agent at a socket, for a run that was deleted. Such a run looks like one that was
 * moved, whose steps may be only in this memory. So an agent that keeps steps is stopped only with
 * --force. */
static int end_at_socket(const struct agent *g)
{
	struct sheaf_agent_info info = { .size = sizeof(info) };
	struct sheaf_error err = { .msg = "" };
	bool force = cli_flag(g->a, "force");
	int rc = force ? 0 : sheaf_agent_get_info(NULL, g->socket, &info, &err);

	if (rc == 0 && info.names > 0)
		return cli_error(g->a, SHEAF_EBUSY, g->socket, "this agent keeps steps, which may "
		                 "not be on disk", "name its run, or drop them with --stop "
		                 "--force");
	if (rc == 0)
		rc = sheaf_agent_stop(NULL, g->socket, &err);
	return rc < 0 && rc != SHEAF_ENOENT ? cli_error(g->a, rc, g->socket, err.msg, NULL) : 0;
}

struct due {
	int64_t step;                   /* the newest step that is due; -1: none */
};

static int note_due(void *arg, const struct sheaf_memory *m)
{
	struct due *d = arg;

	if (m->due && d->step < 0)
		d->step = m->step;
	return 0;
}

/* Stops the agent. This is refused while a step is due and no job is connected: a job writes its
 * steps itself, but a step that a dead job left would be lost. */
static int end(const struct agent *g)
{
	struct sheaf_agent_info info = { .size = sizeof(info) };
	struct sheaf_error err = { .msg = "" };
	struct due due = { -1 };
	char why[128];
	int rc = 0;

	if (!cli_flag(g->a, "force"))
		rc = sheaf_agent_get_info(g->run, g->socket, &info, &err);
	if (rc == 0 && !cli_flag(g->a, "force") && info.users == 0)
		rc = sheaf_agent_list(g->run, g->socket, note_due, &due, &err);
	if (rc == 0 && due.step >= 0) {
		snprintf(why, sizeof(why), "step %lld was to be written to disk, but is in memory "
		         "alone",
		         (long long)due.step);
		return cli_error(g->a, SHEAF_EBUSY, g->run, why, "sheaf agent RUN --flush --due "
		                 "writes it, --stop --force drops it");
	}
	if (rc == 0)
		rc = sheaf_agent_stop(g->run, g->socket, &err);
	/* No agent runs, as the caller wants it: a job's epilogue may call this twice. */
	if (rc == SHEAF_ENOENT && !access(g->run, F_OK)) {
		if (isatty(STDERR_FILENO))
			fputs("sheaf: agent: none was serving\n", stderr);
		return 0;
	}
	return rc < 0 ? cli_error(g->a, rc, g->run, err.msg, rc != SHEAF_ENOENT ? NULL
	                          : "if the run was deleted, sheaf agent --list names the socket, "
	                            "and sheaf agent --stop --socket PATH ends the agent") : 0;
}

/* Waits for the grace period, if one was given, and returns whether a job has connected to the
 * agent meanwhile. If so, this flush leaves the run to that job: it can load the step from memory,
 * and the agent starts another flush when the job ends. If the agent does not answer, this asks
 * again a second later. */
static bool somebody_came(const struct agent *g)
{
	struct sheaf_agent_info info = { .size = sizeof(info) };
	struct sheaf_error err;
	bool came = false;

	for (int64_t s = 0; cli_value(g->a, "grace") && !came && (s == 0 || s < g->grace); s++) {
		if (g->grace)
			sleep(1);
		came = sheaf_agent_get_info(g->run, g->socket, &info, &err) == 0 && info.users > 0;
	}
	return came;
}

static int flush(const struct agent *g)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { .msg = "" };
	const char *argv[4];
	char number[24], path[4200];
	int64_t step = -1;
	int rc;

	if (somebody_came(g))
		return JOB_IS_THERE;
	rc = sheaf_agent_flush(g->run, g->socket, cli_flag(g->a, "due"), &step, &report, &err);

	if (rc < 0)
		return cli_error(g->a, rc, g->run, err.msg, !cli_value(g->a, "grace") ? NULL :
		                 "the step stays in memory: sheaf agent RUN --flush --due tries "
		                 "again, with the present path of RUN");
	if (g->a->json)
		cli_line(json_pack("{s:o,s:I}", "step", cli_num(step), "written",
				   (json_int_t)report.held));
	/* Of the nodes that wrote the step, one published it. */
	if (step >= 0 && report.held && g->hook && hook_argv(g, step, argv, number, path)) {
		fflush(NULL);
		become(argv);
	}
	return step >= 0 || cli_flag(g->a, "due") ? 0 : 1;
}

/* Makes a relative path absolute. program: a name without a '/' is searched in PATH, and stays. */
static int absolute(const char **path, bool program, char room[4200])
{
	char here[4096];

	if (!*path || (*path)[0] == '/' || strcmp(*path, "auto") == 0 ||
	    (program && !strchr(*path, '/')))
		return 0;
	if (!getcwd(here, sizeof(here)) ||
	    snprintf(room, 4200, "%s/%s", here, *path) >= 4200)
		return -1;
	*path = room;
	return 0;
}

/* Reads and checks all options at once, because some are needed only after a job has died. */
static int values(struct agent *g)
{
	int rc = cli_bytes(g->a, "memory-max", 1, INT64_MAX, &g->memory);

	if (!rc)
		rc = cli_int(g->a, "idle", 1, INT32_MAX / 1000, &g->idle);
	if (!rc)
		rc = cli_int(g->a, "steps", 0, INT32_MAX, &g->steps);
	if (!rc && cli_value(g->a, "steps") && g->steps < 2)
		rc = cli_usage(g->a, "--steps", "must be at least 2, because one step is kept "
		               "while the next is copied", NULL);
	if (!rc)
		rc = cli_int(g->a, "grace", 0, 86400, &g->grace);
	if (!rc && g->hook && strchr(g->hook, '/') && access(g->hook, X_OK))
		rc = cli_usage(g->a, "--hook", strerror(errno), NULL);
	return rc;
}

/* Rejects options that only a new agent uses, because a running one would ignore them. --flush uses
 * the last two. */
static int check_unused(const struct cli_args *a, bool asks)
{
	static const char *const names[] = { "detach", "memory-max", "steps", "idle", "no-flush",
					     "hook", "grace" };
	size_t n = !asks ? 0 : cli_flag(a, "flush") ? 5 : 7;
	char option[32];

	for (size_t i = 0; i < n; i++) {
		if (!cli_value(a, names[i]))
			continue;
		snprintf(option, sizeof(option), "--%s", names[i]);
		return cli_usage(a, option, "an agent that serves keeps the options that it was "
		                 "started with", NULL);
	}
	return 0;
}

static int act(struct agent *g)
{
	if (cli_flag(g->a, "status"))
		return status(g);
	if (cli_flag(g->a, "flush"))
		return flush(g);
	if (cli_flag(g->a, "list"))
		return list(g);
	if (!cli_flag(g->a, "stop"))
		return serve(g);
	return g->run ? end(g) : end_at_socket(g);
}

/* Sets the absolute path of RUN, if RUN is given. A run that does not exist yet is one in the
 * current directory. */
static int find_run(struct agent *g)
{
	const char *path = g->a->pos_n ? g->a->pos[0] : NULL;
	char here[4096];

	if (!path)
		return 0;
	g->run = realpath(path, NULL);
	if (!g->run && errno == ENOENT && path[0] != '/') {
		if (getcwd(here, sizeof(here)) && asprintf(&g->run, "%s/%s", here, path) < 0)
			g->run = NULL;
	} else if (!g->run) {
		g->run = strdup(path);
	}
	return g->run ? 0 : -1;
}

/* Checks that at most one action is given, and RUN or --socket if the action needs one. */
static int check_verb(const struct cli_args *a)
{
	bool stop = cli_flag(a, "stop"), list = cli_flag(a, "list");
	int asks = cli_flag(a, "status") + cli_flag(a, "flush") + stop + list;

	if (asks > 1)
		return cli_usage(a, "--status, --flush, --stop, --list", "only one of these can "
		                 "be given", NULL);
	if (list && (a->pos_n || cli_value(a, "socket")))
		return cli_usage(a, "--list", "this option takes no RUN and no --socket", NULL);
	if (!a->pos_n && !list && !(stop && cli_value(a, "socket")))
		return cli_usage(a, "RUN", "an argument is missing", NULL);
	return check_unused(a, asks > 0);
}

static int run(const struct cli_args *a)
{
	char socket[4200], hook[4200];
	struct agent g = { .a = a, .told = -1, .grace = cli_flag(a, "flush") ? 0 : GRACE_S };
	int rc = check_verb(a);

	if (rc)
		return rc;
	if (cli_flag(a, "force") && !cli_flag(a, "stop"))
		return cli_usage(a, "--force", "this option belongs to --stop", NULL);
	if (cli_flag(a, "due") && !cli_flag(a, "flush"))
		return cli_usage(a, "--due", "this option belongs to --flush", NULL);
	g.socket = cli_value(a, "socket");
	g.hook = cli_value(a, "hook");
	g.flush = !cli_flag(a, "no-flush");
	if (find_run(&g) || absolute(&g.socket, false, socket) || absolute(&g.hook, true, hook)) {
		free(g.run);
		return cli_nomem(a);
	}
	rc = values(&g);
	if (!rc)
		rc = act(&g);
	free(g.run);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "detach", NULL, "return when it can be reached, and go on serving" },
	{ "socket", "PATH", "where it listens (by the run's identity, below /tmp)" },
	{ "memory-max", "BYTES", "memory limit for everything kept, as 64G (none)" },
	{ "steps", "N", "checkpoints kept for each job at most, at least 2" },
	{ "idle", "SECONDS", "end when no job was connected for so long (never)" },
	{ "folder", "PATTERN", "how a run that it makes names its checkpoints (checkpoint-{n})" },
	{ "hook", "PROG", "run PROG STEP PATH when a step is on disk" },
	{ "no-flush", NULL, "write nothing when a job has died" },
	{ "grace", "SECONDS", "wait for the next job before writing (15)" },
	{ "status", NULL, "ask it what it has; exit 1: none answers" },
	{ "flush", NULL, "write the newest step that is in memory alone; exit 1: none" },
	{ "due", NULL, "with --flush: only one whose save was to be on disk" },
	{ "list", NULL, "the agents of this user on this node, and their runs" },
	{ "stop", NULL, "end it; what it keeps is gone. Refused while a step is due" },
	{ "force", NULL, "with --stop: also then" },
	{ 0 },
};
const struct cli_verb cli_agent = {
	.name = "agent",
	.brief = "keep the newest steps in the memory of a node, beyond a crash",
	.synopsis = "sheaf agent RUN [--detach] [--socket PATH] [--memory-max BYTES]\n"
		    "       [--steps N] [--idle SECONDS] [--folder PATTERN] [--hook PROG]\n"
		    "       [--no-flush] [--grace SECONDS]\n"
		    "sheaf agent RUN --status | --flush [--due] | --stop [--force]\n"
		    "       [--socket PATH] [--json]\n"
		    "sheaf agent --list [--json]\n"
		    "sheaf agent --stop --socket PATH [--force]",
	.text = "The launcher starts one agent on each node before the trainer. It keeps the\n"
		"memory of the trainer's saves, so that after a crash the next job on the same\n"
		"node resumes from the newest step at the speed of memory. It listens on a\n"
		"socket that only the same user can reach, and uses no processor time until it\n"
		"is asked.\n\n"
		"When the last process of a job dies without closing the run, the agent waits\n"
		"for the next job (--grace). If none connects, it starts a process that writes\n"
		"the newest step that was meant for the disk and is in memory alone, by the\n"
		"normal commit. --flush writes the newest step of all. If a job ran on several\n"
		"nodes, the agent of each writes what its node has, and one of them publishes\n"
		"the step. If one agent does not take part, nothing appears.\n\n"
		"At SIGTERM, SIGINT or SIGHUP the agent first writes a step that was meant for\n"
		"the disk and is in memory alone, without the grace, and then ends. If a job is\n"
		"connected, it first waits for the end of that job, for the grace at most. With\n"
		"--no-flush it ends at once. After SIGKILL what it kept is lost.\n\n"
		"--stop is refused while a step that was to be on disk is in memory alone and no\n"
		"job is connected that would write it: --flush --due does, --force drops it.\n"
		"If RUN was deleted, name its agent by the socket alone. Then --stop is refused\n"
		"while the agent keeps anything, because the run may only have been moved.\n"
		"--list prints the sockets of all agents that were started without --socket.\n\n"
		"Where an agent serves RUN already, --detach succeeds and changes nothing. If\n"
		"that agent has other options, it keeps them; --detach fails and says which.\n\n"
		"--hook runs a program for each step that has come to disk: a trainer's commit\n"
		"on the node of rank 0, or a flush. RUN is made where there is none. If RUN is\n"
		"renamed while the agent serves it, the agent learns the new path from the next\n"
		"job that opens it, a running job's next commit to disk, or --status.\n\n"
		"What a detached agent, its flushes and its hook write to their standard error\n"
		"is in a file beside the socket, named like it with .log at the end: a flush\n"
		"that failed says there why.",
	.exits = "  0  it has ended as it should, or answered\n"
		 "     (--stop: also if there was none)\n"
		 "  1  --status: none answers, or no such run; --flush without --due: nothing\n"
		 "     to write; --flush with --grace: a job came, and nothing was written\n"
		 "  2  no such run, another one serves there, agents of other nodes have not\n"
		 "     come, a disk failed, or --stop was refused",
	.examples = "  sheaf agent runs/gpt --detach && mpirun -n 8 train runs/gpt\n"
		    "  sheaf agent runs/gpt --status\n"
		    "  sheaf agent runs/gpt --flush",
	.opts = opts,
	.pos_min = 0,
	.pos_max = 1,
	.pos_names = "RUN",
	.run = run,
};
