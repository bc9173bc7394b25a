/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_state_average: updates the averages of a state in a step that is not saved. */
#include "average_step.h"
#include <inttypes.h>
#include <string.h>
#include "averages.h"
#include "deal_home.h"
#include "err.h"
#include "run.h"
#include "run_env.h"
#include "save_averages.h"
#include "save_blocked.h"
#include "save_gates.h"
#include "state.h"

/* Enters the call with the other ranks, and checks that step, loss and rules are the same.
 * *checked: on every rank, all families were checked before. rc: the result of this rank's checks.
 * [collective] */
static int enter_average_call(struct sheaf_run *run, const struct sheaf_state *state, int64_t step,
                              double loss, bool *checked, int rc, struct sheaf_error *err)
{
	enum { STEP, LOSS, RULES, UNCHECKED };
	struct shf_call m = { .kind = SHF_CALL_AVERAGE, .handle = run->life.made };

	if (rc == 0) {
		m.x[STEP] = (uint64_t)step;
		m.x[LOSS] = shf_ema_loss_word(loss);
		m.x[RULES] = shf_emas_hash(state);
		m.x[UNCHECKED] = state->emas_checked < state->emas_n;
	}
	rc = shf_call_enter(&run->team, &m, rc, err);
	*checked = m.hi[UNCHECKED] == 0;
	if (rc < 0)
		return rc;
	if (shf_call_differs(&m, STEP))
		return shf_fail(err, SHEAF_EINVAL, "ranks pass different steps to "
		                "sheaf_state_average: %" PRIu64 " and %" PRIu64, m.lo[STEP],
		                m.hi[STEP]);
	if (shf_call_differs(&m, LOSS))
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": ranks pass different losses; "
		                "pass the same one, for example their mean, on all ranks",
		                step);
	if (shf_call_differs(&m, RULES))
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": ranks have averages with "
		                "different rules; call sheaf_state_ema with the same values on all "
		                "ranks", step);
	return 0;
}

/* Checks that some rank has a slice of each family that is averaged; else EINVAL. A save checks
 * this when it makes its plan, but there may have been no save yet. [collective] */
static int check_families(struct sheaf_run *run, struct sheaf_state *state,
                          struct sheaf_error *err)
{
	uint64_t marks[SHF_EMAS_MAX];
	int rc;

	shf_emas_mark(state, marks);
	rc = shf_allreduce(&run->team, marks, SHF_EMAS_MAX, SHEAF_MAX, err);
	if (rc == 0)
		rc = shf_emas_check(state, marks, err);
	if (rc == 0)
		state->emas_checked = state->emas_n;
	return rc;
}

/* Does all that shf_state_average does, except measuring the time. [collective] */
static int average(struct sheaf_state *state, struct sheaf_run *run, int64_t step, double loss,
                   struct sheaf_error *err)
{
	struct shf_ema_update fresh[SHF_EMAS_MAX];
	struct shf_ema_window *due = NULL;
	bool checked = false;
	int rc = shf_run_may_train(run, step, err);

	if (rc == 0)
		rc = shf_save_gates_check_forked(state, err);
	if (rc == 0)
		rc = shf_emas_ready(state, err);
	if (rc == 0)
		rc = shf_state_ready(state, state && state->emas_n > 0, err);
	if (rc == 0) {
		shf_emas_decide(state, run->store.run, step, loss, fresh);
		rc = shf_emas_windows(state, fresh, &due, err);
	}
	rc = enter_average_call(run, state, step, loss, &checked, rc, err);
	if (rc == 0 && !checked)
		rc = check_families(run, state, err);
	if (rc == 0) {
		shf_save_averages_finish(state, fresh);
		shf_emas_count(state, step, fresh);
		for (size_t s = 0; due && s < state->n; s++)
			shf_emas_update(state, fresh, &due[s], INT64_MAX);
	}
	shf_free(due);
	return rc;
}

int shf_state_average(struct sheaf_state *state, struct sheaf_run *run, int64_t step, double loss,
                      struct sheaf_error *err)
{
	int64_t from = shf_now(run);
	int rc = average(state, run, step, loss, err);

	shf_save_blocked_add(run, NULL, SHF_IN_BEGIN, from);
	return rc;
}
