/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ranks of one node share: a memfd, passed over an abstract Unix socket, so that it has
 * no name in a file system and the kernel frees it when all processes are gone. Invariants: memory
 * is allocated before it is handed out (a full machine is an error, not SIGBUS), sealed against
 * shrinking, not inherited by forked children, and every wait has a deadline. */
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
#include "shm.h"
#include "host.h"
#include "mute_sigxfsz.h"
#include "passfd.h"
#include "resident.h"
#include "memory_left.h"

#define MAGIC UINT64_C(0x73686561662d7368)      /* of a struct hello */
/* After these seals neither the size nor the set of seals can change. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define BACKLOG 4096                    /* ranks of a node that may connect at once */
#define LARGE ((size_t)2 << 20)         /* a large page, on most machines */
#define PIECE ((size_t)16 << 20)        /* bytes that are allocated by one call */

struct hello {                  /* the message that the descriptor comes with */
	uint64_t magic, bytes;
};

/* Returns whether the kernel gives large pages for shared memory to processes that advise it, and
 * to no others. If it gives them to everybody, fallocate gets them without advice. */
static bool takes_advice(void)
{
	char text[128] = "";
	int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	return n > 0 && strstr(text, "[advise]");
}

/* Tries to allocate the memory in large pages. Errors are ignored, because fallocate then allocates
 * whatever is missing. */
static void allocate_large(int fd, size_t n)
{
#ifdef MADV_POPULATE_WRITE
	void *base = n >= LARGE && takes_advice()
	             ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

	if (base == MAP_FAILED)
		return;
	if (madvise(base, n, MADV_HUGEPAGE) == 0)
		(void)madvise(base, n, MADV_POPULATE_WRITE);
	munmap(base, n);
#endif
}

/* Allocates the n bytes of a memfd, piece by piece: some kernels give up a call that a signal
 * interrupts and free what it had allocated, so with a timer that signals every few milliseconds
 * one call for all bytes would never end. */
static int allocate_all(int fd, size_t n)
{
	int rc = 0;

	for (size_t at = 0; at < n && rc == 0; at += PIECE)
		do
			rc = fallocate(fd, 0, (off_t)at, (off_t)(n - at < PIECE ? n - at : PIECE));
		while (rc && errno == EINTR);
	return rc;
}

/* Makes a memfd of n bytes that are all allocated, and seals its size. The seals let a receiver
 * trust that reading the memory cannot fail with SIGBUS. */
static int memfd_reserved(size_t n)
{
	int fd = memfd_create("sheaf", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc;

	if (fd < 0)
		return -errno;
	do
		rc = ftruncate(fd, (off_t)n);
	while (rc && errno == EINTR);
	if (!rc) {
		allocate_large(fd, n);
		rc = allocate_all(fd, n);
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

/* Checks the limits first: the kernel lets a memfd grow beyond them and kills a process
 * afterwards. */
static int real_shm_new(void *arg, struct shf_shm *shm, size_t bytes, bool shared)
{
	size_t n = shf_memfd_bytes(bytes);
	struct shf_mute mute;
	int fd = -1, rc;

	(void)arg;
	if (!n || n > shf_real_memory_left())
		return -ENOMEM;
	if (shared) {
		shf_mute_begin(&mute);
		fd = (int)shf_mute_end(&mute, memfd_reserved(n));
		if (fd < 0)
			return fd;
	}
	rc = shf_memfd_map(shm, fd, bytes);
	if (rc && fd >= 0)
		close(fd);
	return rc;
}

/* Unmaps and closes; memory that was never allocated has base NULL. */
static void real_shm_free(void *arg, struct shf_shm *shm)
{
	(void)arg;
	if (!shm->base)
		return;
	munmap(shm->base, shf_memfd_bytes(shm->bytes));
	if (shm->fd >= 0)
		close(shm->fd);
	*shm = (struct shf_shm){ NULL, 0, -1 };
}

/* Makes the address from the token and returns its length. It is an abstract one (its first byte is
 * NUL), so that no file is left behind. */
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

/* Draws a token and listens at the address made from it. *handle: the listening socket. */
static int real_shm_offer(void *arg, uint8_t token[16], int *handle)
{
	struct sockaddr_un a;
	socklen_t n;
	int fd, rc;

	rc = shf_real_random(arg, token, 16);
	if (rc)
		return rc;
	fd = shf_passfd_socket();
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

/* A full backlog is reported as -ECONNREFUSED, like any other refusal: this rank then shares no
 * memory. */
static int real_shm_connect(void *arg, const uint8_t token[16], int *handle)
{
	struct sockaddr_un a;
	socklen_t n = address_of(token, &a);
	int fd = shf_passfd_socket(), rc;

	(void)arg;
	if (fd < 0)
		return fd;
	do
		rc = connect(fd, (const struct sockaddr *)&a, n);
	while (rc && errno == EINTR);
	if (rc)
		rc = errno == EAGAIN ? -ECONNREFUSED : -errno;
	else if (!shf_passfd_peer_is_us(fd))
		rc = -ECONNREFUSED;
	if (rc) {
		close(fd);
		return rc;
	}
	*handle = fd;
	return 0;
}

/* Serves n ranks. Connections of other users are closed and do not count. If a rank has died, the
 * others still get their memory, and the error is returned at the end. */
static int real_shm_serve(void *arg, int offer, const struct shf_shm *shm, int n, int timeout_ms)
{
	int64_t until = shf_passfd_until_ns(timeout_ms);
	struct hello h = { MAGIC, shm->bytes };
	int rc, worst = 0;

	(void)arg;
	/* Memory that is not shared has no descriptor that could be passed. */
	if (shm->fd < 0)
		return -EINVAL;
	while (n > 0) {
		int fd;

		rc = shf_passfd_wait(offer, POLLIN, until);
		if (rc)
			return rc;
		fd = accept4(offer, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED))
			continue;
		if (fd < 0)
			return -errno;
		if (shf_passfd_peer_is_us(fd)) {
			rc = shf_pass(fd, &h, sizeof(h), shm->fd, until);
			worst = worst ? worst : rc;
			n--;
		}
		close(fd);
	}
	return worst;
}

/* Waits for the descriptor, checks that the memory is sealed and large enough, and maps it. */
static int real_shm_take(void *arg, int connection, struct shf_shm *shm, int timeout_ms)
{
	int64_t until = shf_passfd_until_ns(timeout_ms);
	struct hello h = { 0, 0 };
	int memfd = -1, rc;

	(void)arg;
	do {
		rc = shf_passfd_wait(connection, POLLIN, until);
		if (rc)
			return rc;
		rc = shf_passfd_receive(connection, &h, sizeof(h), &memfd);
	} while (rc == -EAGAIN);
	if (!rc && (h.magic != MAGIC || memfd < 0))
		rc = -EPROTO;
	if (!rc)
		rc = shf_memfd_check(memfd, h.bytes);
	if (!rc)
		rc = shf_memfd_map(shm, memfd, (size_t)h.bytes);
	if (rc && memfd >= 0)
		close(memfd);
	return rc;
}

static void real_shm_drop(void *arg, int handle)
{
	(void)arg;
	if (handle >= 0)
		close(handle);
}

const struct shf_shm_ops shf_real_shm = {
	.rooms = shf_real_memory_limits,
	.touched = shf_real_touched,
	.touch = shf_real_touch,
	.shm_new = real_shm_new,
	.shm_free = real_shm_free,
	.shm_offer = real_shm_offer,
	.shm_connect = real_shm_connect,
	.shm_serve = real_shm_serve,
	.shm_take = real_shm_take,
	.shm_drop = real_shm_drop,
};
