/* SPDX-License-Identifier: Apache-2.0 */
/* The events of a training, and the lines for people beside them. */
#ifndef TRAINTELL_H
#define TRAINTELL_H
#include "trainjob.h"

/* [collective] */
int tr_tell_start(struct tr_job *j, struct tr_error *err);
/* Writes what a step has computed, which began at `start` of tr_clock_ns. [collective] */
int tr_tell_step(struct tr_job *j, const struct tr_lm_step *s, int64_t start,
		 struct tr_error *err);
/* Writes an event for each rank of dp, if a trace is wanted. [collective] */
int tr_tell_samples(struct tr_job *j, struct tr_error *err);
/* Writes an event for each rank after the first step. [collective] */
int tr_tell_memory(struct tr_job *j, struct tr_error *err);
/* Writes what an evaluation has found. */
void tr_tell_eval(struct tr_job *j, double loss, int64_t tokens);
void tr_tell_saved(struct tr_job *j, enum tr_place to, int64_t step);
/* Writes why the training has ended. */
void tr_tell_end(struct tr_job *j, const char *reason);
void tr_tell_error(struct tr_events *events, int code, const struct tr_error *err);
#endif
