/* SPDX-License-Identifier: Apache-2.0 */
/* Sends replicas of steps in memory to the ranks of the next node. */
#ifndef SHF_REPLICA_SEND_H
#define SHF_REPLICA_SEND_H
#include "replica.h"

struct shf_replica_step {            /* a step in memory: its cards are whole on all ranks */
	int64_t step;
	int image;                      /* image that has the step */
	int images;                     /* number of images that saves may use */
	uint64_t bytes;                 /* size of the step in this rank's part of the image */
};
/* Sends the image and its card to the rank that keeps the replica. If that fails, the failure is
 * logged and no more replicas are made; only ELOST is returned. [collective] */
int shf_replicas_send(struct sheaf_run *run, const struct shf_replica_step *c,
                      struct sheaf_error *err);
/* Ends the replica that is being sent in the background. finish: all of it is sent first, for which
 * all ranks must call this; not finish: it is aborted. */
void shf_replicas_stop(struct sheaf_run *run, bool finish);
/* Frees this process's mappings of the replicas; the agent keeps the memory. [local] */
void shf_replicas_close(struct sheaf_run *run);
#endif
