/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes a step that a dead job left in its stage. */
#ifndef SHF_RUN_SALVAGE_H
#define SHF_RUN_SALVAGE_H
#include "opts.h"
#include "sheaf.h"
#include "sys.h"

/* Publishes a step that a dead job left complete in its stage, after verifying all of it.
 * [local] */
int shf_run_salvage(const char *dir, int64_t step, const struct shf_opts *opts,
                    const struct shf_sys *sys, struct sheaf_report *report,
                    struct sheaf_error *err);
#endif
