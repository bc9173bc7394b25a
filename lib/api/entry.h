/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of all entry points: errors and reports that may be NULL, and the checks of handles. */
#ifndef SHF_ENTRY_H
#define SHF_ENTRY_H
#include <stdbool.h>
#include <stddef.h>
#include "group.h"
#include "opts.h"
#include "sheaf.h"

struct sheaf_run;

/* Returns rc, and makes sure that *err fits rc: cleared on success, and on failure with a message
 * for this very code. The last call of every entry point. */
int shf_ended(int rc, struct sheaf_error *err);

/* A caller's report while a call runs. was: as it came, because the engine may replace the
 * callbacks in `own`. */
struct shf_reporting { struct sheaf_report own, was; };
/* shf_report_begin copies the caller's report (may be NULL), with its counts at 0. shf_report_end
 * copies the results in r->own back to the caller. */
int shf_report_begin(struct shf_reporting *r, const struct sheaf_report *theirs,
                     struct sheaf_error *err);
void shf_report_end(struct shf_reporting *r, struct sheaf_report *theirs);

/* Returns 0, or SHEAF_EINVAL if run is NULL or was opened by another process (a forked child must
 * not use it). On EINVAL the caller must not use the group. */
int shf_run_check(const struct sheaf_run *run, struct sheaf_error *err);
/* Checks the output pointer of a call that opens something, and collects the caller's options. If
 * one of them is wrong, returns EINVAL after taking part in the call, so that the other ranks fail
 * as well instead of waiting. what: name of the argument `out`. [collective] */
int shf_open_check(const void *out, const char *what, struct shf_opts *opts,
                   const struct sheaf_opts *theirs, struct sheaf_group *group,
                   enum shf_call_kind call, struct sheaf_error *err);
#endif
