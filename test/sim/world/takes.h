/* SPDX-License-Identifier: Apache-2.0 */
/* A load by slices as a trainer does it: begin, every slice in some order, end. */
#ifndef TAKES_H
#define TAKES_H
#include "load.h"

struct takes {
	void *const *data;              /* a buffer for each of the first n slices; the others, and
	                                 * NULL, use the state's memory */
	size_t n;
	uint64_t seed;                  /* determines the order */
	int threads;                    /* number of threads; 0: the calling one */
};
/* Returns the code of the first call that fails. begun, ended: their reports; may be NULL. */
int takes_load(struct sheaf_checkpoint *step, struct sheaf_state *state, uint64_t flags,
               const struct takes *how, struct sheaf_report *begun, struct sheaf_report *ended,
               struct sheaf_error *err);
#endif
