/* SPDX-License-Identifier: Apache-2.0 */
/* Messages with a descriptor over sockets of this node (lib/sys/passfd.h), and which descriptors
 * are accepted as shared memory. */
#include "passfd.h"
#include "sys.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "t.h"

static const size_t PAGE = 4096;

static void pair(int ends[2])
{
	CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
}

static void unpair(int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}

static int open_n(void)
{
	int n = 0;

	for (int fd = 0; fd < 64; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

TEST(a_wait_ends_when_there_is_something_or_its_time_is_over)
{
	int ends[2];
	int64_t now = shf_sys_mono_ns(shf_sys_real());

	pair(ends);
	for (int ms = -5; ms <= 0; ms += 5) {
		CHECK(shf_passfd_until_ns(ms) >= now &&
		      shf_passfd_until_ns(ms) < now + INT64_C(60000000000));
		errno = 0;
		CHECK_INT(shf_passfd_wait(ends[0], POLLIN, shf_passfd_until_ns(ms)), -ETIMEDOUT);
	}
	CHECK(shf_passfd_until_ns(3600000) >= now + INT64_C(3600000000000));
	errno = 0;
	CHECK_INT(shf_passfd_wait(ends[0], POLLIN, shf_passfd_until_ns(2)), -ETIMEDOUT);
	CHECK_INT(shf_passfd_wait(ends[0], POLLOUT, shf_passfd_until_ns(0)), 0);
	CHECK_INT(write(ends[1], "x", 1), 1);
	CHECK_INT(shf_passfd_wait(ends[0], POLLIN, shf_passfd_until_ns(-1)), 0);
	CHECK_INT(shf_passfd_wait(ends[0], POLLIN, INT64_MAX), 0);
	unpair(ends);
	CHECK_INT(shf_passfd_wait(ends[0], POLLIN, shf_passfd_until_ns(0)), -EBADF);
}

TEST(a_message_comes_with_its_descriptor_or_with_none)
{
	int ends[2], fds = open_n(), got;
	struct stat one, two;
	char text[8];

	pair(ends);
	CHECK_INT(shf_pass(ends[1], "hello", 6, -1, shf_passfd_until_ns(0)), 0);
	CHECK_INT(shf_pass(ends[1], "again", 6, ends[0], shf_passfd_until_ns(0)), 0);
	got = -1;
	CHECK_INT(shf_passfd_receive(ends[0], text, 6, &got), 0);
	CHECK_STR(text, "hello");
	CHECK_INT(got, -1);
	CHECK_INT(shf_passfd_receive(ends[0], text, 6, &got), 0);
	CHECK_STR(text, "again");
	CHECK(got >= 0 && got != ends[0]);
	CHECK_INT(fstat(got, &one) | fstat(ends[0], &two), 0);
	CHECK(one.st_ino == two.st_ino && one.st_dev == two.st_dev);
	CHECK_INT(fcntl(got, F_GETFD), FD_CLOEXEC);
	close(got);
	CHECK_INT(shf_passfd_receive(ends[0], text, 6, &got), -EAGAIN);
	unpair(ends);
	CHECK_INT(open_n(), fds);
}

TEST(a_message_of_another_length_is_none)
{
	static const size_t sent[] = { 5, 6, 7 };
	int ends[2], got = -1;
	char text[8];

	pair(ends);
	for (int i = 0; i < 3; i++) {
		CHECK_INT(shf_pass(ends[1], "1234567", sent[i], -1, shf_passfd_until_ns(0)), 0);
		CHECK_INT(shf_passfd_receive(ends[0], text, 6, &got), sent[i] == 6 ? 0 : -EPROTO);
		CHECK_INT(got, -1);
	}
	close(ends[1]);
	CHECK_INT(shf_passfd_receive(ends[0], text, 6, &got), -ECONNRESET);
	CHECK_INT(shf_pass(ends[0], text, 6, -1, shf_passfd_until_ns(0)), -EPIPE);
	close(ends[0]);
	CHECK_INT(shf_passfd_receive(ends[0], text, 6, &got), -EBADF);
	CHECK_INT(shf_pass(ends[0], text, 6, -1, shf_passfd_until_ns(0)), -EBADF);
}

/* Where nobody listens, who speaks waits as long as it is told. */
TEST(who_cannot_send_gives_up_in_time)
{
	int ends[2], n = 0, rc;
	static char text[10000];

	pair(ends);
	for (rc = 0; rc == 0; n += rc == 0)
		rc = shf_pass(ends[1], text, sizeof(text), -1, shf_passfd_until_ns(0));
	CHECK_INT(rc, -ETIMEDOUT);
	CHECK(n > 0);
	unpair(ends);
}

static void send_two(int fd, const int two[2])
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} c;
	struct iovec v = { "hello", 6 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = c.bytes,
		.msg_controllen = sizeof(c.bytes) };
	struct cmsghdr *head;

	memset(&c, 0, sizeof(c));
	head = CMSG_FIRSTHDR(&m);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(2 * sizeof(int));
	memcpy(CMSG_DATA(head), two, 2 * sizeof(int));
	CHECK_INT(sendmsg(fd, &m, 0), 6);
}

TEST(of_two_descriptors_none_is_taken_and_none_stays_open)
{
	int ends[2], fds, got = -1;
	char text[8];

	pair(ends);
	fds = open_n();
	send_two(ends[1], ends);
	CHECK_INT(shf_passfd_receive(ends[0], text, 6, &got), 0);
	CHECK_STR(text, "hello");
	CHECK_INT(got, -1);
	CHECK_INT(open_n(), fds);
	unpair(ends);
}

TEST(our_own_process_is_us)
{
	int ends[2], fd = shf_passfd_socket();

	pair(ends);
	CHECK(shf_passfd_peer_is_us(ends[0]));
	unpair(ends);
	CHECK(!shf_passfd_peer_is_us(ends[0]));
	CHECK(fd >= 0);
	CHECK_INT(fcntl(fd, F_GETFD), FD_CLOEXEC);
	CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
	close(fd);
}

TEST(memory_is_mapped_in_whole_pages_and_never_none)
{
	static const size_t max = (size_t)INT64_MAX;

	CHECK_INT(shf_memfd_bytes(0), PAGE);
	CHECK_INT(shf_memfd_bytes(1), PAGE);
	CHECK_INT(shf_memfd_bytes(PAGE), PAGE);
	CHECK_INT(shf_memfd_bytes(PAGE + 1), 2 * PAGE);
	CHECK_INT(shf_memfd_bytes(3 * PAGE - 1), 3 * PAGE);
	CHECK_INT(shf_memfd_bytes(max - PAGE), max / PAGE * PAGE);
	CHECK_INT(shf_memfd_bytes(max - PAGE + 1), 0);
	CHECK_INT(shf_memfd_bytes(SIZE_MAX), 0);
}

TEST(memory_that_came_is_as_long_as_it_says_and_stays_so)
{
	int fd = memfd_create("sheaf", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK_INT(ftruncate(fd, (off_t)(2 * PAGE)), 0);
	CHECK_INT(shf_memfd_check(fd, PAGE), -EPROTO);
	CHECK_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
	CHECK_INT(shf_memfd_check(fd, PAGE), -EPROTO);
	CHECK_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	for (size_t n = 0; n <= 2 * PAGE; n += PAGE / 2)
		CHECK_INT(shf_memfd_check(fd, n), 0);
	CHECK_INT(shf_memfd_check(fd, 2 * PAGE + 1), -EPROTO);
	CHECK_INT(shf_memfd_check(fd, UINT64_MAX), -EPROTO);
	close(fd);
	CHECK_INT(shf_memfd_check(fd, PAGE), -EPROTO);
}

TEST(memory_is_mapped_as_it_was_asked_for)
{
	struct shf_shm m = { NULL, 0, -1 };
	int fd = memfd_create("sheaf", MFD_CLOEXEC);
	char byte = 7;

	CHECK_INT(ftruncate(fd, (off_t)(2 * PAGE)), 0);
	CHECK_INT(pwrite(fd, &byte, 1, (off_t)PAGE + 3), 1);
	CHECK_INT(shf_memfd_map(&m, fd, PAGE + 10), 0);
	CHECK_INT(m.bytes, PAGE + 10);
	CHECK_INT(m.fd, fd);
	CHECK_INT(((char *)m.base)[PAGE + 3], 7);
	((char *)m.base)[2 * PAGE - 1] = 8;     /* all of the last page */
	CHECK_INT(pread(fd, &byte, 1, (off_t)(2 * PAGE) - 1), 1);
	CHECK_INT(byte, 8);
	shf_sys_shm_free(shf_sys_real(), &m);
	CHECK(!m.base && !m.bytes && m.fd == -1);
	CHECK(fcntl(fd, F_GETFD) < 0);
	CHECK_INT(shf_memfd_map(&m, -1, 10), 0);
	CHECK(m.base && m.bytes == 10 && m.fd == -1);
	shf_sys_shm_free(shf_sys_real(), &m);
	CHECK_INT(shf_memfd_map(&m, -1, SIZE_MAX), -EINVAL);
	CHECK_INT(shf_memfd_map(&m, 9999, 10), -EBADF);
	CHECK(!m.base);
}
