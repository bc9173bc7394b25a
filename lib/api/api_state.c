/* SPDX-License-Identifier: Apache-2.0 */
/* States: what this rank holds. An error of a [local] call is kept in the state, and the next save
 * or load with it returns that error. */
#include "average_step.h"
#include "averages.h"
#include "entry.h"
#include "export.h"
#include "run.h"
#include "save_averages.h"
#include "sheaf-state.h"
#include "slice_chunk.h"
#include "state.h"
#include "state_hash.h"

SHEAF_API int sheaf_slice_shard(struct sheaf_slice *slice, int dim, int64_t i, int64_t n,
                                struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	if (slice && slice->size < offsetof(struct sheaf_slice, data) + sizeof(void *))
		return shf_fail(err, SHEAF_EINVAL, "slice.size is %u; set it to sizeof(struct "
		                "sheaf_slice)", (unsigned)slice->size);
	return shf_slice_shard(slice, dim, i, n, err);
}

SHEAF_API struct sheaf_state *sheaf_state_new(void)
{
	return shf_state_new();
}

SHEAF_API int sheaf_state_add(struct sheaf_state *state, const struct sheaf_slice *slice,
                              struct sheaf_error *err)
{
	struct sheaf_error own;

	return shf_state_add(state, slice, shf_err_or(err, &own));
}

SHEAF_API int sheaf_state_move(struct sheaf_state *state, int slice, void *data,
                               struct sheaf_error *err)
{
	struct sheaf_error own;

	return shf_state_move(state, slice, data, shf_err_or(err, &own));
}

SHEAF_API int sheaf_state_move_all(struct sheaf_state *state, void *const *data, size_t n,
                                   struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	return shf_ended(shf_state_move_all(state, data, n, err), err);
}

SHEAF_API int sheaf_state_fail(struct sheaf_state *state, const char *why, struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	return shf_ended(shf_state_fail(state, why, err), err);
}

SHEAF_API int sheaf_state_rank_bytes(struct sheaf_state *state, const char *stream,
                                     const char *rule, int32_t rank, int32_t ranks, void *data,
                                     size_t bytes, struct sheaf_error *err)
{
	struct sheaf_error own;

	return shf_state_stream(state, stream, rule, rank, ranks, data, bytes,
	                        shf_err_or(err, &own));
}

SHEAF_API int sheaf_state_ema(struct sheaf_state *state, const char *family,
                              const struct sheaf_ema *ema, struct sheaf_error *err)
{
	struct sheaf_error own;

	return shf_state_ema(state, family, ema, shf_err_or(err, &own));
}

SHEAF_API int sheaf_state_average(struct sheaf_state *state, struct sheaf_run *run, int64_t step,
                                  double loss, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0)
		rc = shf_turns_take(run, SHF_CALL_AVERAGE, err);
	if (rc == 0) {
		rc = shf_state_average(state, run, step, loss, err);
		shf_turns_give(run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_state_get_average(struct sheaf_state *state, const char *name, int slice,
                                      struct sheaf_average *average, struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	return shf_ended(shf_state_get_average(state, name, slice, average, err), err);
}

SHEAF_API uint64_t sheaf_state_hash(const struct sheaf_state *state)
{
	return shf_state_hash(state);
}

SHEAF_API void sheaf_state_free(struct sheaf_state *state)
{
	shf_state_put(state);
}
