/* SPDX-License-Identifier: Apache-2.0 */
/* What every file of a save needs of it: its first failure, its progress, its size, and whether its
 * requests to the disk have finished. */
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
/* Bytes of all files of tensors of the step, those of other ranks too. */
uint64_t shf_save_bytes(const struct sheaf_save *save);
/* How many images it may choose from; equal on all ranks. [local] */
int  shf_save_images(const struct sheaf_save *save);
/* Does all of it lie in one image, while another one may have the step before? [local] */
bool shf_save_fits_memory(const struct sheaf_save *save);
/* Waits until none of the save's own requests is under way. Returns EAGAIN after timeout_ms (< 0:
 * waits for ever), or the save's own rc. [any thread] */
int shf_save_drain(struct sheaf_save *save, int timeout_ms);
/* How long a rank works or waits before ranks tell one another how far they are. Much shorter than
 * the deadline of a group's operation, so that a slow disk is not taken for a dead rank. */
#define SHF_SLICE_MS 250
/* The same, or less if until_ns is nearer. In milliseconds; 0: that time is over. */
int  shf_save_slice_ms(const struct sheaf_run *run, int64_t until_ns);
/* Calls `part` on all ranks until it returns false on all of them: nothing is left to do. It must
 * return within SHF_SLICE_MS, and its own failures are not told here. [collective] */
int shf_save_together(struct sheaf_save *save, bool (*part)(struct sheaf_save *save),
                      struct sheaf_error *err);
/* Waits until no rank writes any part of the save. Returns 0 or the first failure of any rank;
 * never before all ranks have stopped writing. [collective] */
int shf_save_drain_together(struct sheaf_save *save, struct sheaf_error *err);
/* Returns whether the save is copied after begin has returned; if not, begin has copied all. */
bool shf_lazy_is_behind(const struct sheaf_save *save);
#endif
