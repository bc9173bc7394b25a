/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that take no signals, and condition variables that do not follow the time of day. */
#include <signal.h>
#include <time.h>
#include "thread.h"

/* A thread inherits the signal mask of its creator, so all signals are blocked while it is made. */
int shf_thread_start(pthread_t *thread, void *(*work)(void *arg), void *arg)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	rc = pthread_sigmask(SIG_SETMASK, &all, &old);
	if (rc)
		return rc;
	rc = pthread_create(thread, NULL, work, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

int shf_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;
	int rc = pthread_condattr_init(&attr);

	if (rc)
		return rc;
	rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (!rc)
		rc = pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
	return rc;
}
