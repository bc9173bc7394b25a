/* SPDX-License-Identifier: Apache-2.0 */
/* The log and the clocks of an open run, and checks that this process may use it (run_env.h). */
#include "run_env.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "err.h"
#include "run.h"

/* A line that is too long loses its middle; the log has no continuation lines. */
void shf_log(struct sheaf_run *run, int level, const char *fmt, ...)
{
	bool alone = !run->turns.on || !shf_run_is_ours(run);
	char line[600];
	va_list ap;

	if (!run->opts.log)
		return;
	va_start(ap, fmt);
	shf_message(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (!alone)
		pthread_mutex_lock(&run->turns.log_lock);
	run->opts.log(run->opts.arg, level, line);
	if (!alone)
		pthread_mutex_unlock(&run->turns.log_lock);
}

int64_t shf_now(const struct sheaf_run *run)
{
	return shf_sys_mono_ns(run->sys);
}

bool shf_run_reports(struct sheaf_run *run, const struct sheaf_stat *stat)
{
	int64_t now = shf_now(run);

	if (!run->opts.progress ||
	    (run->life.reported_ns && now - run->life.reported_ns < shf_ms_ns(SHF_PROGRESS_MS)))
		return true;
	run->life.reported_ns = now;
	return run->opts.progress(run->opts.arg, stat) == 0;
}

void shf_run_time(const struct sheaf_run *run, char out[32])
{
	time_t now = (time_t)shf_sys_wall_s(run->sys);
	struct tm tm;

	gmtime_r(&now, &tm);
	strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

bool shf_run_is_ours(const struct sheaf_run *run)
{
	return shf_sys_pid(run->sys) == run->life.pid;
}

int shf_run_may_train(const struct sheaf_run *run, int64_t step, struct sheaf_error *err)
{
	if (!shf_run_is_ours(run))
		return shf_fail(err, SHEAF_EINVAL, "the run was opened by another process; after a "
		                "fork, open it again in the child");
	if (run->life.closed || run->life.foreign || run->opts.flags & SHEAF_RUN_READONLY)
		return shf_fail(err, SHEAF_EINVAL, "the run is not open for writing; open it "
		                "without SHEAF_RUN_READONLY");
	if (step < 0 || step > SHF_STEP_MAX)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is %s", step,
		                step < 0 ? "negative" : "larger than the largest step, 2^63 - 2");
	return 0;
}

/* Rounded up, because a wait of 0 ms before the time is up would spin. */
int shf_ms_left(const struct sheaf_run *run, int64_t until_ns)
{
	int64_t left = until_ns - shf_now(run);

	if (left <= 0)
		return 0;
	return left / 1000000 < INT_MAX ? (int)((left + 999999) / 1000000) : INT_MAX;
}
