/* SPDX-License-Identifier: Apache-2.0 */
/* Updates the averages of a state in a step that is not saved. */
#ifndef SHF_AVERAGE_STEP_H
#define SHF_AVERAGE_STEP_H
#include "averages.h"

/* As sheaf_state_average in sheaf-state.h. [collective] */
int  shf_state_average(struct sheaf_state *state, struct sheaf_run *run, int64_t step, double loss,
                       struct sheaf_error *err);
#endif
