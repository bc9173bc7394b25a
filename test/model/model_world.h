/* SPDX-License-Identifier: Apache-2.0 */
/* The world in which a sequence is played: a simulated machine (simworld.c) or real processes
 * (realworld.c). A program is linked with one of the two. */
#ifndef WORLD_H
#define WORLD_H
#include "actor.h"
#include "call.h"

struct world;
extern const char *const world_runs[RUNS]; /* their directories */
extern const int world_nodes; /* 1: this machine, with its real clock and disk */

/* agents: each node has an agent for each run. story: records calls of the machine for
 * world_tell. */
struct world *world_new(uint64_t seed, bool agents, bool story);
void world_free(struct world *w);
/* Makes a call. If the ranks of a job return different codes, the reply says so. */
void world_do(struct world *w, const struct call *c, struct reply *r);
/* A new process on that node looks at a run. */
void world_look(struct world *w, int run, int node, bool agent, bool load, struct reply *r);
/* Returns what is left that should not be, or "". open: the jobs that are still open. */
const char *world_spare(struct world *w, const bool open[JOBS], char why[400]);
/* Returns whether the fault that a call set has occurred. */
bool world_fired(const struct world *w);
/* Removes all faults. */
void world_calm(struct world *w);
void world_tell(struct world *w, FILE *out);
#endif
