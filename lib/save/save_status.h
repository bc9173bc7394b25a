/* SPDX-License-Identifier: Apache-2.0 */
/* What all files of lib/save use of a save: its first failure, its progress, its size, and waiting
 * for its requests to the disk. */
#ifndef SHF_SAVE_STATUS_H
#define SHF_SAVE_STATUS_H
#include "save.h"
#include "sheaf-stat.h"

/* Records rc and its sentence as the failure of the save, unless it has failed already. err NULL: a
 * general sentence. [any thread] */
void shf_save_stick(struct sheaf_save *save, int rc, const struct sheaf_error *err);
/* Returns rc, but SHEAF_EFAILED for SHEAF_EINVAL: that would mean that nothing has happened, and
 * the save may go on. err: its code is changed, too. [any thread] */
int shf_save_failed_for_good(int rc, struct sheaf_error *err);
/* Returns the recorded failure, or 0. */
int  shf_save_rc(struct sheaf_save *save, struct sheaf_error *err);      /* [any thread]; err may be
                                                                          * NULL */
/* Returns EFAILED if sheaf_save_abort was called on this rank, else the recorded failure or 0.
 * [any thread] */
int  shf_save_failure(struct sheaf_save *save, struct sheaf_error *err);
/* Closes the save to sheaf_save_abort, which returns EINVAL from now on, and returns
 * shf_save_failure. [local] */
int  shf_save_seal(struct sheaf_save *save, struct sheaf_error *err);
/* Does what sheaf_save_abort does. EINVAL: the save is sealed or over. [any thread] */
int shf_save_fail(struct sheaf_save *save, const char *why, struct sheaf_error *err);
/* Calls opts.progress, unless the commit thread calls. If it returns non-zero, the save is aborted,
 * as by sheaf_save_abort. The caller has the run. */
void shf_save_progress(struct sheaf_save *save);
void shf_save_progress_now(struct sheaf_save *save);      /* calls it. [any thread] */
void shf_save_stat(const struct sheaf_save *save, struct sheaf_stat *stat);     /* [any thread] */
/* Returns the total size of the tensor files of the step, over all ranks. */
uint64_t shf_save_bytes(const struct sheaf_save *save);
/* Returns how many images this save may choose from; equal on all ranks. [local] */
int  shf_save_images(const struct sheaf_save *save);
/* Whether the step can be kept in memory: all of it lies in one image, and there is a second image,
 * so the step before can stay in memory until this one is complete. [local] */
bool shf_save_fits_memory(const struct sheaf_save *save);
/* Waits until all submitted writes of the save have finished. Returns EAGAIN after timeout_ms (< 0:
 * no limit), else the failure of the save or 0. [any thread] */
int shf_save_drain(struct sheaf_save *save, int timeout_ms);
/* For how many ms a rank works or waits before the ranks exchange their progress. This is much
 * shorter than the timeout of a group operation, so that a rank with a slow disk is not taken for
 * dead. */
#define SHF_SAVE_POLL_MS 250
/* Returns SHF_SAVE_POLL_MS, or the ms left until until_ns if that is less; 0: until_ns has
 * passed. */
int  shf_save_poll_ms(const struct sheaf_run *run, int64_t until_ns);
/* Calls `part` on all ranks again and again, until it returns false on all of them, which means
 * that nothing is left to do. One call of it may take SHF_SAVE_POLL_MS at most. Failures of `part`
 * are not returned here. [collective] */
int shf_save_together(struct sheaf_save *save, bool (*part)(struct sheaf_save *save),
                      struct sheaf_error *err);
/* Waits until no rank has a write of the save in flight; only then returns 0, or the first failure
 * of any rank. [collective] */
int shf_save_drain_together(struct sheaf_save *save, struct sheaf_error *err);
/* Whether the save is copied in the background, after begin has returned. False: begin copies
 * everything. */
bool shf_save_is_async(const struct sheaf_save *save);
#endif
