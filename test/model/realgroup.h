/* SPDX-License-Identifier: Apache-2.0 */
/* A group of processes with shared memory: in each operation, a rank copies its data to its part of
 * the memory, waits for all ranks, and copies what it receives. For tests: small messages, one
 * machine. */
#ifndef REALGROUP_H
#define REALGROUP_H
#include "sheaf.h"

struct realgroup;                           /* in shared memory */
struct realgroup *realgroup_new(int ranks); /* before the ranks are forked */
void realgroup_free(struct realgroup *g);
/* Marks a rank as dead: every operation fails from now on. */
void realgroup_break(struct realgroup *g);
/* Called in the process of that rank. rank < 0 or one rank: NULL. */
struct sheaf_group *realgroup_join(struct realgroup *g, int rank);
#endif
