/* SPDX-License-Identifier: Apache-2.0 */
/* Copies on their way to the next node. */
#ifndef SHF_REPLICA_SEND_H
#define SHF_REPLICA_SEND_H
#include "replica.h"

struct shf_to_copy {            /* a step whose card is whole everywhere */
	int64_t step;
	int image;                      /* that it lies in */
	int images;                     /* that saves like it may choose from */
	uint64_t bytes;                 /* of the image, that are the step's */
};
/* To who keeps it. What goes wrong is logged, and there are no copies any more. ELOST alone is an
 * error. [collective] */
int shf_guests_send(struct sheaf_run *run, const struct shf_to_copy *c, struct sheaf_error *err);
/* What goes behind ends. finish: all ranks are here, and it comes to its end. */
void shf_guests_stop(struct sheaf_run *run, bool finish);
void shf_guests_close(struct sheaf_run *run);
#endif
