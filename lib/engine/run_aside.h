/* SPDX-License-Identifier: Apache-2.0 */
/* Bringing back, or deleting, a step that was set aside. */
#ifndef SHF_RUN_ASIDE_H
#define SHF_RUN_ASIDE_H
#include "opts.h"
#include "sheaf.h"
#include "sys.h"

/* aside: the path of the step in the run, ".sheaf/aside/<name>", or <name> alone. Both take the
 * lock of the run as a job does that opens it to write. [local] */
int shf_run_restore(const char *dir, const char *aside, const struct shf_opts *opts,
                    const struct shf_sys *sys, struct sheaf_error *err);
int shf_run_discard(const char *dir, const char *aside, const struct shf_opts *opts,
                    const struct shf_sys *sys, struct sheaf_error *err);
#endif
