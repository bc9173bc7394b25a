/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate of each step, without a state. */
#ifndef SCHEDULE_H
#define SCHEDULE_H
#include <stdint.h>

enum tr_decay { TR_DECAY_CONSTANT, TR_DECAY_LINEAR, TR_DECAY_COSINE };
struct tr_schedule {
	double lr, min_lr;
	int64_t warmup;                 /* steps in which the rate rises to lr */
	int64_t steps;                  /* after which the rate has fallen to min_lr */
	enum tr_decay decay;
};
/* Returns the rate of update `step`, counted from 0. */
double tr_schedule_lr(const struct tr_schedule *s, int64_t step);
#endif
