/* SPDX-License-Identifier: Apache-2.0 */
/* Brackets a call that makes a file longer: beyond the process's file size limit it fails with
 * EFBIG instead of killing the process by SIGXFSZ. shf_mute_end returns the result that it is
 * given. */
#ifndef SHF_MUTE_H
#define SHF_MUTE_H
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct shf_mute {
	sigset_t was;
	bool done, pending;
};
void shf_mute_begin(struct shf_mute *m);
int64_t shf_mute_end(struct shf_mute *m, int64_t result);
#endif
