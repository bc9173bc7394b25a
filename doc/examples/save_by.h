/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_BY_H
#define SAVE_BY_H
#include <sheaf.h>
#include <time.h>

int64_t now_ms(void);
int save_by(struct sheaf_run *run, struct sheaf_state *state, int64_t step, int64_t until,
            struct sheaf_error *err);
#endif
