/* SPDX-License-Identifier: Apache-2.0 */
/* SHEAF_SAVE_CHECK: detects that the memory of a slice was changed before the gate of the slice
 * opened. */
#ifndef SHF_SAVE_MEMORY_CHECK_H
#define SHF_SAVE_MEMORY_CHECK_H
#include "save_pieces.h"

/* Computes the checksums of all slices, before anything is copied. Averages are left out. ENOMEM.
 * [local] */
int  shf_save_memory_check_begin(struct shf_save_copier *lz, struct sheaf_error *err);
/* Computes the checksum of one slice that the caller is about to put. base: the memory that the
 * slice lies in. ENOMEM. */
int  shf_save_memory_check_put(struct shf_save_copier *lz, size_t slice, uint8_t *base,
                               struct sheaf_error *err);
/* Computes the checksum of a copied slice once more, and compares it with the checksum of the copy
 * and with the one from begin or put. One thread does this for a slice; others wait for it, for
 * timeout_ms at most (< 0: for ever), so no gate of the slice opens before the comparison.
 * EDIVERGED if memory was changed, which also fails the save; EAGAIN; ENOMEM. [any thread] */
int  shf_save_memory_check_slice(struct shf_save_copier *lz, size_t slice, int timeout_ms,
                                 struct sheaf_error *err);
#endif
