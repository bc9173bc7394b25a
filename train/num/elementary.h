/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of doubles made of IEEE additions, multiplications and divisions only, so that they
 * give the same bits whatever the C library is. Errors are a few units in the last place. */
#ifndef ELEMENTARY_H
#define ELEMENTARY_H

double tr_exp(double x);
/* Natural logarithm of x > 0; -inf for 0, NaN below. */
double tr_log(double x);
/* Sine and cosine of |x| < 2^20 (radians). */
void tr_sincos(double x, double *s, double *c);
/* x to the power of a whole number n >= 0, by repeated multiplication. */
double tr_power(double x, long long n);
#endif
