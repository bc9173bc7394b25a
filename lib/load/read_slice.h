/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one slice of a step in one process, without a plan and without other ranks. */
#ifndef SHF_READ_SLICE_H
#define SHF_READ_SLICE_H
#include "layout.h"
#include "state.h"
#include "step.h"

/* Fills one slice from the step, as sheaf_checkpoint_read in sheaf.h. ELAYOUT, ECORRUPT, EIO;
 * EAGAIN if the memory that held the step was reused meanwhile. [local] */
int shf_step_read(struct sheaf_checkpoint *step, const struct sheaf_slice *slice,
                  struct sheaf_error *err);
/* Reads slice s, which has been adapted to the stored tensor t (shf_load_slice_adapt). Adds the
 * number of bytes read to *disk_bytes. [local] */
int shf_read_slice(struct sheaf_checkpoint *step, const struct shf_lt_tensor *t,
                   const struct shf_slice *s, uint64_t *disk_bytes, struct sheaf_error *err);
#endif
