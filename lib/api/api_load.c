/* SPDX-License-Identifier: Apache-2.0 */
/* Loads whose caller takes one slice after the other. */
#include "entry.h"
#include "err.h"
#include "export.h"
#include "load_slices.h"
#include "run.h"
#include "sheaf-load.h"
#include "step.h"
#include "turns.h"

/* Returns 0, or SHEAF_EINVAL if load is NULL or was begun by another process. */
static int load_check(const struct sheaf_load *load, struct sheaf_error *err)
{
	if (!load)
		return shf_fail(err, SHEAF_EINVAL, "argument 'load' is NULL");
	return shf_run_check(shf_load_slices_run(load), err);
}

SHEAF_API int sheaf_load_begin(struct sheaf_load **load, struct sheaf_checkpoint *checkpoint,
                               struct sheaf_state *state, uint64_t flags,
                               struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_reporting heard;
	struct sheaf_error own;
	struct sheaf_run *run;
	int rc;

	err = shf_err_or(err, &own);
	rc = checkpoint ? shf_run_check(checkpoint->run, err)
	                : shf_fail(err, SHEAF_EINVAL, "argument 'checkpoint' is NULL");
	if (rc == 0)
		rc = shf_turns_take(shf_run_that_saves(checkpoint->run), SHF_CALL_LOAD_BEGIN, err);
	if (rc < 0)
		return shf_ended(rc, err);
	run = shf_run_that_saves(checkpoint->run);
	rc = shf_report_begin(&heard, report, err);
	if (rc == 0 && !load)
		rc = shf_fail(err, SHEAF_EINVAL, "argument 'load' is NULL");
	if (rc < 0) {
		rc = shf_call_refuse(&checkpoint->run->team, SHF_CALL_LOAD_BEGIN, checkpoint->made,
		                     rc, err);
	} else {
		rc = shf_load_slices_begin(load, checkpoint, state, flags, &heard.own, err);
		shf_report_end(&heard, report);
	}
	shf_turns_give(run);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_load_fills(const struct sheaf_load *load, int slice, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = load_check(load, err);
	if (rc == 0)
		rc = shf_load_slices_fills(load, slice, err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_load_take(struct sheaf_load *load, int slice, void *data,
                              struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = load_check(load, err);
	if (rc == 0)
		rc = shf_load_slices_take(load, slice, data, err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_load_end(struct sheaf_load *load, struct sheaf_report *report,
                             struct sheaf_error *err)
{
	struct shf_reporting heard;
	struct sheaf_error own;
	struct sheaf_run *run;
	int rc;

	err = shf_err_or(err, &own);
	rc = load_check(load, err);
	if (rc < 0)
		return shf_ended(rc, err);
	run = shf_run_that_saves(shf_load_slices_run(load));
	rc = shf_turns_take(run, SHF_CALL_LOAD_END, err);
	if (rc < 0)
		return shf_ended(rc, err);
	rc = shf_report_begin(&heard, report, err);
	rc = shf_load_slices_end(load, rc, &heard.own, err);
	if (rc == 0)
		shf_report_end(&heard, report);
	shf_turns_give(run);
	return shf_ended(rc, err);
}

/* A reference to the run is taken, because the load may have the last one. */
SHEAF_API void sheaf_load_free(struct sheaf_load *load)
{
	struct sheaf_run *run = load ? shf_run_that_saves(shf_load_slices_run(load)) : NULL;

	if (!run)
		return;
	shf_run_get(run);
	shf_turns_hold(run);
	shf_load_slices_free(load);
	shf_turns_give(run);
	shf_run_put(run);
}
