/* SPDX-License-Identifier: Apache-2.0 */
/* The events that rank 0 of a training writes to stdout, for programs of trainthreads.h. */
#ifndef TRAINTOLD_H
#define TRAINTOLD_H
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "trainthreads.h"

static char told[1 << 16];              /* the events of the last training */
static void (*on_event)(const char *line);      /* called by rank 0; NULL: none */

/* Keeps the events of the next training in `told`, and calls `event` for each of them. */
static inline void begin_to_listen(void (*event)(const char *line))
{
	told[0] = 0;
	on_event = event;
	rank_0_tells = 1;
}

/* If rank 0 is lost, another rank writes an event, too. */
T_REPLACES ssize_t write(int fd, const void *from, size_t n)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	size_t at;

	if (!rank_0_tells || fd != STDOUT_FILENO)
		return syscall(SYS_write, fd, from, n);
	pthread_mutex_lock(&lock);
	at = strlen(told);
	CHECK(at + n < sizeof(told));
	memcpy(told + at, from, n);
	told[at + n] = 0;
	pthread_mutex_unlock(&lock);
	if (on_event)
		on_event(told + at);
	return (ssize_t)n;
}

/* Returns how often a text is in the events. */
static inline int count(const char *text)
{
	int n = 0;

	for (const char *at = told; (at = strstr(at, text)) != NULL; at++)
		n++;
	return n;
}

/* Returns the step with which the training began, or 0 if it did not begin. */
static inline int first_step(void)
{
	const char *at = strstr(told, "\"event\":\"start\"");

	at = at ? strstr(at, "\"step\":") : NULL;
	return at ? atoi(at + strlen("\"step\":")) : 0;
}

/* Returns the step of the last event that has these texts before and behind its step, or 0. */
static inline int last_step(const char *before, const char *behind)
{
	int step = 0;

	for (const char *at = told; (at = strstr(at, before)) != NULL; at++) {
		char *end;
		long n = strtol(at + strlen(before), &end, 10);

		if (strncmp(end, behind, strlen(behind)) == 0)
			step = (int)n;
	}
	return step;
}

/* Trains, or evaluates, on n threads, and keeps the events of rank 0. */
static inline int listen_to(int n, const char *run, const char *steps, const char *flags,
			    struct rank *rank)
{
	int rc;

	begin_to_listen(NULL);
	rc = train_with(n, run, steps, flags, flags, 0, rank);
	rank_0_tells = 0;
	return rc;
}

/* Evaluates a checkpoint on n threads, and keeps the events of rank 0. */
static inline int evaluate_on(int n, const char *run, const char *flags, struct rank *rank)
{
	int rc;

	ranks_evaluate = 1;
	rc = listen_to(n, run, "4", flags, rank);
	ranks_evaluate = 0;
	return rc;
}
#endif
