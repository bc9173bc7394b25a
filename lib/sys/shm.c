/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ranks of one node share: a memfd, handed over an abstract Unix socket, so that
 * nothing has a name and nothing is left when all are gone. Always true here: memory is
 * allocated before it is handed out (a full machine is an error, not SIGBUS), sealed against
 * shrinking, not inherited by forked children, and every wait has a deadline.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "real.h"

#define MAGIC UINT64_C(0x73686561662d7368)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define BACKLOG 4096

struct hello {                  /* travels with the descriptor, inside one machine */
	uint64_t magic, bytes;
};

/* What is mapped for so many bytes; 0: too many. Never nothing, so that an empty share has an
 * address like any other. */
static size_t mapped_bytes(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (!bytes)
		return page;
	if (bytes > (size_t)INT64_MAX - page)
		return 0;
	return (bytes + page - 1) / page * page;
}

static int map(struct shf_shm *shm, int fd, size_t bytes)
{
	size_t n = mapped_bytes(bytes);
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	void *base = mmap(NULL, n, PROT_READ | PROT_WRITE, flags, fd, 0);
	int rc = 0;

	if (base == MAP_FAILED)
		return -errno;
	if (madvise(base, n, MADV_DONTFORK))
		rc = -errno;
#ifdef MADV_POPULATE_WRITE
	/* Where the kernel knows how, anonymous memory is allocated now; where it does not,
	 * at first touch. Shared memory was allocated with its file. */
	if (!rc && fd < 0) {
		(void)madvise(base, n, MADV_HUGEPAGE);
		if (madvise(base, n, MADV_POPULATE_WRITE) && errno != EINVAL && errno != ENOSYS)
			rc = -errno;
	}
#endif
	if (rc) {
		munmap(base, n);
		return rc;
	}
	shm->base = base;
	shm->bytes = bytes;
	shm->fd = fd;
	return 0;
}

static int memfd_reserved(size_t n)
{
	int fd = memfd_create("sheaf", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc;

	if (fd < 0)
		return -errno;
	do
		rc = ftruncate(fd, (off_t)n);
	while (rc && errno == EINTR);
	if (!rc) {
		do
			rc = fallocate(fd, 0, 0, (off_t)n);
		while (rc && errno == EINTR);
	}
	if (!rc)
		rc = fcntl(fd, F_ADD_SEALS, SEALS);
	if (rc) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

int shf_real_shm_new(void *arg, struct shf_shm *shm, size_t bytes, bool shared)
{
	size_t n = mapped_bytes(bytes);
	struct shf_mute mute;
	int fd = -1, rc;

	(void)arg;
	/* The kernel has no limit of its own here: asked for too much, it would kill. */
	if (!n || n > shf_real_memory_left())
		return -ENOMEM;
	if (shared) {
		shf_mute_begin(&mute);
		fd = (int)shf_mute_end(&mute, memfd_reserved(n));
		if (fd < 0)
			return fd;
	}
	rc = map(shm, fd, bytes);
	if (rc && fd >= 0)
		close(fd);
	return rc;
}

void shf_real_shm_free(void *arg, struct shf_shm *shm)
{
	(void)arg;
	if (!shm->base)
		return;
	munmap(shm->base, mapped_bytes(shm->bytes));
	if (shm->fd >= 0)
		close(shm->fd);
	*shm = (struct shf_shm){ NULL, 0, -1 };
}

static socklen_t address_of(const uint8_t token[16], struct sockaddr_un *a)
{
	int n;

	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	n = snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "sheaf-");
	for (int i = 0; i < 16; i++, n += 2)
		snprintf(a->sun_path + 1 + n, 3, "%02x", token[i]);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Memory goes to nobody but ourselves, and is taken from nobody else. */
static bool peer_is_us(int fd)
{
	struct ucred cred;
	socklen_t n = sizeof(cred);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) && cred.uid == geteuid();
}

static int socket_new(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return fd < 0 ? -errno : fd;
}

int shf_real_shm_offer(void *arg, const struct shf_shm *shm, uint8_t token[16], int *handle)
{
	struct sockaddr_un a;
	socklen_t n;
	int fd, rc;

	if (shm->fd < 0)
		return -EINVAL;
	rc = shf_real_random(arg, token, 16);
	if (rc)
		return rc;
	fd = socket_new();
	if (fd < 0)
		return fd;
	n = address_of(token, &a);
	if (bind(fd, (const struct sockaddr *)&a, n) || listen(fd, BACKLOG)) {
		rc = -errno;
		close(fd);
		return rc;
	}
	*handle = fd;
	return 0;
}

int shf_real_shm_connect(void *arg, const uint8_t token[16], int *handle)
{
	struct sockaddr_un a;
	socklen_t n = address_of(token, &a);
	int fd = socket_new(), rc;

	(void)arg;
	if (fd < 0)
		return fd;
	do
		rc = connect(fd, (const struct sockaddr *)&a, n);
	while (rc && errno == EINTR);
	if (rc)
		/* A full backlog is a no like any other: this rank shares with nobody. */
		rc = errno == EAGAIN ? -ECONNREFUSED : -errno;
	else if (!peer_is_us(fd))
		rc = -ECONNREFUSED;
	if (rc) {
		close(fd);
		return rc;
	}
	*handle = fd;
	return 0;
}

/* 0 when fd is ready; -ETIMEDOUT at the deadline. */
static int wait_for(int fd, short events, int64_t until_ns)
{
	for (;;) {
		struct pollfd p = { .fd = fd, .events = events };
		int64_t left = until_ns - shf_real_mono_ns(NULL);
		int ms = left <= 0 ? 0 : left / 1000000 >= INT32_MAX ? INT32_MAX
		                                                    : (int)(left / 1000000) + 1;
		int rc = poll(&p, 1, ms);

		if (rc > 0)
			return p.revents & POLLNVAL ? -EBADF : 0;
		if (rc < 0 && errno != EINTR)
			return -errno;
		if (!rc && left <= 0)
			return -ETIMEDOUT;
	}
}

static int64_t until_ns(int timeout_ms)
{
	return shf_real_mono_ns(NULL) + (int64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000;
}

static int send_memory(int fd, const struct shf_shm *shm, int64_t until)
{
	struct hello h = { MAGIC, shm->bytes };
	struct iovec v = { &h, sizeof(h) };
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} c;
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = c.bytes,
	                    .msg_controllen = sizeof(c.bytes) };
	struct cmsghdr *head;

	memset(&c, 0, sizeof(c));
	head = CMSG_FIRSTHDR(&m);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &shm->fd, sizeof(int));
	for (;;) {
		int rc;

		if (sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 0;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN && errno != ENOBUFS)
			return -errno;
		rc = wait_for(fd, POLLOUT, until);
		if (rc)
			return rc;
	}
}

int shf_real_shm_serve(void *arg, int offer, const struct shf_shm *shm, int n, int timeout_ms)
{
	int64_t until = until_ns(timeout_ms);
	int rc, worst = 0;

	(void)arg;
	while (n > 0) {
		int fd;

		rc = wait_for(offer, POLLIN, until);
		if (rc)
			return rc;
		fd = accept4(offer, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED))
			continue;
		if (fd < 0)
			return -errno;
		/* A stranger's knock is not one of the n. */
		if (peer_is_us(fd)) {
			rc = send_memory(fd, shm, until);
			/* One that died does not keep the others from theirs. */
			worst = worst ? worst : rc;
			n--;
		}
		close(fd);
	}
	return worst;
}

static int receive(int fd, struct hello *h, int *memfd)
{
	struct iovec v = { h, sizeof(*h) };
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} c;
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = c.bytes,
	                    .msg_controllen = sizeof(c.bytes) };
	struct cmsghdr *head;
	ssize_t got;

	memset(&c, 0, sizeof(c));
	*memfd = -1;
	do
		got = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	head = CMSG_FIRSTHDR(&m);
	if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
	    head->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(memfd, CMSG_DATA(head), sizeof(int));
	if (!got)
		return -ECONNRESET;
	if ((size_t)got != sizeof(*h) || h->magic != MAGIC || *memfd < 0)
		return -EPROTO;
	return 0;
}

/* Sealed and as long as it says: reading it cannot end in SIGBUS. */
static int check_memory(int memfd, uint64_t bytes)
{
	struct stat st;
	int seals = fcntl(memfd, F_GET_SEALS);
	size_t n = bytes > SIZE_MAX ? 0 : mapped_bytes((size_t)bytes);

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EPROTO;
	if (fstat(memfd, &st))
		return -errno;
	return n && (uint64_t)st.st_size >= n ? 0 : -EPROTO;
}

int shf_real_shm_take(void *arg, int connection, struct shf_shm *shm, int timeout_ms)
{
	int64_t until = until_ns(timeout_ms);
	struct hello h = { 0, 0 };
	int memfd = -1, rc;

	(void)arg;
	do {
		rc = wait_for(connection, POLLIN, until);
		if (rc)
			return rc;
		rc = receive(connection, &h, &memfd);
	} while (rc == -EAGAIN);
	if (!rc)
		rc = check_memory(memfd, h.bytes);
	if (!rc)
		rc = map(shm, memfd, (size_t)h.bytes);
	if (rc && memfd >= 0)
		close(memfd);
	return rc;
}

void shf_real_shm_drop(void *arg, int handle)
{
	(void)arg;
	if (handle >= 0)
		close(handle);
}
