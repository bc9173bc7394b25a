/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a save: which rank writes which bytes. It is made once for a state, and cached in
 * it. */
#ifndef SHF_SAVE_PLAN_H
#define SHF_SAVE_PLAN_H
#include "save.h"

/* Releases a reference to a struct shf_plan; releasing the last one frees it. Used as
 * state->plan_free, which gives the type of its argument. */
void shf_plan_put(void *plan);
/* Returns the plan cached in the state, or NULL if there is none, the state has changed, or the
 * plan was made for another run. No reference is taken. [local] */
struct shf_plan *shf_plan_cached(const struct sheaf_run *run, const struct sheaf_state *state);
/* Returns a plan for this state, with a reference: the cached one if all ranks have it, else a new
 * one. [collective] */
int shf_plan_get(struct sheaf_run *run, struct sheaf_state *state, struct shf_plan **plan,
                 struct sheaf_error *err);
/* Returns how many bytes of opts.staging.bytes_max are for images: half of it; the other half is
 * for what goes to other nodes. 0: no limit. */
uint64_t shf_plan_window(const struct shf_opts *opts);
/* Sets in *m which boxes of this rank need no staging (SHEAF_SLICE_IN_PLACE), and how much of the
 * window slots take from images. `held` is borrowed while m is used. [local] */
struct shf_plan_slices {
	const struct shf_holds *holds;
	const struct sheaf_state *state;
};
void shf_plan_set_unstaged(struct shf_match *m, const struct shf_plan_slices *held,
                           uint64_t window);
#endif
