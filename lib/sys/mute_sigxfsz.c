/* SPDX-License-Identifier: Apache-2.0 */
/* A write beyond the file size limit (RLIMIT_FSIZE) fails with EFBIG and also sends SIGXFSZ, which
 * kills the process by default. A program that uses this library does not expect that. So while a
 * call of ours makes a file longer, the signal is blocked in this thread, and the signal that the
 * call caused is taken away before it is unblocked. No handler, no disposition and no other thread
 * is touched. */
#include <errno.h>
#include <signal.h>
#include <time.h>
#include "mute_sigxfsz.h"

static sigset_t only_xfsz(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGXFSZ);
	return set;
}

/* Blocks SIGXFSZ in this thread. If the program has it blocked already, a pending signal may be the
 * program's own, and is then left alone. */
void shf_mute_begin(struct shf_mute *m)
{
	sigset_t set = only_xfsz(), pending;

	m->pending = false;
	m->done = pthread_sigmask(SIG_BLOCK, &set, &m->was) == 0;
	if (m->done && sigismember(&m->was, SIGXFSZ))
		m->pending = !sigpending(&pending) && sigismember(&pending, SIGXFSZ);
}

/* Takes away the signal that our call caused, before it is unblocked. errno stays as it is. */
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
