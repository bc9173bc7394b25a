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
	/* socket: its path, or auto/<run>. run: the identity of the run directory whose memory is
	 * to be kept. job: the job of this process; "" for a process that only reads. *steps
	 * (unless steps is NULL) becomes the number of steps of a job that the agent allows, 0 if
	 * it sets no limit.
	 * -ENOENT, -ECONNREFUSED: there is no agent; -EACCES: it belongs to another user; -EXDEV:
	 * it serves another run directory; -EPROTO...: it is of another version. */
	int (*keep_open)(void *arg, const char *socket, const char *run, const char *job,
	                 int *keep, int *steps);
	/* Replaces what had the name. -ENOSPC: more than the agent's limit. */
	int (*keep_put)(void *arg, int keep, const char *name, const struct shf_shm *shm);
	int (*keep_get)(void *arg, int keep, const char *name, struct shf_shm *shm); /* maps it */
	int (*keep_drop)(void *arg, int keep, const char *name);
	/* Sends a message to the user that started the agent. */
	int (*keep_tell)(void *arg, int keep, const char *text);
	/* Informs the agent of the present path of the run directory, by its descriptor dir. */
	int (*keep_at)(void *arg, int keep, int dir);
	int (*keep_list)(void *arg, int keep, int (*item)(void *arg, const char *name),
	                 void *item_arg);
	int (*keep_lives)(void *arg, int keep); /* 0, or -EPIPE; sends nothing */
	/* bye: the process exits in order. Otherwise the agent regards it as crashed. */
	void (*keep_close)(void *arg, int keep, bool bye);
};
#endif
