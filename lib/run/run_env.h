/* SPDX-License-Identifier: Apache-2.0 */
/* What most files need of an open run: its log, its clocks, and whether this process may use it. */
#ifndef SHF_RUN_ENV_H
#define SHF_RUN_ENV_H
#include "run.h"

bool shf_run_is_ours(const struct sheaf_run *run);      /* not a forked child's */
/* EINVAL unless this process has the run open for writing, and a step may have that number. */
int  shf_run_may_train(const struct sheaf_run *run, int64_t step, struct sheaf_error *err);
/* Writes a line to the caller's log. level 0: damage; 1: a warning; 2: what was done. */
void shf_log(const struct sheaf_run *run, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int64_t shf_now(const struct sheaf_run *run);   /* monotonic ns */
/* The wall clock, as in manifests: 2026-01-31T12:00:00Z. [local] */
void shf_run_time(const struct sheaf_run *run, char out[32]);
/* Milliseconds until until_ns, rounded up; 0: that time has passed. */
int shf_ms_left(const struct sheaf_run *run, int64_t until_ns);
/* This session has come further than the step it loaded (R5), so the try that it counted for that
 * step is taken back. [local], on all ranks */
void shf_run_resumed(struct sheaf_run *run);
#endif
