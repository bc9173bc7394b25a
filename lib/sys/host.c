/* SPDX-License-Identifier: Apache-2.0 */
/* Time, random numbers and process identity of the real machine. A process counts as dead only on
 * proof. The proof requires the same boot and the same pid namespace as ours, and one of these: no
 * process has the pid; the process is a zombie; the process that has the pid has another start
 * time, by the same clock. Whatever cannot be read proves nothing. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "host.h"
#include "posix.h"

/* A signal may interrupt getrandom half-way, so it is called until buf is full. */
int shf_real_random(void *arg, void *buf, size_t n)
{
	uint8_t *p = buf;

	(void)arg;
	while (n) {
		ssize_t got = getrandom(p, n, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		p += got;
		n -= (size_t)got;
	}
	return 0;
}

int64_t shf_real_mono_ns(void *arg)
{
	struct timespec t = { 0, 0 };

	(void)arg;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t real_wall_s(void *arg)
{
	struct timespec t = { 0, 0 };

	(void)arg;
	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec;
}

/* Sleeps until a moment rather than for a time, so that signals do not lengthen the sleep. */
static void real_sleep_ms(void *arg, int ms)
{
	struct timespec t;
	int64_t until;

	if (ms <= 0)
		return;
	until = shf_real_mono_ns(arg) + shf_ms_ns(ms);
	t.tv_sec = (time_t)(until / 1000000000);
	t.tv_nsec = (long)(until % 1000000000);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static uint64_t real_pid(void *arg)
{
	(void)arg;
	return (uint64_t)getpid();
}

/* Reads in a loop, since one read of a file in /proc may return only part of it. */
bool shf_real_text(const char *path, char *buf, size_t n)
{
	int fd = shf_real_open(NULL, AT_FDCWD, path, 0, 0);
	size_t len = 0;

	if (fd < 0)
		return false;
	while (len < n - 1) {
		ssize_t got = read(fd, buf + len, n - 1 - len);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		len += (size_t)got;
	}
	close(fd);
	buf[len] = '\0';
	return len > 0;
}

/* What /proc/<pid>/stat shows of a process. */
struct process {
	uint64_t start;                 /* in ticks since boot; 0: unknown */
	bool over;                      /* a zombie: all its threads have ended */
};

/* Finds a field of /proc/<pid>/stat, the third or a later one. The second is the name of the
 * program, which may contain spaces and brackets, so the search begins after the last bracket. */
static const char *stat_field(const char *stat, int n)
{
	const char *p = strrchr(stat, ')');

	for (int field = 2; p && field < n; field++) {
		p = strchr(p, ' ');
		if (p)
			p++;
	}
	return p;
}

/* Reads the state of a process. A process whose first thread is a zombie may still have other
 * threads that write, so it is over only if no other thread is left. */
static struct process process_of(uint64_t pid)
{
	const char *state, *threads, *start;
	struct process made = { 0, false };
	char path[48], buf[2048];

	snprintf(path, sizeof(path), "/proc/%" PRIu64 "/stat", pid);
	if (!shf_real_text(path, buf, sizeof(buf)))
		return made;
	state = stat_field(buf, 3);
	threads = stat_field(buf, 20);
	start = stat_field(buf, 22);
	made.start = start ? strtoull(start, NULL, 10) : 0;
	made.over = state && threads && (*state == 'Z' || *state == 'X') &&
	            strtoull(threads, NULL, 10) <= 1;
	return made;
}

/* Returns whether /proc shows our pid namespace. A container may see the /proc of its host, where
 * the same numbers mean other processes. */
static bool proc_is_ours(void)
{
	char buf[24];
	int n = shf_real_readlink(NULL, AT_FDCWD, "/proc/self", buf, sizeof(buf));

	return n > 0 && strtoull(buf, NULL, 10) == (uint64_t)getpid();
}

/* Without /proc, most fields stay empty; nobody can then prove that this process is dead, which is
 * the safe side. A host name that does not fit is cut, since it is for people only. */
static int real_owner(void *arg, struct shf_owner *self)
{
	char boot[64];
	struct stat st;

	(void)arg;
	memset(self, 0, sizeof(*self));
	if (gethostname(self->host, sizeof(self->host) - 1))
		snprintf(self->host, sizeof(self->host), "unknown");
	self->host[sizeof(self->host) - 1] = '\0';
	self->pid = (uint64_t)getpid();
	if (shf_real_text("/proc/sys/kernel/random/boot_id", boot, sizeof(boot))) {
		boot[strcspn(boot, "\n")] = '\0';
		snprintf(self->boot, sizeof(self->boot), "%.36s", boot);
	}
	if (proc_is_ours()) {
		if (!stat("/proc/self/ns/pid", &st))
			self->pid_ns = (uint64_t)st.st_ino;
		if (!stat("/proc/self/ns/time", &st))
			self->time_ns = (uint64_t)st.st_ino;
		self->start = process_of(self->pid).start;
	}
	return 0;
}

/* Each test may only prove death; anything unknown means alive. Signal 0 is used first, because
 * /proc may hide the processes of other users. A zombie is dead: in a container whose first process
 * collects no children, zombies stay for ever. The start time tells a process from a later one with
 * the same pid. It is compared only within one time namespace, because the kernel shifts it by the
 * reader's namespace. */
static bool real_owner_is_dead(void *arg, const struct shf_owner *owner)
{
	struct shf_owner self;
	struct process process;

	if (real_owner(arg, &self) || !self.boot[0] || !self.pid_ns)
		return false;
	if (strncmp(owner->boot, self.boot, sizeof(self.boot)) || owner->pid_ns != self.pid_ns)
		return false;
	/* kill() with 0, or with a number that pid_t cannot hold, would ask about other
	 * processes. */
	if (!owner->pid || owner->pid > INT_MAX)
		return false;
	if (kill((pid_t)owner->pid, 0) && errno == ESRCH)
		return true;
	process = process_of(owner->pid);
	if (process.over)
		return true;
	return owner->start && process.start && owner->time_ns == self.time_ns &&
	       process.start != owner->start;
}

const struct shf_host_ops shf_real_host = {
	.random = shf_real_random,
	.mono_ns = shf_real_mono_ns,
	.wall_s = real_wall_s,
	.sleep_ms = real_sleep_ms,
	.owner = real_owner,
	.owner_is_dead = real_owner_is_dead,
	.pid = real_pid,
};
