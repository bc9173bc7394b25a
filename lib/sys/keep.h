/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent and those who ask it say to each other, and the agent's side.
 *
 * A message is a struct shf_keep_msg, in both directions; with PUT and with the answer to GET comes
 * a descriptor of sealed memory, with AT one of the run's directory. Every request has one answer,
 * LIST one for each name (rc 1) before the last (rc 0). Same machine, same user, so the host's byte
 * order. */
#ifndef SHF_KEEP_H
#define SHF_KEEP_H
#include "real.h"

#define SHF_KEEP_MAGIC UINT64_C(0x746e656761666873)
#define SHF_KEEP_VERSION 2
#define SHF_KEEP_WAIT_MS 5000   /* for an answer: an agent that is stopped is none */
#define SHF_KEEP_HELLO_MS 1000  /* for the first one */
enum { SHF_KEEP_HELLO = 1, SHF_KEEP_PUT, SHF_KEEP_GET, SHF_KEEP_DROP, SHF_KEEP_LIST,
       SHF_KEEP_STATUS, SHF_KEEP_STOP, SHF_KEEP_BYE, SHF_KEEP_TELL, SHF_KEEP_AT };
struct shf_keep_msg {
	uint64_t magic;
	uint32_t version, op;
	int32_t rc, users;              /* rc of an answer; users: of STATUS, how many processes of
	                                 * jobs are connected; those that only look do not count */
	uint64_t bytes;                 /* of the memory; of STATUS, of all */
	uint64_t pid, names;            /* of STATUS; names: of the answer to HELLO the steps that a
	                                 * job may keep, 0 no bound, and from an agent that knows
	                                 * none, as what was asked has 0 there */
	char run[72];                   /* of HELLO: which run directory it is about */
	char name[SHF_KEEP_NAME];       /* HELLO: of the job, "" for one that only looks; TELL:
	                                 * what for k->told */
};

struct shf_keeper {
	const char *socket;
	const char *run;                /* identity of the run directory that it keeps memory of;
	                                 * processes of another one are refused */
	uint64_t bytes_max;             /* of all memory kept; 0: no bound */
	int steps_max;                  /* told to who comes, who heeds it; 0: no bound */
	const char *about;              /* told with STATUS, cut where a name ends; NULL: "" */
	int idle_ms;                    /* with nobody connected, until it ends; < 0: for ever */
	void *arg;
	int (*ready)(void *arg);        /* it can be reached from now on; < 0: ends */
	/* The last process of this job has gone. It, or a job before it, sent no BYE. */
	void (*died)(void *arg, const char *job);
	void (*told)(void *arg, const char *text);      /* what a user wants known */
	void (*at)(void *arg, const char *dir);         /* the run's directory is there now */
	bool (*stop)(void *arg);        /* asked when a signal has come */
	void (*left)(void *arg);        /* nothing is kept and nobody reached; users hear it next */
};
/* Serves until it is told to stop, is idle for so long, or a signal says so. 0, or a negative
 * errno; -EBUSY: another one serves there. */
int shf_keeper_serve(const struct shf_keeper *k);
/* Where an agent listens: a path as it is; of auto/<run> /tmp/sheaf-<uid>-<run>/agent.sock.
 * -ENAMETOOLONG. */
#define SHF_KEEP_PATH 108
int shf_keep_path(const char *socket, char out[SHF_KEEP_PATH]);
/* The directory of such a path of its own, which nobody else may enter: made, or found right.
 * -EPERM: it is not ours, or open to others. */
int shf_keep_dir(const char *socket);
/* Removes the directory if it is empty. The agent's log lies beside the socket, in a file named
 * like it with this ending; an empty log is removed first. */
#define SHF_KEEP_LOG ".log"
void shf_keep_dir_leave(const char *socket);
/* STATUS or STOP, by who has connected: the answer in *m; of STOP when the agent has left.
 * -ETIMEDOUT. */
int shf_keep_ask(int keep, int op, struct shf_keep_msg *m);
#endif
