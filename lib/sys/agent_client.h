/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol between an agent and its clients, and the client's side.
 *
 * A request and an answer are a struct shf_keep_msg each. A descriptor of sealed memory comes with
 * PUT and with the answer to GET, one of the run directory with AT. Each request has one answer,
 * except LIST, which has one for each name (rc 1) and then a last one (rc 0), and BYE, which has
 * none. Both sides are processes of one user on one machine, so numbers are in the byte order of
 * the host. */
#ifndef SHF_AGENT_CLIENT_H
#define SHF_AGENT_CLIENT_H
#include "sys_keep.h"

extern const struct shf_keep_ops shf_real_keep;

#define SHF_KEEP_MAGIC UINT64_C(0x746e656761666873)
#define SHF_KEEP_VERSION 2
#define SHF_KEEP_WAIT_MS 5000   /* limit for an answer; a stopped agent counts as lost */
#define SHF_KEEP_HELLO_MS 1000  /* limit for the first answer */
enum { SHF_KEEP_HELLO = 1, SHF_KEEP_PUT, SHF_KEEP_GET, SHF_KEEP_DROP, SHF_KEEP_LIST,
       SHF_KEEP_STATUS, SHF_KEEP_STOP, SHF_KEEP_BYE, SHF_KEEP_MESSAGE, SHF_KEEP_AT,
       SHF_KEEP_WHERE };
struct shf_keep_msg {
	uint64_t magic;
	uint32_t version, op;
	int32_t rc, users;              /* rc: in answers. users: in the answer to STATUS, how many
	                                 * processes of jobs are connected, without mere readers */
	uint64_t bytes;                 /* PUT and answers to GET, LIST: size of the memory; answer
	                                 * to STATUS: of all memory kept */
	uint64_t pid, names;            /* answer to STATUS. names in the answer to HELLO: the steps
	                                 * that a job may keep, 0: no limit. Agents that do not know
	                                 * the limit send back the 0 of the request */
	char run[72];                   /* HELLO: identity of the run directory; "" for a reader
	                                 * that asks any agent about itself, or stops it */
	char name[SHF_KEEP_NAME];       /* of the memory; HELLO: the job, "" for a mere reader;
	                                 * TELL: the text; answer to STATUS: what the agent says
	                                 * about itself; answer to WHERE: the path of the run, or
	                                 * "..." and its end */
};

/* Writes the path of an agent's socket to out: socket itself, or for auto/<run> the path
 * /tmp/sheaf-<uid>-<run>/agent.sock. Returns 0 or -ENAMETOOLONG. */
#define SHF_KEEP_PATH 108
int shf_keep_path(const char *socket, char out[SHF_KEEP_PATH]);
/* Returns whether a folder of /tmp with this name may have such a socket of this user. */
bool shf_keep_is_folder(const char *name);
/* Makes the directory of an auto/<run> socket, which no other user may enter, or checks the
 * existing one. Returns 0 or a negative errno; -EPERM: it is not ours, or open to others. */
int shf_keep_dir(const char *socket);
/* Removes the log of the agent if it is empty, and then, for an auto/<run> socket, the directory if
 * it is empty. The log lies beside the socket and has the name of the socket with this ending. */
#define SHF_KEEP_LOG ".log"
void shf_keep_dir_leave(const char *socket);
/* Sends STATUS, WHERE or STOP over a connection and waits for the answer in *m; after STOP, also
 * until the agent has exited. Returns 0 or a negative errno, such as -ETIMEDOUT. */
int shf_keep_ask(int keep, int op, struct shf_keep_msg *m);
#endif
