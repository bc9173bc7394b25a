/* SPDX-License-Identifier: Apache-2.0 */
/* Small functions of an open run that many files use: its log, its clocks, and checks that this
 * process may use it. */
#ifndef SHF_RUN_ENV_H
#define SHF_RUN_ENV_H
#include "run.h"

/* Returns whether this process opened the run; false in a forked child. [local] */
bool shf_run_is_ours(const struct sheaf_run *run);
/* Returns EINVAL unless this process has the run open for writing and `step` is a valid step
 * number. [local] */
int  shf_run_may_train(const struct sheaf_run *run, int64_t step, struct sheaf_error *err);
/* Writes a line to the caller's log. level 0: damage; 1: a warning; 2: what was done. One thread at
 * a time is in the caller's function. */
void shf_log(struct sheaf_run *run, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int64_t shf_now(const struct sheaf_run *run);   /* monotonic clock, ns */
#define SHF_PROGRESS_MS 100     /* time between two calls of opts.progress in a wait */
/* Calls opts.progress for a load or a verification, if there is one and the last call was at least
 * SHF_PROGRESS_MS ago. Returns whether the caller wants to go on. Only the caller's thread. */
bool shf_run_reports(struct sheaf_run *run, const struct sheaf_stat *stat);
/* Prints the time of the wall clock as in manifests: 2026-01-31T12:00:00Z. [local] */
void shf_run_time(const struct sheaf_run *run, char out[32]);
/* Returns the milliseconds until until_ns, rounded up; 0 if that time has passed. */
int shf_ms_left(const struct sheaf_run *run, int64_t until_ns);
#endif
