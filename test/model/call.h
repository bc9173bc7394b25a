/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a sequence: what jobs do with runs, and what happens to them. A sequence is an array
 * of calls. Every subsequence of it is a valid sequence, too, because a call whose object does not
 * exist is skipped. So a failing sequence can be shortened.
 */
#ifndef CALL_H
#define CALL_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { RUNS = 3, NODES = 2, JOBS = 4, RANKS_MAX = 3, SAVES = 3, HELD = 2, CALLS_MAX = 120 };

enum call_kind {
	/* by a job */
	C_OPEN,
	C_CLOSE,
	C_KILL,
	C_BEGIN,
	C_GATE,
	C_PUT,
	C_COMMIT,
	C_WAIT,
	C_ADVANCE,
	C_FAIL,
	C_FREE,
	C_ATTACH,
	C_NOTE,
	C_MOVE,
	C_AVERAGE,
	C_LOAD,
	C_RESUME,
	C_HOLD,
	C_LOAD_HELD,
	C_DROP,
	C_REWIND,
	C_MARK,
	C_PRUNE,
	C_FORK,
	C_CHILD_CLOSE,
	C_CHILD_EXIT,
	/* by a separate process, like the command line */
	C_RUN_REWIND,
	C_RUN_MARK,
	C_RUN_PRUNE,
	C_COPY,
	C_FLUSH,
	C_SALVAGE,
	/* by a person or by chance */
	C_CP,
	C_RENAME,
	C_AGENT_KILL,
	C_AGENT_LIMIT,
	C_CLOCK,
	C_FAULT,
	CALL_KINDS
};
enum layout { L_ROWS, L_WHOLE, L_FLAT, L_BACKWARDS, L_COLUMNS, LAYOUTS };
/* Parts of a state besides its plain slices */
enum {
	V_TIED = 1,
	V_DOUBLED = 2,
	V_IN_PLACE = 4,
	V_AVERAGE = 8,
	V_PART = 16
}; /* a reader with only the weights */

struct call {
	enum call_kind kind;
	int job, run, slot; /* slot: of a save, or of a step that is held open */
	int64_t step;       /* -1: the newest */
	uint64_t flags;     /* of sheaf_save_begin, of sheaf_run_open, of a load */
	int id;             /* BEGIN: the values to save; unique in the sequence */
	/* OPEN: ranks; GATE, PUT, MOVE: slice, -1: all; MARK: the mark; AGENT_KILL, FLUSH: node;
	 * AGENT_LIMIT: KiB, 0: none; CLOCK: hours; NOTE, ATTACH: which; FAULT: at which call of the
	 * disk */
	int n;
	int to;             /* COPY, CP, RENAME: run; COMMIT, GATE, WAIT: ms; FAULT: errno */
	/* OPEN */
	enum layout layout;
	int variant, nodes, images, keep, attempts; /* nodes: bit mask */
	bool agent;
	int look; /* after the call: 0 the lists, 1 also the newest step with agents, 2 also all
		   * values */
};

extern const char *const call_names[CALL_KINDS];
/* Prints the call as a readable line. */
void call_print(const struct call *c, FILE *out);
#endif
