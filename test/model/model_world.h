/* SPDX-License-Identifier: Apache-2.0 */
/* Where a sequence is played: a simulated machine (simworld.c) or real processes (realworld.c).
 * A program is linked with one of the two. */
#ifndef WORLD_H
#define WORLD_H
#include "actor.h"
#include "call.h"

struct world;
extern const char *const world_runs[RUNS]; /* their directories */
extern const int world_nodes; /* 1: this machine, whose clock and disk are as they are */

/* agents: each node has one for each run. story: calls of the machine are kept for world_tell. */
struct world *world_new(uint64_t seed, bool agents, bool story);
void world_free(struct world *w);
/* One call; the ranks of a job return the same, or the reply says that they do not. */
void world_do(struct world *w, const struct call *c, struct reply *r);
/* A fresh process on that node looks at a run. */
void world_look(struct world *w, int run, int node, bool agent, bool load, struct reply *r);
/* What it has that nobody should: "" or what. open: whether the job is still open. */
const char *world_spare(struct world *w, const bool open[JOBS], char why[400]);
/* Did the fault that a call set meet somebody? */
bool world_fired(const struct world *w);
/* From now on no call is made to fail. */
void world_calm(struct world *w);
void world_tell(struct world *w, FILE *out);
#endif
