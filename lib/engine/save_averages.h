/* SPDX-License-Identifier: Apache-2.0 */
/* Averages that are copied behind: what the next step waits for before it changes them. */
#ifndef SHF_SAVE_AVERAGES_H
#define SHF_SAVE_AVERAGES_H
#include "save.h"

/* Until a lazy save has copied its averages, which nobody asks for: EAGAIN at until_ns (past: just
 * asks). What a save that has failed copies is nobody's concern. [local] */
int  shf_emas_copied(struct sheaf_save *save, int64_t until_ns, struct sheaf_error *err);
/* Before a step changes averages (E2): what is left of earlier updates is made here, and copies of
 * the averages as they were are waited for. [local] */
void shf_averages_settle(struct sheaf_state *state, const struct shf_fresh *fresh);
#endif
