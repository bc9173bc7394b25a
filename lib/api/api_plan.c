/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_plan: predicts what each rank would write and read, without a group or a run. */
#include "entry.h"
#include "err.h"
#include "export.h"
#include "plan_job.h"
#include "sheaf-plan.h"
#include "state.h"

SHEAF_API int sheaf_plan(struct sheaf_state *const *states, const int32_t *node, int32_t ranks,
                         const struct sheaf_opts *opts,
                         void (*item)(void *arg, const struct sheaf_plan_rank *rank), void *arg,
                         struct sheaf_error *err)
{
	struct sheaf_error own;
	struct shf_opts o;
	int rc = 0;

	err = shf_err_or(err, &own);
	if (!states || ranks < 1 || !item)
		rc = shf_fail(err, SHEAF_EINVAL, "argument 'states' or callback 'item' is NULL, or "
		              "ranks is less than 1; pass one state for each rank");
	for (int32_t r = 0; rc == 0 && r < ranks; r++)
		if (!states[r])
			rc = shf_fail(err, SHEAF_ENOMEM, "rank %d: its state is NULL; "
			              "sheaf_state_new returns NULL when out of memory", (int)r);
	if (rc == 0)
		rc = shf_opts_gather(&o, opts, err);
	if (rc == 0)
		rc = shf_plan_job(states, node, ranks, &o, item, arg, err);
	return shf_ended(rc, err);
}
