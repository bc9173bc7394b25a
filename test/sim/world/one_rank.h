/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of one rank, one after the other, on one disk and with one agent: what they save, how they
 * end, and which step the next one finds. The values of a step say which step it is of. */
#ifndef ONE_RANK_H
#define ONE_RANK_H
#include "restarts.h"

struct one {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;          /* directory "run"; opened with an agent, four images */
	struct sheaf_state *state;
	struct re_mine mine;
	struct sheaf_error err;
};
/* A new world, and its first job. keep_last is the run's. */
struct one one_new(int keep_last);
/* The job dies: its process is gone, and what its agent keeps stays. */
void one_dies(struct one *o);
/* The next job opens the run; the last one has died. */
void one_next(struct one *o);
/* Closes the run and frees the world. */
void one_end(struct one *o);
struct sheaf_save *one_begin(struct one *o, int64_t step, uint64_t flags);
/* Commits, frees the save, and returns what the commit did. */
int  one_commit(struct one *o, struct sheaf_save *save);
/* Begin and commit, which must succeed. */
void one_saves(struct one *o, int64_t step, uint64_t flags);
/* From now on every sync after the rename of a step fails, or none. */
void one_sync_fails(struct one *o, bool fails);
/* Commits, and the sync after the step was renamed fails: EINDOUBT. gone: the disk then has lost
 * the step. */
void one_doubts(struct one *o, struct sheaf_save *save, bool gone);
/* Loads that step, which may be SHEAF_LATEST, and checks its values. Returns its number or a code;
 * *memory, if not NULL: whether it came from memory. */
int64_t one_loads(struct one *o, int64_t step, bool *memory);
/* `sheaf agent --flush`, with --due if `due`, by a process of its own. Returns the step that it
 * wrote, -1 for none, or a code. */
int64_t one_flush(struct one *o, bool due);
/* Returns whether the run directory has that step. */
bool one_on_disk(const struct one *o, int64_t step);
#endif
