/* SPDX-License-Identifier: Apache-2.0 */
/* Exponential moving averages, of which every bit is said: for each item
 *     e = fma(c, e, d * w)    c = (float)coef, d = (float)(1.0 - coef)
 * in fp32, the product and the fma rounded once each, to the nearest even; what is not a number
 * becomes 0x7fc00000. The same for every width of vector, every cut and every thread, whatever
 * rounding and flushing the caller's thread has set. */
#ifndef SHF_AVERAGE_H
#define SHF_AVERAGE_H
#include <stddef.h>

/* n items; w of any float type of whole bytes, at any alignment, not overlapping e. */
void shf_average(float *e, const void *w, int w_dtype, size_t n, double coef);

/* The ways there are in this build, for tests and measurements, of fp32 alone; called with the
 * default floating-point environment. NULL behind the last. */
typedef void shf_average_path(float *e, const float *w, size_t n, float c, float d);
shf_average_path *shf_average_way(int i, const char **name, int *here);
#endif
