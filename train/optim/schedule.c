/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule.h"

#include "elementary.h"

double tr_schedule_lr(const struct tr_schedule *s, int64_t step)
{
	double part, sine, cosine;

	if (step < s->warmup)
		return s->lr * (double)(step + 1) / (double)s->warmup;
	if (s->decay == TR_DECAY_CONSTANT || s->steps <= s->warmup)
		return s->lr;
	if (step >= s->steps)
		return s->min_lr;
	part = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
	if (s->decay == TR_DECAY_LINEAR)
		return s->min_lr + (s->lr - s->min_lr) * (1 - part);
	tr_sincos(3.14159265358979323846 * part, &sine, &cosine);
	return s->min_lr + (s->lr - s->min_lr) * (0.5 * (1 + cosine));
}
