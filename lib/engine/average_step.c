/* SPDX-License-Identifier: Apache-2.0 */
/* Averages of a step that is not saved. */
#include <inttypes.h>
#include <string.h>
#include "ema.h"
#include "err.h"
#include "run.h"
#include "tree.h"

static int may_average(struct sheaf_run *run, const struct sheaf_state *state, int64_t step,
                       struct sheaf_error *err)
{
	if (!shf_run_is_ours(run))
		return shf_fail(err, SHEAF_EINVAL, "the run was opened by another process");
	if (run->closed || run->foreign || run->opts.flags & SHEAF_READONLY)
		return shf_fail(err, SHEAF_EINVAL, "the run is not open for writing");
	if (step < 0 || step > SHF_STEP_MAX)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is %s", step,
		                step < 0 ? "negative" : "beyond the last number, 2^63 - 2");
	return shf_state_ready(state, true, err);
}

static int meet(struct sheaf_run *run, int64_t step, double loss, int rc, struct sheaf_error *err)
{
	struct shf_call m = { .kind = SHF_CALL_AVERAGE, .handle = run->made,
		.x = { (uint64_t)step } };

	memcpy(&m.x[1], &loss, sizeof(loss));
	rc = shf_call_enter(&run->team, &m, rc, err);
	if (rc == 0 && !(m.same & 1))
		return shf_fail(err, SHEAF_EINVAL, "ranks are at different steps: %" PRIu64 " and %"
		                PRIu64, m.lo[0], m.hi[0]);
	if (rc == 0 && !(m.same & 2))
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": ranks pass different losses",
		                step);
	return rc;
}

/* Has some rank a slice of each family that is averaged? A save asks when it makes its plan, but
 * there may have been none yet. */
static int check_families(struct sheaf_run *run, const struct sheaf_state *state,
                          struct sheaf_error *err)
{
	uint64_t marks[SHF_EMAS_MAX];
	int rc;

	shf_emas_mark(state, marks);
	rc = shf_allreduce(&run->team, marks, SHF_EMAS_MAX, SHEAF_MAX, err);
	return rc < 0 ? rc : shf_emas_check(state, marks, err);
}

int shf_state_average(struct sheaf_state *state, struct sheaf_run *run, int64_t step, double loss,
                      struct sheaf_error *err)
{
	struct shf_fresh fresh[SHF_EMAS_MAX];
	struct shf_due *due = NULL;
	int rc = shf_emas_ready(state, err);

	if (rc == 0)
		rc = may_average(run, state, step, err);
	if (rc == 0) {
		shf_emas_due(state, run->store.run, step, loss, fresh);
		rc = shf_emas_windows(state, fresh, &due, err);
	}
	rc = meet(run, step, loss, rc, err);
	if (rc == 0)
		rc = check_families(run, state, err);
	if (rc == 0) {
		shf_emas_count(state, step, fresh);
		for (size_t s = 0; due && s < state->n; s++)
			shf_emas_update(state, fresh, &due[s], INT64_MAX);
		state->fixed = true;
	}
	shf_free(due);
	return rc;
}
