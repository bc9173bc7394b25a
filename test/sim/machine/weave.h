/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of which one runs at a time. The next one is drawn from the seed at every lock, unlock
 * and wait, and at every weave_point, so that a seed is a schedule of real threads with real locks.
 * If all threads wait for each other, the program ends and prints the seed.
 *
 * A program that uses this is linked with `weave` (test/sim/meson.build), which replaces its calls
 * of pthreads. Other threads are not affected; they must not share a lock with these. */
#ifndef WEAVE_H
#define WEAVE_H
#include <stdint.h>
#include "sys_tables.h"

struct weave_stat {
	uint64_t points, switches, blocked, late;       /* late: waits that timed out */
};
/* The calling thread becomes the first one. */
void weave_begin(uint64_t seed);
/* All other threads must have ended. */
void weave_end(struct weave_stat *add);
/* Another thread may run here. Does nothing in a thread that is not woven. */
void weave_point(void);
/* Returns a number 0 .. n - 1 from the schedule's seed. */
uint64_t weave_draw(uint64_t n);
/* Starts a thread that calls fn(arg). */
int  weave_start(void (*fn)(void *arg), void *arg);
void weave_join(int thread);
/* Sets the table's tasks to woven threads. */
void weave_tasks(struct sys_tables *ops);
#endif
