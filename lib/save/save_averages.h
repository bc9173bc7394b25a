/* SPDX-License-Identifier: Apache-2.0 */
/* Averages that a lazy save still copies: the next step must not change them before. */
#ifndef SHF_SAVE_AVERAGES_H
#define SHF_SAVE_AVERAGES_H
#include "save.h"

/* Waits until a lazy save has copied its averages; callers ask at no gate for those. EAGAIN at
 * until_ns (in the past: only asks). A save that has failed is not waited for. [local] */
int  shf_emas_copied(struct sheaf_save *save, int64_t until_ns, struct sheaf_error *err);
/* Call it before a step changes averages (E2). Makes what is left of earlier updates, and waits
 * until saves in flight have copied the averages as they were. [local] */
void shf_averages_settle(struct sheaf_state *state, const struct shf_fresh *fresh);
#endif
