/* SPDX-License-Identifier: Apache-2.0 */
/* The client's side of the protocol with the agent of this node (agent_client.h). The agent keeps
 * memory under names, so that the memory outlives the process that made it. */
#include "agent_client.h"
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "passfd.h"

#define LEAVE_MS 10000          /* limit for an agent to exit after STOP */

/* Makes a request. A name that is too long is cut. */
static struct shf_keep_msg message(int op, const char *name)
{
	struct shf_keep_msg m = { .magic = SHF_KEEP_MAGIC, .version = SHF_KEEP_VERSION,
		.op = (uint32_t)op };

	snprintf(m.name, sizeof(m.name), "%s", name);
	return m;
}

/* Waits for one message until the time `until`. Returns the rc of the answer, or a negative errno
 * if the connection fails. *memfd becomes the descriptor that came with the message, or -1. */
static int keep_receive(int keep, struct shf_keep_msg *m, int *memfd, int64_t until)
{
	int rc;

	do {
		rc = shf_passfd_wait(keep, POLLIN, until);
		if (!rc)
			rc = shf_passfd_receive(keep, m, sizeof(*m), memfd);
	} while (rc == -EAGAIN);
	if (rc)
		return rc;
	if (m->magic != SHF_KEEP_MAGIC || m->version != SHF_KEEP_VERSION)
		rc = -EPROTO;
	else
		rc = m->rc;
	m->name[sizeof(m->name) - 1] = '\0';
	return rc;
}

/* Sends a request and waits for its answer, which replaces it in *m. *got becomes the descriptor
 * that came with the answer, or -1. A descriptor is closed if got is NULL or the request fails.
 * After a timeout the connection is useless: a late answer would be taken for that of the next
 * request. */
static int keep_request(int keep, struct shf_keep_msg *m, int memfd, int *got)
{
	int64_t until = shf_passfd_until_ns(m->op == SHF_KEEP_HELLO ? SHF_KEEP_HELLO_MS
	                                                            : SHF_KEEP_WAIT_MS);
	int rc = shf_pass(keep, m, sizeof(*m), memfd, until), came = -1;

	if (!rc)
		rc = keep_receive(keep, m, &came, until);
	if (came >= 0 && (!got || rc)) {
		close(came);
		came = -1;
	}
	if (got)
		*got = came;
	return rc == -EPIPE || rc == -ECONNRESET ? -EPIPE : rc;
}

#define AUTO "auto/"

static bool is_auto(const char *socket)
{
	return strncmp(socket, AUTO, sizeof(AUTO) - 1) == 0;
}

int shf_keep_path(const char *socket, char out[SHF_KEEP_PATH])
{
	int n;

	if (is_auto(socket))
		n = snprintf(out, SHF_KEEP_PATH, "/tmp/sheaf-%lu-%s/agent.sock",
		             (unsigned long)geteuid(), socket + sizeof(AUTO) - 1);
	else
		n = snprintf(out, SHF_KEEP_PATH, "%s", socket);
	return n < 0 || n >= SHF_KEEP_PATH ? -ENAMETOOLONG : 0;
}

bool shf_keep_is_folder(const char *name)
{
	char ours[32];
	int n = snprintf(ours, sizeof(ours), "sheaf-%lu-", (unsigned long)geteuid());

	return strncmp(name, ours, (size_t)n) == 0;
}

int shf_keep_dir(const char *socket)
{
	char path[SHF_KEEP_PATH];
	struct stat st;
	int rc = shf_keep_path(socket, path);

	if (rc || !is_auto(socket))
		return rc;
	*strrchr(path, '/') = '\0';
	if (mkdir(path, 0700) && errno != EEXIST)
		return -errno;
	/* lstat: in /tmp, another user may have made a symlink of that name. */
	if (lstat(path, &st))
		return -errno;
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) ? 0 : -EPERM;
}

/* A log with text is kept for people to read, and then the directory stays, too. */
void shf_keep_dir_leave(const char *socket)
{
	char path[SHF_KEEP_PATH], log[SHF_KEEP_PATH + sizeof(SHF_KEEP_LOG)];
	struct stat st;

	if (shf_keep_path(socket, path))
		return;
	snprintf(log, sizeof(log), "%s" SHF_KEEP_LOG, path);
	if (!lstat(log, &st) && S_ISREG(st.st_mode) && st.st_size == 0)
		(void)unlink(log);
	if (!is_auto(socket))
		return;
	*strrchr(path, '/') = '\0';
	(void)rmdir(path);
}

/* The agent must be a process of this user, because it gets the memory of the job. If the agent's
 * queue of connections is full, the result is the same as without an agent. */
static int real_keep_open(void *arg, const char *where, const char *run, const char *job,
                          int *keep, int *steps)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct shf_keep_msg m = message(SHF_KEEP_HELLO, job);
	char path[SHF_KEEP_PATH];
	int fd, rc;

	(void)arg;
	snprintf(m.run, sizeof(m.run), "%s", run);
	rc = shf_keep_path(where, path);
	if (rc)
		return rc;
	memcpy(a.sun_path, path, strlen(path) + 1);
	fd = shf_passfd_socket();
	if (fd < 0)
		return fd;
	do
		rc = connect(fd, (const struct sockaddr *)&a, sizeof(a));
	while (rc && errno == EINTR);
	if (rc)
		rc = errno == EAGAIN ? -ECONNREFUSED : -errno;
	else
		rc = shf_passfd_peer_is_us(fd) ? keep_request(fd, &m, -1, NULL) : -EACCES;
	if (rc) {
		close(fd);
		return rc;
	}
	*keep = fd;
	if (steps)
		*steps = m.names < INT_MAX ? (int)m.names : INT_MAX;
	return 0;
}

static int real_keep_put(void *arg, int keep, const char *name, const struct shf_shm *shm)
{
	struct shf_keep_msg m = message(SHF_KEEP_PUT, name);

	(void)arg;
	/* Memory that is not shared has no descriptor that could be passed. */
	if (shm->fd < 0)
		return -EINVAL;
	m.bytes = shm->bytes;
	return keep_request(keep, &m, shm->fd, NULL);
}

/* The memory is checked before it is mapped: sealed, and as long as the agent says. */
static int real_keep_get(void *arg, int keep, const char *name, struct shf_shm *shm)
{
	struct shf_keep_msg m = message(SHF_KEEP_GET, name);
	int fd, rc;

	(void)arg;
	rc = keep_request(keep, &m, -1, &fd);
	if (rc)
		return rc;
	rc = fd < 0 ? -EPROTO : shf_memfd_check(fd, m.bytes);
	if (!rc)
		rc = shf_memfd_map(shm, fd, (size_t)m.bytes);
	if (rc && fd >= 0)
		close(fd);
	return rc;
}

static int real_keep_drop(void *arg, int keep, const char *name)
{
	struct shf_keep_msg m = message(SHF_KEEP_DROP, name);

	(void)arg;
	return keep_request(keep, &m, -1, NULL);
}

static int real_keep_message(void *arg, int keep, const char *text)
{
	struct shf_keep_msg m = message(SHF_KEEP_MESSAGE, text);

	(void)arg;
	return keep_request(keep, &m, -1, NULL);
}

static int real_keep_at(void *arg, int keep, int dir)
{
	struct shf_keep_msg m = message(SHF_KEEP_AT, "");

	(void)arg;
	return keep_request(keep, &m, dir, NULL);
}

/* Receives all answers even if item has ended the listing: an answer left in the connection would
 * be taken for that of the next request. */
static int real_keep_list(void *arg, int keep, int (*item)(void *arg, const char *name),
                          void *item_arg)
{
	struct shf_keep_msg m = message(SHF_KEEP_LIST, "");
	int64_t until = shf_passfd_until_ns(SHF_KEEP_WAIT_MS);
	int rc = shf_pass(keep, &m, sizeof(m), -1, until), told = 0;

	(void)arg;
	while (!rc) {
		int came = -1;

		rc = keep_receive(keep, &m, &came, until);
		if (came >= 0)
			close(came);
		if (rc <= 0)
			break;
		if (!told)
			told = item(item_arg, m.name);
		rc = 0;
	}
	return rc ? rc : told;
}

/* Tests whether the connection has ended, without waiting and without taking anything out of it. */
static int real_keep_lives(void *arg, int keep)
{
	char c;
	ssize_t got;

	(void)arg;
	do
		got = recv(keep, &c, 1, MSG_PEEK | MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	return got < 0 && errno == EAGAIN ? 0 : -EPIPE;
}

/* BYE has no answer, and a full socket is not waited for: closing must not block a process that is
 * exiting. */
static void real_keep_close(void *arg, int keep, bool bye)
{
	struct shf_keep_msg m = message(SHF_KEEP_BYE, "");

	(void)arg;
	if (keep < 0)
		return;
	if (bye)
		(void)shf_pass(keep, &m, sizeof(m), -1, shf_passfd_until_ns(0));
	close(keep);
}

/* After STOP the agent closes this connection as its last act. So the wait for the end of the
 * connection is a wait for the exit of the agent. */
int shf_keep_ask(int keep, int op, struct shf_keep_msg *m)
{
	int rc;

	*m = message(op, "");
	rc = keep_request(keep, m, -1, NULL);
	if (rc == 0 && op == SHF_KEEP_STOP)
		rc = shf_passfd_wait(keep, POLLIN, shf_passfd_until_ns(LEAVE_MS));
	return rc;
}

const struct shf_keep_ops shf_real_keep = {
	.keep_open = real_keep_open,
	.keep_put = real_keep_put,
	.keep_get = real_keep_get,
	.keep_drop = real_keep_drop,
	.keep_message = real_keep_message,
	.keep_at = real_keep_at,
	.keep_list = real_keep_list,
	.keep_lives = real_keep_lives,
	.keep_close = real_keep_close,
};
