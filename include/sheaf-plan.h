/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-plan.h - which rank would write and read what, without running anything. The rules at the
 * head of sheaf.h apply to this call, too. */
#ifndef SHEAF_PLAN_H
#define SHEAF_PLAN_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Who would write and read what, without running anything: states[r] is what rank r holds
 * (data may be NULL), node[r] its node (NULL: one node). item once per rank. [local] */
struct sheaf_plan_rank {
	uint32_t size;
	int32_t rank, node, files;              /* files it opens to write */
	uint64_t holds, writes, reads;          /* bytes: held, to disk, from disk on a load */
	uint64_t sends, receives, shares;       /* to and from other nodes; through node memory */
	uint64_t staging;                       /* bytes of image, slots and messages */
	uint64_t collects;                      /* of writes: in two phases, because what a node
	                                         * holds there is short and the files are many */
};
int  sheaf_plan(struct sheaf_state *const *states, const int32_t *node, int32_t ranks,
                const struct sheaf_opts *opts,
                void (*item)(void *arg, const struct sheaf_plan_rank *rank), void *arg,
                struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
