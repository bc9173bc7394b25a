/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads of one process. */
#ifndef RANKS_THREADS_H
#define RANKS_THREADS_H
#include "ranks.h"

struct tr_hub;                          /* where they meet */

/* Makes the place for n ranks. Free it after all groups. NULL: no memory. */
struct tr_hub *tr_hub_new(int n);
void tr_hub_free(struct tr_hub *hub);
/* Makes the group of one rank, for its thread. [local] */
void tr_ranks_hub(struct tr_ranks *g, struct tr_hub *hub, int rank, int timeout_ms);
/* Makes the nth exchange of a rank fail, counted from 1; all ranks get ELOST then. 0: none. */
void tr_hub_fail_at(struct tr_hub *hub, int rank, int nth);
#endif
