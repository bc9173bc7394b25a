/* SPDX-License-Identifier: Apache-2.0 */
/* Do two sets of measurements differ, and by how much: the difference of their means with Welch's
 * 95 % interval, for sets of unequal size and spread. Needs no libm. */
#ifndef SHF_WELCH_H
#define SHF_WELCH_H
#include <stdbool.h>
#include <stddef.h>

struct shf_welch {
	double mean[2], median[2];
	double diff, low, high;         /* of the means, second less first, and its interval */
	double df;                      /* degrees of freedom; 0: nothing varies */
};
/* Sorts both. False where one has fewer than two. */
bool shf_welch(struct shf_welch *out, double *a, size_t a_n, double *b, size_t b_n);

/* Of Student's t, two-sided 95 %; from 1 on. Never too small, at most 1e-5 too large at whole df
 * and from 30 on. */
double shf_student_95(double df);
double shf_root(double x);              /* square root; 0 below 0 */
#endif
