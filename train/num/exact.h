/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of floats without rounding, so that no order and no grouping changes them. */
#ifndef EXACT_H
#define EXACT_H
#include <stdint.h>

/* Limb i counts 2^(32 i - 149). The number that it stands for is the sum over all limbs. Ranks add
 * theirs limb by limb, as integers, after tr_exact_carry. */
#define TR_EXACT_LIMBS 12
struct tr_exact {
	int64_t limb[TR_EXACT_LIMBS];
	int64_t adds;                   /* since the last carry */
	int64_t odd;                    /* infinities and NaNs that were added */
};
/* Adds x. */
void tr_exact_add(struct tr_exact *sum, float x);
/* Adds another sum. */
void tr_exact_add_sum(struct tr_exact *sum, const struct tr_exact *other);
/* Brings each limb but the last into [0, 2^32). */
void tr_exact_carry(struct tr_exact *sum);
/* The sum, rounded to nearest even once; NaN if one was added. */
double tr_exact_value(const struct tr_exact *sum);
#endif
