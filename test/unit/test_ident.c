/* SPDX-License-Identifier: Apache-2.0 */
/* Who a process is, and whether one that left its name may still be alive. */
#include "t.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "sys.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80      /* not in older headers */
#endif

static const struct shf_sys *real(void)
{
	return shf_sys_real();
}

TEST(an_owner_is_dead_only_on_proof)
{
	struct shf_owner self, other;
	int status;
	pid_t pid;

	CHECK_INT(shf_sys_owner(real(), &self), 0);
	CHECK_INT(self.pid, getpid());
	CHECK_INT(shf_sys_pid(real()), getpid());
	CHECK(self.host[0] && self.boot[0] && self.pid_ns && self.start);
	CHECK(!shf_sys_owner_is_dead(real(), &self));
	other = self;
	other.start++;          /* the pid was given to someone else: me */
	CHECK(shf_sys_owner_is_dead(real(), &other));
	other.boot[0] = other.boot[0] == '0' ? '1' : '0';
	CHECK(!shf_sys_owner_is_dead(real(), &other));
	other = self;
	other.start++;
	other.pid_ns++;
	CHECK(!shf_sys_owner_is_dead(real(), &other));
	other = self;
	other.start++;
	other.time_ns++;        /* told by another clock */
	CHECK(!shf_sys_owner_is_dead(real(), &other));
	pid = fork();
	if (!pid)
		_exit(0);
	CHECK(waitpid(pid, &status, 0) == pid);
	other = self;
	other.pid = (uint64_t)pid;
	CHECK(shf_sys_owner_is_dead(real(), &other));
	other.boot[0] = '\0';   /* what nobody knew proves nothing */
	CHECK(!shf_sys_owner_is_dead(real(), &other));
	other = self;
	other.pid = UINT64_MAX;
	CHECK(!shf_sys_owner_is_dead(real(), &other));
	other.pid = 0;
	CHECK(!shf_sys_owner_is_dead(real(), &other));
	other = self;
	other.start = 0;        /* unknown start, living pid */
	CHECK(!shf_sys_owner_is_dead(real(), &other));
}

/* A process in a time namespace of its own, whose clock has run for a day longer. It tells who it
 * is, and lives until its pipe is shut. */
static void live_by_another_clock(int tell, int wait)
{
	struct shf_owner self;
	char end;
	FILE *f;

	if (unshare(CLONE_NEWTIME) && unshare(CLONE_NEWUSER | CLONE_NEWTIME))
		_exit(77);
	f = fopen("/proc/self/timens_offsets", "w");
	if (!f || fputs("boottime 86400 0\n", f) < 0 || fclose(f))
		_exit(77);
	if (fork() == 0 && (shf_sys_owner(real(), &self) < 0 ||
	                    write(tell, &self, sizeof(self)) != (ssize_t)sizeof(self) ||
	                    read(wait, &end, 1) != 0))
		_exit(1);
	_exit(0);
}

TEST(a_live_owner_in_another_time_namespace_is_not_dead)
{
	struct shf_owner self, other;
	int told[2], wait[2], status;
	pid_t pid;

	CHECK_INT(shf_sys_owner(real(), &self), 0);
	CHECK(!pipe(told) && !pipe(wait));
	pid = fork();
	if (!pid) {
		close(wait[1]);
		live_by_another_clock(told[1], wait[0]);
	}
	close(told[1]);
	CHECK(waitpid(pid, &status, 0) == pid);
	if (WEXITSTATUS(status) == 77) {
		print_message("# no time namespace may be made here\n");
		skip();
	}
	CHECK_INT(read(told[0], &other, sizeof(other)), sizeof(other));
	CHECK(other.time_ns && other.time_ns != self.time_ns);
	CHECK(!shf_sys_owner_is_dead(real(), &other));
	close(wait[1]);
	CHECK_INT(read(told[0], &other, 1), 0); /* it is over; who collects it may take a while */
	close(told[0]);
	close(wait[0]);
}

TEST(a_zombie_is_dead)
{
	struct shf_owner other;
	siginfo_t info;
	pid_t pid;

	CHECK_INT(shf_sys_owner(real(), &other), 0);
	pid = fork();
	if (!pid)
		_exit(0);
	CHECK_INT(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	other.pid = (uint64_t)pid;
	other.start = 0;
	CHECK(shf_sys_owner_is_dead(real(), &other));
	CHECK(waitpid(pid, NULL, 0) == pid);
}

static void *wait_long(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

static bool is_zombie(pid_t pid)
{
	char path[48], line[300] = "", *p;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "r");
	if (f && !fgets(line, sizeof(line), f))
		line[0] = '\0';
	if (f)
		fclose(f);
	p = strrchr(line, ')');
	return p && p[1] && p[2] == 'Z';
}

TEST(a_zombie_whose_other_threads_run_is_alive)
{
	struct shf_owner other;
	pthread_t thread;
	pid_t pid;

	CHECK_INT(shf_sys_owner(real(), &other), 0);
	pid = fork();
	if (!pid) {
		if (pthread_create(&thread, NULL, wait_long, NULL))
			_exit(1);
		pthread_exit(NULL);
	}
	for (int i = 0; i < 5000 && !is_zombie(pid); i++)
		shf_sys_sleep_ms(real(), 1);
	CHECK(is_zombie(pid));
	other.pid = (uint64_t)pid;
	other.start = 0;
	CHECK(!shf_sys_owner_is_dead(real(), &other));
	CHECK_INT(kill(pid, SIGKILL), 0);
	CHECK(waitpid(pid, NULL, 0) == pid);
}
