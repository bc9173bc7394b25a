/* SPDX-License-Identifier: Apache-2.0 */
/* A group of processes that share memory: each operation copies what a rank gives into its part of
 * it, waits for all, and takes what it is due. For tests: small messages, one machine. */
#ifndef REALGROUP_H
#define REALGROUP_H
#include "sheaf.h"

struct realgroup;                           /* in shared memory */
struct realgroup *realgroup_new(int ranks); /* before the ranks are forked */
void realgroup_free(struct realgroup *g);
/* A rank is dead: every operation fails from now on. */
void realgroup_break(struct realgroup *g);
/* In the process of that rank; rank < 0 or one rank: NULL. */
struct sheaf_group *realgroup_join(struct realgroup *g, int rank);
#endif
