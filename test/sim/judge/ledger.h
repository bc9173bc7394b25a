/* SPDX-License-Identifier: Apache-2.0 */
/* The promises made for a run in its whole life, and the check whether a disk keeps them. Reads the
 * disk only by rawstep.h.
 *
 * Stamps are cuts of the disk in use. The state at cut c includes everything with a stamp of c or
 * before. */
#ifndef LEDGER_H
#define LEDGER_H
#include "rawstep.h"

#define NEVER INT64_MAX
enum { ATTEMPTS = 64, MARKINGS = 32 };

struct attempt {                /* a save that was begun; its salt is its index + 1 */
	int64_t step;
	int64_t begun, acked;           /* acked: a rank got 0 */
	int64_t pruning, rewinding;     /* from then on it may be pruned, or set aside */
	int64_t gone;                   /* from then on it must be gone */
	bool failed;                    /* a rank got an error: it will never exist */
	bool over;                      /* found to be absent: it must never appear again */
};
struct marking {
	int64_t step, begun, acked;
	char mark;                      /* 0: none */
};
struct ledger {
	struct attempt attempts[ATTEMPTS];
	int n;
	struct marking marks[MARKINGS];
	int marks_n;
	struct job_state state;
	bool halves;                    /* half a rename may lose or double a directory */
	bool twice;                     /* deleting one of two names deletes both */
	bool foreign;                   /* ledger_put_foreign was called */
};
/* The state of a disk, without promises */
struct view {
	bool here[ATTEMPTS], aside[ATTEMPTS];   /* complete, as a step or set aside */
	bool journal;                           /* a rewind is not finished */
	char mark[ATTEMPTS];                    /* of steps that are here */
	int64_t newest;                         /* not marked bad; -1: none */
};

/* Puts files that do not belong to the library, and must not be changed. */
void ledger_put_foreign(struct ledger *l, struct simdisk *disk);
struct attempt *ledger_begin(struct ledger *l, int64_t step, int64_t begun);
/* Returns the last acknowledged save of the step that is not to go. */
struct attempt *ledger_of(struct ledger *l, int64_t step);      /* may be NULL */
void ledger_mark(struct ledger *l, int64_t step, char mark, int64_t begun, int64_t acked);
/* Returns whether the step certainly has this mark at the cut. */
bool ledger_marked(const struct ledger *l, int64_t step, char mark, int64_t cut);

/* Returns "" or what is wrong with a disk after a power cut at `cut`. fresh: no process has opened
 * it since. */
const char *ledger_judge(struct ledger *l, struct simdisk *disk, int64_t cut, bool fresh,
                         struct view *view, char why[300]);
/* Continues with the disk after the cut; the view is of that disk. Cuts begin at 0 again. */
void ledger_crashed(struct ledger *l, struct simdisk *disk, int64_t cut, const struct view *view);
/* Continues with the disk as it is. opened: the cut at which a process had opened it for writing,
 * synced what was there and finished what it found, or NEVER. all: everything is durable now. */
void ledger_go_on(struct ledger *l, struct simdisk *disk, const struct view *view, int64_t since,
                  int64_t opened, bool all);
#endif
