/* SPDX-License-Identifier: Apache-2.0 */
/* A load whose caller takes one slice after the other, in any order and from any thread, into
 * buffers of its own (sheaf_load_begin). */
#ifndef SHF_LOAD_SLICES_H
#define SHF_LOAD_SLICES_H
#include "load.h"
#include "sheaf-load.h"

/* Do what sheaf.h says of sheaf_load_begin, _take, _fills, _end and _free. report: may be NULL; its
 * numbers are set on success only. */
int shf_load_slices_begin(struct sheaf_load **load, struct sheaf_checkpoint *step,
                          struct sheaf_state *state, uint64_t flags, struct sheaf_report *report,
                          struct sheaf_error *err);        /* [collective] */
int shf_load_slices_take(struct sheaf_load *load, int slice, void *data,
                         struct sheaf_error *err);         /* [any thread] */
int shf_load_slices_fills(const struct sheaf_load *load, int slice,
                          struct sheaf_error *err);        /* [any thread] */
/* rc: 0, or a failure of this rank before the call, which is then returned on all ranks. */
int shf_load_slices_end(struct sheaf_load *load, int rc, struct sheaf_report *report,
                        struct sheaf_error *err);          /* [collective] */
void shf_load_slices_free(struct sheaf_load *load);        /* [local] */
/* Returns the run whose step is loaded. */
struct sheaf_run *shf_load_slices_run(const struct sheaf_load *load);
#endif
