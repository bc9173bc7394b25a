/* SPDX-License-Identifier: Apache-2.0 */
/* What all entry points do with arguments: errors that may be NULL, structs of another size. */
#ifndef SHF_ENTRY_H
#define SHF_ENTRY_H
#include <stdbool.h>
#include <stddef.h>
#include "group.h"
#include "sheaf.h"

struct sheaf_run;

/* *err, or *own where the caller gave none; cleared. */
struct sheaf_error *shf_err_or(struct sheaf_error *err, struct sheaf_error *own);
/* The last word of a call: rc, with a sentence in *err that is about it. */
int shf_ended(int rc, struct sheaf_error *err);

/* A struct that goes out: as much of *from as the caller knows, 0 in what he knows and we do not.
 * Both begin with their size, which the caller set. SHEAF_EINVAL: it is less than `least`, or no
 * size of a struct. */
int shf_struct_out(void *to, const void *from, size_t bytes, size_t least);
/* One that comes in. Missing members become 0; SHEAF_EINVAL also: a tail that we do not know is
 * not 0. */
int shf_struct_in(void *to, const void *from, size_t bytes, size_t least);

/* The caller's report as we know it, its counts at 0; and back to him, with what came of it. */
int shf_report_in(struct sheaf_report *own, const struct sheaf_report *theirs,
                  struct sheaf_error *err);
void shf_report_out(struct sheaf_report *theirs, struct sheaf_report *own,
                    const struct sheaf_report *in);

/* 0, or SHEAF_EINVAL: no run, or that of another process. Then nothing may be communicated. */
int shf_run_check(const struct sheaf_run *run, struct sheaf_error *err);
/* Where an output pointer is NULL on one rank, all ranks hear of it. [collective] */
int shf_refuse_all(struct sheaf_group *group, const struct sheaf_opts *opts,
                   enum shf_call_kind call, const char *what, struct sheaf_error *err);
#endif
