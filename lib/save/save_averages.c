/* SPDX-License-Identifier: Apache-2.0 */
/* Averages of a state that lazy saves still update and copy. */
#include "save_averages.h"
#include <math.h>
#include "averages.h"
#include "run_env.h"
#include "save_copier.h"
#include "save_gates.h"
#include "save_status.h"
#include "state.h"
#include "struct_size.h"

/* Without a copy thread nothing is copied between two calls, so each call may take a time slice,
 * even a call that does not wait: a caller that only polls would otherwise never see the end. It
 * begins at the first slice that is not copied, so that each call makes progress. */
int shf_save_averages_wait(struct sheaf_save *save, int64_t until_ns, struct sheaf_error *err)
{
	const struct sheaf_state *state = save->state;
	bool alone = state->emas_n && !shf_save_copier_has_thread(save);
	bool begun = false, late = false;

	for (size_t k = 0; k < state->emas_n; k++)
		for (size_t i = 0; i < state->emas[k].n; i++) {
			int slice = (int)(state->emas[k].first + i);

			if (alone && shf_save_gates_reads(save, (size_t)slice)) {
				int64_t now = shf_now(save->run),
				        end = now + shf_ms_ns(SHF_SAVE_POLL_MS);

				late = begun && now >= until_ns;
				until_ns = begun || until_ns > end ? until_ns : end;
				begun = true;
			}
			/* Calling a gate after the deadline would take another time slice. */
			if (late ||
			    shf_save_gates_copied(save, slice, shf_ms_left(save->run, until_ns),
			                          NULL) == SHEAF_EAGAIN)
				return shf_fail(err, SHEAF_EAGAIN, "step %lld: averages are still "
				                "being copied; call again",
				                (long long)save->id.step);
		}
	return 0;
}

/* Waits until all lazy saves have copied the slices of this average. A save that has failed copies
 * nothing more, so its result is ignored. */
static void let_copies_end(const struct sheaf_state *state, const struct shf_ema *e)
{
	for (struct shf_reader *r = state->readers; r; r = r->next)
		for (size_t i = 0; i < e->n; i++)
			(void)shf_save_gates_copied(shf_save_of(r), (int)(e->first + i), -1, NULL);
}

void shf_save_averages_finish(struct sheaf_state *state, const struct shf_ema_update *fresh)
{
	for (struct shf_reader *r = state->readers; r; r = r->next)
		shf_save_copier_update(shf_save_of(r));
	for (size_t k = 0; k < state->emas_n; k++)
		if (shf_ema_changes(&state->emas[k], &fresh[k]))
			let_copies_end(state, &state->emas[k]);
}

/* The gate of the slice is not opened here: only the caller opens gates, and SHEAF_SAVE_CHECK
 * compares the memory when it does. Instead this thread copies the pieces of the slice, as a copy
 * thread would. */
int shf_state_get_average(struct sheaf_state *state, const char *name, int slice,
                          struct sheaf_average *average, struct sheaf_error *err)
{
	int rc = shf_state_ready(state, false, err);
	struct sheaf_average out = { 0 };
	const struct shf_slice *a;
	size_t at = 0;

	if (rc == 0)
		rc = shf_save_gates_check_forked(state, err);
	if (rc == 0)
		rc = shf_emas_find(state, name ? name : "ema", slice, &at, err);
	if (rc < 0)
		return rc;
	for (struct shf_reader *r = state->readers; r; r = r->next)
		shf_save_copier_update_slice(shf_save_of(r), (size_t)slice);
	a = &state->slices[at];
	out.slice = (int32_t)at;
	if (!a->empty) {
		out.data = (float *)(void *)a->mem.base;
		out.start = a->mem.lo;
		out.count = a->mem.hi - a->mem.lo;
	}
	return shf_struct_out(average, &out, sizeof(out), sizeof(out), "average", err);
}
