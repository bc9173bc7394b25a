/* SPDX-License-Identifier: Apache-2.0 */
/* A file that may not grow (RLIMIT_FSIZE) is EFBIG, and SIGXFSZ besides, whose default is death.
 * Our host has not asked for that: while a call of ours makes a file longer the signal is blocked
 * in this thread, and the one that the call brought is taken away. No handler, no disposition,
 * and nothing of another thread's, is touched. */
#include <errno.h>
#include <signal.h>
#include <time.h>
#include "mute.h"

static sigset_t only_xfsz(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGXFSZ);
	return set;
}

void shf_mute_begin(struct shf_mute *m)
{
	sigset_t set = only_xfsz(), pending;

	m->pending = false;
	m->done = pthread_sigmask(SIG_BLOCK, &set, &m->was) == 0;
	/* One that the host holds back is the host's. */
	if (m->done && sigismember(&m->was, SIGXFSZ))
		m->pending = !sigpending(&pending) && sigismember(&pending, SIGXFSZ);
}

int64_t shf_mute_end(struct shf_mute *m, int64_t result)
{
	static const struct timespec now = { 0 };
	sigset_t set = only_xfsz();
	int saved = errno;

	if (!m->done)
		return result;
	if (result == -EFBIG && !m->pending)
		(void)sigtimedwait(&set, NULL, &now);
	(void)pthread_sigmask(SIG_SETMASK, &m->was, NULL);
	errno = saved;
	return result;
}
