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
/* What shf_read_slice has read; zeroed by the caller. */
struct shf_slice_read {
	bool sums;                      /* set by the caller: compute `digest` */
	uint64_t disk_bytes, retries;   /* bytes read from the file; reads that were repeated */
	uint64_t bytes, digest;         /* size of the slice as it is stored, and the digest of
	                                 * these bytes: if they are all of the tensor, its digest */
};
/* Reads slice s, which has been adapted to the stored tensor t (shf_load_slice_adapt). Adds to
 * *done. [local] [any thread, if the file of the tensor is open: shf_step_fd] */
int shf_read_slice(struct sheaf_checkpoint *step, const struct shf_lt_tensor *t,
                   const struct shf_slice *s, struct shf_slice_read *done, struct sheaf_error *err);
#endif
