/* SPDX-License-Identifier: Apache-2.0 */
/* Averages of a state's slices: slices of a family of their own, whose memory is ours. Each begin
 * of a save brings them up to date before anything of it is copied, so a step holds the averages
 * of the weights that it holds. An update is never left out for want of an image or a disk, and
 * what becomes of the save does not undo it. */
#ifndef SHF_EMA_H
#define SHF_EMA_H
#include "manifest.h"
#include "state.h"

#define SHF_EMAS_MAX 8
struct sheaf_save;
struct shf_ema {
	const char *name, *of;          /* in the state's arena; of: the caller's, perhaps NULL */
	double coef, loss_max;
	int64_t interval, warmup;
	size_t first, n;                /* its slices: [first, first + n) of the state */
	uint32_t *source;               /* owned; by its slices: what each averages */
	int64_t updates, last;          /* how often so far, and at which step; -1 */
	bool begun;                     /* the memory holds averages */
};
/* What sheaf_state_ema says. [local] */
int  shf_state_ema(struct sheaf_state *state, const char *family, const struct sheaf_ema *ema);
void shf_emas_release(struct sheaf_state *state);
/* Memory of all averages whose weights have memory. ENOMEM. [local] */
int  shf_emas_ready(struct sheaf_state *state, struct sheaf_error *err);
/* A save of the step begins, with this loss. Waits for saves that still copy the averages as they
 * were. [local]; equal arguments on all ranks */
void shf_emas_update(struct sheaf_state *state, int64_t step, double loss);
/* Until a lazy save has copied its averages, which nobody asks for: EAGAIN after timeout_ms (0:
 * just asks). What a save that has failed copies is nobody's concern. [local] */
int  shf_emas_copied(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err);
/* The state was filled from a step with that manifest, but for averages that were kept. */
void shf_emas_loaded(struct sheaf_state *state, const struct shf_manifest *m, const bool *kept);
/* Lines of the manifest of a save that begins now; strings live as long as the state. */
void shf_emas_tell(const struct sheaf_state *state, struct shf_mf_ema *told);
#endif
