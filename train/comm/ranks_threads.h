/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads of one process. */
#ifndef RANKS_THREADS_H
#define RANKS_THREADS_H
#include "ranks.h"

struct tr_hub;                          /* what the ranks of a group share */

/* Makes what n ranks share. Free it after the groups of all ranks. NULL: no memory. */
struct tr_hub *tr_hub_new(int n);
void tr_hub_free(struct tr_hub *hub);
/* Makes the group for the thread of one rank. [local] */
void tr_ranks_hub(struct tr_ranks *g, struct tr_hub *hub, int rank, int timeout_ms);
/* Makes the nth exchange of a rank fail, for tests, in this group or in a sub-group. All ranks then
 * return ELOST. nth is counted from 1; 0: none fails. */
void tr_hub_fail_at(struct tr_hub *hub, int rank, int nth);
#endif
