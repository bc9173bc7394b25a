/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls on a save between begin and commit: gates, readiness, advance. */
#ifndef SHF_SAVE_CALLS_H
#define SHF_SAVE_CALLS_H
#include "save.h"

/* Each function does what the public call named beside it does. The caller has checked that the
 * handle is valid. */

/* sheaf_save_advance. [collective] */
int shf_save_advance(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err);
/* The first part of sheaf_save_advance: sends bytes to other nodes. EAGAIN: more are to be sent, or
 * some rank still copies. [collective] */
int shf_save_exchange(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err);
/* sheaf_save_wait_copied. timeout_ms negative: without a limit. [any thread] */
int shf_save_copied(struct sheaf_save *save, int slice, int timeout_ms,
                    struct sheaf_error *err);
/* sheaf_save_slice_ready. [any thread] */
int shf_save_put(struct sheaf_save *save, int slice, const void *data,
                 struct sheaf_error *err);
/* sheaf_save_slices_copied and sheaf_save_slices_ready: like the two functions above, for a list of
 * slices. list_copied: slices NULL means all. list_put: data is where the slice is, if there is
 * only one; NULL: where the state says. [any thread] */
int shf_save_list_copied(struct sheaf_save *save, const int *slices, size_t n, int timeout_ms,
                         struct sheaf_error *err);
int shf_save_list_put(struct sheaf_save *save, const int *slices, size_t n, const void *data,
                      struct sheaf_error *err);
/* sheaf_save_ready, but waits for at most timeout_ms; negative: without a limit. [any thread] */
int shf_save_wait(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err);
#endif
