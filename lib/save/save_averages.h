/* SPDX-License-Identifier: Apache-2.0 */
/* Averages of a state that lazy saves still update and copy: waits until they are copied, so that
 * the next step does not change averages that are still to be saved, and gives the caller access to
 * those that are up to date. */
#ifndef SHF_SAVE_AVERAGES_H
#define SHF_SAVE_AVERAGES_H
#include "save.h"
#include "sheaf-state.h"

/* Waits until a lazy save has copied its averages. The caller cannot do this at gates, because only
 * the library changes averages. Returns EAGAIN at until_ns (in the past: does not wait), and 0 if
 * the save has failed, because then nothing more is copied. [local] */
int  shf_save_averages_wait(struct sheaf_save *save, int64_t until_ns, struct sheaf_error *err);
/* Must be called before a step changes averages (E2). Finishes the updates that earlier lazy saves
 * have not made yet, and waits until those saves have copied the averages that `fresh` will change.
 * [local] */
void shf_save_averages_finish(struct sheaf_state *state, const struct shf_ema_update *fresh);
/* Does what sheaf-state.h says of sheaf_state_get_average. [local] */
int  shf_state_get_average(struct sheaf_state *state, const char *name, int slice,
                           struct sheaf_average *average, struct sheaf_error *err);
#endif
