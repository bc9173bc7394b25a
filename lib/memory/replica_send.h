/* SPDX-License-Identifier: Apache-2.0 */
/* Sends copies of steps in memory to the ranks of the next node. */
#ifndef SHF_REPLICA_SEND_H
#define SHF_REPLICA_SEND_H
#include "replica.h"

struct shf_to_copy {            /* a step whose cards are stamped on all ranks */
	int64_t step;
	int image;                      /* that it lies in */
	int images;                     /* that saves like it may choose from */
	uint64_t bytes;                 /* of the step, in that image */
};
/* Sends the image and its card to the rank that keeps the copy. If that fails, the failure is
 * logged and no copies are made from then on; only ELOST is returned. [collective] */
int shf_guests_send(struct sheaf_run *run, const struct shf_to_copy *c, struct sheaf_error *err);
/* Ends the copy that is being sent behind the training. finish: all ranks call this, so the copy is
 * sent to its end; else it is given up. */
void shf_guests_stop(struct sheaf_run *run, bool finish);
/* Frees the copies that are kept here; the agent keeps its own. [local] */
void shf_guests_close(struct sheaf_run *run);
#endif
