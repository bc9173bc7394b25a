/* SPDX-License-Identifier: Apache-2.0 */
/* The agent: one process of a node that keeps descriptors of memory under names and knows nothing
 * of what is in the memory. It sleeps in one ppoll until a client sends a request, connects or
 * exits. It wakes by the clock only while it has no descriptor left for a process that wants to
 * connect: then it tries again ten times a second, because no event says that the machine has a
 * free descriptor again. It learns from a pidfd that a process has exited, because children that
 * the process forked keep its connection open. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include "agent_server.h"
#include "agent_client.h"
#include "passfd.h"

#define ANSWER_MS 1000          /* limit for a client to take an answer */
#define USERS_MAX 4096          /* connections */
#define ACCEPT_AGAIN_MS 100     /* until the next accept, if no descriptor was left */

/* A region of memory that is kept. */
struct kept {
	char name[SHF_KEEP_NAME];
	int fd;
	uint64_t bytes;
};
/* A connected process. */
struct user {
	int fd, pidfd;                  /* pidfd: readable when the process exits; -1: the kernel
	                                 * gave no pidfd */
	bool bye;                       /* has sent BYE */
	char job[SHF_KEEP_NAME];        /* "" for a mere reader, and before HELLO */
};
/* The state of the server. */
struct serving {
	const struct shf_agent_server *k;
	int listen, lock;               /* descriptors of the socket and of its lock file */
	struct kept *kept;
	size_t kept_n, kept_cap;
	uint64_t bytes;                 /* of all memory kept */
	struct user *users;
	size_t users_n, users_cap;
	struct pollfd *polls;           /* the socket; then of each user fd and pidfd */
	char lock_name[SHF_KEEP_PATH + 8];
	sigset_t open;                  /* the empty signal mask, in force during ppoll */
	bool full;                      /* accept failed: the next poll leaves the socket out */
	bool mourns;                    /* a job has crashed: from now on k->died is called at the
	                                 * end of every job */
	bool over;                      /* STOP was received */
	char dir[SHF_KEEP_NAME];        /* current path of the run, or "..." and its end */
};

/* Returns the region with this name, or NULL. */
static struct kept *kept_find(struct serving *s, const char *name)
{
	for (size_t i = 0; i < s->kept_n; i++)
		if (strcmp(s->kept[i].name, name) == 0)
			return &s->kept[i];
	return NULL;
}

/* Forgets a region. The last region of the array takes its place. */
static void kept_release(struct serving *s, struct kept *k)
{
	close(k->fd);
	s->bytes -= k->bytes;
	*k = s->kept[--s->kept_n];
}

/* Stores memory under a name and takes over the descriptor if it returns 0. The limit is checked
 * against what would be kept afterwards, so replacing a region needs no room for both. The old
 * region is released only when nothing can fail any more. */
static int kept_store(struct serving *s, const struct shf_keep_msg *m, int memfd)
{
	struct kept *old = kept_find(s, m->name);
	uint64_t others = s->bytes - (old ? old->bytes : 0);
	int rc = memfd < 0 || !m->name[0] ? -EINVAL : shf_memfd_check(memfd, m->bytes);

	if (rc == 0 && s->k->bytes_max && (m->bytes > s->k->bytes_max ||
	                                   others > s->k->bytes_max - m->bytes))
		rc = -ENOSPC;
	if (rc == 0 && !old && s->kept_n == s->kept_cap) {
		size_t cap = s->kept_cap ? 2 * s->kept_cap : 64;
		struct kept *more = reallocarray(s->kept, cap, sizeof(*more));

		if (more) {
			s->kept = more;
			s->kept_cap = cap;
		} else {
			rc = -ENOMEM;
		}
	}
	if (rc)
		return rc;
	if (old)
		kept_release(s, old);
	old = &s->kept[s->kept_n++];
	*old = (struct kept){ .fd = memfd, .bytes = m->bytes };
	memcpy(old->name, m->name, sizeof(old->name));
	s->bytes += m->bytes;
	return 0;
}

/* Sends an answer. A client that does not take it within ANSWER_MS is disconnected, because a
 * single thread serves all clients. */
static int keeper_answer(int fd, struct shf_keep_msg *m, int rc, int memfd)
{
	m->magic = SHF_KEEP_MAGIC;
	m->version = SHF_KEEP_VERSION;
	m->rc = rc;
	return shf_pass(fd, m, sizeof(*m), memfd, shf_passfd_until_ns(ANSWER_MS));
}

/* Answers LIST: one message for each name, then the last one (agent_client.h). */
static int list(struct serving *s, int fd, struct shf_keep_msg *m)
{
	int rc = 0;

	for (size_t i = 0; i < s->kept_n && !rc; i++) {
		memcpy(m->name, s->kept[i].name, sizeof(m->name));
		m->bytes = s->kept[i].bytes;
		rc = keeper_answer(fd, m, 1, -1);
	}
	return rc ? rc : keeper_answer(fd, m, 0, -1);
}

/* Answers GET. */
static int kept_send(struct serving *s, int fd, struct shf_keep_msg *m)
{
	const struct kept *k = kept_find(s, m->name);

	if (!k)
		return keeper_answer(fd, m, -ENOENT, -1);
	m->bytes = k->bytes;
	return keeper_answer(fd, m, 0, k->fd);
}

/* Answers STATUS. */
static int status(struct serving *s, int fd, struct shf_keep_msg *m)
{
	m->bytes = s->bytes;
	m->names = s->kept_n;
	m->users = 0;
	for (size_t i = 0; i < s->users_n; i++)
		m->users += s->users[i].job[0] != '\0';
	m->pid = (uint64_t)getpid();
	snprintf(m->name, sizeof(m->name), "%s", s->k->about ? s->k->about : "");
	return keeper_answer(fd, m, 0, -1);
}

/* Stores the path of the run, which is the answer to SHF_KEEP_WHERE. Of a path that is too long it
 * stores "..." and its end. */
static void dir_keep(struct serving *s, const char *path)
{
	size_t n = strlen(path), room = sizeof(s->dir) - 1;

	if (n <= room)
		snprintf(s->dir, sizeof(s->dir), "%s", path);
	else
		snprintf(s->dir, sizeof(s->dir), "...%s", path + n - (room - 3));
}

/* Stores the path of the run's directory and reports it to k->at. Only the path, because an open
 * descriptor would keep the file system mounted. A path that does not lead to the same directory
 * from here is not reported: the client may be in another mount namespace. */
static void locate(struct serving *s, int dir)
{
	char link[40], path[4096];
	struct stat told, found;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
	n = readlink(link, path, sizeof(path) - 1);
	if (n <= 0 || path[0] != '/')
		return;
	path[n] = '\0';
	if (!fstat(dir, &told) && !stat(path, &found) && S_ISDIR(found.st_mode) &&
	    told.st_dev == found.st_dev && told.st_ino == found.st_ino) {
		dir_keep(s, path);
		if (s->k->at)
			s->k->at(s->k->arg, path);
	}
}

/* Carries out one request and answers it. Returns non-zero if the connection is to be closed.
 * memfd: the descriptor that came with the request, or -1; this function closes it or keeps it. */
static int keeper_handle(struct serving *s, struct user *u, struct shf_keep_msg *m, int memfd)
{
	struct kept *k;
	int rc;

	switch (m->op) {
	case SHF_KEEP_HELLO:
		m->run[sizeof(m->run) - 1] = '\0';
		/* A reader may connect without naming a run: it knows only the socket. */
		if (s->k->run && (m->run[0] || m->name[0]) && strcmp(m->run, s->k->run))
			/* The client is of another run directory: it gets the answer, then the
			 * connection ends. */
			return keeper_answer(u->fd, m, -EXDEV, -1) < 0 ? -EPIPE : -EXDEV;
		memcpy(u->job, m->name, sizeof(u->job));
		m->names = (uint64_t)s->k->steps_max;
		return keeper_answer(u->fd, m, 0, -1);
	case SHF_KEEP_PUT:
		/* On success the descriptor belongs to the region. */
		rc = kept_store(s, m, memfd);
		if (rc && memfd >= 0)
			close(memfd);
		return keeper_answer(u->fd, m, rc, -1);
	case SHF_KEEP_GET:
		return kept_send(s, u->fd, m);
	case SHF_KEEP_DROP:
		k = kept_find(s, m->name);
		if (k)
			kept_release(s, k);
		return keeper_answer(u->fd, m, k ? 0 : -ENOENT, -1);
	case SHF_KEEP_LIST:
		return list(s, u->fd, m);
	case SHF_KEEP_STATUS:
		return status(s, u->fd, m);
	case SHF_KEEP_WHERE:
		memcpy(m->name, s->dir, sizeof(m->name));
		return keeper_answer(u->fd, m, 0, -1);
	case SHF_KEEP_STOP:
		s->over = true;
		return keeper_answer(u->fd, m, 0, -1);
	case SHF_KEEP_MESSAGE:
		if (s->k->told)
			s->k->told(s->k->arg, m->name);
		return keeper_answer(u->fd, m, 0, -1);
	case SHF_KEEP_AT:
		if (memfd >= 0) {
			locate(s, memfd);
			close(memfd);
		}
		return keeper_answer(u->fd, m, memfd < 0 ? -EINVAL : 0, -1);
	case SHF_KEEP_BYE:
		u->bye = true;
		return -EPIPE;
	default:
		return keeper_answer(u->fd, m, -ENOSYS, -1);
	}
}

/* Receives one message and checks it before anything in it is used. Names are NUL-terminated here.
 * A descriptor that came with a message that should have none is closed, otherwise a client could
 * use up the agent's descriptors. Non-zero: the connection is to be closed. */
static int keeper_receive(struct serving *s, struct user *u)
{
	struct shf_keep_msg m;
	int memfd = -1, rc = shf_passfd_receive(u->fd, &m, sizeof(m), &memfd);

	if (rc == -EAGAIN)
		return 0;
	if (rc == 0 && m.magic != SHF_KEEP_MAGIC)
		rc = -EPROTO;
	if (rc == 0 && m.version != SHF_KEEP_VERSION)
		rc = keeper_answer(u->fd, &m, -EPROTONOSUPPORT, -1) < 0 ? -EPIPE : -EPROTO;
	if (rc == 0) {
		m.name[sizeof(m.name) - 1] = '\0';
		if (memfd >= 0 && m.op != SHF_KEEP_PUT && m.op != SHF_KEEP_AT) {
			close(memfd);
			memfd = -1;
		}
		return keeper_handle(s, u, &m, memfd);
	}
	if (memfd >= 0)
		close(memfd);
	return rc;
}

/* Removes user i, whose process has exited or whose connection is closed. When the last process of
 * a job is gone, k->died is called if that process did not say BYE, or if an earlier job crashed:
 * nothing could be done about the earlier one while this job was using the run. */
static void gone(struct serving *s, size_t i)
{
	struct user u = s->users[i];

	close(u.fd);
	if (u.pidfd >= 0)
		close(u.pidfd);
	s->users[i] = s->users[--s->users_n];
	s->full = false;
	if (!u.job[0] || (u.bye && !s->mourns))
		return;
	for (size_t k = 0; k < s->users_n; k++)
		if (strcmp(s->users[k].job, u.job) == 0)
			return;
	s->mourns = true;
	if (s->k->died)
		s->k->died(s->k->arg, u.job);
}

/* Returns a pidfd of the process at the other end of the connection, or -1. A pidfd becomes
 * readable when the process exits. The connection alone is not enough: a forked child may keep it
 * open after the process has crashed. */
static int pidfd_of(int fd)
{
	struct ucred cred;
	socklen_t n = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) || cred.pid <= 0)
		return -1;
	return (int)syscall(SYS_pidfd_open, cred.pid, 0);
}

/* Makes room for more users. The array of polls has two entries for each user and one for the
 * socket. If only one of the two allocations succeeds, the larger array is kept and the capacity
 * stays. */
static bool users_grow(struct serving *s)
{
	size_t cap = s->users_cap ? 2 * s->users_cap : 16;
	struct user *users = reallocarray(s->users, cap, sizeof(*users));
	struct pollfd *polls;

	s->users = users ? users : s->users;
	polls = reallocarray(s->polls, 1 + 2 * cap, sizeof(*polls));
	s->polls = polls ? polls : s->polls;
	if (users && polls)
		s->users_cap = cap;
	return users && polls;
}

/* Accepts one connection; processes of other users are refused. If accept fails for lack of
 * descriptors, the socket is left out of the next poll: it would stay readable, and the loop would
 * spin. */
static void keeper_accept(struct serving *s)
{
	int fd = accept4(s->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	s->full = fd < 0 && errno != EINTR && errno != EAGAIN && errno != ECONNABORTED;
	if (fd < 0)
		return;
	if (!shf_passfd_peer_is_us(fd) || s->users_n == USERS_MAX ||
	    (s->users_n == s->users_cap && !users_grow(s))) {
		close(fd);
		return;
	}
	s->users[s->users_n++] = (struct user){ .fd = fd, .pidfd = pidfd_of(fd) };
}

/* Fills in s->polls and returns how many entries it has. */
static size_t set_polls(struct serving *s)
{
	size_t n = 0;

	/* While no connection can be accepted, a waiting one would end every poll at once. */
	s->polls[n++] = (struct pollfd){ .fd = s->full ? -1 : s->listen, .events = POLLIN };
	for (size_t i = 0; i < s->users_n; i++) {
		s->polls[n++] = (struct pollfd){ .fd = s->users[i].fd, .events = POLLIN };
		s->polls[n++] = (struct pollfd){ .fd = s->users[i].pidfd, .events = POLLIN };
	}
	return n;
}

/* Serves until STOP, the idle limit, or a signal. Signals are blocked by the caller and open only
 * during ppoll, so one that arrives at any other moment is not lost. */
static int loop(struct serving *s)
{
	while (!s->over) {
		size_t n = set_polls(s), users = s->users_n;
		int ms = s->full ? ACCEPT_AGAIN_MS : users ? -1 : s->k->idle_ms;
		struct timespec wait = { ms / 1000, ms % 1000 * 1000000L };
		int rc = ppoll(s->polls, (nfds_t)n, ms < 0 ? NULL : &wait, &s->open);

		if (rc < 0 && errno != EINTR)
			return -errno;
		if (rc < 0 && s->k->stop && s->k->stop(s->k->arg))
			return 0;
		if (rc == 0 && !s->full)
			return 0;       /* no client for idle_ms */
		s->full = false;
		if (rc <= 0)
			continue;
		/* From the last user to the first: gone() fills the place of a user with the last
		 * one, which has been handled already. */
		for (size_t i = users; i-- > 0 && !s->over;) {
			short talks = s->polls[1 + 2 * i].revents;
			short died = s->polls[2 + 2 * i].revents;

			/* What a process sent before it exited is read first: it may be BYE. */
			if (talks && keeper_receive(s, &s->users[i]))
				gone(s, i);
			else if (died && !(talks & POLLIN))
				gone(s, i);
		}
		if (s->polls[0].revents && !s->over)
			keeper_accept(s);
	}
	return 0;
}

/* The agent that serves the socket holds a lock on the file beside it, so the holder of the lock
 * may remove the socket of a dead agent. An agent removes the lock file when it exits. So the file
 * that was opened may have lost its name before it was locked; then the name is opened again.
 * -EBUSY: another agent has the lock. */
static int lock_path(struct serving *s)
{
	struct stat mine, named;

	snprintf(s->lock_name, sizeof(s->lock_name), "%s.lock", s->k->socket);
	for (;;) {
		s->lock = open(s->lock_name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (s->lock < 0)
			return -errno;
		if (flock(s->lock, LOCK_EX | LOCK_NB))
			return errno == EWOULDBLOCK ? -EBUSY : -errno;
		if (!fstat(s->lock, &mine) && !stat(s->lock_name, &named) &&
		    mine.st_ino == named.st_ino && mine.st_dev == named.st_dev)
			return 0;
		close(s->lock);
	}
}

/* Takes the lock, removes the socket of a dead agent, and listens on a new one. If somebody removed
 * the lock file by hand, another agent may serve although the lock was free. So a connection is
 * tried first: if it succeeds, -EBUSY. The umask keeps other users out from the moment the socket
 * exists. */
static int open_socket(struct serving *s)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct stat st;
	mode_t was;
	int rc;

	if (strlen(s->k->socket) >= sizeof(a.sun_path))
		return -ENAMETOOLONG;
	memcpy(a.sun_path, s->k->socket, strlen(s->k->socket) + 1);
	rc = lock_path(s);
	if (rc)
		return rc;
	if (!lstat(a.sun_path, &st) && !S_ISSOCK(st.st_mode))
		return -EEXIST;
	s->listen = shf_passfd_socket();
	if (s->listen < 0)
		return s->listen;
	if (!connect(s->listen, (const struct sockaddr *)&a, sizeof(a)))
		return -EBUSY;
	close(s->listen);
	(void)unlink(a.sun_path);
	s->listen = shf_passfd_socket();
	if (s->listen < 0)
		return s->listen;
	was = umask(0177);
	rc = bind(s->listen, (const struct sockaddr *)&a, sizeof(a)) ? -errno : 0;
	(void)umask(was);
	if (!rc && listen(s->listen, 128))
		rc = -errno;
	return rc;
}

/* The socket and the lock file are removed first, so that a new agent can start. k->left is called
 * when all memory is released and before connections end: clients learn of the end only then.
 * Connections are shut down, not only closed, because forked children of the agent may have copies
 * of them. */
int shf_agent_server_run(const struct shf_agent_server *k)
{
	struct serving s = { .k = k, .listen = -1, .lock = -1 };
	int rc = users_grow(&s) ? open_socket(&s) : -ENOMEM;

	sigemptyset(&s.open);
	if (k->dir)
		dir_keep(&s, k->dir);
	if (!rc && k->ready)
		rc = k->ready(k->arg);
	if (!rc) {
		rc = loop(&s);
		(void)unlink(k->socket);
		(void)unlink(s.lock_name);
	}
	for (size_t i = 0; i < s.kept_n; i++)
		close(s.kept[i].fd);
	if (s.listen >= 0)
		close(s.listen);
	if (s.lock >= 0)
		close(s.lock);
	if (!rc && k->left)
		k->left(k->arg);
	for (size_t i = 0; i < s.users_n; i++) {
		(void)shutdown(s.users[i].fd, SHUT_RDWR);
		close(s.users[i].fd);
		if (s.users[i].pidfd >= 0)
			close(s.users[i].pidfd);
	}
	free(s.kept);
	free(s.users);
	free(s.polls);
	return rc;
}
