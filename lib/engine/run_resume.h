/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_run_resume: loads the newest step that is whole. */
#ifndef SHF_RUN_RESUME_H
#define SHF_RUN_RESUME_H
#include "run.h"
#include "state.h"

/* Loads the latest step, or with SHEAF_LOAD_FALLBACK the newest one that can be loaded. report may
 * be NULL. [collective] */
int shf_run_resume(struct sheaf_run *run, struct sheaf_state *state, uint64_t flags,
                   struct sheaf_report *report, struct sheaf_error *err);
#endif
