/* SPDX-License-Identifier: Apache-2.0 */
/* Where callers were blocked, by cause: of a save, and summed over all saves of a run. Counted on
 * this rank, by its own clock; every counter is changed by one addition, so that gates passed by
 * several threads at once are all in it. */
#ifndef SHF_SAVE_BLOCKED_H
#define SHF_SAVE_BLOCKED_H
#include <stdatomic.h>
#include <stdbool.h>
#include "sheaf.h"

enum shf_cause {
	SHF_IN_BEGIN, SHF_IN_IMAGE, SHF_IN_GATES, SHF_IN_EXCHANGE, SHF_IN_WAIT, SHF_IN_COMMIT,
	SHF_CAUSES
};
struct shf_stall {
	atomic_uint_fast64_t ns[SHF_CAUSES];
	atomic_uint_fast64_t gates, gates_waited, gate_ns_max;
};
struct shf_stalls {             /* of a run */
	struct shf_stall all;
	atomic_uint_fast64_t begun, committed, dropped, failed, bytes;
};
/* A caller was in there since `from`, for this save (NULL: one that did not begin). [any thread] */
void shf_stalled(struct sheaf_run *run, struct sheaf_save *save, enum shf_cause in, int64_t from);
/* He came through a gate; waited: its tensor was not copied when he asked. [any thread] */
void shf_stall_gate(struct sheaf_save *save, int64_t from, bool waited);
/* A begin returned this. [local] */
void shf_stall_begun(struct sheaf_run *run, int rc);
/* A save that began is over: so many bytes are committed, or (negative) it came to nothing.
 * [local] */
void shf_stall_over(struct sheaf_save *save, int64_t bytes);
/* With SHEAF_METRICS a line of .sheaf/metrics.jsonl: what became of a save, and where it blocked.
 * Of this rank alone, save NULL: it did not come to be; rc 0, a save's last code, or what begin
 * returned. Rank 0 writes. [local] */
void shf_stall_tell(struct sheaf_run *run, struct sheaf_save *save, int64_t step, int rc);
/* Of the slowest rank in each cause. rc as commit returns it. [collective] */
void shf_stall_tell_all(struct sheaf_save *save, int rc);
/* All but its images. [any thread] */
void shf_stall_run(const struct sheaf_run *run, struct sheaf_run_stat *stat);
#endif
