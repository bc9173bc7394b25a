/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-plan.h - predicts what each rank of a job would write, read and send, in one process that
 * runs nothing. The rules at the head of sheaf.h apply to this call, too. */
#ifndef SHEAF_PLAN_H
#define SHEAF_PLAN_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* What one rank would do in a save and in a load of its state. Sizes are in bytes. */
struct sheaf_plan_rank {
	uint32_t size;                  /* sizeof(struct sheaf_plan_rank) of the library */
	int32_t rank;                   /* the rank */
	int32_t node;                   /* its node */
	int32_t files;                  /* save: files that it opens for writing */
	uint64_t holds;                 /* total size of its slices */
	uint64_t writes;                /* save: written to disk */
	uint64_t reads;                 /* load: read from disk */
	uint64_t sends;                 /* save: sent to other nodes */
	uint64_t receives;              /* save: received from other nodes */
	uint64_t shares;                /* save: copied into staging buffers of other ranks of its
	                                 * node, through shared memory */
	uint64_t staging;               /* save: memory for the staging buffer, bounce buffers and
	                                 * messages */
	/* The part of `writes` that is written in two phases: ranks send their pieces to one rank,
	 * which writes them together. This is done where there are many files and each node holds
	 * only short pieces of them. */
	uint64_t collects;
	uint64_t checkpoint_files;      /* safetensors files of the checkpoint, the same for all
	                                 * ranks */
};
/* Predicts what each rank of a job would write, read and send.
 * states  states[r] is the state of rank r. The data of slices is not used and may be NULL.
 * node    node[r] is the number of rank r's node. Ranks with the same number share memory, and any
 *         number is allowed. NULL: all ranks are on one node.
 * ranks   number of ranks.
 * opts    the options of the run; NULL: defaults.
 * item    called once for each rank, in order.
 * arg     passed to item.
 * Returns 0 or an error code. If a failure concerns one rank, err->rank is that rank. [local] */
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
