/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLOCK_H
#define CLOCK_H
#include <stdint.h>
#include <time.h>

/* Returns the time in nanoseconds, on a clock that is the same in all processes of a machine and is
 * never set back. */
static inline int64_t tr_clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}
#endif
