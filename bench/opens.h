/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a step of many tensors and reading one of them, in a folder made here and removed. */
#ifndef OPENS_H
#define OPENS_H
#include <stdbool.h>

/* 544,000 tensors, few if quick; prints as sheaf-bench-scale does. 0, or a code with its sentence
 * on stderr. */
int bench_opens(bool quick, bool json);
#endif
