/* SPDX-License-Identifier: Apache-2.0 */
/* One slice, read by this process alone. [local] */
#ifndef SHF_READ_SLICE_H
#define SHF_READ_SLICE_H
#include "layout.h"
#include "state.h"
#include "step.h"

/* Fills one slice from the step. One process calls it, without the others. [local] */
int shf_step_read(struct sheaf_step *step, const struct sheaf_slice *slice,
                  struct sheaf_error *err);
/* The same for a slice that is adapted to the stored tensor already. */
int shf_direct_read(struct sheaf_step *step, const struct shf_lt_tensor *t,
                    const struct shf_slice *s, uint64_t *disk_bytes, struct sheaf_error *err);
#endif
