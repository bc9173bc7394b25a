/* SPDX-License-Identifier: Apache-2.0 */
/* Exponential moving averages, defined to the last bit. Each item becomes
 *     e = fma(c, e, d * w)    c = (float)coef, d = (float)(1.0 - coef)
 * in fp32. The product and the fma are each rounded once, to nearest even, and a result that is not
 * a number becomes 0x7fc00000. The bits do not depend on the width of vectors, on where a tensor is
 * cut, on the thread, or on the rounding mode and denormal flushing of the caller's thread. */
#ifndef SHF_AVERAGE_H
#define SHF_AVERAGE_H
#include <stddef.h>
#include <stdint.h>

/* Returns the coefficient of the n-th update after the first: the lesser of coef and
 * (1 + n) / (warmup + n); with warmup 0, coef. */
double shf_average_coef(double coef, int64_t warmup, int64_t n);
/* Updates n items of e from the weights w, which may be of any float type of whole bytes, at any
 * address, and must not overlap e. */
void shf_average(float *e, const void *w, int w_dtype, size_t n, double coef);

/* Returns the i-th implementation in this build, for tests and measurements; NULL after the last.
 * *here: whether this machine can run it. An implementation takes fp32 only and must be called in
 * the default floating-point environment. */
typedef void shf_average_path(float *e, const float *w, size_t n, float c, float d);
shf_average_path *shf_average_way(int i, const char **name, int *here);
#endif
