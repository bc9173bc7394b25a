/* SPDX-License-Identifier: Apache-2.0 */
/* Saves: begin, attach files and notes, progress, commit. */
#include "entry.h"
#include "err.h"
#include "export.h"
#include "save.h"
#include "save_calls.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_eta.h"
#include "save_attach.h"
#include "save_status.h"
#include "sheaf-state.h"
#include "save_submit.h"
#include "sheaf-stat.h"
#include "state.h"
#include "struct_size.h"

#define STAT_MIN (offsetof(struct sheaf_stat, phase) + sizeof(uint32_t))

/* Returns 0, or SHEAF_EINVAL if save is NULL or its run was opened by another process. */
static int save_check(const struct sheaf_save *save, struct sheaf_error *err)
{
	if (!save)
		return shf_fail(err, SHEAF_EINVAL, "argument 'save' is NULL");
	return shf_run_check(save->run, err);
}

/* Callers pass a negative number for the timeout of the run. Inside the library it means that there
 * is no limit. */
static int real_timeout(const struct sheaf_save *save, int timeout_ms)
{
	return timeout_ms < 0 ? save->run->team.timeout_ms : timeout_ms;
}

SHEAF_API int sheaf_save_begin(struct sheaf_save **save, struct sheaf_run *run, int64_t step,
                               struct sheaf_state *state, const struct sheaf_save_opts *opts,
                               struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0 && !save) {
		rc = shf_turns_take(run, SHF_CALL_BEGIN, err);
		if (rc == 0) {
			rc = shf_call_refuse(&run->team, SHF_CALL_BEGIN, run->life.made,
			                     shf_fail(err, SHEAF_EINVAL, "argument 'save' is NULL"),
			                     err);
			shf_turns_give(run);
		}
	} else if (rc == 0) {
		rc = shf_save_begin_behind(save, run, step, state, opts, err);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_attach(struct sheaf_save *save, const char *file, const void *bytes,
                                size_t n,
                                struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0) {
		shf_turns_hold(save->run);
		rc = shf_save_attach(save, file, bytes, n, err);
		shf_turns_give(save->run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_note(struct sheaf_save *save, const char *key, const char *value,
                              struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0) {
		shf_turns_hold(save->run);
		rc = shf_save_note(save, key, value, err);
		shf_turns_give(save->run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_rank_bytes(struct sheaf_save *save, const char *stream, const void *bytes,
                                    size_t n, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0) {
		shf_turns_hold(save->run);
		rc = shf_save_rank_bytes(save, stream, bytes, n, err);
		shf_turns_give(save->run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_advance(struct sheaf_save *save, uint64_t bytes_max,
                                 struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0)
		rc = shf_turns_take(save->run, SHF_CALL_EXCHANGE, err);
	if (rc == 0) {
		rc = shf_save_advance(save, bytes_max, err);
		shf_turns_give(save->run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_wait_copied(struct sheaf_save *save, int slice, int timeout_ms,
                                     struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0)
		rc = shf_save_copied(save, slice, real_timeout(save, timeout_ms), err);
	return shf_ended(rc, err);
}

/* Checks the save, and the list of slices that a caller has given. */
static int list_check(const struct sheaf_save *save, const int *slices, size_t n,
                      struct sheaf_error *err)
{
	int rc = save_check(save, err);

	if (rc < 0 || slices || n == 0)
		return rc;
	return shf_fail(err, SHEAF_EINVAL, "argument 'slices' is NULL, and n is %zu", n);
}

SHEAF_API int sheaf_save_slices_copied(struct sheaf_save *save, const int *slices, size_t n,
                                       int timeout_ms, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = list_check(save, slices, n, err);
	if (rc == 0 && n > 0)
		rc = shf_save_list_copied(save, slices, n, real_timeout(save, timeout_ms), err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_slice_ready(struct sheaf_save *save, int slice, const void *data,
                                     struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0)
		rc = shf_save_put(save, slice, data, err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_slices_ready(struct sheaf_save *save, const int *slices, size_t n,
                                      struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = list_check(save, slices, n, err);
	if (rc == 0)
		rc = shf_save_list_put(save, slices, n, NULL, err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_ready(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0)
		rc = shf_save_wait(save, 0, err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_get_stat(struct sheaf_save *save, struct sheaf_stat *stat,
                                  struct sheaf_error *err)
{
	struct sheaf_error own;
	struct sheaf_stat s;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc < 0)
		return rc;
	shf_save_stat(save, &s);
	return shf_struct_out(stat, &s, sizeof(s), STAT_MIN, "stat", err);
}

SHEAF_API int64_t sheaf_save_eta_ms(struct sheaf_save *save)
{
	struct sheaf_error own;

	return save_check(save, shf_err_or(NULL, &own)) < 0 ? -1 : shf_save_eta_ms(save);
}

SHEAF_API int sheaf_save_abort(struct sheaf_save *save, const char *why,
                               struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0)
		rc = shf_save_fail(save, why, err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_commit(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0)
		rc = shf_turns_take(save->run, SHF_CALL_COMMIT, err);
	if (rc == 0) {
		rc = shf_save_commit(save, timeout_ms, err);
		shf_turns_give(save->run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_submit(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0) {
		shf_turns_hold(save->run);
		rc = shf_save_submit(save, err);
		shf_turns_give(save->run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_save_result(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = save_check(save, err);
	if (rc == 0)
		rc = shf_save_result(save, real_timeout(save, timeout_ms), err);
	return shf_ended(rc, err);
}

SHEAF_API void sheaf_save_free(struct sheaf_save *save)
{
	struct sheaf_run *run;

	if (!save)
		return;
	/* A reference, because the save may have the last one. */
	run = save->run;
	shf_run_get(run);
	shf_turns_hold(run);
	shf_save_leave(save);
	shf_turns_give(run);
	shf_run_put(run);
}
