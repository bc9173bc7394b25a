/* SPDX-License-Identifier: Apache-2.0 */
/* Exponential moving averages of a state's slices. They are slices of a family of their own, in
 * memory that the state allocates. sheaf_save_begin decides what the step does to each of them
 * (shf_emas_decide), and counts the step once all ranks have agreed on the save (shf_emas_count).
 * The items are updated in the same pass that copies the weights, so a step contains the averages
 * of exactly the weights that it contains. An update is made even if no image is free, and is not
 * undone if the save fails.
 *
 * E1. Each step updates an item once: after earlier saves have copied its old value, and before
 *     this save copies its new value or opens the gate of the weights that it is computed from,
 *     since the caller may change these once the gate is open.
 * E2. Two saves never update averages of one state at the same time: sheaf_save_begin and
 *     sheaf_state_average first finish the updates that earlier saves have left. */
#ifndef SHF_AVERAGES_H
#define SHF_AVERAGES_H
#include "manifest.h"
#include "sheaf-state.h"
#include "state.h"

#define SHF_EMAS_MAX 8
struct shf_ema {
	const char *name, *of;          /* name: family of the averages; of: family that they
	                                 * average, NULL: the slices that sheaf_state_ema chooses.
	                                 * Both in the state's arena */
	double coef, loss_max;          /* as in struct sheaf_ema, like interval and warmup below */
	int64_t interval, warmup;
	size_t first, n;                /* slices [first, first + n) of the state hold the
	                                 * averages */
	uint32_t *source;               /* owned; source[i]: the slice that is averaged in slice
	                                 * first + i; ascending */
	bool *anew;                     /* owned; anew[i]: a load did not fill slice first + i, so
	                                 * it stays a copy of its weights until a step counts */
	int64_t updates, last;          /* updates: number of steps that counted so far; last: last
	                                 * step that changed the averages, -1: no step did */
	char last_of[33];               /* run id of step `last` if it was loaded; "": this process
	                                 * made it, and may save it to any run */
	bool begun;                     /* the memory holds averages, except slices in anew */
};
/* Does what sheaf-state.h says of sheaf_state_ema. [local] */
int  shf_state_ema(struct sheaf_state *state, const char *family, const struct sheaf_ema *ema,
                   struct sheaf_error *err);
/* A rank may have no slice of a family that is averaged, because other ranks hold the layers or
 * experts of that family. A family that no rank has is a mistake. So each rank marks the families
 * it has, the caller reduces the marks by MAX over all ranks, and shf_emas_check then returns
 * EINVAL on all ranks. [local] */
void shf_emas_mark(const struct sheaf_state *state, uint64_t marks[SHF_EMAS_MAX]);
int  shf_emas_check(const struct sheaf_state *state, const uint64_t marks[SHF_EMAS_MAX],
                    struct sheaf_error *err);
/* Allocates memory for all averages whose weights have memory. ENOMEM. [local] */
int  shf_emas_ready(struct sheaf_state *state, struct sheaf_error *err);
struct shf_ema_update {              /* what one step does to one struct shf_ema */
	double coef;                    /* coefficient of this update, with warmup applied */
	/* due: the step changes the averages. counts: the step is a multiple of the interval and
	 * its loss is low enough. first: the averages are set to a copy of the weights. */
	bool due, counts, first;
};
/* The part of one source slice whose averages are still to be updated for this step. */
struct shf_ema_window {
	size_t slice;                   /* the source slice: the weights */
	int64_t at, hi;                 /* units [at, hi) are still to be updated */
	uint8_t made, first;            /* bit k stands for emas[k] of the state. made: this step
	                                 * updates these averages; first: it sets them to a copy of
	                                 * the weights */
};
_Static_assert(SHF_EMAS_MAX <= 8, "a bit for each");
/* Returns the word by which ranks compare a loss. Losses that decide alike have one word: all NaN,
 * whose bits differ between processors and operations, and both zeros. */
uint64_t shf_ema_loss_word(double loss);
/* Computes into fresh[k] what a save of this step, with this loss, to that run does to emas[k] of
 * the state; sheaf_state_average does the same. Changes nothing yet. The arguments must be equal on
 * all ranks. [local] */
void shf_emas_decide(const struct sheaf_state *state, const char *run, int64_t step, double loss,
                     struct shf_ema_update *fresh);
/* Lists the units to update: (*out)[s] describes the units of the averages of slice s. Its `made`
 * is 0 if the step updates no averages of slice s. *out is NULL if the step changes no averages.
 * The caller frees it. ENOMEM. [local] */
int  shf_emas_windows(const struct sheaf_state *state, const struct shf_ema_update *fresh,
                      struct shf_ema_window **out, struct sheaf_error *err);
/* Returns a hash of the rules for averages (sheaf_state_ema), which must be the same on all
 * ranks. */
uint64_t shf_emas_hash(const struct sheaf_state *state);
/* Returns whether the step changes the memory of these averages. [local] */
bool shf_ema_changes(const struct shf_ema *e, const struct shf_ema_update *f);
/* Counts the step in the averages. Call it when all ranks have agreed to save the step or to
 * average it. Call shf_save_averages_finish (save_averages.h) before this (E2). [local] */
void shf_emas_count(struct sheaf_state *state, int64_t step, const struct shf_ema_update *fresh);
/* Returns the slice whose units must be updated first (due, from shf_emas_windows, or NULL) before
 * the same units of `slice` are copied: for averages that the step updates it is the slice of their
 * weights, for any other slice it is the slice itself. [local] */
size_t shf_emas_before(const struct sheaf_state *state, const struct shf_ema_window *due,
                       size_t slice);
/* Updates all averages of the source due->slice, from unit due->at up to unit `to`, and advances
 * due->at. [any thread, but one at a time] */
void shf_emas_update(const struct sheaf_state *state, const struct shf_ema_update *fresh,
                     struct shf_ema_window *due, int64_t to);
/* Finds the averages of a slice in the family `name`: *average becomes the number of their slice.
 * EINVAL: there are none. EAGAIN: their memory holds no averages yet. [local] */
int  shf_emas_find(const struct sheaf_state *state, const char *name, int slice, size_t *average,
                   struct sheaf_error *err);
/* Returns the slice that is averaged in `slice`, which must be a slice of averages. */
uint32_t shf_ema_source(const struct sheaf_state *state, size_t slice);
/* Call it after a load has filled the state from a step with manifest m. filled[k]: some rank
 * loaded a slice of emas[k]. Averages that were not filled start again from the weights. Where some
 * slices were filled, the caller sets `anew` of the others. [local] */
void shf_emas_loaded(struct sheaf_state *state, const struct shf_manifest *m,
                     const bool filled[SHF_EMAS_MAX]);
/* Fills told[k], the manifest's entry of emas[k], for a save that begins now. told has room for
 * emas_n entries; their strings live as long as the state. [local] */
void shf_emas_describe(const struct sheaf_state *state, struct shf_mf_ema *told);
#endif
