/* SPDX-License-Identifier: Apache-2.0 */
/* Averages of a state's slices: slices of a family of their own, whose memory is ours. What a step
 * makes of them is settled when its save begins, and counted once all ranks have agreed on that;
 * their items are brought up to date in the pass that copies the weights, so a step holds the
 * averages of the weights that it holds. An update is never left out for want of an image or a
 * disk, and what becomes of the save does not undo it.
 *
 * E1. An item is brought up to date once, after its averages of the step before are copied and
 *     before they, or the weights behind their gate, are anybody else's.
 * E2. No two saves bring averages of one state up to date at a time: a begin, or a step that is
 *     averaged alone, finishes what those before it have left. */
#ifndef SHF_AVERAGES_H
#define SHF_AVERAGES_H
#include "manifest.h"
#include "state.h"

#define SHF_EMAS_MAX 8
struct sheaf_run;
struct sheaf_save;
struct shf_ema {
	const char *name, *of;          /* in the state's arena; of: the caller's, perhaps NULL */
	double coef, loss_max;
	int64_t interval, warmup;
	size_t first, n;                /* its slices: [first, first + n) of the state */
	uint32_t *source;               /* owned; by its slices: what each averages */
	bool *anew;                     /* owned; by its slices: a load did not fill it, so it is
	                                 * its weights until a step counts */
	int64_t updates, last;          /* how often so far, and at which step; -1 */
	char last_of[33];               /* the run of that step, which was loaded; "": it was saved
	                                 * here, to any run */
	bool begun;                     /* the memory holds averages, but for those in anew */
};
/* What sheaf_state_ema says. [local] */
int  shf_state_ema(struct sheaf_state *state, const char *family, const struct sheaf_ema *ema);
/* A rank may have no slice of a family that is averaged, because other ranks hold those layers or
 * experts. A family that no rank has is a mistake. So each rank marks the families it has, the
 * caller reduces the marks by MAX over all ranks, and the check returns EINVAL on all of them.
 * [local] */
void shf_emas_mark(const struct sheaf_state *state, uint64_t marks[SHF_EMAS_MAX]);
int  shf_emas_check(const struct sheaf_state *state, const uint64_t marks[SHF_EMAS_MAX],
                    struct sheaf_error *err);
/* Memory of all averages whose weights have memory. ENOMEM. [local] */
int  shf_emas_ready(struct sheaf_state *state, struct sheaf_error *err);
struct shf_fresh {              /* what a step makes of averages */
	double coef;
	bool due, counts, first;        /* first: they become the weights */
};
struct shf_due {                /* of a slice's memory: units whose averages are not up to date */
	size_t slice;
	int64_t at, hi;
	uint8_t made, first;            /* bits by averages: which are; which become the weights */
};
_Static_assert(SHF_EMAS_MAX <= 8, "a bit for each");
/* What a save of the step with this loss to that run, or sheaf_state_average, makes of each;
 * nothing of it has happened then. [local]; equal arguments on all ranks */
void shf_emas_due(const struct sheaf_state *state, const char *run, int64_t step, double loss,
                  struct shf_fresh *fresh);
/* All of each slice that is due, by slice; *out NULL: none is. ENOMEM. The caller frees it. */
int  shf_emas_windows(const struct sheaf_state *state, const struct shf_fresh *fresh,
                      struct shf_due **out, struct sheaf_error *err);
/* Does the step change the memory of these averages? */
bool shf_ema_changes(const struct shf_ema *e, const struct shf_fresh *f);
/* Counts the step in the averages, once all ranks have agreed to save it or to average it. Call
 * shf_averages_settle (save_averages.h) before (E2). [local] */
void shf_emas_count(struct sheaf_state *state, int64_t step, const struct shf_fresh *fresh);
/* Whose units come first: of averages that are due (of `due` by slice, or NULL) the weights, else
 * the slice itself. */
size_t shf_emas_before(const struct sheaf_state *state, const struct shf_due *due, size_t slice);
/* All averages of those units, up to `to` of them at most. [any thread, once] */
void shf_emas_update(const struct sheaf_state *state, const struct shf_fresh *fresh,
                     struct shf_due *due, int64_t to);
/* What sheaf_state_average says. [collective] */
int  shf_state_average(struct sheaf_state *state, struct sheaf_run *run, int64_t step, double loss,
                       struct sheaf_error *err);
/* The slice that the average in slice `slice` is of. */
uint32_t shf_ema_source(const struct sheaf_state *state, size_t slice);
/* The state was filled from a step with that manifest. Averages of which no rank was filled any
 * begin anew; of the others the caller sets `anew`. [local] */
void shf_emas_loaded(struct sheaf_state *state, const struct shf_manifest *m,
                     const bool filled[SHF_EMAS_MAX]);
/* Lines of the manifest of a save that begins now; strings live as long as the state. */
void shf_emas_tell(const struct sheaf_state *state, struct shf_mf_ema *told);
#endif
