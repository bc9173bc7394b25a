/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's options for a run: checked, copied, with their defaults. */
#ifndef SHF_OPTS_H
#define SHF_OPTS_H
#include "sheaf.h"
#include "sys.h"

#define SHF_TIMEOUT_MS 600000   /* the default of opts.timeout_ms */
#define SHF_LOCK_WAIT_MS 30000  /* most time to wait for another job to release the run's lock */
#define SHF_AGENT_MAX 104       /* most bytes of opts.agent, with the NUL: a socket's path */
/* Most images of saves. Each image, and that of a load, is registered with the disk queue. */
#define SHF_IMAGES_MAX (SHF_PINS - 1)

/* Checks and copies the caller's options and fills in defaults. Strings are copied, too. EINVAL,
 * ENOMEM. [local] */
int shf_opts_take(struct sheaf_opts *out, const struct sheaf_opts *in, struct sheaf_error *err);
/* Frees the copies of strings. */
void shf_opts_release(struct sheaf_opts *opts);
/* Returns for how many ms a rank may keep the others waiting in an agreement: half their timeout,
 * but at most most_ms. */
int shf_opts_wait_ms(const struct sheaf_opts *opts, int most_ms);
/* Returns for how many ms a call may delete old files: a quarter of the timeout. */
int shf_opts_clear_ms(const struct sheaf_opts *opts);
#endif
