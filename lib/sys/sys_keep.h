/* SPDX-License-Identifier: Apache-2.0 */
/* The agent of this node, reached by a socket. It keeps shared memory under names after the
 * processes that made it have exited. A call waits a few seconds for the answer; -EPIPE and
 * -ETIMEDOUT mean that the agent is lost. */
#ifndef SHF_SYS_KEEP_H
#define SHF_SYS_KEEP_H
#include <stdbool.h>
#include "sys_shm.h"

#define SHF_KEEP_NAME 112               /* size of a name that an agent keeps, with its NUL */

struct shf_keep_ops {
	/* Connects to the agent; *keep becomes the descriptor of the connection. socket: the path
	 * of its socket, or auto/<run>. run: the identity of the run directory whose memory is to
	 * be kept. job: the job of this process; "" for a process that only reads. *steps (unless
	 * steps is NULL) becomes the number of steps of a job that the agent allows, 0 if it sets
	 * no limit.
	 * -ENOENT, -ECONNREFUSED: there is no agent; -EACCES: it belongs to another user; -EXDEV:
	 * it serves another run directory; -EPROTO: its protocol has another
	 * version. */
	int (*keep_open)(void *arg, const char *socket, const char *run, const char *job,
	                 int *keep, int *steps);
	/* Gives the memory to the agent, which keeps it under this name and releases what it kept
	 * under the name before. -ENOSPC: more bytes than the agent may keep. */
	int (*keep_put)(void *arg, int keep, const char *name, const struct shf_shm *shm);
	/* Maps the memory that the agent keeps under this name. -ENOENT: it has none. */
	int (*keep_get)(void *arg, int keep, const char *name, struct shf_shm *shm);
	/* Makes the agent release the memory of this name. -ENOENT: it has none. */
	int (*keep_drop)(void *arg, int keep, const char *name);
	/* Sends a message to the user that started the agent. */
	int (*keep_message)(void *arg, int keep, const char *text);
	/* Informs the agent of the current path of the run directory, by its descriptor dir. */
	int (*keep_at)(void *arg, int keep, int dir);
	/* Calls item for each name that the agent keeps. If item returns non-zero it is not called
	 * again, and its result is returned. */
	int (*keep_list)(void *arg, int keep, int (*item)(void *arg, const char *name),
	                 void *item_arg);
	/* 0 while the connection to the agent is up, else -EPIPE. Sends nothing. */
	int (*keep_lives)(void *arg, int keep);
	/* bye: this process has finished its work with the run. Otherwise the agent regards it as
	 * crashed. */
	void (*keep_close)(void *arg, int keep, bool bye);
};
#endif
