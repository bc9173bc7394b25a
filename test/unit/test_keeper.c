/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's side of its socket, as a process of its own that this program asks. */
#include "agent_server.h"
#include "agent_client.h"
#include "sys.h"
#include <errno.h>
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
#include "procself.h"
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
static int served(const struct shf_agent_server *k)
{
	int open_before = procself_fds(), rc = shf_agent_server_run(k);

	rc = rc ? rc : procself_fds() - open_before;
#ifdef __SANITIZE_ADDRESS__
	rc = rc ? rc : __lsan_do_recoverable_leak_check();
#endif
	return rc;
}

/* One that is so, and at a socket of its own. */
static struct agent agent_as(struct shf_agent_server k)
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
		close(ends[0]);         /* 0, if there is no other: then its own first one is */
		k.socket = a.socket;
		k.arg = &ends[1];
		k.ready = ready;
		k.died = died;
		k.at = at;
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(served(&k) ? 1 : 0);
	}
	close(ends[1]);
	a.told = ends[0];
	CHECK_INT(read(a.told, &byte, 1), 1);
	return a;
}

static struct agent agent_new(void)
{
	return agent_as((struct shf_agent_server){ .idle_ms = -1 });
}

static int join(const struct agent *a, const char *job)
{
	int keep = -1;

	CHECK_INT(shf_sys_keep_open(shf_sys_real(), a->socket, "", job, &keep, NULL), 0);
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
	shf_sys_keep_close(shf_sys_real(), keep, true);
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
	shf_sys_keep_close(shf_sys_real(), rank, false);
	shf_sys_keep_close(shf_sys_real(), reader, true);
	agent_end(&a, looks);
}

TEST(what_a_job_left_is_asked_after_again_when_the_job_after_it_ends)
{
	struct agent a = agent_new();
	int looks = join(&a, ""), first, second, rank;
	char text[256];

	rank = join(&a, "sound");
	shf_sys_keep_close(shf_sys_real(), rank, true);
	CHECK_STR(told(&a, looks, text), "");
	first = join(&a, "dies");
	second = join(&a, "dies");
	shf_sys_keep_close(shf_sys_real(), first, false);
	CHECK_STR(told(&a, looks, text), "");
	shf_sys_keep_close(shf_sys_real(), second, false);
	CHECK_STR(told(&a, looks, text), "dies\n");
	rank = join(&a, "next");
	CHECK_STR(told(&a, looks, text), "");
	shf_sys_keep_close(shf_sys_real(), rank, true);
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
	CHECK_INT(shf_sys_keep_at(shf_sys_real(), job, dir), 0);
	snprintf(line, sizeof(line), "%s\n", was);
	CHECK_STR(told(&a, job, text), line);
	CHECK_INT(rename(was, is), 0);
	CHECK_INT(shf_sys_keep_at(shf_sys_real(), job, dir), 0);
	snprintf(line, sizeof(line), "%s\n", is);
	CHECK_STR(told(&a, job, text), line);
	CHECK_INT(rmdir(is), 0);
	CHECK_INT(shf_sys_keep_at(shf_sys_real(), job, dir), 0);
	CHECK_STR(told(&a, job, text), "");
	close(dir);
	shf_sys_keep_close(shf_sys_real(), job, true);
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
	shf_sys_keep_close(shf_sys_real(), late, true);
	agent_end(&a, looks);
}

/* And who asks for one without descriptors hears just that. */
TEST(who_has_no_descriptor_left_is_told_so)
{
	struct agent a = agent_new();
	int looks = join(&a, ""), next = open("/dev/null", O_RDONLY | O_CLOEXEC), keep = -1, rc;
	struct rlimit was, none;

	CHECK_INT(getrlimit(RLIMIT_NOFILE, &was), 0);
	none = was;
	none.rlim_cur = (rlim_t)next;
	close(next);
	CHECK_INT(setrlimit(RLIMIT_NOFILE, &none), 0);
	rc = shf_sys_keep_open(shf_sys_real(), a.socket, "", "job", &keep, NULL);
	CHECK_INT(setrlimit(RLIMIT_NOFILE, &was), 0);
	CHECK_INT(rc, -EMFILE);
	CHECK_INT(keep, -1);
	agent_end(&a, looks);
}

/* ---- what it keeps ---- */

static struct shf_shm memory_of(size_t bytes, int fill)
{
	struct shf_shm m = { NULL, 0, -1 };

	CHECK_INT(shf_sys_shm_new(shf_sys_real(), &m, bytes, true), 0);
	memset(m.base, fill, bytes);
	return m;
}

static int put(int keep, const char *name, size_t bytes, int fill)
{
	struct shf_shm m = memory_of(bytes, fill);
	int rc = shf_sys_keep_put(shf_sys_real(), keep, name, &m);

	shf_sys_shm_free(shf_sys_real(), &m);
	return rc;
}

/* The memory of that name is so long, and each byte of it is that one. */
static void has(int keep, const char *name, size_t bytes, int fill)
{
	struct shf_shm m = { NULL, 0, -1 };

	CHECK_INT(shf_sys_keep_get(shf_sys_real(), keep, name, &m), 0);
	CHECK_INT(m.bytes, bytes);
	for (size_t i = 0; i < bytes; i++)
		CHECK_INT(((uint8_t *)m.base)[i], fill);
	shf_sys_shm_free(shf_sys_real(), &m);
}

struct listed {
	char text[2000];
	int n, stop_at;
};

static int list_one(void *arg, const char *name)
{
	struct listed *l = arg;

	strcat(strcat(l->text, name), " ");
	return ++l->n == l->stop_at ? 7 : 0;
}

static struct listed names_of(int keep, int stop_at, int want)
{
	struct listed l = { .stop_at = stop_at };

	CHECK_INT(shf_sys_keep_list(shf_sys_real(), keep, list_one, &l), want);
	return l;
}

static void holds(int keep, uint64_t bytes, uint64_t names)
{
	struct shf_keep_msg m;

	CHECK_INT(shf_keep_ask(keep, SHF_KEEP_STATUS, &m), 0);
	CHECK_INT(m.bytes, bytes);
	CHECK_INT(m.names, names);
}

TEST(memory_is_kept_under_its_name_until_it_is_dropped_or_replaced)
{
	struct agent a = agent_new();
	int keep = join(&a, "job"), other = join(&a, "");
	struct shf_shm none = { NULL, 0, -1 };

	CHECK_STR(names_of(keep, 0, 0).text, "");
	CHECK_INT(put(keep, "one", 5000, 1), 0);
	CHECK_INT(put(keep, "two", 4096, 2), 0);
	CHECK_INT(put(keep, "three", 1, 3), 0);
	holds(other, 9097, 3);
	has(other, "one", 5000, 1);
	has(other, "three", 1, 3);
	CHECK_STR(names_of(other, 0, 0).text, "one two three ");
	CHECK_INT(put(other, "two", 7000, 4), 0);
	holds(keep, 12001, 3);
	has(keep, "two", 7000, 4);
	CHECK_INT(shf_sys_keep_drop(shf_sys_real(), keep, "one"), 0);
	CHECK_INT(shf_sys_keep_drop(shf_sys_real(), keep, "one"), -ENOENT);
	CHECK_INT(shf_sys_keep_drop(shf_sys_real(), keep, "on"), -ENOENT);
	CHECK_INT(shf_sys_keep_get(shf_sys_real(), keep, "one", &none), -ENOENT);
	CHECK(!none.base);
	holds(other, 7001, 2);
	has(other, "two", 7000, 4);
	has(other, "three", 1, 3);
	shf_sys_keep_close(shf_sys_real(), other, true);
	agent_end(&a, keep);
}

/* Whoever stops listening has heard the rest, so that it answers no other question. */
TEST(a_list_that_is_stopped_is_heard_to_its_end)
{
	struct agent a = agent_new();
	int keep = join(&a, "job");

	for (int i = 0; i < 3; i++)
		CHECK_INT(put(keep, i == 0 ? "x" : i == 1 ? "y" : "z", 1, i), 0);
	for (int stop_at = 1; stop_at <= 3; stop_at++) {
		struct listed l = names_of(keep, stop_at, 7);

		CHECK_INT(l.n, stop_at);
		CHECK(strncmp(l.text, "x y z ", (size_t)stop_at * 2) == 0);
		holds(keep, 3, 3);
	}
	agent_end(&a, keep);
}

TEST(more_names_and_users_than_there_was_room_for_at_first)
{
	struct agent a = agent_new();
	int keep[20];
	char name[20];

	for (int i = 0; i < 20; i++)
		keep[i] = join(&a, i % 2 ? "job" : "");
	CHECK_INT(users(keep[0]), 10);
	for (int i = 0; i < 130; i++) {
		snprintf(name, sizeof(name), "name %d", i);
		CHECK_INT(put(keep[i % 20], name, (size_t)i + 1, i), 0);
	}
	holds(keep[19], 130 * 131 / 2, 130);
	for (int i = 0; i < 130; i++) {
		snprintf(name, sizeof(name), "name %d", i);
		has(keep[(i + 7) % 20], name, (size_t)i + 1, i);
	}
	CHECK_INT(names_of(keep[3], 0, 0).n, 130);
	for (int i = 1; i < 20; i++)
		shf_sys_keep_close(shf_sys_real(), keep[i], true);
	CHECK_INT(users(keep[0]), 0);
	agent_end(&a, keep[0]);
}

TEST(a_bound_is_of_all_that_is_kept_and_what_is_replaced_counts_no_more)
{
	struct agent a = agent_as((struct shf_agent_server){ .idle_ms = -1, .bytes_max = 10000 });
	int keep = join(&a, "job");

	CHECK_INT(put(keep, "large", 10001, 1), -ENOSPC);
	holds(keep, 0, 0);
	CHECK_INT(put(keep, "a", 10000, 1), 0);
	CHECK_INT(put(keep, "a", 10000, 2), 0);
	CHECK_INT(put(keep, "a", 6000, 3), 0);
	CHECK_INT(put(keep, "b", 4001, 4), -ENOSPC);
	CHECK_INT(put(keep, "b", 4000, 5), 0);
	CHECK_INT(put(keep, "b", 4001, 6), -ENOSPC);
	holds(keep, 10000, 2);
	has(keep, "a", 6000, 3);
	has(keep, "b", 4000, 5);
	CHECK_INT(shf_sys_keep_drop(shf_sys_real(), keep, "a"), 0);
	CHECK_INT(put(keep, "c", 6000, 7), 0);
	holds(keep, 10000, 2);
	agent_end(&a, keep);
}

TEST(what_is_no_sealed_memory_of_that_length_is_not_kept)
{
	struct agent a = agent_new();
	int keep = join(&a, "job");
	struct shf_shm m = memory_of(5000, 1), no = { .bytes = 5000, .fd = -1 };
	int file = open(a.folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	CHECK_INT(shf_sys_keep_put(shf_sys_real(), keep, "a", &no), -EINVAL);
	no.fd = file;
	CHECK_INT(shf_sys_keep_put(shf_sys_real(), keep, "a", &no), -EPROTO);
	no.fd = m.fd;
	no.bytes = 8193;        /* two pages are there */
	CHECK_INT(shf_sys_keep_put(shf_sys_real(), keep, "a", &no), -EPROTO);
	CHECK_INT(shf_sys_keep_put(shf_sys_real(), keep, "", &m), -EINVAL);
	holds(keep, 0, 0);
	no.bytes = 8192;
	CHECK_INT(shf_sys_keep_put(shf_sys_real(), keep, "a", &no), 0);
	holds(keep, 8192, 1);
	close(file);
	shf_sys_shm_free(shf_sys_real(), &m);
	agent_end(&a, keep);
}

/* ---- what it says of itself, and to whom ---- */

TEST(an_agent_says_what_it_is_and_whose)
{
	struct agent a = agent_as((struct shf_agent_server){ .idle_ms = -1, .run = "this run",
		.steps_max = 7, .about = "all about it" });
	struct shf_keep_msg m;
	int keep = -1, steps = -1;

	CHECK_INT(shf_sys_keep_open(shf_sys_real(), a.socket, "another", "job", &keep, &steps),
	          -EXDEV);
	CHECK_INT(shf_sys_keep_open(shf_sys_real(), a.socket, "", "job", &keep, &steps), -EXDEV);
	CHECK(keep == -1 && steps == -1);
	CHECK_INT(shf_sys_keep_open(shf_sys_real(), a.socket, "this run", "job", &keep, &steps), 0);
	CHECK_INT(steps, 7);
	CHECK_INT(shf_keep_ask(keep, SHF_KEEP_STATUS, &m), 0);
	CHECK_STR(m.name, "all about it");
	CHECK_INT(m.pid, a.pid);
	CHECK_INT(m.users, 1);
	agent_end(&a, keep);
	a = agent_new();
	steps = -1;
	CHECK_INT(shf_sys_keep_open(shf_sys_real(), a.socket, "any", "", &keep, &steps), 0);
	CHECK_INT(steps, 0);
	CHECK_INT(shf_keep_ask(keep, SHF_KEEP_STATUS, &m), 0);
	CHECK_STR(m.name, "");
	CHECK_INT(m.users, 0);
	agent_end(&a, keep);
}

static int raw(const struct agent *a)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(to.sun_path, a->socket, strlen(a->socket) + 1);
	CHECK_INT(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* Who speaks otherwise is told so if he can understand it, and is no user any more. */
TEST(a_stranger_to_what_is_spoken_is_told_so_and_left)
{
	const struct shf_keep_msg good = { .magic = SHF_KEEP_MAGIC, .version = SHF_KEEP_VERSION,
		.op = SHF_KEEP_STATUS };
	struct agent a = agent_new();
	int looks = join(&a, "");

	for (int i = 0; i < 3; i++) {
		struct shf_keep_msg m = good;
		size_t n = i == 2 ? sizeof(m) - 1 : sizeof(m);
		int fd = raw(&a);

		m.magic += i == 1;
		m.version += i == 0;
		CHECK_INT(send(fd, &m, n, 0), n);
		if (i == 0) {
			CHECK_INT(recv(fd, &m, sizeof(m), 0), sizeof(m));
			CHECK_INT(m.rc, -EPROTONOSUPPORT);
			CHECK_INT(m.version, SHF_KEEP_VERSION);
			CHECK(m.magic == SHF_KEEP_MAGIC);
		}
		CHECK_INT(recv(fd, &m, sizeof(m), 0), 0);
		close(fd);
	}
	for (int op = SHF_KEEP_AT; op <= SHF_KEEP_WHERE + 1; op += 2) {
		struct shf_keep_msg m;

		CHECK_INT(shf_keep_ask(looks, op, &m), op == SHF_KEEP_AT ? -EINVAL : -ENOSYS);
		CHECK_INT(users(looks), 0);
	}
	agent_end(&a, looks);
}

TEST(an_agent_that_has_gone_is_no_agent)
{
	struct agent a = agent_new();
	int keep = join(&a, "job"), looks = join(&a, ""), status, none;
	struct shf_shm m = { NULL, 0, -1 };
	struct shf_keep_msg msg;

	CHECK_INT(shf_sys_keep_lives(shf_sys_real(), keep), 0);
	CHECK_INT(shf_keep_ask(looks, SHF_KEEP_STOP, &msg), 0);
	CHECK_INT(waitpid(a.pid, &status, 0), a.pid);
	CHECK_INT(status, 0);
	CHECK_INT(shf_sys_keep_lives(shf_sys_real(), keep), -EPIPE);
	CHECK_INT(put(keep, "a", 1, 1), -EPIPE);
	CHECK_INT(shf_sys_keep_get(shf_sys_real(), keep, "a", &m), -EPIPE);
	CHECK_INT(shf_sys_keep_drop(shf_sys_real(), keep, "a"), -EPIPE);
	CHECK_INT(shf_sys_keep_message(shf_sys_real(), keep, "a"), -EPIPE);
	CHECK_INT(names_of(keep, 0, -EPIPE).n, 0);
	CHECK_INT(shf_sys_keep_open(shf_sys_real(), a.socket, "", "", &none, NULL), -ENOENT);
	CHECK(access(a.socket, F_OK));
	shf_sys_keep_close(shf_sys_real(), keep, true);
	shf_sys_keep_close(shf_sys_real(), looks, true);
	shf_sys_keep_close(shf_sys_real(), -1, true);
	close(a.told);
	rmtree(a.folder);
}

/* ---- its beginning and its end, in this process ---- */

static struct {
	char calls[100];
	const char *socket;
	bool full;                      /* something is still there at the last call */
	int ready;                      /* what it answers */
} life;

static int lives(void *arg)
{
	CHECK(arg == &life);
	strcat(life.calls, access(life.socket, F_OK) ? "gone " : "ready ");
	return life.ready;
}

static bool stops(void *arg)
{
	CHECK(arg == &life);
	strcat(life.calls, "stop ");
	return strcmp(life.calls, "ready stop ") != 0;
}

static void left(void *arg)
{
	char lock[120];

	CHECK(arg == &life);
	snprintf(lock, sizeof(lock), "%s.lock", life.socket);
	life.full = !access(life.socket, F_OK) || !access(lock, F_OK);
	strcat(life.calls, "left ");
}

static int serve(const char *socket, int idle_ms)
{
	struct shf_agent_server k = { .socket = socket, .idle_ms = idle_ms, .arg = &life,
		.ready = lives, .stop = stops, .left = left };

	memset(life.calls, 0, sizeof(life.calls));
	life.socket = socket;
	return shf_agent_server_run(&k);
}

static void folder_new(char folder[40], char path[96])
{
	strcpy(folder, "/tmp/sheaf-keeper-XXXXXX");
	CHECK(mkdtemp(folder));
	snprintf(path, 96, "%s/sock", folder);
}

static volatile sig_atomic_t signals;

static void note_signal(int sig)
{
	(void)sig;
	if (++signals == 1)
		raise(SIGUSR1);         /* blocked until the next wait */
}

TEST(an_agent_ends_when_nobody_comes_or_a_signal_says_so)
{
	struct sigaction act = { .sa_handler = note_signal }, was;
	char folder[40], path[96];
	sigset_t set, old;

	folder_new(folder, path);
	CHECK_INT(serve(path, 1), 0);
	CHECK_STR(life.calls, "ready left ");
	CHECK(!life.full);
	life.ready = -5;
	CHECK_INT(serve(path, 1), -5);
	CHECK_STR(life.calls, "ready ");
	life.ready = 0;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	CHECK_INT(sigprocmask(SIG_BLOCK, &set, &old), 0);
	CHECK_INT(sigaction(SIGUSR1, &act, &was), 0);
	raise(SIGUSR1);
	CHECK_INT(serve(path, -1), 0);  /* over what the one before has left */
	CHECK_STR(life.calls, "ready stop stop left ");
	CHECK(!life.full);
	CHECK_INT(signals, 2);
	CHECK_INT(sigaction(SIGUSR1, &was, NULL), 0);
	CHECK_INT(sigprocmask(SIG_SETMASK, &old, NULL), 0);
	rmtree(folder);
}

TEST(where_another_one_serves_or_something_else_lies_no_agent_begins)
{
	struct agent a = agent_new();
	int looks = join(&a, ""), fd;
	char folder[40], path[96], lock[120], longer[110], byte = 'x';
	struct stat st;

	folder_new(folder, path);
	CHECK_INT(serve(a.socket, 1), -EBUSY);
	/* Also if somebody has taken its lock away. */
	snprintf(lock, sizeof(lock), "%s.lock", a.socket);
	CHECK_INT(unlink(lock), 0);
	CHECK_INT(serve(a.socket, 1), -EBUSY);
	CHECK_STR(life.calls, "");
	CHECK_INT(users(looks), 0);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK_INT(write(fd, &byte, 1), 1);
	close(fd);
	CHECK_INT(serve(path, 1), -EEXIST);
	CHECK_STR(life.calls, "");
	CHECK_INT(stat(path, &st), 0);
	CHECK_INT(st.st_size, 1);
	memset(longer, 'x', sizeof(longer));
	memcpy(longer, folder, strlen(folder));
	longer[strlen(folder)] = '/';
	longer[108] = '\0';
	CHECK_INT(serve(longer, 1), -ENAMETOOLONG);
	longer[107] = '\0';
	CHECK_INT(serve(longer, 1), 0);
	CHECK_STR(life.calls, "ready left ");
	CHECK_INT(serve("/tmp/sheaf-none/none", 1), -ENOENT);
	rmtree(folder);
	agent_end(&a, looks);
}

static int hold[2];

/* A child has all descriptors of the agent for as long as the test wants. */
static void forks(void *arg, const char *text)
{
	char byte;

	died(arg, text);
	if (fork() == 0) {
		close(hold[1]);
		_exit(read(hold[0], &byte, 1) != 0);
	}
}

TEST(users_hear_that_an_agent_has_left_though_a_child_of_its_has_their_sockets)
{
	struct agent a;
	char text[256];
	int keep;

	CHECK_INT(pipe2(hold, O_CLOEXEC), 0);
	a = agent_as((struct shf_agent_server){ .idle_ms = -1, .told = forks });
	keep = join(&a, "job");
	CHECK_INT(shf_sys_keep_message(shf_sys_real(), keep, "what it is told"), 0);
	CHECK_STR(told(&a, keep, text), "what it is told\n");
	agent_end(&a, keep);
	close(hold[1]);
	close(hold[0]);
}

/* ---- where it is ---- */

TEST(an_agent_is_where_it_is_said_or_at_a_place_of_its_own)
{
	char path[SHF_KEEP_PATH], want[200], name[300] = "auto/";
	size_t room;

	CHECK_INT(shf_keep_path("some/path", path), 0);
	CHECK_STR(path, "some/path");
	CHECK_INT(shf_keep_path("auto/0123", path), 0);
	snprintf(want, sizeof(want), "/tmp/sheaf-%lu-0123/agent.sock", (unsigned long)geteuid());
	CHECK_STR(path, want);
	room = SHF_KEEP_PATH - 1 - (strlen(want) - 4);
	memset(name + 5, 'x', room + 1);
	CHECK_INT(shf_keep_path(name, path), -ENAMETOOLONG);
	CHECK_INT(shf_keep_dir(name), -ENAMETOOLONG);
	name[5 + room] = '\0';
	CHECK_INT(shf_keep_path(name, path), 0);
	CHECK_INT(strlen(path), SHF_KEEP_PATH - 1);
	memset(name, 'y', SHF_KEEP_PATH);
	name[SHF_KEEP_PATH] = '\0';
	CHECK_INT(shf_keep_path(name, path), -ENAMETOOLONG);
	name[SHF_KEEP_PATH - 1] = '\0';
	CHECK_INT(shf_keep_path(name, path), 0);
	CHECK_STR(path, name);
}

TEST(a_place_of_its_own_is_nobody_elses)
{
	char name[40], dir[80], other[96];
	struct stat st;
	int fd;

	snprintf(name, sizeof(name), "auto/test%d", (int)getpid());
	snprintf(dir, sizeof(dir), "/tmp/sheaf-%lu-test%d", (unsigned long)geteuid(),
	         (int)getpid());
	snprintf(other, sizeof(other), "%s-other", dir);
	CHECK_INT(shf_keep_dir("/tmp/sheaf-none/none/sock"), 0);
	CHECK_INT(shf_keep_dir("auto/none/none"), -ENOENT);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(shf_keep_dir(name), 0);
		CHECK_INT(lstat(dir, &st), 0);
		CHECK_INT(st.st_mode, S_IFDIR | 0700);
	}
	CHECK_INT(chmod(dir, 0710), 0);
	CHECK_INT(shf_keep_dir(name), -EPERM);
	CHECK_INT(chmod(dir, 0701), 0);
	CHECK_INT(shf_keep_dir(name), -EPERM);
	CHECK_INT(chmod(dir, 0700), 0);
	CHECK_INT(rename(dir, other), 0);
	CHECK_INT(symlink(other, dir), 0);
	CHECK_INT(shf_keep_dir(name), -EPERM);
	CHECK_INT(unlink(dir), 0);
	CHECK_INT(rmdir(other), 0);
	fd = open(dir, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	close(fd);
	CHECK_INT(shf_keep_dir(name), -EPERM);
	CHECK_INT(unlink(dir), 0);
}

/* The log goes if it is an empty file; the place goes if nothing is left in it. */
TEST(who_leaves_takes_an_empty_log_and_a_place_of_its_own_away)
{
	enum { EMPTY, LINE, DIRECTORY, LINK, NONE, KINDS };
	char name[40], dir[80], log[120];

	snprintf(name, sizeof(name), "auto/test%d", (int)getpid());
	snprintf(dir, sizeof(dir), "/tmp/sheaf-%lu-test%d", (unsigned long)geteuid(),
	         (int)getpid());
	snprintf(log, sizeof(log), "%s/agent.sock" SHF_KEEP_LOG, dir);
	for (int kind = 0; kind < KINDS; kind++) {
		bool stays = kind == LINE || kind == DIRECTORY || kind == LINK;
		struct stat st;
		int fd;

		CHECK_INT(shf_keep_dir(name), 0);
		fd = kind <= LINE ? open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)
		   : kind == DIRECTORY ? mkdir(log, 0700)
		   : kind == LINK ? symlink("/dev/null", log) : 0;
		CHECK(fd >= 0);
		if (kind == LINE)
			CHECK_INT(write(fd, "!", 1), 1);
		if (kind <= LINE)
			close(fd);
		shf_keep_dir_leave(name);
		CHECK_INT(lstat(log, &st), stays ? 0 : -1);
		CHECK_INT(lstat(dir, &st), stays ? 0 : -1);
		if (stays) {
			CHECK_INT(kind == DIRECTORY ? rmdir(log) : unlink(log), 0);
			CHECK_INT(rmdir(dir), 0);
		}
	}
	/* Elsewhere only the log. */
	CHECK_INT(mkdir(dir, 0700), 0);
	snprintf(log, sizeof(log), "%s/s" SHF_KEEP_LOG, dir);
	close(open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	log[strlen(dir) + 2] = '\0';
	shf_keep_dir_leave(log);
	CHECK_INT(rmdir(dir), 0);
}
