/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's options for a run: checked, copied, with their defaults. */
#ifndef SHF_OPTS_H
#define SHF_OPTS_H
#include "sheaf.h"
#include "sys.h"

#define SHF_LOCK_WAIT_MS 30000  /* for another job to leave the run, at most */
#define SHF_AGENT_MAX 104       /* bytes of the path of a socket, and its end */
#define SHF_IMAGES_MAX (SHF_PINS - 1)   /* of saves; each is pinned, as is that of a load */

/* Checks and copies the caller's options and fills in defaults. Strings are copied, too. EINVAL,
 * ENOMEM. [local] */
int shf_opts_take(struct sheaf_opts *out, const struct sheaf_opts *in, struct sheaf_error *err);
/* Frees the copies of strings. */
void shf_opts_release(struct sheaf_opts *opts);
/* How long a rank may keep the others waiting in an agreement: half their deadline, most_ms at
 * most. */
int shf_opts_wait_ms(const struct sheaf_opts *opts, int most_ms);
/* How long of that it may spend deleting old files: a quarter of their deadline. */
int shf_opts_clear_ms(const struct sheaf_opts *opts);
#endif
