/* SPDX-License-Identifier: Apache-2.0 */
/* A picture of runs, from their events. */
#ifndef TRAINPLOT_H
#define TRAINPLOT_H
#include <stdio.h>

#include "tr_error.h"

enum { TR_PLOT_RUNS_MAX = 8 };

/* Writes an SVG of n runs, one to TR_PLOT_RUNS_MAX of them: loss, norm of the gradient, learning
 * rate, tokens per second and the time that saves blocked, by step. After an error nothing was
 * written.
 * run  directories of runs, whose events are in TR_EVENTS_NAME, or files of events. */
int tr_plot(const char *const *run, int n, FILE *to, struct tr_error *err);
#endif
