/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a job, or a process of its own, that makes the calls of a sequence. The only file of
 * the model that calls the library, through its public header alone: a rename of the interface
 * touches actor.c and nothing else here.
 *
 * A trainer's manners are the actor's: memory is painted with new values before each begin, and
 * with what belongs to no save as soon as it may change, that is when a plain begin or a gate has
 * returned. So whatever is read too late is seen.
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
	int64_t step;
	char state, mark; /* first letter of struct sheaf_item.state */
};
struct reply { /* what came of a call */
	int rc;
	char msg[500];
	int64_t step; /* of what was opened, loaded or flushed */
	int id;       /* the values that a load found; -1: none were looked at */
	long wrong;   /* items that are not of that */
	bool has_average, average_unread; /* the step has those of "w"; one process alone cannot
					   * read what lies in the memory of several nodes */
	float average[4];                 /* of ACTOR_PROBES items */
	bool in_memory;                   /* commit said so */
	bool due, written; /* KILL: `step` lay in memory, to be on disk; its agent wrote it */
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
	struct sheaf_group *group; /* borrowed; NULL: alone */
	const char *dir;           /* of the run that is open, borrowed */
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct sheaf_save *saves[SAVES];
	uint64_t save_flags[SAVES];
	bool gated[SAVES][ACTOR_SLICES], put[SAVES][ACTOR_SLICES], failed[SAVES];
	struct sheaf_checkpoint *held[HELD];
	struct actor_piece pieces[TENSORS];
	int slice_of[ACTOR_SLICES], slices_n; /* which tensor */
};

/* Items whose averages are looked at, and what "w" has there in the values of an id. */
enum { ACTOR_PROBES = 4 };
extern const int actor_probes[ACTOR_PROBES];
float actor_value(int probe, int id);

extern int actor_timeout_ms; /* of runs that are opened */

void actor_init(struct actor *a, const struct call *open, int rank, struct sheaf_group *group);
/* The memory of its tensors; what it has open must be closed. */
void actor_release(struct actor *a);
/* The call; of jobs, by each rank. dir: of the run, and of the other one. */
void actor_do(struct actor *a, const struct call *c, const char *dir, const char *to,
	      struct reply *r);
/* A fresh process looks at a run: the list; which one is the newest and, if asked, what it holds.
 */
void actor_look(const char *dir, bool agent, bool load, struct reply *r);
/* The process of a run's agent; 0: there is none. */
int64_t actor_agent_pid(const char *dir);
/* The newest step that the agent is to write; -1: none. */
int64_t actor_step_due(const char *dir);
/* Gives back what a dead process held, without a word to anybody. */
void actor_bury(struct actor *a);
bool call_is_collective(enum call_kind kind);
/* One reply of all ranks': where a collective call returns other codes than ELOST on some, it is
 * EBUG. */
void reply_join(const struct call *c, const struct reply all[], int ranks, struct reply *r);
#endif
