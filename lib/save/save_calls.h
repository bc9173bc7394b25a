/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls on a save between begin and commit: sheaf_save_wait_copied, _put, _wait,
 * _exchange. */
#ifndef SHF_SAVE_CALLS_H
#define SHF_SAVE_CALLS_H
#include "save.h"

/* Each function does what the call of sheaf.h with the same name does. The caller has checked that
 * the handle is valid. [collective] */
int shf_save_advance(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err);
/* The first part of sheaf_save_advance: sends bytes to other nodes. EAGAIN: more are to be sent, or
 * some rank still copies. [collective] */
int shf_save_exchange(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err);
/* timeout_ms negative: without a limit. */
int shf_save_copied(struct sheaf_save *save, int slice, int timeout_ms,
                    struct sheaf_error *err);           /* [any thread] */
int shf_save_put(struct sheaf_save *save, int slice, const void *data,
                 struct sheaf_error *err);              /* [any thread] */
/* The same for the slices of a list. In the first, slices may be NULL: all. In the second, data is
 * where the slice lies, if there is only one; NULL: where the state says. [any thread] */
int shf_save_list_copied(struct sheaf_save *save, const int *slices, size_t n, int timeout_ms,
                         struct sheaf_error *err);
int shf_save_list_put(struct sheaf_save *save, const int *slices, size_t n, const void *data,
                      struct sheaf_error *err);
/* [any thread] */
int shf_save_wait(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err);
#endif
