/* SPDX-License-Identifier: Apache-2.0 */
/* What a run was promised over a whole life, and whether a disk keeps it. Knows the disk by
 * rawstep.h only.
 *
 * Stamps are cuts of the disk in use now. A cut at c has seen what is stamped c or before. */
#ifndef LEDGER_H
#define LEDGER_H
#include "rawstep.h"

#define NEVER INT64_MAX
enum { ATTEMPTS = 64, MARKINGS = 32 };

struct attempt {                /* one save that was begun; its salt is its number + 1 */
	int64_t step;
	int64_t begun, acked;           /* acked: some rank was told 0 */
	int64_t pruning, rewinding;     /* since when it may go that way */
	int64_t gone;                   /* and since when it must be */
	bool failed;                    /* some rank was told that it never will be */
	bool over;                      /* settled as absent: it must never appear again */
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
	bool twice;                     /* and who deletes by one name deletes by both */
	bool foreign;                   /* ledger_put_foreign was called */
};
/* What there is, without a promise. */
struct view {
	bool here[ATTEMPTS], aside[ATTEMPTS];   /* whole, as a step or set aside */
	bool journal;                           /* a rewind is not finished */
	char mark[ATTEMPTS];                    /* of what is here */
	int64_t newest;                         /* not marked bad; -1 */
};

/* Files of people that nobody may touch. */
void ledger_put_foreign(struct ledger *l, struct simdisk *disk);
struct attempt *ledger_begin(struct ledger *l, int64_t step, int64_t begun);
struct attempt *ledger_of(struct ledger *l, int64_t step);      /* acked last, not going; or NULL */
void ledger_mark(struct ledger *l, int64_t step, char mark, int64_t begun, int64_t acked);
/* Is the mark of the step surely this one at the cut? */
bool ledger_marked(const struct ledger *l, int64_t step, char mark, int64_t cut);

/* "" or what is wrong with a disk that is as a power cut at `cut` left it. fresh: nobody has opened
 * it since. */
const char *ledger_judge(struct ledger *l, struct simdisk *disk, int64_t cut, bool fresh,
                         struct view *view, char why[300]);
/* The disk in use is now the one a cut there left; the view is of it. Cuts begin at 0 again. */
void ledger_crashed(struct ledger *l, struct simdisk *disk, int64_t cut, const struct view *view);
/* It goes on as it is. opened: since when somebody has it open for writing who has synced what was
 * there and finished what he found, or NEVER. all: everything has become durable. */
void ledger_go_on(struct ledger *l, struct simdisk *disk, const struct view *view, int64_t since,
                  int64_t opened, bool all);
#endif
