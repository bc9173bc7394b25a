/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how long it takes to open a step of many tensors and to read one, in a temporary
 * folder. */
#ifndef OPENS_H
#define OPENS_H
#include <stdbool.h>

/* Uses 544,000 tensors, or few if quick; prints as sheaf-bench-scale does. Returns 0, or an error
 * code after printing the message to stderr. */
int bench_opens(bool quick, bool json);
#endif
