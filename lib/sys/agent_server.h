/* SPDX-License-Identifier: Apache-2.0 */
/* The server side of the agent: it keeps shared memory for the processes of a node. */
#ifndef SHF_AGENT_SERVER_H
#define SHF_AGENT_SERVER_H
#include <stdbool.h>
#include <stdint.h>

struct shf_agent_server {
	const char *socket;             /* path of the socket that it serves */
	const char *run;                /* identity of the run directory whose memory it keeps;
	                                 * processes of another one are refused */
	const char *dir;                /* path of that directory; NULL: unknown */
	uint64_t bytes_max;             /* limit for all memory kept; 0: no limit */
	int steps_max;                  /* limit that is sent to clients, which obey it; 0: no
	                                 * limit */
	const char *about;              /* sent in the answer to STATUS, cut to the size of a name;
	                                 * NULL: "" */
	int idle_ms;                    /* exits after this time without a client, in ms; < 0:
	                                 * never */
	void *arg;                      /* passed to the functions below; each may be NULL */
	int (*ready)(void *arg);        /* called when clients can connect; a result < 0 makes the
	                                 * agent exit */
	/* Called when the last process of this job has exited without BYE, and, after a job has
	 * crashed, at the end of every later job as well. */
	void (*died)(void *arg, const char *job);
	void (*told)(void *arg, const char *text);      /* called when a client sends a message for
	                                                 * the user */
	void (*at)(void *arg, const char *dir);         /* called with the current path of the run
	                                                 * directory */
	bool (*stop)(void *arg);        /* called after a signal; true: the agent exits */
	void (*left)(void *arg);        /* called at the end: all memory is released and the socket
	                                 * is gone, but clients do not know it yet */
};
/* Serves until a client sends STOP, no client was connected for idle_ms, or k->stop returns true.
 * The caller has blocked the signals that k->stop answers to. Returns 0 or a negative errno;
 * -EBUSY: another agent serves this socket. */
int shf_agent_server_run(const struct shf_agent_server *k);
#endif
