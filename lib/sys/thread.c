/* SPDX-License-Identifier: Apache-2.0 */
/* Starts threads that take no signals. */
#include <signal.h>
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
