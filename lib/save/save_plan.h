/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a save: which rank writes what. Made once for a state, and cached in it. */
#ifndef SHF_SAVE_PLAN_H
#define SHF_SAVE_PLAN_H
#include "save.h"

void shf_plan_put(void *plan);
/* The plan cached in the state, or NULL if the state or the run is another one since. [local] */
struct shf_plan *shf_plan_cached(const struct sheaf_run *run, const struct sheaf_state *state);
/* A plan for this state: cached, or made. [collective] */
int shf_plan_get(struct sheaf_run *run, struct sheaf_state *state, struct shf_plan **plan,
                 struct sheaf_error *err);
/* Half of the staging is image, the rest is for what travels; 0: no bound. */
uint64_t shf_window_of(const struct sheaf_opts *opts);
/* What of a rank need not be staged (SHEAF_IN_PLACE), and how it shares the window. held: borrowed
 * while m is used. [local] */
struct shf_held {
	const struct shf_holds *holds;
	const struct sheaf_state *state;
};
void shf_plan_spare(struct shf_match *m, const struct shf_held *held, uint64_t window);
#endif
