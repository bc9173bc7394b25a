/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a sequence: what jobs do with runs, and what happens to them. A sequence is an array
 * of these; any part of it, in the same order, is a sequence too (a call that has lost its object
 * is skipped), so that a failing one can be shortened.
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
	/* by a process of its own, as the command line is */
	C_RUN_REWIND,
	C_RUN_MARK,
	C_RUN_PRUNE,
	C_COPY,
	C_FLUSH,
	C_SALVAGE,
	/* by a person or by fate */
	C_CP,
	C_RENAME,
	C_AGENT_KILL,
	C_AGENT_LIMIT,
	C_CLOCK,
	C_FAULT,
	CALL_KINDS
};
enum layout { L_ROWS, L_WHOLE, L_FLAT, L_BACKWARDS, L_COLUMNS, LAYOUTS };
/* What a state has besides its plain slices. */
enum {
	V_TIED = 1,
	V_DOUBLED = 2,
	V_IN_PLACE = 4,
	V_AVERAGE = 8,
	V_PART = 16
}; /* of a reader: it has the weights alone */

struct call {
	enum call_kind kind;
	int job, run, slot; /* slot: of a save, or of a step that is held open */
	int64_t step;       /* -1: the newest */
	uint64_t flags;     /* of sheaf_save_begin, of sheaf_run_open, of a load */
	int id;             /* BEGIN: what is saved; unique in the sequence */
	/* OPEN: ranks; GATE, PUT, MOVE: slice, -1: all; MARK: the mark; AGENT_KILL, FLUSH: node;
	 * AGENT_LIMIT: KiB, 0: none; CLOCK: hours; NOTE, ATTACH: which; FAULT: at which call of the
	 * disk */
	int n;
	int to;             /* COPY, CP, RENAME: run; COMMIT, GATE, WAIT: ms; FAULT: errno */
	/* OPEN */
	enum layout layout;
	int variant, nodes, images, keep, attempts; /* nodes: 1: the first, 2: the other, 3: both */
	bool agent;
	int look; /* after it: 0 the lists, 1 the newest with agents too, 2 all
		   * values */
};

extern const char *const call_names[CALL_KINDS];
/* A line of a program that one can read. */
void call_print(const struct call *c, FILE *out);
#endif
