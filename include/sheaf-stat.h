/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-stat.h - progress of a save, a load or a verification, and for how long its calls blocked
 * the caller. sheaf_opts.progress gets a struct sheaf_stat, too. The rules at the head of sheaf.h
 * apply to these calls. */
#ifndef SHEAF_STAT_H
#define SHEAF_STAT_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* What a save, a load or a verification is doing. */
enum sheaf_phase {
	SHEAF_PHASE_COPYING = 0,        /* save: copies the state to the staging buffer */
	SHEAF_PHASE_WRITING = 1,        /* save: writes to disk */
	SHEAF_PHASE_WRITTEN = 2,        /* save: this rank has written and synced its part */
	SHEAF_PHASE_FINISHED = 3,       /* save: committed, failed or aborted */
	SHEAF_PHASE_READING = 4,        /* load: reads */
	SHEAF_PHASE_VERIFYING = 5,      /* verification: reads */
	SHEAF_PHASE_PUBLISHING = 6      /* save: a thread of rank 0 publishes the checkpoint */
};
/* Returns the name of a phase, such as "copying", or NULL if there is no such phase. Static.
 * [any thread] */
const char *sheaf_phase_name(int32_t phase);
/* Progress of a save, a load or a verification on this rank. All times are in nanoseconds. Times
 * "in" a call are how long the caller was blocked in it. */
struct sheaf_stat {
	uint32_t size;
	int32_t phase;                  /* enum sheaf_phase */
	uint64_t held;                  /* save: bytes of this rank's slices; load or verification:
	                                 * bytes to read here */
	uint64_t copied;                /* save: bytes copied so far; load or verification: read */
	uint64_t to_write;              /* bytes that this rank writes to disk */
	uint64_t written;               /* bytes written to disk so far */
	uint64_t sent;                  /* bytes sent to other nodes so far */
	uint64_t begin_ns;              /* in sheaf_save_begin */
	uint64_t copied_ns;             /* how long the caller was blocked by copying: a lazy save:
	                                 * the same as gates_ns; otherwise a part of begin_ns */
	uint64_t exchange_ns;           /* in sheaf_save_advance, sending bytes to other nodes */
	uint64_t ready_ns;              /* in sheaf_save_ready, which does not wait */
	uint64_t commit_ns;             /* in sheaf_save_commit, and the rest of
	                                 * sheaf_save_advance */
	uint64_t buffer_ns;             /* the part of begin_ns before a staging buffer was free */
	uint32_t buffers_busy;          /* staging buffers in use by the run's saves in flight */
	uint32_t at_once;               /* 1: a lazy save that was copied inside begin */
	uint64_t gates;                 /* lazy save: calls of sheaf_save_wait_copied */
	uint64_t gates_waited;          /* those of them that found the slice not copied, and had a
	                                 * timeout other than 0 */
	uint64_t gates_ns;              /* time in all these calls together */
	uint64_t gate_ns_max;           /* time in the longest of them */
	uint64_t copy_ns;               /* how long the copy took, whether or not the caller waited:
	                                 * from the start of begin until all was copied here; 0:
	                                 * not yet */
	uint64_t over_ns;               /* from the start of begin until the save had finished; 0:
	                                 * not yet */
};
/* Fills *stat with the progress and the times of a save. [any thread] */
int  sheaf_save_get_stat(struct sheaf_save *save, struct sheaf_stat *stat,
                         struct sheaf_error *err);
/* Totals of all saves since this rank opened the run. Times are as in sheaf_stat, and include saves
 * that failed. */
struct sheaf_run_stat {
	uint32_t size;
	uint32_t buffers_busy;          /* staging buffers in use */
	uint64_t begun;                 /* calls of sheaf_save_begin: committed, dropped, failed,
	                                 * and still in progress */
	uint64_t committed;             /* saves that are committed */
	uint64_t dropped;               /* saves whose begin returned EAGAIN */
	uint64_t failed;                /* saves that failed or were aborted */
	uint64_t bytes;                 /* tensor bytes of the committed saves, over all ranks */
	uint64_t gates;                 /* calls of sheaf_save_wait_copied */
	uint64_t gates_waited;          /* those of them that had to wait */
	uint64_t gate_ns_max;           /* time in the longest of them */
	uint64_t begin_ns;              /* in sheaf_save_begin */
	uint64_t buffer_ns;             /* the part of begin_ns before a staging buffer was free */
	uint64_t gates_ns;              /* in sheaf_save_wait_copied */
	uint64_t exchange_ns;           /* in sheaf_save_advance, sending bytes to other nodes */
	uint64_t ready_ns;              /* in sheaf_save_ready, which does not wait */
	uint64_t commit_ns;             /* in sheaf_save_commit, and the rest of
	                                 * sheaf_save_advance */
};
/* Fills *stat with the totals of the run's saves. [local] [any thread] */
int  sheaf_run_get_stat(struct sheaf_run *run, struct sheaf_run_stat *stat,
                        struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
