/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets by which ranks hand each other shared memory, among processes of other users. */
#include "sys.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "t.h"

static const struct shf_sys *real(void)
{
	return shf_sys_real();
}

/* In a process of another user: the name of the socket of that token, as everybody can read it,
 * and as many connections to it as it takes. Then until the parent is done. */
static void stranger(const uint8_t token[16], int tell, int until)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	char want[48] = "@sheaf-", line[512], byte;
	FILE *f = fopen("/proc/net/unix", "r");
	int n = 0, seen = 0;

	for (int i = 0; i < 16; i++)
		snprintf(want + 7 + 2 * i, 3, "%02x", token[i]);
	while (f && fgets(line, sizeof(line), f))
		seen |= strstr(line, want) != NULL;
	memcpy(a.sun_path + 1, want + 1, strlen(want + 1));
	if (!seen || setgid(65534) || setuid(65534))
		_exit(2);
	for (;; n++) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);

		if (fd < 0)
			_exit(3);
		if (connect(fd, (const struct sockaddr *)&a,
		            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(want))))
			break;
	}
	_exit(errno != EAGAIN || write(tell, "", 1) != 1 || read(until, &byte, 1) != 0);
}

TEST(strangers_who_fill_a_socket_keep_nobody_from_the_next_one)
{
	int offer, again, h, told[2], end[2], status;
	uint8_t token[16], next[16];
	struct rlimit was, more;
	struct shf_shm m;
	char byte;
	pid_t pid;

	CHECK_INT(getrlimit(RLIMIT_NOFILE, &was), 0);
	if (geteuid() != 0 || was.rlim_max < 5000)
		skip();
	more = was;
	more.rlim_cur = was.rlim_max < 10000 ? was.rlim_max : 10000;
	CHECK_INT(setrlimit(RLIMIT_NOFILE, &more), 0);
	CHECK_INT(pipe(told) | pipe(end), 0);
	CHECK_INT(shf_sys_shm_new(real(), &m, 5000, true), 0);
	CHECK_INT(shf_sys_shm_offer(real(), token, &offer), 0);
	pid = fork();
	if (!pid) {
		close(end[1]);
		stranger(token, told[1], end[0]);
	}
	close(told[1]);
	CHECK_INT(read(told[0], &byte, 1), 1);
	CHECK_INT(shf_sys_shm_connect(real(), token, &h), -ECONNREFUSED);
	/* None of them is served, and another name is nobody's yet. */
	CHECK_INT(shf_sys_shm_serve(real(), offer, &m, 1, 50), -ETIMEDOUT);
	CHECK_INT(shf_sys_shm_offer(real(), next, &again), 0);
	CHECK_INT(shf_sys_shm_connect(real(), next, &h), 0);
	CHECK_INT(shf_sys_shm_serve(real(), again, &m, 1, 10000), 0);
	close(end[0]);
	close(end[1]);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK_INT(status, 0);
	shf_sys_shm_drop(real(), h);
	shf_sys_shm_drop(real(), offer);
	shf_sys_shm_drop(real(), again);
	shf_sys_shm_free(real(), &m);
	close(told[0]);
	CHECK_INT(setrlimit(RLIMIT_NOFILE, &was), 0);
}
