/* SPDX-License-Identifier: Apache-2.0 */
/* What any part of a save may ask of it or tell it: has it failed, how far is it, is all of it
 * written. */
#ifndef SHF_SAVE_HANDLE_H
#define SHF_SAVE_HANDLE_H
#include "save.h"

/* The first failure of a save, with its sentence; later ones are forgotten. [any thread] */
void shf_save_stick(struct sheaf_save *save, int rc, const struct sheaf_error *err);
int  shf_save_rc(struct sheaf_save *save, struct sheaf_error *err);      /* err may be NULL */
/* What this rank knows against the save: sheaf_save_fail, or its first failure. [local] */
int  shf_save_failure(struct sheaf_save *save, struct sheaf_error *err);
/* The same, for the last time: from now on sheaf_save_fail returns EINVAL, too late. [local] */
int  shf_save_seal(struct sheaf_save *save, struct sheaf_error *err);
int shf_save_fail(struct sheaf_save *save, const char *why);
void shf_save_progress(const struct sheaf_save *save);  /* the caller's callback hears of it */
void shf_save_stat(const struct sheaf_save *save, struct sheaf_stat *stat);     /* [any thread] */
/* Of all its files of tensors. */
uint64_t shf_save_bytes(const struct sheaf_save *save);
/* How many images it may choose from; equal on all ranks. [local] */
int  shf_save_images(const struct sheaf_save *save);
/* Does all of it lie in one image, while another one may have the step before? [local] */
bool shf_save_fits_memory(const struct sheaf_save *save);
/* The same on all ranks, of one owner in the save: in slices much shorter than the deadline, so
 * that a slow disk is not taken for a dead rank. until_ns: by this rank's clock, < 0 on all ranks:
 * for ever; over when the first one's is. 0, EAGAIN, or the first failure of any rank, told when no
 * rank writes any more or the time is up. [collective] */
int  shf_save_drain_together(struct sheaf_save *save, struct shf_io_owner *owner, int64_t until_ns,
                             struct sheaf_error *err);
int shf_save_drain(struct sheaf_save *save, int timeout_ms);
/* Is there a copy behind? False: begin has copied all. */
bool shf_lazy_is_behind(const struct sheaf_save *save);
#endif
