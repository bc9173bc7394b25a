/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of one rank, one after another, on one disk and with one agent: what they save, how they
 * end, and which step the next one finds. The values of a step identify it. */
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
/* Makes a world and its first job. keep_last is the run's. */
struct one one_new(int keep_last);
/* Kills the job: its process is gone, and what its agent keeps stays. */
void one_dies(struct one *o);
/* Opens the run in the next job, after the last one died. */
void one_next(struct one *o);
/* Closes the run and frees the world. */
void one_end(struct one *o);
struct sheaf_save *one_begin(struct one *o, int64_t step, uint64_t flags);
/* Commits, frees the save, and returns the code of the commit. */
int  one_commit(struct one *o, struct sheaf_save *save);
/* Begins and commits a save, which must succeed. */
void one_saves(struct one *o, int64_t step, uint64_t flags);
/* From now on every sync after the rename of a step fails, or none does. */
void one_sync_fails(struct one *o, bool fails);
/* Commits, but the sync after the rename fails: EINDOUBT. gone: the disk then loses the step. */
void one_doubts(struct one *o, struct sheaf_save *save, bool gone);
/* Loads that step, which may be SHEAF_LATEST, and checks its values. Returns its number or a code.
 * *memory, unless NULL: whether it came from memory. */
int64_t one_loads(struct one *o, int64_t step, bool *memory);
/* Runs `sheaf agent --flush`, with --due if `due`, in a new process. Returns the step that it
 * wrote, -1 for none, or a code. */
int64_t one_flush(struct one *o, bool due);
/* Returns whether the run directory has that step. */
bool one_on_disk(const struct one *o, int64_t step);
#endif
