/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence with real processes, the real library and the real command. This process opens no run:
 * each rank of a job is a child that receives the calls to make, and calls outside of jobs are made
 * by a new child or by the command. There is one node, this machine. */
#include "model_world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "procself.h"
#include "realgroup.h"

const char *const world_runs[RUNS] = { "run0", "run1", "run2" };
const int world_nodes = 1;

struct rank {
	pid_t pid;
	int to; /* socket for calls and replies */
};
struct job {
	bool open, writes;
	int ranks;
	char dir[8]; /* the name of its directory when the job opened it */
	struct rank rank[RANKS_MAX];
	struct realgroup *group;
	pid_t child; /* forked by rank 0; 0: none */
	int child_to;
};
struct world {
	char base[64];
	char *sheaf; /* path of the command; owned */
	struct job jobs[JOBS];
	bool agents, has_agent[RUNS];
	bool flush; /* agents write due steps of killed jobs */
	int home; /* the initial working directory */
};
struct order { /* a message to a child */
	struct call call;
	char dir[8];
};

/* ---- children ---- */

static void send_all(int fd, const void *bytes, size_t n)
{
	if (send(fd, bytes, n, MSG_NOSIGNAL) != (ssize_t)n && errno != EPIPE && errno != ECONNRESET)
		abort();
}

static bool receive_all(int fd, void *bytes, size_t n)
{
	return recv(fd, bytes, n, MSG_WAITALL) == (ssize_t)n;
}

/* Runs a child that a rank has forked. The child inherits the handles of the rank, and frees them
 * when it receives an order to. */
static void be_child(struct actor *a, int from)
{
	struct order o;
	struct reply r = { 0 };

	while (receive_all(from, &o, sizeof(o))) {
		if (o.call.kind == C_CHILD_CLOSE && a->state) {
			actor_bury(a);
			a->state = NULL;
		}
		send_all(from, &r, sizeof(r));
	}
	_exit(0);
}

/* Forks a child of rank 0. The socket for the child was made before this process. */
static pid_t fork_child(struct actor *a, int child_end)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, 0);
		be_child(a, child_end);
	}
	return pid;
}

static void be_rank(const struct call *open, int rank, struct realgroup *g, int from, int child_end)
{
	static struct actor a;
	struct order o;
	struct reply r;
	int fds = procself_fds();

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGCHLD, SIG_IGN);
	actor_init(&a, open, rank, realgroup_join(g, rank));
	while (receive_all(from, &o, sizeof(o))) {
		if (o.call.kind == C_FORK) {
			r = (struct reply){ .id = -1, .step = -1 };
			r.pruned = fork_child(&a, child_end);
		} else {
			actor_do(&a, &o.call, o.dir, NULL, &r);
		}
		if (o.call.kind == C_CLOSE && procself_fds() != fds) {
			snprintf(r.msg, sizeof(r.msg), "%d descriptors are left open",
				 procself_fds() - fds);
			r.rc = SHEAF_EBUG;
		}
		send_all(from, &r, sizeof(r));
	}
	_exit(0);
}

static void channel(int ends[2])
{
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0)
		abort();
}

/* Closes the sockets of other processes in each child, so that each process notices when its own is
 * closed. */
static void close_others(const struct world *w, const struct job *mine)
{
	for (int i = 0; i < JOBS; i++)
		for (int r = 0; r < RANKS_MAX; r++)
			if (&w->jobs[i] != mine && w->jobs[i].rank[r].pid)
				close(w->jobs[i].rank[r].to);
}

/* A call outside of jobs, or a look at a run, by a new process that then exits. It inherits no
 * handle of the library. */
struct errand {
	const struct call *call; /* NULL: look */
	const char *dir, *to;
	bool agent, load;
};

static void run_errand(struct world *w, const struct errand *e, struct reply *r)
{
	struct reply *out =
	    mmap(NULL, sizeof(*out), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid;
	int status = -1;

	if (out == MAP_FAILED)
		abort();
	pid = fork();
	if (pid == 0) {
		static struct reply own;
		int fds;

		close_others(w, NULL);
		fds = procself_fds();
		if (e->call)
			actor_do(NULL, e->call, e->dir, e->to, &own);
		else
			actor_look(e->dir, e->agent, e->load, &own);
		if (procself_fds() != fds)
			own.rc = SHEAF_EBUG;
		*out = own;
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status) {
		out->rc = SHEAF_EBUG;
		snprintf(out->msg, sizeof(out->msg), "its process ended with %d", status);
	}
	*r = *out;
	munmap(out, sizeof(*out));
}

/* ---- the command ---- */

static int code_of(const char *text)
{
	char want[32];

	for (int i = 1; sheaf_code_name(-i); i++) {
		snprintf(want, sizeof(want), "\"error\":\"%s\"", sheaf_code_name(-i));
		if (strstr(text, want))
			return -i;
	}
	return SHEAF_EBUG;
}

/* Runs the command. Its exit status becomes a code, its output r->msg. */
static void command(struct world *w, struct reply *r, const char *const args[])
{
	int ends[2], status = 0;
	ssize_t n, all = 0;
	pid_t pid;

	if (pipe(ends) < 0)
		abort();
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		close_others(w, NULL);
		dup2(null, 0);
		dup2(null, 1);
		dup2(ends[1], 2);
		close(null);
		close(ends[0]);
		close(ends[1]);
		execv(w->sheaf, (char *const *)(uintptr_t)args);
		_exit(127);
	}
	close(ends[1]);
	while ((n = read(ends[0], r->msg + all, sizeof(r->msg) - 1 - (size_t)all)) > 0)
		all += n;
	r->msg[all] = '\0';
	close(ends[0]);
	waitpid(pid, &status, 0);
	if (status)
		r->rc = code_of(r->msg);
}

static void do_command(struct world *w, const struct call *c, struct reply *r)
{
	char of[40], keep[16];
	const char *args[12] = { w->sheaf, NULL, of, NULL };
	int n = 3;

	if (c->step < 0)
		snprintf(of, sizeof(of), "%s@latest", world_runs[c->run]);
	else
		snprintf(of, sizeof(of), "%s@%lld", world_runs[c->run], (long long)c->step);
	if (c->kind == C_RUN_REWIND) {
		args[1] = "rewind";
	} else if (c->kind == C_RUN_MARK) {
		args[1] = "mark";
		args[n++] = c->n == 'b' ? "bad" : c->n == 'k' ? "keep" : "none";
	} else {
		args[1] = "prune";
		snprintf(of, sizeof(of), "%s", world_runs[c->run]);
		snprintf(keep, sizeof(keep), "%d", c->keep);
		args[n++] = "--keep-last";
		args[n++] = keep;
		args[n++] = "--apply";
		args[n++] = "--grace";
		args[n++] = "0";
	}
	args[n++] = "--timeout-ms";
	args[n++] = "2000";
	args[n++] = "--json";
	command(w, r, args);
}

/* ---- agents ---- */

static void agent_start(struct world *w, int run)
{
	const char *args[] = { w->sheaf, "agent",  world_runs[run], "--detach", "--grace",
			       "1",      "--json", w->flush ? NULL : "--no-flush", NULL };
	struct reply r = { .rc = 0 };

	if (!w->agents || w->has_agent[run])
		return;
	command(w, &r, args);
	w->has_agent[run] = r.rc == 0;
	if (r.rc)
		fprintf(stderr, "an agent does not start: %s\n", r.msg);
}

/* Returns the result of `ask` for a run. A child calls it, because this process opens no run. */
static int64_t asked(struct world *w, int run, int64_t (*ask)(const char *dir))
{
	int64_t got, *answer = mmap(NULL, sizeof(*answer), PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid;

	if (answer == MAP_FAILED)
		abort();
	pid = fork();
	if (pid == 0) {
		close_others(w, NULL);
		*answer = ask(world_runs[run]);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	got = *answer;
	munmap(answer, sizeof(*answer));
	return got;
}

static void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

static void agent_kill(struct world *w, int run)
{
	pid_t pid = w->has_agent[run] ? (pid_t)asked(w, run, actor_agent_pid) : 0;

	if (pid > 1) {
		kill(pid, SIGKILL);
		for (int i = 0; i < 1000 && waitpid(pid, NULL, WNOHANG) == 0; i++)
			pause_ms(1);
	}
	w->has_agent[run] = false;
}

/* ---- the machine ---- */

static void remove_tree(const char *path)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl("/bin/rm", "rm", "-rf", path, (char *)NULL);
		_exit(127);
	}
	waitpid(pid, NULL, 0);
}

struct world *world_new(uint64_t seed, bool agents, bool story)
{
	struct world *w = calloc(1, sizeof(*w));
	const char *sheaf = getenv("SHEAF");

	(void)story;
	if (!w)
		abort();
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	w->agents = agents;
	w->flush = seed % 2;
	w->sheaf = sheaf ? realpath(sheaf, NULL) : NULL;
	if (!w->sheaf) {
		fputs("SHEAF must name the command\n", stderr);
		exit(2);
	}
	snprintf(w->base, sizeof(w->base), "%s/sheaf-model.XXXXXX",
		 getenv("TMPDIR") && strlen(getenv("TMPDIR")) < 30 ? getenv("TMPDIR") : "/tmp");
	w->home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!mkdtemp(w->base) || chdir(w->base) < 0)
		abort();
	return w;
}

static void job_end(struct job *j, int sig)
{
	for (int r = 0; r < j->ranks && sig; r++)
		if (j->rank[r].pid)
			kill(j->rank[r].pid, sig);
	realgroup_break(j->group);
	for (int r = 0; r < j->ranks; r++) {
		close(j->rank[r].to);
		if (j->rank[r].pid)
			waitpid(j->rank[r].pid, NULL, 0);
		j->rank[r].pid = 0;
	}
	realgroup_free(j->group);
	j->open = false;
}

static void child_end(struct job *j)
{
	if (!j->child)
		return;
	close(j->child_to); /* the child ends when no process can send it orders */
	kill(j->child, SIGKILL);
	for (int i = 0; i < 1000 && waitpid(j->child, NULL, WNOHANG) == 0; i++)
		pause_ms(1);
	j->child = 0;
}

void world_free(struct world *w)
{
	for (int i = 0; i < JOBS; i++) {
		if (w->jobs[i].open)
			job_end(&w->jobs[i], SIGKILL);
		child_end(&w->jobs[i]);
	}
	for (int run = 0; run < RUNS; run++)
		agent_kill(w, run);
	if (fchdir(w->home) < 0)
		abort();
	close(w->home);
	remove_tree(w->base);
	free(w->sheaf);
	free(w);
}

/* ---- calls of jobs ---- */

static void start_rank(struct world *w, struct job *j, const struct call *c, int rank, int child[2])
{
	struct rank *k = &j->rank[rank];
	int ends[2];

	channel(ends);
	k->pid = fork();
	if (k->pid == 0) {
		close_others(w, j);
		for (int r = 0; r < rank; r++)
			close(j->rank[r].to);
		close(ends[0]);
		close(child[0]);
		if (rank)
			close(child[1]);
		be_rank(c, rank, j->group, ends[1], child[1]);
	}
	if (k->pid < 0)
		abort();
	close(ends[1]);
	k->to = ends[0];
}

/* Sends the call to all ranks at once, and combines their replies. */
static void job_do(struct job *j, const struct call *c, struct reply *r)
{
	struct order o = { .call = *c };
	struct reply all[RANKS_MAX];

	snprintf(o.dir, sizeof(o.dir), "%s", j->dir);
	for (int i = 0; i < j->ranks; i++)
		if (c->kind != C_FORK || i == 0)
			send_all(j->rank[i].to, &o, sizeof(o));
	for (int i = 0; i < j->ranks; i++) {
		all[i] = (struct reply){ .id = -1, .step = -1 };
		if ((c->kind != C_FORK || i == 0) &&
		    !receive_all(j->rank[i].to, &all[i], sizeof(all[i]))) {
			all[i].rc = SHEAF_EBUG;
			snprintf(all[i].msg, sizeof(all[i].msg), "rank %d has ended", i);
		}
	}
	reply_join(c, all, j->ranks, r);
}

static void do_open(struct world *w, const struct call *c, struct reply *r)
{
	struct job *j = &w->jobs[c->job];
	int child[2];

	if (c->agent && (c->flags & SHEAF_RUN_CREATE || access(world_runs[c->run], F_OK) == 0))
		agent_start(w, c->run);
	*j = (struct job){ .ranks = c->n, .group = realgroup_new(c->n),
			   .writes = !(c->flags & SHEAF_RUN_READONLY) };
	snprintf(j->dir, sizeof(j->dir), "%s", world_runs[c->run]);
	channel(child);
	for (int i = 0; i < c->n; i++)
		start_rank(w, j, c, i, child);
	close(child[1]);
	j->child_to = child[0];
	j->open = true;
	job_do(j, c, r);
	if (r->rc < 0) {
		job_end(j, 0);
		close(j->child_to);
	}
}

static void do_end(struct job *j, bool killed)
{
	job_end(j, killed ? SIGKILL : 0);
	if (!j->child)
		close(j->child_to);
}

/* Kills a job. Its agent writes a step that is due, within the grace period and the time that
 * writing takes on a busy machine. */
static void do_kill(struct world *w, const struct call *c, struct reply *r)
{
	struct job *j = &w->jobs[c->job];
	char manifest[100];
	int run = 0;

	while (strcmp(world_runs[run], j->dir))
		run++;
	do_end(j, true);
	if (!w->flush || !j->writes || !w->has_agent[run])
		return;
	r->step = asked(w, run, actor_step_due);
	if (r->step < 0)
		return;
	r->due = true;
	snprintf(manifest, sizeof(manifest), "%s/checkpoint-%lld/sheaf.json", world_runs[run],
		 (long long)r->step);
	for (int ms = 0; ms < 30000 && !r->written; ms += 10) {
		r->written = access(manifest, F_OK) == 0;
		if (!r->written)
			pause_ms(10);
	}
}

static void do_fork(struct job *j, const struct call *c, struct reply *r)
{
	job_do(j, c, r);
	j->child = r->pruned;
	r->pruned = 0;
}

static void child_close(struct job *j, const struct call *c, struct reply *r)
{
	struct order o = { .call = *c };

	send_all(j->child_to, &o, sizeof(o));
	if (!receive_all(j->child_to, r, sizeof(*r)))
		r->rc = SHEAF_EBUG;
}

/* Runs a program of the system. */
static void shell(struct reply *r, const char *program, const char *a, const char *b, const char *c)
{
	pid_t pid = fork();
	int status = 1;

	if (pid == 0) {
		execlp(program, program, a, b, c, (char *)NULL);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	r->rc = status ? SHEAF_EIO : 0;
}

static void do_alone(struct world *w, const struct call *c, struct reply *r)
{
	struct errand e = { .call = c, .dir = world_runs[c->run], .to = world_runs[c->to] };

	run_errand(w, &e, r);
}

static void do_rename(struct world *w, const struct call *c, struct reply *r)
{
	r->rc = rename(world_runs[c->run], world_runs[c->to]) < 0 ? SHEAF_EIO : 0;
	w->has_agent[c->to] = w->has_agent[c->run]; /* it belongs to the directory, not its name */
	w->has_agent[c->run] = false;
}

void world_do(struct world *w, const struct call *c, struct reply *r)
{
	*r = (struct reply){ .id = -1, .step = -1 };
	switch (c->kind) {
	case C_OPEN:
		do_open(w, c, r);
		break;
	case C_CLOSE:
		job_do(&w->jobs[c->job], c, r);
		do_end(&w->jobs[c->job], false);
		break;
	case C_KILL:
		do_kill(w, c, r);
		break;
	case C_FORK:
		do_fork(&w->jobs[c->job], c, r);
		break;
	case C_CHILD_CLOSE:
		child_close(&w->jobs[c->job], c, r);
		break;
	case C_CHILD_EXIT:
		child_end(&w->jobs[c->job]);
		break;
	case C_RUN_REWIND:
	case C_RUN_MARK:
	case C_RUN_PRUNE:
		do_command(w, c, r);
		break;
	case C_COPY:
	case C_FLUSH:
	case C_SALVAGE:
		do_alone(w, c, r);
		break;
	case C_CP:
		shell(r, "cp", "-a", world_runs[c->run], world_runs[c->to]);
		break;
	case C_RENAME:
		do_rename(w, c, r);
		break;
	case C_AGENT_KILL:
		for (int run = 0; run < RUNS; run++)
			if (w->has_agent[run]) {
				agent_kill(w, run);
				agent_start(w, run);
			}
		break;
	case C_AGENT_LIMIT:
	case C_CLOCK:
	case C_FAULT:
		break; /* are the simulated machine's */
	default:
		job_do(&w->jobs[c->job], c, r);
		break;
	}
}

void world_look(struct world *w, int run, int node, bool agent, bool load, struct reply *r)
{
	struct errand e = { .dir = world_runs[run], .agent = agent, .load = load };

	(void)node;
	run_errand(w, &e, r);
}

const char *world_spare(struct world *w, const bool open[JOBS], char why[400])
{
	(void)w;
	(void)open;
	why[0] = '\0';
	return why;
}

bool world_fired(const struct world *w)
{
	(void)w;
	return false;
}

void world_calm(struct world *w)
{
	(void)w;
}

void world_tell(struct world *w, FILE *out)
{
	fprintf(out, "it was in %s\n", w->base);
}
