/* SPDX-License-Identifier: Apache-2.0 */
/* Messages with a descriptor between processes of one user on one machine, and memory that is
 * passed in this way. */
#include "passfd.h"
#include "host.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

int shf_passfd_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return fd < 0 ? -errno : fd;
}

/* The kernel fills in the credentials, so a peer cannot forge them. */
bool shf_passfd_peer_is_us(int fd)
{
	struct ucred cred;
	socklen_t n = sizeof(cred);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) && cred.uid == geteuid();
}

int64_t shf_passfd_until_ns(int timeout_ms)
{
	return shf_real_mono_ns(NULL) + shf_ms_ns(timeout_ms > 0 ? timeout_ms : 0);
}

/* Waits in a loop, because poll may be interrupted and counts only milliseconds. A hangup counts as
 * ready: the next call on fd then reports it. */
int shf_passfd_wait(int fd, short events, int64_t until)
{
	for (;;) {
		struct pollfd p = { .fd = fd, .events = events };
		int64_t left = until - shf_real_mono_ns(NULL);
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

union room {                    /* room for one descriptor beside a message */
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

/* Sends the message and the descriptor in one packet, so that a receiver gets both or neither. */
int shf_pass(int fd, const void *message, size_t n, int memfd, int64_t until)
{
	struct iovec v = { (void *)(uintptr_t)message, n };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	union room c;
	struct cmsghdr *head;

	memset(&c, 0, sizeof(c));
	if (memfd >= 0) {
		m.msg_control = c.bytes;
		m.msg_controllen = sizeof(c.bytes);
		head = CMSG_FIRSTHDR(&m);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &memfd, sizeof(int));
	}
	for (;;) {
		int rc;

		if (sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 0;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN && errno != ENOBUFS)
			return -errno;
		rc = shf_passfd_wait(fd, POLLOUT, until);
		if (rc)
			return rc;
	}
}

/* Receives one packet. The buffer may have room for more descriptors than one, because of its
 * alignment. If several came, all are closed, so that a peer cannot fill our table of
 * descriptors. */
int shf_passfd_receive(int fd, void *message, size_t n, int *memfd)
{
	struct iovec v = { message, n };
	union room c;
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = c.bytes,
	                    .msg_controllen = sizeof(c.bytes) };
	struct cmsghdr *head;
	size_t fds = 0;
	ssize_t got;

	memset(&c, 0, sizeof(c));
	*memfd = -1;
	do
		got = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	head = CMSG_FIRSTHDR(&m);
	if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
		fds = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	for (size_t i = 0; i < fds; i++) {
		int one;

		memcpy(&one, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
		if (fds == 1)
			*memfd = one;
		else
			close(one);
	}
	if (!got)
		return -ECONNRESET;
	return (size_t)got == n && !(m.msg_flags & MSG_TRUNC) ? 0 : -EPROTO;
}

/* The result is never 0 for a valid size, so an image of 0 bytes has an address like any other. */
size_t shf_memfd_bytes(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (!bytes)
		return page;
	if (bytes > (size_t)INT64_MAX - page)
		return 0;
	return (bytes + page - 1) / page * page;
}

int shf_memfd_check(int memfd, uint64_t bytes)
{
	struct stat st;
	int seals = fcntl(memfd, F_GET_SEALS);
	size_t n = bytes > SIZE_MAX ? 0 : shf_memfd_bytes((size_t)bytes);

	/* Without this seal the sender could truncate the memory after the check. */
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EPROTO;
	if (fstat(memfd, &st))
		return -errno;
	return n && (uint64_t)st.st_size >= n ? 0 : -EPROTO;
}

/* Forked children do not get the mapping (MADV_DONTFORK): otherwise each page that the parent
 * writes afterwards would be copied, which doubles the memory. Anonymous memory is allocated here
 * if the kernel can (5.14), else at the first touch. A memfd is allocated already. */
int shf_memfd_map(struct shf_shm *shm, int fd, size_t bytes)
{
	size_t n = shf_memfd_bytes(bytes);
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	void *base = mmap(NULL, n, PROT_READ | PROT_WRITE, flags, fd, 0);
	int rc = 0;

	if (base == MAP_FAILED)
		return -errno;
	if (madvise(base, n, MADV_DONTFORK))
		rc = -errno;
#ifdef MADV_POPULATE_WRITE
	if (!rc)
		(void)madvise(base, n, MADV_HUGEPAGE);
	if (!rc && fd < 0) {
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
