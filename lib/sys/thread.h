/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHF_THREAD_H
#define SHF_THREAD_H
#include <pthread.h>

/* Starts a thread that takes no signals. Returns 0 or a positive errno. */
int shf_thread_start(pthread_t *thread, void *(*work)(void *arg), void *arg);
/* Initialises a condition variable that uses the monotonic clock, because the wall clock may be set
 * while a thread waits. Returns 0 or a positive errno. */
int shf_cond_init(pthread_cond_t *cond);
#endif
