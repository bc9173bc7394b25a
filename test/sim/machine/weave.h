/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of which one runs at a time. Who runs next is drawn from the seed at every lock, unlock
 * and wait of theirs and wherever weave_point is called, so that a seed is a schedule of real
 * threads through real locks. Threads that all wait for each other end the program, with the seed.
 *
 * A program that uses it is linked with `weave` (test/sim/meson.build), so that its calls of
 * pthreads come here. Threads that are not woven are let alone; they and woven ones share no
 * lock. */
#ifndef WEAVE_H
#define WEAVE_H
#include <stdint.h>
#include "sys_tables.h"

struct weave_stat {
	uint64_t points, switches, blocked, late;       /* late: waits that ended by their time */
};
/* The thread that calls is the first. */
void weave_begin(uint64_t seed);
/* All others have ended. */
void weave_end(struct weave_stat *add);
/* Perhaps somebody else is next. Nothing where the thread is not woven. */
void weave_point(void);
/* 0 .. n - 1 from the schedule's seed. */
uint64_t weave_draw(uint64_t n);
/* fn(arg) in a thread of its own, until it returns. */
int  weave_start(void (*fn)(void *arg), void *arg);
void weave_join(int thread);
/* In a machine's table: tasks are woven threads. */
void weave_tasks(struct sys_tables *ops);
#endif
