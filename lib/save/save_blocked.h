/* SPDX-License-Identifier: Apache-2.0 */
/* How long callers were blocked in calls of the library, by cause: for each save, and in total for
 * all saves of a run. Each rank counts for itself, with its own clock. Counters are atomic and are
 * only added to, because several threads may wait at gates at once. */
#ifndef SHF_SAVE_BLOCKED_H
#define SHF_SAVE_BLOCKED_H
#include <stdatomic.h>
#include <stdbool.h>
#include "sheaf.h"

/* In sheaf_save_begin (all of it); there, waiting for a free image; at gates (sheaf_save_copied);
 * in sheaf_save_exchange, sheaf_save_wait, sheaf_save_commit. */
enum shf_cause {
	SHF_IN_BEGIN, SHF_IN_IMAGE, SHF_IN_GATES, SHF_IN_EXCHANGE, SHF_IN_WAIT, SHF_IN_COMMIT,
	SHF_CAUSES
};
struct shf_stall {
	atomic_uint_fast64_t ns[SHF_CAUSES]; /* time blocked, by cause */
	atomic_uint_fast64_t gates, gates_waited, gate_ns_max;  /* gates passed; those that had to
	                                                         * wait; the longest */
};
struct shf_stalls {             /* totals of a run: how saves ended, and bytes committed */
	struct shf_stall all;
	atomic_uint_fast64_t begun, committed, dropped, failed, bytes;
};
/* Adds the time since `from` (shf_now) to that cause, for the run and for the save. save NULL: for
 * the run alone. [any thread] */
void shf_stalled(struct sheaf_run *run, struct sheaf_save *save, enum shf_cause in, int64_t from);
/* Counts a gate that a caller passed, and the time since `from`. waited: its slice was not yet
 * copied when the caller arrived. [any thread] */
void shf_stall_gate(struct sheaf_save *save, int64_t from, bool waited);
/* Counts a begin that returned rc: EAGAIN and EBUSY as dropped, other failures as failed.
 * [local] */
void shf_stall_begun(struct sheaf_run *run, int rc);
/* Counts the end of a save that had begun. bytes: how many were committed; negative: the save
 * failed or was abandoned. [local] */
void shf_stall_over(struct sheaf_save *save, int64_t bytes);
/* With SHEAF_METRICS, rank 0 appends a line to .sheaf/metrics.jsonl: the outcome of a save, and
 * where this rank was blocked by it. save NULL: the begin failed before there was a save. rc: 0,
 * the code of the save, or what begin returned. [local] */
void shf_stall_tell(struct sheaf_run *run, struct sheaf_save *save, int64_t step, int rc);
/* The same line, but each time is the maximum over all ranks, as far as the group still works. rc:
 * what commit returns. [collective] */
void shf_stall_tell_all(struct sheaf_save *save, int rc);
/* Fills *stat with these totals and the number of busy images; the caller adds the rest.
 * [any thread] */
void shf_stall_run(const struct sheaf_run *run, struct sheaf_run_stat *stat);
#endif
