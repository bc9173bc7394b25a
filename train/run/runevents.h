/* SPDX-License-Identifier: Apache-2.0 */
/* The events of a run, read as the curves of a picture. */
#ifndef RUNEVENTS_H
#define RUNEVENTS_H
#include <stddef.h>
#include <stdint.h>

#include "tr_error.h"

/* The numbers that a picture shows, each as a curve over the steps. */
enum tr_curve { TR_CURVE_LOSS, TR_CURVE_EVAL, TR_CURVE_NORM, TR_CURVE_RATE, TR_CURVE_SPEED,
		TR_CURVE_STALL, TR_CURVES };

/* A point whose y is NaN is a gap: a job ended, and the next one began. */
struct tr_point {
	double x, y;
};
struct tr_points {
	struct tr_point *at;
	size_t n, room;
};
/* A job that began with a checkpoint. */
struct tr_resumption {
	int64_t step, ranks, dp, tp, pp;
};
struct tr_runevents {
	struct tr_points curve[TR_CURVES];
	struct tr_resumption *resumed;
	size_t resumed_n;
	/* How many lines are not events, such as one that a crash has cut, or have a step that no
	 * job makes. */
	int64_t odd_lines;
};

/* Reads a file of events. ENOENT: it does not exist. EINVAL: no line is the event of a step. */
int tr_runevents_read(struct tr_runevents *r, const char *path, struct tr_error *err);
void tr_runevents_release(struct tr_runevents *r);
#endif
