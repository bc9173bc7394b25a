/* SPDX-License-Identifier: Apache-2.0 */
/* One description of every tensor that any rank holds, the same on all ranks. Descriptions go to
 * a home rank by name, are merged and checked there, and only then travel to everyone: nothing
 * of the size (ranks x tensors) exists anywhere. */
#ifndef SHF_SCHEMA_H
#define SHF_SCHEMA_H
#include "group.h"
#include "layout.h"
#include "state.h"

/* NULL-ended fnmatch patterns on "family/name"; NULL: none. */
bool shf_ignored(const char *const *ignore, const char *family, const char *name);
/* Tensors, families and ties of *l from all ranks' states; file and off are not filled. rc and err:
 * what this rank already knows to be wrong. ELAYOUT names tensor and ranks that disagree.
 * [collective] */
int shf_schema_merge(struct shf_team *team, const struct sheaf_state *state,
                     const char *const *ignore, int rc, struct shf_layout *l,
                     struct sheaf_error *err);
/* The same of ranks that do not exist: states[r] is rank r's. Texts are borrowed from the states.
 * [local] */
int shf_schema_preview(struct sheaf_state *const *states, int ranks, const char *const *ignore,
                       struct shf_layout *l, struct sheaf_error *err);
#endif
