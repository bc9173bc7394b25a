/* SPDX-License-Identifier: Apache-2.0 */
/* The schema of a save: one description of every tensor that any rank holds, the same on all ranks.
 * Each rank sends the descriptions of its slices to home ranks, chosen by the tensor's name. A home
 * merges and checks them, and sends one description of each tensor to all ranks. So no rank ever
 * receives ranks x tensors descriptions. */
#ifndef SHF_SCHEMA_H
#define SHF_SCHEMA_H
#include "group.h"
#include "layout.h"
#include "state.h"

/* Returns whether one of the fnmatch patterns in `ignore` (an array that ends with NULL, or NULL:
 * no patterns) matches "family/name". [local] */
bool shf_ignored(const char *const *ignore, const char *family, const char *name);
/* Fills tensors, families and ties of *l from all ranks' states, except for file and off of the
 * tensors. rc and err: 0, or a failure of this rank before the call, which is then returned on all
 * ranks. ELAYOUT names the tensor and ranks that contradict each other. [collective] */
int shf_schema_merge(struct shf_team *team, const struct sheaf_state *state,
                     const char *const *ignore, int rc, struct shf_layout *l,
                     struct sheaf_error *err);
/* Does what shf_schema_merge does, for a job that does not exist: states[r] is the state of rank r.
 * The layout borrows strings from the states. [local] */
int shf_schema_preview(struct sheaf_state *const *states, int ranks, const char *const *ignore,
                       struct shf_layout *l, struct sheaf_error *err);
#endif
