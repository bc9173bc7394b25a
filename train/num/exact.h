/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of floats without rounding, so that no order and no grouping changes them. */
#ifndef EXACT_H
#define EXACT_H
#include <stdint.h>

/* The value is the sum of limb[i] * 2^(32 i - 149) over all limbs. To add the sums of several
 * ranks, call tr_exact_carry on each, and add their limbs and `odd` as integers. */
#define TR_EXACT_LIMBS 12
struct tr_exact {
	int64_t limb[TR_EXACT_LIMBS];
	int64_t adds;                   /* since the last carry */
	int64_t odd;                    /* how many infinities and NaNs were added */
};
/* Adds x. */
void tr_exact_add(struct tr_exact *sum, float x);
/* Carries, so that each limb but the last is in [0, 2^32). The value does not change. */
void tr_exact_carry(struct tr_exact *sum);
/* Returns the value, rounded once, to nearest even. NaN if an infinity or a NaN was added. */
double tr_exact_value(const struct tr_exact *sum);
#endif
