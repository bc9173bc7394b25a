/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a job, or a separate process, that makes the calls of a sequence. Only actor.c calls
 * the library, and only through its public headers: if the interface is renamed, only actor.c of
 * the model changes.
 *
 * The actor behaves like a trainer: it fills its memory with new values before each begin, and with
 * values that belong to no save as soon as memory may change, that is when a plain begin or a gate
 * has returned. So a read that comes too late is detected.
 */
#ifndef ACTOR_H
#define ACTOR_H
#include "call.h"
#include "sheaf.h"

enum { TENSORS = 7, ACTOR_SLICES = 10, LIST_MAX = 48, WANTS = 30000 };

struct actor_tensor {
	const char *family, *name;
	int64_t rows, cols;
};
extern const struct actor_tensor actor_tensors[TENSORS];

struct listed { /* an entry of a run */
	int64_t step, parent;
	char state, mark; /* first letter of struct sheaf_item.state */
};
struct reply { /* the result of a call */
	int rc;
	char msg[500];
	int64_t step; /* the step that was opened, loaded or flushed */
	int id;       /* id of the values that a load found; -1: none were checked */
	long wrong;   /* items with values of another id */
	bool has_average, average_unread; /* the step has averages of "w"; a single process cannot
					   * read memory of several nodes */
	float average[4];                 /* of ACTOR_PROBES items */
	bool in_memory;                   /* commit reported it */
	bool due, written; /* KILL: `step` was in memory, due on disk; its agent wrote it */
	int pruned;
	struct listed list[LIST_MAX];
	int list_n;
	char note[80];
};
struct actor_piece { /* a rank's part of a tensor */
	int64_t start[2], count[2];
	bool flat;
	int64_t flat_start, n; /* n: items in memory */
	float *data;           /* owned */
};
struct actor {
	int rank, ranks, variant;
	enum layout layout;
	struct sheaf_group *group; /* borrowed; NULL: one rank */
	const char *dir;           /* of the open run, borrowed */
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct sheaf_save *saves[SAVES];
	uint64_t save_flags[SAVES];
	bool gated[SAVES][ACTOR_SLICES], put[SAVES][ACTOR_SLICES], failed[SAVES];
	struct sheaf_checkpoint *held[HELD];
	struct actor_piece pieces[TENSORS];
	int slice_of[ACTOR_SLICES], slices_n; /* the tensor of each slice */
};

/* Items whose averages are checked, and the value of "w" there for an id. */
enum { ACTOR_PROBES = 4 };
extern const int actor_probes[ACTOR_PROBES];
float actor_value(int probe, int id);

extern int actor_timeout_ms; /* timeout of runs that are opened */

void actor_init(struct actor *a, const struct call *open, int rank, struct sheaf_group *group);
/* Frees the memory of its tensors; the caller must have closed the rest. */
void actor_release(struct actor *a);
/* Makes the call; for a call of a job, on each rank. dir, to: of its two runs. */
void actor_do(struct actor *a, const struct call *c, const char *dir, const char *to,
	      struct reply *r);
/* A new process looks at a run: it lists it, finds the newest step and, if `load`, loads it.
 */
void actor_look(const char *dir, bool agent, bool load, struct reply *r);
/* Returns the pid of a run's agent, or 0. */
int64_t actor_agent_pid(const char *dir);
/* Returns the newest step that the agent is to write, or -1. */
int64_t actor_step_due(const char *dir);
/* Frees what a dead process had, without any message to others. */
void actor_bury(struct actor *a);
bool call_is_collective(enum call_kind kind);
/* Combines the replies of all ranks. If a collective call returns different codes, other than
 * ELOST, the result is EBUG. */
void reply_join(const struct call *c, const struct reply all[], int ranks, struct reply *r);
#endif
