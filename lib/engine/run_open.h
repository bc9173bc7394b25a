/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a run by its directory. run_ops.c closes it. */
#ifndef SHF_RUN_OPEN_H
#define SHF_RUN_OPEN_H
#include "run.h"

/* Does what sheaf_run_open does, on a given system interface, which tests replace by a simulator.
 * [collective] */
int shf_run_open(struct sheaf_run **run, const char *dir, struct sheaf_group *group,
                 const struct shf_opts *opts, const struct shf_sys *sys,
                 struct sheaf_error *err);
#endif
