/* SPDX-License-Identifier: Apache-2.0 */
/* How long callers were blocked in calls of the library, by cause: for each save, and in total for
 * all saves of a run. Each rank counts for itself, with its own clock. Counters are atomic and are
 * only added to, because several threads may wait at gates at once. */
#ifndef SHF_SAVE_BLOCKED_H
#define SHF_SAVE_BLOCKED_H
#include <stdatomic.h>
#include <stdbool.h>
#include "sheaf.h"
#include "sheaf-stat.h"

/* Where a caller was blocked. BEGIN: in sheaf_save_begin. IMAGE: the part of that in which begin
 * waited for a free image. GATES: in sheaf_save_wait_copied. EXCHANGE, WAIT, COMMIT: in
 * sheaf_save_advance, sheaf_save_ready, sheaf_save_commit. SHF_CAUSES is the number of causes. */
enum shf_cause {
	SHF_IN_BEGIN, SHF_IN_IMAGE, SHF_IN_GATES, SHF_IN_EXCHANGE, SHF_IN_WAIT, SHF_IN_COMMIT,
	SHF_CAUSES
};
struct shf_save_blocked {
	atomic_uint_fast64_t ns[SHF_CAUSES]; /* time blocked, by cause */
	atomic_uint_fast64_t gates, gates_waited, gate_ns_max;  /* gates: how often callers came to
	                                                         * a gate; gates_waited: how often
	                                                         * they had to wait there;
	                                                         * gate_ns_max: the longest time at
	                                                         * one gate */
};
struct shf_run_blocked {             /* totals of a run: how saves ended, and bytes committed */
	struct shf_save_blocked all;
	atomic_uint_fast64_t begun, committed, dropped, failed, bytes;
};
/* Adds the time since `from` (shf_now) to that cause, for the run and for the save. save NULL: only
 * for the run. [any thread] */
void shf_save_blocked_add(struct sheaf_run *run, struct sheaf_save *save, enum shf_cause in,
                          int64_t from);
/* Counts a caller's call at a gate, and the time since `from`. waited: the slice was not copied yet
 * when the caller came. [any thread] */
void shf_save_blocked_gate(struct sheaf_save *save, int64_t from, bool waited);
/* Counts a begin that returned rc: EAGAIN as dropped, other failures as failed.
 * [local] */
void shf_save_blocked_begun(struct sheaf_run *run, int rc);
/* Counts the end of a save that had begun. bytes: how many were committed; negative: the save
 * failed or was abandoned. [local] */
void shf_save_blocked_end(struct sheaf_save *save, int64_t bytes);
/* With SHEAF_RUN_METRICS, rank 0 appends a line to .sheaf/metrics.jsonl: the outcome of a save, and
 * where this rank was blocked by it. save NULL: the begin failed before there was a save. rc: 0,
 * the code of the save, or what begin returned. [local] */
void shf_save_blocked_write(struct sheaf_run *run, struct sheaf_save *save, int64_t step, int rc);
/* Appends the line of shf_save_blocked_write, but each time and count in it is the maximum over all
 * ranks if the group still works. rc: what commit returns. [collective] */
void shf_save_blocked_write_all(struct sheaf_save *save, int rc);
/* Fills *stat with the totals of the run and the number of busy images; the caller adds the rest.
 * [any thread] */
void shf_save_blocked_stat(const struct sheaf_run *run, struct sheaf_run_stat *stat);
#endif
