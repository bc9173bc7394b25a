/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-state.h - moving averages of the weights of a state. The rules at the head of sheaf.h apply
 * to these calls, too. */
#ifndef SHEAF_STATE_H
#define SHEAF_STATE_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Moving averages of weights, see sheaf_state_ema. Same on all ranks. */
struct sheaf_ema {
	uint32_t size;
	uint32_t reserved;
	const char *name;               /* family of the averages, used by no slice; NULL: "ema" */
	double coef;                    /* decay: 0 <= coef < 1 */
	double loss_max;                /* only steps with a smaller loss count; 0: all steps */
	int64_t interval;               /* only steps that are multiples of it count; 0: all */
	int64_t warmup;                 /* smaller decay at first, see sheaf_state_ema; 0: none */
};
/* Adds exponential moving averages (EMA) of a family's slices to a state. Call it once, after the
 * slices were added and before the first save or load. From then on every save updates the averages
 * with the weights that it copies, and every checkpoint has them, as F32 tensors of family
 * ema->name. At steps that are not saved call sheaf_state_average.
 *
 * family  the family to average, whose slices were added before; NULL: master_weights, and the
 *         slices of model that are stored in F32 and have no master.
 * ema     the decay, and which steps count: see struct sheaf_ema.
 *
 * A step counts if it is a multiple of ema->interval and its loss is below ema->loss_max. The first
 * save and the first step that counts set e = w. Each later step that counts makes the update
 *     e = fma(c, e, d * w)    with c = (float)coef and d = (float)(1 - coef)
 * Both products are rounded once, so every layout computes the same bits. With warmup the n-th
 * update after the first uses the smaller of coef and (1 + n) / (warmup + n).
 *
 * - The averages are further slices of the state, numbered from the next free number on. The state
 *   owns their memory: 4 bytes for each item. For memory with strides it is 4 bytes for each item
 *   from the first to the last, held or not.
 * - The update is made inside begin, or for a lazy save in the background, before the gate of the
 *   weights opens.
 * - Every step that counts is applied once, even if its save is dropped (EAGAIN) or fails.
 * - After a load the averages continue from what was loaded. If the loaded step is saved again, to
 *   the same run, it makes no update. Averages that the load left as they were become the weights
 *   at the next save. If a load fills none, all averages start again.
 * - A rank may have none of the slices. If no rank has any, begin, sheaf_state_average and load are
 *   EINVAL.
 *
 * Returns 0 or an error code. [local] */
int  sheaf_state_ema(struct sheaf_state *state, const char *family, const struct sheaf_ema *ema,
                     struct sheaf_error *err);
/* Updates the averages of a state as a save would, and saves nothing. Call it after steps that are
 * not saved, so that the averages miss none. The weights may change when it returns.
 * - A step is counted once, even if it is also saved. Step numbers must not go down without a load
 *   or a rewind.
 * - The calling thread makes the update, after waiting for averages that a lazy save still copies.
 *   The time counts as begin_ns of sheaf_run_get_stat.
 *
 * run    open for writing; the run that the state is saved to.
 * step   the step number; same on all ranks.
 * loss   compared with sheaf_ema.loss_max; same on all ranks.
 * EINVAL: the run, the step or the state cannot be saved now, or ranks disagree. Nothing is
 *    updated.
 * ENOMEM: no memory for the averages. Nothing is updated.
 * ELOST: some ranks may have updated theirs. Call it again for that step, with a new group, before
 *        going on.
 * [collective] */
int  sheaf_state_average(struct sheaf_state *state, struct sheaf_run *run, int64_t step,
                         double loss, struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
