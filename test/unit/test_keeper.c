/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's side of its socket, as a process of its own that this program asks. */
#include "keep.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif
#include "rmtree.h"
#define T_STDIN_CLOSED
#include "t.h"

struct agent {
	char folder[64], socket[96];
	pid_t pid;
	int told;                       /* a byte when it can be reached; a line for each job */
};

static int ready(void *arg)
{
	return write(*(int *)arg, "r", 1) == 1 ? 0 : -1;
}

static void died(void *arg, const char *job)
{
	char line[SHF_KEEP_NAME + 2];
	int n = snprintf(line, sizeof(line), "%s\n", job);

	if (write(*(int *)arg, line, (size_t)n) != n)
		_exit(3);
}

static void at(void *arg, const char *dir)
{
	died(arg, dir);
}

/* A child that ends by _exit is not looked through for leaks. */
static int served(const struct shf_keeper *k)
{
	int rc = shf_keeper_serve(k);

#ifdef __SANITIZE_ADDRESS__
	rc = rc ? rc : __lsan_do_recoverable_leak_check();
#endif
	return rc;
}

static struct agent agent_new(void)
{
	struct agent a = { .pid = -1 };
	int ends[2];
	char byte;

	strcpy(a.folder, "/tmp/sheaf-keeper-XXXXXX");
	CHECK(mkdtemp(a.folder));
	snprintf(a.socket, sizeof(a.socket), "%s/sock", a.folder);
	CHECK_INT(pipe2(ends, O_CLOEXEC), 0);
	a.pid = fork();
	CHECK(a.pid >= 0);
	if (a.pid == 0) {
		struct shf_keeper k = { .socket = a.socket, .idle_ms = -1, .arg = &ends[1],
			.ready = ready, .died = died, .at = at };

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(served(&k) ? 1 : 0);
	}
	close(ends[1]);
	a.told = ends[0];
	CHECK_INT(read(a.told, &byte, 1), 1);
	return a;
}

static int join(const struct agent *a, const char *job)
{
	int keep = -1;

	CHECK_INT(shf_real_keep_open(NULL, a->socket, "", job, &keep, NULL), 0);
	return keep;
}

static int users(int keep)
{
	struct shf_keep_msg m;

	CHECK_INT(shf_keep_ask(keep, SHF_KEEP_STATUS, &m), 0);
	return m.users;
}

/* What it has told since; "" when that was nothing: what came before an answer was heard. */
static const char *told(const struct agent *a, int keep, char text[256])
{
	struct pollfd p = { .fd = a->told, .events = POLLIN };
	ssize_t n = 0;

	(void)users(keep);
	(void)users(keep);
	if (poll(&p, 1, 0) == 1)
		n = read(a->told, text, 255);
	CHECK(n >= 0);
	text[n] = '\0';
	return text;
}

static void agent_end(struct agent *a, int keep)
{
	struct shf_keep_msg m;
	int status;

	CHECK_INT(shf_keep_ask(keep, SHF_KEEP_STOP, &m), 0);
	shf_real_keep_close(NULL, keep, true);
	CHECK_INT(waitpid(a->pid, &status, 0), a->pid);
	CHECK_INT(status, 0);
	close(a->told);
	rmtree(a->folder);
}

TEST(users_of_an_agent_are_processes_of_jobs_and_nobody_who_only_looks)
{
	struct agent a = agent_new();
	int looks = join(&a, ""), reader = join(&a, ""), rank;

	CHECK_INT(users(looks), 0);
	rank = join(&a, "job");
	CHECK_INT(users(looks), 1);
	shf_real_keep_close(NULL, rank, false);
	shf_real_keep_close(NULL, reader, true);
	agent_end(&a, looks);
}

TEST(what_a_job_left_is_asked_after_again_when_the_job_after_it_ends)
{
	struct agent a = agent_new();
	int looks = join(&a, ""), first, second, rank;
	char text[256];

	rank = join(&a, "sound");
	shf_real_keep_close(NULL, rank, true);
	CHECK_STR(told(&a, looks, text), "");
	first = join(&a, "dies");
	second = join(&a, "dies");
	shf_real_keep_close(NULL, first, false);
	CHECK_STR(told(&a, looks, text), "");
	shf_real_keep_close(NULL, second, false);
	CHECK_STR(told(&a, looks, text), "dies\n");
	rank = join(&a, "next");
	CHECK_STR(told(&a, looks, text), "");
	shf_real_keep_close(NULL, rank, true);
	CHECK_STR(told(&a, looks, text), "next\n");
	agent_end(&a, looks);
}

/* A path at which something else lies is none of the directory's, nor one that has been removed. */
TEST(an_agent_is_told_where_a_directory_is_now)
{
	struct agent a = agent_new();
	int job = join(&a, "job"), dir;
	char was[80], is[80], line[256], text[256];

	snprintf(was, sizeof(was), "%s/was", a.folder);
	snprintf(is, sizeof(is), "%s/is", a.folder);
	CHECK_INT(mkdir(was, 0700), 0);
	dir = open(was, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(dir >= 0);
	CHECK_INT(shf_real_keep_at(NULL, job, dir), 0);
	snprintf(line, sizeof(line), "%s\n", was);
	CHECK_STR(told(&a, job, text), line);
	CHECK_INT(rename(was, is), 0);
	CHECK_INT(shf_real_keep_at(NULL, job, dir), 0);
	snprintf(line, sizeof(line), "%s\n", is);
	CHECK_STR(told(&a, job, text), line);
	CHECK_INT(rmdir(is), 0);
	CHECK_INT(shf_real_keep_at(NULL, job, dir), 0);
	CHECK_STR(told(&a, job, text), "");
	close(dir);
	shf_real_keep_close(NULL, job, true);
	job = join(&a, "");
	agent_end(&a, job);
}

/* Room for descriptors comes without anybody leaving: the limit of the process rises here. */
TEST(an_agent_without_descriptors_lets_the_next_one_in_when_there_are_some)
{
	struct agent a = agent_new();
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int looks = join(&a, ""), waits = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), late;
	struct rlimit was, none;

	CHECK_INT(prlimit(a.pid, RLIMIT_NOFILE, NULL, &was), 0);
	none = was;
	none.rlim_cur = 3;
	CHECK_INT(prlimit(a.pid, RLIMIT_NOFILE, &none, NULL), 0);
	memcpy(to.sun_path, a.socket, strlen(a.socket) + 1);
	CHECK_INT(connect(waits, (const struct sockaddr *)&to, sizeof(to)), 0);
	(void)users(looks);
	(void)users(looks);     /* between the two it has tried to let the other one in */
	CHECK_INT(prlimit(a.pid, RLIMIT_NOFILE, &was, NULL), 0);
	late = join(&a, "late");
	CHECK_INT(users(looks), 1);
	close(waits);
	shf_real_keep_close(NULL, late, true);
	agent_end(&a, looks);
}
