/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of all entry points: error structs that may be NULL, and structs whose size differs
 * because the caller was compiled with another version of sheaf.h. */
#ifndef SHF_ENTRY_H
#define SHF_ENTRY_H
#include <stdbool.h>
#include <stddef.h>
#include "group.h"
#include "sheaf.h"

struct sheaf_run;

/* Returns err, or own if the caller passed NULL, after clearing it. */
struct sheaf_error *shf_err_or(struct sheaf_error *err, struct sheaf_error *own);
/* Returns rc, and makes sure that *err fits to it: cleared on success, and on failure with a
 * message for this very code. The last call of every entry point. */
int shf_ended(int rc, struct sheaf_error *err);

/* Copies *from to the caller's struct *to, as much as fits; members that only the caller's version
 * has become 0. Both begin with their size, which the caller has set. SHEAF_EINVAL: the size is
 * less than `least`, or is not that of a struct. */
int shf_struct_out(void *to, const void *from, size_t bytes, size_t least);
/* Copies the caller's struct *from to *to. Members that the caller's version does not have become
 * 0. SHEAF_EINVAL also if members that this version does not have are not 0, because they ask for
 * something that it cannot do. */
int shf_struct_in(void *to, const void *from, size_t bytes, size_t least);

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
/* Returns EINVAL because an output pointer, for `what`, is NULL on this rank. Takes part in the
 * call first, so that the other ranks fail as well instead of waiting. [collective] */
int shf_refuse_all(struct sheaf_group *group, const struct sheaf_opts *opts,
                   enum shf_call_kind call, const char *what, struct sheaf_error *err);
#endif
