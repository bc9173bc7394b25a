/* SPDX-License-Identifier: Apache-2.0 */
/* The events of a job, and the lines for people beside them. */
#ifndef TRAINTELL_H
#define TRAINTELL_H
#include "trainjob.h"

/* Writes the event `start`: the layout, the checkpoint that is resumed, and which options differ
 * from it. [collective] */
int tr_tell_start(struct tr_job *j, struct tr_error *err);
/* Writes the event `step`: the loss, the hash of the weights, and the time since the step began.
 * start  when it began, as of tr_clock_ns. [collective] */
int tr_tell_step(struct tr_job *j, const struct tr_lm_step *s, int64_t start,
		 struct tr_error *err);
/* With option trace, writes an event `samples` for each rank of dp: the positions of this step that
 * it has trained on. [collective] */
int tr_tell_samples(struct tr_job *j, struct tr_error *err);
/* Writes an event `memory` for each rank: what was planned, and what is used. The loop calls it
 * after the first step. [collective] */
int tr_tell_memory(struct tr_job *j, struct tr_error *err);
/* Writes the event `eval`.
 * loss    the mean over the targets of eval-data
 * tokens  how many targets these are. [local] */
void tr_tell_eval(struct tr_job *j, double loss, int64_t tokens);
/* Writes the event `saved`. Call it when the commit has succeeded. [local] */
void tr_tell_saved(struct tr_job *j, enum tr_place to, int64_t step);
/* Writes the event `end`. reason: "steps", "data" or "signal". [local] */
void tr_tell_end(struct tr_job *j, const char *reason);
/* Writes the event `error`. [local] */
void tr_tell_error(struct tr_events *events, int code, const struct tr_error *err);
#endif
