/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHF_THREAD_H
#define SHF_THREAD_H
#include <pthread.h>

/* Starts a thread that takes no signals. Returns 0 or a positive errno. */
int shf_thread_start(pthread_t *thread, void *(*work)(void *arg), void *arg);
#endif
