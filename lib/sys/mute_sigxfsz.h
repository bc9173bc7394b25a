/* SPDX-License-Identifier: Apache-2.0 */
/* Brackets a call that makes a file longer. If the file would exceed the process's file size limit,
 * the call then fails with EFBIG, and the process is not killed by SIGXFSZ. shf_mute_end returns
 * the result that it is given. */
#ifndef SHF_MUTE_SIGXFSZ_H
#define SHF_MUTE_SIGXFSZ_H
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct shf_mute {
	sigset_t was;                   /* the thread's signal mask before */
	bool done, pending;             /* the mask was changed; a SIGXFSZ of the program itself was
	                                 * blocked and pending before */
};
void shf_mute_begin(struct shf_mute *m);
int64_t shf_mute_end(struct shf_mute *m, int64_t result);
#endif
